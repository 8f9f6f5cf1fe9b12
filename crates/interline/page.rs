//! The demo's page: one prompt, live on SSE and Socket.IO side by side. A few static files, no others are fetched.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Nothing but what stands here, and connections back to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' ws: wss:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Where each file is, what it is, and its bytes.
const FILES: [(&str, &str, &[u8]); 7] = [
    ("/", HTML, include_bytes!("page/index.html")),
    ("/demo.css", CSS, include_bytes!("page/demo.css")),
    ("/demo.js", SCRIPT, include_bytes!("page/demo.js")),
    ("/card.js", SCRIPT, include_bytes!("page/card.js")),
    ("/column.js", SCRIPT, include_bytes!("page/column.js")),
    ("/socketio.js", SCRIPT, include_bytes!("page/socketio.js")),
    ("/sse.js", SCRIPT, include_bytes!("page/sse.js")),
];

/// `/` and the files it needs.
pub(crate) fn router() -> Router {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, bytes)| router.route(path, get(async move || file(kind, bytes))))
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
