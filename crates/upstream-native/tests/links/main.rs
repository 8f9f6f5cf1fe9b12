//! The links through a real hub and over real sockets, against the simulator and against servers that do worse than it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

mod acts;
mod breaks;
mod bridge;
mod cloud;
mod coding;
mod faults;
mod lives;
mod matrix;
mod overdue;
mod repeats;
mod rude;
mod stops;
mod taken_up;
mod world;
