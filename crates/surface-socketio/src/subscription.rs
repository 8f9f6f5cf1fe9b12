//! A socket's subscription to a session: a cursor into what the session's projection holds, and a task that moves it.

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{Closing, Projection, Tail};
use interline_model::SessionId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::command::RawFrom;
use crate::outlet::{Gone, Outlet};
use crate::{RawItem, RawWriter, SocketEvent, SocketWriter, batch};

/// Events taken out of the session at a time.
const BATCH: usize = 64;

/// How long a subscription may still send once the server is closing.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where a subscription begins, and in which words it goes on: turns or raw events, never both.
pub(crate) enum Beginning {
    /// What a late subscriber must know, and the position right behind it. Both are taken in one look, so nothing is missed and nothing comes
    /// twice (socketio.md §4.10).
    Turns {
        snapshot: Vec<SocketEvent>,
        tail: Tail<SocketWriter>,
    },
    Raw(RawFeed),
}

/// Raw events of a session from some point on.
pub(crate) struct RawFeed {
    session: SessionId,
    tail: Tail<RawWriter>,
    /// Up to which `stream_sequence` the chat that comes first has been seen.
    seen: u64,
    /// How long to wait between batches.
    pause: Duration,
    /// The last thing sent was a batch.
    batched: bool,
}

/// As many items as come to so many bytes.
fn room<I>(bytes: usize, length: impl Fn(&I) -> usize) -> impl FnMut(&I) -> bool {
    let mut left = bytes;
    move |item| {
        let length = length(item);
        let fits = length <= left;
        left = left.saturating_sub(length);
        fits
    }
}

impl Beginning {
    pub(crate) fn now(projection: &Arc<Projection<SocketWriter>>) -> Self {
        let (snapshot, position) = projection.with(|writer, position| (writer.late_subscriber(), position));
        Self::Turns { snapshot, tail: projection.tail(position) }
    }

    /// What raw clients missed is in the session's items, so their late subscription is a position in them.
    pub(crate) fn raw(session: SessionId, projection: &Arc<Projection<RawWriter>>, from: RawFrom, pause: Duration) -> Self {
        let (owed, position) = projection.with(|writer, position| (writer.owed_from(from.after, from.resume), position));
        let (from, seen) = owed.unwrap_or((position, 0));
        Self::Raw(RawFeed { session, tail: projection.tail(from), seen, pause, batched: false })
    }

    /// Up to which of the session's items everything was taken. Before the snapshot has gone out, nothing was.
    fn position(&self) -> u64 {
        match self {
            Self::Turns { snapshot, .. } if !snapshot.is_empty() => 0,
            Self::Turns { tail, .. } => tail.position(),
            Self::Raw(feed) => feed.tail.position(),
        }
    }

    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, Self::Raw(_))
    }

    /// Waits until something comes, and says how long that is.
    async fn upcoming(&mut self) -> usize {
        match self {
            // It is held as it is.
            Self::Turns { snapshot, .. } if !snapshot.is_empty() => 1,
            Self::Turns { tail, .. } => tail.upcoming(|event: &SocketEvent| event.data.as_str().len()).await,
            Self::Raw(feed) => feed.tail.upcoming(RawItem::len).await,
        }
    }

    /// What comes next, at most so many bytes of it; what is longer comes alone.
    async fn next(&mut self, bytes: usize) -> Vec<SocketEvent> {
        match self {
            Self::Turns { snapshot, .. } if !snapshot.is_empty() => std::mem::take(snapshot),
            Self::Turns { tail, .. } => tail.next_while(BATCH, room(bytes, |event: &SocketEvent| event.data.as_str().len())).await,
            Self::Raw(feed) => feed.next(bytes).await,
        }
    }

    /// The same, of what there is.
    fn ready(&mut self, bytes: usize) -> Vec<SocketEvent> {
        match self {
            Self::Turns { snapshot, .. } if !snapshot.is_empty() => std::mem::take(snapshot),
            Self::Turns { tail, .. } => tail.ready_while(BATCH, room(bytes, |event: &SocketEvent| event.data.as_str().len())),
            Self::Raw(feed) => feed.ready(bytes),
        }
    }
}

impl RawFeed {
    async fn next(&mut self, bytes: usize) -> Vec<SocketEvent> {
        // Deltas come one by one; a packet for each would cost more than all of them together.
        if std::mem::take(&mut self.batched) {
            tokio::time::sleep(self.pause).await;
        }
        loop {
            let items = self.tail.next_while(BATCH, room(bytes, RawItem::len)).await;
            let events = self.unseen(items);
            if !events.is_empty() {
                return events;
            }
        }
    }

    fn ready(&mut self, bytes: usize) -> Vec<SocketEvent> {
        loop {
            let items = self.tail.ready_while(BATCH, room(bytes, RawItem::len));
            let none = items.is_empty();
            let events = self.unseen(items);
            if none || !events.is_empty() {
                return events;
            }
        }
    }

    /// Leaves out what the client has seen of the chat that comes first: all up to its last raw event.
    fn unseen(&mut self, items: Vec<RawItem>) -> Vec<SocketEvent> {
        let mut kept = Vec::with_capacity(items.len());
        for item in items {
            match &item {
                _ if self.seen == 0 => kept.push(item),
                RawItem::Raw { sequence, .. } if *sequence < self.seen => {}
                RawItem::Raw { .. } => self.seen = 0,
                RawItem::Typed(_) => {}
            }
        }
        let events = batch(self.session.as_str(), kept);
        self.batched = events.last().is_some_and(|event| event.name == "turn:events");
        events
    }
}

/// Sends everything from `beginning` on, until told to stop or the socket is gone. `told` says up to which item of the session.
pub(crate) async fn follow(
    mut beginning: Beginning,
    outlet: Arc<Outlet>,
    told: watch::Sender<u64>,
    stop: CancellationToken,
    closing: Closing,
) {
    loop {
        told.send_replace(beginning.position());
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = outlet.gone().cancelled() => return,
            events = coming(&mut beginning, &outlet) => {
                let Ok(events) = events else { return };
                if deliver(&events, &outlet, &stop).await.is_err() {
                    return;
                }
            }
            () = closing.over() => {
                let rest = async {
                    loop {
                        let Ok(bytes) = outlet.room(1).await else { return };
                        let events = beginning.ready(bytes);
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

/// What comes next, as much of it as may be sent: nothing that waits for its client is held here.
async fn coming(beginning: &mut Beginning, outlet: &Outlet) -> Result<Vec<SocketEvent>, Gone> {
    let length = beginning.upcoming().await;
    let bytes = outlet.room(length).await?;
    Ok(beginning.next(bytes).await)
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
