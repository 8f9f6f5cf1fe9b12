//! `<think>` … `</think>` inside streamed text is reasoning: told apart while the text still comes, marks cut anywhere.
//!
//! One line break after `<think>`, one before `</think>` and a blank line (two line breaks, both or none) after it belong
//! to the marks (decision 9). What may yet become a mark is held back; it is always a part of a constant, so holding costs nothing.

use interline_model::Text;

use crate::string::{Piece, share};

const OPEN: &str = "<think>";
/// With the line break that belongs to it. Without it, matching begins at the second byte.
const CLOSE: &str = "\n</think>";
const AFTER_CLOSE: &str = "\n\n";

/// What a piece of streamed text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// The answer.
    Text,
    /// Reasoning.
    Thinking,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Outside of reasoning.
    #[default]
    Text,
    /// Right after `<think>`: one line break is skipped.
    Opened,
    /// Inside reasoning.
    Thinking,
    /// Right after `</think>`: a blank line is skipped.
    Closed,
}

/// Tells reasoning from text in one stream.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    place: Place,
    /// How much of the mark that is looked for has been matched and not given out: bytes from `held_from` on.
    held: usize,
    /// Where the held part begins in [`CLOSE`]: 1 if the line break is not there.
    held_from: usize,
}

impl Splitter {
    /// Gives out what `piece` makes certain.
    pub(crate) fn feed(&mut self, piece: Piece, give: &mut impl FnMut(Voice, Piece)) {
        match piece {
            // Nearly always: no mark, and none begun.
            Piece::Text(text) if self.place == Place::Text && self.held == 0 && !text.is_empty() && !text.contains('<') => {
                give(Voice::Text, Piece::Text(text));
            }
            Piece::Text(text) => self.feed_text(&text, give),
            Piece::Half(_) => {
                // No part of any mark.
                self.release(self.held, give);
                self.settle();
                give(self.voice(), piece);
            }
        }
    }

    /// Whether a part of a mark is held back.
    pub(crate) fn holds(&self) -> bool {
        self.held > 0
    }

    /// Gives out what was held back: no mark came of it.
    pub(crate) fn flush(&mut self, give: &mut impl FnMut(Voice, Piece)) {
        self.release(self.held, give);
        self.settle();
    }

    fn feed_text(&mut self, piece: &Text, give: &mut impl FnMut(Voice, Piece)) {
        let text: &str = piece;
        let bytes = text.as_bytes();
        // `from..at` is read and not given out; of what is held, the first `earlier` bytes came in pieces before this one.
        let (mut from, mut at, mut earlier) = (0, 0, self.held);
        let part = |from: usize, to: usize| Piece::Text(share(piece, text.get(from..to).unwrap_or_default()));
        while let Some(&byte) = bytes.get(at) {
            if self.held == 0 {
                match self.place {
                    Place::Opened => {
                        self.place = Place::Thinking;
                        if byte == b'\n' {
                            at += 1;
                            from = at;
                        }
                        continue;
                    }
                    Place::Closed if byte != b'\n' => {
                        self.place = Place::Text;
                        continue;
                    }
                    Place::Closed => {}
                    Place::Text | Place::Thinking => {
                        let rest = text.get(at..).unwrap_or_default();
                        let next = if self.place == Place::Text { rest.find('<') } else { rest.find(['<', '\n']) };
                        let Some(next) = next else {
                            at = bytes.len();
                            break;
                        };
                        at += next;
                        self.held_from = usize::from(self.place == Place::Thinking && bytes.get(at) == Some(&b'<'));
                    }
                }
                self.held = 1;
                at += 1;
                continue;
            }
            let mark = self.mark();
            if mark.as_bytes().get(self.held_from + self.held) == Some(&byte) {
                self.held += 1;
                at += 1;
                if self.held_from + self.held == mark.len() {
                    let before = at.saturating_sub(self.held);
                    if before > from {
                        give(self.voice(), part(from, before));
                    }
                    (from, earlier) = (at, 0);
                    self.passed();
                }
            } else {
                // No mark after all. What is held from earlier pieces goes out now, the rest with what follows it.
                self.release(earlier, give);
                earlier = 0;
                self.held = 0;
                if self.place == Place::Closed {
                    self.place = Place::Text;
                }
            }
        }
        let until = at.saturating_sub(self.held - earlier);
        if until > from {
            give(self.voice(), part(from, until));
        }
    }

    /// The mark that is looked for.
    fn mark(&self) -> &'static str {
        match self.place {
            Place::Text | Place::Opened => OPEN,
            Place::Thinking => CLOSE,
            Place::Closed => AFTER_CLOSE,
        }
    }

    /// What text at this place is.
    fn voice(&self) -> Voice {
        match self.place {
            Place::Text | Place::Closed => Voice::Text,
            Place::Opened | Place::Thinking => Voice::Thinking,
        }
    }

    /// The mark is complete.
    fn passed(&mut self) {
        self.place = match self.place {
            Place::Text | Place::Opened => Place::Opened,
            Place::Thinking => Place::Closed,
            Place::Closed => Place::Text,
        };
        (self.held, self.held_from) = (0, 0);
    }

    /// Gives out the first `count` bytes of what is held, as what they are if no mark comes of them.
    fn release(&self, count: usize, give: &mut impl FnMut(Voice, Piece)) {
        if let Some(part) = self.mark().get(self.held_from..self.held_from + count).filter(|part| !part.is_empty()) {
            give(self.voice(), Piece::Text(Text::from_static(part)));
        }
    }

    /// Nothing is held any more, and nothing is skipped.
    fn settle(&mut self) {
        self.place = match self.place {
            Place::Text | Place::Closed => Place::Text,
            Place::Opened | Place::Thinking => Place::Thinking,
        };
        (self.held, self.held_from) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same rule over the whole text at once.
    fn at_once(text: &str) -> (String, String) {
        let (mut out, mut thinking, mut rest) = (String::new(), String::new(), text);
        while let Some((before, after)) = rest.split_once(OPEN) {
            out.push_str(before);
            let inside = after.strip_prefix('\n').unwrap_or(after);
            let Some((thought, after)) = inside.split_once("</think>") else {
                thinking.push_str(inside);
                return (out, thinking);
            };
            thinking.push_str(thought.strip_suffix('\n').unwrap_or(thought));
            rest = after.strip_prefix(AFTER_CLOSE).unwrap_or(after);
        }
        out.push_str(rest);
        (out, thinking)
    }

    fn streamed<'t>(pieces: impl IntoIterator<Item = &'t str>) -> (String, String) {
        let (mut out, mut thinking) = (String::new(), String::new());
        let mut give = |voice, piece| {
            let Piece::Text(text) = piece else { panic!("a half out of whole text") };
            assert!(!text.is_empty());
            if voice == Voice::Text { out.push_str(&text) } else { thinking.push_str(&text) }
        };
        let mut splitter = Splitter::default();
        for piece in pieces {
            splitter.feed(Piece::Text(Text::from(piece)), &mut give);
        }
        splitter.flush(&mut give);
        (out, thinking)
    }

    #[test]
    fn marks_and_their_line_breaks() {
        for (text, out, thinking) in [
            ("plain", "plain", ""),
            ("<think>\nwhy\n</think>\n\nso", "so", "why"),
            ("a<think>b</think>c", "ac", "b"),
            ("<think></think>", "", ""),
            ("<think>\n</think>\n\n", "", ""),
            ("<think>\n\n</think>\n\n\n", "\n", ""),
            ("<think>\n\na\n\n</think>\nb", "\nb", "\na\n"),
            ("<think>a</think>\n", "\n", "a"),
            ("<think>a</think>\n<think>b</think>", "\n", "ab"),
            ("a<thi", "a<thi", ""),
            ("a << <b", "a << <b", ""),
            ("<<think>x", "<", "x"),
            ("<think>open\n</th", "", "open\n</th"),
            ("<think>a\n<b", "", "a\n<b"),
            ("<think>a</think></think>", "</think>", "a"),
            ("<think>a<think>b</think>", "", "a<think>b"),
            ("é<think>ü\n</think>\n\n😀", "é😀", "ü"),
        ] {
            assert_eq!(at_once(text), (out.to_owned(), thinking.to_owned()), "at once: {text:?}");
            assert_eq!(streamed([text]), (out.to_owned(), thinking.to_owned()), "whole: {text:?}");
            let mut buffer = [0; 4];
            let mut splitter = Splitter::default();
            let mut got = (String::new(), String::new());
            let mut give = |voice, piece| {
                if let Piece::Text(text) = piece {
                    if voice == Voice::Text { got.0.push_str(&text) } else { got.1.push_str(&text) }
                }
            };
            for c in text.chars() {
                splitter.feed(Piece::Text(Text::from(&*c.encode_utf8(&mut buffer))), &mut give);
            }
            splitter.flush(&mut give);
            assert_eq!(got, (out.to_owned(), thinking.to_owned()), "by characters: {text:?}");
        }
    }

    #[test]
    fn text_without_marks_is_one_piece() {
        let mut count = 0;
        Splitter::default().feed(Piece::Text(Text::from_static("if a < b && c <d> { \n }")), &mut |_, _| count += 1);
        assert_eq!(count, 1);
    }

    #[test]
    fn half_a_character_is_no_mark() {
        let mut got = Vec::new();
        let mut give = |voice, piece| got.push((voice, piece));
        let mut splitter = Splitter::default();
        for piece in [
            Piece::Text(Text::from_static("<think>a\n</")),
            Piece::Half(0xd83d),
            Piece::Text(Text::from_static("</think>\n")),
            Piece::Half(0xde00),
        ] {
            splitter.feed(piece, &mut give);
        }
        splitter.flush(&mut give);
        let text = |text| Piece::Text(Text::from_static(text));
        let want = [
            (Voice::Thinking, text("a")),
            (Voice::Thinking, text("\n</")),
            (Voice::Thinking, Piece::Half(0xd83d)),
            (Voice::Text, text("\n")),
            (Voice::Text, Piece::Half(0xde00)),
        ];
        assert_eq!(got, want);
    }

    fn scrap() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => prop::sample::select(vec!["<think>", "</think>", "\n", "\n\n", "<", "<think", "</thi", "think>", ">"]).prop_map(str::to_owned),
            1 => "[a-zé😀<\n]{0,3}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn any_cut_means_the_same(scraps in prop::collection::vec(scrap(), 0..12), cuts in prop::collection::vec(0usize..100, 0..8)) {
            let text = scraps.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            prop_assert_eq!(streamed(pieces), at_once(&text));
        }
    }
}
