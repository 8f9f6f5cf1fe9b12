//! Case C4 with real clients: SSE, Socket.IO and native answer the same asks at the same moment and contradict each other. The first wins, the upstream
//! hears one answer, and whoever can be told is told who won.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use interline_sim::Options;
use interline_testkit::{Client, eventually};
use serde_json::Value;
use support::{Stand, UPSTREAMS, token};

/// Asks in all: for each of the two upstreams and the two surfaces that start the run a quarter.
const ASKS: usize = 1_000;
/// Asks of one run.
const EACH: usize = 50;

/// Who said what, and who was told what.
fn check(line: &Value, won: &mut BTreeMap<String, usize>) {
    let decisions = line["decisions"].as_array().expect("a record");
    assert_eq!(decisions.len(), 1, "decided once: {line}");
    let winner = decisions[0]["surface"].as_str().expect("somebody answered");
    let outcome = decisions[0]["outcome"].as_str().expect("an outcome");
    let said = line["said"][winner].as_str().expect("it answered");
    assert_eq!(outcome, if said == "allow" { "allowed" } else { "denied" }, "what the winner said counts: {line}");
    *won.entry(winner.to_owned()).or_default() += 1;
    let (sse, socketio) = (&line["sse"], &line["socketio"]);
    if winner == "sse" {
        assert_eq!((&sse["status"], &sse["ok"]), (&200.into(), &true.into()), "{line}");
    } else {
        assert_eq!((&sse["status"], &sse["kind"]), (&409.into(), &"already_resolved".into()), "{line}");
        assert_eq!((&sse["winner"]["surface"], &sse["winner"]["outcome"]), (&winner.into(), &outcome.into()), "{line}");
    }
    assert_eq!(socketio["ok"], winner == "socketio", "{line}");
    if winner != "socketio" {
        assert!(socketio["message"].as_str().is_some_and(|text| text.contains(winner)), "told who won: {line}");
    }
    // A native client is not told: its protocol has no reply to a `control_response` (native-ws.md §3.3).
}

#[tokio::test]
async fn case_c4_of_contradictory_answers_one_reaches_the_upstream_and_the_losers_are_told() {
    let stand = Stand::with(Options::default(), "").await;
    let runs = (ASKS / EACH / 4).to_string();
    let (mut asked, mut won) = (Vec::new(), BTreeMap::new());
    for cell in UPSTREAMS {
        for start in ["sse", "socketio"] {
            let args = ["--cell", cell, "--token", &token(cell), "--start", start, "--runs", &runs, "--asks", &EACH.to_string()];
            let seen = Client::new("race.mjs", stand.base()).args(args).run().await.content();
            for line in seen.json_lines() {
                check(&line, &mut won);
                asked.push(line["request_id"].as_str().expect("an id").to_owned());
            }
        }
    }
    assert_eq!(asked.len(), ASKS);
    println!("who won: {won:?}");
    assert!(["sse", "socketio", "native"].iter().all(|surface| won.contains_key(*surface)), "none is shut out: {won:?}");
    eventually("all answers are there", Duration::from_secs(10), async || {
        let stats = stand.stats();
        asked.iter().all(|ask| stats.responses_to(ask).received > 0)
    })
    .await;
    let stats = stand.stats();
    for ask in &asked {
        let responses = stats.responses_to(ask);
        assert_eq!((responses.received, responses.taken), (1, 1), "{ask}");
    }
}
