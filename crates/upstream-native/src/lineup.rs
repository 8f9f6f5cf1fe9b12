//! Lining a replay up with what was seen before: every frame once, in order, across any number of breaks.
//!
//! Frames carry no number, and after a break servers replay everything, a part, or nothing (native-ws.md §3.3, §4.3). A frame with a
//! `uuid`, or a request with a `request_id`, is known by that. The few others (`biumind.compact_*`, `null`) are known by where they
//! stand: as long as a connection still repeats what was seen, such a frame is looked for behind the place that the replay has reached.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use interline_model::Text;
use interline_native::Frame;

/// Texts up to this size together are kept as they are until their keys are needed: most runs never break.
const UNREAD_BYTES: usize = 256 * 1024;

/// The frames seen so far, and how far the present connection has repeated them.
pub(crate) struct LineUp {
    /// Seen, not yet read.
    unread: Vec<Text>,
    unread_bytes: usize,
    ids: HashMap<u128, u64>,
    /// Positions of the frames without an id, ascending.
    contents: HashMap<u128, Vec<u64>>,
    /// Position of the next new frame.
    next: u64,
    /// Where the replay has got to; `None` on the first connection, which repeats nothing.
    replay: Option<u64>,
    /// The last frame of this connection, if it had no id and was a repeat.
    repeated: Option<u128>,
    hashers: [RandomState; 2],
}

enum Key {
    Id(u128),
    Content(u128),
}

impl LineUp {
    pub(crate) fn new() -> Self {
        Self {
            unread: Vec::new(),
            unread_bytes: 0,
            ids: HashMap::new(),
            contents: HashMap::new(),
            next: 0,
            replay: None,
            repeated: None,
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    /// A new connection begins, which may repeat anything.
    pub(crate) fn rejoin(&mut self) {
        self.read();
        self.replay = Some(0);
        self.repeated = None;
    }

    /// Whether the frame is new; if so, it is seen now.
    pub(crate) fn admit(&mut self, frame: &Text) -> bool {
        let Some(replay) = self.replay else {
            self.unread_bytes = self.unread_bytes.saturating_add(frame.len());
            self.unread.push(frame.clone());
            if self.unread_bytes > UNREAD_BYTES {
                self.read();
            }
            return true;
        };
        match self.key(frame) {
            Key::Id(id) => {
                self.repeated = None;
                if let Some(&at) = self.ids.get(&id) {
                    self.replay = Some(at + 1);
                    return false;
                }
            }
            Key::Content(content) => {
                let places = self.contents.get(&content).map(Vec::as_slice).unwrap_or_default();
                let ahead = places.get(places.partition_point(|at| *at < replay));
                if let Some(&at) = ahead {
                    self.replay = Some(at + 1);
                    self.repeated = Some(content);
                    return false;
                }
                // Each frame twice, as a bridge does in the middle of a turn (§4.3).
                if self.repeated == Some(content) {
                    return false;
                }
                self.repeated = None;
            }
        }
        self.see(frame);
        self.replay = Some(self.next);
        true
    }

    /// How many frames were seen.
    pub(crate) fn seen(&self) -> u64 {
        self.next.saturating_add(self.unread.len() as u64)
    }

    /// Forgets all but the newest `keep` frames.
    pub(crate) fn forget(&mut self, keep: u64) {
        self.read();
        let first = self.next.saturating_sub(keep);
        self.ids.retain(|_, at| *at >= first);
        self.contents.retain(|_, places| {
            places.retain(|at| *at >= first);
            !places.is_empty()
        });
    }

    fn read(&mut self) {
        self.unread_bytes = 0;
        for frame in std::mem::take(&mut self.unread) {
            self.see(&frame);
        }
    }

    fn see(&mut self, frame: &Text) {
        match self.key(frame) {
            Key::Id(id) => {
                self.ids.entry(id).or_insert(self.next);
            }
            Key::Content(content) => self.contents.entry(content).or_default().push(self.next),
        }
        self.next += 1;
    }

    fn key(&self, frame: &Text) -> Key {
        let hash = |text: &str| {
            let [high, low] = &self.hashers;
            u128::from(high.hash_one(text)) << 64 | u128::from(low.hash_one(text))
        };
        match Frame::parse(frame).ok().and_then(|frame| frame.key().map(|key| hash(key.as_str()))) {
            Some(id) => Key::Id(id),
            None => Key::Content(hash(frame)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `a`–`z` are frames with an id, `A`–`Z` frames without.
    fn frame(c: char) -> Text {
        match c {
            'R' => Text::from_static(r#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool"}}"#),
            '0' => Text::from_static("null"),
            '!' => Text::from_static("{broken"),
            'A'..='Z' => Text::from(format!(r#"{{"type":"biumind.compact_started","session_id":"s","tokens_before":{}}}"#, u32::from(c))),
            _ => Text::from(format!(r#"{{"type":"streamlined_text","text":"{c}","uuid":"{c}"}}"#)),
        }
    }

    /// Sends each connection's frames; what comes out is what was new.
    fn through(connections: &[&str]) -> String {
        let mut lineup = LineUp::new();
        let mut new = String::new();
        for (n, connection) in connections.iter().enumerate() {
            if n > 0 {
                lineup.rejoin();
            }
            new.extend(connection.chars().filter(|c| lineup.admit(&frame(*c))));
        }
        assert_eq!(lineup.seen(), new.chars().count() as u64);
        new
    }

    #[test]
    fn replays_of_all_a_part_and_nothing() {
        for (connections, new) in [
            (vec!["abc", "abcde"], "abcde"),
            (vec!["abc", "cde"], "abcde"),
            (vec!["abc", "de"], "abcde"),
            (vec!["abc", "", "abc", "abcd"], "abcd"),
            (vec!["aRb", "aRbc"], "aRbc"),
            (vec!["abc", "aabbccdd"], "abcd"),
            (vec!["abc", "abcabcd"], "abcd"),
            (vec!["abc", "cabd"], "abcd"),
        ] {
            assert_eq!(through(&connections), new, "{connections:?}");
        }
    }

    #[test]
    fn frames_without_an_id_are_known_by_their_place() {
        for (connections, new) in [
            // Twice the same compaction is two.
            (vec!["aCbCc", "aCbCcCd"], "aCbCcCd"),
            (vec!["aCbCc", "bCcCd"], "aCbCcCd"),
            // Interrupted in the middle of the replay.
            (vec!["aCbC", "aCb", "aCbCDd"], "aCbCDd"),
            // Nothing is replayed, and a frame like one before comes.
            (vec!["aCb", "cCd"], "aCbcCd"),
            // A new one, first of all.
            (vec!["aCb", "DaCb"], "aCbD"),
            // Each frame twice.
            (vec!["aCb", "aaCCbbD"], "aCbD"),
            (vec!["C", "CCa"], "Ca"),
            (vec!["a00b", "a00b0!"], "a00b0!"),
        ] {
            assert_eq!(through(&connections), new, "{connections:?}");
        }
    }

    #[test]
    fn the_first_connection_repeats_nothing() {
        assert_eq!(through(&["aaCC"]), "aaCC");
    }

    #[test]
    fn what_is_forgotten_is_new_again() {
        let mut lineup = LineUp::new();
        for c in "aCbc".chars() {
            assert!(lineup.admit(&frame(c)));
        }
        lineup.forget(2);
        lineup.rejoin();
        let new: String = "aCbcd".chars().filter(|c| lineup.admit(&frame(*c))).collect();
        assert_eq!(new, "aCd");
    }

    #[test]
    fn large_texts_are_not_kept() {
        let mut lineup = LineUp::new();
        let big = Text::from(format!(r#"{{"type":"tool_use_summary","uuid":"big","summary":"{}"}}"#, "x".repeat(UNREAD_BYTES)));
        assert!(lineup.admit(&big));
        assert!(lineup.unread.is_empty());
        lineup.rejoin();
        assert!(!lineup.admit(&big));
    }

    proptest! {
        /// The server's frames, cut into connections anywhere; each later one begins anywhere in what was seen, possibly over again.
        #[test]
        fn exactly_once_in_order(
            kinds in prop::collection::vec(any::<bool>(), 1..60),
            breaks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_usize..3), 0..6),
        ) {
            // Frames without an id differ in content here; those that do not are in the tables above.
            let truth: Vec<Text> = kinds.iter().enumerate().map(|(n, id)| Text::from(match id {
                true => format!(r#"{{"type":"streamlined_text","uuid":"{n}"}}"#),
                false => format!(r#"{{"type":"biumind.compact_started","tokens_before":{n}}}"#),
            })).collect();
            let mut lineup = LineUp::new();
            let mut delivered: Vec<Text> = Vec::new();
            let mut send = |lineup: &mut LineUp, frames: &[Text]| {
                for frame in frames {
                    if lineup.admit(frame) {
                        delivered.push(frame.clone());
                    }
                }
            };
            let mut seen = 0;
            for (begin, end, again) in &breaks {
                // A replay that is repeated begins with a frame that has an id; without one nothing tells a repeat from a new frame.
                let begin = begin.index(seen + 1);
                for _ in 0..*again {
                    if kinds[begin..seen].first() == Some(&true) {
                        send(&mut lineup, &truth[begin..seen]);
                    }
                }
                let end = (seen + end.index(truth.len() - seen + 1)).max(seen);
                send(&mut lineup, &truth[begin..end]);
                seen = end;
                lineup.rejoin();
            }
            send(&mut lineup, &truth[seen..]);
            prop_assert_eq!(&delivered, &truth);
        }
    }
}
