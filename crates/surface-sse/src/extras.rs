//! Extras: what events carry beyond their documented members, for clients that ask for it (sse.md §3.1, §3.2).
//!
//! By default nothing: a strict client may refuse what its document does not name. What nobody upstream says (a provider's name, whether a
//! request is sensitive, which call made which file) is left out rather than guessed.

use interline_model::{Ask, AskKind, FailureKind, Json, Millis, RunEnd, Usage, write_json_string};

use crate::escape::within;
use crate::moment::rfc3339;

/// How much more than the documented vocabulary a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Extras {
    /// Nothing: exactly the documented events and members.
    #[default]
    Off,
    /// Further members on the documented events, behind the documented ones.
    Fields,
    /// These, and events of undocumented types. They have no number, so the documented ones keep theirs (decision 26).
    Events,
}

impl Extras {
    /// The word for it in the config and in queries.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Fields => "fields",
            Self::Events => "events",
        }
    }

    /// Reads that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Off, Self::Fields, Self::Events].into_iter().find(|extras| extras.as_str() == word)
    }

    /// Whether documented events carry more members.
    #[must_use]
    pub fn has_fields(self) -> bool {
        self != Self::Off
    }

    /// Whether undocumented events come, too.
    #[must_use]
    pub fn has_events(self) -> bool {
        self == Self::Events
    }
}

/// How long asks wait for an answer, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskLimits {
    /// Permissions and questions.
    pub permission_ms: u64,
    /// Forms and links.
    pub form_ms: u64,
}

/// What a frontend needs to draw an ask: its kind, the sentence, the labels, until when (sse.md §4.2).
pub(crate) fn ask(out: &mut String, ask: &Ask, at: Millis, limits: Option<AskLimits>, room: usize) {
    if let Some(call) = &ask.call {
        out.push_str(",\"call_id\":");
        write_json_string(out, call.as_str());
    }
    if let Some(prompt) = ask.message.as_ref().or_else(|| ask.questions.first().map(|asked| &asked.question)) {
        out.push_str(",\"prompt\":");
        write_json_string(out, within(prompt, room));
    }
    // One label answers one question; several are told apart in `arguments.questions` only.
    let labels = match ask.questions.as_slice() {
        // A label that is cut answers nothing, so none is shown where not all fit.
        [only] if only.options.iter().map(|choice| choice.label.len().saturating_mul(6).saturating_add(3)).sum::<usize>() <= room => {
            only.options.as_slice()
        }
        _ => &[],
    };
    let kind = match ask.kind {
        AskKind::Permission | AskKind::Link => "approval",
        AskKind::Question if ask.questions.len() > 1 || !labels.is_empty() => "choice",
        AskKind::Question | AskKind::Form => "input",
    };
    out.push_str(",\"kind\":\"");
    out.push_str(kind);
    out.push('"');
    for (n, choice) in labels.iter().enumerate() {
        out.push_str(if n == 0 { ",\"choices\":[" } else { "," });
        write_json_string(out, &choice.label);
    }
    if !labels.is_empty() {
        out.push(']');
    }
    if let Some(AskLimits { permission_ms, form_ms }) = limits {
        let expires_at = rfc3339(ask.kind.deadline(at, permission_ms, form_ms));
        out.push_str(&format!(",\"expires_at\":\"{expires_at}\""));
    }
    if ask.kind == AskKind::Permission
        && let Some(command) = ask.input.to_value().get("command").and_then(|command| command.as_str())
    {
        out.push_str(",\"command_text\":");
        write_json_string(out, within(command, room));
    }
}

/// What a run came to. Wall time is the upstream's measure, else ours.
pub(crate) fn totals(out: &mut String, end: &RunEnd, elapsed: Millis) {
    if let Some(tokens) = &end.usage {
        out.push_str(",\"usage\":{");
        usage(out, tokens);
        out.push('}');
    }
    // A number of sane length, or it is no cost.
    let is_number = |cost: &&Json| cost.as_str().len() < 64 && cost.as_str().starts_with(|c: char| c == '-' || c.is_ascii_digit());
    if let Some(cost) = end.cost_usd.as_ref().filter(is_number) {
        out.push_str(",\"total_cost_usd\":");
        out.push_str(cost.as_str());
    }
    if let Some(turns) = end.num_turns {
        out.push_str(&format!(",\"num_turns\":{turns}"));
    }
    let elapsed = end.duration_ms.unwrap_or(elapsed);
    out.push_str(&format!(",\"elapsed_ms\":{elapsed}"));
}

/// The members of a usage object, without its braces.
pub(crate) fn usage(out: &mut String, tokens: &Usage) {
    let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } = tokens;
    out.push_str(&format!(
        "\"input_tokens\":{input_tokens},\"output_tokens\":{output_tokens},\"cache_read_tokens\":{cache_read_tokens},\"cache_write_tokens\":{cache_write_tokens}"
    ));
}

/// What is known of a failure. Only failures that end the run are told, so none is recoverable (sse.md §3.4).
pub(crate) fn failure(out: &mut String, kind: FailureKind, message: &str, is_ours: bool, room: usize) {
    out.push_str(",\"code\":\"");
    out.push_str(kind.token());
    out.push_str("\",\"recoverable\":false");
    let of_provider =
        matches!(kind, FailureKind::ProviderOverloaded | FailureKind::ProviderRateLimit | FailureKind::ProviderBillingOverdue);
    if of_provider && !is_ours {
        out.push_str(",\"provider_message\":");
        write_json_string(out, crate::escape::within(message, room));
    }
}

#[cfg(test)]
mod tests {
    use interline_model::{AskId, Choice, Outcome, Question};

    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    fn question(text: &str, labels: &[&str]) -> Question {
        let options = labels.iter().map(|label| Choice { label: (*label).to_owned().into(), description: "".into() }).collect();
        Question { question: text.to_owned().into(), header: None, options, multi_select: false }
    }

    #[test]
    fn each_kind_of_ask_says_how_it_wants_to_be_drawn() {
        let asked = |kind, message: Option<&str>, input: &str, questions: Vec<Question>| {
            let request = Ask {
                id: AskId::from("r"),
                kind,
                call: Some("c".into()),
                tool_name: "t".into(),
                message: message.map(|text| text.to_owned().into()),
                input: Json::parse(input.to_owned()).unwrap(),
                questions,
                suggestions: None,
            };
            written(|out| ask(out, &request, 1000, Some(AskLimits { permission_ms: 1000, form_ms: 60_000 }), 4096))
        };
        let soon = r#""expires_at":"1970-01-01T00:00:02.000Z""#;
        for (told, expected) in [
            (
                asked(AskKind::Permission, Some("why"), r#"{"command":"ls \"x\""}"#, vec![]),
                format!(r#","call_id":"c","prompt":"why","kind":"approval",{soon},"command_text":"ls \"x\"""#),
            ),
            (
                asked(AskKind::Permission, None, r#"{"command":{"odd":1},"n":1e400}"#, vec![]),
                format!(r#","call_id":"c","kind":"approval",{soon}"#),
            ),
            (
                asked(AskKind::Question, None, "{}", vec![question("Which?", &["a", "b"])]),
                format!(r#","call_id":"c","prompt":"Which?","kind":"choice","choices":["a","b"],{soon}"#),
            ),
            (
                asked(AskKind::Question, None, "{}", vec![question("Which?", &["a"]), question("And?", &["b"])]),
                format!(r#","call_id":"c","prompt":"Which?","kind":"choice",{soon}"#),
            ),
            (
                asked(AskKind::Question, None, "{}", vec![question("Name?", &[])]),
                format!(r#","call_id":"c","prompt":"Name?","kind":"input",{soon}"#),
            ),
            (
                asked(AskKind::Form, Some("fill in"), "{}", vec![]),
                r#","call_id":"c","prompt":"fill in","kind":"input","expires_at":"1970-01-01T00:01:01.000Z""#.to_owned(),
            ),
        ] {
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_cost_is_the_number_that_came() {
        let end = RunEnd {
            usage: Some(Usage { input_tokens: 1, output_tokens: 2, cache_read_tokens: 3, cache_write_tokens: u64::MAX }),
            cost_usd: Some(Json::parse("0.00840").unwrap()),
            num_turns: Some(2),
            ..RunEnd::synthesised(Outcome::Interrupted { reason: "x".into() })
        };
        assert_eq!(
            written(|out| totals(out, &end, 7)),
            r#","usage":{"input_tokens":1,"output_tokens":2,"cache_read_tokens":3,"cache_write_tokens":18446744073709551615},"total_cost_usd":0.00840,"num_turns":2,"elapsed_ms":7"#
        );
        let odd = RunEnd { cost_usd: Some(Json::parse("\"free\"").unwrap()), duration_ms: Some(3), usage: None, num_turns: None, ..end };
        assert_eq!(written(|out| totals(out, &odd, 7)), r#","elapsed_ms":3"#);
    }

    #[test]
    fn only_what_the_provider_said_is_its_message() {
        let told = |kind, ours| written(|out| failure(out, kind, "529: Overloaded", ours, 100));
        assert_eq!(
            told(FailureKind::ProviderOverloaded, false),
            r#","code":"provider_overloaded","recoverable":false,"provider_message":"529: Overloaded""#
        );
        assert_eq!(told(FailureKind::ProviderOverloaded, true), r#","code":"provider_overloaded","recoverable":false"#);
        assert_eq!(told(FailureKind::Internal, false), r#","code":"internal","recoverable":false"#);
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for extras in [Extras::Off, Extras::Fields, Extras::Events] {
            assert_eq!(Extras::from_word(extras.as_str()), Some(extras));
        }
        assert_eq!(Extras::from_word("all"), None);
    }
}
