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
    CALL_ENDS = "call-ends-once": "A call ends with one `tool_end`; one that the run's end cut off is an error. A result beyond `max_event_bytes` is cut, and says how much of it is shown and which path has all of it.";
    FOLDED = "sub-agents-are-folded": "A sub-agent's text is output of the call that started it; its reasoning, turns and tools are not shown, so none of it is ever in the answer.";
    ASK_IS_APPROVAL = "ask-is-an-approval-request": "Permissions, questions (`ask_user`), forms and links (`elicitation`) are `approval_request`s, the ones of sub-agents too.";
    SETTLED_IS_SILENT = "settled-asks-are-silent": "No documented event says that an ask was settled; what follows shows it.";
    PLAN_BY_STEP = "plan-by-step": "A new plan is `plan_created`, each step whose status changed a `plan_updated`, and when all are done, or the run ends by `end_turn`, it is `plan_completed`, which says how many were.";
    PLAN_REPLACED = "plan-replaced": "No event adds, drops or renames a step: a plan whose steps become others is `plan_interrupted` (`replaced`), and a new one with its own `plan_id` is `plan_created`.";
    TASKS_ARE_A_PLAN = "background-tasks-are-a-plan": "Where the agent has no plan of its own, its background tasks are one: each is a step that is running until it is completed or failed.";
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

const RUN_STARTED: &[Shown] = &[Shown::item("run_start", RUN_START, "always")];
const TURN_STARTED: &[Shown] = &[Shown::item("turn_start", TURNS_ARE_NESTED, ROOT), Shown::nothing(FOLDED, AGENT)];
const TEXT: &[Shown] = &[
    Shown::item("stream_delta", TEXT_IS_A_DELTA, ROOT),
    Shown::item("tool_progress", FOLDED, "of a sub-agent whose call goes on"),
    Shown::nothing(FOLDED, "of a sub-agent whose call is over"),
    Shown::nothing(FOLDED, AGENT).with("sub_agents=hide"),
];
const THINKING: &[Shown] = &[Shown::item("thinking_delta", THINKING_IS_A_DELTA, ROOT), Shown::nothing(FOLDED, AGENT)];
const TOOL_STARTED: &[Shown] = &[Shown::item("tool_start", CALL_STARTS, ROOT), Shown::nothing(FOLDED, AGENT)];
const TOOL_INPUT: &[Shown] = &[Shown::nothing(LATE_INPUT_IS_SILENT, "always"), Shown::item("tool_input", EXTRAS, ROOT).with(EVENTS)];
const TOOL_OUTPUT: &[Shown] = &[Shown::item("tool_progress", OUTPUT_IS_AN_INCREMENT, ROOT), Shown::nothing(FOLDED, AGENT)];
const TOOL_ENDED: &[Shown] = &[
    Shown::item("tool_end", CALL_ENDS, ROOT),
    Shown::nothing(FOLDED, AGENT),
    Shown::item("tool_end", EXTRAS, "its `tool_name`, `duration_ms`").with(FIELDS),
];
const TURN_ENDED: &[Shown] = &[
    Shown::item("turn_end", TURNS_ARE_NESTED, ROOT),
    Shown::nothing(FOLDED, AGENT),
    Shown::item("token_usage", EXTRAS, "if the tokens of the turn are known").with(EVENTS),
];
const PERMISSION_ASKED: &[Shown] = &[
    Shown::item("approval_request", ASK_IS_APPROVAL, "always"),
    Shown::item("approval_request", EXTRAS, "its `call_id`, `prompt`, `kind`, `expires_at`, `command_text`, as far as it has them")
        .with(FIELDS),
];
const QUESTION_ASKED: &[Shown] = &[
    Shown::item("approval_request", ASK_IS_APPROVAL, "always, `tool_name` is `ask_user`"),
    Shown::item("approval_request", EXTRAS, "its `call_id`, `prompt`, `kind`, `choices`, `expires_at`, as far as it has them").with(FIELDS),
];
const FORM_ASKED: &[Shown] = &[
    Shown::item("approval_request", ASK_IS_APPROVAL, "always, `tool_name` is `elicitation`"),
    Shown::item("approval_request", EXTRAS, "its `prompt`, `kind`, `expires_at`, as far as it has them").with(FIELDS),
];
const ASK_SETTLED: &[Shown] = &[Shown::nothing(SETTLED_IS_SILENT, "always"), Shown::item("hitl_resolved", EXTRAS, "always").with(EVENTS)];
const PLAN_CHANGED: &[Shown] = &[
    Shown::item("plan_created", PLAN_BY_STEP, "if the plan is new or its steps are others"),
    Shown::item("plan_updated", PLAN_BY_STEP, "each step whose status changed"),
    Shown::item("plan_completed", PLAN_BY_STEP, "if all steps are done"),
    Shown::item("plan_interrupted", PLAN_REPLACED, "if another plan goes on whose steps are others, or no step is left"),
    Shown::nothing(FOLDED, AGENT),
    Shown::item("plan_updated", EXTRAS, "its `plan_id`, `title`").with(FIELDS),
];
const COMPACTION: &[Shown] = &[NO_EVENT, Shown::item("compaction", EXTRAS, "always").with(EVENTS)];
const SESSION_CHANGED: &[Shown] = &[NO_EVENT, Shown::item("session_changed", EXTRAS, "always").with(EVENTS)];
const FILES_CHANGED: &[Shown] = &[NO_EVENT, Shown::item("files_changed", EXTRAS, "always").with(EVENTS)];
const TASK_STARTED: &[Shown] = &[Shown::item("plan_created", TASKS_ARE_A_PLAN, "with its step"), TASKS_REPLACED, PLAN_GOES_ON, TASK_EVENT];
const TASK_PROGRESS: &[Shown] = &[
    Shown::item("plan_updated", TASKS_ARE_A_PLAN, "if it says something new"),
    Shown::item("plan_created", TASKS_ARE_A_PLAN, "if its beginning was not told"),
    TASKS_REPLACED,
    PLAN_GOES_ON,
    TASK_EVENT,
];
const TASK_FINISHED: &[Shown] = &[
    Shown::item("plan_updated", TASKS_ARE_A_PLAN, "if its beginning was told"),
    Shown::item("plan_completed", TASKS_ARE_A_PLAN, "if all tasks are over"),
    PLAN_GOES_ON,
    TASK_EVENT,
];
const TASKS_REPLACED: Shown = Shown::item("plan_interrupted", PLAN_REPLACED, "if other tasks go on, whose plan has this step from now on");
const PLAN_GOES_ON: Shown = Shown::nothing(TASKS_ARE_A_PLAN, "while the agent's own plan goes on");
const TASK_EVENT: Shown = Shown::item("task", EXTRAS, "always").with(EVENTS);
const NOTICE: &[Shown] = &[NO_EVENT, Shown::item("notice", EXTRAS, "always").with(EVENTS)];
const SUGGESTION: &[Shown] = &[NO_EVENT, Shown::item("suggestion", EXTRAS, "always").with(EVENTS)];
const NO_EVENT: Shown = Shown::nothing(DOCUMENTED_ONLY, "always");

const PLAN_INTERRUPTED: Shown = Shown::item("plan_interrupted", PLAN_TAKEN_BACK, "if a plan is open");
const TOTALS: &str = "its `usage`, `total_cost_usd`, `num_turns`, `elapsed_ms`, as far as they are known";
const RUN_COMPLETED: &[Shown] = &[
    Shown::item("done", ONE_TERMINAL, "`end_turn`"),
    Shown::item("plan_completed", PLAN_BY_STEP, "if a plan is open"),
    Shown::item("done", EXTRAS, TOTALS).with(FIELDS),
];
const RUN_LIMITED: &[Shown] =
    &[PLAN_INTERRUPTED, Shown::item("done", ONE_TERMINAL, "`budget_exhausted`"), Shown::item("done", EXTRAS, TOTALS).with(FIELDS)];
const RUN_INTERRUPTED: &[Shown] = &[
    PLAN_INTERRUPTED,
    Shown::item("interrupted", ONE_TERMINAL, "always"),
    Shown::item("done", ONE_TERMINAL, "`context_cancelled`").with("interrupt_terminal=done"),
];
const RUN_FAILED: &[Shown] = &[
    PLAN_INTERRUPTED,
    Shown::item("error", ONE_TERMINAL, "always"),
    Shown::item("error", EXTRAS, "its `code`, `recoverable`, and `provider_message` if the provider said it").with(FIELDS),
];
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
        EventKind::ToolEnded | EventKind::ToolFailed | EventKind::ToolAborted => TOOL_ENDED,
        EventKind::TurnEnded => TURN_ENDED,
        EventKind::PermissionAsked => PERMISSION_ASKED,
        EventKind::QuestionAsked => QUESTION_ASKED,
        EventKind::FormAsked => FORM_ASKED,
        EventKind::AskSettled => ASK_SETTLED,
        EventKind::PlanChanged => PLAN_CHANGED,
        EventKind::CompactionStarted | EventKind::CompactionFinished => COMPACTION,
        EventKind::SessionChanged => SESSION_CHANGED,
        EventKind::FilesChanged => FILES_CHANGED,
        EventKind::TaskStarted => TASK_STARTED,
        EventKind::TaskProgress => TASK_PROGRESS,
        EventKind::TaskFinished => TASK_FINISHED,
        EventKind::Notice => NOTICE,
        EventKind::Suggestion => SUGGESTION,
        EventKind::RunCompleted => RUN_COMPLETED,
        EventKind::RunLimited => RUN_LIMITED,
        EventKind::RunInterrupted => RUN_INTERRUPTED,
        EventKind::RunFailed => RUN_FAILED,
        EventKind::Other => OTHER,
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
