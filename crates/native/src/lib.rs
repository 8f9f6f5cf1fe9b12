//! The native protocol (native-ws.md): frames, what they mean, and the frames we send.
//!
//! ```text
//!  text of a message ──▶ Frame ──▶ NativeReader ──▶ events
//!                        views      one per run
//!
//!  ask and answer, stop, input ──▶ build ──▶ text of a message
//! ```
//!
//! Pure: no I/O, no clock, no randomness. Open: kinds, members and numbers that nobody here knows survive, because a frame's text is
//! never written again. Total: no text that a peer may send makes a reader fail, stall, or break the order of its events.

#![warn(missing_docs)]

pub mod build;
mod explain;
pub mod frame;
mod object;
mod reader;
pub mod rules;
mod string;
mod think;

pub use explain::NativeExplainer;
pub use frame::{Frame, FrameKind, Key};
pub use object::{Malformed, Object};
pub use reader::{NativeReader, Settings, ask_in};
