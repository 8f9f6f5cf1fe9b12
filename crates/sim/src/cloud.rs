//! The cloud agent plane: sessions that are one turn each, and a stream that any number of sockets may watch.
//!
//! In the observed voice the routes that today's servers do not have are not there either (native-ws.md §2.4).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, State as Shared},
    response::Response,
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use crate::{
    asks, controls,
    frames::now_ms,
    inbound,
    ledger::{Cursor, Ledger, Mode, SessionState},
    locked,
    prompt::{Fault, Plan},
    replies::{self, Refusal},
    run,
    stage::{DEFAULT_MODEL, Host, Stage},
    state::State,
    stats::{Plane, Prompt},
    websocket::{self, Delivery, Limits, Replies},
};

/// Largest create request (§2.2).
const BODY_LIMIT: usize = 20 * 1024 * 1024;

/// Largest inbound message of a stream, inclusive (§3.2).
const INBOUND_LIMIT: usize = 32_768;

/// How many creations pass between two sweeps of old sessions.
const SWEEP_EVERY: u64 = 64;

/// The environment that does not exist.
const UNKNOWN_ENVIRONMENT: Uuid = Uuid::nil();

/// The environment whose device is away for the first two seconds.
const PAIRED_ENVIRONMENT: Uuid = Uuid::max();

#[derive(Default)]
pub(crate) struct Cloud {
    sessions: Mutex<HashMap<String, Arc<Ledger>>>,
    created: AtomicU64,
    /// The sequence of the one stream that all sessions share in the observed voice.
    sequence: Arc<AtomicU64>,
}

impl Cloud {
    fn session(&self, id: &str) -> Option<Arc<Ledger>> {
        let id = id.parse::<Uuid>().ok()?.to_string();
        locked(&self.sessions).get(&id).cloned()
    }

    fn create(&self, state: &State, mode: Mode, pending: bool, model: &str) -> Arc<Ledger> {
        let observed = state.options.observed();
        let sequence = if observed { Arc::clone(&self.sequence) } else { Arc::default() };
        let first = if pending { SessionState::Pending } else { SessionState::Active };
        let id = Uuid::new_v4().to_string();
        let ledger = Ledger::new(id.clone(), mode, first, observed, sequence, state.options.retained_frames, model.to_owned());
        let mut sessions = locked(&self.sessions);
        if self.created.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            sessions.retain(|_, ledger| !is_old(ledger, state.options.session_retention));
        }
        sessions.insert(id, Arc::clone(&ledger));
        ledger
    }
}

fn is_old(ledger: &Ledger, retention: Duration) -> bool {
    // An active session may be at an ask, which changes nothing for a while; the run holds it, and so does a socket.
    ledger.touched().elapsed() > retention && (ledger.state().is_final() || !ledger.attendance.anybody())
}

pub(crate) fn routes(observed: bool) -> Router<Arc<State>> {
    let router = Router::new()
        .route("/v1/agent/sessions", post(create))
        .route("/v1/agent/sessions/{id}/refresh-token", post(refresh_token))
        .route("/v1/agent/sessions/{id}/stream", get(stream));
    if observed {
        return router;
    }
    router
        .route("/v1/agent/sessions/{id}/result", get(result))
        .route("/v1/agent/sessions/{id}/resume", post(resume))
        .route("/v1/agent/sessions/{id}/elicitations", get(elicitations))
}

/// The members of a create request that the simulator looks at (§2.2); the others are accepted and ignored.
#[derive(Deserialize)]
struct CreateRequest {
    mode: Option<String>,
    environment_id: Option<String>,
    thread_id: Option<String>,
    model: Option<String>,
    provider_id: Option<String>,
    system_prompt: Option<String>,
    prompt: Option<String>,
    images: Option<Vec<Value>>,
    pool_tag: Option<String>,
    workdir: Option<String>,
}

#[derive(Serialize)]
struct Created<'a> {
    session_id: &'a str,
    session_token: String,
    expires_at: u64,
    mode: Mode,
    state: SessionState,
    created_at: u64,
    jetstream_subject_in: String,
    jetstream_subject_out: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    environment_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<String>,
}

async fn create(Shared(state): Shared<Arc<State>>, headers: HeaderMap, body: Body) -> Result<Response, Refusal> {
    let bearer = authorize(&state, &headers)?;
    let body = axum::body::to_bytes(body, BODY_LIMIT)
        .await
        .map_err(|_| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "request body exceeds 20 MiB"))?;
    let request: CreateRequest =
        serde_json::from_slice(&body).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, "bad_json", error.to_string()))?;
    let prompt = request.prompt.clone().unwrap_or_default();
    let plan = Plan::of(&prompt);
    let refused = if let Plan::Fault(Fault::Http(status)) = plan { Some(status) } else { None };

    let mode = match request.mode.as_deref() {
        Some("chat") => Mode::Chat,
        Some("agent") => Mode::Agent,
        Some("task") => Mode::Task,
        _ => return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_mode", "mode must be chat, agent or task")),
    };
    let environment = request.environment_id.as_deref().and_then(|id| id.parse::<Uuid>().ok());
    match (mode, environment) {
        (Mode::Agent, None) => {
            let message = "agent mode needs environment_id, a UUID";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_environment_id", message));
        }
        (Mode::Agent, Some(UNKNOWN_ENVIRONMENT)) => {
            return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", "agentplane: environment not found"));
        }
        _ => {}
    }
    let pending = mode == Mode::Agent && environment == Some(PAIRED_ENVIRONMENT);
    // A thread that is no UUID is dropped without a word (§2.2).
    let thread = request.thread_id.as_deref().and_then(|id| id.parse::<Uuid>().ok()).map(|id| id.to_string());

    let model = request.model.as_deref().filter(|model| !model.is_empty()).unwrap_or(DEFAULT_MODEL);
    let ledger = refused.is_none().then(|| state.cloud.create(&state, mode, pending, model));
    state.counters.prompt(Prompt {
        plane: Plane::Cloud,
        session: ledger.as_ref().map(|ledger| ledger.id.clone()).unwrap_or_default(),
        prompt: prompt.clone(),
        mode: request.mode.clone(),
        thread_id: request.thread_id.clone(),
        model: request.model.clone(),
        provider_id: request.provider_id.clone(),
        system_prompt: request.system_prompt.clone(),
        environment_id: request.environment_id.clone(),
        workdir: request.workdir.clone(),
        pool_tag: request.pool_tag.clone(),
        images: request.images.as_ref().map_or(0, Vec::len),
        bearer: Some(bearer),
    });
    let Some(ledger) = ledger else { return Err(refusal(refused.unwrap_or(500))) };
    state.counters.count(|stats| stats.cloud_sessions += 1);

    // Without a prompt nothing runs, and the session stays silent for ever (§2.2).
    if !prompt.is_empty() || request.images.as_ref().is_some_and(|images| !images.is_empty()) {
        let host = Host::Cloud(Arc::clone(&ledger));
        let stage = Stage::new(Arc::clone(&state), host, prompt, request.model, thread.clone());
        tokio::spawn(run::perform(stage, plan));
    }
    let minted = state.signer.mint(&ledger.id);
    let created = Created {
        session_id: &ledger.id,
        session_token: minted.token,
        expires_at: minted.expires_at,
        mode,
        state: if pending { SessionState::Pending } else { SessionState::Active },
        created_at: now_ms(),
        jetstream_subject_in: format!("biu.session.{}.in", ledger.id),
        jetstream_subject_out: format!("biu.session.{}.out", ledger.id),
        environment_id: request.environment_id.filter(|_| mode != Mode::Chat),
        thread_id: thread,
    };
    Ok(replies::json(StatusCode::CREATED, &created))
}

/// The refusals of `fault http STATUS`, with the codes the servers use for them (§2.2).
fn refusal(status: u16) -> Refusal {
    let code = match status {
        401 => "invalid_token",
        404 => "not_found",
        409 => "environment_offline",
        413 => "body_too_large",
        429 => "pending_queue_full",
        503 => "no_runtime_available",
        _ => "internal",
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Refusal::new(status, code, "refused on demand")
}

/// The bearer, or the 401 (§2.1).
fn authorize(state: &State, headers: &HeaderMap) -> Result<String, Refusal> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "missing_bearer", ""))?;
    let accepted = match &state.options.cloud_token {
        None => !bearer.is_empty(),
        // §1.2: a session token passes as a bearer on today's servers.
        Some(token) => token == bearer || (state.options.observed() && state.signer.knows(bearer)),
    };
    if accepted {
        return Ok(bearer.to_owned());
    }
    let (code, message) = if bearer.starts_with("biu_dev_") {
        ("invalid_device_token", "")
    } else {
        ("invalid_token", "token is malformed: token contains an invalid number of segments")
    };
    Err(Refusal::new(StatusCode::UNAUTHORIZED, code, message))
}

/// The session of an authorised request, or the answer to give instead.
fn lookup(state: &State, headers: &HeaderMap, id: &str) -> Result<Arc<Ledger>, Refusal> {
    authorize(state, headers)?;
    if id.parse::<Uuid>().is_err() {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_id", "session id must be a UUID"));
    }
    state.cloud.session(id).ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "not_found", "agentplane: session not found"))
}

async fn refresh_token(Shared(state): Shared<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Refusal> {
    let ledger = lookup(&state, &headers, &id)?;
    state.counters.count(|stats| stats.token_refreshes += 1);
    let minted = state.signer.mint(&ledger.id);
    #[derive(Serialize)]
    struct Refreshed {
        session_token: String,
        expires_at: u64,
    }
    let refreshed = Refreshed { session_token: minted.token, expires_at: minted.expires_at };
    Ok(replies::json(StatusCode::OK, &refreshed))
}

async fn result(Shared(state): Shared<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Refusal> {
    let frame = lookup(&state, &headers, &id)?
        .result()
        .and_then(|frame| RawValue::from_string(frame.as_str().to_owned()).ok())
        .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "result_not_ready", "the session has no result yet"))?;
    Ok(replies::json(StatusCode::OK, &frame))
}

async fn resume(Shared(state): Shared<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Refusal> {
    let ledger = lookup(&state, &headers, &id)?;
    let now = match ledger.state() {
        SessionState::Paused => {
            state.counters.count(|stats| stats.resumes += 1);
            ledger.resumed.notify_one();
            SessionState::Active
        }
        other => other,
    };
    Ok(replies::json(StatusCode::ACCEPTED, &json!({ "session_id": ledger.id, "state": now })))
}

async fn elicitations(Shared(state): Shared<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Result<Response, Refusal> {
    let ledger = lookup(&state, &headers, &id)?;
    let forms: Vec<Value> = ledger
        .asks
        .forms()
        .into_iter()
        .filter_map(|form| {
            let mut frame: Value = serde_json::from_str(&form.frame).ok()?;
            frame.as_object_mut()?.insert("deadline".to_owned(), json!(form.deadline_ms));
            Some(frame)
        })
        .collect();
    Ok(replies::json(StatusCode::OK, &json!({ "elicitations": forms })))
}

async fn stream(Shared(state): Shared<Arc<State>>, Path(id): Path<String>, request: Request) -> Result<Response, Refusal> {
    let query = Query::<HashMap<String, String>>::try_from_uri(request.uri()).map(|query| query.0).unwrap_or_default();
    let ledger = admit(&state, &id, &query, request.headers())?;
    if ledger.vanished.load(Ordering::SeqCst) {
        let since = query.get("since_seq").and_then(|seq| since(seq)).unwrap_or(0);
        let source = ledger.vanished_stream(since);
        let limits = Limits::new(&state.options, Some(INBOUND_LIMIT));
        return Ok(websocket::upgrade(state, Plane::Cloud, request, limits, source, || (), |_: &str, _: &Replies| {}));
    }
    let cursor = match query.get("since_seq").and_then(|seq| since(seq)) {
        Some(seq) => Cursor::After(seq),
        // §3.3: the document says live only, today's servers send everything.
        None if state.options.observed() => Cursor::All,
        None => Cursor::Live,
    };
    let source = ledger.stream(&cursor);
    let limits = Limits::new(&state.options, Some(INBOUND_LIMIT));
    let attendee = Arc::clone(&ledger);
    let entered = move || {
        attendee.attendance.enter();
        Leaving(attendee)
    };
    let receiver = Arc::clone(&state);
    let receive = move |text: &str, _: &Replies| receive(&receiver, &ledger, text);
    Ok(websocket::upgrade(state, Plane::Cloud, request, limits, source, entered, receive))
}

struct Leaving(Arc<Ledger>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.attendance.leave();
    }
}

/// A cursor that counts: a positive number of at most 19 digits.
fn since(text: &str) -> Option<u64> {
    text.parse::<i64>().ok().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0)
}

/// The checks before an upgrade, in the servers' order (§3.1).
fn admit(state: &State, id: &str, query: &HashMap<String, String>, headers: &HeaderMap) -> Result<Arc<Ledger>, Refusal> {
    let Ok(uuid) = id.parse::<Uuid>() else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_session_id", "session id must be a UUID"));
    };
    let id = uuid.to_string();
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    let token = query.get("session_token").map(String::as_str).filter(|token| !token.is_empty()).or(bearer);
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "missing_session_token", ""));
    };
    if let Err(message) = state.signer.check(token, &id) {
        tracing::debug!(session = id, message, "session token refused");
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "invalid_session_token", message));
    }
    let Some(ledger) = state.cloud.session(&id) else {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "session_not_found", "agentplane: session not found"));
    };
    let now = ledger.state();
    if now.is_final() {
        let message = format!("session is {}; read result via /v1/agent/sessions/{id}/result", now.name());
        return Err(Refusal::new(StatusCode::CONFLICT, "session_finalized", message));
    }
    Ok(ledger)
}

/// A client's message on a stream (§3.4). On today's servers nothing is ever acknowledged.
fn receive(state: &State, ledger: &Ledger, text: &str) {
    let kind = inbound::kind(text);
    if kind.is_control() {
        state.counters.control(Plane::Cloud, &ledger.id, text);
        if let Some(id) = asks::answers(text) {
            state.counters.response(&id, |responses| responses.received += 1);
        }
        if ledger.inbox.holds(text, None) {
            return;
        }
    }
    fetched(state, ledger, text, kind);
}

/// A control message has reached whoever runs the session.
pub(crate) fn fetched(state: &State, ledger: &Ledger, text: &str, kind: inbound::Kind) {
    let observed = state.options.observed();
    match kind {
        inbound::Kind::CancelRequest => ledger.cancel.cancel(),
        inbound::Kind::Response => ledger.asks.settle(text, &state.counters),
        inbound::Kind::Environment(variables) => {
            state.counters.environment(Plane::Cloud, &ledger.id, text);
            if observed {
                state.cloud.sequence.fetch_add(1, Ordering::SeqCst);
            } else {
                ledger.settings.set_environment(variables);
            }
        }
        // Published to a subject that nobody reads, where it takes a place in the shared stream.
        inbound::Kind::Request(_) | inbound::Kind::Other if observed => {
            state.cloud.sequence.fetch_add(1, Ordering::SeqCst);
        }
        inbound::Kind::Request(request) => {
            let running = !ledger.state().is_final();
            let target = controls::Target { session: &ledger.id, settings: &ledger.settings, model: &ledger.model, running };
            let effect = controls::documented(&request, &target);
            // There is but one way to the clients, and it leads to all of them.
            for frame in effect.reply.into_iter().chain(effect.news) {
                ledger.push(Delivery::text(frame));
            }
            if effect.interrupts {
                ledger.cancel.cancel();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_that_count() {
        assert_eq!(since("12"), Some(12));
        for nothing in ["0", "-1", "abc", "", "99999999999999999999"] {
            assert_eq!(since(nothing), None, "{nothing}");
        }
    }
}
