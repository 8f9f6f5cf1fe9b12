//! What can be seen of a session: its runs, its asks, and what lists show.

use std::sync::Arc;

use interline_model::{Actor, Ask, AskId, CellName, Millis, RunId, SessionId, Text, Usage};

use interline_journal::Durability;

use super::Session;
use crate::asks::{AskVerdict, PendingAsk};

/// A run as lists show it.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Its id.
    pub run: RunId,
    /// Its model, as `run_start` says it.
    pub model: Text,
    /// Who started it, and where.
    pub by: Actor,
    /// The label of the end user, where the client gave one.
    pub actor: Option<Text>,
    /// What it is doing, or how it ended.
    pub status: RunStatus,
    /// When it began.
    pub started_at: Millis,
    /// When it ended.
    pub ended_at: Option<Millis>,
    /// Model calls so far.
    pub turns: u64,
    /// Tool calls so far.
    pub steps: u64,
    /// Tokens, once the upstream said.
    pub usage: Option<Usage>,
}

/// What a run is doing, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// It goes on.
    Running,
    /// It finished.
    Completed,
    /// It failed.
    Failed,
    /// It was stopped.
    Interrupted,
}

impl RunStatus {
    /// The word for it in lists.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A session as lists show it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Its id.
    pub session: SessionId,
    /// Its cell.
    pub cell: CellName,
    /// Its title, or empty.
    pub title: Text,
    /// The model of its latest run, or the one it was created with.
    pub model: Option<Text>,
    /// When it was created.
    pub created_at: Millis,
    /// When something last happened.
    pub updated_at: Millis,
    /// Its latest run.
    pub latest: Option<RunInfo>,
    /// Whether people are asked something.
    pub asking: bool,
    /// What the surface that created it wanted kept beside it.
    pub labels: serde_json::Map<String, serde_json::Value>,
}

impl Session {
    /// What lists show of it.
    #[must_use]
    pub fn info(&self) -> SessionInfo {
        let state = self.state();
        SessionInfo {
            session: self.id.clone(),
            cell: self.birth.cell.clone(),
            title: state.title.clone().unwrap_or_default(),
            model: state.model.clone(),
            created_at: self.birth.created_at,
            updated_at: state.last_at,
            latest: state.runs.last().map(|run| run.info.clone()),
            asking: state.asks.is_any_open(),
            labels: self.birth.labels.clone(),
        }
    }

    /// Its runs, oldest first.
    #[must_use]
    pub fn runs(&self) -> Vec<RunInfo> {
        self.state().runs.iter().map(|run| run.info.clone()).collect()
    }

    /// One of its runs.
    #[must_use]
    pub fn run_info(&self, run: RunId) -> Option<RunInfo> {
        self.state().runs.iter().find(|entry| entry.info.run == run).map(|entry| entry.info.clone())
    }

    /// The run that goes on, if one does.
    #[must_use]
    pub fn active_run(&self) -> Option<RunId> {
        self.state().active().map(|run| run.info.run)
    }

    /// The asks that take an answer, oldest first: those that wait for one, and those of which nothing shows that the agent took it.
    #[must_use]
    pub fn pending_asks(&self) -> Vec<PendingAsk> {
        self.state().asks.pending()
    }

    /// How the asks of this session were settled, oldest first: the audit record.
    #[must_use]
    pub fn verdicts(&self) -> Vec<AskVerdict> {
        self.state().asks.verdicts().to_vec()
    }

    /// An ask of this session, pending or settled; the newest of that id.
    #[must_use]
    pub fn ask(&self, id: &AskId) -> Option<Arc<Ask>> {
        self.state().asks.get(id)
    }

    /// The run that an ask of this session belongs to; of the newest of that id.
    #[must_use]
    pub fn run_of_ask(&self, id: &AskId) -> Option<RunId> {
        self.state().asks.run_of(id)
    }

    /// Whether the upstream said that the session is paused, and not yet that it goes on.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state().paused
    }

    /// When something last happened, if nothing goes on now and nothing waits. A log that is unread stays so.
    pub(crate) fn at_rest_since(&self) -> Option<Millis> {
        let state = self.locked();
        (state.active().is_none() && self.waiting() == 0).then_some(state.last_at)
    }

    /// When it was made.
    pub(crate) fn born_at(&self) -> Millis {
        self.birth.created_at
    }

    /// The ids of its runs, oldest first, and of those that it has forgotten. A log that is unread stays so.
    pub(crate) fn run_ids(&self) -> Vec<RunId> {
        let state = self.locked();
        state.forgotten.ids().chain(state.kept.iter().map(|kept| kept.run)).collect()
    }

    /// What it outlives.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.log.durability()
    }

    /// Whether the run that goes on is one that the upstream took.
    pub(crate) fn is_attached(&self) -> bool {
        let state = self.state();
        state.active().is_some_and(|run| run.is_attached)
    }
}
