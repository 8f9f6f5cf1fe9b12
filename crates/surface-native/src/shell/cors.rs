//! Which pages may talk to this surface, and what they hear, on every answer, errors and preflights included. The policy is the hub's.
//! Paths that no route can read end here, too, in this surface's own words.
//!
//! The protocol takes a WebSocket of any `Origin` (native-ws.md §3.1), since its token proves the client. Where no token is known that
//! proof is missing, and any page that somebody looks at could run tools on their machine.

use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use interline_hub::{Cors, Page, is_packed};

use super::{Shell, bearer, bridge, cloud, query};

const CORS: Cors = Cors { methods: "GET, POST, DELETE, OPTIONS", headers: "Authorization, Content-Type", exposed: "" };

const FOREIGN: &str = "pages from this origin may not do this: add it to [cors] origins";

/// Answers preflights, without asking who it is; refuses what a foreign page does; marks every other answer.
pub(super) async fn layer(State(shell): State<Arc<Shell>>, request: Request, next: Next) -> Response {
    let page = Page::of(&request, &shell.hub.origins(&shell.config.origins));
    if let Some(answer) = CORS.preflight(&request, &page) {
        return answer;
    }
    if let Err(denied) = shell.hub.knock(request.extensions().get().copied()) {
        let is_cloud = request.uri().path().starts_with("/v1/agent/");
        return CORS.mark(if is_cloud { cloud::denied(denied) } else { bridge::denied(denied) }, page);
    }
    let (mut parts, body) = request.into_parts();
    let response = match refused(&shell, &mut parts).await {
        Some(refusal) => refusal,
        None => next.run(Request::from_parts(parts, body)).await,
    };
    CORS.mark(response, page)
}

async fn refused(shell: &Shell, parts: &mut Parts) -> Option<Response> {
    let is_cloud = parts.uri.path().starts_with("/v1/agent/");
    let refusal = |status, code, message| if is_cloud { cloud::refusal(status, code, message) } else { bridge::refusal(status, message) };
    let brings_token = bearer(&parts.headers).is_some() || query(&parts.uri, "session_token").is_some_and(|token| !token.is_empty());
    if shell.hub.origins(&shell.config.origins).refuse(&parts.method, &parts.uri, &parts.headers, brings_token) {
        return Some(refusal(StatusCode::FORBIDDEN, "forbidden_origin", FOREIGN));
    }
    if is_packed(&parts.headers) {
        let why = "no content-encoding is taken: send the body as it is";
        return Some(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "packed_body", why));
    }
    if let Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) = RawPathParams::from_request_parts(parts, &()).await {
        return Some(refusal(StatusCode::NOT_FOUND, "not_found", "the path is no UTF-8"));
    }
    None
}
