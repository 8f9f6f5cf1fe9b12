//! The requests of a chat: HTTP and WebSockets below one base URL, with one bearer.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use interline_hub::Secret;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, protocol::WebSocketConfig};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::wire::ChatError;

const CONNECT: Duration = Duration::from_secs(10);
/// The largest answer that is not a stream.
const MAX_REPLY: usize = 16 << 20;
/// The largest WebSocket message.
const MAX_MESSAGE: usize = 64 << 20;

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A server.
pub(crate) struct Server {
    base: String,
    bearer: Option<Secret>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Server {
    /// The server at `url`.
    pub(crate) fn new(url: &str, bearer: Option<Secret>) -> Result<Self, ChatError> {
        let refuse = || ChatError::Url(url.to_owned());
        let uri: Uri = url.trim().parse().map_err(|_| refuse())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(refuse());
        }
        if bearer.as_ref().is_some_and(|bearer| header(bearer).is_none()) {
            return Err(ChatError::Token);
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).build(https);
        Ok(Self { base: url.trim().trim_end_matches('/').to_owned(), bearer, client })
    }

    /// The bearer, for protocols that carry it elsewhere than in a header.
    pub(crate) fn bearer(&self) -> Option<&Secret> {
        self.bearer.as_ref()
    }

    /// Sends a request and returns its answer as soon as the headers are there; one that is no success is an error.
    pub(crate) async fn open(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, ChatError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(value) = self.bearer.as_ref().and_then(header) {
            request = request.header(AUTHORIZATION, value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| ChatError::Unreachable(error.to_string()))?;
        let response = self.client.request(request).await.map_err(|error| ChatError::Unreachable(causes(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = Limited::new(response.into_body(), MAX_REPLY).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Err(ChatError::Refused(format!("{status}: {}", said(&text))))
    }

    /// Sends a request and reads its answer as JSON; an empty one is `null`.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ChatError> {
        let response = self.open(method, path, body).await?;
        let body =
            Limited::new(response.into_body(), MAX_REPLY).collect().await.map_err(|error| ChatError::Unreachable(error.to_string()))?;
        let bytes = body.to_bytes();
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|_| ChatError::Protocol(format!("{path} is not answered with JSON")))
    }

    /// Opens a WebSocket; the bearer goes along as a header if `bearer`.
    pub(crate) async fn socket(&self, path: &str, bearer: bool) -> Result<Socket, ChatError> {
        let url = self.base.replacen("http", "ws", 1) + path;
        let mut request = url.into_client_request().map_err(|error| ChatError::Unreachable(error.to_string()))?;
        if let Some(value) = self.bearer.as_ref().filter(|_| bearer).and_then(header) {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let bounds = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        match timeout(CONNECT, connect_async_with_config(request, Some(bounds), true)).await {
            Ok(Ok((socket, _))) => Ok(socket),
            Ok(Err(tungstenite::Error::Http(response))) => {
                let body = response.body().as_deref().unwrap_or_default();
                Err(ChatError::Refused(format!("{}: {}", response.status(), said(body))))
            }
            Ok(Err(error)) => Err(ChatError::Unreachable(causes(&error))),
            Err(_) => Err(ChatError::Unreachable(format!("no answer within {} s", CONNECT.as_secs()))),
        }
    }
}

fn header(bearer: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", bearer.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The sentence in an error's body, in any of the families' shapes.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let Ok(json) = serde_json::from_slice::<Value>(body) else {
        return text.trim().chars().take(200).collect();
    };
    let words = [&json["error"]["message"], &json["error"]["code"], &json["error"], &json["detail"], &json["message"]];
    words.into_iter().filter_map(Value::as_str).find(|word| !word.is_empty()).map_or_else(|| json.to_string(), str::to_owned)
}

/// An error and what is behind it.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_of_an_error_is_found_in_every_familys_shape() {
        let shapes = [
            r#"{"type":"error","error":"gone","kind":"x","severity":"error"}"#,
            r#"{"detail":"gone"}"#,
            r#"{"error":{"code":"x","message":"gone"}}"#,
            r#"{"error":{"code":"gone","message":""}}"#,
            "gone\n",
        ];
        for shape in shapes {
            assert_eq!(said(shape.as_bytes()), "gone", "{shape}");
        }
    }

    #[test]
    fn what_is_no_base_url_is_refused() {
        for url in ["", "localhost:9091", "ftp://x", "http://", "http://x/?token=1"] {
            assert!(matches!(Server::new(url, None), Err(ChatError::Url(_))), "{url}");
        }
        assert!(matches!(Server::new("http://x", Some(Secret::new("a\nb"))), Err(ChatError::Token)));
    }
}
