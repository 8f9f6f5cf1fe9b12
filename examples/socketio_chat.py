"""A chat over Socket.IO: makes a session by REST, sends a message, prints the turns as they come, answers the questions,
and catches up by REST after a lost connection. A chat that asks pauses; the answer is a new `chat:send`.

    python3 examples/socketio_chat.py [BASE_URL] [PROMPT]
"""

import asyncio
import json
import sys

import aiohttp
import socketio  # no file beside this one may have that name

BASE = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9091").rstrip("/")
PROMPT = sys.argv[2] if len(sys.argv) > 2 else "What does median do?"
TOKEN = "any"  # yours, where tokens are wanted


class Chat:
    def __init__(self, http):
        self.http = http
        # The asynchronous client, and handlers that are no coroutines: only then do events stay in their order.
        self.socket = socketio.AsyncClient()
        self.texts = {}  # a turn's id, and its text so far
        self.finished = set()  # turns that get no more text
        self.questions = {}  # open ones, by the id of their call
        self.begun = False
        self.end = asyncio.get_running_loop().create_future()
        self.tasks = set()  # a loop keeps none alive by itself

    async def run(self, prompt):
        """Talks to the chat's end and gives its status."""
        self.session_id = (await self.rest("POST", "", json={"intent": prompt}))["session_id"]
        on = self.socket.on
        on("connect", lambda: self.later(self.connected(prompt)))
        on("turn:start", self.see_turn)
        on("turn:patch", self.see_patch)
        on("turn:end", self.see_turn)
        on("chat:end", lambda _: self.later(self.settle()))
        on("system:error", lambda error: print(f"\n[error] {error['message']}", file=sys.stderr))
        on("disconnect", lambda reason: self.end.done() or print(f"\nconnection lost: {reason}", file=sys.stderr))
        await self.socket.connect(BASE, auth={"token": TOKEN})
        status = await self.end
        await self.socket.disconnect()
        return status

    async def rest(self, method, path, **body):
        async with self.http.request(method, f"{BASE}/api/sessions{path}", **body) as response:
            return await response.json()

    async def emit(self, event, **payload):
        await self.socket.emit(event, {"session_id": self.session_id, **payload})

    def later(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def connected(self, prompt):
        """The library reconnects by itself, but a subscription ends with its connection."""
        again, self.begun = self.begun, True
        if again:
            await self.catch_up()
        await self.emit("session:subscribe")
        if again:
            await self.settle()
        else:
            await self.emit("chat:send", message=prompt)

    def show(self, turn_id, text):
        """Prints what is new of a turn's text."""
        print(text[len(self.texts.get(turn_id, "")):], end="", flush=True)
        self.texts[turn_id] = text

    def see_turn(self, turn):
        """A whole turn: when it starts or ends, for those who subscribe in the middle of it, and in the history."""
        if turn["role"] != "assistant" or turn["turn_id"] in self.finished:
            return
        self.show(turn["turn_id"], "".join(block["content"] for block in turn["blocks"] if block["type"] == "text"))
        if turn["status"] == "streaming":
            return
        self.finished.add(turn["turn_id"])
        print()
        for call in turn["tool_calls"]:
            if call["status"] == "awaiting_answer" and "AskUserQuestion" in call["tool_name"]:
                self.questions[call["id"]] = call

    def see_patch(self, patch):
        turn_id, kind, data = patch["turn_id"], patch["patch_type"], patch["data"]
        if kind == "add_content" and data["type"] == "text" and turn_id not in self.finished:
            self.show(turn_id, self.texts.get(turn_id, "") + data["text_delta"])
        elif kind == "add_tool_call" and "AskUserQuestion" not in data["tool_name"]:  # what is asked is a call, too
            print(f"\n[tool] {data['display_name']}")
        elif kind == "tool_result":
            self.questions.pop(data["tool_call_id"], None)  # answered, perhaps by somebody else

    async def catch_up(self):
        """The turns that ended unseen. One that is still open comes with the subscription."""
        for turn in await self.rest("GET", f"/{self.session_id}/messages"):
            if turn["status"] != "streaming":
                self.see_turn(turn)

    async def settle(self):
        """The chat has paused or ended, or may have: answers what is open, or leaves."""
        await self.catch_up()
        status = (await self.rest("GET", f"/{self.session_id}"))["status"]
        if self.questions:
            await self.answer(self.questions.pop(next(iter(self.questions))))
        elif status in ("completed", "failed", "interrupted") and not self.end.done():
            self.end.set_result(status)

    async def answer(self, call):
        """Asks nobody: the first option of each question, which for a permission is to allow. The fields of a form are
        questions, too."""
        asked = json.loads(call["arguments"])
        fields = asked.get("ask", {}).get("input", {}).get("requested_schema", {}).get("properties", {})
        selections, custom = {}, {}
        for number, question in enumerate(asked["questions"]):
            labels = [option["label"] for option in question["options"]]
            print(f"[asked] {question['question']} {' / '.join(labels)}")
            field = fields.get(question.get("header"), {}) if number > 0 else {}
            default = field.get("default")
            values = [True, False] if field.get("type") == "boolean" else field.get("enum", [])  # the options, in this order
            if default is not None and default not in values:
                custom[str(number)] = str(default)
            elif labels:  # what has no default and may stay empty stays so
                skip = labels.index("Skip") if field and "Skip" in labels else 0
                selections[str(number)] = [skip if default is None else values.index(default)]
            else:
                custom[str(number)] = str(field.get("minimum", "you decide"))
        answer = {"tool_call_id": call["id"], "selections": selections, "custom": custom}
        await self.emit("chat:send", message="", askuser_answer=answer)


async def main():
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(raise_for_status=True, headers=headers) as http:
        status = await Chat(http).run(PROMPT)
    print(f"[{status}]")
    if status != "completed":
        sys.exit(1)


asyncio.run(main())
