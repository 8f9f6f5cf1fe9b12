//! Answers to asks: whatever a frontend may send, read into one form, then fitted to the ask (sse.md §1.5, decision 19).

use interline_model::{Answer, Ask, AskKind, FormAction, Json, Question, Text};
use serde_json::Value;

use crate::error::Refusal;
use crate::members::Members;

/// What the body of an answer says, before it is known what was asked.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Reply {
    verdict: Option<Verdict>,
    lasting: bool,
    feedback: Option<Text>,
    answers: Option<Answers>,
    choice: Option<Text>,
    value: Option<Text>,
    content: Option<Json>,
    arguments: Option<Json>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Deny,
    Cancel,
}

/// Labels by question, or in the order of the questions.
#[derive(Debug, PartialEq)]
enum Answers {
    ByQuestion(Vec<(String, Text)>),
    InOrder(Vec<Text>),
}

impl Reply {
    /// An answer that the path alone says.
    pub(crate) fn allow() -> Self {
        Self { verdict: Some(Verdict::Allow), ..Self::default() }
    }

    /// An answer that the path alone says.
    pub(crate) fn deny() -> Self {
        Self { verdict: Some(Verdict::Deny), ..Self::default() }
    }

    /// Reads a body. An empty one, or `{}`, cancels.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let members = Members::parse_optional(body)?;
        if members.is_empty() {
            return Ok(Self { verdict: Some(Verdict::Cancel), ..Self::default() });
        }
        let scalar = |names| members.value(names);
        let (verdict, lasting) = match scalar(&["grant", "decision", "action", "verdict", "approved"])? {
            None => (None, false),
            Some(said) => {
                let (verdict, lasting) =
                    verdict(&said).ok_or_else(|| Refusal::Unprocessable(format!("{said} is neither allow nor deny")))?;
                (Some(verdict), lasting)
            }
        };
        let scope = scalar(&["scope"])?;
        Ok(Self {
            verdict,
            lasting: lasting || matches!(scope.as_ref().and_then(Value::as_str), Some("session" | "always")),
            feedback: scalar(&["feedback", "reason", "message"])?.as_ref().and_then(words),
            answers: scalar(&["answers"])?.and_then(|answers| read_answers(&answers)),
            choice: scalar(&["choice"])?.as_ref().and_then(words),
            value: scalar(&["value"])?.as_ref().and_then(words),
            content: members.object(&["content"])?,
            arguments: members.object(&["updated_arguments", "updatedArguments", "arguments"])?,
        })
    }

    /// The answer to this ask.
    pub(crate) fn answer(self, ask: &Ask) -> Result<Answer, Refusal> {
        match ask.kind {
            AskKind::Permission => self.permission(),
            AskKind::Question => self.question(&ask.questions),
            AskKind::Form | AskKind::Link => self.form(),
        }
    }

    fn permission(self) -> Result<Answer, Refusal> {
        // A frontend that draws every ask as a choice sends the label that was clicked; it counts before a `grant` (sse.md §1.5).
        let clicked = self.choice.as_ref().or(self.value.as_ref()).and_then(|label| verdict(&Value::from(&**label)));
        match clicked.or(self.verdict.map(|said| (said, false))) {
            Some((Verdict::Allow, lasting)) => Ok(Answer::Allow { input: self.arguments, always: self.lasting || lasting }),
            Some(_) => Ok(self.denial()),
            None => Err(missing("a permission needs `grant`: `allow` or `deny`")),
        }
    }

    fn question(self, questions: &[Question]) -> Result<Answer, Refusal> {
        if let Some(answers) = &self.answers {
            let chosen = match answers {
                Answers::ByQuestion(pairs) => pairs.iter().map(|(key, label)| (question_of(questions, key), label.clone())).collect(),
                Answers::InOrder(labels) => questions.iter().map(|asked| asked.question.clone()).zip(labels.iter().cloned()).collect(),
            };
            return Ok(Answer::Choose(chosen));
        }
        if let Some(label) = self.choice.as_ref().or(self.value.as_ref()) {
            return match questions {
                [only] => Ok(Answer::Choose(vec![(only.question.clone(), label.clone())])),
                _ => Err(missing("several questions were asked: send `answers` with a label for each")),
            };
        }
        match self.verdict {
            Some(Verdict::Allow) => Ok(Answer::Allow { input: self.arguments, always: false }),
            Some(_) => Ok(self.denial()),
            None => Err(missing("a question needs `answers`, `choice`, `value` or `grant`")),
        }
    }

    fn form(self) -> Result<Answer, Refusal> {
        let action = match (self.verdict, &self.content) {
            (Some(Verdict::Allow), _) | (None, Some(_)) => FormAction::Accept,
            (Some(Verdict::Deny), _) => FormAction::Decline,
            (Some(Verdict::Cancel), _) => FormAction::Cancel,
            (None, None) => return Err(missing("a form needs `content` or `grant`")),
        };
        let content = self.content.filter(|_| action == FormAction::Accept);
        Ok(Answer::Form { action, content })
    }

    fn denial(self) -> Answer {
        let said = if self.verdict == Some(Verdict::Cancel) { "the user closed the request" } else { "the user said no" };
        Answer::Deny { message: self.feedback.unwrap_or(Text::from_static(said)) }
    }
}

fn missing(what: &str) -> Refusal {
    Refusal::Unprocessable(what.to_owned())
}

/// A verdict in the words of unknown frontends, and whether it is meant to last.
fn verdict(said: &Value) -> Option<(Verdict, bool)> {
    let said = match said {
        Value::Bool(yes) => return Some((if *yes { Verdict::Allow } else { Verdict::Deny }, false)),
        Value::String(said) => said.trim().to_ascii_lowercase().replace([' ', '-'], "_"),
        _ => return None,
    };
    Some(match &*said {
        "allow" | "allowed" | "allow_once" | "approve" | "approved" | "accept" | "accepted" | "yes" | "true" => (Verdict::Allow, false),
        "allow_always" | "always_allow" | "always" | "allow_session" => (Verdict::Allow, true),
        "deny" | "denied" | "reject" | "rejected" | "decline" | "declined" | "no" | "false" => (Verdict::Deny, false),
        "cancel" | "cancelled" | "canceled" => (Verdict::Cancel, false),
        _ => return None,
    })
}

/// Text, or several labels joined as the upstream wants them.
fn words(value: &Value) -> Option<Text> {
    match value {
        Value::String(text) => Some(Text::from(&**text)),
        Value::Array(labels) => {
            let labels: Vec<Text> = labels.iter().filter_map(words).collect();
            Some(labels.join(", ").into())
        }
        Value::Bool(_) | Value::Number(_) => Some(value.to_string().into()),
        Value::Null | Value::Object(_) => None,
    }
}

fn read_answers(answers: &Value) -> Option<Answers> {
    match answers {
        Value::Object(pairs) => {
            Some(Answers::ByQuestion(pairs.iter().filter_map(|(key, label)| Some((key.clone(), words(label)?))).collect()))
        }
        Value::Array(labels) => Some(Answers::InOrder(labels.iter().filter_map(words).collect())),
        _ => None,
    }
}

/// The question that a key means: its text, or else its heading.
fn question_of(questions: &[Question], key: &str) -> Text {
    let by_text = questions.iter().find(|asked| &*asked.question == key);
    let by_header = || questions.iter().find(|asked| asked.header.as_deref() == Some(key));
    by_text.or_else(by_header).map_or_else(|| Text::from(key), |asked| asked.question.clone())
}

#[cfg(test)]
mod tests {
    use interline_model::AskId;

    use super::*;

    fn ask(kind: AskKind, questions: &[&str]) -> Ask {
        let question = |text: &&str| Question {
            question: (*text).to_owned().into(),
            header: Some(format!("H {text}").into()),
            options: Vec::new(),
            multi_select: false,
        };
        Ask {
            id: AskId::from("r"),
            kind,
            call: None,
            tool_name: "t".into(),
            message: None,
            input: Json::empty_object(),
            questions: questions.iter().map(question).collect(),
            suggestions: None,
        }
    }

    fn answered(kind: AskKind, questions: &[&str], body: &str) -> Result<Answer, String> {
        Reply::parse(body.as_bytes()).and_then(|reply| reply.answer(&ask(kind, questions))).map_err(|refusal| refusal.to_string())
    }

    fn allow(input: Option<&str>, always: bool) -> Answer {
        Answer::Allow { input: input.map(|input| Json::parse(input.to_owned()).unwrap()), always }
    }

    fn deny(message: &str) -> Answer {
        Answer::Deny { message: message.to_owned().into() }
    }

    #[test]
    fn a_permission_is_granted_or_refused_in_many_words() {
        for word in [r#""approve""#, r#""approved""#, r#""allow""#, r#""Allow Once""#, r#""yes""#, "true"] {
            for member in ["grant", "decision", "action", "verdict"] {
                let body = format!(r#"{{"{member}":{word}}}"#);
                assert_eq!(answered(AskKind::Permission, &[], &body), Ok(allow(None, false)), "{body}");
            }
        }
        for word in [r#""deny""#, r#""denied""#, r#""reject""#, r#""rejected""#, r#""no""#, "false"] {
            assert_eq!(answered(AskKind::Permission, &[], &format!(r#"{{"grant":{word}}}"#)), Ok(deny("the user said no")), "{word}");
        }
        for (body, expected) in [
            (r#"{"approved":true}"#, allow(None, false)),
            (r#"{"approved":false,"feedback":"not now"}"#, deny("not now")),
            (r#"{"grant":"deny","reason":"r"}"#, deny("r")),
            (r#"{"grant":"allow","scope":"once"}"#, allow(None, false)),
            (r#"{"grant":"allow","scope":"session"}"#, allow(None, true)),
            (r#"{"grant":"allow_always"}"#, allow(None, true)),
            (r#"{"grant":"allow","updated_arguments":{"n":1.0}}"#, allow(Some(r#"{"n":1.0}"#), false)),
            (r#"{"choice":"Allow always"}"#, allow(None, true)),
            (r#"{"value":"no"}"#, deny("the user said no")),
            (r#"{"choice":"Deny","value":"yes","grant":"allow"}"#, deny("the user said no")),
            (r#"{"value":"Allow","grant":"deny"}"#, allow(None, false)),
            (r#"{"grant":"allow","value":"as you like"}"#, allow(None, false)),
            (r#"{"grant":"deny","message":"m"}"#, deny("m")),
            (r#"{"grant":"allow","arguments":{"n":1}}"#, allow(Some(r#"{"n":1}"#), false)),
            (r#"{"grant":"allow","updatedArguments":{"n":1}}"#, allow(Some(r#"{"n":1}"#), false)),
            (r#"{"grant":"allow","scope":"always"}"#, allow(None, true)),
            (r#"{"grant":null,"approved":true}"#, allow(None, false)),
            ("{}", deny("the user closed the request")),
            ("", deny("the user closed the request")),
        ] {
            assert_eq!(answered(AskKind::Permission, &[], body), Ok(expected), "{body}");
        }
    }

    #[test]
    fn a_question_is_answered_by_its_text() {
        let choose = |pairs: &[(&str, &str)]| {
            Ok(Answer::Choose(pairs.iter().map(|(question, label)| ((*question).to_owned().into(), (*label).to_owned().into())).collect()))
        };
        for (questions, body, expected) in [
            (&["Q"][..], r#"{"answers":{"Q":"A"}}"#, choose(&[("Q", "A")])),
            (&["Q"], r#"{"answers":{"Q":["A","B"]}}"#, choose(&[("Q", "A, B")])),
            (&["Q", "R"], r#"{"answers":{"H R":"A"}}"#, choose(&[("R", "A")])),
            (&["Q", "R"], r#"{"answers":["A",1]}"#, choose(&[("Q", "A"), ("R", "1")])),
            (&["Q"], r#"{"choice":"A","value":"B"}"#, choose(&[("Q", "A")])),
            (&["Q"], r#"{"value":"free text"}"#, choose(&[("Q", "free text")])),
            (&["Q"], r#"{"grant":"deny","feedback":"f"}"#, Ok(deny("f"))),
            (&["Q"], r#"{"grant":"allow"}"#, Ok(allow(None, false))),
        ] {
            assert_eq!(answered(AskKind::Question, questions, body), expected, "{body}");
        }
        assert!(answered(AskKind::Question, &["Q", "R"], r#"{"choice":"A"}"#).unwrap_err().contains("answers"));
    }

    #[test]
    fn a_form_is_accepted_declined_or_closed() {
        let form =
            |action, content: Option<&str>| Ok(Answer::Form { action, content: content.map(|json| Json::parse(json.to_owned()).unwrap()) });
        for (body, expected) in [
            (r#"{"content":{"a":1e400}}"#, form(FormAction::Accept, Some(r#"{"a":1e400}"#))),
            (r#"{"grant":"allow"}"#, form(FormAction::Accept, None)),
            (r#"{"action":"decline","content":{}}"#, form(FormAction::Decline, None)),
            (r#"{"grant":"cancel"}"#, form(FormAction::Cancel, None)),
            ("{}", form(FormAction::Cancel, None)),
        ] {
            assert_eq!(answered(AskKind::Form, &[], body), expected, "{body}");
            assert_eq!(answered(AskKind::Link, &[], body), expected, "{body}");
        }
    }

    #[test]
    fn what_fits_nothing_is_refused() {
        for (kind, body) in [
            (AskKind::Permission, r#"{"answers":{"Q":"A"}}"#),
            (AskKind::Permission, r#"{"choice":"purple"}"#),
            (AskKind::Permission, r#"{"grant":"purple"}"#),
            (AskKind::Permission, r#"{"grant":"allow","arguments":[1]}"#),
            (AskKind::Question, r#"{"odd":1}"#),
            (AskKind::Form, r#"{"value":"x"}"#),
            (AskKind::Form, r#"{"content":{"a":"\ud83d"}}"#),
            (AskKind::Permission, r#"{"grant":"deny","feedback":"\ud83d"}"#),
            (AskKind::Permission, r#"{"grant":"allow","arguments":{"a":["\ude00"]}}"#),
            (AskKind::Question, r#"{"answers":{"Q":"\ud83d"}}"#),
            (AskKind::Question, r#"{"answers":{"\ud83d":"A"}}"#),
            (AskKind::Form, r#"{"content":"x"}"#),
            (AskKind::Form, "[]"),
            (AskKind::Form, "{"),
            (AskKind::Form, "nonsense"),
        ] {
            assert!(answered(kind, &["Q"], body).is_err(), "{body}");
        }
    }
}
