//! A small HTTP client: bounded replies, one timeout over everything, redirects not followed.

use std::error::Error;
use std::time::Duration;

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use interline_hub::Secret;
use rustls::ClientConfig;

use crate::LinkConfig;

/// Sends requests to one upstream.
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Pieces>>,
}

/// A body in up to three pieces, so that a file is not copied to be wrapped.
type Pieces = Chain<Chain<Bytes, Bytes>, Bytes>;

/// What a request carries.
pub(crate) struct Payload {
    /// Its media type.
    pub(crate) media_type: String,
    /// Its bytes, one piece after another.
    pub(crate) pieces: [Bytes; 3],
}

impl Payload {
    pub(crate) fn json(text: String) -> Self {
        Self { media_type: "application/json".to_owned(), pieces: [Bytes::from(text), Bytes::new(), Bytes::new()] }
    }
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Why there is no answer. Never holds a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error("{0}")]
    Transport(String),
    /// There was not even a connection.
    #[error("{0}")]
    Connect(String),
    #[error("its answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the credential cannot be sent in a header")]
    Credential,
    #[error("the address cannot be used: {0}")]
    Address(#[from] http::Error),
}

impl HttpError {
    /// Whether the server may have got the request, and done what it asks for.
    pub(crate) fn may_have_been_heard(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Transport(_) | Self::TooLarge(_) => true,
            Self::Connect(_) | Self::Credential | Self::Address(_) => false,
        }
    }
}

impl HttpClient {
    pub(crate) fn new(tls: ClientConfig, config: &LinkConfig) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(config.connect_timeout()));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        // None is kept: a server may close it while a request is on its way, and what starts something must not be sent twice.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https);
        Self { client }
    }

    /// Sends a request and reads at most `limit` bytes of its answer, all within `time`.
    pub(crate) async fn send(
        &self,
        method: Method,
        uri: Uri,
        bearer: Option<&Secret>,
        body: Option<Payload>,
        limit: usize,
        time: Duration,
    ) -> Result<Reply, HttpError> {
        let mut request = Request::builder().method(method).uri(uri).header(ACCEPT, "application/json");
        if let Some(bearer) = bearer {
            request = request.header(AUTHORIZATION, bearer_header(bearer).ok_or(HttpError::Credential)?);
        }
        let mut pieces = [Bytes::new(), Bytes::new(), Bytes::new()];
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, body.media_type);
            pieces = body.pieces;
        }
        let [head, data, tail] = pieces;
        let request = request.body(Full::new(head.chain(data).chain(tail)))?;
        tokio::time::timeout(time, self.exchange(request, limit)).await.map_err(|_| HttpError::Timeout(time))?
    }

    async fn exchange(&self, request: Request<Full<Pieces>>, limit: usize) -> Result<Reply, HttpError> {
        let response = self.client.request(request).await.map_err(|error| {
            let why = causes(&error);
            if error.is_connect() { HttpError::Connect(why) } else { HttpError::Transport(why) }
        })?;
        let status = response.status();
        match Limited::new(response.into_body(), limit).collect().await {
            Ok(body) => Ok(Reply { status, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => Err(HttpError::TooLarge(limit)),
            Err(error) => Err(HttpError::Transport(causes(error.as_ref()))),
        }
    }
}

/// `Bearer …`, marked so that it is never printed; `None` if no header can hold it.
pub(crate) fn bearer_header(secret: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// An error and what is behind it, each said once.
pub(crate) fn causes(error: &dyn Error) -> String {
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
