//! What browsers need to hear before a page may talk to us, on every answer, errors included (sse.md §5.7).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::Refusal;
use crate::shell::Shell;

/// Seconds that a browser may keep a preflight's answer: Chromium's ceiling.
const MAX_AGE: &str = "7200";

/// Answers preflights, without asking who it is; marks every other answer.
pub(crate) async fn layer(State(shell): State<Arc<Shell>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let verdict = origin.as_ref().map(|origin| judge(origin, &shell.config.origins));
    if *request.method() == Method::OPTIONS {
        let mut response = preflight(request.headers());
        allow(response.headers_mut(), origin, verdict);
        return response;
    }
    let mut response = if forged(&request, verdict) { Refusal::ForeignOrigin.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    allow(headers, origin, verdict);
    response
}

/// What an origin may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Named in the config: also with cookies.
    Known,
    /// Let in because everybody is.
    Anyone,
    /// Not let in.
    Foreign,
}

fn judge(origin: &HeaderValue, allowed: &[String]) -> Verdict {
    let Ok(origin) = origin.to_str() else { return Verdict::Foreign };
    if allowed.iter().any(|entry| if entry == "loopback" { is_loopback(origin) } else { entry.eq_ignore_ascii_case(origin) }) {
        Verdict::Known
    } else if allowed.iter().any(|entry| entry == "*") {
        Verdict::Anyone
    } else {
        Verdict::Foreign
    }
}

/// A page of a foreign origin can send a "simple" request without a preflight, though it cannot read the answer. One that
/// changes something and brings no token by itself is such a page's doing until the config says otherwise.
fn forged(request: &Request, verdict: Option<Verdict>) -> bool {
    verdict == Some(Verdict::Foreign)
        && !matches!(*request.method(), Method::GET | Method::HEAD)
        && !request.headers().contains_key(header::AUTHORIZATION)
        && !is_same_origin(request.headers())
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, authority)| text(header::HOST).is_some_and(|host| host.eq_ignore_ascii_case(authority)))
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Origin, Access-Control-Request-Headers"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    // Echoed, since `*` does not cover Authorization.
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    if asked.contains_key("access-control-request-private-network") {
        headers.insert("access-control-allow-private-network", HeaderValue::from_static("true"));
    }
    response
}

fn allow(headers: &mut HeaderMap, origin: Option<HeaderValue>, verdict: Option<Verdict>) {
    let Some(origin) = origin.filter(|_| verdict.is_some_and(|verdict| verdict != Verdict::Foreign)) else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("X-Run-Id, X-Session-Id, Location"));
    if verdict == Some(Verdict::Known) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

/// Whether an origin is a page of this machine.
fn is_loopback(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or("", |(host, _)| host),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    let is_ip = |ip: std::net::IpAddr| ip.is_loopback();
    matches!(scheme, "http" | "https") && (host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_are_loopback() {
        for origin in ["http://localhost", "http://localhost:5173", "https://127.0.0.1:8443", "http://[::1]:3000", "http://app.localhost"] {
            assert!(is_loopback(origin), "{origin}");
        }
        for origin in
            ["http://localhost.evil.com", "http://127.0.0.1.evil.com", "null", "http://evil.com/localhost", "file://localhost", "http://"]
        {
            assert!(!is_loopback(origin), "{origin}");
        }
    }

    #[test]
    fn only_named_origins_may_bring_cookies() {
        let judged = |origin: &str, allowed: &[&str]| {
            judge(&HeaderValue::from_str(origin).unwrap(), &allowed.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(judged("https://app.example", &["loopback", "https://app.example"]), Verdict::Known);
        assert_eq!(judged("http://localhost:1", &["loopback", "*"]), Verdict::Known);
        assert_eq!(judged("https://app.example", &["*"]), Verdict::Anyone);
        assert_eq!(judged("https://app.example", &["loopback"]), Verdict::Foreign);
        assert_eq!(judged("null", &["loopback"]), Verdict::Foreign);
    }
}
