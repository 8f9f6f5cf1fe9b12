//! `POST /cells/{cell}/run`: starts a run and streams it, or attaches to the one that the same request started (sse.md §1.3, §5.6).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use interline_hub::{StartRun, Started};
use interline_model::{CellName, SessionId, Text, path_segment};

use crate::caller::{Caller, SURFACE};
use crate::cursor;
use crate::error::Refusal;
use crate::posts;
use crate::request::RunRequest;
use crate::shell::{Shell, Target, read_body};

/// The handler. Leaving does not stop the run.
pub(crate) async fn start(State(shell): State<Arc<Shell>>, caller: Caller, headers: HeaderMap, body: Body) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    // Before anything begins: what cannot be shown is not started.
    let visit = shell.hub.visit(SURFACE, &caller.access)?;
    let body = read_body(&shell, body).await?;
    let profile = cursor::post_profile(caller.query("sse"), shell.config.post_profile, shell.config.post_ids, &headers);
    let extras = cursor::extras(caller.query("extras"), shell.config.extras);
    if let Some((run, seen)) = cursor::resumption(&headers).filter(|_| shell.config.post_ids) {
        // What is no longer there is not started again: it was run.
        let target = shell.target(&caller.access, &cell, run).ok_or_else(|| Refusal::RunNotFound(run.to_string()))?;
        return located(shell.stream(target, seen.saturating_add(1), profile, extras, None, visit)?, &cell);
    }
    let request = RunRequest::parse(&body)?;
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(Text::from).filter(|key| !key.is_empty());
    // A key says better than its bytes which request is the same.
    let posts = shell.posts.as_ref().filter(|_| key.is_none());
    let posts = posts.map(|posts| (posts, posts::sameness(caller.access.principal(), &cell, &body)));
    drop(body);
    let before = match &posts {
        Some((posts, sameness)) => posts.attach(sameness).await,
        None => None,
    };
    let target = match before.and_then(|run| shell.target(&caller.access, &cell, run)) {
        Some(target) => target,
        None => begin(&shell, &caller, &cell, request, key)?,
    };
    let answering = posts.map(|(posts, sameness)| posts.answering(sameness, target.run()));
    located(shell.stream(target, 1, profile, extras, answering, visit)?, &cell)
}

fn begin(shell: &Arc<Shell>, caller: &Caller, cell: &CellName, request: RunRequest, key: Option<Text>) -> Result<Target, Refusal> {
    let session = request.session.clone().map(SessionId::from);
    let known = session.as_ref().and_then(|id| shell.hub.session(&caller.access, id));
    if known.as_ref().is_some_and(|session| session.cell() != cell) {
        // Said now, and not when the run's turn has come.
        return Err(Refusal::SessionNotFound(session.map(|id| id.to_string()).unwrap_or_default()));
    }
    let start = StartRun {
        surface: Text::from_static(SURFACE),
        cell: Some(cell.clone()),
        session,
        model: request.model.clone(),
        system_prompt: request.system_prompt.clone(),
        actor: request.actor.clone(),
        settings: request.settings.clone(),
        input: request.into_input(known.as_ref().is_some_and(|session| !session.runs().is_empty())),
        idempotency_key: key,
        is_acknowledged: true,
        ..StartRun::default()
    };
    Ok(match shell.hub.start_in_turn(&caller.access, start)? {
        Started::Begun(session, run) => Target::Begun(session, run),
        Started::InTurn(waiting) => Target::InTurn(waiting),
    })
}

/// The answer to a POST says where its run can be read again.
fn located(mut response: Response, cell: &CellName) -> Result<Response, Refusal> {
    let run = response.headers().get("x-run-id").and_then(|run| run.to_str().ok()).unwrap_or_default();
    if let Ok(location) = HeaderValue::from_str(&format!("/cells/{}/runs/{run}/events", path_segment(cell.as_str()))) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}
