//! The desk of one socket: handles what it received, one packet after another, and answers every one.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use interline_hub::{
    Access, Action, Denied, Environment, InTurn, Leave, NotBegun, Projection, RunStatus, Session, Settings, StartRun, Started, Stopped,
    Visit, draw_run,
};
use interline_model::{Actor, Ask, RunId, SessionId, Text};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::beginning::intent_of;
use crate::command::{Command, Message, RawFrom, Unread, read};
use crate::inbox::{Inbox, Packet};
use crate::outlet::{Gone, Held, Outlet};
use crate::refusal::Refusal;
use crate::shell::{SURFACE, Shell};
use crate::subscription::{Beginning, follow};
use crate::{Chosen, SocketWriter, answer, answer_in_words};

/// How long an acknowledgement waits for the turn that it confirms.
const TURN_FIRST: Duration = Duration::from_secs(1);

/// How long a socket that has to go may take for what it is still owed.
const LAST_TURN: Duration = Duration::from_secs(5);

/// A subscription of this socket.
pub(crate) struct Subscribed {
    stop: CancellationToken,
    raw: bool,
    /// Up to which item of the session the socket has been told.
    told: watch::Receiver<u64>,
}

/// One socket's side of everything.
pub(crate) struct Desk {
    pub(crate) shell: Arc<Shell>,
    pub(crate) inbox: Inbox,
    pub(crate) outlet: Arc<Outlet>,
    pub(crate) subscriptions: HashMap<SessionId, Subscribed>,
}

impl Desk {
    /// Works until the socket is gone, or has to go.
    pub(crate) async fn work(mut self, mut packets: mpsc::UnboundedReceiver<Packet>, mut visit: Visit) {
        let gone = self.outlet.gone().clone();
        let _ends_all = gone.clone().drop_guard();
        let mut last_run: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        loop {
            let packet = tokio::select! {
                biased;
                () = gone.cancelled() => return,
                leave = visit.leave() => match leave {
                    Leave::WhenDone => {
                        last_run = Some(Box::pin(self.shown_to_the_end()));
                        continue;
                    }
                    Leave::Now(denied) => return self.dismiss(denied).await,
                },
                () = async { if let Some(last) = &mut last_run { last.await } else { std::future::pending().await } } => {
                    return self.dismiss(Denied::Expired).await;
                }
                packet = packets.recv() => packet,
            };
            let Some(packet) = packet else { return };
            self.inbox.taken(&packet);
            if self.handle(packet).await.is_err() {
                return;
            }
        }
    }

    /// Waits until no run goes on in any session of this socket, and its end was told.
    fn shown_to_the_end(&self) -> impl Future<Output = ()> + Send + 'static {
        let shell = self.shell.clone();
        let followed: Vec<_> = self
            .subscriptions
            .iter()
            .filter_map(|(id, subscribed)| Some((self.session(id).ok()?, subscribed.raw, subscribed.told.clone())))
            .collect();
        async move {
            for (session, raw, mut told) in followed {
                session.rest().await;
                let end = if raw {
                    shell.raw_projection(&session).with(|_, position| position)
                } else {
                    shell.projection(&session).with(|_, position| position)
                };
                // A socket that takes nothing is not waited for.
                let _ = tokio::time::timeout(LAST_TURN, told.wait_for(|told| *told >= end)).await;
            }
        }
    }

    /// The client would not be let in any more: it is told why, and the socket ends.
    async fn dismiss(self, denied: Denied) {
        for subscribed in self.subscriptions.values() {
            subscribed.stop.cancel();
        }
        let told = async { self.outlet.hold().await.value("system:error", &Refusal::Denied(denied).event(None)).await };
        let _ = tokio::time::timeout(LAST_TURN, told).await;
        self.outlet.close().await;
    }

    async fn handle(&mut self, packet: Packet) -> Result<(), Gone> {
        let ack = packet.ack;
        // Whoever was let in once is not let in for ever (cases.md F4).
        let hub = &self.shell.hub;
        if let Err(denied) = hub.readmit(SURFACE, self.access()).and_then(|()| hub.count(self.access())) {
            return self.refuse(ack, None, &Refusal::Denied(denied)).await;
        }
        let command = match packet.content.map_err(|refusal| Unread { refusal, session: None }).and_then(|text| read(&text)) {
            Ok(command) => command,
            Err(Unread { refusal: Refusal::UnsupportedEvent, .. }) => {
                // socketio.md §2.6: answered for whoever waits, else ignored.
                return self.outlet.hold().await.ack(ack, &Refusal::UnsupportedEvent.ack()).await;
            }
            Err(Unread { refusal, session }) => return self.refuse(ack, session.as_ref(), &refusal).await,
        };
        let (session, done) = match command {
            Command::Subscribe(wanted) => (wanted.session.clone(), self.subscribe(ack, &wanted.session, wanted.raw).await),
            Command::Unsubscribe(id) => (id.clone(), self.unsubscribe(ack, &id).await),
            Command::Stop { session, run } => (session.clone(), self.stop(ack, &session, run.as_deref()).await),
            Command::Compact(id) => (id.clone(), self.compact(ack, &id)),
            Command::Send(message) => (message.session.clone(), self.send(ack, message).await),
        };
        match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(gone)) => Err(gone),
            Err(refusal) => self.refuse(ack, Some(&session), &refusal).await,
        }
    }

    /// An error acknowledgement and `system:error`, to this socket alone.
    async fn refuse(&self, ack: Option<i64>, session: Option<&SessionId>, refusal: &Refusal) -> Result<(), Gone> {
        refused(&mut self.outlet.hold().await, ack, session, refusal).await
    }

    fn access(&self) -> &Access {
        self.inbox.access()
    }

    fn actor(&self) -> Actor {
        Actor { principal: self.access().principal().clone(), surface: Text::from_static(SURFACE) }
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, Refusal> {
        self.shell.hub.session(self.access(), id).ok_or(Refusal::AccessDenied)
    }

    async fn subscribe(&mut self, ack: Option<i64>, id: &SessionId, raw: Option<RawFrom>) -> Result<Result<(), Gone>, Refusal> {
        let session = self.session(id)?;
        let beginning = match raw {
            Some(from) => self.raw_beginning(&session, from)?,
            None => self.beginning(&session)?,
        };
        // A socket gets one family of events: raw ones take the place of turns (socketio.md §6.1).
        if beginning.is_some()
            && let Some(before) = self.subscriptions.remove(id)
        {
            before.stop.cancel();
        }
        let told = self.outlet.hold().await.ack(ack, &json!({"status": "ok", "ok": true, "session_id": id.as_str()})).await;
        self.begin(id, beginning);
        Ok(told)
    }

    /// Where a new subscription would begin; `None` if there is one already, which then sends no second snapshot.
    fn beginning(&self, session: &Session) -> Result<Option<Beginning>, Refusal> {
        if self.subscriptions.contains_key(session.id()) {
            return Ok(None);
        }
        let limit = self.shell.config.max_subscriptions;
        if self.subscriptions.len() >= limit {
            return Err(Refusal::TooManySubscriptions(limit));
        }
        Ok(Some(Beginning::now(&self.shell.projection(session))))
    }

    /// The same for raw events, which a subscription to turns makes room for.
    fn raw_beginning(&self, session: &Session, from: RawFrom) -> Result<Option<Beginning>, Refusal> {
        match self.subscriptions.get(session.id()) {
            Some(subscribed) if subscribed.raw => return Ok(None),
            None if self.subscriptions.len() >= self.shell.config.max_subscriptions => {
                return Err(Refusal::TooManySubscriptions(self.shell.config.max_subscriptions));
            }
            _ => {}
        }
        let pause = Duration::from_millis(self.shell.config.raw_batch_ms);
        Ok(Some(Beginning::raw(session.id().clone(), &self.shell.raw_projection(session), from, pause)))
    }

    fn begin(&mut self, id: &SessionId, beginning: Option<Beginning>) {
        let Some(beginning) = beginning else { return };
        let stop = CancellationToken::new();
        let (telling, told) = watch::channel(0);
        self.subscriptions.insert(id.clone(), Subscribed { stop: stop.clone(), raw: beginning.is_raw(), told });
        let counted = self.shell.telemetry.subscription();
        let following = follow(beginning, self.outlet.clone(), telling, stop, self.shell.hub.closing().clone());
        self.shell.tasks.spawn(async move {
            following.await;
            drop(counted);
        });
    }

    async fn unsubscribe(&mut self, ack: Option<i64>, id: &SessionId) -> Result<Result<(), Gone>, Refusal> {
        if let Some(subscribed) = self.subscriptions.remove(id) {
            subscribed.stop.cancel();
        }
        Ok(self.outlet.hold().await.ack(ack, &json!({"status": "ok", "ok": true, "session_id": id.as_str()})).await)
    }

    async fn stop(&mut self, ack: Option<i64>, id: &SessionId, run: Option<&str>) -> Result<Result<(), Gone>, Refusal> {
        let session = self.session(id)?;
        let wanted = match run.map(str::parse::<RunId>) {
            Some(Ok(run)) => Some(run),
            // It names no run of ours, so that run does not go on.
            Some(Err(_)) => return Ok(self.outlet.hold().await.ack(ack, &stop_ack(id, "idle", None)).await),
            None => None,
        };
        // The acknowledgement is written first, and nothing the stop causes can come before it.
        let mut held = self.outlet.hold().await;
        // Without a run's id, what waits for its turn is given up too: who stops a session does not mean to start the next message.
        let (status, run) = match session.stop(wanted, self.actor()) {
            // It waited, and never begins.
            Stopped::Stopping(run) if session.run_info(run).is_none() => ("interrupted", Some(run)),
            Stopped::Stopping(run) => ("stopping", Some(run)),
            Stopped::Ended(run, RunStatus::Interrupted) => ("interrupted", Some(run)),
            Stopped::Ended(run, _) => ("done", Some(run)),
            Stopped::Idle => ("idle", None),
        };
        Ok(held.ack(ack, &stop_ack(id, status, run)).await)
    }

    /// Answered once it is done, which takes a model call: meanwhile other packets are handled.
    fn compact(&self, ack: Option<i64>, id: &SessionId) -> Result<Result<(), Gone>, Refusal> {
        let session = self.session(id)?;
        if session.active_run().is_some() {
            return Err(Refusal::Busy);
        }
        let (outlet, id, credential) = (self.outlet.clone(), id.clone(), self.access().credential().clone());
        let (shell, told) =
            (self.shell.clone(), self.subscriptions.get(&id).filter(|subscribed| !subscribed.raw).map(|to| to.told.clone()));
        self.shell.tasks.spawn(async move {
            let done = session.act(Action::Compact, credential).await;
            if let (Ok(_), Some(mut told)) = (&done, told) {
                // Its turn comes first (socketio.md §4.6), as long as the socket takes anything.
                let turn = shell.projection(&session).with(|_, position| position);
                let _ = tokio::time::timeout(TURN_FIRST, told.wait_for(|told| *told >= turn)).await;
            }
            let mut held = outlet.hold().await;
            match done.map_err(Refusal::from) {
                Ok(_) => held.ack(ack, &json!({"status": "ok", "ok": true, "session_id": id.as_str()})).await,
                Err(refusal) => refused(&mut held, ack, Some(&id), &refusal).await,
            }
        });
        Ok(Ok(()))
    }

    async fn send(&mut self, ack: Option<i64>, message: Message) -> Result<Result<(), Gone>, Refusal> {
        let session = self.session(&message.session)?;
        if let Some(given) = &message.answer {
            let projection = self.shell.projection(&session);
            return self.answer(ack, &session, &projection, given, &message.text()).await;
        }
        // The session says what waits, and not what this socket was shown: nothing waits any more once the run was told to stop. One of which
        // nothing shows that the agent took its answer waits for another one, behind those that have none.
        let mut pending = session.pending_asks();
        pending.sort_by_key(|pending| pending.unconfirmed);
        match pending.into_iter().next() {
            Some(pending) => {
                let words = answer_in_words(&pending.ask, &message.text());
                self.give(ack, &session, &pending.ask, words).await.map_err(|refusal| match refusal {
                    // The run was told to stop in between: this was no answer, but a message too early.
                    Refusal::Void => Refusal::Busy,
                    other => other,
                })
            }
            None => self.start(ack, &session, message).await,
        }
    }

    async fn start(&mut self, ack: Option<i64>, session: &Arc<Session>, message: Message) -> Result<Result<(), Gone>, Refusal> {
        if message.input.is_empty() {
            return Err(Refusal::Incomplete);
        }
        let beginning = self.beginning(session)?;
        // Held from before the run exists until it is acknowledged: the acknowledgement comes before its first event (cases.md E6).
        let mut held = self.outlet.hold().await;
        let first = session.info().title.is_empty() && session.runs().is_empty();
        let title = if first { intent_of(&message.input) } else { Text::new() };
        let chosen = session.info().labels.get("model").and_then(Value::as_str).map(|model| Text::from(model.to_owned()));
        let shown = self.shell.projection(session).with(|writer, _| writer.mode());
        let (mode_before, permission_mode, environment) = self.shell.notes.with(session, |note| {
            // Both together have to keep to the bounds that each of them keeps to.
            let Environment(mut variables) = note.environment.clone();
            variables.extend(message.environment.0);
            Environment::checked(variables).map(|environment| (note.mode, note.begin_in(message.mode, shown), environment))
        })?;
        let run = draw_run();
        let request = StartRun {
            surface: Text::from_static(SURFACE),
            session: Some(session.id().clone()),
            model: message.model.or(chosen),
            input: message.input,
            settings: Settings { permission_mode, environment, ..Settings::default() },
            headless: message.headless,
            output_schema: message.output_schema,
            run: Some(run),
            is_acknowledged: true,
            ..StartRun::default()
        };
        let started = self.shell.hub.start_in_turn(self.access(), request).inspect_err(|_| {
            // Nobody was told.
            self.shell.notes.with(session, |note| note.mode = mode_before);
        })?;
        let told = held.ack(ack, &sent_ack(session.id(), Some(run))).await;
        drop(held);
        if let Started::InTurn(waiting) = started {
            self.wait_for_turn(waiting);
        }
        if !title.is_empty() {
            session.set_title(title);
        }
        // A socket that lost its subscription with its connection shows its first sign of life here (socketio.md §1.5).
        let id = session.id().clone();
        self.begin(&id, beginning);
        Ok(told)
    }

    /// A run that was acknowledged waits for the one before it. If it never begins, that is said.
    fn wait_for_turn(&self, waiting: Arc<InTurn>) {
        let outlet = self.outlet.clone();
        self.shell.tasks.spawn(async move {
            let (session, run) = (&waiting.session, waiting.run);
            let _ = match waiting.begun().await {
                // One that is left begins in the next process.
                Ok(_) | Err(NotBegun::Left) => Ok(()),
                Err(NotBegun::Refused(error)) => {
                    let mut event = Refusal::from(error).event(Some(session.id()));
                    event["chat_run_id"] = Value::from(run.to_string());
                    outlet.hold().await.value("system:error", &event).await
                }
                // It was stopped before it began, and the client has its id: it ends like any other.
                Err(NotBegun::Stopped) => {
                    let end = json!({
                        "session_id": session.id().as_str(), "status": "interrupted", "result": null, "finish_reason": null,
                        "chat_run_id": run.to_string(),
                    });
                    outlet.hold().await.value("chat:end", &end).await
                }
            };
        });
    }

    async fn answer(
        &mut self,
        ack: Option<i64>,
        session: &Arc<Session>,
        projection: &Projection<SocketWriter>,
        given: &Map<String, Value>,
        message: &str,
    ) -> Result<Result<(), Gone>, Refusal> {
        let named = given.get("tool_call_id").or_else(|| given.get("prompt_id")).and_then(Value::as_str);
        let (found, settled) = projection.with(|writer, _| match named {
            Some(call) => (writer.question_in(call), writer.settled_ask(call).cloned()),
            None => (writer.only_question(), None),
        });
        let ask = match (found, settled) {
            (Some(pending), _) => Arc::new(pending.ask),
            // Too late; the session knows who was first. Or not, where nothing shows that the agent took that answer.
            (None, Some(id)) => session.ask(&id).ok_or(Refusal::NotPending)?,
            (None, None) => return Err(Refusal::NotPending),
        };
        let answer = answer(&ask, &Chosen::read(given), message)?;
        self.give(ack, session, &ask, answer).await
    }

    /// Gives an answer to the session: the first one wins.
    async fn give(
        &mut self,
        ack: Option<i64>,
        session: &Arc<Session>,
        ask: &Ask,
        answer: interline_model::Answer,
    ) -> Result<Result<(), Gone>, Refusal> {
        let beginning = self.beginning(session)?;
        let mut held = self.outlet.hold().await;
        session.answer(&ask.id, answer, self.actor())?;
        let told = held.ack(ack, &sent_ack(session.id(), session.active_run())).await;
        drop(held);
        let id = session.id().clone();
        self.begin(&id, beginning);
        Ok(told)
    }
}

async fn refused(held: &mut Held<'_>, ack: Option<i64>, session: Option<&SessionId>, refusal: &Refusal) -> Result<(), Gone> {
    held.ack(ack, &refusal.ack()).await?;
    held.value("system:error", &refusal.event(session)).await
}

fn stop_ack(session: &SessionId, status: &str, run: Option<RunId>) -> Value {
    let mut ack = json!({"status": status, "ok": true, "session_id": session.as_str()});
    if let (Some(run), Some(ack)) = (run, ack.as_object_mut()) {
        ack.insert("chat_run_id".to_owned(), Value::from(run.to_string()));
    }
    ack
}

fn sent_ack(session: &SessionId, run: Option<RunId>) -> Value {
    json!({"status": "ok", "ok": true, "chat_run_id": run.map(|run| run.to_string()), "session_id": session.as_str()})
}
