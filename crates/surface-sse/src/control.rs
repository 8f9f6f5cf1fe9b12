//! What clients want done: stop a run, answer an ask (sse.md §1, E3–E6).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use interline_hub::{AnswerError, Filter, NotBegun, Session, StartError, Stopped};
use interline_model::{AskId, RunId};
use serde::Serialize;

use crate::answer::Reply;
use crate::caller::Caller;
use crate::error::{Refusal, json};
use crate::shell::{Shell, Target, read_body};

/// The answer to a command.
#[derive(Serialize)]
struct Done {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
}

/// The answer to a command that says no more than that it was done.
pub(crate) fn done() -> Response {
    json(&Done { ok: true, run_id: None, status: None }).into_response()
}

/// `POST …/runs/{run_id}/interrupt`: answered at once, the stream shows when it took effect.
pub(crate) async fn interrupt_run(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    match caller.target(&shell)? {
        Target::Begun(session, run) => Ok(stop(&session, Some(run), &caller)),
        Target::InTurn(waiting) => {
            let status = match waiting.stop(caller.actor()) {
                None => return Ok(stopping(waiting.run)),
                Some(NotBegun::Stopped) => "interrupted",
                Some(NotBegun::Refused(_)) => "failed",
                // The next process can be told.
                Some(NotBegun::Left) => return Err(StartError::Draining.into()),
            };
            Ok(json(&Done { ok: true, run_id: None, status: Some(status) }).into_response())
        }
    }
}

fn stopping(run: RunId) -> Response {
    (StatusCode::ACCEPTED, json(&Done { ok: true, run_id: Some(run.to_string()), status: Some("interrupting") })).into_response()
}

/// `POST …/sessions/{session_id}/interrupt`.
pub(crate) async fn interrupt_session(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    Ok(stop(&session, None, &caller))
}

fn stop(session: &Session, run: Option<RunId>, caller: &Caller) -> Response {
    let status = match session.stop(run, caller.actor()) {
        Stopped::Stopping(run) => return stopping(run),
        Stopped::Ended(_, status) => status.as_str(),
        Stopped::Idle => session.info().latest.map_or("idle", |run| run.status.as_str()),
    };
    json(&Done { ok: true, run_id: None, status: Some(status) }).into_response()
}

/// `POST …/hitl/{request_id}`: the ask is found by its id alone, pending ones before settled ones (decision 18).
pub(crate) async fn answer(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    let ask = ask_id(&caller);
    let sessions = shell.hub.sessions(&caller.access, &Filter { cell: Some(cell), actor: None });
    let pending = |session: &&Arc<Session>| session.pending_asks().iter().any(|pending| pending.ask.id == ask);
    let session = sessions.iter().find(pending).or_else(|| sessions.iter().find(|session| session.ask(&ask).is_some()));
    let session = session.ok_or_else(|| Refusal::RequestNotFound(ask.to_string()))?;
    settle(session, &ask, Reply::parse(&read_body(&shell, body).await?)?, &caller)
}

/// `POST …/runs/{run_id}/approvals/{request_id}`: only what that very run asked.
pub(crate) async fn answer_in_run(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Result<Response, Refusal> {
    let (session, ask) = asked_by_run(&shell, &caller)?;
    settle(&session, &ask, Reply::parse(&read_body(&shell, body).await?)?, &caller)
}

/// `POST …/approvals/{request_id}/approve`.
pub(crate) async fn approve(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let (session, ask) = asked_by_run(&shell, &caller)?;
    settle(&session, &ask, Reply::allow(), &caller)
}

/// `POST …/approvals/{request_id}/deny`.
pub(crate) async fn deny(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let (session, ask) = asked_by_run(&shell, &caller)?;
    settle(&session, &ask, Reply::deny(), &caller)
}

fn asked_by_run(shell: &Shell, caller: &Caller) -> Result<(Arc<Session>, AskId), Refusal> {
    let (session, run) = caller.run(shell)?;
    let ask = ask_id(caller);
    if session.run_of_ask(&ask) == Some(run) { Ok((session, ask)) } else { Err(Refusal::RequestNotFound(ask.to_string())) }
}

fn ask_id(caller: &Caller) -> AskId {
    AskId::from(caller.path("request_id").to_owned())
}

fn settle(session: &Session, id: &AskId, reply: Reply, caller: &Caller) -> Result<Response, Refusal> {
    let ask = session.ask(id).ok_or_else(|| Refusal::RequestNotFound(id.to_string()))?;
    match session.answer(id, reply.answer(&ask)?, caller.actor()) {
        Ok(_) => Ok(done()),
        Err(AnswerError::NotFound) => Err(Refusal::RequestNotFound(id.to_string())),
        Err(AnswerError::Settled { outcome, by }) => Err(Refusal::AlreadyResolved { outcome, by }),
        Err(error @ AnswerError::Forbidden { .. }) => Err(Refusal::Forbidden(error.to_string())),
    }
}
