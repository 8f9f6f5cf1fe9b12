//! The HTTP surface: routes, and how a run is read (sse.md §1).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, delete, get, post};
use bytes::Bytes;
use interline_hub::{Access, AskConfig, Hub, InTurn, NotBegun, Projection, Session, StartError, Surface, Visit};
use interline_model::{Body as RecordBody, CellName, Event, FailureKind, Outcome, Record, RunEnd, RunId, Text, What, Writer};

use crate::body::{Framing, Reading, Source};
use crate::caller::{Caller, SURFACE, Viewer};
use crate::error::Refusal;
use crate::posts::{Answering, Posts};
use crate::{
    AskLimits, Block, Config, Extras, Options, Profile, SseWriter, actions, asks, control, cors, cursor, explain, lists, start, tickets,
};

/// What every handler needs.
pub(crate) struct Shell {
    pub(crate) hub: Arc<Hub>,
    pub(crate) config: Config,
    /// Where requests that are sent again attach.
    pub(crate) posts: Option<Arc<Posts>>,
}

/// A run that can be followed.
pub(crate) enum Target {
    /// It goes on, or has ended.
    Begun(Arc<Session>, RunId),
    /// It waits for the run before it.
    InTurn(Arc<InTurn>),
}

impl Target {
    pub(crate) fn run(&self) -> RunId {
        match self {
            Self::Begun(_, run) => *run,
            Self::InTurn(waiting) => waiting.run,
        }
    }
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
    let dedupe = Duration::from_millis(config.dedupe_posts_ms);
    let posts = (!dedupe.is_zero()).then(|| Arc::new(Posts::new(dedupe)));
    let shell = Arc::new(Shell { hub, config, posts });
    let routes: [(&str, MethodRouter<Arc<Shell>>); 32] = [
        ("/cells", get(lists::cells)),
        ("/cells//{*rest}", any(no_cell)),
        ("/cells/{cell}", get(lists::cell)),
        ("/cells/{cell}/run", post(start::start)),
        ("/cells/{cell}/tickets", post(tickets::issue)),
        ("/cells/{cell}/runs", get(lists::runs)),
        ("/cells/{cell}/runs/{run_id}", get(lists::run).delete(control::interrupt_run)),
        ("/cells/{cell}/runs/{run_id}/events", get(events)),
        ("/cells/{cell}/runs/{run_id}/interrupt", post(control::interrupt_run)),
        ("/cells/{cell}/runs/{run_id}/cancel", post(control::interrupt_run)),
        ("/cells/{cell}/runs/{run_id}/approvals/{request_id}", post(control::answer_in_run)),
        ("/cells/{cell}/runs/{run_id}/approvals/{request_id}/approve", post(control::approve)),
        ("/cells/{cell}/runs/{run_id}/approvals/{request_id}/deny", post(control::deny)),
        ("/cells/{cell}/runs/{run_id}/asks", get(asks::of_run)),
        ("/cells/{cell}/asks", get(asks::of_cell)),
        ("/cells/{cell}/hitl/{request_id}", post(control::answer)),
        ("/cells/{cell}/sessions", get(lists::sessions)),
        ("/cells/{cell}/sessions/{session_id}", delete(lists::delete_session)),
        ("/cells/{cell}/sessions/{session_id}/interrupt", post(control::interrupt_session)),
        ("/cells/{cell}/sessions/{session_id}/cancel", post(control::interrupt_session)),
        ("/cells/{cell}/sessions/{session_id}/messages", get(lists::messages)),
        ("/cells/{cell}/sessions/{session_id}/plan", get(lists::plan)),
        ("/cells/{cell}/sessions/{session_id}/asks", get(asks::of_session)),
        ("/cells/{cell}/sessions/{session_id}/decisions", get(asks::decisions)),
        ("/cells/{cell}/sessions/{session_id}/cost", get(actions::cost)),
        ("/cells/{cell}/sessions/{session_id}/context", get(actions::context)),
        ("/cells/{cell}/sessions/{session_id}/compact", post(actions::compact)),
        ("/cells/{cell}/sessions/{session_id}/model", post(actions::model)),
        ("/cells/{cell}/sessions/{session_id}/mode", post(actions::mode)),
        ("/cells/{cell}/sessions/{session_id}/rewind", post(actions::rewind)),
        ("/cells/{cell}/sessions/{session_id}/tasks/{task_id}/stop", post(actions::stop_task)),
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
        let options = self.options(session, extras);
        session.projection(extras.as_str(), move || SseWriter::new(options.clone()))
    }

    /// A fresh writer of the session. Two with the same extras write the same.
    pub(crate) fn writer(&self, session: &Session, extras: Extras) -> SseWriter {
        SseWriter::new(self.options(session, extras))
    }

    fn options(&self, session: &Session, extras: Extras) -> Options {
        let AskConfig { permission_ms, form_ms, .. } = *self.hub.ask_config();
        let ask_limits = Some(AskLimits { permission_ms, form_ms });
        Options { extras, ask_limits, cell: Some(Text::from(session.cell().as_str())), ..self.config.options() }
    }

    /// A run of the client's in this cell, going on, ended or waiting for its turn.
    pub(crate) fn target(&self, access: &Access, cell: &CellName, run: RunId) -> Option<Target> {
        let found = || self.hub.run(access, run).filter(|session| session.cell() == cell);
        // What waits begins before it stops waiting: asked in this order, it is found.
        let waiting = self.hub.in_turn(access, cell, run);
        let begun = found().filter(|session| session.run_info(run).is_some()).map(|session| Target::Begun(session, run));
        // One that waits on another surface can be stopped from here, too.
        begun.or_else(|| waiting.map(Target::InTurn)).or_else(|| found().map(|session| Target::Begun(session, run)))
    }

    /// The events of a run from number `from` on.
    pub(crate) fn source(&self, session: &Session, run: RunId, from: u64, extras: Extras) -> Result<Source, Refusal> {
        let projection = self.projection(session, extras);
        // An event's place among the run's items is its number or, behind asides, a later one.
        let gone = |_| {
            if session.run_info(run).is_some() || session.has_forgotten(run) {
                Refusal::EventsExpired(run)
            } else {
                Refusal::RunNotFound(run.to_string())
            }
        };
        let tail = projection.run_tail(run, from).map_err(gone)?;
        Ok(Source::Run { run, projection, tail })
    }

    /// A run's last event so far.
    pub(crate) fn last(&self, target: &Target, extras: Extras) -> Option<Block> {
        match target {
            Target::Begun(session, run) => self.projection(session, extras).run_last(*run),
            Target::InTurn(waiting) => waiting.why_not().and_then(|why| self.not_begun(waiting, &why, extras).pop()),
        }
    }

    /// The whole of a run that waited and did not begin.
    pub(crate) fn not_begun(&self, waiting: &InTurn, why: &NotBegun, extras: Extras) -> Vec<Block> {
        let outcome = match why {
            NotBegun::Stopped => Outcome::Interrupted { reason: Text::from_static("user_interrupt") },
            // It begins in the next process.
            NotBegun::Left => return Vec::new(),
            NotBegun::Refused(error) => Outcome::Failed { kind: FailureKind::EngineNotReady, message: Text::from(error.to_string()) },
        };
        let start = What::RunStarted { run: waiting.run, session: waiting.session.id().clone(), model: waiting.model.clone() };
        let events = [Event::root(start), Event::root(What::RunEnded(Box::new(RunEnd::synthesised(outcome))))];
        // No record of its session's log: there never was such a run. The same whenever it is read.
        let record = Record { at: waiting.taken_at, body: RecordBody::Frame(Text::new()) };
        let mut blocks = Vec::new();
        self.writer(&waiting.session, extras).write(&record, &events, &mut blocks);
        blocks
    }

    /// A stream of a run from its event number `from` on.
    pub(crate) fn stream(
        self: &Arc<Self>,
        target: Target,
        from: u64,
        profile: Profile,
        extras: Extras,
        answering: Option<Answering>,
        visit: Visit,
    ) -> Result<Response, Refusal> {
        let (session, run, source) = match target {
            Target::Begun(session, run) => {
                let source = self.source(&session, run, from, extras)?;
                (session, run, source)
            }
            Target::InTurn(waiting) => (waiting.session.clone(), waiting.run, Source::InTurn(waiting)),
        };
        let framing = Framing::new(run, profile, self.config.retry_ms, extras.has_events());
        let body = Reading::new(self.clone(), source, from, framing, extras, answering, visit).into_body();
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

/// `GET /cells/{cell}/runs/{run_id}/events`: replays from an event on, then goes on live until the end.
async fn events(State(shell): State<Arc<Shell>>, Viewer(caller): Viewer, headers: HeaderMap) -> Result<Response, Refusal> {
    let target = caller.target(&shell)?;
    let run = target.run();
    let from_seq = cursor::from_seq(caller.query("from_seq"))?;
    // A browser repeats the URL with its old `from_seq` when it reconnects: the id says how far it really is.
    let last_seen = cursor::last_event_id(&headers, run);
    let from = last_seen.map_or(from_seq, |seq| seq.saturating_add(1));
    let extras = cursor::extras(caller.query("extras"), shell.config.extras);
    if explain::is_asked(caller.query("explain")) {
        let (session, run) = caller.run(&shell)?;
        return explain::answer(shell, session, run, from_seq, extras).await;
    }
    if let Some(seen) = last_seen
        && let Some(last) = shell.last(&target, extras)
        && last.is_terminal()
        && seen >= last.seq()
    {
        // The one answer that stops an `EventSource` for good. Others would find no body to read (sse.md §5.6).
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let profile = cursor::get_profile(caller.query("sse"), shell.config.get_profile, &headers);
    let visit = shell.hub.visit(SURFACE, &caller.access)?;
    shell.stream(target, from, profile, extras, None, visit)
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
