//! The runs of a session that wait for the one before them, in the order in which they came.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use interline_model::RunId;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// A session's queue.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Arc<Mutex<Vec<Waiting>>>,
    /// Held by the first; tokio's lock is fair.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct Waiting {
    run: RunId,
    given_up: CancellationToken,
}

/// A place in the queue; given up when dropped.
pub(crate) struct Place {
    run: RunId,
    waiting: Arc<Mutex<Vec<Waiting>>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The first place.
pub(crate) struct Turn {
    _place: Place,
    _turn: OwnedMutexGuard<()>,
}

fn lock(waiting: &Mutex<Vec<Waiting>>) -> MutexGuard<'_, Vec<Waiting>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// The last place, for `run`, unless `max` are taken. `given_up` is cancelled when somebody wants it to wait no longer.
    pub(crate) fn enter(&self, max: usize, run: RunId, given_up: CancellationToken) -> Option<Place> {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= max {
            return None;
        }
        waiting.push(Waiting { run, given_up });
        Some(Place { run, waiting: self.waiting.clone(), turn: self.turn.clone() })
    }

    /// Gives up the run that waits under this id, or all that wait. The last of them, if there were any.
    pub(crate) fn give_up(&self, run: Option<RunId>) -> Option<RunId> {
        let mut last = None;
        for waiting in lock(&self.waiting).iter().filter(|waiting| run.is_none_or(|run| run == waiting.run)) {
            waiting.given_up.cancel();
            last = Some(waiting.run);
        }
        last
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
        lock(&self.waiting).retain(|waiting| waiting.run != self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_bounded_and_given_up() {
        let (queue, run) = (Queue::default(), RunId::from_u128);
        let token = CancellationToken::new;
        let one = queue.enter(2, run(1), token()).unwrap().turn().await;
        let given_up = token();
        let two = queue.enter(2, run(2), given_up.clone()).unwrap();
        assert!(queue.enter(2, run(3), token()).is_none());
        assert_eq!(queue.give_up(Some(run(3))), None);
        assert_eq!(queue.give_up(Some(run(2))), Some(run(2)));
        assert!(given_up.is_cancelled());
        let second = tokio::spawn(two.turn());
        drop(one);
        drop(second.await.unwrap());
        assert_eq!((queue.len(), queue.give_up(None)), (0, None));
    }
}
