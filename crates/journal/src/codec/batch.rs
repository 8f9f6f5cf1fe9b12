//! Batches: the records of one session that one commit brought, as one value.

use interline_model::{Millis, Record};

use super::fields::{Fields, Writing};
use super::{FORMAT, records};
use crate::Damage;

/// Format and checksum.
const HEAD: usize = 5;

/// Collects records into one value.
pub(crate) struct BatchWriter {
    count: usize,
    began_at: Millis,
    last_at: Millis,
    records: Vec<u8>,
}

impl BatchWriter {
    pub(crate) fn new() -> Self {
        Self { count: 0, began_at: 0, last_at: 0, records: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// About how long the value will be.
    pub(crate) fn bytes(&self) -> usize {
        self.records.len().saturating_add(HEAD + 24)
    }

    pub(crate) fn push(&mut self, record: &Record) {
        if self.count == 0 {
            self.began_at = record.at;
            self.last_at = record.at;
        }
        self.records.number(zigzag(record.at.wrapping_sub(self.last_at)));
        self.last_at = record.at;
        records::write(&mut self.records, &record.body);
        self.count = self.count.saturating_add(1);
    }

    /// The value, for its place; `before` is what its run came to without it. Begins anew.
    pub(crate) fn finish(&mut self, session: u64, first: u64, before: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes());
        out.byte(FORMAT);
        out.extend_from_slice(&[0; 4]);
        out.length(self.count);
        out.number(before);
        out.number(self.began_at);
        out.extend_from_slice(&self.records);
        let sum = checksum(session, first, out.get(HEAD..).unwrap_or_default());
        if let Some(place) = out.get_mut(1..HEAD) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        self.count = 0;
        self.records.clear();
        out
    }
}

pub(super) fn checksum(session: u64, first: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&session.to_le_bytes());
    hasher.update(&first.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// A difference of times in either direction as a small number.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ if difference >> 63 == 1 { u64::MAX } else { 0 }
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ if number & 1 == 1 { u64::MAX } else { 0 }
}

/// Reads the records of one value.
pub(crate) struct BatchReader<'a> {
    count: usize,
    before: u64,
    at: Millis,
    fields: Fields<'a>,
}

impl<'a> BatchReader<'a> {
    pub(crate) fn new(session: u64, first: u64, value: &'a [u8]) -> Result<Self, Damage> {
        let mut fields = Fields::new(value);
        match fields.byte()? {
            FORMAT => {}
            other => return Err(Damage::Format(other)),
        }
        let sum = fields.word()?;
        if checksum(session, first, fields.rest()) != sum {
            return Err(Damage::Changed);
        }
        let (count, before, at) = (fields.length()?, fields.number()?, fields.number()?);
        Ok(Self { count, before, at, fields })
    }

    /// How many records are left.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// What the run came to before.
    pub(crate) fn before(&self) -> u64 {
        self.before
    }

    pub(crate) fn next(&mut self) -> Option<Result<Record, Damage>> {
        let left = self.count.checked_sub(1)?;
        self.count = left;
        let record = self.record();
        match &record {
            Ok(_) if left > 0 || self.fields.is_empty() => {}
            // Nothing behind a record that cannot be read has a known place.
            Ok(_) => {
                self.count = 0;
                return Some(Err(Damage::Changed));
            }
            Err(_) => self.count = 0,
        }
        Some(record)
    }

    fn record(&mut self) -> Result<Record, Damage> {
        self.at = self.at.wrapping_add(unzigzag(self.fields.number()?));
        Ok(Record { at: self.at, body: records::read(&mut self.fields)? })
    }
}

/// How many records a value says to hold, its checksum not looked at.
pub(crate) fn count_of(value: &[u8]) -> usize {
    let mut fields = Fields::new(value.get(HEAD..).unwrap_or_default());
    fields.length().ok().filter(|count| (1..=value.len()).contains(count)).unwrap_or(1)
}

/// How many records a value says to hold, and what its run came to before, also where its checksum does not hold: the best guess at where
/// a session ends whose last value is damaged.
pub(crate) fn end_of(session: u64, first: u64, value: &[u8]) -> (usize, u64, Result<(), Damage>) {
    match BatchReader::new(session, first, value) {
        Ok(batch) => (batch.len(), batch.before(), Ok(())),
        Err(damage) => (count_of(value), 0, Err(damage)),
    }
}
