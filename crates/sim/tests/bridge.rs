//! The local bridge through real sockets.

mod support;

use std::time::Duration;

use futures_util::SinkExt;
use http::{Method, Request};
use interline_sim::{Options, Pace, Voice};
use serde_json::{Value, json};
use support::{Ending, count, documented, fast, observed, recorded, start, text, values};
use tokio_tungstenite::tungstenite::Message;

fn done() -> Ending {
    Ending::Close(1000, "done".into())
}

#[tokio::test]
async fn transcripts_are_played_byte_for_byte_with_one_sentinel() {
    for server in [documented().await, observed().await] {
        for name in ["bridge-text-only", "bridge-with-permission", "bridge-compaction", "chat-text-only", "tool-allow"] {
            let session = server.bridge_session().await;
            server.message(&session, &format!("play {name}")).await;
            let mut socket = server.bridge_socket(&session, "").await.unwrap();
            let mut messages = Vec::new();
            let end = loop {
                match socket.next().await {
                    Ok(message) => {
                        let frame: Value = serde_json::from_str(&message).unwrap();
                        if frame["type"] == "control_request" {
                            socket.answer(&frame, json!({ "behavior": "allow" })).await;
                        }
                        messages.push(message);
                    }
                    Err(end) => break end,
                }
            };
            assert_eq!(end, done(), "{name}");
            let mut expected = recorded(name);
            if !name.starts_with("bridge") {
                let sentinel = messages.pop().unwrap();
                assert!(sentinel.starts_with(r#"{"type":"keep_alive","ts":"#), "{sentinel}");
            }
            assert_eq!(messages, std::mem::take(&mut expected), "{name}");
        }
    }
}

#[tokio::test]
async fn each_message_of_a_session_gets_the_next_run() {
    let server = documented().await;
    let session = server.bridge_session().await;
    let mut played = Vec::new();
    for _ in 0..2 {
        server.message(&session, "play multi").await;
        let mut socket = server.bridge_socket(&session, "").await.unwrap();
        let (messages, _) = loop_answering(&mut socket).await;
        played.extend(messages);
    }
    played.retain(|message| !message.contains("keep_alive"));
    assert_eq!(played, recorded("multi"));
}

/// Everything to the end, allowing whatever is asked.
async fn loop_answering(socket: &mut support::Socket) -> (Vec<String>, Ending) {
    let mut messages = Vec::new();
    loop {
        match socket.next().await {
            Ok(message) => {
                let frame: Value = serde_json::from_str(&message).unwrap_or_default();
                if frame["type"] == "control_request" {
                    socket.answer(&frame, json!({ "behavior": "allow" })).await;
                }
                messages.push(message);
            }
            Err(end) => return (messages, end),
        }
    }
}

#[tokio::test]
async fn a_scripted_turn_ends_with_the_sentinel_and_costs_add_up() {
    let server = documented().await;
    let session = server.bridge_session().await;
    assert_eq!(session.len(), 32);
    let cost = async || server.http(Method::GET, &format!("/v1/code/sessions/{session}/cost"), None, "").await.json();
    assert_eq!(cost().await["InputTokens"], 0);
    let mut spent = 0;
    for _ in 0..2 {
        server.message(&session, "quick").await;
        let (messages, end) = server.bridge_socket(&session, "").await.unwrap().rest().await;
        assert_eq!(end, done());
        let frames = values(&messages);
        assert_eq!(frames.last().unwrap()["type"], "keep_alive");
        assert_eq!(frames[frames.len() - 2]["stop_reason"], "end_turn");
        assert_eq!(count(&frames, "tool_progress"), 2, "announced twice");
        let now = cost().await["OutputTokens"].as_u64().unwrap();
        assert!(now > spent);
        spent = now;
    }
    let names: Vec<_> = cost().await.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["CacheReadTokens", "CacheWriteTokens", "InputTokens", "Model", "OutputTokens", "USD"]);
}

#[tokio::test]
async fn attaching_without_a_turn_is_a_conflict_and_a_cursor_replays() {
    let server = documented().await;
    let session = server.bridge_session().await;
    for query in ["", "?last_event_id=x"] {
        let refused = server.bridge_socket(&session, query).await.err().unwrap();
        assert_eq!((refused.status.as_u16(), &*refused.body), (409, r#"{"error":"no turn in progress"}"#));
    }
    server.message(&session, "play bridge-text-only").await;
    server.bridge_socket(&session, "").await.unwrap().rest().await;
    let expected = recorded("bridge-text-only");
    let (messages, end) = server.bridge_socket(&session, "?last_event_id=17").await.unwrap().rest().await;
    assert_eq!(messages[..3], expected[17..20]);
    assert!(messages[3].contains("keep_alive"));
    assert_eq!((messages.len(), end), (4, done()));
    let (messages, _) = server.bridge_socket(&session, "?last_event_id=999").await.unwrap().rest().await;
    assert_eq!(messages.len(), 1, "just the sentinel");
}

#[tokio::test]
async fn a_turn_that_nobody_attends_is_lost() {
    let server = start(Options { attach_wait: Some(Duration::ZERO), ..fast(Voice::Observed) }).await;
    let session = server.bridge_session().await;
    server.message(&session, "fault error").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.bridge_socket(&session, "").await.err().unwrap().status, 409);
}

#[tokio::test]
async fn an_interrupt_is_acknowledged_and_ends_the_turn_in_each_voice() {
    for (server, results) in [(documented().await, 1), (observed().await, 0)] {
        let session = server.bridge_session().await;
        server.message(&session, "fault hang-after 2").await;
        let mut socket = server.bridge_socket(&session, "").await.unwrap();
        socket.until(|message| message.contains("frame 1")).await;
        socket.interrupt().await;
        let (messages, end) = socket.rest().await;
        assert_eq!(messages[0], r#"{"type":"control_response","response":{"subtype":"success","request_id":"i1"}}"#);
        let frames = values(&messages[1..]);
        assert_eq!(count(&frames, "result"), results);
        if results == 1 {
            assert_eq!(frames[0]["stop_reason"], "interrupted");
        }
        assert_eq!(frames.last().unwrap()["type"], "keep_alive");
        assert_eq!((frames.len(), end), (results + 1, done()));
    }
}

#[tokio::test]
async fn a_busy_command_ends_before_the_interrupt_counts() {
    let server = observed().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault busy 600").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    socket.until(|message| message.contains("tool_progress")).await;
    let began = tokio::time::Instant::now();
    socket.interrupt().await;
    let (messages, end) = socket.rest().await;
    assert!(began.elapsed() > Duration::from_millis(400));
    assert!(messages.iter().any(|message| message.contains("tool_use_summary")));
    assert!(!messages.iter().any(|message| message.contains(r#""type":"result""#)));
    assert_eq!(end, done());
}

#[tokio::test]
async fn control_requests_are_answered_as_the_voice_would() {
    let server = observed().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault hang-after 0").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    let request = |id: &str, subtype: &str| json!({ "type": "control_request", "request_id": id, "request": { "subtype": subtype } });
    for message in [json!({ "type": "control_request", "request_id": "x" }), request("u", "unheard_of"), json!({ "type": "user" })] {
        socket.send(message).await;
    }
    assert!(socket.is_silent().await, "no reply at all");
    socket.send(request("m", "set_model")).await;
    let reply: Value = serde_json::from_str(&socket.next().await.unwrap()).unwrap();
    assert_eq!(reply["response"]["error"], "set_model not supported by biu bridge; recreate session with desired model");
    socket.send(request("s", "get_settings")).await;
    let reply: Value = serde_json::from_str(&socket.next().await.unwrap()).unwrap();
    assert_eq!(reply["response"]["error"], r#"control subtype "get_settings" not implemented"#);
    socket.send(request("c", "cancel_async_message")).await;
    let (messages, end) = socket.rest().await;
    assert!(messages[0].contains(r#""response":{"cancelled":true}"#));
    assert_eq!(end, done());
    assert_eq!(server.sim.stats().control.len(), 5);
    assert_eq!(server.sim.stats().control[4].text, request("c", "cancel_async_message").to_string());

    let server = documented().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault hang-after 0").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    socket.send(request("g", "get_context_usage")).await;
    let reply: Value = serde_json::from_str(&socket.next().await.unwrap()).unwrap();
    assert_eq!(reply["response"]["response"]["maxTokens"], 200_000);
}

#[tokio::test]
async fn a_second_message_takes_over_or_fails() {
    let server = documented().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault hang-after 1").await;
    let mut old = server.bridge_socket(&session, "").await.unwrap();
    old.next().await.unwrap();
    server.message(&session, "quick").await;
    let (messages, end) = old.rest().await;
    assert_eq!((values(&messages)[0]["stop_reason"].clone(), end), (json!("interrupted"), done()));
    let (messages, _) = server.bridge_socket(&session, "").await.unwrap().rest().await;
    assert!(text(&values(&messages)).contains("quick"));

    let server = observed().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault hang-after 1").await;
    let mut old = server.bridge_socket(&session, "").await.unwrap();
    old.next().await.unwrap();
    server.message(&session, "quick").await;
    let (messages, end) = old.rest().await;
    assert_eq!((messages.len(), end), (1, done()), "the sentinel only");
    let (messages, _) = server.bridge_socket(&session, "").await.unwrap().rest().await;
    assert_eq!(values(&messages)[0]["errors"][0]["message"], "engine: another Submit is in progress");
}

#[tokio::test]
async fn a_permission_is_denied_when_the_client_leaves() {
    let server = documented().await;
    let session = server.bridge_session().await;
    server.message(&session, "ask").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    let seen = socket.until_type("control_request").await;
    drop(socket);
    while server.sim.stats().open_sockets > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (messages, _) = server.bridge_socket(&session, &format!("?last_event_id={}", seen.len() - 1)).await.unwrap().rest().await;
    assert_eq!(values(&messages)[0]["summary"], "error in Bash: denied by user");
}

#[tokio::test]
async fn a_turn_is_deleted_with_its_session() {
    let server = documented().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault silent").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    let path = format!("/v1/code/sessions/{session}");
    let deleted = server.http(Method::DELETE, &path, None, "").await;
    assert_eq!((deleted.status.as_u16(), &*deleted.body), (204, ""));
    let (messages, end) = socket.rest().await;
    assert_eq!((messages.len(), end), (1, done()));
    for (method, path) in [
        (Method::DELETE, path.clone()),
        (Method::POST, format!("{path}/messages")),
        (Method::GET, format!("{path}/cost")),
        (Method::POST, format!("{path}/compact")),
        (Method::GET, format!("{path}/ws")),
    ] {
        let answer = server.http(method, &path, None, "{}").await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (404, r#"{"error":"no such session"}"#), "{path}");
    }
}

#[tokio::test]
async fn refusals_and_small_routes() {
    let server = start(Options { bridge_token: Some("key".into()), ..fast(Voice::Documented) }).await;
    for bearer in [None, Some("wrong"), Some("Key")] {
        let answer = server.http(Method::POST, "/v1/code/sessions", bearer, "").await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (401, "unauthorized\n"));
    }
    assert_eq!(server.connect("/v1/code/ws").await.err().unwrap().status, 401);
    let id = server.http(Method::POST, "/v1/code/sessions", Some("key"), "").await.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/code/sessions/{id}");
    for (body, error) in [("{", "invalid JSON: "), (r#"{"prompt":" \n"}"#, "prompt required"), ("{}", "prompt required")] {
        let answer = server.http(Method::POST, &format!("{path}/messages"), Some("key"), body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"].as_str().unwrap().starts_with(error), "{}", answer.body);
    }
    let compact = async || server.http(Method::POST, &format!("{path}/compact"), Some("key"), "").await;
    assert_eq!((compact().await.status.as_u16(), compact().await.json()), (500, json!({ "error": "compact: nothing to summarise" })));
    let answer = server.http(Method::POST, &format!("{path}/messages"), Some("key"), r#"{"prompt":"fault silent"}"#).await;
    assert_eq!(answer.status, 202);
    assert_eq!(compact().await.json(), json!({ "status": "compacted" }));
    let answer = server.http(Method::POST, &format!("{path}/messages"), Some("key"), r#"{"prompt":"fault http 500"}"#).await;
    assert_eq!(answer.status, 500);
    let prompts = server.sim.stats().prompts;
    assert_eq!((prompts.len(), prompts[0].bearer.as_deref()), (2, Some("key")));
    assert_eq!(server.http(Method::GET, "/healthz", None, "").await.json()["service"], "biu");
    assert_eq!(server.http(Method::GET, &path, Some("key"), "").await.body, "Method Not Allowed\n");
    assert_eq!(server.http(Method::GET, "/v1/code/sessions/x/events", Some("key"), "").await.body, "404 page not found\n");
}

#[tokio::test]
async fn attachments_are_checked_and_counted() {
    let server = documented().await;
    let session = server.bridge_session().await;
    let upload = async |mime: &str, field: &str| {
        let body = format!(
            "--b\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"f\"\r\nContent-Type: {mime}\r\n\r\nhello\r\n--b--\r\n"
        );
        let request = Request::post(format!("http://{}/v1/code/sessions/{session}/attachments", server.address))
            .header("content-type", "multipart/form-data; boundary=b")
            .body(body)
            .unwrap();
        server.request(request).await
    };
    let stored = upload("image/png", "file").await;
    assert_eq!((stored.status.as_u16(), stored.json()["size"].clone()), (201, json!(5)));
    assert_eq!(stored.json()["attachment_id"].as_str().unwrap().len(), 32);
    assert_eq!(upload("image/png", "other").await.json(), json!({ "error": "missing 'file' field" }));
    assert_eq!(upload("text/html", "file").await.json(), json!({ "error": "disallowed mime type \"text/html\"" }));
    let [kept] = &server.sim.stats().attachments[..] else { panic!("one was taken") };
    assert_eq!((&*kept.session, kept.file_name.as_deref(), &*kept.mime_type, kept.size), (&*session, Some("f"), "image/png", 5));
    assert_eq!(stored.json()["attachment_id"], kept.id);
}

#[tokio::test]
async fn the_bridge_takes_large_messages() {
    let server = documented().await;
    let session = server.bridge_session().await;
    server.message(&session, "fault hang-after 1").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    socket.next().await.unwrap();
    socket.socket.send(Message::Text("x".repeat(200_000).into())).await.unwrap();
    assert!(socket.is_silent().await);
}

#[tokio::test]
async fn two_sockets_share_a_turn() {
    let server = start(Options { pace: Pace::times(0.05), ..fast(Voice::Observed) }).await;
    let session = server.bridge_session().await;
    server.message(&session, "quick").await;
    let (mut a, mut b) = (server.bridge_socket(&session, "").await.unwrap(), server.bridge_socket(&session, "").await.unwrap());
    let ((a, end_a), (b, end_b)) = tokio::join!(a.rest(), b.rest());
    assert_eq!((end_a, end_b), (done(), done()));
    let (a, b) = (values(&a), values(&b));
    assert_eq!((count(&a, "keep_alive"), count(&b, "keep_alive")), (1, 1));
    assert_eq!(count(&a, "result") + count(&b, "result"), 1);
    assert!(count(&a, "streamlined_text") > 0 && count(&b, "streamlined_text") > 0);
}
