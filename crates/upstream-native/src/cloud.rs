//! The link to the cloud agent plane: one native session for each run, created over HTTP and followed over one socket at a time.
//!
//! A `pending` session, whose device is away, is connected like any other: a server that streams live only would lose what comes
//! first to whoever comes later, and one that refuses is asked again, for as long as the run lasts.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use interline_hub::{
    Action, ActionError, ActionFuture, Flow, Link, LinkError, LinkFuture, Resumption, RunCredential, RunInput, RunPort, Secret, SessionSeed,
};
use interline_model::{FailureKind, Json, RunId, Text};
use interline_native::frame::Lifecycle;
use interline_native::{Frame, build};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backoff::{Backoff, chance, sleep_until};
use crate::lineup::{Admitted, LineUp, Overlap, Settled};
use crate::origin::escaped;
use crate::outbox::Outbox;
use crate::prompt::{CloudPrompt, Image};
use crate::refusal::{Refusal, done, nonsense, unanswered, unknown_handle};
use crate::server::Server;
use crate::socket::{Credential, DialError, Incoming, Socket};

/// Namespace of the threads (decision 1). Drawn once; another one would cut every conversation off from its history.
const THREADS: Uuid = Uuid::from_u128(0x8f1e_6c2a_94d7_4b3e_a05d_1c7b_62e9_3f48);

/// Lifetime of a session token whose server does not say (native-ws.md §1.2).
const TOKEN_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// Failures in a row from which on the token is renewed before each further attempt.
const FAILURES_BEFORE_RENEWAL: u32 = 2;

/// Frames taken from a socket in one go, before commands and the run's end are looked at again.
const BATCH: usize = 32;

/// The largest notice of a desync; a longer frame is none.
const LARGEST_NOTICE: usize = 4096;

/// One session's link.
pub(crate) struct CloudLink {
    server: Arc<Server>,
    thread: Uuid,
    latest: Mutex<Option<Native>>,
}

/// The native session of a run.
#[derive(Clone)]
struct Native {
    session: String,
    /// The run has ended.
    over: CancellationToken,
}

/// The body of `POST /v1/agent/sessions` (native-ws.md §2.2).
#[derive(Serialize)]
struct Create<'a> {
    mode: &'a str,
    prompt: &'a str,
    thread_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Image]>::is_empty")]
    images: &'a [Image],
    #[serde(skip_serializing_if = "Option::is_none")]
    environment_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workdir: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool_tag: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_id: Option<&'a str>,
}

/// What matters of its answer.
#[derive(Deserialize)]
struct Created {
    session_id: String,
    session_token: String,
    #[serde(default)]
    expires_at: Value,
    #[serde(default)]
    created_at: Value,
    #[serde(default)]
    state: Option<String>,
}

/// Under what a run is found again (§2.3). Without its token: whoever is let in gets a new one.
#[derive(Serialize, Deserialize)]
struct Handle {
    session: String,
    /// The device was away.
    #[serde(default)]
    pending: bool,
}

/// What matters of a renewed token.
#[derive(Deserialize)]
struct Renewed {
    session_token: String,
}

impl CloudLink {
    pub(crate) fn new(server: Arc<Server>, seed: &SessionSeed) -> Self {
        Self { server, thread: thread(seed), latest: Mutex::default() }
    }

    async fn carry(&self, input: RunInput, port: &mut RunPort) -> Result<(), LinkError> {
        let server = &self.server;
        let prompt = CloudPrompt::of(&input.input, server.config.mode, server.name())?;
        let credential = server.credential(&input.credential);
        let created = self.create(&input, &prompt, credential.as_ref()).await?;
        let pending = created.state.as_deref() == Some("pending");
        let handle = Handle { session: created.session_id.clone(), pending };
        port.attached(Json::from_value(&serde_json::json!(handle)));
        if pending {
            tracing::info!(upstream = server.name(), run = %input.run, "the device is away; the run waits for it");
        }
        self.on_its_way(input.run, handle, credential, Token::new(&created), port).carry(port).await
    }

    /// Goes on with a run of another process. What that one had is its messages; the rest is as after a break.
    async fn carry_on(&self, resumption: Resumption, port: &mut RunPort) -> Result<(), LinkError> {
        let server = &self.server;
        let handle: Handle = serde_json::from_str(resumption.handle.as_str()).map_err(|_| unknown_handle(server.name()))?;
        tracing::info!(upstream = server.name(), run = %resumption.run, frames = resumption.frames.len(), "a run is taken up again");
        let credential = server.credential(&resumption.credential);
        let mut run = self.on_its_way(resumption.run, handle, credential, Token::none(), port);
        resumption.frames.iter().for_each(|frame| run.lineup.see(frame, true));
        run.outbox.taken_up(chance());
        run.reached = Reached::Opened;
        run.lost = true;
        // An answer or a stop that nobody may have heard: before anything else.
        run.outbox.take_all(port);
        run.renew_token().await?;
        run.carry(port).await
    }

    fn on_its_way(&self, run: RunId, handle: Handle, credential: Option<Secret>, token: Token, port: &RunPort) -> CloudRun<'_> {
        let server = &self.server;
        let native = Native { session: handle.session.clone(), over: port.over().clone() };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(native);
        let stop = build::cancel(&format!("cancel-{run}"));
        let mut backoff = Backoff::new(&server.link);
        if handle.pending {
            backoff.endless();
        }
        CloudRun {
            server,
            credential,
            token,
            session: handle.session,
            lineup: LineUp::of_one_run(),
            outbox: Outbox::new(server.name(), run, stop, server.link.cloud_max_outbound, &server.link),
            backoff,
            cursor: server.link.cursor,
            numbered: false,
            reached: Reached::Never,
            from_nothing: false,
            settles: None,
            lost: false,
            over: port.over().clone(),
        }
    }

    async fn create(&self, input: &RunInput, prompt: &CloudPrompt, credential: Option<&Secret>) -> Result<Created, LinkError> {
        let config = &self.server.config;
        let body = Create {
            mode: config.mode.as_str(),
            prompt: &prompt.text,
            thread_id: self.thread.to_string(),
            model: input.model.as_deref(),
            system_prompt: input.system_prompt.as_deref(),
            images: &prompt.images,
            environment_id: config.environment_id.as_deref(),
            workdir: config.workdir.as_deref(),
            pool_tag: config.pool_tag.as_deref(),
            provider_id: config.provider_id.as_deref(),
        };
        let reply = self.server.post("/v1/agent/sessions", credential, Some(&body)).await;
        let reply = reply.map_err(|error| self.server.unreachable(&error))?;
        if !reply.status.is_success() {
            return Err(Refusal::of(&reply, credential).into_error(self.server.name(), "the run"));
        }
        serde_json::from_slice(&reply.body).map_err(|_| nonsense(self.server.name(), "POST /v1/agent/sessions"))
    }

    /// Lets the paused session of the run that goes on go on (vendor document §4.5). That of a run which has ended is left alone: nobody
    /// would follow what it does then, nor answer what it asks. Today's servers know no such address (native-ws.md §2.4).
    async fn resume(&self, credential: Option<Secret>) -> Result<Json, ActionError> {
        #[derive(Deserialize)]
        struct Resumed {
            state: String,
        }
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(native) = latest.filter(|native| !native.over.is_cancelled()) else { return Err(ActionError::Idle) };
        let path = format!("/v1/agent/sessions/{}/resume", escaped(&native.session));
        let reply = self.server.post(&path, credential.as_ref(), None::<&()>).await;
        let reply = reply.map_err(|error| unanswered(self.server.name(), &self.server.origin, &error))?;
        let reply = done(reply, Action::Resume.what(), credential.as_ref())?;
        // The session's id in it is the upstream's own. Without a state, what a resumed session is has one word (§2.8).
        let state = serde_json::from_slice(&reply.body).map_or_else(|_| "active".to_owned(), |resumed: Resumed| resumed.state);
        Ok(Json::from_value(&serde_json::json!({ "state": state })))
    }
}

impl Link for CloudLink {
    fn run(self: Arc<Self>, input: RunInput, mut port: RunPort) -> LinkFuture {
        Box::pin(async move { self.carry(input, &mut port).await })
    }

    fn takes_up(&self) -> bool {
        true
    }

    fn take_up(self: Arc<Self>, resumption: Resumption, mut port: RunPort) -> LinkFuture {
        Box::pin(async move { self.carry_on(resumption, &mut port).await })
    }

    fn act(self: Arc<Self>, action: Action, credential: RunCredential) -> ActionFuture {
        Box::pin(async move {
            match action {
                Action::Resume => self.resume(self.server.credential(&credential)).await,
                other => Err(ActionError::Unsupported(format!("this agent server cannot {}", other.what()))),
            }
        })
    }

    /// The plane has no way to delete a session, and each ends with its run.
    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }
}

/// The upstream's thread of a session. Never the client's own id: with a shared credential a guessed one would pull somebody else's
/// history into the model (decision 1).
fn thread(seed: &SessionSeed) -> Uuid {
    let (principal, cell) = (seed.principal.as_str(), seed.cell.as_str());
    // With the lengths, no two triples read the same.
    let name = format!("{}:{principal}{}:{cell}{}", principal.len(), cell.len(), seed.session);
    Uuid::new_v5(&THREADS, name.as_bytes())
}

/// The key to one session's stream. It is looked at when a stream is opened and never again (native-ws.md §3.1).
struct Token {
    /// Empty as long as there is none.
    secret: Secret,
    since: Instant,
    lifetime: Duration,
    /// The server did not take it.
    refused: bool,
    /// Why there is none.
    denied: Option<Refusal>,
}

impl Token {
    fn new(created: &Created) -> Self {
        // The difference of the server's own times, so that no two clocks have to agree.
        let lifetime = match (millis(&created.created_at), millis(&created.expires_at)) {
            (Some(from), Some(to)) if to > from => Duration::from_millis(to - from),
            _ => TOKEN_LIFETIME,
        };
        Self { secret: Secret::new(created.session_token.clone()), since: Instant::now(), lifetime, refused: false, denied: None }
    }

    /// One that has to be asked for.
    fn none() -> Self {
        Self { secret: Secret::new(String::new()), since: Instant::now(), lifetime: TOKEN_LIFETIME, refused: true, denied: None }
    }

    fn left(&self) -> Duration {
        self.lifetime.saturating_sub(self.since.elapsed())
    }
}

/// A time in milliseconds, as a number or as text (native-ws.md §8.1, 13).
fn millis(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// One run on its way.
struct CloudRun<'a> {
    server: &'a Server,
    credential: Option<Secret>,
    session: String,
    token: Token,
    lineup: LineUp,
    outbox: Outbox,
    backoff: Backoff,
    /// Whether to say how many frames came so far when reconnecting.
    cursor: bool,
    /// The connection was asked to begin behind a number.
    numbered: bool,
    reached: Reached,
    /// No frame has come yet, and the first ones may have been said into a connection that broke.
    from_nothing: bool,
    /// Frames wait until then for what tells whether they are new.
    settles: Option<Instant>,
    /// The log says that the connection is lost.
    lost: bool,
    over: CancellationToken,
}

/// Whether the server may have said something into a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Never,
    /// One was tried that the server may have taken for open.
    Perhaps,
    Opened,
}

/// How a connection ended.
enum Ended {
    /// The run is over.
    Over,
    /// It cannot be continued from where it was; where the final result is said to be.
    Desynced(Option<Text>),
    /// Against our will.
    Lost(Incoming),
}

impl CloudRun<'_> {
    async fn carry(mut self, port: &mut RunPort) -> Result<(), LinkError> {
        let carried = self.attend(port).await;
        let _ = self.settle(port);
        carried
    }

    /// Follows the run over as many connections as it takes.
    async fn attend(&mut self, port: &mut RunPort) -> Result<(), LinkError> {
        loop {
            let why = match self.connect().await {
                Ok(socket) => {
                    if std::mem::take(&mut self.lost) {
                        port.link_back();
                    }
                    let since = Instant::now();
                    match self.follow(socket, port).await {
                        Ended::Over => return Ok(()),
                        Ended::Desynced(_) if self.numbered => {
                            // Its numbers are not ours (§3.3); without one, servers that know them begin at the beginning.
                            tracing::info!(upstream = self.server.name(), session = %self.session, "the count of frames is no cursor here");
                            self.cursor = false;
                            continue;
                        }
                        Ended::Desynced(url) => return self.final_result(port, url.as_deref()).await,
                        Ended::Lost(incoming) => {
                            if !self.lineup.are_likely_older() {
                                let _ = self.settle(port);
                            }
                            if since.elapsed() > self.server.link.liveness() {
                                self.backoff.reset();
                            }
                            if incoming.is_normal_close() && self.fetch_result(port, None, Stream::Whole).await == Fetched::Delivered {
                                return Ok(());
                            }
                            incoming.to_string()
                        }
                    }
                }
                Err(error) => match error.status().map(|status| status.as_u16()) {
                    // §3.1: finalised; the reason is in the result, if anywhere.
                    Some(409) => return self.final_result(port, None).await,
                    Some(404) => return Err(self.gone(&error)),
                    status => {
                        self.token.refused |= status == Some(401);
                        if error.may_be_open() {
                            self.reached = self.reached.max(Reached::Perhaps);
                        }
                        error.to_string()
                    }
                },
            };
            if self.over.is_cancelled() {
                return self.farewell(port).await;
            }
            tracing::info!(upstream = self.server.name(), session = %self.session, %why, "connection lost");
            let Some(pause) = self.backoff.failed(chance()) else {
                return match self.fetch_result(port, None, Stream::Gone).await {
                    Fetched::Delivered => Ok(()),
                    Fetched::NotYet | Fetched::Never => Err(self.gone(&why)),
                };
            };
            if !std::mem::replace(&mut self.lost, true) {
                port.link_lost();
            }
            if !self.outbox.wait(pause, port).await {
                return self.farewell(port).await;
            }
            self.renew_token().await?;
        }
    }

    async fn connect(&mut self) -> Result<Socket, DialError> {
        if self.token.secret.is_empty() {
            return Err(match self.token.denied.take() {
                Some(refusal) => DialError::Refused(refusal),
                None => DialError::Failed("no session token could be had".to_owned()),
            });
        }
        let comes_back = self.reached > Reached::Never;
        let (behind, mut overlap) = if comes_back { self.lineup.cursor() } else { (0, Overlap::None) };
        // A connection that broke before its first frame: servers that stream live only, as the document has it, would leave out what was said
        // since. The first number is the least that can be asked from.
        let behind = behind.max(u64::from(comes_back));
        let count = behind.to_string();
        let mut query = vec![("session_token", self.token.secret.expose())];
        self.numbered = self.cursor && behind > 0;
        if self.numbered {
            // The n-th frame of a session that is not like any before has at least the number n wherever frames are numbered: nothing is
            // skipped.
            query.push(("since_seq", &count));
        }
        let path = format!("/v1/agent/sessions/{}/stream", escaped(&self.session));
        let uri = self.server.origin.websocket(&path, &query).map_err(|error| DialError::Failed(error.to_string()))?;
        let socket = self.server.dialer.dial(uri, Credential::InQuery(&self.token.secret)).await?;
        if comes_back {
            if !self.numbered && overlap != Overlap::None {
                // Whoever has a replay without a number begins at the beginning.
                overlap = Overlap::Asked;
            }
            self.lineup.rejoin(overlap);
            // What waits since the connection before this one does so again.
            self.settles = None;
            if self.lineup.waits() {
                self.wait_for_repeats();
            }
            self.from_nothing = self.lineup.count() == 0 && (self.numbered || !self.server.link.cursor);
            if self.from_nothing {
                self.lineup.doubt();
            }
            self.outbox.reconnected(Instant::now());
        }
        self.reached = Reached::Opened;
        Ok(socket)
    }

    /// Carries frames and commands until the connection or the run ends.
    async fn follow(&mut self, mut socket: Socket, port: &mut RunPort) -> Ended {
        let over = self.over.clone();
        loop {
            if let Err(why) = socket.send(&mut self.outbox).await {
                return Ended::Lost(Incoming::Broken(why));
            }
            let incoming = tokio::select! {
                biased;
                () = over.cancelled() => {
                    // Ended by ourselves: the server may not know yet.
                    self.outbox.stop();
                    return self.end(Ended::Over, socket, port).await;
                }
                command = port.command() => {
                    self.outbox.take(command);
                    self.outbox.take_all(port);
                    continue;
                }
                incoming = socket.receive() => incoming,
                () = sleep_until(self.settles), if self.settles.is_some() => {
                    if self.settle(port) == Flow::Over {
                        return self.end(Ended::Over, socket, port).await;
                    }
                    continue;
                }
            };
            if let Some(end) = self.take(incoming, port) {
                return self.end(end, socket, port).await;
            }
            // What came with it.
            for _ in 0..BATCH {
                let Some(incoming) = socket.received() else { break };
                if let Some(end) = self.take(incoming, port) {
                    return self.end(end, socket, port).await;
                }
            }
        }
    }

    /// Takes what came in; what comes out ends the connection.
    fn take(&mut self, incoming: Incoming, port: &RunPort) -> Option<Ended> {
        let text = match incoming {
            Incoming::Frame(text) => text,
            end => return Some(Ended::Lost(end)),
        };
        if let Some(url) = desynced(&text) {
            return Some(Ended::Desynced(url));
        }
        if self.outbox.answered(&text) {
            // Counted like any frame of the session's, and nobody else's (decision 28).
            self.lineup.see(&text, true);
            return None;
        }
        match self.lineup.admit(&text, true) {
            Admitted::New => {
                if std::mem::take(&mut self.from_nothing) {
                    // Nothing on the wire tells whether there was something before it (§3.3).
                    self.missed(port, "its stream goes on without a replay");
                }
                if port.deliver(text) == Flow::Over {
                    return Some(Ended::Over);
                }
                self.backoff.reset();
                None
            }
            Admitted::Repeat => None,
            Admitted::Waits => {
                self.wait_for_repeats();
                None
            }
            Admitted::Settles(settled) => (self.show(settled, port) == Flow::Over).then_some(Ended::Over),
        }
    }

    fn wait_for_repeats(&mut self) {
        let wait = self.server.link.replay_wait(self.lineup.are_likely_older());
        self.settles.get_or_insert_with(|| Instant::now() + wait);
    }

    /// What waited is new.
    fn settle(&mut self, port: &RunPort) -> Flow {
        let settled = self.lineup.settle();
        self.show(settled, port)
    }

    fn show(&mut self, settled: Settled, port: &RunPort) -> Flow {
        if !self.lineup.waits() {
            self.settles = None;
        }
        if settled.missed {
            self.missed(port, "its stream goes on without a replay");
        }
        for frame in settled.fresh {
            if port.deliver(frame) == Flow::Over {
                return Flow::Over;
            }
            self.backoff.reset();
        }
        Flow::Go
    }

    /// Ends a connection: if the run is over, what is left is sent, and the socket closed.
    async fn end(&mut self, end: Ended, mut socket: Socket, port: &mut RunPort) -> Ended {
        if matches!(end, Ended::Over) {
            self.outbox.take_all(port);
            if socket.send(&mut self.outbox).await.is_ok() {
                self.leave(socket, port).await;
            }
        }
        end
    }

    /// Stays a moment for what the server still says, which is counted, and closes: the server never does (§3.2).
    async fn leave(&mut self, mut socket: Socket, port: &RunPort) {
        let linger = tokio::time::sleep(self.server.link.linger());
        tokio::pin!(linger);
        loop {
            tokio::select! {
                biased;
                () = &mut linger => break,
                incoming = socket.receive() => match incoming {
                    Incoming::Frame(text) if self.lineup.admit(&text, true) == Admitted::New => {
                        let _ = port.deliver(text);
                    }
                    Incoming::Frame(_) => {}
                    Incoming::Closed { .. } | Incoming::Broken(_) => return,
                },
            }
        }
        socket.close().await;
    }

    /// The run was ended while there was no connection. The server is told, since its agent would work on unseen: tried as often as any
    /// connection.
    async fn farewell(&mut self, port: &mut RunPort) -> Result<(), LinkError> {
        self.outbox.take_all(port);
        self.outbox.stop();
        // Not that of the run, which never gives up on a device that is away.
        let mut backoff = Backoff::new(&self.server.link);
        loop {
            match self.connect().await {
                Ok(mut socket) => {
                    if socket.send(&mut self.outbox).await.is_ok() {
                        socket.close().await;
                        return Ok(());
                    }
                }
                Err(error) => match error.status().map(|status| status.as_u16()) {
                    // It is over there, too.
                    Some(404 | 409) => return Ok(()),
                    status => self.token.refused |= status == Some(401),
                },
            }
            let Some(pause) = backoff.failed(chance()) else { return Ok(()) };
            tokio::time::sleep(pause).await;
            if self.renew_token().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Renews the token if it was refused, is about to expire, or might be why nothing works.
    async fn renew_token(&mut self) -> Result<(), LinkError> {
        let soon = self.token.left() < Duration::from_millis(self.server.link.token_refresh_ms);
        if !self.token.refused && !soon && self.backoff.failures() <= FAILURES_BEFORE_RENEWAL {
            return Ok(());
        }
        let path = format!("/v1/agent/sessions/{}/refresh-token", escaped(&self.session));
        let reply = match self.server.post(&path, self.credential.as_ref(), None::<&()>).await {
            Ok(reply) => reply,
            // The stream will not be reachable either; that is what the attempts are counted by.
            Err(error) => {
                tracing::debug!(upstream = self.server.name(), %error, "the session token could not be renewed");
                return Ok(());
            }
        };
        if reply.status.is_success() {
            if let Ok(renewed) = serde_json::from_slice::<Renewed>(&reply.body) {
                self.token.secret = Secret::new(renewed.session_token);
                self.token.since = Instant::now();
                self.token.denied = None;
                self.token.refused = false;
            }
            return Ok(());
        }
        let refusal = Refusal::of(&reply, self.credential.as_ref());
        if matches!(reply.status.as_u16(), 401 | 403) {
            return Err(refusal.into_error(self.server.name(), "to renew the session token"));
        }
        tracing::debug!(upstream = self.server.name(), %refusal, "the session token was not renewed");
        self.token.denied = Some(refusal);
        Ok(())
    }

    /// The stream is no more: the run ends with its final result, or without an end.
    async fn final_result(&mut self, port: &mut RunPort, url: Option<&str>) -> Result<(), LinkError> {
        loop {
            match self.fetch_result(port, url, Stream::Gone).await {
                Fetched::Delivered => return Ok(()),
                Fetched::Never => return Err(self.gone(&"its stream is over, and it has no result to fetch")),
                // It goes on where nobody can see it: what it comes to is worth some waiting.
                Fetched::NotYet => match self.backoff.failed(chance()) {
                    Some(pause) if self.outbox.wait(pause, port).await => {}
                    Some(_) => return Ok(()),
                    None => return Err(self.gone(&"its stream cannot be continued, and no result came")),
                },
            }
        }
    }

    /// Fetches the final result, first from where the server said it is.
    async fn fetch_result(&mut self, port: &RunPort, url: Option<&str>, stream: Stream) -> Fetched {
        if !self.server.link.result_fetch {
            return Fetched::Never;
        }
        // Nothing more comes that could tell.
        let _ = self.settle(port);
        let usual = self.server.origin.http(&format!("/v1/agent/sessions/{}/result", escaped(&self.session))).ok();
        let told = url.and_then(|url| self.server.origin.resolve(url)).filter(|told| usual.as_ref() != Some(told));
        let mut fetched = Fetched::Never;
        for uri in told.into_iter().chain(usual) {
            match self.server.get(uri, self.credential.as_ref()).await {
                Ok(reply) if reply.status.is_success() => {
                    if let Some(frame) = result_frame(&reply.body) {
                        if stream == Stream::Gone {
                            self.missed(port, "only its result was to be had");
                        }
                        // Whether it ends the run is the reader's to say; nothing more will come in any case.
                        let _ = port.deliver(frame);
                        return Fetched::Delivered;
                    }
                }
                Ok(reply) if Refusal::of(&reply, None).code == "result_not_ready" => fetched = Fetched::NotYet,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(upstream = self.server.name(), %error, "the final result could not be fetched");
                    fetched = Fetched::NotYet;
                }
            }
        }
        fetched
    }

    /// Says that something may be missing.
    fn missed(&self, port: &RunPort, why: &str) {
        tracing::warn!(upstream = self.server.name(), session = %self.session, why, "messages of a run may be missing");
        port.missed(Text::from(format!(
            "the connection to upstream {} was lost, and what was said meanwhile may be missing: {why}",
            self.server.name()
        )));
    }

    fn gone(&self, why: &dyn std::fmt::Display) -> LinkError {
        let name = self.server.name();
        if self.reached == Reached::Opened {
            return LinkError::Gone(format!("upstream {name}: {why}"));
        }
        let message = format!("upstream {name} accepted the run, and its stream could not be opened: {why}; try again");
        LinkError::Refused { kind: FailureKind::EngineNotReady, message }
    }
}

/// What is known of the frames before a result that is fetched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// The server ended their stream in good order.
    Whole,
    /// It had no stream of them any more.
    Gone,
}

/// What became of fetching a result.
#[derive(PartialEq, Eq)]
enum Fetched {
    Delivered,
    NotYet,
    Never,
}

/// The `result` frame in a reply: the reply itself (decision 29), or a member of it.
fn result_frame(body: &[u8]) -> Option<Text> {
    #[derive(Deserialize)]
    struct Wrapped<'a> {
        #[serde(borrow)]
        result: &'a RawValue,
    }
    let is_result = |text: &str| {
        let text = Text::from(text);
        Frame::parse(&text).is_ok_and(|frame| frame.object().cow("type").as_deref() == Some("result"))
    };
    let text = std::str::from_utf8(body).ok()?.trim();
    let found = if is_result(text) { text } else { serde_json::from_str::<Wrapped<'_>>(text).ok()?.result.get() };
    // On one line, as frames are.
    is_result(found).then(|| Json::parse(found).ok().map(|json| json.text())).flatten()
}

/// Where the final result is said to be, if the frame is the notice that the stream cannot be continued (§3.3).
fn desynced(text: &Text) -> Option<Option<Text>> {
    // Nearly all frames begin like this, and none of them is one.
    if text.starts_with("{\"type\":\"st") || text.len() > LARGEST_NOTICE || !text.contains("session_desynced") {
        return None;
    }
    match Frame::parse(text) {
        Ok(Frame::Lifecycle(Lifecycle::SessionDesynced(notice))) => Some(notice.final_result_url()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use interline_model::{CellName, Principal, SessionId};

    use super::*;

    fn seed(principal: &str, cell: &str, session: &str) -> SessionSeed {
        SessionSeed { session: SessionId::from(session), principal: Principal::from(principal), cell: CellName::from(cell) }
    }

    #[test]
    fn a_thread_is_the_sessions_alone_and_stays() {
        let one = thread(&seed("a", "c", "s"));
        assert_eq!(one, thread(&seed("a", "c", "s")));
        assert_eq!(one.get_version_num(), 5);
        for other in [seed("b", "c", "s"), seed("a", "d", "s"), seed("a", "c", "t"), seed("ac", "", "s"), seed("a", "c1:", "s")] {
            assert_ne!(one, thread(&other), "{other:?}");
        }
        assert_eq!(one.to_string(), "5455d336-a5e7-59f0-9260-ac330a7b5612");
    }

    #[test]
    fn a_desync_is_told_from_text_about_one() {
        let notice = Text::from_static(
            r#"{"final_result_url":"/v1/agent/sessions/1/result","reason":"x","session_id":"1","since_seq":5,"type":"biumind.session_desynced"}"#,
        );
        assert_eq!(desynced(&notice).flatten().as_deref(), Some("/v1/agent/sessions/1/result"));
        assert_eq!(desynced(&Text::from_static(r#"{"type":"biumind.session_desynced","session_id":"1"}"#)), Some(None));
        for text in [
            r#"{"type":"streamlined_text","text":"biumind.session_desynced"}"#,
            r#"{"text":"session_desynced","type":"streamlined_text"}"#,
            "session_desynced",
            "null",
            "",
        ] {
            assert_eq!(desynced(&Text::from(text)), None, "{text}");
        }
    }

    #[test]
    fn a_result_is_the_reply_or_a_member_of_it() {
        let plain = r#"{"type":"result","is_error":false,"n":12345678901234567890123}"#;
        assert_eq!(result_frame(plain.as_bytes()).as_deref(), Some(plain));
        assert_eq!(result_frame(format!(" {{\"session_id\":\"1\",\"result\":{plain}}}\n").as_bytes()).as_deref(), Some(plain));
        assert_eq!(result_frame(b"{\n\"type\": \"result\"\n}").as_deref(), Some(r#"{"type": "result"}"#));
        for none in ["", "null", "{}", r#"{"type":"error"}"#, r#"{"result":"done"}"#, "<html>"] {
            assert_eq!(result_frame(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn a_token_lives_as_long_as_the_server_says() {
        let created = |text: &str| Token::new(&serde_json::from_str(text).unwrap()).lifetime.as_secs();
        let body = |rest: &str| format!(r#"{{"session_id":"1","session_token":"t"{rest}}}"#);
        assert_eq!(created(&body(r#","created_at":1000,"expires_at":61000"#)), 60);
        assert_eq!(created(&body(r#","created_at":"1000","expires_at":"61000""#)), 60);
        assert_eq!(created(&body(r#","expires_at":61000"#)), 1800);
        assert_eq!(created(&body(r#","created_at":5,"expires_at":1"#)), 1800);
    }
}
