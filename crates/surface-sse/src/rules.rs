//! The rules of this surface, by name: what becomes of each kind of event, and why of some nothing does.

use interline_model::{Event, EventKind, ExplainWriter, Record, Rule, Shown, Source, Writer as _};

use crate::block::Block;
use crate::mapping::SseWriter;

interline_model::rules! {
    RUN_START = "run-start-comes-first": "`run_start` is the first event of every run and goes out before the upstream has said anything.";
    TURNS_ARE_NESTED = "turns-are-nested": "`turn_start` and `turn_end` carry the same number, never overlap, and count by one.";
    TEXT_IS_A_DELTA = "text-is-a-delta": "Each piece of the answer is a `stream_delta`, to be appended.";
    THINKING_IS_A_DELTA = "thinking-is-a-delta": "Each piece of reasoning is a `thinking_delta`.";
    CALL_STARTS = "call-starts-with-its-arguments": "A call is a `tool_start` with its whole input, `{}` if that is not known yet.";
    LATE_INPUT_IS_SILENT = "late-input-has-no-event": "No documented event changes the input of a call; it is in the `approval_request`, if one comes.";
    OUTPUT_IS_AN_INCREMENT = "output-is-an-increment": "`tool_progress` carries what is new of a call's output.";
    CALL_ENDS = "call-ends-once": "A call ends with one `tool_end`; one that the run's end cut off is an error.";
    FOLDED = "sub-agents-are-folded": "A sub-agent's text is output of the call that started it; its reasoning, turns and tools are not shown, so none of it is ever in the answer.";
    ASK_IS_APPROVAL = "ask-is-an-approval-request": "Permissions, questions (`ask_user`), forms and links (`elicitation`) are `approval_request`s, the ones of sub-agents too.";
    SETTLED_IS_SILENT = "settled-asks-are-silent": "No documented event says that an ask was settled; what follows shows it.";
    PLAN_BY_STEP = "plan-by-step": "A plan that is new or has other steps is `plan_created`; each step whose status changed is a `plan_updated`; when all are done, `plan_completed`.";
    PLAN_TAKEN_BACK = "plan-taken-back": "A plan that is emptied, or whose run ends otherwise than by `end_turn`, is `plan_interrupted`.";
    ONE_TERMINAL = "one-terminal-event": "Exactly one of `done`, `error` and `interrupted` ends a run, and it is the last event.";
    DOCUMENTED_ONLY = "documented-events-only": "No documented event says this, and strict clients know no others; `extras=events` carries it.";
    EXTRAS = "extras-on-request": "With `extras=fields` events carry more members; with `extras=events` there are undocumented events besides, without a number.";
    NO_MEANING = "no-meaning-no-event": "A frame without a meaning of its own gives no event.";
    ORDER_IS_KEPT = "order-is-kept-whatever-comes": "Whatever events come, the order of the protocol is kept: what is still open is closed, what is missing is opened.";
}

const EVENTS: &str = "extras=events";
const FIELDS: &str = "extras=fields";

const ROOT: &str = "of the root agent";
const AGENT: &str = "of a sub-agent";

/// What becomes of an event of this kind.
#[must_use]
pub fn shown(kind: EventKind) -> &'static [Shown] {
    match kind {
        EventKind::RunStarted => const { &[Shown::item("run_start", RUN_START, "always")] },
        EventKind::TurnStarted => const { &[Shown::item("turn_start", TURNS_ARE_NESTED, ROOT), Shown::nothing(FOLDED, AGENT)] },
        EventKind::Text => {
            const {
                &[
                    Shown::item("stream_delta", TEXT_IS_A_DELTA, ROOT),
                    Shown::item("tool_progress", FOLDED, "of a sub-agent whose call goes on"),
                ]
            }
        }
        EventKind::Thinking => const { &[Shown::item("thinking_delta", THINKING_IS_A_DELTA, ROOT), Shown::nothing(FOLDED, AGENT)] },
        EventKind::ToolStarted => const { &[Shown::item("tool_start", CALL_STARTS, ROOT), Shown::nothing(FOLDED, AGENT)] },
        EventKind::ToolInput => {
            const { &[Shown::nothing(LATE_INPUT_IS_SILENT, "always"), Shown::item("tool_input", EXTRAS, ROOT).with(EVENTS)] }
        }
        EventKind::ToolOutput => const { &[Shown::item("tool_progress", OUTPUT_IS_AN_INCREMENT, ROOT), Shown::nothing(FOLDED, AGENT)] },
        EventKind::ToolEnded => {
            const {
                &[
                    Shown::item("tool_end", CALL_ENDS, ROOT),
                    Shown::nothing(FOLDED, AGENT),
                    Shown::item("tool_end", EXTRAS, "its `tool_name`, `duration_ms`").with(FIELDS),
                ]
            }
        }
        EventKind::TurnEnded => {
            const {
                &[
                    Shown::item("turn_end", TURNS_ARE_NESTED, ROOT),
                    Shown::nothing(FOLDED, AGENT),
                    Shown::item("token_usage", EXTRAS, "if the tokens of the turn are known").with(EVENTS),
                ]
            }
        }
        EventKind::AskRaised => {
            const {
                &[
                    Shown::item("approval_request", ASK_IS_APPROVAL, "always"),
                    Shown::item("approval_request", EXTRAS, "its `call_id`, `prompt`, `kind`, `choices`, `expires_at`, `command_text`")
                        .with(FIELDS),
                ]
            }
        }
        EventKind::AskSettled => {
            const { &[Shown::nothing(SETTLED_IS_SILENT, "always"), Shown::item("hitl_resolved", EXTRAS, "always").with(EVENTS)] }
        }
        EventKind::PlanChanged => {
            const {
                &[
                    Shown::item("plan_created", PLAN_BY_STEP, "if the plan is new or its steps are others"),
                    Shown::item("plan_updated", PLAN_BY_STEP, "each step whose status changed"),
                    Shown::item("plan_completed", PLAN_BY_STEP, "if all steps are done"),
                    Shown::item("plan_interrupted", PLAN_TAKEN_BACK, "if no step is left"),
                    Shown::nothing(FOLDED, AGENT),
                ]
            }
        }
        EventKind::Compaction => {
            const { &[Shown::nothing(DOCUMENTED_ONLY, "always"), Shown::item("compaction", EXTRAS, "always").with(EVENTS)] }
        }
        EventKind::SessionChanged => {
            const { &[Shown::nothing(DOCUMENTED_ONLY, "always"), Shown::item("session_changed", EXTRAS, "always").with(EVENTS)] }
        }
        EventKind::FilesChanged => {
            const { &[Shown::nothing(DOCUMENTED_ONLY, "always"), Shown::item("files_changed", EXTRAS, "always").with(EVENTS)] }
        }
        EventKind::Task => const { &[Shown::nothing(DOCUMENTED_ONLY, "always"), Shown::item("task", EXTRAS, "always").with(EVENTS)] },
        EventKind::Notice => const { &[Shown::nothing(DOCUMENTED_ONLY, "always"), Shown::item("notice", EXTRAS, "always").with(EVENTS)] },
        EventKind::Suggestion => {
            const { &[Shown::nothing(DOCUMENTED_ONLY, "always"), Shown::item("suggestion", EXTRAS, "always").with(EVENTS)] }
        }
        EventKind::RunEnded => {
            const {
                &[
                    Shown::item("plan_interrupted", PLAN_TAKEN_BACK, "if a plan is open and the end is not `end_turn`"),
                    Shown::item("done", ONE_TERMINAL, "if it completed, or reached a limit (`budget_exhausted`)"),
                    Shown::item("error", ONE_TERMINAL, "if it failed"),
                    Shown::item("interrupted", ONE_TERMINAL, "if it was interrupted"),
                    Shown::item("done", EXTRAS, "its `usage`, `total_cost_usd`, `num_turns`, `elapsed_ms`").with(FIELDS),
                    Shown::item("error", EXTRAS, "its `code`, `recoverable`, `provider_message`").with(FIELDS),
                ]
            }
        }
        EventKind::Other => const { &[Shown::nothing(NO_MEANING, "always")] },
    }
}

/// The rule by which an event of this kind became an item of this name.
#[must_use]
pub fn rule(kind: EventKind, item: &str) -> Rule {
    shown(kind).iter().find(|shown| shown.item == item).map_or(ORDER_IS_KEPT, |shown| shown.rule)
}

/// The name of an event: its `type`.
#[must_use]
pub fn name(block: &Block) -> String {
    // `type` is what every event begins with (sse.md §3.1).
    let json = block.json();
    let name = json.strip_prefix(b"{\"type\":\"").and_then(|rest| rest.split(|byte| *byte == b'"').next());
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

impl ExplainWriter for SseWriter {
    fn write_explained(&mut self, record: &Record, events: &[Event], items: &mut Vec<Block>, sources: &mut Vec<Source>) {
        // Each event is written by itself, whatever stands beside it in its record.
        for (number, event) in events.iter().enumerate() {
            let before = items.len();
            self.write(record, std::slice::from_ref(event), items);
            sources.extend(items.iter().skip(before).map(|block| Source {
                event: Some(number),
                rule: rule(event.what.kind(), &name(block)),
                releases: false,
            }));
        }
    }
}
