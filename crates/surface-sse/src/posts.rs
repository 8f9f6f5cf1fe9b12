//! Requests that a client's library sends again by itself after a drop (sse.md §5.6): the same bytes from the same caller attach to the run that
//! they started, where `sse.dedupe_posts_ms` allows it.
//!
//! Two equal requests of two people who read both answers are two runs: only a request whose stream broke off before its run's end was delivered is
//! one that can be sent again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use interline_model::{CellName, Principal, RunId};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::Instant;

/// So long a new request waits for an old stream of its kind to break off: a client may be back before the server has seen it go.
const OVERLAP: Duration = Duration::from_millis(100);
/// Streams that are remembered at a time; beyond it those that broke off first are forgotten.
const MOST: usize = 100_000;

/// What makes requests the same.
pub(crate) type Sameness = [u8; 32];

/// The requests whose streams go on, or broke off a short while ago.
pub(crate) struct Posts {
    keep: Duration,
    posts: Mutex<HashMap<Sameness, Post>>,
    left: Notify,
}

struct Post {
    run: RunId,
    readers: usize,
    /// When the last reader left without the end.
    dropped: Option<Instant>,
}

/// A stream that answers a request; tells when it breaks off.
pub(crate) struct Answering {
    posts: Arc<Posts>,
    sameness: Sameness,
    run: RunId,
    whole: bool,
}

/// Which requests are the same: those of one caller to one cell with the same bytes. The actor is among them.
pub(crate) fn sameness(principal: &Principal, cell: &CellName, body: &[u8]) -> Sameness {
    let mut hash = Sha256::new();
    for part in [principal.as_str(), cell.as_str()] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}

impl Posts {
    /// Remembers streams for so long after they broke off.
    pub(crate) fn new(keep: Duration) -> Self {
        Self { keep, posts: Mutex::default(), left: Notify::new() }
    }

    fn posts(&self) -> MutexGuard<'_, HashMap<Sameness, Post>> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run that the same request started, if its stream broke off.
    pub(crate) async fn attach(&self, sameness: &Sameness) -> Option<RunId> {
        let until = Instant::now() + OVERLAP;
        loop {
            let left = self.left.notified();
            match self.posts().get(sameness)? {
                Post { run, readers: 0, dropped: Some(at) } if at.elapsed() <= self.keep => return Some(*run),
                Post { readers: 0, .. } => return None,
                _ => {}
            }
            tokio::time::timeout_at(until, left).await.ok()?;
        }
    }

    /// A stream of `run` begins that answers such a request.
    pub(crate) fn answering(self: &Arc<Self>, sameness: Sameness, run: RunId) -> Answering {
        let mut posts = self.posts();
        if posts.len() >= MOST {
            posts.retain(|_, post| post.readers > 0 || post.dropped.is_some_and(|at| at.elapsed() <= self.keep));
        }
        if posts.len() >= MOST {
            let first = posts.iter().filter(|(_, post)| post.readers == 0).min_by_key(|(_, post)| post.dropped).map(|(same, _)| *same);
            first.and_then(|same| posts.remove(&same));
        }
        let post = posts.entry(sameness).or_insert(Post { run, readers: 0, dropped: None });
        if post.run != run {
            // Another run by the same words: what comes again now is this one.
            *post = Post { run, readers: 0, dropped: None };
        }
        post.readers = post.readers.saturating_add(1);
        drop(posts);
        Answering { posts: self.clone(), sameness, run, whole: false }
    }
}

impl Answering {
    /// All of the run was delivered.
    pub(crate) fn is_whole(&mut self) {
        self.whole = true;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut posts = self.posts.posts();
        let Some(post) = posts.get_mut(&self.sameness).filter(|post| post.run == self.run) else { return };
        post.readers = post.readers.saturating_sub(1);
        if self.whole {
            posts.remove(&self.sameness);
        } else if post.readers == 0 {
            post.dropped = Some(Instant::now());
        }
        drop(posts);
        self.posts.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::from_u128(1);
    const NEXT: RunId = RunId::from_u128(2);

    fn same(body: &str) -> Sameness {
        sameness(&Principal::from("p"), &CellName::from("c"), body.as_bytes())
    }

    #[tokio::test]
    async fn only_what_broke_off_a_short_while_ago_is_attached_to() {
        let posts = Arc::new(Posts::new(Duration::from_secs(5)));
        let one = posts.answering(same("x"), RUN);
        assert_eq!(posts.attach(&same("x")).await, None, "it is being read");
        assert_eq!(posts.attach(&same("y")).await, None);
        drop(one);
        assert_eq!(posts.attach(&same("x")).await, Some(RUN));
        let again = posts.answering(same("x"), RUN);
        assert_eq!(posts.attach(&same("x")).await, None);
        drop(again);
        let next = posts.answering(same("x"), NEXT);
        drop(next);
        assert_eq!(posts.attach(&same("x")).await, Some(NEXT));
    }

    #[tokio::test]
    async fn who_is_back_before_the_old_stream_is_seen_to_break_waits_a_moment() {
        let posts = Arc::new(Posts::new(Duration::from_secs(5)));
        let one = posts.answering(same("x"), RUN);
        let again = same("x");
        let (attached, ()) = tokio::join!(posts.attach(&again), async {
            tokio::time::sleep(OVERLAP / 2).await;
            drop(one);
        });
        assert_eq!(attached, Some(RUN));
    }

    #[tokio::test]
    async fn what_broke_off_long_ago_is_another_request() {
        let posts = Arc::new(Posts::new(Duration::from_millis(1)));
        drop(posts.answering(same("x"), RUN));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(posts.attach(&same("x")).await, None);
    }

    #[tokio::test]
    async fn an_answer_that_was_read_to_its_end_is_not_given_again() {
        let posts = Arc::new(Posts::new(Duration::from_secs(5)));
        let mut one = posts.answering(same("x"), RUN);
        one.is_whole();
        drop(one);
        assert_eq!(posts.attach(&same("x")).await, None);
        assert!(posts.posts().is_empty(), "nothing is kept");
    }

    #[test]
    fn callers_and_cells_are_told_apart() {
        let of = |principal: &'static str, cell: &'static str| sameness(&Principal::from(principal), &CellName::from(cell), b"x");
        assert_ne!(of("a", "bc"), of("ab", "c"));
        assert_eq!(of("a", "b"), of("a", "b"));
    }
}
