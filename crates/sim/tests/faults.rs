//! The faults, on both servers, through real sockets.

mod support;

use std::time::Duration;

use http::Method;
use interline_sim::{Options, Pace, Simulator, Voice, bad_frames_text, counted_text, flood_text, tally_text};
use serde_json::Value;
use support::{Ending, count, documented, fast, observed, start, text, values};
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;

/// What a lenient reader makes of some messages: their frames, each once.
fn read(messages: &[String]) -> Vec<Value> {
    let mut seen = std::collections::HashSet::new();
    messages
        .iter()
        .filter_map(|message| serde_json::from_str::<Value>(message).ok())
        .filter(|frame| frame.is_object() && frame["uuid"].as_str().is_none_or(|id| seen.insert(id.to_owned())))
        .collect()
}

fn is_result(message: &str) -> bool {
    serde_json::from_str::<Value>(message).is_ok_and(|frame| frame["type"] == "result")
}

#[tokio::test]
async fn bad_frames_hide_a_good_run() {
    let server = documented().await;
    let messages = server.stream(&server.chat("fault bad-frames").await, "").await.until(is_result).await;
    for bad in ["null", "", r#""a string""#] {
        assert!(messages.iter().any(|message| message == bad), "{bad}");
    }
    assert!(messages.iter().any(|message| message.contains("weather_report")));
    assert!(messages.iter().any(|message| message.contains("moon_phase")));
    let all: Vec<Value> = messages.iter().filter_map(|message| serde_json::from_str(message).ok()).collect();
    assert!(text(&all).len() > text(&read(&messages)).len(), "a frame comes twice");
    assert_eq!(text(&read(&messages)), bad_frames_text());

    let session = server.bridge_session().await;
    server.message(&session, "fault bad-frames").await;
    let (messages, end) = server.bridge_socket(&session, "").await.unwrap().rest().await;
    assert_eq!(text(&read(&messages)), bad_frames_text());
    assert_eq!(end, Ending::Close(1000, "done".into()));
}

fn counted(to: u64) -> String {
    (0..to).map(counted_text).collect()
}

#[tokio::test]
async fn a_dropped_cloud_stream_goes_on_where_it_was() {
    for (server, query, missed) in [(documented().await, "&since_seq=3", 3), (documented().await, "", 3), (observed().await, "", 0)] {
        let session = server.chat("fault drop 3").await;
        let (messages, end) = server.stream(&session, "").await.rest().await;
        assert_eq!((text(&values(&messages)), end), (counted(3), Ending::Cut));
        let frames = server.stream(&session, query).await.until_result().await;
        assert_eq!(text(&frames), (missed..13).map(counted_text).collect::<String>());
    }
}

#[tokio::test]
async fn a_gap_is_lost_without_a_cursor() {
    let server = documented().await;
    for (query, from) in [("", 8), ("&since_seq=3", 3)] {
        let session = server.chat("fault gap 3").await;
        server.stream(&session, "").await.rest().await;
        let frames = server.stream(&session, query).await.until_result().await;
        assert_eq!(text(&frames), (from..18).map(counted_text).collect::<String>());
    }
}

#[tokio::test]
async fn a_dropped_bridge_socket_comes_back_to_its_turn() {
    let server = documented().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault drop 4").await;
    let (messages, end) = server.bridge_socket(&session, "").await.unwrap().rest().await;
    assert_eq!((text(&values(&messages)), end), (counted(4), Ending::Cut));
    let (messages, end) = server.bridge_socket(&session, "?last_event_id=4").await.unwrap().rest().await;
    assert_eq!(text(&values(&messages)), (4..14).map(counted_text).collect::<String>());
    assert_eq!(end, Ending::Close(1000, "done".into()));
}

#[tokio::test]
async fn silence_outlasts_a_cancel() {
    let server = documented().await;
    let mut socket = server.stream(&server.chat("fault silent").await, "").await;
    socket.cancel().await;
    assert!(socket.is_silent().await);
}

#[tokio::test]
async fn a_stream_without_a_result() {
    let server = documented().await;
    let session = server.chat("fault no-result").await;
    let (messages, end) = server.stream(&session, "").await.rest().await;
    assert_eq!((text(&values(&messages)), end), ("This answer has no end.".into(), Ending::Close(1000, String::new())));
    let stream = format!("/v1/agent/sessions/{}/stream?session_token={}", session.id, session.token);
    assert_eq!(server.connect(&stream).await.err().unwrap().status, 409);

    let session = server.bridge_session().await;
    server.message(&session, "fault no-result").await;
    let (messages, end) = server.bridge_socket(&session, "").await.unwrap().rest().await;
    assert_eq!(count(&values(&messages), "result"), 0);
    assert_eq!(end, Ending::Close(1000, "done".into()));
}

#[tokio::test]
async fn errors_of_each_kind() {
    let server = documented().await;
    let mut socket = server.stream(&server.chat("fault recoverable").await, "").await;
    assert_eq!(socket.until_result().await.last().unwrap()["errors"][0]["recoverable"], true);
    assert_eq!(socket.until_result().await.last().unwrap()["subtype"], "success");

    let session = server.chat("fault error").await;
    let frames = server.stream(&session, "").await.until_result().await;
    assert_eq!(frames.last().unwrap()["errors"][0]["recoverable"], false);

    let mut socket = server.stream(&server.chat("fault late-result").await, "").await;
    assert_eq!(socket.until_result().await.last().unwrap()["is_error"], false);
    assert_eq!(socket.until_result().await.last().unwrap()["is_error"], true);

    let frames = server.stream(&server.chat("fault unheard-of").await, "").await.until_result().await;
    assert!(frames[0]["errors"][0]["message"].as_str().unwrap().contains("hang-after N"));
}

#[tokio::test]
async fn a_flood_arrives_whole_on_both_servers() {
    let server = documented().await;
    let expected: String = (0..5000).map(flood_text).collect();
    let frames = server.stream(&server.chat("flood 5000").await, "").await.until_result().await;
    assert_eq!(text(&frames), expected);

    let session = server.bridge_session().await;
    server.message(&session, "flood 5000").await;
    let (messages, _) = server.bridge_socket(&session, "").await.unwrap().rest().await;
    assert_eq!(text(&values(&messages)), expected);
}

#[tokio::test]
async fn the_pace_is_real_and_scaled() {
    let server = start(Options { pace: Pace::times(0.2), ..fast(Voice::Observed) }).await;
    let session = server.chat("fault error").await;
    let mut socket = server.stream(&session, "").await;
    let began = Instant::now();
    socket.next().await.unwrap();
    let first = began.elapsed();
    assert!(first > Duration::from_millis(150) && first < Duration::from_millis(800), "{first:?}");
}

#[tokio::test]
async fn shutdown_ends_sockets_and_runs_at_once() {
    let sim = Simulator::new(fast(Voice::Documented)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(sim.clone().serve(listener, stop.clone()));
    let idle = tokio::net::TcpStream::connect(address).await.unwrap();
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(1), serving).await.unwrap().unwrap();
    drop(idle);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

fn tallied(pieces: std::ops::Range<u64>) -> String {
    pieces.map(|n| tally_text("r", n)).collect()
}

/// The pieces of a run, in its text and in its tools' results.
fn pieces(frames: &[Value]) -> String {
    let piece = |frame: &Value| match frame["type"].as_str() {
        Some("streamlined_text") => frame["text"].as_str().filter(|text| text.starts_with('«')).map(str::to_owned),
        Some("tool_use_summary") => frame["summary"].as_str().map(str::to_owned),
        _ => None,
    };
    frames.iter().filter_map(piece).collect()
}

#[tokio::test]
async fn a_tally_numbers_its_text_and_its_tools() {
    for server in [documented().await, observed().await] {
        let frames = server.stream(&server.agent("tally r 12 tools=5").await, "").await.until_result().await;
        assert_eq!(pieces(&frames), tallied(0..12));
        assert_eq!(count(&frames, "tool_use_summary"), 2);
        assert!(!frames[0].to_string().contains("«r:0»"), "the first frame counts nothing");
        let session = server.bridge_session().await;
        server.message(&session, "tally r 12 tools=5 gap=1").await;
        let (messages, _) = server.bridge_socket(&session, "").await.unwrap().rest().await;
        assert_eq!(pieces(&values(&messages)), tallied(0..12));
    }
}

#[tokio::test]
async fn a_cursor_before_what_was_forgotten_is_desynced() {
    let server = documented().await;
    let session = server.chat("tally r 12 forget=6").await;
    let (messages, end) = server.stream(&session, "").await.rest().await;
    assert_eq!((pieces(&values(&messages)), end), (tallied(0..6), Ending::Cut));
    let cursor = format!("&since_seq={}", messages.len());
    let (notice, end) = server.stream(&session, &cursor).await.rest().await;
    assert!(notice[0].contains("session_desynced"), "{notice:?}");
    assert_eq!(end, Ending::Close(1000, "desynced".into()));
}

#[tokio::test]
async fn a_run_whose_stream_has_vanished_has_a_result() {
    let server = documented().await;
    let session = server.chat("tally r 12 vanish=6").await;
    let (messages, end) = server.stream(&session, "").await.rest().await;
    assert_eq!((pieces(&values(&messages)), end), (tallied(0..6), Ending::Cut));
    let path = format!("/v1/agent/sessions/{}/result", session.id);
    let mut result = Value::Null;
    for _ in 0..500 {
        result = server.http(Method::GET, &path, Some("alice"), "").await.json();
        if result["type"] == "result" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(result["result"], tallied(0..12));
}
