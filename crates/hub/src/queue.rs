//! The runs of a session that wait for the one before them, in the order in which they came.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use interline_journal::Log;
use interline_model::{Actor, Body, Fact, Millis, Record, RunId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::session::{append_patiently, now};

/// A session's queue.
#[derive(Default)]
pub(crate) struct Queue {
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    waiting: Mutex<Vec<Waiting>>,
    /// Somebody left.
    moved: Notify,
}

struct Waiting {
    run: RunId,
    at: Millis,
    wish: Arc<Wish>,
}

/// Whether somebody wants a run to wait no longer.
#[derive(Default)]
pub(crate) struct Wish {
    by: OnceLock<Actor>,
    given_up: CancellationToken,
    /// Where the run is kept, and the wish with it.
    log: OnceLock<Arc<dyn Log>>,
}

/// A place in the queue; given up when dropped.
pub(crate) struct Place {
    run: RunId,
    at: Millis,
    line: Arc<Line>,
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.line.waiting().len()
    }

    /// The last place, for `run`, unless `max` are taken. One that had a place brings the time of it along.
    pub(crate) fn enter(&self, max: usize, run: RunId, at: Option<Millis>, wish: Arc<Wish>) -> Option<Place> {
        let mut waiting = self.line.waiting();
        if waiting.len() >= max {
            return None;
        }
        let behind = waiting.last().map_or(0, |last| last.at.saturating_add(1));
        let at = at.unwrap_or_else(|| now().max(behind));
        waiting.push(Waiting { run, at, wish });
        Some(Place { run, at, line: self.line.clone() })
    }

    /// Gives up the run that waits under this id, or all that wait. The last of them, if there were any.
    pub(crate) fn give_up(&self, run: Option<RunId>, by: &Actor) -> Option<RunId> {
        let all = self.line.waiting();
        let meant = all.iter().filter(|waiting| run.is_none_or(|run| run == waiting.run));
        let meant: Vec<(RunId, Arc<Wish>)> = meant.map(|waiting| (waiting.run, waiting.wish.clone())).collect();
        drop(all);
        meant.iter().for_each(|(_, wish)| wish.stop(by));
        meant.last().map(|(run, _)| *run)
    }
}

impl Wish {
    /// From now on it is kept here.
    pub(crate) fn set_log(&self, log: Arc<dyn Log>) {
        let _ = self.log.set(log);
    }

    /// Wishes it. The first one is who did.
    fn stop(&self, by: &Actor) {
        if self.by.set(by.clone()).is_err() {
            return;
        }
        if let Some(log) = self.log.get() {
            let record = Record { at: now(), body: Body::Fact(Fact::StopRequested { by: by.clone() }) };
            // What the disk does not take is forgotten with this process, as the run is if it begins before.
            let _ = append_patiently(&**log, record, interline_journal::Mark::Plain);
        }
        self.given_up.cancel();
    }

    /// Who wished it.
    pub(crate) fn by(&self) -> Option<&Actor> {
        self.by.get()
    }

    pub(crate) fn given_up(&self) -> CancellationToken {
        self.given_up.clone()
    }
}

impl Place {
    /// When it was taken, in milliseconds; of two in one queue the earlier one has less.
    pub(crate) fn at(&self) -> Millis {
        self.at
    }

    /// Waits until this is the first place.
    pub(crate) async fn is_first(&self) {
        loop {
            let moved = self.line.moved.notified();
            if self.line.waiting().first().is_none_or(|first| first.run == self.run) {
                return;
            }
            moved.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.waiting().retain(|waiting| waiting.run != self.run);
        self.line.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use interline_model::{Principal, Text};

    use super::*;

    #[tokio::test]
    async fn places_are_bounded_and_given_up() {
        let (queue, run) = (Queue::default(), RunId::from_u128);
        let by = Actor { principal: Principal::from("p"), surface: Text::from_static("sse") };
        let one = queue.enter(2, run(1), None, Arc::default()).unwrap();
        one.is_first().await;
        let wish: Arc<Wish> = Arc::default();
        let two = queue.enter(2, run(2), None, wish.clone()).unwrap();
        assert!(queue.enter(2, run(3), None, Arc::default()).is_none());
        assert_eq!(queue.give_up(Some(run(3)), &by), None);
        assert_eq!(queue.give_up(Some(run(2)), &by), Some(run(2)));
        assert!(wish.given_up().is_cancelled());
        assert_eq!(wish.by(), Some(&by));
        drop(one);
        two.is_first().await;
        drop(two);
        assert_eq!((queue.len(), queue.give_up(None, &by)), (0, None));
    }

    /// Whoever came first is first, whoever looks first.
    #[tokio::test]
    async fn the_order_is_that_of_coming() {
        let queue = Queue::default();
        let places: Vec<Place> = (0..20).map(|n| queue.enter(99, RunId::from_u128(n), None, Arc::default()).unwrap()).collect();
        assert!(places.windows(2).all(|two| two[0].at() < two[1].at()));
        let (sender, mut came) = tokio::sync::mpsc::unbounded_channel();
        for place in places.into_iter().rev() {
            let sender = sender.clone();
            tokio::spawn(async move {
                place.is_first().await;
                sender.send(place.run).unwrap();
            });
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(sender);
        let mut order = Vec::new();
        while let Some(run) = came.recv().await {
            order.push(run);
        }
        assert_eq!(order, (0..20).map(RunId::from_u128).collect::<Vec<_>>());
    }
}
