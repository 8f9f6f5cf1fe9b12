//! Numbers that clients have of a whole session stay what they are when its oldest runs are no longer kept: whoever gave them counts once more what
//! is about to be forgotten.

use std::sync::{Arc, OnceLock};

use interline_model::{Event, Json, Record};

/// Counts a session as its clients do.
pub trait Numbering: Send {
    /// The next record and what it means.
    fn count(&mut self, record: &Record, events: &[Event]);

    /// Up to which numbers it has counted, for [`crate::Session::numbers`].
    fn numbers(&self) -> Json;
}

type Begin = fn(Option<&Json>) -> Box<dyn Numbering>;

/// The one numbering of all sessions. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Numberings(Arc<OnceLock<Begin>>);

impl Numberings {
    pub(crate) fn set(&self, begin: Begin) {
        // Another one would give the same numbers other meanings.
        let _ = self.0.set(begin);
    }

    /// A count that begins behind `base`.
    pub(crate) fn begin(&self, base: Option<&Json>) -> Option<Box<dyn Numbering>> {
        self.0.get().map(|begin| begin(base))
    }
}
