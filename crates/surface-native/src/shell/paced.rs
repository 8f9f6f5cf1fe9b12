//! A connection whose client has to read. While it cannot be written it is not read much further: a client that pings and never reads would
//! otherwise have a pong put by for every ping. Some is still read, so that a client that is slow to read is heard when it answers or stops.
//!
//! A write that does not come on for the limit fails. How long all of it takes does not matter: whoever reads slowly gets everything.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// When a write last went through that had had to wait.
#[derive(Clone, Default)]
pub(super) struct Freed(Arc<Mutex<Option<Instant>>>);

impl Freed {
    /// The moment, if there was one: then the client read. What it was sent last, a ping say, may be far behind that.
    pub(super) fn at(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The connection, with the account of what was read while it could not be written.
pub(super) struct Paced<T> {
    io: T,
    /// The last write did not go through.
    is_stuck: bool,
    /// Bytes read while that was so, less those written since. A pong is no longer than its ping, so no more than this waits in pongs.
    ahead: usize,
    max_ahead: usize,
    /// Whoever wants to read, and has to wait for a write.
    waiting: Option<Waker>,
    /// How long a write may wait.
    limit: Duration,
    /// Runs while one does.
    patience: Pin<Box<Sleep>>,
    freed: Freed,
}

impl<T> Paced<T> {
    /// `max_ahead` must hold the largest message, or one could never be read to its end. A write may wait for `limit`.
    pub(super) fn new(io: T, max_ahead: usize, limit: Duration) -> Self {
        let patience = Box::pin(sleep(limit));
        Self { io, is_stuck: false, ahead: 0, max_ahead, waiting: None, limit, patience, freed: Freed::default() }
    }

    /// Tells when a write went through that had had to wait.
    pub(super) fn freed(&self) -> Freed {
        self.freed.clone()
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        let was_stuck = std::mem::replace(&mut self.is_stuck, written.is_pending());
        if self.is_stuck && !was_stuck {
            self.patience.as_mut().reset(Instant::now() + self.limit);
        }
        if let Poll::Ready(Ok(bytes)) = written {
            self.ahead = self.ahead.saturating_sub(*bytes);
            if was_stuck {
                self.freed.now();
            }
        }
        // An error is the reader's to find, too.
        if !self.is_stuck
            && let Some(waiting) = self.waiting.take()
        {
            waiting.wake();
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead >= this.max_ahead && this.is_stuck {
            this.waiting = Some(context.waker().clone());
            return Poll::Pending;
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(context, into))?;
        if this.is_stuck {
            this.ahead = this.ahead.saturating_add(into.filled().len().saturating_sub(before));
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(context, bytes);
        this.wrote(&written);
        if written.is_pending() {
            ready!(this.patience.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// What is there to be read right now, up to 1 000 bytes.
    async fn read(io: &mut (impl AsyncRead + Unpin)) -> usize {
        let mut into = [0; 1_000];
        let read = tokio::time::timeout(std::time::Duration::from_millis(10), io.read(&mut into)).await;
        read.map_or(0, Result::unwrap)
    }

    /// Writes until no more goes out; what was written.
    async fn fill(io: &mut (impl AsyncWrite + Unpin)) -> usize {
        let mut filled = 0;
        while let Ok(written) = tokio::time::timeout(std::time::Duration::from_millis(10), io.write(&[0; 64])).await {
            filled += written.unwrap();
        }
        filled
    }

    #[tokio::test]
    async fn little_is_read_while_nothing_can_be_written() {
        let (ours, mut theirs) = tokio::io::duplex(4_000);
        let mut paced = Paced::new(ours, 1_500, LIMIT);
        theirs.write_all(&[0; 4_000]).await.unwrap();
        assert_eq!(read(&mut paced).await, 1_000, "nothing is stuck yet");
        assert_eq!(fill(&mut paced).await, 4_000);
        assert_eq!([read(&mut paced).await, read(&mut paced).await, read(&mut paced).await], [1_000, 1_000, 0]);
        // What is written makes room for as much.
        theirs.read_exact(&mut [0; 600]).await.unwrap();
        assert_eq!(fill(&mut paced).await, 600);
        assert_eq!([read(&mut paced).await, read(&mut paced).await], [1_000, 0]);
        theirs.write_all(&[0; 1_000]).await.unwrap();
        theirs.read_exact(&mut [0; 2_000]).await.unwrap();
        assert_eq!(fill(&mut paced).await, 2_000);
        assert_eq!(read(&mut paced).await, 1_000);
    }

    #[tokio::test]
    async fn a_write_that_goes_through_wakes_whoever_waits_to_read() {
        let (ours, mut theirs) = tokio::io::duplex(1_000);
        let mut paced = Paced::new(ours, 0, LIMIT);
        theirs.write_all(&[7]).await.unwrap();
        fill(&mut paced).await;
        let (mut reading, mut writing) = tokio::io::split(paced);
        let reader = tokio::spawn(async move { reading.read_u8().await });
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert!(!reader.is_finished());
        theirs.read_exact(&mut [0; 1_000]).await.unwrap();
        writing.write_all(&[0]).await.unwrap();
        let read = tokio::time::timeout(std::time::Duration::from_secs(5), reader).await.expect("it is woken");
        assert_eq!(read.unwrap().unwrap(), 7);
    }

    #[tokio::test]
    async fn everything_is_read_while_writing_goes_on() {
        let (ours, mut theirs) = tokio::io::duplex(4_000);
        let mut paced = Paced::new(ours, 1, LIMIT);
        for _ in 0..10 {
            theirs.write_all(&[0; 1_000]).await.unwrap();
            assert_eq!(read(&mut paced).await, 1_000);
            paced.write_all(&[0; 1_000]).await.unwrap();
            theirs.read_exact(&mut [0; 1_000]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_write_has_to_come_on_and_may_take_as_long_as_it_does() {
        let (ours, mut theirs) = tokio::io::duplex(1_000);
        let mut paced = Paced::new(ours, 0, Duration::from_millis(200));
        let freed = paced.freed();
        let slow = tokio::spawn(async move {
            for _ in 0..10 {
                theirs.read_exact(&mut [0; 100]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
            theirs
        });
        paced.write_all(&[0; 2_000]).await.unwrap();
        assert!(freed.at().is_some());
        let _silent = slow.await.unwrap();
        let begun = Instant::now();
        assert_eq!(paced.write_all(&[0; 2_000]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() > Duration::from_millis(100));
    }
}
