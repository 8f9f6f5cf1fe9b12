//! What is let go of: whole runs, the oldest first, when they are too old, too many, or too large together.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use interline_journal::Health;
use interline_model::RunId;
use tokio::time::Instant;

use crate::hub::Hub;
use crate::session::{Freed, Session, now};

/// Looked for what is to be let go of this often at least.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Whether a disk that failed takes something again is looked for this often.
const LOOK_AT_DISK: Duration = Duration::from_secs(1);

impl Hub {
    /// Lets go of runs for as long as the program runs, as `[run]` and `[journal]` say.
    pub async fn keep_tidy(self: Arc<Self>) {
        let pause = Duration::from_millis(self.timers.run.forget_ms / 4).clamp(Duration::from_millis(50), LONGEST_PAUSE);
        let (mut next, mut ailing) = (Instant::now() + pause, false);
        loop {
            tokio::select! {
                () = self.closing().begun() => return,
                () = tokio::time::sleep(pause.min(LOOK_AT_DISK)) => {}
            }
            let fails = !matches!(self.journal.health(), Health::Well);
            if std::mem::replace(&mut ailing, fails) && !fails {
                self.settle_owed();
            }
            if Instant::now() >= next {
                self.tidy();
                next = Instant::now() + pause;
            }
        }
    }

    /// Lets go of what is too old, too much or too many now.
    pub fn tidy(&self) {
        self.forget_resting_now();
        let sessions: Vec<Arc<Session>> = self.registry().owners.values().flat_map(|mine| mine.sessions.values().cloned()).collect();
        let run = &self.timers.run;
        let mut gone = Vec::new();
        let too_old = now().saturating_sub(run.forget_ms);
        for session in &sessions {
            while session.oldest().is_some_and(|oldest| oldest.ended_at <= too_old || oldest.runs > run.max_runs) {
                let Some(freed) = session.forget_oldest(now()) else { break };
                gone.push(freed);
            }
        }
        self.forget_bytes(&sessions, &mut gone, self.journal.stored_bytes().saturating_sub(self.keeping.max_bytes));
        self.strike_off(&gone);
    }

    /// A key of a forgotten run starts another one.
    fn strike_off(&self, gone: &[Freed]) {
        if gone.is_empty() {
            return;
        }
        let runs: HashSet<RunId> = gone.iter().map(|freed| freed.run).collect();
        let mut registry = self.registry();
        registry.keys.retain(|_, run| !runs.contains(run));
        for unknown in gone.iter().filter_map(|freed| freed.unknown) {
            registry.runs.remove(&unknown);
        }
        tracing::info!(runs = gone.len(), "runs are no longer kept");
    }

    /// What was done while the disk took nothing is stored.
    pub(crate) fn settle_owed(&self) {
        let sessions: Vec<Arc<Session>> = self.registry().owners.values().flat_map(|mine| mine.sessions.values().cloned()).collect();
        sessions.iter().for_each(|session| session.settle_owed());
    }

    /// Lets go of the oldest runs of all until so many bytes of the file are free. What a run takes there is its part of what all runs came to: an index,
    /// pages and prompts are among it.
    fn forget_bytes(&self, sessions: &[Arc<Session>], gone: &mut Vec<Freed>, mut excess: u64) {
        if excess == 0 {
            return;
        }
        let (stored, kept) =
            (self.journal.stored_bytes(), sessions.iter().map(|session| session.kept_bytes()).fold(0, u64::saturating_add));
        let part = |bytes: u64| u64::try_from(u128::from(bytes) * u128::from(stored) / u128::from(kept.max(1))).unwrap_or(u64::MAX);
        while excess > 0 {
            let mut oldest: Vec<_> = sessions.iter().filter_map(|session| Some((session.oldest()?.ended_at, session))).collect();
            oldest.sort_by_key(|(at, _)| *at);
            let before = excess;
            for (_, session) in oldest {
                if let Some(freed) = session.forget_oldest(now()) {
                    excess = excess.saturating_sub(part(freed.bytes).max(1));
                    gone.push(freed);
                }
                if excess == 0 {
                    return;
                }
            }
            if excess == before {
                tracing::warn!(excess, "the log is larger than journal.max_bytes, and all that is left of it is in use");
                return;
            }
        }
    }
}
