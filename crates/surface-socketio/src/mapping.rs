//! Canonical events to Socket.IO events: brackets of chats, turns in them, and the session as the sum of it (socketio.md §3–§4).

use std::collections::HashMap;

use interline_model::{
    Ask, AskId, AskKind, Body, CallId, CompactionPhase, Event, Fact, Json, Lane, Millis, Outcome, Part, Record, RunEnd, RunId, SessionId,
    Text, Usage, What, Writer,
};

use crate::ink::Ink;
#[cfg(feature = "io")]
use crate::object::Object;
use crate::object::{object, write_array, write_object};
use crate::options::Options;
use crate::patch::{Snapshot, Speech};
use crate::projection::{Block, Call, CallStatus, Compaction, Kind, Mode, Turn, TurnStatus};
use crate::raw::Raw;
use crate::result::{page_blocks, shown};
use crate::stamp::turn_id;

/// How much of the first message stands in for a title.
const INTENT_CHARS: usize = 80;

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

/// A session's `status` (socketio.md §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// No run yet.
    Created,
    /// A run goes on.
    Running,
    /// A run waits for an answer.
    WaitingForInput,
    /// The latest run finished.
    Completed,
    /// The latest run failed.
    Failed,
    /// The latest run was stopped.
    Interrupted,
}

impl SessionStatus {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::WaitingForInput => "waiting_for_input",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// An ask that waits for an answer, as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingQuestion {
    /// The ask.
    pub ask: Ask,
    /// The call that shows it: what `askuser_answer.tool_call_id` names.
    pub tool_call_id: Text,
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
    pub(crate) settled: Vec<(Text, AskId)>,
    /// The time of the record being written.
    pub(crate) now: Millis,
    pub(crate) out: Vec<SocketEvent>,
    pub(crate) ink: Ink,
    /// Turns are told as raw events, and not as themselves.
    pub(crate) raw: Option<Raw>,
}

/// What every event says.
pub(crate) struct Facts {
    pub(crate) session: SessionId,
}

/// The run that goes on.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) chat_run_id: String,
    pub(crate) headless: bool,
    pub(crate) output_schema: Option<Json>,
    pub(crate) first_turn: usize,
    /// Turns that can still change: those that have not ended, and those that paused.
    pub(crate) live: Vec<usize>,
    /// The latest turn of each lane.
    latest: HashMap<Lane, usize>,
    /// Where each call is: its turn's number and its number in the turn.
    pub(crate) calls: HashMap<CallId, (usize, usize)>,
    pub(crate) asks: Vec<Asked>,
    /// Whether a bracket is open: `chat:start` without its `chat:end`.
    pub(crate) chatting: bool,
    /// When something last moved it on.
    pub(crate) moved: Millis,
}

/// A pending ask and where it is shown.
pub(crate) struct Asked {
    pub(crate) ask: Ask,
    pub(crate) lane: Lane,
    pub(crate) turn: usize,
    pub(crate) call: usize,
    /// The call is ours and stands for the ask alone.
    pub(crate) synthetic: bool,
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
            settled: Vec::new(),
            now: 0,
            out: Vec::new(),
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

    /// All turns as TurnProjections, oldest first: the body of `GET /api/sessions/{id}/messages`.
    #[must_use]
    pub fn messages_json(&self) -> Json {
        let mut out = String::new();
        write_array(&mut out, &self.turns, |out, turn| write_object(out, |object| turn.write(object)));
        Json::written(out)
    }

    /// The same, with further members in each turn, written by `more`, which is told the `turn_id`.
    #[cfg(feature = "io")]
    pub(crate) fn messages_with(&self, mut more: impl FnMut(&mut Object<'_>, &str)) -> Json {
        let mut out = String::new();
        write_array(&mut out, &self.turns, |out, turn| {
            write_object(out, |object| {
                turn.write(object);
                more(object, &turn.turn_id);
            });
        });
        Json::written(out)
    }

    /// One turn, by its `turn_id` or its entry `id`.
    #[must_use]
    pub fn turn_json(&self, id: &str) -> Option<Json> {
        let turn = self.turns.iter().find(|turn| *turn.turn_id == *id || *turn.id == *id)?;
        Some(object(|object| turn.write(object)))
    }

    /// What a socket must get first that subscribes now (socketio.md §4.10): nothing unless a chat runs, else its start and every turn
    /// that can still change, parents before children.
    #[must_use]
    pub fn late_subscriber(&self) -> Vec<SocketEvent> {
        let (Some(run), Some(facts)) = (&self.run, &self.facts) else { return Vec::new() };
        if !run.chatting {
            return Vec::new();
        }
        let mut events = vec![chat_start(facts, run)];
        for at in self.live_turns(false) {
            let Some(turn) = self.turns.get(at) else { continue };
            if !turn.ended {
                events.push(turn_event("turn:start", facts, turn, turn.status));
                continue;
            }
            // A turn that paused before gets no second `turn:end`, only patches: this socket must not wait for one.
            events.push(turn_event("turn:start", facts, turn, TurnStatus::Paused));
            events.push(turn_event("turn:end", facts, turn, TurnStatus::Paused));
            if turn.status != TurnStatus::Paused {
                events.push(self.latest_status(facts, turn));
            }
        }
        events
    }

    /// The asks that wait for an answer, oldest first.
    #[must_use]
    pub fn pending_questions(&self) -> Vec<PendingQuestion> {
        let asks = self.run.iter().flat_map(|run| &run.asks);
        asks.filter_map(|asked| {
            let call = self.turns.get(asked.turn)?.calls.get(asked.call)?;
            Some(PendingQuestion { ask: asked.ask.clone(), tool_call_id: call.id.clone() })
        })
        .collect()
    }

    /// The ask that a plain message would answer: the oldest pending one.
    #[must_use]
    pub fn pending_question(&self) -> Option<PendingQuestion> {
        self.pending_questions().into_iter().next()
    }

    /// The ask that a call of the latest run showed until it was settled.
    #[must_use]
    pub fn settled_ask(&self, tool_call_id: &str) -> Option<&AskId> {
        self.settled.iter().rfind(|(call, _)| **call == *tool_call_id).map(|(_, ask)| ask)
    }

    /// Whether a bracket is open: a run goes on and does not wait for an answer.
    #[must_use]
    pub fn chat_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.chatting)
    }

    /// The session's status.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        self.status
    }

    /// The model in use, once a run said.
    #[must_use]
    pub fn model(&self) -> Option<&Text> {
        self.model.as_ref()
    }

    /// The title, or the beginning of the first message.
    #[must_use]
    pub fn intent(&self) -> &Text {
        &self.intent
    }

    /// The numbers of the turns that can still change, parents before children or the other way round.
    pub(crate) fn live_turns(&self, children_first: bool) -> Vec<usize> {
        let mut live = self.run.as_ref().map(|run| run.live.clone()).unwrap_or_default();
        live.sort_by_key(|&at| (self.turns.get(at).map_or(0, |turn| turn.depth), at));
        if children_first {
            live.reverse();
        }
        live
    }

    /// Writes a record to `out`. `note` hears how many items there are after each event, by its number, and after what the record as a whole gives.
    pub(crate) fn write_noting(&mut self, record: &Record, events: &[Event], mut note: impl FnMut(Option<usize>, usize)) {
        self.now = record.at;
        if let Body::Fact(Fact::Titled { title }) = &record.body {
            self.session_changed(None, Some(title));
            note(None, self.out.len());
        }
        let ending = events.iter().any(|event| matches!(event.what, What::RunEnded(_)));
        for (at, event) in events.iter().enumerate() {
            self.event(record, event, events.get(at + 1..).unwrap_or_default(), ending);
            note(Some(at), self.out.len());
        }
        self.pause_if_waiting(events);
        note(None, self.out.len());
    }

    fn event(&mut self, record: &Record, event: &Event, rest: &[Event], ending: bool) {
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
            What::ToolStarted { call, name, input } => {
                if !self.is_asked_at_once(call, rest) {
                    self.start_tool(lane, call, name, input.as_ref());
                }
            }
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

    fn start(&mut self, record: &Record, run: RunId, session: &SessionId, model: &Text) {
        if self.run.is_some() {
            self.finish(&RunEnd::synthesised(Outcome::Interrupted { reason: Text::from_static("superseded") }));
        }
        let accepted = match &record.body {
            Body::Fact(Fact::RunAccepted(accepted)) => Some(accepted),
            Body::Fact(_) | Body::Frame(_) => None,
        };
        self.facts = Some(Facts { session: session.clone() });
        self.model = Some(model.clone());
        self.settled.clear();
        self.run = Some(Run {
            id: run,
            chat_run_id: run.to_string(),
            headless: accepted.is_some_and(|accepted| accepted.headless),
            output_schema: accepted.and_then(|accepted| accepted.output_schema.clone()),
            first_turn: self.turns.len(),
            live: Vec::new(),
            latest: HashMap::new(),
            calls: HashMap::new(),
            asks: Vec::new(),
            chatting: false,
            moved: self.now,
        });
        let input = accepted.map(|accepted| accepted.input.as_slice()).unwrap_or_default();
        if self.intent.is_empty() {
            self.intent = intent_of(input);
        }
        self.stir();
        if !input.is_empty() {
            self.whole_turn(Kind::User, input.iter().map(block_of).collect());
        }
    }

    /// Something moves the run on: a chat that paused goes on in a new bracket (decision 8).
    pub(crate) fn stir(&mut self) {
        let (Some(run), Some(facts)) = (&mut self.run, &self.facts) else { return };
        run.moved = self.now;
        if run.chatting {
            return;
        }
        run.chatting = true;
        if let Some(raw) = &mut self.raw {
            raw.begin();
        }
        self.out.push(chat_start(facts, run));
        self.set_status(SessionStatus::Running);
    }

    /// A whole turn in one: what the user said, or a mark between turns.
    pub(crate) fn whole_turn(&mut self, kind: Kind, blocks: Vec<Block>) {
        let at = self.new_turn(&Lane::Root, kind);
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.status = TurnStatus::Completed;
        turn.blocks = blocks;
        turn.ended = true;
        self.tell_turn("turn:start", at);
        self.tell_turn("turn:end", at);
    }

    fn new_turn(&mut self, lane: &Lane, kind: Kind) -> usize {
        let at = self.turns.len();
        let Some(run) = &self.run else { return at };
        let parent = match lane {
            Lane::Root => None,
            Lane::Agent(call) => run.calls.get(call).and_then(|(turn, _)| self.turns.get(*turn)),
        };
        let depth = match (lane, parent) {
            (Lane::Root, _) => 0,
            (Lane::Agent(_), parent) => parent.map_or(0, |parent| parent.depth) + 1,
        };
        let mut turn = Turn::new(run.id, at, lane.clone(), depth, kind, self.now, &self.options);
        if turn.is_assistant() {
            turn.model.clone_from(&self.model);
        }
        self.turns.push(turn);
        at
    }

    fn open_turn(&mut self, lane: &Lane, kind: Kind) -> usize {
        let at = self.new_turn(lane, kind);
        if let Some(run) = &mut self.run {
            run.live.push(at);
            run.latest.insert(lane.clone(), at);
        }
        if self.turns.get(at).is_some_and(Turn::is_assistant) {
            self.raw_turn(at);
        }
        self.tell_turn("turn:start", at);
        at
    }

    pub(crate) fn latest_in(&self, lane: &Lane) -> Option<usize> {
        self.run.as_ref()?.latest.get(lane).copied()
    }

    /// The turn of a lane that is open for more.
    fn open_in(&self, lane: &Lane) -> Option<usize> {
        let at = self.latest_in(lane)?;
        self.turns.get(at).filter(|turn| !turn.ended).map(|_| at)
    }

    /// The lane's open assistant turn. What comes after a pause goes into a new one, since the old one has ended here.
    pub(crate) fn open_or_new(&mut self, lane: &Lane) -> usize {
        self.stir();
        match self.open_in(lane) {
            Some(at) if self.turns.get(at).is_some_and(Turn::is_assistant) => at,
            Some(at) => {
                self.end_turn(at, TurnStatus::Completed);
                self.open_turn(lane, Kind::Assistant)
            }
            None => self.open_turn(lane, Kind::Assistant),
        }
    }

    fn start_tool(&mut self, lane: &Lane, id: &CallId, name: &Text, input: Option<&Json>) {
        if self.run.as_ref().is_some_and(|run| run.calls.contains_key(id)) {
            if let Some(input) = input {
                self.tool_input(id, input);
            }
            return;
        }
        let at = self.open_or_new(lane);
        let call = Call {
            id: id.text(),
            tool_name: name.clone(),
            display_name: name.clone(),
            input: input.cloned().unwrap_or_else(Json::empty_object),
            status: CallStatus::Pending,
            result: None,
            started: self.now,
            duration_ms: None,
            ask: None,
            waits_on: None,
        };
        let number = self.add_call(at, call);
        if let Some(run) = &mut self.run {
            run.calls.insert(id.clone(), (at, number));
        }
    }

    /// Whether the same record makes the call a question: it is then announced as one, and not twice.
    fn is_asked_at_once(&self, call: &CallId, rest: &[Event]) -> bool {
        rest.iter().any(|event| match &event.what {
            What::AskRaised(ask) => ask.kind == AskKind::Question && ask.call.as_ref() == Some(call) && !self.is_asked(&ask.id),
            _ => false,
        })
    }

    pub(crate) fn is_asked(&self, id: &AskId) -> bool {
        self.run.as_ref().is_some_and(|run| run.asks.iter().any(|asked| asked.ask.id == *id))
    }

    fn call(&self, id: &CallId) -> Option<(usize, usize)> {
        self.run.as_ref()?.calls.get(id).copied()
    }

    fn tool_input(&mut self, id: &CallId, input: &Json) {
        let Some((at, number)) = self.call(id) else { return };
        let Some(call) = self.turns.get_mut(at).and_then(|turn| turn.calls.get_mut(number)) else { return };
        // A question that is shown keeps the form that clients can draw.
        if call.ask.is_some() || call.is_final() || call.input == *input {
            return;
        }
        call.input = input.clone();
        if let Some(turn) = self.turns.get_mut(at) {
            turn.bytes = turn.bytes.saturating_add(2 * input.as_str().len());
        }
        self.stir();
        self.tell_call(at, number, true, false, Snapshot::Boundary);
    }

    /// A call that is about to end, with its turn's number and its own in it.
    fn ending(&mut self, id: &CallId) -> Option<(usize, usize)> {
        let (at, number) = self.call(id)?;
        if self.turns.get(at)?.calls.get(number)?.is_final() {
            return None;
        }
        self.stir();
        self.end_children(id);
        Some((at, number))
    }

    fn tool_aborted(&mut self, id: &CallId) {
        let Some((at, number)) = self.ending(id) else { return };
        self.cancel_call(at, number);
        self.complete_paused(at);
    }

    fn tool_ended(&mut self, id: &CallId, text: &Text, raw: Option<&Json>, is_error: bool) {
        let Some((at, number)) = self.ending(id) else { return };
        self.end_call(at, number, if is_error { CallStatus::Error } else { CallStatus::Done }, shown(text, raw));
        for (kind, content) in page_blocks(text, raw) {
            self.add_block(at, Block::Meta { kind, call: number, content });
        }
        if !is_error {
            self.tool_wrote(at, number);
        }
        self.complete_paused(at);
    }

    /// A call that its tool will not end any more (socketio.md §4.5).
    pub(crate) fn cancel_call(&mut self, at: usize, number: usize) {
        let Some(call) = self.turns.get_mut(at).and_then(|turn| turn.calls.get_mut(number)) else { return };
        let had_ref = call.waits_on.take().is_some();
        call.status = CallStatus::Cancelled;
        call.ask = None;
        self.raw_ended(at, number);
        self.tell_call(at, number, false, had_ref, Snapshot::Boundary);
    }

    /// A sub-agent's turns end before the call that started it does. One that works on in the background goes on.
    fn end_children(&mut self, call: &CallId) {
        if let Some(child) = self.open_in(&Lane::Agent(call.clone()))
            && self.turns.get(child).is_some_and(Turn::all_calls_final)
        {
            self.end_family(child, TurnStatus::Completed);
        }
    }

    fn turn_ended(&mut self, lane: &Lane, usage: Option<Usage>, ending: bool) {
        let Some(at) = self.run.as_ref().and_then(|run| run.latest.get(lane).copied()) else { return };
        let Some(turn) = self.turns.get_mut(at) else { return };
        if usage.is_some() {
            turn.usage = usage;
        }
        let (open, told) = (!turn.ended, turn.paused && turn.status != TurnStatus::Streaming);
        let chatting = self.run.as_ref().is_some_and(|run| run.chatting);
        if open && !ending {
            // With the run's end in the same record, that end says how the turn ended.
            self.end_lane(lane);
        } else if told && chatting && usage.is_some() {
            let status = self.turns.get(at).map_or(TurnStatus::Completed, |turn| turn.status);
            self.set_turn_status(at, status);
        }
    }

    fn end_lane(&mut self, lane: &Lane) {
        let Some(at) = self.open_in(lane) else { return };
        self.stir();
        if self.holds_ask(at) {
            // Its calls cannot end before people have answered.
            self.pause_turn(at);
        } else {
            self.end_family(at, TurnStatus::Completed);
        }
    }

    /// Ends a turn, and before it the turns of its sub-agents that have come to rest.
    fn end_family(&mut self, at: usize, status: TurnStatus) {
        let mut family = vec![at];
        let mut next = 0;
        while let Some(&parent) = family.get(next) {
            next += 1;
            let Some(run) = &self.run else { return };
            for &child in &run.live {
                let Some(Lane::Agent(call)) = self.turns.get(child).map(|turn| &turn.lane) else { continue };
                let mine = run.calls.get(call).is_some_and(|(turn, _)| *turn == parent);
                if mine && !family.contains(&child) {
                    family.push(child);
                }
            }
        }
        for &child in family.iter().skip(1).rev() {
            if self.turns.get(child).is_some_and(|turn| !turn.ended && turn.all_calls_final()) {
                self.end_turn(child, TurnStatus::Completed);
            }
        }
        self.end_turn(at, status);
    }

    /// Ends a turn for good: `turn:end`, or `set_status` where that went out when it paused. No call stays open in it.
    pub(crate) fn end_turn(&mut self, at: usize, status: TurnStatus) {
        let calls = self.turns.get(at).map_or(0, |turn| turn.calls.len());
        for number in 0..calls {
            if self.turns.get(at).and_then(|turn| turn.calls.get(number)).is_some_and(|call| !call.is_final()) {
                self.cancel_call(at, number);
            }
        }
        self.drop_live(at);
        match self.turns.get(at) {
            Some(turn) if !turn.ended => self.close_turn(at, status),
            Some(turn) if turn.paused => self.set_turn_status(at, status),
            _ => {}
        }
    }

    /// `turn:end`, the only one that a turn gets.
    pub(crate) fn close_turn(&mut self, at: usize, status: TurnStatus) {
        self.tell_all(at);
        let now = self.now;
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.status = status;
        turn.duration_ms = now.saturating_sub(turn.started);
        turn.ended = true;
        turn.paused = status == TurnStatus::Paused;
        turn.shown = (now, turn.bytes);
        let (lane, usage) = (turn.lane.clone(), turn.usage);
        self.raw_response(&lane, usage);
        self.tell_turn("turn:end", at);
    }

    pub(crate) fn drop_live(&mut self, at: usize) {
        if let Some(run) = &mut self.run {
            run.live.retain(|&live| live != at);
        }
    }

    fn compaction(&mut self, lane: &Lane, phase: &CompactionPhase) {
        self.stir();
        match phase {
            CompactionPhase::Started { reason, tokens_before } => {
                self.open_compaction(lane, reason, *tokens_before);
            }
            CompactionPhase::Finished { tokens_before, tokens_after } => {
                let at = self.open_compaction_of(lane).unwrap_or_else(|| self.open_compaction(lane, "", *tokens_before));
                if let Some(Kind::Compaction(compaction)) = self.turns.get_mut(at).map(|turn| &mut turn.kind) {
                    compaction.tokens_before = tokens_before.or(compaction.tokens_before);
                    compaction.tokens_after = *tokens_after;
                }
                self.end_turn(at, TurnStatus::Completed);
            }
        }
    }

    /// The lane's compaction that goes on.
    fn open_compaction_of(&self, lane: &Lane) -> Option<usize> {
        let compacts = |turn: &Turn| matches!(turn.kind, Kind::Compaction(_)) && !turn.ended && turn.lane == *lane;
        self.run.as_ref()?.live.iter().rev().copied().find(|&at| self.turns.get(at).is_some_and(compacts))
    }

    /// Opens a compaction turn: after the lane's turn, or beside it while calls of it go on, since their results are still to come.
    fn open_compaction(&mut self, lane: &Lane, reason: &str, tokens_before: Option<u64>) -> usize {
        let beside = self.open_in(lane).filter(|&at| self.turns.get(at).is_some_and(|turn| turn.is_assistant() && !turn.all_calls_final()));
        if beside.is_none() {
            self.end_lane(lane);
        }
        let id = self.run.as_ref().map(|run| turn_id("comp", run.id, self.turns.len())).unwrap_or_default();
        let trigger = match reason {
            "manual" => "manual",
            "max_tokens_recovery" => "forced_retry",
            _ => "auto",
        };
        let at = self.open_turn(lane, Kind::Compaction(Compaction { id, trigger, tokens_before, tokens_after: None }));
        if let (Some(turn), Some(run)) = (beside, &mut self.run) {
            run.latest.insert(lane.clone(), turn);
        }
        at
    }

    fn tell_turn(&mut self, name: &'static str, at: usize) {
        if let (Some(facts), Some(turn), None) = (&self.facts, self.turns.get(at), &self.raw) {
            self.out.push(turn_event(name, facts, turn, turn.status));
        }
    }
}

impl Writer for SocketWriter {
    type Item = SocketEvent;

    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<SocketEvent>) {
        self.write_noting(record, events, |_, _| {});
        items.append(&mut self.out);
        if self.run.is_none() {
            // A session at rest keeps no half-used page.
            self.ink = Ink::default();
        }
    }
}

fn chat_start(facts: &Facts, run: &Run) -> SocketEvent {
    let data = object(|object| {
        object.text("session_id", facts.session.as_str());
        object.text("chat_run_id", &run.chat_run_id);
    });
    SocketEvent { name: "chat:start", data }
}

/// A TurnProjection in the envelope of `turn:start` and `turn:end`.
fn turn_event(name: &'static str, facts: &Facts, turn: &Turn, status: TurnStatus) -> SocketEvent {
    let data = object(|object| {
        object.text("session_id", facts.session.as_str());
        turn.write_as(object, status);
        object.null("solution_id");
        object.null("template_id");
    });
    SocketEvent { name, data }
}

fn block_of(part: &Part) -> Block {
    match part {
        Part::Text(text) => Block::Text(text.to_string()),
        Part::Image { url } => Block::Image(url.clone()),
        Part::File { name, .. } => Block::File(name.clone()),
    }
}

/// What stands in for a session's title: the first line of its first message.
pub(crate) fn intent_of(input: &[Part]) -> Text {
    let text = input.iter().find_map(|part| match part {
        Part::Text(text) => text.lines().map(str::trim).find(|line| !line.is_empty()),
        Part::Image { .. } | Part::File { .. } => None,
    });
    Text::from(text.unwrap_or_default().chars().take(INTENT_CHARS).collect::<String>())
}
