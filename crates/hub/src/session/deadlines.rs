//! What is due in a session without anybody doing anything: asks that expire, runs that are given up, stopped or ended.

use std::time::Duration;

use interline_model::{Actor, Body, Fact, ForcedEnd, Millis, RunId, Text};

use super::recall::expired;
use super::{Session, State, Timers, now};
use crate::conduct::Unwatched;
use crate::upstream::Command;

impl Session {
    /// When the run that goes on is to be stopped because nobody watches it, if nobody does. Looked at again at that time at the latest.
    fn stop_unwatched_at(&self, state: &State) -> Option<Millis> {
        let Unwatched::StopAfter(limit) = self.serving.conduct().unwatched else { return None };
        let run = state.active().filter(|run| run.stop_at.is_none())?;
        let limit = Millis::try_from(limit.as_millis()).unwrap_or(Millis::MAX);
        let since = match self.watchers.nobody_since() {
            Some(since) => since.max(run.info.started_at),
            None => now(),
        };
        Some(since.saturating_add(limit))
    }

    /// How long until something is due for `run`; `None` once it has ended.
    pub(crate) fn due_in(&self, run: RunId) -> Option<Duration> {
        let state = self.state();
        let due = state.next_deadline(run, &self.timers)?.min(self.stop_unwatched_at(&state).unwrap_or(Millis::MAX));
        Some(Duration::from_millis(due.saturating_sub(now())))
    }

    /// Does what is due for `run`.
    pub(crate) fn check(&self, run: RunId) {
        let mut state = self.state();
        let now = now();
        let paused = state.paused;
        for ask in state.asks.expired(run, now, paused) {
            let id = ask.id.clone();
            if let Some(entry) = state.runs.last() {
                let _ = entry.commands.send(Command::Answer { ask, answer: expired() });
            }
            self.append(&mut state, Body::Fact(Fact::AskExpired { ask: id }));
        }
        for ask in state.asks.unconfirmed(now, self.timers.ask.confirm_ms) {
            self.append(&mut state, Body::Fact(Fact::AskUnconfirmed { ask }));
        }
        if self.stop_unwatched_at(&state).is_some_and(|at| at <= now) {
            let by = Actor { principal: self.principal.clone(), surface: Text::from_static("interline") };
            self.stop_active(&mut state, by);
        }
        let asking = state.asks.is_any_open();
        let Some(entry) = state.active().filter(|entry| entry.info.run == run) else { return };
        let timers = &self.timers.run;
        let since = |moment: Option<Millis>, limit: u64| moment.is_some_and(|moment| moment.saturating_add(limit) <= now);
        let end = if since(entry.stop_at, timers.stop_grace_ms) {
            ForcedEnd::StopGraceOver
        } else if since(entry.error_at, timers.recoverable_error_ms) {
            ForcedEnd::ErrorStayed
        } else if !asking && since(Some(entry.frame_at), timers.max_idle_ms) {
            ForcedEnd::Idle
        } else {
            return;
        };
        self.append(&mut state, Body::Fact(Fact::EndForced(end)));
    }
}

impl State {
    fn next_deadline(&self, run: RunId, timers: &Timers) -> Option<Millis> {
        let entry = self.active().filter(|entry| entry.info.run == run)?;
        let asks = self.asks.next_deadline(self.paused, timers.ask.confirm_ms);
        let stop = entry.stop_at.map(|at| at.saturating_add(timers.run.stop_grace_ms));
        let error = entry.error_at.map(|at| at.saturating_add(timers.run.recoverable_error_ms));
        let idle = entry.frame_at.saturating_add(timers.run.max_idle_ms);
        let idle = if self.asks.is_any_open() { None } else { Some(idle) };
        Some([asks, stop, error, idle].into_iter().flatten().min().unwrap_or(Millis::MAX))
    }
}
