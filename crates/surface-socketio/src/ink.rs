//! Objects written one behind the other into shared pages, so that a small event costs no allocation of its own.

use bytes::BytesMut;
use interline_model::{Json, Text};

use crate::object::{Object, write_object};

/// Writes the commonest events.
#[derive(Default)]
pub(crate) struct Ink {
    line: String,
    page: BytesMut,
}

impl Ink {
    /// Bytes of a page: a dozen patches, little enough to keep for each session that runs.
    const PAGE: usize = 4096;
    /// A line buffer beyond this is given back after a huge event.
    const LINE: usize = 64 * 1024;

    /// The object that `build` writes.
    pub(crate) fn object(&mut self, build: impl FnOnce(&mut Object<'_>)) -> Json {
        self.json(|line| write_object(line, build))
    }

    /// JSON that these parts are together.
    pub(crate) fn joined(&mut self, parts: &[&str]) -> Json {
        self.json(|line| parts.iter().for_each(|part| line.push_str(part)))
    }

    fn json(&mut self, write: impl FnOnce(&mut String)) -> Json {
        self.line.clear();
        write(&mut self.line);
        let text = if self.line.len() > Self::PAGE / 4 {
            Text::from(self.line.as_str())
        } else {
            if self.page.capacity() < self.line.len() {
                self.page = BytesMut::with_capacity(Self::PAGE);
            }
            self.page.extend_from_slice(self.line.as_bytes());
            Text::try_from(self.page.split().freeze()).unwrap_or_default()
        };
        if self.line.capacity() > Self::LINE {
            self.line = String::new();
        }
        Json::written(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_any_size_come_out_whole() {
        let mut ink = Ink::default();
        let sizes = [0, 1, 500, 1000, 1100, 4090, 5000, 200_000, 3, 900, 900, 900, 900, 900];
        let written: Vec<Json> = sizes.iter().map(|size| ink.object(|object| object.text("a", &"é".repeat(*size)))).collect();
        for (json, size) in written.iter().zip(sizes) {
            assert_eq!(json.as_str(), format!("{{\"a\":\"{}\"}}", "é".repeat(size)));
        }
    }
}
