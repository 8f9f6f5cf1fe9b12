//! What a refused request means for a run: the machine token, and a sentence that says what, where and what to do.

use http::StatusCode;
use interline_hub::{ActionError, LinkError, Secret};
use interline_model::{FailureKind, Json};
use serde_json::Value;

use crate::http::{HttpError, Reply};

/// Longest part of a server's own words in a sentence of ours, in characters.
const LONGEST_QUOTE: usize = 300;

/// What a server said when it refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// Its machine code; empty where it has none.
    pub(crate) code: String,
    message: String,
}

impl Refusal {
    /// Reads the error bodies of both servers (native-ws.md §2.1, §4.1), or whatever came instead of one.
    pub(crate) fn read(status: StatusCode, body: &[u8], credential: Option<&Secret>) -> Self {
        let (code, message) = match serde_json::from_slice::<Value>(body) {
            Ok(value) => match value.get("error") {
                Some(Value::String(message)) => (String::new(), message.clone()),
                Some(error) => (member(error, "code"), member(error, "message")),
                None => (member(&value, "code"), member(&value, "message")),
            },
            // An HTML page of a gateway says nothing to anybody.
            Err(_) => match std::str::from_utf8(body) {
                Ok(text) if !text.trim_start().starts_with('<') => (String::new(), text.lines().next().unwrap_or_default().to_owned()),
                _ => (String::new(), String::new()),
            },
        };
        Self { status, code: quotable(&code, credential), message: quotable(&message, credential) }
    }

    pub(crate) fn of(reply: &Reply, credential: Option<&Secret>) -> Self {
        Self::read(reply.status, &reply.body, credential)
    }

    /// The failure of a run that could not be started.
    pub(crate) fn into_error(self, upstream: &str, doing: &str) -> LinkError {
        let (kind, advice) = match (self.status.as_u16(), self.code.as_str()) {
            (401 | 403, _) => (FailureKind::AuthRequired, "check its credential, or the bearer that the client sends in passthrough mode"),
            (402, _) => (FailureKind::ProviderBillingOverdue, "settle the account"),
            (429, _) => (FailureKind::ProviderRateLimit, "try again later"),
            (529, _) => (FailureKind::ProviderOverloaded, "try again later"),
            (400, "bad_environment_id" | "wrong_worker_kind" | "bad_mode") => {
                (FailureKind::InvalidRequest, "check mode and environment_id of the upstream")
            }
            (400 | 413 | 422, _) => (FailureKind::InvalidRequest, "change the request"),
            (404, "not_found") => (FailureKind::EngineNotReady, "check environment_id of the upstream"),
            (404 | 405, _) => (FailureKind::EngineNotReady, "check url and kind of the upstream"),
            (409, "environment_offline") => (FailureKind::EngineNotReady, "start the device"),
            (300..=399, _) => (FailureKind::EngineNotReady, "redirects are not followed: give the upstream's own url"),
            _ => (FailureKind::EngineNotReady, "try again later"),
        };
        LinkError::Refused { kind, message: format!("upstream {upstream} refused {doing}: {self}; {advice}") }
    }

    /// The failure of an action, in the server's own words where it has some.
    pub(crate) fn into_action_error(self) -> ActionError {
        let message = match (self.message.is_empty(), self.code.is_empty()) {
            (false, _) => self.message,
            (true, false) => self.code,
            (true, true) => format!("the agent server answered with {}", self.status.as_u16()),
        };
        ActionError::Refused { status: Some(self.status.as_u16()), message }
    }
}

/// A successful answer to an action; `what` stands after "cannot" in the sentence about a server that has no such address.
pub(crate) fn done(reply: Reply, what: &str, credential: Option<&Secret>) -> Result<Reply, ActionError> {
    if reply.status.is_success() {
        return Ok(reply);
    }
    // What a server knows and has not got it says in JSON; an address that it does not know is plain text (native-ws.md §2.1, §4.1).
    let is_known = serde_json::from_slice::<serde_json::Map<String, Value>>(&reply.body).is_ok();
    if matches!(reply.status.as_u16(), 405 | 501) || (reply.status == StatusCode::NOT_FOUND && !is_known) {
        return Err(ActionError::Unsupported(format!("this agent server cannot {what}")));
    }
    Err(Refusal::of(&reply, credential).into_action_error())
}

/// The object in a successful answer to an action.
pub(crate) fn object(reply: &Reply) -> Result<Json, ActionError> {
    let text = std::str::from_utf8(&reply.body).ok();
    text.and_then(|text| Json::parse(text.trim()).ok()).filter(Json::is_object).ok_or_else(|| ActionError::Refused {
        status: Some(reply.status.as_u16()),
        message: "the agent server answered with something else than its protocol says".to_owned(),
    })
}

/// The failure of an action without an answer.
pub(crate) fn unanswered(upstream: &str, at: &dyn std::fmt::Display, error: &HttpError) -> ActionError {
    match error {
        HttpError::Timeout(time) => ActionError::Unanswered(*time),
        other => match unreachable(upstream, at, other) {
            LinkError::Refused { message, .. } => ActionError::Unreachable(message),
            LinkError::Gone(why) => ActionError::Unreachable(why),
        },
    }
}

/// The failure of an action for which something had to be done first that a run begins with, too.
pub(crate) fn beforehand(error: LinkError) -> ActionError {
    match error {
        LinkError::Refused { kind: FailureKind::EngineNotReady, message } | LinkError::Gone(message) => ActionError::Unreachable(message),
        LinkError::Refused { message, .. } => ActionError::Refused { status: None, message },
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.status.as_u16())?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        Ok(())
    }
}

/// The failure of a run whose upstream gave no answer.
pub(crate) fn unreachable(upstream: &str, at: &dyn std::fmt::Display, why: &dyn std::fmt::Display) -> LinkError {
    LinkError::Refused {
        kind: FailureKind::EngineNotReady,
        message: format!("upstream {upstream} at {at} cannot be reached: {why}; check that it runs and that its url is right"),
    }
}

/// The failure of a run whose upstream's answer makes no sense.
pub(crate) fn nonsense(upstream: &str, doing: &str) -> LinkError {
    LinkError::Refused {
        kind: FailureKind::EngineNotReady,
        message: format!("upstream {upstream} answered {doing} with something else than its protocol says; check its url and kind"),
    }
}

/// The failure of a run whose handle, which another process wrote, means nothing to this one.
pub(crate) fn unknown_handle(upstream: &str) -> LinkError {
    LinkError::Gone(format!("upstream {upstream} took the run as another kind of server than it is now"))
}

/// The failure of a run that asks for what the upstream cannot do.
pub(crate) fn invalid(message: impl Into<String>) -> LinkError {
    LinkError::Refused { kind: FailureKind::InvalidRequest, message: message.into() }
}

fn member(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A server's words, fit for a sentence: one line, not long, and without the credential if the server repeats it.
fn quotable(text: &str, credential: Option<&Secret>) -> String {
    if credential.is_some_and(|secret| !secret.is_empty() && text.contains(secret.expose())) {
        return String::new();
    }
    let mut quote: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_QUOTE).collect();
    if text.trim().chars().nth(LONGEST_QUOTE).is_some() {
        quote.push('…');
    }
    quote
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> (FailureKind, String) {
        match Refusal::read(StatusCode::from_u16(status).unwrap(), body.as_bytes(), None).into_error("main", "the run") {
            LinkError::Refused { kind, message } => (kind, message),
            LinkError::Gone(why) => panic!("{why}"),
        }
    }

    #[test]
    fn each_status_has_its_token() {
        for (status, body, kind) in [
            (401, r#"{"error":{"code":"invalid_token","message":"expired"}}"#, FailureKind::AuthRequired),
            (401, "unauthorized\n", FailureKind::AuthRequired),
            (403, "", FailureKind::AuthRequired),
            (400, r#"{"error":{"code":"bad_json","message":""}}"#, FailureKind::InvalidRequest),
            (413, "<html>too large</html>", FailureKind::InvalidRequest),
            (404, r#"{"error":{"code":"not_found","message":"x"}}"#, FailureKind::EngineNotReady),
            (404, "404 page not found\n", FailureKind::EngineNotReady),
            (409, r#"{"error":{"code":"environment_offline"}}"#, FailureKind::EngineNotReady),
            (429, r#"{"error":{"code":"pending_queue_full"}}"#, FailureKind::ProviderRateLimit),
            (503, r#"{"error":{"code":"no_runtime_available"}}"#, FailureKind::EngineNotReady),
            (529, "", FailureKind::ProviderOverloaded),
            (302, "", FailureKind::EngineNotReady),
            (500, r#"{"error":7}"#, FailureKind::EngineNotReady),
        ] {
            let (got, message) = refusal(status, body);
            assert_eq!(got, kind, "{status} {body}");
            assert!(message.starts_with(&format!("upstream main refused the run: {status}")), "{message}");
        }
    }

    #[test]
    fn the_servers_words_are_quoted_and_bounded() {
        let (_, message) = refusal(400, r#"{"error":"prompt\r\nrequired"}"#);
        assert_eq!(message, "upstream main refused the run: 400 (prompt  required); change the request");
        let (_, message) = refusal(503, r#"{"error":{"code":"no_runtime_available","message":"none"}}"#);
        assert!(message.contains("503 no_runtime_available (none)"), "{message}");
        assert!(!refusal(502, "<html>\nsecret page").1.contains("page"));
        assert!(refusal(500, &"é".repeat(10_000)).1.chars().count() < 500);
    }

    #[test]
    fn a_server_that_repeats_the_credential_is_not_quoted() {
        let secret = Secret::new("canary-1");
        let body = br#"{"error":{"code":"invalid_token","message":"bad token canary-1"}}"#;
        let refusal = Refusal::read(StatusCode::UNAUTHORIZED, body, Some(&secret));
        assert!(!format!("{refusal} {refusal:?}").contains("canary"));
    }
}
