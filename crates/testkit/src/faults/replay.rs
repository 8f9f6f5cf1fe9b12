//! What a server may send again after a break, made from what it has sent: twice, in another order, or in part.
//!
//! Only frames that the other side has are left out or put elsewhere, by its own count: the cursor that it comes back with. A frame that it has
//! never seen is neither: no recovery could make that good.

use std::collections::HashMap;

use crate::seed::Seed;

/// How a replay goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replay {
    /// Each frame twice, and then all of it again.
    Duplicated,
    /// In another order.
    Reordered,
    /// Some of it.
    Partial,
}

/// What was sent on a run's connections, each frame once, in order.
#[derive(Default)]
pub(super) struct History {
    texts: Vec<String>,
    /// Each with its place.
    known: HashMap<String, usize>,
    /// How many the other side has.
    counted: usize,
}

impl History {
    /// Keeps a frame; true if it is a new one.
    pub(super) fn keep(&mut self, text: &str) -> bool {
        let is_new = !self.known.contains_key(text);
        if is_new {
            self.known.insert(text.to_owned(), self.texts.len());
            self.texts.push(text.to_owned());
        }
        is_new
    }

    /// The other side has so many.
    pub(super) fn counted(&mut self, count: usize) {
        self.counted = count.min(self.texts.len());
    }

    pub(super) fn has_arrived(&self, text: &str) -> bool {
        self.known.get(text).is_some_and(|place| *place < self.counted)
    }

    /// What is sent first on a new connection.
    pub(super) fn replayed(&self, how: Replay, seed: &mut Seed) -> Vec<String> {
        let sure: Vec<&String> = self.texts.iter().take(self.counted).collect();
        let mut replayed: Vec<String> = match how {
            Replay::Duplicated => {
                let twice = sure.iter().flat_map(|text| [*text, *text]);
                twice.chain(sure.iter().copied()).cloned().collect()
            }
            Replay::Reordered => sure.into_iter().cloned().collect(),
            Replay::Partial => sure.into_iter().filter(|_| seed.chance(50)).cloned().collect(),
        };
        if how == Replay::Reordered {
            seed.shuffle(&mut replayed);
        }
        replayed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn history() -> History {
        let mut history = History::default();
        for text in ["a", "b", "c", "d", "e", "f", "g", "lost"] {
            assert!(history.keep(text));
        }
        assert!(!history.keep("a"));
        history.counted(7);
        history
    }

    #[test]
    fn only_what_arrived_is_replayed() {
        let (history, mut seed) = (history(), Seed::new(3));
        assert!(history.has_arrived("g") && !history.has_arrived("lost"));
        assert_eq!(history.replayed(Replay::Duplicated, &mut seed).concat(), "aabbccddeeffggabcdefg");
        let reordered = history.replayed(Replay::Reordered, &mut seed);
        assert_ne!(reordered.concat(), "abcdefg");
        assert_eq!(reordered.iter().collect::<HashSet<_>>().len(), 7);
        let part = history.replayed(Replay::Partial, &mut seed);
        assert!((1..7).contains(&part.len()) && part.is_sorted(), "{part:?}");
    }
}
