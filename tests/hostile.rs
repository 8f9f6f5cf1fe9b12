//! Hostile input, from clients and from agent servers: each kind is refused or harmless. Bodies that are bombs, addresses that lead elsewhere, paths that
//! lead out, ids that break lines. Nothing of it may panic, stall or grow the program, and whatever was said before and after it still counts.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;
#[path = "support/upstream.rs"]
mod upstream;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "support/wire.rs"]
mod wire;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use interline_sim::Options;
use interline_testkit::{Program, get, in_repository, post, request};
use serde_json::{Value, json};
use support::{INTERLINE, Stand, end, events};
use tokio::net::TcpListener;
use upstream::{Reply, Upstream, created, result, text};
use wire::{RawSocket, exchange, raw};

const BEARER: &str = "Authorization: Bearer cloud-secret\r\nContent-Type: application/json\r\n";
/// How deep bombs are.
const DEPTH: usize = 100_000;

fn deep(open: &str, close: &str) -> String {
    format!("{}{}", open.repeat(DEPTH), close.repeat(DEPTH))
}

/// Values that are no values of the usual kind. All are JSON, or nearly.
fn odd_values() -> Vec<(&'static str, String)> {
    let (lists, objects) = (deep("[", "]"), format!("{}1{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH)));
    vec![
        ("deep lists", lists),
        ("deep objects", objects),
        ("open lists", "[".repeat(DEPTH)),
        ("a huge number", "1e999999".to_owned()),
        ("a long number", "9".repeat(100_000)),
        ("a small number", "-1e-999999".to_owned()),
        ("a half of a character", "\"\\ud83d\"".to_owned()),
        ("a null character", "\"a\\u0000b\"".to_owned()),
        ("line breaks", "\"a\\r\\n\\r\\nevent: done\\ndata: {}\\u2028\\u2029\"".to_owned()),
        ("a prototype", r#"{"__proto__":{"admin":true},"constructor":{"prototype":{"admin":true}}}"#.to_owned()),
    ]
}

/// Bodies for any route that takes one.
fn odd_bodies() -> Vec<(String, Vec<u8>)> {
    let mut bodies: Vec<(String, Vec<u8>)> = vec![
        ("nothing".to_owned(), Vec::new()),
        ("no UTF-8".to_owned(), b"{\"message\":\"\xff\xfe\"}".to_vec()),
        ("a byte order mark".to_owned(), b"\xef\xbb\xbf{}".to_vec()),
        ("half an object".to_owned(), b"{\"message\":".to_vec()),
        ("many members".to_owned(), {
            let mut text = String::from("{");
            for number in 0..50_000 {
                let _ = write!(text, "\"m{number}\":{number},");
            }
            (text + "\"x\":1}").into_bytes()
        }),
        (
            "the same member twice".to_owned(),
            br#"{"message":"a","message":"b","grant":"allow","grant":"deny","model":"a","model":"b"}"#.to_vec(),
        ),
    ];
    for (name, value) in odd_values() {
        bodies.push((name.to_owned(), value.clone().into_bytes()));
        // The big ones where somebody looks into them, the others anywhere.
        let some = if value.len() > 10_000 { 3 } else { usize::MAX };
        let all =
            ["messages", "message", "prompt", "model", "session_id", "run_id", "answers", "content", "runtime_env", "intent", "__proto__"];
        for member in all.into_iter().take(some) {
            bodies.push((format!("{name} as {member}"), format!("{{{}:{value}}}", Value::from(member)).into_bytes()));
        }
    }
    bodies
}

async fn panics(base: &str) -> String {
    let metrics = get(&format!("{base}/metrics"), "").await.body;
    metrics.lines().find(|line| line.starts_with("interline_panics_total")).expect("it is counted").to_owned()
}

/// It serves as if nothing had been.
async fn serves(stand: &Stand) {
    assert_eq!(panics(stand.base()).await, "interline_panics_total 0");
    let body = stand.run("cloud", "play chat-text-only").await.rest().await;
    assert_eq!(end(&events(&body)), "done", "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_every_kind_on_every_route_are_refused_or_harmless() {
    let stand = Stand::with(Options::default(), "").await;
    let base = stand.base();
    let session = post(&format!("{base}/api/sessions"), "cloud-secret", "{}").await.json()["id"].as_str().expect("an id").to_owned();
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(in_repository("contracts/openapi.json")).expect("the document")).expect("JSON");
    let bodies = odd_bodies();
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let mut target = path.replace("{cell}", "cloud").replace("{session_id}", &session).replace("{id}", &session);
        for name in ["run_id", "request_id", "turn_id", "task_id", "path", "dir", "key_id", "token", "name"] {
            target = target.replace(&format!("{{{name}}}"), "x");
        }
        for method in
            ["post", "put", "patch"].into_iter().filter(|method| item.get(method).is_some_and(|it| it.get("requestBody").is_some()))
        {
            for (name, body) in &bodies {
                let (status, answer) = exchange(base, &method.to_uppercase(), &target, BEARER, body).await;
                // A long body that nobody reads may cost the answer, too.
                let known = matches!(status, 200..=299 | 400..=499 | 501 | 502) || (status == 0 && body.len() > 60_000);
                assert!(known, "{method} {target} with {name}: {}", answer.chars().take(600).collect::<String>());
                asked += 1;
            }
        }
    }
    assert!(asked > 500, "{asked} were asked");
    serves(&stand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_kind_on_a_socket_are_refused_or_harmless() {
    let stand = Stand::with(Options::default(), "").await;
    let base = stand.base();
    let session = post(&format!("{base}/api/sessions"), "cloud-secret", "{}").await.json()["id"].as_str().expect("an id").to_owned();
    let mut socket = RawSocket::connect(base, "", &json!({"token": "cloud-secret"})).await.expect("a socket");
    for (name, value) in odd_values().into_iter().filter(|(name, _)| !name.starts_with("open")) {
        for event in ["session:subscribe", "chat:send", "chat:stop", "chat:compact", "__proto__", "constructor"] {
            for data in [
                value.clone(),
                format!("{{\"session_id\":{value}}}"),
                format!("{{\"session_id\":\"{session}\",\"message\":{value}}}"),
                format!("{{\"session_id\":\"{session}\",\"message\":\"quick\",\"askuser_answer\":{value}}}"),
                format!("{{\"session_id\":\"{session}\",\"runtime_env\":{value},\"__proto__\":{value}}}"),
            ] {
                socket.say(&format!("421[\"{event}\",{data}]")).await;
                // Whatever it is, it is answered; if not by words, then by the end of the connection.
                loop {
                    match socket.packet().await {
                        Some(packet) if packet.starts_with("431") => break,
                        Some(_) => {}
                        None => {
                            eprintln!("{event} with {name} ended the connection");
                            socket = RawSocket::connect(base, "", &json!({"token": "cloud-secret"})).await.expect("a new socket");
                            break;
                        }
                    }
                }
            }
        }
    }
    // What is no packet at all ends the connection, and nothing else.
    for packet in [
        "",
        "4",
        "42",
        "42[",
        "42[\"chat:send\"",
        "9",
        "451-[\"x\",{\"_placeholder\":true,\"num\":0}]",
        "42999999999999999999999[\"x\"]",
        "40/x,{}",
        "4\u{0}",
    ] {
        let mut socket = RawSocket::connect(base, "", &json!({"token": "cloud-secret"})).await.expect("a socket");
        socket.say(packet).await;
    }
    serves(&stand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_not_unpacked_and_sockets_do_not_compress() {
    let stand = Stand::with(Options::default(), "").await;
    let base = stand.base();
    // A gigabyte of zeros begins like this; nobody here would know, since nobody unpacks it.
    let bomb = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xec, 0xc1];
    for (target, kind) in
        [("/cells/cloud/run", "gzip"), ("/api/sessions", "br"), ("/v1/agent/sessions", "deflate"), ("/v1/code/sessions/x/messages", "zstd")]
    {
        let headers = format!("{BEARER}Content-Encoding: {kind}\r\n");
        let (status, answer) = exchange(base, "POST", target, &headers, &bomb).await;
        assert_eq!(status, 415, "{target}: {answer}");
        assert!(answer.contains("content-encoding"), "it says why: {answer}");
        let (status, _) = exchange(base, "POST", target, &format!("{BEARER}Content-Encoding: identity\r\n"), b"{}").await;
        assert_ne!(status, 415, "{target}");
    }
    let run = stand.run("cloud", "ask").await.headers["x-session-id"].to_str().expect("text").to_owned();
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    for target in [format!("/v1/agent/sessions/{run}/stream"), "/socket.io/?EIO=4&transport=websocket".to_owned()] {
        let host = base.trim_start_matches("http://");
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{upgrade}Authorization: Bearer cloud-secret\r\n\r\n");
        let answer = raw(base, request.as_bytes()).await.to_lowercase();
        assert!(answer.starts_with("http/1.1 101") && !answer.contains("sec-websocket-extensions"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_names_break_no_line_and_no_header() {
    let stand = Stand::with(Options::default(), "[log]\nfilter = \"debug\"\n").await;
    let base = stand.base();
    let odd = "x\r\nX-Evil: 1\r\n\r\nevent: evil\ndata: {\"type\":\"done\"}\n\n\u{0}\u{2028}\u{2029}\u{85}";
    let start = async |body: Value, headers: &str| {
        exchange(base, "POST", "/cells/cloud/run", &format!("{BEARER}{headers}"), body.to_string().as_bytes()).await.1
    };
    let messages = json!([{"role": "user", "content": "play chat-text-only"}]);
    let refused = start(json!({"session_id": odd, "messages": messages}), "").await;
    assert!(refused.starts_with("HTTP/1.1 422") && !refused.lines().any(|line| line.starts_with("X-Evil")), "{refused}");
    assert!(start(json!({"messages": messages}), "Idempotency-Key: a\u{1}b\r\n").await.starts_with("HTTP/1.1 400"));
    let body = json!({"actor": odd, "model": odd, "messages": messages, "__proto__": {"polluted": true}, "constructor": odd});
    let answer = start(body, "").await;
    let (head, stream) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200") && !head.to_lowercase().contains("x-evil"), "{head}");
    for line in stream.lines().filter(|line| line.starts_with("event") || line.contains("X-Evil")) {
        assert!(line.starts_with("data: {"), "{line}");
    }
    let first: Value = stream.lines().find_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).expect("its beginning");
    assert_eq!((first["model"].as_str(), first["type"].as_str()), (Some(odd), Some("run_start")));
    // The same in paths, where they are escaped.
    let escaped = "x%0d%0aX-Evil:%201%0d%0a%0d%0a%00%E2%80%A8";
    for target in [
        format!("/cells/{escaped}"),
        format!("/cells/{escaped}/run"),
        format!("/cells/cloud/runs/{escaped}/events"),
        format!("/cells/cloud/sessions/{escaped}/messages"),
        format!("/cells/cloud/hitl/{escaped}"),
        format!("/api/sessions/{escaped}"),
        format!("/api/sessions/{escaped}/files/{escaped}"),
        format!("/v1/agent/sessions/{escaped}/result"),
        format!("/v1/code/sessions/{escaped}/cost"),
        format!("/{escaped}"),
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let (status, answer) = exchange(base, method, &target, BEARER, b"").await;
            assert!((400..500).contains(&status) || status == 200, "{method} {target}: {answer}");
            assert!(!answer.to_lowercase().lines().any(|line| line.starts_with("x-evil")), "{answer}");
        }
    }
    assert!(!stand.program.output().lines().any(|line| line.starts_with("X-Evil") || line.starts_with("event: evil")), "the log is ours");
    serves(&stand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leads_out_of_what_it_is_below() {
    let stand = Stand::with(Options::default(), "").await;
    let base = stand.base();
    let session = post(&format!("{base}/api/sessions"), "cloud-secret", "{}").await.json()["id"].as_str().expect("an id").to_owned();
    let out = [
        "../../../../etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "..%5c..%5cetc",
        "%2e%2e/%2e%2e/etc/passwd",
        "a/../../../b",
        "%00",
        "..;/x",
        "....//....//x",
    ];
    for path in out {
        for target in [
            format!("/api/sessions/{session}/files/{path}"),
            format!("/api/sessions/{session}/ls/{path}"),
            format!("/cells/cloud/sessions/{path}/messages"),
            format!("/cells/cloud/runs/{path}/events"),
            format!("/v1/agent/sessions/{path}/result"),
            format!("/v1/code/sessions/{path}/cost"),
            format!("/assets/{path}"),
        ] {
            let (status, answer) = exchange(base, "GET", &target, BEARER, b"").await;
            assert!((400..500).contains(&status) || answer.ends_with("[]"), "{target}: {answer}");
            assert!(!answer.contains("root:"), "{target}: {answer}");
        }
    }
    for name in ["../evil", "..\\\\evil", "a/../../evil", "/../evil", "a\u{0}b"] {
        let form = format!(
            "--B\r\nContent-Disposition: form-data; name=\"files\"; filename=\"f\"\r\n\r\nx\r\n--B\r\nContent-Disposition: form-data; \
             name=\"paths\"\r\n\r\n{}\r\n--B--\r\n",
            json!([name.replace("\\\\", "\\")])
        );
        let headers = "Authorization: Bearer cloud-secret\r\nContent-Type: multipart/form-data; boundary=B\r\n";
        let (status, answer) = exchange(base, "POST", &format!("/api/sessions/{session}/upload"), headers, form.as_bytes()).await;
        assert_eq!(status, 400, "{name}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_a_bound_in_size_and_number() {
    let stand =
        Stand::with(Options::default(), "[server]\nmax_header_bytes = 16384\nheader_read_timeout_ms = 500\nbody_stall_ms = 500\n").await;
    let base = stand.base();
    let many: String = (0..500).map(|number| format!("X-{number}: y\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "y".repeat(40_000));
    for (name, headers) in [("many", many), ("long", long)] {
        let (status, answer) = exchange(base, "GET", "/healthz", &headers, b"").await;
        assert_eq!(status, 431, "{name}: {answer}");
    }
    let (status, _) = exchange(base, "GET", &format!("/{}", "a".repeat(70_000)), "", b"").await;
    assert!(matches!(status, 414 | 431), "{status}");
    // Slowly: half a head, then half a body.
    let begun = tokio::time::Instant::now();
    let _ = raw(base, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let host = base.trim_start_matches("http://");
    let head = format!("POST /cells/cloud/run HTTP/1.1\r\nHost: {host}\r\n{BEARER}Content-Length: 1000\r\n\r\n{{");
    let answer = raw(base, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 4") && begun.elapsed() < Duration::from_secs(10), "{answer}");
    serves(&stand).await;
}

/// The program before an agent server of a test's own making.
async fn before(upstream: &Upstream) -> Program {
    let config = format!(
        "[link]\nattempts = 2\nbackoff_first_ms = 10\nbackoff_max_ms = 20\nconnect_timeout_ms = 2000\nrequest_timeout_ms = 2000\n[run]\nmax_idle_ms = 4000\n\
         recoverable_error_ms = 500\n[[upstream]]\nname = \"u\"\nkind = \"cloud\"\nurl = \"{}\"\n[[route]]\ncell = \"*\"\nupstream = \"u\"\n",
        upstream.base
    );
    Program::serve(INTERLINE, &config).await
}

async fn run(program: &Program) -> Vec<Value> {
    let body = json!({"actor": "u", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    let stream = request("POST", &format!("{}/cells/c/run", program.base()), &[], body).await;
    events(&tokio::time::timeout(Duration::from_secs(30), stream.rest()).await.expect("it ends"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_server_sends_its_readers_nowhere_else() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let bait = format!("http://{}", elsewhere.local_addr().expect("an address"));
    let moved = |status: &'static str| {
        let bait = bait.clone();
        move |_: &str| Reply::Http(status, format!("Location: {bait}/moved\r\n"), Vec::new())
    };
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let upstream = Upstream::new(moved(status)).await;
        assert_eq!(run(&before(&upstream).await).await.last().expect("an end")["type"], "error", "{status}");
    }
    // A stream that is redirected, and results that are said to be elsewhere.
    let redirected = moved("302 Found");
    let upstream =
        Upstream::new(
            move |line| if line.starts_with("POST") { created("11111111-1111-4111-8111-111111111111", "t") } else { redirected(line) },
        )
        .await;
    assert_eq!(run(&before(&upstream).await).await.last().expect("an end")["type"], "error");
    for url in [
        format!("{bait}/result"),
        format!("//{}/result", &bait[7..]),
        format!("http://127.0.0.1:1@{}/r", &bait[7..]),
        "file:///etc/passwd".to_owned(),
        "http://169.254.169.254/latest".to_owned(),
    ] {
        let desync =
            json!({"type": "biumind.session_desynced", "session_id": "s", "since_seq": 1, "reason": "gone", "final_result_url": url})
                .to_string();
        let upstream = Upstream::streaming("t", vec![text("begun"), desync]).await;
        let ended = run(&before(&upstream).await).await;
        assert!(ended.last().expect("an end")["type"] != "stream_delta", "{ended:?}");
        let seen = upstream.seen().join("\n");
        assert!(!seen.contains("passwd") && !seen.contains("latest"), "{seen}");
    }
    let called = tokio::time::timeout(Duration::from_millis(300), elsewhere.accept()).await;
    assert!(called.is_err(), "somebody was called");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_an_agent_server_lead_nowhere_on_it() {
    for id in ["../../admin", "a/../../b", "x\r\nX-Evil: 1", "a?b=c#d", "..", "%2e%2e%2fadmin"] {
        let upstream =
            Upstream::new(move |line| if line.starts_with("POST") { created(id, "t") } else { Reply::Frames(vec![text("x"), result()]) })
                .await;
        let _ = run(&before(&upstream).await).await;
        for head in upstream.seen() {
            let line = head.lines().next().expect("a line").to_owned();
            let path = line.split(' ').nth(1).expect("a path").split('?').next().expect("a path").to_owned();
            assert!(path.starts_with("/v1/agent/sessions") && !path.split('/').any(|segment| segment == ".."), "{line}");
            assert!(!head.lines().any(|line| line.starts_with("X-Evil")), "{head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_every_kind_are_kept_or_dropped_and_the_run_goes_on() {
    let mut frames = vec![text("before ")];
    for (_, value) in odd_values() {
        frames.push(value.clone());
        frames.push(format!("{{\"type\":{value}}}"));
        frames.push(format!(r#"{{"type":"assistant","message":{{"id":"m","role":"assistant","content":{value}}},"uuid":"u1"}}"#));
        frames.push(format!(r#"{{"type":"assistant","message":{{"id":"m2","role":"assistant","content":[{{"type":"tool_use","id":"t1","name":"Bash","input":{value}}}]}},"uuid":"u2"}}"#));
        frames.push(format!(
            r#"{{"type":"stream_event","event":{{"type":"content_block_delta","index":{value},"delta":{value}}},"uuid":"u3"}}"#
        ));
        frames.push(format!(r#"{{"type":"system","subtype":"status","uuid":"u4","__proto__":{value},"constructor":{value}}}"#));
        frames.push(format!(r#"{{"type":"user","message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t1","content":{value}}}]}},"uuid":"u5"}}"#));
    }
    frames.push(r#"{"type":"streamlined_text","text":"twice","text":"again","uuid":"u6","uuid":"u7"}"#.to_owned());
    frames.push(text("and behind"));
    frames.push(result());
    let upstream = Upstream::streaming("t", frames).await;
    let program = before(&upstream).await;
    let seen = run(&program).await;
    assert_eq!(seen.last().expect("an end")["type"], "done", "{:?}", seen.last());
    let said = support::text(&seen);
    assert!(said.starts_with("before ") && said.ends_with("and behind"), "{said}");
    assert_eq!(panics(program.base()).await, "interline_panics_total 0");
    // Also as sockets and lists show it.
    let sessions = get(&format!("{}/api/sessions", program.base()), "").await.json();
    let id = sessions["items"][0]["id"].as_str().expect("a session").to_owned();
    assert_eq!(get(&format!("{}/api/sessions/{id}/messages", program.base()), "").await.status, 200);
    assert_eq!(get(&format!("{}/cells/c/sessions/{id}/messages", program.base()), "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_every_kind_end_the_run_with_an_error() {
    let gzip = "Content-Type: application/json\r\nContent-Encoding: gzip\r\n";
    let mut replies: Vec<(&'static str, String, Vec<u8>)> = vec![
        ("201 Created", gzip.to_owned(), vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xec, 0xc1]),
        ("201 Created", String::new(), vec![b' '; 8 << 20]),
    ];
    for (_, value) in odd_values() {
        replies.push(("201 Created", String::new(), value.clone().into_bytes()));
        replies.push(("201 Created", String::new(), format!("{{\"session_id\":{value},\"session_token\":{value}}}").into_bytes()));
        replies.push(("400 Bad", String::new(), format!("{{\"error\":{{\"code\":{value},\"message\":{value}}}}}").into_bytes()));
    }
    let current = Arc::new(Mutex::new(Reply::Frames(Vec::new())));
    let said = current.clone();
    let upstream = Upstream::new(move |head| {
        let reply = said.lock().expect("a reply").clone();
        if head.starts_with("POST") { reply } else { Reply::Http("404 No", String::new(), Vec::new()) }
    })
    .await;
    let program = before(&upstream).await;
    for (status, headers, body) in replies {
        let shown: String = String::from_utf8_lossy(&body).chars().take(60).collect();
        *current.lock().expect("a reply") = Reply::Http(status, headers, body);
        let ended = run(&program).await;
        let last = ended.last().expect("an end");
        assert!(last["type"] == "error" && last["error"].as_str().is_some_and(|error| error.len() < 2_000), "{shown}: {last}");
    }
    assert_eq!(panics(program.base()).await, "interline_panics_total 0");
}
