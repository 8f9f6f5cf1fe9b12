//! A session: its log, what it means so far, and the projections that are made of it. One lock orders everything that happens to it.

mod commands;
mod deadlines;
mod info;
mod keeping;
mod recall;
mod serving;

use std::any::TypeId;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use interline_journal::{Birth, Log, Mark, StoredRun, Unstored};
use interline_model::{
    Body, CellName, Event, ExplainReader, ExplainWriter, Fact, FailureKind, ForcedEnd, Json, Millis, NoticeLevel, Outcome, Principal,
    Reader, Record, RunAccepted, RunId, SessionId, Text, What, Writer,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::asks::Asks;
use crate::conduct::Conduct;
use crate::explaining::Explaining;
use crate::numbering::Numberings;
use crate::policy::Decided;
use crate::projection::{Feed, Projection, Source};
use crate::queue::{Place, Queue, Wish};
use crate::telemetry::Telemetry;
use crate::upstream::{Command, Flow, Link, LinkError, RunPort, Upstream};
use crate::warmth::Warmth;
use crate::watchers::Watchers;
use crate::{AskConfig, RunConfig};
use serving::Serving;

pub use commands::{AnswerError, Stopped};
pub use info::{RunInfo, RunStatus, SessionInfo};
use keeping::{Forgotten, Kept};
pub(crate) use keeping::{Freed, append_patiently};
use recall::Recalled;
pub(crate) use recall::Unfinished;

/// One conversation.
pub struct Session {
    me: Weak<Self>,
    id: SessionId,
    principal: Principal,
    birth: Birth,
    serving: Serving,
    log: Arc<dyn Log>,
    pub(crate) timers: Timers,
    telemetry: Arc<Telemetry>,
    warmth: Arc<Warmth>,
    numbering: Numberings,
    /// Runs of the owner that go on, over all sessions.
    active: Arc<AtomicUsize>,
    /// Rings when a deadline came nearer.
    pub(crate) alarm: Notify,
    watchers: Watchers,
    queue: Queue,
    /// Whether a run goes on: what waits for its end looks here.
    busy: watch::Sender<bool>,
    state: Mutex<State>,
}

/// What a session is made of.
pub(crate) struct Parts {
    pub(crate) id: SessionId,
    pub(crate) principal: Principal,
    pub(crate) birth: Birth,
    pub(crate) upstream: Arc<dyn Upstream>,
    pub(crate) conduct: Conduct,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) log: Arc<dyn Log>,
    /// The runs that its log has already.
    pub(crate) stored: Vec<StoredRun>,
    pub(crate) timers: Timers,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) warmth: Arc<Warmth>,
    pub(crate) active: Arc<AtomicUsize>,
    pub(crate) numbering: Numberings,
}

/// The two sections of the config that a session obeys.
#[derive(Clone)]
pub(crate) struct Timers {
    pub(crate) run: RunConfig,
    pub(crate) ask: AskConfig,
}

struct State {
    /// The log is another process's, and has not been read yet.
    is_unread: bool,
    /// The reader of the run that goes on.
    reader: Option<Box<dyn Reader>>,
    feeds: HashMap<(TypeId, String), Arc<dyn Feed>>,
    events: Vec<Event>,
    runs: Vec<Run>,
    /// Where each run lies in the log: known also while that is unread.
    kept: VecDeque<Kept>,
    /// Runs that are no longer kept.
    forgotten: Forgotten,
    asks: Asks,
    /// The upstream said that the session is paused.
    paused: bool,
    title: Option<Text>,
    model: Option<Text>,
    /// The model that the upstream was last told to use, where it is told during a run.
    told_model: Option<Text>,
    /// While the log is read: the handle that the upstream last took a run under, and the messages since.
    attached: Option<(Json, Vec<Text>)>,
    /// Up to which numbers what is no longer kept was counted.
    numbers: Option<Json>,
    /// Records that were shown and could not be stored; stored before the next one.
    owed: VecDeque<(Record, Mark)>,
    /// What the journal keeps beside the run that begins.
    tag: Option<Text>,
    recalled: Recalled,
    /// It is deleted or forgotten: no run begins in it any more.
    is_closed: bool,
    /// Some projection is cold.
    is_cold: bool,
    last_at: Millis,
}

struct Run {
    info: RunInfo,
    headless: bool,
    commands: mpsc::UnboundedSender<Command>,
    over: CancellationToken,
    stop_at: Option<Millis>,
    error_at: Option<Millis>,
    frame_at: Millis,
    /// What its frames came to, in bytes.
    bytes: usize,
    /// The upstream took it.
    is_attached: bool,
}

impl Session {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { id, principal, birth, upstream, conduct, link, log, stored, timers, telemetry, warmth, active, numbering } = parts;
        let serving = Serving::new(upstream, link, &conduct, &birth.cell);
        let kept: VecDeque<Kept> = stored.iter().map(Kept::from).collect();
        let state = State {
            is_unread: !kept.is_empty() || !log.is_empty(),
            reader: None,
            feeds: HashMap::new(),
            events: Vec::new(),
            runs: Vec::new(),
            last_at: kept.iter().map(Kept::last_at).max().unwrap_or(birth.created_at),
            kept,
            forgotten: Forgotten::default(),
            asks: Asks::default(),
            paused: false,
            title: birth.title.clone(),
            model: birth.model.clone(),
            told_model: None,
            attached: None,
            numbers: None,
            owed: VecDeque::new(),
            tag: None,
            recalled: Recalled::default(),
            is_closed: false,
            is_cold: false,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            id,
            principal,
            birth,
            serving,
            log,
            timers,
            telemetry,
            warmth,
            numbering,
            active,
            alarm: Notify::new(),
            watchers: Watchers::new(now()),
            queue: Queue::default(),
            busy: watch::Sender::new(false),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.locked();
        if std::mem::take(&mut state.is_unread) {
            self.recall(&mut state);
        }
        state
    }

    /// The state as it is, also when the log is unread.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its id, the same on every surface.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Its owner.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Its cell, for life.
    #[must_use]
    pub fn cell(&self) -> &CellName {
        &self.birth.cell
    }

    /// The title that it was created with; later ones are in its log.
    #[must_use]
    pub fn first_title(&self) -> Option<&Text> {
        self.birth.title.as_ref()
    }

    /// The session as one surface shows it. `key` tells apart projections of the same writer with different options; `make` makes a fresh
    /// writer, and one made later must write the same. The first caller has it built from the log; from then on it is fed live.
    pub fn projection<W: Writer>(&self, key: &str, make: impl Fn() -> W + Send + Sync + 'static) -> Arc<Projection<W>> {
        let key = (TypeId::of::<W>(), key.to_owned());
        let mut state = self.state();
        if let Some(projection) = state.projection(&key) {
            return projection;
        }
        let projection = Arc::new(Projection::new(make, self.me.clone() as Weak<dyn Source>, self.watchers.clone()));
        self.write(&mut state, &*projection);
        state.feeds.insert(key, projection.clone());
        drop(state);
        self.settle_warmth();
        projection
    }

    /// Explains a run as a fresh `writer` writes it: its items, each with the records that caused it and the rules by which they did.
    /// [`Explaining::more`] hands out what there is and goes on with what the log gains. `None` if the session has no such run.
    ///
    /// The items are, in the same order, those of a [`Session::projection`] whose writer was made in the same way. The whole session is read again
    /// for it, so this is for people who look for something and not for every client.
    pub fn explain<W: ExplainWriter>(self: &Arc<Self>, run: RunId, writer: W) -> Option<Explaining<W>> {
        self.run_info(run)?;
        Some(Explaining::new(self.clone(), run, writer))
    }

    /// The records from number `from` on. Nothing that a client can have seen is missing from them.
    pub(crate) fn records(&self, from: usize) -> Vec<Record> {
        let mut state = self.state();
        let mut records = Vec::new();
        // What is damaged is forgotten, and not explained.
        self.replay(&mut state, from, &mut |record| records.push(record.clone()));
        records
    }

    pub(crate) fn explainer(&self, run: RunId) -> Box<dyn ExplainReader> {
        self.serving.upstream_of(run).explainer()
    }

    /// What a record means, given the reader of the run so far.
    fn read(&self, reader: &mut Option<Box<dyn Reader>>, record: &Record, events: &mut Vec<Event>) {
        events.clear();
        if let Body::Fact(Fact::RunAccepted(accepted)) = &record.body {
            *reader = Some(self.serving.upstream_of(accepted.run).reader());
        }
        if let Some(reader) = reader {
            reader.read(record, events);
        }
    }

    /// Appends a record and lets everybody see what it means.
    fn append(&self, state: &mut State, body: Body) {
        if let Err(refused) = self.try_append(state, body) {
            self.not_stored(state, *refused);
        }
    }

    /// Appends a record and lets everybody see what it means, unless it has to be on the disk first and cannot be.
    fn try_append(&self, state: &mut State, body: Body) -> Result<(), Box<Refused>> {
        self.warm_feeds(state);
        // What is let go of is no sign of life.
        let is_sign = !matches!(body, Body::Fact(Fact::Shortened { .. }));
        let at = if is_sign { now().max(state.last_at) } else { state.last_at };
        state.last_at = at;
        let record = Record { at, body };
        if state.reader.is_none() && !state.runs.is_empty() && !matches!(record.body, Body::Fact(Fact::RunAccepted(_))) {
            self.reread(state);
        }
        let mut events = std::mem::take(&mut state.events);
        self.read(&mut state.reader, &record, &mut events);
        let mark = state.mark(&record, &events);
        let stored = self.store(state, &record, &mark);
        if stored.is_ok() {
            self.show(state, &record, &mark, &events);
        }
        state.events = events;
        stored.map_err(|error| Box::new(Refused { record, mark, error }))
    }

    /// Lets everybody see a record.
    fn show(&self, state: &mut State, record: &Record, mark: &Mark, events: &[Event]) {
        state.keep(record, mark, self.log.len());
        for event in events {
            self.note(state, record.at, event);
        }
        if matches!(mark, Mark::Ends)
            && let Some(run) = state.runs.last()
        {
            self.telemetry.run_ended(run.info.status);
            self.active.fetch_sub(1, Ordering::Relaxed);
            self.alarm.notify_one();
        }
        self.telemetry.events(events.len());
        for feed in state.feeds.values() {
            feed.feed(record, events);
        }
        if state.active().is_none()
            && let Some(run) = state.runs.last()
        {
            run.over.cancel();
            self.busy.send_replace(false);
            // It knows what the run said, every text of it; what little may still come has it made again.
            state.reader = None;
        }
    }

    /// Keeps what the hub itself must know of an event.
    fn note(&self, state: &mut State, at: Millis, event: &Event) {
        let State { runs, asks, title, model, paused, .. } = state;
        let Some(run) = runs.last_mut() else { return };
        match &event.what {
            What::TurnStarted => run.info.turns += 1,
            What::ToolStarted { .. } => run.info.steps += 1,
            What::AskRaised(ask) => {
                let deadline = ask.kind.deadline(at, self.timers.ask.permission_ms, self.timers.ask.form_ms);
                asks.raise((**ask).clone(), run.info.run, deadline);
                self.alarm.notify_one();
            }
            What::AskSettled { ask, outcome } => asks.settle(ask, *outcome, at),
            What::Notice { code, .. } if &**code == "recoverable_error" => {
                run.error_at = Some(at);
                self.alarm.notify_one();
            }
            What::SessionChanged { model: new_model, title: new_title, state, .. } => {
                match state.as_deref() {
                    Some("paused") => *paused = true,
                    Some(_) => *paused = false,
                    None => {}
                }
                if new_title.is_some() {
                    title.clone_from(new_title);
                }
                if new_model.is_some() {
                    model.clone_from(new_model);
                }
            }
            What::RunEnded(end) => {
                run.info.status = match end.outcome {
                    Outcome::Completed(_) => RunStatus::Completed,
                    Outcome::Interrupted { .. } => RunStatus::Interrupted,
                    Outcome::Failed { .. } => RunStatus::Failed,
                };
                run.info.ended_at = Some(at);
                run.info.usage = end.usage;
                asks.run_ended(at);
                *paused = false;
            }
            _ => {}
        }
    }

    /// Begins a run.
    ///
    /// # Errors
    /// When one goes on, its first record has to be on the disk and cannot be, or the session is gone.
    pub(crate) fn begin(self: &Arc<Self>, accepted: RunAccepted, tag: Option<Text>) -> Result<RunPort, NotBegun> {
        let mut state = self.state();
        if state.is_closed {
            return Err(NotBegun::Closed);
        }
        if let Some(run) = state.active() {
            return Err(NotBegun::Busy(run.info.run));
        }
        let run = accepted.run;
        let (before, model) = (state.model.clone(), accepted.model.clone());
        let started_at = now().max(state.last_at);
        let (entry, commands) = Run::new(&accepted, started_at);
        let over = entry.over.clone();
        state.model = Some(model);
        state.runs.push(entry);
        state.tag = tag;
        match self.try_append(&mut state, Body::Fact(Fact::RunAccepted(Box::new(accepted)))) {
            Ok(()) => {}
            Err(refused) => {
                state.runs.pop();
                state.model = before;
                state.reader = None;
                return Err(NotBegun::Unstored(refused.error));
            }
        }
        self.busy.send_replace(true);
        self.telemetry.run_started();
        self.active.fetch_add(1, Ordering::Relaxed);
        Ok(RunPort { session: self.clone(), run, commands, over })
    }

    /// A frame arrived for `run`.
    pub(crate) fn deliver(&self, run: RunId, frame: Text) -> Flow {
        let mut state = self.state();
        self.telemetry.frame(frame.len());
        let Some(latest) = state.runs.last_mut().filter(|entry| entry.info.run == run) else {
            // A newer run has begun: what the old one still says belongs to nothing that anybody can see.
            self.telemetry.late_frame();
            return Flow::Over;
        };
        if latest.info.status != RunStatus::Running {
            self.telemetry.late_frame();
            return Flow::Over;
        }
        latest.bytes = latest.bytes.saturating_add(frame.len());
        if latest.bytes > self.timers.run.max_bytes {
            let _ = latest.commands.send(Command::Stop);
            let message = format!("the run was ended because it said more than {} bytes (run.max_bytes)", self.timers.run.max_bytes);
            let end = ForcedEnd::Refused { kind: FailureKind::Internal, message: Text::from(message) };
            self.append(&mut state, Body::Fact(Fact::EndForced(end)));
            return Flow::Over;
        }
        // A recoverable error among what this frame means sets its own time in `note`.
        let error_at = latest.error_at.take();
        self.decide(&mut state, &frame);
        self.append(&mut state, Body::Frame(frame));
        let unread = recall::is_malformed(&state.events);
        if let Some(latest) = state.runs.last_mut() {
            if unread {
                // What is no frame is no sign of life: `null`s must not keep a run up for ever.
                latest.error_at = error_at;
            } else {
                latest.frame_at = now();
            }
        }
        if !unread {
            state.asks.frame_came();
        }
        if state.active().is_some() { Flow::Go } else { Flow::Over }
    }

    /// Decides about the ask that this frame raises, if nobody has to be asked.
    fn decide(&self, state: &mut State, frame: &Text) {
        let Some((run, headless)) = state.runs.last().map(|run| (run.info.run, run.headless)) else { return };
        let conduct = self.serving.conduct();
        if !headless && conduct.policies.is_empty() {
            return;
        }
        let Some(ask) = self.serving.upstream().ask_in(frame).filter(|ask| !state.asks.knows(&ask.id, run)) else { return };
        let policies = &conduct.policies;
        let decided = if headless { Some(policies.decide_without_people(&ask)) } else { policies.decide(&ask) };
        let Some(decided) = decided else { return };
        state.asks.decide(&ask, run, &decided, now().max(state.last_at));
        let answer = decided.answer();
        let Decided { allowed, rule } = decided;
        self.append(state, Body::Fact(Fact::AskDecided { ask: ask.id.clone(), allowed, rule }));
        if let Some(run) = state.runs.last() {
            let _ = run.commands.send(Command::Answer { ask: Arc::new(ask), answer });
        }
    }

    pub(crate) fn link_state(&self, run: RunId, up: bool) {
        let mut state = self.state();
        if state.is_active(run) {
            self.append(&mut state, Body::Fact(if up { Fact::LinkBack } else { Fact::LinkLost }));
        }
    }

    /// The upstream took the run; under this handle its link finds it again.
    pub(crate) fn attached(&self, run: RunId, handle: Json) {
        let mut state = self.state();
        if state.is_active(run) {
            if let Some(run) = state.runs.last_mut() {
                run.is_attached = true;
            }
            self.append(&mut state, Body::Fact(Fact::Attached { handle }));
        }
    }

    /// The link's work is over; if the run is not, it ends now.
    pub(crate) fn link_ended(&self, run: RunId, result: Result<(), LinkError>) {
        let mut state = self.state();
        if !state.is_active(run) {
            return;
        }
        let end = match result {
            Err(LinkError::Refused { kind, message }) => ForcedEnd::Refused { kind, message: Text::from(message) },
            Ok(()) | Err(LinkError::Gone(_)) => ForcedEnd::UpstreamGone,
        };
        self.append(&mut state, Body::Fact(Fact::EndForced(end)));
    }

    /// Records what people should know of a run and no frame says.
    pub(crate) fn notice(&self, run: RunId, level: NoticeLevel, code: &'static str, text: Text) {
        let mut state = self.state();
        if state.is_active(run) {
            self.append(&mut state, Body::Fact(Fact::Noticed { level, code: Text::from_static(code), text }));
        }
    }

    /// Whether the upstream is to be told this model: once, until it is another.
    pub(crate) fn tells_model(&self, model: &Text) -> bool {
        let told = &mut self.state().told_model;
        told.replace(model.clone()).as_ref() != Some(model)
    }

    /// How its runs go about people.
    #[must_use]
    pub fn conduct(&self) -> Arc<Conduct> {
        self.serving.conduct()
    }

    /// How many runs wait for their turn.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// A place for `run` among those that wait for their turn, unless there are `max` of them; one that had a place brings its time along.
    pub(crate) fn queue(&self, max: usize, run: RunId, at: Option<Millis>, wish: Arc<Wish>) -> Option<Place> {
        self.queue.enter(max, run, at, wish)
    }

    /// Whether a run goes on. A log that is unread stays so.
    pub(crate) fn is_busy(&self) -> bool {
        *self.busy.borrow()
    }

    /// Waits until no run goes on.
    pub async fn rest(&self) {
        let mut busy = self.busy.subscribe();
        // The sender is the session's own, and outlives this.
        let _ = busy.wait_for(|busy| !busy).await;
    }
}

/// A record that had to be on the disk and is not.
struct Refused {
    record: Record,
    mark: Mark,
    error: Unstored,
}

/// Why a run did not begin.
pub(crate) enum NotBegun {
    /// The session is deleted or forgotten.
    Closed,
    /// This one goes on.
    Busy(RunId),
    /// It could not be stored.
    Unstored(Unstored),
}

impl Run {
    fn new(accepted: &RunAccepted, started_at: Millis) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let info = RunInfo {
            run: accepted.run,
            model: accepted.model.clone(),
            by: accepted.by.clone(),
            actor: accepted.actor.clone(),
            status: RunStatus::Running,
            started_at,
            ended_at: None,
            turns: 0,
            steps: 0,
            usage: None,
        };
        let (commands, receiver) = mpsc::unbounded_channel();
        let run = Self {
            info,
            headless: accepted.headless,
            commands,
            over: CancellationToken::new(),
            stop_at: None,
            error_at: None,
            frame_at: started_at,
            bytes: 0,
            is_attached: false,
        };
        (run, receiver)
    }
}

impl State {
    fn projection<W: Writer>(&self, key: &(TypeId, String)) -> Option<Arc<Projection<W>>> {
        self.feeds.get(key)?.clone().into_any().downcast().ok()
    }

    fn active(&self) -> Option<&Run> {
        self.runs.last().filter(|run| run.info.status == RunStatus::Running)
    }

    fn is_active(&self, run: RunId) -> bool {
        self.active().is_some_and(|active| active.info.run == run)
    }
}

/// Wall time. Records of one session never go back in time, whatever the clock does.
#[expect(clippy::disallowed_methods, reason = "the one place where the hub reads the clock; pure code gets its times from records")]
pub(crate) fn now() -> Millis {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX))
}
