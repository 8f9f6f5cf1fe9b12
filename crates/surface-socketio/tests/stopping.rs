//! What a stop means for messages around it: no message is the answer of a run that is being stopped, and what waits for its turn never begins.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

#[allow(dead_code, reason = "each test program uses its own part")]
mod server;

use interline_hub::{Conduct, Gate, OnBusy};
use interline_model::{Actor, Principal, SessionId, Text};
use interline_surface_socketio::Config;
use serde_json::{Value, json};
use server::Server;

async fn with(on_busy: OnBusy) -> Server {
    Server::conducted(Gate::Open, Config::default(), Conduct { on_busy, ..Conduct::default() }).await
}

fn send(session: &str, message: &str) -> Value {
    json!({"session_id": session, "message": message})
}

/// Reads until `chat:end` of this run.
async fn end_of(client: &mut server::Client, run: &Value) -> Value {
    loop {
        let end = client.until("chat:end").await;
        if end["chat_run_id"] == *run {
            return end;
        }
    }
}

#[tokio::test]
async fn a_message_to_a_run_that_is_being_stopped_answers_nothing() {
    let server = with(OnBusy::Reject).await;
    let (session, mut client) = (server.session().await, server.socket().await);
    let sent = client.ask("chat:send", send(&session, "ask permission p1\ndeaf\ndone")).await;
    end_of(&mut client, &sent["chat_run_id"]).await;
    let stopped = client.ask("chat:stop", json!({"session_id": session})).await;
    assert_eq!((&stopped["status"], &stopped["chat_run_id"]), (&json!("stopping"), &sent["chat_run_id"]));

    let next = client.ask("chat:send", send(&session, "Allow")).await;
    assert_eq!((&next["ok"], &next["code"]), (&json!(false), &json!("chat_active")));
    client.until("system:error").await;
    let allow = json!({"tool_call_id": "ask_p1", "selections": {"0": [0]}});
    let answer = client.ask("chat:send", json!({"session_id": session, "message": "", "askuser_answer": allow})).await;
    assert_eq!((&answer["code"], &answer["detail"]["outcome"]), (&json!("already_resolved"), &json!("void")));
    assert!(server.script.answers.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_message_to_a_run_that_is_being_stopped_waits_where_messages_wait() {
    let server = with(OnBusy::Queue).await;
    let (session, mut client) = (server.session().await, server.socket().await);
    let sent = client.ask("chat:send", send(&session, "ask permission p1\ndeaf\ndone")).await;
    end_of(&mut client, &sent["chat_run_id"]).await;
    client.ask("chat:stop", json!({"session_id": session})).await;
    let next = client.ask("chat:send", send(&session, "Allow")).await;
    assert_eq!(next["ok"], true);
    assert_ne!(next["chat_run_id"], sent["chat_run_id"]);
    assert!(server.script.answers.lock().unwrap().is_empty());
}

#[tokio::test]
async fn runs_that_wait_are_given_up_by_a_stop_from_anywhere() {
    let server = with(OnBusy::Queue).await;
    let (session, mut client, mut other) = (server.session().await, server.socket().await, server.socket().await);
    let first = client.ask("chat:send", send(&session, "text a\ngate\ndone")).await;
    let second = client.ask("chat:send", send(&session, "text b\ndone")).await;
    let third = client.ask("chat:send", send(&session, "text c\ndone")).await;
    let fourth = client.ask("chat:send", send(&session, "text d\ndone")).await;

    // By its id, over another socket: that one alone.
    let given_up = other.ask("chat:stop", json!({"session_id": session, "chat_run_id": second["chat_run_id"]})).await;
    assert_eq!((&given_up["status"], &given_up["chat_run_id"]), (&json!("interrupted"), &second["chat_run_id"]));
    assert_eq!(end_of(&mut client, &second["chat_run_id"]).await["status"], "interrupted");

    // All, over another surface.
    let access = server.hub.admit(None).unwrap();
    let kept = server.hub.session(&access, &SessionId::from(session.clone())).unwrap();
    kept.stop(None, Actor { principal: Principal::from("p"), surface: Text::from_static("sse") });
    let mut ends = Vec::new();
    while ends.len() < 3 {
        let end = client.until("chat:end").await;
        assert_eq!(end["status"], "interrupted");
        ends.push(end["chat_run_id"].clone());
    }
    for run in [first, third, fourth] {
        assert!(ends.contains(&run["chat_run_id"]), "{ends:?}");
    }
    assert_eq!(server.script.inputs.lock().unwrap().len(), 1, "none of them began");
}

#[tokio::test]
async fn variables_that_no_client_may_set_are_refused_with_a_sentence() {
    let server = with(OnBusy::Reject).await;
    let (session, mut client) = (server.session().await, server.socket().await);
    for name in ["LD_PRELOAD", "PATH", "ANTHROPIC_BASE_URL"] {
        let message = json!({"session_id": session, "message": "done", "runtime_env": {name: "x"}});
        let refused = client.ask("chat:send", message).await;
        assert_eq!(refused["code"], "invalid_request");
        assert!(refused["message"].as_str().unwrap().contains(name), "{refused}");
        client.until("system:error").await;
        let body = json!({"env": {name: "x"}}).to_string();
        let put = server.send("PUT", &format!("/api/sessions/{session}/env"), &[("content-type", "application/json")], &body).await;
        assert_eq!(put.status, 422);
        assert!(put.json()["detail"][0]["msg"].as_str().unwrap().contains(name));
    }
    // Each of them few enough, and together too many.
    let some = |of: &str| -> Value { (0..40).map(|at| (format!("{of}{at}"), json!("x"))).collect::<serde_json::Map<_, _>>().into() };
    let session = server.post("/api/sessions", &json!({"env": some("A")})).await.json()["session_id"].clone();
    let refused = client.ask("chat:send", json!({"session_id": session, "message": "done", "runtime_env": some("B")})).await;
    assert!(refused["message"].as_str().unwrap().contains("64"), "{refused}");
}
