//! Runs that wait for the one before them (`on_busy` of a route): they have their id, their readers and perhaps a wish to be stopped before
//! they begin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use interline_hub::{Session, StartError};
use interline_model::{Actor, CellName, Principal, RunId, Text};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What became of a run that waited.
pub(crate) type Begun = Result<(Arc<Session>, RunId), NotBegun>;

/// Why it did not begin.
#[derive(Clone, Debug)]
pub(crate) enum NotBegun {
    /// It was stopped before.
    Stopped,
    /// It was refused when its turn had come.
    Refused(StartError),
}

/// A run that waits for its turn.
pub(crate) struct InTurn {
    pub(crate) run: RunId,
    pub(crate) session: Arc<Session>,
    /// As `run_start` will say it.
    pub(crate) model: Text,
    /// The label of the end user and the `Idempotency-Key` of the request.
    key: Option<(Option<Text>, Text)>,
    begun: watch::Receiver<Option<Begun>>,
    given_up: CancellationToken,
    stop: Mutex<Stop>,
}

enum Stop {
    Unwanted,
    Wanted(Actor),
    /// It is not waiting any more.
    Over,
}

/// Runs that did not begin, and are remembered, at most.
const MOST_ENDED: usize = 1024;

/// All runs that wait, and the latest of those that did not begin.
#[derive(Default)]
pub(crate) struct Waiting {
    runs: Arc<Mutex<Vec<Arc<InTurn>>>>,
}

impl Waiting {
    /// Keeps a run until it has begun, or cannot. Must be called inside the runtime.
    pub(crate) fn add(
        &self,
        run: RunId,
        session: Arc<Session>,
        model: Text,
        key: Option<(Option<Text>, Text)>,
        given_up: CancellationToken,
        result: oneshot::Receiver<Result<(Arc<Session>, RunId), StartError>>,
    ) -> Arc<InTurn> {
        let (sender, begun) = watch::channel(None);
        let entry = Arc::new(InTurn { run, session, model, key, begun, given_up, stop: Mutex::new(Stop::Unwanted) });
        locked(&self.runs).push(entry.clone());
        let (runs, waiting) = (self.runs.clone(), entry.clone());
        tokio::spawn(async move {
            // There is no result of a run that was given up, or if the hub is gone, and this program with it.
            let result = match result.await {
                Ok(result) => result.map_err(NotBegun::Refused),
                Err(_) if waiting.given_up.is_cancelled() => Err(NotBegun::Stopped),
                Err(_) => Err(NotBegun::Refused(StartError::Draining)),
            };
            let stop = std::mem::replace(&mut *locked(&waiting.stop), Stop::Over);
            if let (Ok((session, run)), Stop::Wanted(by)) = (&result, stop) {
                // It began in that very moment.
                session.stop(Some(*run), by);
            }
            let mut runs = locked(&runs);
            runs.retain(|other| !Arc::ptr_eq(other, &waiting));
            if result.is_err() {
                // Nobody else knows of it, and its client may ask again.
                let ended = |entry: &&Arc<InTurn>| entry.begun.borrow().is_some();
                if runs.iter().filter(ended).count() >= MOST_ENDED
                    && let Some(oldest) = runs.iter().position(|entry| ended(&entry))
                {
                    runs.remove(oldest);
                }
                runs.push(waiting);
            }
            drop(runs);
            sender.send_replace(Some(result));
        });
        entry
    }

    /// A run of this owner and cell that waits, or did not begin.
    pub(crate) fn find(&self, principal: &Principal, cell: &CellName, run: RunId) -> Option<Arc<InTurn>> {
        self.first(principal, cell, |entry| entry.run == run)
    }

    /// The one that waits already by this key.
    pub(crate) fn by_key(&self, principal: &Principal, cell: &CellName, actor: Option<&Text>, key: &Text) -> Option<Arc<InTurn>> {
        self.first(principal, cell, |entry| {
            let same = entry.key.as_ref().is_some_and(|(label, own)| label.as_ref() == actor && own == key);
            same && entry.begun.borrow().is_none()
        })
    }

    fn first(&self, principal: &Principal, cell: &CellName, fits: impl Fn(&InTurn) -> bool) -> Option<Arc<InTurn>> {
        let runs = locked(&self.runs);
        runs.iter().find(|entry| entry.session.principal() == principal && entry.session.cell() == cell && fits(entry)).cloned()
    }
}

impl InTurn {
    /// What becomes of it, as soon as that is known.
    pub(crate) async fn begun(&self) -> Begun {
        let mut begun = self.begun.clone();
        // The sender is dropped only behind the result.
        let result = begun.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        result.unwrap_or(Err(NotBegun::Refused(StartError::Draining)))
    }

    /// Why it did not begin, if that is so.
    pub(crate) fn why_not(&self) -> Option<NotBegun> {
        self.begun.borrow().as_ref().and_then(|result| result.as_ref().err().cloned())
    }

    /// Stops it: it does not begin. If it has not begun for good, what became of it.
    pub(crate) fn stop(&self, by: Actor) -> Option<&'static str> {
        match self.why_not() {
            Some(NotBegun::Stopped) => return Some("interrupted"),
            Some(NotBegun::Refused(_)) => return Some("failed"),
            None => {}
        }
        let mut stop = locked(&self.stop);
        match &*stop {
            Stop::Unwanted => {
                *stop = Stop::Wanted(by);
                self.given_up.cancel();
            }
            Stop::Wanted(_) => {}
            Stop::Over => {
                self.session.stop(Some(self.run), by);
            }
        }
        None
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
