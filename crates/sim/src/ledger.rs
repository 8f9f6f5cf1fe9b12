//! A cloud session: everything it has sent, in order, for every socket that is or comes to be attached.
//!
//! The real servers keep this in a message stream that all sessions share. Each frame has a sequence there, which no frame
//! carries; here the documented voice counts per session, the observed one over the whole cloud and both directions
//! (native-ws.md §3.3).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_util::sync::CancellationToken;

use crate::{
    asks::Asks,
    frames,
    inbox::Inbox,
    locked,
    settings::Settings,
    state::Attendance,
    transcript::End,
    websocket::{Delivery, Source},
};

/// A worker's frames above this never arrive in the observed voice (§6.1).
const WORKER_FRAME_LIMIT: usize = 32_768;

/// Who executes a cloud session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Chat,
    Agent,
    Task,
}

/// The state of a cloud session (§2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionState {
    Pending,
    Active,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

impl SessionState {
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

pub(crate) struct Ledger {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    /// The model of the create request, or the default.
    pub(crate) model: String,
    pub(crate) asks: Asks,
    pub(crate) attendance: Attendance,
    pub(crate) cancel: CancellationToken,
    pub(crate) resumed: Notify,
    pub(crate) settings: Settings,
    pub(crate) inbox: Inbox,
    /// Nobody gets a stream of it any more.
    pub(crate) vanished: AtomicBool,
    observed: bool,
    /// The sequence of the stream: this session's own, or the one of the whole cloud.
    sequence: Arc<AtomicU64>,
    retained: usize,
    inner: Mutex<Inner>,
    version: watch::Sender<u64>,
}

struct Inner {
    /// Entries with their sequence; the oldest may be gone.
    entries: VecDeque<(u64, Delivery)>,
    /// How many entries are gone: the position of the first one left.
    gone: u64,
    /// Before this position, and up to this sequence, nothing can be had any more by who comes now.
    forgotten: Option<(u64, u64)>,
    state: SessionState,
    result: Option<Utf8Bytes>,
    touched: Instant,
    /// The positions of the attached sockets.
    readers: Vec<Weak<AtomicU64>>,
}

impl Inner {
    /// The position of the first entry that can be had.
    fn first_position(&self) -> u64 {
        self.forgotten.map_or(self.gone, |(position, _)| self.gone.max(position))
    }

    /// Forgets the oldest entries, but none that an attached socket has yet to get.
    fn trim(&mut self, retained: usize) {
        if self.entries.len() <= retained {
            return;
        }
        self.readers.retain(|reader| reader.strong_count() > 0);
        let positions = self.readers.iter().filter_map(Weak::upgrade).map(|reader| reader.load(Ordering::SeqCst));
        let slowest = positions.min().unwrap_or(u64::MAX);
        while self.entries.len() > retained && self.gone < slowest {
            self.entries.pop_front();
            self.gone += 1;
        }
    }
}

/// Where a new socket begins.
pub(crate) enum Cursor {
    /// At the beginning.
    All,
    /// With what comes from now on.
    Live,
    /// After the frame of this sequence.
    After(u64),
}

impl Ledger {
    pub(crate) fn new(
        id: String,
        mode: Mode,
        state: SessionState,
        observed: bool,
        sequence: Arc<AtomicU64>,
        retained: usize,
        model: String,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            mode,
            model,
            asks: Asks::default(),
            attendance: Attendance::default(),
            cancel: CancellationToken::new(),
            resumed: Notify::new(),
            settings: Settings::default(),
            inbox: Inbox::default(),
            vanished: AtomicBool::new(false),
            observed,
            sequence,
            retained: retained.max(1),
            inner: Mutex::new(Inner {
                entries: VecDeque::new(),
                gone: 0,
                forgotten: None,
                state,
                result: None,
                touched: Instant::now(),
                readers: Vec::new(),
            }),
            version: watch::Sender::new(0),
        })
    }

    pub(crate) fn push(&self, delivery: Delivery) {
        self.append(delivery, |_| {});
    }

    /// Appends the frame that ends the run, and whatever state that leaves the session in, in one step: whoever has seen
    /// the frame finds the session ended.
    pub(crate) fn end(&self, frame: Utf8Bytes, end: End) {
        // §2.8: agent and task sessions stay active after a result on today's servers.
        let finalises = !self.observed || self.mode == Mode::Chat;
        self.append(Delivery::Text(frame.clone()), |inner| {
            if finalises && !inner.state.is_final() {
                inner.state = match end {
                    End::Completed => SessionState::Completed,
                    End::Interrupted => SessionState::Cancelled,
                    End::Failed => SessionState::Failed,
                };
            }
            if inner.result.is_none() {
                inner.result = Some(frame);
            }
        });
    }

    fn append(&self, delivery: Delivery, change: impl FnOnce(&mut Inner)) {
        let lost = self.observed && self.mode != Mode::Chat && matches!(&delivery, Delivery::Text(text) if text.len() > WORKER_FRAME_LIMIT);
        {
            let mut inner = locked(&self.inner);
            if !lost {
                // Cuts and closes are no messages, and have no sequence of their own.
                let step = u64::from(!matches!(delivery, Delivery::Drop | Delivery::Close(..)));
                let sequence = self.sequence.fetch_add(step, Ordering::SeqCst) + step;
                inner.entries.push_back((sequence, delivery));
                inner.trim(self.retained);
            }
            inner.touched = Instant::now();
            change(&mut inner);
        }
        self.version.send_modify(|version| *version += 1);
    }

    /// Cuts whoever is attached, and forgets everything so far and so many frames that nobody got.
    pub(crate) fn forget(&self, lost: u64) {
        self.push(Delivery::Drop);
        let mut inner = locked(&self.inner);
        let sequence = self.sequence.fetch_add(lost, Ordering::SeqCst) + lost;
        inner.forgotten = Some((inner.gone + inner.entries.len() as u64, sequence));
    }

    pub(crate) fn state(&self) -> SessionState {
        locked(&self.inner).state
    }

    pub(crate) fn set_state(&self, state: SessionState) {
        locked(&self.inner).state = state;
    }

    pub(crate) fn result(&self) -> Option<Utf8Bytes> {
        locked(&self.inner).result.clone()
    }

    /// The sequence of the newest frame.
    pub(crate) fn newest(&self) -> u64 {
        locked(&self.inner).entries.back().map_or(0, |(sequence, _)| *sequence)
    }

    /// When the session last changed.
    pub(crate) fn touched(&self) -> Instant {
        locked(&self.inner).touched
    }

    /// The stream of a new socket. What it begins with is fixed now, before the upgrade.
    pub(crate) fn stream(self: &Arc<Self>, cursor: &Cursor) -> LedgerStream {
        let changed = self.version.subscribe();
        let mut inner = locked(&self.inner);
        inner.trim(self.retained);
        let end = inner.gone + inner.entries.len() as u64;
        let (next, desynced) = match *cursor {
            Cursor::All => (inner.first_position(), None),
            Cursor::Live => (end, None),
            Cursor::After(since) => {
                let first = self.first_retained(&inner);
                let missed = inner.entries.partition_point(|(sequence, _)| *sequence <= since) as u64;
                ((inner.gone + missed).max(inner.first_position()), (since.saturating_add(1) < first).then_some((since, first)))
            }
        };
        let next = Arc::new(AtomicU64::new(next));
        inner.readers.retain(|reader| reader.strong_count() > 0);
        inner.readers.push(Arc::downgrade(&next));
        drop(inner);
        LedgerStream { ledger: Arc::clone(self), changed, next, joined: end, desynced, closing: false, fresh: true }
    }

    /// The stream of a session that has none any more: the notice of it, then the close.
    pub(crate) fn vanished_stream(self: &Arc<Self>, since: u64) -> LedgerStream {
        let mut stream = self.stream(&Cursor::Live);
        stream.desynced = Some((since, self.newest().saturating_add(1)));
        stream
    }

    fn first_retained(&self, inner: &Inner) -> u64 {
        let first = if self.observed {
            // The whole cloud shares one stream, so one session's frames push out another's.
            self.sequence.load(Ordering::SeqCst).saturating_sub(self.retained as u64) + 1
        } else {
            inner.entries.front().map_or(1, |(sequence, _)| *sequence)
        };
        inner.forgotten.map_or(first, |(_, sequence)| first.max(sequence.saturating_add(1)))
    }
}

/// One socket's view of a [`Ledger`].
pub(crate) struct LedgerStream {
    ledger: Arc<Ledger>,
    changed: watch::Receiver<u64>,
    /// The position of the next entry.
    next: Arc<AtomicU64>,
    /// The length of the ledger when this socket came: cuts before it were meant for others.
    joined: u64,
    desynced: Option<(u64, u64)>,
    closing: bool,
    fresh: bool,
}

impl Source for LedgerStream {
    async fn ready(&mut self) {
        if std::mem::take(&mut self.fresh) || self.closing {
            return;
        }
        let end = {
            let inner = locked(&self.ledger.inner);
            inner.gone + inner.entries.len() as u64
        };
        if self.next.load(Ordering::SeqCst) >= end && self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn take(&mut self) -> Option<Delivery> {
        if self.closing {
            return Some(Delivery::Close(1000, "desynced"));
        }
        if let Some((since, first)) = self.desynced {
            self.closing = true;
            return Some(Delivery::text(frames::session_desynced(&self.ledger.id, since, first)));
        }
        let inner = locked(&self.ledger.inner);
        loop {
            let position = self.next.load(Ordering::SeqCst);
            let at = usize::try_from(position.checked_sub(inner.gone)?).ok()?;
            let (_, delivery) = inner.entries.get(at)?;
            self.next.store(position + 1, Ordering::SeqCst);
            if position >= self.joined || !matches!(delivery, Delivery::Drop) {
                return Some(delivery.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(observed: bool, retained: usize) -> Arc<Ledger> {
        let sequence = Arc::new(AtomicU64::new(0));
        Ledger::new("s".into(), Mode::Chat, SessionState::Active, observed, sequence, retained, "m".into())
    }

    fn all(mut stream: LedgerStream) -> Vec<String> {
        std::iter::from_fn(|| stream.take())
            .take(20)
            .map(|delivery| match delivery {
                Delivery::Text(text) => text.to_string(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn cursors() {
        let ledger = ledger(false, 100);
        for text in ["a", "b", "c"] {
            ledger.push(Delivery::text(text));
        }
        assert_eq!(all(ledger.stream(&Cursor::All)), ["a", "b", "c"]);
        assert_eq!(all(ledger.stream(&Cursor::After(1))), ["b", "c"]);
        assert!(all(ledger.stream(&Cursor::After(99))).is_empty());
        let live = ledger.stream(&Cursor::Live);
        ledger.push(Delivery::text("d"));
        assert_eq!(all(live), ["d"]);
    }

    #[test]
    fn a_cursor_before_what_is_kept_is_desynced() {
        let ledger = ledger(false, 2);
        for text in ["a", "b", "c", "d"] {
            ledger.push(Delivery::text(text));
        }
        let frames = all(ledger.stream(&Cursor::After(1)));
        assert!(frames[0].contains("requested seq 1 before stream first seq 3"), "{frames:?}");
        assert!(frames[1].contains("Close(1000, \"desynced\")"));
        assert_eq!(all(ledger.stream(&Cursor::After(2))), ["c", "d"]);
        assert_eq!(all(ledger.stream(&Cursor::All)), ["c", "d"]);
    }

    #[test]
    fn nothing_is_forgotten_that_an_attached_socket_has_yet_to_get() {
        let ledger = ledger(false, 1);
        let attached = ledger.stream(&Cursor::Live);
        for text in ["a", "b", "c"] {
            ledger.push(Delivery::text(text));
        }
        assert_eq!(all(attached), ["a", "b", "c"]);
        ledger.push(Delivery::text("d"));
        assert_eq!(all(ledger.stream(&Cursor::All)), ["d"]);
    }

    #[test]
    fn a_cut_is_for_those_who_were_there() {
        let ledger = ledger(true, 100);
        let there = ledger.stream(&Cursor::All);
        ledger.push(Delivery::text("a"));
        ledger.push(Delivery::Drop);
        ledger.push(Delivery::text("b"));
        assert_eq!(all(there), ["a", "Drop", "b"]);
        assert_eq!(all(ledger.stream(&Cursor::All)), ["a", "b"]);
    }

    #[test]
    fn the_end_sets_the_state_once() {
        let ledger = ledger(false, 100);
        ledger.end("r".into(), End::Interrupted);
        ledger.end("late".into(), End::Failed);
        assert_eq!(ledger.state(), SessionState::Cancelled);
        assert_eq!(ledger.result().unwrap(), "r");
    }
}
