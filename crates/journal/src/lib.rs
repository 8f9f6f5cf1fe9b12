//! The log: the ordered records of every session, and the only truth about it.
//!
//! Everything that a client sees is made from here by pure code. The log is a trait, so that where the records live is one
//! decision in one place:
//!
//! ```text
//!                    ┌─ Memory                                 gone with the process
//! Journal ── Log ────┤
//!                    └─ Durable ─ writer thread ─ redb file    back after a restart, up to what its durability promises
//! ```
//!
//! [`Memory`] keeps logs as long as the process lives. [`Durable`] keeps those that are declared [`Durability::Buffered`] or
//! [`Durability::Fsync`] in one file, and the rest in memory. What is on the disk is not kept in memory.

#![warn(missing_docs)]

mod codec;
mod config;
mod disk;
mod durable;
mod error;
mod index;
mod log;
mod memory;
mod overlay;
mod store;
mod sync;
mod writer;

use std::sync::Arc;

use interline_model::{CellName, Millis, Principal, Record, RunId, SessionId, Text};

pub use config::JournalConfig;
pub use durable::{Durable, Opened};
pub use error::{Damage, Damaged, JournalError, Unstored};
pub use memory::Memory;
pub use store::catches_panics;

/// Whose session: ids that clients bring are only unique within a principal (decision 1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogKey {
    /// The owner.
    pub principal: Principal,
    /// The session.
    pub session: SessionId,
    /// A run of it that waits for its turn: until it begins it has a log of its own.
    pub waiting: Option<RunId>,
}

impl LogKey {
    /// The session itself.
    #[must_use]
    pub fn session(principal: Principal, session: SessionId) -> Self {
        Self { principal, session, waiting: None }
    }
}

/// What a log promises about what was appended to it. Declared per cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing: it is gone with the process.
    Memory,
    /// What is older than the flush interval and the commit after it survives the end of the process and of the machine.
    Buffered,
    /// Everything that was appended without an error survives them.
    Fsync,
}

/// What is known of a session from its beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Birth {
    /// Its cell, for life.
    pub cell: CellName,
    /// When it was made.
    pub created_at: Millis,
    /// The title it was made with.
    pub title: Option<Text>,
    /// The model it was made with.
    pub model: Option<Text>,
    /// The labels it was made with.
    pub labels: serde_json::Map<String, serde_json::Value>,
}

/// What the journal must know of a record, since it does not look into records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Plain,
    /// It is the first record of a run.
    Begins {
        /// The run.
        run: RunId,
        /// Kept in the index, and handed back as it is.
        tag: Option<Text>,
    },
    /// With it the run that began last has ended. More records may follow.
    Ends,
}

/// How a journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes what it is given.
    Well,
    /// What it is given does not reach the disk. Logs in memory, and buffered ones as far as memory goes, work all the same; no new run
    /// should begin that is promised more.
    Failing {
        /// What the disk said.
        why: String,
        /// When it began.
        since: Millis,
        /// About how much memory is taken by what waits for the disk.
        unwritten_bytes: u64,
    },
}

/// A session that outlived the last process.
pub struct Stored {
    /// Whose it is.
    pub key: LogKey,
    /// What it was made with.
    pub birth: Birth,
    /// What its log promises.
    pub durability: Durability,
    /// Its runs that are kept, in order.
    pub runs: Vec<StoredRun>,
    /// Its records.
    pub log: Arc<dyn Log>,
}

/// A run of a stored session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// Its id.
    pub run: RunId,
    /// What [`Mark::Begins`] brought.
    pub tag: Option<Text>,
    /// The time of its first record.
    pub began_at: Millis,
    /// The time of the record with which it ended.
    pub ended_at: Option<Millis>,
    /// What its records take in the file, as far as that can be told.
    pub bytes: u64,
    /// The number of its first record.
    pub first: usize,
}

/// Where logs live.
pub trait Journal: Send + Sync {
    /// The log of a session: a new and empty one, or the one that is there. Never waits for the disk.
    ///
    /// Of a log that is there, the birth holds that it was made with, and where it lives: one in memory stays there, one in the file
    /// stays there, too. Between `Buffered` and `Fsync` the newer word holds, since it only says how long an append waits; it is taken
    /// when nothing of the log waits for the disk, as after a start.
    fn open(&self, key: &LogKey, birth: &Birth, durability: Durability) -> Arc<dyn Log>;

    /// Forgets a session and all its records. Whoever still holds the log finds it empty.
    fn remove(&self, key: &LogKey);

    /// The sessions that outlived the last process, from the index alone: no record is read. Meant for the start; later it tells what is
    /// on the disk at that moment.
    ///
    /// # Errors
    /// [`JournalError::Unread`] if the file gives no index.
    fn stored(&self) -> Result<Vec<Stored>, JournalError>;

    /// How it is.
    fn health(&self) -> Health;

    /// What the kept records take in the file, as far as that can be told. The file itself can be larger: it holds what was freed until it
    /// is used again.
    fn stored_bytes(&self) -> u64;

    /// Waits until everything that was appended so far is on the disk.
    ///
    /// # Errors
    /// [`JournalError::Unwritten`] if the disk does not take it; buffered records still wait for it then.
    fn flush(&self) -> Result<(), JournalError>;
}

/// The records of one session. Appending is for the session's owner alone; reading is for everybody.
pub trait Log: Send + Sync {
    /// Appends a record.
    ///
    /// With `Memory` and `Buffered` it is in the log at once, and there is never an error. With `Fsync` this waits until it is on the disk,
    /// in one commit with what all other sessions have; only then it is in the log.
    ///
    /// # Errors
    /// [`Unstored`], with `Fsync` only: the record is not in the log, nobody has seen it, and the number it would have had is the next
    /// record's. It is also taken back from the disk in the next commit that works. Only if the process dies between a failed sync and
    /// that commit, it can come back with the next process, as the last record of its session: no disk says what a failed sync left on it.
    fn append(&self, record: Record, mark: Mark) -> Result<(), Unstored>;

    /// The number behind the last record, counted from the session's beginning, forgotten ones included.
    fn len(&self) -> usize;

    /// Whether nothing is kept.
    fn is_empty(&self) -> bool {
        self.len() == self.first()
    }

    /// The number of the first record that is kept.
    fn first(&self) -> usize;

    /// Hands out the records from number `from` (or the first that is kept) to the last there is now, in order, each once. Reads from the
    /// disk what is not in memory.
    ///
    /// # Errors
    /// [`Damaged`] at the first record that cannot be read; those before it were handed out.
    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record)) -> Result<(), Damaged>;

    /// Drops the runs before the one whose first record is `number`.
    fn forget_before(&self, number: usize);

    /// What it promises.
    fn durability(&self) -> Durability;
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests;

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod races;
