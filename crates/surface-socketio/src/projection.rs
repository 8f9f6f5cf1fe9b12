//! TurnProjections: the turns of a session as REST shows them and as snapshots and `turn:start`/`turn:end` carry them (socketio.md §3.3).

use std::collections::BTreeSet;

use interline_model::{AskId, Json, Lane, Millis, RunId, Text, Usage, write_json_string};

use crate::object::{Object, write_object};
use crate::options::Options;
use crate::patch::Retold;
use crate::stamp::{loop_id, timestamp, turn_id};

/// One turn.
pub(crate) struct Turn {
    pub(crate) id: Text,
    pub(crate) turn_id: Text,
    pub(crate) sequence: usize,
    pub(crate) lane: Lane,
    pub(crate) loop_id: Text,
    /// How many sub-agents deep: children end before their parents.
    pub(crate) depth: usize,
    pub(crate) kind: Kind,
    pub(crate) status: TurnStatus,
    pub(crate) blocks: Vec<Block>,
    pub(crate) calls: Vec<Call>,
    /// The numbers of the calls that are not final.
    pub(crate) open: BTreeSet<usize>,
    pub(crate) model: Option<Text>,
    pub(crate) usage: Option<Usage>,
    pub(crate) started: Millis,
    pub(crate) duration_ms: u64,
    pub(crate) failure: Option<Text>,
    context_window: u64,
    /// `turn:end` has gone out.
    pub(crate) ended: bool,
    /// It went out as `paused`: patches may still follow, and no second `turn:end`.
    pub(crate) paused: bool,
    /// The number of the latest patch.
    pub(crate) patches: u64,
    /// What its blocks and calls hold, roughly: what a snapshot of it costs.
    pub(crate) bytes: usize,
    /// When it was last shown whole, and how big it was then.
    pub(crate) shown: (Millis, usize),
    /// The latest patch that said much of it again.
    pub(crate) retold: Option<Retold>,
    /// What snapshots at boundaries have cost.
    pub(crate) boundary_bytes: usize,
    /// Thinking that no patch has told yet.
    pub(crate) thinking_unsent: bool,
    /// Something that only a snapshot can tell has not been told (`sync` only).
    pub(crate) untold: bool,
}

/// What a turn is.
pub(crate) enum Kind {
    User,
    Assistant,
    /// Something about the session that stands between its turns: a change of its mode.
    System,
    Compaction(Compaction),
}

/// The members of a compaction turn.
pub(crate) struct Compaction {
    pub(crate) id: Text,
    pub(crate) trigger: &'static str,
    pub(crate) tokens_before: Option<u64>,
    pub(crate) tokens_after: Option<u64>,
}

/// A turn's `status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnStatus {
    Streaming,
    Completed,
    Paused,
    Failed,
    Interrupted,
}

impl TurnStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Streaming => "streaming",
            Self::Completed => "completed",
            Self::Paused => "paused",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A content block. Those of tools point to the turn's call by its number, so that nothing is kept twice.
pub(crate) enum Block {
    Text(String),
    Thinking(String),
    ToolUse(usize),
    ToolResult(usize),
    Image(Text),
    File(Text),
    Answer(Json),
    /// What a tool's result holds for the page around the chat: `tool_bridge` or `tool_ui` (socketio.md §4.3).
    Meta {
        kind: &'static str,
        call: usize,
        content: Json,
    },
    /// The plan as it is now.
    Plan(Json),
    /// `mode_change`, and what it means for planning.
    Mode {
        from: Mode,
        to: Mode,
    },
    PlanningEnter,
    PlanningExit,
}

/// A session's mode, in the words of `chat:send` (socketio.md §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Planning,
    Executing,
}

impl Mode {
    /// The mode that a native permission mode is: every mode in which the agent may act is `executing`.
    pub(crate) fn of(permission_mode: &str) -> Self {
        if permission_mode == "plan" { Self::Planning } else { Self::Executing }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Executing => "executing",
        }
    }
}

/// A ToolCallProjection.
pub(crate) struct Call {
    pub(crate) id: Text,
    pub(crate) tool_name: Text,
    pub(crate) display_name: Text,
    pub(crate) input: Json,
    pub(crate) status: CallStatus,
    /// Text as a rule; what a tool gave back as an object stays one.
    pub(crate) result: Option<Json>,
    /// What events tell of it, where it is too long for them.
    pub(crate) cut: Option<Json>,
    pub(crate) started: Millis,
    pub(crate) duration_ms: Option<u64>,
    /// The pending ask that this call stands for.
    pub(crate) ask: Option<AskId>,
    /// The question of a sub-agent that this call waits on.
    pub(crate) waits_on: Option<QuestionRef>,
}

/// Which results a projection shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Results {
    /// What events may carry of them.
    Cut,
    /// All of them.
    Whole,
}

/// A tool call's `status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStatus {
    Pending,
    Done,
    Error,
    Cancelled,
    Awaiting,
}

impl CallStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::Awaiting => "awaiting_answer",
        }
    }
}

/// A `pending_question_ref`.
#[derive(Clone)]
pub(crate) struct QuestionRef {
    pub(crate) loop_name: Text,
    pub(crate) call: Text,
    pub(crate) description: Text,
}

impl QuestionRef {
    pub(crate) fn write(&self, object: &mut Object<'_>) {
        object.text("child_loop_name", &self.loop_name);
        object.text("child_tool_call_id", &self.call);
        object.text("description", &self.description);
    }
}

impl Call {
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self.status, CallStatus::Pending | CallStatus::Awaiting)
    }

    /// The JSON of its result.
    pub(crate) fn result_as(&self, results: Results) -> &str {
        let cut = self.cut.as_ref().filter(|_| results == Results::Cut);
        cut.or(self.result.as_ref()).map_or("null", Json::as_str)
    }

    fn write(&self, object: &mut Object<'_>, results: Results) {
        object.text("id", &self.id);
        object.text("tool_name", &self.tool_name);
        object.text("display_name", &self.display_name);
        object.text("arguments", self.input.as_str());
        object.text("status", self.status.as_str());
        object.raw("result", self.result_as(results));
        object.number_or_null("duration_ms", self.duration_ms);
        match &self.waits_on {
            Some(question) => object.object("pending_question_ref", |object| question.write(object)),
            None => object.null("pending_question_ref"),
        }
    }
}

impl Turn {
    pub(crate) fn new(run: RunId, sequence: usize, lane: Lane, depth: usize, kind: Kind, at: Millis, options: &Options) -> Self {
        Self {
            id: turn_id("entry", run, sequence),
            turn_id: turn_id("turn", run, sequence),
            sequence,
            loop_id: loop_id(&lane),
            lane,
            depth,
            kind,
            status: TurnStatus::Streaming,
            blocks: Vec::new(),
            calls: Vec::new(),
            open: BTreeSet::new(),
            model: None,
            usage: None,
            started: at,
            duration_ms: 0,
            failure: None,
            context_window: options.context_window,
            ended: false,
            paused: false,
            patches: 0,
            bytes: 0,
            shown: (at, 0),
            retold: None,
            boundary_bytes: 0,
            thinking_unsent: false,
            untold: false,
        }
    }

    pub(crate) fn is_assistant(&self) -> bool {
        matches!(self.kind, Kind::Assistant)
    }

    pub(crate) fn all_calls_final(&self) -> bool {
        self.open.is_empty()
    }

    /// Its answer: all its text blocks joined, as every known reader joins them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for block in &self.blocks {
            if let Block::Text(piece) = block {
                text.push_str(piece);
            }
        }
        text
    }

    /// The members of the TurnProjection, all of them always: clients crash on a missing list and tell null from absent.
    pub(crate) fn write(&self, object: &mut Object<'_>, results: Results) {
        self.write_as(object, self.status, results);
    }

    /// The same with another status.
    pub(crate) fn write_as(&self, object: &mut Object<'_>, status: TurnStatus, results: Results) {
        let (kind, role) = match self.kind {
            Kind::User => ("message", "user"),
            Kind::Assistant => ("message", "assistant"),
            Kind::System => ("message", "system"),
            Kind::Compaction(_) => ("compaction", "system"),
        };
        object.text("id", &self.id);
        object.number("sequence", self.sequence as u64);
        object.text("turn_id", &self.turn_id);
        object.text("loop_id", &self.loop_id);
        object.text("kind", kind);
        object.text("role", role);
        object.text("status", status.as_str());
        object.array("blocks", &self.blocks, |out, block| self.write_block(out, block, results));
        object.array("tool_calls", &self.calls, |out, call| write_object(out, |object| call.write(object, results)));
        object.text_or_null("model", self.model.as_deref());
        match &self.usage {
            Some(usage) => object.object("usage", |object| {
                object.number("input_tokens", usage.input_tokens);
                object.number("output_tokens", usage.output_tokens);
            }),
            None => object.null("usage"),
        }
        object.number("duration_ms", self.duration_ms);
        object.text("started_at", &timestamp(self.started));
        object.number("context_window", self.context_window);
        object.null("memory_refs");
        match &self.lane {
            Lane::Root => object.null("parent_fork_tool_call_id"),
            Lane::Agent(call) => object.text("parent_fork_tool_call_id", call.as_str()),
        }
        self.write_compaction(object);
        object.text_or_null("failure_reason", self.failure.as_deref());
    }

    fn write_compaction(&self, object: &mut Object<'_>) {
        let compaction = match &self.kind {
            Kind::Compaction(compaction) => Some(compaction),
            Kind::User | Kind::Assistant | Kind::System => None,
        };
        let before = compaction.and_then(|compaction| compaction.tokens_before);
        let after = compaction.and_then(|compaction| compaction.tokens_after);
        object.text_or_null("compaction_id", compaction.map(|compaction| &*compaction.id));
        for unknown in ["summary_preview", "summary_full", "archived_count"] {
            object.null(unknown);
        }
        object.number_or_null("tokens_before", before);
        object.number_or_null("tokens_after", after);
        match before.zip(after).and_then(|(before, after)| saved_thousandths(before, after)) {
            Some(saved) => object.raw("saved_ratio", &format!("{}.{:03}", saved / 1000, saved % 1000)),
            None => object.null("saved_ratio"),
        }
        object.text_or_null("trigger", compaction.map(|compaction| compaction.trigger));
    }

    fn write_block(&self, out: &mut String, block: &Block, results: Results) {
        write_object(out, |object| {
            object.text("type", block.kind());
            object.member("content", |out| self.write_content(out, block, results));
            let call = block.call().and_then(|call| self.calls.get(call));
            object.text_or_null("tool_call_id", call.map(|call| &*call.id));
            object.text_or_null("tool_name", call.map(|call| &*call.tool_name));
            object.text_or_null("display_name", call.map(|call| &*call.display_name));
        });
    }

    /// A block's `content`.
    pub(crate) fn write_content(&self, out: &mut String, block: &Block, results: Results) {
        match block {
            Block::Text(text) | Block::Thinking(text) => write_json_string(out, text),
            Block::Image(url) => write_object(out, |object| object.text("url", url)),
            Block::File(name) => write_object(out, |object| object.text("name", name)),
            Block::Answer(json) | Block::Plan(json) | Block::Meta { content: json, .. } => out.push_str(json.as_str()),
            Block::ToolUse(call) => out.push_str(self.calls.get(*call).map_or("{}", |call| call.input.as_str())),
            Block::ToolResult(call) => out.push_str(self.calls.get(*call).map_or("null", |call| call.result_as(results))),
            Block::Mode { from, to } => write_object(out, |object| {
                object.text("from", from.as_str());
                object.text("to", to.as_str());
            }),
            Block::PlanningEnter | Block::PlanningExit => out.push_str("null"),
        }
    }
}

impl Block {
    /// Its `type`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Thinking(_) => "thinking",
            Self::ToolUse(_) => "tool_use",
            Self::ToolResult(_) => "tool_result",
            Self::Image(_) => "image_url",
            Self::File(_) => "file",
            Self::Answer(_) => "ask_user_answer",
            Self::Meta { kind, .. } => kind,
            Self::Plan(_) => "plan_status",
            Self::Mode { .. } => "mode_change",
            Self::PlanningEnter => "planning_enter",
            Self::PlanningExit => "planning_exit",
        }
    }

    /// The number of the call that it is about.
    pub(crate) fn call(&self) -> Option<usize> {
        match self {
            Self::ToolUse(call) | Self::ToolResult(call) | Self::Meta { call, .. } => Some(*call),
            _ => None,
        }
    }
}

/// Which share of the tokens a compaction saved, in thousandths.
fn saved_thousandths(before: u64, after: u64) -> Option<u64> {
    let saved = u128::from(before.saturating_sub(after)) * 1000;
    saved.checked_div(u128::from(before)).and_then(|saved| u64::try_from(saved).ok())
}
