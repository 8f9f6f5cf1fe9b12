//! The pauses between reconnections: doubling, with jitter, and not for ever.

use std::time::Duration;

use tokio::time::Instant;

use crate::LinkConfig;

/// How often a connection failed in a row, and what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    attempts: u32,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        Self {
            first: Duration::from_millis(config.backoff_first_ms),
            max: Duration::from_millis(config.backoff_max_ms),
            attempts: config.attempts,
            failures: 0,
        }
    }

    /// One more failure: how long to wait, or `None` if it was the last one. Up to half of the pause is taken off by `chance`, so
    /// that the links to a server that comes back do not all come at once.
    pub(crate) fn failed(&mut self, chance: u32) -> Option<Duration> {
        if self.failures >= self.attempts {
            return None;
        }
        let doubled = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        let half = doubled.min(self.max) / 2;
        Some(half + half.mul_f64(f64::from(chance) / f64::from(u32::MAX)))
    }

    /// The connection is good: what failed before does not count any more.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Never gives up.
    pub(crate) fn endless(&mut self) {
        self.attempts = u32::MAX;
    }
}

/// A number drawn for [`Backoff::failed`].
pub(crate) fn chance() -> u32 {
    // The random bits of a UUID; its first 32 are all random.
    u32::try_from(uuid::Uuid::new_v4().as_u128() >> 96).unwrap_or_default()
}

/// For a branch that is switched off without a moment.
pub(crate) async fn sleep_until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_longest_and_gives_up() {
        let mut backoff = Backoff::new(&LinkConfig::default());
        let pauses: Vec<u64> = std::iter::from_fn(|| backoff.failed(u32::MAX)).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        backoff.reset();
        assert_eq!(backoff.failed(0), Some(Duration::from_millis(500)));
        backoff.endless();
        for _ in 0..200 {
            assert!(backoff.failed(0).is_some());
        }
        assert_eq!(backoff.failed(0), Some(Duration::from_secs(15)));
    }
}
