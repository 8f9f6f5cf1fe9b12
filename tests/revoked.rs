//! Case F4: who was let in is not let in for ever. A token that is taken away while its clients are connected ends their streams and sockets at once,
//! and is refused from then on, also when a client comes back to a session that it was in.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

#[allow(dead_code, reason = "each test file uses its part")]
#[path = "support/wire.rs"]
mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use interline_hub::{AskConfig, Conduct, Durability, Gate, Hub, Models, Route, Routes, RunConfig, Secret, SecretHash, Surface, Token};
use interline_journal::Memory;
use interline_sim::{Options, Pace, Simulator};
use interline_testkit::{eventually, get, post, request};
use interline_upstream_native::{Kind, LinkConfig, Mode, UpstreamConfig};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::sync::CancellationToken;
use wire::RawSocket;

fn gate(names: &[&str]) -> Gate {
    // Both secrets are of one name: the new one goes on where the old one was.
    let token = |secret: &&str| interline_hub::TokenSecret { hash: SecretHash::of(secret), expires_at: None };
    let secrets = names.iter().map(token).collect();
    Gate::Tokens(vec![Token { secrets, ..Token::new("web", SecretHash::of("none"), vec!["*".into()]) }])
}

/// All surfaces before a simulator, in this process, so that the gate is at hand.
async fn serve() -> (Arc<Hub>, String) {
    let simulator = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", simulator.local_addr().expect("an address"));
    let sim = Simulator::new(Options { pace: Pace::none(), ..Options::default() }).expect("a simulator");
    tokio::spawn(sim.serve(simulator, CancellationToken::new()));
    let upstream = UpstreamConfig {
        name: "plane".to_owned(),
        kind: Kind::Cloud,
        url,
        credential: Some(Secret::new("any")),
        mode: Mode::Agent,
        environment_id: Some("7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11".to_owned()),
        workdir: None,
        pool_tag: None,
        provider_id: None,
    };
    let upstream = interline_upstream_native::upstream(upstream, LinkConfig::default()).expect("an upstream");
    let route =
        Route { cell: "*".into(), upstream, models: Models::default(), conduct: Conduct::default(), durability: Durability::Memory };
    let (run, ask) = (RunConfig::default(), AskConfig::default());
    let hub = Arc::new(Hub::new(gate(&["old", "new"]), Routes::new(vec![route]), run, ask, Arc::new(Memory::default())));
    let native: Box<dyn Surface> = interline_surface_native::surface(interline_surface_native::Config::default());
    let router = interline_surface_sse::router(hub.clone(), interline_surface_sse::Config::default())
        .merge(interline_surface_socketio::router(hub.clone(), interline_surface_socketio::Config::default()))
        .merge(native.router(hub.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (hub, base)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f4_a_token_that_is_taken_away_is_refused_where_its_client_is_already() {
    let (hub, base) = serve().await;
    let body = json!({"actor": "u", "messages": [{"role": "user", "content": "ask"}]}).to_string();
    let mut sse = request("POST", &format!("{base}/cells/c/run"), &[("authorization", "Bearer old")], body).await;
    let header = |name: &str| sse.headers[name].to_str().expect("text").to_owned();
    let (run, session) = (header("x-run-id"), header("x-session-id"));
    let _ = sse.until("approval_request").await;
    let issued = post(&format!("{base}/v1/agent/sessions/{session}/refresh-token"), "old", "").await.json();
    let session_token = issued["session_token"].as_str().expect("a token").to_owned();
    let ticket = post(&format!("{base}/cells/c/tickets"), "old", "").await.json()["ticket"].as_str().expect("a ticket").to_owned();
    let mut socket = RawSocket::connect(&base, "", &json!({"token": "old"})).await.expect("a socket");
    assert_eq!(socket.emit("session:subscribe", &json!({"session_id": session})).await.expect("an answer")["ok"], true);
    let mut stays = RawSocket::connect(&base, "", &json!({"token": "new"})).await.expect("a socket");
    let mut native =
        format!("{base}/v1/agent/sessions/{session}/stream").replacen("http", "ws", 1).into_client_request().expect("a request");
    native.headers_mut().insert("authorization", format!("Bearer {session_token}").parse().expect("a header"));
    let mut native = tokio_tungstenite::connect_async(native).await.expect("a WebSocket").0;
    hub.replace_gate(gate(&["new"]));
    // What is open ends.
    let cut = tokio::spawn(async move { sse.until("no such text").await }).await;
    assert!(cut.is_err_and(|error| error.is_panic()), "the stream broke off");
    assert_eq!(socket.event("system:error").await.expect("why")["message"], "Unauthorized");
    eventually("the socket ends", Duration::from_secs(10), async || socket.packet().await.is_none_or(|packet| packet == "41")).await;
    let close = loop {
        match tokio::time::timeout(Duration::from_secs(10), native.next()).await.expect("it ends").expect("a close").expect("a message") {
            Message::Close(close) => break close,
            _ => continue,
        }
    };
    assert_eq!(close.map(|close| u16::from(close.code)), Some(1008));
    // And nothing that was given out for it opens anything, nor is a new connection a way back in.
    let refused = RawSocket::connect(&base, "", &json!({"token": "old", "pid": session, "offset": "1"})).await.err();
    assert!(refused.is_some_and(|refusal| refusal.contains("Unauthorized")));
    assert_eq!(get(&format!("{base}/cells/c/runs/{run}/events"), "old").await.status, 401);
    assert_eq!(get(&format!("{base}/cells/c/runs/{run}/events?ticket={ticket}"), "").await.status, 401);
    assert_eq!(get(&format!("{base}/v1/agent/sessions/{session}/result"), &session_token).await.status, 401);
    assert_eq!(get(&format!("{base}/v1/agent/sessions/{session}/stream?session_token={session_token}"), "").await.status, 401);
    // The other secret of the same name goes on with all of it.
    assert_eq!(stays.emit("session:subscribe", &json!({"session_id": session})).await.expect("an answer")["ok"], true);
    assert_eq!(get(&format!("{base}/cells/c/runs/{run}"), "new").await.json()["status"], "running");
}
