//! What a stock chat frontend asks for beside the chat itself: well-formed, and empty where a proxy has nothing to say (socketio.md §5.2).

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use interline_hub::Action;
use serde_json::{Value, json};

use crate::refusal::Problem;
use crate::rest::Caller;
use crate::shell::Shell;

type Answer = Result<Json<Value>, Problem>;

/// Adds the routes.
pub(crate) fn routes(mut router: Router<Arc<Shell>>) -> Router<Arc<Shell>> {
    for path in ["/api/skills", "/api/skills/installed", "/api/solutions", "/api/solutions/{id}/biz-roles"] {
        router = router.route(path, get(async |_: Caller| Json(json!([]))));
    }
    for path in ["skills", "tasks", "background-tasks"] {
        router = router.route(&format!("/api/sessions/{{id}}/{path}"), get(empty_list));
    }
    router
        .route("/api/sessions/{id}/skill-stats", get(empty_object))
        .route("/api/sessions/{id}/context-stats", get(context_stats))
        .route("/api/sessions/{id}/checkpoints", get(checkpoints))
        .route("/api/sessions/{id}/history", get(history))
        .route("/api/auth/me", get(me))
        .route("/api/auth/refresh", post(refresh))
        .route("/api/config", get(config))
        .route("/api/config/models", get(models))
}

async fn empty_list(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    caller.session(&shell, &id)?;
    Ok(Json(json!([])))
}

async fn empty_object(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    caller.session(&shell, &id)?;
    Ok(Json(json!({})))
}

/// The agent server's own words while a run goes on and it can tell; nothing is known otherwise, and that is no error to a frontend.
async fn context_stats(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let session = caller.session(&shell, &id)?;
    let told = session.act(Action::ContextUsage, caller.0.credential().clone()).await;
    Ok(Json(told.ok().map(|told| told.to_value()).filter(Value::is_object).unwrap_or_else(|| json!({}))))
}

async fn checkpoints(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    caller.session(&shell, &id)?;
    Ok(Json(json!({"nodes": [], "leaf_id": null})))
}

async fn history(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    caller.session(&shell, &id)?;
    Ok(Json(json!({"nodes": [], "system_prompt_tokens": 0, "tools_tokens": 0, "tokenizer_model": null})))
}

async fn me(caller: Caller) -> Json<Value> {
    let name = caller.0.principal().as_str();
    Json(json!({"id": name, "username": name, "display_name": name, "avatar_url": null, "created_at": crate::timestamp(0)}))
}

/// A cookie cannot be renewed here. The client then shows its own log-in.
async fn refresh() -> Problem {
    Problem::UNAUTHORIZED
}

async fn config(_: Caller) -> Json<Value> {
    Json(json!({
        "sentryDsn": "", "posthogKey": "", "posthogHost": "", "asrEnabled": false, "asrProvider": "", "gisMapUrl": "", "bladeOsPath": "",
        "publicSharingEnabled": false, "memoryEnabled": false,
    }))
}

/// The models of the cell that the client's sessions are made in (decision 4): the names that its route knows.
async fn models(State(shell): State<Arc<Shell>>, caller: Caller) -> Json<Value> {
    let routes = shell.hub.routes();
    let models = routes.default_cell(&caller.0).and_then(|cell| routes.of(&cell)).map(|route| &route.models);
    let default = models.and_then(|models| models.default.as_deref()).unwrap_or("default");
    let others = models.into_iter().flat_map(|models| models.map.keys()).map(String::as_str).filter(|name| *name != default);
    // Documents say `name`, the Python client reads `label`.
    let listed: Vec<Value> = std::iter::once(default).chain(others).map(|name| json!({"id": name, "name": name, "label": name})).collect();
    Json(json!({"default": default, "models": listed, "thinkingAvailable": false}))
}
