//! What is there: cells, runs, sessions, and what a page needs after a reload (sse.md §1, E7–E12).

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use interline_hub::{Filter, InTurn, NotBegun, Projection, Route, RunInfo, RunStatus, Session};
use interline_model::{CellName, Millis, SessionId, Text};
use serde::Serialize;
use serde_json::Value;

use crate::Block;
use crate::caller::Caller;
use crate::control::done;
use crate::error::{Refusal, json};
use crate::history::{HistoryWriter, plan_json};
use crate::moment::rfc3339;
use crate::shell::{Shell, Target};

/// Entries of a page, unless asked otherwise.
const PAGE: usize = 50;
/// Entries of a page at most.
const LARGEST_PAGE: usize = 500;

/// A run as lists show it. What is not known yet is left out.
#[derive(Serialize)]
struct RunObject {
    run_id: String,
    agent_id: String,
    session_id: String,
    model: String,
    status: &'static str,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    total_turns: u64,
    step_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seq: Option<u64>,
}

#[derive(Serialize)]
struct RunPage {
    runs: Vec<RunObject>,
    limit: usize,
    offset: usize,
}

#[derive(Serialize)]
struct SessionObject {
    session_id: String,
    title: String,
    agent_id: String,
    created_at: String,
    updated_at: String,
    running: bool,
}

#[derive(Serialize)]
struct SessionPage {
    sessions: Vec<SessionObject>,
    limit: usize,
    offset: usize,
}

#[derive(Serialize)]
struct CellObject {
    cell: String,
    state: &'static str,
    models: Vec<String>,
}

#[derive(Serialize)]
struct CellPage {
    cells: Vec<CellObject>,
}

/// `GET /cells/{cell}/runs`, the latest first.
pub(crate) async fn runs(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    let (limit, offset) = page(&caller)?;
    let status = caller.query("status");
    let actor = caller.query("actor");
    let sessions = match caller.query("session_id") {
        Some(id) => {
            let session = shell.hub.session(&caller.access, &SessionId::from(id.to_owned()));
            session.into_iter().filter(|session| *session.cell() == cell).collect()
        }
        None => shell.hub.sessions(&caller.access, &Filter { cell: Some(cell), actor: None }),
    };
    let mut found: Vec<(Millis, Arc<Session>, RunInfo)> = Vec::new();
    for session in sessions {
        let wanted = |run: &RunInfo| {
            status.is_none_or(|status| status == run.status.as_str()) && actor.is_none_or(|actor| run.actor.as_deref() == Some(actor))
        };
        found.extend(session.runs().into_iter().filter(wanted).map(|run| (run.started_at, session.clone(), run)));
    }
    found.sort_by_key(|(started_at, ..)| std::cmp::Reverse(*started_at));
    let runs = found.iter().skip(offset).take(limit).map(|(_, session, run)| run_object(session, run)).collect();
    Ok(json(&RunPage { runs, limit, offset }).into_response())
}

/// `GET /cells/{cell}/runs/{run_id}`: with how far its events go and, once it has ended, why.
pub(crate) async fn run(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let target = caller.target(&shell)?;
    let mut object = match &target {
        Target::Begun(session, run) => run_object(session, &session.run_info(*run).ok_or_else(|| Refusal::RunNotFound(run.to_string()))?),
        Target::InTurn(waiting) => waiting_object(waiting),
    };
    if let Some(last) = shell.last(&target, shell.config.extras) {
        object.last_seq = Some(last.seq());
        object.stop_reason = stop_reason(&last);
    }
    Ok(json(&object).into_response())
}

/// The token in a run's terminal event.
fn stop_reason(last: &Block) -> Option<String> {
    let event: Value = serde_json::from_slice(&last.json()).ok().filter(|_| last.is_terminal())?;
    ["reason", "kind"].iter().find_map(|name| event.get(*name)?.as_str()).map(str::to_owned)
}

/// One that waits for its turn is to its client one that goes on.
fn waiting_object(waiting: &InTurn) -> RunObject {
    let status = match waiting.why_not() {
        None | Some(NotBegun::Left) => RunStatus::Running,
        Some(NotBegun::Stopped) => RunStatus::Interrupted,
        Some(NotBegun::Refused(_)) => RunStatus::Failed,
    };
    RunObject {
        run_id: waiting.run.to_string(),
        agent_id: waiting.session.cell().to_string(),
        session_id: waiting.session.id().to_string(),
        model: waiting.model.to_string(),
        status: status.as_str(),
        started_at: rfc3339(waiting.taken_at),
        ended_at: None,
        total_turns: 0,
        step_count: 0,
        elapsed_ms: None,
        input_tokens: None,
        output_tokens: None,
        stop_reason: None,
        last_seq: None,
    }
}

fn run_object(session: &Session, run: &RunInfo) -> RunObject {
    RunObject {
        run_id: run.run.to_string(),
        agent_id: session.cell().to_string(),
        session_id: session.id().to_string(),
        model: run.model.to_string(),
        status: run.status.as_str(),
        started_at: rfc3339(run.started_at),
        ended_at: run.ended_at.map(rfc3339),
        total_turns: run.turns,
        step_count: run.steps,
        elapsed_ms: run.ended_at.map(|ended_at| ended_at.saturating_sub(run.started_at)),
        input_tokens: run.usage.map(|usage| usage.input_tokens),
        output_tokens: run.usage.map(|usage| usage.output_tokens),
        stop_reason: None,
        last_seq: None,
    }
}

/// `GET /cells/{cell}/sessions`, the latest used first.
pub(crate) async fn sessions(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    let (limit, offset) = page(&caller)?;
    let filter = Filter { cell: Some(cell), actor: caller.query("actor").map(Text::from) };
    let sessions = shell.hub.sessions(&caller.access, &filter);
    let shown = sessions.iter().skip(offset).take(limit).map(|session| {
        let info = session.info();
        SessionObject {
            session_id: info.session.to_string(),
            title: info.title.to_string(),
            agent_id: info.cell.to_string(),
            created_at: rfc3339(info.created_at),
            updated_at: rfc3339(info.updated_at),
            running: info.latest.is_some_and(|run| run.status == RunStatus::Running),
        }
    });
    Ok(json(&SessionPage { sessions: shown.collect(), limit, offset }).into_response())
}

/// `DELETE /cells/{cell}/sessions/{session_id}`.
pub(crate) async fn delete_session(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    if shell.hub.delete_session(&caller.access, session.id()) {
        Ok(done())
    } else {
        Err(Refusal::SessionNotFound(session.id().to_string()))
    }
}

/// `GET …/sessions/{session_id}/messages`.
pub(crate) async fn messages(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    let messages = history(&session).tail(0).ready(usize::MAX);
    Ok(raw(format!("{{\"messages\":[{}]}}", messages.join(","))))
}

/// `GET …/sessions/{session_id}/plan`.
pub(crate) async fn plan(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    Ok(raw(history(&session).with(|writer, _| plan_json(writer.plan()))))
}

fn history(session: &Session) -> Arc<Projection<HistoryWriter>> {
    session.projection("", HistoryWriter::default)
}

/// JSON that is written already.
pub(crate) fn raw(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], text).into_response()
}

/// `GET /cells`: those that have a name; a route for `*` serves any other.
pub(crate) async fn cells(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let routes = shell.hub.routes();
    let named = routes.iter().filter(|route| route.cell.as_str() != "*" && caller.access.allows(&route.cell));
    Ok(json(&CellPage { cells: named.map(|route| cell_object(&route.cell, route)).collect() }).into_response())
}

/// `GET /cells/{cell}`.
pub(crate) async fn cell(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    Ok(json(&cell_object(&cell, &*shell.hub.route(&caller.access, &cell)?)).into_response())
}

fn cell_object(cell: &CellName, route: &Route) -> CellObject {
    let mut models: Vec<String> = route.models.default.iter().chain(route.models.map.keys()).cloned().collect();
    models.sort();
    models.dedup();
    CellObject { cell: cell.to_string(), state: "active", models }
}

/// `limit` and `offset`.
fn page(caller: &Caller) -> Result<(usize, usize), Refusal> {
    let number = |name: &str, default: usize| match caller.query(name).filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| Refusal::InvalidRequest(format!("`{name}` must be a whole number, 0 or more"))),
    };
    Ok((number("limit", PAGE)?.min(LARGEST_PAGE), number("offset", 0)?))
}
