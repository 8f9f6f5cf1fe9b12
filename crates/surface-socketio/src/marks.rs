//! What a frontend does with a session beside the chat: marks and variables, compaction and rewinding. What has no meaning behind a proxy is
//! answered with a sentence that says so (socketio.md §5.4).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{MethodRouter, get, patch, post, put};
use axum::{Json, Router};
use interline_hub::{Action, ActionError, Environment};
use interline_model::Text;
use serde_json::{Value, json};

use crate::command;
use crate::members::Members;
use crate::refusal::Problem;
use crate::rest::{Caller, invalid, members, received, session_value};
use crate::shell::Shell;

type Answer = Result<Json<Value>, Problem>;

const NO_TREE: &str = "The agent keeps one line of conversation: there are no checkpoints to go to and no branches";
const NO_REPLAY: &str = "A recorded session cannot be played again as a new one";
const NO_SHARING: &str = "Sessions belong to who made them and cannot be shared through Interline";
const NO_SKILLS: &str = "Skills live with the agent and cannot be uploaded through Interline";
const NO_KEYS: &str = "Tokens are given out in Interline's configuration, not over HTTP";
const NO_MEMORY: &str = "Memory across sessions is the agent's own and cannot be switched on through Interline";

/// Adds the routes.
pub(crate) fn routes(router: Router<Arc<Shell>>) -> Router<Arc<Shell>> {
    router
        .route("/api/sessions/{id}/env", put(set_environment))
        .route("/api/sessions/{id}/pin", patch(pin))
        .route("/api/sessions/{id}/sharing", patch(sharing))
        .route("/api/sessions/{id}/memory", patch(memory))
        .route("/api/sessions/{id}/compact", post(compact))
        .route("/api/sessions/{id}/rewind", post(rewind))
        .route("/api/sessions/{id}/checkout", of_session(NO_TREE))
        .route("/api/sessions/{id}/switch-branch", of_session(NO_TREE))
        .route("/api/sessions/{id}/replay", of_session(NO_REPLAY))
        .route("/api/sessions/{id}/share", of_session(NO_SHARING))
        .route("/api/sessions/{id}/skills:upload", of_session(NO_SKILLS))
        .route("/api/share/{token}", get(async |_: Caller| Problem::NotHere(NO_SHARING)))
        .route("/api/user/api-keys/", keys().get(no_keys).post(no_keys))
        .route("/api/user/api-keys", keys().get(no_keys).post(no_keys))
        .route("/api/user/api-keys/{key}", keys().patch(no_keys).delete(no_keys))
}

/// POST on something of a session that there is, which cannot be done.
fn of_session(why: &'static str) -> MethodRouter<Arc<Shell>> {
    post(async move |State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>| -> Problem {
        match caller.session(&shell, &id) {
            Ok(_) => Problem::NotHere(why),
            Err(problem) => problem,
        }
    })
}

fn keys() -> MethodRouter<Arc<Shell>> {
    MethodRouter::new()
}

async fn no_keys(_: Caller) -> Problem {
    Problem::NotHere(NO_KEYS)
}

/// `env`: an object of texts.
pub(crate) fn environment(request: &Members<'_>) -> Result<Option<Environment>, Problem> {
    let wrong = || invalid("env", "Input should be an object of strings");
    match request.value("env").map_err(|_| wrong())? {
        None => Ok(None),
        Some(value) => {
            let checked = command::environment(&value).ok_or_else(wrong)?;
            checked.map(Some).map_err(|error| invalid("env", &error.to_string()))
        }
    }
}

/// Holds for every run from now on, and for the one that goes on.
async fn set_environment(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>, body: Body) -> Answer {
    let session = caller.session(&shell, &id)?;
    let body = received(&shell, body).await?;
    let environment = environment(&members(&body)?)?.ok_or_else(|| invalid("env", "Field required"))?;
    match session.act(Action::SetEnvironment(environment.clone()), caller.0.credential().clone()).await {
        Ok(_) | Err(ActionError::Idle) => {}
        Err(error) => return Err(error.into()),
    }
    shell.notes.with(&session, |note| note.environment = environment);
    Ok(Json(session_value(&shell, &caller, &session)))
}

async fn pin(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>, body: Body) -> Answer {
    let session = caller.session(&shell, &id)?;
    let pinned = flag(&shell, body, "pinned").await?;
    shell.notes.with(&session, |note| note.pinned = pinned);
    Ok(Json(session_value(&shell, &caller, &session)))
}

async fn sharing(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>, body: Body) -> Answer {
    caller.session(&shell, &id)?;
    if flag(&shell, body, "shared").await? {
        return Err(Problem::NotHere(NO_SHARING));
    }
    Ok(Json(json!({"shared": false})))
}

async fn memory(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>, body: Body) -> Answer {
    caller.session(&shell, &id)?;
    if flag(&shell, body, "memory_enabled").await? {
        return Err(Problem::NotHere(NO_MEMORY));
    }
    Ok(Json(json!({"memory_enabled": false})))
}

async fn flag(shell: &Shell, body: Body, name: &'static str) -> Result<bool, Problem> {
    let body = received(shell, body).await?;
    match members(&body)?.value(name) {
        Ok(Some(Value::Bool(flag))) => Ok(flag),
        Ok(None) => Err(invalid(name, "Field required")),
        Ok(Some(_)) | Err(_) => Err(invalid(name, "Input should be a valid boolean")),
    }
}

async fn compact(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let session = caller.session(&shell, &id)?;
    session.act(Action::Compact, caller.0.credential().clone()).await?;
    Ok(Json(json!({"status": "ok", "session_id": session.id().as_str()})))
}

/// `checkpoint_id` is a user's message as the agent knows it: nothing else is a checkpoint to it.
async fn rewind(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>, body: Body) -> Answer {
    let session = caller.session(&shell, &id)?;
    let body = received(&shell, body).await?;
    let message = members(&body)?.text("checkpoint_id").filter(|id| !id.is_empty());
    let message = message.ok_or_else(|| invalid("checkpoint_id", "Field required"))?;
    let action = Action::Rewind { message: Text::from(message), dry_run: false };
    let told = session.act(action, caller.0.credential().clone()).await?.to_value();
    Ok(Json(if told.is_object() { told } else { json!({}) }))
}
