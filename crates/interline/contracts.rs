//! The contracts as they are served: what can be asked over HTTP, and which events come, for tools and for people with tools.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// `/openapi.json` and `/asyncapi.json`. No credential is needed: they are the same for everybody and tell nothing of anybody.
pub(crate) fn router() -> Router {
    Router::new()
        .route("/openapi.json", get(async || document(include_bytes!("../../contracts/openapi.json"))))
        .route("/asyncapi.json", get(async || document(include_bytes!("../../contracts/asyncapi.json"))))
}

fn document(bytes: &'static [u8]) -> Response {
    let headers: [(HeaderName, HeaderValue); 3] = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        // Viewers are pages of other origins.
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
        // The next version of the program has others under the same names.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, bytes).into_response()
}
