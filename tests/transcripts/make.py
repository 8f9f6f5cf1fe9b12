#!/usr/bin/env python3
"""Writes the transcripts of this folder: native frames in orders, overlaps and repeats that recordings lack.

    make.py            writes every NAME.jsonl and the table of README.md
    make.py --check    writes nothing; exit 1 if something written would differ

Nothing is random: ids count up, so the files are the same each time. What each file is for is the docstring of its function.
"""
import json
import pathlib
import re
import sys
import zlib

HERE = pathlib.Path(__file__).parent
SESSION = "5e550000-0000-4000-8000-000000000001"
ALL = {}


def transcript(make):
    ALL[make.__name__.replace("_", "-")] = make
    return make


class Tape:
    """A transcript in the making. Each method appends one frame, unless it says otherwise, and gives it its own uuid."""

    def __init__(self, name):
        # From the name, so that a new transcript changes none of the others.
        self.lines, self.number = [], zlib.crc32(name.encode())

    def raw(self, frame, direction="out"):
        self.lines.append((direction, frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False)))

    def frame(self, kind, uuid=True, parent=None, **members):
        frame = {"type": kind, **members}
        if parent is not None:
            frame["parent_tool_use_id"] = parent
        if uuid:
            frame["uuid"] = f"{self.number:08x}{len(self.lines):024x}"
        self.raw({**frame, "session_id": SESSION})

    def again(self, *places):
        """Repeats the lines at these places from the end, 1 being the last; all of them without places."""
        for line in list(self.lines) if not places else [self.lines[-place] for place in places]:
            self.lines.append(line)

    # what clients say

    def says(self, text):
        self.raw({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": text}]}}, "in")

    def stops(self):
        self.raw({"type": "control_cancel_request", "request_id": f"stop-{len(self.lines)}"}, "in")

    def answers(self, request, **response):
        self.raw({"type": "control_response", "response": {"subtype": "success", "request_id": request, "response": response}}, "in")

    # what servers say

    def text(self, *pieces):
        """One frame per piece."""
        for piece in pieces:
            self.frame("streamlined_text", text=piece)

    def progress(self, call, name, parent=None):
        self.frame("tool_progress", parent=parent, tool_use_id=call, tool_name=name, elapsed_time_seconds=0)

    def summary(self, calls, text):
        self.frame("tool_use_summary", summary=text, preceding_tool_use_ids=calls if isinstance(calls, list) else [calls])

    def result_of(self, call, content, parent=None, is_error=False):
        block = {"type": "tool_result", "tool_use_id": call, "content": content}
        if is_error:
            block["is_error"] = True
        self.frame("user", parent=parent, message={"role": "user", "content": [block]})

    def stream(self, event, parent=None):
        self.frame("stream_event", parent=parent, event=event)

    def message(self, ident, parent=None, tokens=10):
        usage = {"input_tokens": tokens, "output_tokens": 1}
        self.stream({"type": "message_start", "message": {"id": ident, "role": "assistant", "content": [], "usage": usage}}, parent)

    def message_over(self, parent=None, tokens=5):
        """Two frames."""
        self.stream({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": tokens}}, parent)
        self.stream({"type": "message_stop"}, parent)

    def block(self, index, kind, parent=None, **members):
        start = {"text": {"text": ""}, "thinking": {"thinking": ""}, "tool_use": {"input": {}}}[kind]
        self.stream({"type": "content_block_start", "index": index, "content_block": {"type": kind, **start, **members}}, parent)

    def delta(self, index, kind, *pieces, parent=None):
        """One frame per piece."""
        member = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[kind]
        for piece in pieces:
            self.stream({"type": "content_block_delta", "index": index, "delta": {"type": kind, member: piece}}, parent)

    def over(self, index, parent=None):
        self.stream({"type": "content_block_stop", "index": index}, parent)

    def streamed(self, index, kind, *pieces, parent=None):
        """A whole block of text or thinking."""
        self.block(index, kind, parent)
        self.delta(index, f"{kind}_delta", *pieces, parent=parent)
        self.over(index, parent)

    def snapshot(self, ident, *blocks, parent=None):
        self.frame("assistant", parent=parent, message={"id": ident, "role": "assistant", "content": list(blocks)})

    def asks(self, request, tool, given, call=None, **members):
        more = {"tool_use_id": call} if call else {}
        wanted = {"subtype": "can_use_tool", "tool_name": tool, "input": given, **more, **members}
        self.raw({"type": "control_request", "request_id": request, "request": wanted})

    def elicits(self, request, **members):
        wanted = {"subtype": "elicitation", "mcp_server_name": "deploy", **members}
        self.raw({"type": "control_request", "request_id": request, "request": wanted})

    def system(self, subtype, **members):
        self.frame("system", subtype=subtype, **members)

    def ends(self, **members):
        usage = {"input_tokens": 120, "output_tokens": 24}
        given = {"subtype": "success", "is_error": False, "duration_ms": 900, "num_turns": 1, "result": "",
                 "stop_reason": "end_turn", "total_cost_usd": 0.01, "usage": usage, **members}
        self.frame("result", **given)

    def fails(self, message, recoverable=False, **members):
        self.ends(**{"subtype": "error_during_execution", "is_error": True, "stop_reason": None,
                     "errors": [{"message": message, "recoverable": recoverable}], **members})

    def dump(self):
        directed = any(direction == "in" for direction, _ in self.lines)
        for direction, frame in self.lines:
            yield f'{{"dir":"{direction}","frame":{frame}}}' if directed and is_json(frame) else frame


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def text(text):
    return {"type": "text", "text": text}


def thinking(text):
    return {"type": "thinking", "thinking": text}


def tool(call, name, given):
    return {"type": "tool_use", "id": call, "name": name, "input": given}


# ---------------------------------------------------------------- tools and asks

@transcript
def permission_first(t):
    """A permission request overtakes the text before it and the block that announces its tool (B13)."""
    t.says("list the files")
    t.message("m1")
    t.asks("ask-1", "Bash", {"command": "ls"}, "call-1", decision_reason="first use of Bash")
    t.streamed(0, "text", "Let me ", "look.")
    t.block(1, "tool_use", id="call-1", name="Bash")
    t.delta(1, "input_json_delta", '{"comm', 'and": "ls"}')
    t.over(1)
    t.snapshot("m1", tool("call-1", "Bash", {"command": "ls"}))
    t.message_over()
    t.answers("ask-1", behavior="allow", updatedInput={"command": "ls"})
    t.progress("call-1", "Bash")
    t.result_of("call-1", "a.txt\nb.txt\n")
    t.message("m2")
    t.streamed(0, "text", "Two files.")
    t.message_over()
    t.ends()


@transcript
def permission_denied_late(t):
    """A permission that is asked for after the tool has shown progress, denied; the denial is the result. Then one nobody answers."""
    t.says("clean up")
    t.text("I will ", "remove it.")
    t.progress("call-1", "Bash")
    t.asks("ask-1", "Bash", {"command": "rm -r build"}, "call-1",
           permission_suggestions=[{"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow", "destination": "session"}])
    t.answers("ask-1", behavior="deny", message="not now")
    t.summary("call-1", "error in Bash: denied by user: not now")
    t.asks("ask-2", "Write", {"file_path": "/tmp/a"}, "call-2")
    t.summary("call-2", "error: error in Write: permission timed out")
    t.text("Nothing was ", "changed.")
    t.ends()


@transcript
def announced_four_ways(t):
    """Four tools, each announced first by another kind of frame and then by all the others."""
    names = {"call-p": "Glob", "call-s": "Grep", "call-b": "Read", "call-a": "Bash"}
    given = {"call-p": {"pattern": "*"}, "call-s": {"pattern": "x"}, "call-b": {"path": "a"}, "call-a": {"command": "ls"}}
    asked = []
    t.message("m1")

    def by_block(call, index):
        t.block(index, "tool_use", id=call, name=names[call])
        t.delta(index, "input_json_delta", json.dumps(given[call]))
        t.over(index)

    def by_ask(call):
        asked.append(call)
        t.asks(f"ask-{len(asked)}", names[call], given[call], call)

    t.progress("call-p", "Glob")
    t.snapshot("m1", tool("call-s", "Grep", given["call-s"]))
    by_block("call-b", 0)
    by_ask("call-a")
    for index, call in enumerate(names, 1):
        if call != "call-p":
            t.progress(call, names[call])
        if call != "call-s":
            t.snapshot("m1", tool(call, names[call], given[call]))
        if call != "call-b":
            by_block(call, index)
        if call != "call-a":
            by_ask(call)
    for call in names:
        t.summary(call, f"{names[call]} done")
    t.message_over()
    t.ends()


@transcript
def input_late(t):
    """The input of a tool comes after its announcement, and an empty one, a list and a string come for others."""
    t.text("Four calls.")
    t.progress("call-1", "Read")
    t.snapshot("m1", tool("call-1", "Read", {"path": "late"}))
    t.snapshot("m1", tool("call-1", "Read", {"path": "later still"}))
    t.snapshot("m1", tool("call-2", "Empty", {}))
    t.snapshot("m1", tool("call-3", "List", [1, 2]))
    t.snapshot("m1", tool("call-4", "Word", "just text"))
    for call in ["call-1", "call-2", "call-3", "call-4"]:
        t.result_of(call, "ok")
    t.ends()


@transcript
def result_while_the_block_streams(t):
    """A result comes while the block that announces its tool is still being streamed, its input never complete."""
    t.message("m1")
    t.block(0, "tool_use", id="call-1", name="Read")
    t.delta(0, "input_json_delta", '{"path": "a')
    t.result_of("call-1", "contents")
    t.delta(0, "input_json_delta", '.txt"}')
    t.over(0)
    t.message_over()
    t.message("m2")
    t.streamed(0, "text", "Read.")
    t.ends()


@transcript
def result_alone(t):
    """Results of tools that nothing ever announced, one by either kind of frame."""
    t.text("By the way: ")
    t.summary("call-1", "found nothing")
    t.result_of("call-2", [{"type": "text", "text": "two "}, {"type": "image"}, {"type": "text", "text": "parts"}], is_error=True)
    t.text("Done.")
    t.ends()


@transcript
def result_first(t):
    """A result, and only then the announcement. Nobody can know the name in time, so the tool is called `tool`."""
    t.text("Quick: ")
    t.summary("call-1", "here already")
    t.progress("call-1", "Read")
    t.snapshot("m1", tool("call-1", "Read", {"path": "a"}))
    t.text("done.")
    t.ends()


@transcript
def results_twice(t):
    """Every tool has two results that differ; the first one counts."""
    t.progress("call-1", "Read")
    t.progress("call-2", "Read")
    t.result_of("call-1", "one")
    t.summary(["call-1", "call-2"], "both")
    t.result_of("call-2", "two", is_error=True)
    t.summary("call-1", "error in Read: late")
    t.text("Read.")
    t.ends()


@transcript
def parallel_with_text(t):
    """Three tools at once with text between their frames; the last two results come as one, in another order."""
    t.text("Looking ")
    t.progress("call-1", "Glob")
    t.text("in three ")
    t.progress("call-2", "Grep")
    t.progress("call-1", "Glob")
    t.text("places")
    t.progress("call-3", "Read")
    t.text(".")
    t.summary("call-2", "error in Grep: no such pattern")
    t.text(" One failed.")
    t.summary(["call-3", "call-1"], "both worked")
    t.text("All done.")
    t.ends()


@transcript
def turns_by_tools(t):
    """Turn after turn: a tool that starts when the one before has ended opens the next, with and without text between."""
    for n in range(1, 5):
        if n % 2:
            t.text(f"Step {n}. ")
        t.progress(f"call-{n}", "Bash")
        t.summary(f"call-{n}", f"output {n}")
    t.text("Over.")
    t.ends()


@transcript
def blocks_by_index(t):
    """Text, thinking and two tools stream at once; every piece belongs to its block's index (A8)."""
    t.message("m1")
    t.block(0, "text")
    t.block(1, "thinking")
    t.block(2, "tool_use", id="call-1", name="Read")
    t.block(3, "tool_use", id="call-2", name="Grep")
    t.delta(3, "input_json_delta", '{"pat')
    t.delta(0, "text_delta", "I read ")
    t.delta(2, "input_json_delta", '{"pa')
    t.delta(1, "thinking_delta", "two ")
    t.delta(3, "input_json_delta", 'tern": "two"}')
    t.delta(1, "thinking_delta", "calls")
    t.delta(2, "input_json_delta", 'th": "one"}')
    t.delta(0, "text_delta", "and search.")
    for index in [3, 0, 2, 1]:
        t.over(index)
    t.message_over()
    t.result_of("call-2", "second")
    t.result_of("call-1", "first")
    t.message("m2")
    t.streamed(0, "text", "Done.")
    t.message_over()
    t.ends()


@transcript
def block_never_stopped(t):
    """Blocks and messages that end without saying so: a new message, a new block at the same index, the run's end."""
    t.message("m1")
    t.block(0, "tool_use", id="call-1", name="Read")
    t.delta(0, "input_json_delta", '{"path": "a"}')
    t.block(0, "tool_use", id="call-2", name="Read")
    t.delta(0, "input_json_delta", '{"path": "b"}')
    t.message("m2")
    t.result_of("call-1", "a")
    t.result_of("call-2", "b")
    t.block(0, "tool_use", id="call-3", name="Read")
    t.delta(0, "input_json_delta", '{"path": "c"}')
    t.ends()


@transcript
def tools_left_open(t):
    """A success while tools and an ask are open: they are closed first."""
    t.text("Starting. ")
    t.progress("call-1", "Bash")
    t.asks("ask-1", "Write", {"file_path": "/tmp/a"}, "call-2")
    t.text("Never mind.")
    t.ends()


@transcript
def plan(t):
    """The plan tool: made, changed step by step, given up with the run."""
    def todos(*states):
        return {"todos": [{"content": f"step {n}", "status": state, "activeForm": f"doing {n}"} for n, state in enumerate(states, 1)]}
    t.text("Planning.")
    for n, states in enumerate([("pending", "pending"), ("in_progress", "pending"), ("completed", "in_progress")], 1):
        t.snapshot(f"m{n}", tool(f"call-{n}", "TodoWrite", todos(*states)))
        t.result_of(f"call-{n}", "Todos have been modified successfully")
    t.fails("provider stream: 529: Overloaded")


@transcript
def tasks_parallel(t):
    """Background tasks that overlap: each that begins makes another plan, a success ends the one that is left, and the to-do list goes before."""
    def task(number, subtype, **members):
        t.system(subtype, task_id=f"bg-{number}", tool_use_id=f"call-{number}", **members)
    t.text("Both at once.")
    for number in (1, 2):
        t.progress(f"call-{number}", "Bash")
        task(number, "task_started", description=f"task {number}", task_type="local_bash")
    task(1, "task_progress", last_tool_name="Bash", summary="half")
    t.summary("call-1", "started")
    t.summary("call-2", "started")
    task(2, "task_notification", status="completed", output_file="/o", summary="two is done")
    task(1, "task_notification", status="failed", output_file="/o", summary="no")
    t.progress("call-3", "Bash")
    task(3, "task_started", description="task 3", task_type="local_bash")
    t.snapshot("m1", tool("call-4", "TodoWrite", {"todos": [{"content": "one", "status": "in_progress"}, {"content": "two", "status": "pending"}]}))
    t.summary("call-3", "started")
    t.summary("call-4", "ok")
    t.snapshot("m2", tool("call-5", "TodoWrite", {"todos": [{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}]}))
    t.summary("call-5", "ok")
    t.text("Enough.")
    t.ends()


# ---------------------------------------------------------------- repeats

@transcript
def duplicates(t):
    """Every frame comes twice at once, then all of them once more."""
    def twice():
        t.again(1)
    t.text("Every ")
    twice()
    t.text("word ")
    twice()
    t.text("once. ")
    twice()
    t.progress("call-1", "Bash")
    twice()
    t.asks("ask-1", "Bash", {"command": "ls"}, "call-1")
    twice()
    t.summary("call-1", "a\n")
    twice()
    t.again()
    t.text("Done.")
    twice()
    t.ends()
    twice()


@transcript
def replay_in_the_middle(t):
    """A server that repeats everything after a break, in the middle of a streamed message and of a tool's input."""
    t.message("m1")
    t.streamed(0, "text", "Half of ")
    t.block(1, "text")
    t.delta(1, "text_delta", "the ")
    t.again()
    t.delta(1, "text_delta", "answer. ")
    t.over(1)
    t.block(2, "tool_use", id="call-1", name="Read")
    t.delta(2, "input_json_delta", '{"path": ')
    t.again()
    t.delta(2, "input_json_delta", '"a"}')
    t.over(2)
    t.snapshot("m1", text("Half of "))
    t.snapshot("m1", text("the answer. "))
    t.message_over()
    t.result_of("call-1", "text of a")
    t.again()
    t.message("m2")
    t.streamed(0, "text", "The rest.")
    t.ends()


@transcript
def repeats_without_an_id(t):
    """Frames that carry no id come twice: nothing tells the copies apart from news, and nothing breaks."""
    t.frame("biumind.compact_started", uuid=False, reason="tokens_above_threshold", tokens_before=150000)
    t.again(1)
    t.frame("biumind.compact_finished", uuid=False, tokens_before=150000, tokens_after=9000, tokens_saved=141000)
    t.again(1)
    t.frame("biumind.session_paused", uuid=False, reason="worker_draining")
    t.again(1)
    t.frame("biumind.session_resumed", uuid=False, since_seq=3)
    t.again(1)
    t.frame("tool_progress", uuid=False, tool_use_id="call-1", tool_name="Bash")
    t.again(1)
    t.frame("tool_use_summary", uuid=False, summary="ok", preceding_tool_use_ids=["call-1"])
    t.again(1)
    t.text("Done.")
    t.ends()


# ---------------------------------------------------------------- copies of the text

@transcript
def snapshot_after_the_stream(t):
    """A streamed message, and then the whole of it again."""
    t.message("m1")
    t.streamed(0, "thinking", "Hm, ", "yes.")
    t.streamed(1, "text", "It is ", "so.")
    t.message_over()
    t.snapshot("m1", thinking("Hm, yes."), text("It is so."))
    t.ends()


@transcript
def snapshots_before_the_stop(t):
    """One snapshot per block, each before its block's stop, as a real runtime sends them."""
    t.message("m1")
    t.block(0, "thinking")
    t.delta(0, "thinking_delta", "First ", "this.")
    t.snapshot("m1", thinking("First this."))
    t.over(0)
    t.block(1, "text")
    t.delta(1, "text_delta", "One. ")
    t.snapshot("m1", text("One. "))
    t.over(1)
    t.block(2, "text")
    t.delta(2, "text_delta", "Two.")
    t.snapshot("m1", text("Two."))
    t.over(2)
    t.block(3, "tool_use", id="call-1", name="Read")
    t.delta(3, "input_json_delta", '{"path":"a"}')
    t.snapshot("m1", tool("call-1", "Read", {"path": "a"}))
    t.over(3)
    t.message_over()
    t.result_of("call-1", "a")
    t.ends()


@transcript
def snapshots_alone(t):
    """Nothing is streamed: several snapshots of each message, and one without an id."""
    t.snapshot("m1", thinking("Let me see."))
    t.snapshot("m1", text("I look. "))
    t.snapshot("m1", tool("call-1", "Read", {"path": "a"}), tool("call-2", "Read", {"path": "b"}))
    t.result_of("call-2", "b")
    t.result_of("call-1", "a")
    t.snapshot("m2", text("Both "), text("read."))
    t.snapshot(None, text(" Really."))
    t.ends()


@transcript
def snapshot_completes_the_stream(t):
    """A stream that breaks off, and a snapshot with the rest; then a snapshot in the middle that the stream overtakes."""
    t.message("m1")
    t.block(0, "text")
    t.delta(0, "text_delta", "The beginning")
    t.snapshot("m1", text("The beginning and the end. "))
    t.message("m2")
    t.block(0, "text")
    t.delta(0, "text_delta", "abcd")
    t.snapshot("m2", text("ab"))
    t.delta(0, "text_delta", "ef")
    t.snapshot("m2", text("cdefgh"))
    t.over(0)
    t.message_over()
    t.ends()


@transcript
def snapshot_contradicts(t):
    """A snapshot that says something else than the stream did: what was said cannot be unsaid, so it adds nothing."""
    t.message("m1")
    t.streamed(0, "text", "Yes.")
    t.snapshot("m1", text("No, and more."))
    t.message_over()
    t.message("m2")
    t.streamed(0, "text", " Sure.")
    t.snapshot("m2", text(" Sure."))
    t.message_over()
    t.ends()


@transcript
def messages_overlap(t):
    """Snapshots of earlier and of other messages come while a message is streamed."""
    t.message("m1")
    t.streamed(0, "text", "one ")
    t.message("m2")
    t.block(0, "text")
    t.delta(0, "text_delta", "two ")
    t.snapshot("m1", text("one "))
    t.snapshot("m0", text("(an aside) "))
    t.delta(0, "text_delta", "three ")
    t.snapshot("m2", text("two three four"))
    t.over(0)
    t.message_over()
    t.ends()


@transcript
def three_copies(t):
    """The same answer as streamlined text, as a stream and as a snapshot: the streamlined text is the one that counts."""
    t.text("Let me ")
    t.message("m1")
    t.block(0, "text")
    t.delta(0, "text_delta", "Let me ")
    t.text("read it.")
    t.delta(0, "text_delta", "read it.")
    t.snapshot("m1", text("Let me read it."))
    t.over(0)
    t.block(1, "tool_use", id="call-1", name="Read")
    t.progress("call-1", "Read")
    t.delta(1, "input_json_delta", '{"path":"a"}')
    t.over(1)
    t.snapshot("m1", tool("call-1", "Read", {"path": "a"}))
    t.message_over()
    t.summary("call-1", "a")
    t.result_of("call-1", "a")
    t.text("Done.")
    t.ends()


# ---------------------------------------------------------------- thinking

@transcript
def thinking_streamed(t):
    """Thinking in a stream with kinds that have no text, between texts and tools of two messages."""
    t.message("m1")
    t.block(0, "thinking")
    t.delta(0, "thinking_delta", "Is it ", "a? ")
    t.stream({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}})
    t.over(0)
    t.stream({"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "eA=="}})
    t.over(1)
    t.streamed(2, "text", "I check.")
    t.block(3, "tool_use", id="call-1", name="Read")
    t.over(3)
    t.message_over()
    t.result_of("call-1", "b")
    t.message("m2")
    t.streamed(0, "thinking", "It is b.")
    t.streamed(1, "text", "It is ")
    t.streamed(2, "thinking", " Sure?")
    t.streamed(3, "text", "b.")
    t.message_over()
    t.ends()


@transcript
def think_marks(t):
    """`<think>` in streamlined text: marks cut at every place, things that look like marks, and reasoning between tools."""
    for piece in ["<th", "in", "k>", "\n", "Why", " <b>", "not", "\n", "</thi", "nk", ">", "\n", "\nBecause", " a <", " b and <thin", " air."]:
        t.text(piece)
    t.progress("call-1", "Read")
    t.summary("call-1", "x")
    t.text("<think>", "x, then", "</think>\n\n", "It is x.", "<", "think", ">", "and y", "</think>")
    t.ends()


@transcript
def think_never_closed(t):
    """Reasoning without a closing mark, cut off inside one."""
    t.text("So: ", "<think>\nstill at ", "it\n", "</thi")
    t.ends()


# ---------------------------------------------------------------- sub-agents

@transcript
def sub_agents_parallel(t):
    """Two sub-agents at once, with text, thinking and tools; one asks for a permission. Nothing of it is the main answer."""
    t.says("review and test")
    t.text("Two agents. ")
    for call, what in [("agent-a", "review"), ("agent-b", "test")]:
        t.snapshot("m1", tool(call, "Agent", {"description": what, "prompt": f"please {what}"}))
        t.system("task_started", task_id=f"task-{call}", tool_use_id=call, description=what, task_type="local_agent", prompt=what)
    t.snapshot("a1", thinking("where?"), text("Reviewing. "), parent="agent-a")
    t.message("b1", parent="agent-b")
    t.block(0, "text", parent="agent-b")
    t.delta(0, "text_delta", "Test", parent="agent-b")
    t.snapshot("a1", tool("a-read", "Read", {"path": "src"}), parent="agent-a")
    t.delta(0, "text_delta", "ing. ", parent="agent-b")
    t.progress("a-read", "Read", parent="agent-a")
    t.over(0, parent="agent-b")
    t.block(1, "tool_use", parent="agent-b", id="b-bash", name="Bash")
    t.asks("ask-1", "Bash", {"command": "cargo test"}, "b-bash", agent_id="task-agent-b")
    t.delta(1, "input_json_delta", '{"command":"cargo test"}', parent="agent-b")
    t.result_of("a-read", "source", parent="agent-a")
    t.over(1, parent="agent-b")
    t.answers("ask-1", behavior="allow", updatedInput={"command": "cargo test"})
    t.text("Waiting. ")
    t.snapshot("a2", text("Looks fine."), parent="agent-a")
    t.result_of("b-bash", "12 passed", parent="agent-b")
    t.result_of("agent-a", [{"type": "text", "text": "looks fine"}])
    t.message("b2", parent="agent-b")
    t.streamed(0, "text", "All pass.", parent="agent-b")
    t.summary("agent-b", "12 tests pass")
    t.text("Both are content.")
    t.ends()


@transcript
def sub_agents_nested(t):
    """An agent that starts an agent that starts an agent; the ends come inside out."""
    t.snapshot("m1", text("Delegating. "), tool("agent-1", "Agent", {"description": "outer"}))
    t.snapshot("o1", text("outer says, "), tool("agent-2", "Task", {"description": "middle"}), parent="agent-1")
    t.snapshot("i1", text("middle says, "), tool("agent-3", "Task", {"description": "inner"}), parent="agent-2")
    t.snapshot("n1", thinking("deep"), text("inner says, "), tool("read-3", "Read", {"path": "deep"}), parent="agent-3")
    t.result_of("read-3", "treasure", parent="agent-3")
    t.result_of("agent-3", "inner done", parent="agent-2")
    t.snapshot("i2", text("middle is done, "), parent="agent-2")
    t.result_of("agent-2", "middle done", parent="agent-1")
    t.snapshot("o2", text("outer is done."), parent="agent-1")
    t.result_of("agent-1", "outer done")
    t.snapshot("m2", text("Found it."))
    t.ends()


@transcript
def sub_agents_stopped(t):
    """Agents within agents, all at work when the run is stopped; who watches has time to come (B8)."""
    t.says("find it")
    t.snapshot("m1", text("Delegating. "), tool("agent-1", "Agent", {"description": "outer"}))
    t.snapshot("o1", text("outer says, "), tool("agent-2", "Task", {"description": "middle"}), parent="agent-1")
    t.snapshot("i1", text("middle says, "), tool("agent-3", "Task", {"description": "inner"}), parent="agent-2")
    t.snapshot("n1", thinking("deep"), text("inner says, "), tool("read-3", "Read", {"path": "deep"}), parent="agent-3")
    t.stops()
    t.ends(stop_reason="interrupted")


@transcript
def sub_agent_late(t):
    """A sub-agent whose frames come before its call is announced, and after it has ended."""
    t.snapshot("a1", text("early "), parent="agent-1")
    t.snapshot("m1", text("Delegating. "), tool("agent-1", "Agent", {"description": "hasty"}))
    t.snapshot("a2", text("in time "), parent="agent-1")
    t.result_of("agent-1", "done")
    t.snapshot("a3", text("late"), tool("late-1", "Read", {"path": "a"}), parent="agent-1")
    t.result_of("late-1", "a", parent="agent-1")
    t.snapshot("m2", text("Done."))
    t.ends()


@transcript
def sub_agent_question(t):
    """A sub-agent asks the user a question; then an agent of which nobody has heard asks for a permission."""
    t.says("deploy")
    t.snapshot("m1", text("Delegating. "), tool("agent-1", "Agent", {"description": "deploy"}))
    t.system("task_started", task_id="task-1", tool_use_id="agent-1", description="deploy", task_type="local_agent", prompt="deploy")
    asked = {"questions": [{"question": "Where to?", "header": "Target", "multiSelect": False,
                            "options": [{"label": "staging", "description": "safe"}, {"label": "production", "description": "brave"}]}]}
    t.snapshot("a1", tool("q-1", "AskUserQuestion", asked), parent="agent-1")
    t.asks("ask-1", "AskUserQuestion", asked, "q-1", agent_id="task-1")
    t.answers("ask-1", behavior="allow", updatedInput={**asked, "answers": {"Where to?": "staging"}})
    t.result_of("q-1", "staging", parent="agent-1")
    t.asks("ask-2", "Bash", {"command": "make"}, "b-1", agent_id="nobody-knows")
    t.answers("ask-2", behavior="deny", message="who are you")
    t.result_of("agent-1", "deployed")
    t.snapshot("m2", text("Deployed."))
    t.ends()


# ---------------------------------------------------------------- asks

@transcript
def elicitations(t):
    """A form, a link, a form that is answered elsewhere, one that is withdrawn, and one that the end finds open."""
    t.says("deploy")
    schema = {"type": "object", "required": ["env"], "properties": {
        "env": {"type": "string", "title": "Environment", "enum": ["staging", "production"], "enumNames": ["Staging", "Production"]},
        "replicas": {"type": "integer", "minimum": 1}, "dry": {"type": "boolean"}}}
    t.text("Some questions. ")
    t.progress("call-1", "mcp__deploy__start")
    t.elicits("ask-1", message="Where to?", mode="form", elicitation_id="el-1", requested_schema=schema)
    t.answers("ask-1", action="accept", content={"env": "staging", "replicas": 2})
    t.system("elicitation_complete", mcp_server_name="deploy", elicitation_id="el-1")
    t.elicits("ask-2", message="Sign in", mode="url", url="https://auth.example.com/device?code=ABCD", elicitation_id="el-2")
    t.system("elicitation_complete", mcp_server_name="deploy", elicitation_id="el-2")
    t.elicits("ask-3", message="How many?", requested_schema={"type": "object", "properties": {"n": {"type": "number"}}})
    t.system("form_answer", request_id="ask-3", action="decline")
    t.elicits("ask-4", message="Sure?", mode="form", requested_schema={"type": "object", "properties": {}})
    t.frame("control_cancel_request", uuid=False, request_id="ask-4")
    t.summary("call-1", "started")
    t.elicits("ask-5", message="Anything else?", mode="form", requested_schema={"type": "object", "properties": {"x": {"type": "string"}}})
    t.text("Deployed.")
    t.ends()


@transcript
def questions(t):
    """Three questions in one call, one of them with several answers, one without options."""
    t.says("set it up")
    asked = {"questions": [
        {"question": "Which one?", "header": "One", "multiSelect": False, "options": [{"label": "a", "description": "first"}, {"label": "b"}]},
        {"question": "Which ones?", "header": "Many", "multiSelect": True, "options": [{"label": "x", "description": ""}, {"label": "y", "description": ""}]},
        {"question": "What name?", "header": "Name", "options": []}]}
    t.message("m1")
    t.streamed(0, "text", "Three questions.")
    t.block(1, "tool_use", id="call-1", name="AskUserQuestion")
    t.delta(1, "input_json_delta", json.dumps(asked))
    t.over(1)
    t.snapshot("m1", tool("call-1", "AskUserQuestion", asked))
    t.message_over()
    t.asks("ask-1", "AskUserQuestion", asked, "call-1")
    t.answers("ask-1", behavior="allow", updatedInput={**asked, "answers": {"Which one?": "b", "Which ones?": "x, y", "What name?": "zed"}})
    t.result_of("call-1", "User has answered your questions: b; x, y; zed")
    t.message("m2")
    t.streamed(0, "text", "Set up.")
    t.message_over()
    t.ends()


@transcript
def question_unanswered(t):
    """A question that the agent stops waiting for: the frames go on by themselves."""
    t.says("set it up")
    asked = {"questions": [{"question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}]}
    t.text("A question.")
    t.progress("call-0", "Bash")
    t.asks("ask-1", "AskUserQuestion", asked, "call-1")
    t.summary("call-0", "ok")
    t.summary("call-1", "error in AskUserQuestion: timed out")
    t.text("Taking a.")
    t.ends()


@transcript
def question_then_stop(t):
    """The run is stopped while a question is open, and the server says so."""
    t.says("set it up")
    t.text("A question.")
    t.asks("ask-1", "AskUserQuestion", {"questions": [{"question": "Which?", "options": [{"label": "a"}]}]}, "call-1")
    t.stops()
    t.ends(stop_reason="interrupted")


# ---------------------------------------------------------------- ends

@transcript
def recoverable_then_success(t):
    """Two recoverable errors in a run that succeeds."""
    t.text("Working. ")
    t.fails("parse tool input: unexpected end", recoverable=True)
    t.progress("call-1", "Bash")
    t.fails("once more", recoverable=True)
    t.summary("call-1", "ok")
    t.text("Works after all.")
    t.ends()


@transcript
def recoverable_then_silence(t):
    """A recoverable error and nothing after it."""
    t.text("Working. ")
    t.progress("call-1", "Bash")
    t.fails("parse tool input: unexpected end", recoverable=True)


@transcript
def max_turns(t):
    """The turns are used up, with a tool still open."""
    t.text("And again. ")
    t.progress("call-1", "Bash")
    t.fails("tool turn budget 25 exhausted", subtype="error_max_turns")


@transcript
def max_budget(t):
    """The money is used up."""
    t.text("Expensive. ")
    t.fails("Reached maximum budget ($1)", subtype="error_max_budget_usd", errors=["Reached maximum budget ($1)"])


@transcript
def aborted(t):
    """An error whose terminal reason says that somebody broke it off."""
    t.text("Working. ")
    t.progress("call-1", "Bash")
    t.fails("Request was aborted", terminal_reason="aborted_tools")


@transcript
def stop_then_error(t):
    """After a stop, an error is what stopping looks like."""
    t.says("a long story")
    t.text("Once upon ")
    t.progress("call-1", "Bash")
    t.stops()
    t.text("a time ")
    t.fails("context canceled")


@transcript
def stop_then_silence(t):
    """After a stop, nothing: with a tool, a sub-agent and a permission open."""
    t.says("a long story")
    t.text("Once upon ")
    t.snapshot("m1", tool("agent-1", "Agent", {"description": "tell"}))
    t.snapshot("a1", text("a time"), tool("read-1", "Read", {"path": "book"}), parent="agent-1")
    t.asks("ask-1", "Bash", {"command": "say"}, "call-2")
    t.stops()
    t.text("the end")


@transcript
def stop_then_success(t):
    """A stop that came too late."""
    t.says("a short story")
    t.text("The ")
    t.stops()
    t.text("end.")
    t.ends()


@transcript
def error_at_once(t):
    """An error is all there is."""
    t.fails("missing_api_key: set one")


@transcript
def end_at_once(t):
    """A success is all there is."""
    t.ends()


# ---------------------------------------------------------------- several runs

@transcript
def runs_ok_error_ok(t):
    """Three runs in a session: one well, one failed in the middle of a tool, one well (B7)."""
    t.says("one")
    t.text("First ", "answer.")
    t.progress("call-1", "Bash")
    t.summary("call-1", "ok")
    t.text("Done.")
    t.ends()
    t.says("two")
    t.text("Second ")
    t.progress("call-2", "Bash")
    t.fails("provider stream: 529: Overloaded")
    t.says("three")
    t.text("Third ", "answer.")
    t.progress("call-3", "Bash")
    t.summary("call-3", "ok")
    t.ends()


@transcript
def runs_with_repeats(t):
    """Two runs, each with repeats of its own frames, and late frames after either end."""
    t.says("one")
    t.text("First ")
    t.again(1)
    t.progress("call-1", "Bash")
    t.text("answer.")
    t.again(1, 3)
    t.summary("call-1", "ok")
    t.ends()
    t.again(1)
    t.text("too late")
    t.says("two")
    t.message("m1")
    t.streamed(0, "text", "Second ")
    t.again(1, 2, 3)
    t.snapshot("m1", text("Second answer."))
    t.again(1)
    t.message_over()
    t.ends()
    t.fails("device offline, please retry")
    t.progress("call-9", "Bash")


@transcript
def runs_replayed(t):
    """A server that begins every run with all that it said in the runs before, their results among it."""
    t.says("one")
    t.text("First.")
    t.progress("call-1", "Bash")
    t.asks("ask-1", "Bash", {"command": "ls"}, "call-1")
    t.summary("call-1", "ok")
    t.ends()
    first = len(t.lines)
    t.says("two")
    t.again(*range(first, 1, -1))
    t.text("Second.")
    t.progress("call-2", "Read")
    t.again(2)
    t.summary("call-2", "text")
    t.fails("device offline, please retry")
    said = [line for line in t.lines if line[0] == "out"]
    t.says("three")
    t.lines += said
    t.text("Third.")
    t.ends()


# ---------------------------------------------------------------- the rest

@transcript
def compaction_with_open_tools(t):
    """Compaction starts while a tool is open, and once more between turns; then a boundary by itself."""
    t.text("Long ")
    t.progress("call-1", "Bash")
    t.frame("biumind.compact_started", uuid=False, reason="tokens_above_threshold", tokens_before=151200)
    t.text("story. ")
    t.frame("biumind.compact_finished", uuid=False, tokens_before=151200, tokens_after=8300, tokens_saved=142900)
    t.summary("call-1", "ok")
    t.frame("biumind.compact_started", uuid=False, reason="tokens_above_threshold", tokens_before=90000)
    t.system("compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 90000})
    t.frame("biumind.compact_finished", uuid=False, tokens_before=90000, tokens_after=7000, tokens_saved=83000)
    t.text("Shorter ")
    t.system("compact_boundary", compact_metadata={"trigger": "manual", "pre_tokens": 50000})
    t.text("now.")
    t.ends()


@transcript
def unknown_frames(t):
    """Kinds that nobody knows, broken messages and the bridge's code plane, between every two frames that count."""
    t.says("go on")
    t.text("One ")
    t.frame("streamlined_audio", data="AAAA")
    t.system("moon_phase", phase="full")
    t.raw("null")
    t.text("two ")
    t.raw("[]")
    t.raw('{"type":"streamlined_text","text":')
    t.raw("42")
    t.raw({"no": "type"})
    t.raw({"type": 7})
    t.progress("call-1", "Bash")
    t.raw({"type": "control_request", "request_id": "r-1", "request": {"subtype": "from_the_future"}})
    t.raw({"type": "code_pty_chunk", "pty_id": "t1", "data": "aGVsbG8="})
    t.stream({"type": "from_the_future", "index": 0})
    t.snapshot("m1", {"type": "from_the_future", "x": 1})
    t.summary("call-1", "ok")
    t.frame("keep_alive", uuid=False, ts=1)
    t.text("three.")
    t.ends()


@transcript
def notices(t):
    """Everything that is said about a run and not in it."""
    t.system("init", model="claude-sonnet-4-6", permissionMode="default", tools=["Bash"], cwd="/repo")
    t.text("Hold on. ")
    t.system("api_retry", attempt=1, max_retries=5, retry_delay_ms=2000, error_status=529, error="overloaded_error")
    t.frame("rate_limit_event", rate_limit_info={"status": "allowed_warning", "utilization": 0.92})
    t.system("status", status="compacting", permissionMode="acceptEdits")
    t.system("hook_started", hook_id="h1", hook_name="fmt", hook_event="PreToolUse")
    t.system("hook_response", hook_id="h1", hook_name="fmt", hook_event="PreToolUse", outcome="error", stderr="not formatted")
    t.frame("auth_status", isAuthenticating=False, output=[], error="token expired")
    t.system("files_persisted", files=["report.pdf"], failed=[])
    t.system("files_persisted", files=[{"path": "a.txt"}, {"filename": "b.txt"}], failed=[])
    t.system("session_state_changed", state="requires_action")
    t.system("task_started", task_id="bg-1", tool_use_id="call-1", description="tests", task_type="local_bash")
    t.system("task_progress", task_id="bg-1", last_tool_name="Bash", summary="half")
    t.system("task_notification", task_id="bg-1", tool_use_id="call-1", status="completed", summary="12 passed")
    t.system("local_command_output", content="Total cost: $0.01")
    t.system("post_turn_summary", title="Fixed median", description="it no longer panics", status_category="success")
    t.frame("streamlined_tool_use_summary", tool_summary="ran nothing")
    t.frame("prompt_suggestion", suggestion="Add a test")
    t.text("Done.")
    t.ends()


@transcript
def half_characters(t):
    """Characters outside the basic plane, cut in two between frames and between <think> marks; halves that stay alone."""
    def piece(text):
        t.raw(json.dumps({"type": "streamlined_text", "text": text, "uuid": f"half-{len(t.lines)}"}))
    for text in ["a", "\ud83d", "\ude00", "b\ud83d", "c", "\ude00", "<think>\ud83d", "\ude01</think>\n\n", "\ud83d"]:
        piece(text)
    t.progress("call-1", "Bash")
    t.summary("call-1", "ok")
    piece("\ude00 end \ud83d\ude02")
    t.ends()


@transcript
def half_characters_streamed(t):
    """The same in streamed messages with snapshots."""
    def event(event):
        t.raw(json.dumps({"type": "stream_event", "event": event, "uuid": f"half-{len(t.lines)}"}))
    t.message("m1")
    for kind, member in [("thinking", "thinking"), ("text", "text")]:
        for piece in ["a\ud83d", "\ude00", "\ud83d", "b", "\ude00"]:
            event({"type": "content_block_delta", "index": 0, "delta": {"type": f"{kind}_delta", member: piece}})
    t.raw(json.dumps({"type": "assistant", "uuid": "half-snapshot", "message": {"id": "m1", "content": [
        {"type": "text", "text": "a\ud83d\ude00\ud83db\ude00 and more \ud83d"}]}}))
    t.message_over()
    t.ends()


@transcript
def empty_texts(t):
    """Texts, thoughts, results and names that are empty or blank."""
    t.text("", "a", "", " ")
    t.message("m1")
    t.streamed(0, "text", "", "")
    t.streamed(1, "thinking", "")
    t.snapshot("m1", text(""), thinking(""))
    t.snapshot("m1")
    t.progress("call-1", "Bash")
    t.summary("call-1", "")
    t.progress("call-2", "Bash")
    t.result_of("call-2", "")
    t.progress("call-3", "Bash")
    t.result_of("call-3", [])
    t.summary([], "for nobody")
    t.text("\n", "b")
    t.ends(result="")


BREAKS = "one\rtwo\ntwo\r\nevent: done\ndata: {\"type\":\"done\"}\n\nid: 7\u2028three\u2029four\u0085five\u0000six\u001bseven\u007f"


@transcript
def line_breaks(t):
    """Everything that ends a line or an event, in text, thinking, names, inputs and results (A5)."""
    t.says("break it")
    t.text("data: {}", "\n\n", BREAKS, "\r", "\n", "<think>", BREAKS, "</think>", ":", "event: done\n\n")
    t.asks("ask-\u2028\r\n1", "Ba\nsh", {"command": BREAKS, "k\u2028\r\n": 1}, "call-\u2028\r\n1")
    t.answers("ask-\u2028\r\n1", behavior="allow", updatedInput={"command": BREAKS})
    t.summary("call-\u2028\r\n1", BREAKS)
    t.text("Whole.")
    t.fails("data: no\n\n" + BREAKS)


@transcript
def hard_json(t):
    """Inputs that no tree of JSON values holds: they pass as they came, never changed."""
    deep = "[" * 511 + "]" * 511      # one more around it
    given = ('{ "id" : 9223372036854775807, "long":1234567890123456789012,"one":1.0,"zero":-0,"huge":1e400,"tiny":1E-400,'
             '"twice":1,"twice":2,"\\u0061":"\\u0061\\/","deep":' + deep + "}")
    t.raw('{"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use","id":"call-1","name":"Keep","input":'
          + given + '}]},"uuid":"hard-1","session_id":"' + SESSION + '"}')
    t.raw('{"type":"control_request","request_id":"ask-1","request":{"subtype":"can_use_tool","tool_name":"Keep","input":'
          + given + ',"tool_use_id":"call-1"}}')
    t.result_of("call-1", "9223372036854775807 1.0 -0 1e400")
    t.text("Kept.")
    t.ends()


@transcript
def long_texts(t):
    """A long text, a long thought and a long result: pieces, cuts and thinned snapshots show here."""
    t.message("m1")
    t.block(0, "thinking")
    t.delta(0, "thinking_delta", *[f"thought {n}: " + "why " * 20 for n in range(12)])
    t.over(0)
    t.block(1, "text")
    t.delta(1, "text_delta", *[f"word {n} of many, " + "and so on, " * 6 for n in range(40)])
    t.delta(1, "text_delta", "größer 漢字 🎉 \u2028" * 90)
    t.over(1)
    t.block(2, "tool_use", id="call-1", name="Read")
    t.delta(2, "input_json_delta", json.dumps({"text": "x" * 700}))
    t.over(2)
    t.message_over()
    t.result_of("call-1", "0123456789abcde\n" * 100)
    t.message("m2")
    t.streamed(0, "text", "That was long.")
    t.message_over()
    t.ends()


@transcript
def structured(t):
    """A run with a structured result: what headless clients are given."""
    t.says("give me a number")
    t.text("The number ", "is 42.")
    t.ends(structured_output={"number": 42, "err_msg": None}, result="The number is 42.")


# ---------------------------------------------------------------- writing

def files():
    for name, make in ALL.items():
        tape = Tape(name)
        make(tape)
        yield f"{name}.jsonl", "".join(f"{line}\n" for line in tape.dump())


def readme(old):
    rows = "".join(f"| `{name}` | {' '.join(make.__doc__.split())} |\n" for name, make in ALL.items())
    return re.sub(r"(\|---\|---\|\n).*\Z", lambda head: head.group(1) + rows, old, flags=re.S)


def main(argv):
    wanted = dict(files())
    index = HERE / "README.md"
    wanted["README.md"] = readme(index.read_text(encoding="utf-8"))
    there = {path.name for path in HERE.glob("*.jsonl")} | {"README.md"}
    wrong = sorted(name for name in there | set(wanted)
                   if name not in there or name not in wanted or (HERE / name).read_text(encoding="utf-8") != wanted[name])
    if argv[1:] == ["--check"]:
        print("".join(f"{name} is not what make.py writes\n" for name in wrong), end="")
        return 1 if wrong else 0
    for name in wrong:
        if name in wanted:
            (HERE / name).write_text(wanted[name], encoding="utf-8")
        else:
            (HERE / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
