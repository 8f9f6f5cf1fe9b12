//! The coding channel of a bridge: one WebSocket to `/v1/code/ws` for each client, whose messages go both ways as they are
//! (native-ws.md §5.5). It belongs to no session, keeps nothing, and is not restored: nothing of it could be had again.
//!
//! Who does not read holds up who writes. Towards the client small messages are many and large ones few: one of more than its share of
//! `link.max_message_bytes` waits until all before it are gone, so that never more than twice that waits, whatever comes. Meanwhile nothing is
//! read from the server, not even pings: a pong that nobody asked for tells it now and then that we are there (RFC 6455 §5.5.3), since it
//! goes by pongs alone (§3.2).

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use interline_hub::{ActionError, Channel, ChannelMessage, RunCredential};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Bytes, Message, Utf8Bytes};

use crate::heard::LastHeard;
use crate::http::causes;
use crate::refusal::{beforehand, unreachable};
use crate::server::Server;
use crate::socket::{Credential, DialError, LONGEST_CLOSE, Socket, Stream, text_of};

/// Messages that wait for the client.
const TO_CLIENT: usize = 64;

/// Messages that wait for the server. Each is as large as the surface lets clients send.
const TO_SERVER: usize = 8;

/// Messages written before they are flushed.
const BURST: usize = 64;

/// The longest reason of a close, in bytes (RFC 6455 §5.5).
const LONGEST_REASON: usize = 123;

/// A close without a code (RFC 6455 §7.4.1): said between us, never on the wire.
const NO_CODE: u16 = 1005;

/// Opens a channel for one client.
pub(crate) async fn open(server: Arc<Server>, credential: &RunCredential) -> Result<Channel, ActionError> {
    let bearer = server.credential(credential);
    let failed = |why: &dyn std::fmt::Display| beforehand(unreachable(server.name(), &server.origin, why));
    let uri = server.origin.websocket("/v1/code/ws", &[]).map_err(|error| failed(&error))?;
    let socket = match server.dialer.dial(uri, Credential::Bearer(bearer.as_ref())).await {
        Ok(socket) => socket,
        Err(DialError::Refused(refusal)) => return Err(refusal.into_action_error()),
        Err(DialError::Failed(why) | DialError::Unanswered(why)) => return Err(failed(&why)),
    };
    let (to, from_client) = mpsc::channel(TO_SERVER);
    let (to_client, from) = mpsc::channel(TO_CLIENT);
    tokio::spawn(async move {
        let limits = Limits {
            liveness: server.link.liveness(),
            write: server.link.write_timeout(),
            share: server.link.max_message_bytes / TO_CLIENT,
            outbound: server.link.bridge_max_outbound,
        };
        let end = carry(socket, &limits, from_client, &to_client).await;
        tracing::debug!(upstream = server.name(), %end, "a coding channel ended");
    });
    Ok(Channel { to, from })
}

struct Limits {
    liveness: Duration,
    write: Duration,
    /// A message larger than this waits for all others before it.
    share: usize,
    outbound: usize,
}

/// How a channel ended.
enum End {
    /// The server closed.
    Server { code: u16, reason: String },
    /// Something is wrong with the connection, or with a message: what the client is told.
    Broken { code: CloseCode, why: String },
    /// The client closed, or is gone.
    Client(Option<CloseFrame>),
}

/// For logs.
impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server { code, .. } => write!(f, "the server closed it with {code}"),
            Self::Broken { why, .. } => f.write_str(why),
            Self::Client(_) => f.write_str("the client closed it"),
        }
    }
}

/// Carries messages both ways until one side is done, and tells the other.
async fn carry(
    socket: Socket,
    limits: &Limits,
    mut from_client: mpsc::Receiver<ChannelMessage>,
    to_client: &mpsc::Sender<ChannelMessage>,
) -> End {
    let closing = limits.write.min(LONGEST_CLOSE);
    let (stream, heard) = socket.into_parts();
    let (mut sink, mut stream) = stream.split();
    let end = {
        let down = down(&mut stream, &heard, limits, to_client);
        let up = up(&mut sink, limits, &mut from_client);
        tokio::pin!(down, up);
        tokio::select! {
            biased;
            // What the client said before it went, its close above all, is still said.
            () = to_client.closed() => timeout(closing, up).await.unwrap_or(End::Client(None)),
            end = &mut down => end,
            end = &mut up => match end {
                // What the server said before may still be there to be read, its close above all.
                End::Broken { code, why } => timeout(limits.write, down).await.unwrap_or(End::Broken { code, why }),
                end => end,
            },
        }
    };
    let told = match &end {
        End::Server { code, reason } => {
            // The reply to the close is written already, and goes out now.
            let _ = timeout(closing, sink.close()).await;
            ChannelMessage::Close { code: *code, reason: reason.clone() }
        }
        End::Broken { code, why } => {
            let close = CloseFrame { code: *code, reason: Utf8Bytes::default() };
            let _ = timeout(closing, sink.send(Message::Close(Some(close)))).await;
            ChannelMessage::Close { code: (*code).into(), reason: reason(why) }
        }
        End::Client(close) => {
            let closed = async {
                if sink.send(Message::Close(close.clone())).await.is_ok() {
                    while let Some(Ok(_)) = stream.next().await {}
                }
            };
            let _ = timeout(closing, closed).await;
            return end;
        }
    };
    // The connection need not wait for a client that does not read; its last word does.
    drop((sink, stream));
    let _ = to_client.send(told).await;
    end
}

/// From the server to the client.
async fn down(stream: &mut SplitStream<Stream>, heard: &LastHeard, limits: &Limits, to_client: &mpsc::Sender<ChannelMessage>) -> End {
    loop {
        let message = match next(stream, heard, limits.liveness).await {
            Ok(Message::Text(text)) => ChannelMessage::Text(text_of(Bytes::from(text))),
            Ok(Message::Binary(bytes)) => ChannelMessage::Binary(bytes),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Close(close)) => {
                let (code, reason) = close.map_or((NO_CODE, String::new()), |close| (close.code.into(), close.reason.to_string()));
                return End::Server { code, reason };
            }
            Err(end) => return end,
        };
        let slots = if size(&message) > limits.share { TO_CLIENT } else { 1 };
        let Ok(mut places) = to_client.reserve_many(slots).await else { return End::Client(None) };
        if let Some(place) = places.next() {
            place.send(message);
        }
    }
}

/// The next message of the server. Silence counts from now on, or from the last byte: while nothing was read nothing could be heard.
async fn next(stream: &mut SplitStream<Stream>, heard: &LastHeard, liveness: Duration) -> Result<Message, End> {
    let broken = |code, why| Err(End::Broken { code, why });
    let mut due = Instant::now() + liveness;
    loop {
        tokio::select! {
            biased;
            message = stream.next() => return match message {
                Some(Ok(message)) => Ok(message),
                Some(Err(tungstenite::Error::Capacity(CapacityError::MessageTooLong { max_size, .. }))) => {
                    broken(CloseCode::Size, format!("a message of the agent server is larger than {max_size} bytes"))
                }
                Some(Err(tungstenite::Error::Utf8(_))) => broken(CloseCode::Invalid, "the agent server sent text that is no UTF-8".to_owned()),
                Some(Err(error)) => broken(CloseCode::Error, format!("the connection to the agent server broke: {}", causes(&error))),
                None => broken(CloseCode::Error, "the agent server ended the connection".to_owned()),
            },
            () = sleep_until(due) => {
                let later = heard.at() + liveness;
                if later <= Instant::now() {
                    return broken(CloseCode::Error, format!("the agent server was silent for {} ms", liveness.as_millis()));
                }
                due = later;
            }
        }
    }
}

/// From the client to the server.
async fn up(sink: &mut SplitSink<Stream, Message>, limits: &Limits, from_client: &mut mpsc::Receiver<ChannelMessage>) -> End {
    // Three in the time after which a silent side counts as dead.
    let pace = (limits.liveness / 3).max(Duration::from_millis(1));
    let mut pongs = interval_at(Instant::now() + pace, pace);
    pongs.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let first = tokio::select! {
            message = from_client.recv() => match message {
                Some(message) => Some(message),
                None => return End::Client(None),
            },
            _ = pongs.tick() => None,
        };
        match timeout(limits.write, burst(sink, first, limits.outbound, from_client)).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(end))) => return end,
            Ok(Err(error)) => {
                return End::Broken {
                    code: CloseCode::Error,
                    why: format!("the connection to the agent server broke: {}", causes(&error)),
                };
            }
            Err(_) => {
                let why = format!("the agent server did not read for {} ms", limits.write.as_millis());
                return End::Broken { code: CloseCode::Error, why };
            }
        }
    }
}

/// Writes what waits, and flushes once; without a first message, a pong. What comes out is the end, if it was among them.
async fn burst(
    sink: &mut SplitSink<Stream, Message>,
    first: Option<ChannelMessage>,
    largest: usize,
    from_client: &mut mpsc::Receiver<ChannelMessage>,
) -> Result<Option<End>, tungstenite::Error> {
    let Some(mut message) = first else {
        sink.send(Message::Pong(Bytes::new())).await?;
        return Ok(None);
    };
    let mut end = None;
    let mut written = 0;
    loop {
        match outgoing(message, largest) {
            Ok(message) => sink.feed(message).await?,
            Err(last) => {
                end = Some(last);
                break;
            }
        }
        written += 1;
        if written == BURST {
            break;
        }
        match from_client.try_recv() {
            Ok(next) => message = next,
            Err(_) => break,
        }
    }
    sink.flush().await?;
    Ok(end)
}

/// A client's message as it is, or the end that it is.
fn outgoing(message: ChannelMessage, largest: usize) -> Result<Message, End> {
    let too_large = size(&message) > largest;
    match message {
        ChannelMessage::Close { code, reason: text } => {
            let code = CloseCode::from(code);
            // The codes for a missing close, for one, must not be sent.
            Err(End::Client(code.is_allowed().then(|| CloseFrame { code, reason: reason(&text).into() })))
        }
        _ if too_large => {
            Err(End::Broken { code: CloseCode::Size, why: format!("a message to the agent server is larger than {largest} bytes") })
        }
        // Text is UTF-8 already, so that this cannot fail.
        ChannelMessage::Text(text) => Ok(Message::Text(Utf8Bytes::try_from(text.into_bytes()).unwrap_or_default())),
        ChannelMessage::Binary(bytes) => Ok(Message::Binary(bytes)),
    }
}

fn size(message: &ChannelMessage) -> usize {
    match message {
        ChannelMessage::Text(text) => text.len(),
        ChannelMessage::Binary(bytes) => bytes.len(),
        ChannelMessage::Close { .. } => 0,
    }
}

/// As much of a reason as a close can hold.
fn reason(text: &str) -> String {
    let mut reason = String::new();
    for character in text.chars() {
        if reason.len() + character.len_utf8() > LONGEST_REASON {
            break;
        }
        reason.push(character);
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_not_changed_and_not_too_large() {
        let text = ChannelMessage::Text("é".into());
        assert_eq!(outgoing(text.clone(), 2).ok(), Some(Message::text("é")));
        assert!(matches!(outgoing(text, 1), Err(End::Broken { code: CloseCode::Size, .. })));
        let bytes = Bytes::from_static(&[0xff, 0]);
        assert_eq!(outgoing(ChannelMessage::Binary(bytes.clone()), 2).ok(), Some(Message::Binary(bytes)));
    }

    #[test]
    fn codes_that_must_not_be_sent_are_left_out() {
        let closed = |code| match outgoing(ChannelMessage::Close { code, reason: "é".repeat(100) }, 0) {
            Err(End::Client(close)) => close.map(|close| (u16::from(close.code), close.reason.len())),
            _ => panic!("no close"),
        };
        for code in [1000, 1001, 1011, 3000, 4999] {
            assert_eq!(closed(code), Some((code, 122)), "{code}");
        }
        for code in [0, 999, 1004, 1005, 1006, 1015, 2000, 5000, u16::MAX] {
            assert!(closed(code).is_none(), "{code}");
        }
    }
}
