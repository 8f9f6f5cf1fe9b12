//! Where the numbers of a session begin whose oldest runs are no longer kept: a cursor counts from the session's beginning, what is kept does not.

use interline_hub::{Numbering, Session};
use interline_model::{Event, Json, Record, Writer as _};
use serde::{Deserialize, Serialize};

use crate::NativeWriter;

/// How many frames are no longer kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Base {
    /// All of them.
    frames: u64,
    /// Those that the bridge counts.
    counted: u64,
}

/// Frames from before what is kept, or of an unknown number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before;

impl Base {
    /// The base of a session; `None` where nobody counted what it has forgotten.
    pub(super) fn of(session: &Session) -> Option<Self> {
        match session.numbers() {
            Some(numbers) => read(&numbers),
            None if session.is_shortened() => None,
            None => Some(Self::default()),
        }
    }

    /// How many of the kept frames a client has seen that has seen `seen` of the session.
    pub(super) fn kept_of(base: Option<Self>, seen: u64) -> Result<u64, Before> {
        seen.checked_sub(base.ok_or(Before)?.frames).ok_or(Before)
    }

    /// The same in the bridge's numbers. It replays what it has to whoever is further behind.
    pub(super) fn kept_of_counted(base: Option<Self>, seen: u64) -> u64 {
        base.map_or(0, |base| seen.saturating_sub(base.counted))
    }
}

fn read(numbers: &Json) -> Option<Base> {
    serde_json::from_str(numbers.as_str()).ok()
}

struct Count {
    base: Base,
    writer: NativeWriter,
    frames: Vec<crate::NativeFrame>,
}

/// Counts on from where it was counted before.
pub(super) fn numbering(base: Option<&Json>) -> Box<dyn Numbering> {
    let base = base.and_then(read).unwrap_or_default();
    Box::new(Count { base, writer: NativeWriter::new(), frames: Vec::new() })
}

impl Numbering for Count {
    fn count(&mut self, record: &Record, events: &[Event]) {
        self.writer.write(record, events, &mut self.frames);
        for frame in self.frames.drain(..) {
            self.base.frames += 1;
            self.base.counted += u64::from(frame.is_counted());
        }
    }

    fn numbers(&self) -> Json {
        Json::from_value(&serde_json::json!(self.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{Body, Text};

    #[test]
    fn a_cursor_is_what_it_was_less_what_is_no_longer_kept() {
        let base = Some(Base { frames: 10, counted: 7 });
        assert_eq!(Base::kept_of(base, 12), Ok(2));
        assert_eq!(Base::kept_of(base, 10), Ok(0));
        assert_eq!(Base::kept_of(base, 9), Err(Before), "said, and not guessed");
        assert_eq!(Base::kept_of(None, 12), Err(Before));
        assert_eq!((Base::kept_of_counted(base, 9), Base::kept_of_counted(base, 3), Base::kept_of_counted(None, 9)), (2, 0, 0));
    }

    #[test]
    fn counting_goes_on_where_it_ended_and_counts_what_the_writer_writes() {
        let mut count = numbering(Some(&Json::from_value(&serde_json::json!({ "frames": 3, "counted": 2 }))));
        // Outside of a run nothing is written.
        count.count(&Record { at: 0, body: Body::Frame(Text::from_static("{}")) }, &[]);
        assert_eq!(read(&count.numbers()), Some(Base { frames: 3, counted: 2 }));
    }
}
