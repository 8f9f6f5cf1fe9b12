//! How a run ends: by the upstream's `result`, or by us (decision 14).

use interline_model::{Completion, FailureKind, ForcedEnd, Outcome, RunEnd, Text};

use super::turns::read_usage;
use crate::object::{Object, elements, is_truthy};
use crate::string;

/// What a `result` is.
#[derive(Debug)]
pub(super) enum Result {
    /// The end.
    End(RunEnd),
    /// A recoverable error, after which the run may go on (native-ws.md §6.7).
    Recoverable(Failure),
}

/// An error that may end a run, or not.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    pub(super) message: Text,
}

impl From<Failure> for Outcome {
    fn from(Failure { kind, message }: Failure) -> Self {
        Self::Failed { kind, message }
    }
}

/// Reads a `result` frame. In a `chat` session every error ends the run.
pub(super) fn read(result: &Object<'_>, chat: bool, stop_requested: bool) -> Result {
    let is_error = result.truthy("is_error");
    if is_error && !chat && is_recoverable(result) {
        return Result::Recoverable(failure(result));
    }
    Result::End(RunEnd {
        outcome: outcome(result, is_error, stop_requested),
        usage: result.object("usage").and_then(|usage| read_usage(&usage)),
        cost_usd: result.json("total_cost_usd"),
        duration_ms: result.u64("duration_ms"),
        num_turns: result.u64("num_turns"),
        structured_output: result.json("structured_output"),
        synthesised: false,
    })
}

fn is_recoverable(result: &Object<'_>) -> bool {
    let errors = result.array("errors");
    let recoverable = |error| Object::inside(result.frame(), error).is_some_and(|error| error.truthy("recoverable"));
    !errors.is_empty() && errors.into_iter().all(recoverable)
}

fn outcome(result: &Object<'_>, is_error: bool, stop_requested: bool) -> Outcome {
    let starts = |name, beginning| result.cow(name).is_some_and(|value| value.starts_with(beginning));
    if result.cow("stop_reason").as_deref() == Some("interrupted") || starts("terminal_reason", "aborted") || stop_requested && is_error {
        return interrupted(stop_requested);
    }
    if starts("subtype", "error_max_turns") {
        Outcome::Completed(Completion::MaxTurns)
    } else if starts("subtype", "error_max_budget") {
        Outcome::Completed(Completion::MaxBudget)
    } else if is_error {
        failure(result).into()
    } else {
        Outcome::Completed(Completion::EndTurn)
    }
}

fn interrupted(stop_requested: bool) -> Outcome {
    Outcome::Interrupted { reason: Text::from_static(if stop_requested { "user_interrupt" } else { "interrupted" }) }
}

/// An end that we declare. Whatever it is: after a request to stop, it is an interruption.
pub(super) fn forced(end: &ForcedEnd, stop_requested: bool, kept: Option<Failure>) -> RunEnd {
    let failed = |kind, message| Outcome::Failed { kind, message: Text::from_static(message) };
    RunEnd::synthesised(match end {
        _ if stop_requested => interrupted(true),
        ForcedEnd::StopGraceOver => interrupted(false),
        // sse.md §3.4: the text starts with the token.
        ForcedEnd::UpstreamGone => {
            failed(FailureKind::MissingTerminalEvent, "missing_terminal_event: the upstream closed before a terminal event")
        }
        ForcedEnd::Shutdown => {
            failed(FailureKind::MissingTerminalEvent, "missing_terminal_event: the proxy shut down before a terminal event")
        }
        ForcedEnd::Refused { kind, message } => Outcome::Failed { kind: *kind, message: message.clone() },
        ForcedEnd::Idle => failed(FailureKind::UpstreamTimeout, "upstream_timeout: the upstream said nothing for too long"),
        ForcedEnd::ErrorStayed => match kept {
            Some(failure) => failure.into(),
            None => failed(FailureKind::Internal, "the upstream reported an error and did not go on"),
        },
    })
}

/// The error of a `result`.
fn failure(result: &Object<'_>) -> Failure {
    let first = result
        .raw("errors")
        .map(elements)
        .unwrap_or_default()
        .into_iter()
        .next()
        .and_then(|error| string::text(result.frame(), error).or_else(|| Object::inside(result.frame(), error)?.str("message")));
    let filled = |text: &Text| !text.trim().is_empty();
    let message = first
        .filter(filled)
        // Some runtimes say the error where a success says its answer.
        .or_else(|| result.str("result").filter(filled))
        .or_else(|| result.str("error").filter(filled))
        .or_else(|| result.str("subtype").filter(|subtype| filled(subtype) && subtype != "success"))
        .unwrap_or_else(|| Text::from_static("the run failed without a message"));
    let status = result.raw("api_error_status").filter(|status| is_truthy(status)).map(|status| status.get().trim_matches('"'));
    Failure { kind: kind(status, &message), message }
}

/// The kind of an error. Errors carry no codes, so the text has to do (native-ws.md §8.2, 22).
fn kind(status: Option<&str>, message: &str) -> FailureKind {
    let text = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let status_is = |codes: &[&str]| {
        let mut numbers = text.split(|c: char| !c.is_alphanumeric()).chain(status);
        numbers.any(|number| codes.contains(&number))
    };
    if says(&["insufficient_credits", "insufficient credits", "insufficient_quota", "billing", "credit balance", "payment required"]) {
        FailureKind::ProviderBillingOverdue
    } else if says(&["overloaded"]) {
        FailureKind::ProviderOverloaded
    } else if says(&["rate limit", "rate_limit", "too many requests"]) {
        FailureKind::ProviderRateLimit
    } else if says(&["missing_api_key", "invalid api key", "invalid_api_key", "invalid x-api-key", "authentication", "unauthorized"]) {
        FailureKind::AuthRequired
    } else if says(&["no_provider", "no provider"]) {
        FailureKind::NoProvider
    } else if status_is(&["529", "503"]) {
        FailureKind::ProviderOverloaded
    } else if status_is(&["429"]) {
        FailureKind::ProviderRateLimit
    } else if status_is(&["401"]) {
        FailureKind::AuthRequired
    } else if status_is(&["402"]) {
        FailureKind::ProviderBillingOverdue
    } else if status == Some("400") || says(&["invalid_request"]) {
        FailureKind::InvalidRequest
    } else {
        FailureKind::Internal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_by_text() {
        for (text, expected) in [
            ("provider stream: anthropic-engine: 529: Overloaded", FailureKind::ProviderOverloaded),
            ("upstream said 503", FailureKind::ProviderOverloaded),
            ("provider stream: anthropic-engine: 429: {\"type\":\"rate_limit_error\"}", FailureKind::ProviderRateLimit),
            ("HTTP 429", FailureKind::ProviderRateLimit),
            ("provider stream: 401: no", FailureKind::AuthRequired),
            ("missing_api_key: set one", FailureKind::AuthRequired),
            ("Invalid API key · Please run /login", FailureKind::AuthRequired),
            ("402: insufficient_credits", FailureKind::ProviderBillingOverdue),
            ("provider stream: 402: no", FailureKind::ProviderBillingOverdue),
            ("tool turn budget 25 exhausted", FailureKind::Internal),
            ("wrote 4290 bytes, 14010 left", FailureKind::Internal),
            ("agent_v2: parse stream: provider stream error: Internal server error", FailureKind::Internal),
        ] {
            assert_eq!(kind(None, text), expected, "{text}");
        }
        assert_eq!(kind(Some("400"), "API Error: prompt is bad"), FailureKind::InvalidRequest);
        assert_eq!(kind(Some("529"), "API Error"), FailureKind::ProviderOverloaded);
    }

    fn result(json: &str, chat: bool, stop: bool) -> std::result::Result<Outcome, String> {
        match read(&Object::parse(&Text::from(json)).unwrap(), chat, stop) {
            Result::End(end) => Ok(end.outcome),
            Result::Recoverable(failure) => Err(failure.message.to_string()),
        }
    }

    #[test]
    fn results() {
        let done = |completion| Ok(Outcome::Completed(completion));
        let failed = |kind, message: &str| Ok(Outcome::Failed { kind, message: Text::from(message) });
        let stopped = |reason| Ok(Outcome::Interrupted { reason: Text::from_static(reason) });
        let internal = FailureKind::Internal;
        let recoverable = r#"{"is_error":true,"errors":[{"message":"once more","recoverable":true}]}"#;
        for (json, chat, stop, expected) in [
            (r#"{"subtype":"success","is_error":false,"stop_reason":"end_turn"}"#, false, false, done(Completion::EndTurn)),
            (r#"{"subtype":"success","is_error":false,"stop_reason":null}"#, true, true, done(Completion::EndTurn)),
            (r#"{"stop_reason":"interrupted"}"#, false, true, stopped("user_interrupt")),
            (r#"{"stop_reason":"interrupted"}"#, false, false, stopped("interrupted")),
            (r#"{"is_error":true,"terminal_reason":"aborted_tools","errors":["x"]}"#, false, false, stopped("interrupted")),
            (r#"{"is_error":true,"errors":["context canceled"]}"#, false, true, stopped("user_interrupt")),
            (r#"{"is_error":true,"subtype":"error_max_turns"}"#, false, false, done(Completion::MaxTurns)),
            (r#"{"is_error":true,"subtype":"error_max_budget_usd","errors":["Reached"]}"#, false, false, done(Completion::MaxBudget)),
            (r#"{"is_error":true,"errors":["a","b"]}"#, false, false, failed(internal, "a")),
            (r#"{"is_error":true,"errors":[{"message":"m","recoverable":false}]}"#, false, false, failed(internal, "m")),
            (r#"{"is_error":true,"errors":[{"message":"m"}]}"#, false, false, failed(internal, "m")),
            (r#"{"is_error":true,"errors":[{"message":"m","recoverable":true},"x"]}"#, false, false, failed(internal, "m")),
            (r#"{"is_error":true,"subtype":"success","result":"said here"}"#, false, false, failed(internal, "said here")),
            (
                r#"{"is_error":true,"subtype":"error_during_execution","errors":[]}"#,
                false,
                false,
                failed(internal, "error_during_execution"),
            ),
            (r#"{"is_error":true,"subtype":"success"}"#, false, false, failed(internal, "the run failed without a message")),
            (recoverable, false, false, Err("once more".to_owned())),
            (recoverable, false, true, Err("once more".to_owned())),
            (recoverable, true, false, failed(internal, "once more")),
        ] {
            assert_eq!(result(json, chat, stop), expected, "{json}");
        }
    }

    #[test]
    fn forced_ends() {
        let kept = || Some(Failure { kind: FailureKind::ProviderOverloaded, message: Text::from_static("kept") });
        let refused = ForcedEnd::Refused { kind: FailureKind::EngineNotReady, message: Text::from_static("no") };
        for (end, kept, expected) in [
            (ForcedEnd::UpstreamGone, None, FailureKind::MissingTerminalEvent),
            (ForcedEnd::Shutdown, None, FailureKind::MissingTerminalEvent),
            (ForcedEnd::Idle, None, FailureKind::UpstreamTimeout),
            (ForcedEnd::ErrorStayed, kept(), FailureKind::ProviderOverloaded),
            (ForcedEnd::ErrorStayed, None, FailureKind::Internal),
            (refused, None, FailureKind::EngineNotReady),
        ] {
            let run_end = forced(&end, false, kept.clone());
            assert!(run_end.synthesised);
            assert!(matches!(run_end.outcome, Outcome::Failed { kind, .. } if kind == expected), "{end:?}: {run_end:?}");
            assert_eq!(forced(&end, true, kept).outcome, Outcome::Interrupted { reason: Text::from_static("user_interrupt") });
        }
        assert_eq!(
            forced(&ForcedEnd::StopGraceOver, false, None).outcome,
            Outcome::Interrupted { reason: Text::from_static("interrupted") }
        );
    }
}
