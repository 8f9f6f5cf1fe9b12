//! Faults that other proxies had, one test for each number of the list of cases: with the real program, before simulated or hand-made
//! upstreams. The line above each test says what the others' users saw.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;
#[path = "support/tap.rs"]
mod tap;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_sim::{Options, Pace, Simulator, bad_frames_text};
use interline_testkit::{
    Case, Client, Program, Stream, Surface, Temp, compare, eventually, get, grammar, in_repository, judge, post, request,
};
use serde_json::{Value, json};
use support::{INTERLINE, Stand, UPSTREAMS, end, events, text, token};
use tap::{Break, Crumbs, Tap};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long anything may take before a test gives it up; no time is measured by it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stand whose simulator plays our own transcripts.
async fn own_stand() -> Stand {
    Stand::with(Options { transcripts: Some(in_repository("tests/transcripts")), ..Options::default() }, "").await
}

fn own(name: &str) -> PathBuf {
    in_repository(&format!("tests/transcripts/{name}.jsonl"))
}

fn header(stream: &Stream, name: &str) -> String {
    stream.headers.get(name).and_then(|value| value.to_str().ok()).expect("the header").to_owned()
}

/// The program before one simulator, each of its cells behind a tap of its own. A cell is called after its upstream's kind.
struct Tapped {
    program: Program,
    cells: Vec<(String, Tap)>,
    _stop: DropGuard,
}

impl Tapped {
    async fn new(options: Options, cells: &[&str], crumbs: Crumbs) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let simulator = format!("http://{}", listener.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        let sim = Simulator::new(Options { pace: Pace::none(), ..options }).expect("a simulator");
        tokio::spawn(sim.serve(listener, stop.clone()));
        let mut config = String::from("[auth]\nmode = \"tokens\"\n\n");
        if crumbs == Crumbs::None {
            // What is to break should be given up soon.
            config.push_str(
                "[link]\nbackoff_first_ms = 20\nbackoff_max_ms = 100\nattempts = 3\nliveness_ms = 1500\n\
                 connect_timeout_ms = 500\nrequest_timeout_ms = 500\n\n",
            );
        }
        let mut taps = Vec::new();
        for cell in cells {
            let tap = Tap::before(&simulator, crumbs).await;
            let kind = cell.split('-').next().expect("a kind");
            let more = if kind == "cloud" {
                "mode = \"agent\"\nenvironment_id = \"7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11\"\ncredential = { value = \"upstream-secret\" }\n"
            } else {
                ""
            };
            config.push_str(&format!(
                "[[token]]\nname = \"{cell}\"\nsecret = {{ value = \"{}\" }}\ncells = [\"{cell}\"]\n\n\
                 [[upstream]]\nname = \"{cell}\"\nkind = \"{kind}\"\nurl = \"{}\"\n{more}\n\
                 [[route]]\ncell = \"{cell}\"\nupstream = \"{cell}\"\n\n",
                token(cell),
                tap.url(),
            ));
            taps.push(((*cell).to_owned(), tap));
        }
        Self { program: Program::serve(INTERLINE, &config).await, cells: taps, _stop: stop.drop_guard() }
    }
}

/// A raw connection on which a run has been asked for: what comes back is to be read as it is.
async fn raw_run(base: &str, cell: &str, version: &str, body: &Value) -> TcpStream {
    let address = base.strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let body = body.to_string();
    let head = format!(
        "POST /cells/{cell}/run HTTP/{version}\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        token(cell),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("it can be written");
    stream
}

fn prompt(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

/// Reads to the connection's end.
async fn raw_rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it ends").expect("it ends orderly");
    String::from_utf8(bytes).expect("UTF-8")
}

/// A session on Socket.IO that a client watches, and its id.
async fn watched(base: &str, secret: &str) -> (String, tokio::task::JoinHandle<interline_testkit::Seen>) {
    let session =
        post(&format!("{base}/api/sessions"), secret, r#"{"intent":""}"#).await.json()["session_id"].as_str().expect("an id").to_owned();
    let watcher = Client::new("socketio.mjs", base).args(["--token", secret, "--watch", "--session", &session]);
    (session, tokio::spawn(watcher.run()))
}

async fn subscribed(base: &str, count: usize) {
    eventually("the watchers are subscribed", PATIENCE, async || {
        let metrics = get(&format!("{base}/metrics"), "").await.body;
        let wanted = format!(" {count}");
        metrics.lines().any(|line| line.starts_with("interline_socketio_subscriptions") && line.ends_with(&wanted))
    })
    .await;
}

fn kinds(events: &[Value]) -> BTreeSet<String> {
    events.iter().filter_map(|event| event["type"].as_str().or(event["event"].as_str())).map(str::to_owned).collect()
}

// Others decoded each chunk by itself: characters became U+FFFD wherever the network cut them.
#[tokio::test(flavor = "multi_thread")]
async fn a1_characters_survive_every_cut() {
    let options = Options { transcripts: Some(in_repository("tests/transcripts")), ..Options::default() };
    let place = Tapped::new(options, &UPSTREAMS, Crumbs::Bytes).await;
    for cell in UPSTREAMS {
        for name in ["long-texts", "half-characters", "half-characters-streamed"] {
            // HTTP/1.0, so that the body is the rest of the connection; read a byte at a time.
            let mut stream = raw_run(place.program.base(), cell, "1.0", &prompt(&format!("play {name}"))).await;
            let mut bytes = Vec::new();
            while let Ok(byte) = tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("it goes on") {
                bytes.push(byte);
            }
            let answer = String::from_utf8(bytes).expect("UTF-8");
            let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
            compare(&own(name), Surface::Sse, body);
            assert!(name != "long-texts" || !body.contains('\u{fffd}'), "{cell}");
        }
    }
    // A megabyte with a message in fragments that the server itself cut inside characters.
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let seen = events(&stand.run(cell, "fault bad-frames").await.rest().await);
        assert!(text(&seen) == bad_frames_text(), "{cell}: the text differs");
    }
}

// Others lost the last event when its blank line was missing, or never wrote that line.
#[tokio::test(flavor = "multi_thread")]
async fn a3_every_body_ends_with_a_whole_event() {
    let whole = |answer: String, what: &str| {
        assert!(answer.ends_with("}\n\n\r\n0\r\n\r\n"), "{what}: {:?}", answer.get(answer.len().saturating_sub(200)..));
        answer
    };
    // The run ends, fails, is stopped, and the program is told to go.
    let stand = Stand::with(Options::default(), "[server]\ndrain_ms = 300\n").await;
    for cell in UPSTREAMS {
        for play in ["play chat-text-only", "play error", "fault no-result"] {
            whole(raw_rest(raw_run(stand.base(), cell, "1.1", &prompt(play)).await).await, play);
        }
        let stopped = raw_run(
            stand.base(),
            cell,
            "1.1",
            &json!({"session_id": format!("stopped-{cell}"), "messages": [{"role": "user", "content": "fault hang-after 2"}]}),
        )
        .await;
        eventually("the run is there", PATIENCE, async || {
            let answer = post(&format!("{}/cells/{cell}/sessions/stopped-{cell}/interrupt", stand.base()), &token(cell), "").await;
            answer.status == 202
        })
        .await;
        assert!(whole(raw_rest(stopped).await, "stopped").contains("interrupted"));
    }
    let mut drained = Vec::new();
    for cell in UPSTREAMS {
        let mut stream = raw_run(stand.base(), cell, "1.1", &prompt("fault hang-after 1")).await;
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("stream_delta") {
            seen.push(stream.read_u8().await.expect("it goes on"));
        }
        drained.push(stream);
    }
    stand.program.signal("TERM");
    for stream in drained {
        assert!(whole(raw_rest(stream).await, "drained").contains("missing_terminal_event"));
    }
    // The upstream goes away, and does not take the credential in the first place.
    let place = Tapped::new(Options::default(), &UPSTREAMS, Crumbs::None).await;
    for (cell, tap) in &place.cells {
        let stream = raw_run(place.program.base(), cell, "1.1", &prompt("fault hang-after 1")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        tap.break_by(Break::Reset);
        assert!(whole(raw_rest(stream).await, "lost").contains("missing_terminal_event"));
    }
    let other =
        Options { cloud_token: Some("another-secret".to_owned()), bridge_token: Some("another-secret".to_owned()), ..Options::default() };
    let stand = Stand::with(other, "").await;
    for cell in UPSTREAMS {
        let answer = raw_rest(raw_run(stand.base(), cell, "1.1", &prompt("play chat-text-only")).await).await;
        assert!(whole(answer, "refused").contains(r#""kind":"auth_required""#), "{cell}");
    }
}

// Others left their clients waiting for ever when the agent's connection ended without a last event.
#[tokio::test(flavor = "multi_thread")]
async fn a4_an_upstream_that_dies_ends_the_run_once_on_every_surface() {
    let breaks = [("finish", Break::Finish), ("reset", Break::Reset), ("close", Break::Close1011), ("freeze", Break::Freeze)];
    let cells: Vec<String> = UPSTREAMS.iter().flat_map(|kind| breaks.iter().map(move |(name, _)| format!("{kind}-{name}"))).collect();
    let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
    let options = Options { ping_interval: Duration::from_millis(300), ..Options::default() };
    let place = Tapped::new(options, &cells, Crumbs::None).await;
    let base = place.program.base();
    let mut watchers = Vec::new();
    for cell in &cells {
        watchers.push(watched(base, &token(cell)).await);
    }
    subscribed(base, cells.len()).await;
    let mut runs = Vec::new();
    for ((cell, tap), (session, watcher)) in place.cells.iter().zip(watchers) {
        let body = json!({"session_id": session, "messages": [{"role": "user", "content": "fault hang-after 3"}]});
        let bearer = format!("Bearer {}", token(cell));
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let mut stream = request("POST", &format!("{base}/cells/{cell}/run"), &headers, body.to_string()).await;
        stream.until("frame 2 ").await;
        let how = breaks.iter().find(|(name, _)| cell.ends_with(name)).expect("a break").1;
        tap.break_by(how);
        let broken = tokio::time::Instant::now();
        let rest = tokio::spawn(async move { (stream.rest().await, broken.elapsed()) });
        runs.push((cell, rest, watcher));
    }
    for (cell, rest, watcher) in runs {
        let (body, took) = rest.await.expect("the run");
        let seen = events(&body);
        // Detection by silence takes 1.5 s here, three vain attempts of half a second the rest.
        assert!(took < Duration::from_secs(15), "{cell}: {took:?}");
        let ends = seen.iter().filter(|event| matches!(event["type"].as_str(), Some("done" | "error" | "interrupted"))).count();
        assert_eq!((ends, end(&seen)), (1, "error"), "{cell}: {seen:?}");
        assert_eq!(seen.last().expect("an end")["kind"], "missing_terminal_event", "{cell}");
        assert_eq!(text(&seen), "frame 0 frame 1 frame 2 ", "{cell}");
        let watched = watcher.await.expect("the watcher").content();
        let count = |name: &str, role: Option<&str>| {
            let lines = watched.json_lines();
            lines.iter().filter(|line| line["event"] == name && role.is_none_or(|role| line["data"]["role"] == role)).count()
        };
        assert_eq!((count("turn:end", Some("assistant")), count("chat:end", None)), (1, 1), "{cell}: {}", watched.output);
        assert_eq!(grammar(Surface::SocketIo, &watched.socket_events())["outcome"], "error", "{cell}");
    }
}

// Others let line breaks in the model's text forge events.
#[tokio::test(flavor = "multi_thread")]
async fn a5_no_text_forges_an_event() {
    let stand = own_stand().await;
    for cell in UPSTREAMS {
        let body = stand.run(cell, "play line-breaks auto").await.rest().await;
        for block in body.strip_suffix("\n\n").expect("it ends whole").split("\n\n") {
            let json = block.strip_prefix("data: ").unwrap_or_else(|| panic!("no event: {block:?}"));
            assert!(!json.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}', '\0', '\u{1b}']), "{json:?}");
            assert!(serde_json::from_str::<Value>(json).is_ok_and(|event| event["type"].is_string()), "{json:?}");
        }
        compare(&own("line-breaks"), Surface::Sse, &body);
        let secret = token(cell);
        let client =
            Client::new("socketio.mjs", stand.base()).args(["--token", &secret, "--answer", "none", "--prompt", "play line-breaks auto"]);
        // The client leaves at the pause; the rest of the run is in the messages.
        let seen = client.run().await.content();
        assert!(seen.output.contains(r"\r\nevent: done\ndata: {"), "{}", seen.output);
    }
    // What clients choose themselves: session ids, cells, cursors.
    let evil = "s\r\nX-Evil: 1\r\n\r\nevent: done\ndata: {}\u{2028}";
    let body = json!({"session_id": evil, "messages": [{"role": "user", "content": "play end-at-once"}]});
    let answer = raw_rest(raw_run(stand.base(), "cloud", "1.1", &body).await).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(!head.to_lowercase().contains("\r\nx-evil"), "{head}");
    assert!(!body.contains("\nevent: done") && !body.contains("\ndata: {}"), "{body}");
    for path in
        ["cells/cloud%0d%0aX-Evil:%201/run", "cells/cloud/runs/run-1%0d%0aX-Evil:%201/events", "api/sessions/x%0aX-Evil:%201/messages"]
    {
        let method = if path.ends_with("run") { "POST" } else { "GET" };
        let bearer = format!("Bearer {}", token("cloud"));
        let answer = request(
            method,
            &format!("{}/{path}", stand.base()),
            &[("authorization", &bearer), ("content-type", "application/json")],
            prompt("x").to_string(),
        )
        .await;
        assert_eq!((answer.status, answer.headers.get("x-evil")), (404, None), "{path}");
    }
}

/// A result that was cut says so, and the path that it names has the whole of it.
async fn is_beginning(told: &str, result: &str, base: &str, secret: &str) {
    let (shown, mark) = told.split_once("\n[output cut: ").expect("a mark");
    assert!(result.starts_with(shown), "{mark}");
    let (bytes, path) = mark.trim_end_matches(']').split_once(" bytes shown; all of it: GET ").expect("a path");
    assert_eq!(bytes, format!("{} of {}", shown.len(), result.len()));
    let whole = get(&format!("{base}{path}"), secret).await.json().to_string();
    assert!(whole.contains(&json!(result).to_string()), "{path}");
}

// Others closed the socket on a message beyond a limit; the client came back and sent it again, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a6_too_large_is_said_and_costs_nobody_the_connection() {
    // (b) A result of 8 MB comes through, or says where it was cut.
    let result = "0123456789abcde\n".repeat(512 * 1024);
    let frames = |result: &str| {
        let frames = [
            json!({"type": "streamlined_text", "text": "Reading. ", "uuid": "1"}),
            json!({"type": "tool_progress", "tool_use_id": "call-1", "tool_name": "Read", "uuid": "2"}),
            json!({"type": "tool_use_summary", "summary": result, "preceding_tool_use_ids": ["call-1"], "uuid": "3"}),
            json!({"type": "streamlined_text", "text": "Read.", "uuid": "4"}),
            json!({"type": "result", "subtype": "success", "is_error": false, "uuid": "5"}),
        ];
        frames.iter().map(|frame| format!("{frame}\n")).collect::<String>()
    };
    let file = Temp::file("big.jsonl", &frames(&result));
    let folder = file.path().parent().expect("a folder").to_owned();
    std::fs::write(folder.join("quarter.jsonl"), frames(result.get(..result.len() / 4).expect("a quarter"))).expect("a file");
    let transcripts = Some(folder.clone());
    let stand = Stand::with(Options { transcripts, ..Options::default() }, "[socketio]\nmax_message_bytes = 1_000_000\n").await;
    for cell in UPSTREAMS {
        let seen = events(&stand.run(cell, "play big").await.rest().await);
        let told =
            seen.iter().find(|event| event["type"] == "tool_end").expect("an end of the tool")["result"].as_str().expect("text").to_owned();
        is_beginning(&told, &result, stand.base(), &token(cell)).await;
        assert_eq!((end(&seen), text(&seen).as_str()), ("done", "Reading. Read."));
    }
    let (secret, mut clients) = (token("cloud"), Vec::new());
    for (transport, name) in [("websocket", "big"), ("polling", "quarter")] {
        let prompt = format!("play {name}");
        let args = ["--token", &secret, "--transport", transport, "--timeout", "180", "--prompt", &prompt];
        clients.push((name, tokio::spawn(Client::new("socketio.mjs", stand.base()).args(args).run())));
    }
    for (name, client) in clients {
        let seen = client.await.expect("the client").content();
        let native = Some(folder.join(format!("{name}.jsonl")));
        let told = seen.socket_events();
        let case = Case { name: seen.name.clone(), surface: Surface::SocketIo, events: told.clone(), native };
        let diffs = judge(&[case]).remove(0);
        assert!(diffs.len() == 1 && diffs[0].starts_with("tool call-1: result "), "{}: {}", seen.name, diffs.len());
        let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let told =
            told.iter().find(|event| event["data"]["patch_type"] == "tool_result").expect("a patch")["data"]["data"]["result"].clone();
        let all = result.get(..if name == "big" { result.len() } else { result.len() / 4 }).expect("the whole, or a quarter");
        is_beginning(told.as_str().expect("text"), all, stand.base(), &secret).await;
    }

    // (a) A message over the limit is refused in its acknowledgement, and the socket goes on.
    let session = post(&format!("{}/api/sessions", stand.base()), &secret, r#"{"intent":""}"#).await.json()["session_id"].clone();
    let url = format!("{}/socket.io/?EIO=4&transport=websocket", stand.base().replace("http", "ws"));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("a socket");
    let mut say = async |packet: String, wanted: &str| {
        socket.send(Message::from(packet)).await.expect("it can be sent");
        loop {
            let message = tokio::time::timeout(PATIENCE, socket.next()).await.expect("an answer in time").expect("open").expect("whole");
            if let Message::Text(text) = message
                && text.starts_with(wanted)
            {
                return text.to_string();
            }
        }
    };
    say(format!("40{}", json!({"token": secret})), "40").await;
    let refused = say(format!("421{}", json!(["chat:send", {"session_id": session, "message": "x".repeat(1_000_001)}])), "431").await;
    assert!(refused.contains(r#""code":"message_too_large""#) && refused.contains(r#""ok":false"#), "{refused}");
    let taken = say(format!("422{}", json!(["chat:send", {"session_id": session, "message": "play big"}])), "432").await;
    assert!(taken.contains(r#""ok":true"#), "{taken}");

    // (c) What would make the agent's server close the shared socket is refused before it gets there.
    let stand = Stand::new().await;
    let mut stream = stand.run("cloud", "play ask").await;
    let seen = events(&stream.until("approval_request").await);
    let ask = seen.last().expect("the ask")["request_id"].as_str().expect("an id").to_owned();
    let answer = json!({"answers": {"Which env?": "x".repeat(40_000)}});
    let answered = post(&format!("{}/cells/cloud/hitl/{ask}", stand.base()), &secret, &answer.to_string()).await;
    assert_eq!(answered.status, 200, "the answer is given; the agent is told that it could not be delivered: {answered:?}");
    let seen = events(&stream.rest().await);
    assert_eq!(end(&seen), "done", "{:?}", seen.last());
    // A native client that sends too much loses its own socket, with 1009, and nobody else's.
    let mut stream = stand.run("cloud", "play agent-with-permission").await;
    let run = header(&stream, "x-run-id");
    let ask = events(&stream.until("approval_request").await).last().expect("the ask")["request_id"].as_str().expect("an id").to_owned();
    let dashed: String = run
        .trim_start_matches("run-")
        .char_indices()
        .map(|(at, c)| if [8, 12, 16, 20].contains(&at) { format!("-{c}") } else { c.to_string() })
        .collect();
    let ticket = post(&format!("{}/v1/agent/sessions/{dashed}/refresh-token", stand.base()), &secret, "").await.json()["session_token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let url = format!("{}/v1/agent/sessions/{dashed}/stream?session_token={ticket}", stand.base().replace("http", "ws"));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("a socket");
    socket.send(Message::from("x".repeat(40_000))).await.expect("it can be sent");
    let mut code = None;
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Close(Some(frame)) = message {
            code = Some(u16::from(frame.code));
        }
    }
    assert_eq!(code, Some(1009));
    post(&format!("{}/cells/cloud/hitl/{ask}", stand.base()), &secret, r#"{"grant":"allow"}"#).await;
    assert_eq!(end(&events(&stream.rest().await)), "done");
}

// Others gave pieces of a tool's input to the latest tool instead of to their block's.
#[tokio::test(flavor = "multi_thread")]
async fn a8_pieces_of_input_belong_to_their_block() {
    let stand = own_stand().await;
    let wanted = [("call-1", json!({"path": "one"})), ("call-2", json!({"pattern": "two"}))];
    for cell in UPSTREAMS {
        let stream = stand.run(cell, "play blocks-by-index").await;
        let session = header(&stream, "x-session-id");
        let body = stream.rest().await;
        compare(&own("blocks-by-index"), Surface::Sse, &body);
        let seen = events(&body);
        let messages = get(&format!("{}/api/sessions/{session}/messages", stand.base()), &token(cell)).await.json();
        let calls: Vec<&Value> =
            messages.as_array().into_iter().flatten().flat_map(|turn| turn["tool_calls"].as_array().into_iter().flatten()).collect();
        for (call, input) in &wanted {
            let started = seen.iter().find(|event| event["type"] == "tool_start" && event["call_id"] == *call).expect("a start");
            assert_eq!(started["arguments"], *input);
            let shown = calls.iter().find(|shown| shown["id"] == *call).expect("a call");
            assert_eq!(serde_json::from_str::<Value>(shown["arguments"].as_str().expect("text")).ok().as_ref(), Some(input));
        }
    }
}

// Others put the history of several runs through a reader for one: after a failed run nothing more was shown, or runs were mixed up.
#[tokio::test(flavor = "multi_thread")]
async fn b7_a_failed_run_between_two_good_ones() {
    let stand = own_stand().await;
    let on = async |cell: &'static str| {
        let secret = token(cell);
        // On SSE: live, and each run by itself afterwards.
        let (mut session, mut all, mut runs) = (None, String::new(), Vec::new());
        for outcome in ["done", "error", "done"] {
            let stream = stand.run_in(cell, "play runs-ok-error-ok", session.as_deref()).await;
            let run = header(&stream, "x-run-id");
            session = Some(header(&stream, "x-session-id"));
            let body = stream.rest().await;
            assert_eq!(end(&events(&body)), outcome);
            all.push_str(&body);
            runs.push((run, body));
        }
        compare(&own("runs-ok-error-ok"), Surface::Sse, &all);
        for (run, live) in &runs {
            let replay = get(&format!("{}/cells/{cell}/runs/{run}/events", stand.base()), &secret).await.body;
            assert_eq!(replay, *live);
            assert_eq!(replay.matches("\"run_id\":").count(), replay.matches(run.as_str()).count(), "no other run's id");
        }
        // On Socket.IO: three chats in one session, live; then what REST shows to who comes later.
        let session = post(&format!("{}/api/sessions", stand.base()), &secret, r#"{"intent":""}"#).await.json()["session_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let mut chats = String::new();
        let mut shown = Value::Null;
        for _ in 0..3 {
            let args = ["--token", &secret, "--session", &session, "--prompt", "play runs-ok-error-ok"];
            let seen = Client::new("socketio.mjs", stand.base()).args(args).run().await.content();
            chats.push_str(&seen.socket_events());
            shown = seen.json_lines().last().expect("the messages")["messages"].clone();
        }
        compare(&own("runs-ok-error-ok"), Surface::SocketIo, &chats);
        let states = |messages: &Value| -> Vec<(String, String)> {
            let turns = messages.as_array().into_iter().flatten();
            turns
                .map(|turn| (turn["role"].to_string(), turn["status"].to_string()))
                .filter(|(role, _)| role.contains("assistant"))
                .collect()
        };
        let messages = get(&format!("{}/api/sessions/{session}/messages", stand.base()), &secret).await.json();
        assert_eq!(messages, shown);
        assert_eq!(states(&messages).iter().filter(|(_, status)| status.contains("failed")).count(), 1, "{messages}");
        let ids: BTreeSet<String> = messages.as_array().into_iter().flatten().map(|turn| turn["turn_id"].to_string()).collect();
        assert_eq!(ids.len(), messages.as_array().map_or(0, Vec::len), "every turn has an id of its own");
        let late = post(
            &format!("{}/cells/{cell}/run", stand.base()),
            &secret,
            &json!({"session_id": session, "messages": [{"role": "user", "content": "play text run=1"}]}).to_string(),
        )
        .await;
        assert_eq!(late.status, 200, "the session goes on");
    };
    let [cloud, bridge] = UPSTREAMS;
    tokio::join!(on(cloud), on(bridge));
}

// Others forgot a client's options, and with them the sub-agents' events, when it came back.
#[tokio::test(flavor = "multi_thread")]
async fn b8_who_comes_back_sees_the_same_kinds_of_events() {
    let stand = own_stand().await;
    for cell in UPSTREAMS {
        let secret = token(cell);
        for query in ["", "&extras=fields", "&extras=events"] {
            let mut stream = stand.run(cell, "play sub-agents-parallel auto").await;
            let run = header(&stream, "x-run-id");
            stream.until("tool_progress").await;
            drop(stream);
            let url = format!("{}/cells/{cell}/runs/{run}/events", stand.base());
            let whole = get(&format!("{url}?from_seq=1{query}"), &secret).await.body;
            let again = get(&format!("{url}?from_seq=1{query}"), &secret).await.body;
            assert_eq!(whole, again);
            assert!(kinds(&events(&whole)).contains("tool_progress"), "what sub-agents say is there");
            let numbered = |body: &str| {
                body.split_inclusive("\n\n")
                    .filter(|block| query.is_empty() || block.contains("\"seq\":"))
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            for from in 1..=numbered(&whole).len() {
                let tail = get(&format!("{url}?from_seq={from}{query}"), &secret).await.body;
                assert_eq!(numbered(&tail), numbered(&whole).split_off(from - 1), "from {from} with {query:?}");
            }
            if query.is_empty() {
                compare(&own("sub-agents-parallel"), Surface::Sse, &whole);
            }
        }
        // Socket.IO: who comes in the middle sees the sub-agents' turns, as who was there from the start.
        let (session, first) = watched(stand.base(), &secret).await;
        subscribed(stand.base(), 1).await;
        let mut stream = stand.run_in(cell, "play sub-agents-stopped", Some(&session)).await;
        stream.until("inner says").await;
        let args = ["--token", &secret, "--watch", "--session", &session];
        let late = tokio::spawn(Client::new("socketio.mjs", stand.base()).args(args).run());
        subscribed(stand.base(), 2).await;
        post(&format!("{}/cells/{cell}/sessions/{session}/interrupt", stand.base()), &secret, "").await;
        compare(&own("sub-agents-stopped"), Surface::Sse, &stream.rest().await);
        let (first, late) = (first.await.expect("the watcher").content(), late.await.expect("the watcher").content());
        compare(&own("sub-agents-stopped"), Surface::SocketIo, &first.socket_events());
        compare(&own("sub-agents-stopped"), Surface::SocketIo, &late.socket_events());
        let ends = |seen: &interline_testkit::Seen| -> Vec<Value> {
            let ends = seen.json_lines().into_iter().filter(|line| line["event"] == "turn:end" && line["data"]["role"] == "assistant");
            ends.map(|line| line["data"].clone()).collect()
        };
        assert_eq!(ends(&late), ends(&first));
        let parents: BTreeSet<String> = ends(&late).iter().map(|turn| turn["parent_fork_tool_call_id"].to_string()).collect();
        assert_eq!(parents.len(), 4, "{parents:?}");
        subscribed(stand.base(), 0).await;
    }
}

// Others answered a cursor that made no sense with some plausible part of the stream.
#[tokio::test(flavor = "multi_thread")]
async fn b11_every_cursor_has_one_documented_answer() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let secret = token(cell);
        let other = header(&stand.run(cell, "play error").await, "x-run-id");
        let stream = stand.run(cell, "play chat-text-only").await;
        let (run, session) = (header(&stream, "x-run-id"), header(&stream, "x-session-id"));
        let body = stream.rest().await;
        let blocks: Vec<&str> = body.split_inclusive("\n\n").collect();
        let (last, count) = (*blocks.last().expect("an end"), blocks.len());
        let url = format!("{}/cells/{cell}/runs/{run}/events", stand.base());
        for bad in ["-1", "abc", "1.5", "0x10", "1e3", "%201x"] {
            let answer = get(&format!("{url}?from_seq={bad}"), &secret).await;
            assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("invalid_from_seq")), "{bad}");
        }
        // Beyond the end of a run that is over: its end once more, so that nobody waits.
        for beyond in [format!("{}", count + 1), "18446744073709551615".to_owned(), "18446744073709551616".to_owned(), "9".repeat(100)] {
            assert_eq!(get(&format!("{url}?from_seq={beyond}"), &secret).await.body, last, "{beyond}");
        }
        let resume = async |id: String| {
            let bearer = format!("Bearer {secret}");
            let headers = [("authorization", bearer.as_str()), ("last-event-id", id.as_str()), ("accept", "text/event-stream")];
            let stream = request("GET", &url, &headers, "").await;
            let status = stream.status;
            (status, stream.rest().await.lines().filter(|line| line.starts_with("data: ")).count())
        };
        assert_eq!(resume(format!("{run}:2")).await, (200, count - 2), "what follows");
        assert_eq!(resume(format!("{run}:{count}")).await, (204, 0), "nothing follows, and browsers stop asking");
        for foreign in [format!("{other}:2"), "run-00000000000000000000000000000000:2".to_owned(), "nonsense".to_owned(), "-1".to_owned()] {
            assert_eq!(resume(foreign.clone()).await, (200, count), "another run's cursor is none: all of it: {foreign}");
        }
        // A run of a session that was deleted, of somebody else, of nobody.
        let foreign = UPSTREAMS.iter().find(|name| **name != cell).expect("the other");
        assert_eq!(get(&format!("{}/cells/{foreign}/runs/{run}/events", stand.base()), &token(foreign)).await.status, 404);
        interline_testkit::delete(&format!("{}/cells/{cell}/sessions/{session}", stand.base()), &secret).await;
        let gone = get(&format!("{url}?from_seq=2"), &secret).await;
        assert_eq!((gone.status, gone.json()["kind"].as_str()), (404, Some("run_not_found")));
    }
}

// Permission requests overtake what they are about: others showed a request for a tool that did not exist yet, or dropped it.
#[tokio::test(flavor = "multi_thread")]
async fn b13_a_request_that_overtakes_its_tool() {
    let stand = own_stand().await;
    for cell in UPSTREAMS {
        let secret = token(cell);
        let mut stream = stand.run(cell, "play permission-first").await;
        let before = stream.until("approval_request").await;
        let asked = events(&before);
        let (ask, start) = (asked.last().expect("the ask"), asked.get(asked.len() - 2).expect("the tool"));
        assert_eq!((start["type"].as_str(), ask["type"].as_str()), (Some("tool_start"), Some("approval_request")));
        assert_eq!((&ask["tool_name"], &ask["arguments"]), (&start["tool_name"], &start["arguments"]));
        let id = ask["request_id"].as_str().expect("an id");
        let answer = post(&format!("{}/cells/{cell}/hitl/{id}", stand.base()), &secret, r#"{"grant":"allow"}"#).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        compare(&own("permission-first"), Surface::Sse, &stream.rest().await);

        let args = ["--token", &secret, "--answer", "allow", "--prompt", "play permission-first"];
        let seen = Client::new("socketio.mjs", stand.base()).args(args).run().await.content();
        compare(&own("permission-first"), Surface::SocketIo, &seen.socket_events());
    }
}
