//! What outlives the process: sessions come back from the log, runs that went on are taken up again, and at the end those that another process
//! can take up are left to it.

use std::collections::HashMap;
use std::sync::Arc;

use interline_journal::{Durability, Health, JournalError, LogKey, Stored};
use tokio::task::spawn_blocking;

use crate::hub::{Hub, IdempotencyKey};
use crate::session::{Parts, Session, Unfinished};
use crate::upstream::{LinkError, LinkFuture, Resumption, SessionSeed};
use crate::{Gate, RunCredential, driver};

/// What came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Sessions.
    pub sessions: usize,
    /// Their runs.
    pub runs: usize,
    /// Runs that were not at their end.
    pub unfinished: usize,
    /// Runs that wait for their turn.
    pub waiting: usize,
    /// Sessions whose cell no route serves any more. They stay where they are until a route does.
    pub without_route: usize,
}

impl Hub {
    /// Brings back what an earlier process left in the log. Sessions are read when somebody first looks at them, those with an unfinished run at
    /// once. Must be called inside the runtime, before anything else.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn restore(self: &Arc<Self>) -> Result<Restored, JournalError> {
        let mut restored = Restored::default();
        let mut unfinished = Vec::new();
        let mut waiting: HashMap<LogKey, Vec<Stored>> = HashMap::new();
        let routes = self.routes();
        for stored in self.journal.stored()? {
            if stored.key.waiting.is_some() {
                let session = LogKey { waiting: None, ..stored.key.clone() };
                waiting.entry(session).or_default().push(stored);
                continue;
            }
            let Some(route) = routes.of(&stored.birth.cell) else {
                restored.without_route += 1;
                continue;
            };
            restored.sessions += 1;
            restored.runs += stored.runs.len();
            let is_unfinished = stored.runs.last().is_some_and(|run| run.ended_at.is_none());
            let session = self.bring_back(stored, route);
            if is_unfinished {
                unfinished.push(session);
            }
        }
        for session in unfinished {
            if let Some(run) = session.take_up() {
                restored.unfinished += 1;
                self.telemetry.run_resumed();
                let (id, work) = (run.run, self.resumed(&session, run));
                self.tasks.spawn(driver::drive(session, id, work, self.tasks.clone(), self.handed_on.clone()));
            }
        }
        // Behind the runs that they wait for.
        for (LogKey { principal, session, .. }, stored) in waiting {
            let session = self.registry().owners.get(&principal).and_then(|mine| mine.sessions.get(&session).cloned());
            match session {
                Some(session) => restored.waiting += self.wait_on(&session, stored),
                None => stored.iter().filter(|stored| routes.of(&stored.birth.cell).is_some()).for_each(|stored| {
                    // Its session was deleted.
                    self.journal.remove(&stored.key);
                }),
            }
        }
        Ok(restored)
    }

    fn bring_back(&self, stored: Stored, route: &crate::Route) -> Arc<Session> {
        let Stored { key, birth, runs, log, .. } = stored;
        let (principal, id, cell) = (key.principal, key.session, birth.cell.clone());
        let mut registry = self.registry();
        let active = registry.owners.entry(principal.clone()).or_default().active.clone();
        let link = route.upstream.open(&SessionSeed { session: id.clone(), principal: principal.clone(), cell: cell.clone() });
        let tags: Vec<_> = runs.iter().map(|run| (run.run, run.tag.clone())).collect();
        let session = Session::new(Parts {
            id: id.clone(),
            principal: principal.clone(),
            birth,
            upstream: route.upstream.clone(),
            conduct: route.conduct.clone(),
            link,
            log,
            stored: runs,
            timers: self.timers.clone(),
            telemetry: self.telemetry.clone(),
            warmth: self.warmth.clone(),
            active,
            numbering: self.numbering.clone(),
        });
        for (run, tag) in tags {
            registry.runs.insert(run, session.clone());
            if let Some(key) = tag.and_then(|tag| IdempotencyKey::of_tag(&tag, &principal, &cell)) {
                registry.keys.insert(key, run);
            }
        }
        if let Some(mine) = registry.owners.get_mut(&principal) {
            mine.sessions.insert(id, session.clone());
        }
        self.telemetry.sessions(1);
        session
    }

    /// The work of a run that is taken up again.
    fn resumed(&self, session: &Session, unfinished: Unfinished) -> LinkFuture {
        let Unfinished { run, handle, frames, port } = unfinished;
        match handle {
            // What a client brought to start it is not kept, and nobody else's will do.
            Some(handle) if !matches!(*self.door().gate(), Gate::Passthrough) => {
                let credential = RunCredential::Configured;
                session.link().take_up(Resumption { run, handle, frames, credential }, port)
            }
            _ => {
                drop(port);
                Box::pin(std::future::ready(Err(LinkError::Gone("the program ended while the run went on".to_owned()))))
            }
        }
    }

    /// Whether the run that goes on in a session can be left to the next process.
    pub(crate) fn hands_on(&self, session: &Session) -> bool {
        session.durability() != Durability::Memory
            && !matches!(*self.door().gate(), Gate::Passthrough)
            && session.link().takes_up()
            && session.is_attached()
    }

    /// How the log is.
    #[must_use]
    pub fn journal_health(&self) -> Health {
        self.journal.health()
    }

    /// What the log keeps on the disk, in bytes.
    #[must_use]
    pub fn journal_bytes(&self) -> u64 {
        self.journal.stored_bytes()
    }

    /// Waits until everything is on the disk.
    pub(crate) async fn flush(&self) {
        let journal = self.journal.clone();
        match spawn_blocking(move || journal.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the log could not be written to its end"),
            Err(error) => tracing::error!(%error, "the log could not be written to its end"),
        }
    }
}
