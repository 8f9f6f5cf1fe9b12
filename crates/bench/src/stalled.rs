//! `stalled`: clients that never read, while half a gigabyte is produced over many runs. The program's memory may not grow with them, and those
//! who do read may not notice. Measured against clients that come in the same way and leave at once, since what a surface holds of a run it holds with
//! and without a client; and against the same clients that read, which shows what these cost.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use interline_sim::Voice;
use interline_testkit::Program;
use interline_testkit::chaos::percentile;
use interline_testkit::faults::FaultProxy;
use interline_testkit::watch::{Run, Shown, read_sse, start_native};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Common;
use crate::stand::{Memory, megabytes, now, simulator};

/// Runs in the long form, and so many clients that do not read: one on each.
const RUNS: u64 = 100;

/// Pieces of each run, and their bytes: five megabytes.
const PIECES: u64 = 640;
const SIZE: u64 = 8_192;

/// Runs that are produced at a time.
const AT_ONCE: usize = 4;

/// Clients that read, each a run of its own, slow enough that every piece is sent alone.
const READERS: u64 = 12;
const GAP: Duration = Duration::from_millis(10);

/// What may wait for a client that does not read: the keys `socketio.max_outbox_bytes` and `native.max_write_buffer`, here at their default.
const BOUND: u64 = 65_536;

/// How often those that are compared are measured.
const TIMES: usize = 3;

const IDLE: Duration = Duration::from_secs(60);

const TOKEN: &str = "stalled-secret";

#[derive(Args, Clone, Debug)]
pub(crate) struct Wishes {
    #[command(flatten)]
    common: Common,
    /// All clients that do not read are on this surface.
    #[arg(long, value_parser = SURFACES)]
    surface: Option<String>,
}

/// The surfaces of those clients, which take turns.
const SURFACES: [&str; 3] = ["sse", "native", "socketio"];

/// Who is on each run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Reads,
    Leaves,
    NeverReads,
}

/// What one pass has shown.
struct Pass {
    base: u64,
    peak: u64,
    /// When everything was produced and nothing is read any more: what stays, and not what comes and goes with a turn of megabytes.
    settled: Vec<u64>,
    gaps: Vec<Duration>,
    took: Duration,
}

impl Pass {
    /// The median of what stays.
    fn stays(&self) -> u64 {
        let mut settled = self.settled.clone();
        settled.sort_unstable();
        settled.get(settled.len() / 2).copied().unwrap_or_default()
    }

    /// Another one of the same kind.
    fn add(&mut self, other: Self) {
        self.base = self.base.max(other.base);
        self.peak = self.peak.max(other.peak);
        self.settled.extend(other.settled);
        self.gaps.extend(other.gaps);
        self.took += other.took;
    }
}

pub(crate) async fn run(wishes: Wishes) -> bool {
    let binary = wishes.common.program();
    let runs = RUNS / if wishes.common.short { 10 } else { 1 };
    let pass = |who| pass(&binary, runs, who, wishes.surface.as_deref());
    let reading = pass(Who::Reads).await;
    // By turns: what else the machine does changes with time, and where an allocator leaves gaps is chance.
    let mut without = pass(Who::Leaves).await;
    let mut with = pass(Who::NeverReads).await;
    for _ in 1..TIMES {
        without.add(pass(Who::Leaves).await);
        with.add(pass(Who::NeverReads).await);
    }
    let growth = with.stays().saturating_sub(without.stays());
    let row =
        |what: &str, cell: &dyn Fn(&Pass) -> String| println!("| {what} | {} | {} | {} |", cell(&reading), cell(&without), cell(&with));
    let gap = GAP.as_millis();
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    println!("| | {runs} clients that read | that leave at once | that never read |\n|---|---:|---:|---:|");
    row("produced", &|_| megabytes(runs * PIECES * SIZE));
    row("memory at first", &|pass| megabytes(pass.base));
    row("memory at most", &|pass| megabytes(pass.peak));
    row("memory when all is produced", &|pass| megabytes(pass.stays()));
    row(&format!("between two pieces of {gap} ms, p50"), &|pass| ms(percentile(&pass.gaps, 50)));
    row(&format!("between two pieces of {gap} ms, p99"), &|pass| ms(percentile(&pass.gaps, 99)));
    row("took, the latter two three times", &|pass| format!("{:.1} s", pass.took.as_secs_f64()));
    println!("\ngrowth by clients that never read: {}; {runs} × {BOUND} bytes are {}", megabytes(growth), megabytes(runs * BOUND));
    growth < runs * BOUND && percentile(&with.gaps, 99) <= percentile(&without.gaps, 99).mul_f64(1.2)
}

async fn pass(binary: &str, runs: u64, who: Who, only: Option<&str>) -> Pass {
    let (url, _server) = simulator(Voice::Observed).await;
    let folder = std::env::temp_dir().join(format!("interline-stalled-{}-{}", std::process::id(), who as u8));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let program = Program::serve(binary, &config(&url, &folder)).await;
    let front = std::sync::Arc::new(FaultProxy::before(program.base()).await);
    let host = program.base().trim_start_matches("http://").to_owned();
    let process = program.id().expect("it runs");
    let base = now(process);
    let memory = Memory::of(process);
    let begun = tokio::time::Instant::now();
    let (mut producing, mut reading, mut draining) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    let (mut held, mut gaps) = (Vec::new(), Vec::new());
    let mut readers = 0;
    for (number, surface) in (0..runs).zip(SURFACES.into_iter().cycle()) {
        while producing.len() >= AT_ONCE {
            producing.join_next().await;
        }
        while reading.len() < usize::try_from(READERS).unwrap_or(1) {
            reading.spawn(read(front.clone(), format!("t{readers}")));
            readers += 1;
        }
        while let Some(done) = reading.try_join_next() {
            gaps.extend(done.expect("a reader does not panic"));
        }
        let name = format!("s{number}");
        let prompt = format!("tally {name} {PIECES} gap=1 size={SIZE} tools=20");
        match start_native(&front, "all", TOKEN, &name, &prompt).await {
            Ok(run) => {
                let stream = hold(&host, &run, only.unwrap_or(surface)).await;
                match (who, stream) {
                    (_, None) => eprintln!("the client of {name} could not connect"),
                    (Who::NeverReads, Some(stream)) => held.push(stream),
                    (Who::Reads, Some(stream)) => drop(draining.spawn(drain(stream))),
                    (Who::Leaves, Some(stream)) => drop(draining.spawn(leave(stream))),
                }
                producing.spawn(produced(front.clone(), run));
            }
            Err(why) => eprintln!("{name} was not started: {why}"),
        }
        eprintln!("{} of {runs} runs, {} stalled clients, memory {}", number + 1, held.len(), megabytes(now(process)));
    }
    while producing.join_next().await.is_some() {}
    while let Some(done) = reading.join_next().await {
        gaps.extend(done.expect("a reader does not panic"));
    }
    let took = begun.elapsed();
    let mut settled = Vec::new();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        settled.push(now(process));
    }
    drop(held);
    let _ = std::fs::remove_dir_all(&folder);
    Pass { base, peak: memory.peak(), settled, gaps, took }
}

/// Waits for a run's end.
async fn produced(front: std::sync::Arc<FaultProxy>, run: Run) {
    let shown = Mutex::default();
    let _ = read_sse(&front, &run, TOKEN, IDLE, &shown).await;
}

/// Follows a run of its own; the times between two pieces.
async fn read(front: std::sync::Arc<FaultProxy>, name: String) -> Vec<Duration> {
    let prompt = format!("tally {name} 400 gap={}", GAP.as_millis());
    let Ok(run) = start_native(&front, "all", TOKEN, &name, &prompt).await else { return Vec::new() };
    let shown = Mutex::default();
    let _ = read_sse(&front, &run, TOKEN, IDLE, &shown).await;
    let shown: Vec<Shown> = shown.into_inner().unwrap_or_default();
    let live = shown.iter().filter(|shown| shown.event["type"] == "stream_delta").skip(20);
    let times: Vec<_> = live.map(|shown| shown.at).collect();
    times.windows(2).map(|two| two[1] - two[0]).collect()
}

/// A client that asks and never reads, on one of the three surfaces.
async fn hold(host: &str, run: &Run, surface: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(host).await.ok()?;
    let upgrade =
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let auth = format!("host: interline\r\nauthorization: Bearer {TOKEN}\r\n");
    let head = match surface {
        "sse" => format!("GET /cells/{}/runs/{}/events HTTP/1.1\r\n{auth}\r\n", run.cell, run.id),
        "native" => format!("GET /v1/agent/sessions/{}/stream?since_seq=1 HTTP/1.1\r\n{auth}{upgrade}\r\n", run.id),
        _ => format!("GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\n{auth}{upgrade}\r\n"),
    };
    stream.write_all(head.as_bytes()).await.ok()?;
    if surface == "socketio" {
        // Without reading: that the server has answered is not to be seen, so it is given a moment between its turns.
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(&masked(&format!("40{{\"token\":\"{TOKEN}\"}}"))).await.ok()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(&masked(&format!("421[\"session:subscribe\",{{\"session_id\":\"{}\"}}]", run.session))).await.ok()?;
    }
    Some(stream)
}

/// Reads whatever comes. Heartbeats are not answered: a client of Socket.IO is gone after a while, as one that does not read is.
async fn drain(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

/// Is there until what it asked for has begun.
async fn leave(stream: TcpStream) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(stream);
}

/// A client's text message, masked with zeros.
fn masked(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("short words");
    assert!(length < 126, "short words");
    let mut frame = vec![0x81, 0x80 | length, 0, 0, 0, 0];
    frame.extend(text.as_bytes());
    frame
}

fn config(url: &str, folder: &Path) -> String {
    format!(
        "[auth]\nmode = \"tokens\"\n\n[log]\nfilter = \"warn\"\n\n\
         [[token]]\nname = \"all\"\nsecret = {{ value = \"{TOKEN}\" }}\ncells = [\"all\"]\n\n\
         [[upstream]]\nname = \"plane\"\nkind = \"cloud\"\nmode = \"agent\"\nenvironment_id = \"7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11\"\n\
         url = \"{url}\"\ncredential = {{ value = \"upstream-secret\" }}\n\n\
         [[route]]\ncell = \"all\"\nupstream = \"plane\"\n\n\
         [journal]\npath = {:?}\nmemory_bytes = 16777216\n",
        folder.join("journal").to_string_lossy()
    )
}
