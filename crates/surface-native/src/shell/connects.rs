//! Which runs had their first connect: it gets all of the run, later ones without a cursor only what comes (decision 28).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use interline_hub::Session;
use interline_model::RunId;

/// Below this it is not worth looking for runs of deleted sessions.
const FEW: usize = 1024;

/// The runs that somebody connected to. Holds no session alive, and no more runs than the sessions that live.
#[derive(Default)]
pub(super) struct Connects(Mutex<Known>);

#[derive(Default)]
struct Known {
    runs: HashMap<RunId, Weak<Session>>,
    /// At this many, those of deleted sessions go.
    sweep_at: usize,
}

impl Connects {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody connected to the run before.
    pub(super) fn has(&self, run: RunId) -> bool {
        self.known().runs.contains_key(&run)
    }

    /// Notes a connect. `true` if it is the first.
    pub(super) fn claim(&self, session: &Arc<Session>, run: RunId) -> bool {
        let mut known = self.known();
        if known.runs.len() >= known.sweep_at.max(FEW) {
            known.runs.retain(|_, session| session.strong_count() > 0);
            known.sweep_at = known.runs.len().saturating_mul(2);
        }
        known.runs.insert(run, Arc::downgrade(session)).is_none()
    }

    /// The first connect did not come about.
    pub(super) fn release(&self, run: RunId) {
        self.known().runs.remove(&run);
    }
}
