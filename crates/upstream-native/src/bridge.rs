//! The link to the local bridge: one native session for each session, one turn at a time, one socket for each turn.
//!
//! The end of a turn is the sentinel `keep_alive` and a close with 1000 (native-ws.md §4.3). Until they have come the turn holds the
//! conversation, also when its run was ended before: a message in the middle of a turn fails, or kills the bridge (§4.4).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use interline_hub::{Command, Flow, Link, LinkError, LinkFuture, RunInput, RunPort, Secret};
use interline_model::{FailureKind, Text};
use interline_native::frame::{Control, Data, Lifecycle};
use interline_native::{Frame, build};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, chance};
use crate::lineup::LineUp;
use crate::origin::escaped;
use crate::outbox::Outbox;
use crate::prompt::bridge_prompt;
use crate::refusal::{Refusal, nonsense};
use crate::server::Server;
use crate::socket::{Credential, DialError, Incoming, Socket};

/// Frames of earlier turns that are still known: more than the bridge keeps for replay, which is 256 (§4.3).
const KNOWN_FRAMES: u64 = 1024;

/// One session's link.
pub(crate) struct BridgeLink {
    server: Arc<Server>,
    /// Held by the turn that goes on.
    turn: Arc<tokio::sync::Mutex<Conversation>>,
    /// What is to be deleted with the session.
    held: Mutex<Option<Held>>,
    closed: CancellationToken,
}

/// A native session and the bearer it is reached with.
struct Held {
    session: String,
    credential: Option<Secret>,
}

/// The native session, over all its turns.
struct Conversation {
    session: Option<String>,
    /// How many numbered frames came (§4.3: ids are not on the wire).
    counted: u64,
    /// No numbered frame can have been missed, so that the count is the id of the last one.
    exact: bool,
    lineup: LineUp,
}

impl Conversation {
    fn new() -> Self {
        Self { session: None, counted: 0, exact: true, lineup: LineUp::new() }
    }
}

#[derive(Serialize)]
struct Message<'a> {
    prompt: &'a str,
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

impl BridgeLink {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            turn: Arc::new(tokio::sync::Mutex::new(Conversation::new())),
            held: Mutex::default(),
            closed: CancellationToken::new(),
        }
    }

    async fn carry(&self, input: RunInput, port: &mut RunPort) -> Result<(), LinkError> {
        let server = &self.server;
        let prompt = bridge_prompt(&input.input, server.name())?;
        if input.system_prompt.is_some() {
            tracing::debug!(upstream = server.name(), "a bridge takes no system prompt; it was left out");
        }
        let stop_id = format!("interrupt-{}", input.run);
        let outbox = Outbox::new(server.name(), build::interrupt(&stop_id), server.link.bridge_max_outbound, &server.link);
        let Some(conversation) = self.turn(port).await? else { return Ok(()) };
        let mut turn = Turn {
            server,
            credential: server.credential(&input),
            conversation,
            outbox,
            stop_id,
            backoff: Backoff::new(&server.link),
            attached: false,
            resume: false,
            lost: false,
            finished: false,
            winding_down: false,
            sentinel: None,
            closed: self.closed.clone(),
        };
        turn.submit(&prompt, &self.held).await?;
        let carried = turn.carry(port).await;
        drop(turn);
        if self.closed.is_cancelled() {
            // Deleted while the native session was being made: then there was nothing to delete yet.
            self.delete().await;
        }
        carried
    }

    /// Deletes the native session, if there is one.
    async fn delete(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Held { session, credential }) = held else { return };
        let path = format!("/v1/code/sessions/{}", escaped(&session));
        if let Err(error) = self.server.delete(&path, credential.as_ref()).await {
            tracing::info!(upstream = self.server.name(), %error, "a session could not be deleted");
        }
    }

    /// Waits for the turn before this one. `None` if the run is over before it was submitted.
    async fn turn(&self, port: &mut RunPort) -> Result<Option<OwnedMutexGuard<Conversation>>, LinkError> {
        let over = port.over().clone();
        let wait = tokio::time::timeout(self.server.link.sentinel_wait(), self.turn.clone().lock_owned());
        tokio::pin!(wait);
        loop {
            tokio::select! {
                biased;
                () = over.cancelled() => return Ok(None),
                () = self.closed.cancelled() => return Ok(None),
                command = port.command() => {
                    if matches!(command, Command::Stop) {
                        return Ok(None);
                    }
                }
                guard = &mut wait => return guard.map(Some).map_err(|_| LinkError::Refused {
                    kind: FailureKind::EngineNotReady,
                    message: format!(
                        "upstream {} is still busy with the run before this one, which was stopped and has not come to its end; try again later",
                        self.server.name()
                    ),
                }),
            }
        }
    }
}

impl Link for BridgeLink {
    fn run(self: Arc<Self>, input: RunInput, mut port: RunPort) -> LinkFuture {
        Box::pin(async move { self.carry(input, &mut port).await })
    }

    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            self.closed.cancel();
            self.delete().await;
        })
    }
}

/// One turn on its way.
struct Turn<'a> {
    server: &'a Server,
    credential: Option<Secret>,
    conversation: OwnedMutexGuard<Conversation>,
    outbox: Outbox,
    /// The id of our interrupt, whose answer is nobody else's business.
    stop_id: String,
    backoff: Backoff,
    /// A socket was open in this turn.
    attached: bool,
    /// The next socket has to ask for what was missed.
    resume: bool,
    /// The log says that the connection is lost.
    lost: bool,
    /// The run has ended by a frame.
    finished: bool,
    /// The run is over; the turn may not be.
    winding_down: bool,
    /// When the sentinel came, if nothing came after it.
    sentinel: Option<Instant>,
    closed: CancellationToken,
}

/// How a socket ended.
enum Ended {
    /// The turn is over, or the session is deleted.
    Over,
    /// Against our will.
    Lost(Incoming),
}

/// What a frame is to the link.
enum Class {
    Sentinel,
    /// The answer to our own interrupt.
    Ours,
    /// Numbered, and kept for replay (§4.3).
    Counted,
    Other,
}

impl Turn<'_> {
    /// Submits the prompt; makes the native session first if there is none, or the bridge has forgotten it.
    async fn submit(&mut self, prompt: &str, held: &Mutex<Option<Held>>) -> Result<(), LinkError> {
        loop {
            let (session, is_new) = match self.conversation.session.clone() {
                Some(session) => (session, false),
                None => (self.create().await?, true),
            };
            self.conversation.session = Some(session.clone());
            let now_held = Held { session: session.clone(), credential: self.credential.clone() };
            *held.lock().unwrap_or_else(PoisonError::into_inner) = Some(now_held);
            let path = format!("/v1/code/sessions/{}/messages", escaped(&session));
            let reply = self.server.post(&path, self.credential.as_ref(), Some(&Message { prompt })).await;
            let reply = reply.map_err(|error| self.server.unreachable(&error))?;
            if reply.status.is_success() {
                self.conversation.lineup.forget(KNOWN_FRAMES);
                return Ok(());
            }
            if reply.status != http::StatusCode::NOT_FOUND || is_new {
                return Err(Refusal::of(&reply, self.credential.as_ref()).into_error(self.server.name(), "the run"));
            }
            tracing::warn!(upstream = self.server.name(), "the bridge has forgotten the session; a new one begins without its history");
            *self.conversation = Conversation::new();
        }
    }

    async fn create(&self) -> Result<String, LinkError> {
        let reply = self.server.post("/v1/code/sessions", self.credential.as_ref(), Some(&serde_json::Map::new())).await;
        let reply = reply.map_err(|error| self.server.unreachable(&error))?;
        if !reply.status.is_success() {
            return Err(Refusal::of(&reply, self.credential.as_ref()).into_error(self.server.name(), "a session"));
        }
        let created: Created = serde_json::from_slice(&reply.body).map_err(|_| nonsense(self.server.name(), "POST /v1/code/sessions"))?;
        Ok(created.id)
    }

    async fn carry(&mut self, port: &mut RunPort) -> Result<(), LinkError> {
        loop {
            let why = match self.attach().await {
                Ok(socket) => {
                    if std::mem::take(&mut self.lost) {
                        port.link_back();
                    }
                    match self.follow(socket, port).await {
                        Ended::Over => return Ok(()),
                        Ended::Lost(incoming) => {
                            self.resume = true;
                            incoming.to_string()
                        }
                    }
                }
                Err(error) => match error.status().map(|status| status.as_u16()) {
                    // No turn in progress: it was over before we came, which only a replay can mend.
                    Some(409) if !self.resume && self.conversation.exact && !port.over().is_cancelled() => {
                        self.resume = true;
                        continue;
                    }
                    Some(409) => {
                        self.conversation.exact = false;
                        return Err(self.gone(&"the turn was over before its frames could be fetched"));
                    }
                    Some(404) => {
                        *self.conversation = Conversation::new();
                        return Err(self.gone(&"the bridge has forgotten the session"));
                    }
                    Some(401 | 403) => return Err(self.refused(error)),
                    _ => error.to_string(),
                },
            };
            tracing::info!(upstream = self.server.name(), %why, "connection lost");
            let Some(pause) = self.backoff.failed(chance()) else {
                self.conversation.exact = false;
                return Err(if self.attached { self.gone(&why) } else { self.server.unreachable(&why) });
            };
            if !std::mem::replace(&mut self.lost, true) {
                port.link_lost();
            }
            // Also when the run is over: nothing may be submitted until the turn is known to be.
            self.pause(pause, port).await;
            if self.closed.is_cancelled() {
                return Ok(());
            }
        }
    }

    async fn pause(&mut self, pause: std::time::Duration, port: &mut RunPort) {
        let closed = self.closed.clone();
        tokio::select! {
            () = closed.cancelled() => {}
            ended = async {
                let until = Instant::now() + pause;
                if !self.outbox.wait(pause, port).await {
                    tokio::time::sleep_until(until).await;
                }
            } => ended,
        }
    }

    async fn attach(&mut self) -> Result<Socket, DialError> {
        let session = self.conversation.session.clone().unwrap_or_default();
        let count = self.conversation.counted.to_string();
        let mut query = Vec::new();
        if self.resume && self.conversation.exact {
            // 0 is a cursor in the document and none on today's bridges: both are right to be asked (§4.3).
            query.push(("last_event_id", count.as_str()));
        }
        let path = format!("/v1/code/sessions/{}/ws", escaped(&session));
        let uri = self.server.origin.websocket(&path, &query).map_err(|error| DialError::Failed(error.to_string()))?;
        let socket = self.server.dialer.dial(uri, Credential::Bearer(self.credential.as_ref())).await?;
        if self.resume {
            self.conversation.lineup.rejoin();
            // What today's bridges sent before their first number was heard of cannot be had again.
            self.conversation.exact &= !self.attached || self.conversation.counted > 0;
        }
        if self.attached {
            self.outbox.reconnected(Instant::now());
        }
        self.attached = true;
        self.sentinel = None;
        Ok(socket)
    }

    /// Carries frames and commands until the turn or the connection ends. The run may end long before.
    async fn follow(&mut self, mut socket: Socket, port: &mut RunPort) -> Ended {
        let (over, closed) = (port.over().clone(), self.closed.clone());
        loop {
            if over.is_cancelled() && !self.winding_down {
                self.winding_down = true;
                if !self.finished {
                    // Ended by ourselves: the bridge may not know yet.
                    self.outbox.take_all(port);
                    self.outbox.stop();
                }
            }
            if let Err(why) = socket.send(&mut self.outbox).await {
                return Ended::Lost(Incoming::Broken(why));
            }
            let close_due = self.sentinel.map(|at| at + self.server.link.linger());
            tokio::select! {
                biased;
                () = closed.cancelled() => {
                    socket.close().await;
                    return Ended::Over;
                }
                () = over.cancelled(), if !self.winding_down => {}
                command = port.command() => {
                    self.outbox.take(command);
                    self.outbox.take_all(port);
                }
                incoming = socket.receive() => match incoming {
                    Incoming::Frame(text) => self.take(text, port),
                    _ if self.sentinel.is_some() => return Ended::Over,
                    end => return Ended::Lost(end),
                },
                () = sleep_until(close_due), if close_due.is_some() => {
                    // The close is missing; the sentinel said enough.
                    socket.close().await;
                    return Ended::Over;
                }
            }
        }
    }

    fn take(&mut self, text: Text, port: &RunPort) {
        let class = classify(&text, &self.stop_id);
        if matches!(class, Class::Sentinel) {
            self.sentinel = Some(Instant::now());
            return;
        }
        self.sentinel = None;
        if matches!(class, Class::Ours) || !self.conversation.lineup.admit(&text) {
            return;
        }
        if matches!(class, Class::Counted) {
            self.conversation.counted += 1;
        }
        self.backoff.reset();
        let ended_before = port.over().is_cancelled();
        if port.deliver(text) == Flow::Over && !ended_before {
            self.finished = true;
        }
    }

    fn refused(&self, error: DialError) -> LinkError {
        match error {
            DialError::Refused(refusal) => refusal.into_error(self.server.name(), "the stream"),
            DialError::Failed(why) => self.server.unreachable(&why),
        }
    }

    fn gone(&self, why: &dyn std::fmt::Display) -> LinkError {
        LinkError::Gone(format!("upstream {}: {why}", self.server.name()))
    }
}

/// For a branch that is switched off without a moment.
async fn sleep_until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment).await;
    }
}

fn classify(text: &Text, stop_id: &str) -> Class {
    match Frame::parse(text) {
        Ok(Frame::Lifecycle(Lifecycle::KeepAlive(_))) => Class::Sentinel,
        Ok(Frame::Control(Control::Response(response))) if response.request_id().as_deref() == Some(stop_id) => Class::Ours,
        // Bridges that number more than these replay more than asked, which is lined up; counting too much would skip frames.
        Ok(
            Frame::Data(
                Data::StreamlinedText(_) | Data::ToolProgress(_) | Data::ToolUseSummary(_) | Data::ResultSuccess(_) | Data::ResultError(_),
            )
            | Frame::Lifecycle(Lifecycle::CompactStarted(_) | Lifecycle::CompactFinished(_)),
        ) => Class::Counted,
        _ => Class::Other,
    }
}
