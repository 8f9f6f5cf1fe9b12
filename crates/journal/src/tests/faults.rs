//! What a disk can do to a journal, and what the journal makes of it.

use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::disks::{Fault, TestDisk};
use super::*;

fn config() -> JournalConfig {
    JournalConfig { flush_ms: 1, ..JournalConfig::default() }
}

fn on(disk: &TestDisk) -> Durable {
    Durable::on(Box::new(disk.clone()), &config()).unwrap()
}

fn failing(journal: &Durable) -> Option<u64> {
    match journal.health() {
        Health::Well => None,
        Health::Failing { unwritten_bytes, .. } => Some(unwritten_bytes),
    }
}

/// The times of the records that the journal has of a session.
fn stored_times(journal: &Durable, session: &str) -> Vec<Millis> {
    let stored = journal.stored().unwrap();
    stored.iter().find(|stored| stored.key == key(session)).map(|stored| times(&*stored.log, 0)).unwrap_or_default()
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power_at_any_moment_with_any_part_of_the_cache_written() {
    let plan = (proptest::collection::vec((0..3_usize, 0..4_u8), 1..40), any::<u64>());
    TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() })
        .run(&plan, |(steps, seed)| {
            let disk = TestDisk::default();
            let journal = on(&disk);
            let logs: Vec<_> = [Durability::Fsync, Durability::Buffered, Durability::Fsync]
                .into_iter()
                .enumerate()
                .map(|(n, durability)| journal.open(&key(&n.to_string()), &birth(), durability))
                .collect();
            let mut acknowledged = [0; 3];
            let mut appended = [0; 3];
            for (log, action) in steps {
                for _ in 0..(action + 1) * 10 {
                    logs[log].append(frame(appended[log]), Mark::Plain).unwrap();
                    appended[log] += 1;
                    if logs[log].durability() == Durability::Fsync {
                        acknowledged[log] = appended[log];
                        break;
                    }
                }
                if action == 3 {
                    journal.flush().unwrap();
                    acknowledged = appended;
                }
            }
            // The thread may be in the middle of a commit now. Of each write in the cache all, nothing or a part reaches the plate.
            let mut random = seed | 1;
            let lost = disk.after_power_loss(|length| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                match random % 3 {
                    0 => 0,
                    1 => length,
                    _ => usize::try_from(random >> 8).unwrap() % (length + 1),
                }
            });
            let again = on(&lost);
            prop_assert_eq!(again.opened().set_aside.clone(), None);
            for session in 0..3 {
                let seen = stored_times(&again, &session.to_string());
                let count = seen.len() as u64;
                prop_assert!((acknowledged[session]..=appended[session]).contains(&count), "{} of {:?}", count, acknowledged);
                prop_assert!(seen.into_iter().eq(0..count));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn while_the_disk_fails_buffered_records_wait_in_memory_and_are_written_in_order_when_it_works() {
    for fault in [Fault::Writes, Fault::Syncs] {
        let disk = TestDisk::default();
        let journal = on(&disk);
        let log = journal.open(&key("s"), &birth(), Durability::Buffered);
        (0..10).for_each(|at| log.append(frame(at), Mark::Plain).unwrap());
        journal.flush().unwrap();
        assert_eq!(failing(&journal), None);
        disk.set(fault);
        (10..20).for_each(|at| log.append(frame(at), Mark::Plain).unwrap());
        assert!(matches!(journal.flush(), Err(JournalError::Unwritten { .. })));
        (20..30).for_each(|at| log.append(frame(at), Mark::Plain).unwrap());
        let error = journal.flush().unwrap_err().to_string();
        assert!(error.starts_with("the journal test.journal cannot be written: the disk"), "{error}");
        let waiting = failing(&journal).unwrap();
        assert!(waiting > 20 * 10, "{waiting}");
        // What is on the disk can still be read, and what waits, too.
        assert_eq!(times(&*log, 0), (0..30).collect::<Vec<_>>());
        disk.set(Fault::None);
        journal.flush().unwrap();
        assert_eq!(failing(&journal), None);
        log.append(frame(30), Mark::Plain).unwrap();
        journal.flush().unwrap();
        assert_eq!(times(&*log, 0), (0..31).collect::<Vec<_>>());
        drop(journal);
        assert_eq!(stored_times(&on(&disk.after_power_loss(|_| 0)), "s"), (0..31).collect::<Vec<_>>());
    }
}

/// What `work` gives, for which the disk must not be waited for. It hangs no longer when that is found out, so that the test ends.
fn meanwhile<T: Send>(disk: &TestDisk, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, result) = mpsc::channel();
        scope.spawn(move || done.send(work()));
        result.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| {
            disk.set(Fault::None);
            panic!("it waits for the disk");
        })
    })
}

#[test]
fn while_the_disk_hangs_buffered_logs_are_appended_to_and_read_and_only_who_is_promised_the_disk_waits() {
    for fault in [Fault::HangingWrites, Fault::HangingSyncs] {
        let disk = TestDisk::default();
        let journal = on(&disk);
        let (buffered, fsync) =
            (journal.open(&key("b"), &birth(), Durability::Buffered), journal.open(&key("f"), &birth(), Durability::Fsync));
        (0..10).for_each(|at| buffered.append(frame(at), Mark::Plain).unwrap());
        journal.flush().unwrap();
        fsync.append(frame(0), Mark::Plain).unwrap();
        disk.set(fault);
        meanwhile(&disk, || {
            buffered.append(frame(10), Mark::Plain).unwrap();
            // The writer is in the disk now, with a commit that is not over.
            while disk.plate().hanging == 0 {
                std::thread::yield_now();
            }
            (11..500).for_each(|at| buffered.append(frame(at), Mark::Plain).unwrap());
            // From the disk, from what is being written, and from what waits.
            assert_eq!(times(&*buffered, 0), (0..500).collect::<Vec<_>>());
            assert_eq!((buffered.first(), buffered.len()), (0, 500));
            let new = journal.open(&key("n"), &birth(), Durability::Buffered);
            new.append(frame(7), Mark::Plain).unwrap();
            assert_eq!(times(&*new, 0), [7]);
            assert_eq!((times(&*fsync, 0), fsync.len()), (vec![0], 1));
            assert_eq!(journal.health(), Health::Well);
        });
        let before = journal.unwritten_bytes();
        std::thread::scope(|scope| {
            let (done, stored) = mpsc::channel();
            let appending = fsync.clone();
            scope.spawn(move || done.send(appending.append(frame(1), Mark::Plain)));
            meanwhile(&disk, || {
                while journal.unwritten_bytes() == before {
                    std::thread::yield_now();
                }
                // It is in the log's hands, and neither shown nor answered, whatever goes on beside it.
                (500..1_000).for_each(|at| buffered.append(frame(at), Mark::Plain).unwrap());
                assert_eq!(times(&*buffered, 0), (0..1_000).collect::<Vec<_>>());
                assert_eq!((times(&*fsync, 0), fsync.len()), (vec![0], 1));
            });
            assert_eq!(stored.try_recv(), Err(mpsc::TryRecvError::Empty));
            assert!(disk.plate().hanging > 0, "it still hangs");
            disk.set(Fault::None);
            assert_eq!(stored.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
        });
        assert_eq!(times(&*fsync, 0), [0, 1]);
        journal.flush().unwrap();
        let again = on(&disk.after_power_loss(|_| 0));
        assert_eq!((stored_times(&again, "f"), stored_times(&again, "n")), (vec![0, 1], vec![7]));
        assert_eq!(stored_times(&again, "b"), (0..1_000).collect::<Vec<_>>());
    }
}

#[test]
fn a_disk_that_works_again_is_noticed_without_being_asked() {
    let disk = TestDisk::default();
    let journal = on(&disk);
    let log = journal.open(&key("s"), &birth(), Durability::Buffered);
    disk.set(Fault::Writes);
    log.append(frame(0), Mark::Plain).unwrap();
    journal.flush().unwrap_err();
    disk.set(Fault::None);
    while failing(&journal).is_some() {
        std::thread::yield_now();
    }
    assert_eq!(stored_times(&on(&disk.after_kill()), "s"), [0]);
}

#[test]
fn a_record_that_could_not_be_stored_is_never_seen_and_does_not_come_back() {
    for fault in [Fault::Writes, Fault::Syncs] {
        let disk = TestDisk::default();
        let journal = on(&disk);
        let log = journal.open(&key("s"), &birth(), Durability::Fsync);
        log.append(frame(0), begins(1)).unwrap();
        disk.set(fault);
        let error = log.append(frame(666), Mark::Ends).unwrap_err();
        assert!(error.why.starts_with("the disk"), "{error}");
        // At once, now that it is known.
        log.append(frame(667), begins(2)).unwrap_err();
        assert_eq!((log.len(), times(&*log, 0)), (1, vec![0]));
        assert!(failing(&journal).is_some());
        disk.set(Fault::None);
        journal.flush().unwrap();
        assert_eq!((log.len(), times(&*log, 0)), (1, vec![0]));
        // Whatever the failed sync left is gone with the first commit that works.
        let again = on(&disk.after_kill());
        assert_eq!(stored_times(&again, "s"), [0]);
        let stored = again.stored().unwrap();
        assert_eq!((stored[0].runs.len(), stored[0].runs[0].ended_at), (1, None));
        log.append(frame(1), Mark::Plain).unwrap();
        assert_eq!((log.len(), times(&*log, 0)), (2, vec![0, 1]));
        assert_eq!(stored_times(&on(&disk.after_kill()), "s"), [0, 1]);
    }
}

#[test]
fn a_full_disk_is_survived() {
    let disk = TestDisk::default();
    let journal = on(&disk);
    let (buffered, fsync) = (journal.open(&key("b"), &birth(), Durability::Buffered), journal.open(&key("f"), &birth(), Durability::Fsync));
    disk.plate().capacity = Some(2 * 1024 * 1024);
    let large = |at| Record { at, body: Body::Frame(Text::from("x".repeat(20_000))) };
    let mut at = 0;
    while fsync.append(large(at), Mark::Plain).is_ok() {
        buffered.append(large(at), Mark::Plain).unwrap();
        at += 1;
    }
    assert!(at > 10, "{at}");
    buffered.append(large(at), Mark::Plain).unwrap();
    assert!(matches!(journal.health(), Health::Failing { why, .. } if why.contains("space") || why.contains("fails")));
    assert_eq!(times(&*fsync, 0), (0..at).collect::<Vec<_>>());
    assert_eq!(times(&*buffered, 0), (0..=at).collect::<Vec<_>>());
    disk.plate().capacity = None;
    journal.flush().unwrap();
    fsync.append(large(at), Mark::Plain).unwrap();
    let again = on(&disk.after_power_loss(|_| 0));
    assert_eq!(stored_times(&again, "f"), (0..=at).collect::<Vec<_>>());
    assert_eq!(stored_times(&again, "b"), (0..=at).collect::<Vec<_>>());
}

/// A journal with some sessions, closed.
fn filled() -> (TestDisk, Vec<Vec<Millis>>) {
    let disk = TestDisk::default();
    let journal = on(&disk);
    let mut all = Vec::new();
    for session in 0..5_u64 {
        let log = journal.open(&key(&session.to_string()), &birth(), Durability::Buffered);
        for at in 0..200 {
            log.append(frame(session * 1000 + at), if at == 0 { begins(session.into()) } else { Mark::Plain }).unwrap();
            if at % 20 == 0 {
                journal.flush().unwrap();
            }
        }
        all.push((session * 1000..session * 1000 + 200).collect());
    }
    drop(journal);
    (disk, all)
}

/// Opens what is left, and checks that no record is anything but what was written. Says whether all of them are there.
fn opens_and_does_not_lie(disk: &TestDisk, all: &[Vec<Millis>]) -> bool {
    let journal = on(disk);
    let Ok(stored) = journal.stored() else { return false };
    let mut whole = stored.len() == all.len();
    for stored in stored {
        let written = &all[stored.key.session.as_str().parse::<usize>().unwrap()];
        let mut seen = Vec::new();
        let result = stored.log.replay(0, &mut |record| {
            assert_eq!(record, &frame(record.at));
            seen.push(record.at);
        });
        assert_eq!(seen, written[..seen.len()]);
        match result {
            Ok(()) => whole &= seen.len() == written.len(),
            Err(damaged) => {
                assert_eq!((damaged.number, &*damaged.key), (seen.len(), &stored.key));
                whole = false;
            }
        }
    }
    // Whatever was found, it goes on.
    let log = journal.open(&key("new"), &birth(), Durability::Fsync);
    while log.append(frame(1), Mark::Plain).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(times(&*log, 0), [1]);
    whole
}

#[test]
fn bytes_that_changed_in_the_file_are_noticed_and_survived() {
    let (disk, all) = filled();
    assert!(opens_and_does_not_lie(&disk.after_kill(), &all));
    let bytes = disk.bytes();
    let mut harmed = 0;
    let plan = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 1..200_usize), 1..3);
    TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() })
        .run(&plan, |changes| {
            let mut bytes = bytes.clone();
            for (at, byte, length) in changes {
                let at = at.index(bytes.len());
                bytes.iter_mut().skip(at).take(length).for_each(|place| *place = place.wrapping_add(byte));
            }
            // The first bytes say whether it is ours; what is done with somebody else's file is another test.
            bytes[..9].copy_from_slice(b"redb\x1A\x0A\xA9\x0D\x0A");
            opens_and_does_not_lie(&TestDisk::holding(bytes), &all);
            Ok(())
        })
        .unwrap();
    for at in (512..bytes.len()).step_by(4096 / 2) {
        let mut bytes = bytes.clone();
        bytes[at..at + 100].iter_mut().for_each(|byte| *byte ^= 0x55);
        harmed += usize::from(!opens_and_does_not_lie(&TestDisk::holding(bytes), &all));
    }
    assert!(harmed > 3, "{harmed}");
}

#[test]
fn a_file_that_is_found_damaged_while_it_is_written_is_set_aside_and_sessions_go_on_in_a_new_one() {
    let (disk, _) = filled();
    {
        let journal = on(&disk);
        let log = journal.open(&key("large"), &birth(), Durability::Buffered);
        (0..500).for_each(|at| log.append(Record { at, body: Body::Frame(Text::from("x".repeat(1000))) }, Mark::Plain).unwrap());
    }
    let journal = on(&disk);
    disk.scribble();
    // To drop a session, its pages have to be read.
    journal.remove(&key("large"));
    while disk.plate().aside.is_empty() {
        let _ = journal.flush();
    }
    let log = journal.open(&key("3"), &birth(), Durability::Fsync);
    while log.append(frame(3200), begins(9)).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(disk.plate().aside.len(), 1);
    assert_eq!(times(&*log, 200), [3200]);
    assert_eq!(log.replay(0, &mut |_| {}).unwrap_err().number, 0);
    assert_eq!(journal.health(), Health::Well);
    let again = on(&disk.after_kill());
    let stored = again.stored().unwrap();
    assert_eq!((stored.len(), &stored[0].key, stored[0].runs.last().map(|last| last.run)), (1, &key("3"), Some(run(9))));
    assert_eq!((stored[0].log.len(), times(&*stored[0].log, 200)), (201, vec![3200]));
}

#[test]
fn a_file_that_was_cut_off_is_set_aside_or_read_as_far_as_it_goes() {
    let (disk, all) = filled();
    let bytes = disk.bytes();
    for length in [1, 8, 9, 100, 512, 4095, 4096, 5000, 8192, bytes.len() / 2, bytes.len() - 4096, bytes.len() - 1] {
        let cut = TestDisk::holding(bytes[..length].to_vec());
        assert!(!opens_and_does_not_lie(&cut, &all) || length > bytes.len() / 2, "{length}");
        if length < 4096 {
            assert_eq!(cut.plate().aside, [bytes[..length].to_vec()], "{length}");
        }
    }
    let zeros = TestDisk::holding(vec![0; 10_000]);
    assert!(on(&zeros).opened().set_aside.is_some());
    assert!(on(&TestDisk::holding(Vec::new())).opened().set_aside.is_none(), "an empty file is a new one");
}

#[test]
fn a_file_of_somebody_else_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let start = || {
        let config = JournalConfig { path: path.to_str().unwrap().to_owned(), ..config() };
        Durable::start(&config).map(drop).map_err(|error| error.to_string())
    };
    let table: redb::TableDefinition<'_, u64, u64> = redb::TableDefinition::new("theirs");
    std::fs::write(&path, "#!/bin/sh\necho somebody needs this\n").unwrap();
    let error = start().unwrap_err();
    assert!(error.contains("is not a journal of this program") && error.contains("journal.path"), "{error}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("somebody needs this"));

    std::fs::remove_file(&path).unwrap();
    {
        let database = redb::Database::create(&path).unwrap();
        let writing = database.begin_write().unwrap();
        writing.open_table(table).unwrap().insert(1, 2).unwrap();
        writing.commit().unwrap();
    }
    let error = start().unwrap_err();
    assert!(error.contains("a database with a table theirs"), "{error}");

    std::fs::remove_file(&path).unwrap();
    start().unwrap();
    {
        let database = redb::Database::create(&path).unwrap();
        let writing = database.begin_write().unwrap();
        let about: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("interline");
        writing.open_table(about).unwrap().insert("format", 2).unwrap();
        writing.commit().unwrap();
    }
    let error = start().unwrap_err();
    assert!(error.contains("has the format 2") && error.contains("newer version"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was set aside");
}

#[test]
fn a_file_that_is_in_use_or_cannot_be_made_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let start = |path: &Path| Durable::start(&JournalConfig { path: path.to_str().unwrap().to_owned(), ..config() });
    let journal = start(&path).unwrap();
    let error = start(&path).map(drop).unwrap_err();
    assert!(matches!(&error, JournalError::InUse { path: named } if *named == path), "{error}");
    assert!(error.to_string().ends_with("stop that one, or give this one a file of its own (journal.path)"), "{error}");
    drop(journal);
    start(&path).unwrap();
    for path in [directory.path().join("no/such/journal"), directory.path().to_owned()] {
        let error = start(&path).map(drop).unwrap_err();
        assert!(matches!(&error, JournalError::Unopened { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    let disk = TestDisk::default();
    disk.set(Fault::Opening);
    let error = Durable::on(Box::new(disk), &config()).map(drop).unwrap_err().to_string();
    assert!(error.contains("permission denied") && error.contains("allowed to write"), "{error}");
}

#[cfg(unix)]
#[test]
fn the_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    drop(durable(&path));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_closed_journal_leaves_its_file_and_refuses_what_was_to_be_stored() {
    let disk = TestDisk::default();
    let journal = on(&disk);
    let (buffered, fsync) = (journal.open(&key("b"), &birth(), Durability::Buffered), journal.open(&key("f"), &birth(), Durability::Fsync));
    buffered.append(frame(0), Mark::Plain).unwrap();
    fsync.append(frame(0), Mark::Plain).unwrap();
    drop(journal);
    buffered.append(frame(1), Mark::Plain).unwrap();
    assert_eq!(fsync.append(frame(1), Mark::Plain).unwrap_err().to_string(), "the record could not be stored: the journal is closed");
    assert!(fsync.replay(0, &mut |_| {}).is_err());
    let again = on(&disk);
    assert_eq!((stored_times(&again, "b"), stored_times(&again, "f")), (vec![0], vec![0]));
}

#[test]
fn memory_that_fills_up_because_the_disk_is_slow_counts_as_failing() {
    let disk = TestDisk::default();
    let config = JournalConfig { flush_ms: 60_000, max_unwritten_bytes: 10_000, ..config() };
    let journal = Durable::on(Box::new(disk), &config).unwrap();
    let log = journal.open(&key("s"), &birth(), Durability::Buffered);
    while failing(&journal).is_none() {
        log.append(frame(1), Mark::Plain).unwrap();
        assert!(log.len() < 1000);
    }
    assert!(matches!(journal.health(), Health::Failing { why, .. } if why.contains("journal.max_unwritten_bytes = 10000")));
    journal.flush().unwrap();
    assert_eq!(journal.health(), Health::Well);
}
