//! The WebSocket end: the upgrade, and the pump between a socket, its feed and what the client says.
//!
//! The upgrade is made by hand, because the framework's own would bring a second WebSocket library (dependencies.md §1.3). Pings,
//! deadlines and limits are those of native-ws.md §3.2. A socket has no queue: its feed is a position, so a client that does not read
//! holds up its own task and nothing else, until it has read nothing for too long. Nor do pongs and replies queue for it: it is not read, either.
//! Long messages go out in fragments, each made when there is room for it: the library would hold the whole of one for each socket, and ever after.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use interline_hub::{Denied, Leave, Session, Visit};
use interline_model::Text;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use super::Shell;
use super::feed::{Feed, Step};
use super::inbound::{Inbound, Plane};
use super::paced::{Freed, Paced};
use crate::Config;

pub(super) type Socket = WebSocketStream<Paced<TokioIo<Upgraded>>>;

/// Replies that may wait for the socket. Each may be about as long as the longest message of the client.
const REPLIES: usize = 2;

/// Small, because most sockets are idle (dependencies.md §1.3).
const READ_BUFFER: usize = 8 * 1024;

/// Bytes gathered into one write.
const WRITE_BUFFER: usize = 16 * 1024;

/// Bytes that are read, beside the largest message, while the client does not read.
const READ_AHEAD: usize = 16 * 1024;

/// A piece of a long message is no shorter.
const LEAST_PIECE: usize = 4 * 1024;

/// The connection behind an upgrade, once it is made; `None` if it is not.
pub(super) type Upgrading = Pin<Box<dyn Future<Output = Option<TokioIo<Upgraded>>> + Send>>;

/// A request that asks for a WebSocket.
pub(super) struct Handshake {
    accept: HeaderValue,
    upgrade: OnUpgrade,
}

impl Handshake {
    /// The handshake of a request, if it is one.
    pub(super) fn of(request: &mut Request) -> Option<Self> {
        let accept = HeaderValue::from_str(&accept_key(request.headers())?).ok()?;
        Some(Self { accept, upgrade: hyper::upgrade::on(request) })
    }

    /// Answers 101 and serves the socket in a task of its own. `failed` is called if it does not come about, or ends before anything was sent on it.
    pub(super) fn accept(
        self,
        shell: Arc<Shell>,
        visit: Visit,
        feed: Feed,
        inbound: Inbound,
        failed: impl FnOnce(&Shell) + Send + 'static,
    ) -> Response {
        self.answer(|upgraded| async move {
            let sent = match upgraded.await {
                Some(io) => serve(&shell, io, visit, feed, inbound).await,
                None => false,
            };
            if !sent {
                failed(&shell);
            }
        })
    }

    /// Answers 101, and does `work` in a task of its own with what becomes of the connection: nothing, if the upgrade fails.
    pub(super) fn answer<F>(self, work: impl FnOnce(Upgrading) -> F) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let upgrade = self.upgrade;
        tokio::spawn(work(Box::pin(async move {
            match upgrade.await {
                Ok(upgraded) => Some(TokioIo::new(upgraded)),
                Err(error) => {
                    tracing::debug!(%error, "a WebSocket did not come about");
                    None
                }
            }
        })));
        let mut response = Response::default();
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        // No subprotocol, whatever the client offers (native-ws.md §3.1).
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        response
    }
}

fn accept_key(headers: &HeaderMap) -> Option<String> {
    let lists = |name: HeaderName, token: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?.as_bytes();
    let is_nonce = STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16);
    let is_handshake = lists(header::CONNECTION, "upgrade")
        && lists(header::UPGRADE, "websocket")
        && headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    (is_nonce && is_handshake).then(|| derive_accept_key(key))
}

/// The settings of one socket.
struct Limits {
    message: usize,
    piece: usize,
    ping: Duration,
    pong: Duration,
    close: Duration,
}

/// Why a pump stopped.
enum Exit {
    /// The client closed, or the connection broke.
    Gone,
    /// The client is not there any more, or does not read: no close frame would reach it.
    Cut,
    /// We close, with this code and reason.
    Close(CloseCode, &'static str),
    /// We close because of what the client sent, and some of that may still be unread.
    Refuse(CloseCode),
}

/// Serves a socket to its end; whether any frame was sent on it.
async fn serve(shell: &Shell, io: TokioIo<Upgraded>, mut visit: Visit, feed: Feed, inbound: Inbound) -> bool {
    let config = &shell.config;
    let limits = Limits {
        message: if inbound.plane == Plane::Cloud { config.max_cloud_message } else { config.max_bridge_message },
        piece: piece(config),
        ping: config.ping_interval(),
        pong: config.pong_timeout(),
        close: config.close_timeout(),
    };
    let socket = open(io, limits.message, config).await;
    let freed = socket.get_ref().freed();
    let (mut sink, mut stream) = socket.split();
    let (replies, waiting) = mpsc::channel(REPLIES);
    let sent = AtomicBool::new(false);
    let turn = shell.hub.closing().turn();
    let finish = CancellationToken::new();
    let exit = tokio::select! {
        exit = read(&mut stream, &limits, &freed, &inbound, &replies) => exit,
        exit = write(&mut sink, &limits, feed, waiting, &finish, &sent) => exit,
        denied = leave(&mut visit, &inbound.session, &finish) => Exit::Close(CloseCode::Policy, farewell(denied)),
        () = turn.comes() => Exit::Close(CloseCode::Away, "shutting down"),
    };
    match exit {
        Exit::Gone | Exit::Cut => {}
        Exit::Close(code, reason) => {
            if close(&mut sink, &limits, code, reason).await {
                let rest = async { while let Some(Ok(_)) = stream.next().await {} };
                let _ = time::timeout(limits.close, rest).await;
            }
        }
        Exit::Refuse(code) => {
            if close(&mut sink, &limits, code, "").await
                && let Ok(mut socket) = sink.reunite(stream)
            {
                // Unread bytes would turn the end into a reset, which could overtake the close frame.
                let raw = socket.get_mut();
                let mut scrap = [0; 4096];
                let rest = async { while raw.read(&mut scrap).await.is_ok_and(|read| read > 0) {} };
                let _ = time::timeout(limits.close, rest).await;
            }
        }
    }
    sent.into_inner()
}

/// Waits until the client has to go. One that may finish is told through `finish` once no run goes on: then it gets what there is and is closed.
async fn leave(visit: &mut Visit, session: &Session, finish: &CancellationToken) -> Denied {
    if let Leave::Now(denied) = visit.leave().await {
        return denied;
    }
    let done = async {
        session.rest().await;
        finish.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = done => Denied::Expired,
        leave = visit.leave() => if let Leave::Now(denied) = leave { denied } else { Denied::Expired },
    }
}

/// A close reason has 123 bytes at most, so these are short.
fn farewell(denied: Denied) -> &'static str {
    match denied {
        Denied::Expired => "the token has expired: come with a new one",
        _ => "the token is not known any more",
    }
}

/// The server's side of a WebSocket.
pub(super) async fn open(io: TokioIo<Upgraded>, max_message: usize, config: &Config) -> Socket {
    let max_ahead = max_message.saturating_add(READ_AHEAD);
    let settings = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER.min(piece(config)))
        // What is ours, and a pong for all that may be read meanwhile.
        .max_write_buffer_size(WRITE_BUFFER.saturating_add(2 * piece(config)).saturating_add(max_ahead))
        .max_message_size(Some(max_message))
        .max_frame_size(Some(max_message));
    let io = Paced::new(io, max_ahead, config.write_timeout());
    WebSocketStream::from_raw_socket(io, Role::Server, Some(settings)).await
}

/// The longest piece of a message that is written at a time: while it waits, another one can be held.
pub(super) fn piece(config: &Config) -> usize {
    (config.max_write_buffer / 2).max(LEAST_PIECE)
}

async fn close(sink: &mut SplitSink<Socket, Message>, limits: &Limits, code: CloseCode, reason: &'static str) -> bool {
    let frame = Message::Close(Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) }));
    matches!(time::timeout(limits.close, sink.send(frame)).await, Ok(Ok(())))
}

/// Hears the client until it is gone.
async fn read(stream: &mut SplitStream<Socket>, limits: &Limits, freed: &Freed, inbound: &Inbound, replies: &mpsc::Sender<Text>) -> Exit {
    // Only a pong moves it; data does not (native-ws.md §3.2). But a ping comes behind what waits before it: whoever reads that is there.
    let mut deadline = time::Instant::now() + limits.pong;
    loop {
        let message = match time::timeout_at(deadline, stream.next()).await {
            Err(_) => match freed.at().map(|freed| freed + limits.pong).filter(|later| *later > deadline) {
                Some(later) => {
                    deadline = later;
                    continue;
                }
                None => return Exit::Cut,
            },
            Ok(None) => return Exit::Gone,
            Ok(Some(message)) => message,
        };
        match message {
            Ok(Message::Pong(_)) => deadline = time::Instant::now() + limits.pong,
            Ok(Message::Text(text)) => {
                if let Err(denied) = inbound.hear(&text, replies).await {
                    return Exit::Close(CloseCode::Policy, farewell(denied));
                }
            }
            // The opcode does not matter (native-ws.md §1.1).
            Ok(Message::Binary(bytes)) => {
                if let Err(denied) = inbound.hear(&String::from_utf8_lossy(&bytes), replies).await {
                    return Exit::Close(CloseCode::Policy, farewell(denied));
                }
            }
            Ok(_) => {}
            Err(Error::Capacity(_)) => return Exit::Refuse(CloseCode::Size),
            Err(Error::Utf8(_)) => return Exit::Refuse(CloseCode::Invalid),
            Err(Error::Protocol(_)) => return Exit::Refuse(CloseCode::Protocol),
            Err(_) => return Exit::Gone,
        }
    }
}

/// Sends the feed, the replies and the pings until the feed closes.
async fn write(
    sink: &mut SplitSink<Socket, Message>,
    limits: &Limits,
    mut feed: Feed,
    mut replies: mpsc::Receiver<Text>,
    finish: &CancellationToken,
    sent: &AtomicBool,
) -> Exit {
    let mut pings = time::interval_at(time::Instant::now() + limits.ping, limits.ping);
    pings.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        let mut messages = Vec::new();
        let step = tokio::select! {
            biased;
            Some(reply) = replies.recv() => {
                messages.extend(message(reply));
                Step::Send(Vec::new())
            }
            _ = pings.tick() => {
                messages.push(Message::Ping(Bytes::new()));
                Step::Send(Vec::new())
            }
            step = feed.next() => step,
            () = finish.cancelled() => Step::Close(CloseCode::Policy.into(), farewell(Denied::Expired)),
        };
        // A reply that was given before a frame came into being goes before it.
        while let Ok(reply) = replies.try_recv() {
            messages.extend(message(reply));
        }
        let mut sends_frames = false;
        let close = match step {
            Step::Send(texts) => {
                sends_frames = !texts.is_empty();
                messages.extend(texts.into_iter().filter_map(message));
                None
            }
            Step::Close(code, reason) => Some(Exit::Close(CloseCode::from(code), reason)),
        };
        if let Err(exit) = send(sink, limits, messages).await {
            return exit;
        }
        if sends_frames {
            sent.store(true, Ordering::Relaxed);
        }
        if let Some(close) = close {
            return close;
        }
    }
}

fn message(text: Text) -> Option<Message> {
    // Never fails, since a text is UTF-8; the library must see for itself.
    Utf8Bytes::try_from(text.into_bytes()).map(Message::Text).ok()
}

/// Feeds all and flushes. A client that takes nothing for too long fails the write.
async fn send(sink: &mut SplitSink<Socket, Message>, limits: &Limits, messages: Vec<Message>) -> Result<(), Exit> {
    let all = async {
        for message in messages {
            feed(sink, message, limits.piece).await?;
        }
        sink.flush().await
    };
    // Its end, too: nobody is there who could take a close frame.
    all.await.map_err(|_: Error| Exit::Gone)
}

/// Feeds a message, a long one in fragments (RFC 6455 §5.4) of at most `piece` bytes.
pub(super) async fn feed(sink: &mut SplitSink<Socket, Message>, message: Message, piece: usize) -> Result<(), Error> {
    let (mut kind, mut rest) = match message {
        Message::Text(text) if text.len() > piece => (Data::Text, Bytes::from(text)),
        Message::Binary(bytes) if bytes.len() > piece => (Data::Binary, bytes),
        short => return sink.feed(short).await,
    };
    while rest.len() > piece {
        let cut = fragment(&rest, piece, kind == Data::Binary);
        sink.feed(Message::Frame(Frame::message(rest.split_to(cut), OpCode::Data(kind), false))).await?;
        kind = Data::Continue;
    }
    sink.feed(Message::Frame(Frame::message(rest, OpCode::Data(kind), true))).await
}

/// Where to cut: not in the middle of a character, since not every client knows that it may be.
fn fragment(bytes: &[u8], piece: usize, is_binary: bool) -> usize {
    let is_boundary = |at: usize| bytes.get(at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (piece.saturating_sub(3)..=piece).rev().find(|at| is_binary || is_boundary(*at)).unwrap_or(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_cut() {
        let text = "aé€😀".repeat(3);
        for piece in 4..text.len() {
            let cut = fragment(text.as_bytes(), piece, false);
            assert!(text.is_char_boundary(cut) && cut <= piece && cut + 3 >= piece, "{piece}: {cut}");
            assert_eq!(fragment(text.as_bytes(), piece, true), piece);
        }
    }
}
