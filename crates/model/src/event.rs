//! Events: what frames mean.

use crate::{Ask, AskId, AskKind, AskOutcome, CallId, Completion, Json, Outcome, RunEnd, RunId, SessionId, Text, Usage};

/// Who speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The agent that the user talks to.
    #[default]
    Root,
    /// The sub-agent that this tool call started.
    Agent(CallId),
}

impl Lane {
    /// Whether it is the root agent's.
    #[must_use]
    pub fn is_root(&self) -> bool {
        matches!(self, Self::Root)
    }
}

/// One event, in one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Whose.
    pub lane: Lane,
    /// What.
    pub what: What,
}

impl Event {
    /// An event of the root lane.
    #[must_use]
    pub fn root(what: What) -> Self {
        Self { lane: Lane::Root, what }
    }
}

/// What happened. In a run, [`What::RunStarted`] comes first and [`What::RunEnded`] last, once each; per lane, turns are nested and
/// closed, text, thinking and the start of a tool lie inside a turn, and each call starts before anything else is said of it
/// and ends exactly once, inside its turn. Readers guarantee this whatever the upstream sends.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The run exists; nothing is known of the upstream yet.
    RunStarted {
        /// Its id.
        run: RunId,
        /// Its session.
        session: SessionId,
        /// The model asked for, or `default`.
        model: Text,
    },
    /// A model call begins.
    TurnStarted,
    /// A piece of the answer; never empty, to be appended.
    Text {
        /// The piece.
        delta: Text,
    },
    /// A piece of reasoning; never empty, to be appended.
    Thinking {
        /// The piece.
        delta: Text,
    },
    /// A tool call is announced.
    ToolStarted {
        /// Its id, unique in the run.
        call: CallId,
        /// The tool's name; never empty.
        name: Text,
        /// Its input, an object, if known.
        input: Option<Json>,
    },
    /// The input of an announced call became known, or changed, later.
    ToolInput {
        /// Which call.
        call: CallId,
        /// The input, an object.
        input: Json,
    },
    /// A piece of a running tool's output.
    ToolOutput {
        /// Which call.
        call: CallId,
        /// The piece; never empty.
        delta: Text,
    },
    /// The call is over.
    ToolEnded {
        /// Which call.
        call: CallId,
        /// The result as text.
        result: Text,
        /// The result as it came, where it is more than text: an object, or a list.
        raw: Option<Json>,
        /// Whether it failed.
        is_error: bool,
        /// The run ended before the call did; `result` is then ours, not the tool's.
        aborted: bool,
    },
    /// The model call and its tools are over.
    TurnEnded {
        /// Tokens of this call, where known.
        usage: Option<Usage>,
    },
    /// People are asked.
    AskRaised(Box<Ask>),
    /// The ask is over.
    AskSettled {
        /// Which ask.
        ask: AskId,
        /// How.
        outcome: AskOutcome,
    },
    /// The plan is now this.
    PlanChanged {
        /// All its steps, in order.
        steps: Vec<PlanStep>,
    },
    /// The context is being, or was, compacted.
    Compaction(CompactionPhase),
    /// Something about the session changed; `None` is unchanged.
    SessionChanged {
        /// The model now used.
        model: Option<Text>,
        /// The title.
        title: Option<Text>,
        /// The permission mode.
        mode: Option<Text>,
        /// `idle`, `running`, `requires_action`, `paused`, `resumed`.
        state: Option<Text>,
    },
    /// Files changed.
    FilesChanged {
        /// Their paths, as the upstream names them.
        paths: Vec<Text>,
    },
    /// A background task.
    Task {
        /// Its id.
        task: Text,
        /// The call that started it.
        call: Option<CallId>,
        /// What about it.
        phase: TaskPhase,
        /// A sentence: its description, or the latest summary.
        summary: Text,
    },
    /// Something people may want to know and that ends nothing.
    Notice {
        /// How bad.
        level: NoticeLevel,
        /// Machine token, for example `api_retry`.
        code: Text,
        /// The sentence.
        text: Text,
    },
    /// What the user might ask next.
    Suggestion {
        /// The text.
        text: Text,
    },
    /// The run is over.
    RunEnded(Box<RunEnd>),
    /// A frame with no meaning of its own, known or unknown: kept, countable, passed through by the native surface.
    Other {
        /// Its type and subtype, as `type/subtype`, or `malformed`.
        name: Text,
    },
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// Stable within the plan.
    pub id: Text,
    /// What is to be done.
    pub title: Text,
    /// How far it is.
    pub status: StepStatus,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStatus {
    /// Not begun.
    Pending,
    /// Being done.
    Running,
    /// Done.
    Completed,
}

/// A compaction's two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompactionPhase {
    /// It begins.
    Started {
        /// Why: `tokens_above_threshold`, `max_tokens_recovery`, `manual` …
        reason: Text,
        /// Tokens before.
        tokens_before: Option<u64>,
    },
    /// It is over.
    Finished {
        /// Tokens before.
        tokens_before: Option<u64>,
        /// Tokens after.
        tokens_after: Option<u64>,
    },
}

/// A background task's moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskPhase {
    /// It begins.
    Started,
    /// It goes on.
    Progress,
    /// It is over.
    Finished,
    /// It is over and came to nothing.
    Failed,
}

/// How bad a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeLevel {
    /// For information.
    Info,
    /// Something is not as it should be.
    Warning,
    /// Something failed, and the run goes on.
    Error,
}

/// Declares the kinds of events: what [`What`] is without most of its members.
macro_rules! kinds {
    ($( $kind:ident = $name:literal, $pattern:pat $(if $guard:expr)?, )*) => {
        /// Which event it is, as far as tables and rules tell events apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventKind {
            $(
                #[doc = concat!("`", $name, "`.")]
                $kind,
            )*
        }

        impl EventKind {
            /// All of them, in the order of the vocabulary.
            pub const ALL: &[Self] = &[ $( Self::$kind ),* ];

            /// Its name, as pages write it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$kind => $name, )*
                }
            }
        }

        impl What {
            /// Which event it is.
            #[must_use]
            pub fn kind(&self) -> EventKind {
                match self {
                    $( $pattern $(if $guard)? => EventKind::$kind, )*
                }
            }
        }
    };
}

kinds! {
    RunStarted = "RunStarted", What::RunStarted { .. },
    TurnStarted = "TurnStarted", What::TurnStarted,
    Text = "Text", What::Text { .. },
    Thinking = "Thinking", What::Thinking { .. },
    ToolStarted = "ToolStarted", What::ToolStarted { .. },
    ToolInput = "ToolInput", What::ToolInput { .. },
    ToolOutput = "ToolOutput", What::ToolOutput { .. },
    ToolAborted = "ToolEnded{aborted}", What::ToolEnded { aborted: true, .. },
    ToolFailed = "ToolEnded{is_error}", What::ToolEnded { is_error: true, .. },
    ToolEnded = "ToolEnded", What::ToolEnded { .. },
    TurnEnded = "TurnEnded", What::TurnEnded { .. },
    PermissionAsked = "AskRaised{permission}", What::AskRaised(ask) if ask.kind == AskKind::Permission,
    QuestionAsked = "AskRaised{question}", What::AskRaised(ask) if ask.kind == AskKind::Question,
    FormAsked = "AskRaised{form or link}", What::AskRaised(_),
    AskSettled = "AskSettled", What::AskSettled { .. },
    PlanChanged = "PlanChanged", What::PlanChanged { .. },
    CompactionStarted = "Compaction{started}", What::Compaction(CompactionPhase::Started { .. }),
    CompactionFinished = "Compaction{finished}", What::Compaction(CompactionPhase::Finished { .. }),
    SessionChanged = "SessionChanged", What::SessionChanged { .. },
    FilesChanged = "FilesChanged", What::FilesChanged { .. },
    TaskStarted = "Task{started}", What::Task { phase: TaskPhase::Started, .. },
    TaskProgress = "Task{progress}", What::Task { phase: TaskPhase::Progress, .. },
    TaskFinished = "Task{finished}", What::Task { .. },
    Notice = "Notice", What::Notice { .. },
    Suggestion = "Suggestion", What::Suggestion { .. },
    RunCompleted = "RunEnded{completed}", What::RunEnded(end) if end.outcome == Outcome::Completed(Completion::EndTurn),
    RunLimited = "RunEnded{completed, limit}", What::RunEnded(end) if matches!(end.outcome, Outcome::Completed(_)),
    RunInterrupted = "RunEnded{interrupted}", What::RunEnded(end) if matches!(end.outcome, Outcome::Interrupted { .. }),
    RunFailed = "RunEnded{failed}", What::RunEnded(_),
    Other = "Other", What::Other { .. },
}
