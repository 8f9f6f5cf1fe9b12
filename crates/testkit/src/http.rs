//! A plain HTTP client that shows everything: status, headers, and the body as it comes.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// The longest that anything may take before the test is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: http::HeaderMap,
    /// The body as text.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// A header's text, or nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// An answer whose body is still coming. Dropping it closes the connection.
pub struct Stream {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: http::HeaderMap,
    body: Incoming,
    seen: Vec<u8>,
}

impl Stream {
    /// Reads until the body holds `text`, or ends. Returns what it holds.
    ///
    /// # Panics
    /// When nothing comes for a minute, or the connection breaks.
    pub async fn until(&mut self, text: &str) -> String {
        loop {
            let seen = String::from_utf8_lossy(&self.seen).into_owned();
            if seen.contains(text) || !self.more().await {
                return seen;
            }
        }
    }

    /// Reads what comes next; `false` at the body's end.
    ///
    /// # Panics
    /// When nothing comes for a minute, or the connection breaks.
    pub async fn piece(&mut self) -> bool {
        self.more().await
    }

    /// How many bytes of the body have come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether none have come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Reads to the body's end.
    ///
    /// # Panics
    /// When nothing comes for a minute, the connection breaks, or the body is no UTF-8.
    pub async fn rest(mut self) -> String {
        while self.more().await {}
        String::from_utf8(self.seen).expect("a UTF-8 body")
    }

    async fn more(&mut self) -> bool {
        match tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("something comes in time") {
            Some(frame) => {
                if let Ok(data) = frame.expect("the connection holds").into_data() {
                    self.seen.extend_from_slice(&data);
                }
                true
            }
            None => false,
        }
    }
}

/// Sends a request and returns as soon as the headers are there.
///
/// # Panics
/// When there is no answer.
pub async fn request(method: &str, url: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Stream {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
    let mut request = http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).expect("a request");
    let answer = tokio::time::timeout(PATIENCE, client.request(request)).await.expect("an answer in time");
    let (parts, body) = answer.unwrap_or_else(|error| panic!("{method} {url}: {error:?}")).into_parts();
    Stream { status: parts.status.as_u16(), headers: parts.headers, body, seen: Vec::new() }
}

async fn whole(stream: Stream) -> Answer {
    let (status, headers) = (stream.status, stream.headers.clone());
    Answer { status, headers, body: stream.rest().await }
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// `GET`, with a bearer token unless it is empty.
pub async fn get(url: &str, token: &str) -> Answer {
    let bearer = bearer(token);
    let headers = [("authorization", bearer.as_str())];
    whole(request("GET", url, if token.is_empty() { &[] } else { &headers }, "").await).await
}

/// `POST` of JSON text, with a bearer token unless it is empty.
pub async fn post(url: &str, token: &str, json: &str) -> Answer {
    let bearer = bearer(token);
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    let headers = if token.is_empty() { &headers[..1] } else { &headers };
    whole(request("POST", url, headers, json.to_owned()).await).await
}

/// `DELETE`, with a bearer token unless it is empty.
pub async fn delete(url: &str, token: &str) -> Answer {
    let bearer = bearer(token);
    let headers = [("authorization", bearer.as_str())];
    whole(request("DELETE", url, if token.is_empty() { &[] } else { &headers }, "").await).await
}
