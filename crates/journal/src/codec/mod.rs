//! How records are written: a compact form of our own, with a format byte before it and a checksum over it.
//!
//! ```text
//! batch: format (1 byte) | crc32 (4 bytes) | count | bytes of the run before | time of the first | record…
//! record: time since the one before | kind | what belongs to the kind
//! ```
//!
//! Numbers are LEB128, texts their length and UTF-8. The checksum also covers the session's number and the number of the first record,
//! so a batch that lies where another one belongs is found. A kind keeps its number for ever; a new kind takes a new one.

mod batch;
mod fields;
mod records;

pub(crate) use batch::{BatchReader, BatchWriter, count_of, end_of};
pub(crate) use fields::{Fields, Writing};
pub(crate) use records::weight;

/// The format that is written, for batches and for rows of the index.
pub(crate) const FORMAT: u8 = 1;

#[cfg(test)]
mod tests;
