//! A bridge session: one turn at a time, a short queue that its sockets share, and a ring for those who come back.
//!
//! native-ws.md §4.3 word for word: the queue has 64 slots and one consumer (two sockets take frames from each other), the ring has
//! 256 frames numbered across all turns, and a turn that nobody attended is gone.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::{sync::Notify, time::Instant};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_util::sync::CancellationToken;

use crate::{
    asks::Asks,
    frames::{self, Usage},
    inbox::Inbox,
    locked,
    settings::Settings,
    state::Attendance,
    websocket::{Delivery, Source},
};

const QUEUE_SLOTS: usize = 64;
const RING_FRAMES: usize = 256;

pub(crate) struct BridgeSession {
    pub(crate) id: String,
    pub(crate) settings: Settings,
    inner: Mutex<Inner>,
}

struct Inner {
    turn: Option<Arc<Turn>>,
    ring: VecDeque<(u64, Delivery)>,
    last_id: u64,
    usage: Usage,
    turns: u64,
    touched: Instant,
}

/// One turn of a session.
pub(crate) struct Turn {
    pub(crate) asks: Asks,
    pub(crate) attendance: Attendance,
    pub(crate) inbox: Inbox,
    pub(crate) cancel: CancellationToken,
    /// Ended from outside: nothing more is sent but the sentinel.
    pub(crate) killed: CancellationToken,
    queue: Mutex<Queue>,
    readable: Notify,
    writable: Notify,
}

#[derive(Default)]
struct Queue {
    /// Frames with their number, if they have one.
    frames: VecDeque<(Option<u64>, Delivery)>,
    /// Set at the end of the turn: the frame that says so, unless the turn ends without.
    ended: Option<Utf8Bytes>,
}

impl BridgeSession {
    pub(crate) fn new(id: String) -> Arc<Self> {
        Arc::new(Self {
            id,
            settings: Settings::default(),
            inner: Mutex::new(Inner {
                turn: None,
                ring: VecDeque::new(),
                last_id: 0,
                usage: Usage::default(),
                turns: 0,
                touched: Instant::now(),
            }),
        })
    }

    /// Makes a new turn the current one; what comes out is the one it replaces, if that still runs.
    pub(crate) fn begin(&self) -> (Arc<Turn>, Option<Arc<Turn>>) {
        let turn = Arc::new(Turn {
            asks: Asks::default(),
            attendance: Attendance::default(),
            inbox: Inbox::default(),
            cancel: CancellationToken::new(),
            killed: CancellationToken::new(),
            queue: Mutex::default(),
            readable: Notify::new(),
            writable: Notify::new(),
        });
        let mut inner = locked(&self.inner);
        inner.turns += 1;
        inner.touched = Instant::now();
        let old = inner.turn.replace(Arc::clone(&turn));
        (turn, old)
    }

    /// Queues something for the turn's sockets; waits while the queue is full.
    pub(crate) async fn push(&self, turn: &Turn, delivery: Delivery, counted: bool) {
        let mut delivery = Some(delivery);
        loop {
            let writable = turn.writable.notified();
            {
                let mut inner = locked(&self.inner);
                let mut queue = locked(&turn.queue);
                if queue.ended.is_some() || turn.killed.is_cancelled() {
                    return;
                }
                if queue.frames.len() < QUEUE_SLOTS {
                    let Some(delivery) = delivery.take() else { return };
                    let id = counted.then(|| inner.number(delivery.clone()));
                    queue.frames.push_back((id, delivery));
                    turn.readable.notify_one();
                    return;
                }
            }
            tokio::select! {
                () = writable => {}
                () = turn.killed.cancelled() => return,
            }
        }
    }

    /// Ends a turn: its sockets get what is queued, then the sentinel, then a close.
    pub(crate) fn end(&self, turn: &Arc<Turn>, sentinel: Option<Utf8Bytes>, usage: Usage) {
        let mut inner = locked(&self.inner);
        inner.usage.input_tokens += usage.input_tokens;
        inner.usage.output_tokens += usage.output_tokens;
        inner.touched = Instant::now();
        if inner.turn.as_ref().is_some_and(|current| Arc::ptr_eq(current, turn)) {
            inner.turn = None;
        }
        let mut queue = locked(&turn.queue);
        queue.ended = Some(sentinel.unwrap_or_else(|| frames::keep_alive().into()));
        drop(queue);
        turn.readable.notify_waiters();
        turn.readable.notify_one();
    }

    pub(crate) fn turn(&self) -> Option<Arc<Turn>> {
        locked(&self.inner).turn.clone()
    }

    pub(crate) fn usage(&self) -> Usage {
        locked(&self.inner).usage
    }

    pub(crate) fn turns(&self) -> u64 {
        locked(&self.inner).turns
    }

    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let inner = locked(&self.inner);
        inner.turn.is_none().then_some(inner.touched)
    }

    /// The stream of a new socket; `None` if no turn runs and there is no cursor.
    ///
    /// `last_event_id` is what the client gave, if it is a number. In the observed voice 0 is no cursor, so that the first frame
    /// of a session can never be replayed, and frames that are in the ring and in the queue come twice.
    pub(crate) fn stream(&self, last_event_id: Option<u64>, observed: bool) -> Option<TurnStream> {
        let inner = locked(&self.inner);
        let cursor = last_event_id.filter(|id| *id > 0 || !observed);
        let turn = inner.turn.clone();
        if turn.is_none() && cursor.is_none() {
            return None;
        }
        let replay: VecDeque<Delivery> = cursor.map_or_else(VecDeque::new, |cursor| {
            inner.ring.iter().filter(|(id, _)| *id > cursor).map(|(_, delivery)| delivery.clone()).collect()
        });
        let replayed = if cursor.is_some() && !observed { inner.last_id } else { 0 };
        Some(TurnStream { turn, replay, replayed, step: Step::Frames })
    }
}

impl Inner {
    fn number(&mut self, delivery: Delivery) -> u64 {
        self.last_id += 1;
        if self.ring.len() == RING_FRAMES {
            self.ring.pop_front();
        }
        self.ring.push_back((self.last_id, delivery));
        self.last_id
    }
}

impl Turn {
    pub(crate) fn ended(&self) -> bool {
        locked(&self.queue).ended.is_some()
    }

    /// Waits until a frame is queued or the turn is over.
    async fn readable(&self) {
        loop {
            let readable = self.readable.notified();
            tokio::pin!(readable);
            // Registered before the look, so that nothing slips in between.
            readable.as_mut().enable();
            {
                let queue = locked(&self.queue);
                if !queue.frames.is_empty() || queue.ended.is_some() {
                    return;
                }
            }
            readable.await;
        }
    }
}

/// One socket's view of a turn.
pub(crate) struct TurnStream {
    turn: Option<Arc<Turn>>,
    replay: VecDeque<Delivery>,
    /// Frames up to this number were replayed and are not taken from the queue again.
    replayed: u64,
    step: Step,
}

enum Step {
    Frames,
    Close,
}

impl TurnStream {
    pub(crate) fn turn(&self) -> Option<Arc<Turn>> {
        self.turn.clone()
    }
}

impl Source for TurnStream {
    async fn ready(&mut self) {
        if let (Step::Frames, true, Some(turn)) = (&self.step, self.replay.is_empty(), &self.turn) {
            turn.readable().await;
        }
    }

    fn take(&mut self) -> Option<Delivery> {
        if matches!(self.step, Step::Close) {
            return Some(Delivery::Close(1000, "done"));
        }
        if let Some(delivery) = self.replay.pop_front() {
            return Some(delivery);
        }
        let Some(turn) = &self.turn else {
            self.step = Step::Close;
            return Some(Delivery::text(frames::keep_alive()));
        };
        let mut queue = locked(&turn.queue);
        while let Some((id, delivery)) = queue.frames.pop_front() {
            turn.writable.notify_one();
            if id.is_none_or(|id| id > self.replayed) {
                return Some(delivery);
            }
        }
        let sentinel = queue.ended.clone()?;
        self.step = Step::Close;
        Some(Delivery::Text(sentinel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn session_with(frames: u64) -> (Arc<BridgeSession>, Arc<Turn>) {
        let session = BridgeSession::new("s".into());
        let (turn, old) = session.begin();
        assert!(old.is_none());
        for i in 1..=frames {
            session.push(&turn, Delivery::text(i.to_string()), true).await;
        }
        (session, turn)
    }

    fn all(stream: &mut TurnStream) -> Vec<String> {
        let mut seen = Vec::new();
        while let Some(delivery) = stream.take() {
            match delivery {
                Delivery::Text(text) => seen.push(text.to_string()),
                Delivery::Close(code, reason) => {
                    seen.push(format!("{code} {reason}"));
                    break;
                }
                other => seen.push(format!("{other:?}")),
            }
        }
        seen
    }

    #[tokio::test]
    async fn a_turn_ends_with_its_sentinel_and_a_close() {
        let (session, turn) = session_with(2).await;
        let mut stream = session.stream(None, false).unwrap();
        session.push(&turn, Delivery::text("ask"), false).await;
        session.end(&turn, Some("sentinel".into()), Usage::default());
        assert_eq!(all(&mut stream), ["1", "2", "ask", "sentinel", "1000 done"]);
        assert!(session.stream(None, false).is_none(), "no turn, no cursor: 409");
        let replay = all(&mut session.stream(Some(1), true).unwrap());
        assert_eq!(replay[0], "2");
        assert!(replay[1].contains("keep_alive"));
    }

    #[tokio::test]
    async fn the_first_frame_is_replayed_in_the_documented_voice_only() {
        let (session, turn) = session_with(2).await;
        session.end(&turn, None, Usage::default());
        assert!(session.stream(Some(0), true).is_none());
        assert_eq!(all(&mut session.stream(Some(0), false).unwrap())[..2], ["1", "2"]);
    }

    #[tokio::test]
    async fn coming_back_mid_turn_repeats_frames_in_the_observed_voice_only() {
        for (observed, expected) in [(true, vec!["2", "3", "1", "2", "3"]), (false, vec!["2", "3"])] {
            let (session, _turn) = session_with(3).await;
            assert_eq!(all(&mut session.stream(Some(1), observed).unwrap()), expected);
        }
    }

    #[tokio::test]
    async fn the_ring_keeps_the_newest_and_the_queue_blocks() {
        let (session, turn) = session_with(QUEUE_SLOTS as u64).await;
        let waiting = tokio::spawn({
            let (session, turn) = (Arc::clone(&session), Arc::clone(&turn));
            async move {
                for i in 65..=300 {
                    session.push(&turn, Delivery::text(i.to_string()), true).await;
                }
            }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "nobody consumes");
        let mut stream = session.stream(None, true).unwrap();
        let mut seen = 0;
        while seen < 300 {
            stream.ready().await;
            while stream.take().is_some() {
                seen += 1;
            }
        }
        waiting.await.unwrap();
        assert_eq!(all(&mut session.stream(Some(1), true).unwrap())[0], "45");
    }

    #[tokio::test]
    async fn two_sockets_take_frames_from_each_other() {
        let (session, turn) = session_with(0).await;
        let (mut a, mut b) = (session.stream(None, true).unwrap(), session.stream(None, true).unwrap());
        session.push(&turn, Delivery::text("1"), true).await;
        session.push(&turn, Delivery::text("2"), true).await;
        assert!(matches!(a.take(), Some(Delivery::Text(text)) if text == "1"));
        assert!(matches!(b.take(), Some(Delivery::Text(text)) if text == "2"));
        session.end(&turn, None, Usage::default());
        assert_eq!(all(&mut a).len(), 2);
        assert_eq!(all(&mut b).len(), 2);
    }
}
