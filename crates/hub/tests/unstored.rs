//! A disk that takes nothing, in a cell that promises `fsync`: nothing is shown that is not there, no run begins, and each that went on ends once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod scripted;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use interline_hub::{
    Access, AskConfig, Conduct, Durability, Hub, InTurn, OnBusy, RunConfig, RunStatus, Session, StartError, StartRun, Started,
};
use interline_journal::{
    Birth, Damage, Damaged, Health, Journal, JournalConfig, JournalError, Log, LogKey, Mark, Memory, Stored, Unstored,
};
use interline_model::{Body, Fact, Record};
use scripted::{Lines, hub_on, lines, request};

/// Memory, as a disk that fails on demand.
#[derive(Clone, Default)]
struct Disk {
    memory: Arc<Memory>,
    fails: Arc<AtomicBool>,
    /// The next time that somebody reads, it cannot be read.
    is_damaged: Arc<AtomicBool>,
    /// What is on it, of all sessions.
    records: Arc<Mutex<Vec<Record>>>,
}

struct DiskLog {
    disk: Disk,
    durability: Durability,
    log: Arc<dyn Log>,
}

impl Journal for Disk {
    fn open(&self, key: &LogKey, birth: &Birth, durability: Durability) -> Arc<dyn Log> {
        Arc::new(DiskLog { disk: self.clone(), durability, log: self.memory.open(key, birth, durability) })
    }

    fn remove(&self, key: &LogKey) {
        self.memory.remove(key);
    }

    fn stored(&self) -> Result<Vec<Stored>, JournalError> {
        self.memory.stored()
    }

    /// The hub must do without being told in time.
    fn health(&self) -> Health {
        Health::Well
    }

    fn stored_bytes(&self) -> u64 {
        0
    }

    fn flush(&self) -> Result<(), JournalError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(JournalError::Unwritten { path: "here".into(), why: "no space left on device".into() });
        }
        Ok(())
    }
}

impl Log for DiskLog {
    fn append(&self, record: Record, mark: Mark) -> Result<(), Unstored> {
        if self.durability() == Durability::Fsync && self.disk.fails.load(Ordering::SeqCst) {
            return Err(Unstored { why: "no space left on device".into() });
        }
        self.disk.records.lock().unwrap().push(record.clone());
        self.log.append(record, mark)
    }

    fn len(&self) -> usize {
        self.log.len()
    }

    fn first(&self) -> usize {
        self.log.first()
    }

    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record)) -> Result<(), Damaged> {
        if self.disk.is_damaged.swap(false, Ordering::SeqCst) {
            let key = Box::new(LogKey::session("p".into(), "s".into()));
            return Err(Damaged { key, number: self.log.first(), cause: Damage::Missing });
        }
        self.log.replay(from, visit)
    }

    fn forget_before(&self, number: usize) {
        self.log.forget_before(number);
    }

    fn durability(&self) -> Durability {
        self.durability
    }
}

fn queueing(disk: &Disk) -> (Arc<Hub>, Access) {
    let conduct = Conduct { on_busy: OnBusy::Queue, ..Conduct::default() };
    let (keeping, run, ask) = (JournalConfig::default(), RunConfig::default(), AskConfig::default());
    hub_on(Arc::new(disk.clone()), keeping, Durability::Buffered, run, ask, conduct)
}

fn in_turn(hub: &Arc<Hub>, access: &Access, session: &Session, prompt: &str) -> Arc<InTurn> {
    let next = StartRun { session: Some(session.id().clone()), is_acknowledged: true, ..request(prompt) };
    match hub.start_in_turn(access, next).unwrap() {
        Started::InTurn(waiting) => waiting,
        Started::Begun(..) => panic!("it does not wait"),
    }
}

/// What was kept of it while it waited is still on the disk: told before that it has begun is there, too, it would be told again by the next
/// process.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waited_is_not_told_before_it_is_stored_that_it_has_begun() {
    let disk = Disk::default();
    let conduct = Conduct { on_busy: OnBusy::Queue, ..Conduct::default() };
    let (hub, access) =
        hub_on(Arc::new(disk.clone()), JournalConfig::default(), Durability::Buffered, RunConfig::default(), AskConfig::default(), conduct);
    let (session, first) = hub.start(&access, request("silent")).unwrap();
    let next = StartRun { session: Some(session.id().clone()), is_acknowledged: true, ..request("word end") };
    let Started::InTurn(waiting) = hub.start_in_turn(&access, next).unwrap() else { panic!("it waits") };
    disk.fails.store(true, Ordering::SeqCst);
    session.stop(Some(first), scripted::me(&access));
    let (_, run) = waiting.begun().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let said = session.projection("", || Lines);
    assert_eq!(said.run_len(run).unwrap().0, 1, "it has begun, and nobody was told");
    disk.fails.store(false, Ordering::SeqCst);
    assert_eq!(lines(&session, run).await, ["start", "word", "over"]);
}

/// One that is stopped before its beginning is stored was never told, and is not told afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waited_and_is_stopped_before_its_beginning_is_stored_is_told_to_nobody() {
    let disk = Disk::default();
    let (hub, access) = queueing(&disk);
    let (session, first) = hub.start(&access, request("silent")).unwrap();
    let waiting = in_turn(&hub, &access, &session, "word obey");
    disk.fails.store(true, Ordering::SeqCst);
    session.stop(Some(first), scripted::me(&access));
    let (_, run) = waiting.begun().await.unwrap();
    session.stop(Some(run), scripted::me(&access));
    assert_eq!(lines(&session, run).await, ["start", "stop", "over"]);
    disk.fails.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(lines(&session, run).await, ["start", "stop", "over"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shown_that_is_not_stored_and_every_run_ends_once() {
    let disk = Disk::default();
    let run = RunConfig { max_active: 100, ..RunConfig::default() };
    let (hub, access) =
        hub_on(Arc::new(disk.clone()), JournalConfig::default(), Durability::Fsync, run, AskConfig::default(), Conduct::default());
    // Fails in the middle of a run: what it said until then is there, and its end is said.
    let (session, run) = hub.start(&access, request("obey")).unwrap();
    let early = session.projection("", || Lines);
    let cut = disk.records.lock().unwrap().len();
    disk.fails.store(true, Ordering::SeqCst);
    let by = scripted::me(&access);
    session.stop(Some(run), by);
    let shown = lines(&session, run).await;
    assert_eq!((shown.first().unwrap().as_str(), shown.last().unwrap().as_str()), ("start", "over"));
    assert_eq!(shown.iter().filter(|line| *line == "over").count(), 1);
    assert_eq!(disk.records.lock().unwrap().len(), cut, "nothing was stored meanwhile");
    assert_ne!(session.run_info(run).unwrap().status, RunStatus::Running);
    // No other one begins, and the refused one leaves no trace.
    let next = || StartRun { session: Some(session.id().clone()), ..request("x end") };
    assert_eq!(hub.start(&access, next()).err(), Some(StartError::Unstored));
    assert_eq!(session.runs().len(), 1);
    assert_eq!(session.active_run(), None);
    // It works again: the missing end comes first, then the next run.
    disk.fails.store(false, Ordering::SeqCst);
    let (_, second) = hub.start(&access, next()).unwrap();
    assert_eq!(lines(&session, second).await, ["start", "x", "over"]);
    let late = session.projection("late", || Lines);
    let all = late.tail(0).ready(1000);
    assert_eq!(all, early.tail(0).ready(1000), "whoever comes later sees the same");
    assert_eq!(all[..shown.len()], shown[..]);
    let ends = disk.records.lock().unwrap().iter().filter(|record| matches!(record.body, Body::Fact(Fact::EndForced(_)))).count();
    assert!(ends <= 1, "{ends}");
    hub.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_while_the_disk_took_nothing_is_stored_at_the_end_at_least() {
    let disk = Disk::default();
    let run = RunConfig::default();
    let (hub, access) =
        hub_on(Arc::new(disk.clone()), JournalConfig::default(), Durability::Fsync, run, AskConfig::default(), Conduct::default());
    let (session, run) = hub.start(&access, request("obey")).unwrap();
    let shown = session.projection("", || Lines);
    disk.fails.store(true, Ordering::SeqCst);
    session.stop(Some(run), scripted::me(&access));
    assert_eq!(lines(&session, run).await.last().unwrap(), "over");
    let before = disk.records.lock().unwrap().len();
    disk.fails.store(false, Ordering::SeqCst);
    // No other run brings it along.
    hub.shutdown(Duration::ZERO).await;
    let stored = disk.records.lock().unwrap().len();
    assert!(stored > before, "{stored} records");
    let late = session.projection("late", || Lines);
    assert_eq!(late.tail(0).ready(1000), shown.tail(0).ready(1000), "what was shown is what is kept");
}

/// Its records are damaged while it goes on: it is forgotten, and keeps nobody waiting, nor the place of another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_records_are_damaged_while_it_goes_on_holds_up_nothing() {
    let disk = Disk::default();
    let (hub, access) = queueing(&disk);
    for _ in 0..5 {
        let (session, _) = hub.start(&access, request("obey")).unwrap();
        let waiting = in_turn(&hub, &access, &session, "word end");
        disk.is_damaged.store(true, Ordering::SeqCst);
        // Whoever comes now has it read.
        let _ = session.projection("late", || Lines);
        let (_, run) = tokio::time::timeout(Duration::from_secs(10), waiting.begun()).await.unwrap().unwrap();
        assert_eq!(lines(&session, run).await, ["start", "word", "over"]);
    }
}
