//! One HTTP request on one connection, which may break at any byte: nothing here takes that for a failure of the test.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::faults::FaultProxy;

/// An answer on a connection of its own.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: http::HeaderMap,
    pub(super) body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Sends a request; `None` if no answer begins within `idle`.
pub(super) async fn ask(stream: TcpStream, request: http::Request<Full<Bytes>>, idle: Duration) -> Option<Answer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    let connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    let answer = timeout(idle, sender.send_request(request)).await;
    let Ok(Ok(answer)) = answer else {
        connection.abort();
        return None;
    };
    let (parts, body) = answer.into_parts();
    Some(Answer { status: parts.status.as_u16(), headers: parts.headers, body, connection })
}

/// Sends a request with JSON, or without a body, over a connection without faults: the status and the JSON of the answer.
pub(super) async fn json(
    proxy: &FaultProxy,
    method: &str,
    path: &str,
    token: &str,
    body: Option<&Value>,
    idle: Duration,
) -> Option<(u16, Value)> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "interline")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .body(Full::new(body.map(|body| Bytes::from(body.to_string())).unwrap_or_default()))
        .ok()?;
    let mut answer = ask(proxy.connect(None).await.ok()?, request, idle).await?;
    let body = timeout(idle, (&mut answer.body).collect()).await.ok()?.ok()?;
    Some((answer.status, serde_json::from_slice(&body.to_bytes()).unwrap_or_default()))
}
