//! The registry: who owns which sessions, and how runs begin.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use interline_journal::{Birth, Durability, Health, Journal, JournalConfig, LogKey};
use interline_model::{Actor, CellName, FailureKind, ForcedEnd, Json, Millis, Part, Principal, RunAccepted, RunId, SessionId, Text};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::access::{Access, Denied, Gate};
use crate::channel::ChannelFuture;
use crate::closing::Closing;
use crate::door::{Door, DoorConfig};
use crate::driver;
use crate::in_turn::Waiting;
use crate::numbering::{Numbering, Numberings};
use crate::origin::Origins;
use crate::route::{Route, Routes};
use crate::session::{NotBegun, Parts, Session, Timers, now};
use crate::telemetry::Telemetry;
use crate::turns::Waited;
use crate::upstream::{LinkError, RunInput, SessionSeed};
use crate::warmth::Warmth;
use crate::{AskConfig, RunConfig, Settings};

/// All sessions of this process.
pub struct Hub {
    door: Door,
    pub(crate) routes: ArcSwap<Routes>,
    /// The origins that pages may come from, once the program said; else each surface says.
    allowed: ArcSwapOption<Vec<String>>,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) timers: Timers,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) tasks: TaskTracker,
    draining: AtomicBool,
    closing: Closing,
    /// Cancelled when what goes on is left to the next process.
    pub(crate) handed_on: CancellationToken,
    pub(crate) warmth: Arc<Warmth>,
    pub(crate) keeping: JournalConfig,
    pub(crate) numbering: Numberings,
    pub(crate) waiting: Waiting,
    registry: Mutex<Registry>,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) owners: HashMap<Principal, Owner>,
    pub(crate) runs: HashMap<RunId, Arc<Session>>,
    pub(crate) keys: HashMap<IdempotencyKey, RunId>,
    /// When sessions at rest were last looked for.
    swept_at: Millis,
}

/// Sessions at rest are looked for this often at most, in milliseconds.
const SWEEP_MS: Millis = 60_000;

/// How long links have, at the end, to tell their upstreams to stop.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What one principal has.
#[derive(Default)]
pub(crate) struct Owner {
    pub(crate) sessions: HashMap<SessionId, Arc<Session>>,
    /// What the inputs of its runs that wait come to, in bytes.
    pub(crate) queued_bytes: Arc<AtomicUsize>,
    /// Runs that go on, counted by the sessions themselves.
    pub(crate) active: Arc<AtomicUsize>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct IdempotencyKey {
    principal: Principal,
    cell: CellName,
    actor: Option<Text>,
    key: Text,
}

impl IdempotencyKey {
    /// What the journal keeps of it beside the run.
    pub(crate) fn tag(&self) -> Text {
        Text::from(serde_json::json!([self.actor.as_deref(), &*self.key]).to_string())
    }

    /// The key that was kept so.
    pub(crate) fn of_tag(tag: &str, principal: &Principal, cell: &CellName) -> Option<Self> {
        let (actor, key): (Option<String>, String) = serde_json::from_str(tag).ok()?;
        Some(Self { principal: principal.clone(), cell: cell.clone(), actor: actor.map(Text::from), key: Text::from(key) })
    }
}

/// A session to be created.
#[derive(Clone, Debug, Default)]
pub struct NewSession {
    /// The id that the client wants; one is drawn otherwise.
    pub id: Option<SessionId>,
    /// Its cell; the default one of the client otherwise (decision 4).
    pub cell: Option<CellName>,
    /// Its title.
    pub title: Option<Text>,
    /// The model it is meant for.
    pub model: Option<Text>,
    /// What the surface wants kept beside it.
    pub labels: serde_json::Map<String, serde_json::Value>,
}

/// A run to be started.
#[derive(Clone, Debug, Default)]
pub struct StartRun {
    /// The surface it comes from: `sse`, `socketio`, `native`.
    pub surface: Text,
    /// The cell; the session's own, or the default one, otherwise.
    pub cell: Option<CellName>,
    /// The session; an unknown one is created under that very id (decision 1), none draws a new one.
    pub session: Option<SessionId>,
    /// The model, as the client calls it.
    pub model: Option<Text>,
    /// The user's input.
    pub input: Vec<Part>,
    /// A system prompt.
    pub system_prompt: Option<Text>,
    /// A label of the end user.
    pub actor: Option<Text>,
    /// What is to hold for it.
    pub settings: Settings,
    /// One-shot run without people.
    pub headless: bool,
    /// The JSON Schema that a one-shot run's result is to have, an object.
    pub output_schema: Option<Json>,
    /// Starting twice with the same key, cell and actor starts once.
    pub idempotency_key: Option<Text>,
    /// The id that it is to have; one is drawn otherwise.
    pub run: Option<RunId>,
    /// Its client is told that it was taken also while it waits for its turn: so it waits on in the next process, where its cell promises that.
    pub is_acknowledged: bool,
}

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No route serves the cell, or the client may not use it.
    #[error("cell {0} not found")]
    CellNotFound(CellName),
    /// The session belongs to another cell.
    #[error("session {0} not found")]
    SessionNotFound(SessionId),
    /// A run of the session goes on.
    #[error("the session already has an active run: {run}")]
    Busy {
        /// That run.
        run: RunId,
    },
    /// The client has as many runs as it may.
    #[error("too many runs at a time: at most {0}")]
    TooManyRuns(usize),
    /// The client has as many sessions as it may.
    #[error("too many sessions: at most {0}")]
    TooManySessions(usize),
    /// The log on the disk cannot be written, and the run would not outlive the process as it should.
    #[error("runs cannot be stored at the moment; try again later")]
    Unstored,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
}

/// What a list of sessions is narrowed to.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this cell's.
    pub cell: Option<CellName>,
    /// Only those whose latest run has this label.
    pub actor: Option<Text>,
}

impl StartRun {
    /// What it takes while it waits, about, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        const ITSELF: usize = 512;
        let texts = [&self.system_prompt, &self.model, &self.actor, &self.idempotency_key];
        let texts = texts.into_iter().flatten().map(|text| text.len());
        let schema = self.output_schema.as_ref().map_or(0, |schema| schema.as_str().len());
        let variables = self.settings.environment.0.iter().map(|(name, value)| name.len().saturating_add(value.len()));
        self.input.iter().map(Part::len).chain(texts).chain(variables).fold(schema.saturating_add(ITSELF), usize::saturating_add)
    }

    /// What is accepted with it.
    pub(crate) fn accepted(&self, run: RunId, session: &Session, route: &Route) -> RunAccepted {
        RunAccepted {
            run,
            session: session.id().clone(),
            model: route.shown_model(self.model.as_deref()),
            input: self.input.clone(),
            by: Actor { principal: session.principal().clone(), surface: self.surface.clone() },
            actor: self.actor.clone(),
            headless: self.headless,
            output_schema: self.output_schema.clone(),
        }
    }
}

impl Hub {
    /// A hub without sessions.
    #[must_use]
    pub fn new(gate: Gate, routes: Routes, run: RunConfig, ask: AskConfig, journal: Arc<dyn Journal>) -> Self {
        Self {
            door: Door::new(gate, &DoorConfig::default()),
            routes: ArcSwap::from_pointee(routes),
            allowed: ArcSwapOption::empty(),
            journal,
            warmth: Arc::new(Warmth::new(JournalConfig::default().memory_bytes)),
            keeping: JournalConfig::default(),
            numbering: Numberings::default(),
            timers: Timers { run, ask },
            telemetry: Arc::default(),
            tasks: TaskTracker::new(),
            draining: AtomicBool::new(false),
            closing: Closing::default(),
            handed_on: CancellationToken::new(),
            waiting: Waiting::default(),
            registry: Mutex::default(),
        }
    }

    /// The same hub, within these bounds of `[journal]`.
    #[must_use]
    pub fn keeping(self, keeping: JournalConfig) -> Self {
        Self { warmth: Arc::new(Warmth::new(keeping.memory_bytes)), keeping, ..self }
    }

    /// Has sessions counted by this before their oldest runs are forgotten. Once, by the surface whose clients count whole sessions.
    pub fn number_by(&self, begin: fn(Option<&Json>) -> Box<dyn Numbering>) {
        self.numbering.set(begin);
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With another door than the one at its defaults. Nobody may be inside yet.
    #[must_use]
    pub fn behind(mut self, config: &DoorConfig) -> Self {
        self.door = Door::new((*self.door.gate()).clone(), config);
        self
    }

    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// What a bearer may do, on whatever surface, uncounted. Surfaces ask [`Hub::admit_to`].
    ///
    /// # Errors
    /// In `tokens` mode, when the bearer is missing or unknown, or its time is over.
    pub fn admit(&self, bearer: Option<&str>) -> Result<Access, Denied> {
        self.door.gate().admit(bearer, now())
    }

    /// Judges the origins of pages by these entries of `[cors] origins`, or by those that were put in their place.
    #[must_use]
    pub fn origins<'a>(&self, allowed: &'a [String]) -> Origins<'a> {
        let tokens_count = matches!(*self.door.gate(), Gate::Tokens(_));
        match self.allowed.load_full() {
            Some(live) => Origins::shared(live, tokens_count),
            None => Origins::new(allowed, tokens_count),
        }
    }

    /// Puts other entries in the place of `[cors] origins`, for every surface.
    pub fn replace_origins(&self, allowed: Vec<String>) {
        self.allowed.store(Some(Arc::new(allowed)));
    }

    /// Whether everybody is let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(*self.door.gate(), Gate::Open)
    }

    /// The routes, as they are now.
    #[must_use]
    pub fn routes(&self) -> Arc<Routes> {
        self.routes.load_full()
    }

    /// Puts other routes in the place of these. Sessions go on: runs that go on keep their upstream, the next run of a session has the one that its
    /// cell leads to by then, and the ways of a cell hold at once. Sessions of a cell that no route leads to any more stay readable.
    pub fn replace_routes(&self, routes: Routes) {
        let routes = Arc::new(routes);
        self.routes.store(routes.clone());
        let sessions: Vec<_> = self.registry().owners.values().flat_map(|mine| mine.sessions.values().cloned()).collect();
        for session in sessions {
            if let Some(route) = routes.of(session.cell()) {
                session.obey(&route.conduct);
            }
        }
    }

    /// How long asks wait for an answer.
    #[must_use]
    pub fn ask_config(&self) -> &AskConfig {
        &self.timers.ask
    }

    /// The counters.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Whether new runs are refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// How connections end, at the end of [`Hub::shutdown`].
    #[must_use]
    pub fn closing(&self) -> &Closing {
        &self.closing
    }

    /// The cell's route, if the client may use it.
    ///
    /// # Errors
    /// [`StartError::CellNotFound`], the same for cells that do not exist and for foreign ones.
    pub fn route(&self, access: &Access, cell: &CellName) -> Result<Arc<Route>, StartError> {
        if !access.allows(cell) {
            return Err(StartError::CellNotFound(cell.clone()));
        }
        self.routes.load().of(cell).cloned().ok_or_else(|| StartError::CellNotFound(cell.clone()))
    }

    /// Opens the coding channel for a client: to the upstream of `cell`, else of its default cell if that has one, else to the first
    /// of its cells' upstreams that has.
    ///
    /// # Errors
    /// When the client has no such cell, or new work is refused.
    pub fn coding_channel(&self, access: &Access, cell: Option<CellName>) -> Result<ChannelFuture, StartError> {
        if self.is_draining() {
            return Err(StartError::Draining);
        }
        let named = cell.is_some();
        let route = self.route(access, &self.cell_of(access, cell)?)?;
        let routes = self.routes.load();
        let mut others = routes.iter().filter(|route| access.allows(&route.cell) && route.upstream.has_coding_channel());
        let route = if named || route.upstream.has_coding_channel() { &*route } else { others.next().unwrap_or(&route) };
        Ok(route.upstream.coding_channel(access.credential().clone()))
    }

    /// The session that is named, if there is one, and the cell to run in.
    pub(crate) fn place_of(&self, access: &Access, request: &StartRun) -> Result<(Option<Arc<Session>>, CellName), StartError> {
        let session = request.session.as_ref().and_then(|id| self.session(access, id));
        let cell = match (&request.cell, &session) {
            (None, Some(session)) => session.cell().clone(),
            (cell, _) => self.cell_of(access, cell.clone())?,
        };
        Ok((session, cell))
    }

    fn cell_of(&self, access: &Access, cell: Option<CellName>) -> Result<CellName, StartError> {
        cell.or_else(|| self.routes.load().default_cell(access)).ok_or_else(|| StartError::CellNotFound(CellName::from("default")))
    }

    /// Creates a session, or returns the client's session of that id.
    ///
    /// # Errors
    /// When the cell is not there or not the session's, or the client has too many sessions.
    pub fn create_session(&self, access: &Access, new: NewSession) -> Result<Arc<Session>, StartError> {
        if let Some(id) = &new.id
            && let Some(session) = self.own(access, id)
        {
            return match &new.cell {
                Some(cell) if cell != session.cell() => Err(StartError::SessionNotFound(id.clone())),
                _ => Ok(session),
            };
        }
        let cell = self.cell_of(access, new.cell)?;
        let route = self.route(access, &cell)?;
        let id = new.id.unwrap_or_else(|| SessionId::from(Uuid::new_v4().to_string()));
        let principal = access.principal().clone();
        let mut registry = self.registry();
        self.forget_resting(&mut registry);
        if registry.owners.get(&principal).is_some_and(|mine| mine.sessions.len() >= self.timers.run.max_sessions) {
            self.make_room(&mut registry, &principal)?;
        }
        let mine = registry.owners.entry(principal.clone()).or_default();
        if let Some(session) = mine.sessions.get(&id) {
            return Ok(session.clone());
        }
        let link = route.upstream.open(&SessionSeed { session: id.clone(), principal: principal.clone(), cell: cell.clone() });
        let birth = Birth { cell, created_at: now(), title: new.title, model: new.model, labels: new.labels };
        let log = self.journal.open(&LogKey::session(principal.clone(), id.clone()), &birth, route.durability);
        let session = Session::new(Parts {
            id: id.clone(),
            principal,
            birth,
            upstream: route.upstream.clone(),
            conduct: route.conduct.clone(),
            link,
            log,
            stored: Vec::new(),
            timers: self.timers.clone(),
            telemetry: self.telemetry.clone(),
            warmth: self.warmth.clone(),
            active: mine.active.clone(),
            numbering: self.numbering.clone(),
        });
        mine.sessions.insert(id, session.clone());
        self.telemetry.sessions(1);
        Ok(session)
    }

    /// A session of the client's; to anybody else it does not exist.
    #[must_use]
    pub fn session(&self, access: &Access, id: &SessionId) -> Option<Arc<Session>> {
        self.own(access, id).filter(|session| access.allows(session.cell()))
    }

    fn own(&self, access: &Access, id: &SessionId) -> Option<Arc<Session>> {
        self.registry().owners.get(access.principal())?.sessions.get(id).cloned()
    }

    /// The session of a run of the client's; to anybody else it does not exist.
    #[must_use]
    pub fn run(&self, access: &Access, run: RunId) -> Option<Arc<Session>> {
        let session = self.registry().runs.get(&run).cloned()?;
        (session.principal() == access.principal() && access.allows(session.cell())).then_some(session)
    }

    /// The client's sessions, the latest used first.
    #[must_use]
    pub fn sessions(&self, access: &Access, filter: &Filter) -> Vec<Arc<Session>> {
        let mine: Vec<Arc<Session>> =
            self.registry().owners.get(access.principal()).map(|mine| mine.sessions.values().cloned().collect()).unwrap_or_default();
        let mut found: Vec<(u64, Arc<Session>)> = mine
            .into_iter()
            .filter(|session| access.allows(session.cell()) && filter.cell.as_ref().is_none_or(|cell| cell == session.cell()))
            .filter_map(|session| {
                let info = session.info();
                let labelled = filter.actor.is_none() || info.latest.is_some_and(|run| run.actor == filter.actor);
                labelled.then_some((info.updated_at, session))
            })
            .collect();
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        found.into_iter().map(|(_, session)| session).collect()
    }

    /// Whether the client has sessions in this cell.
    #[must_use]
    pub fn has_sessions(&self, access: &Access, cell: &CellName) -> bool {
        let registry = self.registry();
        let mine = registry.owners.get(access.principal());
        access.allows(cell) && mine.is_some_and(|mine| mine.sessions.values().any(|session| session.cell() == cell))
    }

    /// Deletes a session of the client's: its run is ended first. `false` if there is none.
    pub fn delete_session(&self, access: &Access, id: &SessionId) -> bool {
        let Some(session) = self.session(access, id) else { return false };
        session.close();
        self.remove(&mut self.registry(), access.principal(), id)
    }

    /// Takes a session and all that refers to it out of the registry.
    fn remove(&self, registry: &mut Registry, principal: &Principal, id: &SessionId) -> bool {
        let Some(session) = registry.owners.get_mut(principal).and_then(|mine| mine.sessions.remove(id)) else { return false };
        let runs = session.run_ids();
        for run in &runs {
            registry.runs.remove(run);
        }
        registry.keys.retain(|_, run| !runs.contains(run));
        self.telemetry.sessions(-1);
        let key = LogKey::session(principal.clone(), id.clone());
        self.waiting.forget(&key).iter().for_each(|key| self.journal.remove(key));
        self.journal.remove(&key);
        self.tasks.spawn(session.link().close());
        true
    }

    /// Forgets, at most once a minute, every session that has rested for long.
    fn forget_resting(&self, registry: &mut Registry) {
        let now = now();
        if now < registry.swept_at.saturating_add(SWEEP_MS.min(self.timers.run.forget_ms)) {
            return;
        }
        registry.swept_at = now;
        self.forget_rested(registry, now);
    }

    /// Forgets every session that has rested for long.
    pub(crate) fn forget_resting_now(&self) {
        self.forget_rested(&mut self.registry(), now());
    }

    fn forget_rested(&self, registry: &mut Registry, now: Millis) {
        let old = |session: &Arc<Session>| session.at_rest_since().is_some_and(|at| at.saturating_add(self.timers.run.forget_ms) <= now);
        let forgotten: Vec<(Principal, SessionId)> = registry
            .owners
            .iter()
            .flat_map(|(principal, mine)| mine.sessions.iter().map(move |(id, session)| (principal, id, session)))
            .filter(|(_, _, session)| old(session) && session.retire())
            .map(|(principal, id, _)| (principal.clone(), id.clone()))
            .collect();
        for (principal, id) in forgotten {
            self.remove(registry, &principal, &id);
        }
    }

    /// Forgets the session of `principal` that is longest at rest, if it has been for long enough.
    fn make_room(&self, registry: &mut Registry, principal: &Principal) -> Result<(), StartError> {
        let mine = registry.owners.get(principal).map(|mine| &mine.sessions);
        let resting = mine.into_iter().flatten().filter_map(|(id, session)| Some((session.at_rest_since()?, id, session)));
        let oldest = resting.min_by_key(|(at, ..)| *at).filter(|(at, ..)| at.saturating_add(self.timers.run.keep_ms) <= now());
        let oldest = oldest.filter(|(_, _, session)| session.retire());
        let id = oldest.map(|(_, id, _)| id.clone()).ok_or(StartError::TooManySessions(self.timers.run.max_sessions))?;
        self.remove(registry, principal, &id);
        Ok(())
    }

    /// Starts a run. It exists, has its id and its first event when this returns, whatever the upstream does. Must be called inside
    /// the runtime.
    ///
    /// # Errors
    /// When the run cannot be accepted; nothing about the upstream is an error here.
    pub fn start(self: &Arc<Self>, access: &Access, request: StartRun) -> Result<(Arc<Session>, RunId), StartError> {
        match self.begin(access, request.clone(), None) {
            // Forgotten in that very moment, perhaps: a new one begins.
            Err(StartError::SessionNotFound(_)) => self.begin(access, request, None),
            begun => begun,
        }
    }

    /// Starts a run, perhaps one that waited.
    pub(crate) fn begin(
        self: &Arc<Self>,
        access: &Access,
        request: StartRun,
        waited: Option<Waited<'_>>,
    ) -> Result<(Arc<Session>, RunId), StartError> {
        if self.is_draining() {
            return Err(StartError::Draining);
        }
        let (_, cell) = self.place_of(access, &request)?;
        let route = self.route(access, &cell)?;
        let key = key_of(access, &cell, &request);
        // Held over the whole start, so that two starts with one key cannot both be the first.
        let _starting = key.as_ref().map(|_| STARTING.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(started) = key.as_ref().and_then(|key| self.started_by(key)) {
            return Ok(started);
        }
        if self.active_runs(access.principal()) >= self.timers.run.max_active {
            return Err(StartError::TooManyRuns(self.timers.run.max_active));
        }
        let new = NewSession { id: request.session.clone(), cell: Some(cell), ..NewSession::default() };
        let session = match &waited {
            // In no other one, if it is deleted.
            Some(waited) => waited.session.clone(),
            None => self.create_session(access, new)?,
        };
        self.must_store(&session)?;
        if let Some(link) = session.follow(&route) {
            self.tasks.spawn(link.close());
        }
        let run = request.run.unwrap_or_else(draw_run);
        let accepted = request.accepted(run, &session, &route);
        let model = route.upstream_model(request.model.as_deref());
        let model_to_set = model.clone();
        let input =
            RunInput { run, model, input: request.input, system_prompt: request.system_prompt, credential: access.credential().clone() };
        // Known before it begins, so that whoever reads its first event can ask for it at once.
        self.registry().runs.insert(run, session.clone());
        let port = match session.begin(accepted, key.as_ref().map(IdempotencyKey::tag)) {
            Ok(port) => port,
            Err(error) => {
                self.registry().runs.remove(&run);
                return Err(match error {
                    NotBegun::Closed => StartError::SessionNotFound(session.id().clone()),
                    NotBegun::Busy(run) => StartError::Busy { run },
                    NotBegun::Unstored(error) => {
                        tracing::error!(session = %session.id(), %error, "a run could not be stored, and did not begin");
                        StartError::Unstored
                    }
                });
            }
        };
        if let Some(key) = key {
            self.registry().keys.insert(key, run);
        }
        let unkept = waited.as_ref().and_then(|waited| waited.unkept);
        let work = match (unkept, &waited) {
            (None, Some(Waited { is_kept: true, .. })) => self.clone().run_once_stored(session.clone(), input, port),
            (None, _) => session.link().run(input, port),
            (Some(unkept), _) => {
                drop(port);
                let refused = LinkError::Refused { kind: FailureKind::EngineNotReady, message: unkept.why().to_owned() };
                Box::pin(std::future::ready(Err(refused)))
            }
        };
        self.tasks.spawn(driver::drive(session.clone(), run, work, self.tasks.clone(), self.handed_on.clone()));
        let mut settings = request.settings;
        if let Some(model) = model_to_set.filter(|model| !route.upstream.starts_with_model() && session.tells_model(model)) {
            settings.model = Some(model);
        }
        if settings != Settings::default() && unkept.is_none() {
            let (hub, is_kept) = (self.clone(), waited.is_some_and(|waited| waited.is_kept));
            let session = session.clone();
            self.tasks.spawn(async move {
                if is_kept {
                    hub.is_stored(&session).await;
                }
                driver::settle(session, run, settings).await;
            });
        }
        Ok((session, run))
    }

    /// Refuses a run that would not outlive the process as its cell promises.
    pub(crate) fn must_store(&self, session: &Session) -> Result<(), StartError> {
        match (session.durability(), self.journal.health()) {
            (Durability::Memory, _) | (_, Health::Well) => Ok(()),
            (Durability::Buffered, Health::Failing { unwritten_bytes, .. })
                if unwritten_bytes < self.keeping.max_unwritten_bytes as u64 =>
            {
                Ok(())
            }
            (_, Health::Failing { .. }) => Err(StartError::Unstored),
        }
    }

    /// The run that was started with a key.
    pub(crate) fn started_by(&self, key: &IdempotencyKey) -> Option<(Arc<Session>, RunId)> {
        let registry = self.registry();
        let run = registry.keys.get(key)?;
        Some((registry.runs.get(run)?.clone(), *run))
    }

    fn active_runs(&self, principal: &Principal) -> usize {
        self.registry().owners.get(principal).map_or(0, |mine| mine.active.load(Ordering::Relaxed))
    }

    /// Stops taking runs, gives those that go on `grace` to finish, ends the rest, tells connections to close, and waits a moment for the links to
    /// tell their upstreams.
    pub async fn shutdown(&self, grace: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.closing.leave();
        self.tasks.close();
        let sessions: Vec<_> = self.registry().owners.values().flat_map(|mine| mine.sessions.values().cloned()).collect();
        let going = || sessions.iter().filter(|session| session.is_busy()).count();
        let before = going();
        let quiet = async {
            while going() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(grace, quiet).await.is_ok();
        tracing::info!(runs = before, left = going(), "no new runs were taken any more, and those that went on had their time");
        if !in_time {
            let (left, ended): (Vec<_>, Vec<_>) = sessions.iter().partition(|session| self.hands_on(session));
            ended.iter().for_each(|session| session.end_now(ForcedEnd::Shutdown));
            if !left.is_empty() {
                tracing::info!(runs = left.len(), "runs are left to the next process");
            }
        }
        self.closing.begin();
        self.handed_on.cancel();
        let _ = tokio::time::timeout(LAST_WORDS, self.tasks.wait()).await;
        self.settle_owed();
        self.flush().await;
    }
}

/// What tells this request from others, if it brings a key.
pub(crate) fn key_of(access: &Access, cell: &CellName, request: &StartRun) -> Option<IdempotencyKey> {
    let (principal, cell, actor) = (access.principal().clone(), cell.clone(), request.actor.clone());
    request.idempotency_key.clone().map(|key| IdempotencyKey { principal, cell, actor, key })
}

/// The client's key in what the journal keeps of it.
pub(crate) fn key_in(tag: &str) -> Option<Text> {
    let (_, key): (Option<String>, String) = serde_json::from_str(tag).ok()?;
    Some(Text::from(key))
}

/// A new run's id.
#[must_use]
pub fn draw_run() -> RunId {
    RunId::from_u128(Uuid::new_v4().as_u128())
}

/// One start with an idempotency key at a time, in the whole process: these are rare and short.
static STARTING: Mutex<()> = Mutex::new(());
