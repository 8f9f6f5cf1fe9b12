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

mod aside;
mod asking;
mod beginning;
mod calls;
mod compaction;
mod ending;
mod form;
mod ink;
mod live;
mod mapping;
mod marker;
mod object;
mod options;
mod patch;
mod pending;
mod projection;
mod question;
mod raw;
mod result;
pub mod rules;
mod schema;
mod session;
mod stamp;
mod turns;

#[cfg(feature = "io")]
mod bearer;
#[cfg(feature = "io")]
mod command;
#[cfg(feature = "io")]
mod config;
#[cfg(feature = "io")]
mod cors;
#[cfg(feature = "io")]
mod desk;
#[cfg(feature = "io")]
mod explain;
#[cfg(feature = "io")]
mod farewell;
#[cfg(feature = "io")]
mod files;
#[cfg(feature = "io")]
mod inbox;
#[cfg(feature = "io")]
mod marks;
#[cfg(feature = "io")]
mod members;
#[cfg(feature = "io")]
mod notes;
#[cfg(feature = "io")]
mod outlet;
#[cfg(feature = "io")]
mod refusal;
#[cfg(feature = "io")]
mod rest;
#[cfg(feature = "io")]
mod shell;
#[cfg(feature = "io")]
mod stock;
#[cfg(feature = "io")]
mod subscription;
#[cfg(feature = "io")]
mod telemetry;

#[cfg(feature = "io")]
pub use config::{Config, QueryToken};
pub use mapping::{SocketEvent, SocketWriter};
pub use options::{HeadlessResult, Options, PatchFormat, PauseStatus};
pub use question::{ChoiceError, Chosen, answer, answer_in_words, chosen, questions};
pub use raw::{RawItem, RawWriter, batch};
pub use session::{PendingQuestion, SessionStatus};
#[cfg(feature = "io")]
pub use shell::{SocketIoSurface, router};
pub use stamp::timestamp;
