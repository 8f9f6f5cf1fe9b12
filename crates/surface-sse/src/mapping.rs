//! The mapping: canonical events in, SSE run events out. Documented types and members, in documented order (sse.md §3), and what else
//! a client asked for.

use std::collections::{HashMap, HashSet};

use interline_model::{
    Ask, AskKind, CallId, Completion, Event, FailureKind, Json, Lane, Millis, Outcome, Record, RunEnd, RunId, Text, What, Writer,
    path_segment, write_json_string,
};

use crate::block::{Block, Ink, Kind};
use crate::escape::{fitting, splice_json, within};
use crate::options::{ArgumentsForm, InterruptTerminal, Options, SubAgents};
use crate::plan::{Plan, Saying};
use crate::{aside, extras};

/// Writes the runs of one session, one after another.
///
/// Whatever events come, each run keeps the order of sse.md §3.5: `run_start` first, turns nested, calls started before anything
/// else is said of them and ended once, one terminal, last. What comes outside a run is nothing.
#[derive(Debug)]
pub struct SseWriter {
    options: Options,
    ink: Ink,
    /// When the record came that is being written.
    at: Millis,
    run: Option<Run>,
}

/// The run being written.
#[derive(Debug)]
struct Run {
    id: RunId,
    /// The path where the session's messages are, uncut.
    messages: String,
    began: Millis,
    next_turn: u64,
    open_turn: Option<u64>,
    /// The root agent's calls that go on, in order of their start.
    open_calls: Vec<OpenCall>,
    ended_calls: HashSet<CallId>,
    /// Which root call a sub-agent's call goes back to.
    ancestors: HashMap<CallId, CallId>,
    plan: Plan,
}

/// A call that goes on.
#[derive(Debug)]
struct OpenCall {
    id: CallId,
    name: Text,
    began: Millis,
}

impl SseWriter {
    /// Room left in an event for the members around its text, those of extras among them.
    const FRAME: usize = 512;
    /// Below this a cut result could not even say that it was cut.
    const SMALLEST_EVENT: usize = 1024;

    /// A writer for one session.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let max_event_bytes = options.max_event_bytes.max(Self::SMALLEST_EVENT);
        Self { options: Options { max_event_bytes, ..options }, ink: Ink::default(), at: 0, run: None }
    }

    fn event(&mut self, event: &Event, items: &mut Vec<Block>) {
        if let What::RunStarted { run, session, model } = &event.what {
            // A reader never starts a run inside another; if one does, the earlier run still gets its end.
            self.end(&RunEnd::synthesised(Outcome::Failed { kind: FailureKind::MissingTerminalEvent, message: Text::new() }), items);
            self.ink.begin(*run, session, self.options.extras.has_fields());
            self.ink.now(self.at);
            self.ink.put(items, Kind::Start, |out| {
                out.push_str("{\"type\":\"run_start\",\"run_id\":\"");
                out.push_str(&run.to_string());
                out.push_str("\",\"session_id\":");
                write_json_string(out, session.as_str());
                out.push_str(",\"model\":");
                write_json_string(out, model);
            });
            let cell = self.options.cell.as_deref().map_or_else(|| "{cell}".to_owned(), path_segment);
            self.run = Some(Run {
                id: *run,
                messages: format!("/cells/{cell}/sessions/{}/messages", path_segment(session.as_str())),
                began: self.at,
                next_turn: self.options.first_turn_num,
                open_turn: None,
                open_calls: Vec::new(),
                ended_calls: HashSet::new(),
                ancestors: HashMap::new(),
                plan: Plan::default(),
            });
            return;
        }
        if self.options.extras.has_events()
            && let Some(run) = &self.run
        {
            let room = self.room();
            let input = InputForm { form: self.options.arguments, room, whole: Some(&run.messages) };
            aside::tell(&mut self.ink, items, &event.lane, run.open_turn, &event.what, &input);
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
        let room = self.room();
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
                run.open_calls.push(OpenCall { id: call.clone(), name: name.clone(), began: self.at });
                let form = InputForm { form: self.options.arguments, room, whole: Some(&run.messages) };
                ink.put(items, Kind::Event, |out| {
                    out.push_str("{\"type\":\"tool_start\",\"tool_name\":");
                    write_json_string(out, name);
                    out.push_str(",\"call_id\":");
                    write_json_string(out, call.as_str());
                    out.push_str(",\"arguments\":");
                    write_arguments(out, input.as_ref(), &form);
                });
            }
            What::ToolOutput { call, delta } if run.is_open(call) => {
                self.pieces("{\"type\":\"tool_progress\",\"call_id\":", Some(call), delta, items);
            }
            What::ToolEnded { call, result, is_error, aborted, .. } => {
                if let Some(at) = run.open_calls.iter().position(|open| open.id == *call) {
                    let call = run.open_calls.remove(at);
                    run.ended_calls.insert(call.id.clone());
                    let place = Place { room, whole: &run.messages };
                    tool_end(ink, items, &call, result, *is_error || *aborted, self.at, place);
                }
            }
            What::PlanChanged { steps } => {
                let sayings = run.plan.change(steps);
                run.plan.tell(ink, items, run.id, &sayings, "cleared", room);
            }
            What::Task { task, phase, summary, .. } => {
                let sayings = run.plan.task(task, *phase, summary);
                run.plan.tell(ink, items, run.id, &sayings, "", room);
            }
            // No documented event says any of the rest (sse.md §3.1).
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

    /// Bytes that an event has for text: the same with and without extras, since else the same text would be told in other pieces and so under other
    /// numbers (decision 26).
    fn room(&self) -> usize {
        self.options.max_event_bytes - Self::FRAME
    }

    /// Appends text, in as many events as its length asks for: `{head}[call,"output":]text}`.
    fn pieces(&mut self, head: &str, call: Option<&CallId>, text: &str, items: &mut Vec<Block>) {
        let room = self.room();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, further) = rest.split_at_checked(fitting(rest, room)).unwrap_or((rest, ""));
            self.ink.put(items, Kind::Event, |out| {
                out.push_str(head);
                if let Some(call) = call {
                    write_json_string(out, call.as_str());
                    out.push_str(",\"output\":");
                }
                write_json_string(out, piece);
            });
            rest = further;
        }
    }

    /// Only permissions are documented; the other kinds wear the same clothes (A10). A sub-agent's ask has no `tool_start` before it (decision 12).
    fn ask(&mut self, ask: &Ask, items: &mut Vec<Block>) {
        if self.run.is_none() {
            return;
        }
        let Options { arguments: form, extras, ask_limits, .. } = self.options;
        let (at, room) = (self.at, self.room());
        // What else is told of the ask can be as long as its arguments.
        let (room, more) = if extras.has_fields() { (room / 2, room / 6) } else { (room, 0) };
        let form = InputForm { form, room, whole: None };
        self.ink.put(items, Kind::Event, |out| {
            approval_request(out, ask, &form);
            if extras.has_fields() {
                extras::ask(out, ask, at, ask_limits, more);
            }
        });
    }

    /// The end: what is still open is closed first, so that no spinner turns for ever (sse.md §3.5).
    fn end(&mut self, end: &RunEnd, items: &mut Vec<Block>) {
        let room = self.room();
        let Some(mut run) = self.run.take() else { return };
        let (ink, at) = (&mut self.ink, self.at);
        for call in &run.open_calls {
            tool_end(ink, items, call, "interrupted", true, at, Place { room, whole: &run.messages });
        }
        run.end_turn(ink, items);
        let mut cut_short = |ink: &mut Ink, items: &mut Vec<Block>, reason: &str| {
            let sayings: Vec<Saying> = run.plan.interrupt();
            run.plan.tell(ink, items, run.id, &sayings, reason, room);
        };
        let totals = Totals { run: run.id, end, elapsed: at.saturating_sub(run.began) };
        match &end.outcome {
            Outcome::Completed(Completion::EndTurn) => {
                let sayings = run.plan.complete();
                run.plan.tell(ink, items, run.id, &sayings, "", room);
                done(ink, items, "end_turn", &totals);
            }
            Outcome::Completed(Completion::MaxTurns | Completion::MaxBudget) => {
                cut_short(ink, items, "budget_exhausted");
                done(ink, items, "budget_exhausted", &totals);
            }
            Outcome::Interrupted { reason } => {
                cut_short(ink, items, reason);
                match self.options.interrupt_terminal {
                    InterruptTerminal::Done => done(ink, items, "context_cancelled", &totals),
                    InterruptTerminal::Interrupted => ink.put(items, Kind::End, |out| {
                        out.push_str("{\"type\":\"interrupted\",\"reason\":");
                        write_json_string(out, within(reason, room));
                    }),
                }
            }
            Outcome::Failed { kind, message } => {
                cut_short(ink, items, kind.token());
                let stamped = ink.is_stamped();
                // The message may be told twice.
                let room = if stamped { room / 2 } else { room };
                ink.put(items, Kind::End, |out| {
                    out.push_str("{\"type\":\"error\",\"error\":");
                    write_json_string(out, within(&error_text(*kind, message), room));
                    out.push_str(",\"kind\":\"");
                    out.push_str(kind.token());
                    out.push_str("\",\"severity\":\"error\"");
                    if stamped {
                        extras::failure(out, *kind, message, end.synthesised, room);
                    }
                });
            }
        }
    }
}

/// What a run came to.
struct Totals<'a> {
    run: RunId,
    end: &'a RunEnd,
    elapsed: Millis,
}

impl Writer for SseWriter {
    type Item = Block;

    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<Self::Item>) {
        self.at = record.at;
        self.ink.now(record.at);
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
            ink.put(items, Kind::Event, |out| out.push_str(&format!("{{\"type\":\"turn_start\",\"turn_num\":{num}")));
        }
    }

    /// Ends the turn, if one is open.
    fn end_turn(&mut self, ink: &mut Ink, items: &mut Vec<Block>) {
        if let Some(num) = self.open_turn.take() {
            ink.put(items, Kind::Event, |out| out.push_str(&format!("{{\"type\":\"turn_end\",\"turn_num\":{num}")));
        }
    }

    /// Whether a call of the root agent goes on.
    fn is_open(&self, call: &CallId) -> bool {
        self.open_calls.iter().any(|open| open.id == *call)
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

/// How much room a text has, and where all of it is.
#[derive(Clone, Copy)]
struct Place<'a> {
    room: usize,
    whole: &'a str,
}

/// How a tool's input is written.
pub(crate) struct InputForm<'a> {
    pub(crate) form: ArgumentsForm,
    /// Bytes that there are for it.
    pub(crate) room: usize,
    /// Where the input is, if it is left out here.
    pub(crate) whole: Option<&'a str>,
}

/// The documented members of an ask's event, without the brace that closes it.
pub(crate) fn approval_request(out: &mut String, ask: &Ask, form: &InputForm<'_>) {
    let tool_name = match ask.kind {
        AskKind::Permission => &*ask.tool_name,
        AskKind::Question => "ask_user",
        AskKind::Form | AskKind::Link => "elicitation",
    };
    out.push_str("{\"type\":\"approval_request\",\"request_id\":");
    write_json_string(out, ask.id.as_str());
    out.push_str(",\"tool_name\":");
    write_json_string(out, tool_name);
    out.push_str(",\"arguments\":");
    write_arguments(out, Some(&ask.input), form);
}

/// A tool's input. One that is longer than `room` once written, or nested more deeply than clients' parsers go, is replaced by an object
/// that says so: half of an object is none, and an event beyond the cap is lost whole (sse.md §5.4 rule 6).
pub(crate) fn write_arguments(out: &mut String, input: Option<&Json>, form: &InputForm<'_>) {
    let InputForm { form, room, whole } = *form;
    let empty = Json::empty_object();
    let input = input.unwrap_or(&empty);
    let wrapped;
    let input = if input.is_object() {
        input
    } else {
        wrapped = input.clone().into_object();
        &wrapped
    };
    let write = |out: &mut String, json: &str| match form {
        ArgumentsForm::Object => splice_json(out, json),
        ArgumentsForm::String => write_json_string(out, json),
    };
    let bytes = input.as_str().len();
    let begin = out.len();
    let why = if bytes <= room && is_deep(input.as_str()) {
        format!("arguments nested more than {DEEPEST} levels deep are left out")
    } else {
        if bytes <= room {
            write(out, input.as_str());
        }
        if bytes <= room && out.len().saturating_sub(begin) <= room {
            return;
        }
        out.truncate(begin);
        format!("arguments of {bytes} bytes are left out; the cap is sse.max_event_bytes")
    };
    let whole = whole.map(|whole| format!("; all of it: GET {whole}")).filter(|whole| whole.len() <= room / 2).unwrap_or_default();
    write(out, &format!("{{\"truncated\":\"{why}{whole}\"}}"));
}

/// Lists and objects within each other that are passed on. Parsers of many languages stop somewhere between this and twice as many.
const DEEPEST: usize = 512;

/// Whether JSON is nested more deeply than that.
fn is_deep(json: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > DEEPEST {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A result longer than its room is cut before it is numbered, and says so, and where the whole of it is (sse.md §5.4 rule 6).
fn tool_end(ink: &mut Ink, items: &mut Vec<Block>, call: &OpenCall, result: &str, is_error: bool, at: Millis, place: Place<'_>) {
    let stamped = ink.is_stamped();
    ink.put(items, Kind::Event, |out| {
        out.push_str("{\"type\":\"tool_end\",\"call_id\":");
        write_json_string(out, call.id.as_str());
        out.push_str(",\"result\":");
        let Place { room, whole } = place;
        if fitting(result, room) == result.len() {
            write_json_string(out, result);
        } else {
            let whole = format!("; all of it: GET {whole}");
            // Where a session's own name leaves no room for text, the text goes first.
            let whole = if whole.len() <= room / 2 { whole.as_str() } else { "" };
            let shown = within(result, room.saturating_sub(whole.len()));
            write_json_string(out, &format!("{shown}\n[output cut: {} of {} bytes shown{whole}]", shown.len(), result.len()));
        }
        out.push_str(if is_error { ",\"is_error\":true" } else { ",\"is_error\":false" });
        if stamped {
            out.push_str(",\"tool_name\":");
            write_json_string(out, &call.name);
            out.push_str(&format!(",\"duration_ms\":{}", at.saturating_sub(call.began)));
        }
    });
}

fn done(ink: &mut Ink, items: &mut Vec<Block>, reason: &str, totals: &Totals<'_>) {
    let stamped = ink.is_stamped();
    ink.put(items, Kind::Done, |out| {
        out.push_str(&format!("{{\"type\":\"done\",\"reason\":\"{reason}\",\"run_id\":\"{}\"", totals.run));
        if stamped {
            extras::totals(out, totals.end, totals.elapsed);
        }
    });
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
