//! Which pages may talk to this surface, and what they hear, on every answer, errors included (sse.md §5.7). The policy is the hub's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use interline_hub::{Cors, Page, is_packed};

use crate::caller;
use crate::error::Refusal;
use crate::shell::Shell;

const CORS: Cors = Cors {
    methods: "GET, POST, DELETE, OPTIONS",
    headers: "Authorization, Content-Type, Last-Event-ID, Idempotency-Key",
    exposed: "X-Run-Id, X-Session-Id, Location",
};

/// Answers preflights, without asking who it is; refuses what a foreign page does; marks every other answer.
pub(crate) async fn layer(State(shell): State<Arc<Shell>>, request: Request, next: Next) -> Response {
    let origins = shell.hub.origins(&shell.config.origins);
    let page = Page::of(&request, &origins);
    if let Some(answer) = CORS.preflight(&request, &page) {
        return answer;
    }
    if let Err(denied) = shell.hub.knock(request.extensions().get().copied()) {
        return CORS.mark(Refusal::Denied(denied).into_response(), page);
    }
    if is_packed(request.headers()) {
        return CORS.mark(Refusal::Packed.into_response(), page);
    }
    let brings_token = caller::own_token(request.method(), request.uri(), request.headers(), &shell.config).is_some()
        || caller::ticket(request.method(), request.uri()).is_some();
    let foreign = origins.refuse(request.method(), request.uri(), request.headers(), brings_token);
    let response = if foreign { Refusal::ForeignOrigin.into_response() } else { next.run(request).await };
    CORS.mark(response, page)
}
