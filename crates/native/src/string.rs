//! JSON strings decoded by hand: an unescaped one is a slice of its frame, and halves of a character (lone surrogates,
//! which JSON may hold and UTF-8 may not) are carried on until their other half comes or does not.
//!
//! serde_json refuses a lone `\ud83d`; the wire does not (a server that cuts text by UTF-16 units sends one character as two
//! deltas), so a refusal here would cost the whole frame.

use std::borrow::Cow;

use interline_model::Text;
use serde_json::value::RawValue;

/// What stands for a half that stays alone.
pub(crate) const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// A piece of text: whole characters, or one half of a character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Whole characters.
    Text(Text),
    /// A lone surrogate.
    Half(u16),
}

/// The pieces of one JSON string. Nearly always exactly one, so only the others cost an allocation.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    first: Option<Piece>,
    rest: Vec<Piece>,
}

impl Pieces {
    pub(crate) fn push(&mut self, piece: Piece) {
        if self.first.is_none() {
            self.first = Some(piece);
        } else {
            self.rest.push(piece);
        }
    }

    /// All pieces, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.first.iter().chain(&self.rest)
    }
}

impl IntoIterator for Pieces {
    type Item = Piece;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Piece>, std::vec::IntoIter<Piece>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

/// What lies between the quotes, if `raw` is a string.
fn body(raw: &RawValue) -> Option<&str> {
    raw.get().strip_prefix('"')?.strip_suffix('"')
}

fn has_escape(body: &str) -> bool {
    body.as_bytes().contains(&b'\\')
}

/// `part` as shared text, without copying if it lies inside `frame`.
pub(crate) fn share(frame: &Text, part: &str) -> Text {
    let inside = frame.as_bytes().as_ptr_range();
    let range = part.as_bytes().as_ptr_range();
    if inside.start <= range.start && range.end <= inside.end { frame.slice_ref(part) } else { Text::from(part) }
}

/// The string, or `None` if `raw` is another type. Lone halves become U+FFFD.
pub(crate) fn text(frame: &Text, raw: &RawValue) -> Option<Text> {
    let body = body(raw)?;
    Some(if has_escape(body) { Text::from(unescaped(body)) } else { share(frame, body) })
}

/// As [`text`], borrowed where possible.
pub(crate) fn cow(raw: &RawValue) -> Option<Cow<'_, str>> {
    let body = body(raw)?;
    Some(if has_escape(body) { Cow::Owned(unescaped(body)) } else { Cow::Borrowed(body) })
}

/// The string in pieces, with its lone halves. Nothing if `raw` is another type, or empty.
pub(crate) fn pieces(frame: &Text, raw: &RawValue) -> Pieces {
    let mut pieces = Pieces::default();
    match body(raw) {
        None | Some("") => {}
        Some(body) if !has_escape(body) => pieces.push(Piece::Text(share(frame, body))),
        Some(body) => {
            // Exactly as long as it will be, so that the text can take it over as it is.
            let mut length = 0;
            unescape(body, &mut length, |_, _| {});
            let mut run = String::with_capacity(length);
            unescape(body, &mut run, |run, half| {
                if !run.is_empty() {
                    pieces.push(Piece::Text(Text::from(std::mem::take(run))));
                }
                pieces.push(Piece::Half(half));
            });
            if !run.is_empty() {
                pieces.push(Piece::Text(Text::from(run)));
            }
        }
    }
    pieces
}

fn unescaped(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    unescape(body, &mut out, |out, _| out.push(REPLACEMENT));
    out
}

/// Where text goes, or its length in bytes.
trait Out {
    fn push(&mut self, c: char);
    fn push_str(&mut self, part: &str);
}

impl Out for String {
    fn push(&mut self, c: char) {
        self.push(c);
    }

    fn push_str(&mut self, part: &str) {
        self.push_str(part);
    }
}

impl Out for usize {
    fn push(&mut self, c: char) {
        *self = self.saturating_add(c.len_utf8());
    }

    fn push_str(&mut self, part: &str) {
        *self = self.saturating_add(part.len());
    }
}

/// Appends the meaning of `body` to `out`, handing each lone half to `lone` when all before it is in `out`.
fn unescape<O: Out>(body: &str, out: &mut O, mut lone: impl FnMut(&mut O, u16)) {
    let mut rest = body;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let mut after = escape.chars();
        match after.next() {
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let unit = unit(after.as_str());
                after = after.as_str().get(4..).unwrap_or_default().chars();
                let low = after.as_str().strip_prefix("\\u").map(self::unit).filter(|low| is_low(*low));
                match (char::from_u32(u32::from(unit)), low) {
                    (Some(whole), _) => out.push(whole),
                    (None, Some(low)) if is_high(unit) => {
                        out.push(join(unit, low));
                        after = after.as_str().get(6..).unwrap_or_default().chars();
                    }
                    (None, _) => lone(out, unit),
                }
            }
            // The quote, the backslash and the slash; JSON that was checked has no other.
            Some(other) => out.push(other),
            None => {}
        }
        rest = after.as_str();
    }
    out.push_str(rest);
}

/// The code unit that four hex digits name.
fn unit(digits: &str) -> u16 {
    digits.get(..4).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or(0xfffd)
}

fn is_high(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_low(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

fn join(high: u16, low: u16) -> char {
    char::decode_utf16([high, low]).next().and_then(Result::ok).unwrap_or(REPLACEMENT)
}

/// Joins halves over the pieces of one stream of text.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    held: Option<u16>,
}

impl Halves {
    /// Whether a half waits.
    pub(crate) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// What can be said now that `piece` has come. A high half waits for the next piece.
    pub(crate) fn join(&mut self, piece: Piece) -> Option<Text> {
        match (self.held.take(), piece) {
            (None, Piece::Text(text)) => Some(text),
            (None, Piece::Half(high)) if is_high(high) => {
                self.held = Some(high);
                None
            }
            (None, Piece::Half(_)) => Some(alone()),
            (Some(high), Piece::Text(text)) if text.is_empty() => {
                self.held = Some(high);
                None
            }
            (Some(_), Piece::Text(text)) => Some(Text::from(format!("{REPLACEMENT}{text}"))),
            (Some(high), Piece::Half(low)) if is_low(low) => Some(Text::from(String::from(join(high, low)))),
            (Some(_), Piece::Half(high)) => {
                self.held = Some(high);
                Some(alone())
            }
        }
    }

    /// What is left when no more will come.
    pub(crate) fn flush(&mut self) -> Option<Text> {
        self.held.take().map(|_| alone())
    }
}

fn alone() -> Text {
    Text::from_static("\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn escapes_mean_what_json_says() {
        for (json, meaning) in [
            (r#""plain""#, "plain"),
            (r#""""#, ""),
            (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
            (r#""\u00e9\u003cthink\u003e""#, "é<think>"),
            (r#""a\ud83d\ude00b""#, "a😀b"),
            (r#""\ud83d""#, "\u{fffd}"),
            (r#""\ude00\ud83d x""#, "\u{fffd}\u{fffd} x"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀"),
            (r#""\u0000é\\u0041""#, "\0é\\u0041"),
        ] {
            let raw = raw(json);
            assert_eq!(text(&Text::new(), &raw).as_deref(), Some(meaning), "{json}");
            assert_eq!(cow(&raw).as_deref(), Some(meaning), "{json}");
        }
        assert_eq!(text(&Text::new(), &raw("7")), None);
    }

    #[test]
    fn unescaped_text_is_a_part_of_its_frame() {
        let frame = Text::from_static(r#""hello""#);
        let raw: &RawValue = serde_json::from_str(&frame).unwrap();
        let hello = text(&frame, raw).unwrap();
        assert_eq!(hello.as_ptr(), frame.get(1..).unwrap().as_ptr());
    }

    fn joined(tokens: &[&str]) -> String {
        let mut halves = Halves::default();
        let mut out = String::new();
        for token in tokens {
            for piece in pieces(&Text::new(), &raw(token)) {
                out.push_str(&halves.join(piece).unwrap_or_default());
            }
        }
        out.push_str(&halves.flush().unwrap_or_default());
        out
    }

    #[test]
    fn halves_in_two_tokens_are_one_character() {
        assert_eq!(joined(&[r#""a\ud83d""#, r#""\ude00b""#]), "a😀b");
        assert_eq!(joined(&[r#""a\ud83d""#, r#""""#, r#""\ude00b""#]), "a😀b");
        assert_eq!(joined(&[r#""a\ud83d""#, r#""b""#]), "a\u{fffd}b");
        assert_eq!(joined(&[r#""a\ud83d""#, r#""\ud83d""#, r#""\ude00""#]), "a\u{fffd}😀");
        assert_eq!(joined(&[r#""\ude00""#, r#""\ud83d""#]), "\u{fffd}\u{fffd}");
    }
}
