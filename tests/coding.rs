//! The coding channel through the program: a client of a bridge's files and terminals comes through Interline unchanged, and only where it is
//! switched on and the client may.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use interline_sim::Options;
use interline_testkit::{Program, get};
use serde_json::{Value, json};
use support::{Stand, token};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn dial(program: &Program, path: &str, secret: &str) -> Result<Socket, u16> {
    let url = format!("{}{path}", program.base().replacen("http", "ws", 1));
    let mut request = url.into_client_request().expect("a URL");
    request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().expect("a header"));
    match connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

async fn say(socket: &mut Socket, frame: Value) {
    socket.send(Message::text(frame.to_string())).await.expect("it can be said");
}

async fn hear(socket: &mut Socket) -> Value {
    loop {
        let message = tokio::time::timeout(Duration::from_secs(20), socket.next()).await.expect("something comes");
        match message.expect("the channel is open").expect("a message") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn call(id: &str, method: &str, params: Value) -> Value {
    json!({"type": "code_request", "request_id": id, "method": method, "params": params})
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_terminals_pass_through_unchanged() {
    let stand = Stand::with(Options::default(), "[native]\ncoding_channel = true\n").await;
    let mut socket = dial(&stand.program, "/v1/code/ws", &token("bridge")).await.expect("the channel opens");
    say(&mut socket, call("g", "git.status", json!({"cwd": "/repo"}))).await;
    assert_eq!(hear(&mut socket).await["result"]["branch"], "main");
    say(&mut socket, call("x", "x", json!({}))).await;
    assert_eq!(hear(&mut socket).await["error"], "code: unknown method \"x\"");
    // Bytes of a terminal, those that are no UTF-8 among them.
    say(&mut socket, call("o", "pty.open", json!({"cols": 100, "rows": 30}))).await;
    let pty = hear(&mut socket).await["result"]["pty_id"].as_str().expect("an id").to_owned();
    say(&mut socket, json!({"type": "code_pty_input", "pty_id": pty, "data": STANDARD.encode(b"bytes\r")})).await;
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let mut seen = Vec::new();
    while !seen.windows(all.len()).any(|window| window == all) {
        let frame = hear(&mut socket).await;
        assert_eq!(frame["type"], "code_pty_chunk");
        seen.extend(STANDARD.decode(frame["data"].as_str().expect("data")).expect("base64"));
    }
    // A session's socket is not disturbed by it, nor does it see any of it.
    let text = stand.run("bridge", "play chat-text-only").await.rest().await;
    assert!(text.contains("\"type\":\"done\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_for_those_who_may_and_where_it_is_switched_on() {
    let stand = Stand::with(Options::default(), "[native]\ncoding_channel = true\n").await;
    assert_eq!(dial(&stand.program, "/v1/code/ws", "nobody").await.err(), Some(401));
    assert_eq!(dial(&stand.program, "/v1/code/ws", &token("cloud")).await.err(), Some(501), "a cloud plane has none");
    assert_eq!(dial(&stand.program, "/v1/code/ws?cell=bridge", &token("cloud")).await.err(), Some(404), "another's cell");
    assert!(dial(&stand.program, "/v1/code/ws?cell=bridge", &token("bridge")).await.is_ok());
    assert_eq!(get(&format!("{}/v1/code/ws", stand.base()), &token("bridge")).await.status, 400, "no WebSocket");
    let off = Stand::new().await;
    assert_eq!(dial(&off.program, "/v1/code/ws", &token("bridge")).await.err(), Some(501));
}
