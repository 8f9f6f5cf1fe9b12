//! Cases D5, D6, E2 and E4: clients that do not read, read slowly, or are never heard of again. They hold little, lose nothing, and nobody else
//! notices. Alone in their processes and one after another, since memory and processor time are measured.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

#[path = "support/breaks.rs"]
mod breaks;
mod support;

use std::time::Duration;

use breaks::{Wire, blocks};
use futures_util::future::join_all;
use interline_sim::Options;
use interline_testkit::{Temp, eventually, get, post};
use serde_json::{Value, json};
use support::{Stand, events, text, token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// One test at a time.
static ALONE: Mutex<()> = Mutex::const_new(());
/// How long anything may take before a test gives it up; no time is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);
const CELL: &str = "cloud";
/// Nobody is cut for being silent where a test is not about that.
const PATIENT: &str = "[socketio]\npatch_format = \"delta\"\nping_interval_ms = 600_000\n\
                       [native]\nwrite_timeout_ms = 600_000\nping_interval_ms = 600_000\npong_timeout_ms = 700_000\n\
                       [server]\ntcp_user_timeout_ms = 600_000\n";
/// What the system keeps for a client that does not read; small, so that little is on its way.
const WINDOW: u32 = 32 * 1024;

/// A stand whose program has these lines besides [`PATIENT`].
async fn stand(server: &str) -> Stand {
    Stand::with(Options::default(), &format!("{PATIENT}{server}")).await
}

fn resident(stand: &Stand) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", stand.program.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).expect("a number") * 1024
}

/// Processor time that the program took so far, in hundredths of a second.
fn ticks(stand: &Stand) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", stand.program.pid())).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// A number of `/metrics`.
async fn metric(stand: &Stand, name: &str) -> f64 {
    let text = get(&format!("{}/metrics", stand.base()), "").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap_or_else(|| panic!("no {name}: {text}"));
    line.parse().expect("a number")
}

/// A connection for which the system keeps so much that was not read.
async fn connect(stand: &Stand, window: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(window).expect("a size");
    socket.connect(stand.base().trim_start_matches("http://").parse().expect("an address")).await.expect("a connection")
}

async fn say(stream: &mut TcpStream, path: &str, headers: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n{headers}\r\n", token(CELL));
    stream.write_all(request.as_bytes()).await.expect("it can be written");
}

/// Asks, and reads the head of the answer and no more.
async fn ask(stream: &mut TcpStream, path: &str, headers: &str, status: &str) {
    say(stream, path, headers).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(PATIENCE, stream.read_u8()).await.expect("it answers").expect("a head"));
    }
    assert!(head.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{path}: {}", String::from_utf8_lossy(&head));
}

const UPGRADE: &str =
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";

/// A client's text message.
fn masked(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match u16::try_from(text.len()).expect("a short message") {
        short @ 0..126 => frame.push(0x80 | u8::try_from(short).expect("short")),
        long => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&long.to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// A Socket.IO client that subscribes to a session and never reads again.
async fn deaf(stand: &Stand, session: &str, window: u32) -> TcpStream {
    let mut stream = connect(stand, window).await;
    ask(&mut stream, "/socket.io/?EIO=4&transport=websocket", UPGRADE, "101").await;
    let mut seen = Vec::new();
    for (said, wanted) in [
        (String::new(), "0{"),
        (format!("40{}", json!({"token": token(CELL)})), "40{"),
        (format!("421{}", json!(["session:subscribe", {"session_id": session}])), "431["),
    ] {
        if !said.is_empty() {
            stream.write_all(&masked(&said)).await.expect("it can be written");
        }
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            assert!(stream.read_buf(&mut seen).await.expect("it goes on") > 0, "closed before {wanted}");
        }
    }
    stream
}

async fn session(stand: &Stand) -> String {
    let created = post(&format!("{}/api/sessions", stand.base()), &token(CELL), r#"{"intent":""}"#).await.json();
    created["session_id"].as_str().expect("an id").to_owned()
}

/// Where the native frames of a run are, behind so many.
fn frames_path(run: &str, since: usize) -> String {
    let letters = run.trim_start_matches("run-").char_indices();
    let dashed: String = letters.map(|(at, c)| if [8, 12, 16, 20].contains(&at) { format!("-{c}") } else { c.to_string() }).collect();
    format!("/v1/agent/sessions/{dashed}/stream?since_seq={since}")
}

/// A stream of a run's native frames behind the first; nothing of it is read.
async fn native(stand: &Stand, run: &str, window: u32) -> TcpStream {
    let mut stream = connect(stand, window).await;
    ask(&mut stream, &frames_path(run, 1), UPGRADE, "101").await;
    stream
}

/// The same for its events, with their ids.
async fn sse(stand: &Stand, run: &str, window: u32) -> TcpStream {
    let mut stream = connect(stand, window).await;
    ask(&mut stream, &format!("/cells/{CELL}/runs/{run}/events"), "Accept: text/event-stream\r\n", "200").await;
    stream
}

fn run_of(stream: &interline_testkit::Stream) -> String {
    stream.headers.get("x-run-id").and_then(|id| id.to_str().ok()).expect("an id").to_owned()
}

/// The body of a chunked answer, as far as its chunks are whole.
fn dechunked(answer: &[u8]) -> Vec<u8> {
    let mut rest = answer;
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok()).expect("a size");
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else { break };
        body.extend_from_slice(chunk);
        rest = rest.get(end + 2 + size + 2..).unwrap_or_default();
    }
    body
}

/// The text messages that came whole over a WebSocket.
fn messages(answer: &[u8]) -> Vec<String> {
    let mut rest = answer;
    let (mut messages, mut parts) = (Vec::new(), Vec::new());
    while let [first, second, after @ ..] = rest {
        let (length, after) = match (second, after) {
            (126, [a, b, after @ ..]) => (usize::from(u16::from_be_bytes([*a, *b])), after),
            (127, [_, _, _, _, a, b, c, d, after @ ..]) => (u32::from_be_bytes([*a, *b, *c, *d]) as usize, after),
            (126.., _) => break,
            (short, after) => (usize::from(*short), after),
        };
        let Some(payload) = after.get(..length) else { break };
        rest = &after[length..];
        // Neither pings nor a close.
        if first & 0x0f <= 1 {
            parts.extend_from_slice(payload);
            if first & 0x80 != 0 {
                messages.push(String::from_utf8(std::mem::take(&mut parts)).expect("UTF-8"));
            }
        }
    }
    messages
}

/// The text that a Socket.IO client was told piece by piece.
fn deltas(answer: &[u8]) -> String {
    let events = messages(answer).into_iter().filter_map(|packet| serde_json::from_str::<Value>(packet.strip_prefix("42")?).ok());
    let patches = events.filter(|event| event[0] == "turn:patch" && event[1]["data"]["type"] == "text");
    patches.filter_map(|event| event[1]["data"]["text_delta"].as_str().map(str::to_owned)).collect()
}

/// Where two texts part, for people: they are long.
fn same(what: &str, ours: &str, theirs: &str) {
    if ours != theirs {
        let at = ours.bytes().zip(theirs.bytes()).take_while(|(one, other)| one == other).count();
        let around = |text: &str| {
            let bytes = &text.as_bytes()[at.saturating_sub(200)..text.len().min(at + 200)];
            String::from_utf8_lossy(bytes).into_owned()
        };
        panic!("{what}: {} and {} bytes part at {at}:\n{}\n---\n{}", ours.len(), theirs.len(), around(ours), around(theirs));
    }
}

// Others cut nobody, or whoever was cut began anew.
#[tokio::test(flavor = "multi_thread")]
async fn case_d5_who_never_reads_is_cut_and_comes_back_for_the_rest_on_every_surface() {
    let _alone = ALONE.lock().await;
    let config = PATIENT.replace("write_timeout_ms = 600_000", "write_timeout_ms = 3_000");
    let stand = Stand::with(Options::default(), &format!("{config}write_stall_ms = 3_000\n")).await;
    let open = async || metric(&stand, "interline_connections_open").await;
    let watched = session(&stand).await;
    // The one that asks, and no longer the one that made the session: else one that is not cut would pass for that.
    let at_first = 1.0;
    eventually("nobody else is there", PATIENCE, async || open().await <= at_first).await;
    let mut chatting = deaf(&stand, &watched, WINDOW).await;
    let mut stream = stand.run_in(CELL, "tally long 200 size=16384", Some(&watched)).await;
    stream.until("stream_delta").await;
    let run = run_of(&stream);
    let (mut by_events, mut by_frames) = (sse(&stand, &run, WINDOW).await, native(&stand, &run, WINDOW).await);
    let said = text(&events(&stream.rest().await));
    eventually("all three are cut", PATIENCE, async || open().await <= at_first).await;
    println!("stalled: {}", metric(&stand, "interline_connections_stalled_total").await);
    let mut had = [Vec::new(), Vec::new(), Vec::new()];
    for (stream, had) in [&mut by_events, &mut by_frames, &mut chatting].into_iter().zip(&mut had) {
        // It may end by a reset.
        let _ = timeout(PATIENCE, stream.read_to_end(had)).await.expect("it is cut");
    }
    let [events, frames, chat] = had;

    let (path, accept) = (format!("/cells/{CELL}/runs/{run}/events"), ("Accept", "text/event-stream".to_owned()));
    let whole = Wire::ask(stand.base(), "GET", &path, &token(CELL), std::slice::from_ref(&accept), "").await.rest().await;
    let had = blocks(&dechunked(&events));
    let id = had.last().and_then(|block| block.lines().find_map(|line| line.strip_prefix("id: "))).expect("an id").to_owned();
    let rest = Wire::ask(stand.base(), "GET", &path, &token(CELL), &[accept, ("Last-Event-ID", id)], "").await.rest().await;
    assert!(had.len() > 1 && blocks(rest.as_bytes()).len() > 1);
    same("events", &(had.concat() + &rest), &whole);

    let all = frames_behind(&stand, &run, 1).await;
    let had = messages(&frames);
    let rest = frames_behind(&stand, &run, 1 + had.len()).await;
    assert!(!had.is_empty() && rest.len() > 1);
    same("frames", &[had, rest].concat().join("\n"), &all.join("\n"));

    // Its new socket is told of what goes on; what is over is in the messages.
    let had = deltas(&chat);
    assert!(!had.is_empty() && had.len() < said.len());
    same("patches", &had, said.get(..had.len()).unwrap_or_default());
    let kept = get(&format!("{}/api/sessions/{watched}/messages", stand.base()), &token(CELL)).await.body;
    assert!(kept.contains(&said), "the messages lack some of it: {} bytes for {}", kept.len(), said.len());
    let mut again = deaf(&stand, &watched, WINDOW).await;
    stand.run_in(CELL, "tally next 3", Some(&watched)).await.rest().await;
    let mut seen = Vec::new();
    while !messages(&seen).iter().any(|packet| packet.starts_with("42[\"chat:end\"")) {
        assert!(timeout(PATIENCE, again.read_buf(&mut seen)).await.expect("it goes on").expect("open") > 0, "closed");
    }
    assert_eq!(deltas(&seen), (0..3).map(|n| interline_sim::tally_text("next", n)).collect::<String>());
}

/// The same, of a hundred: what they cost is what may wait for them, and not what they are owed. Others that come and leave at once show what the runs
/// themselves cost. The case at its own size is `interline-bench stalled`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_d5_a_hundred_clients_that_never_read_cost_what_may_wait_for_them() {
    const RUNS: usize = 34;
    const BOUND: usize = 64 * 1024;
    const SIZE: usize = 40 * 8_192;
    let _alone = ALONE.lock().await;
    let folder = Temp::file("here", "");
    let journal = folder.path().with_file_name("journal");
    let stand = stand(&format!("write_stall_ms = 600_000\n[journal]\npath = {journal:?}\nmemory_bytes = 1_048_576\n")).await;
    let mut held = Vec::new();
    let mut grown = Vec::new();
    // The first pass fills what the allocator keeps.
    for stay in [false, false, true] {
        let before = resident(&stand);
        for n in 0..RUNS {
            let watched = session(&stand).await;
            let chatting = deaf(&stand, &watched, WINDOW).await;
            let mut stream = stand.run_in(CELL, &format!("tally n{n} 40 size=8192"), Some(&watched)).await;
            stream.until("stream_delta").await;
            let run = run_of(&stream);
            let clients = [chatting, sse(&stand, &run, WINDOW).await, native(&stand, &run, WINDOW).await];
            if stay {
                held.extend(clients);
            }
            stream.rest().await;
        }
        grown.push(resident(&stand).saturating_sub(before));
    }
    assert!(metric(&stand, "interline_connections_open").await >= held.len() as f64, "some of them were let go");
    println!("grown by {grown:?}");
    let cost = grown[2].saturating_sub(grown[1]);
    // Twice: a connection costs something itself, and what the allocator keeps is no even number. An unbounded queue would hold five times as much.
    assert!(cost < 2 * held.len() * BOUND, "{cost} bytes for {} clients, which are owed {} each; passes: {grown:?}", held.len(), SIZE);
}

/// The frames of a run that is over, behind so many.
async fn frames_behind(stand: &Stand, run: &str, since: usize) -> Vec<String> {
    let mut stream = connect(stand, 1 << 20).await;
    ask(&mut stream, &frames_path(run, since), UPGRADE, "101").await;
    let mut seen = Vec::new();
    loop {
        assert!(timeout(PATIENCE, stream.read_buf(&mut seen)).await.expect("it goes on").expect("open") > 0, "closed");
        if seen.ends_with(b"}") && messages(&seen).last().is_some_and(|last| last.contains("\"type\":\"result\"")) {
            return messages(&seen);
        }
    }
}

/// Reads on at so many bytes a second, until these bytes have come.
async fn throttled(stream: &mut TcpStream, seen: &mut Vec<u8>, per_second: usize, until: &[u8]) {
    let mut piece = vec![0; per_second / 20];
    while !seen[seen.len().saturating_sub(piece.len() + until.len())..].windows(until.len()).any(|window| window == until) {
        let length = timeout(PATIENCE, stream.read(&mut piece)).await.expect("it goes on").expect("it is not cut");
        assert!(length > 0, "closed after {} bytes", seen.len());
        seen.extend_from_slice(&piece[..length]);
        sleep(Duration::from_millis(50) * u32::try_from(length).unwrap_or(u32::MAX) / u32::try_from(piece.len()).unwrap_or(1)).await;
    }
}

/// Reads eight kilobytes a second for so long.
async fn trickle(stream: &mut TcpStream, seen: &mut Vec<u8>, how_long: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < how_long {
        let mut piece = [0; 2_048];
        let length = timeout(PATIENCE, stream.read(&mut piece)).await.expect("it goes on").expect("it is not cut");
        assert!(length > 0, "closed after {} bytes", seen.len());
        seen.extend_from_slice(&piece[..length]);
        sleep(Duration::from_millis(250)).await;
    }
}

// Others left events out for clients that were slow, and the stream looked whole.
#[tokio::test(flavor = "multi_thread")]
async fn case_d6_and_e4_slow_clients_miss_nothing_and_cost_no_time() {
    /// A tenth of what it is by default, so the slow ones are ten times as fast as those of the case, or nearly.
    const STALL: Duration = Duration::from_secs(6);
    /// Systems ask for more when half of their room is free, on both sides: that has to be within the time of a stall, also for who is slow.
    const SMALL: u32 = 4 * 1024;
    let _alone = ALONE.lock().await;
    let stand = stand(&format!("write_stall_ms = {}\nclient_window_bytes = {SMALL}\n", STALL.as_millis())).await;
    let watched = session(&stand).await;
    let mut chatting = deaf(&stand, &watched, SMALL).await;
    let mut stream = stand.run_in(CELL, "tally burst 10000", Some(&watched)).await;
    stream.until("stream_delta").await;
    let run = run_of(&stream);
    let (mut by_events, mut by_frames) = (sse(&stand, &run, SMALL).await, native(&stand, &run, SMALL).await);
    let (mut seen_events, mut seen_frames, mut chatted) = (Vec::new(), Vec::new(), Vec::new());
    // From the first piece on the three are slow; the burst goes on beside them, and is over long before they are.
    let burst = async {
        let whole = stream.rest().await;
        (whole, ticks(&stand), Instant::now())
    };
    let long = STALL * 2;
    let ((plain, before, since), ..) = tokio::join!(
        burst,
        trickle(&mut by_events, &mut seen_events, long),
        trickle(&mut by_frames, &mut seen_frames, long),
        trickle(&mut chatting, &mut chatted, long)
    );
    let (took, spent) = (since.elapsed(), ticks(&stand) - before);
    println!("three slow readers: {} ms of processor time in {took:?}", spent * 10);
    assert!(took > Duration::from_secs(5), "they were not slow long enough to tell: {took:?}");
    // A twentieth is what the case allows, and so much again for what it takes to see the time pass.
    assert!(Duration::from_millis(spent * 10) <= took / 20 + Duration::from_millis(100), "{spent} ticks in {took:?}");
    let path = format!("/cells/{CELL}/runs/{run}/events");
    let accept = [("Accept", "text/event-stream".to_owned())];
    let whole = Wire::ask(stand.base(), "GET", &path, &token(CELL), &accept, "").await.rest().await;
    assert_eq!(text(&events(&whole)), text(&events(&plain)));
    let all = frames_behind(&stand, &run, 1).await;
    // Now a little faster, to the end; all of it, in order.
    for stream in [&by_events, &by_frames, &chatting] {
        socket2::SockRef::from(stream).set_recv_buffer_size(1 << 18).expect("a size");
    }
    tokio::join!(
        throttled(&mut by_events, &mut seen_events, 2_000_000, b"\r\n0\r\n\r\n"),
        throttled(&mut by_frames, &mut seen_frames, 2_000_000, b"\"type\":\"result\""),
        throttled(&mut chatting, &mut chatted, 2_000_000, b"[\"chat:end\"")
    );
    same("the slow reader of events", &String::from_utf8_lossy(&dechunked(&seen_events)), &whole);
    let frames = messages(&seen_frames);
    // The last one may not have come to its end.
    same("the slow native reader", &frames.join("\n"), &all[..frames.len().clamp(all.len() - 1, all.len())].join("\n"));
    same("the slow chat", &deltas(&chatted), &text(&events(&whole)));
}

// Others kept every session of polling that was never heard of again: 19 GiB in three weeks.
#[tokio::test(flavor = "multi_thread")]
async fn case_e2_abandoned_polling_handshakes_are_given_back() {
    let _alone = ALONE.lock().await;
    let stand =
        Stand::with(Options::default(), "[socketio]\nping_interval_ms = 1_500\nping_timeout_ms = 1_500\nconnect_timeout_ms = 1_500\n")
            .await;
    let handshakes = async |count: usize| {
        let each = (0..20).map(|_| async {
            let mut stream = TcpStream::connect(stand.base().trim_start_matches("http://")).await.expect("a connection");
            let mut seen = vec![0; 4096];
            for _ in 0..count / 20 {
                say(&mut stream, "/socket.io/?EIO=4&transport=polling", "").await;
                let mut read = 0;
                // The handshake is one JSON object.
                while !seen.get(..read).is_some_and(|seen| seen.ends_with(b"}")) {
                    read += stream.read(seen.get_mut(read..).expect("room")).await.expect("an answer");
                }
            }
        });
        join_all(each).await;
    };
    // An allocator keeps some of what it had, so that the first ones are not given back in full, and more when many were there at a time; but not
    // more each time.
    let mut after = Vec::new();
    for _ in 0..5 {
        handshakes(5_000).await;
        sleep(Duration::from_millis(3_500)).await;
        after.push(resident(&stand));
    }
    println!("after each 5,000 handshakes and silence: {:?} KiB", after.iter().map(|bytes| bytes / 1024).collect::<Vec<_>>());
    // A session that stays takes some three kilobytes: thirty megabytes more after the fourth round than after the second, and more after the last.
    let least = after.iter().skip(3).min().expect("a round");
    assert!(*least < after[1] + 20_000_000, "{after:?}");
}

// Those that nothing but the heartbeat can end: there is time enough to connect, and most have.
#[tokio::test(flavor = "multi_thread")]
async fn case_e2_sessions_that_fall_silent_behind_the_handshake_or_the_connect_are_ended_by_the_heartbeat() {
    const SILENT: usize = 300;
    const CONNECTED: usize = 1_000;
    let _alone = ALONE.lock().await;
    let config = "[socketio]\nping_interval_ms = 5_000\nping_timeout_ms = 5_000\nconnect_timeout_ms = 600_000\n";
    let stand = Stand::with(Options::default(), config).await;
    let path = format!("{}/socket.io/?EIO=4&transport=polling", stand.base());
    let shown = async || metric(&stand, "interline_socketio_sockets").await;
    assert_eq!(shown().await, 0.0);
    let open = async || {
        let answer = get(&path, "").await.body;
        let hello: Value = serde_json::from_str(answer.strip_prefix('0').expect("a handshake")).expect("JSON");
        hello["sid"].as_str().expect("an id").to_owned()
    };
    let mut sids = Vec::new();
    for _ in 0..SILENT / 20 {
        sids.extend(join_all((0..20).map(|_| open())).await);
    }
    let connect = format!("40{}", json!({"token": token(CELL)}));
    let begun = Instant::now();
    for _ in 0..CONNECTED / 20 {
        let each = (0..20).map(|_| async {
            let sid = open().await;
            let answer = post(&format!("{path}&sid={sid}"), "", &connect).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
            sid
        });
        sids.extend(join_all(each).await);
    }
    let most = shown().await;
    println!("{CONNECTED} sockets that never read, made in {:?}: {most} are shown", begun.elapsed());
    assert!(most > CONNECTED as f64 / 2.0, "{most}");
    eventually("none is left", PATIENCE, async || shown().await == 0.0).await;
    println!("and none after {:?}", begun.elapsed());
    // The first heartbeat goes out at once, and waits for its answer as long as any.
    assert!(begun.elapsed() > Duration::from_secs(5), "they were ended by something else");
    // Nor is the transport: an answer to a heartbeat finds nobody, whether its session had connected or not.
    for sids in sids.chunks(20) {
        for answer in join_all(sids.iter().map(async |sid| post(&format!("{path}&sid={sid}"), "", "3").await)).await {
            assert!(answer.status == 400 && answer.body.contains("Session ID unknown"), "{} {}", answer.status, answer.body);
        }
    }
}
