//! `reliability`: ten thousand runs on all surfaces, a thousand faults of each kind on both sides, and a table.

use std::time::Duration;

use clap::Args;
use interline_sim::Voice;
use interline_testkit::Program;
use interline_testkit::chaos::{Options, Report, Suite};

use crate::Common;
use crate::stand::{Memory, megabytes, now, simulator};

/// Runs in the long form.
const RUNS: u64 = 10_000;

/// Faults of each kind that the long form has at least.
const FAULTS: u64 = 1_000;

const UPSTREAM: [&str; 16] = [
    "fin",
    "reset",
    "half-open",
    "stall",
    "cut in a character",
    "close 1009",
    "close 1011",
    "refused dial",
    "silent accept",
    "503 at reconnect",
    "401 at reconnect",
    "duplicated replay",
    "reordered replay",
    "partial replay",
    "cursor ignored",
    "desync",
];

const DOWNSTREAM: [&str; 6] = ["fin", "reset", "stall", "half-open", "delay", "cut in a character"];

#[derive(Args, Clone, Debug)]
pub(crate) struct Wishes {
    #[command(flatten)]
    common: Common,
    /// So many runs.
    #[arg(long)]
    runs: Option<u64>,
    /// So many of them at a time.
    #[arg(long, default_value_t = 160)]
    at_once: usize,
    /// All limits of time are so many times as long, for a machine that is slow or not alone.
    #[arg(long, default_value_t = 1)]
    slower: u32,
}

pub(crate) async fn run(wishes: Wishes) -> bool {
    let binary = wishes.common.program();
    let tenth = if wishes.common.short { 10 } else { 1 };
    let runs = wishes.runs.unwrap_or(RUNS / tenth);
    let options = Options { at_once: wishes.at_once, ..Options::new(wishes.common.seed(), runs) }.slower(wishes.slower);
    let (documented, _documented) = simulator(Voice::Documented).await;
    let (observed, _observed) = simulator(Voice::Observed).await;
    let suite = Suite::new(options, &documented, &observed).await;
    let more = "[run]\nkeep_ms = 30000\nforget_ms = 60000\nmax_active = 10000\n";
    let program = Program::serve(&binary, &suite.config("", more)).await;
    let process = program.id().expect("it runs");
    let before = now(process);
    let memory = Memory::of(process);
    eprintln!("seed {}, {runs} runs", options.seed);
    let progress = tokio::spawn({
        let suite = suite.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                eprintln!("{} of {runs} runs; {}; memory {}", suite.done(), suite.so_far(), megabytes(now(process)));
            }
        }
    });
    let half_way = tokio::spawn({
        let suite = suite.clone();
        async move {
            while suite.done() < runs / 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            now(process)
        }
    });
    let report = suite.run(program.base()).await;
    progress.abort();
    let half_way = half_way.await.expect("half of the runs are done");
    println!("{report}");
    println!("| memory | |\n|---|---:|");
    let row = |what: &str, bytes: u64| println!("| {what} | {} |", megabytes(bytes));
    row("before", before);
    row("after half of the runs", half_way);
    row("peak", memory.peak());
    row("at the end", now(process));
    let enough = wishes.runs.is_some() || enough(&report, FAULTS / tenth);
    report.is_clean() && enough
}

/// Whether every kind of fault came as often as it should.
fn enough(report: &Report, wanted: u64) -> bool {
    let sides = UPSTREAM.iter().map(|name| (true, *name)).chain(DOWNSTREAM.iter().map(|name| (false, *name)));
    let missing: Vec<String> = sides
        .map(|(upstream, name)| (upstream, name, report.injected(upstream, name)))
        .filter(|(_, _, count)| *count < wanted)
        .map(|(upstream, name, count)| format!("{} {name}: {count}", if upstream { "upstream" } else { "clients" }))
        .collect();
    if !missing.is_empty() {
        println!("\nfaults of these kinds came less than {wanted} times: {}", missing.join(", "));
    }
    missing.is_empty()
}
