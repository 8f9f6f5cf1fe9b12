//! The bridge access surface (native-ws.md §4): a native session is a session, a socket lasts for one turn.
//!
//! Cursors count the frames of the session without control frames, as the bridge does, but exactly: the first frame can be had
//! again, nothing comes twice, and every socket gets everything (decision 28).

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Path, Request, State};
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use http::StatusCode;
use interline_hub::{Access, Action, ActionError, Denied, NewSession, Session, StartError, StartRun, Upload};
use interline_model::{Json, Part, RunId, SessionId, Text};
use serde::{Deserialize, Serialize};
use tokio::time;

use super::base::Base;
use super::feed::{Feed, Glance, Settled};
use super::inbound::{Inbound, Plane};
use super::replies::{self, BodyError};
use super::socket::Handshake;
use super::{Caller, NAME, Shell, actor, coding, cursor, projection};
use crate::RunSpan;

pub(super) fn router(max_upload: usize) -> Router<Arc<Shell>> {
    Router::new()
        .route("/v1/code/ws", get(coding::channel))
        .route("/v1/code/sessions", post(create))
        .route("/v1/code/sessions/{id}", delete(remove))
        .route("/v1/code/sessions/{id}/messages", post(messages))
        .route("/v1/code/sessions/{id}/ws", get(socket))
        .route("/v1/code/sessions/{id}/cost", get(cost))
        .route("/v1/code/sessions/{id}/compact", post(compact))
        .route("/v1/code/sessions/{id}/attachments", post(attachments).layer(DefaultBodyLimit::max(max_upload)))
        .route("/v1/code/{*rest}", any(replies::not_found))
}

/// An error of this surface (native-ws.md §4.1).
pub(super) enum BridgeError {
    Unauthorized,
    /// Too much; and when to come again.
    Limited(Denied),
    Other(StatusCode, String),
}

impl BridgeError {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self::Other(status, text.into())
    }

    fn no_such_session() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no such session")
    }
}

impl From<StartError> for BridgeError {
    fn from(error: StartError) -> Self {
        let status = match &error {
            StartError::Busy { .. } => StatusCode::CONFLICT,
            StartError::CellNotFound(_) | StartError::SessionNotFound(_) => StatusCode::NOT_FOUND,
            StartError::TooManyRuns(_) | StartError::TooManySessions(_) => StatusCode::TOO_MANY_REQUESTS,
            StartError::Unstored | StartError::Draining => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ActionError> for BridgeError {
    fn from(error: ActionError) -> Self {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::BAD_GATEWAY);
        Self::new(status, error.to_string())
    }
}

impl From<BridgeError> for Response {
    fn from(error: BridgeError) -> Self {
        #[derive(Serialize)]
        struct Shape {
            error: String,
        }
        match error {
            BridgeError::Unauthorized => replies::plain(StatusCode::UNAUTHORIZED, "unauthorized\n"),
            BridgeError::Limited(denied) => {
                let seconds = if let Denied::Limited { seconds, .. } = denied { Some(seconds) } else { None };
                let response = replies::json(StatusCode::TOO_MANY_REQUESTS, &Shape { error: denied.to_string() });
                replies::again_after(response, seconds)
            }
            BridgeError::Other(status, error) => replies::json(status, &Shape { error }),
        }
    }
}

impl From<Denied> for BridgeError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Missing | Denied::Invalid => Self::Unauthorized,
            Denied::Expired => Self::new(StatusCode::UNAUTHORIZED, denied.to_string()),
            Denied::Limited { .. } => Self::Limited(denied),
        }
    }
}

/// The answer to whoever comes too often.
pub(super) fn denied(denied: Denied) -> Response {
    BridgeError::from(denied).into()
}

/// A refusal that comes before any route.
pub(super) fn refusal(status: StatusCode, text: &'static str) -> Response {
    BridgeError::new(status, text).into()
}

fn reach(shell: &Shell, caller: &Caller, id: &str) -> Result<(Access, Arc<Session>), BridgeError> {
    let access = shell.admit(caller)?;
    let session = shell.hub.session(&access, &SessionId::from(id)).ok_or_else(BridgeError::no_such_session)?;
    Ok((access, session))
}

async fn create(State(shell): State<Arc<Shell>>, caller: Caller) -> Response {
    #[derive(Serialize)]
    struct Created<'a> {
        id: &'a str,
    }
    let created =
        shell.admit(&caller).map_err(BridgeError::from).and_then(|access| Ok(shell.hub.create_session(&access, NewSession::default())?));
    match created {
        Ok(session) => replies::json(StatusCode::CREATED, &Created { id: session.id().as_str() }),
        Err(error) => error.into(),
    }
}

async fn messages(State(shell): State<Arc<Shell>>, Path(id): Path<String>, request: Request) -> Response {
    #[derive(Serialize)]
    struct Submitted {
        status: &'static str,
    }
    match submit(&shell, &id, request).await {
        Ok(()) => replies::json(StatusCode::ACCEPTED, &Submitted { status: "running" }),
        Err(error) => error.into(),
    }
}

async fn submit(shell: &Shell, id: &str, request: Request) -> Result<(), BridgeError> {
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        prompt: Option<String>,
    }
    let (access, session) = reach(shell, &Caller::of(&request), id)?;
    let body = replies::body(request.into_body(), shell.config.max_body).await.map_err(|error| match error {
        BodyError::TooLarge => BridgeError::new(StatusCode::PAYLOAD_TOO_LARGE, "http: request body too large"),
        BodyError::Broken => BridgeError::new(StatusCode::BAD_REQUEST, "invalid JSON: the body did not arrive whole"),
    })?;
    let message: Message =
        replies::object(&body).map_err(|error| BridgeError::new(StatusCode::BAD_REQUEST, format!("invalid JSON: {error}")))?;
    let prompt = message
        .prompt
        .filter(|prompt| !prompt.trim().is_empty())
        .ok_or_else(|| BridgeError::new(StatusCode::BAD_REQUEST, "prompt required"))?;
    Ok(replace(shell, &access, &session, Text::from(prompt)).await?)
}

/// Starts a turn; one that goes on is stopped first (native-ws.md §4.4, as it is meant).
async fn replace(shell: &Shell, access: &Access, session: &Session, prompt: Text) -> Result<(), StartError> {
    let start = StartRun {
        surface: Text::from_static(NAME),
        cell: None,
        session: Some(session.id().clone()),
        model: None,
        input: vec![Part::Text(prompt)],
        system_prompt: None,
        actor: None,
        headless: false,
        output_schema: None,
        ..StartRun::default()
    };
    let deadline = time::Instant::now() + shell.config.replace_timeout();
    loop {
        let busy = match shell.hub.start(access, start.clone()) {
            Ok(_) => return Ok(()),
            Err(StartError::Busy { run }) => run,
            Err(error) => return Err(error),
        };
        session.stop(Some(busy), actor(session));
        if time::timeout_at(deadline, ended(session, busy)).await.is_err() {
            return Err(StartError::Busy { run: busy });
        }
    }
}

/// Waits for a run's end.
async fn ended(session: &Session, run: RunId) {
    // Beyond its last frame there is nothing but its end.
    if let Ok(mut tail) = projection(session).run_tail(run, u64::MAX) {
        while tail.next(1).await.is_some() {}
    }
}

async fn socket(State(shell): State<Arc<Shell>>, Path(id): Path<String>, request: Request) -> Response {
    try_socket(&shell, &id, request).unwrap_or_else(Response::from)
}

fn try_socket(shell: &Arc<Shell>, id: &str, mut request: Request) -> Result<Response, BridgeError> {
    let (access, session) = reach(shell, &Caller::of(&request), id)?;
    let seen = cursor(request.uri(), "last_event_id").map(|seen| Base::kept_of_counted(Base::of(&session), seen));
    let projection = projection(&session);
    let (glance, behind) = projection.with(|writer, end| (Glance::at(writer, end), seen.map(|seen| writer.behind_counted(seen))));
    let turn = glance.running().or_else(|| glance.latest.filter(|span| is_unseen(shell, &session, *span)));
    if seen.is_none() && turn.is_none() {
        return Err(BridgeError::new(StatusCode::CONFLICT, "no turn in progress"));
    }
    let Some(handshake) = Handshake::of(&mut request) else {
        return Ok(replies::plain(StatusCode::BAD_REQUEST, "Bad Request\n"));
    };
    let visit = shell.hub.visit(NAME, &access)?;
    let is_first = turn.is_some_and(|turn| shell.connects.claim(&session, turn.run));
    let (from, settled) = match (behind, turn) {
        (Some(behind), _) => (behind, Settled::WithoutControl),
        (None, Some(turn)) if is_first => (turn.from, Settled::LeftOut),
        (None, _) => (glance.end, Settled::LeftOut),
    };
    let feed = Feed::turn(&projection, glance, from, settled);
    let (requests, max_requests) = shell.requests();
    let inbound = Inbound { plane: Plane::Bridge, hub: shell.hub.clone(), session, run: None, access, requests, max_requests };
    let first = turn.filter(|_| is_first).map(|turn| turn.run);
    Ok(handshake.accept(shell.clone(), visit, feed, inbound, move |shell| {
        if let Some(run) = first {
            shell.connects.release(run);
        }
    }))
}

/// Whether a turn that is over was submitted here and nobody came for it: it was faster than the client that attaches right after
/// its submission, and whose turn would otherwise be lost (native-ws.md §4.3).
fn is_unseen(shell: &Shell, session: &Session, span: RunSpan) -> bool {
    let is_ours = session.run_info(span.run).is_some_and(|run| &*run.by.surface == NAME);
    is_ours && !shell.connects.has(span.run)
}

async fn cost(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    #[derive(Serialize)]
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
    let (access, session) = match reach(&shell, &caller, &id) {
        Ok(reached) => reached,
        Err(error) => return error.into(),
    };
    // The upstream knows best; where it does not tell, what its runs said is added up.
    if let Ok(cost) = session.act(Action::Cost, access.credential().clone()).await {
        return replies::with_type(StatusCode::OK, "application/json", cost.text().into_bytes());
    }
    let spent = projection(&session).with(|writer, _| writer.spent());
    let cost = Cost {
        model: session.info().model.unwrap_or_default().to_string(),
        input_tokens: spent.usage.input_tokens,
        output_tokens: spent.usage.output_tokens,
        cache_read_tokens: spent.usage.cache_read_tokens,
        cache_write_tokens: spent.usage.cache_write_tokens,
        usd: spent.usd,
    };
    replies::json(StatusCode::OK, &cost)
}

async fn compact(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    #[derive(Serialize)]
    struct Compacted {
        status: &'static str,
    }
    match try_compact(&shell, &caller, &id).await {
        Ok(()) => replies::json(StatusCode::OK, &Compacted { status: "compacted" }),
        Err(error) => error.into(),
    }
}

async fn try_compact(shell: &Shell, caller: &Caller, id: &str) -> Result<(), BridgeError> {
    let (access, session) = reach(shell, caller, id)?;
    session.act(Action::Compact, access.credential().clone()).await?;
    Ok(())
}

/// `POST …/attachments`: the field `file` (native-ws.md §4.2).
async fn attachments(State(shell): State<Arc<Shell>>, Path(id): Path<String>, request: Request) -> Response {
    match attach(&shell, &id, request).await {
        Ok(reply) => replies::with_type(StatusCode::CREATED, "application/json", reply.text().into_bytes()),
        Err(error) => error.into(),
    }
}

async fn attach(shell: &Shell, id: &str, request: Request) -> Result<Json, BridgeError> {
    let (access, session) = reach(shell, &Caller::of(&request), id)?;
    let bad = |error: &dyn std::fmt::Display| BridgeError::new(StatusCode::BAD_REQUEST, format!("parse multipart: {error}"));
    let mut form = Multipart::from_request(request, &()).await.map_err(|error| bad(&error.body_text()))?;
    while let Some(field) = form.next_field().await.map_err(|error| bad(&error.body_text()))? {
        if field.name() != Some("file") {
            continue;
        }
        let name = Text::from(field.file_name().unwrap_or("file"));
        let mime = Text::from(field.content_type().unwrap_or("application/octet-stream"));
        let data = field.bytes().await.map_err(|error| bad(&error.body_text()))?;
        let upload = Action::Upload(Upload { name, mime, data });
        return Ok(session.act(upload, access.credential().clone()).await?);
    }
    Err(BridgeError::new(StatusCode::BAD_REQUEST, "missing 'file' field"))
}

async fn remove(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    match shell.admit(&caller) {
        Ok(access) if shell.hub.delete_session(&access, &SessionId::from(id)) => {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Ok(_) => BridgeError::no_such_session().into(),
        Err(error) => denied(error),
    }
}
