//! What the writer asks of a store, and what redb makes of it.
//!
//! redb promises that a commit is on the disk when it returns, and that a file that was cut off in the middle of one opens as it was before
//! it. It does not promise to notice bytes that changed later: it may panic on them. So each of our own values has a checksum, and every call
//! into redb catches panics.

mod open;
mod tables;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::sync::{AtomicU64, Ordering, PoisonError, RwLock};

pub(crate) use tables::{Loaded, LoadedSession, charge};

/// Everything that one commit changes.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) changes: Vec<Change>,
}

/// What one commit changes of one session.
#[derive(Default)]
pub(crate) struct Change {
    /// The session's number in the store.
    pub(crate) session: u64,
    /// The whole session goes, and nothing else of this counts.
    pub(crate) remove: bool,
    /// Records from this number on, if there are any, come from a commit that failed, and go first.
    pub(crate) cut: Option<u64>,
    /// Its new row.
    pub(crate) row: Option<Vec<u8>>,
    /// New or changed runs, by their first record.
    pub(crate) runs: Vec<(u64, Vec<u8>)>,
    /// New batches, by their first record.
    pub(crate) batches: Vec<(u64, Vec<u8>)>,
    /// Records before this number go, and the runs that lie before it.
    pub(crate) forget: Option<Forget>,
}

/// What is to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forget {
    /// The first record that stays.
    pub(crate) before: u64,
    /// No run stays: the last one goes, too.
    pub(crate) all: bool,
    /// No record stays, either; one that came since belongs to no run.
    pub(crate) ends: bool,
}

/// Why the store did not do it.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The disk, or the operating system.
    Disk(String),
    /// What is in the file.
    Corrupt(String),
}

impl Fault {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Disk(text) | Self::Corrupt(text) => text,
        }
    }
}

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        let error = error.into();
        let corrupt = match &error {
            redb::Error::Corrupted(_) | redb::Error::LockPoisoned(_) => true,
            redb::Error::Io(error) => matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
            redb::Error::PreviousIo | redb::Error::DatabaseClosed | redb::Error::DatabaseAlreadyOpen => false,
            redb::Error::TableTypeMismatch { .. } | redb::Error::TableDoesNotExist(_) | redb::Error::TypeDefinitionChanged { .. } => true,
            _ => false,
        };
        let text = if let redb::Error::Io(error) = &error { error.to_string() } else { error.to_string() };
        if corrupt { Self::Corrupt(text) } else { Self::Disk(text) }
    }
}

/// Where batches and rows are kept.
pub(crate) trait Store: Send + Sync + 'static {
    /// Its name in messages.
    fn path(&self) -> &Path;

    /// Makes the changes, all or none, and returns once they are on the disk. Says how many bytes were freed.
    fn commit(&self, round: &Round) -> Result<u64, Fault>;

    /// The batches of a session that hold its records `from..to`, in order, as they are now.
    fn batches(&self, session: u64, from: u64, to: u64) -> Result<Box<dyn Batches>, Fault>;

    /// The rows of a session's runs.
    fn runs(&self, session: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault>;

    /// Opens it again after a fault. If its content was at fault, everything is verified, and set aside if it is damaged. Says whether it is a
    /// new and empty one now.
    fn reopen(&self, verify: bool) -> Result<bool, JournalError>;

    /// Closes it for good.
    fn close(&self);

    /// How often it was opened again.
    fn reopened(&self) -> u64;

    /// Whether the disk takes so many bytes.
    fn probe(&self, bytes: u64) -> io::Result<()>;
}

/// Batches one after the other.
pub(crate) trait Batches {
    /// Puts the next value into `value`, and says the number of its first record.
    fn next(&mut self, value: &mut Vec<u8>) -> Result<Option<u64>, Fault>;
}

/// A store in a redb file.
pub(crate) struct RedbStore {
    disk: Box<dyn Disk>,
    /// Absent while the disk does not even let it be read.
    file: RwLock<Option<OpenFile>>,
    reopened: AtomicU64,
}

struct OpenFile {
    database: Database,
    /// Else what is written to it is lost: it is open for readers, while the disk takes nothing.
    writable: bool,
}

/// What was found when a store was opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) set_aside: Option<PathBuf>,
    pub(crate) repaired: bool,
}

/// From this size on, commits also store where free pages are, with a second sync: so that a start after a kill need not read the whole
/// file. Below it, reading the whole file takes less than a second.
const QUICK_REPAIR_FROM: u64 = 512 * 1024 * 1024;

std::thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread, now, is the database's about a damaged file: caught, and said by the journal in its own words. For panic hooks,
/// which need not print it.
#[must_use]
pub fn catches_panics() -> bool {
    GUARDED.get()
}

/// Runs a call into redb. A file whose bytes changed can make it panic.
fn guarded<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    result.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Fault::Corrupt(format!("the database gave up: {}", said.unwrap_or_default())))
    })
}

impl RedbStore {
    fn with<T>(&self, call: impl FnOnce(&OpenFile) -> Result<T, Fault>) -> Result<T, Fault> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = file.as_ref() else {
            return Err(Fault::Disk("the file is closed".to_owned()));
        };
        guarded(|| call(file))
    }

    fn reading(&self) -> Result<ReadTransaction, Fault> {
        self.with(|file| Ok(file.database.begin_read()?))
    }

    /// The index as it is on the disk.
    fn load(&self) -> Result<Loaded, Fault> {
        let transaction = self.reading()?;
        guarded(|| tables::load(&transaction))
    }

    fn open_again(&self, verify: bool) -> Result<Found, JournalError> {
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        // Whatever redb could not finish, the next opening repairs. What still reads is told that it is closed, and begins anew.
        let _ = guarded(|| {
            drop(file.take());
            Ok(())
        });
        let opened = open::open(self.disk.as_ref(), verify);
        self.reopened.fetch_add(1, Ordering::Relaxed);
        match opened {
            Ok((database, found)) => {
                *file = Some(OpenFile { database, writable: true });
                Ok(found)
            }
            Err(error) => {
                *file = open::open_to_read(self.disk.as_ref()).ok().map(|database| OpenFile { database, writable: false });
                Err(error)
            }
        }
    }
}

impl Store for RedbStore {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn commit(&self, round: &Round) -> Result<u64, Fault> {
        self.with(|file| {
            if !file.writable {
                return Err(Fault::Disk("the file could not be opened to be written after a fault of the disk".to_owned()));
            }
            let mut transaction = file.database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            transaction.set_quick_repair(self.disk.len().unwrap_or(0) >= QUICK_REPAIR_FROM);
            let freed = tables::apply(&transaction, round)?;
            transaction.commit()?;
            Ok(freed)
        })
    }

    fn batches(&self, session: u64, from: u64, to: u64) -> Result<Box<dyn Batches>, Fault> {
        let transaction = self.reading()?;
        guarded(|| {
            let table: ReadOnlyTable<(u64, u64), &[u8]> = transaction.open_table(tables::BATCHES)?;
            let begin = table.range((session, 0)..=(session, from))?.next_back().transpose()?;
            let begin = begin.map_or(from, |(key, _)| key.value().1);
            let range = table.range((session, begin)..(session, to.max(begin)))?;
            Ok(Box::new(RedbBatches { range, _transaction: transaction }) as Box<dyn Batches>)
        })
    }

    fn runs(&self, session: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
        let transaction = self.reading()?;
        guarded(|| tables::runs(&transaction, session))
    }

    fn reopen(&self, verify: bool) -> Result<bool, JournalError> {
        Ok(self.open_again(verify)?.set_aside.is_some())
    }

    fn close(&self) {
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        let closed = guarded(|| match file.take() {
            Some(file) if file.writable => Ok(file.database.close()?),
            _ => Ok(()),
        });
        if let Err(fault) = closed {
            tracing::warn!(
                "the journal {} was not closed properly: {}; the next start puts it in order",
                self.path().display(),
                fault.text()
            );
        }
    }

    fn reopened(&self) -> u64 {
        self.reopened.load(Ordering::Relaxed)
    }

    fn probe(&self, bytes: u64) -> io::Result<()> {
        self.disk.probe(bytes)
    }
}

struct RedbBatches {
    range: redb::Range<'static, (u64, u64), &'static [u8]>,
    _transaction: ReadTransaction,
}

impl Batches for RedbBatches {
    fn next(&mut self, value: &mut Vec<u8>) -> Result<Option<u64>, Fault> {
        guarded(|| {
            let Some((key, stored)) = self.range.next().transpose()? else { return Ok(None) };
            value.clear();
            value.extend_from_slice(stored.value());
            Ok(Some(key.value().1))
        })
    }
}
