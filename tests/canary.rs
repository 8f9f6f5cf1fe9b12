//! Cases F1 and F2: no secret leaves by a side door. Every secret that comes through the program is a word that stands nowhere else; good and failing
//! requests are made with all of them, at the finest log, in both formats; then everything that the program shows is searched for the words.

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

use interline_testkit::{Program, get};
use serde_json::json;
use support::INTERLINE;
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

/// Everything that can be asked for with a secret, right and wrong, and all that the program says to it.
async fn ask_everything(program: &Program, cells: &[&str]) -> Vec<String> {
    let base = program.base();
    let mut said = Vec::new();
    let run = json!({"actor": "u", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    for secret in [CLIENT, WRONG] {
        let bearer = format!("Authorization: Bearer {secret}\r\n");
        let cookie = format!("Cookie: auth={COOKIE}; auth={secret}\r\n");
        for cell in cells {
            let (_, answer) = exchange(base, "POST", &format!("/cells/{cell}/run"), &bearer, run.as_bytes()).await;
            let id = answer.split("x-run-id: ").nth(1).and_then(|rest| rest.split('\r').next()).unwrap_or("run-x").to_owned();
            said.push(answer);
            let (_, ticket) = exchange(base, "POST", &format!("/cells/{cell}/tickets"), &bearer, b"{}").await;
            // A ticket is told once, to whoever gets it.
            let ticket = ticket.split("\"ticket\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("itk_canary-x").to_owned();
            for (target, headers) in [
                (format!("/cells/{cell}/runs/{id}/events?ticket={ticket}"), String::new()),
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
                said.push(answer.replace(&format!("cell {secret} not found"), ""));
            }
            let (_, answer) = exchange(base, "POST", "/v1/agent/sessions", &bearer, br#"{"mode":"chat","prompt":"hi"}"#).await;
            said.push(answer);
            let (_, answer) = exchange(base, "POST", "/v1/agent/sessions", "Authorization: Basic canary-basic\r\n", b"{").await;
            said.push(answer);
        }
        for (query, auth) in [
            (String::new(), json!({"token": secret})),
            (format!("&token={secret}"), json!({})),
            (String::new(), json!({"token": {"token": secret}, "sdk": secret, "pid": secret, "offset": secret})),
        ] {
            match RawSocket::connect(base, &query, &auth).await {
                Ok(mut socket) => {
                    said.extend(socket.emit("session:subscribe", &json!({"session_id": "x"})).await.map(|ack| ack.to_string()));
                }
                Err(refusal) => said.push(refusal),
            }
        }
        let polled = exchange(base, "GET", &format!("/socket.io/?EIO=4&transport=polling&token={secret}"), &cookie, b"").await;
        said.push(polled.1);
    }
    said.push(get(&format!("{base}/metrics"), "").await.body);
    said.push(get(&format!("{base}/readyz"), "").await.body);
    said
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
        let said = ask_everything(&program, &["echoing", "refusing", "broken"]).await;
        assert!(said.iter().any(|said| said.contains("\"type\":\"done\"")), "something went well: {said:#?}");
        assert!(said.iter().any(|said| said.contains("\"type\":\"error\"")), "and something did not");
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
        }
        let files = on_disk(&folder);
        assert!(!files.is_empty(), "there is a journal");
        for (path, text) in files {
            assert!(!text.contains(CANARY), "{}", path.display());
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
