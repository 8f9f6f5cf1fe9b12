//! Cases F1 and F2: no secret leaves by a side door. Every secret that comes through the program is a word that stands nowhere else; good and failing
//! requests are made with all of them, at the finest log, in both formats; then everything that the program shows is searched for the words. The
//! secrets that it makes itself are collected from the answers that tell them, used rightly and wrongly, and searched for in the same places.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;
#[path = "support/upstream.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod upstream;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "support/wire.rs"]
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_testkit::{Program, get};
use serde_json::json;
use support::INTERLINE;
use tokio_tungstenite::tungstenite::Message;
use upstream::{Reply, Upstream, created, result, text};
use wire::{RawSocket, exchange};

/// What may be seen nowhere.
const CLIENT: &str = "canary-client-4f1d";
const WRONG: &str = "canary-wrong-90ab";
const UPSTREAM: &str = "canary-upstream-77c2";
const SESSION_TOKEN: &str = "canary-session-token-3e55";
const COOKIE: &str = "canary-cookie-18d0";
/// In all of them.
const CANARY: &str = "canary-";

/// What an agent server knows of secrets, in one of its own sentences.
fn repeated(head: &str) -> String {
    let authorization = head.lines().find(|line| line.to_lowercase().starts_with("authorization:")).unwrap_or_default();
    let first = head.lines().next().unwrap_or_default();
    json!({"error": {"code": "no", "message": format!("bad credential in {authorization:?}, {first:?}")}}).to_string()
}

/// An agent server that serves runs, and refuses everything else in words that hold the secrets it got.
async fn echoing() -> Upstream {
    Upstream::new(|head| {
        if head.contains("/stream") {
            return Reply::Frames(vec![text("hello "), result()]);
        }
        if head.starts_with("POST /v1/agent/sessions ") {
            return created("11111111-1111-4111-8111-111111111111", SESSION_TOKEN);
        }
        Reply::Http("401 Unauthorized", String::new(), repeated(head).into_bytes())
    })
    .await
}

/// One that creates sessions and refuses their streams; and one that refuses everything.
async fn refusing(status: &'static str, creates: bool) -> Upstream {
    Upstream::new(move |head| {
        if creates && head.starts_with("POST /v1/agent/sessions ") {
            return created("11111111-1111-4111-8111-111111111111", SESSION_TOKEN);
        }
        Reply::Http(status, String::new(), repeated(head).into_bytes())
    })
    .await
}

fn config(auth: &str, format: &str, journal: &Path, upstreams: &[(&str, &Upstream)], credential: &str) -> String {
    let mut config = format!(
        "{auth}\n[log]\nfilter = \"trace\"\nformat = \"{format}\"\n[journal]\npath = {:?}\n[sse]\nquery_token = \"always\"\ntoken_cookie = \"auth\"\n\
         [socketio]\nquery_token = \"always\"\ntoken_cookie = \"auth\"\n[link]\nattempts = 1\nbackoff_first_ms = 10\nbackoff_max_ms = 20\n\
         request_timeout_ms = 2000\n",
        journal.to_str().expect("a UTF-8 path")
    );
    for (name, upstream) in upstreams {
        config += &format!(
            "[[upstream]]\nname = \"{name}\"\nkind = \"cloud\"\nurl = \"{}\"\n{credential}\n[[route]]\ncell = \"{name}\"\nupstream = \"{name}\"\n",
            upstream.base
        );
    }
    config
}

/// What the program said, and the secrets that it made itself and told in it, each to whom it was for.
#[derive(Default)]
struct Heard {
    said: Vec<String>,
    session_tokens: Vec<String>,
    tickets: Vec<String>,
    sids: Vec<String>,
}

/// The text member of this name, wherever it stands in an answer.
fn member(answer: &str, name: &str) -> Option<String> {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

/// A session on the native surface: its tokens, as they are got and renewed, open its stream, and are shown where they open nothing.
async fn native(base: &str, bearer: &str, heard: &mut Heard) {
    let mut tokens = Vec::new();
    for body in [r#"{"mode":"chat","prompt":"hi"}"#, r#"{"mode":"chat"}"#] {
        let (_, answer) = exchange(base, "POST", "/v1/agent/sessions", bearer, body.as_bytes()).await;
        let id = member(&answer, "session_id").unwrap_or_default();
        tokens.extend(member(&answer, "session_token").map(|token| (id.clone(), token)));
        heard.said.push(answer);
        let (_, answer) = exchange(base, "POST", &format!("/v1/agent/sessions/{id}/refresh-token"), bearer, b"{}").await;
        tokens.extend(member(&answer, "session_token").map(|token| (id, token)));
        heard.said.push(answer);
    }
    for (id, token) in tokens {
        let stream = format!("/v1/agent/sessions/{id}/stream?session_token={token}");
        // With a cursor, as its run may be over.
        let opened = tokio_tungstenite::connect_async(format!("{}{stream}&since_seq=1", base.replacen("http", "ws", 1))).await;
        let (mut socket, _) = opened.expect("the token opens its stream");
        let _ = socket.close(None).await;
        let own = format!("Authorization: Bearer {token}\r\n");
        for (method, target, headers) in [
            ("GET", stream.as_str(), ""),
            ("GET", &format!("/v1/agent/sessions/x/stream?session_token={token}&since_seq=x"), ""),
            ("GET", &format!("/v1/agent/sessions/{id}/stream?session_token={token}x"), ""),
            ("GET", &format!("/v1/agent/sessions/{id}/result"), &own),
            ("POST", &format!("/v1/agent/sessions/{id}/refresh-token"), &own),
            ("GET", &format!("/api/sessions?token={token}"), &own),
            ("GET", &format!("/cells?access_token={token}"), &own),
            ("GET", &format!("/nowhere?session_token={token}"), &own),
        ] {
            heard.said.push(exchange(base, method, target, headers, b"").await.1);
        }
        heard.session_tokens.push(token);
    }
}

/// A session of polling, whose id stands in every address; whether the namespace lets the secret in or not.
async fn polling(base: &str, secret: &str, heard: &mut Heard) {
    let path = "/socket.io/?EIO=4&transport=polling";
    let (_, opened) = exchange(base, "GET", path, "", b"").await;
    let sid = member(&opened, "sid").expect("an Engine.IO session");
    let path = format!("{path}&sid={sid}");
    let connect = format!("40{}", json!({"token": secret}));
    for (method, target, body) in [
        ("POST", path.clone(), connect.as_str()),
        ("GET", path.clone(), ""),
        ("POST", path.clone(), "42[\"session:subscribe\",{\"session_id\":\"x\"}]"),
        // A packet that is none, an upgrade that is none, and the end; then nobody is there.
        ("POST", path.clone(), "x"),
        ("GET", path.replace("polling", "websocket"), ""),
        ("POST", path.clone(), "1"),
        ("GET", path, ""),
        ("GET", format!("/nowhere?sid={sid}"), ""),
    ] {
        // It is the socket's id as well, of which its own client is told.
        heard.said.push(exchange(base, method, &target, "", body.as_bytes()).await.1.replace(&sid, ""));
    }
    heard.sids.push(sid);
    let url = format!("{}/socket.io/?EIO=4&transport=websocket", base.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("a WebSocket");
    let opened = socket.next().await.expect("a handshake").expect("a message").into_text().expect("text");
    heard.sids.push(member(&opened, "sid").expect("an Engine.IO session"));
    for packet in [connect.as_str(), "42[\"chat:stop\",{\"session_id\":\"x\"}]", "x"] {
        let _ = socket.send(Message::text(packet)).await;
    }
    // It ends with the packet that is none, or is ended; what came before it was dealt with by then.
    let _ = socket.close(None).await;
    while socket.next().await.is_some_and(|message| message.is_ok()) {}
}

/// Everything that can be asked for with a secret, right and wrong, and all that the program says to it.
async fn ask_everything(program: &Program, cells: &[&str]) -> Heard {
    let base = program.base();
    let mut heard = Heard::default();
    let run = json!({"actor": "u", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    for secret in [CLIENT, WRONG] {
        let bearer = format!("Authorization: Bearer {secret}\r\n");
        let cookie = format!("Cookie: auth={COOKIE}; auth={secret}\r\n");
        for cell in cells {
            let (_, answer) = exchange(base, "POST", &format!("/cells/{cell}/run"), &bearer, run.as_bytes()).await;
            let id = answer.split("x-run-id: ").nth(1).and_then(|rest| rest.split('\r').next()).unwrap_or("run-x").to_owned();
            heard.said.push(answer);
            let (_, ticket) = exchange(base, "POST", &format!("/cells/{cell}/tickets"), &bearer, b"{}").await;
            // A ticket is told once, to whoever gets it.
            let ticket = member(&ticket, "ticket");
            heard.tickets.extend(ticket.clone());
            let ticket = ticket.unwrap_or_else(|| "itk_canary-x".to_owned());
            for (target, headers) in [
                (format!("/cells/{cell}/runs/{id}/events?ticket={ticket}"), String::new()),
                (format!("/cells/{cell}/runs/x/events?ticket={ticket}"), String::new()),
                (format!("/cells?ticket={ticket}"), format!("Authorization: Bearer {ticket}\r\n")),
                (format!("/nowhere?ticket={ticket}"), String::new()),
                (format!("/cells/{cell}/runs/{id}/events?access_token={secret}"), String::new()),
                (format!("/cells/{cell}/runs/{id}/events?token={secret}&from_seq=x"), String::new()),
                (format!("/cells/{cell}/runs?access_token={secret}&limit=x"), cookie.clone()),
                (format!("/cells/{secret}/runs/x/events"), bearer.clone()),
                (format!("/api/sessions?token={secret}"), cookie.clone()),
                (format!("/api/sessions/x?token={secret}"), bearer.clone()),
                (format!("/v1/agent/sessions/x/stream?session_token={secret}"), bearer.clone()),
                (format!("/v1/agent/sessions/{id}/stream?session_token=ist_{secret}"), String::new()),
                (format!("/v1/code/sessions/x/ws?token={secret}"), bearer.clone()),
                (format!("/nowhere?token={secret}"), bearer.clone()),
                (format!("/?token={secret}"), bearer.clone()),
                (format!("/healthz?token={secret}"), bearer.clone()),
            ] {
                let (_, answer) = exchange(base, "GET", &target, &headers, b"").await;
                // Where the client itself put the secret into a path, its own words come back to it, and to nobody else.
                heard.said.push(answer.replace(&format!("cell {secret} not found"), ""));
            }
            native(base, &bearer, &mut heard).await;
            let (_, answer) = exchange(base, "POST", "/v1/agent/sessions", "Authorization: Basic canary-basic\r\n", b"{").await;
            heard.said.push(answer);
        }
        for (query, auth) in [
            (String::new(), json!({"token": secret})),
            (format!("&token={secret}"), json!({})),
            (String::new(), json!({"token": {"token": secret}, "sdk": secret, "pid": secret, "offset": secret})),
        ] {
            match RawSocket::connect(base, &query, &auth).await {
                Ok(mut socket) => {
                    heard.said.extend(socket.emit("session:subscribe", &json!({"session_id": "x"})).await.map(|ack| ack.to_string()));
                }
                Err(refusal) => heard.said.push(refusal),
            }
        }
        polling(base, secret, &mut heard).await;
        let polled = exchange(base, "GET", &format!("/socket.io/?EIO=4&transport=polling&token={secret}"), &cookie, b"").await;
        heard.said.push(polled.1);
    }
    heard.said.push(get(&format!("{base}/metrics"), "").await.body);
    heard.said.push(get(&format!("{base}/readyz"), "").await.body);
    heard
}

/// All bytes of all files under a folder, as text.
fn on_disk(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(on_disk(&path));
        } else if let Ok(bytes) = std::fs::read(&path) {
            found.push((path, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    found
}

async fn nothing_is_told(auth: &str, credential: &str) {
    let (echoing, refusing, broken) = (echoing().await, refusing("403 Forbidden", true).await, refusing("401 Unauthorized", false).await);
    for format in ["text", "json"] {
        let folder = std::env::temp_dir().join(format!("interline-secrets-{}-{format}-{}", std::process::id(), auth.len()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let upstreams = [("echoing", &echoing), ("refusing", &refusing), ("broken", &broken)];
        let mut program = Program::serve(INTERLINE, &config(auth, format, &folder.join("journal"), &upstreams, credential)).await;
        let Heard { said, session_tokens, tickets, sids } = ask_everything(&program, &["echoing", "refusing", "broken"]).await;
        assert!(said.iter().any(|said| said.contains("\"type\":\"done\"")), "something went well: {said:#?}");
        assert!(said.iter().any(|said| said.contains("\"type\":\"error\"")), "and something did not");
        println!("{} session tokens, {} tickets, {} Engine.IO sessions", session_tokens.len(), tickets.len(), sids.len());
        assert!(session_tokens.len() >= 4 && session_tokens.iter().all(|token| token.starts_with("ist_")), "{session_tokens:?}");
        assert!(tickets.len() >= 3 && tickets.iter().all(|ticket| ticket.starts_with("itk_")), "{tickets:?}");
        assert!(sids.len() == 4 && sids.iter().all(|sid| sid.len() >= 16), "{sids:?}");
        for secret in &session_tokens {
            // Once, to whoever asked for it.
            assert_eq!(said.iter().filter(|said| said.contains(secret)).count(), 1, "{secret}");
        }
        for secret in tickets.iter().chain(&sids) {
            let told = said.iter().find(|said| said.contains(secret));
            assert_eq!(told, None, "{secret}");
        }
        let issued = [session_tokens, tickets, sids].concat();
        for said in said {
            assert!(!said.contains(CANARY), "{said}");
        }
        program.signal("TERM");
        assert!(program.ended(Duration::from_secs(20)).await.success());
        let output = program.output();
        assert!(output.contains("TRACE") || output.contains("DEBUG"), "the log is at its finest: {output}");
        // Paths are logged; where a client itself writes a secret as the name of a cell, that is a name.
        let output = output.replace(&format!("/cells/{CLIENT}/"), "").replace(&format!("/cells/{WRONG}/"), "");
        for line in output.lines() {
            assert!(!line.contains(CANARY), "{line}");
            assert!(!issued.iter().any(|secret| line.contains(secret.as_str())), "{line}");
        }
        let files = on_disk(&folder);
        assert!(!files.is_empty(), "there is a journal");
        for (path, text) in files {
            assert!(!text.contains(CANARY), "{}", path.display());
            let told = issued.iter().find(|secret| text.contains(secret.as_str()));
            assert_eq!(told, None, "{}", path.display());
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
    // The agent server did get what is its own.
    assert!(echoing.seen().iter().any(|head| head.contains(SESSION_TOKEN)));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f1_and_f2_no_secret_is_told_with_tokens() {
    let auth = format!("[auth]\nmode = \"tokens\"\n[[token]]\nname = \"web\"\nsecret = {{ value = \"{CLIENT}\" }}\ncells = [\"*\"]\n");
    nothing_is_told(&auth, &format!("credential = {{ value = \"{UPSTREAM}\" }}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f1_and_f2_no_secret_is_told_in_passthrough() {
    nothing_is_told("[auth]\nmode = \"passthrough\"\n", "").await;
}
