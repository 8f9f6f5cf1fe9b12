//! The answers' shapes: JSON, the plain texts of unknown paths and methods, and bodies within their bound.

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => with_type(status, "application/json", bytes),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n")
        }
    }
}

/// The same answer, with the seconds after which trying again makes sense.
pub(super) fn again_after(mut response: Response, seconds: Option<u64>) -> Response {
    if let Some(seconds) = seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(super) fn plain(status: StatusCode, text: &'static str) -> Response {
    with_type(status, "text/plain; charset=utf-8", text)
}

pub(super) fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(super) async fn not_found() -> Response {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

pub(super) async fn method_not_allowed() -> Response {
    plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
}

/// Why there is no body.
pub(super) enum BodyError {
    /// It is larger than allowed.
    TooLarge,
    /// It did not arrive whole.
    Broken,
}

/// Reads a body of at most `max` bytes.
pub(super) async fn body(body: Body, max: usize) -> Result<Bytes, BodyError> {
    let read = Limited::new(body, max).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| {
        // The body of the framework may wrap the error.
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
        while let Some(error) = cause {
            if error.is::<LengthLimitError>() {
                return BodyError::TooLarge;
            }
            cause = error.source();
        }
        BodyError::Broken
    })
}

/// Reads a body that must be a JSON object.
pub(super) fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    // An array would be taken for the members in their order.
    if body.trim_ascii_start().first().is_some_and(|first| *first == b'[') {
        return Err("expected an object".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}
