//! What the fuzz targets share: sessions as readable scripts, a mutator that knows their parts, and checkers that share no code with
//! what they check.
//!
//! ```text
//! bytes ─▶ Script ─▶ play: NativeReader ─▶ order ─▶ SseWriter    ─▶ sse::Checker
//!            ▲                                  └─▶ SocketWriter ─▶ socketio::Checker
//!          mutate
//! ```

pub mod bodies;
#[allow(unreachable_pub, reason = "the tests of the crate it belongs to use it as it is")]
#[path = "../../crates/surface-socketio/tests/fold/mod.rs"]
mod fold;
pub mod mutate;
#[path = "../../crates/native/src/reader/order.rs"]
mod order;
pub mod play;
pub mod said;
pub mod script;
pub mod socketio;
pub mod sse;
pub mod words;
