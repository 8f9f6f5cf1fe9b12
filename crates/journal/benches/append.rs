//! What the journal costs: an append where it is called, an event on the writer's thread, bytes on the disk, commits, replay and start.
//!
//! Times of threads are CPU time, from the system's own account of them, so that other work on the machine does not count into them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot go on should say where")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use interline_journal::{Birth, Durability, Durable, Journal, JournalConfig, Log, LogKey, Mark, Memory};
use interline_model::{Body, CellName, Principal, Record, RunId, SessionId, Text};

const SESSIONS: usize = 50;

fn main() {
    let directory = tempfile::tempdir_in(std::env::var_os("JOURNAL_BENCH_DIR").unwrap_or_else(|| ".".into())).unwrap();
    let place = directory.path();
    println!("append, caller's CPU, {} events of 150 B over {SESSIONS} sessions as fast as possible", 1_000_000);
    flat_out("memory only", &Memory::default(), Durability::Memory, None);
    let path = place.join("flat-out");
    flat_out("buffered", &journal(&path, 50), Durability::Buffered, Some(&path));

    println!("\nwriter's CPU at a steady rate, flush_ms = 50");
    for rate in [500, 5_000, 50_000] {
        paced(&place.join(format!("paced-{rate}")), rate);
    }

    println!("\nfsync, commits and appends a second");
    for threads in [1, 8, 64] {
        fsync(&place.join(format!("fsync-{threads}")), threads);
    }

    println!("\nreplay and start");
    replay(&place.join("flat-out"));
}

fn journal(path: &Path, flush_ms: u64) -> Durable {
    Durable::start(&JournalConfig { path: path.to_str().unwrap().to_owned(), flush_ms, ..JournalConfig::default() }).unwrap()
}

fn open(journal: &dyn Journal, number: usize, durability: Durability) -> Arc<dyn Log> {
    let birth = Birth { cell: CellName::from("cell"), created_at: 0, title: None, model: None, labels: serde_json::Map::new() };
    journal.open(&LogKey::session(Principal::from("p"), SessionId::from(format!("session-{number}"))), &birth, durability)
}

/// A frame as it comes off a socket: a text of its own.
fn frame(number: usize) -> Record {
    let text = format!(
        r#"{{"type":"streamlined_text","text":"Hello world, and hello again.","uuid":"0f8fad5b-d9cb-469f-a165-{number:012}","session_id":"sess-0001","n":1}}"#
    );
    Record { at: 1_764_500_000_000 + number as u64 / 100, body: Body::Frame(Text::from(text)) }
}

fn mark(number: usize) -> Mark {
    if number.is_multiple_of(1000) { Mark::Begins { run: RunId::from_u128(number as u128), tag: None } } else { Mark::Plain }
}

/// Nanoseconds that a thread of this process ran; of the calling one without a name.
fn cpu(name: Option<&str>) -> u64 {
    let stat = |path: &Path| -> u64 {
        std::fs::read_to_string(path.join("schedstat")).map_or(0, |text| text.split(' ').next().unwrap().parse().unwrap())
    };
    let Some(name) = name else { return stat(Path::new("/proc/thread-self")) };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)).map(|task| stat(&task)).sum()
}

fn flat_out(name: &str, journal: &dyn Journal, durability: Durability, path: Option<&Path>) {
    const EVENTS: usize = 1_000_000;
    const AT_A_TIME: usize = 10_000;
    let logs: Vec<_> = (0..SESSIONS).map(|number| open(journal, number, durability)).collect();
    let (mut own, before) = (0, cpu(Some("journal")));
    let began = now();
    for start in (0..EVENTS).step_by(AT_A_TIME) {
        let records: Vec<_> = (start..start + AT_A_TIME).map(frame).collect();
        let begin = cpu(None);
        for (number, record) in records.into_iter().enumerate() {
            logs[number % SESSIONS].append(record, mark((start + number) / SESSIONS)).unwrap();
        }
        own += cpu(None) - begin;
    }
    journal.flush().unwrap();
    let wall = began.elapsed();
    let writer = cpu(Some("journal")) - before;
    let per = |ns: u64| ns / EVENTS as u64;
    print!("{name}: {} ns an append, writer {} ns an event, {:.0} events/s", per(own), per(writer), EVENTS as f64 / wall.as_secs_f64());
    match path {
        Some(path) => {
            let bytes = std::fs::metadata(path).unwrap().len();
            println!(", {} B/event in the file, {} B/event accounted", bytes / EVENTS as u64, journal.stored_bytes() / EVENTS as u64);
        }
        None => println!(),
    }
}

fn paced(path: &Path, rate: usize) {
    let journal = journal(path, 50);
    let logs: Vec<_> = (0..SESSIONS).map(|number| open(&journal, number, Durability::Buffered)).collect();
    let events = rate * 4;
    let before = cpu(Some("journal"));
    let began = now();
    let mut own = 0;
    let mut number = 0;
    while number < events {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as usize;
        let records: Vec<_> = (number..due.min(events)).map(frame).collect();
        let begin = cpu(None);
        for record in records {
            logs[number % SESSIONS].append(record, mark(number / SESSIONS)).unwrap();
            number += 1;
        }
        own += cpu(None) - begin;
        std::thread::sleep(Duration::from_millis(1));
    }
    journal.flush().unwrap();
    let writer = cpu(Some("journal")) - before;
    let seconds = began.elapsed().as_secs_f64();
    let events = events as u64;
    println!(
        "{rate} events/s: {} ns an append, writer {} ns an event and {:.2} % of a core, {} B/event in the file, {} B/event accounted",
        own / events,
        writer / events,
        writer as f64 / 1e7 / seconds,
        std::fs::metadata(path).unwrap().len() / events,
        journal.stored_bytes() / events
    );
}

fn fsync(path: &Path, threads: usize) {
    let journal = journal(path, 50);
    let began = now();
    let appended: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let log = open(&journal, number, Durability::Fsync);
                scope.spawn(move || {
                    let mut count = 0;
                    while began.elapsed() < Duration::from_secs(2) {
                        log.append(frame(count), mark(count)).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{threads} at a time: {:.0} appends/s, {:.2} ms each",
        appended as f64 / seconds,
        seconds * 1e3 * threads as f64 / appended as f64
    );
}

fn replay(path: &Path) {
    let began = now();
    let journal = journal(path, 50);
    let stored = journal.stored().unwrap();
    println!("start with {} sessions and {} runs: {:?}", stored.len(), stored.iter().map(|s| s.runs.len()).sum::<usize>(), began.elapsed());
    let (began, before) = (now(), cpu(None));
    let (mut records, mut bytes) = (0_u64, 0);
    for stored in stored {
        stored
            .log
            .replay(0, &mut |record| {
                records += 1;
                if let Body::Frame(text) = &record.body {
                    bytes += text.len();
                }
            })
            .unwrap();
    }
    let cpu = cpu(None) - before;
    println!("replay: {records} records, {} B each, in {:?}: {} ns a record", bytes as u64 / records, began.elapsed(), cpu / records);
}

#[expect(clippy::disallowed_methods, reason = "a measurement has a clock")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
