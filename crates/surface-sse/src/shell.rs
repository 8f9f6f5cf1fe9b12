//! The HTTP surface: routes, and the two ways to read a run (sse.md §1).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, delete, get, post};
use bytes::Bytes;
use interline_hub::{AskConfig, Hub, Projection, Session, StartError, StartRun, Surface};
use interline_model::{CellName, RunId, SessionId, Text};

use crate::body::{self, Framing, Reading};
use crate::caller::{Caller, SURFACE};
use crate::error::Refusal;
use crate::escape::path_segment;
use crate::request::RunRequest;
use crate::{AskLimits, Config, Extras, Options, Profile, SseWriter, control, cors, cursor, explain, lists};

/// What every handler needs.
pub(crate) struct Shell {
    pub(crate) hub: Arc<Hub>,
    pub(crate) config: Config,
}

/// The surface as the program registers it.
#[derive(Clone, Debug, Default)]
pub struct SseSurface {
    /// Its section of the config.
    pub config: Config,
}

impl Surface for SseSurface {
    fn name(&self) -> &'static str {
        SURFACE
    }

    fn router(self: Box<Self>, hub: Arc<Hub>) -> Router {
        router(hub, self.config)
    }
}

/// The routes of this surface, all under `/cells`, serving the sessions of `hub`.
pub fn router(hub: Arc<Hub>, config: Config) -> Router {
    let shell = Arc::new(Shell { hub, config });
    let routes: [(&str, MethodRouter<Arc<Shell>>); 20] = [
        ("/cells", get(lists::cells)),
        ("/cells//{*rest}", any(no_cell)),
        ("/cells/{cell}", get(lists::cell)),
        ("/cells/{cell}/run", post(start)),
        ("/cells/{cell}/runs", get(lists::runs)),
        ("/cells/{cell}/runs/{run_id}", get(lists::run).delete(control::interrupt_run)),
        ("/cells/{cell}/runs/{run_id}/events", get(events)),
        ("/cells/{cell}/runs/{run_id}/interrupt", post(control::interrupt_run)),
        ("/cells/{cell}/runs/{run_id}/cancel", post(control::interrupt_run)),
        ("/cells/{cell}/runs/{run_id}/approvals/{request_id}", post(control::answer_in_run)),
        ("/cells/{cell}/runs/{run_id}/approvals/{request_id}/approve", post(control::approve)),
        ("/cells/{cell}/runs/{run_id}/approvals/{request_id}/deny", post(control::deny)),
        ("/cells/{cell}/hitl/{request_id}", post(control::answer)),
        ("/cells/{cell}/sessions", get(lists::sessions)),
        ("/cells/{cell}/sessions/{session_id}", delete(lists::delete_session)),
        ("/cells/{cell}/sessions/{session_id}/interrupt", post(control::interrupt_session)),
        ("/cells/{cell}/sessions/{session_id}/cancel", post(control::interrupt_session)),
        ("/cells/{cell}/sessions/{session_id}/messages", get(lists::messages)),
        ("/cells/{cell}/sessions/{session_id}/plan", get(lists::plan)),
        ("/cells/{cell}/{*rest}", any(wrong_path)),
    ];
    let mut router = Router::new();
    for (path, methods) in routes {
        if !path.ends_with("{*rest}") {
            router = router.route(&format!("{path}/"), methods.clone());
        }
        router = router.route(path, methods);
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .route_layer(axum::middleware::from_fn_with_state(shell.clone(), cors::layer))
        .with_state(shell)
}

async fn wrong_method() -> Refusal {
    Refusal::MethodNotAllowed
}

/// A cell without a name, which nobody has.
async fn no_cell(_: Caller) -> Refusal {
    StartError::CellNotFound(CellName::from("")).into()
}

async fn wrong_path() -> Refusal {
    Refusal::PathNotFound
}

impl Shell {
    /// The session as this surface shows it, with these extras.
    pub(crate) fn projection(&self, session: &Session, extras: Extras) -> Arc<Projection<SseWriter>> {
        session.projection(extras.as_str(), || self.writer(session, extras))
    }

    /// A fresh writer of the session. Two with the same extras write the same.
    pub(crate) fn writer(&self, session: &Session, extras: Extras) -> SseWriter {
        let AskConfig { permission_ms, form_ms, .. } = *self.hub.ask_config();
        let ask_limits = Some(AskLimits { permission_ms, form_ms });
        SseWriter::new(Options { extras, ask_limits, cell: Some(Text::from(session.cell().as_str())), ..self.config.options() })
    }

    /// A stream of a run from its event number `from` on.
    fn stream(&self, session: &Session, run: RunId, from: u64, profile: Profile, extras: Extras) -> Result<Response, Refusal> {
        let projection = self.projection(session, extras);
        // An event's place among the run's items is its number or, behind asides, a later one.
        let tail = projection.run_tail(run, from).map_err(|_| Refusal::EventsExpired(run))?;
        let framing = Framing::new(run, profile, self.config.retry_ms, extras.has_events());
        let body = Reading::new(projection, run, tail, from, framing, self.config.heartbeat(), self.hub.closing().clone()).into_body();
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        // `no-transform` keeps development servers from compressing, the other keeps nginx from buffering (sse.md §5.5).
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        for (name, text) in [("x-run-id", run.to_string()), ("x-session-id", session.id().to_string())] {
            // A session id that no header can hold is in `run_start` all the same.
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        }
        Ok(response)
    }
}

/// `POST /cells/{cell}/run`: starts a run and streams it. Leaving does not stop it.
async fn start(State(shell): State<Arc<Shell>>, caller: Caller, headers: HeaderMap, body: Body) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    let request = RunRequest::parse(&read_body(&shell, body).await?)?;
    let session = request.session.clone().map(SessionId::from);
    let known = session.as_ref().and_then(|id| shell.hub.session(&caller.access, id));
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(Text::from).filter(|key| !key.is_empty());
    let start = StartRun {
        surface: SURFACE,
        cell: Some(cell.clone()),
        session,
        model: request.model.clone(),
        system_prompt: request.system_prompt.clone(),
        actor: request.actor.clone(),
        input: request.into_input(known.is_some_and(|session| !session.runs().is_empty())),
        headless: false,
        output_schema: None,
        idempotency_key: key,
        ..StartRun::default()
    };
    let (session, run) = shell.hub.start(&caller.access, start)?;
    let profile = cursor::post_profile(caller.query("sse"), shell.config.post_profile);
    let extras = cursor::extras(caller.query("extras"), shell.config.extras);
    let mut response = shell.stream(&session, run, 1, profile, extras)?;
    if let Ok(location) = HeaderValue::from_str(&format!("/cells/{}/runs/{run}/events", path_segment(cell.as_str()))) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// `GET /cells/{cell}/runs/{run_id}/events`: replays from an event on, then goes on live until the end.
async fn events(State(shell): State<Arc<Shell>>, caller: Caller, headers: HeaderMap) -> Result<Response, Refusal> {
    let (session, run) = caller.run(&shell)?;
    let from_seq = cursor::from_seq(caller.query("from_seq"))?;
    // A browser repeats the URL with its old `from_seq` when it reconnects: the id says how far it really is.
    let last_seen = cursor::last_event_id(&headers, run);
    let from = last_seen.map_or(from_seq, |seq| seq.saturating_add(1));
    let extras = cursor::extras(caller.query("extras"), shell.config.extras);
    if explain::is_asked(caller.query("explain")) {
        return explain::answer(shell, session, run, from_seq, extras).await;
    }
    if let Some(seen) = last_seen
        && let Some(last) = body::last(&shell.projection(&session, extras), run).await
        && last.is_terminal()
        && seen >= last.seq()
    {
        // The one answer that stops an `EventSource` for good. Others would find no body to read (sse.md §5.6).
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let profile = cursor::get_profile(caller.query("sse"), shell.config.get_profile, &headers);
    shell.stream(&session, run, from, profile, extras)
}

/// The whole body of a request, within bounds of size and time.
pub(crate) async fn read_body(shell: &Shell, body: Body) -> Result<Bytes, Refusal> {
    let limit = shell.config.max_body_bytes;
    let reading = axum::body::to_bytes(body, limit);
    match tokio::time::timeout(Duration::from_millis(shell.config.body_timeout_ms), reading).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if is_too_long(&error) => Err(Refusal::BodyTooLarge(limit)),
        Ok(Err(_)) => Err(Refusal::InvalidRequest("the body broke off".to_owned())),
        Err(_) => Err(Refusal::BodyTimeout),
    }
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
