//! Clients that come, go and come back, one for each surface, as their users would write them from the surface's documents: they keep what a
//! screen would show, and where they were.
//!
//! Each connection goes through a [`FaultProxy`] and may break; a client resumes until the run has ended or its time is over.

mod ask;
mod native;
mod socketio;
mod sse;

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::checker::View;
use crate::faults::{Fault, FaultProxy, Plan};
use crate::seed::Seed;

pub use native::start as start_native;
pub use socketio::start as start_socketio;
pub use sse::{Shown, is_incomplete, read as read_sse, start as start_sse};

/// A run, as every surface calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What its marks call it.
    pub name: String,
    /// The cell it is in.
    pub cell: String,
    /// The session it is in.
    pub session: String,
    /// Its id, `run-…`.
    pub id: String,
}

/// Which surface a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SSE, resumed by `Last-Event-ID`.
    SseById,
    /// SSE, resumed by `from_seq`.
    SseByNumber,
    /// Socket.IO, showing patches.
    SocketIoDeltas,
    /// Socket.IO, showing snapshots.
    SocketIoSnapshots,
    /// The native cloud surface, resumed by `since_seq`.
    Native,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::SseById, Self::SseByNumber, Self::SocketIoDeltas, Self::SocketIoSnapshots, Self::Native];

    const fn name(self) -> &'static str {
        match self {
            Self::SseById => "sse by id",
            Self::SseByNumber => "sse by number",
            Self::SocketIoDeltas => "socket.io deltas",
            Self::SocketIoSnapshots => "socket.io snapshots",
            Self::Native => "native",
        }
    }
}

/// How clients are to be.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Of a hundred connections so many break.
    pub breaking: u64,
    /// A connection on which nothing comes for so long is given up.
    pub idle: Duration,
    /// The whole run may take so long.
    pub patience: Duration,
}

/// What a client saw, and what it took.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// What it has in the end.
    pub view: View,
    /// From each break it noticed to the first thing after it.
    pub recoveries: Vec<Duration>,
    /// How often it left by itself.
    pub left: u64,
    /// Its connections and what became of them, in words.
    pub trail: Vec<String>,
}

/// Follows a run until its end, or until patience is over.
pub async fn watch(kind: Kind, run: &Run, token: &str, proxy: &FaultProxy, habits: Habits, seed: Seed) -> Watched {
    let mut way = Way::new(kind.name(), token, proxy, habits, seed);
    // They come when they come.
    tokio::time::sleep(Duration::from_millis(way.seed.between(0, 40))).await;
    match kind {
        Kind::SseById => sse::watch(&mut way, run, true).await,
        Kind::SseByNumber => sse::watch(&mut way, run, false).await,
        Kind::SocketIoDeltas => socketio::watch(&mut way, run, false).await,
        Kind::SocketIoSnapshots => socketio::watch(&mut way, run, true).await,
        Kind::Native => native::watch(&mut way, run).await,
    }
    way.watched.view.client = kind.name().to_owned();
    way.watched
}

/// A client's way to the program, and what it has seen there.
struct Way<'a> {
    token: &'a str,
    proxy: &'a FaultProxy,
    habits: Habits,
    seed: Seed,
    until: Instant,
    /// How many connections broke or were left already.
    breaks: u64,
    /// When the last connection was found broken.
    broken: Option<Instant>,
    watched: Watched,
}

/// The most breaks of one client.
const MOST_BREAKS: u64 = 4;

/// How a client is to leave by itself.
const LEAVING: u64 = 25;

impl<'a> Way<'a> {
    fn new(name: &str, token: &'a str, proxy: &'a FaultProxy, habits: Habits, seed: Seed) -> Self {
        let seed = seed.of(name, 0);
        Self { token, proxy, habits, seed, until: Instant::now() + habits.patience, breaks: 0, broken: None, watched: Watched::default() }
    }

    /// A connection, which breaks if chance wills it after at most `bytes`.
    async fn connect(&mut self, bytes: u64) -> std::io::Result<TcpStream> {
        let breaks = self.breaks < MOST_BREAKS && self.seed.chance(self.habits.breaking);
        let delay = Fault::Delay(Duration::from_millis(self.seed.between(20, 200)));
        let kinds = [Fault::Fin, Fault::Reset, Fault::Refuse, Fault::Stall, Fault::HalfOpen, delay, Fault::Cut];
        let plan = Plan { fault: self.seed.pick(&kinds), after: self.seed.between(0, bytes) };
        if breaks {
            self.breaks += 1;
        }
        let what = if breaks { format!("{} at {}", plan.fault.name(), plan.after) } else { "whole".to_owned() };
        self.watched.trail.push(what);
        self.proxy.connect(breaks.then_some(plan)).await
    }

    /// After how many events the client leaves by itself, if it does.
    fn leaves(&mut self, events: u64) -> Option<u64> {
        let leaves = self.breaks < MOST_BREAKS && self.seed.chance(self.habits.breaking * LEAVING / 100);
        let after = self.seed.between(1, events);
        self.breaks += u64::from(leaves);
        leaves.then_some(after)
    }

    /// The connection is found broken; waits a moment. False if patience is over.
    async fn broke(&mut self) -> bool {
        self.broken.get_or_insert_with(Instant::now);
        let seen = self.watched.view.text.len();
        self.watched.trail.push(format!("broke with {seen} bytes shown"));
        let pause = self.seed.between(5, 60);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        Instant::now() < self.until
    }

    /// Something came.
    fn came(&mut self) {
        if let Some(since) = self.broken.take() {
            self.watched.recoveries.push(since.elapsed());
        }
    }
}
