//! The link to the local bridge: one native session for each session, one turn at a time, one socket for each turn.
//!
//! The end of a turn is the sentinel `keep_alive` and a close with 1000 (native-ws.md §4.3). Until they have come the turn holds the
//! conversation, also when its run was ended before: a message in the middle of a turn fails, or kills the bridge (§4.4). But not for
//! ever: a turn whose end does not come in time is given up, and its native session with it.

mod act;
mod turn;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use interline_hub::{Action, ActionFuture, Link, LinkError, LinkFuture, Resumption, RunCredential, RunInput, RunPort, Secret};
use interline_model::{FailureKind, Json, RunId, Text};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::chance;
use crate::lineup::LineUp;
use crate::origin::escaped;
use crate::outbox::Outbox;
use crate::prompt::bridge_prompt;
use crate::refusal::unknown_handle;
use crate::server::Server;
use turn::{Turn, is_counted, outbox};

/// How much longer a turn is waited for than it may last after its run: it is always gone before.
const SLACK: Duration = Duration::from_secs(1);

/// One session's link.
pub(crate) struct BridgeLink {
    server: Arc<Server>,
    /// Held by the turn that goes on.
    turn: Arc<tokio::sync::Mutex<Conversation>>,
    /// The native session: what is to be deleted with ours.
    held: watch::Sender<Option<Held>>,
    /// The conversation as the process before this one left it, until the first turn takes it.
    recalled: Mutex<Option<Conversation>>,
    /// Held by the compaction that waits or goes on.
    compaction: Arc<tokio::sync::Mutex<()>>,
    closed: CancellationToken,
}

/// A native session and the bearer it is reached with.
#[derive(Clone)]
struct Held {
    session: String,
    credential: Option<Secret>,
}

/// The native session, over all its turns.
struct Conversation {
    session: Option<String>,
    /// What came, and how many numbered frames were among it (§4.3: ids are not on the wire). Those without a uuid are left out: they cannot be
    /// told from repeats, and counting too much would skip frames.
    lineup: LineUp,
    /// No turn's end was missed, so that what follows the last one's count is of the present turn.
    exact: bool,
    /// A turn may be going on: nothing may be submitted until that is known.
    in_turn: bool,
    /// Another process had it last, and may have had frames that are not in the log.
    is_recalled: bool,
    /// When the native session before this one was given up in the middle of a turn.
    given_up: Option<Instant>,
}

impl Conversation {
    fn new() -> Self {
        Self { session: None, exact: true, lineup: LineUp::new(), in_turn: false, is_recalled: false, given_up: None }
    }

    /// Where another process was in it, which had these frames since it wrote the handle.
    fn of(handle: Handle, frames: &[Text]) -> Self {
        let Handle { session, counted, exact, last } = handle;
        let mut lineup = LineUp::behind(counted, last.as_deref());
        frames.iter().for_each(|frame| lineup.see(frame, is_counted(frame)));
        Self { session: Some(session), exact, lineup, in_turn: true, is_recalled: true, given_up: None }
    }

    /// Under what its next turn is found again.
    fn handle(&mut self) -> Option<Handle> {
        let session = self.session.clone()?;
        let last = self.lineup.last_id();
        Some(Handle { session, counted: self.lineup.count(), exact: self.exact, last })
    }
}

/// Under what a turn is found again: the native session, how many numbered frames came before the turn, and the id of the last of them.
#[derive(Serialize, Deserialize)]
struct Handle {
    session: String,
    counted: u64,
    exact: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<String>,
}

impl BridgeLink {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            turn: Arc::new(tokio::sync::Mutex::new(Conversation::new())),
            held: watch::Sender::new(None),
            recalled: Mutex::default(),
            compaction: Arc::default(),
            closed: CancellationToken::new(),
        }
    }

    async fn carry(&self, input: RunInput, port: &mut RunPort) -> Result<(), LinkError> {
        let server = &self.server;
        let prompt = bridge_prompt(input.system_prompt.as_deref(), &input.input, server.name())?;
        let mut outbox = outbox(server, input.run);
        let Some(conversation) = self.turn(port, &mut outbox).await? else { return Ok(()) };
        let mut turn = Turn::new(self, input.run, server.credential(&input.credential), conversation, outbox);
        let (over, wait) = (port.over().clone(), server.link.sentinel_wait());
        let carried = in_time(turn.carry(&prompt, port), over, wait).await;
        self.part(turn, carried).await
    }

    /// Goes on with a turn of another process.
    async fn carry_on(
        &self,
        run: RunId,
        credential: Option<Secret>,
        conversation: OwnedMutexGuard<Conversation>,
        port: &mut RunPort,
    ) -> Result<(), LinkError> {
        let mut outbox = outbox(&self.server, run);
        outbox.taken_up(chance());
        let mut turn = Turn::new(self, run, credential, conversation, outbox);
        let (over, wait) = (port.over().clone(), self.server.link.sentinel_wait());
        let carried = in_time(turn.carry_on(port), over, wait).await;
        self.part(turn, carried).await
    }

    /// Lets go of a turn, and of its native session if it did not come to its end in time.
    async fn part(&self, mut turn: Turn<'_>, carried: Option<Result<(), LinkError>>) -> Result<(), LinkError> {
        let lost = if carried.is_none() { turn.give_up() } else { None };
        drop(turn);
        // While the next run goes on already.
        if let Some(held) = lost {
            self.delete(held).await;
        }
        if self.closed.is_cancelled() {
            // Deleted while the native session was being made: then there was nothing to delete yet.
            self.delete_held().await;
        }
        carried.unwrap_or(Ok(()))
    }

    fn recalled(&self) -> std::sync::MutexGuard<'_, Option<Conversation>> {
        self.recalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be deleted, for whoever does it.
    fn take_held(&self) -> Option<Held> {
        self.held.send_replace(None)
    }

    /// Deletes the native session, if there is one.
    async fn delete_held(&self) {
        if let Some(held) = self.take_held() {
            self.delete(held).await;
        }
    }

    async fn delete(&self, held: Held) {
        let path = format!("/v1/code/sessions/{}", escaped(&held.session));
        if let Err(error) = self.server.delete(&path, held.credential.as_ref()).await {
            tracing::info!(upstream = self.server.name(), %error, "a session could not be deleted");
        }
    }

    /// Waits for the turn before this one. `None` if the run is over before it was submitted. Commands of the meantime are kept.
    async fn turn(&self, port: &mut RunPort, outbox: &mut Outbox) -> Result<Option<OwnedMutexGuard<Conversation>>, LinkError> {
        let (over, since, limit) = (port.over().clone(), Instant::now(), self.server.link.sentinel_wait());
        let busy = |what: std::fmt::Arguments<'_>| LinkError::Refused {
            kind: FailureKind::EngineNotReady,
            message: format!("upstream {} was still busy with the run before this one {what}", self.server.name()),
        };
        let wait = self.wait();
        tokio::pin!(wait);
        loop {
            tokio::select! {
                biased;
                () = over.cancelled() => return Ok(None),
                () = self.closed.cancelled() => return Ok(None),
                command = port.command() => {
                    outbox.take(command);
                    if outbox.is_stopping() {
                        return Ok(None);
                    }
                }
                guard = &mut wait => return match guard {
                    // Said rather than passed over: what was talked about is gone with the native session (decision 16).
                    Some(conversation) if conversation.given_up.is_some_and(|at| at >= since) => Err(busy(format_args!(
                        "{} ms after its end, and its session there was given up; try again: a new one begins, without the history",
                        limit.as_millis()
                    ))),
                    Some(conversation) => Ok(Some(conversation)),
                    None => Err(busy(format_args!("after {} ms; try again later", limit.as_millis()))),
                },
            }
        }
    }
}

impl BridgeLink {
    /// Waits for the conversation, as long as a turn may be winding down, and a compaction going on after that.
    async fn wait(&self) -> Option<OwnedMutexGuard<Conversation>> {
        let turn = self.turn.clone().lock_owned();
        tokio::pin!(turn);
        let (wind_down, compaction) = (self.server.link.sentinel_wait().saturating_add(SLACK), self.server.link.action_timeout());
        if let Ok(conversation) = tokio::time::timeout(wind_down, &mut turn).await {
            return Some(conversation);
        }
        if self.compaction.try_lock().is_ok() {
            return None;
        }
        tokio::time::timeout(compaction.saturating_add(wind_down), turn).await.ok()
    }
}

/// What comes of a turn, unless it outlasts its run for so long; then nothing.
async fn in_time<T>(turn: impl Future<Output = T>, over: CancellationToken, wait: Duration) -> Option<T> {
    let bound = async {
        over.cancelled().await;
        tokio::time::sleep(wait).await;
    };
    tokio::select! {
        biased;
        carried = turn => Some(carried),
        () = bound => None,
    }
}

impl Link for BridgeLink {
    fn run(self: Arc<Self>, input: RunInput, mut port: RunPort) -> LinkFuture {
        Box::pin(async move { self.carry(input, &mut port).await })
    }

    fn takes_up(&self) -> bool {
        true
    }

    fn take_up(self: Arc<Self>, resumption: Resumption, mut port: RunPort) -> LinkFuture {
        let Resumption { run, handle, frames, credential } = resumption;
        // At once, before anybody else asks something of the conversation. It is a new one: nobody holds it yet.
        let taken = self.turn.clone().try_lock_owned().ok().zip(serde_json::from_str::<Handle>(handle.as_str()).ok());
        Box::pin(async move {
            let Some((mut conversation, handle)) = taken else { return Err(unknown_handle(self.server.name())) };
            tracing::info!(upstream = self.server.name(), %run, frames = frames.len(), "a run is taken up again");
            *self.recalled() = None;
            *conversation = Conversation::of(handle, &frames);
            // Every frame so far is the run's own, or before its count.
            conversation.is_recalled = false;
            let credential = self.server.credential(&credential);
            self.carry_on(run, credential, conversation, &mut port).await
        })
    }

    fn recalled(&self, handle: &Json, frames: &[Text]) {
        // A handle of another kind of server leads nowhere here.
        let Ok(handle) = serde_json::from_str::<Handle>(handle.as_str()) else { return };
        let held = Held { session: handle.session.clone(), credential: self.server.config.credential.clone() };
        *self.recalled() = Some(Conversation::of(handle, frames));
        self.held.send_replace(Some(held));
    }

    fn act(self: Arc<Self>, action: Action, credential: RunCredential) -> ActionFuture {
        Box::pin(async move { act::act(self, action, &credential).await })
    }

    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            self.closed.cancel();
            self.delete_held().await;
        })
    }
}
