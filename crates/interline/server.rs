//! The server: accepts connections, bounds them, and ends them when the hub says so.
//!
//! axum's own serving has neither a limit on connections nor on the time for headers, and its graceful shutdown waits for ever
//! while a stream is open. So the loop is ours: a permit and a deadline for each connection, and streams end by the hub's token.

mod bodies;
mod stall;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use interline_hub::{Closing, Hangup};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::ServiceExt as _;

use interline_hub::{Network, Peer};

use crate::config::ServerConfig;
use crate::telemetry::{OpenConnection, Telemetry};
use bodies::Bodies;
use stall::{Flow, Writing};

/// How long to wait before accepting again when the system has no descriptor left.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How long a refused client has to take its refusal.
const REFUSAL: Duration = Duration::from_secs(1);
/// Requests at a time over one HTTP/2 connection: a browser tab may follow many runs.
const H2_STREAMS: u32 = 250;
const H2_PING: Duration = Duration::from_secs(20);

/// Serves until `closing`; returns once no connection is left. Whoever calls bounds that wait.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    live: Arc<ArcSwap<ServerConfig>>,
    telemetry: Arc<Telemetry>,
    closing: Closing,
) {
    let connections = TaskTracker::new();
    let open = Arc::new(AtomicUsize::new(0));
    let bodies = Bodies::new(live.load().max_body_bytes);
    let trusted: Arc<[Network]> = live.load().trusted_proxies.iter().filter_map(|proxy| Network::parse(proxy)).collect();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.begun() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let config = live.load_full();
        tune(&stream, &config);
        match Place::take(&open, config.max_connections) {
            Some(place) => {
                let (hangup, there) = Hangup::new();
                let open = Open { _place: place, _tracked: connections.token(), _counted: telemetry.connection(), _there: there };
                let stream = Counted { stream, hangup, _open: open };
                let from = (peer, trusted.clone());
                tokio::spawn(drive(stream, from, router.clone(), bodies.clone(), config, telemetry.clone(), closing.clone()));
            }
            None => {
                telemetry.connection_refused();
                connections.spawn(refuse(stream));
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// One of the places for connections, held until it is dropped. Their number may change meanwhile.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let before = open.fetch_add(1, Ordering::Relaxed);
        // What is one too many gives its place back at once.
        let place = Self(open.clone());
        (before < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection holds for as long as its socket lives, be it upgraded or not.
struct Open {
    _place: Place,
    _tracked: TaskTrackerToken,
    _counted: OpenConnection,
    _there: DropGuard,
}

async fn drive(
    stream: Counted,
    (peer, trusted): (SocketAddr, Arc<[Network]>),
    router: Router,
    bodies: Arc<Bodies>,
    config: Arc<ServerConfig>,
    telemetry: Arc<Telemetry>,
    closing: Closing,
) {
    let flow = Flow::new(Duration::from_millis(config.write_stall_ms), telemetry);
    let hangup = stream.hangup.clone();
    let stream = Writing::new(stream, flow.clone());
    let header_time = Duration::from_millis(config.header_read_timeout_ms);
    let stall = Duration::from_millis(config.body_stall_ms);
    let spoken = Arc::new(AtomicBool::new(false));
    let service = {
        let (spoken, flow) = (spoken.clone(), flow.clone());
        hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let from = Peer::of(peer.ip(), request.headers(), &trusted);
            request.extensions_mut().insert(from);
            spoken.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(hangup.clone());
            let hold = bodies.hold(stall);
            // Under HTTP/1.1 a body that waits is a write that waits.
            let flow = (request.version() == http::Version::HTTP_2).then(|| flow.clone());
            let answer = router.clone().oneshot(request.map(|body| hold.body(body)));
            async move {
                let answer = answer.await;
                // Until here, since whoever read the body may have had it in memory all the time.
                drop(hold);
                match flow {
                    Some(flow) => answer.map(|answer| answer.map(|body| flow.body(body))),
                    None => answer,
                }
            }
        })
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The smallest buffer that hyper takes is 8 KiB.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_time).max_buf_size(config.max_header_bytes.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(H2_PING);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut closing = std::pin::pin!(closing.begun());
    let mut told = false;
    // hyper's own deadline begins once it knows the HTTP version; a client that says nothing at all is ours to cut.
    let mut silence = std::pin::pin!(sleep(header_time));
    let mut heard = false;
    let result = loop {
        tokio::select! {
            result = connection.as_mut() => break result,
            () = &mut closing, if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            () = flow.stalled() => break Err(stall::Stalled.into()),
            () = &mut silence, if !heard => {
                heard = spoken.load(Ordering::Relaxed);
                if !heard {
                    tracing::debug!(%peer, "no request came in time");
                    break Ok(());
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

/// The socket, with what it holds.
struct Counted {
    stream: TcpStream,
    hangup: Hangup,
    _open: Open,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            // What has arrived is still read.
            Poll::Pending if self.hangup.is_cut(cx.waker()) => Poll::Ready(Ok(())),
            read => read,
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

fn tune(stream: &TcpStream, config: &ServerConfig) {
    let socket = SockRef::from(stream);
    // Events are small and wanted at once.
    let _ = stream.set_nodelay(true);
    let keepalive = Duration::from_millis(config.tcp_keepalive_ms.max(1000));
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(keepalive).with_interval(keepalive));
    // What waits unsent in the kernel is bounded too: megabytes there would be taken long before anybody reads them, and whether a client that
    // reads slowly comes on would be seen only once in a third of them.
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(u32::try_from(config.client_window_bytes).unwrap_or(u32::MAX));
    // A client that is gone, or does not read: the kernel notices first.
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(Duration::from_millis(config.tcp_user_timeout_ms)));
}

async fn refuse(mut stream: TcpStream) {
    let body = crate::admin::error_body("too many connections: server.max_connections", "too_many_connections");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
         Content-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = timeout(REFUSAL, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await;
}

#[cfg(test)]
mod tests;
