//! How the program ends, and how it changes while it runs: not ready first, no new runs, those that go on finish, clients are told when to come back and leave one after the
//! other, and the process is gone within a bound whatever clients and agent servers do.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_sim::{Options, Pace, Simulator};
use interline_testkit::{Client, Program, eventually, get, post, request};
use support::{INTERLINE, config_for, end, events, text, token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A simulator that outlives the programs in front of it.
struct Agents {
    url: String,
    simulator: Simulator,
    _stop: DropGuard,
}

impl Agents {
    /// With a rhythm: a `long` answer takes about twenty seconds times `pace`.
    async fn new(pace: f64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        let simulator = Simulator::new(Options { pace: Pace::times(pace), ..Options::default() }).expect("a simulator");
        tokio::spawn(simulator.clone().serve(listener, stop.clone()));
        Self { url, simulator, _stop: stop.drop_guard() }
    }

    async fn serve(&self, more: &str) -> Program {
        Program::serve(INTERLINE, &config_for(&self.url, more)).await
    }
}

fn body(prompt: &str) -> String {
    serde_json::json!({"actor": "u", "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}]}).to_string()
}

/// Starts a run over SSE; its stream, once the headers are there.
async fn run(base: &str, cell: &str, prompt: &str) -> interline_testkit::Stream {
    let bearer = format!("Bearer {}", token(cell));
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    request("POST", &format!("{base}/cells/{cell}/run"), &headers, body(prompt)).await
}

fn run_id(stream: &interline_testkit::Stream) -> String {
    stream.headers["x-run-id"].to_str().expect("an id").to_owned()
}

/// A run's id as the native surface writes it.
fn dashed(run: &str) -> String {
    let hex = run.strip_prefix("run-").expect("a run id");
    let part = |from: usize, to: usize| hex.get(from..to).expect("32 digits");
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// A Socket.IO client over a WebSocket, without a library.
struct Socket(tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>);

impl Socket {
    /// Connects; `None` if nobody is there.
    async fn connect(base: &str, cell: &str) -> Option<Self> {
        let url = format!("{}/socket.io/?EIO=4&transport=websocket", base.replace("http", "ws"));
        let (stream, _) = tokio_tungstenite::connect_async(url).await.ok()?;
        let mut socket = Self(stream);
        socket.packet().await.filter(|packet| packet.starts_with('0'))?;
        socket.say(&format!(r#"40{{"token":"{}"}}"#, token(cell))).await;
        socket.packet().await.filter(|packet| packet.starts_with("40"))?;
        Some(socket)
    }

    async fn say(&mut self, packet: &str) {
        let _ = self.0.send(packet.to_owned().into()).await;
    }

    /// The next packet but for heartbeats; `None` at the end.
    async fn packet(&mut self) -> Option<String> {
        loop {
            match self.0.next().await? {
                Ok(Message::Text(text)) if text.as_str() == "2" => self.say("3").await,
                Ok(Message::Text(text)) => return Some(text.to_string()),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// The acknowledgement of an event.
    async fn ask(&mut self, event: &str, data: serde_json::Value) -> serde_json::Value {
        self.say(&format!("4277{}", serde_json::json!([event, data]))).await;
        loop {
            let packet = self.packet().await.expect("an acknowledgement");
            if let Some(answer) = packet.strip_prefix("4377") {
                return serde_json::from_str::<Vec<serde_json::Value>>(answer).expect("an acknowledgement").remove(0);
            }
        }
    }
}

async fn socket_session(base: &str, cell: &str) -> String {
    let created = post(&format!("{base}/api/sessions"), &token(cell), r#"{"intent":""}"#).await.json();
    created["session_id"].as_str().expect("an id").to_owned()
}

async fn readiness(base: &str) -> (u16, String) {
    let answer = get(&format!("{base}/readyz"), "").await;
    (answer.status, answer.json()["status"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_turns_readiness_off_first_then_new_runs_are_refused_in_each_surfaces_words_and_those_that_go_on_finish() {
    let agents = Agents::new(0.15).await;
    let server = "[server]\nready_off_ms = 800\ndrain_ms = 20000\nclose_spread_ms = 200\nretry_min_ms = 3000\nretry_max_ms = 9000";
    let mut program = agents.serve(server).await;
    let base = program.base().to_owned();
    assert_eq!(readiness(&base).await, (200, "ok".to_owned()));
    let going = run(&base, "cloud", "long").await;
    let mut socket = Socket::connect(&base, "cloud").await.expect("a socket");
    let session = socket_session(&base, "cloud").await;

    program.signal("TERM");
    eventually("readiness is off", PATIENCE, async || readiness(&base).await == (503, "draining".to_owned())).await;
    let alive = get(&format!("{base}/healthz"), "").await;
    assert_eq!(alive.status, 200, "it is alive all the same");
    let late = run(&base, "bridge", "quick").await;
    assert_eq!(late.status, 200, "until load balancers have noticed, runs are taken");
    assert_eq!(end(&events(&late.rest().await)), "done");

    let refused = {
        let (base, mut last) = (base.clone(), None);
        eventually("new runs are refused", PATIENCE, async || {
            let answer = post(&format!("{base}/cells/cloud/run"), &token("cloud"), &body("quick")).await;
            let refused = answer.status == 503;
            last = Some(answer);
            refused
        })
        .await;
        last.expect("an answer")
    };
    assert_eq!((refused.json()["type"].as_str(), refused.json()["kind"].as_str()), (Some("error"), Some("draining")));
    let native = post(&format!("{base}/v1/agent/sessions"), &token("cloud"), r#"{"mode":"agent","prompt":"quick"}"#).await;
    assert_eq!((native.status, native.json()["error"]["code"].as_str()), (503, Some("shutting_down")));
    let mut waits = Vec::new();
    for _ in 0..12 {
        let answer = post(&format!("{base}/cells/cloud/run"), &token("cloud"), &body("quick")).await;
        waits.push(answer.header("retry-after").parse::<u64>().expect("seconds"));
    }
    waits.extend([&refused, &native].map(|answer| answer.header("retry-after").parse::<u64>().expect("seconds")));
    assert!(waits.iter().all(|wait| (3..=9).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| wait != &waits[0]), "everybody is told the same: {waits:?}");
    let ack = socket.ask("chat:send", serde_json::json!({"session_id": session, "message": "quick"})).await;
    assert_eq!((ack["ok"].as_bool(), ack["code"].as_str()), (Some(false), Some("unavailable")), "{ack}");

    let seen = events(&going.rest().await);
    assert_eq!(end(&seen), "done", "the run that went on has finished");
    assert_eq!(seen.last().and_then(|event| event["reason"].as_str()), Some("end_turn"));
    assert!(text(&seen).len() > 200);
    let status = program.ended(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(0), "{}", program.output());
    let said = program.output();
    for line in ["ending: not ready any more", "no new runs, those that go on may finish", "left=0", "closing connections", "ended ms="] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_in_every_stage() {
    let agents = Agents::new(0.0).await;
    for server in ["ready_off_ms = 60000", "drain_ms = 60000", "drain_ms = 0\nclose_spread_ms = 60000"] {
        let mut program = agents.serve(&format!("[server]\n{server}")).await;
        let base = program.base().to_owned();
        let _hanging = run(&base, "cloud", "fault hang-after 2").await;
        let mut socket = Socket::connect(&base, "cloud").await.expect("a socket");
        let _reading = tokio::spawn(async move { while socket.packet().await.is_some() {} });
        program.signal("TERM");
        eventually("the first is heard", PATIENCE, async || program.output().contains("a second signal ends at once")).await;
        let asked = Instant::now();
        program.signal("INT");
        assert_eq!(program.ended(Duration::from_secs(5)).await.code(), Some(130), "{server}");
        assert!(asked.elapsed() < Duration::from_secs(2), "{server}: {:?}", asked.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_and_servers_that_never_answer_hold_up_nobodys_end() {
    let agents = Agents::new(0.0).await;
    let mut program = agents.serve("[server]\ndrain_ms = 300\nclose_spread_ms = 300").await;
    let base = program.base().to_owned();
    let address = base.trim_start_matches("http://").to_owned();
    let mut held = Vec::new();
    // Sockets of every kind that are never read, the first two in the middle of a flood that fills every buffer.
    for prompt in ["flood 100000", "flood 100000", "fault silent", "fault hang-after 3"] {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        let body = body(prompt);
        let head = format!(
            "POST /cells/cloud/run HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            token("cloud"),
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("it is sent");
        held.push(stream);
    }
    let session = socket_session(&base, "cloud").await;
    let mut socket = Socket::connect(&base, "cloud").await.expect("a socket");
    socket.say(&format!("42{}", serde_json::json!(["chat:send", {"session_id": session, "message": "flood 100000"}]))).await;
    let mut half = TcpStream::connect(&address).await.expect("a connection");
    half.write_all(b"POST /cells/cloud/run HTTP/1.1\r\nContent-Length: 100\r\n").await.expect("it is sent");
    eventually("all runs go on or have", PATIENCE, async || {
        let metrics = get(&format!("{base}/metrics"), "").await.body;
        metrics.lines().any(|line| line == "interline_runs_started_total 5")
    })
    .await;
    let asked = Instant::now();
    program.signal("TERM");
    // 300 ms to finish, 2 s for what links still have to say, 300 ms to close and 5 s until what does not close is cut.
    let status = program.ended(Duration::from_secs(12)).await;
    assert_eq!(status.code(), Some(0), "{}", program.output());
    println!("ended after {:?} with {} clients that never read", asked.elapsed(), held.len() + 1);
    drop((held, half));
}

/// Where one of many clients is, and when it came back.
#[derive(Clone, Copy, Debug)]
struct Back {
    left: Duration,
    came: Duration,
}

/// A client of SSE that reads the whole run, as the browser's does: when its stream ends, it waits as it was told and asks again, until it is
/// answered, whatever the answer, by another process than the one that ends. What it saw, and when it came back.
async fn follow(base: String, url: String, begun: Instant, there: Arc<AtomicUsize>, gone: CancellationToken) -> (String, Back) {
    let bearer = format!("Bearer {}", token("cloud"));
    let headers = [("authorization", bearer.as_str()), ("accept", "text/event-stream")];
    let stream = request("GET", &url, &headers, "").await;
    there.fetch_add(1, Ordering::Relaxed);
    let seen = stream.rest().await;
    let left = begun.elapsed();
    let told = seen.lines().filter_map(|line| line.strip_prefix("retry: ")?.parse::<u64>().ok()).next_back();
    loop {
        sleep(Duration::from_millis(told.unwrap_or(500))).await;
        // While other runs go on, the one that ends answers whoever has seen the end of its own.
        let is_next = gone.is_cancelled();
        if knock(&base).await && is_next {
            return (seen, Back { left, came: begun.elapsed() });
        }
    }
}

/// One request over a new connection; whether somebody answered.
async fn knock(base: &str) -> bool {
    let address = base.trim_start_matches("http://");
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    let sent = stream.write_all(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes()).await;
    let mut answer = String::new();
    sent.is_ok() && stream.read_to_string(&mut answer).await.is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// A Socket.IO client that comes back as the library does: after a second, half as much more or less, later each time.
async fn stay(base: String, number: u64, mut socket: Socket, begun: Instant) -> Back {
    while socket.packet().await.is_some() {}
    let left = begun.elapsed();
    drop(socket);
    let mut delay = 1000;
    loop {
        // Each client's own share, spread as evenly as chance would.
        sleep(Duration::from_millis(delay / 2 + delay * (number * 37 % 100) / 100)).await;
        if Socket::connect(&base, "cloud").await.is_some() {
            return Back { left, came: begun.elapsed() };
        }
        delay = (delay * 2).min(5000);
    }
}

/// How far apart the tenth and the ninetieth of a hundred are.
fn width(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    at(90).saturating_sub(at(10))
}

/// The 50th and the 99th of a hundred, and the most that fall into one of the buckets of `width`.
fn spread(mut times: Vec<Duration>, width: Duration) -> (Duration, Duration, usize) {
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default();
    let mut buckets = BTreeMap::<u128, usize>::new();
    for time in &times {
        *buckets.entry(time.as_millis() / width.as_millis()).or_default() += 1;
    }
    (at(50), at(99), buckets.into_values().max().unwrap_or_default())
}

/// How many files a process may have open here, raised to so many if it is less.
fn descriptors(wanted: usize) -> usize {
    // What a child is told is what this process has.
    let limit = || {
        let told = std::process::Command::new("sh").args(["-c", "ulimit -S -n"]).output().expect("a shell").stdout;
        String::from_utf8_lossy(&told).trim().parse().unwrap_or(usize::MAX)
    };
    if limit() < wanted {
        let asked = [format!("--pid={}", std::process::id()), format!("--nofile={wanted}:")];
        let _ = std::process::Command::new("prlimit").args(asked).status();
    }
    limit()
}

/// Case D14: SIGTERM with two thousand clients on all surfaces while runs go on. Every run is seen whole, and the clients come back one after the
/// other and not as a storm. Times are a fifth of the defaults.
#[tokio::test(flavor = "multi_thread")]
async fn case_d14_two_thousand_clients_lose_nothing_and_come_back_one_after_the_other() {
    const RUNS: usize = 40;
    const MANY: usize = 2_400;
    // Of every 24 clients 20 are on SSE, 2 on Socket.IO and 2 on the native surface.
    let (streams, sockets, natives) = (MANY / 24 * 20, MANY / 24 * 2, MANY / 24 * 2);
    // The other tests of this process need some, too.
    let files = descriptors(MANY + 600);
    assert!(files >= MANY + 600, "{MANY} clients need {} open files, and a process may have {files} here: raise `ulimit -n`", MANY + 600);
    let agents = Agents::new(0.8).await;
    let server = "[server]\ndrain_ms = 30000\nclose_spread_ms = 2000\nretry_min_ms = 500\nretry_max_ms = 3000";
    let mut program = agents.serve(server).await;
    let base = program.base().to_owned();
    let address = base.trim_start_matches("http://").to_owned();

    let begun = Instant::now();
    let mut staying = Vec::new();
    for number in 0..sockets {
        let socket = Socket::connect(&base, "cloud").await.expect("a socket");
        staying.push(tokio::spawn(stay(base.clone(), number as u64, socket, begun)));
    }
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(run(&base, "cloud", "long").await);
    }
    let ids: Vec<String> = runs.iter().map(run_id).collect();
    let posted: Vec<_> = runs.into_iter().map(|stream| tokio::spawn(stream.rest())).collect();
    let mut closing = Vec::new();
    for number in 0..natives {
        let id = dashed(&ids[number % RUNS]);
        let refreshed = post(&format!("{base}/v1/agent/sessions/{id}/refresh-token"), &token("cloud"), "").await.json();
        let ticket = refreshed["session_token"].as_str().expect("a token");
        let url = format!("{}/v1/agent/sessions/{id}/stream?session_token={ticket}", base.replace("http", "ws"));
        let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("a native socket");
        closing.push(tokio::spawn(async move {
            loop {
                match socket.next().await {
                    Some(Ok(Message::Close(close))) => return (begun.elapsed(), close.map(|close| close.code)),
                    Some(Ok(_)) => {}
                    _ => return (begun.elapsed(), None),
                }
            }
        }));
    }
    let (arrived, over) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let watching: Vec<_> = (0..streams)
        .map(|number| {
            let url = format!("{base}/cells/cloud/runs/{}/events", ids[number % RUNS]);
            tokio::spawn(follow(base.clone(), url, begun, arrived.clone(), over.clone()))
        })
        .collect();
    eventually("every client is there", PATIENCE, async || arrived.load(Ordering::Relaxed) == streams).await;
    let there = begun.elapsed();
    program.signal("TERM");
    let status = timeout(PATIENCE, program.ended(PATIENCE)).await.expect("it ends");
    let gone = begun.elapsed();
    over.cancel();
    assert_eq!(status.code(), Some(0), "{}", program.output());
    assert!(program.output().contains("left=0"), "{}", program.output());
    let again = Program::serve_at(INTERLINE, &config_for(&agents.url, server), &address).await;
    let up = begun.elapsed();

    let mut whole = Vec::new();
    for body in posted {
        whole.push(events(&body.await.expect("a client")));
    }
    assert!(whole.iter().all(|seen| end(seen) == "done"), "every run has finished");
    let (mut lost, mut times, mut left) = (0, Vec::new(), Vec::new());
    for (number, watcher) in watching.into_iter().enumerate() {
        let (seen, back) = timeout(PATIENCE, watcher).await.expect("it comes back").expect("a client");
        lost += usize::from(events(&seen) != whole[number % RUNS]);
        times.push(back.came);
        left.push(back.left);
    }
    assert_eq!(lost, 0, "streams that did not tell their run whole");
    let sse = spread(times.clone(), Duration::from_millis(100));
    let (mut came, mut went) = (Vec::new(), Vec::new());
    for client in staying {
        let back = timeout(PATIENCE, client).await.expect("it comes back").expect("a client");
        came.push(back.came);
        went.push(back.left);
    }
    let closes = spread(went.clone(), Duration::from_millis(100));
    let socketio = spread(came.clone(), Duration::from_millis(100));
    let mut native = Vec::new();
    for client in closing {
        let (at, code) = client.await.expect("a client");
        assert_eq!(code, Some(CloseCode::Away));
        native.push(at);
    }
    let away = spread(native.clone(), Duration::from_millis(100));
    assert!(times.len() >= 2_000 && came.len() == sockets && native.len() == natives);
    println!("{MANY} clients ({streams} SSE, {sockets} Socket.IO, {natives} native), {RUNS} runs; {files} open files at most");
    println!("  all there after {there:?}; SIGTERM to exit {:?}; next process up after {:?}", gone - there, up - gone);
    println!("  lost 0 of {} streams; all {RUNS} turns complete", streams + RUNS);
    println!("  Socket.IO closes: p50 {:?} p99 {:?}, at most {} of {sockets} in 100 ms", closes.0 - there, closes.1 - there, closes.2);
    println!("  native closes:    p50 {:?} p99 {:?}, at most {} of {natives} in 100 ms", away.0 - there, away.1 - there, away.2);
    println!("  SSE back:         p50 {:?} p99 {:?}, at most {} of {streams} in 100 ms", sse.0 - there, sse.1 - there, sse.2);
    println!(
        "  Socket.IO back:   p50 {:?} p99 {:?}, at most {} of {sockets} in 100 ms",
        socketio.0 - there,
        socketio.1 - there,
        socketio.2
    );
    let recovered = times.iter().chain(&came).max().copied().unwrap_or_default();
    println!("  everybody is back {:?} after the next process came up", recovered.saturating_sub(up));
    // While sockets are closed, nobody is let in any more: all of these were let in by the next process.
    let soonest = came.iter().min().copied().unwrap_or_default();
    assert!(soonest >= gone, "a socket came back {:?} before the first process was gone", gone.saturating_sub(soonest));
    // Who does that is the program alone: sockets are closed one after the other, of whose 2,000 ms eight tenths are 1,600; and the clients of SSE,
    // whose streams end with their runs, come back when each was told to. A machine that is busy with those who come back lets some be seen
    // together that were apart, so half of the time must do.
    let widths = [width(went), width(native), width(times)];
    println!("  apart: Socket.IO closes {:?}, native closes {:?}, SSE back {:?}", widths[0], widths[1], widths[2]);
    assert!(widths.iter().all(|width| *width > Duration::from_millis(1_000)), "as a crowd: {widths:?}");
    assert!(recovered.saturating_sub(up) < Duration::from_secs(20));
    drop(again);
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_socketio_clients_come_back_by_themselves_over_every_transport() {
    let agents = Agents::new(0.0).await;
    let server = "[server]\ndrain_ms = 1000\nclose_spread_ms = 300";
    let mut program = agents.serve(server).await;
    let base = program.base().to_owned();
    let secret = token("cloud");
    let mut clients = Vec::new();
    for name in ["back.mjs", "back.py"] {
        for transport in ["default", "websocket", "polling"] {
            let args = ["--token", &secret, "--transport", transport];
            clients.push(tokio::spawn(Client::new(name, &base).args(args).run()));
        }
    }
    eventually("all are connected, and those that want to have upgraded", PATIENCE, async || {
        let metrics = get(&format!("{base}/metrics"), "").await.body;
        metrics.lines().any(|line| line == "interline_socketio_sockets 6")
    })
    .await;
    // Between the polls of a client, or in one: both must do.
    program.signal("TERM");
    assert_eq!(program.ended(Duration::from_secs(12)).await.code(), Some(0));
    let again = Program::serve_at(INTERLINE, &config_for(&agents.url, server), base.trim_start_matches("http://")).await;
    for client in clients {
        let seen = client.await.expect("a client").content();
        println!("{}: {}", seen.name, seen.output.replace('\n', " "));
        assert!(!seen.output.contains("server disconnect"), "{}: {}", seen.name, seen.output);
    }
    drop(again);
}

/// Sends SIGHUP and waits until the log says what came of it, so many times by now.
async fn reload(program: &Program, said: &str, times: usize) {
    program.signal("HUP");
    eventually(said, PATIENCE, async || program.output().matches(said).count() >= times).await;
}

async fn metric(base: &str, line: &str) -> bool {
    get(&format!("{base}/metrics"), "").await.body.lines().any(|shown| shown.starts_with(line))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_lets_new_tokens_and_routes_in_and_old_ones_out_while_streams_go_on() {
    let agents = Agents::new(0.2).await;
    let mut program = agents.serve("").await;
    let base = program.base().to_owned();
    let going = run(&base, "bridge", "long").await;
    let mut dismissed = run(&base, "cloud", "fault hang-after 2").await;
    dismissed.until("run_start").await;
    let mut socket = Socket::connect(&base, "bridge").await.expect("a socket");
    let session = socket_session(&base, "bridge").await;
    let new = config_for(&agents.url, "[[route]]\ncell = \"third\"\nupstream = \"plane\"\n").replace(
        "name = \"cloud\"\nsecret = { value = \"cloud-secret\" }\ncells = [\"cloud\"]",
        "name = \"late\"\nsecret = { value = \"third-secret\" }\ncells = [\"third\"]",
    );
    assert!(new.contains("third-secret") && !new.contains("cloud-secret"));
    assert_eq!(post(&format!("{base}/cells/third/run"), "third-secret", &body("quick")).await.status, 401);
    program.rewrite(&new);
    reload(&program, "INFO reloaded", 1).await;
    assert!(program.output().contains("changed=\"token, route\""), "{}", program.output());
    let added = run(&base, "third", "quick").await;
    assert_eq!((added.status, end(&events(&added.rest().await))), (200, "done"));
    for (path, body) in [("run", body("quick")), ("sessions/x/interrupt", String::new())] {
        assert_eq!(post(&format!("{base}/cells/cloud/{path}"), &token("cloud"), &body).await.status, 401, "{path}");
    }
    assert_eq!(post(&format!("{base}/v1/agent/sessions"), &token("cloud"), "{}").await.status, 401);
    assert_eq!(get(&format!("{base}/api/sessions"), &token("cloud")).await.status, 401);
    assert!(Socket::connect(&base, "cloud").await.is_none(), "nor does a socket come in");
    let ack = socket.ask("chat:send", serde_json::json!({"session_id": session, "message": "quick"})).await;
    assert_eq!(ack["ok"], true, "who may still come is not disturbed: {ack}");
    let seen = events(&going.rest().await);
    assert_eq!(end(&seen), "done", "the stream that was open goes on to its end");
    let cut = timeout(PATIENCE, tokio::spawn(dismissed.rest())).await.expect("it ends");
    assert!(cut.is_err(), "whose token is gone is cut off at once, and not as if its run were over: {cut:?}");
    assert!(metric(&base, "interline_config_reloads_total{outcome=\"taken\"} 1").await);
    assert!(metric(&base, "interline_config_last_reload_timestamp_seconds{outcome=\"taken\"} 1").await);
    program.signal("TERM");
    assert_eq!(program.ended(Duration::from_secs(20)).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_that_is_not_right_changes_nothing_and_what_cannot_change_is_named() {
    let agents = Agents::new(0.0).await;
    let program = agents.serve("").await;
    let base = program.base().to_owned();
    let good = config_for(&agents.url, "");
    let last = good.lines().count() + 1;
    for (number, (bad, said)) in [
        ("[server]\ndrain_ms = \n", format!("interline.toml:{}: ", last + 1)),
        ("[server]\ndrain = 1\n", format!("interline.toml:{}: server.drain: ", last + 1)),
        ("[[route]]\ncell = \"x\"\nupstream = \"nobody\"\n", format!("interline.toml:{}: route[2].upstream: ", last + 2)),
        (
            "[[token]]\nname = \"x\"\nsecret = { env = \"INTERLINE_NOBODY_SET_THIS\" }\ncells = [\"cloud\"]\n",
            format!("interline.toml:{}: token[2].secret", last + 2),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        program.rewrite(&format!("{good}{bad}"));
        reload(&program, "nothing of it was taken", number + 1).await;
        assert!(program.output().contains(&said), "{said}: {}", program.output());
    }
    assert!(metric(&base, "interline_config_reloads_total{outcome=\"refused\"} 4").await);
    let same = run(&base, "cloud", "quick").await;
    assert_eq!((same.status, end(&events(&same.rest().await))), (200, "done"), "the one before goes on");

    program.rewrite(&format!(
        "{good}[server]\nmax_body_bytes = 1000000\ndrain_ms = 77\n[log]\nformat = \"json\"\nfilter = \"warn\"\n[run]\nmax_active = 3\n"
    ));
    program.signal("HUP");
    for key in ["server.max_body_bytes", "log.format", "run.max_active"] {
        let said = format!("this key needs a restart: until then its old value holds key=\"{key}\"");
        eventually(&said, PATIENCE, async || program.output().contains(&said)).await;
    }
    eventually("it is taken all the same", PATIENCE, async || metric(&base, "interline_config_reloads_total{outcome=\"taken\"} 1").await)
        .await;
    assert!(!program.output().contains("INFO reloaded"), "the filter holds at once, for this very line");
    program.rewrite(&good);
    reload(&program, "INFO reloaded", 1).await;
    assert!(program.output().contains("log.filter"), "{}", program.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_follow_their_cell_to_another_upstream_with_their_next_run_and_stay_readable_without_a_route() {
    let (old, new) = (Agents::new(0.1).await, Agents::new(0.0).await);
    let config = |url: &str, cell: &str| {
        format!(
            "[auth]\nmode = \"tokens\"\n[[token]]\nname = \"all\"\nsecret = {{ value = \"web-secret\" }}\ncells = [\"*\"]\n\
             [[upstream]]\nname = \"plane\"\nkind = \"cloud\"\nurl = \"{url}\"\ncredential = {{ value = \"x\" }}\n[[route]]\ncell = \"{cell}\"\nupstream = \"plane\"\n"
        )
    };
    let program = Program::serve(INTERLINE, &config(&old.url, "web")).await;
    let base = program.base().to_owned();
    let going = run(&base, "web", "long").await;
    let (first, session) = (run_id(&going), going.headers["x-session-id"].to_str().expect("an id").to_owned());
    program.rewrite(&config(&new.url, "web"));
    reload(&program, "INFO reloaded", 1).await;
    let seen = going.rest().await;
    assert_eq!(end(&events(&seen)), "done", "the run that went on stayed with its agent server");
    let again = serde_json::json!({"session_id": session, "messages": [{"role": "user", "content": [{"type": "text", "text": "quick"}]}]});
    let next = post(&format!("{base}/cells/web/run"), "web-secret", &again.to_string()).await;
    assert_eq!(end(&events(&next.body)), "done");
    assert_eq!((old.simulator.stats().prompts.len(), new.simulator.stats().prompts.len()), (1, 1));
    let replay = || get_plain(format!("{base}/cells/web/runs/{first}/events?from_seq=1"));
    assert_eq!(replay().await, seen, "what was said before is read as it was");

    program.rewrite(&config(&new.url, "elsewhere"));
    reload(&program, "INFO reloaded", 2).await;
    assert_eq!(replay().await, seen, "and stays readable without a route");
    let refused = post(&format!("{base}/cells/web/run"), "web-secret", &again.to_string()).await;
    assert_eq!((refused.status, refused.json()["kind"].as_str()), (404, Some("cell_not_found")));
    let moved = post(&format!("{base}/cells/elsewhere/run"), "web-secret", &body("quick")).await;
    assert_eq!(end(&events(&moved.body)), "done");
}

async fn get_plain(url: String) -> String {
    get(&url, "web-secret").await.body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_reloads_under_load_lose_nothing() {
    let agents = Agents::new(0.05).await;
    let program = agents.serve("").await;
    let base = program.base().to_owned();
    let long: Vec<_> = futures_util::future::join_all((0..8).map(|_| run(&base, "cloud", "long"))).await;
    let long: Vec<_> = long.into_iter().map(|stream| tokio::spawn(stream.rest())).collect();
    let stop = CancellationToken::new();
    let mut working = Vec::new();
    for number in 0..6 {
        let (base, stop, cell) = (base.clone(), stop.clone(), ["cloud", "bridge"][number % 2]);
        working.push(tokio::spawn(async move {
            let mut done = 0_usize;
            while !stop.is_cancelled() {
                let stream = run(&base, cell, "quick").await;
                assert_eq!(stream.status, 200);
                assert_eq!(end(&events(&stream.rest().await)), "done");
                done += 1;
            }
            done
        }));
    }
    let good = config_for(&agents.url, "");
    for number in 0..100 {
        // Every tenth is not right, every third has another upstream, all others are as they were.
        let more = if number % 3 == 0 { "[[upstream]]\nname = \"more\"\nkind = \"bridge\"\nurl = \"http://127.0.0.1:1\"\n" } else { "" };
        let bad = if number % 10 == 0 { "nonsense" } else { "" };
        program.rewrite(&format!("{good}{more}{bad}"));
        program.signal("HUP");
        sleep(Duration::from_millis(10)).await;
    }
    let all = || program.output().matches("INFO reloaded").count() + program.output().matches("nothing of it was taken").count();
    eventually("the last one is heard", PATIENCE, async || all() > 10).await;
    stop.cancel();
    let mut done = 0;
    for task in working {
        done += timeout(PATIENCE, task).await.expect("it ends").expect("every run is whole");
    }
    for stream in long {
        assert_eq!(end(&events(&stream.await.expect("a stream"))), "done");
    }
    println!("{} reloads were taken or refused while {done} runs went through, none was lost", all());
    assert!(done > 10);
}
