//! The signals: the first SIGTERM or SIGINT ends the program cleanly, the second at once; SIGHUP is heard where there is something to reload.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Shells show a program that a signal ended as 128 and the signal's number; SIGINT is 2.
const INTERRUPTED: i32 = 130;

/// SIGHUP, caught from now on, so that it ends nothing.
pub(crate) struct Hangups(Signal);

impl Hangups {
    /// Catches it.
    ///
    /// # Errors
    /// When the system does not let us.
    pub(crate) fn catch() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Returns when one has come since the last time; several are one. Cancel safe.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

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
