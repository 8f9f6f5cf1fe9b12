//! A cloud plane that does whatever a test says, byte for byte: for what no simulator of a decent server would do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::SinkExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// What it answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Status line, header lines with their ends, and a body. The length is added.
    Http(&'static str, String, Vec<u8>),
    /// A WebSocket with these messages, which then stays open for a moment.
    Frames(Vec<String>),
}

/// Where it listens, and the heads of the requests that it got.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) base: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Answers each request by its head.
    pub(crate) async fn new(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let upstream = Self { base, seen: seen.clone() };
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (answer.clone(), seen.clone());
                tokio::spawn(async move { serve(stream, &seen, &*answer).await });
            }
        });
        upstream
    }

    /// One that creates sessions, and streams these frames in each.
    pub(crate) async fn streaming(token: &str, frames: Vec<String>) -> Self {
        let created = created("11111111-1111-4111-8111-111111111111", token);
        Self::new(move |line| if line.starts_with("POST ") { created.clone() } else { Reply::Frames(frames.clone()) }).await
    }

    /// The heads of all requests so far.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The answer to a create request.
pub(crate) fn created(session: &str, token: &str) -> Reply {
    let body = serde_json::json!({
        "session_id": session, "session_token": token, "expires_at": 4_000_000_000_000_u64, "mode": "chat", "state": "active",
        "created_at": 1_700_000_000_000_u64, "thread_id": "22222222-2222-4222-8222-222222222222",
    });
    Reply::Http("201 Created", "Content-Type: application/json\r\n".to_owned(), body.to_string().into_bytes())
}

/// A successful end.
pub(crate) fn result() -> String {
    r#"{"type":"result","subtype":"success","is_error":false,"result":"ok","stop_reason":"end_turn","num_turns":1,"duration_ms":1,"session_id":"s","uuid":"00000000-0000-4000-8000-00000000ffff"}"#.to_owned()
}

/// Some text.
pub(crate) fn text(text: &str) -> String {
    serde_json::json!({"type": "streamlined_text", "text": text, "uuid": format!("t-{}", text.len()), "session_id": "s"}).to_string()
}

async fn serve(mut stream: TcpStream, seen: &Mutex<Vec<String>>, answer: &(dyn Fn(&str) -> Reply + Send + Sync)) -> Option<()> {
    loop {
        let head = head(&mut stream).await?;
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
        let member = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let length: usize = member("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        match answer(&head) {
            Reply::Http(status, headers, body) => {
                let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).await.ok()?;
                stream.write_all(&body).await.ok()?;
            }
            Reply::Frames(frames) => {
                let accept = derive_accept_key(member("sec-websocket-key")?.as_bytes());
                let head = format!("HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.ok()?;
                let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
                for frame in frames {
                    socket.send(Message::text(frame)).await.ok()?;
                }
                tokio::time::sleep(Duration::from_secs(5)).await;
                return Some(());
            }
        }
    }
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}
