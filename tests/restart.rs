//! Case B9: the program is killed in the middle of runs and started again at the same address, over the same journal and before the same agent
//! servers. Whoever watched, on whatever surface, gets the rest by itself, everything once, and what was finished before reads the same to the byte.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use interline_sim::{Options, Pace, Simulator, tally_text};
use interline_testkit::{Client, Program, Temp, eventually, get, post, request};
use serde_json::{Value, json};
use support::{INTERLINE, UPSTREAMS, config_for, end, events, text, token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than a slow machine needs for anything here.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pieces of the run that goes on, and the pause between two: the program is killed in the middle and is back long before the end.
const PIECES: u64 = 60;
const GAP_MS: u64 = 100;
const KILLED_AT: u64 = 15;

/// Agent servers and a journal, which outlive the program.
struct Site {
    config: String,
    _journal: Temp,
    _stop: DropGuard,
}

impl Site {
    async fn new(durability: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let simulator = format!("http://{}", listener.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        let sim = Simulator::new(Options { pace: Pace::none(), ..Options::default() }).expect("a simulator");
        tokio::spawn(sim.serve(listener, stop.clone()));
        let journal = Temp::file("here", "");
        let path = journal.path().with_file_name("journal");
        let config = config_for(&simulator, &format!("[journal]\npath = {path:?}\n"));
        let config = config.replace("\nupstream = ", &format!("\ndurability = \"{durability}\"\nupstream = "));
        Self { config, _journal: journal, _stop: stop.drop_guard() }
    }
}

/// Begins a run over SSE in a session of its own; what comes out are both ids. Nobody listens to the answer any more.
async fn begin(base: &str, cell: &str, prompt: &str) -> (String, String) {
    let secret = token(cell);
    let session = post(&format!("{base}/api/sessions"), &secret, "{\"intent\": \"\"}").await.json();
    let session = session["session_id"].as_str().expect("a session").to_owned();
    let body = json!({
        "session_id": session, "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
    });
    let bearer = format!("Bearer {secret}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    let mut stream = request("POST", &format!("{base}/cells/{cell}/run"), &headers, body.to_string()).await;
    let seen = stream.until("\n\n").await;
    let run = events(&seen)[0]["run_id"].as_str().expect("a run").to_owned();
    (session, run)
}

/// A whole run as SSE replays it.
async fn replay(base: &str, cell: &str, run: &str) -> String {
    get(&format!("{base}/cells/{cell}/runs/{run}/events?from_seq=1"), &token(cell)).await.body
}

/// Follows a run over SSE by the number of the next event, to its end: the events, and how often it connected.
async fn follow_sse(base: String, cell: &'static str, run: String) -> (Vec<String>, usize) {
    let address = base.trim_start_matches("http://");
    let (mut seen, mut connected): (Vec<String>, usize) = (Vec::new(), 0);
    loop {
        let from = seen.len() + 1;
        let asked = format!(
            "GET /cells/{cell}/runs/{run}/events?from_seq={from} HTTP/1.0\r\nHost: {address}\r\nAccept: text/event-stream\r\nAuthorization: Bearer {}\r\n\r\n",
            token(cell)
        );
        let mut body = Vec::new();
        if let Ok(mut stream) = TcpStream::connect(address).await
            && stream.write_all(asked.as_bytes()).await.is_ok()
        {
            while stream.read_buf(&mut body).await.is_ok_and(|read| read > 0) {}
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        if let Some((head, body)) = body.split_once("\r\n\r\n") {
            connected += 1;
            assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{head}{body}");
            seen.extend(
                body.split_inclusive("\n\n").filter(|block| block.ends_with("\n\n") && block.contains("data: ")).map(str::to_owned),
            );
        }
        if seen.last().is_some_and(|block| end(&events(block)) == "done") {
            return (seen, connected);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Follows it on the native surface with its cursor, behind what was seen: the frames, and how often it connected.
async fn follow_native(base: String, cell: &'static str, run: String, mut seen: Vec<String>) -> (Vec<String>, usize) {
    let mut connected = 0;
    let is_over = |seen: &[String]| seen.last().is_some_and(|frame| frame.contains("\"type\":\"result\""));
    while !is_over(&seen) {
        sleep(Duration::from_millis(20)).await;
        let Ok(probe) = TcpStream::connect(base.trim_start_matches("http://")).await else { continue };
        drop(probe);
        let ticket = post(&format!("{base}/v1/agent/sessions/{run}/refresh-token"), &token(cell), "").await.json();
        let ticket = ticket["session_token"].as_str().expect("a ticket").to_owned();
        let cursor = if seen.is_empty() { String::new() } else { format!("&since_seq={}", seen.len()) };
        let url = format!("{}/v1/agent/sessions/{run}/stream?session_token={ticket}{cursor}", base.replace("http", "ws"));
        let Ok((mut socket, _)) = tokio_tungstenite::connect_async(url).await else { continue };
        connected += 1;
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Text(frame) = message {
                seen.push(frame.to_string());
                if is_over(&seen) {
                    break;
                }
            }
        }
    }
    (seen, connected)
}

/// What is finished, as each surface replays it.
async fn finished(base: &str, cell: &'static str, session: &str, run: &str) -> [String; 3] {
    let messages = get(&format!("{base}/api/sessions/{session}/messages"), &token(cell)).await;
    assert_eq!(messages.status, 200);
    let (native, _) = timeout(PATIENCE, follow_native(base.to_owned(), cell, run.to_owned(), Vec::new())).await.expect("it is there");
    [replay(base, cell, run).await, messages.body, native.join("\n")]
}

fn raw_of(seen: &interline_testkit::Seen) -> Vec<Value> {
    let lines = seen.json_lines();
    lines.iter().rev().find_map(|line| line["raw"].as_array().cloned()).expect("the events")
}

#[tokio::test(flavor = "multi_thread")]
async fn case_b9_killed_in_the_middle_of_runs_everybody_sees_the_rest_and_everything_once() {
    let site = Site::new("fsync").await;
    let mut program = Program::serve(INTERLINE, &site.config).await;
    let base = program.base().to_owned();
    let address = base.trim_start_matches("http://").to_owned();

    let mut before = Vec::new();
    for cell in UPSTREAMS {
        let (session, run) = begin(&base, cell, "quick").await;
        replay(&base, cell, &run).await;
        let shown = finished(&base, cell, &session, &run).await;
        before.push((cell, session, run, shown));
    }

    let mut watched = Vec::new();
    for cell in UPSTREAMS {
        let (session, run) = begin(&base, cell, &format!("tally {cell} {PIECES} gap={GAP_MS}")).await;
        let sse = tokio::spawn(follow_sse(base.clone(), cell, run.clone()));
        let native = tokio::spawn(follow_native(base.clone(), cell, run.clone(), Vec::new()));
        let socketio = tokio::spawn(Client::new("stays.mjs", &base).args(["--token", &token(cell), "--session", &session]).run());
        watched.push((cell, run, sse, native, socketio));
    }
    eventually("both runs are in the middle, and everybody watches", PATIENCE, async || {
        let metrics = get(&format!("{base}/metrics"), "").await.body;
        metrics.lines().any(|line| line == "interline_socketio_sockets 2")
    })
    .await;
    for (cell, run, ..) in &watched {
        let bearer = format!("Bearer {}", token(cell));
        let url = format!("{base}/cells/{cell}/runs/{run}/events?from_seq=1");
        request("GET", &url, &[("authorization", bearer.as_str())], "").await.until(&tally_text(cell, KILLED_AT)).await;
    }
    program.signal("KILL");
    program.ended(PATIENCE).await;
    let again = Program::serve_at(INTERLINE, &site.config, &address).await;

    for (cell, session, run, shown) in &before {
        let after = finished(&base, cell, session, run).await;
        for (now, then) in after.iter().zip(shown) {
            assert!(now == then, "{cell}: what was finished has changed\nbefore: {then}\nafter: {now}");
        }
    }
    let whole = join_all(watched.into_iter().map(async |(cell, run, sse, native, socketio)| {
        let (sse, sse_times) = timeout(PATIENCE, sse).await.expect("it ends").expect("a client");
        let (native, native_times) = timeout(PATIENCE, native).await.expect("it ends").expect("a client");
        let socketio = timeout(PATIENCE, socketio).await.expect("it ends").expect("a client").content();
        (cell, run, (sse, sse_times), (native, native_times), socketio)
    }))
    .await;
    for (cell, run, (sse, sse_times), (native, native_times), socketio) in whole {
        assert!(sse_times > 1 && native_times > 1, "{cell}: nobody lost its connection");
        assert!(socketio.output.contains("{\"connected\":2}"), "{cell}: {}", socketio.output);
        let expected: String = (0..PIECES).map(|n| tally_text(cell, n)).collect();
        let replayed = replay(&base, cell, &run).await;
        let all = events(&replayed);
        assert_eq!(text(&all), expected, "{cell}");
        assert_eq!(all.iter().filter(|event| event["type"] == "done" || event["type"] == "error").count(), 1, "{cell}");
        // Whoever says that it is an EventSource gets ids beside them.
        let data = |text: &str| text.lines().filter(|line| line.starts_with("data: ")).map(str::to_owned).collect::<Vec<_>>();
        assert!(data(&sse.concat()) == data(&replayed), "{cell}: {sse:#?}\n{replayed}");
        // Without a number, only the first to come is told everything.
        let first = native.get(..1).expect("a frame").to_vec();
        let (fresh, _) = timeout(PATIENCE, follow_native(base.clone(), cell, run.clone(), first)).await.expect("it is there");
        assert!(native == fresh, "{cell}: {native:#?}\n{fresh:#?}");
        let sequences: Vec<u64> = raw_of(&socketio).iter().filter_map(|event| event["stream_sequence"].as_u64()).collect();
        assert!(sequences.is_sorted_by(|one, next| one + 1 == *next), "{cell}: {sequences:?}");
        let ends = raw_of(&socketio).iter().filter(|event| event["type"] == "chat:end").count();
        assert_eq!(ends, 1, "{cell}");
    }
    drop(again);
}
