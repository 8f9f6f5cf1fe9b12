//! Runs that wait for their turn: how they come to wait, what they wait for, and what becomes of them, also over the end of the process.
//!
//! One that was acknowledged is kept in a log of its own until it has begun or was given up ([`crate::queued`]). Both can be on the disk for a
//! moment, the run and what was kept while it waited; never neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use interline_journal::{Durability, Stored};
use interline_model::{Actor, CellName, Principal, RunId};

use crate::conduct::OnBusy;
use crate::hub::{IdempotencyKey, draw_run, key_of};
use crate::in_turn::{Begun, InTurn, NotBegun};
use crate::queue::Place;
use crate::queued::{self, Queued, Unkept};
use crate::session::{Session, now};
use crate::upstream::{LinkFuture, RunInput, RunPort};
use crate::{Access, Gate, Hub, RunConfig, StartError, StartRun};

/// A run that was taken.
pub enum Started {
    /// It has begun.
    Begun(Arc<Session>, RunId),
    /// It waits for the run before it, and begins also when nobody waits for it any more.
    InTurn(Arc<InTurn>),
}

/// A run that waited, and begins.
pub(crate) struct Waited<'a> {
    pub(crate) session: &'a Arc<Session>,
    /// What was kept of it while it waited is still there.
    pub(crate) is_kept: bool,
    pub(crate) unkept: Option<Unkept>,
}

/// A run that waits, and all that it needs to begin.
struct Turn {
    entry: Arc<InTurn>,
    place: Place,
    access: Access,
    request: StartRun,
    _reserved: Reserved,
    unkept: Option<Unkept>,
}

/// Bytes of what waits, counted for its owner.
struct Reserved {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Reserved {
    /// `None` if they would be more than `max`.
    fn new(bytes: usize, max: usize, all: Arc<AtomicUsize>) -> Option<Self> {
        let more = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= max);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { bytes, all })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How often a run whose turn has come looks whether there is room for it.
const ROOM: Duration = Duration::from_millis(200);

/// The longest pause before a disk that fails is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Hub {
    /// Starts a run, or lets it wait for its turn, as the conduct of its cell says. Must be called inside the runtime.
    ///
    /// # Errors
    /// As [`Hub::start`]; [`StartError::Busy`] also when as many wait as may.
    pub fn start_in_turn(self: &Arc<Self>, access: &Access, request: StartRun) -> Result<Started, StartError> {
        if self.is_draining() {
            return Err(StartError::Draining);
        }
        let (session, cell) = self.place_of(access, &request)?;
        let key = key_of(access, &cell, &request);
        // What waits begins before it stops waiting: asked in this order, it is found.
        if let Some(waiting) = key.as_ref().and_then(|key| self.waiting.by_key(key)) {
            return Ok(Started::InTurn(waiting));
        }
        if let Some((session, run)) = key.as_ref().and_then(|key| self.started_by(key)) {
            return Ok(Started::Begun(session, run));
        }
        let waits = |session: &Arc<Session>| session.conduct().on_busy != OnBusy::Reject;
        let Some(session) = session.filter(waits) else {
            return self.start(access, request).map(|(session, run)| Started::Begun(session, run));
        };
        // Those that wait come first. What will wait is none too many now.
        if session.waiting() == 0 && !session.is_busy() {
            match self.start(access, request.clone()) {
                Ok((session, run)) => return Ok(Started::Begun(session, run)),
                Err(StartError::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let run = request.run.unwrap_or_else(draw_run);
        let request = StartRun { run: Some(run), ..request };
        let route = self.route(access, &cell)?;
        let accepted = request.accepted(run, &session, &route);
        let entry = Arc::new(InTurn::new(run, session.clone(), accepted.model.clone(), now(), key.clone()));
        let RunConfig { max_queued, max_queued_bytes, .. } = self.timers.run;
        let reserved = Reserved::new(request.bytes(), max_queued_bytes, self.queued_bytes(access.principal()));
        let place = reserved.and_then(|reserved| Some((reserved, session.queue(max_queued, run, None, entry.wish().clone())?)));
        let Some((reserved, place)) = place else {
            return Err(session.active_run().map_or(StartError::TooManyRuns(max_queued), |run| StartError::Busy { run }));
        };
        let is_kept = request.is_acknowledged && session.durability() != Durability::Memory;
        if is_kept {
            self.must_store(&session)?;
        }
        // From here on the same request finds it.
        if let Some(same) = self.waiting.add(&entry) {
            return Ok(Started::InTurn(same));
        }
        if is_kept {
            let tag = key.as_ref().map(IdempotencyKey::tag);
            let kept = queued::keep(&*self.journal, &session, place.at(), accepted, &request, tag, access.credential());
            let (kept, log) = kept.map_err(|error| {
                tracing::error!(session = %session.id(), %error, "a run that is to wait could not be stored, and was refused");
                self.settle_turn(&entry, Err(NotBegun::Refused(StartError::Unstored)), true);
                StartError::Unstored
            })?;
            entry.wish().set_log(log);
            entry.set_kept(kept);
        }
        self.wait_for_turn(Turn { entry: entry.clone(), place, access: access.clone(), request, _reserved: reserved, unkept: None });
        Ok(Started::InTurn(entry))
    }

    /// A run of the client's in this cell that waits for its turn, or did not begin.
    #[must_use]
    pub fn in_turn(&self, access: &Access, cell: &CellName, run: RunId) -> Option<Arc<InTurn>> {
        self.waiting.find(access.principal(), cell, run).filter(|_| access.allows(cell))
    }

    fn queued_bytes(&self, principal: &Principal) -> Arc<AtomicUsize> {
        self.registry().owners.entry(principal.clone()).or_default().queued_bytes.clone()
    }

    fn settle_turn(&self, entry: &Arc<InTurn>, begun: Begun, is_remembered: bool) {
        if let Some(forgotten) = self.waiting.settle(entry, begun, is_remembered) {
            self.journal.remove(&forgotten);
        }
    }

    fn wait_for_turn(self: &Arc<Self>, turn: Turn) {
        let (entry, run) = (turn.entry.clone(), turn.entry.run);
        // Known before it begins, so that whoever was told its id can give it up.
        self.registry().runs.insert(run, entry.session.clone());
        let hub = self.clone();
        self.tasks.spawn(async move {
            let waiting = hub.clone().turn_comes(turn);
            let begun = entry.wish().given_up().run_until_cancelled_owned(waiting).await.unwrap_or(Err(NotBegun::Stopped));
            let is_left = matches!(begun, Err(NotBegun::Left));
            // Nobody can ask for what was in a session that is deleted.
            let is_over = entry.session.is_closed();
            match (entry.kept(), &begun, entry.wish().by()) {
                (None, ..) | (_, Err(NotBegun::Left), _) => {}
                (Some(key), Err(NotBegun::Stopped), Some(by)) if !is_over => queued::keep_end(&*hub.journal, key, &entry, by),
                (Some(key), ..) => hub.journal.remove(key),
            }
            hub.settle_turn(&entry, begun, !is_over);
            if !is_left && entry.session.run_info(run).is_none() {
                let mut registry = hub.registry();
                if registry.runs.get(&run).is_some_and(|session| Arc::ptr_eq(session, &entry.session)) {
                    registry.runs.remove(&run);
                }
            }
        });
    }

    /// Waits for the runs before it, and for room, and begins it.
    async fn turn_comes(self: Arc<Self>, turn: Turn) -> Begun {
        let Turn { entry, place, access, request, _reserved, unkept } = turn;
        let (session, is_kept) = (&entry.session, entry.kept().is_some());
        // What goes on is left to the next process, and so is what waits for it, if it is kept. Whoever waits for another one is told.
        let closing = || if is_kept { NotBegun::Left } else { NotBegun::Refused(StartError::Draining) };
        place.is_first().await;
        loop {
            if session.conduct().on_busy == OnBusy::Interrupt {
                session.make_room(Actor { principal: access.principal().clone(), surface: request.surface.clone() });
            }
            tokio::select! {
                () = session.rest() => {}
                () = self.handed_on.cancelled() => return Err(closing()),
            }
            if self.session(&access, session.id()).is_none_or(|now| !Arc::ptr_eq(&now, session)) {
                // Deleted meanwhile: a run that waited does not bring it back.
                return Err(NotBegun::Refused(StartError::SessionNotFound(session.id().clone())));
            }
            match self.begin(&access, request.clone(), Some(Waited { session, is_kept, unkept })) {
                // Somebody who does not wait was quicker.
                Err(StartError::Busy { .. }) => drop(self.registry().runs.insert(entry.run, session.clone())),
                Err(StartError::Draining) => return Err(closing()),
                // It was acknowledged, and nobody may be there to be told. A cell may come back with the next config.
                Err(StartError::TooManyRuns(_) | StartError::Unstored | StartError::CellNotFound(_)) if is_kept => {
                    self.registry().runs.insert(entry.run, session.clone());
                    tokio::time::sleep(ROOM).await;
                }
                begun => return begun.map_err(NotBegun::Refused),
            }
        }
    }

    /// The work of a run that waited. What was kept of it while it waited is still on the disk: until it is there that it has begun, nobody is told,
    /// or the next process would tell it again.
    pub(crate) fn run_once_stored(self: Arc<Self>, session: Arc<Session>, input: RunInput, port: RunPort) -> LinkFuture {
        Box::pin(async move {
            let over = port.over().clone();
            over.run_until_cancelled(self.is_stored(&session)).await;
            // Stopped meanwhile, it is said to nobody.
            if over.is_cancelled() { Ok(()) } else { session.link().run(input, port).await }
        })
    }

    /// Waits until what a session's log has now is on the disk, also if that fails for a while.
    pub(crate) async fn is_stored(&self, session: &Session) {
        let mut pause = ROOM;
        while session.durability() == Durability::Buffered {
            let journal = self.journal.clone();
            if matches!(tokio::task::spawn_blocking(move || journal.flush()).await, Ok(Ok(()))) {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Lets the runs of a session wait on that waited when the last process ended. Says how many do.
    pub(crate) fn wait_on(self: &Arc<Self>, session: &Arc<Session>, mut stored: Vec<Stored>) -> usize {
        let begun = session.run_ids();
        stored.sort_by_key(|stored| stored.birth.created_at);
        let mut count = 0_usize;
        for stored in stored {
            let run = stored.key.waiting.filter(|run| !begun.contains(run));
            let Some((run, queued)) = run.zip(queued::read(&stored, session.born_at())) else {
                self.journal.remove(&stored.key);
                continue;
            };
            let Queued { cell, model, taken_at, request, unkept, is_stopped, stopped_by } = queued;
            let access = Access::of_earlier(session.principal().clone(), cell.clone());
            // Those of a cell that nobody serves are not asked for.
            if self.route(&access, &cell).is_err() {
                continue;
            }
            let lacks = matches!(*self.door().gate(), Gate::Passthrough).then_some(Unkept::Credential);
            let entry = Arc::new(InTurn::new(run, session.clone(), model, taken_at, key_of(&access, &cell, &request)));
            if is_stopped {
                // Who asks for it is told.
                if let Some(by) = &stopped_by {
                    queued::keep_end(&*self.journal, &stored.key, &entry, by);
                }
                entry.set_kept(stored.key);
                self.settle_turn(&entry, Err(NotBegun::Stopped), true);
                continue;
            }
            let Some(place) = session.queue(usize::MAX, run, Some(stored.birth.created_at), entry.wish().clone()) else { continue };
            entry.wish().set_log(stored.log);
            entry.set_kept(stored.key);
            self.waiting.add(&entry);
            // Taken is taken.
            let Some(reserved) = Reserved::new(request.bytes(), usize::MAX, self.queued_bytes(session.principal())) else { continue };
            self.wait_for_turn(Turn { entry, place, access, request, _reserved: reserved, unkept: unkept.or(lacks) });
            count = count.saturating_add(1);
        }
        count
    }
}
