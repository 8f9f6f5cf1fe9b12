//! How many clients watch a session now, and since when nobody does.

use std::sync::{Arc, Mutex, PoisonError};

use interline_model::Millis;

use crate::session::now;

/// The watchers of one session. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Watchers(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    count: usize,
    /// When the last one left, or the session began.
    since: Millis,
}

/// Somebody who watches; leaves when dropped.
#[derive(Debug)]
pub(crate) struct Watching(Watchers);

impl Watchers {
    pub(crate) fn new(now: Millis) -> Self {
        Self(Arc::new(Mutex::new(State { count: 0, since: now })))
    }

    pub(crate) fn enter(&self) -> Watching {
        self.with(|state| state.count += 1);
        Watching(self.clone())
    }

    /// Since when nobody watches; `None` while somebody does.
    pub(crate) fn nobody_since(&self) -> Option<Millis> {
        self.with(|state| (state.count == 0).then_some(state.since))
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.count = state.count.saturating_sub(1);
            state.since = now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_watches_once_the_last_one_has_left() {
        let watchers = Watchers::new(7);
        assert_eq!(watchers.nobody_since(), Some(7));
        let (one, two) = (watchers.enter(), watchers.enter());
        assert_eq!(watchers.nobody_since(), None);
        drop(one);
        assert_eq!(watchers.nobody_since(), None);
        drop(two);
        assert!(watchers.nobody_since().is_some_and(|since| since > 7));
    }
}
