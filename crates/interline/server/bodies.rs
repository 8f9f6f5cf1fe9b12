//! Bodies of requests. Whoever reads one, and whatever for, has it in memory as a whole: so each has to come on, and all together have a
//! bound, also those of clients that nobody has let in yet.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes a second that a body must come to on average, beyond its time to stall: far below what any line carries, and enough that none stays for ever.
const SLOWEST: u64 = 32 * 1024;

/// What the bodies that are being read hold together.
pub(super) struct Bodies {
    held: AtomicUsize,
    limit: usize,
}

/// What one request holds of it; given back when it is answered and its body is gone.
pub(super) struct Hold {
    bodies: Arc<Bodies>,
    bytes: AtomicUsize,
    /// How long it may stand still.
    stall: Duration,
}

/// Why a body is not read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body did not come on")]
    Stalled,
    #[error("too many bytes of bodies at a time: server.max_body_bytes")]
    Full,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

impl Bodies {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), limit })
    }

    pub(super) fn hold(self: &Arc<Self>, stall: Duration) -> Arc<Hold> {
        Arc::new(Hold { bodies: self.clone(), bytes: AtomicUsize::new(0), stall })
    }
}

impl Hold {
    /// The body of the request that holds.
    pub(super) fn body(self: &Arc<Self>, body: Incoming) -> axum::body::Body {
        if body.is_end_stream() {
            return axum::body::Body::empty();
        }
        let now = Instant::now();
        axum::body::Body::new(
            HeldBody { body, hold: self.clone(), began: now, received: 0, patience: Box::pin(sleep_until(now)), moved: true }
                .boxed_unsync(),
        )
    }

    /// Whether there is room for so many bytes more.
    fn take(&self, bytes: usize) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bodies.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.bodies.limit
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.bodies.held.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

struct HeldBody {
    body: Incoming,
    hold: Arc<Hold>,
    began: Instant,
    received: u64,
    patience: Pin<Box<Sleep>>,
    /// Something came since `patience` was set.
    moved: bool,
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let Some(frame) = frame.transpose()? else { return Poll::Ready(None) };
            self.moved = true;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.received = self.received.saturating_add(bytes as u64);
            return Poll::Ready(Some(if self.hold.take(bytes) { Ok(frame) } else { Err(BodyError::Full) }));
        }
        if std::mem::take(&mut self.moved) {
            let stall = self.hold.stall;
            let slowest = self.began + stall + Duration::from_secs(self.received / SLOWEST);
            let until = slowest.min(Instant::now() + stall);
            self.patience.as_mut().reset(until);
        }
        ready!(self.patience.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyError::Stalled)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
