//! The proxy as a whole: a hub and all routes, made of a checked config; served until told to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use interline_hub::{Closing, Cors, Hub, Page, Restored, names_this_machine};
use interline_journal::{Durable, Journal, JournalConfig, JournalError, Memory};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::TraceLayer;
use tracing::Span;

use crate::config::{Checked, Layer, Problems};
use crate::logging::LogFilter;
use crate::reload::Live;
use crate::telemetry::Telemetry;
use crate::{admin, contracts, server, surfaces};

/// How long a connection has to close after it was told to.
const GOODBYE: Duration = Duration::from_secs(5);

/// What the program's own routes say to pages: they are read, and nothing else.
const CORS: Cors = Cors { methods: "GET, OPTIONS", headers: "Authorization, Content-Type", exposed: "" };

/// Why the program cannot begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The listener has no address.
    #[error("the address to listen on cannot be told")]
    Listener(#[from] std::io::Error),
    /// The log on the disk cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why the program cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("no connection is accepted any more: {0}")]
pub(crate) struct Deaf(String);

/// The proxy while it serves.
pub(crate) struct App {
    hub: Arc<Hub>,
    address: SocketAddr,
    live: Live,
    telemetry: Arc<Telemetry>,
    server: JoinHandle<()>,
}

impl App {
    /// Puts the parts together and serves on `listener`. `home` is what `/` shows, `log` what a reload may change about the log.
    ///
    /// # Errors
    /// When the listener has no address, or the log on the disk cannot be used.
    pub(crate) fn start(checked: Checked, listener: TcpListener, home: Router, log: Option<LogFilter>) -> Result<Self, StartError> {
        let Checked { config, gate, routes, targets, upstreams, warnings: _ } = checked;
        let address = listener.local_addr()?;
        let journal = journal(&config.journal)?;
        let hub = Hub::new(gate, routes, config.run.clone(), config.ask.clone(), journal);
        let hub = Arc::new(hub.keeping(config.journal.clone()).behind(&config.door()));
        let restored = hub.restore()?;
        if !config.journal.path.is_empty() {
            let Restored { sessions, runs, unfinished, waiting, without_route } = restored;
            tracing::info!(path = config.journal.path, sessions, runs, unfinished, waiting, without_route, "the journal is open");
        }
        tokio::spawn(hub.clone().keep_tidy());
        let telemetry = Arc::new(Telemetry::new());
        telemetry.register(|registry| hub.telemetry().register(registry));
        hub.replace_origins(config.cors.origins.clone());
        let targets = Arc::new(ArcSwap::from_pointee(targets));
        let own = home.merge(contracts::router()).merge(admin::router(hub.clone(), telemetry.clone(), targets.clone()));
        let mut router = heard_by_pages(own, hub.clone(), config.cors.origins.clone());
        for surface in surfaces::all(&config) {
            tracing::debug!(surface = surface.name(), "offered");
            telemetry.register(|registry| surface.register(registry));
            router = router.merge(surface.router(hub.clone()));
        }
        let router = router.layer(from_fn_with_state(hub.clone(), only_this_machine));
        let router = layered(router.layer(from_fn_with_state(hub.closing().clone(), when_to_come_back)), telemetry.clone());
        hub.closing().arrange(config.server.farewell());
        let bounds = Arc::new(ArcSwap::from_pointee(config.server.clone()));
        let server = tokio::spawn(server::serve(listener, router, bounds.clone(), telemetry.clone(), hub.closing().clone()));
        let live = Live::new(config, hub.clone(), upstreams, bounds, targets, telemetry.clone(), log);
        Ok(Self { hub, address, live, telemetry, server })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for what must not happen: that it does not listen any more, though nobody told it to end. Cancel safe.
    pub(crate) async fn deaf(&mut self) -> Deaf {
        Deaf(match (&mut self.server).await {
            Ok(()) => "the listener was given up".to_owned(),
            Err(error) => error.to_string(),
        })
    }

    /// Takes over what may change of the config that these layers come to.
    pub(crate) fn reload(&mut self, layers: Result<Vec<Layer>, Problems>) {
        self.live.reload(layers);
    }

    /// Says that it is not ready any more; after a pause in which load balancers notice, takes no new runs and lets those that go on finish; then
    /// closes every connection, each at its own moment, and waits for them. Each step is bounded, and so is the whole.
    pub(crate) async fn end(self) {
        let Self { hub, live, telemetry, server, .. } = self;
        let (ready_off, drain) = (Duration::from_millis(live.server().ready_off_ms), Duration::from_millis(live.server().drain_ms));
        let spread = live.server().farewell().spread;
        let begun = Instant::now();
        hub.closing().leave();
        let runs = hub.telemetry().active_runs();
        tracing::info!(runs, connections = telemetry.connections(), ready_off_ms = ms(ready_off), "ending: not ready any more");
        if !ready_off.is_zero() {
            sleep(ready_off).await;
        }
        tracing::info!(drain_ms = ms(drain), "no new runs, those that go on may finish");
        let closing = async {
            hub.closing().begun().await;
            tracing::info!(connections = telemetry.connections(), spread_ms = ms(spread), "closing connections");
        };
        let ((), ()) = tokio::join!(hub.shutdown(drain), closing);
        if timeout(spread + GOODBYE, server).await.is_err() {
            tracing::warn!(connections = telemetry.connections(), "some connections did not close in time and are cut");
        }
        tracing::info!(ms = ms(begun.elapsed()), "ended");
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whoever is sent away because the program ends is told when to come back, everybody something else.
async fn when_to_come_back(State(closing): State<Closing>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if response.status() == StatusCode::SERVICE_UNAVAILABLE && closing.is_leaving() {
        let seconds = closing.retry_ms().div_ceil(1000).max(1);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Where sessions live.
fn journal(config: &JournalConfig) -> Result<Arc<dyn Journal>, JournalError> {
    Ok(if config.path.is_empty() { Arc::new(Memory::default()) } else { Arc::new(Durable::start(config)?) })
}

/// The program's own routes and its answers to everything else, as pages may read them (sse.md §5.7). Each surface does the same for its own.
fn heard_by_pages(own: Router, hub: Arc<Hub>, origins: Vec<String>) -> Router {
    own.fallback(admin::not_found)
        .method_not_allowed_fallback(admin::method_not_allowed)
        .layer(from_fn_with_state((hub, Arc::from(origins)), heard))
}

async fn heard(State((hub, origins)): State<(Arc<Hub>, Arc<[String]>)>, request: Request, next: Next) -> Response {
    let page = Page::of(&request, &hub.origins(&origins));
    if let Some(answer) = CORS.preflight(&request, &page) {
        return answer;
    }
    let answer = match hub.knock(request.extensions().get().copied()) {
        Ok(()) => next.run(request).await,
        Err(denied) => admin::limited(denied),
    };
    CORS.mark(answer, page)
}

/// Where everybody on this machine is let in, nobody else is, whatever name leads here: pages can make theirs resolve to 127.0.0.1.
async fn only_this_machine(State(hub): State<Arc<Hub>>, request: Request, next: Next) -> Response {
    if hub.is_open() && !names_this_machine(request.uri(), request.headers()) {
        return admin::foreign_host();
    }
    next.run(request).await
}

fn layered(router: Router, telemetry: Arc<Telemetry>) -> Router {
    router
        .layer(CatchPanicLayer::custom(move |_| {
            telemetry.panicked();
            admin::panicked().map(http_body_util::BodyExt::boxed_unsync)
        }))
        .layer(
            TraceLayer::new_for_http()
                // The path alone: tokens stand in queries.
                .make_span_with(
                    |request: &Request| tracing::debug_span!("request", method = %request.method(), path = request.uri().path()),
                )
                .on_request(())
                .on_response(|response: &http::Response<_>, latency: Duration, _: &Span| {
                    tracing::debug!(status = response.status().as_u16(), ms = ms(latency), "answered");
                })
                .on_body_chunk(())
                .on_eos(())
                .on_failure(()),
        )
}

#[cfg(test)]
mod tests;
