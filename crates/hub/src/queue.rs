//! The runs of a session that wait for the one before them, in the order in which they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, OwnedMutexGuard};

/// A session's queue.
#[derive(Default)]
pub(crate) struct Queue {
    count: Arc<AtomicUsize>,
    /// Held by the first; tokio's lock is fair.
    turn: Arc<Mutex<()>>,
}

/// A place in the queue; given up when dropped.
pub(crate) struct Place {
    count: Arc<AtomicUsize>,
    turn: Arc<Mutex<()>>,
}

/// The first place.
pub(crate) struct Turn {
    _place: Place,
    _turn: OwnedMutexGuard<()>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The last place, unless `max` are taken.
    pub(crate) fn enter(&self, max: usize) -> Option<Place> {
        let enter = |count: usize| (count < max).then_some(count.saturating_add(1));
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).ok()?;
        Some(Place { count: self.count.clone(), turn: self.turn.clone() })
    }
}

impl Place {
    /// Waits until this is the first place.
    pub(crate) async fn turn(self) -> Turn {
        let turn = self.turn.clone().lock_owned().await;
        Turn { _place: self, _turn: turn }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_bounded_and_given_up() {
        let queue = Queue::default();
        let one = queue.enter(2).unwrap().turn().await;
        let two = queue.enter(2).unwrap();
        assert!(queue.enter(2).is_none());
        let second = tokio::spawn(two.turn());
        drop(one);
        drop(second.await.unwrap());
        assert_eq!(queue.len(), 0);
    }
}
