//! The bridge access surface, over real sockets.

#![cfg(feature = "io")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{Conduct, Decision, Policies, Policy};
use interline_model::SessionId;
use interline_surface_native::Config;
use interline_testkit::{delete, get, post, request, transcript};
use support::*;

#[tokio::test]
async fn a_turn_passes_byte_for_byte_and_ends_with_the_sentinel() {
    for name in ["bridge-text-only", "bridge-compaction", "chat-with-tools", "error"] {
        let stand = Stand::open().await;
        let id = stand.bridge().await;
        stand.message(&id, &format!("play {name}")).await;
        let seen = stand.turn(&id, "").await.whole_turn().await;
        let original = transcript(name);
        let original: Vec<&str> = original.lines().filter(|line| !line.contains(r#""type":"keep_alive""#)).collect();
        assert_eq!(seen, original, "{name}");
    }
}

#[tokio::test]
async fn a_permission_is_answered_on_the_socket() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    stand.message(&id, "play bridge-with-permission").await;
    let mut socket = stand.turn(&id, "").await;
    let mut seen = Vec::new();
    loop {
        let frame = socket.text().await;
        let json: serde_json::Value = serde_json::from_str(&frame).unwrap();
        seen.push(frame);
        if json["type"] == "control_request" {
            socket.send(response(json["request_id"].as_str().unwrap(), r#"{"behavior":"allow"}"#)).await;
            break;
        }
    }
    seen.extend(socket.whole_turn().await);
    let original = transcript("bridge-with-permission");
    assert_eq!(seen, original.lines().filter(|line| !line.contains("keep_alive")).collect::<Vec<_>>());
    assert_eq!(stand.script.answers.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn cursors_count_all_turns_without_control_frames_and_exactly() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    stand.message(&id, &format!("{}\n{}\n{}\n{RESULT}", text(0), permission("a"), text(1))).await;
    let mut socket = stand.turn(&id, "").await;
    assert_eq!([socket.text().await, socket.text().await], [text(0), permission("a")]);
    socket.send(response("a", r#"{"behavior":"allow"}"#)).await;
    assert_eq!(socket.whole_turn().await, [text(1), RESULT.to_owned()]);
    stand.message(&id, &format!("{}\n{RESULT}", text(7))).await;
    assert_eq!(stand.turn(&id, "").await.whole_turn().await, [text(7), RESULT.to_owned()]);
    let counted = [text(0), text(1), RESULT.to_owned(), text(7), RESULT.to_owned()];
    for n in 1..8 {
        let again = stand.turn(&id, &format!("?last_event_id={n}")).await.whole_turn().await;
        assert_eq!(again, counted[n.min(5)..], "behind {n}");
    }
}

#[tokio::test]
async fn idle_is_a_conflict_without_a_cursor() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    let url = |query: &str| stand.ws(&format!("/v1/code/sessions/{id}/ws{query}"));
    let idle = (409, r#"{"error":"no turn in progress"}"#.to_owned());
    for query in ["", "?last_event_id=0", "?last_event_id=x", "?last_event_id="] {
        assert_eq!(Socket::dial(&url(query), "").await.err().unwrap(), idle, "{query}");
    }
    assert!(Socket::open(&url("?last_event_id=5")).await.whole_turn().await.is_empty(), "just the sentinel");
    stand.message(&id, &format!("texts 1\n{RESULT}")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Faster than its client, and not lost.
    assert_eq!(Socket::open(&url("")).await.whole_turn().await, [text(0), RESULT.to_owned()]);
    assert_eq!(Socket::dial(&url(""), "").await.err().unwrap(), idle);
    let plain = get(&stand.http(&format!("/v1/code/sessions/{id}/ws?last_event_id=1")), "").await;
    assert_eq!((plain.status, plain.body.as_str()), (400, "Bad Request\n"));
}

#[tokio::test]
async fn every_socket_gets_everything_and_pending_asks_are_shown_again() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    stand.message(&id, &format!("texts 2\n{}\n{}\ngate\n{RESULT}", permission("a"), permission("b"))).await;
    let mut first = stand.turn(&id, "").await;
    for frame in [text(0), text(1), permission("a")] {
        assert_eq!(first.text().await, frame);
    }
    let mut second = stand.turn(&id, "").await;
    assert_eq!(second.text().await, permission("a"));
    let mut behind = stand.turn(&id, "?last_event_id=1").await;
    assert_eq!([behind.text().await, behind.text().await], [text(1), permission("a")]);
    second.send(response("a", r#"{"behavior":"allow"}"#)).await;
    for socket in [&mut first, &mut second, &mut behind] {
        assert_eq!(socket.text().await, permission("b"));
    }
    let mut late = stand.turn(&id, "?last_event_id=2").await;
    assert_eq!(late.text().await, permission("b"), "the settled one is not shown");
    first.send(response("b", r#"{"behavior":"deny","message":"no"}"#)).await;
    eventually(|| stand.script.answers.lock().unwrap().len() == 2).await;
    stand.script.open();
    for socket in [&mut first, &mut second, &mut behind, &mut late] {
        assert_eq!(socket.whole_turn().await, [RESULT]);
    }
}

#[tokio::test]
async fn control_requests_get_the_bridges_replies() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    stand.message(&id, "texts 1\ngate").await;
    let mut socket = stand.turn(&id, "").await;
    assert_eq!(socket.text().await, text(0));
    let request = |subtype: &str| format!(r#"{{"type":"control_request","request_id":"r-{subtype}","request":{{"subtype":"{subtype}"}}}}"#);
    // No reply at all, and no effect.
    for nothing in [
        request("brand_new"),
        "{".to_owned(),
        r#"{"type":"control_request","request_id":"r"}"#.to_owned(),
        r#"{"type":"control_cancel_request","request_id":"r"}"#.to_owned(),
        r#"{"type":"user"}"#.to_owned(),
    ] {
        socket.send(nothing).await;
    }
    let failed = |subtype: &str, error: &str| {
        format!(r#"{{"type":"control_response","response":{{"subtype":"error","request_id":"r-{subtype}","error":"{error}"}}}}"#)
    };
    // The upstream's word, in the client's name.
    for subtype in ["set_model", "initialize", "mcp_status", "get_settings", "stop_task"] {
        socket.send(request(subtype)).await;
        assert_eq!(socket.text().await, failed(subtype, &format!(r#"no: {{\"subtype\":\"{subtype}\"}}"#)));
    }
    socket.send(request("get_context_usage")).await;
    let usage =
        r#"{"type":"control_response","response":{"subtype":"success","request_id":"r-get_context_usage","response":{"totalTokens":1.0}}}"#;
    assert_eq!(socket.text().await, usage);
    let mode = |mode: &str| {
        format!(
            r#"{{"type":"control_request","request_id":"r-set_permission_mode","request":{{"subtype":"set_permission_mode","mode":"{mode}"}}}}"#
        )
    };
    socket.send(mode("bypassPermissions")).await;
    assert_eq!(socket.text().await, failed("set_permission_mode", "no client may have permissions passed over"));
    socket.send(mode("plan")).await;
    let done = r#"{"type":"control_response","response":{"subtype":"success","request_id":"r-set_permission_mode"}}"#;
    assert_eq!(socket.text().await, done);
    // Those that servers make of clients.
    for subtype in ["can_use_tool", "elicitation", "hook_callback"] {
        socket.send(request(subtype)).await;
        assert_eq!(socket.text().await, failed(subtype, &format!(r#"control subtype \"{subtype}\" not implemented"#)));
    }
    let variables = |name: &str| format!(r#"{{"type":"update_environment_variables","variables":{{"{name}":"1"}}}}"#);
    socket.send(variables("LD_PRELOAD")).await;
    socket.send(variables("A")).await;
    eventually(|| *stand.script.frames.lock().unwrap() == [r#"{"A"}"#]).await;
    socket.send(request("interrupt")).await;
    assert_eq!(socket.text().await, r#"{"type":"control_response","response":{"subtype":"success","request_id":"r-interrupt"}}"#);
    assert_eq!(socket.whole_turn().await, [INTERRUPTED]);

    stand.message(&id, "gate").await;
    let mut socket = stand.turn(&id, "").await;
    socket.send(request("cancel_async_message")).await;
    let success = r#"{"type":"control_response","response":{"subtype":"success","request_id":"r-cancel_async_message","response":{"cancelled":true}}}"#;
    assert_eq!(socket.text().await, success);
    assert_eq!(socket.whole_turn().await, [INTERRUPTED]);
}

#[tokio::test]
async fn a_message_replaces_the_turn_that_goes_on() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    for stubborn in ["", "deaf\n"] {
        stand.message(&id, &format!("texts 1\n{stubborn}gate")).await;
        let mut old = stand.turn(&id, "").await;
        assert_eq!(old.text().await, text(0));
        stand.message(&id, &format!("{}\n{RESULT}", text(9))).await;
        let end = old.whole_turn().await;
        assert!(end.len() == 1 && end[0].contains(r#""stop_reason":"interrupted""#), "{end:?}");
        assert_eq!(stand.turn(&id, "").await.whole_turn().await, [text(9), RESULT.to_owned()]);
    }
}

#[tokio::test]
async fn a_turn_that_cannot_be_replaced_in_time_is_said() {
    let stand = Stand::configured(Config { replace_timeout_ms: 20, ..Config::default() }).await;
    let id = stand.bridge().await;
    stand.message(&id, "deaf\ngate").await;
    let answer = post(&stand.http(&format!("/v1/code/sessions/{id}/messages")), "", r#"{"prompt":"x"}"#).await;
    assert_eq!(answer.status, 409);
    assert!(answer.json()["error"].as_str().unwrap().contains("already has an active run"));
}

#[tokio::test]
async fn http_beside_the_socket() {
    let stand = Stand::open().await;
    let id = stand.bridge().await;
    let url = |what: &str| stand.http(&format!("/v1/code/sessions/{id}{what}"));
    for (body, error) in [
        (r#"{"prompt":" \n"}"#, "prompt required"),
        ("{}", "prompt required"),
        ("{", "invalid JSON: "),
        (r#"{"prompt":7}"#, "invalid JSON: "),
    ] {
        let answer = post(&url("/messages"), "", body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"].as_str().unwrap().starts_with(error), "{body}: {}", answer.body);
    }
    for _ in 0..2 {
        stand.message(&id, RESULT).await;
        stand.turn(&id, "").await.whole_turn().await;
    }
    let cost = get(&url("/cost"), "").await;
    assert_eq!(cost.body, r#"{"Model":"default","InputTokens":240,"OutputTokens":48,"CacheReadTokens":0,"CacheWriteTokens":0,"USD":0.5}"#);
    let compacted = post(&url("/compact"), "", "").await;
    assert_eq!((compacted.status, compacted.body.as_str()), (501, r#"{"error":"this agent server cannot compact on demand"}"#));
    let form = |name: &str| {
        format!(
            "--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--b--\r\n"
        )
    };
    for (kind, body, status, error) in [
        ("multipart/form-data; boundary=b", form("file"), 501, "this agent server cannot take files"),
        ("multipart/form-data; boundary=b", form("other"), 400, "missing 'file' field"),
        ("multipart/form-data; boundary=b", "--b\r\n".to_owned(), 400, "parse multipart: "),
        ("text/plain", "hello".to_owned(), 400, "parse multipart: "),
    ] {
        let answer = request("POST", &url("/attachments"), &[("content-type", kind)], body.clone()).await;
        let seen = answer.status;
        let text = answer.rest().await;
        assert!(seen == status && text.starts_with(&format!("{{\"error\":\"{error}")), "{body}: {seen} {text}");
    }
    stand.message(&id, "gate").await;
    let mut socket = stand.turn(&id, "").await;
    let gone = delete(&url(""), "").await;
    assert_eq!((gone.status, gone.body.as_str()), (204, ""));
    assert_eq!(socket.whole_turn().await.len(), 1, "a turn that is deleted ends");
    for (method, what) in
        [("DELETE", ""), ("POST", "/messages"), ("GET", "/ws"), ("GET", "/cost"), ("POST", "/compact"), ("POST", "/attachments")]
    {
        let answer = request(method, &url(what), &[], r#"{"prompt":"x"}"#).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.rest().await, r#"{"error":"no such session"}"#, "{method} {what}");
    }
}

#[tokio::test]
async fn every_route_wants_the_bearer() {
    let stand = Stand::guarded().await;
    let created = post(&stand.http("/v1/code/sessions"), ALICE, "").await;
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let session = format!("/v1/code/sessions/{id}");
    for (method, path) in [
        ("POST", "/v1/code/sessions".to_owned()),
        ("POST", format!("{session}/messages")),
        ("GET", format!("{session}/ws")),
        ("GET", format!("{session}/cost")),
        ("POST", format!("{session}/compact")),
        ("DELETE", session.clone()),
    ] {
        for headers in [vec![], vec![("authorization", "Bearer nope")]] {
            let answer = request(method, &stand.http(&path), &headers, "").await;
            assert_eq!(answer.status, 401);
            assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
            assert_eq!(answer.rest().await, "unauthorized\n", "{method} {path}");
        }
    }
    assert_eq!(delete(&stand.http(&session), BOB).await.status, 404, "to others it does not exist");
    let url = stand.ws(&format!("{session}/ws?last_event_id=1"));
    assert!(Socket::dial(&url, ALICE).await.is_ok());
    assert_eq!(Socket::dial(&url, BOB).await.err().unwrap().0, 404);
}

#[tokio::test]
async fn the_bridge_takes_large_messages_up_to_its_own_limit() {
    let stand = Stand::configured(Config { max_bridge_message: 300_000, ..Config::default() }).await;
    let id = stand.bridge().await;
    stand.message(&id, "gate").await;
    let mut socket = stand.turn(&id, "").await;
    let request = |size: usize| {
        let pad = "p".repeat(size);
        format!(r#"{{"type":"control_request","request_id":"r","request":{{"subtype":"mcp_status","pad":"{pad}"}}}}"#)
    };
    socket.send(request(200_000)).await;
    assert!(socket.text().await.contains("no: "));
    socket.send(request(300_000)).await;
    assert_eq!(socket.all().await, (vec![], Some((1009, String::new()))));
    let session = stand.hub.session(&stand.hub.admit(None).unwrap(), &SessionId::from(id)).unwrap();
    assert!(session.active_run().is_some(), "a disconnect stops nothing");
}

#[tokio::test]
async fn either_access_surface_can_be_left_out() {
    let stand = Stand::configured(Config { cloud: false, ..Config::default() }).await;
    assert_eq!(post(&stand.http("/v1/agent/sessions"), "", r#"{"mode":"chat"}"#).await.status, 404);
    stand.bridge().await;
    let stand = Stand::configured(Config { bridge: false, ..Config::default() }).await;
    assert_eq!(post(&stand.http("/v1/code/sessions"), "", "").await.status, 404);
    stand.run("gate").await;
}

#[tokio::test]
async fn the_coding_channel_is_passed_through_where_it_is_switched_on() {
    let stand = Stand::open().await;
    let (status, body) = Socket::dial(&stand.ws("/v1/code/ws"), "").await.err().unwrap();
    assert!(status == 501 && body.contains("coding_channel"), "{status} {body}");
    let stand = Stand::configured(Config { coding_channel: true, ..Config::default() }).await;
    let mut socket = Socket::dial(&stand.ws("/v1/code/ws"), "").await.ok().unwrap();
    let chunk = r#"{"type":"code_pty_chunk","pty_id":"t1","data":"aGVsbG8NCg==" ,"n":1.0}"#;
    for text in [chunk, "null", "not json", ""] {
        socket.send(text.to_owned()).await;
        assert_eq!(socket.text().await, text);
    }
    socket.send("bye".to_owned()).await;
    assert_eq!(socket.all().await, (vec![], Some((4001, "bye".to_owned()))));
    let mut socket = Socket::dial(&stand.ws("/v1/code/ws"), "").await.ok().unwrap();
    socket.send("x".repeat(1024 * 1024 + 1)).await;
    assert_eq!(socket.all().await.1.map(|(code, _)| code), Some(1009));
    assert_eq!(Socket::dial(&stand.ws("/v1/code/ws?cell=nope"), "").await.err().unwrap().0, 404);
    assert_eq!(get(&stand.http("/v1/code/ws"), "").await.status, 400);
}

#[tokio::test]
async fn a_socket_makes_a_bounded_number_of_requests_at_a_time() {
    let stand = Stand::configured(Config { max_requests: 1, ..Config::default() }).await;
    let id = stand.bridge().await;
    stand.message(&id, "gate").await;
    let mut socket = stand.turn(&id, "").await;
    let request = |subtype: &str| format!(r#"{{"type":"control_request","request_id":"r","request":{{"subtype":"{subtype}"}}}}"#);
    socket.send(request("brand_new")).await;
    socket.send(request("mcp_status")).await;
    assert!(socket.text().await.contains("too many requests wait"));
}

#[tokio::test]
async fn where_policies_decide_no_client_changes_what_is_asked_about() {
    let policies = Policies::new(vec![Policy::new("bash", "Bash", None, Decision::Deny).unwrap()]);
    let stand = Stand::that(Conduct { policies: Arc::new(policies), ..Conduct::default() }).await;
    let id = stand.bridge().await;
    stand.message(&id, "gate").await;
    let mut socket = stand.turn(&id, "").await;
    let request = |body: &str| format!(r#"{{"type":"control_request","request_id":"r","request":{{"subtype":{body}}}}}"#);
    for refused in [
        r#""set_permission_mode","mode":"acceptEdits""#,
        r#""apply_flag_settings","settings":{}"#,
        r#""mcp_set_servers","servers":{}"#,
        r#""initialize""#,
    ] {
        socket.send(request(refused)).await;
        let reply = socket.text().await;
        assert!(reply.contains("policies decide about tools here"), "{refused}: {reply}");
    }
    // Nobody here knows what it would change.
    socket.send(request(r#""brand_new""#)).await;
    socket.send(request(r#""get_context_usage""#)).await;
    assert!(socket.text().await.contains("totalTokens"));
}
