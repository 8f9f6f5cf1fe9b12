//! What every journal does, and what a durable one does beyond that.

use std::path::Path;

use interline_model::{Body, CellName, Fact, Text};

use super::*;

fn key(session: &str) -> LogKey {
    LogKey::session(Principal::from("p"), SessionId::from(session.to_owned()))
}

fn birth() -> Birth {
    let labels = serde_json::from_str(r#"{"team":"a","n":1}"#).unwrap();
    Birth { cell: CellName::from("c"), created_at: 7, title: Some(Text::from("t")), model: None, labels }
}

fn frame(at: Millis) -> Record {
    Record { at, body: Body::Frame(Text::from(format!("frame {at}"))) }
}

fn run(number: u128) -> RunId {
    RunId::from_u128(number)
}

fn times(log: &dyn Log, from: usize) -> Vec<Millis> {
    let mut seen = Vec::new();
    log.replay(from, &mut |record| seen.push(record.at)).unwrap();
    seen
}

fn begins(number: u128) -> Mark {
    Mark::Begins { run: run(number), tag: Some(Text::from(format!("tag {number}"))) }
}

fn durable(path: &Path) -> Durable {
    Durable::start(&JournalConfig { path: path.to_str().unwrap().to_owned(), flush_ms: 5, ..JournalConfig::default() }).unwrap()
}

const ALL: [Durability; 3] = [Durability::Memory, Durability::Buffered, Durability::Fsync];

/// Runs a test on a journal in memory and on a durable one, with each durability.
fn everywhere(test: impl Fn(&dyn Journal, Durability)) {
    test(&Memory::default(), Durability::Memory);
    let directory = tempfile::tempdir().unwrap();
    for (number, durability) in ALL.into_iter().enumerate() {
        test(&durable(&directory.path().join(number.to_string())), durability);
    }
}

#[test]
fn what_was_appended_is_replayed_in_order_to_whoever_opens_the_log() {
    everywhere(|journal, durability| {
        for at in 0..3 {
            journal.open(&key("s"), &birth(), durability).append(frame(at), Mark::Plain).unwrap();
        }
        let log = journal.open(&key("s"), &birth(), durability);
        assert_eq!(log.durability(), durability);
        assert_eq!(times(&*log, 1), [1, 2]);
        journal.flush().unwrap();
        assert_eq!(times(&*log, 1), [1, 2]);
        assert_eq!((log.first(), log.len(), log.is_empty()), (0, 3, false));
        journal.remove(&key("s"));
        assert!(journal.open(&key("s"), &birth(), durability).is_empty());
    });
}

#[test]
fn a_reader_that_begins_anywhere_sees_each_record_once_while_others_are_appended_and_written() {
    everywhere(|journal, durability| {
        let log = journal.open(&key("s"), &birth(), durability);
        let most: Millis = if durability == Durability::Fsync { 60 } else { 3000 };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..most).for_each(|at| log.append(frame(at), Mark::Plain).unwrap()));
            for from in [0, 7, 50] {
                scope.spawn({
                    let log = log.clone();
                    move || {
                        loop {
                            let before = log.len();
                            let seen = times(&*log, from);
                            assert!(seen.len() >= before.saturating_sub(from), "{} of {before} from {from}", seen.len());
                            assert!(
                                seen.iter().zip(from..).all(|(at, number)| *at == number as Millis),
                                "not the records from {from} on: {seen:?}"
                            );
                            if seen.last() == Some(&(most - 1)) {
                                break;
                            }
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn whole_runs_are_forgotten_from_the_front() {
    everywhere(|journal, durability| {
        let log = journal.open(&key("s"), &birth(), durability);
        for number in 0..3 {
            log.append(frame(number * 10), begins(number.into())).unwrap();
            log.append(frame(number * 10 + 1), Mark::Ends).unwrap();
            if number == 1 {
                journal.flush().unwrap();
            }
        }
        let before = journal.stored_bytes();
        log.forget_before(2);
        assert_eq!((log.first(), log.len()), (2, 6));
        assert_eq!(times(&*log, 0), [10, 11, 20, 21]);
        journal.flush().unwrap();
        assert_eq!(times(&*log, 0), [10, 11, 20, 21]);
        log.forget_before(6);
        assert!(log.is_empty());
        log.append(frame(30), begins(3)).unwrap();
        journal.flush().unwrap();
        assert_eq!((log.first(), log.len(), times(&*log, 0)), (6, 7, vec![30]));
        if durability != Durability::Memory {
            assert!(before > 0 && journal.stored_bytes() < before && journal.stored_bytes() > 0);
        }
    });
}

#[test]
fn a_run_that_waits_has_a_log_of_its_own_beside_its_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let waiting = |number| LogKey { waiting: Some(run(number)), ..key("s") };
    {
        let journal = durable(&path);
        journal.open(&key("s"), &birth(), Durability::Buffered).append(frame(1), begins(1)).unwrap();
        for number in 2..5 {
            journal.open(&waiting(number), &birth(), Durability::Fsync).append(frame(2), begins(number)).unwrap();
        }
        journal.remove(&waiting(3));
    }
    let journal = durable(&path);
    let mut found: Vec<_> = journal.stored().unwrap().iter().map(|stored| (stored.key.clone(), stored.runs[0].run)).collect();
    found.sort_by_key(|(key, _)| key.waiting);
    assert_eq!(found, [(key("s"), run(1)), (waiting(2), run(2)), (waiting(4), run(4))]);
}

#[test]
fn sessions_come_back_after_a_restart_with_their_runs_and_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let title = |title| Record { at: 99, body: Body::Fact(Fact::Titled { title: Text::from_static(title) }) };
    {
        let journal = durable(&path);
        let log = journal.open(&key("old"), &birth(), Durability::Buffered);
        for at in 0..1000 {
            let mark = match at {
                0 => begins(1),
                500 => begins(2),
                499 | 998 => Mark::Ends,
                _ => Mark::Plain,
            };
            log.append(frame(at), mark).unwrap();
        }
        log.forget_before(500);
        log.append(title("behind the end"), Mark::Plain).unwrap();
        log.append(frame(1001), begins(3)).unwrap();
        journal.open(&key("empty"), &birth(), Durability::Fsync);
        journal.open(&key("gone"), &birth(), Durability::Fsync).append(frame(1), begins(9)).unwrap();
        journal.remove(&key("gone"));
        journal.open(&key("never"), &birth(), Durability::Memory).append(frame(1), begins(8)).unwrap();
    }
    let journal = durable(&path);
    assert_eq!(journal.opened().sessions, 2);
    let mut stored = journal.stored().unwrap();
    stored.sort_by_key(|stored| stored.key.session.clone());
    let [empty, old] = stored.as_slice() else { panic!("{} sessions", stored.len()) };
    assert_eq!((&empty.key, &empty.birth, empty.durability, empty.log.len()), (&key("empty"), &birth(), Durability::Fsync, 0));
    assert_eq!((&old.key, &old.birth, old.durability), (&key("old"), &birth(), Durability::Buffered));
    assert_eq!((old.log.first(), old.log.len()), (500, 1002));
    let runs: Vec<_> = old.runs.iter().map(|stored| (stored.run, stored.first, stored.began_at, stored.ended_at)).collect();
    assert_eq!(runs, [(run(2), 500, 500, Some(998)), (run(3), 1001, 1001, None)]);
    assert_eq!(old.runs[0].tag, Some(Text::from("tag 2")));
    assert_eq!(journal.stored_bytes(), old.runs.iter().map(|run| run.bytes).sum::<u64>());
    let mut records = Vec::new();
    old.log.replay(0, &mut |record| records.push(record.clone())).unwrap();
    let wanted: Vec<_> = (500..1000).map(frame).chain([title("behind the end"), frame(1001)]).collect();
    assert_eq!(records, wanted);
    old.log.append(frame(2000), Mark::Ends).unwrap();
    journal.flush().unwrap();
    assert_eq!(times(&*old.log, 1001), [1001, 2000]);
    assert_eq!(journal.open(&key("old"), &birth(), Durability::Fsync).durability(), Durability::Fsync);
}

#[test]
fn a_log_stays_where_it_is_whatever_is_asked_for_later() {
    let directory = tempfile::tempdir().unwrap();
    let journal = durable(&directory.path().join("journal"));
    journal.open(&key("m"), &birth(), Durability::Memory);
    assert_eq!(journal.open(&key("m"), &birth(), Durability::Fsync).durability(), Durability::Memory);
    journal.open(&key("d"), &birth(), Durability::Buffered);
    assert_eq!(journal.open(&key("d"), &birth(), Durability::Memory).durability(), Durability::Buffered);
}

#[test]
fn nothing_that_is_on_the_disk_is_kept_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let journal = durable(&directory.path().join("journal"));
    let log = journal.open(&key("s"), &birth(), Durability::Buffered);
    let text = Text::from("x".repeat(1000));
    let record = Record { at: 0, body: Body::Frame(text.clone()) };
    log.append(record, begins(1)).unwrap();
    assert!(!bytes_are_ours_alone(&text));
    journal.flush().unwrap();
    assert!(bytes_are_ours_alone(&text));
}

/// Whether nobody else shares the text.
fn bytes_are_ours_alone(text: &Text) -> bool {
    text.as_bytes().is_unique()
}

mod disks;
mod faults;
