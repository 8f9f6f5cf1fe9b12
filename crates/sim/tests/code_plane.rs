//! The coding channel through real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use interline_sim::flood_text;
use serde_json::{Value, json};
use support::{Server, Socket, documented};

async fn channel(server: &Server) -> Socket {
    server.connect("/v1/code/ws").await.unwrap()
}

fn call(id: &str, method: &str, params: Value) -> Value {
    json!({ "type": "code_request", "request_id": id, "method": method, "params": params })
}

async fn next(socket: &mut Socket) -> Value {
    serde_json::from_str(&socket.next().await.unwrap()).unwrap()
}

async fn open(socket: &mut Socket) -> String {
    socket.send(call("o", "pty.open", json!({ "cols": 100, "rows": 30 }))).await;
    next(socket).await["result"]["pty_id"].as_str().unwrap().to_owned()
}

async fn type_in(socket: &mut Socket, pty: &str, bytes: &[u8]) {
    socket.send(json!({ "type": "code_pty_input", "pty_id": pty, "data": STANDARD.encode(bytes) })).await;
}

/// The terminal's output, up to a number of bytes.
async fn output(socket: &mut Socket, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let frame = next(socket).await;
        assert_eq!(frame["type"], "code_pty_chunk");
        bytes.extend(STANDARD.decode(frame["data"].as_str().unwrap()).unwrap());
    }
    bytes
}

#[tokio::test]
async fn methods_answer_and_unknown_ones_are_refused() {
    let server = documented().await;
    let mut socket = channel(&server).await;
    socket.send(json!({ "type": "user" })).await;
    socket.send(json!({ "type": "code_request", "request_id": "c1", "method": "x" })).await;
    assert_eq!(
        socket.next().await.unwrap(),
        r#"{"type":"code_response","request_id":"c1","ok":false,"error":"code: unknown method \"x\""}"#
    );
    socket.send(call("s", "git.status", json!({ "cwd": "/repo" }))).await;
    assert_eq!(next(&mut socket).await["result"]["branch"], "main");
    socket.send(call("w", "fs.write", json!({ "path": "src/new.rs", "content": "fn a() {}" }))).await;
    assert_eq!(next(&mut socket).await["ok"], true);
    // Another channel works on the same files.
    let mut other = channel(&server).await;
    other.send(call("r", "fs.read", json!({ "path": "/repo/src/new.rs" }))).await;
    assert_eq!(next(&mut other).await["result"]["content"], "fn a() {}");
    other.send(call("l", "fs.list", json!({ "path": "src" }))).await;
    assert_eq!(next(&mut other).await["result"]["entries"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_slow_request_is_overtaken() {
    let server = documented().await;
    let mut socket = channel(&server).await;
    socket.send(call("slow", "git.status", json!({ "after_ms": 300 }))).await;
    socket.send(call("fast", "fs.read", json!({ "path": "README.md" }))).await;
    assert_eq!(next(&mut socket).await["request_id"], "fast");
    assert_eq!(next(&mut socket).await["request_id"], "slow");
}

#[tokio::test]
async fn a_terminal_echoes_bytes_as_they_are() {
    let server = documented().await;
    let mut socket = channel(&server).await;
    let pty = open(&mut socket).await;
    assert_eq!(output(&mut socket, 2).await, b"$ ");
    let odd = [0xff, 0xfe, 0x00, 0x80];
    type_in(&mut socket, &pty, &odd).await;
    assert_eq!(output(&mut socket, 4).await, odd);
    type_in(&mut socket, &pty, b"\x03").await;
    output(&mut socket, 6).await;
    socket.send(json!({ "type": "code_pty_resize", "pty_id": pty, "cols": 0, "rows": 65535 })).await;
    type_in(&mut socket, &pty, b"size\r").await;
    assert_eq!(output(&mut socket, 17).await, b"size\r\n2 10000\r\n$ ");
    type_in(&mut socket, &pty, b"exit 3\r").await;
    output(&mut socket, 8).await;
    assert_eq!(next(&mut socket).await, json!({ "type": "code_pty_exit", "pty_id": pty, "exit_code": 3 }));
    socket.send(call("a", "pty.active", json!({}))).await;
    assert_eq!(next(&mut socket).await["result"]["ptys"], json!([]));
    socket.send(call("k", "pty.kill", json!({ "pty_id": pty }))).await;
    assert_eq!(next(&mut socket).await["error"], "code: no such pty");
}

#[tokio::test]
async fn who_does_not_read_holds_the_terminal_up_and_loses_nothing() {
    const CHUNKS: u64 = 15_000;
    let server = documented().await;
    let mut socket = channel(&server).await;
    let pty = open(&mut socket).await;
    output(&mut socket, 2).await;
    let command = format!("flood {CHUNKS}\r");
    type_in(&mut socket, &pty, command.as_bytes()).await;
    // Until it stands still.
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = server.sim.stats().code_frames;
        if now == before {
            break;
        }
        before = now;
    }
    assert!(before < CHUNKS, "it waits: {before}");
    output(&mut socket, command.len() + 1).await;
    for n in 0..CHUNKS {
        let chunk = output(&mut socket, 1024).await;
        assert_eq!(&chunk[..20], flood_text(n).as_bytes());
    }
    assert_eq!(output(&mut socket, 2).await, b"$ ");
}

#[tokio::test]
async fn a_task_is_told_as_events() {
    let server = documented().await;
    let mut socket = channel(&server).await;
    socket.send(call("t", "code.runTask", json!({ "prompt": "tidy up" }))).await;
    let task = next(&mut socket).await["result"]["task_id"].clone();
    for kind in ["text_delta", "tool_use_start", "tool_use_result", "cost_update"] {
        let frame = next(&mut socket).await;
        assert_eq!((&frame["task_id"], &frame["event"]["type"]), (&task, &json!(kind)));
    }
}
