//! Bridges whose turns do not end, or run unseen: nothing is held for ever, nothing collides, and the next run works.

use std::time::Duration;

use interline_hub::StartRun;
use interline_model::FailureKind;
use interline_upstream_native::{Kind, LinkConfig};

use crate::rude::{Do, RESULT, STAY, Seen, Setup, Step, result, script, sentinel, setup, text, texts};
use crate::world::{Watched, end_of, fast, is_completed, is_interrupted, request, text_of, until};

/// A bridge whose native sessions are b1, b2, …; `turn` says what becomes of a message (with how many there were before, in all
/// sessions) or of a socket.
async fn bridge(link: LinkConfig, turn: impl Fn(&str, usize) -> Do + Send + Sync + 'static) -> (Setup, Seen) {
    setup(Kind::Bridge, link, move |line, n| match line {
        "POST /v1/code/sessions" => Do::Reply(201, format!(r#"{{"id":"b{}"}}"#, n + 1)),
        _ if line.starts_with("DELETE ") => Do::Reply(204, String::new()),
        _ => turn(line, n),
    })
    .await
}

fn accepted() -> Do {
    Do::Reply(202, r#"{"status":"running"}"#.to_owned())
}

/// A turn as it should be.
fn whole(n: usize) -> Do {
    let result = RESULT.replace("\"r\"", &format!("\"r{n}\""));
    script([Some(text(n)), Some(Step::Text(result)), Some(sentinel()), Some(Step::Close(1000))])
}

fn again(setup: &Setup, earlier: &Watched) -> Watched {
    let start = StartRun { session: Some(earlier.session.id().clone()), ..request("again") };
    Watched::start(&setup.hub, &setup.access, start)
}

/// Reads our interrupt, and obeys.
fn obeys() -> [Option<Step>; 4] {
    [Some(Step::Read), Some(Step::Acknowledge), Some(sentinel()), Some(Step::Close(1000))]
}

#[tokio::test]
async fn a_sentinel_that_never_comes_holds_nothing_for_ever() {
    let (setup, seen) = bridge(LinkConfig { sentinel_wait_ms: 300, ..fast() }, |line, _| match line {
        _ if line.ends_with("/messages") => accepted(),
        _ if line.contains("/b1/") => script([Some(text(0)), Some(result()), STAY]),
        _ => whole(1),
    })
    .await;
    let first = setup.start();
    assert!(is_completed(&first.outcome().await));
    // It waits, and then has a native session of its own: the turn before had said its result.
    let second = again(&setup, &first);
    let lines = second.lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert_eq!(text_of(&lines), "1 ");
    until("the session is deleted", || seen.requests("DELETE /v1/code/sessions/b1").len() == 1).await;
    assert!(is_completed(&again(&setup, &first).outcome().await), "and so on");
    assert_eq!(seen.requests("POST /v1/code/sessions/b2/messages").len(), 2);
    assert_eq!(seen.requests("/b1/ws").len(), 1);
}

#[tokio::test]
async fn frames_after_the_end_keep_no_connection_coming_back() {
    let (setup, seen) = bridge(LinkConfig { sentinel_wait_ms: 3_000, ..fast() }, |line, n| match line {
        _ if line.ends_with("/messages") => accepted(),
        // Ever new frames, ever new breaks.
        _ if n == 0 => script([Some(result()), Some(text(0)), Some(Step::Reset)]),
        _ => script([Some(text(n)), Some(Step::Wait(5)), Some(Step::Reset)]),
    })
    .await;
    let first = setup.start();
    assert!(is_completed(&first.outcome().await));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // The first, and four attempts.
    assert_eq!(seen.requests("/ws").len(), 5);
}

#[tokio::test]
async fn reconnecting_after_the_end_is_bounded_in_time() {
    let link = LinkConfig { sentinel_wait_ms: 300, attempts: u32::MAX, ..fast() };
    let (setup, seen) = bridge(link, |line, n| match line {
        _ if line.ends_with("/messages") => accepted(),
        _ if n == 0 => script([Some(result()), Some(Step::Reset)]),
        _ => script([Some(Step::Reset)]),
    })
    .await;
    assert!(is_completed(&setup.start().outcome().await));
    until("the session is deleted", || seen.requests("DELETE /v1/code/sessions/b1").len() == 1).await;
    let sockets = seen.requests("/ws").len();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(seen.requests("/ws").len(), sockets);
}

#[tokio::test]
async fn a_turn_whose_acceptance_was_lost_is_found_and_stopped() {
    for fate in ["cut", "502"] {
        let (setup, seen) = bridge(fast(), move |line, n| match line {
            _ if line.ends_with("/messages") && n > 0 => accepted(),
            _ if line.ends_with("/messages") && fate == "cut" => Do::Cut,
            _ if line.ends_with("/messages") => Do::Reply(502, "<html>".to_owned()),
            _ if n == 0 => script([Some(text(7))].into_iter().chain(obeys())),
            _ => whole(1),
        })
        .await;
        let first = setup.start();
        assert_eq!(first.failure().await.0, FailureKind::EngineNotReady);
        assert!(seen.texts.lock().unwrap()[0].contains(r#""subtype":"interrupt""#), "{fate}");
        let lines = again(&setup, &first).lines().await;
        assert_eq!(text_of(&lines), "1 ", "{fate} {lines:?}");
        assert!(is_completed(&end_of(&lines)), "{fate} {lines:?}");
        let order: Vec<String> = seen.requests("/b1/").iter().map(|line| line.split('/').next_back().unwrap().to_owned()).collect();
        assert_eq!(order, ["messages", "ws", "messages", "ws"], "{fate}");
    }
}

#[tokio::test]
async fn a_message_that_was_not_heard_leaves_nothing_behind() {
    let (setup, seen) = bridge(fast(), |line, n| match line {
        _ if line.ends_with("/messages") && n == 0 => Do::Cut,
        _ if line.ends_with("/messages") => accepted(),
        _ if n == 0 => Do::Reply(409, r#"{"error":"no turn in progress"}"#.to_owned()),
        _ => whole(1),
    })
    .await;
    let first = setup.start();
    assert_eq!(first.failure().await.0, FailureKind::EngineNotReady);
    assert!(is_completed(&again(&setup, &first).outcome().await));
    assert_eq!(seen.requests("/ws").len(), 2);
}

#[tokio::test]
async fn what_could_not_be_told_is_found_out_before_the_next_message() {
    // The connection is lost for good, or never there, and the turn runs on: a message now would kill today's bridges.
    for is_lost_at_once in [false, true] {
        let (setup, seen) = bridge(fast(), move |line, n| match line {
            _ if line.ends_with("/messages") && n == 0 && is_lost_at_once => Do::Cut,
            _ if line.ends_with("/messages") => accepted(),
            _ if n == 0 && !is_lost_at_once => script([Some(text(0)), Some(Step::Reset)]),
            _ if n < if is_lost_at_once { 1 } else { 5 } => Do::Reply(503, String::new()),
            _ if n == if is_lost_at_once { 1 } else { 5 } => script(obeys()),
            _ => whole(9),
        })
        .await;
        let first = setup.start();
        assert!(!is_completed(&first.outcome().await));
        let lines = again(&setup, &first).lines().await;
        assert!(is_completed(&end_of(&lines)), "{lines:?}");
        assert_eq!(text_of(&lines), "9 ");
        let order: Vec<String> = seen.requests("/b1/").iter().map(|line| line.split('/').next_back().unwrap().to_owned()).collect();
        let [.., settled, message, socket] = order.as_slice() else { panic!("{order:?}") };
        assert_eq!((settled.as_str(), message.as_str(), socket.as_str()), ("ws", "messages", "ws"), "{order:?}");
    }
}

#[tokio::test]
async fn an_unseen_turn_that_does_not_stop_costs_its_session_and_no_run_more() {
    let (setup, seen) = bridge(LinkConfig { sentinel_wait_ms: 200, ..fast() }, |line, _| match line {
        _ if line.ends_with("/b1/messages") => Do::Cut,
        _ if line.ends_with("/messages") => accepted(),
        _ if line.contains("/b1/") => script([Some(text(0)), STAY]),
        _ => whole(1),
    })
    .await;
    let first = setup.start();
    assert_eq!(first.failure().await.0, FailureKind::EngineNotReady);
    assert!(is_completed(&again(&setup, &first).outcome().await));
    assert_eq!(seen.requests("DELETE /v1/code/sessions/b1").len(), 1);
    assert_eq!(seen.requests("POST /v1/code/sessions/b1/messages").len(), 1);
}

#[tokio::test]
async fn a_stop_that_is_not_obeyed_ends_with_the_session() {
    let (setup, seen) = bridge(LinkConfig { sentinel_wait_ms: 300, ..fast() }, |line, _| match line {
        _ if line.ends_with("/messages") => accepted(),
        _ if line.contains("/b1/") => script([Some(text(0)), Some(text(1)), STAY]),
        _ => whole(1),
    })
    .await;
    let first = setup.start();
    first.says("1 ").await;
    first.stop();
    let lines = first.lines().await;
    assert!(is_interrupted(&end_of(&lines)), "{lines:?}");
    assert_eq!(text_of(&lines), texts(2));
    until("the session is deleted", || seen.requests("DELETE /v1/code/sessions/b1").len() == 1).await;
    assert!(is_completed(&again(&setup, &first).outcome().await));
}
