//! Case D1: libraries that send their POST again by themselves, after a break, a clean end or a hidden tab. With one of the protections of
//! sse.md §5.6 there is one run upstream; without any, each of them is another run, as the documented wire has no way to tell.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;
#[allow(dead_code, reason = "connections break here in some of the ways")]
#[path = "support/tap.rs"]
mod tap;

use std::collections::BTreeSet;
use std::time::Duration;

use interline_sim::Options;
use interline_testkit::{Client, Seen, eventually};
use serde_json::Value;
use support::{Stand, token};
use tap::{Break, Crumbs, Tap};

const CELL: &str = "cloud";
const IDS: &str = "[sse]\npost_ids = true";
const SAME: &str = "[sse]\ndedupe_posts_ms = 20_000";

/// What a client saw: the runs of its answers, and the events behind each.
fn answers(seen: &Seen) -> Vec<(String, Vec<Value>)> {
    let mut answers = Vec::new();
    for line in seen.json_lines() {
        match (line["opened"].as_str(), answers.last_mut()) {
            (Some(run), _) => answers.push((run.to_owned(), Vec::new())),
            (None, Some((_, events))) => events.push(line),
            (None, None) => panic!("an event before an answer: {line}"),
        }
    }
    answers
}

/// One run in all, and each event once.
fn assert_whole(answers: &[(String, Vec<Value>)]) {
    let events: Vec<&Value> = answers.iter().flat_map(|(_, events)| events).collect();
    assert_eq!((&events[0]["type"], &events[events.len() - 1]["type"]), (&"run_start".into(), &"done".into()), "{answers:?}");
    assert_eq!(events.iter().filter(|event| event["type"] == "run_start").count(), 1, "{answers:?}");
    let turns = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(turns("turn_start"), turns("turn_end"), "{answers:?}");
}

struct Told {
    answers: Vec<(String, Vec<Value>)>,
    /// Prompts that reached the agent server.
    upstream: usize,
}

impl Told {
    fn runs(&self) -> BTreeSet<&str> {
        self.answers.iter().map(|(run, _)| run.as_str()).collect()
    }
}

/// Runs a client against the program, and breaks its connections so many milliseconds after its prompt has reached the agent server, and again.
async fn told(program: &str, args: &[&str], config: &str, breaks: &[u64]) -> Told {
    let stand = Stand::with(Options::default(), config).await;
    let tap = Tap::before(stand.base(), Crumbs::None).await;
    let url = tap.url();
    let client = Client::new(program, &url).args(["--cell", CELL, "--token", &token(CELL)]).args(args).run();
    let breaking = async {
        if !breaks.is_empty() {
            eventually("the prompt is there", Duration::from_secs(60), async || !stand.stats().prompts.is_empty()).await;
        }
        for (n, wait) in breaks.iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(*wait)).await;
            tap.break_by(if n % 2 == 0 { Break::Reset } else { Break::Finish });
            // Those that there are break, those that come pass.
            tokio::time::sleep(Duration::from_millis(1)).await;
            tap.break_by(Break::Whole);
        }
    };
    let (seen, ()) = tokio::join!(client, breaking);
    Told { answers: answers(&seen.content()), upstream: stand.stats().prompts.len() }
}

#[tokio::test]
async fn case_d1_event_source_plus_after_breaks() {
    let args = ["--prompt", "scene settings 2500"];
    let breaks = [300, 300, 300];
    for config in [IDS, SAME] {
        let told = told("plus.mjs", &args, config, &breaks).await;
        assert_eq!((told.upstream, told.runs().len()), (1, 1), "{config}: {:?}", told.answers);
        assert!(told.answers.len() > 1, "it was broken: {:?}", told.answers);
        if config == IDS {
            assert_whole(&told.answers);
        } else {
            // Without ids it hears the run from the beginning each time.
            assert_whole(told.answers.get(told.answers.len() - 1..).expect("the last answer"));
        }
    }
    let keyed = told("plus.mjs", &["--prompt", "scene settings 2500", "--key", "k-1"], "", &breaks).await;
    assert_eq!((keyed.upstream, keyed.runs().len()), (1, 1), "{:?}", keyed.answers);
    let bare = told("plus.mjs", &args, "", &breaks).await;
    assert!(bare.upstream > 1 && bare.upstream == bare.runs().len(), "each POST is a run: {} {:?}", bare.upstream, bare.answers);
}

#[tokio::test]
async fn case_d1_event_source_plus_after_a_clean_end() {
    let args = ["--prompt", "quick", "--ends", "3"];
    let told_with_ids = told("plus.mjs", &args, IDS, &[]).await;
    assert_eq!((told_with_ids.upstream, told_with_ids.answers.len()), (1, 3), "{:?}", told_with_ids.answers);
    assert_whole(&told_with_ids.answers[..1]);
    for (_, events) in &told_with_ids.answers[1..] {
        assert_eq!(events.iter().map(|event| &event["type"]).collect::<Vec<_>>(), ["done"], "the end again, and nothing else");
    }
    let keyed = told("plus.mjs", &["--prompt", "quick", "--ends", "3", "--key", "k-2"], "", &[]).await;
    assert_eq!((keyed.upstream, keyed.runs().len()), (1, 1));
    let bare = told("plus.mjs", &args, "", &[]).await;
    assert_eq!((bare.upstream, bare.runs().len()), (3, 3), "each POST is a run");
}

#[tokio::test]
async fn case_d1_fetch_event_source_in_a_browser_with_a_hidden_tab() {
    let args = ["--prompt", "scene settings 4000", "--hide", "2"];
    let keyed = ["--prompt", "scene settings 4000", "--hide", "2", "--key", "k-3"];
    for (args, config) in [(&args[..], IDS), (&args[..], SAME), (&keyed[..], "")] {
        let told = told("hidden.mjs", args, config, &[]).await;
        assert_eq!((told.upstream, told.runs().len()), (1, 1), "{config}: {:?}", told.answers);
        assert_eq!(told.answers.len(), 3, "hidden twice: {:?}", told.answers);
        if config == IDS {
            assert_whole(&told.answers);
        } else {
            assert_whole(told.answers.get(told.answers.len() - 1..).expect("the last answer"));
        }
    }
    let bare = told("hidden.mjs", &args, "", &[]).await;
    assert_eq!((bare.upstream, bare.runs().len()), (3, 3), "each time it is shown a run: {:?}", bare.answers);
}

/// Not in one with the hidden tab: the library forgets the retry that it has set when a tab is shown, and then reads two streams at once. Ids
/// bring both to the same run; without them the second is like another person's.
#[tokio::test]
async fn case_d1_fetch_event_source_in_a_browser_after_breaks() {
    let args = ["--prompt", "scene settings 4000"];
    let keyed = ["--prompt", "scene settings 4000", "--key", "k-4"];
    for (args, config) in [(&args[..], IDS), (&args[..], SAME), (&keyed[..], "")] {
        let told = told("hidden.mjs", args, config, &[500]).await;
        assert_eq!((told.upstream, told.runs().len(), told.answers.len()), (1, 1, 2), "{config}: {:?}", told.answers);
        if config == IDS {
            assert_whole(&told.answers);
        } else {
            assert_whole(&told.answers[1..]);
        }
    }
    let bare = told("hidden.mjs", &args, "", &[500]).await;
    assert_eq!((bare.upstream, bare.runs().len()), (2, 2), "each POST is a run: {:?}", bare.answers);
}
