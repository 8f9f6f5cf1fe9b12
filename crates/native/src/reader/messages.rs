//! Which text of which message has been told: text comes in copies and is told once (decision 9).
//!
//! A model's message comes as deltas, as snapshots (perhaps one per content block, perhaps before the block's stop), or as both.
//! Deltas are told as they come; a snapshot adds only what goes beyond them, and nothing if it says something else.

use std::collections::HashMap;

use interline_model::Text;

use crate::string::{Piece, Pieces, share};
use crate::think::Voice;

/// The messages of one lane.
#[derive(Debug, Default)]
pub(super) struct Messages {
    all: Vec<Message>,
    by_id: HashMap<Option<Text>, usize>,
    /// The message that deltas belong to: the last one started.
    now: Option<usize>,
    streams: bool,
}

#[derive(Debug, Default)]
struct Message {
    text: Copies,
    thinking: Copies,
}

/// The two copies of a message's text. Lone halves of characters are three bytes, as if UTF-8 had them.
#[derive(Debug, Default)]
struct Copies {
    told: Vec<u8>,
    shown: Vec<u8>,
}

impl Messages {
    /// A message begins to stream.
    pub(super) fn start(&mut self, id: Option<Text>) {
        self.streams = true;
        self.now = Some(self.index(id));
    }

    /// Whether this lane's messages are streamed at all.
    pub(super) fn streams(&self) -> bool {
        self.streams
    }

    /// A delta of the current message, which is told now.
    pub(super) fn delta(&mut self, voice: Voice, pieces: &Pieces) {
        let now = match self.now {
            Some(now) => now,
            None => self.index(None),
        };
        if let Some(message) = self.all.get_mut(now) {
            append(&mut message.of(voice).told, pieces);
        }
    }

    /// One block of a snapshot: what of it is still to be told, which is told now.
    pub(super) fn snapshot(&mut self, id: Option<Text>, voice: Voice, pieces: Pieces) -> Pieces {
        let index = self.index(id);
        let Some(message) = self.all.get_mut(index) else { return pieces };
        let Copies { told, shown } = message.of(voice);
        let before = shown.len();
        append(shown, &pieces);
        if !shown.starts_with(told) {
            return Pieces::default();
        }
        // Never negative: what was told is at least what was shown before, or is no beginning of it at all.
        let known = told.len().saturating_sub(before);
        told.clone_from(shown);
        skip(pieces, known)
    }

    fn index(&mut self, id: Option<Text>) -> usize {
        let next = self.all.len();
        let index = *self.by_id.entry(id).or_insert(next);
        if index == next {
            self.all.push(Message::default());
        }
        index
    }
}

impl Message {
    fn of(&mut self, voice: Voice) -> &mut Copies {
        match voice {
            Voice::Text => &mut self.text,
            Voice::Thinking => &mut self.thinking,
        }
    }
}

/// The length of half a character in [`Copies`].
const HALF: usize = 3;

fn append(copy: &mut Vec<u8>, pieces: &Pieces) {
    for piece in pieces.iter() {
        match piece {
            Piece::Text(text) => copy.extend_from_slice(text.as_bytes()),
            Piece::Half(unit) => {
                let [high, low] = unit.to_be_bytes();
                copy.extend_from_slice(&[0xe0 | high >> 4, 0x80 | (high & 0xf) << 2 | low >> 6, 0x80 | low & 0x3f]);
            }
        }
    }
}

/// `pieces` without their first `count` bytes.
fn skip(pieces: Pieces, mut count: usize) -> Pieces {
    if count == 0 {
        return pieces;
    }
    let mut rest = Pieces::default();
    for piece in pieces {
        let length = match &piece {
            Piece::Text(text) => text.len(),
            Piece::Half(_) => HALF,
        };
        if count >= length {
            count -= length;
            continue;
        }
        match piece {
            Piece::Text(text) if count > 0 => {
                let part = text.get(count..).unwrap_or_default();
                rest.push(Piece::Text(share(&text, part)));
            }
            piece => rest.push(piece),
        }
        count = 0;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Pieces {
        let mut pieces = Pieces::default();
        if !text.is_empty() {
            pieces.push(Piece::Text(Text::from(text)));
        }
        pieces
    }

    fn text(pieces: Pieces) -> String {
        pieces.into_iter().map(|piece| if let Piece::Text(text) = piece { text.to_string() } else { "?".to_owned() }).collect()
    }

    fn id(id: &str) -> Option<Text> {
        Some(Text::from(id))
    }

    #[test]
    fn a_snapshot_adds_what_was_not_streamed() {
        let mut messages = Messages::default();
        messages.start(id("m"));
        messages.delta(Voice::Text, &one("Hel"));
        messages.delta(Voice::Text, &one("lo"));
        assert_eq!(text(messages.snapshot(id("m"), Voice::Text, one("Hello there"))), " there");
        // One block per snapshot, the second one streamed in part.
        messages.delta(Voice::Text, &one(". A"));
        assert_eq!(text(messages.snapshot(id("m"), Voice::Text, one(". And"))), "nd");
        assert_eq!(text(messages.snapshot(id("m"), Voice::Thinking, one("hm"))), "hm");
        assert_eq!(text(messages.snapshot(id("other"), Voice::Text, one("Hello"))), "Hello");
    }

    #[test]
    fn a_snapshot_that_says_something_else_adds_nothing() {
        let mut messages = Messages::default();
        messages.start(id("m"));
        messages.delta(Voice::Text, &one("Hello"));
        assert_eq!(text(messages.snapshot(id("m"), Voice::Text, one("Hallo Welt"))), "");
        assert_eq!(text(messages.snapshot(id("m"), Voice::Text, one("Hello"))), "");
    }

    #[test]
    fn a_snapshot_in_the_middle_of_the_stream_is_caught_up_with() {
        let mut messages = Messages::default();
        messages.start(id("m"));
        messages.delta(Voice::Text, &one("abcd"));
        assert_eq!(text(messages.snapshot(id("m"), Voice::Text, one("ab"))), "");
        assert_eq!(text(messages.snapshot(id("m"), Voice::Text, one("cdef"))), "ef");
    }

    #[test]
    fn deltas_before_any_start_belong_to_the_nameless_message() {
        let mut messages = Messages::default();
        messages.delta(Voice::Text, &one("ab"));
        assert_eq!(text(messages.snapshot(None, Voice::Text, one("abc"))), "c");
    }

    #[test]
    fn halves_of_characters_are_counted() {
        let mut half = one("a");
        half.push(Piece::Half(0xd83d));
        let mut whole = one("a");
        whole.push(Piece::Half(0xd83d));
        whole.push(Piece::Text(Text::from_static("bc")));
        let mut messages = Messages::default();
        messages.delta(Voice::Text, &half);
        assert_eq!(text(messages.snapshot(None, Voice::Text, whole)), "bc");
    }
}
