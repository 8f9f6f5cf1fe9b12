//! The REST set beside the sockets, on the same origin (socketio.md §5): sessions, and their turns exactly as the events added up to them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use axum::{Json, Router};
use interline_hub::{Access, Filter, MAX_MODEL_BYTES, NewSession, RunStatus, Session, SessionInfo};
use interline_model::{SessionId, Text, Usage};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::members::Members;
use crate::refusal::Problem;
use crate::shell::{SURFACE, Shell};
use crate::{SessionStatus, bearer, explain, files, marks, stock, timestamp};

/// Sessions on one page of a list.
const PAGE: usize = 20;
const LARGEST_PAGE: usize = 200;

/// What a new session is kept with, and lists and details show again.
const LABELS: [&str; 7] = ["solution_id", "biz_role_id", "template_id", "primary_skill_id", "model", "memory_enabled", "is_persistent"];

type Answer = Result<Response, Problem>;

/// All REST routes.
pub(crate) fn routes() -> Router<Arc<Shell>> {
    let session = get(detail).delete(delete).patch(rename).put(rename);
    let routes: [(&str, MethodRouter<Arc<Shell>>); 7] = [
        ("/api/sessions", get(list).post(create)),
        ("/api/sessions/{id}", session),
        ("/api/sessions/{id}/messages", get(messages)),
        ("/api/sessions/{id}/turns", get(messages)),
        ("/api/sessions/{id}/turns/{turn_id}", get(turn)),
        ("/api/health", get(health)),
        ("/api/version", get(version)),
    ];
    let mut router = marks::routes(files::routes(stock::routes(Router::new())));
    for (path, methods) in routes {
        router = router.route(&format!("{path}/"), methods.clone()).route(path, methods);
    }
    router.route("/api/{*rest}", any(wrong_path)).method_not_allowed_fallback(wrong_method)
}

async fn wrong_path() -> Problem {
    Problem::NotFound("Path")
}

async fn wrong_method() -> Problem {
    Problem::MethodNotAllowed
}

/// An admitted client.
pub(crate) struct Caller(pub(crate) Access);

impl FromRequestParts<Arc<Shell>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shell: &Arc<Shell>) -> Result<Self, Problem> {
        let token = bearer::of_request(&parts.headers, &parts.uri, &shell.config, &shell.hub.origins(&shell.config.origins));
        Ok(Self(shell.hub.admit_to(SURFACE, token.as_deref(), parts.extensions.get().copied())?))
    }
}

impl Caller {
    /// The client's session of this id. Somebody else's does not exist.
    pub(crate) fn session(&self, shell: &Shell, id: &str) -> Result<Arc<Session>, Problem> {
        shell.hub.session(&self.0, &SessionId::from(id.to_owned())).ok_or(Problem::NotFound("Session"))
    }
}

async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn version() -> Json<Value> {
    // Clients refuse a server whose `min_sdk` is above their own version.
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "min_sdk": "0.0.0"}))
}

async fn create(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Answer {
    let body = received(&shell, body).await?;
    let request = members(&body)?;
    let title = match request.value("intent").map_err(|_| invalid("intent", "Input should be a valid string"))? {
        None => None,
        Some(Value::String(intent)) => Some(Text::from(intent)).filter(|intent| !intent.is_empty()),
        Some(_) => return Err(invalid("intent", "Input should be a valid string")),
    };
    let model = request.text("model").filter(|model| !model.is_empty()).map(Text::from);
    if model.as_ref().is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
        return Err(invalid("model", "String should have at most 256 bytes"));
    }
    let environment = marks::environment(&request)?;
    let labels = request.pick(&LABELS);
    let session = shell.hub.create_session(&caller.0, NewSession { title, model, labels, ..NewSession::default() })?;
    if let Some(environment) = environment {
        shell.notes.with(&session, |note| note.environment = environment);
    }
    let id = session.id().as_str();
    Ok(Json(json!({"session_id": id, "id": id})).into_response())
}

async fn list(State(shell): State<Arc<Shell>>, caller: Caller, Query(query): Query<Vec<(String, String)>>) -> Answer {
    let parameter = |name: &str| query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    let number = |name: &'static str, default: usize| match parameter(name) {
        None | Some("") => Ok(default),
        Some(text) => text.parse::<usize>().map_err(|_| Problem::Invalid {
            place: vec!["query", name],
            message: "Input should be a valid integer, not below 0".to_owned(),
        }),
    };
    let (limit, offset) = (number("limit", PAGE)?.min(LARGEST_PAGE), number("offset", 0)?);
    let wanted = parameter("q").unwrap_or_default().to_lowercase();
    let prefix = parameter("template_id_prefix").unwrap_or_default();
    let found = shell.hub.sessions(&caller.0, &Filter::default()).into_iter().filter(|session| {
        let info = session.info();
        let template = info.labels.get("template_id").and_then(Value::as_str).unwrap_or_default();
        (wanted.is_empty() || info.title.to_lowercase().contains(&wanted)) && template.starts_with(prefix)
    });
    let found: Vec<Arc<Session>> = found.collect();
    let items: Vec<Value> = found.iter().skip(offset).take(limit).map(|session| session_value(&shell, &caller, session)).collect();
    let answer = json!({"items": items, "total": found.len(), "limit": limit, "offset": offset, "content_match_truncated": false});
    Ok(Json(answer).into_response())
}

async fn detail(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let session = caller.session(&shell, &id)?;
    let mut detail = session_value(&shell, &caller, &session);
    if let Some(detail) = detail.as_object_mut() {
        for unknown in ["solution", "primary_skill_snapshot", "session_setup"] {
            detail.insert(unknown.to_owned(), Value::Null);
        }
        detail.insert("viewer_role".to_owned(), Value::from("owner"));
        detail.insert("usage".to_owned(), usage_of(&session));
    }
    Ok(Json(detail).into_response())
}

async fn delete(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>) -> Answer {
    // A running chat is ended first: the hub does that.
    if !shell.hub.delete_session(&caller.0, &SessionId::from(id)) {
        return Err(Problem::NotFound("Session"));
    }
    Ok(Json(json!({"deleted": true})).into_response())
}

async fn rename(State(shell): State<Arc<Shell>>, caller: Caller, Path(id): Path<String>, body: Body) -> Answer {
    let session = caller.session(&shell, &id)?;
    let body = received(&shell, body).await?;
    let request = members(&body)?;
    match request.raw("intent") {
        Some(_) => {
            session.set_title(Text::from(request.text("intent").ok_or_else(|| invalid("intent", "Input should be a valid string"))?))
        }
        None => return Err(invalid("intent", "Field required")),
    }
    Ok(Json(session_value(&shell, &caller, &session)).into_response())
}

async fn messages(
    State(shell): State<Arc<Shell>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer {
    let session = caller.session(&shell, &id)?;
    let asked = query.iter().any(|(name, value)| name == "explain" && matches!(value.as_str(), "" | "1" | "true" | "yes" | "on"));
    if asked && !shell.config.explain {
        return Err(Problem::Unexplained);
    }
    if asked {
        // As long as the session is, so not where other clients wait for their turn.
        let reading = tokio::task::spawn_blocking(move || explain::messages(&shell, &session));
        return reading.await.map(written).map_err(|_| Problem::Unavailable("The session could not be read".to_owned()));
    }
    Ok(written(shell.projection(&session).with(|writer, _| writer.messages_json())))
}

async fn turn(State(shell): State<Arc<Shell>>, caller: Caller, Path((id, turn)): Path<(String, String)>) -> Answer {
    let session = caller.session(&shell, &id)?;
    shell.projection(&session).with(|writer, _| writer.turn_json(&turn)).map(written).ok_or(Problem::NotFound("Turn"))
}

fn written(json: interline_model::Json) -> Response {
    let mut response = Response::new(Body::from(bytes::Bytes::copy_from_slice(json.as_str().as_bytes())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A Session (socketio.md §3.3).
pub(crate) fn session_value(shell: &Shell, caller: &Caller, session: &Arc<Session>) -> Value {
    let info = session.info();
    let pinned = shell.notes.with(session, |note| note.pinned);
    let label = |name: &str| info.labels.get(name).cloned().unwrap_or(Value::Null);
    let flag = |name: &str| info.labels.get(name).and_then(Value::as_bool).unwrap_or(false);
    json!({
        "id": info.session.as_str(),
        "intent": &*info.title,
        "status": status_of(&info).as_str(),
        "created_at": timestamp(info.created_at),
        "updated_at": timestamp(info.updated_at),
        "user_id": caller.0.principal().as_str(),
        "solution_id": label("solution_id"),
        "biz_role_id": label("biz_role_id"),
        "template_id": label("template_id"),
        "model": info.model.as_deref(),
        "shared": false,
        "is_pinned": pinned,
        "memory_enabled": flag("memory_enabled"),
        "is_persistent": flag("is_persistent"),
        "replay_state": null,
    })
}

/// The tokens of all its runs, as far as they are known; null if of none.
fn usage_of(session: &Session) -> Value {
    let mut total: Option<Usage> = None;
    for usage in session.runs().iter().filter_map(|run| run.usage) {
        let sum = total.get_or_insert_default();
        sum.input_tokens = sum.input_tokens.saturating_add(usage.input_tokens);
        sum.output_tokens = sum.output_tokens.saturating_add(usage.output_tokens);
        sum.cache_read_tokens = sum.cache_read_tokens.saturating_add(usage.cache_read_tokens);
        sum.cache_write_tokens = sum.cache_write_tokens.saturating_add(usage.cache_write_tokens);
    }
    total.map_or(Value::Null, |usage| {
        json!({
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens,
        })
    })
}

fn status_of(info: &SessionInfo) -> SessionStatus {
    match info.latest.as_ref().map(|run| run.status) {
        None => SessionStatus::Created,
        Some(RunStatus::Running) if info.asking => SessionStatus::WaitingForInput,
        Some(RunStatus::Running) => SessionStatus::Running,
        Some(RunStatus::Completed) => SessionStatus::Completed,
        Some(RunStatus::Failed) => SessionStatus::Failed,
        Some(RunStatus::Interrupted) => SessionStatus::Interrupted,
    }
}

pub(crate) fn invalid(member: &'static str, message: &str) -> Problem {
    Problem::Invalid { place: vec!["body", member], message: message.to_owned() }
}

/// The whole body.
pub(crate) async fn received(shell: &Shell, body: Body) -> Result<String, Problem> {
    let limit = shell.config.max_body_bytes;
    let reading = axum::body::to_bytes(body, limit);
    let body = match tokio::time::timeout(Duration::from_millis(shell.config.body_timeout_ms), reading).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return Err(Problem::TooLarge(limit)),
        Err(_) => return Err(Problem::Timeout),
    };
    String::from_utf8(body.into()).map_err(|error| wrong(format!("JSON decode error: {error}")))
}

/// The members of a body that holds an object; an empty body is an empty object.
pub(crate) fn members(body: &str) -> Result<Members<'_>, Problem> {
    let body = body.trim_start_matches('\u{feff}');
    if body.trim().is_empty() {
        return Ok(Members::none());
    }
    if let Some(members) = Members::read(body) {
        return Ok(members);
    }
    match serde_json::from_str::<&RawValue>(body) {
        Ok(_) => Err(wrong("Input should be an object".to_owned())),
        Err(error) => Err(wrong(format!("JSON decode error: {error}"))),
    }
}

fn wrong(message: String) -> Problem {
    Problem::Invalid { place: vec!["body"], message }
}
