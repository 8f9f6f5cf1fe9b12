//! The locks, threads and clocks that the journal is built on, in one place: so that a model checker can be put in their stead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
pub(crate) use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use interline_model::Millis;

/// Locks, whatever happened to whoever held the lock before: nothing here is left half done while it is held.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be woken.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be woken, or until the time is over.
pub(crate) fn wait_for<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

/// The clock that measures pauses.
#[expect(clippy::disallowed_methods, reason = "a thread that waits for a disk has no other clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The clock that people read.
#[expect(clippy::disallowed_methods, reason = "it dates faults and damaged files, never records")]
pub(crate) fn unix_ms() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX))
}
