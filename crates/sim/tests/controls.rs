//! Control requests, settings, compaction and uploads, through real sockets and in both voices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use http::{Method, Request};
use interline_sim::{Options, Voice};
use serde_json::{Value, json};
use support::{Server, Socket, documented, fast, observed, start, text, values};

fn request(id: &str, request: Value) -> Value {
    json!({ "type": "control_request", "request_id": id, "request": request })
}

/// Sends a control request and waits for its reply.
async fn ask(socket: &mut Socket, inner: Value) -> Value {
    socket.send(request("q", inner)).await;
    socket.until_type("control_response").await.pop().unwrap()["response"].clone()
}

/// A run on either server that waits for 600 ms and says what was set.
async fn listening(server: &Server, bridge: bool) -> Socket {
    let mut socket = if bridge {
        let session = server.bridge_session().await;
        server.message(&session, "scene settings 600").await;
        server.bridge_socket(&session, "").await.unwrap()
    } else {
        server.stream(&server.agent("scene settings 600").await, "").await
    };
    socket.until(|message| message.contains("listening")).await;
    socket
}

#[tokio::test]
async fn what_is_set_in_the_documented_voice_is_seen_afterwards() {
    let server = documented().await;
    for bridge in [false, true] {
        let mut socket = listening(&server, bridge).await;
        assert_eq!(ask(&mut socket, json!({ "subtype": "set_model", "model": "claude-opus-4-1" })).await["subtype"], "success");
        socket.send(json!({ "type": "update_environment_variables", "variables": { "RUST_LOG": "debug" } })).await;
        ask(&mut socket, json!({ "subtype": "set_max_thinking_tokens", "max_thinking_tokens": 4096 })).await;
        ask(&mut socket, json!({ "subtype": "set_permission_mode", "mode": "acceptEdits" })).await;
        let all = ask(&mut socket, json!({ "subtype": "get_settings" })).await["response"]["effective"].clone();
        assert_eq!((&all["permissionMode"], &all["maxThinkingTokens"]), (&json!("acceptEdits"), &json!(4096)));
        assert_eq!(all["env"], json!({ "RUST_LOG": "debug" }));
        let frames = socket.until_result().await;
        let said = "Settings: model claude-opus-4-1, mode acceptEdits, thinking 4096, environment RUST_LOG=debug. ";
        assert!(text(&frames).ends_with(said), "{}", text(&frames));
        assert!(frames.last().unwrap()["modelUsage"]["claude-opus-4-1"].is_object());
        assert_eq!(frames[frames.len() - 2]["message"]["model"], "claude-opus-4-1");
    }
    assert_eq!(server.sim.stats().environment.len(), 2);
}

#[tokio::test]
async fn a_new_mode_is_told_to_every_socket() {
    let server = documented().await;
    let session = server.agent("scene settings 400").await;
    let (mut one, mut other) = (server.stream(&session, "").await, server.stream(&session, "").await);
    ask(&mut one, json!({ "subtype": "set_permission_mode", "mode": "plan" })).await;
    for socket in [&mut one, &mut other] {
        let frames = socket.until_result().await;
        let status = frames.iter().find(|frame| frame["subtype"] == "status").unwrap();
        assert_eq!(status["permissionMode"], "plan");
    }
}

#[tokio::test]
async fn todays_servers_set_nothing() {
    let server = observed().await;
    let (mut cloud, mut bridge) = (listening(&server, false).await, listening(&server, true).await);
    let model = json!({ "subtype": "set_model", "model": "claude-opus-4-1" });
    let refused = ask(&mut bridge, model.clone()).await;
    assert_eq!(refused["error"], "set_model not supported by biu bridge; recreate session with desired model");
    let refused = ask(&mut bridge, json!({ "subtype": "set_permission_mode", "mode": "plan" })).await;
    assert_eq!(refused["error"], "control subtype \"set_permission_mode\" not implemented");
    cloud.send(request("q", model)).await;
    cloud.send(request("r", json!({ "subtype": "interrupt" }))).await;
    cloud.send(json!({ "type": "update_environment_variables", "variables": { "A": "1" } })).await;
    for socket in [&mut cloud, &mut bridge] {
        let frames = socket.until_result().await;
        assert!(text(&frames).ends_with("Settings: model claude-sonnet-4-6, mode default, thinking unset, environment none. "));
        assert_eq!(support::count(&frames, "control_response"), 0);
    }
}

#[tokio::test]
async fn an_interrupt_works_on_the_documented_cloud() {
    let server = documented().await;
    for subtype in ["interrupt", "cancel_async_message"] {
        let mut socket = server.stream(&server.chat("fault hang-after 1").await, "").await;
        socket.next().await.unwrap();
        assert_eq!(ask(&mut socket, json!({ "subtype": subtype, "message_uuid": "m" })).await["subtype"], "success");
        assert_eq!(socket.until_result().await.pop().unwrap()["stop_reason"], "interrupted");
        assert_eq!(ask(&mut socket, json!({ "subtype": "interrupt" })).await["error"], "no turn in progress");
    }
}

#[tokio::test]
async fn a_background_task_is_stopped_or_ends() {
    let server = documented().await;
    for (stop, status) in [(true, "stopped"), (false, "completed")] {
        let mut socket = server.stream(&server.agent(if stop { "scene task 9000" } else { "scene task 60" }).await, "").await;
        socket.until(|message| message.contains("task_started")).await;
        if stop {
            assert_eq!(ask(&mut socket, json!({ "subtype": "stop_task", "task_id": "bg-9" })).await["error"], "no task \"bg-9\"");
            assert_eq!(ask(&mut socket, json!({ "subtype": "stop_task", "task_id": "bg-1" })).await["subtype"], "success");
        }
        let frames = socket.until_result().await;
        let over = frames.iter().find(|frame| frame["subtype"] == "task_notification").unwrap();
        assert_eq!((&over["task_id"], &over["status"]), (&json!("bg-1"), &json!(status)));
    }
}

#[tokio::test]
async fn a_rewind_is_tried_and_done() {
    let server = documented().await;
    let mut cloud = listening(&server, false).await;
    let trial = ask(&mut cloud, json!({ "subtype": "rewind_files", "user_message_id": "u1", "dry_run": true })).await;
    assert_eq!(trial["response"], json!({ "canRewind": true, "filesChanged": 2, "insertions": 7, "deletions": 3 }));
    let none = ask(&mut cloud, json!({ "subtype": "rewind_files", "user_message_id": "unknown" })).await;
    assert_eq!(none["response"]["canRewind"], false);
    ask(&mut cloud, json!({ "subtype": "rewind_files", "user_message_id": "u1" })).await;
    let frames = cloud.until_result().await;
    let told = frames.iter().filter(|frame| frame["subtype"] == "local_command_output").count();
    assert_eq!(told, 1, "the trial is told to nobody");
}

#[tokio::test]
async fn a_compaction_makes_room() {
    let server = documented().await;
    let session = server.bridge_session().await;
    let usage = async || {
        server.message(&session, "scene settings 100").await;
        let mut socket = server.bridge_socket(&session, "").await.unwrap();
        let used = ask(&mut socket, json!({ "subtype": "get_context_usage" })).await["response"]["totalTokens"].as_u64().unwrap();
        socket.rest().await;
        used
    };
    let before = usage().await;
    let compacted = server.http(Method::POST, &format!("/v1/code/sessions/{session}/compact"), None, "").await;
    assert_eq!(compacted.json(), json!({ "status": "compacted" }));
    assert!(usage().await < before);
    assert_eq!(server.sim.stats().compactions, 1);

    for (server, told) in [(documented().await, true), (observed().await, false)] {
        let frames = server.stream(&server.chat("scene compaction").await, "").await.until_result().await;
        assert_eq!(frames.iter().any(|frame| frame["type"] == "biumind.compact_finished"), told);
    }
    let frames = server.stream(&server.agent("fault compact-failed").await, "").await.until_result().await;
    assert_eq!((support::count(&frames, "biumind.compact_started"), support::count(&frames, "biumind.compact_finished")), (1, 0));
    assert_eq!(frames.last().unwrap()["errors"][0]["recoverable"], true);
}

#[tokio::test]
async fn an_upload_that_is_too_large_is_a_400() {
    let server = start(Options { attachment_limit: 100_000, ..fast(Voice::Observed) }).await;
    let session = server.bridge_session().await;
    for (size, status) in [(90_000, 201), (200_000, 400)] {
        let head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\nContent-Type: text/plain\r\n\r\n";
        let body = format!("{head}{}\r\n--b--\r\n", "x".repeat(size));
        let request = Request::post(format!("http://{}/v1/code/sessions/{session}/attachments", server.address))
            .header("content-type", "multipart/form-data; boundary=b")
            .body(body)
            .unwrap();
        let answer = server.request(request).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        if status == 400 {
            assert_eq!(answer.json()["error"], "parse multipart: http: request body too large");
        }
    }
}

#[tokio::test]
async fn an_uninterruptible_agent_and_every_end_of_a_cancel() {
    let server = documented().await;
    let mut socket = server.stream(&server.agent("fault cli 300").await, "").await;
    socket.next().await.unwrap();
    socket.cancel().await;
    let frames = socket.until_result().await;
    let result = frames.last().unwrap();
    assert_eq!((&result["stop_reason"], &result["usage"]), (&Value::Null, &json!({})));
    assert!(result["session_id"].as_str().unwrap().starts_with("cli-"));

    for (how, expected) in [
        ("clean", Some(json!("interrupted"))),
        ("silent", None),
        ("no-result", None),
        ("error", Some(Value::Null)),
        ("late 200", Some(json!("interrupted"))),
        ("success", Some(json!("end_turn"))),
    ] {
        let mut socket = server.stream(&server.agent(&format!("fault cancel {how}")).await, "").await;
        socket.next().await.unwrap();
        let began = tokio::time::Instant::now();
        socket.cancel().await;
        let Some(expected) = expected else {
            assert!(socket.is_silent().await, "{how}");
            continue;
        };
        let result = socket.until_result().await.pop().unwrap();
        assert_eq!(result["stop_reason"], expected, "{how}");
        assert_eq!(result["is_error"], how == "error");
        if how == "error" {
            assert!(result["errors"][0]["message"].as_str().unwrap().contains("context canceled"));
        }
        assert_eq!(began.elapsed() >= Duration::from_millis(200), how == "late 200", "{how}");
    }

    let session = server.bridge_session().await;
    server.message(&session, "fault cancel no-result").await;
    let mut socket = server.bridge_socket(&session, "").await.unwrap();
    socket.next().await.unwrap();
    socket.interrupt().await;
    let frames = values(&socket.rest().await.0);
    assert_eq!(frames.iter().map(|frame| frame["type"].clone()).collect::<Vec<_>>(), ["control_response", "keep_alive"]);
}

#[tokio::test]
async fn work_that_was_delivered_twice() {
    let server = documented().await;
    let mut socket = server.stream(&server.agent("fault redelivered").await, "").await;
    assert_eq!(socket.until_result().await.pop().unwrap()["errors"][0]["recoverable"], false);
    let again = socket.until_result().await;
    assert_eq!((text(&again), &again.last().unwrap()["subtype"]), ("Once. ".to_owned(), &json!("success")));
}
