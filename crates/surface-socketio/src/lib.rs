//! The Socket.IO surface: sessions as turns, for frontends of the Blade family (socketio.md).
//!
//! ```text
//! records and events ──▶ SocketWriter ──▶ SocketEvent ──▶ shell ──▶ sockets
//!                             └── turns ──────────────▶ rest  ──▶ GET /api/sessions/{id}/messages
//! ```
//!
//! The writer is pure and keeps the whole session as turns, because REST must show at any moment exactly what the socket events add up to.
//! What needs a network is behind the feature `io`.

#![warn(missing_docs)]

mod asking;
mod form;
mod mapping;
mod object;
mod options;
mod patch;
mod projection;
mod question;
mod stamp;

pub use mapping::{PendingQuestion, SessionStatus, SocketEvent, SocketWriter};
pub use options::{HeadlessResult, Options, PatchFormat, PauseStatus};
pub use question::{ChoiceError, Chosen, answer, answer_in_words, chosen, questions};
pub use stamp::timestamp;
