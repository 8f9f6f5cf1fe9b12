//! Opening the file, whatever is found in its place.

use std::path::PathBuf;

use redb::{Builder, Database, DatabaseError, ReadableDatabase, StorageError, TableError, TableHandle};

use super::tables::{ABOUT, BATCHES, FORMAT, LAYOUT, RUNS, SESSIONS};
use super::{Fault, Found, Loaded, OpenFile, RedbStore, guarded};
use crate::disk::{Backend, Disk};
use crate::error::JournalError;
use crate::overlay::Overlay;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, RwLock};

/// How redb files begin.
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";

/// How many of them may have changed before we believe that the file is something else altogether.
const MAGIC_LIKELY: usize = 5;

/// Memory for pages that were read, and for those of a commit. Small: batches are read once and in order.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

impl RedbStore {
    /// Opens the store and reads its index. A damaged file is set aside and a new one begun: a program that does not start is worse than a
    /// past that is gone.
    pub(crate) fn open(disk: Box<dyn Disk>) -> Result<(Self, Loaded, Found), JournalError> {
        let (database, mut found) = open(disk.as_ref(), false)?;
        let store = Self { disk, file: RwLock::new(Some(OpenFile { database, writable: true })), reopened: AtomicU64::new(0) };
        let loaded = match store.load() {
            Err(Fault::Corrupt(_)) => {
                found = store.open_again(true)?;
                store.load()
            }
            loaded => loaded,
        };
        let unread = |fault: Fault| JournalError::Unread { path: store.disk.path().to_owned(), why: fault.text().to_owned() };
        let loaded = loaded.map_err(unread)?;
        Ok((store, loaded, found))
    }
}

/// Why a file was not opened.
enum Refusal {
    /// It is ours, and damaged.
    Damaged(String),
    /// Anything else.
    For(JournalError),
}

pub(super) fn open(disk: &dyn Disk, verify: bool) -> Result<(Database, Found), JournalError> {
    match try_open(disk, verify) {
        Ok((database, repaired)) => Ok((database, Found { set_aside: None, repaired })),
        Err(Refusal::For(error)) => Err(error),
        Err(Refusal::Damaged(why)) => {
            let path = disk.path().display();
            let aside = disk.set_aside().map_err(|cause| JournalError::Unopened { path: disk.path().to_owned(), cause })?;
            tracing::error!(
                "the journal {path} is damaged ({why}): it was set aside as {}, and a new one begins; the sessions in it are gone",
                aside.display()
            );
            match try_open(disk, false) {
                Ok((database, repaired)) => Ok((database, Found { set_aside: Some(aside), repaired })),
                Err(Refusal::For(error)) => Err(error),
                Err(Refusal::Damaged(why)) => Err(JournalError::Unread { path: disk.path().to_owned(), why }),
            }
        }
    }
}

/// Opens it so that it can be read, without writing a byte of it.
pub(super) fn open_to_read(disk: &dyn Disk) -> Result<Database, Fault> {
    let below = disk.open_to_read().map_err(|error| Fault::Disk(error.to_string()))?;
    let overlay = Overlay::new(below).map_err(|error| Fault::Disk(error.to_string()))?;
    guarded(|| Ok(Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(overlay)?))
}

fn try_open(disk: &dyn Disk, verify: bool) -> Result<(Database, bool), Refusal> {
    let path = || disk.path().to_owned();
    let unopened = |cause| Refusal::For(JournalError::Unopened { path: path(), cause });
    if let Some(head) = disk.head(MAGIC.len()).map_err(unopened)? {
        check_head(&head, path())?;
    }
    let backend = Backend(disk.open().map_err(unopened)?);
    let repaired = Arc::new(AtomicBool::new(false));
    let repairing = repaired.clone();
    let opened = guarded(|| {
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(verify);
        builder.set_repair_callback(move |_| repairing.store(true, Ordering::Relaxed));
        Ok(builder.create_with_backend(backend))
    });
    let database = match opened {
        Ok(Ok(database)) => database,
        Ok(Err(error)) => return Err(refusal(error, path())),
        Err(fault) => return Err(Refusal::Damaged(fault.text().to_owned())),
    };
    match guarded(|| layout(&database)) {
        Ok(Layout::Ours) => Ok((database, repaired.load(Ordering::Relaxed))),
        Ok(Layout::Newer(found)) => Err(Refusal::For(JournalError::TooNew { path: path(), found, known: LAYOUT })),
        Ok(Layout::Foreign(table)) => {
            Err(Refusal::For(JournalError::NotAJournal { path: path(), what: format!("a database with a table {table}") }))
        }
        Err(Fault::Corrupt(why)) => Err(Refusal::Damaged(why)),
        Err(Fault::Disk(why)) => Err(Refusal::For(JournalError::Unwritten { path: path(), why: why.into() })),
    }
}

/// Whether what lies there can be ours: nothing yet, zeros that were never filled, or nearly the right beginning.
fn check_head(head: &[u8], path: PathBuf) -> Result<(), Refusal> {
    if head.is_empty() {
        return Ok(());
    }
    let same = head.iter().zip(MAGIC).filter(|(found, magic)| **found == *magic).count();
    if same == MAGIC.len() {
        Ok(())
    } else if head.iter().all(|byte| *byte == 0) || same >= MAGIC_LIKELY.min(head.len()) {
        Err(Refusal::Damaged("it does not begin as it should".to_owned()))
    } else {
        Err(Refusal::For(JournalError::NotAJournal { path, what: "it begins as something else".to_owned() }))
    }
}

fn refusal(error: DatabaseError, path: PathBuf) -> Refusal {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Refusal::For(JournalError::InUse { path }),
        DatabaseError::UpgradeRequired(version) => {
            Refusal::For(JournalError::NotAJournal { path, what: format!("a redb database of version {version}") })
        }
        DatabaseError::Storage(StorageError::Io(cause))
            if !matches!(cause.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof) =>
        {
            Refusal::For(JournalError::Unopened { path, cause })
        }
        error => Refusal::Damaged(error.to_string()),
    }
}

enum Layout {
    Ours,
    Newer(u64),
    Foreign(String),
}

/// Whether the tables are ours; those of a new file are made.
fn layout(database: &Database) -> Result<Layout, Fault> {
    let reading = database.begin_read()?;
    match reading.open_table(ABOUT) {
        Ok(about) => {
            return Ok(match about.get(FORMAT)?.map(|format| format.value()) {
                Some(LAYOUT) => Layout::Ours,
                Some(newer) => Layout::Newer(newer),
                None => Layout::Foreign(ABOUT.to_string()),
            });
        }
        Err(TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(table) = reading.list_tables()?.next() {
        return Ok(Layout::Foreign(table.name().to_owned()));
    }
    drop(reading);
    let writing = database.begin_write()?;
    writing.open_table(ABOUT)?.insert(FORMAT, LAYOUT)?;
    writing.open_table(SESSIONS)?;
    writing.open_table(RUNS)?;
    writing.open_table(BATCHES)?;
    writing.commit()?;
    Ok(Layout::Ours)
}
