//! Runs that wait for the one before them (`on_busy` of a route): they have their id, their readers and perhaps a wish to be stopped before
//! they begin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use interline_hub::{Session, StartError};
use interline_model::{Actor, CellName, Principal, RunId, Text};
use tokio::sync::{oneshot, watch};

/// What became of a run that waited.
pub(crate) type Begun = Result<(Arc<Session>, RunId), StartError>;

/// A run that waits for its turn.
pub(crate) struct InTurn {
    pub(crate) run: RunId,
    pub(crate) session: Arc<Session>,
    /// As `run_start` will say it.
    pub(crate) model: Text,
    /// The label of the end user and the `Idempotency-Key` of the request.
    key: Option<(Option<Text>, Text)>,
    begun: watch::Receiver<Option<Begun>>,
    stop: Mutex<Stop>,
}

enum Stop {
    Unwanted,
    Wanted(Actor),
    /// It is not waiting any more.
    Over,
}

/// All runs that wait.
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
        result: oneshot::Receiver<Begun>,
    ) -> Arc<InTurn> {
        let (sender, begun) = watch::channel(None);
        let entry = Arc::new(InTurn { run, session, model, key, begun, stop: Mutex::new(Stop::Unwanted) });
        locked(&self.runs).push(entry.clone());
        let (runs, waiting) = (self.runs.clone(), entry.clone());
        tokio::spawn(async move {
            // Without a result the hub is gone, and this program with it.
            let result = result.await.unwrap_or(Err(StartError::Draining));
            let stop = std::mem::replace(&mut *locked(&waiting.stop), Stop::Over);
            if let (Ok((session, run)), Stop::Wanted(by)) = (&result, stop) {
                session.stop(Some(*run), by);
            }
            locked(&runs).retain(|other| !Arc::ptr_eq(other, &waiting));
            sender.send_replace(Some(result));
        });
        entry
    }

    /// A run of this owner and cell that waits.
    pub(crate) fn find(&self, principal: &Principal, cell: &CellName, run: RunId) -> Option<Arc<InTurn>> {
        self.first(principal, cell, |entry| entry.run == run)
    }

    /// The one that waits already by this key.
    pub(crate) fn by_key(&self, principal: &Principal, cell: &CellName, actor: Option<&Text>, key: &Text) -> Option<Arc<InTurn>> {
        self.first(principal, cell, |entry| entry.key.as_ref().is_some_and(|(label, own)| label.as_ref() == actor && own == key))
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
        result.unwrap_or(Err(StartError::Draining))
    }

    /// Stops it: as soon as it begins.
    pub(crate) fn stop(&self, by: Actor) {
        let mut stop = locked(&self.stop);
        match &*stop {
            Stop::Unwanted => *stop = Stop::Wanted(by),
            Stop::Wanted(_) => {}
            Stop::Over => {
                self.session.stop(Some(self.run), by);
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
