//! Clients without a library: a Socket.IO client and a raw HTTP one, which send what no decent client would, and show every byte that comes.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// The longest that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A Socket.IO client over a WebSocket.
pub(crate) struct RawSocket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next_ack: u64,
}

impl RawSocket {
    /// Connects to the namespace with this `auth`; `Err` is the server's refusal.
    pub(crate) async fn connect(base: &str, query: &str, auth: &Value) -> Result<Self, String> {
        let url = format!("{}/socket.io/?EIO=4&transport=websocket{query}", base.replacen("http", "ws", 1));
        let (stream, _) = tokio_tungstenite::connect_async(url).await.map_err(|error| error.to_string())?;
        let mut socket = Self { stream, next_ack: 0 };
        socket.say(&format!("40{auth}")).await;
        loop {
            let packet = socket.packet().await.ok_or("the connection was closed")?;
            if packet.starts_with("40") {
                return Ok(socket);
            }
            if let Some(refusal) = packet.strip_prefix("44") {
                return Err(refusal.to_owned());
            }
        }
    }

    /// Sends a packet as it is.
    pub(crate) async fn say(&mut self, packet: &str) {
        let _ = self.stream.send(Message::text(packet)).await;
    }

    /// The next packet; `None` when the connection ends.
    pub(crate) async fn packet(&mut self) -> Option<String> {
        loop {
            match tokio::time::timeout(PATIENCE, self.stream.next()).await.expect("something comes in time")? {
                Ok(Message::Text(text)) if text == "2" => self.say("3").await,
                Ok(Message::Text(text)) => return Some(text.to_string()),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Sends an event and returns its acknowledgement. What else comes meanwhile is dropped.
    pub(crate) async fn emit(&mut self, event: &str, data: &Value) -> Option<Value> {
        let ack = self.next_ack;
        self.next_ack += 1;
        self.say(&format!("42{ack}[{},{data}]", Value::from(event))).await;
        let mark = format!("43{ack}");
        loop {
            if let Some(body) = self.packet().await?.strip_prefix(&mark) {
                return serde_json::from_str::<Value>(body).ok().map(|mut body| body[0].take());
            }
        }
    }

    /// The data of the next event of this name; `None` when the connection ends before.
    pub(crate) async fn event(&mut self, name: &str) -> Option<Value> {
        loop {
            let packet = self.packet().await?;
            let Some(event) = packet.strip_prefix("42").and_then(|body| serde_json::from_str::<Value>(body).ok()) else { continue };
            if event[0] == name {
                return Some(event[1].clone());
            }
        }
    }
}

/// Sends these bytes and reads until the server closes, or nothing has come for a while.
pub(crate) async fn raw(base: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(base.trim_start_matches("http://")).await.expect("a connection");
    // The server may refuse before it has all.
    let _ = stream.write_all(bytes).await;
    let mut seen = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // The first bytes have all the time, the rest comes at once.
        let wait = if seen.is_empty() { PATIENCE } else { Duration::from_millis(200) };
        match tokio::time::timeout(wait, stream.read(&mut buffer)).await {
            Ok(Ok(length)) if length > 0 => seen.extend_from_slice(buffer.get(..length).expect("what was read")),
            _ => return String::from_utf8_lossy(&seen).into_owned(),
        }
    }
}

/// A whole request with these header lines, each with its end; the body's length is added.
pub(crate) async fn exchange(base: &str, method: &str, target: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let host = base.trim_start_matches("http://");
    let length = if body.is_empty() && method == "GET" { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{length}{headers}\r\n").into_bytes();
    request.extend_from_slice(body);
    let answer = raw(base, &request).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer)
}
