//! The mapping: canonical events in, SSE run events out. Only documented types and members, in documented order (sse.md §3).

use std::collections::{HashMap, HashSet};

use interline_model::{
    Ask, AskKind, CallId, Completion, Event, FailureKind, Json, Lane, Outcome, Record, RunEnd, RunId, Text, What, Writer, write_json_string,
};

use crate::block::{Block, Ink};
use crate::escape::{fitting, splice_json};
use crate::plan::Plan;

/// What the protocol page leaves to choose (sse.md §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest event, in bytes. Longer text goes out as several deltas; a longer tool result is cut, and says so.
    pub max_event_bytes: usize,
    /// What becomes of a sub-agent's text.
    pub sub_agents: SubAgents,
    /// How a stopped run ends.
    pub interrupt_terminal: InterruptTerminal,
    /// How a tool's input is written.
    pub arguments: ArgumentsForm,
    /// The number of a run's first turn.
    pub first_turn_num: u64,
}

/// What becomes of a sub-agent's text (A13, decision 25). Its reasoning and tools are never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum SubAgents {
    /// It is output of the call that started the sub-agent, or that started the one which did.
    Fold,
    /// Nothing.
    Hide,
}

/// How a stopped run ends (A3). Both are documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum InterruptTerminal {
    /// `interrupted{reason}`.
    Interrupted,
    /// `done{context_cancelled}`.
    Done,
}

/// How a tool's input is written (A5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum ArgumentsForm {
    /// As an object.
    Object,
    /// As a string that holds the object's JSON.
    String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_event_bytes: 1 << 20,
            sub_agents: SubAgents::Fold,
            interrupt_terminal: InterruptTerminal::Interrupted,
            arguments: ArgumentsForm::Object,
            first_turn_num: 1,
        }
    }
}

/// Writes the runs of one session, one after another.
///
/// Whatever events come, each run keeps the order of sse.md §3.5: `run_start` first, turns nested, calls started before anything
/// else is said of them and ended once, one terminal, last. What comes outside a run is nothing.
#[derive(Debug)]
pub struct SseWriter {
    options: Options,
    ink: Ink,
    run: Option<Run>,
}

/// The run being written.
#[derive(Debug)]
struct Run {
    id: RunId,
    next_turn: u64,
    open_turn: Option<u64>,
    /// The root agent's calls that go on, in order of their start.
    open_calls: Vec<CallId>,
    ended_calls: HashSet<CallId>,
    /// Which root call a sub-agent's call goes back to.
    ancestors: HashMap<CallId, CallId>,
    plan: Plan,
}

impl SseWriter {
    /// Room left in an event for the members around its text.
    const FRAME: usize = 512;
    /// Below this a cut result could not even say that it was cut.
    const SMALLEST_EVENT: usize = 1024;

    /// A writer for one session.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let max_event_bytes = options.max_event_bytes.max(Self::SMALLEST_EVENT);
        Self { options: Options { max_event_bytes, ..options }, ink: Ink::default(), run: None }
    }

    fn event(&mut self, event: &Event, items: &mut Vec<Block>) {
        if let What::RunStarted { run, session, model } = &event.what {
            // A reader never starts a run inside another; if one does, the earlier run still gets its end.
            self.end(&RunEnd::synthesised(Outcome::Failed { kind: FailureKind::MissingTerminalEvent, message: Text::new() }), items);
            self.ink.restart();
            self.ink.put(items, false, |out| {
                out.push_str("{\"type\":\"run_start\",\"run_id\":\"");
                out.push_str(&run.to_string());
                out.push_str("\",\"session_id\":");
                write_json_string(out, session.as_str());
                out.push_str(",\"model\":");
                write_json_string(out, model);
                out.push('}');
            });
            self.run = Some(Run {
                id: *run,
                next_turn: self.options.first_turn_num,
                open_turn: None,
                open_calls: Vec::new(),
                ended_calls: HashSet::new(),
                ancestors: HashMap::new(),
                plan: Plan::default(),
            });
            return;
        }
        match (&event.lane, &event.what) {
            (_, What::RunEnded(end)) => self.end(end, items),
            (_, What::AskRaised(ask)) => self.ask(ask, items),
            (Lane::Root, what) => self.root(what, items),
            (Lane::Agent(parent), what) => self.sub_agent(parent, what, items),
        }
    }

    /// What the root agent does.
    fn root(&mut self, what: &What, items: &mut Vec<Block>) {
        let Some(run) = &mut self.run else { return };
        let ink = &mut self.ink;
        match what {
            What::TurnStarted => {
                run.end_turn(ink, items);
                run.start_turn(ink, items);
            }
            What::TurnEnded { .. } => run.end_turn(ink, items),
            What::Text { delta } => {
                run.start_turn(ink, items);
                self.pieces("{\"type\":\"stream_delta\",\"content\":", None, delta, items);
            }
            What::Thinking { delta } => {
                run.start_turn(ink, items);
                self.pieces("{\"type\":\"thinking_delta\",\"content\":", None, delta, items);
            }
            What::ToolStarted { call, name, input } if !run.is_known(call) => {
                run.start_turn(ink, items);
                run.open_calls.push(call.clone());
                let form = self.options.arguments;
                ink.put(items, false, |out| {
                    out.push_str("{\"type\":\"tool_start\",\"tool_name\":");
                    write_json_string(out, name);
                    out.push_str(",\"call_id\":");
                    write_json_string(out, call.as_str());
                    out.push_str(",\"arguments\":");
                    write_arguments(out, input.as_ref(), form);
                    out.push('}');
                });
            }
            What::ToolOutput { call, delta } if run.is_open(call) => {
                self.pieces("{\"type\":\"tool_progress\",\"call_id\":", Some(call), delta, items);
            }
            What::ToolEnded { call, result, is_error, aborted } if run.is_open(call) => {
                run.open_calls.retain(|open| open != call);
                run.ended_calls.insert(call.clone());
                let room = self.options.max_event_bytes - Self::FRAME;
                ink.put(items, false, |out| tool_end(out, call, result, *is_error || *aborted, room));
            }
            What::PlanChanged { steps } => run.plan.change(ink, items, run.id, steps),
            // No documented event says any of the rest, and strict clients know no others (sse.md §3.1).
            _ => {}
        }
    }

    /// What a sub-agent does: only its text is told, as output of the call that it works for (decision 25).
    fn sub_agent(&mut self, parent: &CallId, what: &What, items: &mut Vec<Block>) {
        let Some(run) = &mut self.run else { return };
        match what {
            What::ToolStarted { call, .. } => {
                let ancestor = run.ancestor(parent).clone();
                run.ancestors.insert(call.clone(), ancestor);
            }
            What::Text { delta } if self.options.sub_agents == SubAgents::Fold => {
                let ancestor = run.ancestor(parent).clone();
                if run.is_open(&ancestor) {
                    self.pieces("{\"type\":\"tool_progress\",\"call_id\":", Some(&ancestor), delta, items);
                }
            }
            _ => {}
        }
    }

    /// Appends text, in as many events as its length asks for: `{head}[call,"output":]text}`.
    fn pieces(&mut self, head: &str, call: Option<&CallId>, text: &str, items: &mut Vec<Block>) {
        let room = self.options.max_event_bytes - Self::FRAME;
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, further) = rest.split_at_checked(fitting(rest, room)).unwrap_or((rest, ""));
            self.ink.put(items, false, |out| {
                out.push_str(head);
                if let Some(call) = call {
                    write_json_string(out, call.as_str());
                    out.push_str(",\"output\":");
                }
                write_json_string(out, piece);
                out.push('}');
            });
            rest = further;
        }
    }

    /// Only permissions are documented; the other kinds wear the same clothes (A10). A sub-agent's ask has no `tool_start` before it (decision 12).
    fn ask(&mut self, ask: &Ask, items: &mut Vec<Block>) {
        if self.run.is_none() {
            return;
        }
        let tool_name = match ask.kind {
            AskKind::Permission => &*ask.tool_name,
            AskKind::Question => "ask_user",
            AskKind::Form | AskKind::Link => "elicitation",
        };
        let form = self.options.arguments;
        self.ink.put(items, false, |out| {
            out.push_str("{\"type\":\"approval_request\",\"request_id\":");
            write_json_string(out, ask.id.as_str());
            out.push_str(",\"tool_name\":");
            write_json_string(out, tool_name);
            out.push_str(",\"arguments\":");
            write_arguments(out, Some(&ask.input), form);
            out.push('}');
        });
    }

    /// The end: what is still open is closed first, so that no spinner turns for ever (sse.md §3.5).
    fn end(&mut self, end: &RunEnd, items: &mut Vec<Block>) {
        let Some(mut run) = self.run.take() else { return };
        let ink = &mut self.ink;
        for call in &run.open_calls {
            ink.put(items, false, |out| tool_end(out, call, "interrupted", true, Self::FRAME));
        }
        run.end_turn(ink, items);
        match &end.outcome {
            Outcome::Completed(Completion::EndTurn) => done(ink, items, "end_turn", run.id),
            Outcome::Completed(Completion::MaxTurns | Completion::MaxBudget) => {
                run.plan.interrupt(ink, items, "budget_exhausted");
                done(ink, items, "budget_exhausted", run.id);
            }
            Outcome::Interrupted { reason } => {
                run.plan.interrupt(ink, items, reason);
                match self.options.interrupt_terminal {
                    InterruptTerminal::Done => done(ink, items, "context_cancelled", run.id),
                    InterruptTerminal::Interrupted => ink.put(items, true, |out| {
                        out.push_str("{\"type\":\"interrupted\",\"reason\":");
                        write_json_string(out, reason);
                        out.push('}');
                    }),
                }
            }
            Outcome::Failed { kind, message } => {
                run.plan.interrupt(ink, items, kind.token());
                ink.put(items, true, |out| {
                    out.push_str("{\"type\":\"error\",\"error\":");
                    write_json_string(out, &error_text(*kind, message));
                    out.push_str(",\"kind\":\"");
                    out.push_str(kind.token());
                    out.push_str("\",\"severity\":\"error\"}");
                });
            }
        }
    }
}

impl Writer for SseWriter {
    type Item = Block;

    fn write(&mut self, _record: &Record, events: &[Event], items: &mut Vec<Self::Item>) {
        for event in events {
            self.event(event, items);
        }
    }
}

impl Run {
    /// Starts a turn, unless one is open.
    fn start_turn(&mut self, ink: &mut Ink, items: &mut Vec<Block>) {
        if self.open_turn.is_none() {
            let num = self.next_turn;
            self.open_turn = Some(num);
            self.next_turn = num.saturating_add(1);
            ink.put(items, false, |out| out.push_str(&format!("{{\"type\":\"turn_start\",\"turn_num\":{num}}}")));
        }
    }

    /// Ends the turn, if one is open.
    fn end_turn(&mut self, ink: &mut Ink, items: &mut Vec<Block>) {
        if let Some(num) = self.open_turn.take() {
            ink.put(items, false, |out| out.push_str(&format!("{{\"type\":\"turn_end\",\"turn_num\":{num}}}")));
        }
    }

    /// Whether a call of the root agent goes on.
    fn is_open(&self, call: &CallId) -> bool {
        self.open_calls.contains(call)
    }

    /// Whether a call of the root agent goes on or has ended.
    fn is_known(&self, call: &CallId) -> bool {
        self.is_open(call) || self.ended_calls.contains(call)
    }

    /// The root call that a sub-agent's work goes back to.
    fn ancestor<'a>(&'a self, parent: &'a CallId) -> &'a CallId {
        self.ancestors.get(parent).unwrap_or(parent)
    }
}

fn write_arguments(out: &mut String, input: Option<&Json>, form: ArgumentsForm) {
    let empty = Json::empty_object();
    let input = input.unwrap_or(&empty);
    let wrapped;
    let input = if input.is_object() {
        input
    } else {
        wrapped = input.clone().into_object();
        &wrapped
    };
    match form {
        ArgumentsForm::Object => splice_json(out, input.as_str()),
        ArgumentsForm::String => write_json_string(out, input.as_str()),
    }
}

/// A result longer than `room` is cut before it is numbered, and says so (sse.md §5.4 rule 6).
fn tool_end(out: &mut String, call: &CallId, result: &str, is_error: bool, room: usize) {
    out.push_str("{\"type\":\"tool_end\",\"call_id\":");
    write_json_string(out, call.as_str());
    out.push_str(",\"result\":");
    let fits = fitting(result, room);
    match result.get(..fits).filter(|_| fits < result.len()) {
        None => write_json_string(out, result),
        Some(shown) => {
            let all = result.len();
            write_json_string(out, &format!("{shown}\n[output cut: {fits} of {all} bytes shown]"));
        }
    }
    out.push_str(if is_error { ",\"is_error\":true}" } else { ",\"is_error\":false}" });
}

fn done(ink: &mut Ink, items: &mut Vec<Block>, reason: &str, run: RunId) {
    ink.put(items, true, |out| out.push_str(&format!("{{\"type\":\"done\",\"reason\":\"{reason}\",\"run_id\":\"{run}\"}}")));
}

/// Clients print this, and some look for the token in it (A4).
fn error_text(kind: FailureKind, message: &str) -> String {
    let token = kind.token();
    match kind {
        _ if message.is_empty() && kind != FailureKind::MissingTerminalEvent => token.to_owned(),
        FailureKind::MissingTerminalEvent if message.is_empty() => format!("{token}: upstream closed before a terminal event"),
        FailureKind::MissingTerminalEvent if !message.starts_with(token) => format!("{token}: {message}"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
