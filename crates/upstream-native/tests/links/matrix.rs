//! Every way in which a connection to an agent server ends, at every place in a run, with every answer to whoever comes back: each frame once, in
//! order, and one end. Which kinds of break are shown where is a table in `docs/reliability.md`.

use futures_util::future::join_all;
use interline_hub::Gate;
use interline_model::FailureKind;
use interline_upstream_native::{Kind, LinkConfig};

use crate::rude::{CREATED, Do, RESULT, STAY, Step, result, script, sentinel, setup, text, texts};
use crate::world::{Line, Watched, config, end_of, fast, hub, is_completed, request, text_of};

/// Frames of a run, without its result.
const FRAMES: usize = 5;

/// How the first connection ends.
fn faults() -> [(&'static str, Step); 6] {
    [
        ("fin", Step::Fin),
        ("rst", Step::Reset),
        ("half-open", Step::Silence),
        ("1009", Step::Close(1009)),
        ("1011", Step::Close(1011)),
        ("bytes that are no UTF-8", Step::Bytes(vec![b'"', 0xff, b'"'])),
    ]
}

/// What whoever comes back after `had` frames is sent.
fn replays(had: usize) -> [(&'static str, Vec<usize>); 6] {
    let twice = |range: std::ops::Range<usize>| range.flat_map(|n| [n, n]).collect();
    [
        ("everything", (0..FRAMES).collect()),
        ("a part of what was had", (had / 2..FRAMES).collect()),
        ("nothing of what was had", (had..FRAMES).collect()),
        ("everything twice", twice(0..FRAMES)),
        ("what was had, and again", (0..had).chain(0..FRAMES).collect()),
        ("what was had in another order", (0..had).rev().chain(had..FRAMES).collect()),
    ]
}

/// What a request to come back gets before it gets a socket.
fn refusals() -> [(&'static str, Option<Do>); 5] {
    [
        ("let in", None),
        ("401", Some(Do::Reply(401, String::new()))),
        ("503", Some(Do::Reply(503, String::new()))),
        ("cut", Some(Do::Cut)),
        ("accepted, and nothing more", Some(Do::Hang)),
    ]
}

fn link() -> LinkConfig {
    LinkConfig { liveness_ms: 250, connect_timeout_ms: 250, attempts: 6, ..fast() }
}

/// A run whose first connection ends like that behind `had` frames; those that come back are refused like that first.
async fn broken(kind: Kind, had: usize, fault: Step, refusal: Option<Do>, replay: Vec<usize>) -> Vec<Line> {
    let refusal = std::sync::Mutex::new(refusal);
    let (setup, _) = setup(kind, link(), move |line, before| {
        let end = match kind {
            Kind::Cloud => vec![Some(result()), STAY],
            Kind::Bridge => vec![Some(result()), Some(sentinel()), Some(Step::Close(1000))],
        };
        match line {
            _ if line.contains("refresh-token") => Do::Reply(200, r#"{"session_token":"canary-new"}"#.to_owned()),
            "POST /v1/code/sessions" => Do::Reply(201, r#"{"id":"b1"}"#.to_owned()),
            _ if line.ends_with("/messages") => Do::Reply(202, r#"{"status":"running"}"#.to_owned()),
            _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
            _ if !line.contains("/stream") && !line.contains("/ws") => Do::Reply(404, String::new()),
            _ if before == 0 => script((0..had).map(|n| Some(text(n))).chain([Some(fault.clone()), STAY])),
            _ => match refusal.lock().unwrap().take() {
                Some(refusal) => refusal,
                None => script(replay.iter().map(|n| Some(text(*n))).chain(end)),
            },
        }
    })
    .await;
    setup.start().lines().await
}

fn assert_whole(lines: &[Line], what: &str) {
    assert_eq!(text_of(lines), texts(FRAMES), "{what}: {lines:?}");
    assert!(is_completed(&end_of(lines)), "{what}: {lines:?}");
    let count = |wanted: &Line| lines.iter().filter(|line| *line == wanted).count();
    assert_eq!((count(&Line::Lost), count(&Line::Back)), (1, 1), "{what}: {lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_break_at_every_frame_with_every_replay() {
    for kind in [Kind::Cloud, Kind::Bridge] {
        for had in 1..=FRAMES {
            let runs = faults().into_iter().flat_map(|(fault, step)| {
                replays(had).into_iter().map(move |(replay, frames)| {
                    let (what, step) = (format!("{kind:?}: {fault} behind {had} frames, then {replay}"), step.clone());
                    async move { assert_whole(&broken(kind, had, step, None, frames).await, &what) }
                })
            });
            join_all(runs).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_back_and_is_not_let_in_comes_again() {
    for had in 1..=FRAMES {
        let runs = refusals().into_iter().flat_map(|(name, refusal)| match refusal {
            // A bridge's token is not renewed: what it refuses, it refuses for good.
            Some(refusal) if name == "401" => vec![(Kind::Cloud, name, Some(refusal))],
            Some(Do::Reply(status, body)) => {
                vec![(Kind::Cloud, name, Some(Do::Reply(status, body.clone()))), (Kind::Bridge, name, Some(Do::Reply(status, body)))]
            }
            Some(Do::Cut) => vec![(Kind::Cloud, name, Some(Do::Cut)), (Kind::Bridge, name, Some(Do::Cut))],
            Some(_) => vec![(Kind::Cloud, name, Some(Do::Hang)), (Kind::Bridge, name, Some(Do::Hang))],
            None => vec![(Kind::Cloud, name, None), (Kind::Bridge, name, None)],
        });
        join_all(runs.map(|(kind, name, refusal)| async move {
            let lines = broken(kind, had, Step::Reset, refusal, (had / 2..FRAMES).collect()).await;
            assert_whole(&lines, &format!("{kind:?}: {name} behind {had} frames"));
        }))
        .await;
    }
}

/// A bridge's token is not renewed: a run whose credential is withdrawn in the middle fails with that.
#[tokio::test]
async fn a_bridge_that_lets_nobody_in_any_more_is_said_to() {
    let lines = broken(Kind::Bridge, 2, Step::Reset, Some(Do::Reply(401, String::new())), Vec::new()).await;
    assert_eq!(text_of(&lines), texts(2));
    match end_of(&lines) {
        interline_model::Outcome::Failed { kind, message } => assert_eq!(kind, FailureKind::AuthRequired, "{message}"),
        other => panic!("{other:?}"),
    }
}

/// Frames of the meantime are gone, and so is the result: the run ends as failed, and not as if it had said everything.
#[tokio::test]
async fn a_desync_without_a_result_ends_the_run_with_what_was_had() {
    let notice = r#"{"type":"biumind.session_desynced","session_id":"s1","final_result_url":"/v1/agent/sessions/s1/result"}"#;
    for had in 1..=FRAMES {
        let (setup, seen) = setup(Kind::Cloud, link(), move |line, before| match line {
            _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
            _ if line.contains("/stream") && before == 0 => script((0..had).map(|n| Some(text(n))).chain([Some(Step::Fin)])),
            _ if line.contains("/stream") => script([Some(Step::Text(notice.to_owned())), Some(Step::Close(1000))]),
            _ => Do::Reply(404, String::new()),
        })
        .await;
        let run = setup.start();
        let lines = run.lines().await;
        assert_eq!(text_of(&lines), texts(had));
        assert_eq!(run.failure().await.0, FailureKind::MissingTerminalEvent);
        // With the number, and then without: a server whose numbers are others has everything.
        let streams = seen.requests("/stream");
        assert!(streams.len() == 3 && streams[1].contains("since_seq") && !streams[2].contains("since_seq"), "{streams:?}");
    }
}

/// The stream is gone and the result is not: what was said meanwhile is missing, and that is said before the end.
#[tokio::test]
async fn a_result_instead_of_a_stream_is_said_to_be_one() {
    let notice = r#"{"type":"biumind.session_desynced","session_id":"s1"}"#;
    for had in 1..=FRAMES {
        for finalised in [false, true] {
            let (setup, _) = setup(Kind::Cloud, link(), move |line, before| match line {
                _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
                _ if line.contains("/stream") && before == 0 => script((0..had).map(|n| Some(text(n))).chain([Some(Step::Fin)])),
                _ if line.contains("/stream") && finalised => Do::Reply(409, String::new()),
                _ if line.contains("/stream") => script([Some(Step::Text(notice.to_owned())), Some(Step::Close(1000))]),
                _ => Do::Reply(200, RESULT.to_owned()),
            })
            .await;
            let lines = setup.start().lines().await;
            assert_eq!(text_of(&lines), texts(had));
            assert!(is_completed(&end_of(&lines)), "{lines:?}");
            assert_eq!(lines.iter().filter(|line| **line == Line::Missed).count(), 1, "{lines:?}");
        }
    }
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_said_to_be_unreachable() {
    for kind in [Kind::Cloud, Kind::Bridge] {
        let hub = hub(Gate::Open, config(kind, "http://agents.invalid:7003".to_owned()), fast());
        let access = hub.admit(None).unwrap();
        let (failure, message) = Watched::start(&hub, &access, request("go")).failure().await;
        assert_eq!(failure, FailureKind::EngineNotReady, "{message}");
        assert!(message.contains("agents.invalid"), "{message}");
    }
}
