//! Refusals, in the shapes of this surface: an error acknowledgement with `system:error` on a socket (socketio.md §2.3), `{"detail"}` over
//! HTTP (§5).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use interline_hub::{ActionError, AnswerError, Denied, EnvironmentError, StartError};
use interline_model::{AskOutcome, SessionId};
use serde_json::{Value, json};

use crate::ChoiceError;

/// Why something that came over a socket was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The vendor's own text, which consumers know.
    #[error("Missing session_id or message")]
    Incomplete,
    #[error("{0}")]
    Invalid(String),
    /// Unknown or foreign: the same (decision 1). The vendor's own text.
    #[error("Access denied")]
    AccessDenied,
    /// Consumers look for the words `has an active chat` and try again.
    #[error("Session already has an active chat")]
    Busy,
    #[error("This question is not pending: it was never asked, or its run is over")]
    NotPending,
    #[error("This question was already answered{}", by.as_ref().map(|by| format!(" from {by}")).unwrap_or_default())]
    AlreadyResolved { outcome: String, by: Option<String> },
    /// Its run was told to stop, or is over.
    #[error("This question is void: its run was stopped or is over")]
    Void,
    /// The input that the answer changed is what a policy denies.
    #[error("The policy {rule} denies the changed input of this answer")]
    Forbidden { rule: String },
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error("The message has {bytes} bytes, at most {limit} are taken")]
    TooLarge { bytes: usize, limit: usize },
    #[error("Too many messages at a time: wait for the acknowledgements")]
    TooMany,
    #[error("Too many subscriptions on one socket: at most {0}")]
    TooManySubscriptions(usize),
    #[error("{0}")]
    Unavailable(String),
    /// The agent server cannot do it, in its link's words.
    #[error("{0}")]
    Unsupported(String),
    /// Something was wanted of the agent server, and came to nothing.
    #[error("{0}")]
    Failed(#[source] ActionError),
    #[error("unsupported event")]
    UnsupportedEvent,
    /// The client would not be let in any more, or comes too often.
    #[error("{}", sentence(*.0))]
    Denied(Denied),
}

/// What a client is told that is not let in: the vendor's word, and more where it helps.
pub(crate) fn sentence(denied: Denied) -> String {
    match denied {
        Denied::Missing | Denied::Invalid => "Unauthorized".to_owned(),
        Denied::Expired => format!("Unauthorized: {denied}"),
        Denied::Limited { .. } => denied.to_string(),
    }
}

impl Refusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Incomplete | Self::Invalid(_) | Self::Choice(_) => "invalid_request",
            Self::AccessDenied => "access_denied",
            Self::Busy => "chat_active",
            Self::NotPending => "not_pending",
            Self::AlreadyResolved { .. } | Self::Void => "already_resolved",
            Self::Forbidden { .. } => "forbidden",
            Self::TooLarge { .. } => "message_too_large",
            Self::TooMany | Self::TooManySubscriptions(_) | Self::Denied(Denied::Limited { .. }) => "too_many",
            Self::Denied(_) => "unauthorized",
            Self::Unavailable(_) => "unavailable",
            Self::Failed(error) => error.code(),
            Self::Unsupported(_) | Self::UnsupportedEvent => "unsupported",
        }
    }

    fn detail(&self) -> Value {
        match self {
            Self::AlreadyResolved { outcome, by } => json!({"outcome": outcome, "answered_from": by}),
            Self::Void => json!({"outcome": "void", "answered_from": null}),
            Self::Forbidden { rule } => json!({"rule": rule}),
            Self::Denied(Denied::Limited { seconds, .. }) => json!({"retry_after": seconds}),
            _ => Value::Null,
        }
    }

    /// The error acknowledgement.
    pub(crate) fn ack(&self) -> Value {
        json!({"status": "error", "ok": false, "message": self.to_string(), "code": self.code(), "detail": self.detail()})
    }

    /// The `system:error` to the sender. With the session's id wherever it is known: a Python client routes by it.
    pub(crate) fn event(&self, session: Option<&SessionId>) -> Value {
        let mut event = json!({"message": self.to_string(), "code": self.code(), "detail": self.detail()});
        if let (Some(session), Some(event)) = (session, event.as_object_mut()) {
            event.insert("session_id".to_owned(), Value::from(session.as_str()));
        }
        event
    }
}

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Busy { .. } => Self::Busy,
            StartError::CellNotFound(_) | StartError::SessionNotFound(_) => Self::AccessDenied,
            StartError::TooManyRuns(_) | StartError::TooManySessions(_) | StartError::Unstored | StartError::Draining => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

impl From<EnvironmentError> for Refusal {
    fn from(error: EnvironmentError) -> Self {
        Self::Invalid(format!("`runtime_env`: {error}"))
    }
}

impl From<ActionError> for Refusal {
    fn from(error: ActionError) -> Self {
        match error {
            ActionError::Busy => Self::Busy,
            ActionError::Unsupported(why) => Self::Unsupported(why),
            other => Self::Failed(other),
        }
    }
}

impl From<AnswerError> for Refusal {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::NotFound => Self::NotPending,
            AnswerError::Forbidden { rule } => Self::Forbidden { rule: rule.to_string() },
            AnswerError::Settled { outcome: AskOutcome::Void, .. } => Self::Void,
            AnswerError::Settled { outcome, by } => {
                Self::AlreadyResolved { outcome: format!("{outcome:?}").to_ascii_lowercase(), by: by.map(|by| by.surface.to_string()) }
            }
        }
    }
}

/// Why a REST request was not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Unauthorized(&'static str),
    #[error("Pages from this origin may not do this: add it to [cors] origins")]
    ForeignOrigin,
    #[error("Explaining is off: `socketio.explain` in the config turns it on")]
    Unexplained,
    #[error("{0} not found")]
    NotFound(&'static str),
    #[error("Method Not Allowed")]
    MethodNotAllowed,
    #[error("{message}")]
    Invalid { place: Vec<&'static str>, message: String },
    #[error("The body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("No content-encoding is taken: send the body as it is")]
    Packed,
    #[error("The body did not arrive in time")]
    Timeout,
    #[error("{0}")]
    TooMany(String),
    #[error("{message}")]
    Limited { message: String, seconds: u64 },
    #[error("{0}")]
    Unavailable(String),
    #[error("The path leads out of the session's files, or is none")]
    BadPath,
    /// It has no meaning behind a proxy.
    #[error("{0}")]
    NotHere(&'static str),
    /// The agent server was to do something.
    #[error(transparent)]
    Agent(#[from] ActionError),
}

impl Problem {
    pub(crate) const UNAUTHORIZED: Self = Self::Unauthorized("Unauthorized");

    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::ForeignOrigin | Self::Unexplained => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Packed => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooMany(_) | Self::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::BadPath => StatusCode::BAD_REQUEST,
            Self::NotHere(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Agent(error) => StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::BAD_GATEWAY),
        }
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Missing | Denied::Invalid => Self::UNAUTHORIZED,
            Denied::Expired => Self::Unauthorized("Unauthorized: the token has expired, come with a new one"),
            Denied::Limited { seconds, .. } => Self::Limited { message: denied.to_string(), seconds },
        }
    }
}

impl From<StartError> for Problem {
    fn from(error: StartError) -> Self {
        match error {
            StartError::CellNotFound(_) | StartError::SessionNotFound(_) => Self::NotFound("Session"),
            StartError::TooManyRuns(_) | StartError::TooManySessions(_) => Self::TooMany(error.to_string()),
            StartError::Busy { .. } | StartError::Unstored | StartError::Draining => Self::Unavailable(error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let detail = match &self {
            // socketio.md §5: 422 has FastAPI's form.
            Self::Invalid { place, message } => json!([{"type": "value_error", "loc": place, "msg": message}]),
            _ => Value::from(self.to_string()),
        };
        let mut response = (self.status(), Json(json!({"detail": detail}))).into_response();
        if matches!(self, Self::Unauthorized(_)) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::Limited { seconds, .. } = self {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{Actor, Principal, Text};

    #[test]
    fn the_loser_is_told_who_won() {
        let by = Actor { principal: Principal::from("p"), surface: Text::from_static("sse") };
        let refusal = Refusal::from(AnswerError::Settled { outcome: AskOutcome::Denied, by: Some(by) });
        assert_eq!(refusal.to_string(), "This question was already answered from sse");
        assert_eq!(refusal.ack()["detail"], json!({"outcome": "denied", "answered_from": "sse"}));
    }

    #[test]
    fn a_forbidden_answer_names_the_rule() {
        let refusal = Refusal::from(AnswerError::Forbidden { rule: Text::from_static("no-rm") });
        assert_eq!((refusal.code(), refusal.ack()["detail"].clone()), ("forbidden", json!({"rule": "no-rm"})));
        assert!(refusal.to_string().contains("no-rm"));
    }

    #[test]
    fn the_vendors_words_are_kept() {
        let session = SessionId::from("s");
        assert_eq!(
            Refusal::Busy.event(Some(&session)),
            json!({"message": "Session already has an active chat", "session_id": "s", "code": "chat_active", "detail": null})
        );
        assert!(Refusal::Incomplete.event(None).get("session_id").is_none());
    }
}
