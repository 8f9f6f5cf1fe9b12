//! How a run that waits for its turn is kept: in a log of its own, which begins as a run's does, with what was accepted. What else is needed
//! to start it stands in that log's birth.

use std::sync::Arc;

use interline_journal::{Birth, Journal, Log, LogKey, Mark, Stored, Unstored};
use interline_model::{Actor, Body, CellName, Fact, Millis, Record, RunAccepted, Text};
use serde::{Deserialize, Serialize};

use crate::in_turn::InTurn;
use crate::session::{Session, append_patiently};
use crate::{RunCredential, Settings, StartRun};

/// What a run needs besides what was accepted of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Beside {
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_setting: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permission_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_tokens: Option<u32>,
    /// When its session was made: one that was made later, under the same id, is another one.
    born_at: Millis,
    /// It was stopped before it began, and nothing else is kept of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_stopped: bool,
    /// It brought what is secret, and is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    unkept: Option<Unkept>,
}

/// What a client brought to start a run and the next process does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unkept {
    /// Its own credential for the upstream.
    Credential,
    /// Environment variables.
    Variables,
}

impl Unkept {
    /// What the run ends with.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Credential => "the program ended while the run waited for its turn, and the credential it was started with is not kept",
            Self::Variables => "the program ended while the run waited for its turn, and the environment variables it brought are not kept",
        }
    }
}

/// A run that waited when the last process ended.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) cell: CellName,
    /// As its client was, or will be, shown it.
    pub(crate) model: Text,
    pub(crate) taken_at: Millis,
    pub(crate) request: StartRun,
    pub(crate) unkept: Option<Unkept>,
    /// It was stopped before it began.
    pub(crate) is_stopped: bool,
    /// By whom, where more than its end is kept.
    pub(crate) stopped_by: Option<Actor>,
}

/// Keeps a run until it begins. It is on the disk, where that is promised, when this returns.
///
/// # Errors
/// When it has to be on the disk and cannot be.
pub(crate) fn keep(
    journal: &dyn Journal,
    session: &Session,
    place: Millis,
    accepted: RunAccepted,
    request: &StartRun,
    tag: Option<Text>,
    credential: &RunCredential,
) -> Result<(LogKey, Arc<dyn Log>), Unstored> {
    let Settings { model, permission_mode, thinking_tokens, environment } = &request.settings;
    let unkept = match credential {
        RunCredential::Client(_) => Some(Unkept::Credential),
        RunCredential::Configured => (!environment.0.is_empty()).then_some(Unkept::Variables),
    };
    let beside = Beside {
        system_prompt: request.system_prompt.as_deref().map(str::to_owned),
        model_setting: model.as_deref().map(str::to_owned),
        permission_mode: permission_mode.as_deref().map(str::to_owned),
        thinking_tokens: *thinking_tokens,
        born_at: session.born_at(),
        is_stopped: false,
        unkept,
    };
    let birth =
        Birth { cell: session.cell().clone(), created_at: place, title: None, model: request.model.clone(), labels: labels(beside) };
    let key = LogKey { waiting: Some(accepted.run), ..LogKey::session(session.principal().clone(), session.id().clone()) };
    let log = journal.open(&key, &birth, session.durability());
    let mark = Mark::Begins { run: accepted.run, tag };
    let record = Record { at: place, body: Body::Fact(Fact::RunAccepted(Box::new(accepted))) };
    match append_patiently(&*log, record, mark) {
        Ok(()) => Ok((key, log)),
        Err(error) => {
            journal.remove(&key);
            Err(error)
        }
    }
}

fn labels(beside: Beside) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(beside) {
        Ok(serde_json::Value::Object(labels)) => labels,
        // A struct is always an object.
        _ => serde_json::Map::new(),
    }
}

/// Keeps of a run nothing but that it was stopped: whoever comes back for it is told. What it was to do is let go of.
pub(crate) fn keep_end(journal: &dyn Journal, key: &LogKey, entry: &InTurn, by: &Actor) {
    journal.remove(key);
    let session = &entry.session;
    // In the birth, so that it is never there without that.
    let beside = Beside { born_at: session.born_at(), is_stopped: true, ..Beside::default() };
    let birth = Birth { cell: session.cell().clone(), created_at: entry.taken_at, title: None, model: None, labels: labels(beside) };
    let log = journal.open(key, &birth, session.durability());
    let accepted = RunAccepted {
        run: entry.run,
        session: session.id().clone(),
        model: entry.model.clone(),
        input: Vec::new(),
        by: by.clone(),
        actor: None,
        headless: false,
        output_schema: None,
    };
    let mark = Mark::Begins { run: entry.run, tag: None };
    let record = Record { at: entry.taken_at, body: Body::Fact(Fact::RunAccepted(Box::new(accepted))) };
    if let Err(error) = append_patiently(&*log, record, mark) {
        tracing::warn!(session = %session.id(), %error, "the end of a run that waited could not be stored");
    }
}

/// Reads what was kept of a run. `None` if it cannot be read, or its session is gone.
pub(crate) fn read(stored: &Stored, session_born_at: Millis) -> Option<Queued> {
    let (mut accepted, mut taken_at, mut stopped_by) = (None, 0, None);
    let read = stored.log.replay(0, &mut |record| match &record.body {
        Body::Fact(Fact::RunAccepted(first)) => (accepted, taken_at) = (Some((**first).clone()), record.at),
        Body::Fact(Fact::StopRequested { by }) => stopped_by = Some(by.clone()),
        _ => {}
    });
    if let Err(damaged) = read {
        tracing::error!(session = %stored.key.session, %damaged, "a run that waited for its turn cannot be read, and is forgotten");
        return None;
    }
    let RunAccepted { run, session, model: shown, input, by, actor, headless, output_schema } = accepted?;
    let Birth { cell, model, labels, .. } = stored.birth.clone();
    let beside = serde_json::from_value(serde_json::Value::Object(labels));
    let Beside { system_prompt, model_setting, permission_mode, thinking_tokens, born_at, is_stopped, unkept } = beside.ok()?;
    if born_at != session_born_at {
        return None;
    }
    let tag = stored.runs.first().and_then(|run| run.tag.clone());
    let settings = Settings {
        model: model_setting.map(Text::from),
        permission_mode: permission_mode.map(Text::from),
        thinking_tokens,
        ..Settings::default()
    };
    let request = StartRun {
        surface: by.surface,
        cell: Some(cell.clone()),
        session: Some(session),
        model,
        input,
        system_prompt: system_prompt.map(Text::from),
        idempotency_key: tag.as_deref().and_then(crate::hub::key_in),
        actor,
        settings,
        headless,
        output_schema,
        run: Some(run),
        is_acknowledged: true,
    };
    Some(Queued { cell, model: shown, taken_at, request, unkept, is_stopped: is_stopped || stopped_by.is_some(), stopped_by })
}
