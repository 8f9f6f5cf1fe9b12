//! What browsers need to hear before a page may talk to us, on every answer of this surface, errors and preflights included (socketio.md §1.4).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::refusal::Problem;
use crate::shell::Shell;

/// Seconds that a browser may keep a preflight's answer: Chromium's ceiling.
const MAX_AGE: &str = "7200";

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE, OPTIONS";

/// What a page asks for if it does not say which headers it will send.
const HEADERS: &str = "Authorization, Content-Type, X-Blade-Client";

/// Answers preflights, without asking who it is, and before the Socket.IO layer sees them; marks every other answer.
pub(crate) async fn layer(State(shell): State<Arc<Shell>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let verdict = verdict(request.headers(), &shell.config.origins);
    if *request.method() == Method::OPTIONS {
        let mut response = preflight(request.headers());
        allow(response.headers_mut(), origin, verdict);
        return response;
    }
    let mut response = if forged(&request, verdict) { Problem::ForeignOrigin.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    allow(headers, origin, verdict);
    response
}

/// What an origin may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Named in the config: also with cookies.
    Known,
    /// Let in because everybody is.
    Anyone,
    /// Not let in.
    Foreign,
}

/// What the origin of a request may do; `None` if it has none and so is no page.
pub(crate) fn verdict(headers: &HeaderMap, allowed: &[String]) -> Option<Verdict> {
    let Ok(origin) = headers.get(header::ORIGIN)?.to_str() else { return Some(Verdict::Foreign) };
    let named = allowed.iter().any(|entry| if entry == "loopback" { is_loopback(origin) } else { entry.eq_ignore_ascii_case(origin) });
    Some(match named {
        true => Verdict::Known,
        false if allowed.iter().any(|entry| entry == "*") => Verdict::Anyone,
        false => Verdict::Foreign,
    })
}

/// A foreign page can send a "simple" request without a preflight, though it cannot read the answer. One that changes something
/// and brings no token by itself is that page's doing. Socket.IO's own requests bring theirs later, in the CONNECT packet.
fn forged(request: &Request, verdict: Option<Verdict>) -> bool {
    verdict == Some(Verdict::Foreign)
        && !matches!(*request.method(), Method::GET | Method::HEAD)
        && request.uri().path().starts_with("/api/")
        && !request.headers().contains_key(header::AUTHORIZATION)
        && !is_same_origin(request.headers())
}

pub(crate) fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, authority)| text(header::HOST).is_some_and(|host| host.eq_ignore_ascii_case(authority)))
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Origin, Access-Control-Request-Headers"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    // Echoed, since `*` does not cover Authorization.
    let names = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(HeaderValue::from_static(HEADERS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    if asked.contains_key("access-control-request-private-network") {
        headers.insert("access-control-allow-private-network", HeaderValue::from_static("true"));
    }
    response
}

fn allow(headers: &mut HeaderMap, origin: Option<HeaderValue>, verdict: Option<Verdict>) {
    let Some(origin) = origin.filter(|_| verdict.is_some_and(|verdict| verdict != Verdict::Foreign)) else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    // Socket.IO clients of browsers that were told `withCredentials` refuse an answer without it.
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

    fn judged(origin: &str, allowed: &[&str]) -> Option<Verdict> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        verdict(&headers, &allowed.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_named_origins_are_known() {
        assert_eq!(judged("https://app.example", &["loopback", "https://app.example"]), Some(Verdict::Known));
        assert_eq!(judged("http://localhost:1", &["loopback", "*"]), Some(Verdict::Known));
        assert_eq!(judged("http://[::1]:3000", &["loopback"]), Some(Verdict::Known));
        assert_eq!(judged("https://app.example", &["*"]), Some(Verdict::Anyone));
        for foreign in ["https://app.example", "null", "http://localhost.evil.example", "file://localhost"] {
            assert_eq!(judged(foreign, &["loopback"]), Some(Verdict::Foreign), "{foreign}");
        }
        assert_eq!(verdict(&HeaderMap::new(), &[]), None);
    }
}
