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
    RESULT_PATCH = "result-is-a-patch": "The end of a call is a `tool_result` patch.";
    CUT_CALL = "cut-call-is-cancelled": "A call that its run's end cut off is set to `cancelled` and gets no result.";
    CHILD_TURNS_END = "child-turns-end-first": "A sub-agent's turns end before the call that started it does.";
    PAUSED_TURN_GOES_ON = "paused-turn-is-patched": "A turn that had its `turn:end` when it paused is told by `set_status` patches after that.";
    ASK_IS_A_CALL = "ask-is-a-call": "A permission, a form or a link is a call of ours, `ask_…`, in the open turn; a question is its own call. Either is `awaiting_answer`.";
    ASK_PAUSES = "chat-pauses-for-an-ask": "While people are asked, calls wait, turns end as `paused`, the session waits for input, and the bracket is closed.";
    SETTLED_PATCH = "settled-ask-is-patched": "The call that showed an ask gets the answer as its result; a question's own call goes back to `pending`.";
    PLAN_IS_ITS_CALL = "plan-is-its-call": "A plan has no event here; the call of the planning tool shows it.";
    COMPACTION_TURN = "compaction-is-a-turn": "A compaction is one turn of kind `compaction`, ended when it is over.";
    FILES = "files-one-by-one": "Each changed file is a `workspace:files_changed`; many, or unknown ones, are one with `null`.";
    NOTICES = "notice-is-a-notification": "What ends nothing is a `system:notification`, never a `system:error`, which makes readers stop.";
    SUGGESTIONS_ARE_SILENT = "suggestion-has-no-event": "No documented event carries a suggestion.";
    RUN_ENDS = "run-ends-its-turns-then-its-chat": "At the end turns end with the run's outcome, the session says it, `system:error` comes if it failed, and `chat:end` is last.";
    NO_MEANING = "no-meaning-no-event": "A frame without a meaning of its own gives no event.";
    ORDER_IS_KEPT = "order-is-kept-whatever-comes": "Whatever events come, the order of the protocol is kept: what is still open is closed, what is missing is opened.";
}

const CHAT_START: &str = "chat:start";
const CHAT_END: &str = "chat:end";
const TURN_START: &str = "turn:start";
const TURN_END: &str = "turn:end";
const SESSION: &str = "session:updated";
const ADD_CONTENT: &str = "turn:patch/add_content";
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

/// What becomes of an event of this kind.
#[must_use]
pub fn shown(kind: EventKind) -> &'static [Shown] {
    match kind {
        EventKind::RunStarted => {
            const {
                &[
                    Shown::item(CHAT_START, CHAT_OPENS, "always"),
                    Shown::item(SESSION, SESSION_IS_TOLD, "always"),
                    Shown::item(TURN_START, USER_TURN, "if the user's input is known"),
                    Shown::item(TURN_END, USER_TURN, "if the user's input is known"),
                ]
            }
        }
        EventKind::TurnStarted => const { &[Shown::item(TURN_START, TURN_PER_CALL, "always"), REOPENS[0], REOPENS[1]] },
        EventKind::Text => const { &[Shown::item(ADD_CONTENT, TEXT_PATCH, "always"), REOPENS[0], REOPENS[1], AFTER_PAUSE] },
        EventKind::Thinking => {
            const {
                &[
                    Shown::item(ADD_CONTENT, THINKING_PATCH, "when the turn is due, else with what comes next"),
                    REOPENS[0],
                    REOPENS[1],
                    AFTER_PAUSE,
                ]
            }
        }
        EventKind::ToolStarted => {
            const {
                &[
                    Shown::item(ADD_CALL, CALL_PATCH, "always, except"),
                    Shown::nothing(QUESTION_AT_ONCE, "if the same frame raises a question about it"),
                    THOUGHT,
                    REOPENS[0],
                    REOPENS[1],
                    AFTER_PAUSE,
                ]
            }
        }
        EventKind::ToolInput => const { &[Shown::item(CALL_STATUS, LATE_ARGUMENTS, "if it is new"), THOUGHT, REOPENS[0], REOPENS[1]] },
        EventKind::ToolOutput => const { &[Shown::nothing(OUTPUT_HAS_NO_PATCH, "always")] },
        EventKind::ToolEnded => {
            const {
                &[
                    Shown::item(RESULT, RESULT_PATCH, "unless the run's end cut it off"),
                    Shown::item(CALL_STATUS, CUT_CALL, "if the run's end cut it off"),
                    Shown::item(TURN_END, CHILD_TURNS_END, "of its sub-agent's turn"),
                    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "if its turn was paused and is now complete"),
                    THOUGHT,
                    REOPENS[0],
                    REOPENS[1],
                ]
            }
        }
        EventKind::TurnEnded => {
            const {
                &[
                    Shown::item(TURN_END, TURN_PER_CALL, "unless the turn was paused, or the run ends"),
                    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "if the turn was paused"),
                    THOUGHT,
                    REOPENS[0],
                    REOPENS[1],
                ]
            }
        }
        EventKind::AskRaised => {
            const {
                &[
                    Shown::item(ADD_CALL, ASK_IS_A_CALL, "unless it is a question whose call is known"),
                    Shown::item(CALL_STATUS, ASK_IS_A_CALL, "if it is"),
                    THOUGHT,
                    REOPENS[0],
                    REOPENS[1],
                    AFTER_PAUSE,
                ]
            }
        }
        EventKind::AskSettled => {
            const {
                &[
                    REOPENS[0],
                    REOPENS[1],
                    Shown::item(TURN_START, ANSWER_TURN, "if it was answered"),
                    Shown::item(TURN_END, ANSWER_TURN, "if it was answered"),
                    Shown::item(RESULT, SETTLED_PATCH, "if its call is ours"),
                    Shown::item(CALL_STATUS, SETTLED_PATCH, "calls that waited go on, or are cancelled"),
                    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "turns that were paused"),
                ]
            }
        }
        EventKind::PlanChanged => const { &[Shown::nothing(PLAN_IS_ITS_CALL, "always")] },
        EventKind::Compaction => {
            const {
                &[
                    Shown::item(TURN_START, COMPACTION_TURN, "when it begins"),
                    Shown::item(TURN_END, COMPACTION_TURN, "when it is over"),
                    REOPENS[0],
                    REOPENS[1],
                ]
            }
        }
        EventKind::SessionChanged => const { &[Shown::item(SESSION, SESSION_IS_TOLD, "if the model or the title is another")] },
        EventKind::FilesChanged => const { &[Shown::item("workspace:files_changed", FILES, "always")] },
        EventKind::Task => const { &[Shown::nothing(NO_MEANING, "always")] },
        EventKind::Notice => const { &[Shown::item("system:notification", NOTICES, "always")] },
        EventKind::Suggestion => const { &[Shown::nothing(SUGGESTIONS_ARE_SILENT, "always")] },
        EventKind::RunEnded => {
            const {
                &[
                    Shown::item(CALL_STATUS, CUT_CALL, "calls that go on"),
                    Shown::item(TURN_END, RUN_ENDS, "turns that are open, with the run's outcome"),
                    Shown::item(TURN_STATUS, PAUSED_TURN_GOES_ON, "turns that were paused"),
                    Shown::item(SESSION, SESSION_IS_TOLD, "always"),
                    Shown::item("system:error", RUN_ENDS, "if it failed"),
                    Shown::item(CHAT_END, RUN_ENDS, "always, last"),
                    THOUGHT,
                    REOPENS[0],
                ]
            }
        }
        EventKind::Other => const { &[Shown::nothing(NO_MEANING, "always")] },
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

/// The rule by which an event of this kind became an item of this name; `None` is the record as a whole.
#[must_use]
pub fn rule(kind: Option<EventKind>, item: &str) -> Rule {
    let lines = kind.map_or(OF_THE_RECORD, shown);
    lines.iter().find(|shown| shown.item == item).map_or(ORDER_IS_KEPT, |shown| shown.rule)
}

/// The name of an event; of a patch also its type, as `turn:patch/add_content`.
#[must_use]
pub fn name(event: &SocketEvent) -> String {
    // Ours, so its quotes are none of a text inside (those are escaped).
    let patch = event.data.as_str().split_once("\"patch_type\":\"").and_then(|(_, rest)| rest.split_once('"'));
    match patch {
        Some((patch, _)) if event.name == "turn:patch" => format!("{}/{patch}", event.name),
        _ => event.name.to_owned(),
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
