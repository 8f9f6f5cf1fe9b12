//! The byte rules of a `data:` line (sse.md §5.4): JSON that no line splitter and no strict decoder trips over.

/// Appends a JSON value as it came, except that the three line separators are escaped and halves of a surrogate pair become U+FFFD.
///
/// All of them can stand inside strings only, so the value means the same.
pub(crate) fn splice_json(out: &mut String, json: &str) {
    out.reserve(json.len());
    let (mut plain_from, mut at) = (0, 0);
    while let Some(found) = json.get(at..).and_then(|rest| rest.find(['\\', '\u{85}', '\u{2028}', '\u{2029}'])) {
        at += found;
        let (len, instead) = match json.get(at..).and_then(|rest| rest.chars().next()) {
            Some('\u{85}') => (2, "\\u0085"),
            Some('\u{2028}') => (3, "\\u2028"),
            Some('\u{2029}') => (3, "\\u2029"),
            _ => match unit(json, at) {
                None => (2, ""),
                Some(high) if is_high(high) && unit(json, at + 6).is_some_and(is_low) => (12, ""),
                Some(half) if is_high(half) || is_low(half) => (6, "\\ufffd"),
                Some(_) => (6, ""),
            },
        };
        if !instead.is_empty() {
            out.push_str(json.get(plain_from..at).unwrap_or_default());
            out.push_str(instead);
            plain_from = at + len;
        }
        at += len;
    }
    out.push_str(json.get(plain_from..).unwrap_or_default());
}

/// Where the first half of a surrogate pair stands in JSON that is not followed, or preceded, by its other half: no Rust string can hold it.
#[cfg(feature = "io")]
pub(crate) fn lone_surrogate(json: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        at += found;
        at += match unit(json, at) {
            None => 2,
            Some(high) if is_high(high) && unit(json, at + 6).is_some_and(is_low) => 12,
            Some(half) if is_high(half) || is_low(half) => return Some(at),
            Some(_) => 6,
        };
    }
    None
}

/// The UTF-16 unit of the `\uXXXX` at `at`, if there is one.
fn unit(json: &str, at: usize) -> Option<u16> {
    let hex = json.get(at..at.checked_add(6)?)?.strip_prefix("\\u")?;
    u16::from_str_radix(hex, 16).ok()
}

fn is_high(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_low(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

/// How many bytes of `text` can be written as a JSON string within `budget` bytes; always at a character's edge.
pub(crate) fn fitting(text: &str, budget: usize) -> usize {
    /// The longest escape, `\u0085`.
    const LONGEST: usize = 6;
    if text.len().saturating_mul(LONGEST) <= budget {
        return text.len();
    }
    let mut spent = 0usize;
    for (at, c) in text.char_indices() {
        spent = spent.saturating_add(match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\u{85}' | '\u{2028}' | '\u{2029}' => LONGEST,
            c if c < ' ' => LONGEST,
            c => c.len_utf8(),
        });
        if spent > budget {
            return at;
        }
    }
    text.len()
}

/// As much of `text` as fits.
pub(crate) fn within(text: &str, budget: usize) -> &str {
    text.get(..fitting(text, budget)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use interline_model::write_json_string;

    use super::*;

    fn spliced(json: &str) -> String {
        let mut out = String::new();
        splice_json(&mut out, json);
        out
    }

    #[test]
    fn what_is_harmless_stays_to_the_byte() {
        for json in [
            "{}",
            r#"{"b":1.0,"a":-0,"a":12345678901234567890123,"c":1e400}"#,
            r#"{"s":"\"\\\/\b\f\n\r\t\u00e9é😀\ud83d\ude00\u0085"}"#,
            r#"{"s":"\\ud83d \\\\ud83d"}"#,
            r#"{ "a" : [ 1 , 2 ] }"#,
        ] {
            assert_eq!(spliced(json), json);
        }
    }

    #[test]
    fn line_separators_are_escaped_and_halves_of_a_pair_replaced() {
        for (json, line) in [
            ("{\"a\u{2028}\":\"\u{2029}x\u{85}\"}", r#"{"a\u2028":"\u2029x\u0085"}"#),
            (r#"["\ud83d"]"#, r#"["\ufffd"]"#),
            (r#"["\ude00\ud83d"]"#, r#"["\ufffd\ufffd"]"#),
            (r#"["\ud83d\ud83d\ude00"]"#, r#"["\ufffd\ud83d\ude00"]"#),
            (r#"["\uD83Dx\n"]"#, r#"["\ufffdx\n"]"#),
            (r#"["\\\ud83d"]"#, r#"["\\\ufffd"]"#),
        ] {
            assert_eq!(spliced(json), line, "{json}");
            serde_json::from_str::<serde_json::Value>(&spliced(json)).unwrap();
        }
    }

    #[test]
    #[cfg(feature = "io")]
    fn a_lone_half_is_found_where_it_stands() {
        for (json, at) in [
            (r#"["\ud83d\ude00", "\\ud83d"]"#, None),
            (r#"["\ud83d"]"#, Some(2)),
            (r#"["\ude00\ud83d"]"#, Some(2)),
            (r#"["\ud83d\ude00\ud83dx"]"#, Some(14)),
            (r#"["\n\\\uDE00"]"#, Some(6)),
        ] {
            assert_eq!(lone_surrogate(json), at, "{json}");
        }
    }

    #[test]
    fn broken_escapes_are_survived() {
        for json in ["\\", "\\u", "\\u12", "\\ué234", "\\ud83d\\", "\\é"] {
            spliced(json);
            #[cfg(feature = "io")]
            lone_surrogate(json);
        }
    }

    #[test]
    fn what_fits_is_counted_as_it_is_written() {
        let text = "aé\n\"\u{1}\u{2028}😀\\z".repeat(3);
        for budget in 0..100 {
            let cut = fitting(&text, budget);
            let mut out = String::new();
            write_json_string(&mut out, &text[..cut]);
            assert!(out.len() - 2 <= budget);
            if let Some(next) = text[cut..].chars().next() {
                out.clear();
                write_json_string(&mut out, &text[..cut + next.len_utf8()]);
                assert!(out.len() - 2 > budget, "{budget}: more would have fitted");
            }
        }
    }
}
