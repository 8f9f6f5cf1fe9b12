//! The local bridge: sessions of many turns, one socket a turn, and the coding channel beside them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
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
use serde_json::json;
use tokio::time;

use crate::{
    asks, attachments,
    bridge_session::{BridgeSession, Turn},
    code_plane, controls, frames,
    frames::Usage,
    inbound, locked,
    prompt::{Fault, Plan},
    replies::{self, bridge_error},
    run,
    stage::{DEFAULT_MODEL, Host, Stage},
    state::State,
    stats::{Plane, Prompt},
    websocket::{self, Delivery, Limits, Replies},
};

/// Largest body of a message; the real bridge has no limit of its own.
const BODY_LIMIT: usize = 64 * 1024 * 1024;

/// Sessions above which idle ones are swept.
const MANY_SESSIONS: usize = 1024;

#[derive(Default)]
pub(crate) struct Bridge {
    sessions: Mutex<HashMap<String, Arc<BridgeSession>>>,
    /// What the coding channel's methods work on.
    pub(crate) workspace: code_plane::Workspace,
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
        .route("/v1/code/ws", get(code_plane::channel))
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
    let receive = move |text: &str, replies: &Replies| receive(&receiver, &session, turn.as_ref(), text, replies);
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
fn receive(state: &Arc<State>, session: &Arc<BridgeSession>, turn: Option<&Arc<Turn>>, text: &str, replies: &Replies) {
    let kind = inbound::kind(text);
    if kind.is_control() {
        state.counters.control(Plane::Bridge, &session.id, text);
        if let Some(id) = asks::answers(text) {
            state.counters.response(&id, |responses| responses.received += 1);
        }
        if turn.is_some_and(|turn| turn.inbox.holds(text, Some(replies))) {
            return;
        }
    }
    fetched(state, session, turn, text, kind, replies);
}

/// A message has reached the engine.
pub(crate) fn fetched(
    state: &State,
    session: &Arc<BridgeSession>,
    turn: Option<&Arc<Turn>>,
    text: &str,
    kind: inbound::Kind,
    replies: &Replies,
) {
    let observed = state.options.observed();
    match kind {
        inbound::Kind::Response => {
            if let Some(turn) = turn {
                turn.asks.settle(text, &state.counters);
            }
        }
        inbound::Kind::Environment(variables) => {
            state.counters.environment(Plane::Bridge, &session.id, text);
            if !observed {
                session.settings.set_environment(variables);
            }
        }
        inbound::Kind::Request(request) => {
            let turn = turn.filter(|turn| !turn.ended());
            let effect = if observed {
                controls::observed(&request, turn.is_some())
            } else {
                let target =
                    controls::Target { session: &session.id, settings: &session.settings, model: DEFAULT_MODEL, running: turn.is_some() };
                controls::documented(&request, &target)
            };
            if let Some(reply) = effect.reply {
                // The socket may be gone already; then nobody waits for the reply.
                let _ = replies.send(reply.into());
            }
            let Some(turn) = turn else { return };
            if let Some(news) = effect.news {
                let (session, turn) = (Arc::clone(session), Arc::clone(turn));
                tokio::spawn(async move { session.push(&turn, Delivery::text(news), true).await });
            }
            if effect.interrupts {
                turn.cancel.cancel();
            }
        }
        _ => {}
    }
}

async fn cost(Shared(state): Shared<Arc<State>>, Path(id): Path<String>) -> Result<Response, NoSuchSession> {
    let session = state.bridge.session(&id)?;
    let model = session.settings.model().unwrap_or_else(|| DEFAULT_MODEL.to_owned());
    Ok(replies::json(StatusCode::OK, &Cost::of(model, &session.usage())))
}

/// The one body of this protocol with capitals (§4.2).
#[derive(serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Cost {
    model: String,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    #[serde(rename = "USD")]
    usd: f64,
}

impl Cost {
    fn of(model: String, usage: &Usage) -> Self {
        Self {
            model,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            usd: usage.cost(),
        }
    }
}

async fn compact(Shared(state): Shared<Arc<State>>, Path(id): Path<String>) -> Result<Response, NoSuchSession> {
    let session = state.bridge.session(&id)?;
    if session.turns() == 0 {
        return Ok(bridge_error(StatusCode::INTERNAL_SERVER_ERROR, "compact: nothing to summarise"));
    }
    // The answer comes when the summary is made, which takes a model call; no socket hears of it.
    time::sleep(state.options.pace.of(Duration::from_millis(300))).await;
    session.settings.compact();
    state.counters.count(|stats| stats.compactions += 1);
    Ok(replies::json(StatusCode::OK, &json!({ "status": "compacted" })))
}

async fn attach(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, NoSuchSession> {
    state.bridge.session(&id)?;
    Ok(attachments::receive(&state, &id, &headers, body).await)
}

async fn remove(Shared(state): Shared<Arc<State>>, Path(id): Path<String>) -> Result<Response, NoSuchSession> {
    let session = locked(&state.bridge.sessions).remove(&id).ok_or(NoSuchSession)?;
    if let Some(turn) = session.turn() {
        turn.killed.cancel();
    }
    Ok(replies::empty(StatusCode::NO_CONTENT))
}
