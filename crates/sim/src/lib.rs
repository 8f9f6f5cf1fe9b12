//! A simulator of both native servers on one listener: the cloud agent plane (`/v1/agent/…`) and the local bridge
//! (`/v1/code/…`), faithful down to bodies, close codes and oddities, with faults on demand.
//!
//! It stands in for the real servers in `interline demo`, in tests and in benchmarks. It shares no code with the proxy, on
//! purpose: a misreading of the protocol in one of them must not be answered by the same misreading in the other.
//!
//! # Voices
//!
//! The *documented* voice does what the vendor's document promises: a clean `interrupted` result after every cancel, an
//! `assistant` snapshot before `result`, `…/result`, `…/resume` and `…/elicitations`, a stream that is live only without a cursor and
//! exact with one (the n-th frame of a session has sequence n).
//!
//! The *observed* voice does what the servers were seen to do: a cancelled chat falls silent, the bridge never says
//! interrupted, a stream without a cursor is replayed from its beginning, sequences are global, a second message during a bridge
//! turn fails, permissions overtake what they refer to, a question or a form of the agent hangs or does not exist, worker frames above
//! 32 KiB never arrive, and what the servers have no route for is a 404.
//!
//! # Prompts
//!
//! The first or the last line of a prompt may begin with a command:
//!
//! | prompt | what happens |
//! |---|---|
//! | `play NAME` | the transcript's next run, byte for byte, waiting for the client at each ask and at a recorded cancel; options `auto` (wait for nobody), `run=N`, `gap=MS` |
//! | `flood N` | N text frames at full speed ([`flood_text`]), then a success |
//! | `fault drop N` | N frames, then the connection is cut; when the client is back (or after a while), ten more and a success ([`counted_text`]) |
//! | `fault gap N` | the same, but five frames are sent while nobody listens |
//! | `fault silent` | nothing is ever sent, whatever the client does |
//! | `fault hang-after N` | N frames, then nothing; a cancel works |
//! | `fault no-result` | some text, then a close without a result |
//! | `fault bad-frames` | invalid JSON, `null`, an empty message, arrays, unknown types, a repeated frame, 1 MiB of text, a message cut inside characters; then a success ([`bad_frames_text`]) |
//! | `fault recoverable` | a recoverable error in the middle, then a success |
//! | `fault error` | an error |
//! | `fault late-result` | a success, and a failed result after it |
//! | `fault busy MS` | a command that runs MS milliseconds and no interrupt reaches before it ends |
//! | `fault pause` | a form, during which the session is paused until it is resumed (documented voice, cloud) |
//! | `fault http STATUS` | the request itself is refused |
//!
//! Anything else is played by a small agent: reasoning, text, a tool, a permission and a question. Words in the prompt
//! choose other scenes: `quick` (neither permission nor question), `ask` (only the permission), `question`, `form`, `long` (about twenty
//! seconds of text). [`Options::pace`] scales all of its pauses.
//!
//! On the cloud the environment `00000000-0000-0000-0000-000000000000` does not exist, and the device of
//! `ffffffff-ffff-ffff-ffff-ffffffffffff` is away for the first two seconds (`state: "pending"`).

mod asks;
mod attachments;
mod bridge;
mod bridge_session;
mod cloud;
mod faults;
mod frames;
mod inbound;
mod ledger;
mod options;
mod play;
mod prompt;
mod replies;
mod run;
mod script;
mod stage;
mod state;
mod stats;
mod tokens;
mod transcript;
mod websocket;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Router, extract::DefaultBodyLimit};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, task::JoinSet, time};
use tokio_util::sync::CancellationToken;

pub use faults::{bad_frames_text, counted_text, flood_text};
pub use options::{Error, Options, Pace, Voice};
pub use stats::{ControlFrame, Plane, Prompt, Stats};
pub use transcript::BUNDLED;

use state::State;

/// Both native servers. Clones share everything.
#[derive(Clone)]
pub struct Simulator {
    state: Arc<State>,
}

impl Simulator {
    /// Makes a simulator.
    ///
    /// # Errors
    /// If the directory of transcripts does not exist, or a token is blank.
    pub fn new(options: Options) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { state: State::new(options) })
    }

    /// The routes of both servers, to be served by whoever has a listener already.
    pub fn router(&self) -> Router {
        Router::new()
            .merge(cloud::routes(self.state.options.observed()))
            .merge(bridge::routes(&self.state))
            .fallback(replies::not_found)
            .method_not_allowed_fallback(replies::method_not_allowed)
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&self.state))
    }

    /// Serves until `shutdown`; then every connection and every run ends at once.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let service = TowerToHyperService::new(self.router());
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, mostly: nothing to do but to wait for some to come back.
                    tracing::warn!(%error, "accept failed");
                    time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            // Frames are small and come one by one: waiting to fill a packet would only delay them.
            let _ = stream.set_nodelay(true);
            let service = service.clone();
            connections.spawn(async move {
                let mut builder = auto::Builder::new(TokioExecutor::new());
                builder.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(30));
                let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                if let Err(error) = served {
                    tracing::debug!(%error, "connection ended");
                }
            });
        }
        self.state.stop.cancel();
        connections.shutdown().await;
    }

    /// What was seen so far.
    pub fn stats(&self) -> Stats {
        self.state.counters.read()
    }
}

/// Locks, whatever happened to the last holder: every critical section here leaves its data whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
