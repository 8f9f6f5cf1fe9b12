//! JSON as the text it came in: numbers, key order, escapes and unknown members survive because nothing is re-serialised.

use std::fmt;

use serde_json::value::RawValue;

use crate::Text;

/// One valid JSON value as text on a single line.
///
/// The bytes are the ones that arrived, except that white space which holds a line break is taken out, since a
/// raw line break inside an SSE `data:` line would end the event (sse.md §5.4).
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Text);

/// The text is not one JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJson(String);

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not valid JSON: {}", self.0)
    }
}

impl std::error::Error for NotJson {}

impl Json {
    /// Takes text that must be one JSON value.
    ///
    /// # Errors
    /// [`NotJson`] says where the text stops being JSON.
    pub fn parse(text: impl Into<Text>) -> Result<Self, NotJson> {
        let text = text.into();
        let _: &RawValue = serde_json::from_str(&text).map_err(|error| NotJson(error.to_string()))?;
        Ok(Self::known(text))
    }

    /// Takes a raw value that serde has checked already.
    #[must_use]
    pub fn from_raw(raw: &RawValue) -> Self {
        Self::known(Text::from(raw.get()))
    }

    /// Takes a part of `frame` that serde has checked already, without copying it.
    #[must_use]
    pub fn slice_of(frame: &Text, raw: &RawValue) -> Self {
        // A part of another text cannot happen in the callers; copying keeps it sound all the same.
        let inside = frame.as_bytes().as_ptr_range();
        let part = raw.get().as_bytes().as_ptr_range();
        if inside.start <= part.start && part.end <= inside.end { Self::known(frame.slice_ref(raw.get())) } else { Self::from_raw(raw) }
    }

    /// A value built by our own code.
    #[must_use]
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self(Text::from(value.to_string()))
    }

    /// Text that our own code wrote as one JSON value, without reading it again.
    #[must_use]
    pub fn written(text: impl Into<Text>) -> Self {
        let text = text.into();
        debug_assert!(serde_json::from_str::<&RawValue>(&text).is_ok(), "not JSON: {text}");
        Self(text)
    }

    /// `{}`.
    #[must_use]
    pub fn empty_object() -> Self {
        Self(Text::from_static("{}"))
    }

    /// The JSON string that holds `text`.
    #[must_use]
    pub fn string(text: &str) -> Self {
        let mut out = String::with_capacity(text.len() + 2);
        write_json_string(&mut out, text);
        Self(Text::from(out))
    }

    fn known(text: Text) -> Self {
        if text.contains(['\n', '\r']) { Self(Text::from(one_line(&text))) } else { Self(text) }
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The JSON text, shared.
    #[must_use]
    pub fn text(&self) -> Text {
        self.0.clone()
    }

    /// Whether it is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.0.trim_start().starts_with('{')
    }

    /// Whether it is an object without members.
    #[must_use]
    pub fn is_empty_object(&self) -> bool {
        self.is_object() && self.0.trim().trim_start_matches('{').trim_start() == "}"
    }

    /// Itself if it is an object, else `{"input": …}` around it (decision 11).
    #[must_use]
    pub fn into_object(self) -> Self {
        if self.is_object() { self } else { Self(Text::from(format!("{{\"input\":{}}}", self.0))) }
    }

    /// Parsed into a tree, for the cold paths that need to look inside. Numbers beyond a double and lone surrogates do
    /// not survive this; never write the result back.
    #[must_use]
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Drops line breaks between tokens. Valid JSON has none inside its strings.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect()
}

/// Appends `text` as a JSON string, escaping what JSON demands and the three line separators that line-splitting
/// clients trip over: U+0085, U+2028 and U+2029 (sse.md §5.4).
pub fn write_json_string(out: &mut String, text: &str) {
    out.reserve(text.len() + 2);
    out.push('"');
    let bytes = text.as_bytes();
    let (mut plain_from, mut at) = (0, 0);
    // Byte by byte: nearly all text needs no escape, and every surface writes all of its text here.
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| MAY_NEED_ESCAPE[usize::from(*byte)])) {
        at += found;
        let (length, escape) = escape_of(bytes.get(at..).unwrap_or_default());
        if let Some(escape) = escape {
            out.push_str(text.get(plain_from..at).unwrap_or_default());
            plain_from = at + length;
            match escape {
                Escape::Short(escape) => out.push_str(escape),
                Escape::Control(code) => {
                    out.push_str("\\u00");
                    out.extend([code >> 4, code & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')));
                }
            }
        }
        at += length;
    }
    out.push_str(text.get(plain_from..).unwrap_or_default());
    out.push('"');
}

/// The bytes at which a character that is escaped may begin.
const MAY_NEED_ESCAPE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    // The first bytes of U+0085 and of U+2028 and U+2029.
    table[0xc2] = true;
    table[0xe2] = true;
    table
};

enum Escape {
    Short(&'static str),
    Control(u8),
}

/// How many bytes the text begins with that are one matter, and what is written instead of them.
fn escape_of(rest: &[u8]) -> (usize, Option<Escape>) {
    match rest {
        [b'"', ..] => (1, Some(Escape::Short("\\\""))),
        [b'\\', ..] => (1, Some(Escape::Short("\\\\"))),
        [b'\n', ..] => (1, Some(Escape::Short("\\n"))),
        [b'\r', ..] => (1, Some(Escape::Short("\\r"))),
        [b'\t', ..] => (1, Some(Escape::Short("\\t"))),
        [0x8, ..] => (1, Some(Escape::Short("\\b"))),
        [0xc, ..] => (1, Some(Escape::Short("\\f"))),
        [0xc2, 0x85, ..] => (2, Some(Escape::Short("\\u0085"))),
        [0xe2, 0x80, 0xa8, ..] => (3, Some(Escape::Short("\\u2028"))),
        [0xe2, 0x80, 0xa9, ..] => (3, Some(Escape::Short("\\u2029"))),
        [code, ..] if *code < 0x20 => (1, Some(Escape::Control(*code))),
        _ => (1, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_a_tree_would_change() {
        for text in [r#"{"b":1,"a":1.0,"a":-0}"#, "12345678901234567890123", "1e400", r#""\ud83d""#, r#"{"a" : [1 ,2]}"#] {
            assert_eq!(Json::parse(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn pretty_printed_values_become_one_line() {
        assert_eq!(Json::parse("{\n  \"a\": \"x\\n\"\r\n}").unwrap().as_str(), "{  \"a\": \"x\\n\"}");
    }

    #[test]
    fn strings_are_escaped_for_line_splitters() {
        let mut out = String::new();
        write_json_string(&mut out, "a\"\\\n\u{1}\u{1f}\u{85}\u{2028}é😀");
        assert_eq!(out, "\"a\\\"\\\\\\n\\u0001\\u001f\\u0085\\u2028é😀\"");
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), "a\"\\\n\u{1}\u{1f}\u{85}\u{2028}é😀");
    }

    #[test]
    fn every_character_means_itself_and_only_what_must_be_is_escaped() {
        for c in (0..=0x3000).chain(0xd7f0..0xd800).chain(0xe000..0xe010).chain(0x1_f600..0x1_f610).filter_map(char::from_u32) {
            for text in [String::from(c), format!("a{c}é"), format!("{c}{c}\u{20ac}")] {
                let mut out = String::new();
                write_json_string(&mut out, &text);
                assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
                let escaped = c < ' ' || ['"', '\\', '\u{85}', '\u{2028}', '\u{2029}'].contains(&c);
                assert_eq!(out.contains('\\'), escaped, "{c:?}");
            }
        }
    }

    #[test]
    fn what_is_no_object_is_wrapped() {
        assert_eq!(Json::parse("[1]").unwrap().into_object().as_str(), r#"{"input":[1]}"#);
        assert!(Json::parse(" { } ").unwrap().is_empty_object());
        assert!(!Json::parse(r#"{"a":{}}"#).unwrap().is_empty_object());
    }
}
