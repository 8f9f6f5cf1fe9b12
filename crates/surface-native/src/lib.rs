//! The native protocol (`native-ws.md`) re-offered, so that native clients come through the same door as everybody else.
//!
//! ```text
//! records ──▶ NativeWriter ──▶ NativeFrame ──▶ sockets of the cloud and the bridge access surface
//! ```
//!
//! Frames pass as they came; what is added and what is left out is in [`NativeWriter`], which is pure and always built.
//! HTTP and WebSockets are behind the default feature `io`. This is the smallest surface, and the one to copy.

#![warn(missing_docs)]

mod mapping;

pub use mapping::{Kind, NativeFrame, NativeWriter, PendingAsk, RunSpan, Spent};

#[cfg(feature = "io")]
mod config;
#[cfg(feature = "io")]
mod shell;

#[cfg(feature = "io")]
pub use config::Config;
#[cfg(feature = "io")]
pub use shell::surface;
