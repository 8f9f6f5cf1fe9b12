//! Clients that do not read. What is written to one waits in the kernel, then in the library above, and then nothing more is fetched for it: it
//! holds little, but it would hold that for ever.
//!
//! The kernel's own bound (`TCP_USER_TIMEOUT`) is not everywhere, and cannot see an HTTP/2 client that takes what comes in and never asks for
//! more. So a connection is cut when it should write and has not come on for `server.write_stall_ms`. Whoever reads slowly comes on.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::telemetry::Telemetry;

/// What an HTTP/2 connection writes besides bodies: pings, settings, acknowledgements. No more than this in the time of a stall.
const SMALL_TALK: u64 = 1024;

/// Why a connection is cut.
#[derive(Debug, thiserror::Error)]
#[error("the client has read nothing for server.write_stall_ms")]
pub(super) struct Stalled;

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, Stalled)
}

/// A connection whose writes have to come on.
pub(super) struct Writing<T> {
    io: T,
    limit: Duration,
    /// Runs while a write waits.
    patience: Pin<Box<Sleep>>,
    waits: bool,
    /// A write waited for too long. Nothing may follow, since what it held is lost to whoever made it.
    is_over: bool,
    flow: Arc<Flow>,
}

impl<T> Writing<T> {
    pub(super) fn new(io: T, flow: Arc<Flow>) -> Self {
        Self { io, limit: flow.limit, patience: Box::pin(sleep(flow.limit)), waits: false, is_over: false, flow }
    }

    fn judge(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => {
                if !std::mem::replace(&mut self.waits, true) {
                    self.patience.as_mut().reset(Instant::now() + self.limit);
                }
                ready!(self.patience.as_mut().poll(cx));
                self.is_over = true;
                self.flow.telemetry.connection_stalled();
                Poll::Ready(Err(stalled()))
            }
            Poll::Ready(Ok(bytes)) => {
                self.waits = false;
                self.flow.written.fetch_add(bytes as u64, Ordering::Relaxed);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Writing<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Writing<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_over {
            return Poll::Ready(Err(stalled()));
        }
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.judge(written, cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.is_over {
            return Poll::Ready(Err(stalled()));
        }
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// How what one connection carries comes on.
pub(super) struct Flow {
    limit: Duration,
    /// Bytes that went into the socket.
    written: AtomicU64,
    telemetry: Arc<Telemetry>,
    bodies: Mutex<Waiting>,
    begins: Notify,
}

/// Bodies of HTTP/2 answers of which a piece was handed out and no further one asked for: there is no window for it.
struct Waiting {
    count: usize,
    /// When one of them last came on, or the first of them began to wait.
    since: Instant,
}

impl Flow {
    pub(super) fn new(limit: Duration, telemetry: Arc<Telemetry>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            written: AtomicU64::new(0),
            telemetry,
            bodies: Mutex::new(Waiting { count: 0, since: Instant::now() }),
            begins: Notify::new(),
        })
    }

    /// The body of an HTTP/2 answer, watched.
    pub(super) fn body(self: &Arc<Self>, body: axum::body::Body) -> axum::body::Body {
        axum::body::Body::new(Watched { body, flow: self.clone(), waits: false })
    }

    fn waits(&self, more: bool) {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.count = if more { bodies.count.saturating_add(1) } else { bodies.count.saturating_sub(1) };
        if !more || bodies.count == 1 {
            bodies.since = Instant::now();
        }
        drop(bodies);
        if more {
            self.begins.notify_one();
        }
    }

    fn waiting_since(&self) -> Option<Instant> {
        let bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        (bodies.count > 0).then_some(bodies.since)
    }

    /// Returns when bodies wait and neither one of them nor the socket has come on for the limit. One stream that is not read beside others that
    /// are holds two of its pieces and nobody up, so it may stay.
    pub(super) async fn stalled(&self) {
        let mut begun = Instant::now();
        loop {
            let Some(since) = self.waiting_since() else {
                self.begins.notified().await;
                begun = Instant::now();
                continue;
            };
            let (from, before) = (begun.max(since), self.written.load(Ordering::Relaxed));
            sleep_until(from + self.limit).await;
            if self.waiting_since() == Some(since) && self.written.load(Ordering::Relaxed).saturating_sub(before) <= SMALL_TALK {
                self.telemetry.connection_stalled();
                return;
            }
            begun = Instant::now();
        }
    }
}

struct Watched {
    body: axum::body::Body,
    flow: Arc<Flow>,
    /// A piece was handed out, and no further one asked for.
    waits: bool,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.waits) {
            self.flow.waits(false);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if matches!(frame, Some(Ok(_))) && !self.body.is_end_stream() {
            self.waits = true;
            self.flow.waits(true);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.waits {
            self.flow.waits(false);
        }
    }
}
