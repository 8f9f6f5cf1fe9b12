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
//! | `tally NAME N` | N numbered pieces ([`tally_text`]), then a success; options `gap=MS` between two, `hold=MS` before the last, `tools=K` every K-th is a tool's result, `size=B` more bytes in each, `forget=M` cut before piece M, and three pieces that nobody hears before the server forgets all it said (a bridge keeps them in its queue), `vanish=M` cut before piece M, and from then on the cloud has no stream of it any more, but a result |
//! | `scene permission` | the same command asked for twice, with all the schema has; `updatedInput` is what runs, a rule in `updatedPermissions` answers the second, a mode in it is told by `system/status` |
//! | `scene questions` | two questions in one ask, one of several choices; the agent says the answers |
//! | `scene form`, `scene link` | an elicitation with a form or a link; `elicitation_complete` if accepted, then `form_answer` with accept, decline, cancel or timeout |
//! | `scene asks N` | N permissions at once, which go on in the order of their answers |
//! | `scene subagent` | a sub-agent's tools and its ask, with `agent_id` and `parent_tool_use_id` |
//! | `scene overtake` | a permission before the text and the announcements it refers to, in either voice |
//! | `scene replayed [MS]` | a permission, then a cut, and the same request again although it was answered; MS milliseconds later a success |
//! | `scene settings [MS]` | listens for MS milliseconds (500), then says model, mode, thinking and environment as they were set |
//! | `scene task MS` | a background task `bg-1` that `stop_task` stops |
//! | `scene compaction` | a compaction in the middle; `get_context_usage` is less afterwards |
//! | `fault drop N` | N frames, then the connection is cut; when the client is back (or after a while), ten more and a success ([`counted_text`]) |
//! | `fault gap N` | the same, but five frames are sent while nobody listens |
//! | `fault silent` | nothing is ever sent, whatever the client does |
//! | `fault hang-after N` | N frames, then nothing; a cancel works |
//! | `fault no-result` | some text, then a close without a result |
//! | `fault bad-frames` | invalid JSON, `null`, an empty message, arrays, unknown types, a repeated frame, 1 MiB of text, a message cut inside characters; then a success ([`bad_frames_text`]) |
//! | `fault recoverable` | a recoverable error in the middle, then a success |
//! | `fault compact-failed` | a compaction that is begun, never finished and told by a recoverable error; then a success |
//! | `fault redelivered` | an error that is final, and the same work over again with a success |
//! | `fault error` | an error |
//! | `fault late-result` | a success, and a failed result after it |
//! | `fault busy MS` | a command that runs MS milliseconds and no interrupt reaches before it ends |
//! | `fault cli MS` | an external agent: its own session id in every frame, no interrupt for MS milliseconds, a success without usage or stop reason |
//! | `fault cancel HOW` | works until cancelled, then ends as HOW says in either voice: `clean`, `silent` (never), `no-result` (the bridge still ends the turn), `error` (`context canceled`), `late MS`, `success` |
//! | `fault deaf MS [form]` | a permission (or a form), after which no control message is fetched for MS milliseconds: what is then older than [`Options::control_retention`] is discarded ([`Stats::discarded`]); the ask's own time begins afterwards, so that it can be answered again |
//! | `fault pause` | a form, during which the session is paused until it is resumed (documented voice, cloud); the form's time does not pass meanwhile |
//! | `fault http STATUS` | the request itself is refused |
//!
//! Anything else is played by a small agent: reasoning, text, a tool, a permission and a question. Words in the prompt
//! choose other scenes: `quick` (neither permission nor question), `ask` (only the permission), `question`, `form`, `long` (about twenty
//! seconds of text). [`Options::pace`] scales all of its pauses, [`Options::with_limits`] what asks and control messages wait for.
//!
//! # Control requests
//!
//! In the observed voice the bridge interrupts (`interrupt`, `cancel_async_message`) and refuses what else it knows, and the cloud
//! ignores all of it. In the documented voice both answer: `interrupt`, `set_model`, `set_permission_mode` (told to everybody by
//! `system/status`), `set_max_thinking_tokens`, `get_context_usage`, `rewind_files` (for any message but one whose id begins with
//! `unknown`; what was no `dry_run` is told by `system/local_command_output`), `stop_task`, `get_settings` and the rest; and
//! `update_environment_variables` is kept. Settings belong to the session. On the cloud the reply goes to all of its sockets.
//!
//! # The coding channel
//!
//! `/v1/code/ws` knows `git.status`, `git.statusFiles`, `git.changedFiles`, `git.repoRoot`, `git.listBranches`, `fs.read`, `fs.list`,
//! `fs.write`, `fs.writeBytes`, `fs.delete` (parameters `path`, `content`, `data`), `pty.open`, `pty.kill`, `pty.active` and
//! `code.runTask`, over files in memory that all channels share. `after_ms` among the parameters of any request holds it back, so that
//! later ones overtake it. A terminal echoes; its shell knows `echo`, `size`, `pwd`, `bytes`, `flood N` and `exit N`.
//!
//! On the cloud the environment `00000000-0000-0000-0000-000000000000` does not exist, and the device of
//! `ffffffff-ffff-ffff-ffff-ffffffffffff` is away for the first two seconds (`state: "pending"`).

mod asks;
mod attachments;
mod bridge;
mod bridge_session;
mod cloud;
mod code_plane;
mod controls;
mod faults;
mod frames;
mod inbound;
mod inbox;
mod ledger;
mod options;
mod play;
mod prompt;
mod pty;
mod replies;
mod run;
mod scenes;
mod script;
mod settings;
mod stage;
mod state;
mod stats;
mod tally;
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
pub use prompt::{FAULTS, SCENES};
pub use stats::{Attachment, ControlFrame, Plane, Prompt, Responses, Stats};
pub use tally::tally_text;
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

    /// The `control_response`s to one request, without a copy of everything else.
    pub fn responses_to(&self, request_id: &str) -> Responses {
        self.state.counters.responses_to(request_id)
    }
}

/// Locks, whatever happened to the last holder: every critical section here leaves its data whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
