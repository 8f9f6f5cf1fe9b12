//! Lining a replay up with what was seen before: every frame once, in order, across any number of breaks.
//!
//! Frames carry no number, and after a break servers replay everything, a part, or nothing (native-ws.md §3.3, §4.3). A frame with a
//! `uuid`, or a request with a `request_id`, is known by that. The few others (`biumind.compact_*`, `null`) are known by where they
//! stand: as long as a connection still repeats what was seen, such a frame is looked for behind the place that the replay has reached.
//!
//! Where a server lets us say how far we are, too small a number costs a longer replay, and too large a one costs frames. So only
//! what every server must have numbered is counted: a frame with an id, the first time it comes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use interline_model::Text;
use interline_native::Frame;
use interline_native::frame;

/// Texts up to this size together are kept as they are until their keys are needed: most runs never break.
const UNREAD_BYTES: usize = 256 * 1024;

/// The frames seen so far, and how far the present connection has repeated them.
pub(crate) struct LineUp {
    /// Seen, not yet read.
    unread: Vec<Text>,
    unread_bytes: usize,
    /// Every id with the position where it first stood. None is ever let go: an id that came again after that would be counted again.
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

    /// What was seen before, by another process.
    pub(crate) fn of(frames: &[Text]) -> Self {
        let mut lineup = Self::new();
        frames.iter().for_each(|frame| lineup.see(frame));
        lineup
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

    /// How many frames with an id were seen, each once: at most the number of the last one, however the server numbers them.
    pub(crate) fn distinct(&mut self) -> u64 {
        self.read();
        self.ids.len() as u64
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
        match Frame::parse(frame).ok().and_then(|frame| frame.key()) {
            Some(frame::Key::Uuid(uuid)) => Key::Id(self.hash('u', &uuid)),
            Some(frame::Key::Request(request)) => Key::Id(self.hash('r', &request)),
            None => Key::Content(self.hash('c', frame)),
        }
    }

    fn hash(&self, kind: char, text: &str) -> u128 {
        let [high, low] = &self.hashers;
        u128::from(high.hash_one((kind, text))) << 64 | u128::from(low.hash_one((kind, text)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

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
        let ids: HashSet<char> = new.chars().filter(|c| c.is_ascii_lowercase() || *c == 'R').collect();
        assert_eq!(lineup.distinct(), ids.len() as u64);
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
    fn a_request_is_no_repeat_of_a_frame_whose_uuid_reads_like_its_id() {
        assert_eq!(through(&["raR", "rRrR"]), "raR");
        assert_eq!(through(&["ra", "rRb"]), "raRb");
    }

    #[test]
    fn only_what_every_server_has_numbered_is_counted() {
        for (connection, count) in [("", 0), ("aabb", 2), ("a0!CCb", 2), ("00!!C", 0), ("aRaRr", 3)] {
            let mut lineup = LineUp::new();
            assert!(connection.chars().all(|c| lineup.admit(&frame(c))), "the first connection hands everything on");
            assert_eq!(lineup.distinct(), count, "{connection}");
            lineup.rejoin();
            connection.chars().for_each(|c| assert!(!lineup.admit(&frame(c)), "{connection} {c}"));
            assert_eq!(lineup.distinct(), count, "{connection}");
        }
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

        /// Messages of every sort, repeats among them, over connections that break anywhere. Servers that number every message, only those
        /// with an id, or each of these once, all honour the number that they are told: nothing is lost and nothing comes twice.
        #[test]
        fn the_number_that_a_server_is_told_never_skips_a_frame(
            messages in prop::collection::vec(prop_oneof![4 => 0..6_usize, 4 => 6..12_usize, 1 => Just(12_usize), 1 => Just(13_usize), 1 => Just(14_usize)], 1..60),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
            numbering in 0..3_u8,
        ) {
            let text = |sort: usize| Text::from(match sort {
                0..6 => format!(r#"{{"type":"streamlined_text","uuid":"{sort}"}}"#),
                6..12 => format!(r#"{{"type":"control_request","request_id":"{}","request":{{"subtype":"can_use_tool"}}}}"#, sort - 6),
                12 => "null".to_owned(),
                13 => "{broken".to_owned(),
                _ => r#"{"type":"biumind.compact_started"}"#.to_owned(),
            });
            // The number of each message, which is that of the one before where it has none of its own.
            let mut numbered = HashSet::new();
            let numbers: Vec<u64> = messages.iter().scan(0, |number, sort| {
                *number += u64::from(match numbering {
                    0 => true,
                    1 => *sort < 12,
                    _ => *sort < 12 && numbered.insert(*sort),
                });
                Some(*number)
            }).collect();
            let mut lineup = LineUp::new();
            let mut came = Vec::new();
            let mut sent = 0_usize;
            for cut in cuts.iter().map(|cut| cut.index(messages.len() + 1)).chain([messages.len()]) {
                let told = lineup.distinct();
                prop_assert!(told <= sent.checked_sub(1).map_or(0, |last| numbers[last]), "no message has that number yet");
                // No number is no cursor: everything.
                let begin = if told == 0 { 0 } else { numbers.partition_point(|number| *number <= told) };
                for sort in messages.iter().take(cut).skip(begin) {
                    if lineup.admit(&text(*sort)) && *sort < 12 && !came.contains(sort) {
                        came.push(*sort);
                    }
                }
                sent = sent.max(cut);
                lineup.rejoin();
            }
            let mut truth = Vec::new();
            messages.iter().filter(|sort| **sort < 12).for_each(|sort| if !truth.contains(sort) { truth.push(*sort) });
            prop_assert_eq!(came, truth);
        }
    }
}
