//! Rates: how often something may happen for one key. Keys fall into a fixed number of buckets, so nobody can make the table grow.
//!
//! Two keys in one bucket share its rate. Which ones do is drawn anew by each process, so nobody can aim at somebody else's.

use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Buckets of one rate. A bucket takes a few dozen bytes, once it was used.
const BUCKETS: u64 = 65_536;

/// How often something may happen, for each key.
pub(crate) struct Rate {
    /// `None` where there is no bound.
    limiter: Option<DefaultKeyedRateLimiter<u64>>,
    clock: DefaultClock,
    hashing: RandomState,
}

impl Rate {
    /// So many in this time, on average, and `burst` at once. 0 is no bound.
    pub(crate) fn new(many: u32, within: Duration, burst: u32) -> Self {
        let quota = NonZeroU32::new(many).and_then(|many| Quota::with_period(within / many.get()));
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let limiter = quota.map(|quota| RateLimiter::keyed(quota.allow_burst(burst)));
        Self { limiter, clock: DefaultClock::default(), hashing: RandomState::new() }
    }

    /// Counts one more for a key. `Err` says how long until there is room, and counts nothing.
    pub(crate) fn count(&self, key: &impl Hash) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let bucket = self.hashing.hash_one(key) % BUCKETS;
        limiter.check_key(&bucket).map_err(|not| not.wait_time_from(self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_let_through_and_what_is_beyond_it_waits() {
        let rate = Rate::new(10, Duration::from_secs(60), 3);
        for _ in 0..3 {
            rate.count(&"a").unwrap();
        }
        let wait = rate.count(&"a").unwrap_err();
        assert!(wait > Duration::from_secs(4) && wait <= Duration::from_secs(6), "{wait:?}");
        rate.count(&"b").unwrap();
    }

    #[test]
    fn zero_is_no_bound() {
        let rate = Rate::new(0, Duration::from_secs(1), 0);
        assert!((0..10_000).all(|_| rate.count(&"a").is_ok()));
    }

    #[test]
    fn the_table_does_not_grow_with_the_keys() {
        let rate = Rate::new(1_000_000, Duration::from_secs(1), 1_000_000);
        for key in 0..200_000u32 {
            rate.count(&key).unwrap();
        }
        assert!(rate.limiter.unwrap().len() as u64 <= BUCKETS);
    }
}
