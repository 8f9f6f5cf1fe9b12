//! The one thread that writes: it collects what all logs have and commits it at once.
//!
//! Buffered records wait up to the flush interval for others; a record that somebody waits for goes at once, with all that is there. While
//! the disk fails, buffered records stay where they are and are tried again after a pause, in order.

use std::mem;
use std::time::{Duration, Instant};

use interline_model::Millis;

use crate::log::{DiskLog, Taken};
use crate::store::{Fault, Round, Store};
use crate::sync::{self, Arc, AtomicBool, AtomicU64, Condvar, Mutex, Ordering, lock};
use crate::{Health, JournalError, Unstored};

/// What one commit carries about at most; more follows at once.
const COMMIT_BYTES: usize = 64 * 1024 * 1024;

/// Pauses between tries while the disk fails.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What the disk has to take before the file is written again, besides the records that wait.
const PROBE_BYTES: u64 = 1024 * 1024;

/// What logs and the writer share.
pub(crate) struct Shared {
    store: Box<dyn Store>,
    flush: Duration,
    max_unwritten: u64,
    /// Memory taken by what waits for the disk.
    unwritten: AtomicU64,
    /// What the kept records take in the file.
    stored: AtomicU64,
    failing: AtomicBool,
    /// How many files were begun anew while it was open.
    files: AtomicU64,
    desk: Mutex<Desk>,
    /// The writer waits here.
    work: Condvar,
    /// Those who flush wait here.
    done: Condvar,
}

#[derive(Default)]
struct Desk {
    queue: Vec<Arc<DiskLog>>,
    /// Somebody waits for what is in the queue.
    hurry: bool,
    /// Flushes that were asked for, those that are over, and how the last one ended.
    asked: u64,
    over: u64,
    result: Option<Arc<str>>,
    stop: bool,
    /// The writer is gone.
    closed: bool,
    failing: Option<Failing>,
    /// When memory began to be too full, if it is.
    full_since: Option<Millis>,
}

/// The fault that the disk has.
#[derive(Clone)]
struct Failing {
    why: Arc<str>,
    since: Millis,
}

/// What the writer is to do now.
struct Turn {
    queue: Vec<Arc<DiskLog>>,
    asked: u64,
    stop: bool,
    /// It is time to try the disk.
    now: bool,
}

impl Shared {
    pub(crate) fn new(store: Box<dyn Store>, flush_ms: u64, max_unwritten: usize, stored: u64) -> Arc<Self> {
        Arc::new(Self {
            store,
            flush: Duration::from_millis(flush_ms),
            max_unwritten: u64::try_from(max_unwritten).unwrap_or(u64::MAX),
            unwritten: AtomicU64::new(0),
            stored: AtomicU64::new(stored),
            failing: AtomicBool::new(false),
            files: AtomicU64::new(0),
            desk: Mutex::new(Desk::default()),
            work: Condvar::new(),
            done: Condvar::new(),
        })
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// The file that is written now, by its number. Another one knows nothing of what was written before.
    pub(crate) fn file(&self) -> u64 {
        self.files.load(Ordering::Acquire)
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    pub(crate) fn enqueue(&self, log: Arc<DiskLog>) {
        let mut desk = lock(&self.desk);
        let first = desk.queue.is_empty();
        desk.queue.push(log);
        drop(desk);
        if first {
            self.work.notify_one();
        }
    }

    /// What is in the queue goes at once. Says whether there is somebody who takes it.
    pub(crate) fn hurry(&self) -> bool {
        let mut desk = lock(&self.desk);
        if desk.closed {
            return false;
        }
        let news = !mem::replace(&mut desk.hurry, true);
        drop(desk);
        if news {
            self.work.notify_one();
        }
        true
    }

    pub(crate) fn unwritten_rose(&self, bytes: usize) {
        self.unwritten.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn unwritten_fell(&self, bytes: usize) {
        self.unwritten.fetch_sub(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether a record can be stored at once, as far as is known.
    pub(crate) fn check(&self) -> Result<(), Unstored> {
        if !self.failing.load(Ordering::Acquire) {
            return Ok(());
        }
        match &lock(&self.desk).failing {
            Some(failing) => Err(Unstored { why: failing.why.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn health(&self) -> Health {
        let unwritten_bytes = self.unwritten.load(Ordering::Relaxed);
        let mut desk = lock(&self.desk);
        if let Some(Failing { why, since }) = &desk.failing {
            return Health::Failing { why: why.to_string(), since: *since, unwritten_bytes };
        }
        if unwritten_bytes <= self.max_unwritten {
            desk.full_since = None;
            return Health::Well;
        }
        let since = *desk.full_since.get_or_insert_with(sync::unix_ms);
        let max = self.max_unwritten;
        Health::Failing {
            why: format!("{unwritten_bytes} bytes wait for the disk, which is too slow (journal.max_unwritten_bytes = {max})"),
            since,
            unwritten_bytes,
        }
    }

    pub(crate) fn flush(&self) -> Result<(), JournalError> {
        let mut desk = lock(&self.desk);
        desk.asked = desk.asked.wrapping_add(1);
        let mine = desk.asked;
        self.work.notify_one();
        while desk.over < mine && !desk.closed {
            desk = sync::wait(&self.done, desk);
        }
        let why = if desk.over < mine { Some(closed()) } else { desk.result.clone() };
        drop(desk);
        why.map_or(Ok(()), |why| Err(JournalError::Unwritten { path: self.store.path().to_owned(), why }))
    }

    pub(crate) fn stop(&self) {
        lock(&self.desk).stop = true;
        self.work.notify_one();
    }

    /// The writer goes: what is still in the queue nobody takes.
    fn close(&self) {
        let mut desk = lock(&self.desk);
        desk.closed = true;
        let queue = mem::take(&mut desk.queue);
        drop(desk);
        self.done.notify_all();
        queue.iter().for_each(|log| log.refuse(&closed()));
        self.store.close();
    }

    /// Waits for something to do. With `pause`, until it is time to try the disk again.
    fn turn(&self, retry_at: Option<Instant>) -> Turn {
        let mut desk = lock(&self.desk);
        let mut due = retry_at;
        loop {
            let must = desk.stop || desk.asked != desk.over;
            let now = sync::now();
            if retry_at.is_none() && due.is_none() && !desk.queue.is_empty() {
                due = sync::after(self.flush);
                continue;
            }
            let time = due.is_some_and(|due| due <= now);
            if must || time || (desk.hurry && !desk.queue.is_empty()) {
                desk.hurry = false;
                let queue = mem::take(&mut desk.queue);
                return Turn { queue, asked: desk.asked, stop: desk.stop, now: must || time || retry_at.is_none() };
            }
            desk = match due {
                Some(due) => sync::wait_for(&self.work, desk, due.saturating_duration_since(now)),
                None => sync::wait(&self.work, desk),
            };
        }
    }

    fn over(&self, asked: u64, result: Option<Arc<str>>) {
        let mut desk = lock(&self.desk);
        desk.over = asked;
        desk.result = result;
        drop(desk);
        self.done.notify_all();
    }

    fn begin_failing(&self, why: &Arc<str>) {
        let mut desk = lock(&self.desk);
        let since = desk.failing.as_ref().map_or_else(sync::unix_ms, |failing| failing.since);
        let news = desk.failing.is_none();
        desk.failing = Some(Failing { why: why.clone(), since });
        drop(desk);
        self.failing.store(true, Ordering::Release);
        if news {
            tracing::error!(
                "the journal {} cannot be written: {why}; what is not to be stored at once waits in memory",
                self.store.path().display()
            );
        }
    }

    fn end_failing(&self) {
        if !self.failing.load(Ordering::Acquire) {
            return;
        }
        let failing = lock(&self.desk).failing.take();
        self.failing.store(false, Ordering::Release);
        if let Some(Failing { since, .. }) = failing {
            let seconds = sync::unix_ms().saturating_sub(since) / 1000;
            tracing::warn!("the journal {} is written again, after {seconds} s; all that waited is stored", self.store.path().display());
        }
    }
}

/// What is said of a journal that was closed.
pub(crate) fn closed() -> Arc<str> {
    Arc::from("the journal is closed")
}

/// The thread's work, until it is told to stop.
pub(crate) fn run(shared: &Shared) {
    let mut trying = Trying::default();
    loop {
        let turn = shared.turn(trying.at);
        if !turn.now {
            // The disk fails and its pause is not over: only what is not to wait is answered.
            if let Some(why) = &trying.why {
                turn.queue.iter().for_each(|log| log.refuse(why));
            }
            trying.carried.extend(turn.queue);
            continue;
        }
        let mut queue = mem::take(&mut trying.carried);
        queue.extend(turn.queue);
        let result = write_all(shared, queue, &mut trying);
        let (failed, asked) = (result.is_err(), turn.asked);
        shared.over(asked, result.err());
        if turn.stop {
            if failed {
                let bytes = shared.unwritten.load(Ordering::Relaxed);
                tracing::error!("the journal {} is closed with {bytes} bytes that the disk did not take", shared.store.path().display());
            }
            shared.close();
            return;
        }
    }
}

/// What the writer knows of a disk that fails.
#[derive(Default)]
struct Trying {
    /// When to try again, and what was wrong the last time.
    at: Option<Instant>,
    why: Option<Arc<str>>,
    pause: Duration,
    /// The file has to be opened again first, and whether its content is in doubt.
    reopen: Option<bool>,
    /// The logs that wait for that.
    carried: Vec<Arc<DiskLog>>,
}

/// Writes what the logs have, in several commits if it is much.
fn write_all(shared: &Shared, mut queue: Vec<Arc<DiskLog>>, trying: &mut Trying) -> Result<(), Arc<str>> {
    loop {
        if let Err(why) = ready(shared, trying) {
            return Err(postpone(shared, queue, why, trying));
        }
        let mut round = Vec::new();
        let mut bytes = 0_usize;
        let mut later = Vec::new();
        for log in queue {
            if bytes > COMMIT_BYTES {
                later.push(log);
            } else if let Some(taken) = log.take(COMMIT_BYTES) {
                bytes = bytes.saturating_add(taken.bytes);
                round.push(taken);
            }
        }
        let more = round.iter().any(|taken| taken.more);
        if let Err(fault) = commit(shared, round) {
            trying.reopen = Some(matches!(fault, Fault::Corrupt(_)));
            // Those who read need the file, whether it can be written or not.
            let _ = reopen(shared, trying);
            return Err(postpone(shared, later, Arc::from(fault.text()), trying));
        }
        trying.at = None;
        trying.pause = FIRST_PAUSE;
        trying.why = None;
        queue = later;
        if more {
            queue.append(&mut lock(&shared.desk).queue);
        }
        if queue.is_empty() {
            shared.end_failing();
            return Ok(());
        }
    }
}

/// Commits one round and tells the logs.
fn commit(shared: &Shared, mut round: Vec<Taken>) -> Result<(), Fault> {
    if round.is_empty() && !shared.failing.load(Ordering::Acquire) {
        return Ok(());
    }
    let changes = round.iter_mut().map(|taken| mem::take(&mut taken.change)).collect();
    let changes = Round { changes };
    let result = shared.store.commit(&changes);
    for (taken, change) in round.iter_mut().zip(changes.changes) {
        taken.change = change;
    }
    match result {
        Ok(freed) => {
            let added = round.iter().fold(0_u64, |sum, taken| sum.saturating_add(taken.stored));
            shared.stored.fetch_add(added, Ordering::Relaxed);
            let _ = shared.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |stored| Some(stored.saturating_sub(freed)));
            for taken in round {
                taken.log.clone().written(taken);
            }
            Ok(())
        }
        Err(fault) => {
            let why = Arc::from(fault.text());
            // First, so that nothing new is taken that would have to be given up.
            shared.begin_failing(&why);
            for taken in &round {
                taken.log.failed(taken, &why);
            }
            Err(fault)
        }
    }
}

/// Makes sure that there is a file to write to, after a fault.
fn ready(shared: &Shared, trying: &mut Trying) -> Result<(), Arc<str>> {
    if !shared.failing.load(Ordering::Acquire) {
        return Ok(());
    }
    let waiting = shared.unwritten.load(Ordering::Relaxed).min(u64::try_from(COMMIT_BYTES).unwrap_or(u64::MAX));
    shared.store.probe(PROBE_BYTES.saturating_add(waiting.saturating_mul(2))).map_err(|error| Arc::from(error.to_string()))?;
    reopen(shared, trying)
}

fn reopen(shared: &Shared, trying: &mut Trying) -> Result<(), Arc<str>> {
    let Some(verify) = trying.reopen else { return Ok(()) };
    if shared.store.reopen(verify).map_err(|error| Arc::from(error.to_string()))? {
        shared.files.fetch_add(1, Ordering::Release);
        shared.stored.store(0, Ordering::Relaxed);
    }
    trying.reopen = None;
    Ok(())
}

/// Nothing can be written now.
fn postpone(shared: &Shared, queue: Vec<Arc<DiskLog>>, why: Arc<str>, trying: &mut Trying) -> Arc<str> {
    shared.begin_failing(&why);
    queue.iter().for_each(|log| log.refuse(&why));
    trying.carried.extend(queue);
    trying.at = sync::after(trying.pause);
    trying.pause = trying.pause.saturating_mul(2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    trying.why = Some(why.clone());
    why
}
