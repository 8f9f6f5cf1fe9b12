"""A run over SSE with requests: prints the answer as it comes, allows what is asked, and survives a lost connection,
because the run goes on without its readers and can be read on from any event.

    python3 examples/sse.py [BASE_URL] [PROMPT]
"""

import json
import sys
import time

import requests

BASE = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9091").rstrip("/")
PROMPT = sys.argv[2] if len(sys.argv) > 2 else "What does median do?"
CELL = f"{BASE}/cells/my-cell"
ATTEMPTS = 5

http = requests.Session()  # where a token is wanted: http.headers["Authorization"] = f"Bearer {token}"


def events(response):
    """The events in a response's body: lines that begin with `data: `, a JSON object each."""
    response.raise_for_status()
    for line in response.iter_lines():
        if line.startswith(b"data: "):
            yield json.loads(line[len(b"data: "):])


def run(prompt):
    """Starts a run and gives its events, each once, up to the one that ends it."""
    messages = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    body = {"actor": "me", "model": "gpt-4o", "messages": messages}
    response = http.post(f"{CELL}/run", json=body, stream=True)
    response.raise_for_status()
    run_id, seen, failures = None, 0, 0
    while failures < ATTEMPTS:
        try:
            if response is None:
                response = http.get(f"{CELL}/runs/{run_id}/events", params={"from_seq": seen + 1}, stream=True)
            for event in events(response):
                run_id = run_id or event["run_id"]  # the first event is run_start
                seen += 1
                failures = 0
                yield event
                if event["type"] in ("done", "error", "interrupted"):
                    return
        except requests.RequestException as error:
            print(f"\n{error}", file=sys.stderr)
        print(f"\nconnection lost after event {seen}", file=sys.stderr)
        if run_id is None:
            break
        failures += 1
        time.sleep(0.5)
        response = None
    raise RuntimeError("the run is out of reach")


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


def answer(event):
    """Asks nobody: permissions are given, questions get their first option, forms their defaults. A frontend shows
    `arguments` and waits."""
    body = {"grant": "allow"}
    if questions := event["arguments"].get("questions"):
        body["answers"] = {each["question"]: first_label(each) for each in questions}
    if schema := event["arguments"].get("requested_schema"):
        body["content"] = filled_in(schema)
    print(f"\n[asked] {event['tool_name']} {json.dumps(event['arguments'])}\n[answered] {json.dumps(body)}")
    http.post(f"{CELL}/hitl/{event['request_id']}", json=body).raise_for_status()


for event in run(PROMPT):
    match event["type"]:
        case "stream_delta":
            print(event["content"], end="", flush=True)
        case "tool_start":
            print(f"\n[tool] {event['tool_name']}")
        case "approval_request":
            answer(event)
        case "done":
            print(f"\n[done] {event['reason']}")
        case "error":
            sys.exit(f"\n[error] {event['error']}")
        case "interrupted":
            sys.exit(f"\n[interrupted] {event['reason']}")
