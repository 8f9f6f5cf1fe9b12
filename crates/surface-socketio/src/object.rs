//! JSON objects written member by member, straight into the text that goes out: no tree is built for something that is only sent.

use std::fmt::Write as _;

use interline_model::{Json, write_json_string};

/// An object being written.
pub(crate) struct Object<'a> {
    out: &'a mut String,
    first: bool,
}

/// The object that `build` writes.
pub(crate) fn object(build: impl FnOnce(&mut Object<'_>)) -> Json {
    let mut out = String::with_capacity(256);
    write_object(&mut out, build);
    Json::written(out)
}

/// Appends the object that `build` writes.
pub(crate) fn write_object(out: &mut String, build: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    build(&mut Object { out: &mut *out, first: true });
    out.push('}');
}

/// Appends an array with what `each` writes for every item.
pub(crate) fn write_array<I: IntoIterator>(out: &mut String, items: I, mut each: impl FnMut(&mut String, I::Item)) {
    out.push('[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        each(out, item);
    }
    out.push(']');
}

impl Object<'_> {
    /// How long what is written so far is, of whatever it is a part.
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// A member whose value `write` appends.
    pub(crate) fn member(&mut self, key: &str, write: impl FnOnce(&mut String)) {
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        write_json_string(self.out, key);
        self.out.push(':');
        write(self.out);
    }

    pub(crate) fn text(&mut self, key: &str, text: &str) {
        self.member(key, |out| write_json_string(out, text));
    }

    pub(crate) fn text_or_null(&mut self, key: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(key, text),
            None => self.null(key),
        }
    }

    pub(crate) fn number(&mut self, key: &str, number: u64) {
        self.member(key, |out| {
            let _ = write!(out, "{number}");
        });
    }

    pub(crate) fn number_or_null(&mut self, key: &str, number: Option<u64>) {
        match number {
            Some(number) => self.number(key, number),
            None => self.null(key),
        }
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.raw(key, if value { "true" } else { "false" });
    }

    /// A value that is JSON already.
    pub(crate) fn raw(&mut self, key: &str, json: &str) {
        self.member(key, |out| out.push_str(json));
    }

    pub(crate) fn null(&mut self, key: &str) {
        self.raw(key, "null");
    }

    pub(crate) fn object(&mut self, key: &str, build: impl FnOnce(&mut Object<'_>)) {
        self.member(key, |out| write_object(out, build));
    }

    pub(crate) fn array<I: IntoIterator>(&mut self, key: &str, items: I, each: impl FnMut(&mut String, I::Item)) {
        self.member(key, |out| write_array(out, items, each));
    }

    /// Members that are written already, with commas between them; none at all if empty.
    pub(crate) fn spliced(&mut self, members: &str) {
        if members.trim().is_empty() {
            return;
        }
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        self.out.push_str(members);
    }
}
