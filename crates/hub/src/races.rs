//! The race between what attaches, what appends, what lets go and what closes, under a model checker:
//!
//!     cargo test --package interline-hub --features shuttle races
//!
//! The session is a small one: a log and its projections under one lock, which is what a [`crate::Session`] is to its projections. These and the
//! tails are the real ones.

use interline_model::{
    Actor, Body, Completion, Event, Fact, Millis, Outcome, Principal, Record, RunAccepted, RunEnd, RunId, SessionId, Text, What, Writer,
};
use shuttle::thread;

use crate::projection::{Feed, Projection, Source};
use crate::sync::{Arc, Mutex, PoisonError, Weak};
use crate::watchers::Watchers;

const RUN: RunId = RunId::from_u128(1);
const FRAMES: u64 = 4;
const ITERATIONS: usize = 2_000;

struct Times;

impl Writer for Times {
    type Item = Millis;

    fn write(&mut self, record: &Record, _: &[Event], items: &mut Vec<Millis>) {
        if let Body::Frame(_) = record.body {
            items.push(record.at);
        }
    }
}

struct Session {
    state: Mutex<State>,
    /// Attaches as case B2 did: what there is first, and then, not under the same lock, what comes.
    torn: bool,
}

#[derive(Default)]
struct State {
    log: Vec<Record>,
    feed: Option<Arc<Projection<Times>>>,
    is_cold: bool,
}

fn events(record: &Record) -> Vec<Event> {
    let ended = RunEnd::synthesised(Outcome::Completed(Completion::EndTurn));
    if record.at == FRAMES { vec![Event::root(What::RunEnded(Box::new(ended)))] } else { Vec::new() }
}

impl State {
    fn warm(&mut self) {
        if std::mem::take(&mut self.is_cold)
            && let Some(feed) = &self.feed
        {
            write(feed, &self.log);
        }
    }
}

fn write(feed: &Projection<Times>, log: &[Record]) {
    feed.warm(&mut |see| log.iter().for_each(|record| see(record, &events(record))));
}

impl Source for Session {
    fn warm(&self) {
        self.locked(State::warm);
    }
}

impl Session {
    fn locked<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn append(&self, record: Record) {
        self.locked(|state| {
            state.warm();
            let events = events(&record);
            state.log.push(record.clone());
            if let Some(feed) = &state.feed {
                feed.feed(&record, &events);
            }
        });
    }

    fn attach(self: &Arc<Self>) -> Arc<Projection<Times>> {
        let weak: Weak<dyn Source> = Arc::<Self>::downgrade(self);
        let made = Arc::new(Projection::new(|| Times, weak, Watchers::new(0)));
        if self.torn {
            self.locked(|state| write(&made, &state.log));
            return self.locked(|state| state.feed.get_or_insert(made).clone());
        }
        self.locked(|state| {
            if state.feed.is_none() {
                write(&made, &state.log);
            }
            state.feed.get_or_insert(made).clone()
        })
    }

    fn cool(&self) {
        self.locked(|state| {
            let at_rest = state.log.last().is_some_and(|record| record.at == FRAMES);
            if let (true, Some(feed)) = (at_rest, &state.feed) {
                feed.cool();
                state.is_cold = true;
            }
        });
    }
}

fn accepted() -> Record {
    let by = Actor { principal: Principal::from("p"), surface: Text::from_static("test") };
    let fact = RunAccepted {
        run: RUN,
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

/// Reads the run from `first` on, to its end.
fn read(session: &Arc<Session>, first: u64) {
    let projection = session.attach();
    let Ok(mut tail) = projection.run_tail(RUN, first) else { panic!("the run has begun") };
    drop(projection);
    let mut seen = Vec::new();
    while let Some(batch) = shuttle::future::block_on(tail.next(2)) {
        assert_eq!(batch.first, first + seen.len() as u64);
        seen.extend(batch.items);
    }
    assert_eq!(seen, (first..=FRAMES).collect::<Vec<_>>());
}

fn race(torn: bool) {
    let session = Arc::new(Session { state: Mutex::default(), torn });
    session.append(accepted());
    let appends = {
        let session = session.clone();
        thread::spawn(move || {
            for at in 1..=FRAMES {
                session.append(Record { at, body: Body::Frame(Text::from_static("{}")) });
            }
        })
    };
    let readers = [1, 1, 3].map(|first| {
        let session = session.clone();
        thread::spawn(move || read(&session, first))
    });
    let cools = thread::spawn(move || (0..3).for_each(|_| session.cool()));
    for thread in readers.into_iter().chain([appends, cools]) {
        assert!(thread.join().is_ok());
    }
}

#[test]
fn whoever_attaches_at_any_moment_sees_everything_once() {
    shuttle::check_random(|| race(false), ITERATIONS);
    shuttle::check_pct(|| race(false), ITERATIONS, 3);
}

#[test]
#[should_panic]
fn a_snapshot_and_a_subscription_that_are_not_one_are_found_out() {
    shuttle::check_random(|| race(true), ITERATIONS);
}
