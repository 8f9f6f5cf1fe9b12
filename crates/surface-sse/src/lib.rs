//! SSE run events (`sse.md`): a session's runs as `data: {json}` blocks over HTTP.
//!
//! ```text
//! events ──▶ SseWriter ──▶ Block ──▶ body of any number of readers
//! ```
//!
//! [`SseWriter`] and what it needs are pure and always built. The HTTP half is behind the default feature `io`.

#![warn(missing_docs)]

mod block;
mod escape;
mod mapping;
mod plan;

pub use block::Block;
pub use mapping::{ArgumentsForm, InterruptTerminal, Options, SseWriter, SubAgents};
