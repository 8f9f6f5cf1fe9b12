//! The signals that end the program: the first one cleanly, the second at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Shells show a program that a signal ended as 128 and the signal's number; SIGINT is 2.
const INTERRUPTED: i32 = 130;

/// SIGTERM and SIGINT, caught from now on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches them.
    ///
    /// # Errors
    /// When the system does not let us.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one's name. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// From now on the next one ends the program at once.
    pub(crate) fn end_at_next(mut self) {
        tokio::spawn(async move {
            let name = self.next().await;
            tracing::warn!(signal = name, "ending at once");
            std::process::exit(INTERRUPTED);
        });
    }
}
