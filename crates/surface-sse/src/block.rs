//! Blocks: one event each, written once and shared by every reader, in whatever framing a reader asked for.

use bytes::{Bytes, BytesMut};

/// What stands before the JSON. The space is part of the wire: naive clients cut off exactly six bytes (sse.md §4.1).
pub(crate) const DATA: &str = "data: ";
/// What stands behind the JSON and ends the event.
const END: &str = "\n\n";

/// One event of one run: `data: {json}\n\n`. Cloning counts a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    bytes: Bytes,
    seq: u64,
    terminal: bool,
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

    /// The number of the event within its run; `run_start` is 1.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether it ends its run: nothing follows, and the body ends with it.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }
}

/// Writes blocks one behind the other into shared pages, so that a small event costs no allocation of its own.
#[derive(Debug, Default)]
pub(crate) struct Ink {
    line: String,
    page: BytesMut,
    seq: u64,
}

impl Ink {
    /// Bytes of a page: some dozens of text deltas, little enough to keep for each session.
    const PAGE: usize = 4096;
    /// A line buffer beyond this is given back after a huge event.
    const LINE: usize = 64 * 1024;

    /// Starts counting again: the next event is the first of a run.
    pub(crate) fn restart(&mut self) {
        self.seq = 0;
    }

    /// Writes the next event. `write` appends its JSON object behind the `data: `.
    pub(crate) fn put(&mut self, items: &mut Vec<Block>, terminal: bool, write: impl FnOnce(&mut String)) {
        self.line.clear();
        self.line.push_str(DATA);
        write(&mut self.line);
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
        if terminal {
            // An idle session keeps no half-used page.
            self.page = BytesMut::new();
        }
        self.seq = self.seq.saturating_add(1);
        items.push(Block { bytes, seq: self.seq, terminal });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_serves_all_framings_from_the_same_bytes() {
        let (mut ink, mut items) = (Ink::default(), Vec::new());
        ink.put(&mut items, false, |out| out.push_str("{\"a\":1}"));
        ink.put(&mut items, true, |out| out.push_str("{}"));
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
            ink.put(&mut items, false, |out| out.extend(std::iter::repeat_n('x', size)));
        }
        for (block, size) in items.iter().zip(sizes) {
            assert_eq!(block.json(), "x".repeat(size));
        }
    }
}
