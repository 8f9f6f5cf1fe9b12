//! kill -9, a hundred times: a process that appends over many sessions is killed at any moment, and the next one on the same file has
//! everything that it acknowledged, in order, once.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use interline_journal::{Birth, Durability, Durable, Journal, JournalConfig, Log, LogKey, Mark};
use interline_model::{Body, CellName, Principal, Record, RunId, SessionId, Text};

const KILLS: usize = 100;
const SESSIONS: usize = 12;
/// The variable that makes a process of this test the one that is killed.
const CHILD: &str = "JOURNAL_TEST_FILE";
const FLUSH_MS: u64 = 10;
/// What a record may be older than the flush interval and not on the disk yet: a commit takes its time on a busy machine.
const COMMIT_MS: u64 = 5_000;

fn start(path: &Path) -> Durable {
    Durable::start(&JournalConfig { path: path.to_str().unwrap().to_owned(), flush_ms: FLUSH_MS, ..JournalConfig::default() }).unwrap()
}

fn durability(session: usize) -> Durability {
    if session.is_multiple_of(2) { Durability::Buffered } else { Durability::Fsync }
}

fn open(journal: &Durable, session: usize) -> Arc<dyn Log> {
    let birth = Birth { cell: CellName::from("c"), created_at: 0, title: None, model: None, labels: serde_json::Map::new() };
    journal.open(&LogKey::session(Principal::from("p"), SessionId::from(session.to_string())), &birth, durability(session))
}

/// Records are numbered by their time; their length says more about torn ones than a constant would.
fn record(session: usize, number: usize) -> Record {
    let text = format!("{session} {number} {}", "x".repeat(number * 37 % 900));
    Record { at: number as u64, body: Body::Frame(Text::from(text)) }
}

/// A run is seven records long.
fn mark(number: usize) -> Mark {
    match number % 7 {
        0 => Mark::Begins { run: RunId::from_u128(number as u128), tag: None },
        6 => Mark::Ends,
        _ => Mark::Plain,
    }
}

fn main() {
    match std::env::var_os(CHILD) {
        Some(path) => append_until_killed(Path::new(&path)),
        // Who asks for the tests' names does not want them run.
        None if std::env::args().any(|argument| argument == "--list") => {}
        None => nothing_that_was_acknowledged_is_lost(),
    }
}

/// The process that is killed: says on its output what it may be held to, as `session number` for everything before that number.
fn append_until_killed(path: &Path) {
    let journal = start(path);
    let say = |session: usize, number: usize| {
        let _ = std::io::stdout().lock().write_all(format!("{session} {number}\n").as_bytes());
    };
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            let log = open(&journal, session);
            let (journal, say) = (&journal, &say);
            scope.spawn(move || {
                for number in log.len().. {
                    log.append(record(session, number), mark(number)).unwrap();
                    match durability(session) {
                        Durability::Fsync => say(session, number + 1),
                        // Some of them flush, the others rely on the interval.
                        _ if number % 64 == 0 && session % 4 == 0 => {
                            journal.flush().unwrap();
                            say(session, number + 1);
                        }
                        _ => std::thread::sleep(Duration::from_micros(300)),
                    }
                    if number % 50 == 49 && log.first() + 140 < number {
                        log.forget_before((number / 7 - 10) * 7);
                    }
                }
            });
        }
    });
}

fn nothing_that_was_acknowledged_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut acknowledged: HashMap<usize, usize> = HashMap::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut repaired = 0;
    for kill in 0..KILLS {
        let mut child =
            Command::new(std::env::current_exe().unwrap()).env(CHILD, &path).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Counted in acknowledgements and not in time: the slower the machine, the longer it may take.
        for line in lines.by_ref().take(1 + (random >> 33) as usize % 25) {
            note(&mut acknowledged, &line);
        }
        std::thread::sleep(Duration::from_micros((random >> 20) % 8_000));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(|line| note(&mut acknowledged, &line));
        let journal = start(&path);
        repaired += usize::from(journal.opened().repaired);
        assert_eq!((&journal.opened().set_aside, journal.opened().unreadable_rows), (&None, 0));
        check(&journal, &acknowledged, kill);
        if kill == KILLS / 2 {
            what_is_older_than_the_interval_is_on_the_disk(&journal);
        }
    }
    assert!(repaired > KILLS / 2, "a kill leaves work: {repaired}");
    let most = acknowledged.values().max().unwrap();
    println!("{KILLS} kills, {repaired} repairs, {} sessions, up to {most} records acknowledged in one", acknowledged.len());
}

fn note(acknowledged: &mut HashMap<usize, usize>, line: &str) {
    let (session, number) = line.split_once(' ').unwrap();
    let entry = acknowledged.entry(session.parse().unwrap()).or_default();
    *entry = (*entry).max(number.parse().unwrap());
}

fn check(journal: &Durable, acknowledged: &HashMap<usize, usize>, kill: usize) {
    let mut runs_seen = 0;
    for stored in journal.stored().unwrap() {
        let session: usize = stored.key.session.as_str().parse().unwrap();
        let mut next = stored.log.first();
        stored
            .log
            .replay(0, &mut |found| {
                assert_eq!(found, &record(session, next), "session {session} after kill {kill}");
                next += 1;
            })
            .unwrap();
        assert_eq!(next, stored.log.len());
        let least = acknowledged.get(&session).copied().unwrap_or(0);
        assert!(next >= least, "session {session} has {next} of {least} records after kill {kill}");
        for run in &stored.runs {
            assert_eq!((run.first % 7, run.run), (0, RunId::from_u128(run.first as u128)));
            assert_eq!(run.ended_at, (run.first + 6 < next).then_some(run.first as u64 + 6));
            runs_seen += 1;
        }
        let kept = stored.log.first()..stored.log.len();
        assert_eq!(stored.runs.len(), kept.clone().filter(|number| number % 7 == 0).count(), "{kept:?}");
    }
    let all: u64 = journal.stored().unwrap().iter().flat_map(|stored| &stored.runs).map(|run| run.bytes).sum();
    assert_eq!(journal.stored_bytes(), all);
    assert!(runs_seen > 0 || kill == 0);
}

/// Without anybody asking for it.
fn what_is_older_than_the_interval_is_on_the_disk(journal: &Durable) {
    let log = open(journal, 0);
    let number = log.len();
    log.append(record(0, number), mark(number)).unwrap();
    for _ in 0..COMMIT_MS {
        if journal.unwritten_bytes() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("a buffered record is not on the disk after {COMMIT_MS} ms");
}
