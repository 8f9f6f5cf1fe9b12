//! Canonical events to Socket.IO events: brackets of chats, turns in them, and the session as the sum of it (socketio.md §3–§4).

use std::collections::HashMap;

use interline_model::{AskId, AskKind, Body, CallId, Event, Fact, Json, Lane, Millis, Record, RunId, SessionId, Text, What, Writer};

use crate::ink::Ink;
use crate::live::Live;
use crate::object::write_object;
use crate::options::Options;
use crate::patch::Shorter;
use crate::patch::Speech;
use crate::pending::Pending;
use crate::projection::{Kind, Mode, Turn};
use crate::raw::Raw;
use crate::session::SessionStatus;

/// One event as it goes out, with its only argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketEvent {
    /// The event's name.
    pub name: &'static str,
    /// Its payload, an object, written once for all sockets.
    pub data: Json,
}

impl SocketEvent {
    /// `{"event": …, "data": …}` on one line, as `interline map` prints it.
    #[must_use]
    pub fn line(&self) -> String {
        let mut out = String::with_capacity(self.data.as_str().len() + 40);
        write_object(&mut out, |object| {
            object.text("event", self.name);
            object.raw("data", self.data.as_str());
        });
        out
    }
}

/// Writes a session as Socket.IO events, and keeps it as turns.
pub struct SocketWriter {
    pub(crate) options: Options,
    pub(crate) facts: Option<Facts>,
    pub(crate) intent: Text,
    pub(crate) model: Option<Text>,
    pub(crate) status: SessionStatus,
    pub(crate) mode: Mode,
    pub(crate) turns: Vec<Turn>,
    pub(crate) run: Option<Run>,
    /// Which call of the latest run showed which ask that is settled now.
    pub(crate) settled: HashMap<Text, AskId>,
    /// The time of the record being written.
    pub(crate) now: Millis,
    pub(crate) out: Vec<SocketEvent>,
    /// How many items there were before these.
    pub(crate) written: usize,
    /// Which of them can be shorter now.
    pub(crate) shorter: Vec<Shorter>,
    pub(crate) ink: Ink,
    /// Turns are told as raw events, and not as themselves.
    pub(crate) raw: Option<Raw>,
}

/// What every event says.
pub(crate) struct Facts {
    pub(crate) session: SessionId,
    /// The latest run.
    pub(crate) run: RunId,
}

/// The run that goes on.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) chat_run_id: String,
    pub(crate) headless: bool,
    pub(crate) output_schema: Option<Json>,
    pub(crate) first_turn: usize,
    /// Turns that can still change: those that have not ended, and those that paused.
    pub(crate) live: Live,
    /// The latest turn of each lane.
    pub(crate) latest: HashMap<Lane, usize>,
    /// Where each call is: its turn's number and its number in the turn.
    pub(crate) calls: HashMap<CallId, (usize, usize)>,
    pub(crate) asks: Pending,
    /// What the calls of sub-agents say that these do, as far as somebody wanted to know.
    pub(crate) descriptions: HashMap<CallId, Text>,
    /// Whether a bracket is open: `chat:start` without its `chat:end`.
    pub(crate) chatting: bool,
    /// When something last moved it on.
    pub(crate) moved: Millis,
}

impl SocketWriter {
    /// A writer for a session without records.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            facts: None,
            intent: Text::new(),
            model: None,
            status: SessionStatus::Created,
            mode: Mode::Executing,
            turns: Vec::new(),
            run: None,
            settled: HashMap::new(),
            now: 0,
            out: Vec::new(),
            written: 0,
            shorter: Vec::new(),
            ink: Ink::default(),
            raw: None,
        }
    }

    /// The same, with the title that the session was created with, which no record says.
    #[must_use]
    pub fn titled(mut self, title: Text) -> Self {
        self.intent = title;
        self
    }

    /// Writes a record to `out`. `note` hears how many items there are after each event, by its number, and after what the record as a whole gives.
    pub(crate) fn write_noting(&mut self, record: &Record, events: &[Event], mut note: impl FnMut(Option<usize>, usize)) {
        self.now = record.at;
        if let Body::Fact(Fact::Titled { title }) = &record.body {
            self.session_changed(None, Some(title));
            note(None, self.out.len());
        }
        if let Body::Fact(Fact::Compacted) = &record.body {
            self.compacted();
            note(None, self.out.len());
        }
        let ending = events.iter().any(|event| matches!(event.what, What::RunEnded(_)));
        let questions = asked_of(events);
        for (at, event) in events.iter().enumerate() {
            let announced = match &event.what {
                What::ToolStarted { call, .. } => questions.get(call).is_some_and(|(asked, ask)| *asked > at && !self.is_asked(ask)),
                _ => false,
            };
            // Whether the same record makes the call a question: it is then announced as one, and not twice.
            if !announced {
                self.event(record, event, ending);
            }
            note(Some(at), self.out.len());
        }
        self.pause_if_waiting(events);
        note(None, self.out.len());
    }

    fn event(&mut self, record: &Record, event: &Event, ending: bool) {
        let lane = &event.lane;
        match &event.what {
            What::RunStarted { run, session, model } => self.start(record, *run, session, model),
            What::SessionChanged { model, title, mode, .. } => {
                self.session_changed(model.as_ref(), title.as_ref());
                if let Some(mode) = mode {
                    self.mode_changed(mode);
                }
            }
            What::Notice { level, code, text } => self.notice(*level, code, text),
            What::FilesChanged { paths } => self.files_stored(paths),
            What::Task { task, call, phase, summary } => self.task(task, call.as_ref(), *phase, summary),
            _ if self.run.is_none() => {}
            What::TurnStarted => {
                self.stir();
                self.end_lane(lane);
                self.open_turn(lane, Kind::Assistant);
            }
            What::Text { delta } => {
                let at = self.open_or_new(lane);
                self.say(at, Speech::Text, delta);
            }
            What::Thinking { delta } => {
                let at = self.open_or_new(lane);
                self.say(at, Speech::Thinking, delta);
            }
            What::ToolStarted { call, name, input } => self.start_tool(lane, call, name, input.as_ref()),
            What::ToolInput { call, input } => self.tool_input(call, input),
            What::ToolEnded { call, result, raw, is_error, aborted } => {
                if *aborted {
                    self.tool_aborted(call);
                } else {
                    self.tool_ended(call, result, raw.as_ref(), *is_error);
                }
            }
            What::TurnEnded { usage } => self.turn_ended(lane, *usage, ending),
            What::PlanChanged { steps } => self.plan_changed(lane, steps),
            What::AskRaised(ask) => self.raise(lane, ask),
            What::AskSettled { ask, outcome } => self.settle(record, ask, *outcome, ending),
            What::Compaction(phase) => self.compaction(lane, phase),
            What::RunEnded(end) => self.finish(end),
            // Without a place here: a call shows its result only, and no event is for what might be asked next.
            What::ToolOutput { .. } | What::Suggestion { .. } | What::Other { .. } => {}
        }
    }
}

/// The calls that a record makes questions: by which event, and which asks.
fn asked_of(events: &[Event]) -> HashMap<&CallId, (usize, &AskId)> {
    let asked = events.iter().enumerate().filter_map(|(at, event)| match &event.what {
        What::AskRaised(ask) if ask.kind == AskKind::Question => Some((ask.call.as_ref()?, (at, &ask.id))),
        _ => None,
    });
    asked.collect()
}

impl Writer for SocketWriter {
    type Item = SocketEvent;

    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<SocketEvent>) {
        self.write_noting(record, events, |_, _| {});
        self.written += self.out.len();
        items.append(&mut self.out);
        if self.run.is_none() {
            // A session at rest keeps no half-used page.
            self.ink = Ink::default();
        }
    }

    fn shorten(&mut self, items: &mut [SocketEvent]) {
        for shorter in self.shorter.drain(..) {
            shorter.apply(items, &mut self.ink);
        }
    }
}
