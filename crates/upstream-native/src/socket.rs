//! One WebSocket to an upstream: dialled under a timeout, bounded both ways, and watched, so that a connection that died without
//! a word is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use http::header::AUTHORIZATION;
use http::{StatusCode, Uri};
use interline_hub::Secret;
use interline_model::Text;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Bytes, Message, Utf8Bytes};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

use crate::LinkConfig;
use crate::heard::{Heard, LastHeard};
use crate::http::{bearer_header, causes};
use crate::outbox::Outbox;
use crate::refusal::Refusal;

/// Room for reading. Each read clears what is free of it, so that a larger one costs more than it saves at the pace of a model.
const READ_BUFFER: usize = 16 * 1024;

/// From this size on, waiting messages are written before they are flushed.
const WRITE_BUFFER: usize = 16 * 1024;

/// How long a server may take to close, after we did.
pub(crate) const LONGEST_CLOSE: Duration = Duration::from_secs(2);

/// How to reach the sockets of one upstream.
pub(crate) struct Dialer {
    tls: Arc<ClientConfig>,
    sockets: WebSocketConfig,
    connect: Duration,
    write: Duration,
    liveness: Duration,
}

/// What lets a socket in.
#[derive(Clone, Copy)]
pub(crate) enum Credential<'a> {
    /// A header.
    Bearer(Option<&'a Secret>),
    /// It is in the address already.
    InQuery(&'a Secret),
}

impl<'a> Credential<'a> {
    fn secret(self) -> Option<&'a Secret> {
        match self {
            Self::Bearer(bearer) => bearer,
            Self::InQuery(secret) => Some(secret),
        }
    }
}

/// Why there is no socket. Never holds a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The server answered, and not with a socket.
    #[error("the upgrade was refused: {0}")]
    Refused(Refusal),
    #[error("{0}")]
    Failed(String),
    /// The server was reached and gave no whole answer: it may hold the socket for open, and say into it what nobody hears.
    #[error("{0}")]
    Unanswered(String),
}

impl Dialer {
    pub(crate) fn new(tls: Arc<ClientConfig>, config: &LinkConfig, largest_outbound: usize) -> Self {
        let sockets = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(WRITE_BUFFER)
            // Without a bound, a server that does not read would grow it; one message must fit whatever waits before it.
            .max_write_buffer_size(largest_outbound.saturating_add(4 * WRITE_BUFFER))
            .max_message_size(Some(config.max_message_bytes))
            .max_frame_size(Some(config.max_message_bytes));
        Self { tls, sockets, connect: config.connect_timeout(), write: config.write_timeout(), liveness: config.liveness() }
    }

    /// Opens a socket. No subprotocol is offered: servers never confirm one (native-ws.md §3.1).
    pub(crate) async fn dial(&self, uri: Uri, credential: Credential<'_>) -> Result<Socket, DialError> {
        let mut request = uri.into_client_request().map_err(|error| DialError::Failed(causes(&error)))?;
        if let Credential::Bearer(Some(bearer)) = credential {
            let value = bearer_header(bearer).ok_or_else(|| DialError::Failed("the credential cannot be sent in a header".to_owned()))?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let reached = AtomicBool::new(false);
        let dialled = async {
            let tcp = tcp(request.uri()).await?;
            reached.store(true, Ordering::Relaxed);
            let (stream, heard) = Heard::new(tcp);
            let connector = Connector::Rustls(self.tls.clone());
            let (stream, _) = client_async_tls_with_config(request, stream, Some(self.sockets), Some(connector)).await?;
            Ok((stream, heard))
        };
        match timeout(self.connect, dialled).await {
            Ok(Ok((stream, heard))) => {
                Ok(Socket { stream, write: self.write, liveness: self.liveness, heard, watch: Box::pin(tokio::time::sleep(self.liveness)) })
            }
            Ok(Err(tungstenite::Error::Http(response))) => {
                let body = response.body().as_deref().unwrap_or_default();
                Err(DialError::Refused(Refusal::read(response.status(), body, credential.secret())))
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => causes(&error),
                    _ => format!("no socket within {} ms", self.connect.as_millis()),
                };
                Err(if reached.load(Ordering::Relaxed) { DialError::Unanswered(why) } else { DialError::Failed(why) })
            }
        }
    }
}

/// Opens the connection below.
async fn tcp(uri: &Uri) -> Result<TcpStream, tungstenite::Error> {
    let host = uri.host().ok_or(tungstenite::error::UrlError::NoHostName)?;
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("wss") { 443 } else { 80 });
    // An IPv6 address stands in brackets in a URL, and nowhere else.
    let stream = TcpStream::connect((host.trim_start_matches('[').trim_end_matches(']'), port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl DialError {
    /// The status of a refusal.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(refusal) => Some(refusal.status),
            Self::Failed(_) | Self::Unanswered(_) => None,
        }
    }

    /// Whether the server may hold the socket for open.
    pub(crate) fn may_be_open(&self) -> bool {
        matches!(self, Self::Unanswered(_))
    }
}

/// The WebSocket itself.
pub(crate) type Stream = WebSocketStream<MaybeTlsStream<Heard<TcpStream>>>;

/// An open socket.
pub(crate) struct Socket {
    stream: Stream,
    write: Duration,
    liveness: Duration,
    heard: LastHeard,
    /// Rings at the earliest moment at which the socket could count as dead.
    watch: std::pin::Pin<Box<tokio::time::Sleep>>,
}

/// What came in.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// One message. One that is no UTF-8 is empty here: there is no text to hand on, and it still counts.
    Frame(Text),
    /// The server closed in good order.
    Closed {
        /// 1005 if it gave no code.
        code: u16,
        /// For logs; the server's words.
        reason: String,
    },
    /// The connection is of no use any more. Invalid UTF-8 in a text message ends here, too (decision 17).
    Broken(String),
}

impl Incoming {
    /// Whether the server said that it was done.
    pub(crate) fn is_normal_close(&self) -> bool {
        matches!(self, Self::Closed { code: 1000, .. })
    }
}

/// For logs and sentences.
impl std::fmt::Display for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frame(_) => f.write_str("a frame"),
            Self::Closed { code, reason } if reason.is_empty() => write!(f, "the server closed with {code}"),
            Self::Closed { code, reason } => write!(f, "the server closed with {code} {reason:?}"),
            Self::Broken(why) => write!(f, "the connection broke: {why}"),
        }
    }
}

impl Socket {
    /// The next frame, or the end. May be dropped half-way without losing anything.
    pub(crate) async fn receive(&mut self) -> Incoming {
        loop {
            tokio::select! {
                biased;
                message = self.stream.next() => {
                    if let Some(incoming) = read(message) {
                        return incoming;
                    }
                }
                () = &mut self.watch => {
                    let due = self.heard.at() + self.liveness;
                    if due <= Instant::now() {
                        return Incoming::Broken(format!("not a byte came for {} ms", self.liveness.as_millis()));
                    }
                    self.watch.as_mut().reset(due);
                }
            }
        }
    }

    /// What has come already.
    pub(crate) fn received(&mut self) -> Option<Incoming> {
        self.receive().now_or_never()
    }

    /// Sends everything that waits: flushed once, however much it is (dependencies: a flush costs ten times a message).
    pub(crate) async fn send(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        if outbox.is_empty() {
            return Ok(());
        }
        let stream = &mut self.stream;
        let sent = async {
            while let Some(text) = outbox.first() {
                // Text is UTF-8 already, so that this cannot fail.
                let text = Utf8Bytes::try_from(text.into_bytes()).map_err(|error| error.to_string())?;
                stream.feed(Message::Text(text)).await.map_err(|error| causes(&error))?;
                outbox.sent(Instant::now());
            }
            stream.flush().await.map_err(|error| causes(&error))
        };
        let stuck = |_| format!("the server did not read for {} ms", self.write.as_millis());
        timeout(self.write, sent).await.map_err(stuck)?
    }

    /// The WebSocket, and when something last came on it, for whoever reads and writes at the same time.
    pub(crate) fn into_parts(self) -> (Stream, LastHeard) {
        (self.stream, self.heard)
    }

    /// Closes in good order: says so, and gives the server a moment to say it, too.
    pub(crate) async fn close(mut self) {
        let close = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        let closed = async {
            if self.stream.send(Message::Close(Some(close))).await.is_ok() {
                while let Some(Ok(_)) = self.stream.next().await {}
            }
        };
        let _ = timeout(self.write.min(LONGEST_CLOSE), closed).await;
    }
}

/// What a message is to the link; `None` for pings and pongs. Pongs are sent by the library, with the next read.
fn read(message: Option<Result<Message, tungstenite::Error>>) -> Option<Incoming> {
    match message {
        Some(Ok(Message::Text(text))) => Some(Incoming::Frame(text_of(Bytes::from(text)))),
        Some(Ok(Message::Binary(bytes))) => Some(Incoming::Frame(text_of(bytes))),
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => None,
        Some(Ok(Message::Close(Some(close)))) => Some(Incoming::Closed { code: close.code.into(), reason: close.reason.to_string() }),
        Some(Ok(Message::Close(None))) => Some(Incoming::Closed { code: 1005, reason: String::new() }),
        Some(Err(error)) => Some(Incoming::Broken(causes(&error))),
        None => Some(Incoming::Broken("the server ended the connection".to_owned())),
    }
}

pub(crate) fn text_of(bytes: Bytes) -> Text {
    Text::try_from(bytes).unwrap_or_default()
}
