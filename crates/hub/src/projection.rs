//! Projections: a session as one surface shows it, written once and read by position.
//!
//! A client is a position. There is no queue and no channel for it to fall behind in; the wake-up only says that there is more.
//! What a projection holds can be had again from the log at any time, so a session at rest may let go of it: it is *cold* then, and
//! whoever looks next finds it warm again, with the same items at the same positions.

use std::any::Any;

use interline_model::{Body, Event, Fact, Record, RunId, What, Writer};

use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, watch};
use crate::watchers::{Watchers, Watching};

/// A session's items of one surface, so far, and the writer that makes them.
pub struct Projection<W: Writer> {
    watchers: Watchers,
    /// Whose records these are made of; dead where it is deleted.
    source: Weak<dyn Source>,
    make: Box<dyn Fn() -> W + Send + Sync>,
    state: Mutex<State<W>>,
    /// How many items there are, counted from the session's beginning.
    end: watch::Sender<u64>,
}

struct State<W: Writer> {
    /// `None` while it is cold.
    written: Option<Written<W>>,
    runs: Vec<Span>,
}

/// What the writer wrote.
struct Written<W: Writer> {
    writer: W,
    items: Vec<W::Item>,
}

/// Where a run's items lie.
#[derive(Clone, Copy)]
struct Span {
    run: RunId,
    from: usize,
    /// Behind its last item, once the run has ended.
    to: Option<usize>,
}

/// The run has no items here: it is not one of this session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run is not one of this session's, or no longer kept")]
pub struct Gone;

impl<W: Writer> Projection<W> {
    pub(crate) fn new(make: impl Fn() -> W + Send + Sync + 'static, source: Weak<dyn Source>, watchers: Watchers) -> Self {
        let state = State { written: Some(Written { writer: make(), items: Vec::new() }), runs: Vec::new() };
        Self { watchers, source, make: Box::new(make), state: Mutex::new(state), end: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what is written, made again first if it is cold. `None` if it cannot be, because the session was deleted.
    fn look<R>(&self, look: impl FnOnce(&Written<W>, &[Span]) -> R) -> Option<R> {
        loop {
            {
                let state = self.state();
                if let Some(written) = &state.written {
                    return Some(look(written, &state.runs));
                }
            }
            // Not under the lock: the session feeds this under its own.
            self.source.upgrade()?.warm();
        }
    }

    /// Looks at the writer's state and the position that belongs to it: whoever tails from there misses nothing and sees nothing twice.
    pub fn with<R>(&self, look: impl FnOnce(&W, u64) -> R) -> R {
        loop {
            {
                let state = self.state();
                if let Some(written) = &state.written {
                    return look(&written.writer, written.items.len() as u64);
                }
            }
            match self.source.upgrade() {
                Some(source) => source.warm(),
                None => return look(&(self.make)(), self.end()),
            }
        }
    }

    /// How many items the session has.
    pub fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// Follows the session from item number `from` (0-based).
    pub fn tail(self: &Arc<Self>, from: u64) -> Tail<W> {
        Tail { wake: self.end.subscribe(), _watching: self.watchers.enter(), projection: self.clone(), at: from }
    }

    /// Follows one run from its item number `first` on (1-based, inclusive).
    ///
    /// # Errors
    /// [`Gone`] when the session has no such run.
    pub fn run_tail(self: &Arc<Self>, run: RunId, first: u64) -> Result<RunTail<W>, Gone> {
        span(&self.state().runs, run)?;
        let _watching = self.watchers.enter();
        Ok(RunTail { wake: self.end.subscribe(), _watching, projection: self.clone(), run, next: first.max(1) })
    }

    /// How many items a run has so far, and whether these are all.
    ///
    /// # Errors
    /// [`Gone`] when the session has no such run.
    pub fn run_len(&self, run: RunId) -> Result<(u64, bool), Gone> {
        let state = self.state();
        let span = span(&state.runs, run)?;
        let len = usize::try_from(self.end()).unwrap_or(usize::MAX);
        Ok((span.to.unwrap_or(len).saturating_sub(span.from) as u64, span.to.is_some()))
    }

    /// A run's last item so far. Whoever looks at it does not watch the run.
    pub fn run_last(&self, run: RunId) -> Option<W::Item> {
        let last = |written: &Written<W>, runs: &[Span]| {
            let span = span(runs, run).ok()?;
            written.items.get(span.from..span.to.unwrap_or(written.items.len()))?.last().cloned()
        };
        self.look(last).flatten()
    }
}

fn span(runs: &[Span], run: RunId) -> Result<Span, Gone> {
    runs.iter().rfind(|span| span.run == run).copied().ok_or(Gone)
}

impl<W: Writer> State<W> {
    /// Writes a record, if it is warm. Whether anybody has to be woken.
    fn write(&mut self, record: &Record, events: &[Event]) -> bool {
        let Some(Written { writer, items }) = &mut self.written else { return false };
        if let Body::Fact(Fact::RunAccepted(accepted)) = &record.body {
            self.runs.push(Span { run: accepted.run, from: items.len(), to: None });
        }
        let before = items.len();
        writer.write(record, events, items);
        writer.shorten(items);
        let ended = events.iter().any(|event| matches!(event.what, What::RunEnded(_)));
        if ended && let Some(span) = self.runs.last_mut() {
            span.to.get_or_insert(items.len());
        }
        ended || items.len() != before
    }

    fn len(&self) -> u64 {
        self.written.as_ref().map_or(0, |written| written.items.len() as u64)
    }
}

/// Where the records of a projection come from.
pub(crate) trait Source: Send + Sync {
    /// Makes its projections warm again.
    fn warm(&self);
}

/// Hands out a session's records and what they mean, from the beginning.
pub(crate) type Story<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&Record, &[Event]));

/// A projection as the session feeds it, whatever its writer.
pub(crate) trait Feed: Send + Sync {
    /// Writes the next record. Not while it is cold.
    fn feed(&self, record: &Record, events: &[Event]);

    /// Lets go of what the log can give back. Positions stay what they are.
    fn cool(&self);

    fn is_cold(&self) -> bool;

    /// Writes everything anew.
    fn warm(&self, story: Story<'_>);

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<W: Writer> Feed for Projection<W> {
    fn feed(&self, record: &Record, events: &[Event]) {
        let mut state = self.state();
        if state.write(record, events) {
            self.end.send_replace(state.len());
        }
    }

    fn cool(&self) {
        self.state().written = None;
    }

    fn is_cold(&self) -> bool {
        self.state().written.is_none()
    }

    fn warm(&self, story: Story<'_>) {
        let mut warm = State { written: Some(Written { writer: (self.make)(), items: Vec::new() }), runs: Vec::new() };
        story(&mut |record, events| {
            warm.write(record, events);
        });
        let mut state = self.state();
        *state = warm;
        let len = state.len();
        // Nobody is woken who has nothing to see.
        self.end.send_if_modified(|end| std::mem::replace(end, len) != len);
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A position in a session's items.
pub struct Tail<W: Writer> {
    projection: Arc<Projection<W>>,
    at: u64,
    wake: watch::Receiver<u64>,
    _watching: Watching,
}

impl<W: Writer> Tail<W> {
    /// The number (0-based) of the item that comes next.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// What there is, at most `max` items, without waiting.
    pub fn ready(&mut self, max: usize) -> Vec<W::Item> {
        self.ready_while(max, |_| true)
    }

    /// The same, as long as the items fit; the first one always does.
    pub fn ready_while(&mut self, max: usize, fits: impl FnMut(&W::Item) -> bool) -> Vec<W::Item> {
        self.wake.mark_unchanged();
        if self.at >= self.projection.end() {
            // Also of a cold projection this is known.
            return Vec::new();
        }
        let from = usize::try_from(self.at).unwrap_or(usize::MAX);
        let take = |written: &Written<W>, _: &[Span]| fitting(written.items.get(from..).unwrap_or_default(), max, fits);
        let items: Vec<_> = self.projection.look(take).unwrap_or_default();
        self.at = self.at.saturating_add(items.len() as u64);
        items
    }

    /// Waits until there is an item, and looks at it. It may be another one, a shorter one for late readers, when it is taken.
    pub async fn upcoming<R>(&mut self, look: impl Fn(&W::Item) -> R) -> R {
        loop {
            self.wake.mark_unchanged();
            if self.at < self.projection.end() {
                let at = usize::try_from(self.at).unwrap_or(usize::MAX);
                if let Some(seen) = self.projection.look(|written, _| written.items.get(at).map(&look)).flatten() {
                    return seen;
                }
            }
            if self.wake.changed().await.is_err() {
                // As below.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The next items, at least one and at most `max`, as soon as there are any. Cancel safe.
    pub async fn next(&mut self, max: usize) -> Vec<W::Item> {
        self.next_while(max, |_| true).await
    }

    /// The same, as long as the items fit; the first one always does.
    pub async fn next_while(&mut self, max: usize, mut fits: impl FnMut(&W::Item) -> bool) -> Vec<W::Item> {
        loop {
            let items = self.ready_while(max, &mut fits);
            if !items.is_empty() {
                return items;
            }
            if self.wake.changed().await.is_err() {
                // The projection lives as long as this tail does, so its sender cannot be gone.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A position in one run's items.
pub struct RunTail<W: Writer> {
    projection: Arc<Projection<W>>,
    run: RunId,
    next: u64,
    wake: watch::Receiver<u64>,
    _watching: Watching,
}

/// Consecutive items of a run.
#[derive(Clone, Debug)]
pub struct RunBatch<I> {
    /// The number of the first one in the run, from 1.
    pub first: u64,
    /// The items.
    pub items: Vec<I>,
}

impl<W: Writer> RunTail<W> {
    /// The next items of the run, at least one and at most `max`; `None` once the run has ended and all is delivered. Cancel safe.
    pub async fn next(&mut self, max: usize) -> Option<RunBatch<W::Item>> {
        self.next_while(max, |_| true).await
    }

    /// The same, as long as the items fit; the first one always does.
    pub async fn next_while(&mut self, max: usize, mut fits: impl FnMut(&W::Item) -> bool) -> Option<RunBatch<W::Item>> {
        loop {
            self.wake.mark_unchanged();
            let (len, is_all) = self.projection.run_len(self.run).ok()?;
            if self.next <= len {
                let (run, first) = (self.run, self.next);
                let items: Vec<_> = self.projection.look(|written, runs| from_run(written, runs, run, first, max, &mut fits)).flatten()?;
                if !items.is_empty() {
                    self.next = self.next.saturating_add(items.len() as u64);
                    return Some(RunBatch { first, items });
                }
            } else if is_all {
                return None;
            }
            self.wake.changed().await.ok()?;
        }
    }
}

/// The first item, and those behind it as long as they fit.
fn fitting<I: Clone>(items: &[I], max: usize, mut fits: impl FnMut(&I) -> bool) -> Vec<I> {
    let mut first = true;
    items.iter().take(max).take_while(|item| fits(item) | std::mem::take(&mut first)).cloned().collect()
}

/// What fits of a run, from its item number `first` (1-based) on.
fn from_run<W: Writer>(
    written: &Written<W>,
    runs: &[Span],
    run: RunId,
    first: u64,
    max: usize,
    fits: impl FnMut(&W::Item) -> bool,
) -> Option<Vec<W::Item>> {
    let span = span(runs, run).ok()?;
    let end = span.to.unwrap_or(written.items.len());
    let from = usize::try_from(first - 1).ok().and_then(|skip| span.from.checked_add(skip)).unwrap_or(usize::MAX);
    Some(fitting(written.items.get(from..end).unwrap_or_default(), max, fits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{Actor, Principal, RunAccepted, SessionId, Text};

    /// Writes each frame's text.
    struct Frames;

    impl Writer for Frames {
        type Item = Text;

        fn write(&mut self, record: &Record, _: &[Event], items: &mut Vec<Text>) {
            if let Body::Frame(text) = &record.body {
                items.push(text.clone());
            }
        }
    }

    /// What needs no source, since it is never cold.
    fn nowhere() -> Weak<dyn Source> {
        Weak::<crate::Session>::new()
    }

    fn accepted(run: RunId) -> Record {
        let by = Actor { principal: Principal::from("p"), surface: Text::from_static("test") };
        let fact = RunAccepted {
            run,
            session: SessionId::from("s"),
            model: Text::from_static("m"),
            input: Vec::new(),
            by,
            actor: None,
            headless: false,
            output_schema: None,
        };
        Record { at: 0, body: Body::Fact(Fact::RunAccepted(Box::new(fact))) }
    }

    fn frame(text: &'static str) -> Record {
        Record { at: 0, body: Body::Frame(Text::from_static(text)) }
    }

    fn ended() -> Event {
        use interline_model::{Completion, Outcome, RunEnd};
        Event::root(What::RunEnded(Box::new(RunEnd::synthesised(Outcome::Completed(Completion::EndTurn)))))
    }

    #[tokio::test]
    async fn each_run_is_numbered_from_one_and_ends() {
        let projection = Arc::new(Projection::new(|| Frames, nowhere(), Watchers::new(0)));
        let (one, two) = (RunId::from_u128(1), RunId::from_u128(2));
        projection.feed(&accepted(one), &[]);
        projection.feed(&frame("a"), &[]);
        projection.feed(&frame("b"), &[ended()]);
        projection.feed(&accepted(two), &[]);
        projection.feed(&frame("c"), &[]);

        let mut first = projection.run_tail(one, 2).unwrap();
        let batch = first.next(10).await.unwrap();
        assert_eq!((batch.first, batch.items), (2, vec![Text::from_static("b")]));
        assert!(first.next(10).await.is_none());

        let mut second = projection.run_tail(two, 0).unwrap();
        assert_eq!(second.next(10).await.unwrap().items, [Text::from_static("c")]);
        assert_eq!(projection.run_len(two), Ok((1, false)));
        let waiting = tokio::spawn(async move { second.next(10).await });
        projection.feed(&frame("d"), &[ended()]);
        assert_eq!(waiting.await.unwrap().unwrap().first, 2);
        assert!(projection.run_tail(RunId::from_u128(3), 1).is_err());
    }

    #[tokio::test]
    async fn a_reader_takes_as_much_as_it_has_room_for_and_one_item_at_least() {
        let projection = Arc::new(Projection::new(|| Frames, nowhere(), Watchers::new(0)));
        let run = RunId::from_u128(1);
        projection.feed(&accepted(run), &[]);
        for text in ["aaaa", "b", "c", "dddd"] {
            projection.feed(&frame(text), &[]);
        }
        let (mut of_run, mut of_all, mut taken) = (projection.run_tail(run, 1).unwrap(), projection.tail(0), Vec::new());
        for _ in 0..3 {
            let room = |mut left: usize| {
                move |text: &Text| {
                    let fits = text.len() <= left;
                    left = left.saturating_sub(text.len());
                    fits
                }
            };
            let batch = of_run.next_while(10, room(2)).await.unwrap();
            assert_eq!(of_all.next_while(10, room(2)).await, batch.items);
            taken.push((batch.first, batch.items.len()));
        }
        assert_eq!(taken, [(1, 1), (2, 2), (4, 1)]);
    }

    #[tokio::test]
    async fn a_number_beyond_the_end_waits_for_its_item() {
        let projection = Arc::new(Projection::new(|| Frames, nowhere(), Watchers::new(0)));
        let run = RunId::from_u128(1);
        projection.feed(&accepted(run), &[]);
        let mut tail = projection.run_tail(run, 2).unwrap();
        projection.feed(&frame("a"), &[]);
        projection.feed(&frame("b"), &[]);
        assert_eq!(tail.next(10).await.unwrap().items, [Text::from_static("b")]);
        let mut far = projection.run_tail(run, u64::MAX).unwrap();
        projection.feed(&frame("c"), &[ended()]);
        assert!(far.next(10).await.is_none());
    }
}
