//! `[journal]`: where sessions are kept beyond the process, and how much of them.

use serde::{Deserialize, Serialize};

/// `[journal]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalConfig {
    /// The file that keeps what cells declare as `buffered` or `fsync`; empty: there is none, and everything is kept in memory only.
    pub path: String,
    /// Milliseconds until what was appended with the durability `buffered` is on the disk.
    pub flush_ms: u64,
    /// Bytes that the kept records may take in the file; beyond them, the oldest runs that ended are forgotten.
    pub max_bytes: u64,
    /// Bytes that may wait in memory for a disk that fails or is slow; beyond them the journal counts as failing.
    pub max_unwritten_bytes: usize,
    /// Bytes of messages that sessions at rest may hold in memory though the disk has them, once for each surface in use. The hub has those that were
    /// used least recently let go of theirs.
    pub memory_bytes: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            path: String::new(),
            flush_ms: 50,
            max_bytes: 8 * 1024 * 1024 * 1024,
            max_unwritten_bytes: 256 * 1024 * 1024,
            memory_bytes: 256 * 1024 * 1024,
        }
    }
}
