//! The tables of the file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `interline` | `format` | the version of this layout |
//! | `sessions` | the session's number | [`SessionRow`](crate::index::SessionRow) |
//! | `runs` | session, number of the run's first record | [`RunRow`](crate::index::RunRow) |
//! | `records` | session, number of the batch's first record | a batch |
//!
//! A session's number is given when it is first stored, so that the many keys are short. A batch never holds records of two runs: what is
//! forgotten are whole batches.

use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{Change, Fault, Forget, Round};
use crate::codec;
use crate::index::{RunRow, SessionRow};

pub(super) const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("interline");
pub(super) const SESSIONS: TableDefinition<u64, &[u8]> = TableDefinition::new("sessions");
pub(super) const RUNS: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("runs");
pub(super) const BATCHES: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("records");

/// The name of the one row of [`ABOUT`].
pub(super) const FORMAT: &str = "format";

/// The version of the layout.
pub(super) const LAYOUT: u64 = 1;

/// About what a value takes in the file: redb gives large values pages of their own, in powers of two, and shares pages of 4 KiB between
/// small ones, which fill them to about four fifths.
pub(crate) fn charge(length: usize) -> u64 {
    const PAGE: u64 = 4096;
    const WITH_KEY: u64 = 32;
    let length = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(WITH_KEY);
    if length <= PAGE / 2 { length.saturating_mul(5) / 4 } else { length.checked_next_power_of_two().unwrap_or(u64::MAX).max(PAGE) }
}

type Rows<'txn, K> = Table<'txn, K, &'static [u8]>;

pub(super) fn apply(transaction: &WriteTransaction, round: &Round) -> Result<u64, Fault> {
    let mut sessions = transaction.open_table(SESSIONS)?;
    let mut runs = transaction.open_table(RUNS)?;
    let mut batches = transaction.open_table(BATCHES)?;
    let mut freed = 0;
    for change in &round.changes {
        let Change { session, remove, cut, row, runs: run_rows, batches: values, forget } = change;
        let session = *session;
        if *remove {
            sessions.remove(session)?;
            runs.retain_in((session, 0)..=(session, u64::MAX), |_, _| false)?;
            freed += drop_batches(&mut batches, session, Forget { before: u64::MAX, all: true, ends: true })?;
            continue;
        }
        if let Some(cut) = *cut {
            runs.retain_in((session, cut)..=(session, u64::MAX), |_, _| false)?;
            batches.retain_in((session, cut)..=(session, u64::MAX), |_, _| false)?;
        }
        if let Some(row) = row {
            sessions.insert(session, row.as_slice())?;
        }
        for (first, row) in run_rows {
            runs.insert((session, *first), row.as_slice())?;
        }
        for (first, value) in values {
            batches.insert((session, *first), value.as_slice())?;
        }
        if let Some(forget) = *forget {
            freed += drop_batches(&mut batches, session, forget)?;
            drop_runs(&mut runs, session, forget)?;
        }
    }
    Ok(freed)
}

/// Drops the batches that lie before a record as a whole. Says what they took.
fn drop_batches(batches: &mut Rows<'_, (u64, u64)>, session: u64, forget: Forget) -> Result<u64, Fault> {
    let Forget { before, ends, .. } = forget;
    let mut freed = 0_u64;
    batches.retain_in((session, 0)..(session, before), |(_, first), value| {
        let end = first.saturating_add(u64::try_from(codec::count_of(value)).unwrap_or(u64::MAX));
        let keep = !ends && end > before;
        if !keep {
            freed = freed.saturating_add(charge(value.len()));
        }
        keep
    })?;
    Ok(freed)
}

/// Drops the runs that lie before a record. A run that it is in the middle of stays.
fn drop_runs(runs: &mut Rows<'_, (u64, u64)>, session: u64, forget: Forget) -> Result<(), Fault> {
    let Forget { before, all, .. } = forget;
    let next = runs.range((session, before)..=(session, before))?.next().transpose()?.is_some();
    let split = if all || next {
        None
    } else {
        runs.range((session, 0)..(session, before))?.next_back().transpose()?.map(|(key, _)| key.value().1)
    };
    runs.retain_in((session, 0)..(session, before), |(_, first), _| Some(first) == split)?;
    Ok(())
}

/// What a start needs to know.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) sessions: Vec<LoadedSession>,
    /// The number of the next new session.
    pub(crate) next_session: u64,
    /// What all kept records take, as far as that can be told.
    pub(crate) bytes: u64,
    /// How many rows of the index could not be read.
    pub(crate) unreadable: usize,
}

/// A session as the index knows it.
pub(crate) struct LoadedSession {
    pub(crate) number: u64,
    pub(crate) row: SessionRow,
    /// The number behind its last record.
    pub(crate) end: u64,
    /// The run that began last.
    pub(crate) run: Option<(u64, RunRow)>,
}

pub(super) fn load(transaction: &ReadTransaction) -> Result<Loaded, Fault> {
    let sessions = transaction.open_table(SESSIONS)?;
    let runs = transaction.open_table(RUNS)?;
    let batches = transaction.open_table(BATCHES)?;
    let mut loaded = Loaded::default();
    for row in runs.iter()? {
        let (_, row) = row?;
        match RunRow::read(row.value()) {
            Ok(row) => loaded.bytes = loaded.bytes.saturating_add(row.bytes),
            Err(_) => loaded.unreadable += 1,
        }
    }
    for row in sessions.iter()? {
        let (number, row) = row?;
        let number = number.value();
        loaded.next_session = number.saturating_add(1);
        let Ok(row) = SessionRow::read(row.value()) else {
            loaded.unreadable += 1;
            continue;
        };
        let mut run = match runs.range((number, 0)..=(number, u64::MAX))?.next_back().transpose()? {
            Some((key, row)) => RunRow::read(row.value()).ok().map(|row| (key.value().1, row)),
            None => None,
        };
        let mut end = row.first;
        if let Some((key, value)) = batches.range((number, 0)..=(number, u64::MAX))?.next_back().transpose()? {
            let (first, value) = (key.value().1, value.value());
            let (count, before, _) = codec::end_of(number, first, value);
            end = end.max(first.saturating_add(u64::try_from(count).unwrap_or(u64::MAX)));
            if let Some((begun, run)) = &mut run
                && *begun <= first
            {
                // Its row was written when it began: what it came to since is told by its last batch.
                let bytes = before.saturating_add(charge(value.len()));
                loaded.bytes = loaded.bytes.saturating_add(bytes.saturating_sub(run.bytes));
                run.bytes = run.bytes.max(bytes);
            }
        }
        loaded.sessions.push(LoadedSession { number, row, end, run });
    }
    Ok(loaded)
}

pub(super) fn runs(transaction: &ReadTransaction, session: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
    let mut all = Vec::new();
    for row in transaction.open_table(RUNS)?.range((session, 0)..=(session, u64::MAX))? {
        let (key, row) = row?;
        all.push((key.value().1, row.value().to_vec()));
    }
    Ok(all)
}
