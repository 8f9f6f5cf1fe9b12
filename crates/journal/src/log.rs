//! The log of one session in a [`Durable`](crate::Durable): what waits for the disk is in memory, the rest is on the disk.
//!
//! ```text
//!   first          written                    end
//!     │  on the disk  │  sealed…  │  fresh      │
//!     └───────────────┴───────────┴─────────────┘
//!                      being written   not yet
//! ```
//!
//! Records move from the right to the left. A reader takes `written` and shares of what is right of it under the lock, and reads the disk
//! without it: whatever the writer commits meanwhile, the disk holds all that is left of the `written` it took.

mod encode;

use std::mem;
use std::time::Duration;

use interline_model::{Record, RunId};

use crate::codec::{self, BatchReader};
use crate::index::{RunRow, SessionRow};
use crate::store::{Change, Fault, Forget, LoadedSession};
use crate::sync::{Arc, Mutex, lock, mpsc, thread};
use crate::writer::{Shared, closed};
use crate::{Birth, Damage, Damaged, Durability, Log, LogKey, Mark, Unstored};

use encode::Encoded;

/// One session's log.
pub(crate) struct DiskLog {
    key: LogKey,
    /// Its number in the store.
    number: u64,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    birth: Birth,
    durability: Durability,
    /// The first record that is kept.
    first: usize,
    /// The number behind the last record that is on the disk.
    written: usize,
    /// The number behind the last record that readers see: with `Fsync`, `written`.
    shown: usize,
    /// Records from `written` on, in order; each stretch begins where the one before ends.
    sealed: Vec<Arc<Stretch>>,
    /// Those behind them.
    fresh: Stretch,
    /// Who waits for which record to be on the disk.
    waiting: Vec<(usize, mpsc::SyncSender<Result<(), Unstored>>)>,
    /// The run that began last, as far as it is on the disk.
    run: Option<Run>,
    /// It is in the writer's queue.
    queued: bool,
    /// Its row is not on the disk as it should be.
    row: bool,
    forget: Option<Forget>,
    removed: bool,
    /// A commit with something of it failed: there is no telling what of that is on the disk.
    doubt: bool,
    /// The file that knows of it.
    file: u64,
}

/// Some records, and what was marked of them.
#[derive(Default)]
struct Stretch {
    records: Vec<Record>,
    /// By their place in `records`, in order.
    marks: Vec<(usize, Mark)>,
    bytes: usize,
}

/// A run on its way to the disk.
#[derive(Clone)]
struct Run {
    first: u64,
    row: RunRow,
    /// What its row on the disk says it came to.
    bytes_in_row: u64,
}

/// What a commit carries of a log.
pub(crate) struct Taken {
    pub(crate) log: Arc<DiskLog>,
    pub(crate) change: Change,
    /// How many stretches.
    stretches: usize,
    records: usize,
    pub(crate) bytes: usize,
    /// What the records take in the file.
    pub(crate) stored: u64,
    run: Option<Run>,
    row: bool,
    /// More waits than one commit takes.
    pub(crate) more: bool,
}

/// What a reader needs.
struct View {
    first: usize,
    written: usize,
    shown: usize,
    stretches: Vec<Arc<Stretch>>,
}

/// How long a reader waits at most for a file that is being opened again after a fault.
const PATIENCE: Duration = Duration::from_secs(2);
const A_MOMENT: Duration = Duration::from_millis(2);

impl State {
    fn new(birth: Birth, durability: Durability, first: usize, written: usize, run: Option<Run>) -> Self {
        Self {
            birth,
            durability,
            first,
            written,
            shown: written,
            sealed: Vec::new(),
            fresh: Stretch::default(),
            waiting: Vec::new(),
            run,
            queued: false,
            row: false,
            forget: None,
            removed: false,
            doubt: false,
            file: 0,
        }
    }

    fn end(&self) -> usize {
        self.sealed
            .iter()
            .fold(self.written, |end, stretch| end.saturating_add(stretch.records.len()))
            .saturating_add(self.fresh.records.len())
    }

    fn seal(&mut self) {
        if !self.fresh.records.is_empty() {
            self.sealed.push(Arc::new(mem::take(&mut self.fresh)));
        }
    }

    /// If nothing is kept of the run that began last, what follows belongs to no run.
    fn drop_forgotten_run(&mut self) {
        if self.first >= self.written && self.run.as_ref().is_some_and(|run| wide(run.first) < self.first) {
            self.run = None;
        }
    }

    /// Drops what is not on the disk, and says how much memory that was.
    fn drop_unwritten(&mut self) -> usize {
        self.seal();
        self.sealed.drain(..).fold(0, |bytes: usize, stretch| bytes.saturating_add(stretch.bytes))
    }
}

impl DiskLog {
    pub(crate) fn new(key: LogKey, number: u64, birth: Birth, durability: Durability, shared: Arc<Shared>) -> Arc<Self> {
        let state = State { row: true, file: shared.file(), ..State::new(birth, durability, 0, 0, None) };
        let log = Arc::new(Self { key, number, shared, state: Mutex::new(state) });
        log.enqueue(&mut lock(&log.state));
        log
    }

    pub(crate) fn loaded(session: LoadedSession, shared: Arc<Shared>) -> Arc<Self> {
        let LoadedSession { number, row: SessionRow { key, birth, durability, first }, end, run } = session;
        let run = run.map(|(first, row)| Run { first, bytes_in_row: row.bytes, row });
        let state = State::new(birth, durability, wide(first), wide(end), run);
        Arc::new(Self { key, number, shared, state: Mutex::new(state) })
    }

    pub(crate) fn key(&self) -> &LogKey {
        &self.key
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn birth(&self) -> Birth {
        lock(&self.state).birth.clone()
    }

    /// What the run that begins with the record `first` came to, if it is the last one.
    pub(crate) fn last_run(&self) -> Option<(u64, RunId, u64)> {
        lock(&self.state).run.as_ref().map(|run| (run.first, run.row.run, run.row.bytes))
    }

    /// Takes the newer word about how long an append waits.
    pub(crate) fn declare(self: &Arc<Self>, durability: Durability) {
        let mut state = lock(&self.state);
        if durability != Durability::Memory && durability != state.durability && state.end() == state.written && state.waiting.is_empty() {
            state.durability = durability;
            state.row = true;
            self.enqueue(&mut state);
        }
    }

    pub(crate) fn remove(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let end = state.end();
        let dropped = state.drop_unwritten();
        self.shared.unwritten_fell(dropped);
        for (_, waiting) in state.waiting.drain(..) {
            let _ = waiting.try_send(Err(Unstored { why: Arc::from("the session was removed") }));
        }
        (state.removed, state.run, state.forget) = (true, None, None);
        (state.first, state.written, state.shown) = (end, end, end);
        self.enqueue(&mut state);
    }

    fn enqueue(self: &Arc<Self>, state: &mut State) {
        if !mem::replace(&mut state.queued, true) {
            self.shared.enqueue(self.clone());
        }
    }

    /// Takes what is to be written, up to about `budget` bytes of records; nothing if there is nothing.
    pub(crate) fn take(self: &Arc<Self>, budget: usize) -> Option<Taken> {
        let mut state = lock(&self.state);
        state.queued = false;
        let change = Change { session: self.number, ..Change::default() };
        let mut taken =
            Taken { log: self.clone(), change, stretches: 0, records: 0, bytes: 0, stored: 0, run: None, row: false, more: false };
        if state.removed {
            taken.change.remove = true;
            return Some(taken);
        }
        state.seal();
        let file = self.shared.file();
        let moved = mem::replace(&mut state.file, file) != file;
        state.row |= moved;
        state.doubt |= moved;
        let mut stretches = Vec::new();
        for stretch in &state.sealed {
            if taken.bytes > budget {
                break;
            }
            taken.bytes = taken.bytes.saturating_add(stretch.bytes);
            taken.records = taken.records.saturating_add(stretch.records.len());
            stretches.push(stretch.clone());
        }
        taken.stretches = stretches.len();
        taken.more = stretches.len() < state.sealed.len();
        taken.row = mem::take(&mut state.row);
        if taken.row {
            let (key, birth) = (self.key.clone(), state.birth.clone());
            let row = SessionRow { key, birth, durability: state.durability, first: narrow(state.first) };
            taken.change.row = Some(row.write());
        }
        // What came behind it since is not forgotten.
        let end = narrow(state.end());
        taken.change.forget = state.forget.map(|forget| Forget { ends: forget.ends && forget.before == end, ..forget });
        taken.change.cut = state.doubt.then_some(narrow(state.written));
        if taken.stretches == 0 && !taken.row && state.forget.is_none() && !state.doubt {
            return None;
        }
        let (written, run, doubt) = (narrow(state.written), state.run.clone(), state.doubt);
        drop(state);
        let Encoded { batches, runs, stored, run } = encode::encode(self.number, written, run, doubt, &stretches);
        (taken.change.batches, taken.change.runs, taken.stored, taken.run) = (batches, runs, stored, run);
        Some(taken)
    }

    /// What was taken is on the disk.
    pub(crate) fn written(self: &Arc<Self>, taken: Taken) {
        let mut state = lock(&self.state);
        if state.removed && !taken.change.remove {
            // It was removed meanwhile; that is in the queue.
            return;
        }
        state.doubt = false;
        if taken.change.remove {
            return;
        }
        state.sealed.drain(..taken.stretches);
        self.shared.unwritten_fell(taken.bytes);
        state.written = state.written.saturating_add(taken.records);
        state.shown = state.shown.max(state.written);
        if state.forget.map(|forget| forget.before) == taken.change.forget.map(|forget| forget.before) {
            state.forget = None;
        }
        state.run = taken.run;
        state.drop_forgotten_run();
        let written = state.written;
        state.waiting.retain(|(number, waiting)| {
            let done = *number < written;
            if done {
                let _ = waiting.try_send(Ok(()));
            }
            !done
        });
        if taken.more {
            self.enqueue(&mut state);
        }
    }

    /// What was taken is not on the disk, or nobody knows. Records that were to be stored or not to be are given up; the others stay, and
    /// the log with them in the writer's queue.
    pub(crate) fn failed(self: &Arc<Self>, taken: &Taken, why: &Arc<str>) {
        let mut state = lock(&self.state);
        state.doubt = true;
        state.row |= taken.row;
        self.give_up(&mut state, why);
        self.enqueue(&mut state);
    }

    /// While the disk fails: gives up what is to be stored at once.
    pub(crate) fn refuse(self: &Arc<Self>, why: &Arc<str>) {
        self.give_up(&mut lock(&self.state), why);
    }

    fn give_up(&self, state: &mut State, why: &Arc<str>) {
        if state.durability == Durability::Fsync {
            let dropped = state.drop_unwritten();
            self.shared.unwritten_fell(dropped);
            state.shown = state.written;
        }
        for (_, waiting) in state.waiting.drain(..) {
            let _ = waiting.try_send(Err(Unstored { why: why.clone() }));
        }
    }

    fn append_now(self: &Arc<Self>, state: &mut State, record: Record, mark: Mark) -> usize {
        let number = state.end();
        let bytes = codec::weight(&record.body);
        if mark != Mark::Plain {
            let place = state.fresh.records.len();
            state.fresh.marks.push((place, mark));
        }
        state.fresh.records.push(record);
        state.fresh.bytes = state.fresh.bytes.saturating_add(bytes);
        self.shared.unwritten_rose(bytes);
        self.enqueue(state);
        number
    }

    fn view(&self) -> View {
        let mut state = lock(&self.state);
        state.seal();
        View { first: state.first, written: state.written, shown: state.shown, stretches: state.sealed.clone() }
    }

    fn damaged(&self, number: usize, cause: Damage) -> Damaged {
        Damaged { key: Box::new(self.key.clone()), number, cause }
    }

    /// Reads `next..end` from the disk. Moves `next` on as it goes.
    fn read(&self, next: &mut usize, end: usize, visit: &mut dyn FnMut(&Record)) -> Result<(), Trouble> {
        let mut batches = self.shared.store().batches(self.number, narrow(*next), narrow(end))?;
        let mut value = Vec::new();
        while *next < end {
            let Some(first) = batches.next(&mut value)? else { return Err(Trouble::Damage(Damage::Missing)) };
            let mut number = wide(first);
            if number > *next {
                // Runs are forgotten from the front while others read: what is gone by now need not be there.
                let kept = lock(&self.state).first;
                if kept < number {
                    return Err(Trouble::Damage(Damage::Missing));
                }
                *next = number;
            }
            let mut batch = BatchReader::new(self.number, first, &value).map_err(Trouble::Damage)?;
            while let Some(record) = batch.next() {
                let record = record.map_err(Trouble::Damage)?;
                if number == *next && number < end {
                    *next = next.saturating_add(1);
                    visit(&record);
                }
                number = number.saturating_add(1);
            }
        }
        Ok(())
    }
}

/// Why reading stopped.
enum Trouble {
    Fault(Fault),
    Damage(Damage),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The trait's side, which needs the log's own pointer.
pub(crate) struct Handle(pub(crate) Arc<DiskLog>);

impl Log for Handle {
    fn append(&self, record: Record, mark: Mark) -> Result<(), Unstored> {
        let log = &self.0;
        let mut state = lock(&log.state);
        if state.durability != Durability::Fsync {
            if !state.removed {
                log.append_now(&mut state, record, mark);
                state.shown = state.end();
            }
            return Ok(());
        }
        if state.removed {
            return Err(Unstored { why: Arc::from("the session was removed") });
        }
        log.shared.check()?;
        let number = log.append_now(&mut state, record, mark);
        let (done, wait) = mpsc::sync_channel(1);
        state.waiting.push((number, done));
        drop(state);
        if !log.shared.hurry() {
            log.refuse(&closed());
        }
        wait.recv().unwrap_or_else(|_| Err(Unstored { why: closed() }))
    }

    fn len(&self) -> usize {
        lock(&self.0.state).shown
    }

    fn first(&self) -> usize {
        lock(&self.0.state).first
    }

    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record)) -> Result<(), Damaged> {
        let log = &self.0;
        let View { first, written, shown, stretches } = log.view();
        let mut next = from.max(first);
        let (mut waited, mut seen) = (Duration::ZERO, log.shared.store().reopened());
        while next < written {
            let fault = match log.read(&mut next, written, visit) {
                Ok(()) => break,
                // What was forgotten meanwhile up to the last of them leaves no batch to find.
                Err(Trouble::Damage(Damage::Missing)) if lock(&log.state).first > next => {
                    next = lock(&log.state).first.min(written);
                    continue;
                }
                Err(Trouble::Damage(cause)) => return Err(log.damaged(next, cause)),
                Err(Trouble::Fault(fault)) => fault,
            };
            // After a fault of the disk the writer opens the file again, and reading goes on where it was.
            let reopened = log.shared.store().reopened();
            if waited >= PATIENCE || matches!(fault, Fault::Corrupt(_)) {
                return Err(log.damaged(next, Damage::Unreadable(fault.text().to_owned())));
            }
            if reopened == seen {
                thread::sleep(A_MOMENT);
                waited = waited.saturating_add(A_MOMENT);
            } else {
                waited = waited.saturating_add(PATIENCE / 8);
            }
            seen = reopened;
        }
        let mut number = written;
        for record in stretches.iter().flat_map(|stretch| &stretch.records) {
            if number >= shown {
                break;
            }
            if number >= next {
                visit(record);
            }
            number = number.saturating_add(1);
        }
        Ok(())
    }

    fn forget_before(&self, number: usize) {
        let log = &self.0;
        let mut state = lock(&log.state);
        let end = state.end();
        let number = number.min(end);
        if state.removed || number <= state.first {
            return;
        }
        state.first = number;
        state.forget = Some(Forget { before: narrow(number), all: number == end, ends: number == end });
        state.row = true;
        state.drop_forgotten_run();
        log.enqueue(&mut state);
    }

    fn durability(&self) -> Durability {
        lock(&self.0.state).durability
    }
}

fn narrow(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn wide(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
