//! The local bridge: sessions of many turns, one socket a turn, and the coding channel beside them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, State as Shared},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    attachments,
    bridge_session::{BridgeSession, Turn},
    frames,
    frames::Usage,
    inbound::{self, ControlRequest},
    locked,
    prompt::{Fault, Plan},
    replies::{self, bridge_error},
    run,
    stage::{Host, Stage},
    state::State,
    stats::{Plane, Prompt},
    websocket::{self, Delivery, Limits, Replies, Source},
};

/// Largest body of a message; the real bridge has no limit of its own.
const BODY_LIMIT: usize = 64 * 1024 * 1024;

/// Sessions above which idle ones are swept.
const MANY_SESSIONS: usize = 1024;

#[derive(Default)]
pub(crate) struct Bridge {
    sessions: Mutex<HashMap<String, Arc<BridgeSession>>>,
}

impl Bridge {
    fn session(&self, id: &str) -> Result<Arc<BridgeSession>, NoSuchSession> {
        locked(&self.sessions).get(id).cloned().ok_or(NoSuchSession)
    }
}

struct NoSuchSession;

impl IntoResponse for NoSuchSession {
    fn into_response(self) -> Response {
        bridge_error(StatusCode::NOT_FOUND, "no such session")
    }
}

pub(crate) fn routes(state: &Arc<State>) -> Router<Arc<State>> {
    Router::new()
        .route("/v1/code/sessions", post(create))
        .route("/v1/code/sessions/{id}", delete(remove))
        .route("/v1/code/sessions/{id}/messages", post(message))
        .route("/v1/code/sessions/{id}/ws", get(stream))
        .route("/v1/code/sessions/{id}/cost", get(cost))
        .route("/v1/code/sessions/{id}/compact", post(compact))
        .route("/v1/code/sessions/{id}/attachments", post(attach))
        .route("/v1/code/ws", get(code_channel))
        .route_layer(middleware::from_fn_with_state(Arc::clone(state), authorize))
        .route("/healthz", get(healthz))
}

/// The header must be `Bearer <token>` byte for byte (native-ws.md §4.1).
async fn authorize(Shared(state): Shared<Arc<State>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes);
    match &state.options.bridge_token {
        Some(token) if given != Some(format!("Bearer {token}").as_bytes()) => replies::plain(StatusCode::UNAUTHORIZED, "unauthorized\n"),
        _ => next.run(request).await,
    }
}

async fn healthz() -> Response {
    replies::json(StatusCode::OK, &json!({ "ok": true, "service": "biu", "mode": "serve" }))
}

async fn create(Shared(state): Shared<Arc<State>>) -> Response {
    let session = BridgeSession::new(frames::frame_id());
    let id = session.id.clone();
    let mut sessions = locked(&state.bridge.sessions);
    if sessions.len() >= MANY_SESSIONS {
        let retention = state.options.session_retention;
        sessions.retain(|_, session| session.idle_since().is_none_or(|since| since.elapsed() <= retention));
    }
    sessions.insert(id.clone(), session);
    drop(sessions);
    state.counters.count(|stats| stats.bridge_sessions += 1);
    replies::json(StatusCode::CREATED, &json!({ "id": id }))
}

#[derive(Deserialize)]
struct MessageRequest {
    #[serde(default)]
    prompt: String,
}

async fn message(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, NoSuchSession> {
    let session = state.bridge.session(&id)?;
    let invalid = |why: &dyn std::fmt::Display| bridge_error(StatusCode::BAD_REQUEST, &format!("invalid JSON: {why}"));
    let prompt = match axum::body::to_bytes(body, BODY_LIMIT).await {
        Ok(body) => match serde_json::from_slice::<MessageRequest>(&body) {
            Ok(request) => request.prompt,
            Err(error) => return Ok(invalid(&error)),
        },
        Err(error) => return Ok(invalid(&error)),
    };
    if prompt.trim().is_empty() {
        return Ok(bridge_error(StatusCode::BAD_REQUEST, "prompt required"));
    }
    state.counters.prompt(Prompt {
        plane: Plane::Bridge,
        session: id.clone(),
        prompt: prompt.clone(),
        mode: None,
        thread_id: None,
        model: None,
        provider_id: None,
        system_prompt: None,
        environment_id: None,
        workdir: None,
        pool_tag: None,
        images: 0,
        bearer: headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::to_owned),
    });
    let mut plan = Plan::of(&prompt);
    if let Plan::Fault(Fault::Http(status)) = plan {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return Ok(bridge_error(status, "refused on demand"));
    }
    let (turn, old) = session.begin();
    if let Some(old) = old {
        // §4.4: the document says that the new turn takes over; on today's bridge it fails, since the old one still holds the engine.
        if state.options.observed() {
            old.killed.cancel();
            plan = Plan::Refuse("engine: another Submit is in progress".to_owned());
        } else {
            old.cancel.cancel();
        }
    }
    let stage = Stage::new(Arc::clone(&state), Host::Bridge(session, turn), prompt, None, Some(id));
    tokio::spawn(run::perform(stage, plan));
    Ok(replies::json(StatusCode::ACCEPTED, &json!({ "status": "running" })))
}

async fn stream(Shared(state): Shared<Arc<State>>, Path(id): Path<String>, request: Request) -> Result<Response, NoSuchSession> {
    let session = state.bridge.session(&id)?;
    let query = Query::<HashMap<String, String>>::try_from_uri(request.uri()).map(|query| query.0).unwrap_or_default();
    let last_event_id = query.get("last_event_id").and_then(|id| id.parse().ok());
    let Some(source) = session.stream(last_event_id, state.options.observed()) else {
        return Ok(bridge_error(StatusCode::CONFLICT, "no turn in progress"));
    };
    let turn = source.turn();
    let attendee = turn.clone();
    // The document: what is pending is denied when the client goes away.
    let denies = !state.options.observed();
    let entered = move || {
        if let Some(turn) = &attendee {
            turn.attendance.enter();
        }
        Leaving { turn: attendee, denies }
    };
    let receiver = Arc::clone(&state);
    let receive = move |text: &str, replies: &Replies| receive(&receiver, &id, turn.as_deref(), text, replies);
    let limits = Limits::new(&state.options, None);
    Ok(websocket::upgrade(state, Plane::Bridge, request, limits, source, entered, receive))
}

struct Leaving {
    turn: Option<Arc<Turn>>,
    denies: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn
            && turn.attendance.leave()
            && self.denies
        {
            turn.asks.deny_all();
        }
    }
}

/// A client's message on a turn's socket (§4.5).
fn receive(state: &State, session: &str, turn: Option<&Turn>, text: &str, replies: &Replies) {
    let kind = inbound::kind(text);
    if kind.is_control() {
        state.counters.control(Plane::Bridge, session, text);
    }
    match kind {
        inbound::Kind::Response => {
            if let Some(turn) = turn {
                turn.asks.answer(text);
            }
        }
        inbound::Kind::Request(request) => {
            let turn = turn.filter(|turn| !turn.ended());
            if let Some(reply) = control_reply(&request, turn, state.options.observed()) {
                // The socket may be gone already; then nobody waits for the reply.
                let _ = replies.send(reply.into());
            }
            if let (Some(turn), "interrupt" | "cancel_async_message") = (turn, &*request.request.subtype) {
                turn.cancel.cancel();
            }
        }
        _ => {}
    }
}

/// The reply to a control request; `None` where the bridge gives none.
fn control_reply(request: &ControlRequest, turn: Option<&Turn>, observed: bool) -> Option<String> {
    let id = &request.request_id;
    let subtype = &*request.request.subtype;
    let success = |payload: Option<Value>| Some(frames::control_success(id, payload));
    let error = |message: &str| Some(frames::control_error(id, message));
    match subtype {
        "interrupt" if turn.is_some() => success(None),
        "interrupt" => error("no turn in progress"),
        "cancel_async_message" => success(Some(json!({ "cancelled": turn.is_some() }))),
        "can_use_tool" | "elicitation" | "hook_callback" => error(&format!("control subtype {subtype:?} not implemented")),
        "set_model" if observed => error("set_model not supported by biu bridge; recreate session with desired model"),
        "set_model"
        | "set_permission_mode"
        | "set_max_thinking_tokens"
        | "mcp_message"
        | "mcp_set_servers"
        | "mcp_reconnect"
        | "mcp_toggle"
        | "seed_read_state"
        | "stop_task"
        | "apply_flag_settings"
        | "initialize"
        | "mcp_status"
        | "get_context_usage"
        | "rewind_files"
        | "reload_plugins"
        | "get_settings" => {
            if observed {
                error(&format!("control subtype {subtype:?} not implemented"))
            } else {
                success(payload(subtype))
            }
        }
        _ => None,
    }
}

/// What the documented voice answers, in the shapes of §5.2.
fn payload(subtype: &str) -> Option<Value> {
    Some(match subtype {
        "initialize" => json!({ "commands": [], "agents": [], "output_style": "default" }),
        "mcp_status" => json!({ "mcpServers": [] }),
        "get_context_usage" => json!({
            "totalTokens": 15_230, "maxTokens": 200_000,
            "categories": [{ "name": "System prompt", "tokens": 3_100 }, { "name": "Messages", "tokens": 12_130 }],
        }),
        "rewind_files" => json!({ "canRewind": false, "error": "no checkpoint" }),
        "reload_plugins" => json!({ "error_count": 0 }),
        "get_settings" => json!({ "effective": {}, "sources": {}, "applied": {} }),
        _ => return None,
    })
}

async fn cost(Shared(state): Shared<Arc<State>>, Path(id): Path<String>) -> Result<Response, NoSuchSession> {
    let usage = state.bridge.session(&id)?.usage();
    Ok(replies::json(StatusCode::OK, &Cost::of(&usage)))
}

/// The one body of this protocol with capitals (§4.2).
#[derive(serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Cost {
    model: &'static str,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    #[serde(rename = "USD")]
    usd: f64,
}

impl Cost {
    fn of(usage: &Usage) -> Self {
        Self {
            model: "claude-sonnet-4-6",
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            usd: usage.cost(),
        }
    }
}

async fn compact(Shared(state): Shared<Arc<State>>, Path(id): Path<String>) -> Result<Response, NoSuchSession> {
    if state.bridge.session(&id)?.turns() == 0 {
        return Ok(bridge_error(StatusCode::INTERNAL_SERVER_ERROR, "compact: nothing to summarise"));
    }
    Ok(replies::json(StatusCode::OK, &json!({ "status": "compacted" })))
}

async fn attach(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, NoSuchSession> {
    state.bridge.session(&id)?;
    Ok(attachments::receive(&headers, body).await)
}

async fn remove(Shared(state): Shared<Arc<State>>, Path(id): Path<String>) -> Result<Response, NoSuchSession> {
    let session = locked(&state.bridge.sessions).remove(&id).ok_or(NoSuchSession)?;
    if let Some(turn) = session.turn() {
        turn.killed.cancel();
    }
    Ok(replies::empty(StatusCode::NO_CONTENT))
}

/// The coding channel knows its envelope and no method (§5.5).
async fn code_channel(Shared(state): Shared<Arc<State>>, request: Request) -> Response {
    let limits = Limits::new(&state.options, None);
    let receive = |text: &str, replies: &Replies| {
        if let inbound::Kind::CodeRequest(request) = inbound::kind(text) {
            let _ = replies.send(unknown_method(&request).into());
        }
    };
    websocket::upgrade(state, Plane::Bridge, request, limits, Quiet, || (), receive)
}

fn unknown_method(request: &inbound::CodeRequest) -> String {
    #[derive(serde::Serialize)]
    struct CodeResponse<'a> {
        r#type: &'a str,
        request_id: &'a str,
        ok: bool,
        error: String,
    }
    frames::encode(&CodeResponse {
        r#type: "code_response",
        request_id: &request.request_id,
        ok: false,
        error: format!("code: unknown method {:?}", request.method),
    })
}

/// A socket that only replies.
struct Quiet;

impl Source for Quiet {
    async fn ready(&mut self) {
        std::future::pending().await
    }

    fn take(&mut self) -> Option<Delivery> {
        None
    }
}
