//! A session that another process began: what it knows is read from its log, and the run that went on is taken up again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use interline_model::{Answer, Ask, AskId, AskOutcome, Body, Event, Fact, Json, Millis, Record, RunId, Text, What};
use tokio::sync::mpsc;

use super::{Run, RunStatus, Session, State, now};
use crate::asks::Asks;
use crate::policy::Decided;
use crate::upstream::{Command, RunPort};

/// A run that another process left unfinished.
pub(crate) struct Unfinished {
    pub(crate) run: RunId,
    /// Under what its link finds it, if the upstream had taken it.
    pub(crate) handle: Option<Json>,
    /// The messages that came of it.
    pub(crate) frames: Vec<Text>,
    pub(crate) port: RunPort,
}

/// What is only known while a log is read that another process wrote.
#[derive(Default)]
pub(super) struct Recalled {
    /// What policies decided about asks that the next frame raises.
    decided: Vec<(AskId, Decided)>,
    /// Commands that no frame has followed: whether the upstream heard them is not known.
    unheard: Vec<(Arc<Ask>, Answer)>,
    /// Under what the link finds the run that goes on.
    handle: Option<Json>,
}

impl Session {
    /// Reads the log.
    pub(super) fn recall(&self, state: &mut State) {
        loop {
            state.begin_recall();
            let Err(damaged) = self.log.replay(0, &mut |record| self.recall_record(state, record)) else { break };
            self.mend(state, &damaged);
        }
        state.asks.recalled();
        if state.active().is_none() {
            state.reader = None;
        }
        if let Some((handle, frames)) = state.attached.take() {
            self.link().recalled(&handle, &frames);
        }
    }

    fn recall_record(&self, state: &mut State, record: &Record) {
        state.last_at = state.last_at.max(record.at);
        let mut events = std::mem::take(&mut state.events);
        self.read(&mut state.reader, record, &mut events);
        match &record.body {
            Body::Frame(text) => self.recall_frame(state, record.at, text, &events),
            Body::Fact(fact) => state.recall_fact(record.at, fact),
        }
        for event in &events {
            self.note(state, record.at, event);
        }
        if state.active().is_none()
            && let Some(run) = state.runs.last()
        {
            run.over.cancel();
        }
        state.events = events;
    }

    fn recall_frame(&self, state: &mut State, at: Millis, text: &Text, events: &[Event]) {
        state.recalled.unheard.clear();
        if !state.recalled.decided.is_empty()
            && let Some(ask) = self.serving.upstream().ask_in(text)
            && let Some(run) = state.runs.last()
        {
            let run = run.info.run;
            for (id, decided) in std::mem::take(&mut state.recalled.decided) {
                if id == ask.id {
                    state.asks.decide(&ask, run, &decided, at);
                    state.recalled.unheard.push((Arc::new(ask.clone()), decided.answer()));
                }
            }
        }
        if self.link().takes_up()
            && let Some((_, frames)) = &mut state.attached
        {
            frames.push(text.clone());
        }
        let Some(run) = state.runs.last_mut() else { return };
        run.bytes = run.bytes.saturating_add(text.len());
        if !is_malformed(events) {
            run.error_at = None;
            run.frame_at = at;
            state.asks.frame_came();
        }
    }

    /// Takes up the run that another process left unfinished, if there is one.
    pub(crate) fn take_up(self: &Arc<Self>) -> Option<Unfinished> {
        let mut state = self.state();
        let entry = state.runs.last_mut().filter(|run| run.info.status == RunStatus::Running)?;
        let (sender, commands) = mpsc::unbounded_channel();
        entry.commands = sender;
        entry.frame_at = now();
        let (run, over, is_stopping) = (entry.info.run, entry.over.clone(), entry.stop_at.is_some());
        let Recalled { unheard, handle, .. } = std::mem::take(&mut state.recalled);
        if let Some(entry) = state.runs.last() {
            for (ask, answer) in unheard {
                let _ = entry.commands.send(Command::Answer { ask, answer });
            }
            if is_stopping {
                let _ = entry.commands.send(Command::Stop);
            }
        }
        self.busy.send_replace(true);
        self.telemetry.run_started();
        self.active.fetch_add(1, Ordering::Relaxed);
        self.append(&mut state, Body::Fact(Fact::LinkLost));
        let first = state.kept.back().map_or(0, |kept| kept.first);
        let mut frames = Vec::new();
        if !self.replay(&mut state, first, &mut |record| {
            if let Body::Frame(text) = &record.body {
                frames.push(text.clone());
            }
        }) {
            // The run is damaged, and forgotten with that.
            return None;
        }
        Some(Unfinished { run, handle, frames, port: RunPort { session: self.clone(), run, commands, over } })
    }
}

impl State {
    /// Begins anew with nothing.
    fn begin_recall(&mut self) {
        self.reader = None;
        self.runs.clear();
        self.asks = Asks::recalling();
        self.paused = false;
        self.attached = None;
        self.numbers = None;
        self.recalled = Recalled::default();
    }

    fn recall_fact(&mut self, at: Millis, fact: &Fact) {
        match fact {
            Fact::RunAccepted(accepted) => {
                let (run, _) = Run::new(accepted, at);
                self.runs.push(run);
                self.model = Some(accepted.model.clone());
                self.recalled = Recalled::default();
            }
            Fact::AskAnswered { ask, answer, by } => {
                let active = self.active().map(|run| run.info.run);
                if let Ok(taken) = self.asks.answer(ask, answer, by, at, active) {
                    self.recalled.unheard.push((taken.ask, answer.clone()));
                }
            }
            Fact::AskExpired { ask } => {
                if let Some(asked) = self.asks.get(ask) {
                    self.recalled.unheard.push((asked, expired()));
                }
                self.asks.settle(ask, AskOutcome::Expired, at);
            }
            Fact::AskDecided { ask, allowed, rule } => {
                self.recalled.decided.push((ask.clone(), Decided { allowed: *allowed, rule: rule.clone() }));
            }
            Fact::AskUnconfirmed { ask } => self.asks.told_unconfirmed(ask),
            Fact::StopRequested { .. } => {
                if let Some(run) = self.runs.last_mut() {
                    run.stop_at = Some(at);
                    let run = run.info.run;
                    self.asks.stopping(run);
                }
            }
            Fact::Shortened { numbers } => self.numbers = Some(numbers.clone()),
            Fact::Titled { title } => self.title = Some(title.clone()),
            Fact::Attached { handle } => {
                self.attached = Some((handle.clone(), Vec::new()));
                self.recalled.handle = Some(handle.clone());
                if let Some(run) = self.runs.last_mut() {
                    run.is_attached = true;
                }
            }
            Fact::Noticed { .. } | Fact::LinkLost | Fact::LinkBack | Fact::EndForced(_) | Fact::Compacted => {}
        }
    }
}

/// The answer to an ask that nobody answered in time.
pub(super) fn expired() -> Answer {
    Answer::Deny { message: Text::from_static("nobody answered in time") }
}

/// Whether a message was no frame at all.
pub(super) fn is_malformed(events: &[Event]) -> bool {
    matches!(events, [Event { what: What::Other { name }, .. }] if &**name == "malformed")
}
