//! A token that a client brings stands in no log line, at any level, on either transport.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]
#![allow(dead_code, reason = "the server's clients are for other tests, too")]

mod server;

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use server::Server;
use tracing_subscriber::fmt::MakeWriter;

const CANARY: &str = "canary-7f3a";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn no_log_line_holds_a_token() {
    let lines = Lines::default();
    tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE).with_writer(lines.clone()).init();
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket_with(&json!({"token": CANARY}).to_string()).await;
    client.ask("chat:send", json!({"session_id": session, "message": "text a\ndone"})).await;
    client.until("chat:end").await;

    let opened = server
        .send("GET", &format!("/socket.io/?EIO=4&transport=polling&token={CANARY}"), &[("Cookie", &format!("blade_token={CANARY}"))], "")
        .await;
    let handshake: serde_json::Value = serde_json::from_str(&opened.body[1..]).unwrap();
    let path = format!("/socket.io/?EIO=4&transport=polling&sid={}", handshake["sid"].as_str().unwrap());
    server.send("POST", &path, &[], &format!("40{}", json!({"token": CANARY}))).await;
    server.send("GET", "/api/sessions", &[("Authorization", &format!("Bearer {CANARY}"))], "").await;

    let guarded = Server::guarded().await;
    let mut refused = guarded.transport().await;
    refused.say(&format!("40{}", json!({"token": CANARY}))).await;
    assert!(refused.packet().await.starts_with("44"));

    let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let telling: Vec<&str> = written.lines().filter(|line| line.contains(CANARY)).collect();
    assert!(telling.is_empty(), "{telling:#?}");
}
