//! What a session keeps, and where: its log, what projections hold of it while they are warm, and the runs that it lets go of.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use interline_journal::{Damaged, Durability, Log, Mark, StoredRun, Unstored};
use interline_model::{Body, Event, Fact, FailureKind, ForcedEnd, Json, Millis, Part, Record, RunId, Text, What};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{Refused, RunStatus, Session, State};
use crate::projection::{Feed, Source};
use crate::upstream::Command;

/// Where a run lies in the log.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) run: RunId,
    /// The number of its first record.
    pub(super) first: usize,
    /// What its records came to, about: whose part of the file is whose.
    pub(super) bytes: u64,
    pub(super) began_at: Millis,
    pub(super) ended_at: Option<Millis>,
}

impl From<&StoredRun> for Kept {
    fn from(stored: &StoredRun) -> Self {
        let StoredRun { run, first, bytes, began_at, ended_at, .. } = stored;
        Self { run: *run, first: *first, bytes: *bytes, began_at: *began_at, ended_at: *ended_at }
    }
}

impl Kept {
    pub(super) fn last_at(&self) -> Millis {
        self.ended_at.unwrap_or(self.began_at)
    }
}

/// The last runs that were let go of, so that who asks for one hears that it was there.
#[derive(Debug, Default)]
pub(super) struct Forgotten(VecDeque<RunId>);

impl Forgotten {
    /// So many are remembered of one session.
    const MAX: usize = 1024;

    pub(super) fn ids(&self) -> impl Iterator<Item = RunId> {
        self.0.iter().copied()
    }

    /// Remembers one, at the price of the oldest.
    fn remember(&mut self, run: RunId) -> Option<RunId> {
        self.0.push_back(run);
        if self.0.len() > Self::MAX { self.0.pop_front() } else { None }
    }
}

/// A run that was let go of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) run: RunId,
    /// What its records came to, about.
    pub(crate) bytes: u64,
    /// An older one that is no longer remembered as forgotten, either.
    pub(crate) unknown: Option<RunId>,
}

/// A session's oldest run, as retention looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oldest {
    pub(crate) ended_at: Millis,
    /// How many runs the session keeps.
    pub(crate) runs: usize,
}

/// Bytes that a record takes, about: those of its text, and some for itself.
fn size_of(record: &Record) -> u64 {
    const ITSELF: u64 = 64;
    let text = match &record.body {
        Body::Frame(text) => text.len(),
        Body::Fact(Fact::RunAccepted(accepted)) => accepted.input.iter().map(Part::len).fold(0, usize::saturating_add),
        Body::Fact(_) => 0,
    };
    (text as u64).saturating_add(ITSELF)
}

impl State {
    /// What the journal must know of a record.
    pub(super) fn mark(&mut self, record: &Record, events: &[Event]) -> Mark {
        match &record.body {
            Body::Fact(Fact::RunAccepted(accepted)) => Mark::Begins { run: accepted.run, tag: self.tag.take() },
            _ if events.iter().any(|event| matches!(event.what, What::RunEnded(_))) => Mark::Ends,
            _ => Mark::Plain,
        }
    }

    /// Keeps where a record lies; `len` is how many the log has with it.
    pub(super) fn keep(&mut self, record: &Record, mark: &Mark, len: usize) {
        if let Mark::Begins { run, .. } = mark {
            let first = len.saturating_sub(1);
            self.kept.push_back(Kept { run: *run, first, bytes: 0, began_at: record.at, ended_at: None });
        }
        let Some(run) = self.kept.back_mut() else { return };
        run.bytes = run.bytes.saturating_add(size_of(record));
        if matches!(mark, Mark::Ends) {
            run.ended_at = Some(record.at);
        }
    }
}

impl Session {
    /// Puts a record into the log: on the disk, where nothing may be shown that is not there.
    pub(super) fn store(&self, state: &mut State, record: &Record, mark: &Mark) -> Result<(), Unstored> {
        let mut append = || {
            while let Some((record, mark)) = state.owed.front() {
                self.log.append(record.clone(), mark.clone())?;
                state.owed.pop_front();
            }
            self.log.append(record.clone(), mark.clone())
        };
        if self.log.durability() == Durability::Fsync { patiently(append) } else { append() }
    }

    /// A record that had to be on the disk is not. A frame is shown to nobody, and its run ends, since the next one would fare no better. What we
    /// did ourselves has happened: it is shown, and stored as soon as that is possible.
    pub(super) fn not_stored(&self, state: &mut State, refused: Refused) {
        let Refused { record, mark, error } = refused;
        tracing::error!(session = %self.id, record = %record.body.name(), %error, "a record could not be stored");
        if let Body::Frame(_) = record.body {
            self.reread(state);
            if let Some(run) = state.active() {
                let _ = run.commands.send(Command::Stop);
                let message = Text::from(format!("the run was ended because the log cannot be written: {error}"));
                self.append(state, Body::Fact(Fact::EndForced(ForcedEnd::Refused { kind: FailureKind::Internal, message })));
            }
            return;
        }
        let events = std::mem::take(&mut state.events);
        self.show(state, &record, &mark, &events);
        state.events = events;
        state.owed.push_back((record, mark));
    }

    /// Makes the reader what it was before the last record.
    pub(super) fn reread(&self, state: &mut State) {
        loop {
            let (mut reader, mut events) = (None, Vec::new());
            if self.replay(state, 0, &mut |record| self.read(&mut reader, record, &mut events)) {
                state.reader = reader;
                return;
            }
        }
    }

    /// Hands out all records from number `from` on. `false` if some were damaged: their run is forgotten now, and what was handed out is to be
    /// thrown away and asked for again.
    pub(super) fn replay(&self, state: &mut State, from: usize, visit: &mut dyn FnMut(&Record)) -> bool {
        match self.log.replay(from, visit) {
            Ok(()) => {
                state.owed.iter().for_each(|(record, _)| visit(record));
                true
            }
            Err(damaged) => {
                self.mend(state, &damaged);
                false
            }
        }
    }

    /// Forgets the run that damaged records belong to, and those before it: a run with a gap is none.
    pub(super) fn mend(&self, state: &mut State, damaged: &Damaged) {
        let through = state.kept.iter().take_while(|kept| kept.first <= damaged.number).count();
        tracing::error!(session = %self.id, %damaged, runs = through, "records are damaged; the runs up to them are forgotten");
        self.forget_front(state, through);
    }

    /// Forgets the oldest `count` runs. The last one that is not even remembered any more.
    fn forget_front(&self, state: &mut State, count: usize) -> Option<RunId> {
        let mut unknown = None;
        let boundary = state.kept.get(count).map_or_else(|| self.log.len(), |kept| kept.first);
        self.log.forget_before(boundary);
        for kept in state.kept.drain(..count.min(state.kept.len())) {
            unknown = state.forgotten.remember(kept.run).or(unknown);
            state.asks.forget(kept.run);
            if let Some(at) = state.runs.iter().position(|run| run.info.run == kept.run) {
                let run = state.runs.remove(at);
                run.over.cancel();
                // It has no end that anybody could read; whoever waits for that waits no longer. One that is only read of an earlier process counts
                // nowhere yet.
                if run.info.status == RunStatus::Running && self.is_busy() {
                    self.busy.send_replace(false);
                    self.active.fetch_sub(1, Ordering::Relaxed);
                    self.telemetry.run_ended(RunStatus::Failed);
                }
            }
        }
        self.telemetry.runs_forgotten(count);
        unknown
    }

    /// The oldest run, if it has ended.
    pub(crate) fn oldest(&self) -> Option<Oldest> {
        let state = self.locked();
        let oldest = state.kept.front()?;
        Some(Oldest { ended_at: oldest.ended_at?, runs: state.kept.len() })
    }

    /// What its runs came to, about.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.locked().kept.iter().map(|kept| kept.bytes).fold(0, u64::saturating_add)
    }

    /// Stores what was done while the disk took nothing, once it does again.
    pub(crate) fn settle_owed(&self) {
        let mut state = self.locked();
        let mut settle = || -> Result<(), Unstored> {
            while let Some((record, mark)) = state.owed.front() {
                self.log.append(record.clone(), mark.clone())?;
                state.owed.pop_front();
            }
            Ok(())
        };
        // The next time, then.
        let _ = if self.log.durability() == Durability::Fsync { patiently(settle) } else { settle() };
    }

    /// Forgets the oldest run, if it has ended by then and nobody watches the session.
    pub(crate) fn forget_oldest(&self, ended_by: Millis) -> Option<Freed> {
        let mut state = self.locked();
        let oldest = state.kept.front()?;
        let (run, bytes) = (oldest.run, oldest.bytes);
        if oldest.ended_at.is_none_or(|at| at > ended_by) || self.watchers.nobody_since().is_none() {
            return None;
        }
        // Whoever holds a projection may be about to watch.
        if state.feeds.values().any(|feed| Arc::strong_count(feed) > 1) {
            return None;
        }
        state.feeds.clear();
        state.is_cold = false;
        let numbers = self.numbers_behind_oldest(&mut state);
        let unknown = self.forget_front(&mut state, 1);
        if let Some(numbers) = numbers {
            state.numbers = Some(numbers.clone());
            self.append(&mut state, Body::Fact(Fact::Shortened { numbers }));
        }
        Some(Freed { run, bytes, unknown })
    }

    /// Up to which numbers the oldest run is counted. That is known no more once it is gone.
    fn numbers_behind_oldest(&self, state: &mut State) -> Option<Json> {
        let first = self.log.first();
        // What was let go of before, nobody counted.
        let base = if first > 0 { Some(self.numbers_before(state)?) } else { None };
        let mut numbering = self.numbering.begin(base.as_ref())?;
        let boundary = state.kept.get(1).map_or_else(|| self.log.len(), |kept| kept.first);
        let (mut number, mut reader, mut events) = (first, None, Vec::new());
        let whole = self.replay(state, first, &mut |record| {
            if number < boundary {
                self.read(&mut reader, record, &mut events);
                numbering.count(record, &events);
            }
            number += 1;
        });
        whole.then(|| numbering.numbers())
    }

    fn numbers_before(&self, state: &mut State) -> Option<Json> {
        if std::mem::take(&mut state.is_unread) {
            self.recall(state);
        }
        state.numbers.clone()
    }

    /// Up to which numbers what is no longer kept was counted, as [`crate::Numbering::numbers`] said it; `None` where nobody counted.
    #[must_use]
    pub fn numbers(&self) -> Option<Json> {
        self.state().numbers.clone()
    }

    /// Whether the run was one of this session's and is no longer kept.
    #[must_use]
    pub fn has_forgotten(&self, run: RunId) -> bool {
        self.locked().forgotten.0.contains(&run)
    }

    /// Whether its log no longer begins at its beginning: then positions in the session from before mean nothing any more.
    #[must_use]
    pub fn is_shortened(&self) -> bool {
        self.log.first() > 0
    }

    /// Writes a projection from the log.
    pub(super) fn write(&self, state: &mut State, feed: &dyn Feed) {
        loop {
            let mut whole = true;
            feed.warm(&mut |see| {
                let (mut reader, mut events) = (None, Vec::new());
                whole = self.replay(state, 0, &mut |record| {
                    self.read(&mut reader, record, &mut events);
                    see(record, &events);
                });
            });
            if whole {
                return;
            }
        }
    }

    /// Makes the cold projections warm.
    pub(super) fn warm_feeds(&self, state: &mut State) {
        if std::mem::take(&mut state.is_cold) {
            let feeds: Vec<Arc<dyn Feed>> = state.feeds.values().filter(|feed| feed.is_cold()).cloned().collect();
            for feed in feeds {
                self.write(state, &*feed);
            }
        }
    }

    /// Lets go of everything in memory that the log on the disk can give back. `false` while a run goes on.
    pub(crate) fn cool(&self) -> bool {
        let mut state = self.locked();
        if state.active().is_some() || !state.owed.is_empty() {
            return false;
        }
        state.feeds.retain(|_, feed| Arc::strong_count(feed) > 1);
        state.feeds.values().for_each(|feed| feed.cool());
        state.is_cold = !state.feeds.is_empty();
        true
    }

    /// What its projections hold, roughly, in bytes; 0 where the log is in memory itself and could not give it back.
    pub(crate) fn warm_bytes(&self) -> u64 {
        let state = self.locked();
        if state.is_cold || self.log.durability() == Durability::Memory {
            return 0;
        }
        let bytes = state.kept.iter().map(|kept| kept.bytes).fold(0, u64::saturating_add);
        bytes.saturating_mul(state.feeds.len() as u64)
    }

    /// Has the sessions that rest longest let go of theirs, where there is more in memory than there should be. Not under any session's lock.
    pub(crate) fn settle_warmth(&self) {
        if let Some(session) = self.me.upgrade() {
            self.warmth.settle(&session);
        }
    }
}

impl Source for Session {
    fn warm(&self) {
        {
            let mut state = self.state();
            self.warm_feeds(&mut state);
        }
        self.settle_warmth();
    }
}

/// Appends a record, without keeping the runtime's other tasks waiting where that waits for the disk.
///
/// # Errors
/// When it has to be on the disk and cannot be.
pub(crate) fn append_patiently(log: &dyn Log, record: Record, mark: Mark) -> Result<(), Unstored> {
    let append = || log.append(record, mark);
    if log.durability() == Durability::Fsync { patiently(append) } else { append() }
}

/// Does what waits for the disk without keeping the runtime's other tasks waiting.
fn patiently<R>(work: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
