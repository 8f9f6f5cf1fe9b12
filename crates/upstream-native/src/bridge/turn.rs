//! One turn: submitted, attended over as many sockets as it takes, and known to be over before another one begins.

use interline_hub::{Flow, LinkError, RunPort, Secret};
use interline_model::{Json, RunId, Text};
use interline_native::frame::{Control, Data, Lifecycle};
use interline_native::{Frame, build};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{BridgeLink, Conversation, Held};
use crate::backoff::{Backoff, chance, sleep_until};
use crate::lineup::{Admitted, Overlap, Settled};
use crate::origin::escaped;
use crate::outbox::Outbox;
use crate::refusal::{Refusal, nonsense};
use crate::server::Server;
use crate::socket::{Credential, DialError, Incoming, Socket};

/// The body of `POST …/messages`.
#[derive(Serialize)]
struct Message<'a> {
    prompt: &'a str,
}

/// What matters of the answer to `POST /v1/code/sessions`.
#[derive(Deserialize)]
struct Created {
    id: String,
}

/// One turn on its way.
pub(super) struct Turn<'a> {
    link: &'a BridgeLink,
    server: &'a Server,
    run: RunId,
    credential: Option<Secret>,
    conversation: OwnedMutexGuard<Conversation>,
    outbox: Outbox,
    /// The id of our interrupt, whose answer is nobody else's business.
    stop_id: String,
    backoff: Backoff,
    /// A socket was open in this turn.
    attached: bool,
    /// A socket was tried that the bridge may have taken for open.
    unheard: bool,
    /// The next socket has to ask for what was missed.
    resume: bool,
    /// It has to ask for what follows the first frame: that one cannot be had.
    behind_first: bool,
    /// The log says that the connection is lost.
    lost: bool,
    /// What was said before this socket may be missing, and nobody was told yet.
    gap: bool,
    /// The run has ended by a frame.
    finished: bool,
    /// The run is over; the turn may not be.
    winding_down: bool,
    /// When the sentinel came, if nothing came after it.
    sentinel: Option<Instant>,
    /// Frames wait until then for what tells whether they are new.
    settles: Option<Instant>,
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

impl<'a> Turn<'a> {
    /// A turn that nothing was submitted of yet; `outbox` is of [`outbox`].
    pub(super) fn new(
        link: &'a BridgeLink,
        run: RunId,
        credential: Option<Secret>,
        mut conversation: OwnedMutexGuard<Conversation>,
        outbox: Outbox,
    ) -> Self {
        let server: &Server = &link.server;
        if conversation.session.is_none()
            && let Some(recalled) = link.recalled().take()
        {
            *conversation = recalled;
        }
        Self {
            link,
            server,
            run,
            credential,
            conversation,
            outbox,
            stop_id: stop_id(run),
            backoff: Backoff::new(&server.link),
            attached: false,
            unheard: false,
            resume: false,
            behind_first: false,
            lost: false,
            gap: false,
            finished: false,
            winding_down: false,
            sentinel: None,
            settles: None,
            closed: link.closed.clone(),
        }
    }

    /// The turn from its submission to its end, which may come long after the run's.
    pub(super) async fn carry(&mut self, prompt: &str, port: &mut RunPort) -> Result<(), LinkError> {
        self.rest().await?;
        if self.submit(prompt, port).await? { self.attend(port).await } else { Ok(()) }
    }

    /// A turn that another process submitted, from where that one was.
    pub(super) async fn carry_on(&mut self, port: &mut RunPort) -> Result<(), LinkError> {
        self.link.held.send_replace(self.conversation.session.clone().map(|session| Held { session, credential: self.credential.clone() }));
        self.attached = true;
        self.resume = true;
        self.lost = true;
        self.attend(port).await
    }

    /// Makes sure that no turn goes on. The native session, if there is one.
    pub(super) async fn rest(&mut self) -> Result<Option<String>, LinkError> {
        if self.conversation.in_turn {
            self.settle().await?;
        }
        Ok(self.conversation.session.clone())
    }

    /// The native session, made if there is none: then also `true`.
    pub(super) async fn session(&mut self) -> Result<(String, bool), LinkError> {
        let (session, is_new) = match self.conversation.session.clone() {
            Some(session) => (session, false),
            None => (self.create().await?, true),
        };
        self.conversation.session = Some(session.clone());
        let held = Held { session: session.clone(), credential: self.credential.clone() };
        self.link.held.send_replace(Some(held));
        Ok((session, is_new))
    }

    /// The bridge has forgotten this native session.
    pub(super) fn forget(&mut self, session: &str) {
        if self.conversation.session.as_deref() == Some(session) {
            *self.conversation = Conversation::new();
        }
    }

    /// The native session is of no use any more. What is to be deleted of it.
    pub(super) fn give_up(&mut self) -> Option<Held> {
        tracing::warn!(
            upstream = self.server.name(),
            "a turn did not come to its end in time; its session is given up, and a new one will begin without its history"
        );
        *self.conversation = Conversation::new();
        self.conversation.given_up = (!self.finished).then(Instant::now);
        self.link.take_held()
    }

    /// Makes sure that no turn goes on before something is submitted: one that nobody follows is interrupted, and waited for.
    async fn settle(&mut self) -> Result<(), LinkError> {
        let Conversation { exact, is_recalled, .. } = *self.conversation;
        let counted = self.conversation.lineup.count();
        // Then it says also what a turn said that is over already, and the count stays right. From another process's count on, whatever there is:
        // a frame of then that came with a later replay would be taken for the next turn's. 0 is no cursor on today's bridges (§4.3), and the
        // first frame no matter.
        let from = if is_recalled { counted.max(1) } else { counted };
        let from_text = from.to_string();
        let mut query = Vec::new();
        if is_recalled || (exact && counted > 0) {
            query.push(("last_event_id", from_text.as_str()));
            self.conversation.lineup.rejoin(Overlap::None);
        }
        let mut socket = match self.dial(&query).await {
            Ok(socket) => socket,
            Err(error) => {
                match error.status().map(|status| status.as_u16()) {
                    Some(409) => {
                        self.conversation.in_turn = false;
                        self.conversation.exact = false;
                        self.conversation.is_recalled = false;
                    }
                    Some(404) => {
                        tracing::warn!(upstream = self.server.name(), "the bridge has forgotten the session");
                        *self.conversation = Conversation::new();
                    }
                    _ => return Err(self.refused(error)),
                }
                return Ok(());
            }
        };
        self.sentinel = None;
        match tokio::time::timeout(self.server.link.sentinel_wait(), self.settled(&mut socket)).await {
            Ok(Ok(())) => {
                self.conversation.in_turn = false;
                if std::mem::take(&mut self.conversation.is_recalled) && counted == 0 {
                    // The first frame has to be counted with those that followed it. Without any, nobody knows whether there was one.
                    if self.conversation.lineup.count() > 0 {
                        self.conversation.lineup.count_missed();
                    } else {
                        self.conversation.exact = false;
                    }
                }
                Ok(())
            }
            Ok(Err(why)) => {
                self.conversation.exact = false;
                Err(self.server.unreachable(&why))
            }
            Err(_) => {
                if let Some(held) = self.give_up() {
                    self.link.delete(held).await;
                }
                Ok(())
            }
        }
    }

    /// Waits for the sentinel. Nobody is there to see what comes before.
    async fn settled(&mut self, socket: &mut Socket) -> Result<(), String> {
        let mut outbox = outbox(self.server, self.run);
        let mut told = false;
        loop {
            let incoming = if told || self.sentinel.is_some() {
                self.receive(socket).await
            } else if let Ok(incoming) = tokio::time::timeout(self.server.link.linger(), self.receive(socket)).await {
                incoming
            } else {
                // Between turns the sentinel would have come by itself.
                tracing::info!(upstream = self.server.name(), "a turn may run that nobody follows; it is stopped");
                told = true;
                outbox.stop();
                socket.send(&mut outbox).await?;
                continue;
            };
            match incoming {
                Some(Incoming::Frame(text)) => drop(self.note(&text)),
                Some(end) if self.sentinel.is_none() => return Err(end.to_string()),
                Some(_) | None => return Ok(()),
            }
        }
    }

    /// The next thing from the socket; `None` if the sentinel came and the close does not: the sentinel said enough.
    async fn receive(&self, socket: &mut Socket) -> Option<Incoming> {
        let close_due = self.sentinel.map(|at| at + self.server.link.linger());
        tokio::select! {
            biased;
            incoming = socket.receive() => Some(incoming),
            () = sleep_until(close_due), if close_due.is_some() => None,
        }
    }

    /// Submits the prompt; makes the native session first if there is none, or the bridge has forgotten it. `false` if the run was over, or
    /// to be stopped, before.
    async fn submit(&mut self, prompt: &str, port: &mut RunPort) -> Result<bool, LinkError> {
        loop {
            let (session, is_new) = self.session().await?;
            self.outbox.take_all(port);
            if port.over().is_cancelled() || self.outbox.is_stopping() {
                return Ok(false);
            }
            // Before it is said: what is lost in between is found there, or it is known that there is nothing.
            if let Some(handle) = self.conversation.handle() {
                port.attached(Json::from_value(&serde_json::json!(handle)));
            }
            let path = format!("/v1/code/sessions/{}/messages", escaped(&session));
            self.conversation.in_turn = true;
            let reply = match self.server.post(&path, self.credential.as_ref(), Some(&Message { prompt })).await {
                Ok(reply) => reply,
                Err(error) => {
                    if error.may_have_been_heard() {
                        self.settle_failed().await;
                    } else {
                        self.conversation.in_turn = false;
                    }
                    return Err(self.server.unreachable(&error));
                }
            };
            if reply.status.is_success() {
                return Ok(true);
            }
            if reply.status.is_server_error() {
                // Whoever is between us and the bridge may have said that, and passed the message on.
                self.settle_failed().await;
            } else {
                self.conversation.in_turn = false;
            }
            if reply.status != http::StatusCode::NOT_FOUND || is_new {
                return Err(Refusal::of(&reply, self.credential.as_ref()).into_error(self.server.name(), "the run"));
            }
            tracing::warn!(upstream = self.server.name(), "the bridge has forgotten the session; a new one begins without its history");
            *self.conversation = Conversation::new();
        }
    }

    /// The submission failed, and the turn may run all the same. If that cannot be told now, the next run has to find out.
    async fn settle_failed(&mut self) {
        if let Err(error) = self.settle().await {
            tracing::info!(upstream = self.server.name(), %error, "whether a turn goes on is not known");
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

    /// Follows the turn to its end; what still waits then is shown.
    async fn attend(&mut self, port: &mut RunPort) -> Result<(), LinkError> {
        let attended = self.follow_all(port).await;
        self.settle_frames(port);
        attended
    }

    /// Follows the turn over as many sockets as it takes.
    async fn follow_all(&mut self, port: &mut RunPort) -> Result<(), LinkError> {
        loop {
            let why = match self.attach().await {
                Ok(socket) => {
                    if std::mem::take(&mut self.lost) {
                        port.link_back();
                    }
                    if std::mem::take(&mut self.gap) {
                        self.missed(port);
                    }
                    match self.follow(socket, port).await {
                        Ended::Over => return Ok(()),
                        Ended::Lost(incoming) => {
                            if !self.conversation.lineup.are_likely_older() {
                                self.settle_frames(port);
                            }
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
                    // 0 is no cursor on today's bridges (§4.3): all but the first frame can be had.
                    Some(409) if !self.behind_first && self.conversation.exact && self.conversation.lineup.count() == 0 => {
                        self.behind_first = true;
                        continue;
                    }
                    Some(409) => {
                        self.conversation.in_turn = false;
                        self.conversation.exact = false;
                        return Err(self.gone(&"the turn was over before its frames could be fetched"));
                    }
                    Some(404) => {
                        *self.conversation = Conversation::new();
                        return Err(self.gone(&"the bridge has forgotten the session"));
                    }
                    Some(401 | 403) => return Err(self.refused(error)),
                    _ => {
                        // What the bridge said into a socket that nobody heard can be asked for, where it counts from nothing.
                        self.unheard |= error.may_be_open();
                        self.resume |= self.unheard;
                        error.to_string()
                    }
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
        let (known, overlap) = self.conversation.lineup.cursor();
        let from = known.max(u64::from(self.behind_first)).to_string();
        let is_asked = self.resume && self.conversation.exact;
        let mut query = Vec::new();
        if is_asked {
            // 0 is a cursor in the document and none on today's bridges: both are right to be asked (§4.3).
            query.push(("last_event_id", from.as_str()));
        }
        let socket = self.dial(&query).await?;
        if self.resume {
            let lineup = &mut self.conversation.lineup;
            lineup.rejoin(if is_asked { overlap } else { Overlap::None });
            // What today's bridges sent before their first number was heard of cannot be had again.
            let from_nothing = known == 0 && (self.attached || self.behind_first || self.unheard);
            self.gap = !is_asked || from_nothing;
            if self.gap {
                lineup.doubt();
            }
            // What waits since the connection before this one does so again.
            self.settles = None;
            if self.conversation.lineup.waits() {
                self.wait_for_repeats();
            }
        }
        if self.attached {
            self.outbox.reconnected(Instant::now());
        }
        self.attached = true;
        self.sentinel = None;
        Ok(socket)
    }

    async fn dial(&self, query: &[(&str, &str)]) -> Result<Socket, DialError> {
        let session = self.conversation.session.as_deref().unwrap_or_default();
        let path = format!("/v1/code/sessions/{}/ws", escaped(session));
        let uri = self.server.origin.websocket(&path, query).map_err(|error| DialError::Failed(error.to_string()))?;
        self.server.dialer.dial(uri, Credential::Bearer(self.credential.as_ref())).await
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
                incoming = self.receive(&mut socket) => match incoming {
                    Some(Incoming::Frame(text)) => self.take(text, port),
                    Some(end) if self.sentinel.is_none() => return Ended::Lost(end),
                    Some(_) => {
                        self.conversation.in_turn = false;
                        return Ended::Over;
                    }
                    None => {
                        self.conversation.in_turn = false;
                        socket.close().await;
                        return Ended::Over;
                    }
                },
                () = sleep_until(self.settles), if self.settles.is_some() => self.settle_frames(port),
            }
        }
    }

    fn take(&mut self, text: Text, port: &RunPort) {
        match self.note(&text) {
            Admitted::New => self.deliver(text, port),
            Admitted::Repeat => {}
            Admitted::Waits => {
                self.wait_for_repeats();
            }
            Admitted::Settles(settled) => self.show(settled, port),
        }
        if self.sentinel.is_some() {
            // Nothing more comes that could tell.
            self.settle_frames(port);
        }
    }

    fn deliver(&mut self, text: Text, port: &RunPort) {
        let ended_before = port.over().is_cancelled();
        match port.deliver(text) {
            // What comes after the run's end is nothing that a connection has to be kept for.
            Flow::Go => self.backoff.reset(),
            Flow::Over => self.finished |= !ended_before,
        }
    }

    fn wait_for_repeats(&mut self) {
        let wait = self.server.link.replay_wait(self.conversation.lineup.are_likely_older());
        self.settles.get_or_insert_with(|| Instant::now() + wait);
    }

    /// What waited is new.
    fn settle_frames(&mut self, port: &RunPort) {
        let settled = self.conversation.lineup.settle();
        self.show(settled, port);
    }

    fn show(&mut self, settled: Settled, port: &RunPort) {
        self.settles = None;
        if settled.missed {
            self.missed(port);
        }
        for frame in settled.fresh {
            self.deliver(frame, port);
        }
    }

    /// Says that something may be missing.
    fn missed(&self, port: &RunPort) {
        port.missed(Text::from(format!(
            "the connection to upstream {} was lost, and what was said meanwhile may be missing: the bridge does not keep all of it",
            self.server.name()
        )));
    }

    /// Keeps what the link must know of a frame, and tells what it is to the run.
    fn note(&mut self, text: &Text) -> Admitted {
        let class = classify(text, &self.stop_id);
        self.sentinel = matches!(class, Class::Sentinel).then(Instant::now);
        if matches!(class, Class::Sentinel | Class::Ours) || self.outbox.answered(text) {
            return Admitted::Repeat;
        }
        self.conversation.lineup.admit(text, matches!(class, Class::Counted))
    }

    fn refused(&self, error: DialError) -> LinkError {
        match error {
            DialError::Refused(refusal) => refusal.into_error(self.server.name(), "the stream"),
            DialError::Failed(why) | DialError::Unanswered(why) => self.server.unreachable(&why),
        }
    }

    fn gone(&self, why: &dyn std::fmt::Display) -> LinkError {
        LinkError::Gone(format!("upstream {}: {why}", self.server.name()))
    }
}

/// What is to be sent for a run on a bridge.
pub(super) fn outbox(server: &Server, run: RunId) -> Outbox {
    Outbox::new(server.name(), run, build::interrupt(&stop_id(run)), server.link.bridge_max_outbound, &server.link)
}

/// The id of our interrupt of a run.
fn stop_id(run: RunId) -> String {
    format!("interrupt-{run}")
}

/// Whether bridges number this frame.
pub(super) fn is_counted(text: &Text) -> bool {
    matches!(classify(text, ""), Class::Counted)
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
