//! Blocks: one event each, written once and shared by every reader, in whatever framing a reader asked for.

use bytes::{Bytes, BytesMut};
use interline_model::{Millis, RunId, SessionId, write_json_string};

/// What stands before the JSON. The space is part of the wire: naive clients cut off exactly six bytes (sse.md §4.1).
pub(crate) const DATA: &str = "data: ";
/// What stands behind the JSON and ends the event.
const END: &str = "\n\n";

/// One event of one run: `data: {json}\n\n`. Cloning counts a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    bytes: Bytes,
    seq: u64,
    kind: Kind,
}

/// What an event is to its run, and so which of the members that every event may carry it has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `run_start`, which names run and session.
    Start,
    /// One in between.
    Event,
    /// `done`, which names the run.
    Done,
    /// Another terminal event.
    End,
    /// An undocumented one, without a number.
    Aside,
}

impl Block {
    /// The whole block, `data: {json}\n\n`: the plain profile.
    #[must_use]
    pub fn plain(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The JSON and the end of the event, `{json}\n\n`: what follows a `data: ` that is already on the wire as a heartbeat (sse.md §5.2).
    #[must_use]
    pub fn after_pad(&self) -> Bytes {
        self.bytes.slice(DATA.len().min(self.bytes.len())..)
    }

    /// The JSON alone.
    #[must_use]
    pub fn json(&self) -> Bytes {
        let end = self.bytes.len().saturating_sub(END.len());
        self.bytes.slice(DATA.len().min(end)..end)
    }

    /// How long it is in bytes.
    #[cfg(feature = "io")]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of the event within its run; `run_start` is 1. An aside has none: then it is that of the event before.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether it is an undocumented event, which counts for nothing (decision 26).
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.kind == Kind::Aside
    }

    /// Whether it ends its run: nothing follows, and the body ends with it.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.kind, Kind::Done | Kind::End)
    }

    /// Whether a reader that wants the events from number `from` on gets this one. An aside that may have been missed is told again.
    #[cfg_attr(not(feature = "io"), allow(dead_code, reason = "only readers ask"))]
    pub(crate) fn is_from(&self, from: u64) -> bool {
        if self.is_aside() { self.seq.saturating_add(1) >= from } else { self.seq >= from }
    }
}

/// Writes blocks one behind the other into shared pages, so that a small event costs no allocation of its own.
#[derive(Debug, Default)]
pub(crate) struct Ink {
    line: String,
    page: BytesMut,
    seq: u64,
    stamp: Option<Stamp>,
}

/// What each event says of where and when it belongs, where that is asked for (sse.md §3.1).
#[derive(Debug)]
struct Stamp {
    run: String,
    session: String,
    at: Millis,
}

impl Stamp {
    fn write(&self, out: &mut String, kind: Kind, seq: u64) {
        if kind != Kind::Aside {
            out.push_str(&format!(",\"seq\":{seq}"));
        }
        if !matches!(kind, Kind::Start | Kind::Done) {
            out.push_str(&self.run);
        }
        if kind != Kind::Start {
            out.push_str(&self.session);
        }
        out.push_str(&format!(",\"ts\":{}", self.at));
    }
}

impl Ink {
    /// Bytes of a page: some dozens of text deltas, little enough to keep for each session.
    const PAGE: usize = 4096;
    /// A line buffer beyond this is given back after a huge event.
    const LINE: usize = 64 * 1024;

    /// Starts counting again: the next event is the first of a run. `stamped` events say which run that is.
    pub(crate) fn begin(&mut self, run: RunId, session: &SessionId, stamped: bool) {
        self.seq = 0;
        self.stamp = stamped.then(|| {
            let mut text = ",\"session_id\":".to_owned();
            write_json_string(&mut text, session.as_str());
            Stamp { run: format!(",\"run_id\":\"{run}\""), session: text, at: 0 }
        });
    }

    /// What is written from now on happened then.
    pub(crate) fn now(&mut self, at: Millis) {
        if let Some(stamp) = &mut self.stamp {
            stamp.at = at;
        }
    }

    /// Whether events carry more than their documented members.
    pub(crate) fn is_stamped(&self) -> bool {
        self.stamp.is_some()
    }

    /// Writes the next event. `write` appends its JSON object behind the `data: `, all but the brace that closes it.
    pub(crate) fn put(&mut self, items: &mut Vec<Block>, kind: Kind, write: impl FnOnce(&mut String)) {
        self.line.clear();
        self.line.push_str(DATA);
        write(&mut self.line);
        if kind != Kind::Aside {
            self.seq = self.seq.saturating_add(1);
        }
        if let Some(stamp) = &self.stamp {
            stamp.write(&mut self.line, kind, self.seq);
        }
        self.line.push('}');
        self.line.push_str(END);
        let bytes = if self.line.len() > Self::PAGE / 4 {
            Bytes::copy_from_slice(self.line.as_bytes())
        } else {
            if self.page.capacity() < self.line.len() {
                self.page = BytesMut::with_capacity(Self::PAGE);
            }
            self.page.extend_from_slice(self.line.as_bytes());
            self.page.split().freeze()
        };
        if self.line.capacity() > Self::LINE {
            self.line = String::new();
        }
        if matches!(kind, Kind::Done | Kind::End) {
            // An idle session keeps no half-used page.
            self.page = BytesMut::new();
        }
        items.push(Block { bytes, seq: self.seq, kind });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_serves_all_framings_from_the_same_bytes() {
        let (mut ink, mut items) = (Ink::default(), Vec::new());
        ink.put(&mut items, Kind::Event, |out| out.push_str("{\"a\":1"));
        ink.put(&mut items, Kind::End, |out| out.push('{'));
        assert_eq!(items[0].plain(), "data: {\"a\":1}\n\n");
        assert_eq!(items[0].after_pad(), "{\"a\":1}\n\n");
        assert_eq!(items[0].json(), "{\"a\":1}");
        assert_eq!((items[0].seq(), items[0].is_terminal()), (1, false));
        assert_eq!((items[1].seq(), items[1].is_terminal()), (2, true));
        assert_eq!(items[0].plain().as_ptr(), items[0].plain().as_ptr(), "shared, not copied");
    }

    #[test]
    fn blocks_of_any_size_come_out_whole() {
        let (mut ink, mut items) = (Ink::default(), Vec::new());
        let sizes = [0, 1, 500, 1000, 1100, 4090, 5000, 200_000, 3, 900, 900, 900, 900, 900];
        for size in sizes {
            ink.put(&mut items, Kind::Event, |out| out.extend(std::iter::repeat_n('x', size)));
        }
        for (block, size) in items.iter().zip(sizes) {
            assert_eq!(block.json(), "x".repeat(size) + "}");
        }
    }

    #[test]
    fn a_stamp_adds_what_an_event_does_not_say_itself_and_an_aside_takes_no_number() {
        let (mut ink, mut items) = (Ink::default(), Vec::new());
        let run = RunId::from_u128(1);
        ink.begin(run, &SessionId::from("s\"1"), true);
        ink.now(7);
        for kind in [Kind::Start, Kind::Event, Kind::Aside, Kind::Done] {
            ink.put(&mut items, kind, |out| out.push_str("{\"a\":1"));
        }
        let session = r#""session_id":"s\"1""#;
        let told: Vec<String> = items.iter().map(|block| String::from_utf8(block.json().to_vec()).unwrap()).collect();
        assert_eq!(
            told,
            [
                r#"{"a":1,"seq":1,"ts":7}"#.to_owned(),
                format!(r#"{{"a":1,"seq":2,"run_id":"{run}",{session},"ts":7}}"#),
                format!(r#"{{"a":1,"run_id":"{run}",{session},"ts":7}}"#),
                format!(r#"{{"a":1,"seq":3,{session},"ts":7}}"#),
            ]
        );
        let wanted = |from| items.iter().map(|block| block.is_from(from)).collect::<Vec<_>>();
        assert_eq!(wanted(1), [true, true, true, true]);
        assert_eq!(wanted(3), [false, false, true, true], "an aside behind the last event that was seen may have been missed");
        assert_eq!(wanted(4), [false; 4]);
    }
}
