//! The log's race, in many of the orders that threads can run in: records are appended while the writer moves earlier ones from memory to
//! the disk, the disk fails now and then, runs are forgotten, and readers look at any moment.
//!
//!     cargo test --package interline-journal --features shuttle races

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use interline_model::{Body, CellName, Principal, Record, RunId, SessionId, Text};
use shuttle::rand::{Rng, thread_rng};

use crate::log::{DiskLog, Handle};
use crate::store::{Batches, Fault, Round, Store};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, thread};
use crate::writer::{Shared, run};
use crate::{Birth, Durability, JournalError, Log, LogKey, Mark, codec};

/// Batches by session and first record.
type Kept = BTreeMap<(u64, u64), Vec<u8>>;

/// A store in memory: a commit shows all at once, or fails, having shown all or nothing.
#[derive(Default)]
struct ShortStore {
    batches: Arc<Mutex<Kept>>,
    /// How many commits may fail yet.
    faults: AtomicU64,
}

impl Store for ShortStore {
    fn path(&self) -> &Path {
        Path::new("short")
    }

    fn commit(&self, round: &Round) -> Result<u64, Fault> {
        let fails = self.faults.load(Ordering::SeqCst) > 0 && thread_rng().gen_bool(0.5);
        if fails {
            self.faults.fetch_sub(1, Ordering::SeqCst);
            if thread_rng().gen_bool(0.5) {
                return Err(Fault::Disk("before".to_owned()));
            }
        }
        let mut batches = lock(&self.batches);
        for change in &round.changes {
            let session = change.session;
            if let Some(cut) = change.cut {
                batches.retain(|(of, first), _| *of != session || *first < cut);
            }
            for (first, value) in &change.batches {
                batches.insert((session, *first), value.clone());
            }
            if let Some(forget) = change.forget {
                batches.retain(|(of, first), value| {
                    *of != session || (!forget.all && first + codec::count_of(value) as u64 > forget.before) || *first >= forget.before
                });
            }
        }
        if fails { Err(Fault::Disk("behind".to_owned())) } else { Ok(0) }
    }

    fn batches(&self, session: u64, from: u64, to: u64) -> Result<Box<dyn Batches>, Fault> {
        let batches = lock(&self.batches);
        let begin = batches.range((session, 0)..=(session, from)).next_back().map_or(from, |((_, first), _)| *first);
        let values: Vec<_> = batches.range((session, begin)..(session, to)).map(|((_, first), value)| (*first, value.clone())).collect();
        Ok(Box::new(Values(values.into_iter())))
    }

    fn runs(&self, _: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
        Ok(Vec::new())
    }

    fn reopen(&self, _: bool) -> Result<bool, JournalError> {
        Ok(false)
    }

    fn close(&self) {}

    fn reopened(&self) -> u64 {
        0
    }

    fn probe(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

struct Values(std::vec::IntoIter<(u64, Vec<u8>)>);

impl Batches for Values {
    fn next(&mut self, value: &mut Vec<u8>) -> Result<Option<u64>, Fault> {
        Ok(self.0.next().map(|(first, next)| {
            *value = next;
            first
        }))
    }
}

fn log(shared: &Arc<Shared>, number: u64, durability: Durability) -> Handle {
    let birth = Birth { cell: CellName::from("c"), created_at: 0, title: None, model: None, labels: serde_json::Map::new() };
    let key = LogKey::session(Principal::from("p"), SessionId::from(number.to_string()));
    Handle(DiskLog::new(key, number, birth, durability, shared.clone()))
}

fn record(at: usize) -> Record {
    Record { at: at as u64, body: Body::Frame(Text::from_static("x")) }
}

/// Records by their times, without a gap, the first of them not before `from` and all of them that were there before.
fn check(log: &dyn Log, from: usize) -> Vec<usize> {
    let before = log.len();
    let mut seen = Vec::new();
    log.replay(from, &mut |record| seen.push(record.at as usize)).unwrap();
    assert!(seen.windows(2).all(|two| two[1] == two[0] + 1), "{seen:?}");
    assert!(seen.first().is_none_or(|first| *first >= from), "{seen:?} from {from}");
    let forgotten = log.first();
    assert!(seen.first().is_none_or(|first| *first <= from.max(forgotten)), "{seen:?} from {from}, kept from {forgotten}");
    let last = seen.last().map_or(from.max(forgotten), |last| last + 1);
    assert!(seen.is_empty() && before <= from.max(forgotten) || last >= before, "{seen:?} ends before {before}");
    seen
}

fn race(faults: u64, durability: Durability) {
    const RECORDS: usize = 9;
    let store = ShortStore { faults: AtomicU64::new(faults), ..ShortStore::default() };
    let kept = store.batches.clone();
    let shared = Shared::new(Box::new(store), 0, usize::MAX, 0);
    let writer = thread::spawn({
        let shared = shared.clone();
        move || run(&shared)
    });
    let log = Arc::new(log(&shared, 1, durability));
    let appending = thread::spawn({
        let log = log.clone();
        move || {
            let mut appended = 0;
            let mut tries = 0;
            while appended < RECORDS {
                tries += 1;
                assert!(tries < 1000);
                let mark = match appended % 3 {
                    0 => Mark::Begins { run: RunId::from_u128(appended as u128), tag: None },
                    2 => Mark::Ends,
                    _ => Mark::Plain,
                };
                let stored = log.append(record(appended), mark).is_ok();
                assert!(stored || durability == Durability::Fsync);
                if stored {
                    appended += 1;
                } else {
                    // The next one gets its number.
                    thread::yield_now();
                }
                assert_eq!(log.len(), appended);
                if stored && appended == 7 {
                    log.forget_before(3);
                }
            }
        }
    });
    let reading = thread::spawn({
        let log = log.clone();
        move || {
            for from in [0, 2, 4] {
                check(&*log, from);
            }
        }
    });
    reading.join().unwrap();
    appending.join().unwrap();
    while shared.flush().is_err() {
        thread::yield_now();
    }
    assert_eq!(check(&*log, 0), (3..RECORDS).collect::<Vec<_>>());
    shared.stop();
    writer.join().unwrap();
    // And the disk has the same.
    let mut stored = Vec::new();
    for ((_, first), value) in lock(&kept).iter() {
        let mut batch = codec::BatchReader::new(1, *first, value).unwrap();
        while let Some(record) = batch.next() {
            stored.push(record.unwrap().at as usize);
        }
    }
    assert_eq!(stored, (3..RECORDS).collect::<Vec<_>>());
}

/// How many orders each test tries.
fn iterations() -> usize {
    std::env::var("JOURNAL_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

#[test]
fn readers_miss_nothing_and_see_nothing_twice_while_records_move_to_the_disk() {
    shuttle::check_random(|| race(0, Durability::Buffered), iterations());
    shuttle::check_pct(|| race(0, Durability::Buffered), iterations(), 3);
}

#[test]
fn nor_while_commits_fail() {
    shuttle::check_random(|| race(2, Durability::Buffered), iterations());
    shuttle::check_pct(|| race(2, Durability::Buffered), iterations(), 3);
}

#[test]
fn a_record_that_was_not_stored_is_never_read() {
    shuttle::check_random(|| race(2, Durability::Fsync), iterations());
    shuttle::check_pct(|| race(2, Durability::Fsync), iterations(), 3);
}
