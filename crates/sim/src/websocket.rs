//! The WebSocket end of both servers: the upgrade, and the pump that joins a socket to its source of frames.
//!
//! The upgrade is made by hand, since the framework's own would bring a second WebSocket library. Pings, the pong deadline, the
//! write deadline and the limit on inbound messages are those of native-ws.md §3.2.

use std::{future::Future, ops::ControlFlow, sync::Arc, time::Duration};

use axum::{body::Body, extract::Request, response::Response};
use base64::Engine;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream::SplitSink, stream::SplitStream};
use http::{HeaderMap, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncReadExt, sync::mpsc, time};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        handshake::derive_accept_key,
        protocol::{
            CloseFrame, Role, WebSocketConfig,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};
use tokio_util::sync::CancellationToken;

use crate::{options::Options, replies, state::State, stats::Plane};

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// Something a socket has to do, in the order of its stream.
#[derive(Clone, Debug)]
pub(crate) enum Delivery {
    /// One text message.
    Text(Utf8Bytes),
    /// One text message in several WebSocket frames, cut anywhere.
    Fragments(Arc<[Bytes]>),
    /// Cut the connection, without a close frame.
    Drop,
    /// Close in good order.
    Close(u16, &'static str),
}

impl Delivery {
    pub(crate) fn text(frame: impl Into<Utf8Bytes>) -> Self {
        Self::Text(frame.into())
    }
}

/// Where a socket's frames come from.
pub(crate) trait Source: Send + 'static {
    /// Waits until there may be something to take. May be dropped half-way without losing anything.
    fn ready(&mut self) -> impl Future<Output = ()> + Send;
    /// The next thing to do, if it is there.
    fn take(&mut self) -> Option<Delivery>;
}

/// Replies to the one socket that asked, ahead of the source's frames.
pub(crate) type Replies = mpsc::UnboundedSender<Utf8Bytes>;

/// The settings of one socket.
pub(crate) struct Limits {
    /// Largest inbound message; the cloud has a limit, the bridge has none.
    pub(crate) inbound: Option<usize>,
    pub(crate) ping: Duration,
    pub(crate) pong: Duration,
    pub(crate) write: Duration,
}

impl Limits {
    pub(crate) const fn new(options: &Options, inbound: Option<usize>) -> Self {
        Self { inbound, ping: options.ping_interval, pong: options.pong_timeout, write: options.write_timeout }
    }
}

/// Answers an upgrade request with 101 and pumps the socket, or with the servers' 400 for anything else.
///
/// `entered` runs once the socket is open; what it returns is dropped when the socket is gone.
pub(crate) fn upgrade<S, G>(
    state: Arc<State>,
    plane: Plane,
    mut request: Request,
    limits: Limits,
    source: S,
    entered: impl FnOnce() -> G + Send + 'static,
    mut inbound: impl FnMut(&str, &Replies) + Send + 'static,
) -> Response
where
    S: Source,
    G: Send + 'static,
{
    let Some(accept) = accept_key(request.headers()) else {
        return replies::plain(StatusCode::BAD_REQUEST, "Bad Request\n");
    };
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrading.await else { return };
        let config = WebSocketConfig::default()
            .read_buffer_size(8 * 1024)
            .write_buffer_size(32 * 1024)
            .max_write_buffer_size(64 * 1024 * 1024)
            .max_message_size(limits.inbound)
            .max_frame_size(limits.inbound);
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        state.counters.count(|stats| {
            stats.sockets += 1;
            stats.open_sockets += 1;
        });
        tracing::debug!(?plane, "socket opened");
        let guard = entered();
        pump(socket, limits, source, &mut inbound, &state.stop).await;
        drop(guard);
        state.counters.count(|stats| stats.open_sockets -= 1);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, http::HeaderValue::from_static("websocket"));
    if let Ok(accept) = accept.parse() {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// The accept key, if these are the headers of a WebSocket handshake.
fn accept_key(headers: &HeaderMap) -> Option<String> {
    let has_token = |name: header::HeaderName, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|part| part.trim().eq_ignore_ascii_case(token))
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?;
    let nonce = base64::engine::general_purpose::STANDARD.decode(key).ok()?;
    (nonce.len() == 16
        && has_token(header::CONNECTION, "upgrade")
        && has_token(header::UPGRADE, "websocket")
        && headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13"))
    .then(|| derive_accept_key(key.as_bytes()))
}

/// Why a pump stopped.
enum Exit {
    /// The peer closed, or the connection broke.
    Gone,
    /// We cut the connection.
    Cut,
    /// We sent a close frame.
    Closed,
    /// The peer sent more than is allowed in one message.
    TooBig,
}

async fn pump(
    socket: Socket,
    limits: Limits,
    source: impl Source,
    inbound: &mut (impl FnMut(&str, &Replies) + Send),
    stop: &CancellationToken,
) {
    let (mut sink, mut stream) = socket.split();
    let (replies, waiting) = mpsc::unbounded_channel();
    let exit = tokio::select! {
        exit = read(&mut stream, limits.pong, inbound, &replies) => exit,
        exit = write(&mut sink, &limits, source, waiting) => exit,
        () = stop.cancelled() => Exit::Cut,
    };
    match exit {
        Exit::Gone | Exit::Cut => {}
        // The close is complete once the peer has answered it.
        Exit::Closed => {
            let rest = async { while let Some(Ok(_)) = stream.next().await {} };
            let _ = time::timeout(Duration::from_secs(1), rest).await;
        }
        Exit::TooBig => {
            let _ = time::timeout(limits.write, close(&mut sink, CloseCode::Size, "")).await;
            if let Ok(mut socket) = sink.reunite(stream) {
                // Closing with unread bytes would reset the connection and could take the close frame with it.
                let raw = socket.get_mut();
                let mut scrap = [0; 4096];
                let rest = async { while raw.read(&mut scrap).await.is_ok_and(|n| n > 0) {} };
                let _ = time::timeout(Duration::from_secs(1), rest).await;
            }
        }
    }
}

async fn read(
    stream: &mut SplitStream<Socket>,
    pong: Duration,
    inbound: &mut (impl FnMut(&str, &Replies) + Send),
    replies: &Replies,
) -> Exit {
    // §3.2: only a pong moves the deadline, data does not.
    let mut deadline = time::Instant::now() + pong;
    loop {
        match time::timeout_at(deadline, stream.next()).await {
            Err(_) => return Exit::Cut,
            Ok(Some(Ok(Message::Pong(_)))) => deadline = time::Instant::now() + pong,
            Ok(Some(Ok(Message::Text(text)))) => inbound(&text, replies),
            // §1.1: the servers do not look at the opcode.
            Ok(Some(Ok(Message::Binary(bytes)))) => inbound(&String::from_utf8_lossy(&bytes), replies),
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(tungstenite::Error::Capacity(_)))) => return Exit::TooBig,
            Ok(None | Some(Err(_))) => return Exit::Gone,
        }
    }
}

async fn write(
    sink: &mut SplitSink<Socket, Message>,
    limits: &Limits,
    mut source: impl Source,
    mut replies: mpsc::UnboundedReceiver<Utf8Bytes>,
) -> Exit {
    let mut pings = time::interval_at(time::Instant::now() + limits.ping, limits.ping);
    pings.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        let first = tokio::select! {
            biased;
            Some(reply) = replies.recv() => Some(Message::Text(reply)),
            _ = pings.tick() => Some(Message::Ping(Bytes::new())),
            () = source.ready() => None,
        };
        let burst = send_burst(sink, first, &mut source, &mut replies);
        match time::timeout(limits.write, burst).await {
            Ok(Ok(ControlFlow::Continue(()))) => {}
            Ok(Ok(ControlFlow::Break(exit))) => return exit,
            Ok(Err(_)) => return Exit::Gone,
            Err(_) => return Exit::Cut,
        }
    }
}

/// How many messages are written before the socket is flushed and the timers get their turn.
const BURST: usize = 256;

/// And how many bytes: the write deadline is for a burst, so a burst must be small enough for a slow reader.
const BURST_BYTES: usize = 256 * 1024;

async fn send_burst(
    sink: &mut SplitSink<Socket, Message>,
    first: Option<Message>,
    source: &mut impl Source,
    replies: &mut mpsc::UnboundedReceiver<Utf8Bytes>,
) -> Result<ControlFlow<Exit>, tungstenite::Error> {
    if let Some(first) = first {
        sink.feed(first).await?;
    }
    let mut written = 0;
    for _ in 0..BURST {
        if written > BURST_BYTES {
            break;
        }
        // A reply that was given before a frame was made must not come after it.
        while let Ok(reply) = replies.try_recv() {
            sink.feed(Message::Text(reply)).await?;
        }
        match source.take() {
            None => break,
            Some(Delivery::Text(text)) => {
                written += text.len();
                sink.feed(Message::Text(text)).await?;
            }
            Some(Delivery::Fragments(parts)) => feed_fragments(sink, &parts).await?,
            Some(Delivery::Drop) => {
                sink.flush().await?;
                return Ok(ControlFlow::Break(Exit::Cut));
            }
            Some(Delivery::Close(code, reason)) => {
                while let Ok(reply) = replies.try_recv() {
                    sink.feed(Message::Text(reply)).await?;
                }
                close(sink, CloseCode::from(code), reason).await?;
                return Ok(ControlFlow::Break(Exit::Closed));
            }
        }
    }
    sink.flush().await?;
    Ok(ControlFlow::Continue(()))
}

async fn feed_fragments(sink: &mut SplitSink<Socket, Message>, parts: &[Bytes]) -> Result<(), tungstenite::Error> {
    for (i, part) in parts.iter().enumerate() {
        let opcode = if i == 0 { Data::Text } else { Data::Continue };
        let frame = Frame::message(part.clone(), OpCode::Data(opcode), i + 1 == parts.len());
        sink.feed(Message::Frame(frame)).await?;
    }
    Ok(())
}

async fn close(sink: &mut SplitSink<Socket, Message>, code: CloseCode, reason: &'static str) -> Result<(), tungstenite::Error> {
    sink.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await
}
