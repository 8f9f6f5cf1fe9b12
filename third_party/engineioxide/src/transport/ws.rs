//! The ws transport module is responsible for handling websocket connections
//! The only public function is [`new_req`] which is used to upgrade a http request to a websocket connection
//!
//! Other functions are used internally to handle the websocket connection through tasks and channels
//! and to handle upgrade from polling to ws

use std::{sync::Arc, time::Duration};

use futures_util::{
    SinkExt, StreamExt, TryStreamExt,
    stream::{SplitSink, SplitStream},
};
use http::{HeaderValue, Request, Response, StatusCode, request::Parts};
use smallvec::smallvec;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        handshake::derive_accept_key,
        protocol::{
            Role, WebSocketConfig,
            frame::{
                Frame,
                coding::{Data, OpCode},
            },
        },
    },
};
use tokio_util::future::FutureExt as _;

use engineioxide_core::{Packet, ProtocolVersion, Sid, Str, TransportType};

use crate::{
    DisconnectReason, Socket, body::ResponseBody, config::EngineIoConfig, engine::EngineIo,
    errors::Error, handler::EngineIoHandler, socket::InternalRx, transport::make_open_packet,
};

/// What is gathered before it is written.
const WRITE_BUFFER: usize = 16 * 1024;

/// Longer messages go out in fragments of this size, each made when there is room for it: the library would hold the whole of one for each
/// socket, move it with every write, and keep its room ever after.
const FRAGMENT: usize = 16 * 1024;

/// How long the writer may go on after the session was closed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Create a response for websocket upgrade
fn ws_response<B>(ws_key: &HeaderValue) -> Response<ResponseBody<B>> {
    let derived = derive_accept_key(ws_key.as_bytes());
    let sec = derived.parse::<HeaderValue>().unwrap();
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(http::header::UPGRADE, HeaderValue::from_static("websocket"))
        .header(
            http::header::CONNECTION,
            HeaderValue::from_static("Upgrade"),
        )
        .header(http::header::SEC_WEBSOCKET_ACCEPT, sec)
        .body(ResponseBody::empty_response())
        .unwrap() // we are only using constants
}

/// Upgrade a websocket request to create a websocket connection.
///
/// If a sid is provided in the query it means that is is upgraded from an existing HTTP polling request.
/// In this case the http polling request is closed and the SID is kept for the websocket
pub fn new_req<R: Send + 'static, B, H: EngineIoHandler>(
    engine: Arc<EngineIo<H>>,
    protocol: ProtocolVersion,
    sid: Option<Sid>,
    req: Request<R>,
) -> Result<Response<ResponseBody<B>>, Error> {
    let (parts, body) = req.into_parts();
    let req = Request::from_parts(parts.clone(), body);

    let ws_key = parts
        .headers
        .get("Sec-WebSocket-Key")
        .ok_or(Error::InvalidWebSocketKey)?
        .clone();

    tokio::spawn(async move {
        let conn = hyper::upgrade::on(req)
            .await
            .map(hyper_util::rt::TokioIo::new);

        let res = match conn {
            Ok(conn) => on_init(engine.clone(), conn, protocol, sid, parts).await,
            Err(_e) => {
                #[cfg(feature = "tracing")]
                tracing::debug!("ws upgrade error: {}", _e);
                return;
            }
        };

        match res {
            Ok(_) => {
                #[cfg(feature = "tracing")]
                tracing::debug!(?sid, "ws closed")
            }
            // A failed upgrade is no end: the session goes on with polling.
            Err(Error::MultipleWebsocketRequests | Error::Upgrade) => {}
            Err(_e) => {
                #[cfg(feature = "tracing")]
                tracing::debug!(?sid, "ws closed with error: {_e}");
                if let Some(sid) = sid {
                    engine.close_session(sid, DisconnectReason::TransportError);
                }
            }
        }
    });

    Ok(ws_response(&ws_key))
}

/// Handle a websocket connection upgrade
///
/// Sends an open packet if it is not an upgrade from a polling request
///
/// Read packets from the websocket and handle them, it will block until the connection is closed
#[cfg_attr(
    feature = "tracing",
    tracing::instrument(level = "trace", name = "init_websocket", skip(engine, conn, req_data))
)]
pub async fn on_init<H: EngineIoHandler, S>(
    engine: Arc<EngineIo<H>>,
    conn: S,
    protocol: ProtocolVersion,
    sid: Option<Sid>,
    req_data: Parts,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ws_config = WebSocketConfig::default()
        .read_buffer_size(engine.config.ws_read_buffer_size)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(Some(engine.config.ws_max_message_size))
        .max_frame_size(Some(engine.config.ws_max_frame_size));

    let ws_init = move || WebSocketStream::from_raw_socket(conn, Role::Server, Some(ws_config));
    let (socket, ws) = if let Some(sid) = sid {
        match engine.get_socket(sid) {
            None => return Err(Error::UnknownSessionID(sid)),
            Some(socket) if socket.is_ws() => return Err(Error::MultipleWebsocketRequests),
            Some(socket) => {
                let mut ws = ws_init().await;

                let upgrade_fut = upgrade_handshake::<H, S>(&socket, &mut ws);
                match tokio::time::timeout(engine.config.upgrade_timeout, upgrade_fut)
                    .with_cancellation_token(&socket.cancellation_token)
                    .await
                {
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(Error::MultipleWebsocketRequests))) => {
                        return Err(Error::MultipleWebsocketRequests);
                    }
                    Some(Ok(Err(_e))) => {
                        #[cfg(feature = "tracing")]
                        tracing::debug!(?sid, "ws upgrade failed, staying with polling: {_e}");
                        return Err(Error::Upgrade);
                    }
                    Some(Err(_)) => {
                        #[cfg(feature = "tracing")]
                        tracing::debug!(?sid, "ws upgrade timed out, staying with polling");
                        return Err(Error::Upgrade);
                    }
                    None => {
                        #[cfg(feature = "tracing")]
                        tracing::debug!(?sid, "socket is being closed");
                        return Err(Error::Upgrade);
                    }
                }
                (socket, ws)
            }
        }
    } else {
        let socket = engine.create_session(protocol, TransportType::Websocket, req_data, false);

        #[cfg(feature = "tracing")]
        tracing::debug!("new websocket connection");

        let mut ws = ws_init().await;
        init_handshake(socket.id, &mut ws, &engine.config).await?;
        socket
            .clone()
            .spawn_heartbeat(engine.config.ping_interval, engine.config.ping_timeout);
        (socket, ws)
    };
    let (tx, rx) = ws.split();

    // Pipe between websocket and internal socket channel.
    tokio::spawn(forward_to_socket::<H, S>(socket.clone(), tx));

    // pipe between internal socket channel and websocket
    match forward_to_handler(&engine, rx, &socket)
        .with_cancellation_token(&socket.cancellation_token)
        .await
    {
        Some(Err(ref e)) => {
            let reason =
                Option::<DisconnectReason>::from(e).unwrap_or(DisconnectReason::TransportError);

            #[cfg(feature = "tracing")]
            tracing::debug!("error when handling packet: {:?}", e);
            engine.close_session(socket.id, reason);
        }
        Some(Ok(())) => {
            #[cfg(feature = "tracing")]
            tracing::debug!(sid = %socket.id, "ws transport was closed");
            engine.close_session(socket.id, DisconnectReason::TransportClose);
        }
        None => {
            #[cfg(feature = "tracing")]
            tracing::debug!(sid = %socket.id, "socket is closing");
        }
    }
    Ok(())
}

/// Forwards all packets received from a websocket to a EngineIo [`Socket`]
async fn forward_to_handler<H: EngineIoHandler, S>(
    engine: &Arc<EngineIo<H>>,
    mut rx: SplitStream<WebSocketStream<S>>,
    socket: &Arc<Socket<H::Data>>,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    while let Some(msg) = rx.try_next().await? {
        match msg {
            Message::Text(msg) => match Packet::parse(socket.protocol, ws_bytes_to_str(msg))? {
                Packet::Close => {
                    #[cfg(feature = "tracing")]
                    tracing::debug!("[sid={}] closing session", socket.id);
                    engine.close_session(socket.id, DisconnectReason::TransportClose);
                    break;
                }
                Packet::Pong | Packet::Ping => {
                    // A full channel means that the client is already known to be alive.
                    socket.heartbeat_tx.try_send(()).ok();
                    Ok::<(), Error>(())
                }
                Packet::Message(msg) => {
                    engine.handler.on_message(msg, socket.clone());
                    Ok(())
                }
                p => return Err(Error::BadPacket(p)),
            },
            Message::Binary(mut data) => {
                if socket.protocol == ProtocolVersion::V3 && !data.is_empty() {
                    // The first byte is the message type, which we don't need.
                    data = data.split_off(1);
                }
                engine.handler.on_binary(data, socket.clone());
                Ok(())
            }
            Message::Close(_) => {
                #[cfg(feature = "tracing")]
                tracing::debug!("websocket closed, closing session");
                engine.close_session(socket.id, DisconnectReason::TransportClose);
                break;
            }
            _ => {
                #[cfg(feature = "tracing")]
                tracing::debug!(sid = ?socket.id, "unexpected ws message");
                Ok(())
            }
        }?
    }
    Ok(())
}

/// Forwards all packets waiting to be sent to the websocket, until nothing can be written any more or the session is closed.
async fn forward_to_socket<H: EngineIoHandler, S>(
    socket: Arc<Socket<H::Data>>,
    tx: SplitSink<WebSocketStream<S>, Message>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let closed = async {
        socket.cancellation_token.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        forwarded = forward_packets::<H, S>(&socket, tx) => {
            if let Err(_e) = forwarded {
                #[cfg(feature = "tracing")]
                tracing::debug!("[sid={}] error sending packet: {}", socket.id, _e);
                // What could not be written is lost, so nothing may come behind it.
                socket.close(DisconnectReason::TransportError);
            }
        }
        // The client does not read.
        () = closed => {}
    }
}

/// Writes a message, a long one in fragments.
async fn feed<S>(
    tx: &mut SplitSink<WebSocketStream<S>, Message>,
    message: Message,
) -> Result<(), tungstenite::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut kind, rest) = match message {
        Message::Text(text) if text.len() > FRAGMENT => (Data::Text, bytes::Bytes::from(text)),
        Message::Binary(bytes) if bytes.len() > FRAGMENT => (Data::Binary, bytes),
        short => return tx.feed(short).await,
    };
    // Copied, so that what is written need not be kept until all is.
    let mut pieces = Vec::with_capacity(rest.len() / (FRAGMENT - 3) + 1);
    let mut left = &rest[..];
    while left.len() > FRAGMENT {
        // Not in the middle of a character: not every client knows that it may be.
        let cut = (FRAGMENT - 3..=FRAGMENT)
            .rev()
            .find(|at| left[*at] & 0xc0 != 0x80)
            .unwrap_or(FRAGMENT);
        pieces.push(bytes::Bytes::copy_from_slice(&left[..cut]));
        left = &left[cut..];
    }
    pieces.push(bytes::Bytes::copy_from_slice(left));
    drop(rest);
    let last = pieces.len() - 1;
    for (number, piece) in pieces.into_iter().enumerate() {
        let frame = Frame::message(piece, OpCode::Data(kind), number == last);
        tx.feed(Message::Frame(frame)).await?;
        kind = Data::Continue;
    }
    Ok(())
}

/// The websocket stream is flushed only when the internal channel is drained
async fn forward_packets<H: EngineIoHandler, S>(
    socket: &Arc<Socket<H::Data>>,
    mut tx: SplitSink<WebSocketStream<S>, Message>,
) -> Result<(), tungstenite::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // A polling request that was in progress during the upgrade may still hold the lock.
    let lock = socket.internal_rx.lock();
    let Some(mut internal_rx) = lock
        .with_cancellation_token(&socket.cancellation_token)
        .await
    else {
        #[cfg(feature = "tracing")]
        tracing::debug!(sid = %socket.id, "session closed before starting the ws writer");
        return Ok(());
    };
    let InternalRx {
        buffered_rx,
        volatile_rx,
        peeked_packet,
    } = &mut *internal_rx;

    // map a packet to a websocket message
    // It is declared as a macro rather than a closure to avoid ownership issues
    macro_rules! map_fn {
            ($item:ident) => {
                let res = match $item {
                    Packet::Binary(bin) | Packet::BinaryV3(bin) => {
                        if socket.protocol == ProtocolVersion::V3 {
                            // v3 protocol requires packet type as the first byte.
                            // This requires a new buffer. This is OK as it is only for the V3 protocol.
                            let mut buff = Vec::with_capacity(bin.len() + 1);
                            buff.push(0x04);
                            buff.extend(bin);
                            feed(&mut tx, Message::Binary(buff.into())).await
                        } else {
                            feed(&mut tx, Message::Binary(bin)).await
                        }
                    }
                    // A Noop Packet maybe sent by the server to upgrade from a polling connection
                    // In the case that the packet was not poll in time it will remain in the buffer and therefore
                    // it should be discarded here
                    Packet::Noop => Ok(()),
                    _ => {
                        let packet: String = $item.try_into().unwrap();
                        // Whoever looks whether the buffer is empty sees that it is still being written.
                        let _place = (packet.len() > WRITE_BUFFER).then(|| socket.internal_tx.try_reserve().ok());
                        feed(&mut tx, Message::Text(packet.into())).await
                    }
                };
                res?;
            };
        }

    // What the last polling request had no room for comes first.
    if let Some(packets) = peeked_packet.take() {
        for item in packets {
            map_fn!(item);
        }
        tx.flush().await?;
    }

    // Forward buffered packets until the channel is closed or the session is cancelled.
    loop {
        tokio::select! {
            biased;
            items = buffered_rx.recv() => {
                match items {
                    Some(packets) => {
                        for item in packets {
                            map_fn!(item);
                        }
                        while let Ok(packets) = buffered_rx.try_recv() {
                            for item in packets {
                                map_fn!(item);
                            }
                        }
                    }
                    None => break
                }
            }
            _ = socket.cancellation_token.cancelled() => break,
            Ok(()) = volatile_rx.changed() => {
                let val = volatile_rx.borrow_and_update().clone();
                if let Some(packets) = val {
                    #[cfg(feature = "tracing")]
                    tracing::debug!(sid = ?socket.id, "ws volatile flush: {} packets", packets.len());
                    for item in packets {
                        map_fn!(item);
                    }
                }
            },
        }

        #[cfg(feature = "tracing")]
        tracing::trace!(sid = %socket.id, "ws flush");
        tx.flush().await?;
    }

    #[cfg(feature = "tracing")]
    tracing::trace!(sid = %socket.id, "ws closing flush");

    tx.flush().await.ok();
    tx.close().await.ok();
    Ok(())
}
/// Send a Engine.IO [`OpenPacket`] to initiate a websocket connection
async fn init_handshake<S>(
    sid: Sid,
    ws: &mut WebSocketStream<S>,
    config: &EngineIoConfig,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let packet = Packet::Open(make_open_packet(TransportType::Websocket, sid, config));
    let packet: String = packet.into();
    ws.send(Message::Text(packet.into())).await?;
    Ok(())
}

/// Upgrade a session from a polling request to a websocket request.
///
/// Between the probe and the upgrade packet the server sends a NOOP packet to a pending polling request.
/// Until the upgrade packet has come, whatever fails leaves the session with polling.
///
/// ## Handshake :
/// ```text
/// CLIENT                                                 SERVER
///│                                                      │
///│   GET /engine.io/?EIO=4&transport=websocket&sid=...  │
///│ ───────────────────────────────────────────────────► │
///│  ◄─────────────────────────────────────────────────┘ │
///│            HTTP 101 (WebSocket handshake)            │
///│                                                      │
///│            -----  WebSocket frames -----             │
///│  ─────────────────────────────────────────────────►  │
///│                         2probe                       │ (ping packet)
///│  ◄─────────────────────────────────────────────────  │
///│                         3probe                       │ (pong packet)
///│  ─────────────────────────────────────────────────►  │
///│                         5                            │ (upgrade packet)
///│                                                      │
///│            -----  WebSocket frames -----             │
/// ```
#[cfg_attr(
    feature = "tracing",
    tracing::instrument(level = "trace", skip(socket, ws))
)]
async fn upgrade_handshake<H: EngineIoHandler, S>(
    socket: &Arc<Socket<H::Data>>,
    ws: &mut WebSocketStream<S>,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    #[cfg(feature = "tracing")]
    tracing::debug!("starting websocket connection upgrade");

    // Nothing is done to the session before the probe has come: many proxies answer the
    // handshake and let nothing through, and the session must then go on with polling.
    let msg = next_text(ws).await?;
    match Packet::parse(socket.protocol, ws_bytes_to_str(msg))? {
        Packet::PingUpgrade => {
            #[cfg(feature = "tracing")]
            tracing::debug!("received first ping upgrade");
        }
        p => Err(Error::BadPacket(p))?,
    };

    // One upgrade at a time; the mark goes with this future, however it ends.
    let _upgrading = Upgrading::start(socket).ok_or(Error::MultipleWebsocketRequests)?;

    // Respond with a PongUpgrade packet
    ws.send(Message::Text(String::from(Packet::PongUpgrade).into()))
        .await?;

    // The client sends its Upgrade packet once its pending polling request has been answered. Until then
    // the session is an ordinary polling session; a waiting request is let go from time to time, more
    // and more rarely, since nobody knows whether the client has seen the PongUpgrade packet.
    let upgrade = next_text(ws);
    futures_util::pin_mut!(upgrade);
    let mut pause = FIRST_RELEASE;
    let msg = loop {
        match tokio::time::timeout(pause, &mut upgrade).await {
            Ok(msg) => break msg?,
            Err(_) => {
                release_polling(socket);
                pause = (pause * 2).min(LAST_RELEASE);
            }
        }
    };
    match Packet::parse(socket.protocol, ws_bytes_to_str(msg))? {
        Packet::Upgrade => {
            #[cfg(feature = "tracing")]
            tracing::debug!("ws upgraded successfully")
        }
        p => Err(Error::BadPacket(p))?,
    };

    socket.upgrade_to_websocket();
    // A request that still waits must not take what is for the websocket now.
    release_polling(socket);
    Ok(())
}

/// How long a polling request that waits during an upgrade is left alone, at first and at most.
const FIRST_RELEASE: std::time::Duration = std::time::Duration::from_millis(20);
const LAST_RELEASE: std::time::Duration = std::time::Duration::from_secs(1);

/// Answers a polling request that waits for packets, if there is one.
fn release_polling<D: Default + Send + Sync + 'static>(socket: &Socket<D>) {
    if socket.is_polled() {
        // If the channel is full, the request has enough to be answered with.
        socket.internal_tx.try_send(smallvec![Packet::Noop]).ok();
    }
}

/// Marks a socket as upgrading while it exists.
struct Upgrading<'a, D: Default + Send + Sync + 'static>(&'a Socket<D>);

impl<'a, D: Default + Send + Sync + 'static> Upgrading<'a, D> {
    fn start(socket: &'a Socket<D>) -> Option<Self> {
        socket.start_upgrade().then(|| Self(socket))
    }
}

impl<D: Default + Send + Sync + 'static> Drop for Upgrading<'_, D> {
    fn drop(&mut self) {
        self.0.end_upgrade();
    }
}

/// The next text message; the websocket's own pings are none.
async fn next_text<S>(ws: &mut WebSocketStream<S>) -> Result<tungstenite::Utf8Bytes, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    loop {
        match ws.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            _ => return Err(Error::Upgrade),
        }
    }
}

fn ws_bytes_to_str(bytes: tungstenite::Utf8Bytes) -> Str {
    // SAFETY: the bytes are guaranteed to be valid UTF-8 by the tungstenite parser
    unsafe { Str::from_bytes_unchecked(bytes.into()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::StreamExt;
    use http::Request;
    use tokio::io::DuplexStream;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    #[derive(Debug)]
    struct StubHandler;
    impl EngineIoHandler for StubHandler {
        type Data = ();
        fn on_connect(self: Arc<Self>, _: Arc<Socket<()>>) {}
        fn on_disconnect(&self, _: Arc<Socket<()>>, _: DisconnectReason) {}
        fn on_message(self: &Arc<Self>, _: Str, _: Arc<Socket<()>>) {}
        fn on_binary(self: &Arc<Self>, _: Bytes, _: Arc<Socket<()>>) {}
    }

    fn socket() -> Arc<Socket<()>> {
        Arc::new(Socket::new(
            ProtocolVersion::V4,
            TransportType::Websocket,
            &EngineIoConfig::default(),
            Request::<()>::default().into_parts().0,
            Box::new(|_, _| ()),
            false,
        ))
    }

    async fn ws_pair() -> (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) {
        let (server, client) = tokio::io::duplex(1024);
        (
            WebSocketStream::from_raw_socket(server, Role::Server, None).await,
            WebSocketStream::from_raw_socket(client, Role::Client, None).await,
        )
    }

    /// A polling request can still hold the lock at the end of an upgrade.
    #[tokio::test]
    async fn writer_waits_for_the_lock_of_a_polling_request() {
        let socket = socket();
        let (server, mut client) = ws_pair().await;
        let (tx, _rx) = server.split();

        let polling = socket.internal_rx.lock().await;
        let writer = tokio::spawn(forward_to_socket::<StubHandler, _>(socket.clone(), tx));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writer.is_finished(), "the writer should wait for the lock");

        drop(polling);
        socket.emit(Str::from("hello")).unwrap();
        let msg = tokio::time::timeout(TIMEOUT, client.next())
            .await
            .expect("the writer should send the packet")
            .unwrap()
            .unwrap();
        assert_eq!(msg, Message::text("4hello"));
    }

    #[tokio::test]
    async fn writer_waiting_for_the_lock_stops_with_the_session() {
        let socket = socket();
        let (server, _client) = ws_pair().await;
        let (tx, _rx) = server.split();

        let _polling = socket.internal_rx.lock().await;
        let writer = tokio::spawn(forward_to_socket::<StubHandler, _>(socket.clone(), tx));
        tokio::time::sleep(Duration::from_millis(20)).await;

        socket.cancellation_token.cancel();
        tokio::time::timeout(TIMEOUT, writer)
            .await
            .expect("the writer should stop")
            .unwrap();
    }
}
