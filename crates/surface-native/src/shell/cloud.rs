//! The cloud access surface (native-ws.md §2, §3): a native session is a run, and `thread_id` is the session.
//!
//! Wherever an id stands in a path, the run's (dashed or `run-…`) and the session's are both taken. A session's stream goes on over all
//! its runs; a cursor is the n-th frame of the id in the path (decision 28).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use http::StatusCode;
use interline_hub::{
    Access, Action, ActionError, Denied, MAX_MODEL_BYTES, NewSession, NotBegun, RunStatus, Session, StartError, StartRun, Started,
};
use interline_model::{Millis, Part, RunId, SessionId, Text};
use serde::{Deserialize, Serialize};

use super::base::{Base, Before};
use super::feed::{Feed, Glance, Settled};
use super::inbound::{Inbound, Plane};
use super::replies::{self, BodyError};
use super::socket::Handshake;
use super::tokens::{Grant, Refused};
use super::{Caller, NAME, Shell, cursor, now, projection, query};
use crate::{Kind, NativeFrame};

pub(super) fn router() -> Router<Arc<Shell>> {
    Router::new()
        .route("/v1/agent/sessions", post(create))
        .route("/v1/agent/sessions/{id}/stream", get(stream))
        .route("/v1/agent/sessions/{id}/refresh-token", post(refresh_token))
        .route("/v1/agent/sessions/{id}/result", get(result))
        .route("/v1/agent/sessions/{id}/elicitations", get(elicitations))
        .route("/v1/agent/sessions/{id}/resume", post(resume))
        .route("/v1/agent/{*rest}", any(replies::not_found))
}

/// An error of this surface (native-ws.md §2.1).
struct CloudError {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Seconds after which trying again makes sense.
    retry_after: Option<u64>,
}

impl CloudError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None }
    }

    fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    fn unauthorized(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code, message)
    }

    fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "agentplane: session not found")
    }
}

impl From<Denied> for CloudError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Missing => Self::unauthorized("missing_bearer", ""),
            Denied::Invalid | Denied::Expired => Self::unauthorized("invalid_token", denied.to_string()),
            Denied::Limited { seconds, .. } => {
                Self { retry_after: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", denied.to_string()) }
            }
        }
    }
}

impl From<StartError> for CloudError {
    fn from(error: StartError) -> Self {
        let (status, code) = match &error {
            StartError::Busy { .. } => (StatusCode::CONFLICT, "session_busy"),
            StartError::CellNotFound(_) | StartError::SessionNotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            StartError::TooManyRuns(_) => (StatusCode::TOO_MANY_REQUESTS, "too_many_runs"),
            StartError::TooManySessions(_) => (StatusCode::TOO_MANY_REQUESTS, "too_many_sessions"),
            StartError::Unstored => (StatusCode::SERVICE_UNAVAILABLE, "storage_unavailable"),
            StartError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl From<ActionError> for CloudError {
    fn from(error: ActionError) -> Self {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::BAD_GATEWAY);
        Self::new(status, error.code(), error.to_string())
    }
}

impl From<CloudError> for Response {
    fn from(error: CloudError) -> Self {
        #[derive(Serialize)]
        struct Outer<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            code: &'a str,
            message: &'a str,
        }
        let response = replies::json(error.status, &Outer { error: Inner { code: error.code, message: &error.message } });
        replies::again_after(response, error.retry_after)
    }
}

/// The answer to whoever comes too often.
pub(super) fn denied(denied: Denied) -> Response {
    CloudError::from(denied).into()
}

/// A refusal that comes before any route.
pub(super) fn refusal(status: StatusCode, code: &'static str, message: &'static str) -> Response {
    CloudError::new(status, code, message).into()
}

/// What an id in a path names.
enum Target {
    Run(Arc<Session>, RunId),
    Session(Arc<Session>),
}

impl Target {
    fn find(shell: &Shell, access: &Access, id: &str) -> Option<Self> {
        let run = id.parse().ok().and_then(|run| Some(Self::Run(shell.hub.run(access, run)?, run)));
        run.or_else(|| shell.hub.session(access, &SessionId::from(id)).map(Self::Session))
    }

    fn session(&self) -> &Arc<Session> {
        match self {
            Self::Run(session, _) | Self::Session(session) => session,
        }
    }

    fn run(&self) -> Option<RunId> {
        match self {
            Self::Run(_, run) => Some(*run),
            Self::Session(_) => None,
        }
    }

    /// The run in the path, or the session's latest.
    fn latest(&self) -> Option<RunId> {
        self.run().or_else(|| self.session().info().latest.map(|run| run.run))
    }

    /// The session's state as the wire has it (native-ws.md §2.8).
    fn state(&self) -> &'static str {
        let status = self.latest().and_then(|run| self.session().run_info(run)).map(|run| run.status);
        match (self, status) {
            (Self::Run(..), Some(status)) => state_of(status),
            _ => "active",
        }
    }

    fn grant(&self, access: Access) -> Grant {
        Grant { access, session: self.session().id().clone(), run: self.run() }
    }
}

fn state_of(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Running => "active",
        RunStatus::Completed => "completed",
        RunStatus::Failed => "failed",
        RunStatus::Interrupted => "cancelled",
    }
}

impl Grant {
    /// Whether it is for the id in a path, which names `target` if it names anything. A token is for what it was given out for: a run's
    /// opens that run and not what else is said in its session; a session's opens the session, and each of its runs with it.
    fn covers(&self, id: &str, target: Option<&Target>) -> bool {
        match (self.run, target) {
            (Some(run), Some(target)) => target.run() == Some(run),
            (Some(run), None) => id.parse() == Ok(run),
            (None, Some(target)) => *target.session().id() == self.session,
            (None, None) => self.session.as_str() == id,
        }
    }
}

/// `Err` where the id is not even one: no UUID, and no session that a client named so.
fn well_formed(id: &str, target: Option<&Target>, code: &'static str) -> Result<(), CloudError> {
    if target.is_some() || id.parse::<RunId>().is_ok() { Ok(()) } else { Err(CloudError::bad_request(code, "invalid UUID")) }
}

/// The body of a create request. Members that are not here are the upstream's business or nobody's, and ignored: the client chooses
/// neither device nor pool (decision 5).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Create {
    mode: Option<String>,
    environment_id: Option<String>,
    thread_id: Option<String>,
    model: Option<String>,
    system_prompt: Option<String>,
    prompt: Option<String>,
    images: Option<Vec<Image>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Image {
    mime_type: Option<String>,
    data: Option<String>,
}

/// The answer to a create request, in the order of the wire.
#[derive(Serialize)]
struct Created<'a> {
    session_id: &'a str,
    session_token: String,
    expires_at: Millis,
    mode: &'a str,
    state: &'static str,
    created_at: Millis,
    jetstream_subject_in: String,
    jetstream_subject_out: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    environment_id: Option<String>,
    /// Always there, also for a session that the client did not name: without it there would be no next turn.
    thread_id: &'a str,
}

async fn create(State(shell): State<Arc<Shell>>, request: Request) -> Response {
    try_create(&shell, request).await.unwrap_or_else(Response::from)
}

async fn try_create(shell: &Shell, request: Request) -> Result<Response, CloudError> {
    let access = shell.admit(&Caller::of(&request))?;
    let max = shell.config.max_body;
    let body = replies::body(request.into_body(), max).await.map_err(|error| match error {
        BodyError::TooLarge => {
            CloudError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", format!("the body is larger than {max} bytes"))
        }
        BodyError::Broken => CloudError::bad_request("bad_json", "the body did not arrive whole"),
    })?;
    let create: Create = replies::object(&body).map_err(|error| CloudError::bad_request("bad_json", error))?;
    let Some(mode @ ("chat" | "agent" | "task")) = create.mode.as_deref() else {
        return Err(CloudError::bad_request("bad_mode", "mode must be chat, agent or task"));
    };
    let session = create.thread_id.as_deref().and_then(|id| thread(shell, &access, id));
    let model = filled(create.model.as_deref());
    if model.as_ref().is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
        return Err(CloudError::bad_request("bad_model", format!("model takes at most {MAX_MODEL_BYTES} bytes")));
    }
    let input = input(create.prompt.as_deref(), create.images.unwrap_or_default());
    let (target, created_at) = if input.is_empty() {
        // Nothing runs (native-ws.md §2.2). The session's own id is the native session: its stream is open and silent until
        // something runs in it, from whatever surface.
        let session = shell.hub.create_session(&access, NewSession { id: session, model, ..NewSession::default() })?;
        let created_at = session.info().created_at;
        (Target::Session(session), created_at)
    } else {
        let start = StartRun {
            surface: Text::from_static(NAME),
            cell: None,
            session,
            model,
            input,
            system_prompt: filled(create.system_prompt.as_deref()),
            actor: None,
            headless: false,
            output_schema: None,
            idempotency_key: None,
            ..StartRun::default()
        };
        // Where a run waits for its turn the request does, too: a session that does not run yet has no stream.
        let (session, run) = match shell.hub.start_in_turn(&access, start)? {
            Started::Begun(session, run) => (session, run),
            Started::InTurn(waiting) => waiting.begun().await.map_err(|why| match why {
                NotBegun::Refused(error) => error,
                NotBegun::Stopped | NotBegun::Left => StartError::Draining,
            })?,
        };
        let created_at = session.run_info(run).map_or_else(now, |run| run.started_at);
        (Target::Run(session, run), created_at)
    };
    let id = target.run().map_or_else(|| target.session().id().to_string(), RunId::dashed);
    let (session_token, expires_at) = shell.tokens.issue(target.grant(access), now());
    let created = Created {
        session_id: &id,
        session_token,
        expires_at,
        mode,
        // Also if the run has ended meanwhile: clients open the stream of an active session only, and there they find its end.
        state: "active",
        created_at,
        jetstream_subject_in: format!("biu.session.{id}.in"),
        jetstream_subject_out: format!("biu.session.{id}.out"),
        environment_id: create.environment_id.filter(|id| mode != "chat" && !id.is_empty()),
        thread_id: target.session().id().as_str(),
    };
    Ok(replies::json(StatusCode::CREATED, &created))
}

/// The session that a `thread_id` names: any UUID, or a session that is there. Other text is dropped (native-ws.md §2.2).
fn thread(shell: &Shell, access: &Access, id: &str) -> Option<SessionId> {
    let session = SessionId::from(id);
    (uuid::Uuid::parse_str(id).is_ok() || shell.hub.session(access, &session).is_some()).then_some(session)
}

fn filled(text: Option<&str>) -> Option<Text> {
    text.filter(|text| !text.is_empty()).map(Text::from)
}

fn input(prompt: Option<&str>, images: Vec<Image>) -> Vec<Part> {
    let text = filled(prompt).map(Part::Text);
    let images = images.into_iter().filter_map(|image| {
        let data = image.data.filter(|data| !data.is_empty())?;
        let kind = image.mime_type.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "image/png".to_owned());
        Some(Part::Image { url: Text::from(format!("data:{kind};base64,{data}")) })
    });
    text.into_iter().chain(images).collect()
}

async fn stream(State(shell): State<Arc<Shell>>, Path(id): Path<String>, request: Request) -> Response {
    try_stream(&shell, &id, request).unwrap_or_else(Response::from)
}

/// The checks stand in the order of native-ws.md §3.1.
fn try_stream(shell: &Arc<Shell>, id: &str, mut request: Request) -> Result<Response, CloudError> {
    let opened = open(shell, &request);
    let target = opened.as_ref().ok().and_then(|(access, _)| Target::find(shell, access, id));
    well_formed(id, target.as_ref(), "bad_session_id")?;
    let (access, grant) = opened?;
    if grant.is_some_and(|grant| !grant.covers(id, target.as_ref())) {
        return Err(CloudError::unauthorized("invalid_session_token", "agentplane: token scope does not match session"));
    }
    let Some(target) = target else {
        return Err(CloudError::new(StatusCode::NOT_FOUND, "session_not_found", "agentplane: session not found"));
    };
    let projection = projection(target.session());
    let since = cursor(request.uri(), "since_seq");
    let (glance, span) = projection.with(|writer, end| (Glance::at(writer, end), target.run().and_then(|run| writer.span(run))));
    if let (Some(run), Some(span), None) = (target.run(), span, since)
        && span.to.is_some()
        && shell.connects.has(run)
    {
        let state = target.state();
        let message = format!("session is {state}; read result via /v1/agent/sessions/{id}/result");
        return Err(CloudError::new(StatusCode::CONFLICT, "session_finalized", message));
    }
    let Some(handshake) = Handshake::of(&mut request) else {
        return Ok(replies::plain(StatusCode::BAD_REQUEST, "Bad Request\n"));
    };
    let visit = shell.hub.visit(NAME, &access)?;
    let meant = target.run().or_else(|| glance.latest.map(|span| span.run));
    let is_first = meant.is_some_and(|run| shell.connects.claim(target.session(), run));
    let feed = match (&target, span) {
        (Target::Run(_, run), None) => Feed::desynced(&projection, id, *run, since.unwrap_or(0)),
        (Target::Run(..), Some(span)) => {
            let end = span.to.unwrap_or(glance.end);
            let (from, settled) = match since {
                Some(seen) => (span.from.saturating_add(seen).min(end), Settled::Shown),
                None if is_first => (span.from, Settled::Withdrawn),
                None => (end, Settled::Withdrawn),
            };
            Feed::run(&projection, glance, span, from, settled)
        }
        (Target::Session(session), _) => match (since, glance.latest) {
            (Some(seen), latest) => match (Base::kept_of(Base::of(session), seen), latest) {
                (Ok(kept), _) => {
                    let from = kept.min(glance.end);
                    Feed::session(&projection, glance, from, Settled::Shown)
                }
                (Err(Before), Some(latest)) => Feed::desynced(&projection, id, latest.run, seen),
                // All is gone, and all that comes is new.
                (Err(Before), None) => Feed::session(&projection, glance, 0, Settled::Shown),
            },
            (None, Some(latest)) if is_first => Feed::session(&projection, glance, latest.from, Settled::Withdrawn),
            (None, _) => {
                let end = glance.end;
                Feed::session(&projection, glance, end, Settled::Withdrawn)
            }
        },
    };
    let (requests, max_requests) = shell.requests();
    let session = target.session().clone();
    let inbound = Inbound { plane: Plane::Cloud, hub: shell.hub.clone(), session, run: target.run(), access, requests, max_requests };
    let first = meant.filter(|_| is_first);
    Ok(handshake.accept(shell.clone(), visit, feed, inbound, move |shell| {
        if let Some(run) = first {
            shell.connects.release(run);
        }
    }))
}

/// Who wants to open a stream: by the session token in the query or the header, or by a long-lived one in the header.
fn open(shell: &Shell, request: &Request) -> Result<(Access, Option<Grant>), CloudError> {
    let invalid = |message: &str| CloudError::unauthorized("invalid_session_token", message);
    let in_query = query(request.uri(), "session_token").filter(|token| !token.is_empty());
    let caller = Caller::of(request);
    let in_header = caller.bearer();
    let Some(token) = in_query.as_deref().or(in_header) else {
        return Err(CloudError::unauthorized("missing_session_token", ""));
    };
    match shell.tokens.open(token, now()) {
        Ok(grant) => match shell.readmit(&grant.access) {
            Ok(()) => Ok((grant.access.clone(), Some(grant))),
            Err(limited @ Denied::Limited { .. }) => Err(limited.into()),
            Err(denied) => Err(invalid(&denied.to_string())),
        },
        Err(Refused::Expired) => Err(invalid("token has invalid claims: token is expired")),
        Err(Refused::Unknown) => Err(invalid("token is malformed: it is no session token of this server")),
        // A long-lived token has no place in an address, which ends up in logs.
        Err(Refused::Foreign) if in_query.is_some() => Err(invalid("token is malformed: it is no session token")),
        Err(Refused::Foreign) => match shell.admit(&caller) {
            Ok(access) => Ok((access, None)),
            Err(limited @ Denied::Limited { .. }) => Err(limited.into()),
            Err(denied) => Err(invalid(&denied.to_string())),
        },
    }
}

/// The session of a request beside the stream: by a long-lived token, or by a session token that is for it.
fn reach(shell: &Shell, caller: &Caller, id: &str) -> Result<(Access, Target), CloudError> {
    let (access, grant) = match caller.bearer().map(|token| shell.tokens.open(token, now())) {
        Some(Ok(grant)) => {
            shell.readmit(&grant.access)?;
            (grant.access.clone(), Some(grant))
        }
        Some(Err(Refused::Expired)) => return Err(CloudError::unauthorized("invalid_token", "token has invalid claims: token is expired")),
        Some(Err(Refused::Unknown)) => return Err(CloudError::unauthorized("invalid_token", "the token is not known")),
        Some(Err(Refused::Foreign)) | None => (shell.admit(caller)?, None),
    };
    let target = Target::find(shell, &access, id).filter(|target| grant.is_none_or(|grant| grant.covers(id, Some(target))));
    well_formed(id, target.as_ref(), "bad_id")?;
    target.map(|target| (access, target)).ok_or_else(CloudError::not_found)
}

async fn refresh_token(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    #[derive(Serialize)]
    struct Refreshed {
        session_token: String,
        expires_at: Millis,
    }
    // Not by a session token: whoever caught one could keep it alive for ever.
    let admitted = shell.admit(&caller).map_err(CloudError::from);
    let refreshed = admitted.and_then(|access| {
        let target = Target::find(&shell, &access, &id);
        well_formed(&id, target.as_ref(), "bad_id")?;
        let target = target.ok_or_else(CloudError::not_found)?;
        let (session_token, expires_at) = shell.tokens.issue(target.grant(access), now());
        Ok(replies::json(StatusCode::OK, &Refreshed { session_token, expires_at }))
    });
    refreshed.unwrap_or_else(Response::from)
}

/// The frame that ended the run, or the session's latest run (decision 29).
async fn result(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    let target = match reach(&shell, &caller, &id) {
        Ok((_, target)) => target,
        Err(error) => return error.into(),
    };
    let projection = projection(target.session());
    let last = projection.with(|writer, _| writer.span(target.latest()?)?.to).and_then(|to| to.checked_sub(1));
    let frame = last.and_then(|last| projection.tail(last).ready(1).pop());
    match frame {
        Some(NativeFrame { text, kind: Kind::End }) => replies::with_type(StatusCode::OK, "application/json", text.into_bytes()),
        _ => CloudError::new(StatusCode::NOT_FOUND, "result_not_ready", "the session has no result yet").into(),
    }
}

/// The requests that wait for an answer, each with its deadline (decision 29).
async fn elicitations(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    let target = match reach(&shell, &caller, &id) {
        Ok((_, target)) => target,
        Err(error) => return error.into(),
    };
    let session = target.session();
    let is_meant = target.run().is_none_or(|run| session.active_run() == Some(run));
    let pending = if is_meant { projection(session).with(|writer, _| writer.pending().to_vec()) } else { Vec::new() };
    let deadlines = session.pending_asks();
    let requests = pending.iter().filter_map(|request| {
        let deadline = deadlines.iter().rfind(|pending| pending.ask.id == request.ask)?.deadline;
        // A request is an object with members, so this is its end; the rest stays as it came.
        Some(format!("{},\"deadline\":{deadline}}}", request.text.trim_end().strip_suffix('}')?))
    });
    let body = format!("{{\"elicitations\":[{}]}}", requests.collect::<Vec<_>>().join(","));
    replies::with_type(StatusCode::OK, "application/json", body)
}

/// Lets the upstream go on with a session that it paused; of any other this tells how things stand (decision 29).
async fn resume(State(shell): State<Arc<Shell>>, Path(id): Path<String>, caller: Caller) -> Response {
    #[derive(Serialize)]
    struct Resumed<'a> {
        session_id: &'a str,
        state: &'static str,
    }
    let (access, target) = match reach(&shell, &caller, &id) {
        Ok(reached) => reached,
        Err(error) => return error.into(),
    };
    if target.session().is_paused()
        && let Err(error) = target.session().act(Action::Resume, access.credential().clone()).await
    {
        return CloudError::from(error).into();
    }
    replies::json(StatusCode::ACCEPTED, &Resumed { session_id: &id, state: target.state() })
}
