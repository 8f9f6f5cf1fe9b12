//! A socket's subscription to a session: a cursor into what the session's projection holds, and a task that moves it.

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{Projection, Tail};
use tokio_util::sync::CancellationToken;

use crate::outlet::{Gone, Outlet};
use crate::{SocketEvent, SocketWriter};

/// Events taken out of the session at a time.
const BATCH: usize = 64;

/// How long a subscription may still send once the server is closing.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where a subscription begins: what a late subscriber must know, and the position right behind it. Both are taken in one look, so nothing is
/// missed and nothing comes twice (socketio.md §4.10).
pub(crate) struct Beginning {
    snapshot: Vec<SocketEvent>,
    tail: Tail<SocketWriter>,
}

impl Beginning {
    pub(crate) fn now(projection: &Arc<Projection<SocketWriter>>) -> Self {
        let (snapshot, position) = projection.with(|writer, position| (writer.late_subscriber(), position));
        Self { snapshot, tail: projection.tail(position) }
    }
}

/// Sends everything from `beginning` on, until told to stop or the socket is gone.
pub(crate) async fn follow(beginning: Beginning, outlet: Arc<Outlet>, stop: CancellationToken, closing: CancellationToken) {
    let Beginning { snapshot, mut tail } = beginning;
    if deliver(&snapshot, &outlet, &stop).await.is_err() {
        return;
    }
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = outlet.gone().cancelled() => return,
            events = tail.next(BATCH) => {
                if deliver(&events, &outlet, &stop).await.is_err() {
                    return;
                }
            }
            () = closing.cancelled() => {
                let rest = async {
                    loop {
                        let events = tail.ready(BATCH);
                        if events.is_empty() || deliver(&events, &outlet, &stop).await.is_err() {
                            return;
                        }
                    }
                };
                let _ = tokio::time::timeout(LAST_WORDS, rest).await;
                return;
            }
        }
    }
}

async fn deliver(events: &[SocketEvent], outlet: &Outlet, stop: &CancellationToken) -> Result<(), Gone> {
    for event in events {
        let mut held = outlet.hold().await;
        // Looked at with the outlet in hand: after an `unsubscribe` was acknowledged nothing more comes.
        if stop.is_cancelled() {
            return Err(Gone);
        }
        held.event(event).await?;
    }
    Ok(())
}
