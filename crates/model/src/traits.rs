//! The two pure halves of every translation.

use crate::{Event, Record};

/// Turns an upstream's records into events. One reader reads one run, from its [`crate::Fact::RunAccepted`] on.
///
/// Pure: the same records give the same events. Total: any record, in any order, is survived, and what comes out obeys the
/// order that [`crate::What`] promises.
pub trait Reader: Send {
    /// Reads the next record of the run, appending what it means.
    fn read(&mut self, record: &Record, events: &mut Vec<Event>);
}

/// Turns a session's records and what they mean into one surface's items.
///
/// A writer sees all runs of a session one after another, each from its [`crate::What::RunStarted`] on. Pure: the same records give the same items, to the byte.
pub trait Writer: Send + 'static {
    /// What the surface sends: encoded once, shared by all its clients.
    type Item: Clone + Send + Sync + 'static;

    /// Writes what `record` and its `events` are on this surface, appending to `items`. Called once for every record, also for those without events.
    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<Self::Item>);

    /// Makes those of its items shorter of which later ones say a part again. `items` are all that this writer wrote, kept for those who read
    /// later.
    fn shorten(&mut self, _items: &mut [Self::Item]) {}
}
