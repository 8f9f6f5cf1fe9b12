//! The timers and bounds of runs, all keys of the config file (decision 30).

use serde::{Deserialize, Serialize};

/// `[run]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Milliseconds that the upstream has to end a stopped run itself.
    pub stop_grace_ms: u64,
    /// Milliseconds of silence after a recoverable error until the run fails with it.
    pub recoverable_error_ms: u64,
    /// Milliseconds without a frame until a run fails; off while an ask is open.
    pub max_idle_ms: u64,
    /// Bytes that the frames of one run may come to; it is ended by the one that exceeds them. All of them are kept as long as their session.
    pub max_bytes: usize,
    /// Milliseconds that the upstream has to answer a control request.
    pub control_ms: u64,
    /// How many runs of one session may wait for their turn, where they may.
    pub max_queued: usize,
    /// What the inputs of a principal's runs that wait may come to, in bytes.
    pub max_queued_bytes: usize,
    /// How many runs one principal may have at a time.
    pub max_active: usize,
    /// How many sessions one principal may have. When there are as many, the one longest at rest makes room, if it has rested for `keep_ms`.
    pub max_sessions: usize,
    /// Milliseconds that a session and its runs are kept at least after something last happened in it.
    pub keep_ms: u64,
    /// Milliseconds after which a session in which nothing happens is forgotten, and in one that goes on a run after its end.
    pub forget_ms: u64,
    /// Runs that one session keeps; the oldest goes first.
    pub max_runs: usize,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            stop_grace_ms: 3_000,
            recoverable_error_ms: 30_000,
            max_idle_ms: 3_600_000,
            max_bytes: 256 * 1024 * 1024,
            control_ms: 5_000,
            max_queued: 16,
            max_queued_bytes: 64 * 1024 * 1024,
            max_active: 256,
            max_sessions: 10_000,
            keep_ms: 3_600_000,
            forget_ms: 86_400_000,
            max_runs: 10_000,
        }
    }
}

/// `[ask]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AskConfig {
    /// Milliseconds that a permission or question waits; then it is denied. Real servers give up after 30 s themselves.
    pub permission_ms: u64,
    /// Milliseconds that a form or link waits.
    pub form_ms: u64,
    /// Milliseconds after an answer without any frame until it is said that nothing shows it to have been taken, and another one is taken.
    pub confirm_ms: u64,
}

impl Default for AskConfig {
    fn default() -> Self {
        Self { permission_ms: 30_000, form_ms: 300_000, confirm_ms: 35_000 }
    }
}
