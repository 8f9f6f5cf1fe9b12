//! Control messages on their way to whoever runs a session, and a reader that does not fetch them for a while.
//!
//! A cloud worker polls for its control messages; one that was not fetched within 30 s is discarded by the broker, and nobody is told
//! (native-ws.md §3.4). Here a run can put its own reader to sleep to show that.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::{locked, websocket::Replies};

/// Messages that are kept for a sleeping reader; more than any client sends, and a bound.
const KEPT: usize = 4096;

#[derive(Default)]
pub(crate) struct Inbox {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    asleep: bool,
    waiting: VecDeque<Held>,
}

/// A message nobody has fetched yet.
pub(crate) struct Held {
    arrived: Instant,
    pub(crate) text: String,
    /// The socket it came from, where a reply would go to that alone.
    pub(crate) replies: Option<Replies>,
}

impl Inbox {
    /// True if the reader sleeps and the message has to wait for it.
    pub(crate) fn holds(&self, text: &str, replies: Option<&Replies>) -> bool {
        let mut inner = locked(&self.inner);
        if inner.asleep && inner.waiting.len() < KEPT {
            inner.waiting.push_back(Held { arrived: Instant::now(), text: text.to_owned(), replies: replies.cloned() });
        }
        inner.asleep
    }

    pub(crate) fn sleep(&self) {
        locked(&self.inner).asleep = true;
    }

    /// The reader is back: what is still there for it, and how many messages were too old.
    pub(crate) fn wake(&self, retention: Duration) -> (Vec<Held>, u64) {
        let mut inner = locked(&self.inner);
        inner.asleep = false;
        let all = inner.waiting.len();
        let fresh: Vec<Held> = inner.waiting.drain(..).filter(|held| held.arrived.elapsed() <= retention).collect();
        let discarded = all.saturating_sub(fresh.len());
        (fresh, discarded as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_fetched_in_time_is_discarded() {
        let inbox = Inbox::default();
        assert!(!inbox.holds("awake", None));
        inbox.sleep();
        assert!(inbox.holds("old", None));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(inbox.holds("fresh", None));
        let (fresh, discarded) = inbox.wake(Duration::from_millis(250));
        assert_eq!(fresh.iter().map(|held| &*held.text).collect::<Vec<_>>(), ["fresh"]);
        assert_eq!(discarded, 1);
        assert!(!inbox.holds("awake again", None));
    }
}
