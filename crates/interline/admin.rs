//! What operators ask: is it alive, does it take runs, what does it count. And what everybody gets who asks for something that is not there.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use interline_hub::{Denied, Health, Hub};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::telemetry::Telemetry;

/// How long an upstream may take to accept a connection and still count as there.
const DIAL: Duration = Duration::from_secs(1);
/// How long a finding holds: probes come from many sides, upstreams are dialled once.
const HOLDS: Duration = Duration::from_secs(2);

/// An upstream as readiness sees it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its name in the config.
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

struct Admin {
    hub: Arc<Hub>,
    telemetry: Arc<Telemetry>,
    targets: Arc<ArcSwap<Vec<Target>>>,
    /// When it was found out, and the upstreams that could not be reached.
    found: Mutex<Option<(Instant, Vec<String>)>>,
}

/// `/healthz`, `/health`, `/readyz`, `/metrics`, and the answer to everything else. No credential is needed for any of them.
pub(crate) fn router(hub: Arc<Hub>, telemetry: Arc<Telemetry>, targets: Arc<ArcSwap<Vec<Target>>>) -> Router {
    let admin = Arc::new(Admin { hub, telemetry, targets, found: Mutex::new(None) });
    Router::new()
        .route("/healthz", get(healthy))
        .route("/health", get(healthy))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(admin)
}

async fn healthy() -> Response {
    body(StatusCode::OK, json!({"status": "ok"}).to_string())
}

async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    if admin.hub.closing().is_leaving() {
        return body(StatusCode::SERVICE_UNAVAILABLE, json!({"status": "draining"}).to_string());
    }
    if let Health::Failing { why, .. } = admin.hub.journal_health() {
        tracing::debug!(why, "not ready: the journal cannot be written");
        return body(StatusCode::SERVICE_UNAVAILABLE, json!({"status": "degraded", "reason": "journal_failing"}).to_string());
    }
    let away = admin.unreachable().await;
    if away.is_empty() {
        return body(StatusCode::OK, json!({"status": "ok"}).to_string());
    }
    let answer = json!({"status": "degraded", "reason": "upstream_unreachable", "upstreams": away});
    body(StatusCode::SERVICE_UNAVAILABLE, answer.to_string())
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    admin.telemetry.journal(&admin.hub.journal_health(), admin.hub.journal_bytes());
    ([(header::CONTENT_TYPE, kind)], admin.telemetry.text()).into_response()
}

impl Admin {
    /// The upstreams that do not accept a connection. Whoever asks while it is being found out waits for the same finding.
    async fn unreachable(&self) -> Vec<String> {
        let mut found = self.found.lock().await;
        if let Some((at, away)) = &*found
            && at.elapsed() < HOLDS
        {
            return away.clone();
        }
        let targets = self.targets.load_full();
        let dials = targets.iter().map(async |target| {
            let dialled = timeout(DIAL, TcpStream::connect((target.host.as_str(), target.port))).await;
            (!matches!(dialled, Ok(Ok(_)))).then(|| target.name.clone())
        });
        let away: Vec<String> = futures_util::future::join_all(dials).await.into_iter().flatten().collect();
        *found = Some((Instant::now(), away.clone()));
        away
    }
}

/// The answer where there is no route (sse.md §1.6).
pub(crate) async fn not_found() -> Response {
    body(StatusCode::NOT_FOUND, error_body("there is nothing here; the README lists the routes", "not_found"))
}

/// The answer where there is a route, but not for this method.
pub(crate) async fn method_not_allowed() -> Response {
    body(StatusCode::METHOD_NOT_ALLOWED, error_body("this route does not take this method", "method_not_allowed"))
}

/// The answer to whoever calls an open server by a name that is not this machine's.
pub(crate) fn foreign_host() -> Response {
    let why = "everybody on this machine may use this server ([auth] mode = \"open\"), so it answers to localhost, 127.0.0.1 and [::1] only; \
               to serve it under another name, set mode = \"tokens\"";
    body(StatusCode::FORBIDDEN, error_body(why, "forbidden_host"))
}

/// The answer to an address from which too much comes.
pub(crate) fn limited(denied: Denied) -> Response {
    let mut response = body(StatusCode::TOO_MANY_REQUESTS, error_body(&denied.to_string(), "too_many_requests"));
    if let Denied::Limited { seconds, .. } = denied {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The answer after a panic.
pub(crate) fn panicked() -> Response {
    body(StatusCode::INTERNAL_SERVER_ERROR, error_body("something went wrong here; the log says more", "internal"))
}

/// An error as the SSE surface writes it (sse.md §1.6), so that one code path of a client reads all.
pub(crate) fn error_body(error: &str, kind: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!("{{\"type\":\"error\",\"error\":{},\"kind\":{},\"severity\":\"error\"}}", quoted(error), quoted(kind))
}

fn body(status: StatusCode, text: String) -> Response {
    let kind = HeaderValue::from_static("application/json; charset=utf-8");
    (status, [(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt as _;
    use interline_hub::{AskConfig, Gate, Routes, RunConfig};
    use tower::ServiceExt as _;

    async fn get(router: &Router, path: &str) -> (StatusCode, String) {
        let response = router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status();
        (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    fn stand(port: u16) -> (Router, Arc<Hub>) {
        let (run, ask) = (RunConfig::default(), AskConfig::default());
        let hub = Arc::new(Hub::new(Gate::Open, Routes::default(), run, ask, Arc::new(interline_journal::Memory::default())));
        let target = Target { name: "plane".to_owned(), host: "127.0.0.1".to_owned(), port };
        (router(hub.clone(), Arc::new(Telemetry::new()), Arc::new(ArcSwap::from_pointee(vec![target]))), hub)
    }

    #[tokio::test]
    async fn ready_means_that_upstreams_can_be_dialled_and_runs_are_taken() {
        let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let (router, hub) = stand(port);
        assert_eq!(get(&router, "/readyz").await, (StatusCode::OK, r#"{"status":"ok"}"#.to_owned()));
        hub.shutdown(Duration::ZERO).await;
        assert_eq!(get(&router, "/readyz").await, (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"draining"}"#.to_owned()));
        assert_eq!(get(&router, "/healthz").await.0, StatusCode::OK);
        drop(upstream);
        let (status, said) = get(&stand(port).0, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(said.contains("plane"), "{said}");
    }

    #[tokio::test]
    async fn an_upstream_is_not_dialled_for_every_probe() {
        let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (router, _) = stand(upstream.local_addr().unwrap().port());
        for _ in 0..20 {
            assert_eq!(get(&router, "/readyz").await.0, StatusCode::OK);
        }
        upstream.accept().await.unwrap();
        assert!(timeout(Duration::from_millis(200), upstream.accept()).await.is_err());
    }

    #[test]
    fn errors_are_json_whatever_they_quote() {
        let body = error_body("a \"quote\"\n", "not_found");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap()["error"], "a \"quote\"\n");
    }
}
