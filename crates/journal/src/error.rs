//! What can go wrong with a journal, by who has to do something about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::LogKey;

/// The journal cannot be used, or did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another process writes into the file.
    #[error("the journal {} is in use by another process: stop that one, or give this one a file of its own (journal.path)", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// There is a file, and it is something else.
    #[error("{} is not a journal of this program ({what}) and was left as it is: name another file (journal.path)", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        what: String,
    },
    /// A newer version of this program wrote the file.
    #[error("the journal {} has the format {found}, and this version knows formats up to {known}: use the newer version again, or name another file (journal.path)", path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest one that is known here.
        known: u64,
    },
    /// The file cannot be opened or made.
    #[error("the journal {} cannot be opened: {cause}; the directory has to exist, and this process has to be allowed to write in it (journal.path)", path.display())]
    Unopened {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The disk did not take what was to be written.
    #[error("the journal {} cannot be written: {why}", path.display())]
    Unwritten {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: Arc<str>,
    },
    /// The index cannot be read.
    #[error("the index of the journal {} cannot be read: {why}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// A record was not stored, and is not in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record could not be stored: {why}")]
pub struct Unstored {
    /// Why not.
    pub why: Arc<str>,
}

/// Records that were stored cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {number} of the session {} cannot be read: {cause}", key.session)]
pub struct Damaged {
    /// The session.
    pub key: Box<LogKey>,
    /// The first record that cannot be read.
    pub number: usize,
    /// Why not.
    pub cause: Damage,
}

/// Why records cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// They are not there.
    #[error("it is missing")]
    Missing,
    /// The bytes are not the ones that were written.
    #[error("its bytes are not the ones that were written")]
    Changed,
    /// A version of this program wrote them that this one does not know.
    #[error("it was written in the format {0}, which this version does not know")]
    Format(u8),
    /// The bytes are whole, and mean nothing to this version.
    #[error("it holds {0}, which this version does not know")]
    Unknown(&'static str),
    /// The disk does not give them, or the file is damaged where they are found.
    #[error("{0}")]
    Unreadable(String),
}
