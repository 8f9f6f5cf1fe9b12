//! The rules of the reader, by name, and which of them make what of which record.
//!
//! The tables say what every kind of frame can come to mean. [`rules`] picks from them, so an explanation and a page that is made of the
//! tables cannot say different things; and the tests hold both to what the reader really does.

use interline_model::{Body, Event, EventKind, Fact, Record, Rule};

use crate::frame::{CodeKind, DataKind, FrameKind, LifecycleKind, RequestKind};

interline_model::rules! {
    RUN_BEGINS = "run-begins-when-accepted": "A run begins the moment it is accepted, before the upstream has said anything.";
    TEXT_ONCE = "text-once": "Text comes in up to three copies and is told once: where `streamlined_text` has come in a lane, it is the text, and stream events and snapshots add none.";
    DELTAS_AS_THEY_COME = "deltas-as-they-come": "Without `streamlined_text`, deltas of the provider's stream are told as they come.";
    SNAPSHOT_ADDS_THE_REST = "snapshot-adds-the-rest": "A snapshot adds what was not streamed of its message, by message id, and nothing if it says something else.";
    THINK_MARKS = "think-marks": "In `streamlined_text`, what stands between `<think>` and `</think>` is reasoning; the marks may be cut anywhere, so what may yet become one waits for the next frame.";
    HELD_TEXT_COMES_OUT = "held-text-comes-out": "What was held back because it might have become a mark, or half of a character, is said before the end.";
    TURN_OPENS = "turn-opens-when-something-is-said": "A turn opens when text, reasoning or a call comes and none is open, or when all calls of the open one have ended.";
    TURN_CLOSES = "turn-closes-when-its-calls-have-ended": "A turn whose calls have all ended is closed by whatever is said next.";
    AGENT_CLOSES = "sub-agent-ends-with-its-call": "When the call that started a sub-agent ends, the sub-agent's open turn is closed.";
    COMPACTION_CLOSES = "compaction-closes-the-turn": "Compaction closes the open turn, unless a call in it goes on.";
    TOOL_AT_ONCE = "tool-announced-at-once": "A call is announced by the first frame that names it, whichever that is, once; with `{}` if its input is not known yet.";
    TOOL_WAITS = "tool-waits-for-its-block": "A call whose content block is being streamed is announced at the end of that block, with its input.";
    RESULT_ANNOUNCES = "result-announces-its-call": "A result whose call has not been announced announces it first. If nothing has named the tool, it is called `tool` and stays so: SSE has no event that renames a call, and on Socket.IO no patch but `add_tool_call` has a name, so that a snapshot which did would contradict the patches.";
    LATE_INPUT = "late-input": "Input that becomes known after the call was announced is told by itself, once.";
    FIRST_RESULT_WINS = "first-result-wins": "The first result ends a call; later ones change nothing.";
    ERROR_BY_FLAG = "error-by-flag": "A `tool_result` is an error if its `is_error` says so.";
    ERROR_BY_PREFIX = "error-by-prefix": "A summary has no flag: it is an error if its text begins as `error in TOOL: ` or `error: error in TOOL: `.";
    ONLY_OPEN_CALL = "only-open-call": "`streamlined_tool_use_summary` names no call, so it ends the only open one, and nothing if there are several or none.";
    CALL_VOIDS_ASK = "ended-call-voids-its-ask": "When a call ends, an ask about it that still waits is void.";
    PLAN_IS_TODOS = "plan-is-the-to-do-list": "The input of the planning tool is the whole plan; the call itself is shown like any other.";
    ASK_IS_STATE = "ask-is-state": "A request that people must answer is an ask: raised once by its `request_id`, pending until it is settled once.";
    QUESTION_TOOL = "question-is-the-question-tools-permission": "A permission request for `AskUserQuestion` is the question itself.";
    FORM_OR_LINK = "form-or-link": "An elicitation is a link with `mode: url`, or with a URL and no schema; else it is a form.";
    FIRST_ANSWER_WINS = "first-answer-wins": "The first answer settles an ask, from whichever surface it comes.";
    INTERLINE_NOTICES = "interline-notices": "What people should know and no frame says, such as an answer that nothing shows to have been taken, is a notice of ours.";
    EXPIRY_DENIES = "expiry-denies": "An ask that nobody answers in time is settled as denied.";
    UPSTREAM_GOES_ON = "upstream-took-it-back": "A frame that says that an ask is done with, or taken back, voids it if it still waits.";
    COMPACTION_HAS_TWO_ENDS = "compaction-has-two-moments": "Compaction begins and ends; a boundary frame stands for both where the others are not sent, and for nothing between them.";
    SESSION_SAYS = "session-says-what-it-is": "What a frame says of the session's model, permission mode, title or state is a change of the session; what it does not say stays.";
    FILES_BY_PATH = "files-by-path": "Stored files are changed files, by their paths.";
    TASK_IN_ITS_LANE = "task-in-its-callers-lane": "A background task is told in the lane of the call that started it, if that is known, else in the root's.";
    NOTICE_ENDS_NOTHING = "notice-ends-nothing": "What people may want to know and what ends nothing is a notice: a retry, a limit, a failed sign-in, a failed hook.";
    RECOVERABLE = "recoverable-error-ends-nothing": "A `result` whose errors are all recoverable is a notice, except in a `chat` session, where any error ends the run.";
    SUGGESTION = "suggestion": "A prompt suggestion is told as one.";
    ENDS_ONCE = "every-run-ends-once": "The first `result` that is no recoverable error ends the run; after that nothing means anything.";
    INTERRUPTED = "interruption-however-it-is-said": "`stop_reason: interrupted`, an aborted `terminal_reason`, or any error after a request to stop is an interruption.";
    LIMITS_COMPLETE = "limits-complete": "A run that reached its limit of turns or budget is completed, and says by which limit.";
    ERROR_KIND_BY_TEXT = "error-kind-by-text": "Errors carry no codes, so the kind is chosen by the status and the words of the message; the words never choose whether it is an error.";
    NOTHING_STAYS_OPEN = "nothing-stays-open": "Before the end of a run, calls that go on are ended as interrupted, asks that wait are void, and turns are closed, sub-agents first.";
    END_IS_FORCED = "missing-end-is-supplied": "Where the upstream gives no end (it left, it is silent, it does not obey a stop, we shut down), we end the run, and mark the end as ours.";
    ERROR_STAYS = "recoverable-error-that-stays": "A recoverable error that is followed by nothing ends the run with its own message.";
    STOP_INTERRUPTS = "stop-makes-it-an-interruption": "After a request to stop, an end that we or an error make is an interruption.";
    OWN_LANE = "sub-agents-have-their-lane": "A frame with `parent_tool_use_id` belongs to the lane of the sub-agent which that call started.";
    KEPT = "kept-without-a-meaning": "A frame that means nothing for a conversation, known or unknown, is kept, counted, and passed through to native clients.";
    MALFORMED = "malformed-is-kept": "What is no JSON object is kept and counted, and ends nothing.";
}

/// One thing that a record can come to mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// The event.
    pub event: EventKind,
    /// The rule by which it is that.
    pub rule: Rule,
    /// When it is, in a few words.
    pub when: &'static str,
}

const fn any(event: EventKind, rule: Rule, when: &'static str) -> Means {
    Means { event, rule, when }
}

const OPENS: Means = any(EventKind::TurnStarted, TURN_OPENS, "if no turn is open");
const CLOSES: Means = any(EventKind::TurnEnded, TURN_CLOSES, "if all calls of the open turn have ended");
const AGENT_ENDS: Means =
    any(EventKind::TurnEnded, AGENT_CLOSES, "if a call ends that started a sub-agent, or a call whose turn is over is followed");
const VOIDS: Means = any(EventKind::AskSettled, CALL_VOIDS_ASK, "if an ask about the call waits");
const PLANS: Means = any(EventKind::PlanChanged, PLAN_IS_TODOS, "if the call is the planning tool's");
const LATE: Means = any(EventKind::ToolInput, LATE_INPUT, "if the call was announced without input");
const FIRST_SEEN: Means = any(EventKind::ToolStarted, RESULT_ANNOUNCES, "if the call has not been announced");
const OTHER: Means = any(EventKind::Other, KEPT, "always");

const STREAMLINED: &[Means] = &[
    any(EventKind::Text, TEXT_ONCE, "outside of `<think>` marks"),
    any(EventKind::Thinking, THINK_MARKS, "between `<think>` and `</think>`"),
    OPENS,
    CLOSES,
];

const STREAM: &[Means] = &[
    any(EventKind::Text, DELTAS_AS_THEY_COME, "`text_delta`"),
    any(EventKind::Thinking, DELTAS_AS_THEY_COME, "`thinking_delta`"),
    any(EventKind::ToolStarted, TOOL_WAITS, "the end of a `tool_use` block: its stop, the message's, or whatever takes its place"),
    any(EventKind::ToolInput, TOOL_WAITS, "the same, if the call was announced earlier without input"),
    PLANS,
    OPENS,
    CLOSES,
];

const SNAPSHOT: &[Means] = &[
    any(EventKind::Text, SNAPSHOT_ADDS_THE_REST, "a `text` block"),
    any(EventKind::Thinking, SNAPSHOT_ADDS_THE_REST, "a `thinking` block"),
    any(EventKind::ToolStarted, TOOL_AT_ONCE, "a `tool_use` block"),
    LATE,
    PLANS,
    OPENS,
    CLOSES,
];

const USER: &[Means] = &[
    any(EventKind::ToolFailed, ERROR_BY_FLAG, "a `tool_result` block with `is_error`"),
    any(EventKind::ToolEnded, FIRST_RESULT_WINS, "any other `tool_result` block"),
    FIRST_SEEN,
    PLANS,
    OPENS,
    AGENT_ENDS,
    VOIDS,
    any(EventKind::Other, KEPT, "without any `tool_result`"),
];

const SUMMARY: &[Means] = &[
    any(EventKind::ToolFailed, ERROR_BY_PREFIX, "with the documented prefix"),
    any(EventKind::ToolEnded, FIRST_RESULT_WINS, "otherwise"),
    FIRST_SEEN,
    PLANS,
    OPENS,
    AGENT_ENDS,
    VOIDS,
];

const NAMELESS_SUMMARY: &[Means] = &[
    any(EventKind::ToolFailed, ERROR_BY_PREFIX, "the only open call, with the documented prefix"),
    any(EventKind::ToolEnded, ONLY_OPEN_CALL, "the only open call"),
    FIRST_SEEN,
    PLANS,
    OPENS,
    AGENT_ENDS,
    VOIDS,
];

const PROGRESS: &[Means] =
    &[any(EventKind::ToolStarted, TOOL_AT_ONCE, "if it is the first to name the call and no block streams it"), OPENS, CLOSES];

const WOUND_UP: [Means; 7] = [
    any(EventKind::Text, HELD_TEXT_COMES_OUT, "if any is held back"),
    any(EventKind::Thinking, HELD_TEXT_COMES_OUT, "if any is held back"),
    any(EventKind::ToolStarted, TOOL_WAITS, "if a block still streams the call"),
    any(EventKind::ToolInput, TOOL_WAITS, "the same, if the call was announced earlier without input"),
    any(EventKind::ToolAborted, NOTHING_STAYS_OPEN, "each call that goes on"),
    any(EventKind::AskSettled, NOTHING_STAYS_OPEN, "each ask that waits"),
    any(EventKind::TurnEnded, NOTHING_STAYS_OPEN, "each turn that is open"),
];

const SUCCESS: &[Means] = &[
    any(EventKind::RunInterrupted, INTERRUPTED, "`stop_reason: interrupted` or an aborted `terminal_reason`"),
    any(EventKind::RunLimited, LIMITS_COMPLETE, "subtype `error_max_turns` or `error_max_budget…`, though not `is_error`"),
    any(EventKind::RunCompleted, ENDS_ONCE, "otherwise"),
    WOUND_UP[0],
    WOUND_UP[1],
    WOUND_UP[2],
    WOUND_UP[3],
    PLANS,
    OPENS,
    WOUND_UP[4],
    WOUND_UP[5],
    WOUND_UP[6],
];

const FAILURE: &[Means] = &[
    any(EventKind::Notice, RECOVERABLE, "if all its errors are recoverable, outside of `chat` sessions"),
    any(EventKind::RunInterrupted, INTERRUPTED, "if interrupted or aborted, or after a request to stop"),
    any(EventKind::RunLimited, LIMITS_COMPLETE, "`error_max_turns`, `error_max_budget…`"),
    any(EventKind::RunFailed, ERROR_KIND_BY_TEXT, "any other error"),
    WOUND_UP[0],
    WOUND_UP[1],
    WOUND_UP[2],
    WOUND_UP[3],
    PLANS,
    OPENS,
    WOUND_UP[4],
    WOUND_UP[5],
    WOUND_UP[6],
];

const FORCED: &[Means] = &[
    any(EventKind::RunInterrupted, STOP_INTERRUPTS, "after a request to stop, or when its grace is over"),
    any(EventKind::RunFailed, END_IS_FORCED, "otherwise; after a recoverable error with that error's message"),
    WOUND_UP[0],
    WOUND_UP[1],
    WOUND_UP[2],
    WOUND_UP[3],
    PLANS,
    OPENS,
    WOUND_UP[4],
    WOUND_UP[5],
    WOUND_UP[6],
];

const PERMISSION: &[Means] = &[
    any(EventKind::QuestionAsked, QUESTION_TOOL, "of the tool `AskUserQuestion`"),
    any(EventKind::PermissionAsked, ASK_IS_STATE, "of any other tool"),
    any(EventKind::ToolStarted, TOOL_AT_ONCE, "if it is the first to name the call"),
    LATE,
    PLANS,
    OPENS,
    CLOSES,
    any(EventKind::Other, KEPT, "without a `request_id`"),
];

const FORM: &[Means] = &[any(EventKind::FormAsked, FORM_OR_LINK, "always, once"), any(EventKind::Other, KEPT, "without a `request_id`")];

const NAMED_SESSION: &[Means] =
    &[any(EventKind::SessionChanged, SESSION_SAYS, "if it says any of them"), any(EventKind::Other, KEPT, "if it does not")];

const NOTICED: &[Means] = &[any(EventKind::Notice, NOTICE_ENDS_NOTHING, "always")];

const NOTICED_FAILURE: &[Means] =
    &[any(EventKind::Notice, NOTICE_ENDS_NOTHING, "if it says that something failed"), any(EventKind::Other, KEPT, "if it does not")];

const DONE_WITH: &[Means] = &[any(EventKind::AskSettled, UPSTREAM_GOES_ON, "if the ask waits"), OTHER];

const JUST_KEPT: &[Means] = &[OTHER];

/// What a message of this kind can come to mean. What is not in the list it never means.
#[must_use]
pub fn means(kind: FrameKind) -> &'static [Means] {
    match kind {
        FrameKind::Data(data) => match data {
            DataKind::StreamlinedText => STREAMLINED,
            DataKind::StreamEvent => STREAM,
            DataKind::Assistant => SNAPSHOT,
            DataKind::User | DataKind::UserReplay => USER,
            DataKind::ToolProgress => PROGRESS,
            DataKind::ToolUseSummary => SUMMARY,
            DataKind::StreamlinedToolUseSummary => NAMELESS_SUMMARY,
            DataKind::ResultSuccess => SUCCESS,
            DataKind::ResultError => FAILURE,
            DataKind::CompactBoundary => {
                const {
                    &[
                        any(EventKind::CompactionStarted, COMPACTION_HAS_TWO_ENDS, "if no compaction goes on"),
                        any(EventKind::CompactionFinished, COMPACTION_HAS_TWO_ENDS, "if no compaction goes on"),
                        any(EventKind::TurnEnded, COMPACTION_CLOSES, "if a turn is open and no call in it"),
                        any(EventKind::Other, KEPT, "while a compaction goes on"),
                    ]
                }
            }
            DataKind::TaskStarted => const { &[any(EventKind::TaskStarted, TASK_IN_ITS_LANE, "with a `task_id`")] },
            DataKind::TaskProgress => const { &[any(EventKind::TaskProgress, TASK_IN_ITS_LANE, "with a `task_id`")] },
            DataKind::TaskNotification => const { &[any(EventKind::TaskFinished, TASK_IN_ITS_LANE, "with a `task_id`")] },
            DataKind::ElicitationComplete | DataKind::FormAnswer => DONE_WITH,
            DataKind::SystemInit | DataKind::SystemStatus | DataKind::SessionStateChanged | DataKind::PostTurnSummary => NAMED_SESSION,
            DataKind::FilesPersisted => const { &[any(EventKind::FilesChanged, FILES_BY_PATH, "always")] },
            DataKind::ApiRetry | DataKind::RateLimitEvent => NOTICED,
            DataKind::AuthStatus | DataKind::HookResponse => NOTICED_FAILURE,
            DataKind::PromptSuggestion => {
                const { &[any(EventKind::Suggestion, SUGGESTION, "if there is one"), any(EventKind::Other, KEPT, "if it is empty")] }
            }
            DataKind::LocalCommandOutput | DataKind::HookStarted | DataKind::HookProgress => JUST_KEPT,
        },
        FrameKind::Request(request) => match request {
            RequestKind::CanUseTool => PERMISSION,
            RequestKind::Elicitation => FORM,
            // What clients ask of servers; a server that asks it asks for nothing that people could answer.
            RequestKind::Initialize
            | RequestKind::Interrupt
            | RequestKind::SetModel
            | RequestKind::SetPermissionMode
            | RequestKind::SetMaxThinkingTokens
            | RequestKind::McpStatus
            | RequestKind::McpMessage
            | RequestKind::McpSetServers
            | RequestKind::McpReconnect
            | RequestKind::McpToggle
            | RequestKind::GetContextUsage
            | RequestKind::HookCallback
            | RequestKind::RewindFiles
            | RequestKind::CancelAsyncMessage
            | RequestKind::SeedReadState
            | RequestKind::ReloadPlugins
            | RequestKind::StopTask
            | RequestKind::ApplyFlagSettings
            | RequestKind::GetSettings => JUST_KEPT,
        },
        FrameKind::Cancel => DONE_WITH,
        FrameKind::Lifecycle(lifecycle) => match lifecycle {
            LifecycleKind::CompactStarted => {
                const {
                    &[
                        any(EventKind::CompactionStarted, COMPACTION_HAS_TWO_ENDS, "always"),
                        any(EventKind::TurnEnded, COMPACTION_CLOSES, "if a turn is open and no call in it"),
                    ]
                }
            }
            LifecycleKind::CompactFinished => const { &[any(EventKind::CompactionFinished, COMPACTION_HAS_TWO_ENDS, "always")] },
            LifecycleKind::SessionPaused | LifecycleKind::SessionResumed => {
                const { &[any(EventKind::SessionChanged, SESSION_SAYS, "always")] }
            }
            LifecycleKind::KeepAlive
            | LifecycleKind::UpdateEnvironmentVariables
            | LifecycleKind::SessionDesynced
            | LifecycleKind::SessionPrimaryPromoted => JUST_KEPT,
        },
        FrameKind::Code(code) => match code {
            // The code plane is a socket of its own beside the runs (native-ws.md §5.5).
            CodeKind::CodeRequest
            | CodeKind::CodeResponse
            | CodeKind::CodePtyChunk
            | CodeKind::CodePtyInput
            | CodeKind::CodePtyResize
            | CodeKind::CodePtyExit
            | CodeKind::CodeSessionEvent => JUST_KEPT,
        },
        FrameKind::OtherRequest | FrameKind::Response | FrameKind::Unknown => JUST_KEPT,
        FrameKind::Malformed => const { &[any(EventKind::Other, MALFORMED, "always")] },
    }
}

/// What a fact of ours can come to mean.
#[must_use]
pub fn fact_means(fact: &Fact) -> &'static [Means] {
    match fact {
        Fact::RunAccepted(_) => const { &[any(EventKind::RunStarted, RUN_BEGINS, "always")] },
        Fact::AskAnswered { .. } => const { &[any(EventKind::AskSettled, FIRST_ANSWER_WINS, "if the ask waits")] },
        Fact::AskExpired { .. } => const { &[any(EventKind::AskSettled, EXPIRY_DENIES, "if the ask waits")] },
        Fact::EndForced(_) => FORCED,
        Fact::Titled { .. } => const { &[any(EventKind::SessionChanged, SESSION_SAYS, "if the title is not empty")] },
        Fact::AskUnconfirmed { .. } | Fact::Noticed { .. } => const { &[any(EventKind::Notice, INTERLINE_NOTICES, "always")] },
        Fact::AskDecided { .. }
        | Fact::StopRequested { .. }
        | Fact::Compacted
        | Fact::Attached { .. }
        | Fact::Shortened { .. }
        | Fact::LinkLost
        | Fact::LinkBack => &[],
    }
}

/// What this record can come to mean.
#[must_use]
pub fn record_means(record: &Record) -> &'static [Means] {
    match &record.body {
        Body::Frame(text) => means(FrameKind::of(text)),
        Body::Fact(fact) => fact_means(fact),
    }
}

/// The rules by which `record` made `event`, the most particular one first; none if no table knows of it.
#[must_use]
pub fn rules(record: &Record, event: &Event) -> Vec<Rule> {
    pick(record_means(record), event)
}

/// The line of a table that says this event.
#[must_use]
pub fn line<'t>(table: &'t [Means], event: &Event) -> Option<&'t Means> {
    table.iter().find(|means| means.event == event.what.kind())
}

pub(crate) fn pick(table: &[Means], event: &Event) -> Vec<Rule> {
    let lane = (!event.lane.is_root()).then_some(OWN_LANE);
    line(table, event).map(|means| means.rule).into_iter().chain(lane).collect()
}
