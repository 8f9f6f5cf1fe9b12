//! SSE run events (`sse.md`): a session's runs as `data: {json}` blocks over HTTP.
//!
//! ```text
//! events ──▶ SseWriter ──▶ Block ──▶ body ──▶ any number of readers
//!                                    shell ◀── run, interrupt, answer
//! ```
//!
//! [`SseWriter`] and what it needs are pure and always built. The HTTP half is behind the default feature `io`: `router` serves a hub.

#![warn(missing_docs)]

mod aside;
mod block;
mod escape;
mod extras;
mod mapping;
mod moment;
mod options;
mod plan;
pub mod rules;

#[cfg(feature = "io")]
mod actions;
#[cfg(feature = "io")]
mod answer;
#[cfg(feature = "io")]
mod asks;
#[cfg(feature = "io")]
mod body;
#[cfg(feature = "io")]
mod caller;
#[cfg(feature = "io")]
mod config;
#[cfg(feature = "io")]
mod control;
#[cfg(feature = "io")]
mod cors;
#[cfg(feature = "io")]
mod cost;
#[cfg(feature = "io")]
mod cursor;
#[cfg(feature = "io")]
mod error;
#[cfg(feature = "io")]
mod explain;
#[cfg(feature = "io")]
mod history;
#[cfg(feature = "io")]
mod lists;
#[cfg(feature = "io")]
mod members;
#[cfg(feature = "io")]
mod posts;
#[cfg(feature = "io")]
mod request;
#[cfg(feature = "io")]
mod shell;
#[cfg(feature = "io")]
mod start;
#[cfg(feature = "io")]
mod tickets;
#[cfg(feature = "io")]
#[cfg(feature = "io")]
mod wishes;

pub use block::Block;
#[cfg(feature = "io")]
pub use config::{Config, Profile, QueryToken};
pub use extras::{AskLimits, Extras};
pub use mapping::SseWriter;
pub use options::{ArgumentsForm, InterruptTerminal, Options, SubAgents};
#[cfg(feature = "io")]
pub use shell::{SseSurface, router};
