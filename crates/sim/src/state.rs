//! What every request and every run shares.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use crate::{bridge::Bridge, cloud::Cloud, options::Options, stats::Counters, tokens::Signer, transcript::Library};

pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) library: Library,
    pub(crate) counters: Counters,
    pub(crate) signer: Signer,
    pub(crate) cloud: Cloud,
    pub(crate) bridge: Bridge,
    pub(crate) plays: Plays,
    /// Ends every socket and every run.
    pub(crate) stop: CancellationToken,
}

impl State {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            library: Library::new(options.transcripts.clone()),
            counters: Counters::default(),
            signer: Signer::new(options.session_token_ttl),
            cloud: Cloud::default(),
            bridge: Bridge::default(),
            plays: Plays::default(),
            stop: CancellationToken::new(),
            options,
        })
    }
}

/// How often each conversation has played each transcript, so that the n-th time gets the n-th run.
#[derive(Default)]
pub(crate) struct Plays {
    counts: Mutex<HashMap<(String, String), u64>>,
}

impl Plays {
    /// Conversations that are remembered; far more than a test has, and a bound.
    const KEPT: usize = 100_000;

    /// Counts one more play; what comes out is 0 for the first.
    pub(crate) fn next(&self, conversation: &str, transcript: &str) -> u64 {
        let mut counts = crate::locked(&self.counts);
        if counts.len() >= Self::KEPT {
            counts.clear();
        }
        let count = counts.entry((conversation.to_owned(), transcript.to_owned())).or_default();
        *count += 1;
        *count - 1
    }
}

/// Who is attached to a stream, now and so far.
pub(crate) struct Attendance {
    ever: watch::Sender<u64>,
    live: AtomicUsize,
}

impl Default for Attendance {
    fn default() -> Self {
        Self { ever: watch::Sender::new(0), live: AtomicUsize::new(0) }
    }
}

impl Attendance {
    pub(crate) fn enter(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
        self.ever.send_modify(|ever| *ever += 1);
    }

    /// Somebody left; true if nobody is there any more.
    pub(crate) fn leave(&self) -> bool {
        self.live.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn anybody(&self) -> bool {
        self.live.load(Ordering::SeqCst) > 0
    }

    /// How many have ever come.
    pub(crate) fn ever(&self) -> u64 {
        *self.ever.borrow()
    }

    /// Waits until more than `count` have come, but not longer than `limit`.
    pub(crate) async fn more_than(&self, count: u64, limit: Duration) {
        let mut ever = self.ever.subscribe();
        let _ = time::timeout(limit, ever.wait_for(|ever| *ever > count)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plays_are_counted_per_conversation_and_file() {
        let plays = Plays::default();
        assert_eq!([plays.next("a", "x"), plays.next("a", "x"), plays.next("a", "y"), plays.next("b", "x")], [0, 1, 0, 0]);
    }

    #[tokio::test]
    async fn attendance_wakes_whoever_waits() {
        let attendance = Arc::new(Attendance::default());
        attendance.more_than(0, Duration::ZERO).await;
        let other = Arc::clone(&attendance);
        let waiting = tokio::spawn(async move { other.more_than(0, Duration::from_secs(5)).await });
        attendance.enter();
        waiting.await.unwrap();
        assert_eq!(attendance.ever(), 1);
        assert!(attendance.leave());
    }
}
