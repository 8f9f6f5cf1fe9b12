//! Faults on both sides of the real program, runs on all surfaces at once, and an independent verdict on what every client has in the end.
//!
//! `CHAOS_SEED=… CHAOS_RUNS=… cargo test --test chaos -- --nocapture` draws the same runs with the same faults again; `CHAOS_FIRST=N
//! CHAOS_RUNS=1` draws run N alone, and `CHAOS_LOG=debug` lets the program say more.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use interline_sim::{Options, Voice};
use interline_testkit::Program;
use interline_testkit::chaos::{self, Suite};
use support::INTERLINE;
use tokio_util::sync::DropGuard;

/// Runs in `cargo test`; the command `reliability` of the bench has ten thousand.
const RUNS: u64 = 80;

/// The runs that are drawn where nobody wishes for others.
const SEED: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn simulator(voice: Voice) -> (String, DropGuard) {
    let options = Options {
        voice,
        ping_interval: Duration::from_millis(200),
        pong_timeout: Duration::from_millis(3_000),
        session_token_ttl: Duration::from_secs(4),
        ..Options::default()
    };
    let (_, url, stop) = support::simulator(options).await;
    (url, stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_every_client_has_every_piece_once_in_order_and_one_end() {
    let seed = number("CHAOS_SEED").unwrap_or(SEED);
    let first = number("CHAOS_FIRST").unwrap_or(0);
    let options = chaos::Options { at_once: 24, first, ..chaos::Options::new(seed, number("CHAOS_RUNS").unwrap_or(RUNS)) }.slower(2);
    println!("CHAOS_SEED={seed} CHAOS_RUNS={}", options.runs);
    let (documented, _documented) = simulator(Voice::Documented).await;
    let (observed, _observed) = simulator(Voice::Observed).await;
    let suite = Suite::new(options, &documented, &observed).await;
    let program = Program::serve(INTERLINE, &suite.config("", "")).await;
    let report = suite.run(program.base()).await;
    println!("{report}");
    assert!(report.findings.is_clean(), "CHAOS_SEED={seed} CHAOS_RUNS={}", options.runs);
    if options.runs >= RUNS {
        assert!(report.upstream.len() > 10 && report.downstream.len() > 5, "faults of all kinds took effect: {report}");
    }
}
