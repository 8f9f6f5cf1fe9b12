//! Cases B1, B2, B4, B8, B9 and B11: a client that is cut after any event, in any way, on any surface and framing, comes back and has the exact rest;
//! and what is no place in a run is never answered with a plausible part of one.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

#[path = "support/breaks.rs"]
mod breaks;
mod support;

use std::time::Duration;

use breaks::{Cut, Wire, blocks};
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use interline_sim::{Options, Voice, counted_text, tally_text};
use interline_testkit::faults::{Fault, FaultProxy};
use interline_testkit::{Client, Program, eventually, get, in_repository, post, request};
use serde_json::{Value, json};
use support::{INTERLINE, Stand, UPSTREAMS, config_for, events, simulator, text, token};
use tokio_tungstenite::MaybeTlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// A run of sub-agents, tools and text; its frames come one by one.
const PLAY: &str = "play sub-agents-parallel auto gap=25";
/// One that asks nothing: where a client comes back without a cursor, what is settled is not asked again, and a pause ends a chat.
const UNASKED: &str = "play sub-agents-nested auto gap=25";
/// The same, so slow that a library is back long before its end.
const CHATTED: &str = "play sub-agents-nested auto gap=150";
/// How long anything may take before a test gives it up; no time is measured by it.
const PATIENCE: Duration = Duration::from_secs(90);
const CUTS: [Cut; 2] = [Cut::Fin, Cut::Rst];

async fn stand(config: &str) -> Stand {
    Stand::with(Options { transcripts: Some(in_repository("tests/transcripts")), ..Options::default() }, config).await
}

/// How a client says where it was.
#[derive(Clone, Copy, Debug)]
enum Cursor {
    FromSeq,
    LastEventId,
    /// Both, and they contradict each other: the id wins (sse.md §5.6).
    Both,
    /// The POST again, with the id (`sse.post_ids`).
    Post,
}

/// Reads `events` events of a run, breaks off, comes back, and gives all that it has then.
async fn broken((base, cell, run): (&str, &str, &str), query: &str, at: usize, cursor: Cursor, cut: Cut, full: bool) -> String {
    let secret = token(cell);
    let accept = if full { vec![("Accept", "text/event-stream".to_owned())] } else { Vec::new() };
    let path = |from: usize| format!("/cells/{cell}/runs/{run}/events?from_seq={from}{query}");
    let id = || ("Last-Event-ID", format!("{run}:{at}"));
    let had = Wire::ask(base, "GET", &path(1), &secret, &accept, "").await.cut_after(at, cut).await;
    let (method, path, headers, body) = match cursor {
        Cursor::FromSeq => ("GET", path(at + 1), accept, String::new()),
        Cursor::LastEventId => ("GET", path(1), [accept, vec![id()]].concat(), String::new()),
        Cursor::Both => ("GET", path(if at.is_multiple_of(2) { 10_000 } else { 2 }), [accept, vec![id()]].concat(), String::new()),
        Cursor::Post => {
            let body = json!({"messages": [{"role": "user", "content": PLAY}]}).to_string();
            ("POST", format!("/cells/{cell}/run?{}", query.trim_start_matches('&')), [accept, vec![id()]].concat(), body)
        }
    };
    let again = Wire::ask(base, method, &path, &secret, &headers, &body).await;
    assert_eq!(again.status, 200, "{cursor:?} behind {at}");
    had + &again.rest().await
}

/// Every place but the last, at which nothing follows.
async fn case_b1_over_sse(cell: &str, query: &str) {
    let stand = stand("[sse]\npost_ids = true\n").await;
    let base = stand.base();
    // So many events the run has, as one that nobody breaks shows.
    let count = blocks(stand.run(cell, "play sub-agents-parallel auto").await.rest().await.as_bytes()).len();
    let body = json!({"messages": [{"role": "user", "content": PLAY}]}).to_string();
    let whole = Wire::ask(base, "POST", &format!("/cells/{cell}/run?{}", query.trim_start_matches('&')), &token(cell), &[], &body).await;
    let run = whole.header("x-run-id");
    for while_it_runs in [true, false] {
        let mut clients = Vec::new();
        for at in 0..count {
            for (n, cursor) in [Cursor::FromSeq, Cursor::LastEventId, Cursor::Both, Cursor::Post].into_iter().enumerate() {
                let full = n % 2 == at % 2;
                if at == 0 && !matches!(cursor, Cursor::FromSeq) {
                    // Who has seen nothing has no id.
                    continue;
                }
                let full = full || matches!(cursor, Cursor::Post);
                let (run, cut) = (run.clone(), CUTS[(at + n / 2) % 2]);
                clients.push(async move { (at, cursor, full, broken((base, cell, &run), query, at, cursor, cut, full).await) });
            }
        }
        let seen = join_all(clients).await;
        let path = format!("/cells/{cell}/runs/{run}/events?from_seq=1{query}");
        let plain = Wire::ask(base, "GET", &path, &token(cell), &[], "").await.rest().await;
        let accept = [("Accept", "text/event-stream".to_owned())];
        let full = Wire::ask(base, "GET", &path, &token(cell), &accept, "").await.rest().await;
        assert_eq!(blocks(plain.as_bytes()).len(), count);
        for (at, cursor, is_full, union) in seen {
            assert!(union == *if is_full { &full } else { &plain }, "{cell} {cursor:?} behind {at}, full {is_full}: {union}");
        }
        if while_it_runs {
            continue;
        }
        // Behind the last event: browsers stop for good, the others have the end once more.
        let after = [("Last-Event-ID", format!("{run}:{count}"))];
        assert_eq!(Wire::ask(base, "GET", &path, &token(cell), &after, "").await.status, 204);
        let last = blocks(plain.as_bytes()).pop().expect("an end");
        let path = format!("/cells/{cell}/runs/{run}/events?from_seq={}{query}", count + 1);
        assert_eq!(Wire::ask(base, "GET", &path, &token(cell), &[], "").await.rest().await, last);
        assert_eq!(whole.rest().await, plain);
        return;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_b1_over_sse_a_client_that_is_cut_after_any_event_has_the_exact_rest() {
    let [cloud, bridge] = UPSTREAMS;
    tokio::join!(case_b1_over_sse(cloud, ""), case_b1_over_sse(bridge, "&extras=fields"));
}

type Socket = tokio_tungstenite::WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

async fn socket(base: &str, path: &str, secret: &str) -> Socket {
    let mut request = format!("{}{path}", base.replace("http", "ws")).into_client_request().expect("a request");
    request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().expect("a header"));
    tokio_tungstenite::connect_async(request).await.expect("a socket").0
}

fn kind(frame: &str) -> String {
    serde_json::from_str::<Value>(frame).ok().and_then(|frame| Some(frame["type"].as_str()?.to_owned())).unwrap_or_default()
}

/// Frames until there are so many, or the last one has come.
async fn frames(socket: &mut Socket, count: usize, is_last: impl Fn(&str) -> bool) -> Vec<String> {
    let mut frames = Vec::new();
    while frames.len() < count {
        let message = tokio::time::timeout(PATIENCE, socket.next()).await.expect("it goes on").expect("open").expect("whole");
        if let Message::Text(text) = message {
            frames.push(text.to_string());
            if is_last(&text) {
                break;
            }
        }
    }
    frames
}

fn cut(mut socket: Socket, how: Cut) {
    if let (Cut::Rst, MaybeTlsStream::Plain(stream)) = (how, socket.get_mut()) {
        socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).expect("linger");
    }
    drop(socket);
}

/// Behind no frame at all.
const UNCUT: usize = usize::MAX;

/// Who is cut before anything has come has no cursor, and is like one that never was there. The break has to be there before the first frame.
fn play(at: usize) -> &'static str {
    if at == 0 { "play sub-agents-nested auto gap=400" } else { UNASKED }
}

/// A run on the cloud surface, cut after `at` frames; all of its frames.
async fn cut_on_cloud(base: &str, secret: &str, at: usize, how: Cut, later: bool) -> Vec<String> {
    let created =
        post(&format!("{base}/v1/agent/sessions"), secret, &json!({"mode": "agent", "prompt": play(at)}).to_string()).await.json();
    let (id, session) = (created["session_id"].as_str().expect("an id"), created["session_token"].as_str().expect("a token"));
    let is_last = |text: &str| kind(text) == "result";
    let mut first = socket(base, &format!("/v1/agent/sessions/{id}/stream"), session).await;
    let mut seen = frames(&mut first, at, is_last).await;
    if at == UNCUT {
        return seen;
    }
    cut(first, how);
    if later {
        eventually("the run is over", PATIENCE, async || get(&format!("{base}/v1/agent/sessions/{id}/result"), secret).await.status == 200)
            .await;
    }
    let query = if at == 0 { String::new() } else { format!("?since_seq={at}") };
    let mut again = socket(base, &format!("/v1/agent/sessions/{id}/stream{query}"), session).await;
    seen.extend(frames(&mut again, usize::MAX, is_last).await);
    seen
}

/// The same on the bridge surface, where a socket ends with its turn and control frames have no number.
async fn cut_on_bridge(base: &str, secret: &str, at: usize, how: Cut, later: bool) -> Vec<String> {
    let id = post(&format!("{base}/v1/code/sessions"), secret, "").await.json()["id"].as_str().expect("an id").to_owned();
    let prompt = json!({"prompt": play(at)}).to_string();
    assert_eq!(post(&format!("{base}/v1/code/sessions/{id}/messages"), secret, &prompt).await.status, 202);
    let is_last = |text: &str| kind(text) == "keep_alive";
    let is_counted = |text: &String| !kind(text).starts_with("control_") && !is_last(text);
    let mut first = socket(base, &format!("/v1/code/sessions/{id}/ws"), secret).await;
    let mut seen = Vec::new();
    while seen.len() < at {
        let frame = frames(&mut first, 1, is_last).await;
        if frame.iter().any(|frame| is_last(frame)) {
            return seen;
        }
        seen.extend(frame.into_iter().filter(is_counted));
    }
    cut(first, how);
    if later {
        eventually("the turn is over", PATIENCE, async || {
            let runs = get(&format!("{base}/cells/{}/runs?session_id={id}", secret.trim_end_matches("-secret")), secret).await.json();
            runs["runs"][0]["status"] == "completed"
        })
        .await;
    }
    let query = if at == 0 { String::new() } else { format!("?last_event_id={at}") };
    let mut again = socket(base, &format!("/v1/code/sessions/{id}/ws{query}"), secret).await;
    seen.extend(frames(&mut again, usize::MAX, is_last).await.into_iter().filter(is_counted));
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn case_b1_native_cursors_give_the_exact_rest_behind_every_frame() {
    let stand = stand("[run]\nmax_active = 1000\n").await;
    let base = stand.base();
    let (cloud, bridge) = (token("cloud"), token("bridge"));
    let whole = cut_on_cloud(base, &cloud, UNCUT, Cut::Fin, false).await;
    let cuts = (0..whole.len()).map(|at| {
        let cloud = &cloud;
        async move { (at, cut_on_cloud(base, cloud, at, CUTS[at % 2], at % 3 == 0).await) }
    });
    for (at, union) in join_all(cuts).await {
        assert!(union == whole, "cloud behind {at}: {union:#?}");
    }
    let whole = cut_on_bridge(base, &bridge, UNCUT, Cut::Fin, false).await;
    let cuts = (0..whole.len()).map(|at| {
        let bridge = &bridge;
        async move { (at, cut_on_bridge(base, bridge, at, CUTS[at % 2], at % 3 == 0).await) }
    });
    for (at, union) in join_all(cuts).await {
        assert!(union == whole, "bridge behind {at}: {union:#?}");
    }
}

/// Case B2: a thousand come while a run is at full rate, each at a moment of its own, and each has all of it. Every order of what an attach and an
/// append do is tried in `races.rs` of the hub.
#[tokio::test(flavor = "multi_thread")]
async fn case_b2_whoever_comes_at_any_moment_of_a_run_at_full_rate_has_all_of_it() {
    const MANY: u64 = 1_000;
    let stand = stand("").await;
    let (base, secret) = (stand.base(), token("cloud"));
    let whole = stand.run("cloud", "tally race 2000 gap=1").await;
    let run = whole.headers["x-run-id"].to_str().expect("a run").to_owned();
    let whole = tokio::spawn(whole.rest());
    let (path, stream) = (format!("/cells/cloud/runs/{run}/events?from_seq=1"), format!("/v1/agent/sessions/{run}/stream?since_seq=1"));
    let coming = (0..MANY).map(|n| {
        let (path, stream, secret) = (&path, &stream, &secret);
        async move {
            // Scattered over what the run takes, and a moment beyond.
            tokio::time::sleep(Duration::from_micros(n * 7_919_317 % 3_000_000)).await;
            if n % 4 == 0 {
                frames(&mut socket(base, stream, secret).await, usize::MAX, |frame| kind(frame) == "result").await.join("\n")
            } else {
                Wire::ask(base, "GET", path, secret, &[], "").await.rest().await
            }
        }
    });
    let seen = tokio::time::timeout(PATIENCE, join_all(coming)).await.expect("they have all of it");
    whole.await.expect("it ends");
    let events = Wire::ask(base, "GET", &path, &secret, &[], "").await.rest().await;
    let all = frames(&mut socket(base, &stream, &secret).await, usize::MAX, |frame| kind(frame) == "result").await.join("\n");
    assert!(blocks(events.as_bytes()).len() > 2_000 && all.lines().count() > 2_000);
    for (n, had) in seen.iter().enumerate() {
        let expected = if n % 4 == 0 { &all } else { &events };
        assert!(had == expected, "{n}: {} bytes of {}, the same up to {:?}", had.len(), expected.len(), differs(had, expected));
    }
}

/// Where two texts differ first.
fn differs(one: &str, other: &str) -> Option<usize> {
    one.bytes().zip(other.bytes()).position(|(one, other)| one != other)
}

/// What the sockets of `resume.mjs` have in the end: that of the one that was not cut, of those that were, and the messages over REST.
async fn told(stand: &Stand, cell: &str, args: &[&str]) -> (Value, Vec<Value>, Value) {
    let client = Client::new("resume.mjs", stand.base()).args(["--token", &token(cell), "--prompt", CHATTED]).args(args);
    let mut lines = client.run().await.content().json_lines();
    let messages = lines.pop().expect("the messages")["messages"].take();
    let whole = lines.remove(0)["whole"].take();
    (whole, lines, messages)
}

fn numbers(events: &Value) -> Vec<u64> {
    events.as_array().into_iter().flatten().filter_map(|event| event["stream_sequence"].as_u64()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_b1_socket_io_clients_that_are_cut_after_any_event_show_what_the_others_show() {
    let stand = stand("[socketio]\nraw_batch_ms = 40\n").await;
    let sorted = |turns: &Value| {
        let mut turns: Vec<Value> = turns.as_array().cloned().unwrap_or_default();
        turns.sort_by_key(|turn| turn["turn_id"].to_string());
        turns
    };
    let (cloud, bridge) = (
        async {
            for transport in ["websocket", "polling"] {
                let (whole, cuts, messages) = told(&stand, "cloud", &["--to", "34", "--transport", transport]).await;
                assert!(!sorted(&whole["turns"]).is_empty());
                let of = |turns: &Value, id: &Value| turns.as_array().into_iter().flatten().find(|turn| turn["turn_id"] == *id).cloned();
                let mut ended = 0;
                for seen in &cuts {
                    assert!(seen["connects"] == 2 || seen["events"].as_u64() <= seen["cut"].as_u64(), "{transport}: {seen}");
                    ended += usize::from(seen["ended"] == true);
                    for turn in sorted(&whole["turns"]) {
                        let id = &turn["turn_id"];
                        // Its last word on a turn is everybody's; what was over while it was away is in the messages, as it was.
                        let last = of(&seen["turns"], id).filter(|turn| turn["status"] != "streaming");
                        let same = |other: &Value| other["blocks"] == turn["blocks"] && other["tool_calls"] == turn["tool_calls"];
                        let missed = || of(&messages, id).filter(|message| message["status"] == turn["status"]);
                        assert!(last.or_else(missed).is_some_and(|turn| same(&turn)), "{transport} behind {}: {turn}", seen["cut"]);
                    }
                }
                assert!(ended > 0, "some were back before the end");
            }
        },
        async {
            let (whole, cuts, _) = told(&stand, "bridge", &["--to", "12", "--raw"]).await;
            let expected = whole["raw"].clone();
            assert_eq!(numbers(&expected), (1..=expected.as_array().map_or(0, Vec::len) as u64).collect::<Vec<_>>());
            for seen in &cuts {
                // Who has the copy of the end does not come back.
                let had_all = seen["events"].as_u64() <= seen["cut"].as_u64();
                assert!(seen["connects"] == 2 || had_all, "{seen}");
                assert_eq!(seen["raw"], expected, "behind {}", seen["cut"]);
            }
            let (whole, cuts, _) = told(&stand, "bridge", &["--to", "12", "--raw", "--later"]).await;
            for seen in &cuts {
                assert_eq!(seen["raw"], whole["raw"], "behind {}, once all was over", seen["cut"]);
            }
        },
    );
    tokio::join!(cloud, bridge);
}

/// Three tabs on each of two surfaces, and a native client, join while the link is lost and comes back: replays upstream are nobody's business.
#[tokio::test(flavor = "multi_thread")]
async fn case_b4_and_b9_tabs_on_several_surfaces_see_a_catch_up_once() {
    let stand = stand("").await;
    let base = stand.base();
    for cell in UPSTREAMS {
        let secret = token(cell);
        let session = post(&format!("{base}/api/sessions"), &secret, r#"{"intent":""}"#).await.json()["session_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let args = ["--token", &secret, "--watch", "--session", &session];
        let watchers: Vec<_> = (0..3).map(|_| tokio::spawn(Client::new("socketio.mjs", base).args(args).run())).collect();
        eventually("they are subscribed", PATIENCE, async || {
            let metrics = get(&format!("{base}/metrics"), "").await.body;
            metrics.lines().any(|line| line.starts_with("interline_socketio_subscriptions") && line.ends_with(" 3"))
        })
        .await;
        let mut stream = stand.run_in(cell, "fault gap 5", Some(&session)).await;
        let run = stream.headers.get("x-run-id").and_then(|id| id.to_str().ok()).expect("an id").to_owned();
        stream.until("frame 1 ").await;
        let path = format!("/cells/{cell}/runs/{run}/events");
        let tabs = join_all((0..3).map(|_| async { Wire::ask(base, "GET", &path, &secret, &[], "").await.rest().await })).await;
        let whole = stream.rest().await;
        let said = text(&events(&whole));
        let numbers: Vec<u64> = (0..).take_while(|n| said.contains(&counted_text(*n))).collect();
        assert!(numbers.len() > 10, "{cell}: {said}");
        assert_eq!(said, numbers.iter().map(|n| counted_text(*n)).collect::<String>(), "{cell}: each once, in order");
        for tab in tabs {
            assert_eq!(tab, whole, "{cell}");
        }
        for watcher in watchers {
            let seen = watcher.await.expect("a watcher").content().json_lines();
            let patches = seen.iter().filter(|line| line["event"] == "turn:patch" && line["data"]["patch_type"] == "add_content");
            let shown: String = patches.filter_map(|line| line["data"]["data"]["text_delta"].as_str()).collect();
            assert_eq!(shown, said, "{cell}");
            assert_eq!(seen.iter().filter(|line| line["event"] == "chat:end").count(), 1, "{cell}");
        }
        eventually("they are gone", PATIENCE, async || {
            let metrics = get(&format!("{base}/metrics"), "").await.body;
            metrics.lines().any(|line| line.starts_with("interline_socketio_subscriptions") && line.ends_with(" 0"))
        })
        .await;
    }
}

/// Five breaks of the connection upstream in one turn, on servers that number their frames and on ones that say everything again; tabs come while it
/// is broken.
#[tokio::test(flavor = "multi_thread")]
async fn case_b4_five_breaks_in_one_turn_show_each_frame_once_to_every_tab() {
    const PIECES: u64 = 60;
    let place = async |voice: Voice, cell: &'static str| {
        let (_, simulator, _stop) = simulator(Options { voice, ..Options::default() }).await;
        let proxy = FaultProxy::before(&simulator).await;
        let program = Program::serve(INTERLINE, &config_for(&proxy.url(), "")).await;
        let (base, secret) = (program.base(), token(cell));
        let session = post(&format!("{base}/api/sessions"), &secret, r#"{"intent":""}"#).await.json();
        let session = session["session_id"].as_str().expect("an id").to_owned();
        let watch = || tokio::spawn(Client::new("stays.mjs", base).args(["--token", &secret, "--session", &session, "--typed"]).run());
        let mut watchers = vec![watch()];
        eventually("it is subscribed", PATIENCE, async || {
            let metrics = get(&format!("{base}/metrics"), "").await.body;
            metrics.lines().any(|line| line == "interline_socketio_subscriptions 1")
        })
        .await;
        let prompt = format!("tally {cell} {PIECES} gap=40");
        let body =
            json!({"session_id": session, "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}]}).to_string();
        let first = Wire::ask(base, "POST", &format!("/cells/{cell}/run"), &secret, &[], &body).await;
        let run = first.header("x-run-id");
        let path = format!("/cells/{cell}/runs/{run}/events");
        let mut tabs = vec![tokio::spawn(first.rest())];
        for (number, fault) in [Fault::Fin, Fault::Reset, Fault::Cut, Fault::Fin, Fault::Reset].into_iter().enumerate() {
            let piece = tally_text(cell, 10 * (number as u64 + 1));
            let bearer = format!("Bearer {secret}");
            request("GET", &format!("{base}{path}"), &[("authorization", bearer.as_str())], "").await.until(&piece).await;
            let broken = || proxy.injected().values().sum::<u64>();
            let before = broken();
            proxy.break_all(fault);
            eventually("it breaks", PATIENCE, async || broken() > before).await;
            // Two tabs come while it is broken, one on each surface.
            if number < 2 {
                tabs.push(tokio::spawn(Wire::ask(base, "GET", &path, &secret, &[], "").await.rest()));
                watchers.push(watch());
            }
            proxy.mend();
        }
        let expected: String = (0..PIECES).map(|n| tally_text(cell, n)).collect();
        let mut shown = Vec::new();
        for tab in tabs {
            shown.push(tokio::time::timeout(PATIENCE, tab).await.expect("it ends").expect("a tab"));
        }
        for tab in &shown {
            assert_eq!(text(&events(tab)), expected, "{voice:?} {cell}");
            assert_eq!(tab, &shown[0], "{voice:?} {cell}");
        }
        for watcher in watchers {
            let lines = watcher.await.expect("a watcher").content().json_lines();
            let typed = lines.iter().rev().find_map(|line| line.get("typed")).expect("what it shows");
            assert_eq!((&typed["text"], &typed["chat_ends"]), (&json!(expected), &json!([run])), "{voice:?} {cell}");
        }
        assert!(proxy.injected().values().sum::<u64>() >= 5, "{:?}", proxy.injected());
    };
    for voice in [Voice::Documented, Voice::Observed] {
        tokio::join!(place(voice, "cloud"), place(voice, "bridge"));
    }
}

/// What is no place in a run: each has one answer on each surface (sse.md §1.4 and §5.6 are in `tests/cases.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn case_b11_no_native_or_raw_cursor_gives_a_wrong_part() {
    let stand = stand("").await;
    let base = stand.base();
    let (cloud, bridge) = (token("cloud"), token("bridge"));
    let created =
        post(&format!("{base}/v1/agent/sessions"), &cloud, r#"{"mode":"agent","prompt":"play runs-ok-error-ok run=1"}"#).await.json();
    let (id, session) = (created["session_id"].as_str().expect("an id"), created["session_token"].as_str().expect("a token"));
    let path = format!("/v1/agent/sessions/{id}/stream");
    let whole = frames(&mut socket(base, &path, session).await, usize::MAX, |text| kind(text) == "result").await;
    let status = async |path: String, secret: &str| {
        let mut request = format!("{}{path}", base.replace("http", "ws")).into_client_request().expect("a request");
        request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().expect("a header"));
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => Ok(socket),
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    };
    // No number is no cursor: the run is over and was shown, so the result is to be fetched.
    for none in ["-1", "abc", "1.5", "", "0", "99999999999999999999999"] {
        assert_eq!(status(format!("{path}?since_seq={none}"), session).await.err(), Some(409), "{none}");
    }
    // Behind the end there is nothing, and nothing is invented.
    for beyond in [whole.len() as u64, whole.len() as u64 + 1, 1_000_000_000, u64::MAX] {
        let mut socket = status(format!("{path}?since_seq={beyond}"), session).await.expect("a socket");
        socket.send(Message::Ping(bytes::Bytes::from_static(b"?"))).await.expect("open");
        let next = tokio::time::timeout(Duration::from_secs(10), socket.next()).await.expect("an answer").expect("open").expect("whole");
        assert!(matches!(next, Message::Pong(_)), "{beyond}: {next:?}");
    }
    for unknown in ["run-00000000000000000000000000000000", "00000000-0000-4000-8000-000000000000"] {
        assert_eq!(status(format!("/v1/agent/sessions/{unknown}/stream?since_seq=1"), &cloud).await.err(), Some(404), "{unknown}");
        assert_eq!(get(&format!("{base}/cells/cloud/runs/{unknown}/events?from_seq=2"), &cloud).await.status, 404, "{unknown}");
    }
    let id = post(&format!("{base}/v1/code/sessions"), &bridge, "").await.json()["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/code/sessions/{id}/ws");
    assert_eq!(
        post(&format!("{base}/v1/code/sessions/{id}/messages"), &bridge, r#"{"prompt":"play runs-ok-error-ok run=1"}"#).await.status,
        202
    );
    let whole = frames(&mut socket(base, &path, &bridge).await, usize::MAX, |text| kind(text) == "keep_alive").await;
    for none in ["-1", "abc", "1.5", "", "0", "99999999999999999999999"] {
        assert_eq!(status(format!("{path}?last_event_id={none}"), &bridge).await.err(), Some(409), "{none}");
    }
    for beyond in [whole.len() as u64, 1_000_000_000, u64::MAX] {
        let mut socket = status(format!("{path}?last_event_id={beyond}"), &bridge).await.expect("a socket");
        let seen = frames(&mut socket, 2, |text| kind(text) == "keep_alive").await;
        assert_eq!(seen.iter().map(|frame| kind(frame)).collect::<Vec<_>>(), ["keep_alive"], "{beyond}");
    }
}
