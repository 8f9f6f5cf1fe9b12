//! Lining a replay up with what was seen before: every frame once, in order, across any number of breaks.
//!
//! Frames carry no number, and after a break servers replay everything, a part, or nothing (native-ws.md §3.3, §4.3). A frame with a
//! `uuid`, or a request with a `request_id`, is known by that. The few others (`biumind.compact_*`, `null`) are known by where they
//! stand: as long as a connection still repeats what was seen, such a frame is looked for behind the place that the replay has reached.
//!
//! Where a server lets us say how far we are, too small a number costs a longer replay, and too large a one costs frames. So only
//! what every server must have numbered is counted: a frame with an id, the first time it comes. And it is asked for one that is known:
//! if that does not come, the server took no notice of the number, and more may be missing.
//!
//! What comes before anything known is kept back for a moment. If the first known frame is the first one that was ever had, or the first
//! behind a gap, it was a part of what is missing there: a log has no place for it any more, since what follows it was shown.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use interline_model::Text;
use interline_native::Frame;
use interline_native::frame::{self, Data};

/// Texts up to this size together are kept as they are until their keys are needed: most runs never break.
const UNREAD_BYTES: usize = 256 * 1024;

/// The frames seen so far, and how far the present connection has repeated them.
pub(crate) struct LineUp {
    /// Seen, not yet read.
    unread: Vec<Waiting>,
    unread_bytes: usize,
    /// Every id with the position where it first stood. None is ever let go: an id that came again after that would be counted again.
    ids: HashMap<u128, u64>,
    /// Positions of the frames without an id, ascending.
    contents: HashMap<u128, Vec<u64>>,
    /// Position of the next new frame.
    next: u64,
    /// How many different frames were seen that the server has numbered, and how many of them are not known here.
    count: u64,
    base: u64,
    /// Where the replay has got to; `None` on the first connection, which repeats nothing.
    replay: Option<u64>,
    /// The last frame of this connection, if it had no id and was a repeat.
    repeated: Option<u128>,
    /// All frames are one run's, whose result comes behind all others wherever the server puts it.
    is_one_run: bool,
    /// What the next numbered frame tells.
    overlap: Overlap,
    /// Not seen before, on a connection that has repeated nothing yet: newer than all others, or older than some.
    waiting: Vec<Waiting>,
    /// Their keys.
    waiting_keys: HashSet<u128>,
    /// A doubtful place was repeated behind them: they are older, if what followed it then follows it again.
    older_than: Option<u64>,
    /// Position of the last numbered frame, and the frame.
    last: u64,
    last_frame: Option<Text>,
    /// The id of the last numbered frame of before, as long as there is none since.
    last_before: Option<String>,
    /// The frame at position 0 is the last one of before. Until it is repeated, what a connection says can be of before, too.
    is_behind: bool,
    /// Where something may be missing before the frame at that position; whether that was said.
    doubts: HashMap<u64, bool>,
    /// The server may still have what is missing, and would repeat it before anything known.
    may_repeat_older: bool,
    hashers: [RandomState; 2],
}

/// Whether a connection that is not the first repeats something before it says anything new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// It was asked for nothing that is known.
    None,
    /// It may have been asked for something that is known.
    Possible,
    /// It was asked for something that is known. Where that does not come, more may be missing.
    Asked,
}

/// What a frame is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    New,
    Repeat,
    /// That will be seen: [`LineUp::settle`] after a while.
    Waits,
    /// A repeat, which tells what those were that waited.
    Settles(Settled),
}

/// What the frames were that waited.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Those that are new, in order. The others were older than what was seen, and have no place any more.
    pub(crate) fresh: Vec<Text>,
    /// Something is missing, which was not said before.
    pub(crate) missed: bool,
}

struct Waiting {
    frame: Text,
    is_numbered: bool,
}

enum Key {
    Id(u128),
    Content(u128),
}

impl Key {
    fn hash(&self) -> u128 {
        match self {
            Self::Id(hash) | Self::Content(hash) => *hash,
        }
    }
}

impl LineUp {
    pub(crate) fn new() -> Self {
        Self::behind_unknown(0)
    }

    /// Of a session that had so many numbered frames before, of which the last one had this id. Servers that number more than is counted here
    /// repeat some of them: what comes up to that one is of before.
    pub(crate) fn behind(count: u64, last: Option<&str>) -> Self {
        let mut lineup = Self::behind_unknown(count);
        if let (Some(last), Some(base)) = (last, count.checked_sub(1)) {
            lineup.ids.insert(lineup.hash('u', last), 0);
            (lineup.base, lineup.next, lineup.is_behind) = (base, 1, true);
            lineup.last_before = Some(last.to_owned());
        }
        lineup
    }

    fn behind_unknown(count: u64) -> Self {
        Self {
            unread: Vec::new(),
            unread_bytes: 0,
            ids: HashMap::new(),
            contents: HashMap::new(),
            next: 0,
            count,
            base: count,
            replay: None,
            repeated: None,
            is_one_run: false,
            overlap: Overlap::None,
            waiting: Vec::new(),
            waiting_keys: HashSet::new(),
            older_than: None,
            last: 0,
            last_frame: None,
            last_before: None,
            is_behind: false,
            // Whoever came late to the first connection does not know.
            doubts: HashMap::from([(0, false)]),
            may_repeat_older: false,
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    /// Of a session that is one run.
    pub(crate) fn of_one_run() -> Self {
        Self { is_one_run: true, ..Self::new() }
    }

    /// The number to ask for what follows it, and what then comes from a server that honours it: the last known frame is repeated, if there is
    /// one. 0 is no number.
    pub(crate) fn cursor(&mut self) -> (u64, Overlap) {
        match self.count() {
            count if count == self.base => (count, Overlap::None),
            // 0 would be no cursor.
            1 => (1, Overlap::Possible),
            count => (count - 1, Overlap::Asked),
        }
    }

    /// A new connection begins, which may repeat anything.
    pub(crate) fn rejoin(&mut self, overlap: Overlap) {
        self.read();
        self.replay = Some(0);
        self.repeated = None;
        self.overlap = overlap;
        self.older_than = None;
    }

    /// Something may be missing here, and that is said. The server may have it all the same.
    pub(crate) fn doubt(&mut self) {
        self.read();
        self.doubts.insert(self.next, true);
        self.may_repeat_older = true;
    }

    /// Takes a frame; `is_numbered` if the server numbers those of its kind that have an id.
    pub(crate) fn admit(&mut self, frame: &Text, is_numbered: bool) -> Admitted {
        let Some(replay) = self.replay else {
            self.unread_bytes = self.unread_bytes.saturating_add(frame.len());
            self.unread.push(Waiting { frame: frame.clone(), is_numbered });
            if self.unread_bytes > UNREAD_BYTES {
                self.read();
            }
            return Admitted::New;
        };
        let key = self.key(frame);
        let decides = is_numbered && matches!(key, Key::Id(_));
        match key {
            Key::Id(id) => {
                self.repeated = None;
                if let Some(&at) = self.ids.get(&id) {
                    self.replay = Some(at + 1);
                    return if decides { self.repeats(at) } else { Admitted::Repeat };
                }
            }
            Key::Content(content) => {
                let places = self.contents.get(&content).map(Vec::as_slice).unwrap_or_default();
                let ahead = places.get(places.partition_point(|at| *at < replay));
                if let Some(&at) = ahead {
                    self.replay = Some(at + 1);
                    self.repeated = Some(content);
                    return Admitted::Repeat;
                }
                // Each frame twice, as a bridge does in the middle of a turn (§4.3).
                if self.repeated == Some(content) {
                    return Admitted::Repeat;
                }
                self.repeated = None;
            }
        }
        if self.waits() || ((decides || self.is_behind) && self.overlap != Overlap::None) {
            if self.waiting_keys.insert(key.hash()) {
                self.waiting.push(Waiting { frame: frame.clone(), is_numbered });
            }
            if decides && self.older_than.is_some() {
                // A server that says things in an order of its own.
                return Admitted::Settles(Settled { fresh: self.release(None), missed: false });
            }
            return Admitted::Waits;
        }
        self.place(frame, is_numbered);
        self.replay = Some(self.next);
        Admitted::New
    }

    /// Whether frames that wait are likely to be older than those that are known.
    pub(crate) fn are_likely_older(&self) -> bool {
        self.may_repeat_older
    }

    /// Whether frames wait.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Nothing was repeated for a while, or nothing more comes: what waited is new.
    pub(crate) fn settle(&mut self) -> Settled {
        let missed = self.overlap == Overlap::Asked && self.waits();
        if missed {
            // It repeats nothing at all.
            self.doubts.insert(self.next, true);
            self.may_repeat_older = false;
        }
        self.overlap = Overlap::None;
        let mut fresh = self.release(None);
        for Waiting { frame, is_numbered } in std::mem::take(&mut self.waiting) {
            self.place(&frame, is_numbered);
            fresh.push(frame);
        }
        self.waiting_keys.clear();
        Settled { fresh, missed }
    }

    /// The numbered frame at this position was repeated. What came before it on this connection is older, if it is the first one behind a doubt,
    /// and those that followed it do so again; else the server says things in an order of its own.
    fn repeats(&mut self, at: u64) -> Admitted {
        self.overlap = Overlap::None;
        if !self.waits() {
            self.is_behind = false;
            return Admitted::Repeat;
        }
        if at == 0 && std::mem::take(&mut self.is_behind) {
            return Admitted::Settles(Settled { fresh: self.release_behind(), missed: false });
        }
        let first = *self.older_than.get_or_insert(at);
        let Some(was_said) = self.doubts.get(&first).copied() else {
            return Admitted::Settles(Settled { fresh: self.release(None), missed: false });
        };
        if at == first && at < self.last {
            return Admitted::Waits;
        }
        let before = self.waiting.len();
        let fresh = self.release(Some(first));
        // Those that are neither new nor wait on.
        let are_older = before > fresh.len() + self.waiting.len();
        if are_older {
            self.doubts.insert(first, true);
        }
        Admitted::Settles(Settled { fresh, missed: are_older && !was_said })
    }

    /// Sees what waited. Numbered frames that are older than the one at this position are not new. The run's result goes on waiting: others may come
    /// behind it that belong before it.
    fn release(&mut self, older_than: Option<u64>) -> Vec<Text> {
        self.waiting_keys.clear();
        self.older_than = None;
        let mut fresh = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            if self.is_one_run && is_result(&waiting.frame) {
                self.waiting_keys.insert(self.key(&waiting.frame).hash());
                self.waiting.push(waiting);
                continue;
            }
            let Waiting { frame, is_numbered } = waiting;
            match (older_than, self.key(&frame)) {
                (Some(at), Key::Id(id)) if is_numbered => {
                    self.ids.insert(id, at);
                    self.count += 1;
                }
                _ => {
                    self.place(&frame, is_numbered);
                    self.replay = Some(self.next);
                    fresh.push(frame);
                }
            }
        }
        fresh
    }

    /// What waited was of before, and is counted; requests are made anew to every connection.
    fn release_behind(&mut self) -> Vec<Text> {
        self.waiting_keys.clear();
        self.older_than = None;
        let mut fresh = Vec::new();
        for Waiting { frame, is_numbered } in std::mem::take(&mut self.waiting) {
            match self.key(&frame) {
                Key::Id(id) if !is_request(&frame) => {
                    self.ids.insert(id, 0);
                }
                Key::Id(_) => {
                    self.place(&frame, is_numbered);
                    fresh.push(frame);
                }
                Key::Content(_) => {}
            }
        }
        fresh
    }

    /// How many numbered frames with an id were seen, each once: at most the number of the last one, however the server numbers them.
    pub(crate) fn count(&mut self) -> u64 {
        self.read();
        self.count
    }

    /// The id of the last numbered frame that was seen.
    pub(crate) fn last_id(&mut self) -> Option<String> {
        self.read();
        let Some(frame) = &self.last_frame else { return self.last_before.clone() };
        match Frame::parse(frame).ok()?.key()? {
            frame::Key::Uuid(uuid) => Some(uuid.into_owned()),
            frame::Key::Request(_) => None,
        }
    }

    /// The first numbered frame of all was missed: it counts, too.
    pub(crate) fn count_missed(&mut self) {
        self.count += 1;
        self.base += 1;
    }

    fn read(&mut self) {
        self.unread_bytes = 0;
        for Waiting { frame, is_numbered } in std::mem::take(&mut self.unread) {
            self.place(&frame, is_numbered);
        }
    }

    /// A frame that is to be known, and nothing else.
    pub(crate) fn see(&mut self, frame: &Text, is_numbered: bool) {
        self.read();
        self.place(frame, is_numbered);
    }

    fn place(&mut self, frame: &Text, is_numbered: bool) {
        match self.key(frame) {
            Key::Id(id) => {
                if let Entry::Vacant(place) = self.ids.entry(id) {
                    place.insert(self.next);
                    if is_numbered {
                        self.count += 1;
                        self.last = self.next;
                        self.last_frame = Some(frame.clone());
                    }
                }
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

fn is_result(frame: &Text) -> bool {
    Frame::parse(frame).is_ok_and(|frame| matches!(frame, Frame::Data(Data::ResultSuccess(_) | Data::ResultError(_))))
}

fn is_request(frame: &Text) -> bool {
    Frame::parse(frame).is_ok_and(|frame| matches!(frame.key(), Some(frame::Key::Request(_))))
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
                lineup.rejoin(Overlap::None);
            }
            new.extend(connection.chars().filter(|c| is_new(&mut lineup, &frame(*c))));
        }
        let ids: HashSet<char> = new.chars().filter(|c| c.is_ascii_lowercase() || *c == 'R').collect();
        assert_eq!(lineup.count(), ids.len() as u64);
        new
    }

    /// Where nothing waits.
    fn is_new(lineup: &mut LineUp, frame: &Text) -> bool {
        match lineup.admit(frame, true) {
            Admitted::New => true,
            Admitted::Repeat => false,
            other => panic!("{other:?}"),
        }
    }

    /// Sends each connection's frames to a link that asks by number; what comes out is what is shown, `-` where something is said to be missing.
    /// At `.` nothing came for a while.
    fn asking(connections: &[&str]) -> String {
        let mut lineup = LineUp::new();
        let mut shown = String::new();
        let mut names: HashMap<Text, char> = HashMap::new();
        for (n, connection) in connections.iter().enumerate() {
            if n > 0 {
                let (_, overlap) = lineup.cursor();
                lineup.rejoin(overlap);
            }
            for c in connection.chars() {
                names.insert(frame(c), c);
                // `R` and what has no id are not numbered, as on a bridge.
                let settled = match c {
                    '.' => lineup.settle(),
                    _ => match lineup.admit(&frame(c), c.is_ascii_lowercase()) {
                        Admitted::New => Settled { fresh: vec![frame(c)], missed: false },
                        Admitted::Settles(settled) => settled,
                        Admitted::Repeat | Admitted::Waits => continue,
                    },
                };
                shown.extend(settled.missed.then_some('-'));
                shown.extend(settled.fresh.iter().map(|frame| names[frame]));
            }
        }
        shown
    }

    #[test]
    fn what_comes_before_anything_known_waits_for_it() {
        for (connections, shown) in [
            // The last one is repeated, as it was asked for.
            (vec!["abc", "cde"], "abcde"),
            (vec!["abc", "abcde"], "abcde"),
            // The server took no notice of the number.
            (vec!["abc", "e.f"], "abc-ef"),
            (vec!["abc", "e", "ef.g"], "abc-efg"),
            // The first connection came late, and what it missed has no place any more.
            (vec!["de", "bcdef"], "de-f"),
            (vec!["d", "bcdef"], "d-ef"),
            (vec!["de", "bcdef", "abdefg"], "de-fg"),
            // Others were before the gap.
            (vec!["abc", "e.f", "defg"], "abc-efg"),
            // The server says things in an order of its own.
            (vec!["abc", "dce"], "abcde"),
            (vec!["abc", "dbce"], "abcde"),
            (vec!["abc", "dae"], "abcde"),
            (vec!["abc", "da."], "abcd"),
            (vec!["de", "bbccddee"], "de-"),
            // Requests have no number: they tell nothing, and are never too old.
            (vec!["abc", "Rcd"], "abcRd"),
            (vec!["de", "bRcdef"], "de-Rf"),
            // One is asked from as if it were none.
            (vec!["a", "b.c"], "abc"),
            // Once it is known, nothing waits.
            (vec!["abc", "cdfe"], "abcdfe"),
        ] {
            assert_eq!(asking(&connections), shown, "{connections:?}");
        }
    }

    #[test]
    fn a_runs_result_comes_behind_all_others() {
        let result = Text::from_static(r#"{"type":"result","subtype":"success","is_error":false,"result":"","uuid":"z"}"#);
        for replay in ["abcd", "cd", "acbd"] {
            let mut lineup = LineUp::of_one_run();
            "abc".chars().for_each(|c| lineup.see(&frame(c), true));
            let (_, overlap) = lineup.cursor();
            lineup.rejoin(overlap);
            assert_eq!(lineup.admit(&result, true), Admitted::Waits);
            let mut shown = Vec::new();
            for c in replay.chars() {
                match lineup.admit(&frame(c), true) {
                    Admitted::New => shown.push(frame(c)),
                    Admitted::Settles(settled) => {
                        assert!(!settled.missed || settled.fresh.is_empty(), "{replay}: {settled:?}");
                        shown.extend(settled.fresh);
                    }
                    Admitted::Repeat | Admitted::Waits => {}
                }
            }
            shown.extend(lineup.settle().fresh);
            assert_eq!(shown, [frame('d'), result.clone()], "{replay}");
        }
    }

    #[test]
    fn what_another_process_had_is_not_asked_for() {
        let mut lineup = LineUp::behind(7, None);
        assert_eq!(lineup.cursor(), (7, Overlap::None));
        lineup.see(&frame('a'), true);
        assert_eq!(lineup.cursor(), (7, Overlap::Asked));
        lineup.see(&frame('R'), false);
        assert_eq!(lineup.cursor(), (7, Overlap::Asked));
    }

    /// A turn that is taken up behind another one, of which the log has `had`; the connection then says `said`. What is shown, and the count.
    fn behind(had: &str, said: &str) -> (String, u64) {
        let mut lineup = LineUp::behind(3, Some("c"));
        let is_numbered = |c: char| c.is_ascii_lowercase() && c != 'x';
        had.chars().for_each(|c| lineup.see(&frame(c), is_numbered(c)));
        let (asked, overlap) = lineup.cursor();
        assert_eq!((asked, overlap), (2 + had.chars().filter(|c| is_numbered(*c)).count() as u64, Overlap::Asked));
        lineup.rejoin(overlap);
        let (mut shown, mut names) = (String::new(), HashMap::new());
        for c in said.chars() {
            names.insert(frame(c), c);
            let settled = match lineup.admit(&frame(c), is_numbered(c)) {
                Admitted::New => Settled { fresh: vec![frame(c)], missed: false },
                Admitted::Settles(settled) => settled,
                Admitted::Repeat | Admitted::Waits => continue,
            };
            assert!(!settled.missed, "{said}");
            shown.extend(settled.fresh.iter().map(|frame| names[frame]));
        }
        let settled = lineup.settle();
        shown.extend(settled.missed.then_some('-').into_iter().chain(settled.fresh.iter().map(|frame| names[frame])));
        (shown, lineup.count())
    }

    /// `x` is not numbered here, and is by servers that number more.
    #[test]
    fn nothing_of_the_turn_before_is_taken_for_a_frame_of_this_one() {
        for (had, said, shown, count) in [
            ("", "cde", "de", 5),
            ("", "xcde", "de", 5),
            ("", "axbcde", "de", 5),
            ("", "xNcdNe", "dNe", 5),
            ("", "Rxcd", "Rd", 4),
            ("", "c", "", 3),
            ("", "xc", "", 3),
            ("", "ccdd", "d", 4),
            // Far behind.
            ("", "de", "-de", 5),
            ("d", "de", "e", 5),
            ("dN", "xcdNe", "e", 5),
            ("d", "bxcdRe", "Re", 5),
        ] {
            assert_eq!(behind(had, said), (shown.to_owned(), count), "{had:?} {said:?}");
        }
        // A turn without a word leaves the one before it the last.
        let mut lineup = LineUp::behind(3, Some("c"));
        assert_eq!(lineup.last_id().as_deref(), Some("c"));
        lineup.see(&frame('d'), true);
        assert_eq!(lineup.last_id().as_deref(), Some("d"));
    }

    #[test]
    fn what_is_too_old_counts() {
        let mut lineup = LineUp::new();
        "de".chars().for_each(|c| lineup.see(&frame(c), true));
        let (behind, overlap) = lineup.cursor();
        assert_eq!(behind, 1);
        lineup.rejoin(overlap);
        for c in "bcde".chars() {
            let _ = lineup.admit(&frame(c), true);
        }
        assert_eq!(lineup.count(), 4);
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
            assert!(connection.chars().all(|c| is_new(&mut lineup, &frame(c))), "the first connection hands everything on");
            assert_eq!(lineup.count(), count, "{connection}");
            lineup.rejoin(Overlap::None);
            connection.chars().for_each(|c| assert!(!is_new(&mut lineup, &frame(c)), "{connection} {c}"));
            assert_eq!(lineup.count(), count, "{connection}");
        }
    }

    #[test]
    fn large_texts_are_not_kept() {
        let mut lineup = LineUp::new();
        let big = Text::from(format!(r#"{{"type":"tool_use_summary","uuid":"big","summary":"{}"}}"#, "x".repeat(UNREAD_BYTES)));
        assert!(is_new(&mut lineup, &big));
        assert!(lineup.unread.is_empty());
        lineup.rejoin(Overlap::None);
        assert!(!is_new(&mut lineup, &big));
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
                    if is_new(lineup, frame) {
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
                lineup.rejoin(Overlap::None);
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
            let mut came: Vec<Text> = Vec::new();
            let mut sent = 0_usize;
            for cut in cuts.iter().map(|cut| cut.index(messages.len() + 1)).chain([messages.len()]) {
                let (told, overlap) = lineup.cursor();
                if sent > 0 {
                    lineup.rejoin(overlap);
                }
                let had = lineup.count();
                prop_assert!(told <= had && had <= sent.checked_sub(1).map_or(0, |last| numbers[last]), "no message has that number yet");
                // No number is no cursor: everything.
                let begin = if told == 0 { 0 } else { numbers.partition_point(|number| *number <= told) };
                for sort in messages.iter().take(cut).skip(begin) {
                    let text = text(*sort);
                    let settled = match lineup.admit(&text, true) {
                        Admitted::New => vec![text],
                        Admitted::Settles(settled) => {
                            prop_assert!(!settled.missed);
                            settled.fresh
                        }
                        // One frame is no number to be asked behind: a server that repeats it much later is not one that replays.
                        Admitted::Waits if overlap == Overlap::Possible => lineup.settle().fresh,
                        Admitted::Repeat | Admitted::Waits => continue,
                    };
                    came.extend(settled);
                }
                sent = sent.max(cut);
            }
            let last = lineup.settle();
            prop_assert!(!last.missed);
            came.extend(last.fresh);
            let is_numbered = |frame: &Text| frame.contains("uuid") || frame.contains("request_id");
            let mut kept: Vec<Text> = Vec::new();
            came.into_iter().filter(is_numbered).for_each(|frame| if !kept.contains(&frame) { kept.push(frame) });
            let came = kept;
            let mut truth = Vec::new();
            messages.iter().filter(|sort| **sort < 12).for_each(|sort| if !truth.contains(&text(*sort)) { truth.push(text(*sort)) });
            prop_assert_eq!(came, truth);
        }
    }
}
