//! What a tool gave back, as a call shows it, and what in it is meant for the page around the chat (socketio.md §4.3).
//!
//! A patch of a result holds it three times, since it serves two families of readers and a TurnProjection has it in the call and in a block
//! (socketio.md §3.3, §3.4), and every snapshot of the turn holds it twice more. None of them can be left out: the views have to agree, and a
//! boundary has its snapshot (decision 23). So it is the result that is bounded, the same everywhere in what goes over a socket; nothing is
//! lost by it, since REST, which frontends read after each chat anyway, has all of it, and the text says where.

use std::collections::HashMap;

use interline_model::{Json, Text, write_json_string};
use serde_json::value::RawValue;

/// The members of an object, as they stand in the text.
type Members<'a> = HashMap<String, &'a RawValue>;

/// Members of `_meta` that become blocks, and the blocks' types.
const PAGE_MEMBERS: [(&str, &str); 2] = [("bridge", "tool_bridge"), ("ui", "tool_ui")];

/// A result as `result` shows it: an object stays one, a list of texts is their text, all else is what it is.
pub(crate) fn shown(text: &Text, raw: Option<&Json>) -> Json {
    match raw {
        Some(raw) if raw.is_object() || !is_texts(raw) => raw.clone(),
        _ => Json::string(text),
    }
}

/// What events tell of a result whose JSON is longer than `most`: its beginning as text, and that `whole` is the path of the rest. `None` if it
/// is short enough.
pub(crate) fn beginning(result: &Json, most: usize, whole: impl FnOnce() -> String) -> Option<Json> {
    if result.as_str().len() <= most {
        return None;
    }
    let text = serde_json::from_str::<String>(result.as_str()).unwrap_or_else(|_| result.as_str().to_owned());
    let shown = fitting(&text, most);
    Some(Json::string(&format!("{shown}\n[output cut: {} of {} bytes shown; all of it: GET {}]", shown.len(), text.len(), whole())))
}

/// As much of `text` as is no longer than `most` once written as JSON.
fn fitting(text: &str, most: usize) -> &str {
    let (mut spent, mut one) = (0usize, String::new());
    for (at, c) in text.char_indices() {
        one.clear();
        write_json_string(&mut one, c.encode_utf8(&mut [0; 4]));
        spent = spent.saturating_add(one.len().saturating_sub(2));
        if spent > most {
            return text.get(..at).unwrap_or_default();
        }
    }
    text
}

fn is_texts(list: &Json) -> bool {
    let Ok(parts) = serde_json::from_str::<Vec<Members<'_>>>(list.as_str()) else { return false };
    parts.iter().all(|part| part.get("type").is_some_and(|kind| kind.get() == "\"text\""))
}

/// The blocks that a result's `_meta` asks for: each one's type and content. The result is an object, or text that holds one, which is how
/// tools behind MCP give theirs.
pub(crate) fn page_blocks(text: &Text, raw: Option<&Json>) -> Vec<(&'static str, Json)> {
    let object = raw.filter(|raw| raw.is_object()).map_or(&**text, Json::as_str);
    // Most results have none, and some are large.
    if !object.trim_start().starts_with('{') || !object.contains("\"_meta\"") {
        return Vec::new();
    }
    let Ok(members) = serde_json::from_str::<Members<'_>>(object) else { return Vec::new() };
    let meta = members.get("_meta").and_then(|meta| serde_json::from_str::<Members<'_>>(meta.get()).ok());
    let Some(meta) = meta else { return Vec::new() };
    let blocks = PAGE_MEMBERS.iter().filter_map(|(member, kind)| Some((*kind, Json::from_raw(meta.get(*member)?))));
    blocks.filter(|(_, content)| content.is_object()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &'static str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn a_result_keeps_its_shape() {
        let text = Text::from_static("ab");
        for (raw, expected) in [
            (None, r#""ab""#),
            (Some(r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#), r#""ab""#),
            (Some("[]"), r#""ab""#),
            (Some(r#"{"ok":true,"n":1.0}"#), r#"{"ok":true,"n":1.0}"#),
            (
                Some(r#"[{"type":"text","text":"a"},{"type":"image","source":{}}]"#),
                r#"[{"type":"text","text":"a"},{"type":"image","source":{}}]"#,
            ),
            (Some("[1]"), "[1]"),
        ] {
            assert_eq!(shown(&text, raw.map(json).as_ref()).as_str(), expected);
        }
    }

    #[test]
    fn a_long_result_is_told_by_its_beginning() {
        let cut = |result: &Json, most| {
            beginning(result, most, || "/whole".to_owned()).map(|json| serde_json::from_str::<String>(json.as_str()).unwrap())
        };
        let text = Json::string("a\u{1}é\nend");
        assert_eq!(cut(&text, text.as_str().len()), None);
        for (most, shown) in [(0, ""), (6, "a"), (7, "a\u{1}"), (8, "a\u{1}"), (9, "a\u{1}é"), (11, "a\u{1}é\n")] {
            let mark = format!("\n[output cut: {} of 8 bytes shown; all of it: GET /whole]", shown.len());
            assert_eq!(cut(&text, most).unwrap(), format!("{shown}{mark}"), "{most}");
        }
        assert!(cut(&json(r#"{"a":[1.0,2]}"#), 9).unwrap().starts_with("{\"a\":[1\n[output cut: "));
    }

    #[test]
    fn only_objects_in_meta_are_for_the_page() {
        let blocks = |text: &'static str| page_blocks(&Text::from_static(text), None);
        let both = r#"{"ok":1,"_meta":{"ui":{"title":"T"},"bridge":{"action":"a","payload":1.0},"x":{}}}"#;
        assert_eq!(blocks(both), [("tool_bridge", json(r#"{"action":"a","payload":1.0}"#)), ("tool_ui", json(r#"{"title":"T"}"#))]);
        let raw = json(r#"{"_meta":{"ui":{}}}"#);
        assert_eq!(page_blocks(&Text::from_static("text"), Some(&raw)), [("tool_ui", json("{}"))]);
        for none in ["", "{", r#"{"_meta":1}"#, r#"{"_meta":{"ui":1}}"#, r#"{"a":{"_meta":{"ui":{}}}}"#, r#"["_meta"]"#, r#"say "_meta""#] {
            assert_eq!(blocks(none), [], "{none}");
        }
    }
}
