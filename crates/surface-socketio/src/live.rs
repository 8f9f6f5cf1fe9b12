//! The turns of a run that can still change, found by their lane and by whether they are at rest: a run may have thousands of them, and what
//! happens in one must not cost a look at all.

use std::collections::{BTreeSet, HashMap};

use interline_model::Lane;

/// Turns that have not ended, and those that paused, by their numbers.
#[derive(Default)]
pub(crate) struct Live {
    all: BTreeSet<usize>,
    by_lane: HashMap<Lane, BTreeSet<usize>>,
    /// Those that a pause has to look at. The others have ended as `paused`, and all their calls wait.
    restless: BTreeSet<usize>,
}

impl Live {
    pub(crate) fn add(&mut self, at: usize, lane: &Lane) {
        self.all.insert(at);
        self.by_lane.entry(lane.clone()).or_default().insert(at);
        self.restless.insert(at);
    }

    pub(crate) fn remove(&mut self, at: usize, lane: &Lane) {
        self.all.remove(&at);
        self.restless.remove(&at);
        if let Some(mine) = self.by_lane.get_mut(lane) {
            mine.remove(&at);
            if mine.is_empty() {
                self.by_lane.remove(lane);
            }
        }
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.all.contains(&at)
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = usize> {
        self.all.iter().copied()
    }

    /// The lanes that have any, in no order.
    pub(crate) fn lanes(&self) -> impl ExactSizeIterator<Item = (&Lane, &BTreeSet<usize>)> {
        self.by_lane.iter()
    }

    /// Those of a lane, newest first.
    pub(crate) fn newest_of(&self, lane: &Lane) -> impl Iterator<Item = usize> {
        self.by_lane.get(lane).into_iter().flatten().rev().copied()
    }

    pub(crate) fn of(&self, lane: &Lane) -> Option<&BTreeSet<usize>> {
        self.by_lane.get(lane)
    }

    pub(crate) fn restless(&self) -> &BTreeSet<usize> {
        &self.restless
    }

    /// It has paused.
    pub(crate) fn rests(&mut self, at: usize) {
        self.restless.remove(&at);
    }

    /// It goes on.
    pub(crate) fn stirs(&mut self, at: usize) {
        if self.all.contains(&at) {
            self.restless.insert(at);
        }
    }
}
