//! A run that waits for the one before it (`on_busy` of a route): it has its id, its readers and perhaps a wish to be stopped before it begins.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use interline_journal::LogKey;
use interline_model::{Actor, CellName, Millis, Principal, RunId, Text};
use tokio::sync::watch;

use crate::hub::{IdempotencyKey, StartError};
use crate::queue::Wish;
use crate::session::Session;

/// What became of a run that waited.
pub type Begun = Result<(Arc<Session>, RunId), NotBegun>;

/// Why it did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// It was given up before.
    Stopped,
    /// It was refused when its turn had come.
    Refused(StartError),
    /// The program ends; it waits on in the next process.
    Left,
}

/// A run that waits for its turn, or did not begin.
pub struct InTurn {
    /// Its id.
    pub run: RunId,
    /// Its session.
    pub session: Arc<Session>,
    /// The model, as its first event will say it.
    pub model: Text,
    /// When it was taken.
    pub taken_at: Millis,
    key: Option<IdempotencyKey>,
    wish: Arc<Wish>,
    /// Where it is kept, as long as it waits; or that it was stopped.
    kept: OnceLock<LogKey>,
    begun: watch::Sender<Option<Begun>>,
}

impl InTurn {
    pub(crate) fn new(run: RunId, session: Arc<Session>, model: Text, taken_at: Millis, key: Option<IdempotencyKey>) -> Self {
        Self { run, session, model, taken_at, key, wish: Arc::default(), kept: OnceLock::new(), begun: watch::Sender::new(None) }
    }

    pub(crate) fn set_kept(&self, key: LogKey) {
        let _ = self.kept.set(key);
    }

    /// Where it is kept.
    pub(crate) fn kept(&self) -> Option<&LogKey> {
        self.kept.get()
    }

    pub(crate) fn wish(&self) -> &Arc<Wish> {
        &self.wish
    }

    /// What becomes of it, as soon as that is known.
    pub async fn begun(&self) -> Begun {
        let mut begun = self.begun.subscribe();
        // The sender is its own, and outlives this.
        let result = begun.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        result.unwrap_or(Err(NotBegun::Refused(StartError::Draining)))
    }

    /// Why it did not begin, if that is so.
    #[must_use]
    pub fn why_not(&self) -> Option<NotBegun> {
        self.begun.borrow().as_ref().and_then(|result| result.as_ref().err().cloned())
    }

    /// Stops it: it does not begin, or ends. If it did not begin for good, why.
    pub fn stop(&self, by: Actor) -> Option<NotBegun> {
        let why = self.why_not();
        if why.is_none() {
            self.session.stop(Some(self.run), by);
        }
        why
    }
}

/// Runs that did not begin, and are remembered, at most.
const MOST_ENDED: usize = 1024;

/// All runs that wait, and the latest of those that did not begin.
#[derive(Default)]
pub(crate) struct Waiting {
    runs: Mutex<Vec<Arc<InTurn>>>,
}

impl Waiting {
    /// Adds a run, unless one waits by its key: then that one.
    pub(crate) fn add(&self, entry: &Arc<InTurn>) -> Option<Arc<InTurn>> {
        let mut runs = locked(&self.runs);
        let same = entry.key.as_ref().and_then(|key| Self::by(&runs, key));
        if same.is_none() {
            runs.push(entry.clone());
        }
        same
    }

    /// Tells what became of a run; one that did not begin `is_remembered` for whoever asks later. The one that is remembered no more for it, if it is
    /// kept anywhere.
    pub(crate) fn settle(&self, entry: &Arc<InTurn>, begun: Begun, is_remembered: bool) -> Option<LogKey> {
        if let (Ok((session, run)), Some(by)) = (&begun, entry.wish.by()) {
            // It began in that very moment.
            session.stop(Some(*run), by.clone());
        }
        let mut forgotten = None;
        let mut runs = locked(&self.runs);
        runs.retain(|other| !Arc::ptr_eq(other, entry));
        if begun.is_err() && is_remembered {
            // Nobody else knows of it, and its client may ask again.
            let ended = |entry: &&Arc<InTurn>| entry.begun.borrow().is_some();
            if runs.iter().filter(ended).count() >= MOST_ENDED
                && let Some(oldest) = runs.iter().position(|entry| ended(&entry))
            {
                forgotten = runs.remove(oldest).kept().cloned();
            }
            runs.push(entry.clone());
        }
        entry.begun.send_replace(Some(begun));
        forgotten
    }

    /// Forgets those of a session that did not begin. Where they were kept.
    pub(crate) fn forget(&self, session: &LogKey) -> Vec<LogKey> {
        let mut forgotten = Vec::new();
        locked(&self.runs).retain(|entry| {
            let is_of = entry.session.principal() == &session.principal && entry.session.id() == &session.session;
            let goes = is_of && entry.begun.borrow().is_some();
            if goes {
                forgotten.extend(entry.kept().cloned());
            }
            !goes
        });
        forgotten
    }

    /// A run of this owner and cell that waits, or did not begin.
    pub(crate) fn find(&self, principal: &Principal, cell: &CellName, run: RunId) -> Option<Arc<InTurn>> {
        let mine = |entry: &&Arc<InTurn>| entry.run == run && entry.session.principal() == principal && entry.session.cell() == cell;
        locked(&self.runs).iter().find(mine).cloned()
    }

    /// The one that waits by this key.
    pub(crate) fn by_key(&self, key: &IdempotencyKey) -> Option<Arc<InTurn>> {
        Self::by(&locked(&self.runs), key)
    }

    fn by(runs: &[Arc<InTurn>], key: &IdempotencyKey) -> Option<Arc<InTurn>> {
        let same = |entry: &&Arc<InTurn>| entry.key.as_ref() == Some(key) && entry.begun.borrow().is_none();
        runs.iter().find(same).cloned()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
