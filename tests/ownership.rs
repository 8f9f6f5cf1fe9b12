//! Case F3: whatever one client has does not exist for another. Every operation of the documents is asked for somebody else's ids and for ids that
//! nobody has: the answers are the same, byte for byte but for the ids, and take equally long; and nothing has happened to what was asked for.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "support/wire.rs"]
mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use interline_sim::Options;
use interline_testkit::{eventually, get, in_repository, post};
use serde_json::{Value, json};
use support::Stand;
use tokio::time::Instant;
use wire::{RawSocket, exchange};

/// A second token for the same cell.
const OTHER: &str = "[[token]]\nname = \"other\"\nsecret = { value = \"other-secret\" }\ncells = [\"*\"]\n";

/// A route of the documents: method, path, and a body.
struct Operation {
    method: String,
    path: String,
    kind: String,
    body: String,
}

fn operations() -> Vec<Operation> {
    let text = std::fs::read_to_string(in_repository("contracts/openapi.json")).expect("the document");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        // What names nothing has no owner.
        for (method, operation) in item.as_object().expect("a path").iter().filter(|(name, _)| *name != "parameters" && path.contains('{'))
        {
            let content = operation["requestBody"]["content"].as_object().and_then(|content| content.iter().next());
            let (kind, body) = content.map_or((String::new(), String::new()), |(kind, media)| {
                let example = &media["example"];
                (kind.clone(), example.as_str().map_or_else(|| example.to_string(), str::to_owned))
            });
            found.push(Operation { method: method.to_uppercase(), path: path.clone(), kind, body });
        }
    }
    found
}

/// What somebody has, by the names that the documents give it.
type Ids = BTreeMap<&'static str, String>;

fn filled(path: &str, ids: &Ids) -> String {
    let mut target = path.to_owned();
    for (name, value) in ids {
        target = target.replace(&format!("{{{name}}}"), value);
    }
    target
}

/// An answer without what is different in every one.
fn bare(answer: &str, ids: &Ids) -> String {
    let mut lines: Vec<String> = answer.lines().filter(|line| !line.to_ascii_lowercase().starts_with("date:")).map(str::to_owned).collect();
    // Ids are of the same length, but a length says nothing else.
    lines.retain(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
    let mut text = lines.join("\n");
    for value in ids.values().filter(|value| value.len() > 8) {
        text = text.replace(value.as_str(), "ID");
    }
    text
}

fn bearer(secret: &str) -> String {
    format!("Authorization: Bearer {secret}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f3_what_is_somebody_elses_does_not_exist() {
    let stand = Stand::with(Options::default(), OTHER).await;
    let base = stand.base();
    let mut stream = stand.run("cloud", "ask").await;
    let header = |name: &str| stream.headers[name].to_str().expect("text").to_owned();
    let (run, session) = (header("x-run-id"), header("x-session-id"));
    let _ = stream.until("approval_request").await;
    let asks = get(&format!("{base}/cells/cloud/asks"), "cloud-secret").await.json();
    let ask = asks["asks"][0]["request_id"].as_str().expect("it asks").to_owned();
    let turns = get(&format!("{base}/api/sessions/{session}/messages"), "cloud-secret").await.json();
    let turn = turns[0]["turn_id"].as_str().expect("a turn").to_owned();
    let native = post(&format!("{base}/v1/agent/sessions/{session}/refresh-token"), "cloud-secret", "").await.json();
    let session_token = native["session_token"].as_str().expect("a token").to_owned();
    let ids = |session: &str, run: &str, id: &str, ask: &str, turn: &str| -> Ids {
        let constant =
            [("cell", "cloud"), ("task_id", "t"), ("path", "a.txt"), ("dir", "a"), ("key_id", "k"), ("token", "t"), ("name", "n")];
        let own = [("session_id", session), ("run_id", run), ("id", id), ("request_id", ask), ("turn_id", turn)];
        constant.into_iter().chain(own).map(|(name, value)| (name, value.to_owned())).collect()
    };
    let nobody = "5f0c1d7e-0000-4000-8000-0123456789ab";
    let no_run = "run-5f0c1d7e000040008000012345678900";
    let mut compared = 0;
    for operation in operations() {
        for (theirs, unknown_id) in [(session.as_str(), nobody), (run.as_str(), no_run)] {
            let theirs = ids(&session, &run, theirs, &ask, &turn);
            let unknown = ids(nobody, no_run, unknown_id, "00000000-0000-4000-8000-00000000beef", "11111111-0000-4000-8000-00000000beef");
            let headers = format!("{}Content-Type: {}\r\n", bearer("other-secret"), operation.kind);
            let mut answers = Vec::new();
            for ids in [&theirs, &unknown] {
                let target = filled(&operation.path, ids);
                let (_, answer) = exchange(base, &operation.method, &target, &headers, operation.body.as_bytes()).await;
                answers.push((target, bare(&answer, ids)));
            }
            let [(target, foreign), (_, unknown)] = &answers[..] else { panic!("two") };
            // A run that is started is somebody's own, and its ids are new.
            if !operation.path.ends_with("/run") && !operation.path.ends_with("/tickets") {
                assert_eq!(foreign, unknown, "{} {target}", operation.method);
                compared += 1;
            }
        }
    }
    assert!(compared > 80, "{compared} were compared");
    // WebSockets, cursors, keys and lists.
    let upgrade =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (theirs, unknown) in [
        (format!("/v1/agent/sessions/{session}/stream"), format!("/v1/agent/sessions/{nobody}/stream")),
        (format!("/v1/agent/sessions/{run}/stream?since_seq=1"), format!("/v1/agent/sessions/{no_run}/stream?since_seq=1")),
        (format!("/v1/code/sessions/{session}/ws?last_event_id=1"), format!("/v1/code/sessions/{nobody}/ws?last_event_id=1")),
    ] {
        let host = base.trim_start_matches("http://");
        let ask = async |target: &str| {
            let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{upgrade}{}\r\n", bearer("other-secret"));
            wire::raw(base, request.as_bytes()).await
        };
        let strip = |answer: String| answer.replace(&session, "ID").replace(&run, "ID").replace(nobody, "ID").replace(no_run, "ID");
        let without_date = |answer: String| {
            strip(answer)
                .lines()
                .filter(|line| !line.starts_with("date:") && !line.starts_with("content-length"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(without_date(ask(&theirs).await), without_date(ask(&unknown).await), "{theirs}");
    }
    for list in ["/cells/cloud/asks".to_owned(), format!("/cells/cloud/runs?session_id={session}"), "/api/sessions".to_owned()] {
        let seen = get(&format!("{base}{list}"), "other-secret").await.body;
        assert!(!seen.contains(&run) && !seen.contains(&ask), "{seen}");
    }
    // Somebody's session token is for that session.
    let (status, _) = exchange(base, "GET", &format!("/v1/agent/sessions/{nobody}/stream?session_token={session_token}"), "", b"").await;
    assert_eq!(status, 401);
    // Events.
    let mut socket =
        RawSocket::connect(base, "", &json!({"token": "other-secret", "pid": session, "offset": "1"})).await.expect("a socket");
    for (event, data) in [
        ("session:subscribe", json!({"session_id": "S"})),
        ("session:subscribe", json!({"session_id": "S", "raw": true, "after": 0})),
        ("session:unsubscribe", json!({"session_id": "S"})),
        ("chat:send", json!({"session_id": "S", "message": "Allow"})),
        ("chat:send", json!({"session_id": "S", "message": "x", "askuser_answer": {"tool_call_id": ask, "answers": {}}})),
        ("chat:stop", json!({"session_id": "S"})),
        ("chat:stop", json!({"session_id": "S", "chat_run_id": run})),
        ("chat:compact", json!({"session_id": "S"})),
        ("join", json!({"room": "S"})),
    ] {
        let mut acks = Vec::new();
        for id in [session.as_str(), nobody] {
            let data: Value = serde_json::from_str(&data.to_string().replace("\"S\"", &format!("\"{id}\""))).expect("JSON");
            acks.push(socket.emit(event, &data).await.expect("an answer").to_string().replace(id, "ID"));
        }
        assert_eq!(acks[0], acks[1], "{event}");
    }
    // A run of one's own, in a session of that name.
    let own_stream = support::events(&{
        let bearer = bearer("other-secret");
        let body = json!({"session_id": session, "messages": [{"role": "user", "content": "quick"}]}).to_string();
        let headers = format!("{bearer}Last-Event-ID: {run}:1\r\nIdempotency-Key: k\r\n");
        exchange(base, "POST", "/cells/cloud/run", &headers, body.as_bytes()).await.1
    });
    assert_ne!(own_stream[0]["run_id"], json!(run), "a run of one's own");
    // Nothing has happened to what was asked for.
    let still = get(&format!("{base}/cells/cloud/runs/{run}"), "cloud-secret").await.json();
    assert_eq!(still["status"], "running");
    let asks = get(&format!("{base}/cells/cloud/asks"), "cloud-secret").await.json();
    assert_eq!(asks["asks"][0]["request_id"], json!(ask));
    assert_eq!(post(&format!("{base}/cells/cloud/hitl/{ask}"), "cloud-secret", r#"{"grant":"allow"}"#).await.status, 200);
    assert_eq!(support::end(&support::events(&stream.rest().await)), "done");
}

/// Half the time that many askings take at least.
async fn median(base: &str, target: &str) -> Duration {
    let mut took = Vec::new();
    for _ in 0..150 {
        let begun = Instant::now();
        let answer = get(&format!("{base}{target}"), "other-secret").await;
        took.push(begun.elapsed());
        assert_eq!(answer.status, 404);
    }
    took.sort();
    took[took.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f3_what_is_somebody_elses_takes_no_longer_than_what_is_not_there() {
    let stand = Stand::with(Options::default(), OTHER).await;
    let stream = stand.run("cloud", "play agent-with-tools").await;
    let header = |name: &str| stream.headers[name].to_str().expect("text").to_owned();
    let (run, session) = (header("x-run-id"), header("x-session-id"));
    let _ = stream.rest().await;
    for (theirs, nobodys) in [
        (format!("/cells/cloud/runs/{run}/events"), "/cells/cloud/runs/run-5f0c1d7e000040008000012345678900/events"),
        (format!("/api/sessions/{session}/messages"), "/api/sessions/5f0c1d7e-0000-4000-8000-0123456789ab/messages"),
        (format!("/v1/agent/sessions/{session}/result"), "/v1/agent/sessions/5f0c1d7e-0000-4000-8000-0123456789ab/result"),
    ] {
        // Noise of a busy machine goes away by asking again; a difference that is there stays.
        let mut seen = Vec::new();
        eventually("both take equally long", Duration::from_secs(30), async || {
            let (one, other) = (median(stand.base(), &theirs).await, median(stand.base(), nobodys).await);
            seen.push((one, other));
            one < other * 3 / 2 + Duration::from_micros(200) && other < one * 3 / 2 + Duration::from_micros(200)
        })
        .await;
    }
}
