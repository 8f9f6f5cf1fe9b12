//! The choices that socketio.md leaves open, each with its default.

use interline_model::Millis;

/// How a session is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What a `turn:patch` carries.
    pub patch_format: PatchFormat,
    /// Whether thinking patches fill `text_delta`, too. Readers that append every `text_delta` then show reasoning as part of the answer.
    pub thinking_delta: bool,
    /// `chat:end.status` when a question pauses the chat (socketio.md §4.4).
    pub pause_status: PauseStatus,
    /// The form of `chat:end.result` of headless runs (socketio.md §4.8).
    pub headless_result: HeadlessResult,
    /// `context_window` of every turn, since no upstream says it.
    pub context_window: u64,
    /// How much time must lie between two snapshots of a turn while its text grows (decision 23).
    pub snapshot_ms: Millis,
    /// Up to which size a turn is small enough for a snapshot at every such moment (decision 23).
    pub snapshot_bytes: usize,
    /// The longest tool result, in bytes, that events tell whole. Of a longer one they tell the beginning, and where all of it is: REST has it.
    pub max_result_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            patch_format: PatchFormat::Hybrid,
            thinking_delta: false,
            pause_status: PauseStatus::Completed,
            headless_result: HeadlessResult::Superset,
            context_window: 200_000,
            snapshot_ms: 100,
            snapshot_bytes: 16 * 1024,
            max_result_bytes: 1 << 20,
        }
    }
}

/// What a `turn:patch` carries (socketio.md §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum PatchFormat {
    /// The documented patch and the turn's snapshot: both families of readers are served.
    Hybrid,
    /// The documented patch alone.
    Delta,
    /// The snapshot alone, in patches of type `sync`.
    Sync,
}

/// `chat:end.status` of a paused chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum PauseStatus {
    /// As the documents print it.
    Completed,
    /// As newer servers send it.
    Paused,
}

/// Which members `chat:end.result` of a headless run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum HeadlessResult {
    /// What the documents and what the Python client read.
    Superset,
    /// `output`.
    Docs,
    /// `result`, or the structured value's own members.
    Sdk,
}
