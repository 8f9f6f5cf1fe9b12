//! One run, seen from everywhere at once; cursors, stops, refusals and bad frames.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_sim::{Options, Voice};
use interline_testkit::{
    Client, Surface, TRANSCRIPTS, compare, delete, eventually, get, grammar, post, request, transcript, transcript_path,
};
use support::{Stand, UPSTREAMS, end, events, text, token};
use tokio_tungstenite::tungstenite::Message;

fn run_id(stream: &interline_testkit::Stream) -> String {
    stream.headers["x-run-id"].to_str().expect("an id").to_owned()
}

fn session_id(stream: &interline_testkit::Stream) -> String {
    stream.headers["x-session-id"].to_str().expect("an id").to_owned()
}

/// Answers whatever a run asks, until it has ended.
async fn answer_all(stand: &Stand, cell: &str, session: &str) {
    let url = format!("{}/cells/{cell}/sessions/{session}", stand.base());
    for _ in 0..2000 {
        let asks = get(&format!("{}/v1/agent/sessions/{session}/elicitations", stand.base()), &token(cell)).await.json();
        for ask in asks["elicitations"].as_array().into_iter().flatten() {
            let id = ask["request_id"].as_str().expect("an id");
            let _ = post(&format!("{}/cells/{cell}/hitl/{id}", stand.base()), &token(cell), r#"{"grant":"allow"}"#).await;
        }
        let runs = get(&format!("{}/cells/{cell}/runs?session_id={session}&status=running", stand.base()), &token(cell)).await.json();
        if runs["runs"].as_array().is_some_and(Vec::is_empty) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{url} never ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_run_is_seen_live_on_every_surface_at_once() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let secret = token(cell);
        let created = post(&format!("{}/api/sessions", stand.base()), &secret, r#"{"intent":""}"#).await.json();
        let session = created["session_id"].as_str().expect("an id").to_owned();
        let watch = ["--token", &secret, "--watch", "--session", &session];
        let socket = tokio::spawn(Client::new("socketio.mjs", stand.base()).args(watch).run());
        let python = tokio::spawn(Client::new("socketio_client.py", stand.base()).args(watch).run());
        // Both watchers are in before the run begins: their subscriptions show in the metrics.
        eventually("both watchers subscribed", Duration::from_secs(20), async || {
            let metrics = get(&format!("{}/metrics", stand.base()), "").await.body;
            metrics.lines().any(|line| line.starts_with("interline_socketio_subscriptions") && line.ends_with(" 2"))
        })
        .await;
        let name = "agent-with-permission";
        let posted = stand.run_in(cell, &format!("play {name}"), Some(&session)).await;
        let run = run_id(&posted);
        let second = {
            let url = format!("{}/cells/{cell}/runs/{run}/events?from_seq=1", stand.base());
            let bearer = format!("Bearer {secret}");
            tokio::spawn(async move { request("GET", &url, &[("authorization", &bearer)], "").await.rest().await })
        };
        let dashed = dashed(&run);
        let refreshed = post(&format!("{}/v1/agent/sessions/{dashed}/refresh-token", stand.base()), &secret, "").await.json();
        let ticket = refreshed["session_token"].as_str().expect("a token").to_owned();
        let native = native_frames(stand.base(), &dashed, &format!("session_token={ticket}")).await;
        let (body, ()) = tokio::join!(posted.rest(), answer_all(&stand, cell, &session));
        compare(&transcript_path(name), Surface::Sse, &body);
        assert_eq!(second.await.expect("the second reader"), body, "a second reader from 1 sees the same bytes");
        let socket = socket.await.expect("the watcher").content();
        compare(&transcript_path(name), Surface::SocketIo, &socket.socket_events());
        compare(&transcript_path(name), Surface::SocketIo, &python.await.expect("the watcher").content().socket_events());
        let frames = native.await.expect("the native reader");
        let original = transcript(name);
        assert_eq!(frames, original.lines().map(str::to_owned).collect::<Vec<_>>(), "the native reader sees the upstream's own frames");
    }
}

fn dashed(run: &str) -> String {
    let hex = run.strip_prefix("run-").expect("a run id");
    let part = |from: usize, to: usize| hex.get(from..to).expect("32 digits");
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// Connects, then collects frames up to the result in the background.
async fn native_frames(base: &str, id: &str, query: &str) -> tokio::task::JoinHandle<Vec<String>> {
    let url = format!("{}/v1/agent/sessions/{id}/stream?{query}", base.replace("http", "ws"));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("the stream opens");
    tokio::spawn(async move {
        let mut frames = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Text(text) = message {
                let over = text.contains(r#""type":"result""#);
                frames.push(text.to_string());
                if over {
                    let _ = socket.send(Message::Close(None)).await;
                    break;
                }
            }
        }
        frames
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transcript_of_either_upstream_means_the_same_on_sse() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        for (name, runs) in TRANSCRIPTS {
            if name == "interrupted" {
                continue;
            }
            let mut all = String::new();
            let mut session = None;
            for _ in 0..runs {
                let stream = stand.run_in(cell, &format!("play {name}"), session.as_deref()).await;
                let id = session_id(&stream);
                let (body, ()) = tokio::join!(stream.rest(), answer_all(&stand, cell, &id));
                all.push_str(&body);
                session = Some(id);
            }
            compare(&transcript_path(name), Surface::Sse, &all);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_seq_gives_the_exact_tail_for_every_number() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let stream = stand.run(cell, "play chat-with-tools").await;
        let url = format!("{}/cells/{cell}/runs/{}/events", stand.base(), run_id(&stream));
        let body = stream.rest().await;
        let blocks: Vec<&str> = body.split_inclusive("\n\n").collect();
        for k in 1..=blocks.len() {
            let tail = get(&format!("{url}?from_seq={k}"), &token(cell)).await;
            assert_eq!(tail.body, blocks.iter().skip(k - 1).copied().collect::<String>(), "from_seq={k}");
        }
        for from in ["", "?from_seq=", "?from_seq=0"] {
            assert_eq!(get(&format!("{url}{from}"), &token(cell)).await.body, body, "{from}");
        }
        for bad in ["abc", "-1", "1.5"] {
            let answer = get(&format!("{url}?from_seq={bad}"), &token(cell)).await;
            assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("invalid_from_seq")), "{bad}");
        }
        let beyond = get(&format!("{url}?from_seq={}", blocks.len() + 1), &token(cell)).await;
        assert_eq!(Some(beyond.body.as_str()), blocks.last().copied(), "the terminal once more");
        let last_id = format!("{}:{}", run_id_of(&url), blocks.len());
        let bearer = format!("Bearer {}", token(cell));
        let headers = [("authorization", bearer.as_str()), ("last-event-id", last_id.as_str()), ("accept", "text/event-stream")];
        assert_eq!(request("GET", &url, &headers, "").await.status, 204);
    }
}

fn run_id_of(url: &str) -> &str {
    url.split('/').rev().nth(1).expect("a run id in the path")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_without_anybody_watching() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let mut stream = stand.run(cell, "fault hang-after 3").await;
        let run = run_id(&stream);
        stream.until("stream_delta").await;
        drop(stream);
        let detail = format!("{}/cells/{cell}/runs/{run}", stand.base());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(get(&detail, &token(cell)).await.json()["status"], "running");
        let stopped = post(&format!("{detail}/interrupt"), &token(cell), "").await;
        assert_eq!((stopped.status, stopped.json()["status"].as_str()), (202, Some("interrupting")));
        let seen = events(&get(&format!("{detail}/events"), &token(cell)).await.body);
        assert_eq!(end(&seen), "interrupted");
        let again = post(&format!("{detail}/interrupt"), &token(cell), "").await;
        assert_eq!((again.status, again.json()["status"].as_str()), (200, Some("interrupted")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_either_side_is_an_interruption_on_all_surfaces() {
    for voice in [Voice::Documented, Voice::Observed] {
        let stand = Stand::in_voice(voice).await;
        for cell in UPSTREAMS {
            // chat:stop, watched on SSE.
            let secret = token(cell);
            let args = ["--token", &secret, "--prompt", "play interrupted", "--stop-after", "3"];
            let seen = Client::new("socketio.mjs", stand.base()).args(args).run().await;
            let meaning = grammar(Surface::SocketIo, &seen.socket_events());
            assert_eq!(meaning["outcome"], "interrupted", "{}", seen.errors);
            let runs = get(&format!("{}/cells/{cell}/runs", stand.base()), &secret).await.json();
            let run = runs["runs"][0]["run_id"].as_str().expect("an id").to_owned();
            let replay = events(&get(&format!("{}/cells/{cell}/runs/{run}/events", stand.base()), &secret).await.body);
            assert_eq!(end(&replay), "interrupted");
            let result = get(&format!("{}/v1/agent/sessions/{}/result", stand.base(), dashed(&run)), &secret).await.json();
            assert_eq!(result["stop_reason"], "interrupted", "{result}");

            // interrupt, watched on Socket.IO's REST.
            let mut stream = stand.run(cell, "play interrupted").await;
            let (run, session) = (run_id(&stream), session_id(&stream));
            stream.until("agree").await;
            post(&format!("{}/cells/{cell}/runs/{run}/interrupt", stand.base()), &secret, r#"{"reason":"user"}"#).await;
            let seen = events(&stream.rest().await);
            assert_eq!(end(&seen), "interrupted");
            assert_eq!(text(&seen), "Consensus protocols let a group of machines agree ");
            let messages = get(&format!("{}/api/sessions/{session}/messages", stand.base()), &secret).await.json();
            let last = messages.as_array().and_then(|turns| turns.last().cloned()).expect("a turn");
            assert_eq!(last["status"], "interrupted");
            let detail = get(&format!("{}/api/sessions/{session}", stand.base()), &secret).await.json();
            assert_eq!(detail["status"], "interrupted");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_never_end_a_run() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let seen = events(&stand.run(cell, "fault bad-frames").await.rest().await);
        assert_eq!(end(&seen), "done", "{:?}", seen.last());
        assert!(text(&seen).len() > 1 << 20, "the long text came whole");
        assert!(!text(&seen).contains('\u{fffd}'), "no character was cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_event_does_not_wait_for_the_upstream() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        // The first run of a process pays for its warming up; a user's second one is what counts.
        drop(stand.run(cell, "fault silent").await.until("run_start").await);
        let begun = tokio::time::Instant::now();
        let mut stream = stand.run(cell, "fault silent").await;
        stream.until("run_start").await;
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(50), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_documented_ones_on_sse() {
    let stand = Stand::new().await;
    let body = r#"{"actor":"a","model":"m","messages":[{"role":"user","content":[{"type":"text","text":"play error"}]}]}"#;
    let run = |cell: &str| format!("{}/cells/{cell}/run", stand.base());
    let kind = |answer: &interline_testkit::Answer| {
        let json = answer.json();
        assert_eq!((json["type"].as_str(), json["severity"].as_str()), (Some("error"), Some("error")), "{json}");
        assert!(json["error"].is_string(), "{json}");
        json["kind"].as_str().unwrap_or_default().to_owned()
    };
    let no_token = post(&run("cloud"), "", body).await;
    assert_eq!((no_token.status, kind(&no_token).as_str()), (401, "auth_required"));
    assert_eq!(no_token.header("www-authenticate"), "Bearer");
    let wrong = post(&run("cloud"), "nope", body).await;
    assert_eq!((wrong.status, kind(&wrong).as_str()), (401, "invalid_token"));
    for cell in ["nowhere", "bridge"] {
        let answer = post(&run(cell), &token("cloud"), body).await;
        assert_eq!((answer.status, kind(&answer).as_str()), (404, "cell_not_found"), "{cell}");
    }
    let broken = post(&run("cloud"), &token("cloud"), "{\"actor\":").await;
    assert_eq!((broken.status, kind(&broken).as_str()), (400, "invalid_json"));
    let empty = post(&run("cloud"), &token("cloud"), r#"{"messages":[{"role":"user","content":""}]}"#).await;
    assert_eq!((empty.status, kind(&empty).as_str()), (422, "invalid_request"));
    let unknown = get(&format!("{}/cells/cloud/runs/run-{:032x}/events", stand.base(), 7), &token("cloud")).await;
    assert_eq!((unknown.status, kind(&unknown).as_str()), (404, "run_not_found"));

    let stream = stand.run("cloud", "fault hang-after 2").await;
    let session = session_id(&stream);
    let busy = stand.run_in("cloud", "again", Some(&session)).await;
    assert_eq!(busy.status, 409);
    let foreign = get(&format!("{}/cells/bridge/runs/{}/events", stand.base(), run_id(&stream)), &token("bridge")).await;
    assert_eq!((foreign.status, kind(&foreign).as_str()), (404, "run_not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_documented_ones_on_socket_io_and_native() {
    let stand = Stand::new().await;
    let api = format!("{}/api/sessions", stand.base());
    for (url, secret) in [(api.clone(), ""), (api.clone(), "nope"), (format!("{api}/x/messages"), "nope")] {
        let answer = get(&url, secret).await;
        assert_eq!(answer.status, 401);
        assert!(answer.json()["detail"].is_string());
    }
    assert_eq!(get(&format!("{api}/not-a-session"), &token("cloud")).await.status, 404);
    assert_eq!(delete(&format!("{api}/not-a-session"), &token("cloud")).await.status, 404);
    let bad =
        Client::new("socketio.mjs", stand.base()).args(["--token", "nope", "--watch", "--session", "s", "--timeout", "10"]).run().await;
    assert!(!bad.success && bad.errors.contains("Unauthorized"), "{}", bad.errors);
    let unknown =
        Client::new("socketio.mjs", stand.base()).args(["--token", &token("cloud"), "--session", "s", "--prompt", "x", "--timeout", "10"]);
    let unknown = unknown.run().await;
    assert!(!unknown.success && (unknown.output + &unknown.errors).contains("Access denied"));

    let native = format!("{}/v1/agent/sessions", stand.base());
    for (secret, code) in [("", "missing_bearer"), ("nope", "invalid_token")] {
        let answer = post(&native, secret, r#"{"mode":"chat","prompt":"x"}"#).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (401, Some(code)));
    }
    let bad_json = post(&native, &token("cloud"), "{").await;
    assert_eq!((bad_json.status, bad_json.json()["error"]["code"].as_str()), (400, Some("bad_json")));
    let bad_mode = post(&native, &token("cloud"), r#"{"mode":"dance"}"#).await;
    assert_eq!((bad_mode.status, bad_mode.json()["error"]["code"].as_str()), (400, Some("bad_mode")));
    let bridge = format!("{}/v1/code/sessions", stand.base());
    let refused = post(&bridge, "nope", "").await;
    assert_eq!((refused.status, refused.body.as_str()), (401, "unauthorized\n"));
    assert_eq!(post(&format!("{bridge}/x/messages"), &token("bridge"), r#"{"prompt":"x"}"#).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_is_an_error_in_the_stream() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let more = format!(
        "[[upstream]]\nname = \"gone\"\nkind = \"cloud\"\nurl = \"http://{nobody}\"\n\n[[route]]\ncell = \"*\"\nupstream = \"gone\"\n\n\
         [[token]]\nname = \"anywhere\"\nsecret = {{ value = \"anywhere-secret\" }}\ncells = [\"*\"]\n"
    );
    let stand = Stand::with(Options::default(), &more).await;
    let body = r#"{"messages":[{"role":"user","content":"hello"}]}"#;
    let seen = events(&post(&format!("{}/cells/down/run", stand.base()), "anywhere-secret", body).await.body);
    assert_eq!(seen.first().map(|event| event["type"].clone()), Some("run_start".into()));
    let last = seen.last().expect("an end");
    assert_eq!((last["type"].as_str(), last["kind"].as_str()), (Some("error"), Some("engine_not_ready")), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_upstream_connection_loses_and_doubles_nothing() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        for frames in [1, 3, 6] {
            let seen = events(&stand.run(cell, &format!("fault drop {frames}")).await.rest().await);
            assert_eq!(end(&seen), "done", "{cell} after {frames}: {seen:?}");
            let words: Vec<String> = text(&seen).split_whitespace().map(str::to_owned).collect();
            let mut unique = words.clone();
            unique.dedup();
            assert_eq!(words, unique, "{cell} after {frames}");
        }
    }
}
