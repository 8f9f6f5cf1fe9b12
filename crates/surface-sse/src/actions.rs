//! What a user can want of a session besides a run, an answer and a stop. What the agent server cannot do is said in a sentence, 501.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use interline_hub::{Action, ActionError, Session};
use interline_model::{Json, Text, write_json_string};

use crate::caller::Caller;
use crate::control::done;
use crate::cost::CostWriter;
use crate::error::Refusal;
use crate::escape::splice_json;
use crate::lists::raw;
use crate::members::Members;
use crate::request;
use crate::shell::{Shell, read_body};
use crate::wishes;

async fn act(session: &Session, caller: &Caller, action: Action) -> Result<Json, ActionError> {
    session.act(action, caller.access.credential().clone()).await
}

/// `GET …/sessions/{session_id}/cost`: the agent server's own account, else what the runs said.
pub(crate) async fn cost(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    match act(&session, &caller, Action::Cost).await {
        Ok(cost) => Ok(reply(&session, ",\"source\":\"upstream\",\"cost\":", &cost)),
        Err(ActionError::Unsupported(_) | ActionError::Idle) => {
            let costs = session.projection("", CostWriter::default);
            let runs = costs.tail(0).ready(usize::MAX);
            Ok(raw(costs.with(|writer, _| writer.answer(session.id(), &runs))))
        }
        Err(error) => Err(error.into()),
    }
}

/// `GET …/sessions/{session_id}/context`: how full the context is, while a run goes on.
pub(crate) async fn context(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    let usage = act(&session, &caller, Action::ContextUsage).await?;
    Ok(reply(&session, ",\"context\":", &usage))
}

/// `POST …/sessions/{session_id}/compact`: answered when it is done.
pub(crate) async fn compact(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    act(&session, &caller, Action::Compact).await?;
    Ok(done())
}

/// `POST …/sessions/{session_id}/model`: the run goes on with another one, by the name that clients use.
pub(crate) async fn model(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    let body = read_body(&shell, body).await?;
    let model = request::model(Members::parse(&body)?.text(&["model"])?)?.ok_or_else(|| missing("model"))?;
    let upstream = shell.hub.route(&caller.access, session.cell())?.upstream_model(Some(&model)).unwrap_or(model);
    act(&session, &caller, Action::SetModel(upstream)).await?;
    Ok(done())
}

/// `POST …/sessions/{session_id}/mode`.
pub(crate) async fn mode(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    let body = read_body(&shell, body).await?;
    let word = Members::parse(&body)?.text(&["mode", "permission_mode", "permissionMode"])?.ok_or_else(|| missing("mode"))?;
    act(&session, &caller, Action::SetPermissionMode(wishes::permission_mode(&word)?)).await?;
    Ok(done())
}

/// `POST …/sessions/{session_id}/tasks/{task_id}/stop`: stops a background task.
pub(crate) async fn stop_task(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    act(&session, &caller, Action::StopTask(Text::from(caller.path("task_id").to_owned()))).await?;
    Ok(done())
}

/// `POST …/sessions/{session_id}/rewind`: takes back what was done to files since a message.
pub(crate) async fn rewind(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    let body = read_body(&shell, body).await?;
    let body = Members::parse(&body)?;
    let message = body.text(&["message_id", "messageId", "user_message_id", "userMessageId"])?.ok_or_else(|| missing("message_id"))?;
    let dry_run = body.flag(&["dry_run", "dryRun"])?;
    let told = act(&session, &caller, Action::Rewind { message, dry_run }).await?;
    Ok(reply(&session, ",\"rewind\":", &told))
}

fn missing(name: &str) -> Refusal {
    Refusal::Unprocessable(format!("`{name}` is missing"))
}

/// The agent server's own object, and whose it is.
fn reply(session: &Session, member: &str, told: &Json) -> Response {
    let mut out = String::from("{\"session_id\":");
    write_json_string(&mut out, session.id().as_str());
    out.push_str(member);
    splice_json(&mut out, told.as_str());
    out.push('}');
    raw(out)
}
