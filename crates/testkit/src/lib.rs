//! What the end-to-end tests stand on: the real program, foreign clients, a plain HTTP client, the independent oracle and
//! the recorded transcripts. It knows no surface and not the hub: what it sees of Interline is what a user sees.
//!
//! These are the tests' tools, so a failure panics with all that is known of it.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on should say where")]

pub mod chaos;
pub mod checker;
mod client;
pub mod faults;
mod http;
pub mod marks;
mod oracle;
mod program;
mod schema;
mod seed;
mod transcripts;
pub mod watch;

pub use client::{Client, Seen};
pub use http::{Answer, Stream, delete, get, post, request};
pub use oracle::{Case, Surface, compare, grammar, judge};
pub use program::{Program, Temp, eventually};
pub use schema::{validate, validate_http, validate_socketio, validate_sse};
pub use seed::Seed;
pub use transcripts::{TRANSCRIPTS, transcript, transcript_path};

use std::path::PathBuf;

/// A path in the repository.
#[must_use]
pub fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).components().collect()
}
