//! The demo's page: one prompt, live on SSE and Socket.IO side by side. Three static files, no others are fetched.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Nothing but what stands here, and connections back to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' ws: wss:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `/` and the two files it needs.
pub(crate) fn router() -> Router {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", include_bytes!("page/index.html"))))
        .route("/demo.css", get(async || file("text/css; charset=utf-8", include_bytes!("page/demo.css"))))
        .route("/demo.js", get(async || file("text/javascript; charset=utf-8", include_bytes!("page/demo.js"))))
}

fn file(kind: &'static str, bytes: &'static [u8]) -> Response {
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        // The next version of the program has other files under the same names.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, bytes).into_response()
}
