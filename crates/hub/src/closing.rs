//! How the connections of a program that ends are closed: each at a moment of its own, and with word of when to come back.
//!
//! Clients that are all cut in one instant all come back in one, and the next process meets them as a storm. So each connection draws its turn
//! from the time that all of them share, and each client is told another time to wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

/// What clients and connections are to expect, as the config says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The time over which closing is spread.
    pub spread: Duration,
    /// Milliseconds that clients are told to wait: the least and the most.
    pub retry_ms: (u64, u64),
}

impl Default for Farewell {
    /// At once, for a hub that no program configures.
    fn default() -> Self {
        Self { spread: Duration::ZERO, retry_ms: (2_000, 10_000) }
    }
}

/// The end of the program, as connections see it. Clones are the same end.
#[derive(Clone, Default)]
pub struct Closing(Arc<Inner>);

#[derive(Default)]
struct Inner {
    leaving: AtomicBool,
    farewell: Mutex<Farewell>,
    begun: CancellationToken,
    /// When it began, and over what time it is spread.
    since: OnceLock<(Instant, Duration)>,
}

impl Closing {
    fn farewell(&self) -> MutexGuard<'_, Farewell> {
        self.0.farewell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how it is to be done. The time over which closing is spread holds from the moment it begins.
    pub fn arrange(&self, farewell: Farewell) {
        *self.farewell() = farewell;
    }

    /// The program is about to end: nobody should send it anything new.
    pub fn leave(&self) {
        self.0.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the program is about to end.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.0.leaving.load(Ordering::Relaxed)
    }

    /// Milliseconds that a client is told to wait until it comes back; another number each time.
    #[must_use]
    pub fn retry_ms(&self) -> u64 {
        let (least, most) = self.farewell().retry_ms;
        least.saturating_add(draw(most.saturating_sub(least)))
    }

    /// Connections end from now on.
    pub fn begin(&self) {
        self.leave();
        let spread = self.farewell().spread;
        let _ = self.0.since.set((Instant::now(), spread));
        self.0.begun.cancel();
    }

    /// Whether connections end.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.begun.is_cancelled()
    }

    /// Returns when connections begin to end.
    pub async fn begun(&self) {
        self.0.begun.cancelled().await;
    }

    /// Returns when the last connection has had its turn.
    pub async fn over(&self) {
        self.at(u64::MAX).await;
    }

    /// The turn of one connection.
    #[must_use]
    pub fn turn(&self) -> Turn {
        Turn { closing: self.clone(), share: draw(u64::MAX - 1) }
    }

    /// Returns when this share of the time has passed.
    async fn at(&self, share: u64) {
        self.begun().await;
        let Some((begun, spread)) = self.0.since.get() else { return };
        let spread_ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX);
        let wait = u128::from(spread_ms).saturating_mul(u128::from(share)) >> 64;
        let wait = if share == u64::MAX { spread_ms } else { u64::try_from(wait).unwrap_or(spread_ms) };
        if wait > 0 {
            sleep_until(*begun + Duration::from_millis(wait)).await;
        }
    }
}

/// When one connection ends, drawn once.
#[derive(Clone)]
pub struct Turn {
    closing: Closing,
    share: u64,
}

impl Turn {
    /// Returns when the connection is to end. Cancel safe.
    pub async fn comes(&self) {
        self.closing.at(self.share).await;
    }
}

/// A number from 0 to `most`.
fn draw(most: u64) -> u64 {
    // The low 64 bits of a random UUID but for its two of the variant.
    let random = u64::try_from(Uuid::new_v4().as_u128() & u128::from(u64::MAX)).unwrap_or_default() << 2;
    u64::try_from((u128::from(random) * (u128::from(most) + 1)) >> 64).unwrap_or_default()
}

/// The way to hang up a connection from outside of whoever reads it: it then reads its end, as if the client had gone. For protocols whose
/// own farewell would keep clients from coming back.
#[derive(Clone)]
pub struct Hangup(Arc<Line>);

struct Line {
    cut: AtomicBool,
    reader: AtomicWaker,
    gone: CancellationToken,
}

impl Hangup {
    /// A connection's, and what to hold for as long as it is there.
    #[must_use]
    pub fn new() -> (Self, DropGuard) {
        let gone = CancellationToken::new();
        let line = Line { cut: AtomicBool::new(false), reader: AtomicWaker::new(), gone: gone.clone() };
        (Self(Arc::new(line)), gone.drop_guard())
    }

    /// Hangs up.
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::Release);
        self.0.reader.wake();
    }

    /// Whether it was hung up; if not, `reader` is woken when it is.
    #[must_use]
    pub fn is_cut(&self, reader: &Waker) -> bool {
        self.0.reader.register(reader);
        self.0.cut.load(Ordering::Acquire)
    }

    /// Returns when the connection is gone, whoever ended it.
    pub async fn gone(&self) {
        self.0.gone.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_spread_over_the_time_and_over_with_it() {
        let closing = Closing::default();
        closing.arrange(Farewell { spread: Duration::from_millis(800), retry_ms: (100, 200) });
        let turns: Vec<_> = (0..500).map(|_| closing.turn()).collect();
        assert!(!closing.is_leaving() && !closing.has_begun());
        closing.begin();
        assert!(closing.is_leaving() && closing.has_begun());
        let begun = Instant::now();
        let tasks: Vec<_> = turns
            .into_iter()
            .map(|turn| {
                tokio::spawn(async move {
                    turn.comes().await;
                    Instant::now()
                })
            })
            .collect();
        let mut quarters = [0; 4];
        for task in tasks {
            let after = (task.await.unwrap() - begun).as_millis();
            quarters[usize::try_from(after / 200).unwrap().min(3)] += 1;
        }
        // Each is expected 125 times; a machine that pauses moves some of them on.
        assert!(quarters.iter().all(|turns| (50..=200).contains(turns)), "{quarters:?}");
        closing.over().await;
        assert!(begun.elapsed() >= Duration::from_millis(799));
    }

    #[test]
    fn clients_are_told_different_times_within_the_bounds() {
        let closing = Closing::default();
        closing.arrange(Farewell { spread: Duration::ZERO, retry_ms: (1000, 1009) });
        let told: std::collections::BTreeSet<u64> = (0..1000).map(|_| closing.retry_ms()).collect();
        assert_eq!(told.into_iter().collect::<Vec<_>>(), (1000..=1009).collect::<Vec<_>>());
        closing.arrange(Farewell { spread: Duration::ZERO, retry_ms: (7, 7) });
        assert_eq!(closing.retry_ms(), 7);
    }

    #[tokio::test]
    async fn without_a_time_every_turn_comes_at_once() {
        let closing = Closing::default();
        let turn = closing.turn();
        assert!(tokio::time::timeout(Duration::from_millis(20), turn.comes()).await.is_err(), "before it begins nobody's does");
        closing.begin();
        turn.comes().await;
        closing.over().await;
    }

    #[tokio::test]
    async fn who_holds_a_hangup_hears_that_the_connection_is_gone() {
        let (hangup, held) = Hangup::new();
        let waker = std::task::Waker::noop();
        assert!(!hangup.is_cut(waker));
        hangup.cut();
        assert!(hangup.is_cut(waker));
        drop(held);
        hangup.gone().await;
    }
}
