//! The members of a request's body: a JSON object, each member as it came until somebody reads it.
//!
//! Members that nobody reads may hold anything, also what no tree can; what is read must be text that can be handed on. So half of a
//! surrogate pair in a member that is read is refused, whatever the member: replaced, it would be another text than the user's.

use std::collections::HashMap;

use interline_model::{Json, Text};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::Refusal;
use crate::escape::lone_surrogate;

/// A body's members by name.
pub(crate) struct Members<'a> {
    text: &'a str,
    members: HashMap<String, &'a RawValue>,
}

impl<'a> Members<'a> {
    /// Reads a body, which must hold an object. A byte order mark is no part of it.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(body).map_err(|error| Refusal::InvalidJson(error.to_string()))?;
        let text = text.trim_start_matches('\u{feff}');
        let invalid = |error: serde_json::Error| Refusal::InvalidJson(error.to_string());
        if !text.trim_start().starts_with('{') {
            serde_json::from_str::<&RawValue>(text).map_err(invalid)?;
            return Err(Refusal::InvalidRequest("the body must be a JSON object".to_owned()));
        }
        Ok(Self { text, members: serde_json::from_str(text).map_err(invalid)? })
    }

    /// The same, where nothing may stand for an empty object.
    pub(crate) fn parse_optional(body: &'a [u8]) -> Result<Self, Refusal> {
        if body.trim_ascii().is_empty() { Ok(Self { text: "", members: HashMap::new() }) } else { Self::parse(body) }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member under the first of its names that is there, as it came; `null` counts as absent.
    pub(crate) fn raw(&self, names: &[&'static str]) -> Result<Option<&'a RawValue>, Refusal> {
        let found = names.iter().find_map(|name| self.members.get(*name).filter(|raw| raw.get() != "null").map(|raw| (*name, *raw)));
        let Some((name, raw)) = found else { return Ok(None) };
        match lone_surrogate(raw.get()) {
            None => Ok(Some(raw)),
            Some(at) => {
                // The raw value is a part of the text.
                let at = raw.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr()).saturating_add(at);
                let before = self.text.get(..at).unwrap_or_default();
                let line = before.matches('\n').count().saturating_add(1);
                let column = before.rsplit('\n').next().unwrap_or_default().len().saturating_add(1);
                let message = format!("`{name}` holds half of a surrogate pair, which is no character, at line {line} column {column}");
                Err(Refusal::InvalidJson(message))
            }
        }
    }

    /// The same as a tree.
    pub(crate) fn value(&self, names: &[&'static str]) -> Result<Option<Value>, Refusal> {
        let Some(raw) = self.raw(names)? else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| {
            let name = names.first().unwrap_or(&"");
            Refusal::InvalidJson(format!("`{name}`: {error}"))
        })
    }

    /// A member that is text; empty counts as absent.
    pub(crate) fn text(&self, names: &[&'static str]) -> Result<Option<Text>, Refusal> {
        match self.value(names)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(Text::from(text)).filter(|text| !text.is_empty())),
            Some(_) => Err(wrong(names, "a string")),
        }
    }

    /// A member that is an object, as it came.
    pub(crate) fn object(&self, names: &[&'static str]) -> Result<Option<Json>, Refusal> {
        match self.raw(names)?.map(Json::from_raw) {
            Some(json) if !json.is_object() => Err(wrong(names, "an object")),
            json => Ok(json),
        }
    }

    /// A member that is yes or no.
    pub(crate) fn flag(&self, names: &[&'static str]) -> Result<bool, Refusal> {
        match self.value(names)? {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(wrong(names, "true or false")),
        }
    }
}

fn wrong(names: &[&'static str], what: &str) -> Refusal {
    Refusal::Unprocessable(format!("`{}` must be {what}", names.first().unwrap_or(&"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_go_by_their_names_and_null_is_absent() {
        let body = "\u{feff} {\"a\":null,\"b\":\"x\",\"n\":1,\"o\":{\"k\":1e400},\"odd\":1e999,\"yes\":true}";
        let members = Members::parse(body.as_bytes()).unwrap();
        assert_eq!(members.text(&["a", "b"]).unwrap().as_deref(), Some("x"));
        assert_eq!(members.text(&["a"]).unwrap(), None);
        assert!(members.text(&["n"]).unwrap_err().to_string().contains("`n` must be a string"));
        assert_eq!(members.object(&["o"]).unwrap().unwrap().as_str(), r#"{"k":1e400}"#);
        assert!(members.object(&["n"]).is_err() && members.flag(&["n"]).is_err());
        assert!(members.flag(&["yes"]).unwrap() && !members.flag(&["no"]).unwrap());
        assert!(members.value(&["odd"]).is_err());
        for body in ["", "[]", "{", "nonsense", "{} x"] {
            assert!(Members::parse(body.as_bytes()).is_err(), "{body}");
        }
        assert!(Members::parse_optional(b" \n").unwrap().is_empty());
    }

    #[test]
    fn half_a_pair_is_refused_where_it_is_read_and_nowhere_else() {
        let body = "{\"odd\":\"\\ud83d\",\n \"a\":{\"deep\":[\"\\ud83d\\ude00 \\ud83d\"]},\"b\":\"\\ud83d\\ude00\"}";
        let members = Members::parse(body.as_bytes()).unwrap();
        assert_eq!(members.text(&["b"]).unwrap().as_deref(), Some("😀"));
        for refused in [members.object(&["a"]).unwrap_err(), members.value(&["a"]).unwrap_err()] {
            assert!(matches!(&refused, Refusal::InvalidJson(_)));
            assert!(refused.to_string().contains("`a` holds half of a surrogate pair"), "{refused}");
            assert!(refused.to_string().ends_with("at line 2 column 29"), "{refused}");
        }
    }
}
