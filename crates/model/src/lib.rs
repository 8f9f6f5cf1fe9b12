//! The canonical vocabulary: what the frames of any upstream mean, before any surface has said it in its own words.
//!
//! ```text
//! record ──▶ Reader ──▶ Event ──▶ Writer ──▶ item of one surface
//! ```
//!
//! This crate is pure and knows no protocol: no I/O, no clock, no randomness, no async. Readers and writers built
//! on it give the same output for the same records, always; a replay is therefore byte-stable, and any surface can be
//! built later from the log alone.

#![warn(missing_docs)]

mod ask;
mod event;
mod explain;
mod ids;
mod json;
mod outcome;
mod path;
mod record;
mod traits;

pub use ask::{Answer, Ask, AskKind, AskOutcome, Choice, FormAction, Question};
pub use event::{CompactionPhase, Event, EventKind, Lane, NoticeLevel, PlanStep, StepStatus, TaskPhase, What};
pub use explain::{Cause, ExplainReader, ExplainWriter, Explained, Explanation, Held, Meaning, Reason, Rule, Shown, Source, Unexplained};
pub use ids::{AskId, CallId, CellName, ParseRunIdError, Principal, RunId, SessionId};
pub use json::{Json, NotJson, write_json_string};
pub use outcome::{Completion, FailureKind, Outcome, RunEnd, Usage};
pub use path::path_segment;
pub use record::{Actor, Body, Fact, ForcedEnd, Millis, Part, Record, RunAccepted};
pub use traits::{Reader, Writer};

/// Shared, immutable UTF-8 text: cloning counts a reference, and a part of it can be kept without copying.
pub type Text = bytestring::ByteString;
