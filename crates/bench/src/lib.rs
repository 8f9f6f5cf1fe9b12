//! What one frame costs between the socket it came from and the sockets it goes to: parsed, read, written.
//!
//! `benches/translate.rs` measures it in time, `tests/allocations.rs` in allocations; `docs/benchmarks.md` has the figures.

#![warn(missing_docs)]

mod load;
mod path;

pub use load::{Load, loads};
pub use path::Path;
