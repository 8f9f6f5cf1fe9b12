"""What a Socket.IO client must remember of a chat to know whether it is over or waits for an answer: the brackets and
the state of each tool call. The Node client does the same in chat.mjs."""

EVENTS = (
    "chat:start",
    "turn:start",
    "turn:patch",
    "turn:end",
    "chat:end",
    "session:updated",
    "system:error",
    "system:notification",
    "workspace:files_changed",
)


class Chat:
    def __init__(self):
        self.open = False
        self._calls = {}

    def see(self, event, data):
        if event == "chat:start":
            self.open = True
        elif event == "chat:end":
            self.open = False
        elif event in ("turn:start", "turn:end"):
            for call in data["tool_calls"]:
                self._calls[call["id"]] = dict(call)
        elif event == "turn:patch":
            self._patch(data["patch_type"], data["data"])

    def _patch(self, kind, data):
        if kind == "add_tool_call":
            self._calls[data["id"]] = dict(data)
        elif kind in ("tool_result", "set_tool_status"):
            call = self._calls[data["tool_call_id"]]
            call["status"] = data["status"]
            if "arguments" in data:
                call["arguments"] = data["arguments"]

    def awaiting(self):
        """The calls that wait for an answer, or for what comes of one."""
        return [call for call in self._calls.values() if call["status"] == "awaiting_answer"]

    def question(self):
        """The first call that a person is to answer."""
        for call in self.awaiting():
            if "AskUserQuestion" in call["tool_name"]:
                return call
        raise RuntimeError("a call awaits an answer, but none is a question")
