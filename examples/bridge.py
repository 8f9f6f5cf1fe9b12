"""The native protocol on the bridge access surface, as a local tool uses it: one session, a socket for each turn.

    python3 examples/bridge.py [BASE_URL] [PROMPT]
"""

import asyncio
import json
import sys

import aiohttp

BASE = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9091").rstrip("/")
PROMPT = sys.argv[2] if len(sys.argv) > 2 else "What does median do?"


def first_label(question):
    return question["options"][0]["label"] if question.get("options") else "you decide"


def filled_in(schema):
    """What a form takes: its defaults, and of what else it demands the first choice."""
    first = {"boolean": True, "integer": 0, "number": 0, "array": []}
    content = {}
    for name, member in schema.get("properties", {}).items():
        if "default" in member:
            content[name] = member["default"]
        elif name in schema.get("required", []):
            choices = member.get("enum") or [each["const"] for each in member.get("oneOf", [])]
            content[name] = choices[0] if choices else member.get("minimum", first.get(member.get("type"), "you decide"))
    return content


def answer(frame):
    """Asks nobody: permissions are given, questions get their first option, forms their defaults."""
    request = frame["request"]
    if request["subtype"] == "can_use_tool":
        given = dict(request["input"])
        if questions := given.get("questions"):
            given["answers"] = {each["question"]: first_label(each) for each in questions}
        kind, response = "permission_response", {"behavior": "allow", "updatedInput": given}
    elif request["subtype"] == "elicitation":
        kind, response = "elicitation_response", {"action": "accept", "content": filled_in(request.get("requested_schema") or {})}
    else:
        return None  # not for a person
    print(f"\n[asked] {request.get('tool_name') or request.get('message')}\n[answered] {json.dumps(response)}")
    inner = {"subtype": "success", "request_id": frame["request_id"], "response": response}
    return {"type": "control_response", "kind": kind, "response": inner}


async def turn(http, session, prompt):
    """Submits a prompt and reads the turn to its end. True if it ended well."""
    await http.post(f"{session}/messages", json={"prompt": prompt})
    well, tools = False, set()
    # At once: a turn that nobody is attached to waits, or is gone when it ends.
    async with http.ws_connect(f"{session}/ws") as socket:
        async for message in socket:
            frame = json.loads(message.data)
            match frame["type"]:
                case "streamlined_text":
                    print(frame["text"], end="", flush=True)
                case "tool_progress" if frame["tool_use_id"] not in tools:  # it may be announced more than once
                    tools.add(frame["tool_use_id"])
                    print(f"\n[tool] {frame['tool_name']}")
                case "control_request":
                    if reply := answer(frame):
                        await socket.send_json(reply)
                case "result":
                    well = not frame["is_error"]
                    print(f"\n[result] {frame['subtype']}")
                case "keep_alive":
                    break  # the end of the turn, not a heartbeat
    return well


async def main():
    # Where a token is wanted: headers={"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        made = await http.post(f"{BASE}/v1/code/sessions")
        session = f"{BASE}/v1/code/sessions/{(await made.json())['id']}"
        if not await turn(http, session, PROMPT):
            sys.exit("the turn failed")


asyncio.run(main())
