//! The cloud agent plane through real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use futures_util::SinkExt;
use http::Method;
use interline_sim::{Options, Plane, Voice, counted_text};
use serde_json::{Value, json};
use support::{Ending, Server, count, documented, fast, observed, recorded, start, text, values};
use tokio_tungstenite::tungstenite::Message;

fn is_result(message: &str) -> bool {
    serde_json::from_str::<Value>(message).is_ok_and(|frame| frame["type"] == "result")
}

/// Plays a transcript through a socket, answering whatever it asks; the messages of `runs` runs.
async fn play(server: &Server, request: Value) -> Vec<String> {
    let session = server.create(request).await;
    let mut socket = server.stream(&session, "").await;
    let mut messages = Vec::new();
    loop {
        let message = socket.next().await.unwrap();
        let frame: Value = serde_json::from_str(&message).unwrap();
        messages.push(message);
        match (frame["type"].as_str(), frame["request"]["subtype"].as_str()) {
            (Some("control_request"), Some("elicitation")) => {
                socket.answer(&frame, json!({ "action": "accept", "content": { "env": "staging" } })).await;
            }
            (Some("control_request"), Some("can_use_tool")) => socket.answer(&frame, json!({ "behavior": "allow" })).await,
            (Some("result"), _) => return messages,
            _ if text(&values(&messages)).ends_with("machines agree ") => socket.cancel().await,
            _ => {}
        }
    }
}

#[tokio::test]
async fn every_transcript_is_played_byte_for_byte_in_both_voices() {
    for server in [documented().await, observed().await] {
        for (name, _) in interline_sim::BUNDLED {
            let thread = uuid::Uuid::new_v4().to_string();
            let request = || json!({ "mode": "chat", "thread_id": thread, "prompt": format!("play {name}") });
            let mut played = play(&server, request()).await;
            if *name == "multi" {
                played.extend(play(&server, request()).await);
            }
            let mut expected = recorded(name);
            expected.retain(|frame| !frame.contains(r#""keep_alive""#));
            assert_eq!(played, expected, "{name}");
        }
    }
}

#[tokio::test]
async fn without_a_thread_a_play_is_always_the_first_run() {
    let server = documented().await;
    let request = || json!({ "mode": "chat", "prompt": "play multi" });
    assert_eq!(play(&server, request()).await, play(&server, request()).await);
}

#[tokio::test]
async fn unknown_transcripts_name_the_known_ones() {
    let server = documented().await;
    let frames = server.stream(&server.chat("play ../../etc/passwd").await, "").await.until_result().await;
    let message = frames[0]["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("chat-text-only") && message.contains("tool-allow"), "{message}");
}

#[tokio::test]
async fn transcripts_come_from_a_directory() {
    let dir = std::env::temp_dir().join(format!("interline-sim-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&dir).unwrap();
    let odd = r#"{"type":"result", "is_error":false,"n":1.0, "big":123456789012345678901234567890}"#;
    std::fs::write(dir.join("own.jsonl"), format!("null\n{{\"dir\":\"out\",\"frame\": {odd}}}\n")).unwrap();
    let server = start(Options { transcripts: Some(dir.clone()), ..fast(Voice::Documented) }).await;
    let session = server.chat("play own").await;
    assert_eq!(server.stream(&session, "").await.until(is_result).await, ["null", odd]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_permission_waits_for_its_answer_and_a_late_one_is_ignored() {
    let options = Options { permission_timeout: Duration::from_millis(400), ..fast(Voice::Documented) };
    let server = start(options).await;
    for (behavior, summary) in [
        (Some("allow"), "[sandbox=off exit=0]\nstdout:\ntest result: ok. 3 passed; 0 failed\n"),
        (Some("deny"), "error in Bash: denied by user"),
        (None, "error in Bash: denied by user"),
    ] {
        let mut socket = server.stream(&server.agent("ask").await, "").await;
        let before = socket.until_type("control_request").await;
        let request = before.last().unwrap();
        assert_eq!(request["request"]["subtype"], "can_use_tool");
        assert_eq!(request["request"]["input"]["command"], "cargo test --quiet");
        assert!(request.get("session_id").is_none() && request.get("uuid").is_none());
        let id = &request["request"]["tool_use_id"];
        let announced = before.iter().filter(|frame| frame["type"] == "tool_progress" && frame["tool_use_id"] == *id);
        assert_eq!(announced.count(), 2, "agents announce twice");
        assert!(socket.is_silent().await);
        if let Some(behavior) = behavior {
            socket.answer(request, json!({ "behavior": behavior, "message": "no" })).await;
        }
        let after = socket.until_result().await;
        assert_eq!(after[0]["preceding_tool_use_ids"], json!([id]));
        assert_eq!(after[0]["summary"], summary);
        assert_eq!(after.last().unwrap()["stop_reason"], "end_turn");
    }
    let control = server.sim.stats().control;
    assert_eq!(control.len(), 2);
    assert!(control[0].text.contains(r#""behavior":"allow""#));
    assert_eq!(control[0].plane, Plane::Cloud);
}

#[tokio::test]
async fn denying_with_interrupt_stops_the_run() {
    let server = documented().await;
    let mut socket = server.stream(&server.chat("ask").await, "").await;
    let request = socket.until_type("control_request").await.pop().unwrap();
    socket.answer(&request, json!({ "behavior": "deny", "message": "stop", "interrupt": true })).await;
    let frames = socket.until_result().await;
    assert_eq!(frames[0]["summary"], "error in Bash: denied by user");
    assert_eq!(frames.last().unwrap()["stop_reason"], "interrupted");
}

#[tokio::test]
async fn a_question_is_answered_by_its_updated_input() {
    let server = documented().await;
    let mut socket = server.stream(&server.chat("question").await, "").await;
    let request = socket.until_type("control_request").await.pop().unwrap();
    assert_eq!(request["request"]["tool_name"], "AskUserQuestion");
    let mut input = request["request"]["input"].clone();
    let question = input["questions"][0]["question"].as_str().unwrap().to_owned();
    input["answers"] = json!({ question: "production" });
    socket.answer(&request, json!({ "behavior": "allow", "updatedInput": input })).await;
    let frames = socket.until_result().await;
    assert!(frames[0]["summary"].as_str().unwrap().contains("production"));
    assert!(text(&frames).contains("goes to production"));
}

#[tokio::test]
async fn a_form_is_listed_answered_and_settled() {
    let server = documented().await;
    let session = server.chat("form").await;
    let mut socket = server.stream(&session, "").await;
    let request = socket.until_type("control_request").await.pop().unwrap();
    let path = format!("/v1/agent/sessions/{}/elicitations", session.id);
    let listed = server.http(Method::GET, &path, Some("alice"), "").await.json();
    assert_eq!(listed["elicitations"][0]["request_id"], request["request_id"]);
    assert!(listed["elicitations"][0]["deadline"].as_u64().unwrap() > 1_600_000_000_000);
    socket.answer(&request, json!({ "action": "accept", "content": { "env": "staging" } })).await;
    let frames = socket.until_result().await;
    assert_eq!((&frames[0]["subtype"], &frames[0]["action"]), (&json!("form_answer"), &json!("accept")));
    assert_eq!(frames[0]["content"], json!({ "env": "staging" }));
    assert_eq!(frames[1]["summary"], "deployed build 418 to staging");
    let listed = server.http(Method::GET, &path, Some("alice"), "").await.json();
    assert_eq!(listed, json!({ "elicitations": [] }));
}

#[tokio::test]
async fn a_form_times_out() {
    let server = start(Options { form_timeout: Duration::from_millis(100), ..fast(Voice::Documented) }).await;
    let frames = server.stream(&server.chat("form").await, "").await.until_result().await;
    assert!(frames.iter().any(|frame| frame["subtype"] == "form_answer" && frame["action"] == "timeout"));
}

#[tokio::test]
async fn a_paused_session_keeps_the_answer_and_is_resumed() {
    let server = documented().await;
    let session = server.chat("fault pause").await;
    let mut socket = server.stream(&session, "").await;
    let request = socket.until_type("control_request").await.pop().unwrap();
    socket.until_type("biumind.session_paused").await;
    socket.answer(&request, json!({ "action": "accept", "content": { "env": "staging" } })).await;
    assert!(socket.is_silent().await);
    let path = format!("/v1/agent/sessions/{}/resume", session.id);
    let resumed = server.http(Method::POST, &path, Some("alice"), "").await;
    assert_eq!((resumed.status.as_u16(), resumed.json()), (202, json!({ "session_id": session.id, "state": "active" })));
    let frames = socket.until_result().await;
    assert_eq!(frames[0]["type"], "biumind.session_resumed");
    assert_eq!(frames[1]["action"], "accept");
}

#[tokio::test]
async fn a_documented_cancel_ends_open_tools_and_the_run() {
    let server = documented().await;
    let session = server.agent("ask").await;
    let mut socket = server.stream(&session, "").await;
    socket.until_type("control_request").await;
    socket.cancel().await;
    let frames = socket.until_result().await;
    assert_eq!(frames[0]["summary"], "error in Bash: interrupted by user before tool execution");
    let result = frames.last().unwrap();
    assert_eq!((&result["subtype"], &result["stop_reason"]), (&json!("success"), &json!("interrupted")));
    assert!(socket.is_silent().await);
    let again = server.connect(&format!("/v1/agent/sessions/{}/stream?session_token={}", session.id, session.token)).await;
    let refused = again.err().unwrap();
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("session is cancelled"));
}

#[tokio::test]
async fn a_cancel_while_a_transcript_plays() {
    let server = documented().await;
    let mut socket = server.stream(&server.chat("play agent-with-permission").await, "").await;
    socket.until_type("control_request").await;
    socket.cancel().await;
    let frames = socket.until_result().await;
    assert!(frames[0]["summary"].as_str().unwrap().starts_with("error in Bash: interrupted"));
    assert_eq!(frames.last().unwrap()["stop_reason"], "interrupted");
}

#[tokio::test]
async fn a_recorded_interruption_waits_for_the_cancel() {
    let server = observed().await;
    let mut socket = server.stream(&server.chat("play interrupted").await, "").await;
    let expected = recorded("interrupted");
    let last = &expected[expected.len() - 2];
    assert_eq!(socket.until(|message| message == last).await, expected[..expected.len() - 1]);
    assert!(socket.is_silent().await);
    socket.cancel().await;
    assert_eq!(socket.next().await.unwrap(), expected[expected.len() - 1]);
}

#[tokio::test]
async fn an_observed_chat_falls_silent_when_cancelled_and_an_agent_does_not() {
    let server = observed().await;
    let session = server.chat("fault hang-after 3").await;
    let mut socket = server.stream(&session, "").await;
    socket.until(|message| message.contains("frame 2")).await;
    socket.cancel().await;
    assert!(socket.is_silent().await);
    let mut again = server.stream(&session, "").await;
    assert_eq!(text(&values(&[again.next().await.unwrap()])), counted_text(0), "the session stays active");

    let mut socket = server.stream(&server.agent("fault hang-after 3").await, "").await;
    socket.until(|message| message.contains("frame 2")).await;
    socket.cancel().await;
    assert_eq!(socket.until_result().await[0]["stop_reason"], "interrupted");
}

#[tokio::test]
async fn the_observed_scripts_have_the_servers_oddities() {
    let server = observed().await;
    let mut chat = server.stream(&server.chat("tell me").await, "").await;
    let frames = chat.until_result().await;
    assert_eq!(count(&frames, "control_request"), 0, "chat never asks");
    assert_eq!(count(&frames, "tool_progress"), 2, "Read and Bash, once each");
    assert_eq!(count(&frames, "assistant"), 0);
    let result = frames.last().unwrap();
    assert_eq!((&result["duration_ms"], &result["num_turns"], &result["result"]), (&json!(0), &json!(0), &json!("")));
    assert_eq!(result["modelUsage"], json!({}));

    let mut agent = server.stream(&server.agent("ask").await, "").await;
    let frames = agent.until_type("control_request").await;
    let id = &frames.last().unwrap()["request"]["tool_use_id"];
    assert!(!frames.iter().any(|frame| frame["tool_use_id"] == *id), "the request overtakes the announcements");

    let session = server.create(json!({ "mode": "task", "prompt": "quick" })).await;
    let messages = server.stream(&session, "").await.until(is_result).await;
    assert!(messages.contains(&"null".to_owned()));

    let mut hanging = server.stream(&server.agent("question").await, "").await;
    hanging.until(|message| message.contains("AskUserQuestion")).await;
    hanging.next().await.unwrap();
    assert!(hanging.is_silent().await);
}

#[tokio::test]
async fn the_documented_script_streams_text_and_a_snapshot() {
    let server = documented().await;
    let frames = server.stream(&server.chat("be quick about it").await, "").await.until_result().await;
    assert!(text(&frames).starts_with("<think>\n") && text(&frames).contains("\n</think>\n\n"));
    assert!(text(&frames).contains("be quick about it"));
    let [snapshot, result] = &frames[frames.len() - 2..] else { panic!() };
    assert_eq!(snapshot["message"]["content"][1]["name"], "Read");
    assert_eq!(result["result"], text(&frames).split("</think>\n\n").nth(1).unwrap());
    assert!(result["usage"]["output_tokens"].as_u64().unwrap() > 10);
    assert!(result["modelUsage"]["claude-sonnet-4-6"]["costUSD"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn every_socket_gets_every_frame_and_the_voices_differ_in_what_a_late_one_gets() {
    for (server, replayed) in [(observed().await, 5), (documented().await, 0)] {
        let session = server.agent("fault hang-after 5").await;
        let mut first = server.stream(&session, "").await;
        let seen = first.until(|message| message.contains("frame 4")).await;
        let mut late = server.stream(&session, "").await;
        for expected in &seen[..replayed] {
            assert_eq!(late.next().await.unwrap(), *expected);
        }
        assert!(late.is_silent().await);
        first.cancel().await;
        assert_eq!(first.until(is_result).await, late.until(is_result).await);
    }
}

#[tokio::test]
async fn a_documented_cursor_is_the_number_of_frames() {
    let server = documented().await;
    let session = server.chat("fault hang-after 6").await;
    let seen = server.stream(&session, "").await.until(|message| message.contains("frame 5")).await;
    let mut back = server.stream(&session, "&since_seq=2").await;
    for expected in &seen[2..] {
        assert_eq!(back.next().await.unwrap(), *expected);
    }
    assert!(back.is_silent().await);
}

#[tokio::test]
async fn a_cursor_that_is_gone_is_desynced() {
    let server = start(Options { retained_frames: 3, ..fast(Voice::Documented) }).await;
    let session = server.chat("fault hang-after 8").await;
    let mut first = server.stream(&session, "").await;
    first.until(|message| message.contains("frame 7")).await;
    drop(first);
    while server.sim.stats().open_sockets > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (messages, end) = server.stream(&session, "&since_seq=2").await.rest().await;
    let frame: Value = serde_json::from_str(&messages[0]).unwrap();
    assert_eq!(frame["type"], "biumind.session_desynced");
    assert_eq!(frame["reason"], "requested seq 2 before stream first seq 6");
    assert_eq!(end, Ending::Close(1000, "desynced".into()));
}

#[tokio::test]
async fn messages_above_the_limit_close_with_1009_and_those_at_it_do_not() {
    let server = documented().await;
    let session = server.chat("fault silent").await;
    let mut socket = server.stream(&session, "").await;
    socket.socket.send(Message::Text("x".repeat(32_768).into())).await.unwrap();
    assert!(socket.is_silent().await);
    socket.socket.send(Message::Text("x".repeat(200_000).into())).await.unwrap();
    assert_eq!(socket.next().await, Err(Ending::Close(1009, String::new())));
}

#[tokio::test]
async fn the_server_pings_and_cuts_who_never_answers() {
    let options = Options { ping_interval: Duration::from_millis(50), pong_timeout: Duration::from_millis(300), ..fast(Voice::Documented) };
    let server = start(options).await;
    let session = server.chat("fault silent").await;
    let mut answering = server.stream(&session, "").await;
    let mut deaf = server.stream(&session, "").await;
    let wait = tokio::time::sleep(Duration::from_millis(800));
    tokio::select! {
        end = answering.next() => panic!("{end:?}"),
        () = wait => {}
    }
    assert_eq!(server.sim.stats().open_sockets, 1);
    assert_eq!(deaf.rest().await, (Vec::new(), Ending::Cut));
}

#[tokio::test]
async fn bodies_of_refusals() {
    let server = start(Options { cloud_token: Some("secret".into()), ..fast(Voice::Documented) }).await;
    let create = "/v1/agent/sessions";
    let error = |body: &str| {
        let body: Value = serde_json::from_str(body).unwrap();
        (body["error"]["code"].as_str().unwrap().to_owned(), body["error"]["message"].as_str().unwrap().to_owned())
    };
    let answer = server.http(Method::POST, create, None, "{}").await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (401, r#"{"error":{"code":"missing_bearer","message":""}}"#));
    let answer = server.http(Method::POST, create, Some("wrong"), "{}").await;
    assert_eq!((answer.status.as_u16(), error(&answer.body).0), (401, "invalid_token".into()));
    let answer = server.http(Method::POST, create, Some("biu_dev_1_2"), "{}").await;
    assert_eq!((answer.status.as_u16(), error(&answer.body).0), (401, "invalid_device_token".into()));
    for (body, status, code) in [
        ("{", 400, "bad_json"),
        (r#"{"mode":"chat","model":7}"#, 400, "bad_json"),
        ("{}", 400, "bad_mode"),
        (r#"{"mode":"agent","prompt":"x"}"#, 400, "bad_environment_id"),
        (r#"{"mode":"agent","environment_id":"00000000-0000-0000-0000-000000000000"}"#, 404, "not_found"),
        (r#"{"mode":"chat","prompt":"fault http 429"}"#, 429, "pending_queue_full"),
        (r#"{"mode":"task","prompt":"fault http 503"}"#, 503, "no_runtime_available"),
    ] {
        let answer = server.http(Method::POST, create, Some("secret"), body).await;
        assert_eq!((answer.status.as_u16(), &*error(&answer.body).0), (status, code), "{body}");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    let answer = server.http(Method::POST, create, Some("secret"), " ".repeat(20 * 1024 * 1024 + 1)).await;
    assert_eq!((answer.status.as_u16(), error(&answer.body).0), (413, "body_too_large".into()));
    let unknown = "11111111-1111-4111-8111-111111111111";
    let answer = server.http(Method::POST, &format!("{create}/{unknown}/refresh-token"), Some("secret"), "").await;
    assert_eq!((answer.status.as_u16(), error(&answer.body).0), (404, "not_found".into()));
    let answer = server.http(Method::POST, &format!("{create}/x/refresh-token"), Some("secret"), "").await;
    assert_eq!((answer.status.as_u16(), error(&answer.body).0), (400, "bad_id".into()));

    let refused = async |path: String| {
        let answer = server.connect(&path).await.err().unwrap();
        (answer.status.as_u16(), error(&answer.body))
    };
    assert_eq!(refused(format!("{create}/x/stream")).await.1.0, "bad_session_id");
    assert_eq!(refused(format!("{create}/{unknown}/stream")).await, (401, ("missing_session_token".into(), String::new())));
    let (status, (code, message)) = refused(format!("{create}/{unknown}/stream?session_token=a.b.c")).await;
    assert_eq!((status, &*code, &*message), (401, "invalid_session_token", "token signature is invalid: signature is invalid"));
}

#[tokio::test]
async fn tokens_are_scoped_expire_and_are_refreshed() {
    let server = start(Options { session_token_ttl: Duration::from_millis(300), ..fast(Voice::Documented) }).await;
    let (a, b) = (server.chat("fault silent").await, server.chat("fault silent").await);
    let stream = |id: &str, token: &str| format!("/v1/agent/sessions/{id}/stream?session_token={token}");
    let refused = server.connect(&stream(&b.id, &a.token)).await.err().unwrap();
    assert!(refused.body.contains("agentplane: token scope does not match session"));
    let mut open = server.stream(&a, "").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let refused = server.connect(&stream(&a.id, &a.token)).await.err().unwrap();
    assert_eq!(refused.status, 401);
    assert!(refused.body.contains("token has invalid claims: token is expired"));
    assert!(open.is_silent().await, "a connection outlives its token");
    let refreshed = server.http(Method::POST, &format!("/v1/agent/sessions/{}/refresh-token", a.id), Some("x"), "").await;
    assert_eq!(refreshed.status, 200);
    assert!(refreshed.json()["expires_at"].is_u64());
    let token = refreshed.json()["session_token"].as_str().unwrap().to_owned();
    assert!(server.connect(&stream(&a.id, &token)).await.is_ok());
    assert_eq!(server.sim.stats().token_refreshes, 1);
}

#[tokio::test]
async fn routes_that_the_servers_do_not_have() {
    for (server, results) in [(documented().await, 200), (observed().await, 404)] {
        let session = server.chat("quick").await;
        server.stream(&session, "").await.until_result().await;
        let base = format!("/v1/agent/sessions/{}", session.id);
        for (method, path, status) in [
            (Method::GET, "/v1/agent/sessions".to_owned(), 405),
            (Method::GET, base.clone(), 404),
            (Method::DELETE, base.clone(), 404),
            (Method::POST, format!("{base}/cancel"), 404),
            (Method::GET, format!("{base}/messages"), 404),
            (Method::GET, format!("{base}/cost"), 404),
            (Method::POST, format!("{base}/compact"), 404),
            (Method::GET, format!("{base}/result"), results),
            (Method::GET, format!("{base}/elicitations"), results),
            (Method::POST, format!("{base}/resume"), if results == 200 { 202 } else { 404 }),
            (Method::GET, "/".to_owned(), 404),
        ] {
            let answer = server.http(method, &path, Some("alice"), "").await;
            assert_eq!(answer.status, status, "{path}");
            match status {
                404 => assert_eq!(answer.body, "404 page not found\n"),
                405 => assert_eq!(answer.body, "Method Not Allowed\n"),
                _ => {}
            }
        }
        let plain = server.http(Method::GET, &format!("{base}x/stream"), Some("alice"), "").await;
        assert_eq!(plain.status, 400);
    }
}

#[tokio::test]
async fn a_stream_without_an_upgrade_is_a_bad_request() {
    let server = documented().await;
    let session = server.chat("fault silent").await;
    let path = format!("/v1/agent/sessions/{}/stream?session_token={}", session.id, session.token);
    let answer = server.http(Method::GET, &path, None, "").await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (400, "Bad Request\n"));
}

#[tokio::test]
async fn the_result_is_kept_verbatim_and_the_stream_is_closed() {
    let server = documented().await;
    let session = server.chat("play chat-text-only").await;
    let path = format!("/v1/agent/sessions/{}/result", session.id);
    let early = server.http(Method::GET, &path, Some("alice"), "").await;
    assert_eq!((early.status.as_u16(), early.json()["error"]["code"].clone()), (404, json!("result_not_ready")));
    let messages = server.stream(&session, "").await.until(is_result).await;
    assert_eq!(server.http(Method::GET, &path, Some("alice"), "").await.body, *messages.last().unwrap());
    let stream = format!("/v1/agent/sessions/{}/stream?session_token={}", session.id, session.token);
    let refused = server.connect(&stream).await.err().unwrap();
    assert_eq!(
        (refused.status.as_u16(), refused.json()["error"]["message"].clone()),
        (409, json!(format!("session is completed; read result via /v1/agent/sessions/{}/result", session.id)))
    );
}

#[tokio::test]
async fn what_a_create_request_says_is_answered_and_counted() {
    let server = documented().await;
    let thread = "3f2b8a52-7f5e-4f61-9f4b-0a3a5b1c2d3e";
    let request = json!({ "mode": "chat", "thread_id": thread, "model": "m-1", "prompt": "quick", "images": [{"mime_type": "image/png", "data": ""}],
        "environment_id": "ignored in chat", "history": [], "unknown": 1 });
    let created = server.create(request).await.created;
    assert_eq!((&created["mode"], &created["state"], &created["thread_id"]), (&json!("chat"), &json!("active"), &json!(thread)));
    assert!(created["expires_at"].is_u64() && created["created_at"].is_u64());
    assert!(created.get("environment_id").is_none());
    assert_eq!(created["jetstream_subject_out"], format!("biu.session.{}.out", created["session_id"].as_str().unwrap()));
    let dropped = server.create(json!({ "mode": "chat", "thread_id": "not a uuid", "prompt": "quick" })).await.created;
    assert!(dropped.get("thread_id").is_none());
    let paired = server.create(json!({ "mode": "agent", "environment_id": "ffffffff-ffff-ffff-ffff-ffffffffffff" })).await.created;
    assert_eq!(paired["state"], "pending");

    let stats = server.sim.stats();
    assert_eq!(stats.cloud_sessions, 3);
    let prompt = &stats.prompts[0];
    assert_eq!((prompt.prompt.as_str(), prompt.model.as_deref(), prompt.images), ("quick", Some("m-1"), 1));
    assert_eq!((prompt.thread_id.as_deref(), prompt.bearer.as_deref()), (Some(thread), Some("alice")));
    assert!(!format!("{stats:?}").contains("alice"), "bearers are not printed");
}

#[tokio::test]
async fn inbound_nonsense_is_ignored() {
    let server = documented().await;
    let mut socket = server.stream(&server.chat("ask").await, "").await;
    let request = socket.until_type("control_request").await.pop().unwrap();
    for nonsense in ["", "{", "null", "[]", r#"{"type":"user","message":{"role":"user","content":"hi"}}"#] {
        socket.socket.send(Message::Text(nonsense.into())).await.unwrap();
    }
    socket.answer(&json!({ "request_id": "another" }), json!({ "behavior": "allow" })).await;
    assert!(socket.is_silent().await);
    let allow = json!({ "type": "control_response", "response": { "subtype": "success", "request_id": request["request_id"], "response": { "behavior": "allow" } } });
    socket.socket.send(Message::Binary(allow.to_string().into_bytes().into())).await.unwrap();
    assert!(socket.until_result().await[0]["summary"].as_str().unwrap().contains("3 passed"));
}
