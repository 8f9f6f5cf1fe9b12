//! Runs that wait for their turn: how they come to wait, what they wait for, and what becomes of them, also over the end of the process.
//!
//! One that was acknowledged is kept in a log of its own until it has begun or was given up ([`crate::queued`]). Both can be on the disk for a
//! moment, the run and what was kept while it waited; never neither.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use interline_journal::{Durability, LogKey, Stored};
use interline_model::{Actor, CellName, RunId};

use crate::conduct::OnBusy;
use crate::hub::{IdempotencyKey, draw_run, key_of};
use crate::in_turn::{Begun, InTurn, NotBegun};
use crate::queue::Place;
use crate::queued::{self, Queued, Unkept};
use crate::session::Session;
use crate::{Access, Gate, Hub, StartError, StartRun};

/// A run that was taken.
pub enum Started {
    /// It has begun.
    Begun(Arc<Session>, RunId),
    /// It waits for the run before it, and begins also when nobody waits for it any more.
    InTurn(Arc<InTurn>),
}

/// A run that waits, and all that it needs to begin.
struct Turn {
    entry: Arc<InTurn>,
    place: Place,
    access: Access,
    request: StartRun,
    /// Where it is kept.
    kept: Option<LogKey>,
    unkept: Option<Unkept>,
}

/// One run with an idempotency key comes to wait at a time: between looking for one that waits by that key and waiting there is no other.
static BY_KEY: Mutex<()> = Mutex::new(());

/// How often a run whose turn has come looks whether there is room for it.
const ROOM: Duration = Duration::from_millis(200);

impl Hub {
    /// Starts a run, or lets it wait for its turn, as the conduct of its cell says. Must be called inside the runtime.
    ///
    /// # Errors
    /// As [`Hub::start`]; [`StartError::Busy`] also when as many wait as may.
    pub fn start_in_turn(self: &Arc<Self>, access: &Access, request: StartRun) -> Result<Started, StartError> {
        let session = request.session.as_ref().and_then(|id| self.session(access, id));
        let waits = |session: &Arc<Session>| session.conduct().on_busy != OnBusy::Reject;
        let Some(session) = session.filter(waits) else {
            return self.start(access, request).map(|(session, run)| Started::Begun(session, run));
        };
        let cell = request.cell.clone().unwrap_or_else(|| session.cell().clone());
        let key = key_of(access, &cell, &request);
        let _one = key.as_ref().map(|_| BY_KEY.lock().unwrap_or_else(PoisonError::into_inner));
        // What waits begins before it stops waiting: asked in this order, it is found.
        if let Some(waiting) = key.as_ref().and_then(|key| self.waiting.by_key(key)) {
            return Ok(Started::InTurn(waiting));
        }
        if let Some((session, run)) = key.as_ref().and_then(|key| self.started_by(key)) {
            return Ok(Started::Begun(session, run));
        }
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
        let entry = Arc::new(InTurn::new(run, session.clone(), accepted.model.clone(), key.clone()));
        let Some(place) = session.queue(self.timers.run.max_queued, run, None, entry.wish().clone()) else {
            return Err(session.active_run().map_or(StartError::TooManyRuns(self.timers.run.max_queued), |run| StartError::Busy { run }));
        };
        let kept = if request.is_acknowledged && session.durability() != Durability::Memory {
            self.must_store(&session)?;
            let tag = key.as_ref().map(IdempotencyKey::tag);
            let kept = queued::keep(&*self.journal, &session, place.at(), accepted, &request, tag, access.credential());
            let (kept, log) = kept.map_err(|error| {
                tracing::error!(session = %session.id(), %error, "a run that is to wait could not be stored, and was refused");
                StartError::Unstored
            })?;
            entry.wish().keep_in(log);
            Some(kept)
        } else {
            None
        };
        self.wait_for_turn(Turn { entry: entry.clone(), place, access: access.clone(), request, kept, unkept: None });
        Ok(Started::InTurn(entry))
    }

    /// A run of the client's in this cell that waits for its turn, or did not begin.
    #[must_use]
    pub fn in_turn(&self, access: &Access, cell: &CellName, run: RunId) -> Option<Arc<InTurn>> {
        self.waiting.find(access.principal(), cell, run).filter(|_| access.allows(cell))
    }

    fn wait_for_turn(self: &Arc<Self>, turn: Turn) {
        let (entry, run, kept) = (turn.entry.clone(), turn.entry.run, turn.kept.clone());
        // Known before it begins, so that whoever was told its id can give it up.
        self.registry().runs.insert(run, entry.session.clone());
        self.waiting.add(entry.clone());
        let hub = self.clone();
        self.tasks.spawn(async move {
            let waiting = hub.clone().turn_comes(turn);
            let begun = entry.wish().given_up().run_until_cancelled_owned(waiting).await.unwrap_or(Err(NotBegun::Stopped));
            let is_left = matches!(begun, Err(NotBegun::Left));
            if let Some(key) = kept.filter(|_| !is_left) {
                hub.journal.remove(&key);
            }
            hub.waiting.settle(&entry, begun);
            let mut registry = hub.registry();
            if !is_left && registry.runs.get(&run).is_some_and(|session| session.run_info(run).is_none()) {
                registry.runs.remove(&run);
            }
        });
    }

    /// Waits for the runs before it, and for room, and begins it.
    async fn turn_comes(self: Arc<Self>, turn: Turn) -> Begun {
        let Turn { entry, place, access, request, kept, unkept } = turn;
        let session = &entry.session;
        // What goes on is left to the next process, and so is what waits for it, if it is kept. Whoever waits for another one is told.
        let closing = || if kept.is_some() { NotBegun::Left } else { NotBegun::Refused(StartError::Draining) };
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
            match self.start_or_end(&access, request.clone(), unkept) {
                // Somebody who does not wait was quicker.
                Err(StartError::Busy { .. }) => drop(self.registry().runs.insert(entry.run, session.clone())),
                Err(StartError::Draining) => return Err(closing()),
                // It was acknowledged, and nobody may be there to be told.
                Err(StartError::TooManyRuns(_) | StartError::Unstored) if kept.is_some() => {
                    self.registry().runs.insert(entry.run, session.clone());
                    tokio::time::sleep(ROOM).await;
                }
                begun => return begun.map_err(NotBegun::Refused),
            }
        }
    }

    /// Lets the runs of a session wait on that waited when the last process ended. Says how many do.
    pub(crate) fn wait_on(self: &Arc<Self>, session: &Arc<Session>, mut stored: Vec<Stored>) -> usize {
        let begun = session.run_ids();
        stored.sort_by_key(|stored| stored.birth.created_at);
        let mut count = 0_usize;
        for stored in stored {
            let run = stored.key.waiting.filter(|run| !begun.contains(run));
            let Some((run, queued)) = run.zip(queued::read(&stored)) else {
                self.journal.remove(&stored.key);
                continue;
            };
            let Queued { cell, request, unkept, is_given_up } = queued;
            let access = Access::of_earlier(session.principal().clone(), cell.clone());
            // Those of a cell that nobody serves are not asked for.
            let Ok(route) = self.route(&access, &cell) else { continue };
            let lacks = matches!(*self.door().gate(), Gate::Passthrough).then_some(Unkept::Credential);
            let model = route.shown_model(request.model.as_deref());
            let entry = Arc::new(InTurn::new(run, session.clone(), model, key_of(&access, &cell, &request)));
            if is_given_up {
                // Who asks for it is told.
                self.waiting.settle(&entry, Err(NotBegun::Stopped));
                self.journal.remove(&stored.key);
                continue;
            }
            let Some(place) = session.queue(usize::MAX, run, Some(stored.birth.created_at), entry.wish().clone()) else { continue };
            entry.wish().keep_in(stored.log);
            self.wait_for_turn(Turn { entry, place, access, request, kept: Some(stored.key), unkept: unkept.or(lacks) });
            count = count.saturating_add(1);
        }
        count
    }
}
