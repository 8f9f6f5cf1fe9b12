//! Refusals: what goes wrong before a stream begins, as HTTP status and JSON body (sse.md §1.6).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use interline_hub::{ActionError, Denied, StartError};
use interline_model::{Actor, AskOutcome, RunId};
use serde::Serialize;

/// Why a request is refused. Whatever concerns the run itself is an event of its stream instead (sse.md §1.3).
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the body is not valid JSON: {0}")]
    InvalidJson(String),
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    Unprocessable(String),
    #[error("from_seq must be a whole number, 0 or more")]
    InvalidFromSeq,
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Unsupported(String),
    #[error(transparent)]
    Action(#[from] ActionError),
    #[error("pages from this origin may not do this: add it to [cors] origins")]
    ForeignOrigin,
    #[error("explanations are off: `explain = true` in [sse] allows them")]
    ExplainIsOff,
    #[error("run {0} not found")]
    RunNotFound(String),
    #[error("session {0} not found")]
    SessionNotFound(String),
    #[error("request {0} not found")]
    RequestNotFound(String),
    #[error("there is nothing at this path")]
    PathNotFound,
    #[error("this path does not know this method")]
    MethodNotAllowed,
    #[error("no content-encoding is taken: send the body as it is")]
    Packed,
    #[error("the body did not arrive in time")]
    BodyTimeout,
    #[error("the request was already settled: {}", settled(*.outcome, .by.as_ref()))]
    AlreadyResolved { outcome: AskOutcome, by: Option<Actor> },
    #[error("the events of run {0} are no longer kept")]
    EventsExpired(RunId),
    #[error("the body is larger than {0} bytes")]
    BodyTooLarge(usize),
}

/// The same members as the stream's `error` event, so that one code path of a frontend can show both.
#[derive(Serialize)]
struct ErrorBody<'a> {
    r#type: &'static str,
    error: &'a str,
    kind: &'static str,
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    winner: Option<Winner<'a>>,
}

/// Who settled an ask first (decision 21).
#[derive(Serialize)]
struct Winner<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    surface: Option<&'a str>,
}

impl Refusal {
    fn status_and_kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidJson(_) => (StatusCode::BAD_REQUEST, "invalid_json"),
            Self::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::InvalidFromSeq => (StatusCode::BAD_REQUEST, "invalid_from_seq"),
            Self::Denied(Denied::Missing) => (StatusCode::UNAUTHORIZED, "auth_required"),
            Self::Denied(Denied::Invalid | Denied::Expired) => (StatusCode::UNAUTHORIZED, "invalid_token"),
            Self::Denied(Denied::Limited { .. }) => (StatusCode::TOO_MANY_REQUESTS, "too_many_requests"),
            Self::Unsupported(_) => (StatusCode::NOT_IMPLEMENTED, "unsupported"),
            Self::Action(error) => (StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::BAD_GATEWAY), error.code()),
            Self::Forbidden(_) | Self::ForeignOrigin | Self::ExplainIsOff => (StatusCode::FORBIDDEN, "forbidden"),
            Self::Start(StartError::CellNotFound(_)) => (StatusCode::NOT_FOUND, "cell_not_found"),
            Self::Start(StartError::SessionNotFound(_)) | Self::SessionNotFound(_) => (StatusCode::NOT_FOUND, "session_not_found"),
            Self::RunNotFound(_) => (StatusCode::NOT_FOUND, "run_not_found"),
            Self::RequestNotFound(_) => (StatusCode::NOT_FOUND, "request_not_found"),
            Self::PathNotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::Packed => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "invalid_request"),
            Self::Start(StartError::Busy { .. }) => (StatusCode::CONFLICT, "session_busy"),
            Self::AlreadyResolved { .. } => (StatusCode::CONFLICT, "already_resolved"),
            Self::EventsExpired(_) => (StatusCode::GONE, "events_expired"),
            Self::BodyTooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::Unprocessable(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request"),
            Self::Start(StartError::TooManyRuns(_)) => (StatusCode::TOO_MANY_REQUESTS, "too_many_runs"),
            Self::Start(StartError::TooManySessions(_)) => (StatusCode::TOO_MANY_REQUESTS, "too_many_sessions"),
            Self::Start(StartError::Unstored) => (StatusCode::SERVICE_UNAVAILABLE, "storage_unavailable"),
            Self::Start(StartError::Draining) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        }
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> u16 {
        self.status_and_kind().0.as_u16()
    }

    /// Seconds after which trying again makes sense.
    fn retry_after(&self) -> Option<HeaderValue> {
        match self {
            Self::Start(StartError::TooManyRuns(_) | StartError::TooManySessions(_) | StartError::Unstored | StartError::Draining) => {
                Some(HeaderValue::from_static("5"))
            }
            Self::Denied(Denied::Limited { seconds, .. }) => Some(HeaderValue::from(*seconds)),
            _ => None,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, kind) = self.status_and_kind();
        let run_id = match &self {
            Self::Start(StartError::Busy { run }) => Some(run.to_string()),
            _ => None,
        };
        let winner = match &self {
            Self::AlreadyResolved { outcome, by } => {
                Some(Winner { outcome: outcome.as_str(), surface: by.as_ref().map(|by| &*by.surface) })
            }
            _ => None,
        };
        let body = ErrorBody { r#type: "error", error: &self.to_string(), kind, severity: "error", run_id, winner };
        let mut response = (status, json(&body)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, after);
        }
        response
    }
}

/// A JSON body with its type.
pub(crate) fn json(body: &impl Serialize) -> impl IntoResponse {
    let text = serde_json::to_string(body).unwrap_or_else(|_| "{}".to_owned());
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], text)
}

fn settled(outcome: AskOutcome, by: Option<&Actor>) -> String {
    match by {
        Some(by) => format!("{} from {}", outcome.as_str(), by.surface),
        None => outcome.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use interline_model::{CellName, Principal};

    use super::*;

    async fn answer(refusal: Refusal) -> (StatusCode, String) {
        let response = refusal.into_response();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json; charset=utf-8");
        let status = response.status();
        let body = to_bytes(response.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_refusal_has_the_members_of_an_error_event() {
        let (status, body) = answer(Refusal::RunNotFound("run-x".into())).await;
        assert_eq!(status, 404);
        assert_eq!(body, r#"{"type":"error","error":"run run-x not found","kind":"run_not_found","severity":"error"}"#);
    }

    #[tokio::test]
    async fn the_loser_of_a_race_is_told_who_won() {
        let by = Actor { principal: Principal::from("a"), surface: "socketio".into() };
        let (status, body) = answer(Refusal::AlreadyResolved { outcome: AskOutcome::Allowed, by: Some(by) }).await;
        assert_eq!(status, 409);
        assert!(body.contains("allowed from socketio"), "{body}");
        assert!(body.ends_with(r#""winner":{"outcome":"allowed","surface":"socketio"}}"#), "{body}");
        let (_, body) = answer(Refusal::AlreadyResolved { outcome: AskOutcome::Expired, by: None }).await;
        assert!(body.ends_with(r#""winner":{"outcome":"expired"}}"#), "{body}");
    }

    #[tokio::test]
    async fn a_busy_session_names_its_run_and_a_limit_says_when_to_come_back() {
        let (status, body) = answer(StartError::Busy { run: RunId::from_u128(1) }.into()).await;
        assert_eq!(status, 409);
        assert!(body.contains(r#""kind":"session_busy","severity":"error","run_id":"run-0"#), "{body}");
        for limit in [StartError::TooManyRuns(1), StartError::Draining] {
            assert!(Refusal::from(limit).into_response().headers().contains_key(header::RETRY_AFTER));
        }
        assert_eq!(answer(StartError::CellNotFound(CellName::from("x")).into()).await.0, 404);
        let denied = Refusal::from(Denied::Missing).into_response();
        assert_eq!(denied.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
}
