//! The rules of this surface, by name: what becomes of each kind of event, and why of some nothing does.

use interline_model::{Body, Event, EventKind, ExplainWriter, Fact, Record, Rule, Shown, Source, What};

use crate::mapping::{SocketEvent, SocketWriter};

interline_model::rules! {
    CHAT_OPENS = "chat-opens-when-the-run-moves": "`chat:start` opens the bracket when the run begins, and again when something moves a paused run on.";
    SESSION_IS_TOLD = "session-is-told-whole": "`session:updated` carries all its members whenever model, title or status changed.";
    USER_TURN = "user-turn-in-one": "What the user said is a turn of its own, complete at its start.";
    ANSWER_TURN = "answer-is-a-user-turn": "What was answered to a question is a user turn with one `ask_user_answer` block.";
    TURN_PER_CALL = "turn-per-model-call": "Each model call is one assistant turn: `turn:start` once, patches, `turn:end` once.";
    NEW_TURN_AFTER_PAUSE = "new-turn-after-a-pause": "What comes after a pause goes into a new turn, since the old one has had its `turn:end`.";
    TEXT_PATCH = "text-at-once": "Each piece of text is a patch at once, with `text_delta`; whole content and the turn's snapshot go along when they are due.";
    THINKING_PATCH = "thinking-in-snapshots": "Thinking goes out with whole `content` and an empty `text_delta`, so that no reader takes it for the answer; pieces wait until the turn is due, or for what follows them.";
    CALL_PATCH = "call-is-a-patch": "A call is an `add_tool_call` patch with its arguments as JSON text.";
    QUESTION_AT_ONCE = "question-is-announced-as-one": "A call that the same frame makes a question is announced as one, once.";
    LATE_ARGUMENTS = "late-arguments": "Input that becomes known later is a `set_tool_status` patch with `arguments`.";
    OUTPUT_HAS_NO_PATCH = "output-has-no-patch": "No patch carries a part of a call's output; the result carries all of it.";
    RESULT_PATCH = "result-is-a-patch": "The end of a call is a `tool_result` patch. Of a result beyond `max_result_bytes` every event tells the beginning and the REST path that has all of it.";
    CUT_CALL = "cut-call-is-cancelled": "A call that its run's end cut off is set to `cancelled` and gets no result.";
    CHILD_TURNS_END = "child-turns-end-first": "A sub-agent's turns end before the call that started it does.";
    PAUSED_TURN_GOES_ON = "paused-turn-is-patched": "A turn that had its `turn:end` when it paused is told by `set_status` patches after that.";
    ASK_IS_A_CALL = "ask-is-a-call": "A permission, a form or a link is a call of ours, `ask_…`, in the open turn; a question is its own call. Either is `awaiting_answer`.";
    ASK_PAUSES = "chat-pauses-for-an-ask": "While people are asked, calls wait, turns end as `paused`, the session waits for input, and the bracket is closed.";
    SETTLED_PATCH = "settled-ask-is-patched": "The call that showed an ask gets the answer as its result; a question's own call goes back to `pending`.";
    RESULT_FOR_THE_PAGE = "result-for-the-page": "An object `bridge` or `ui` in a result's `_meta` is a `tool_bridge` or `tool_ui` block behind the result.";
    WRITTEN_FILE = "written-file-has-changed": "A call of a tool that writes the file its input names is followed by that file's `workspace:files_changed`.";
    PLAN_IS_A_BLOCK = "plan-is-a-block": "A plan is a `plan_status` block of the turn whose call set it.";
    MODE_TURN = "mode-is-a-hidden-turn": "Planning begins and ends with a system turn of two blocks, which frontends hide.";
    TASKS = "task-is-an-update": "A background task is told by `task:updated`, and when it begins also by `bg:started`.";
    ARTIFACTS = "stored-file-is-an-artifact": "A file that was stored for the user is an `artifact:created`; many, or unknown ones, are one with `null`.";
    COMPACTION_TURN = "compaction-is-a-turn": "A compaction is one turn of kind `compaction`, ended when it is over.";
    FILES = "files-one-by-one": "Each changed file is a `workspace:files_changed`; many, or unknown ones, are one with `null`.";
    NOTICES = "notice-is-a-notification": "What ends nothing is a `system:notification`, never a `system:error`, which makes readers stop.";
    SUGGESTIONS_ARE_SILENT = "suggestion-has-no-event": "No documented event carries a suggestion.";
    RUN_ENDS = "run-ends-its-turns-then-its-chat": "At the end turns end with the run's outcome, the session says it, `system:error` comes if it failed, and `chat:end` is last.";
    RAW_EVENTS = "raw-events-on-request": "A socket that subscribes with `event_format: raw` gets `turn:events` in the place of turns and patches; everything else is the same.";
    NO_SOURCE = "nothing-would-be-one": "No upstream says anything that would be one of these, and the documents do not print what they carry, so they are never sent.";
    NO_MEANING = "no-meaning-no-event": "A frame without a meaning of its own gives no event.";
    ORDER_IS_KEPT = "order-is-kept-whatever-comes": "Whatever events come, the order of the protocol is kept: what is still open is closed, what is missing is opened.";
}

const CHAT_START: &str = "chat:start";
const CHAT_END: &str = "chat:end";
const TURN_START: &str = "turn:start";
const TURN_END: &str = "turn:end";
const SESSION: &str = "session:updated";
const FILES_CHANGED_EVENT: &str = "workspace:files_changed";
const ADD_CONTENT: &str = "turn:patch/add_content";
const ADD_BRIDGE: &str = "turn:patch/add_content/tool_bridge";
const ADD_UI: &str = "turn:patch/add_content/tool_ui";
const ADD_PLAN: &str = "turn:patch/add_content/plan_status";
const ADD_CALL: &str = "turn:patch/add_tool_call";
const RESULT: &str = "turn:patch/tool_result";
const CALL_STATUS: &str = "turn:patch/set_tool_status";
const TURN_STATUS: &str = "turn:patch/set_status";

/// After a pause, any event that says something opens the next bracket.
const REOPENS: [Shown; 2] =
    [Shown::item(CHAT_START, CHAT_OPENS, "if the chat was paused"), Shown::item(SESSION, SESSION_IS_TOLD, "if the chat was paused")];
const AFTER_PAUSE: Shown = Shown::item(TURN_START, NEW_TURN_AFTER_PAUSE, "if the chat was paused");
/// Whatever ends a thinking block brings out what waits of it.
const THOUGHT: Shown = Shown::item(ADD_CONTENT, THINKING_PATCH, "if thinking waits");

const RUN_STARTED: &[Shown] = &[
    Shown::item(CHAT_START, CHAT_OPENS, "always"),
    Shown::item(SESSION, SESSION_IS_TOLD, "always"),
    Shown::item(TURN_START, USER_TURN, "if the user's input is known"),
    Shown::item(TURN_END, USER_TURN, "if the user's input is known"),
];
const TURN_STARTED: &[Shown] = &[
    Shown::item(TURN_START, TURN_PER_CALL, "always"),
    Shown::item(TURN_END, TURN_PER_CALL, "of the turn before, if that is still open here"),
    REOPENS[0],
    REOPENS[1],
];
const TEXT: &[Shown] = &[Shown::item(ADD_CONTENT, TEXT_PATCH, "always"), REOPENS[0], REOPENS[1], AFTER_PAUSE];
const THINKING: &[Shown] =
    &[Shown::item(ADD_CONTENT, THINKING_PATCH, "when the turn is due, else with what comes next"), REOPENS[0], REOPENS[1], AFTER_PAUSE];
const TOOL_STARTED: &[Shown] = &[
    Shown::item(ADD_CALL, CALL_PATCH, "always, except"),
    Shown::nothing(QUESTION_AT_ONCE, "if the same frame raises a question about it"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
    AFTER_PAUSE,
];
const TOOL_INPUT: &[Shown] = &[Shown::item(CALL_STATUS, LATE_ARGUMENTS, "if it is new"), THOUGHT, REOPENS[0], REOPENS[1]];
const TOOL_OUTPUT: &[Shown] = &[Shown::nothing(OUTPUT_HAS_NO_PATCH, "always")];
const TOOL_ENDED: &[Shown] = &[
    Shown::item(RESULT, RESULT_PATCH, "always"),
    Shown::item(ADD_BRIDGE, RESULT_FOR_THE_PAGE, "if `_meta.bridge` is an object"),
    Shown::item(ADD_UI, RESULT_FOR_THE_PAGE, "if `_meta.ui` is an object"),
    Shown::item(FILES_CHANGED_EVENT, WRITTEN_FILE, "if the tool writes a file and did"),
    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "if its turn was paused and is now complete"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
];
const TOOL_FAILED: &[Shown] = &[
    Shown::item(RESULT, RESULT_PATCH, "always"),
    Shown::item(ADD_BRIDGE, RESULT_FOR_THE_PAGE, "if `_meta.bridge` is an object"),
    Shown::item(ADD_UI, RESULT_FOR_THE_PAGE, "if `_meta.ui` is an object"),
    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "if its turn was paused and is now complete"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
];
const TOOL_ABORTED: &[Shown] = &[
    Shown::item(CALL_STATUS, CUT_CALL, "always"),
    Shown::item(TURN_END, CHILD_TURNS_END, "of its sub-agent's turn"),
    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "if its turn was paused and is now complete"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
];
const TURN_ENDED: &[Shown] = &[
    Shown::item(TURN_END, TURN_PER_CALL, "unless the turn was paused, or the run ends"),
    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "if the turn was paused"),
    THOUGHT,
];
const ASKED: &[Shown] = &[Shown::item(ADD_CALL, ASK_IS_A_CALL, "always"), THOUGHT, REOPENS[0], REOPENS[1], AFTER_PAUSE];
const FORM_ASKED: &[Shown] =
    &[ASKED[0], Shown::item(TURN_END, COMPACTION_TURN, "of a compaction that goes on"), ASKED[1], ASKED[2], ASKED[3], ASKED[4]];
const QUESTION_ASKED: &[Shown] = &[
    Shown::item(ADD_CALL, ASK_IS_A_CALL, "if its call has not been shown"),
    Shown::item(CALL_STATUS, ASK_IS_A_CALL, "if it has"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
    AFTER_PAUSE,
];
const ASK_SETTLED: &[Shown] = &[
    Shown::item(RESULT, SETTLED_PATCH, "if its call is ours and it was answered, or expired"),
    Shown::item(CALL_STATUS, SETTLED_PATCH, "calls that waited go on, or are cancelled"),
    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "turns that were paused"),
    Shown::item(TURN_START, ANSWER_TURN, "if it was answered"),
    Shown::item(TURN_END, ANSWER_TURN, "if it was answered"),
    REOPENS[0],
    REOPENS[1],
];
const PLAN_CHANGED: &[Shown] = &[Shown::item(ADD_PLAN, PLAN_IS_A_BLOCK, "always")];
const COMPACTION_STARTED: &[Shown] = &[
    Shown::item(TURN_START, COMPACTION_TURN, "always"),
    Shown::item(TURN_END, COMPACTION_TURN, "of a turn that is still open, unless calls in it go on"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
];
const COMPACTION_FINISHED: &[Shown] = &[
    Shown::item(TURN_END, COMPACTION_TURN, "always"),
    Shown::item(TURN_START, COMPACTION_TURN, "if its beginning was not told"),
    THOUGHT,
    REOPENS[0],
    REOPENS[1],
];
const SESSION_CHANGED: &[Shown] = &[
    Shown::item(SESSION, SESSION_IS_TOLD, "if the model or the title is another"),
    Shown::item(TURN_START, MODE_TURN, "if planning begins or ends"),
    Shown::item(TURN_END, MODE_TURN, "if planning begins or ends"),
    REOPENS[0],
];
const FILES_CHANGED: &[Shown] = &[Shown::item(FILES_CHANGED_EVENT, FILES, "always"), Shown::item("artifact:created", ARTIFACTS, "always")];
const TASK: &[Shown] = &[Shown::item("task:updated", TASKS, "always")];
const TASK_STARTED: &[Shown] = &[Shown::item("bg:started", TASKS, "always"), Shown::item("task:updated", TASKS, "always")];
const NOTICE: &[Shown] = &[Shown::item("system:notification", NOTICES, "always")];
const SUGGESTION: &[Shown] = &[Shown::nothing(SUGGESTIONS_ARE_SILENT, "always")];
const RUN_ENDED: &[Shown] = &[
    Shown::item(TURN_END, RUN_ENDS, "turns that are open, with the run's outcome"),
    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "turns that were paused"),
    Shown::item(SESSION, SESSION_IS_TOLD, "always"),
    Shown::item(CHAT_END, RUN_ENDS, "always, last"),
    THOUGHT,
];
const RUN_FAILED: &[Shown] =
    &[RUN_ENDED[0], RUN_ENDED[1], RUN_ENDED[2], Shown::item("system:error", RUN_ENDS, "always"), RUN_ENDED[3], RUN_ENDED[4]];
const OTHER: &[Shown] = &[Shown::nothing(NO_MEANING, "always")];

/// What becomes of an event of this kind.
#[must_use]
pub fn shown(kind: EventKind) -> &'static [Shown] {
    match kind {
        EventKind::RunStarted => RUN_STARTED,
        EventKind::TurnStarted => TURN_STARTED,
        EventKind::Text => TEXT,
        EventKind::Thinking => THINKING,
        EventKind::ToolStarted => TOOL_STARTED,
        EventKind::ToolInput => TOOL_INPUT,
        EventKind::ToolOutput => TOOL_OUTPUT,
        EventKind::ToolEnded => TOOL_ENDED,
        EventKind::ToolFailed => TOOL_FAILED,
        EventKind::ToolAborted => TOOL_ABORTED,
        EventKind::TurnEnded => TURN_ENDED,
        EventKind::PermissionAsked => ASKED,
        EventKind::FormAsked => FORM_ASKED,
        EventKind::QuestionAsked => QUESTION_ASKED,
        EventKind::AskSettled => ASK_SETTLED,
        EventKind::PlanChanged => PLAN_CHANGED,
        EventKind::CompactionStarted => COMPACTION_STARTED,
        EventKind::CompactionFinished => COMPACTION_FINISHED,
        EventKind::SessionChanged => SESSION_CHANGED,
        EventKind::FilesChanged => FILES_CHANGED,
        EventKind::TaskStarted => TASK_STARTED,
        EventKind::TaskProgress | EventKind::TaskFinished => TASK,
        EventKind::Notice => NOTICE,
        EventKind::Suggestion => SUGGESTION,
        EventKind::RunCompleted | EventKind::RunLimited | EventKind::RunInterrupted => RUN_ENDED,
        EventKind::RunFailed => RUN_FAILED,
        EventKind::Other => OTHER,
    }
}

/// What a record as a whole gives, whatever its events.
pub const OF_THE_RECORD: &[Shown] = &[
    Shown::item(CALL_STATUS, ASK_PAUSES, "calls that wait with the ask"),
    Shown::item(TURN_END, ASK_PAUSES, "turns that are open"),
    Shown::item(TURN_STATUS, ASK_PAUSES, "turns that were paused before"),
    Shown::item(SESSION, ASK_PAUSES, "`waiting_for_input`"),
    Shown::item(CHAT_END, ASK_PAUSES, "with `pause_tool`"),
    THOUGHT,
];

/// What else the documents name.
pub const BESIDES: &[Shown] = &[
    Shown::item("turn:events", RAW_EVENTS, "instead of turns and patches").with("event_format: raw"),
    Shown::item("memory:inject:done", NO_SOURCE, "never"),
    Shown::item("skills:changed", NO_SOURCE, "never"),
    Shown::item("replay:input_mismatch", NO_SOURCE, "never"),
    Shown::item("asr:*", NO_SOURCE, "never"),
    Shown::item("vibe:logs:*", NO_SOURCE, "never"),
];

/// The rule by which an event of this kind became an item of this name; `None` is the record as a whole.
#[must_use]
pub fn rule(kind: Option<EventKind>, item: &str) -> Rule {
    let lines = kind.map_or(OF_THE_RECORD, shown);
    lines.iter().find(|shown| shown.item == item).map_or(ORDER_IS_KEPT, |shown| shown.rule)
}

/// The name of an event; of a patch also its type, as `turn:patch/add_content`, and of an added block that is not speech the block's.
#[must_use]
pub fn name(event: &SocketEvent) -> String {
    // Ours, so its quotes are none of a text inside (those are escaped).
    let patch = event.data.as_str().split_once("\"patch_type\":\"").and_then(|(_, rest)| rest.split_once('"'));
    let Some((patch, rest)) = patch.filter(|_| event.name == "turn:patch") else { return event.name.to_owned() };
    let block = rest.strip_prefix(",\"data\":{\"type\":\"").and_then(|rest| rest.split_once('"')).map(|(block, _)| block);
    match block {
        Some(block) if !matches!(block, "text" | "thinking") => format!("{}/{patch}/{block}", event.name),
        _ => format!("{}/{patch}", event.name),
    }
}

/// Whether a patch tells thinking.
fn tells_thinking(event: &SocketEvent) -> bool {
    // The last of a patch's members, behind ids that are escaped.
    event.data.as_str().contains("\"patch_type\":\"add_content\",\"data\":{\"type\":\"thinking\"")
}

impl ExplainWriter for SocketWriter {
    fn write_explained(&mut self, record: &Record, events: &[Event], items: &mut Vec<SocketEvent>, sources: &mut Vec<Source>) {
        let mut until = Vec::with_capacity(events.len() + 1);
        self.write_noting(record, events, |event, items| until.push((event, items)));
        let mut told = self.out.drain(..).enumerate().peekable();
        for (event, end) in until {
            while let Some((_, item)) = told.next_if(|(at, _)| *at < end) {
                let kind = event.and_then(|at| events.get(at)).map(|event| event.what.kind());
                let rule = match (kind, &record.body) {
                    (None, Body::Fact(Fact::Titled { .. })) => SESSION_IS_TOLD,
                    (None, Body::Fact(Fact::Compacted)) => COMPACTION_TURN,
                    _ => rule(kind, &name(&item)),
                };
                sources.push(Source { event, rule, releases: tells_thinking(&item) });
                items.push(item);
            }
        }
    }

    fn may_wait(&self, event: &Event) -> bool {
        matches!(event.what, What::Thinking { .. })
    }
}
