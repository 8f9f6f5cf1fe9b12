//! The coding channel, `/v1/code/ws` (native-ws.md §5.5): passed through to the upstream and back, message by message, unread.
//!
//! It is off by default. Whoever has it has a terminal on the machine of the bridge, beside all policies about the tools of agents.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use interline_hub::{Channel, ChannelMessage, Leave, Visit};
use interline_model::{CellName, Text};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message, Utf8Bytes};

use super::bridge::BridgeError;
use super::socket::{Handshake, Socket, feed, open, piece};
use super::{Caller, NAME, Shell, query, replies};

/// `GET /v1/code/ws`, with `?cell=` where the client's default cell is not meant.
pub(super) async fn channel(State(shell): State<Arc<Shell>>, request: Request) -> Response {
    try_channel(shell, request).await.unwrap_or_else(Response::from)
}

async fn try_channel(shell: Arc<Shell>, mut request: Request) -> Result<Response, BridgeError> {
    let access = shell.admit(&Caller::of(&request))?;
    if !shell.config.coding_channel {
        let text =
            "the coding channel is switched off: it is a terminal on the machine of the agent server; see `coding_channel` of [native]";
        return Err(BridgeError::new(StatusCode::NOT_IMPLEMENTED, text));
    }
    let cell = query(request.uri(), "cell").filter(|cell| !cell.is_empty()).map(CellName::from);
    let Some(handshake) = Handshake::of(&mut request) else {
        return Ok(replies::plain(StatusCode::BAD_REQUEST, "Bad Request\n"));
    };
    let visit = shell.hub.visit(NAME, &access)?;
    // Before the upgrade, so that a refusal is an answer and not a close.
    let channel = shell.hub.coding_channel(&access, cell)?.await?;
    tracing::info!(target: "interline::audit", principal = %access.principal(), "a coding channel was opened");
    Ok(handshake.answer(|upgrading| async move {
        if let Some(io) = upgrading.await {
            let socket = open(io, shell.config.max_bridge_message, &shell.config).await;
            pump(&shell, visit, socket, channel).await;
        }
    }))
}

/// Carries messages both ways until one side ends. Neither is read faster than the other takes.
async fn pump(shell: &Shell, mut visit: Visit, socket: Socket, channel: Channel) {
    let (mut sink, mut stream) = socket.split();
    let Channel { to, from } = channel;
    let turn = shell.hub.closing().turn();
    let last = tokio::select! {
        last = upward(shell, &mut stream, &to) => last,
        last = downward(shell, &mut sink, from) => last,
        () = turn.comes() => Some((CloseCode::Away, "shutting down".to_owned())),
        // It is no run that could be shown to its end.
        leave = visit.leave() => Some((CloseCode::Policy, match leave {
            Leave::WhenDone => interline_hub::Denied::Expired.to_string(),
            Leave::Now(denied) => denied.to_string(),
        })),
    };
    if let Some((code, reason)) = last {
        let close = Message::Close(Some(CloseFrame { code, reason: Utf8Bytes::from(reason) }));
        let rest = async {
            if sink.send(close).await.is_ok() {
                while let Some(Ok(_)) = stream.next().await {}
                // Unread bytes would turn the end into a reset, which could overtake the close frame.
                if let Ok(mut socket) = sink.reunite(stream) {
                    let mut scrap = [0; 4096];
                    while socket.get_mut().read(&mut scrap).await.is_ok_and(|read| read > 0) {}
                }
            }
        };
        let _ = time::timeout(shell.config.close_timeout(), rest).await;
    }
}

/// How our side ends; `None` if the client is gone.
type Last = Option<(CloseCode, String)>;

async fn upward(shell: &Shell, stream: &mut SplitStream<Socket>, to: &mpsc::Sender<ChannelMessage>) -> Last {
    let mut deadline = time::Instant::now() + shell.config.pong_timeout();
    loop {
        let message = match time::timeout_at(deadline, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(Error::Capacity(_)))) => return Some((CloseCode::Size, String::new())),
            Ok(Some(Err(Error::Utf8(_)))) => return Some((CloseCode::Invalid, String::new())),
            Ok(Some(Err(Error::Protocol(_)))) => return Some((CloseCode::Protocol, String::new())),
            Ok(Some(Err(_)) | None) | Err(_) => return None,
        };
        let message = match message {
            // Nothing on this channel says anything while nobody types, so that only pongs tell.
            Message::Pong(_) => {
                deadline = time::Instant::now() + shell.config.pong_timeout();
                continue;
            }
            Message::Text(text) => match Text::try_from(Bytes::from(text)) {
                Ok(text) => ChannelMessage::Text(text),
                Err(_) => continue,
            },
            Message::Binary(bytes) => ChannelMessage::Binary(bytes),
            Message::Close(close) => {
                let (code, reason) = close.map_or((1005, String::new()), |close| (close.code.into(), close.reason.to_string()));
                let _ = to.send(ChannelMessage::Close { code, reason }).await;
                return None;
            }
            Message::Ping(_) | Message::Frame(_) => continue,
        };
        if to.send(message).await.is_err() {
            // The other direction says how it ended.
            std::future::pending::<()>().await;
        }
        // While the upstream did not take it, the client could not be heard.
        deadline = deadline.max(time::Instant::now() + shell.config.ping_interval());
    }
}

async fn downward(shell: &Shell, sink: &mut SplitSink<Socket, Message>, mut from: mpsc::Receiver<ChannelMessage>) -> Last {
    let mut pings = time::interval_at(time::Instant::now() + shell.config.ping_interval(), shell.config.ping_interval());
    pings.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            _ = pings.tick() => Message::Ping(Bytes::new()),
            message = from.recv() => match message {
                Some(ChannelMessage::Text(text)) => match Utf8Bytes::try_from(text.into_bytes()) {
                    Ok(text) => Message::Text(text),
                    Err(_) => continue,
                },
                Some(ChannelMessage::Binary(bytes)) => Message::Binary(bytes),
                Some(ChannelMessage::Close { code, reason }) => return Some((sayable(code), reason)),
                None => return Some((CloseCode::Error, "the agent server is gone".to_owned())),
            },
        };
        if feed(sink, message, piece(&shell.config)).await.is_err() || sink.flush().await.is_err() {
            return None;
        }
    }
}

/// A close code as it may be sent: those that only tell of a connection without one may not (RFC 6455 §7.4).
fn sayable(code: u16) -> CloseCode {
    match code {
        1004..=1006 | 1015 => CloseCode::Normal,
        code => CloseCode::from(code),
    }
}
