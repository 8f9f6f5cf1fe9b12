//! Case B9: the program is killed in the middle of runs, or told to end, and started again at the same address, over the same journal and before
//! the same agent servers. Whoever watched, on whatever surface, gets the rest by itself, everything once, and what was finished before reads the
//! same to the byte.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use interline_sim::{Options, tally_text};
use interline_testkit::{Client, Program, Temp, eventually, get, post, request};
use serde_json::{Value, json};
use support::{INTERLINE, UPSTREAMS, config_for, end, events, simulator, text, token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::DropGuard;

/// Longer than a slow machine needs for anything here.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pieces of the run that goes on, and the pause between two: the program is killed in the middle and is back long before the end.
const PIECES: u64 = 60;
const GAP_MS: u64 = 100;
const KILLED_AT: u64 = 15;

/// Agent servers and a journal, which outlive the program.
struct Site {
    config: String,
    journal: Temp,
    _stop: DropGuard,
}

impl Site {
    fn journal(&self) -> std::path::PathBuf {
        self.journal.path().with_file_name("journal")
    }

    async fn new(durability: &str) -> Self {
        let (_, simulator, stop) = simulator(Options::default()).await;
        let journal = Temp::file("here", "");
        let path = journal.path().with_file_name("journal");
        let config = config_for(&simulator, &format!("[journal]\npath = {path:?}\n"));
        let config = config.replace("\nupstream = ", &format!("\ndurability = \"{durability}\"\nupstream = "));
        Self { config, journal, _stop: stop }
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
        let stays = Client::new("stays.mjs", &base).args(["--token", &token(cell), "--session", &session]);
        let socketio = tokio::spawn(stays.run());
        let typed = Client::new("stays.mjs", &base).args(["--token", &token(cell), "--session", &session, "--typed"]);
        watched.push((cell, run, sse, native, (socketio, tokio::spawn(typed.run()))));
    }
    eventually("both runs are in the middle, and everybody watches", PATIENCE, async || {
        let metrics = get(&format!("{base}/metrics"), "").await.body;
        metrics.lines().any(|line| line == "interline_socketio_subscriptions 4")
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
        let (socketio, typed) = socketio;
        let socketio = timeout(PATIENCE, socketio).await.expect("it ends").expect("a client").content();
        let typed = timeout(PATIENCE, typed).await.expect("it ends").expect("a client").content();
        (cell, run, (sse, sse_times), (native, native_times), (socketio, typed))
    }))
    .await;
    for (cell, run, (sse, sse_times), (native, native_times), (socketio, typed)) in whole {
        assert!(sse_times > 1 && native_times > 1, "{cell}: nobody lost its connection");
        for client in [&socketio, &typed] {
            assert!(client.output.contains("{\"connected\":2}"), "{cell}: {}", client.output);
        }
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
        assert!(sequences.first() == Some(&1), "{cell}: {sequences:?}");
        let lines = typed.json_lines();
        let typed = lines.iter().rev().find_map(|line| line.get("typed")).expect("what it shows");
        assert_eq!((&typed["text"], &typed["chat_ends"]), (&json!(expected), &json!([run])), "{cell}");
        let ends = typed["turn_ends"].as_object().expect("turns");
        assert!(!ends.is_empty() && ends.values().all(|times| *times == 1), "{cell}: {ends:?}");
    }
    drop(again);
}

/// SIGTERM in the middle of a run that takes longer than `server.drain_ms`: it is left to the next process. Nobody tells the clients to come back
/// but the libraries themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_shutdown_leaves_to_the_next_process_is_seen_whole_and_once_by_stock_clients() {
    let site = Site::new("buffered").await;
    let server = "[server]\ndrain_ms = 100\nclose_spread_ms = 200\nretry_min_ms = 200\nretry_max_ms = 400\n";
    let config = format!("{}{server}", site.config);
    let mut program = Program::serve(INTERLINE, &config).await;
    let base = program.base().to_owned();
    let (cell, secret) = ("cloud", token("cloud"));
    let (session, run) = begin(&base, cell, &format!("tally {cell} {PIECES} gap={GAP_MS}")).await;
    let browser = Client::new("eventsource.mjs", &base).args(["--token", &secret, "--cell", cell, "--run", &run]);
    let browser = tokio::spawn(browser.run());
    let socketio = tokio::spawn(Client::new("stays.mjs", &base).args(["--token", &secret, "--session", &session]).run());
    eventually("both watch, and nobody else but who asks", PATIENCE, async || {
        let metrics = get(&format!("{base}/metrics"), "").await.body;
        let shown = |wanted: &str| metrics.lines().any(|line| line == wanted);
        shown("interline_socketio_subscriptions 1") && shown("interline_connections_open 3")
    })
    .await;
    program.signal("TERM");
    assert_eq!(program.ended(PATIENCE).await.code(), Some(0), "{}", program.output());
    assert!(program.output().contains("runs are left to the next process runs=1"), "{}", program.output());
    let again = Program::serve_at(INTERLINE, &config, base.trim_start_matches("http://")).await;

    let browser = timeout(PATIENCE, browser).await.expect("it ends").expect("a client").content();
    let socketio = timeout(PATIENCE, socketio).await.expect("it ends").expect("a client").content();
    let replayed = replay(&base, cell, &run).await;
    let expected: String = (0..PIECES).map(|n| tally_text(cell, n)).collect();
    assert_eq!(text(&events(&replayed)), expected);
    assert_eq!(end(&events(&replayed)), "done");

    // It comes back once more behind the end, to be told that there is no more.
    assert!(browser.errors.matches("connecting again").count() > 1, "it never lost its connection: {}", browser.errors);
    let lines = browser.json_lines();
    let shown: Vec<&str> = lines.iter().filter_map(|line| line["data"].as_str()).collect();
    let told: Vec<&str> = replayed.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert!(shown == told, "{shown:#?}\n{told:#?}");
    let ids: Vec<&str> = lines.iter().filter_map(|line| line["lastEventId"].as_str()).collect();
    let numbered: Vec<String> = (1..=told.len()).map(|n| format!("{run}:{n}")).collect();
    assert_eq!(ids, numbered);

    assert!(socketio.output.contains("{\"connected\":2}"), "{}", socketio.output);
    let raw = raw_of(&socketio);
    let sequences: Vec<u64> = raw.iter().filter_map(|event| event["stream_sequence"].as_u64()).collect();
    assert!(sequences.len() == raw.len() && sequences.is_sorted_by(|one, next| one + 1 == *next), "{sequences:?}");
    assert_eq!(raw.iter().filter(|event| event["type"] == "chat:end").count(), 1);
    drop(again);
}

/// Runs that wait for their turn were acknowledged like any other: whatever ends the program, they begin in the next one, once and in order, and
/// whoever watches the session or comes back for one of them sees it whole.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_wait_for_their_turn_begin_in_the_next_process_once_and_in_order() {
    for (signal, durability) in [("KILL", "fsync"), ("TERM", "buffered")] {
        let site = Site::new(durability).await;
        let server = "[server]\ndrain_ms = 100\nclose_spread_ms = 200\nretry_min_ms = 200\nretry_max_ms = 400\n";
        let config = format!("{}{server}", site.config.replace("\nupstream = ", "\non_busy = \"queue\"\nupstream = "));
        let mut program = Program::serve(INTERLINE, &config).await;
        let base = program.base().to_owned();
        let mut watched = Vec::new();
        for cell in UPSTREAMS {
            let secret = token(cell);
            let (session, first) = begin(&base, cell, &format!("tally {cell} {PIECES} gap={GAP_MS}")).await;
            let stays = || Client::new("stays.mjs", &base).args(["--token", &secret, "--session", &session, "--ends", "3"]);
            let stays = (tokio::spawn(stays().run()), tokio::spawn(stays().args(["--typed"]).run()));
            let plan = json!([["connect"], ["ask", "chat:send", {"message": format!("tally sent-{cell} 5")}]]).to_string();
            let desk = Client::new("desk.mjs", &base).args(["--token", &secret, "--plan", &plan, "--session", &session]);
            let told = desk.run().await.content().json_lines();
            let ack = told.iter().find_map(|line| line.get("ack")).expect("an acknowledgement");
            let second = ack["chat_run_id"].as_str().expect("a run").to_owned();
            let bearer = format!("Bearer {secret}");
            let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
            let prompt = format!("tally posted-{cell} 5");
            let body = json!({"session_id": session, "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}]});
            let posted = request("POST", &format!("{base}/cells/{cell}/run"), &headers, body.to_string()).await;
            assert_eq!(posted.status, 200);
            let third = posted.headers["x-run-id"].to_str().expect("a run").to_owned();
            let sse = tokio::spawn(follow_sse(base.clone(), cell, third.clone()));
            watched.push((cell, [first, second, third], sse, stays));
        }
        eventually("everybody watches", PATIENCE, async || {
            let metrics = get(&format!("{base}/metrics"), "").await.body;
            metrics.lines().any(|line| line == "interline_socketio_subscriptions 4")
        })
        .await;
        // With `buffered`, what is older than the interval and the commit after it.
        sleep(Duration::from_millis(500)).await;
        program.signal(signal);
        program.ended(PATIENCE).await;
        let again = Program::serve_at(INTERLINE, &config, base.trim_start_matches("http://")).await;
        assert!(again.output().contains("waiting=4"), "{}", again.output());
        for (cell, runs, sse, stays) in watched {
            let said = |label: &str, pieces: u64| (0..pieces).map(|n| tally_text(label, n)).collect::<String>();
            let labels = [(cell.to_owned(), PIECES), (format!("sent-{cell}"), 5), (format!("posted-{cell}"), 5)];
            let expected = labels.clone().map(|(label, pieces)| said(&label, pieces));
            let raw = timeout(PATIENCE, stays.0).await.expect("it ends").expect("a client").content();
            let typed = timeout(PATIENCE, stays.1).await.expect("it ends").expect("a client").content();
            for client in [&raw, &typed] {
                assert!(client.output.contains("{\"connected\":2}"), "{signal} {cell}: {}", client.output);
            }
            let raw = raw_of(&raw);
            let sequences: Vec<u64> = raw.iter().filter_map(|event| event["stream_sequence"].as_u64()).collect();
            // Every chat counts from 1.
            assert!(sequences.is_sorted_by(|one, next| one + 1 == *next || *next == 1), "{signal} {cell}: {sequences:?}");
            assert_eq!(sequences.iter().filter(|number| **number == 1).count(), 3, "{signal} {cell}: {sequences:?}");
            assert_eq!(raw.iter().filter(|event| event["type"] == "chat:end").count(), 3, "{signal} {cell}");
            let lines = typed.json_lines();
            let typed = lines.iter().rev().find_map(|line| line.get("typed")).expect("what it shows");
            assert_eq!((&typed["text"], &typed["chat_ends"]), (&json!(expected.concat()), &json!(runs)), "{signal} {cell}");
            let (sse, times) = timeout(PATIENCE, sse).await.expect("it ends").expect("a client");
            assert!(times > 1, "{signal} {cell}: it never lost its connection");
            assert_eq!(text(&events(&sse.concat())), expected[2], "{signal} {cell}");
            for (run, expected) in runs.iter().zip(&expected) {
                assert_eq!(&text(&events(&replay(&base, cell, run).await)), expected, "{signal} {cell}");
            }
        }
    }
}

/// Bytes of the file changed while nobody had it open: it is set aside, that is said, and it is not said in the words of a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_damaged_is_set_aside_and_that_is_said() {
    let site = Site::new("fsync").await;
    let mut program = Program::serve(INTERLINE, &site.config).await;
    for _ in 0..5 {
        let (_, run) = begin(program.base(), "cloud", "tally piece 50 size=2000").await;
        replay(program.base(), "cloud", &run).await;
    }
    program.signal("TERM");
    program.ended(PATIENCE).await;
    let path = site.journal();
    let whole = std::fs::read(&path).expect("the journal");
    // Wherever it is: some pages are index, some are records.
    for at in [0.3, 0.5, 0.8] {
        let mut changed = whole.clone();
        let from = (changed.len() as f64 * at) as usize;
        changed[from..from + 12 * 1024].fill(0xA5);
        std::fs::write(&path, changed).expect("it can be changed");
        let mut program = Program::serve(INTERLINE, &site.config).await;
        let (session, run) = begin(program.base(), "cloud", "quick").await;
        assert_eq!(end(&events(&replay(program.base(), "cloud", &run).await)), "done");
        assert_eq!(get(&format!("{}/api/sessions/{session}/messages", program.base()), &token("cloud")).await.status, 200);
        program.signal("TERM");
        program.ended(PATIENCE).await;
        assert!(!program.output().contains("panicked"), "{}", program.output());
    }
}
