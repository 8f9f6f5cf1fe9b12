//! Which pages may talk to this surface, and what they hear, on every answer, errors and preflights included (socketio.md §1.4). The policy
//! is the hub's. Paths that no route can read end here, too, in this surface's own words.

use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use interline_hub::{Cors, Page, is_packed};

use crate::bearer;
use crate::refusal::Problem;
use crate::shell::Shell;

const CORS: Cors =
    Cors { methods: "GET, POST, PUT, PATCH, DELETE, OPTIONS", headers: "Authorization, Content-Type, X-Blade-Client", exposed: "" };

/// Answers preflights, without asking who it is, and before the Socket.IO layer sees them; refuses what a foreign page does; marks every
/// other answer.
pub(crate) async fn layer(State(shell): State<Arc<Shell>>, request: Request, next: Next) -> Response {
    let page = Page::of(&request, &shell.hub.origins(&shell.config.origins));
    if let Some(answer) = CORS.preflight(&request, &page) {
        return answer;
    }
    if let Err(denied) = shell.hub.knock(request.extensions().get().copied()) {
        return CORS.mark(Problem::from(denied).into_response(), page);
    }
    if is_packed(request.headers()) {
        return CORS.mark(Problem::Packed.into_response(), page);
    }
    let (mut parts, body) = request.into_parts();
    let response = match refused(&shell, &mut parts).await {
        Some(problem) => problem.into_response(),
        None => next.run(Request::from_parts(parts, body)).await,
    };
    CORS.mark(response, page)
}

async fn refused(shell: &Shell, parts: &mut Parts) -> Option<Problem> {
    let origins = shell.hub.origins(&shell.config.origins);
    // Where a socket's token counts, it may still come: in the CONNECT packet, which is judged by itself.
    let later = origins.tokens_count() && !parts.uri.path().starts_with("/api/");
    let brings_token = later || bearer::own_token(&parts.headers, &parts.uri, &shell.config).is_some();
    if origins.refuse(&parts.method, &parts.uri, &parts.headers, brings_token) {
        return Some(Problem::ForeignOrigin);
    }
    let read = RawPathParams::from_request_parts(parts, &()).await;
    matches!(read, Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))).then_some(Problem::NotFound("Path"))
}
