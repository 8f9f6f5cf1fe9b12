//! What a stock chat frontend asks for beside the chat itself: well-formed, and empty where a proxy has nothing to say (socketio.md §5.2).

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
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
    for path in ["skill-stats", "context-stats"] {
        router = router.route(&format!("/api/sessions/{{id}}/{path}"), get(empty_object));
    }
    router
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

async fn models(_: Caller) -> Json<Value> {
    // Documents say `name`, the Python client reads `label`.
    Json(json!({"default": "default", "models": [{"id": "default", "name": "default", "label": "default"}], "thinkingAvailable": false}))
}
