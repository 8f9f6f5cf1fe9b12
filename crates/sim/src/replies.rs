//! Response bodies in the shapes of the two servers, and of the HTTP library under them.

use std::borrow::Cow;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use crate::frames;

/// A plain text answer, as the servers' HTTP library gives for what it does not know.
pub(crate) fn plain(status: StatusCode, text: &'static str) -> Response {
    build(status, "text/plain; charset=utf-8", text)
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    build(status, "application/json", frames::encode(body))
}

/// A refusal of the cloud plane, with its error body (native-ws.md §2.1).
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: Cow<'static, str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        json(self.status, &json!({ "error": { "code": self.code, "message": self.message } }))
    }
}

/// The bridge's error body, which is flat (§4.1).
pub(crate) fn bridge_error(status: StatusCode, message: &str) -> Response {
    json(status, &json!({ "error": message }))
}

pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// The answer to an unknown path.
pub(crate) async fn not_found() -> Response {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The answer to a known path with another method.
pub(crate) async fn method_not_allowed() -> Response {
    plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
}

fn build(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
