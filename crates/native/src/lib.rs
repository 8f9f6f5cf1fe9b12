//! The native protocol.
#![warn(missing_docs)]
pub mod frame;
mod object;
mod string;
mod think;
pub use frame::{Frame, Key};
pub use object::{Malformed, Object};
