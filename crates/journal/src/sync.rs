//! The locks, threads and clocks that the journal is built on, in one place: with the feature `shuttle` they are those of a model checker,
//! which tries the orders in which threads can run.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use interline_model::Millis;

pub(crate) use std::sync::{Arc, PoisonError, RwLock};

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, mpsc};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, mpsc};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread;

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

/// When a pause that begins now is over. A model checker has no time: there all pauses are over at once.
pub(crate) fn after(pause: Duration) -> Option<Instant> {
    if cfg!(feature = "shuttle") { Some(now()) } else { now().checked_add(pause) }
}

/// The clock that people read.
#[expect(clippy::disallowed_methods, reason = "it dates faults and damaged files, never records")]
pub(crate) fn unix_ms() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX))
}
