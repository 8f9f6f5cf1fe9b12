//! The raw stream: a chat as its agents' loops would tell it, for clients that build their own turns of it (socketio.md §6.1).
//!
//! It is the same mapping with other words for the turns: brackets, pauses, asks and side events are those of [`SocketWriter`], in the same order, and
//! only `turn:start`, `turn:patch` and `turn:end` are told as raw events. So one writer's stream never holds both families.

use std::collections::{HashMap, HashSet};

use interline_model::{CallId, Event, Json, Lane, Record, Text, Usage, Writer};

use crate::mapping::{SocketEvent, SocketWriter};
use crate::object::{Object, object, write_array, write_object};
use crate::options::Options;
use crate::patch::Speech;
use crate::projection::{Call, CallStatus, Results, Turn};
use crate::stamp::loop_id;

/// The name under which raw events go out, some at a time.
const BATCH: &str = "turn:events";

/// What is kept of a chat to tell it raw.
#[derive(Default)]
pub(crate) struct Raw {
    /// The number of the latest event of the chat.
    sequence: u64,
    loops: HashMap<Lane, Loop>,
    /// Sub-agents that have begun and not ended, by the call that started them.
    agents: HashSet<CallId>,
    /// Calls that were announced before their arguments were known.
    without_arguments: HashSet<Text>,
}

/// One agent's loop.
#[derive(Default)]
struct Loop {
    turns: u64,
    /// The model call goes on: no `llm:response:done` for what it said.
    open: bool,
    content: String,
    /// Its calls, each by its turn's number and its own.
    calls: Vec<(usize, usize)>,
}

impl Raw {
    /// A chat begins, and with it the numbers.
    pub(crate) fn begin(&mut self) {
        self.sequence = 0;
        self.loops.clear();
    }
}

impl SocketWriter {
    /// The same session told raw.
    fn told_raw(mut self) -> Self {
        self.raw = Some(Raw::default());
        self
    }

    fn tell_raw(&mut self, kind: &str, lane: &Lane, payload: impl FnOnce(&[Turn], &mut Object<'_>)) {
        let Self { raw: Some(raw), turns, out, .. } = self else { return };
        raw.sequence += 1;
        let data = object(|event| {
            event.text("type", kind);
            event.object("payload", |object| {
                payload(turns, object);
                object.text("loop_name", &loop_id(lane));
            });
            event.number("stream_sequence", raw.sequence);
        });
        out.push(SocketEvent { name: BATCH, data });
    }

    fn raw_loop(&mut self, lane: &Lane) -> Option<&mut Loop> {
        Some(self.raw.as_mut()?.loops.entry(lane.clone()).or_default())
    }

    /// A model call begins, perhaps the first one of a sub-agent.
    pub(crate) fn raw_turn(&mut self, at: usize) {
        let Some(lane) = self.raw.as_ref().and_then(|_| self.turns.get(at)).map(|turn| turn.lane.clone()) else { return };
        self.raw_response(&lane, None);
        if let Lane::Agent(call) = &lane
            && self.raw.as_mut().is_some_and(|raw| raw.agents.insert(call.clone()))
        {
            let description = self.description(call);
            self.tell_raw("agent:start", &lane, |_, object| {
                object.text("description", &description);
                object.text("parent_fork_tool_call_id", call.as_str());
            });
        }
        let Some(told) = self.raw_loop(&lane) else { return };
        told.open = true;
        told.turns += 1;
        let number = told.turns;
        self.tell_raw("loop:turn", &lane, |_, object| object.number("turn", number));
    }

    pub(crate) fn raw_said(&mut self, at: usize, speech: Speech, delta: &str) {
        let Some(lane) = self.turns.get(at).map(|turn| turn.lane.clone()) else { return };
        let Some(told) = self.raw_loop(&lane) else { return };
        told.open = true;
        if speech == Speech::Text {
            told.content.push_str(delta);
        }
        let kind = if speech == Speech::Text { "llm:content:delta" } else { "llm:thinking:delta" };
        self.tell_raw(kind, &lane, |_, object| object.text("content", delta));
    }

    pub(crate) fn raw_called(&mut self, at: usize, number: usize) {
        let Some((lane, id, known)) = self
            .raw
            .as_ref()
            .and_then(|_| self.call_at(at, number))
            .map(|(turn, call)| (turn.lane.clone(), call.id.clone(), !call.input.is_empty_object()))
        else {
            return;
        };
        if let Some(told) = self.raw_loop(&lane) {
            told.open = true;
            told.calls.push((at, number));
        }
        if let Some(raw) = self.raw.as_mut().filter(|_| !known) {
            raw.without_arguments.insert(id);
        }
        self.raw_fragment(&lane, at, number, known);
    }

    /// The arguments of a call became known. Those that were told before stand: fragments can only be added to.
    pub(crate) fn raw_arguments(&mut self, at: usize, number: usize) {
        let Some((lane, id)) =
            self.raw.as_ref().and_then(|_| self.call_at(at, number)).map(|(turn, call)| (turn.lane.clone(), call.id.clone()))
        else {
            return;
        };
        if self.raw.as_mut().is_some_and(|raw| raw.without_arguments.remove(&id)) {
            self.raw_fragment(&lane, at, number, true);
        }
    }

    fn raw_fragment(&mut self, lane: &Lane, at: usize, number: usize, with_arguments: bool) {
        self.tell_raw("llm:tool_call:created", lane, |turns, object| {
            let Some(call) = turns.get(at).and_then(|turn| turn.calls.get(number)) else { return };
            object.text("id", &call.id);
            object.object("function", |function| function.text("name", &call.tool_name));
            object.text("arguments_delta", if with_arguments { call.input.as_str() } else { "" });
        });
    }

    /// The model call is over, as far as it has not been said: it gets no more text, and its calls are being made.
    pub(crate) fn raw_response(&mut self, lane: &Lane, usage: Option<Usage>) {
        let Some(told) = self.raw_loop(lane).filter(|told| told.open) else { return };
        told.open = false;
        let (content, calls) = (std::mem::take(&mut told.content), std::mem::take(&mut told.calls));
        let model = self.model.clone();
        self.tell_raw("llm:response:done", lane, |turns, object| {
            object.text("content", &content);
            let made = calls.iter().filter_map(|(at, number)| turns.get(*at)?.calls.get(*number));
            object.array("tool_calls", made, |out, call| write_object(out, |object| write_call(object, call)));
            match usage {
                Some(usage) => object.object("usage", |object| write_usage(object, usage)),
                None => object.null("usage"),
            }
            object.text_or_null("model", model.as_deref());
            object.text("finish_reason", if calls.is_empty() { "stop" } else { "tool_calls" });
        });
    }

    /// A call is over; what made it, and the sub-agent that it started, are over before.
    pub(crate) fn raw_ended(&mut self, at: usize, number: usize) {
        let Some((lane, id, ok)) = self
            .raw
            .as_ref()
            .and_then(|_| self.call_at(at, number))
            .map(|(turn, call)| (turn.lane.clone(), call.id.clone(), call.status == CallStatus::Done))
        else {
            return;
        };
        self.raw_response(&lane, None);
        let started = CallId::from(id.clone());
        if self.raw.as_mut().is_some_and(|raw| raw.agents.remove(&started)) {
            let (description, agent) = (self.description(&started), Lane::Agent(started));
            self.raw_response(&agent, None);
            self.tell_raw("agent:end", &agent, |_, object| {
                object.text("description", &description);
                object.bool("ok", ok);
            });
        }
        self.tell_raw(if ok { "tool:result:done" } else { "tool:result:error" }, &lane, |turns, object| {
            let call = turns.get(at).and_then(|turn| turn.calls.get(number)).filter(|call| call.result.is_some());
            object.text("tool_call_id", &id);
            match call.map(|call| call.result_as(Results::Cut)) {
                None => object.text("content", "cancelled"),
                Some(text) if text.starts_with('"') => object.raw("content", text),
                Some(json) => object.text("content", json),
            }
        });
    }

    /// The chat is over: a copy of the typed event that follows.
    pub(crate) fn raw_chat_end(&mut self, end: &Json) {
        let session = self.facts.as_ref().map(|facts| Json::string(facts.session.as_str()));
        let Some(session) = session.filter(|_| self.raw.is_some()) else { return };
        let members =
            end.as_str().strip_prefix("{\"session_id\":").and_then(|rest| rest.strip_prefix(session.as_str())).unwrap_or_default();
        let members = members.trim_start_matches(',').strip_suffix('}').unwrap_or_default();
        self.tell_raw("chat:end", &Lane::Root, |_, object| object.spliced(members));
    }

    fn call_at(&self, at: usize, number: usize) -> Option<(&Turn, &Call)> {
        let turn = self.turns.get(at)?;
        Some((turn, turn.calls.get(number)?))
    }
}

/// A call in OpenAI's form.
fn write_call(object: &mut Object<'_>, call: &Call) {
    object.text("id", &call.id);
    object.text("type", "function");
    object.object("function", |function| {
        function.text("name", &call.tool_name);
        function.text("arguments", call.input.as_str());
    });
}

/// Tokens in OpenAI's names: prompt tokens are all that the prompt had.
fn write_usage(object: &mut Object<'_>, usage: Usage) {
    let prompt = usage.input_tokens.saturating_add(usage.cache_read_tokens).saturating_add(usage.cache_write_tokens);
    object.number("prompt_tokens", prompt);
    object.number("completion_tokens", usage.output_tokens);
    object.number("total_tokens", prompt.saturating_add(usage.output_tokens));
}

/// Writes a session for sockets that asked for raw events.
pub struct RawWriter {
    writer: SocketWriter,
    written: u64,
    chat_from: u64,
    /// Kept for its room.
    events: Vec<SocketEvent>,
}

/// One item of the raw stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawItem {
    /// An event like any other.
    Typed(SocketEvent),
    /// A raw event, to be sent in a [`batch`].
    Raw {
        /// Its `stream_sequence`.
        sequence: u64,
        /// The event.
        event: Json,
    },
}

#[cfg(feature = "io")]
impl RawItem {
    /// How long it is in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Typed(event) => event.data.as_str().len(),
            Self::Raw { event, .. } => event.as_str().len(),
        }
    }
}

impl RawWriter {
    /// A writer for a session without records.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { writer: SocketWriter::new(options).told_raw(), written: 0, chat_from: 0, events: Vec::new() }
    }

    /// The same, with the title that the session was created with.
    #[must_use]
    pub fn titled(mut self, title: Text) -> Self {
        self.writer = self.writer.titled(title);
        self
    }

    /// Where the items begin that a socket is owed which subscribes now, if it is owed any, and behind which of their numbers: those of the chat that
    /// runs, or, to a client that comes back, those of the latest chat if it had not seen its end. A number that this chat has not come to is
    /// another chat's, so nothing of this one was seen. One that it has passed is taken for its own: the wire names no chat beside the number
    /// (socketio.md §2.2), and a client that was away from one chat to the next reads the messages anyway.
    #[must_use]
    pub fn owed_from(&self, after: u64, resume: bool) -> Option<(u64, u64)> {
        let latest = self.writer.raw.as_ref().map_or(0, |raw| raw.sequence);
        let missed = (resume || after > 0) && after != latest;
        let seen = if after <= latest { after } else { 0 };
        (self.writer.chat_running() || missed).then_some((self.chat_from, seen))
    }
}

impl Writer for RawWriter {
    type Item = RawItem;

    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<RawItem>) {
        let mut told = std::mem::take(&mut self.events);
        self.writer.write(record, events, &mut told);
        for event in told.drain(..) {
            if event.name == "chat:start" {
                self.chat_from = self.written;
            }
            self.written += 1;
            items.push(match event.name {
                BATCH => RawItem::Raw { sequence: sequence_of(&event.data), event: event.data },
                _ => RawItem::Typed(event),
            });
        }
        self.events = told;
    }
}

/// The last member of a raw event, which is ours.
fn sequence_of(event: &Json) -> u64 {
    let digits = event.as_str().rsplit(':').next().unwrap_or_default().trim_end_matches('}');
    digits.parse().unwrap_or_default()
}

/// Items as they go out: raw events that follow one another go together.
pub fn batch(session: &str, items: impl IntoIterator<Item = RawItem>) -> Vec<SocketEvent> {
    let mut out = Vec::new();
    let mut waiting: Vec<Json> = Vec::new();
    for item in items {
        match item {
            RawItem::Raw { event, .. } => waiting.push(event),
            RawItem::Typed(event) => {
                out.extend(together(session, &mut waiting));
                out.push(event);
            }
        }
    }
    out.extend(together(session, &mut waiting));
    out
}

fn together(session: &str, waiting: &mut Vec<Json>) -> Option<SocketEvent> {
    if waiting.is_empty() {
        return None;
    }
    let data = object(|object| {
        object.text("session_id", session);
        object.member("events", |out| write_array(out, waiting.drain(..), |out, event| out.push_str(event.as_str())));
    });
    Some(SocketEvent { name: BATCH, data })
}
