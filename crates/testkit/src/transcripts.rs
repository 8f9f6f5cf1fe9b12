//! The recorded native transcripts, which the simulator bundles.

use std::path::PathBuf;

use crate::in_repository;

/// Their names, with the number of runs each holds.
pub const TRANSCRIPTS: [(&str, usize); 17] = [
    ("agent-permission-denied", 1),
    ("agent-with-elicitation", 1),
    ("agent-with-permission", 1),
    ("agent-with-tools", 1),
    ("apierr", 1),
    ("ask", 1),
    ("bridge-compaction", 1),
    ("bridge-text-only", 1),
    ("bridge-with-permission", 1),
    ("chat-text-only", 1),
    ("chat-thinking", 1),
    ("chat-with-tools", 1),
    ("error", 1),
    ("interrupted", 1),
    ("multi", 2),
    ("text", 1),
    ("tool-allow", 1),
];

/// Where a transcript lies.
#[must_use]
pub fn transcript_path(name: &str) -> PathBuf {
    in_repository("crates/sim/transcripts").join(format!("{name}.jsonl"))
}

/// The text of a transcript.
#[must_use]
pub fn transcript(name: &str) -> String {
    std::fs::read_to_string(transcript_path(name)).expect("a transcript")
}
