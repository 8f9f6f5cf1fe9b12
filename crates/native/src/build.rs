//! The frames we send: answers to asks, stopping, a user's message, and what ends a stream on the native surface.
//!
//! Values of others (a tool's input, a form's content) are spliced in as the text they came as, never parsed and written again.

use interline_model::{Answer, Ask, AskKind, Completion, FormAction, Json, Millis, Outcome, Part, RunEnd, Text, Usage, write_json_string};

use crate::object::Object;

/// What the model is told where whoever refused said nothing. `message` is required (native-ws.md §5.2).
const DENIED: &str = "Denied by the user.";

/// A JSON object that is being written.
struct Members(String);

impl Members {
    fn new() -> Self {
        Self(String::from("{"))
    }

    fn of_type(kind: &str) -> Self {
        Self::new().str("type", kind)
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        write_json_string(&mut self.0, name);
        self.0.push(':');
    }

    /// A member that is JSON already.
    fn raw(mut self, name: &str, json: &str) -> Self {
        self.name(name);
        self.0.push_str(json);
        self
    }

    fn str(mut self, name: &str, value: &str) -> Self {
        self.name(name);
        write_json_string(&mut self.0, value);
        self
    }

    fn number(self, name: &str, value: u64) -> Self {
        self.raw(name, &value.to_string())
    }

    /// A string member, if there is a value.
    fn maybe(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.str(name, value),
            None => self,
        }
    }

    fn object(self, name: &str, members: Self) -> Self {
        self.raw(name, &members.close())
    }

    fn close(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn frame(self) -> Text {
        Text::from(self.close())
    }
}

/// The `control_response` that answers `ask`.
///
/// An answer of another kind than the ask's is taken for what it can only mean: a form that is allowed is accepted, a
/// permission that is declined is denied. What means nothing denies; nothing but a clear yes allows.
#[must_use]
pub fn answer(ask: &Ask, answer: &Answer) -> Text {
    let (kind, body) = match ask.kind {
        AskKind::Permission | AskKind::Question => ("permission_response", permission(ask, answer)),
        AskKind::Form | AskKind::Link => ("elicitation_response", elicitation(ask, answer)),
    };
    let response = Members::new().str("subtype", "success").str("request_id", ask.id.as_str()).raw("response", &body);
    // Decision 29: newer servers tell answers by `kind`, older ones do not look at it.
    Members::of_type("control_response").str("kind", kind).object("response", response).frame()
}

/// A `PermissionResult` (native-ws.md §5.2).
fn permission(ask: &Ask, answer: &Answer) -> String {
    // Runtimes run the tool with `updatedInput` and nothing else: an allow without it would run with an empty input (decision 19).
    let allow = |input: &str| Members::new().str("behavior", "allow").raw("updatedInput", input);
    let deny = |message: &str| {
        let message = if message.trim().is_empty() { DENIED } else { message };
        Members::new().str("behavior", "deny").str("message", message)
    };
    let members = match answer {
        Answer::Allow { input, always } => {
            let members = allow(input.as_ref().unwrap_or(&ask.input).as_str());
            match (&ask.suggestions, always) {
                (Some(suggestions), true) => members.raw("updatedPermissions", suggestions.as_str()),
                _ => members,
            }
        }
        Answer::Choose(answers) if ask.kind == AskKind::Question => allow(&with_answers(&ask.input, &labels(answers))),
        Answer::Choose(_) => deny(DENIED),
        Answer::Deny { message } => deny(message),
        Answer::Form { action: FormAction::Accept, content } => match content {
            Some(content) if ask.kind == AskKind::Question && content.is_object() => allow(&with_answers(&ask.input, content.as_str())),
            _ => allow(ask.input.as_str()),
        },
        Answer::Form { .. } => deny(DENIED),
        Answer::Native(body) => return body.as_str().to_owned(),
    };
    members.close()
}

/// What ends a form or a link (native-ws.md §5.2, `elicitation`).
fn elicitation(ask: &Ask, answer: &Answer) -> String {
    let end = |action: FormAction, content: Option<&str>| {
        let members = Members::new().str("action", action.as_str());
        // A link has no content; an accepted form always has some.
        match content {
            _ if ask.kind == AskKind::Link || action != FormAction::Accept => members,
            content => members.raw("content", content.unwrap_or("{}")),
        }
    };
    let members = match answer {
        Answer::Allow { input, .. } => end(FormAction::Accept, input.as_ref().map(Json::as_str)),
        Answer::Deny { .. } => end(FormAction::Decline, None),
        Answer::Choose(answers) => end(FormAction::Accept, Some(&labels(answers))),
        Answer::Form { action, content } => end(*action, content.as_ref().map(Json::as_str)),
        Answer::Native(body) => return body.as_str().to_owned(),
    };
    members.close()
}

fn labels(answers: &[(Text, Text)]) -> String {
    answers.iter().fold(Members::new(), |members, (question, label)| members.str(question, label)).close()
}

/// `input` with the member `answers` added or replaced; all else stays as it came.
fn with_answers(input: &Json, answers: &str) -> String {
    let text = input.text();
    let Ok(object) = Object::parse(&text) else { return Members::new().raw("answers", answers).close() };
    if object.raw("answers").is_none()
        && let Some(head) = text.trim_end().strip_suffix('}')
    {
        let comma = if object.members().next().is_some() { "," } else { "" };
        return format!("{head}{comma}\"answers\":{answers}}}");
    }
    let kept = object.members().filter(|(name, _)| *name != "answers");
    kept.fold(Members::new(), |members, (name, value)| members.raw(name, value.get())).raw("answers", answers).close()
}

/// Stops the run on the bridge plane (native-ws.md §4.5).
#[must_use]
pub fn interrupt(request_id: &str) -> Text {
    let request = Members::new().str("subtype", "interrupt");
    Members::of_type("control_request").str("request_id", request_id).object("request", request).frame()
}

/// Stops the run on the cloud plane, whatever the id (native-ws.md §3.4).
#[must_use]
pub fn cancel(request_id: &str) -> Text {
    Members::of_type("control_cancel_request").str("request_id", request_id).frame()
}

/// A request of ours with this body.
#[must_use]
pub fn request(request_id: &str, body: &Json) -> Text {
    Members::of_type("control_request").str("request_id", request_id).raw("request", body.as_str()).frame()
}

/// The body of a request: its subtype, and members that are JSON already (native-ws.md §5.2).
#[must_use]
pub fn request_body(subtype: &str, members: &[(&str, &str)]) -> Json {
    let body = members.iter().fold(Members::new().str("subtype", subtype), |body, (name, value)| body.raw(name, value));
    Json::written(body.close())
}

/// Environment variables for the agent's tools (native-ws.md §5.3).
#[must_use]
pub fn environment<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Text {
    let variables = variables.into_iter().fold(Members::new(), |members, (name, value)| members.str(name, value));
    Members::of_type("update_environment_variables").object("variables", variables).frame()
}

/// A good answer to a peer's request.
#[must_use]
pub fn success(request_id: &str, response: Option<&Json>) -> Text {
    let body = Members::new().str("subtype", "success").str("request_id", request_id);
    let body = match response {
        Some(response) => body.raw("response", response.as_str()),
        None => body,
    };
    Members::of_type("control_response").object("response", body).frame()
}

/// A bad answer to a peer's request.
#[must_use]
pub fn failure(request_id: &str, error: &str) -> Text {
    let body = Members::new().str("subtype", "error").str("request_id", request_id).str("error", error);
    Members::of_type("control_response").object("response", body).frame()
}

/// A user's message (native-ws.md §5.1 1). Images become image blocks, files document blocks.
#[must_use]
pub fn user_message(input: &[Part], session_id: Option<&str>, uuid: Option<&str>) -> Text {
    let blocks: Vec<String> = input.iter().map(block).collect();
    let message = Members::new().str("role", "user").raw("content", &format!("[{}]", blocks.join(",")));
    Members::of_type("user")
        .object("message", message)
        .raw("parent_tool_use_id", "null")
        .maybe("uuid", uuid)
        .str("session_id", session_id.unwrap_or_default())
        .frame()
}

fn block(part: &Part) -> String {
    let base64 = |media_type: &str, data: &str| Members::new().str("type", "base64").str("media_type", media_type).str("data", data);
    match part {
        Part::Text(text) => Members::of_type("text").str("text", text),
        Part::Image { url } => {
            let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
            let source = match data {
                Some((media_type, data)) => base64(media_type, data),
                None => Members::new().str("type", "url").str("url", url),
            };
            Members::of_type("image").object("source", source)
        }
        Part::File { name, data } => Members::of_type("document").object("source", base64(media_type(name), data)).str("title", name),
    }
    .close()
}

/// The media type of a file by its name, as far as models take files at all.
fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).as_deref() {
        Some("pdf") => "application/pdf",
        Some("txt" | "md" | "csv" | "log") => "text/plain",
        _ => "application/octet-stream",
    }
}

/// The `result` of a run that the upstream left without one (decision 28).
#[must_use]
pub fn result(end: &RunEnd, session_id: &str, uuid: &str) -> Text {
    let (subtype, stop_reason, error) = match &end.outcome {
        Outcome::Completed(Completion::EndTurn) => ("success", Some("end_turn"), None),
        Outcome::Interrupted { .. } => ("success", Some("interrupted"), None),
        Outcome::Completed(Completion::MaxTurns) => ("error_max_turns", None, Some("the limit of model calls was reached")),
        Outcome::Completed(Completion::MaxBudget) => ("error_max_budget_usd", None, Some("the budget is used up")),
        Outcome::Failed { message, .. } => ("error_during_execution", None, Some(&**message)),
    };
    let duration = end.duration_ms.unwrap_or_default();
    let members = Members::of_type("result")
        .str("subtype", subtype)
        .number("duration_ms", duration)
        .number("duration_api_ms", duration)
        .raw("is_error", if error.is_some() { "true" } else { "false" })
        .number("num_turns", end.num_turns.unwrap_or_default());
    let members = if error.is_none() { members.str("result", "") } else { members };
    let members = match stop_reason {
        Some(reason) => members.str("stop_reason", reason),
        None => members.raw("stop_reason", "null"),
    };
    let members = members
        .raw("total_cost_usd", end.cost_usd.as_ref().map_or("0", Json::as_str))
        .object("usage", end.usage.map_or_else(Members::new, usage))
        .object("modelUsage", Members::new())
        .raw("permission_denials", "[]");
    let members = match error {
        Some(message) => {
            let error = Members::new().str("message", message).raw("recoverable", "false");
            members.raw("errors", &format!("[{}]", error.close()))
        }
        None => members,
    };
    let members = match &end.structured_output {
        Some(output) => members.raw("structured_output", output.as_str()),
        None => members,
    };
    members.str("uuid", uuid).str("session_id", session_id).frame()
}

fn usage(usage: Usage) -> Members {
    Members::new()
        .number("input_tokens", usage.input_tokens)
        .number("output_tokens", usage.output_tokens)
        .number("cache_read_input_tokens", usage.cache_read_tokens)
        .number("cache_creation_input_tokens", usage.cache_write_tokens)
}

/// What a form or link came to, for those who watch (decision 29). `action` may be `timeout`, too.
#[must_use]
pub fn form_answer(
    request_id: &str,
    elicitation_id: Option<&str>,
    action: &str,
    content: Option<&Json>,
    session_id: &str,
    uuid: &str,
) -> Text {
    let members = Members::of_type("system").str("subtype", "form_answer").str("request_id", request_id);
    let members = members.maybe("elicitation_id", elicitation_id).str("action", action);
    let members = match content {
        Some(content) => members.raw("content", content.as_str()),
        None => members,
    };
    members.str("uuid", uuid).str("session_id", session_id).frame()
}

/// The sentinel at the end of a bridge stream (native-ws.md §4.3).
#[must_use]
pub fn keep_alive(at: Millis) -> Text {
    Members::of_type("keep_alive").number("ts", at).frame()
}

#[cfg(test)]
mod tests {
    use interline_model::{AskId, AskOutcome, FailureKind};

    use super::*;
    use crate::frame::{Control, Data, Frame, Request};

    fn ask(kind: AskKind, input: &str, suggestions: Option<&str>) -> Ask {
        let json = |text: &str| Json::parse(text).unwrap();
        Ask {
            id: AskId::from("r\"1"),
            kind,
            call: None,
            tool_name: Text::from_static("Bash"),
            message: None,
            input: json(input),
            questions: Vec::new(),
            suggestions: suggestions.map(json),
        }
    }

    /// The payload of a `control_response`, and its kind.
    fn body(text: &Text) -> (String, String) {
        let Frame::Control(Control::Response(response)) = Frame::parse(text).unwrap() else { panic!("{text}") };
        assert_eq!((response.request_id().as_deref(), response.error()), (Some("r\"1"), None));
        (response.kind().unwrap().to_string(), response.response().unwrap().as_str().to_owned())
    }

    const INPUT: &str = r#"{"n":12345678901234567890123,"b":1e400,"a":"\ud83d"}"#;

    #[test]
    fn every_answer_to_every_kind() {
        let json = |text: &str| Some(Json::parse(text).unwrap());
        let allow = |input, always| Answer::Allow { input, always };
        let deny = |message| Answer::Deny { message: Text::from_static(message) };
        let form = |action, content| Answer::Form { action, content };
        let choose = || Answer::Choose(vec![(Text::from_static("Which \"env\"?"), Text::from_static("staging, prod"))]);
        let native = || Answer::Native(Json::parse(r#"{"behavior":"deny","message":"m","interrupt":true}"#).unwrap());
        let (permission, question, fill, link) = (AskKind::Permission, AskKind::Question, AskKind::Form, AskKind::Link);
        let denied = r#"{"behavior":"deny","message":"Denied by the user."}"#;
        let echo = format!(r#"{{"behavior":"allow","updatedInput":{INPUT}}}"#);
        let chosen = r#""answers":{"Which \"env\"?":"staging, prod"}}}"#;
        let answered = format!(r#"{{"behavior":"allow","updatedInput":{},{chosen}"#, INPUT.strip_suffix('}').unwrap());
        let always = format!(r#"{{"behavior":"allow","updatedInput":{INPUT},"updatedPermissions":[{{"type":"addRules"}}]}}"#);
        for (kind, answer, expected) in [
            (permission, allow(None, false), &*echo),
            (permission, allow(json(r#"{"c": 1.0}"#), false), r#"{"behavior":"allow","updatedInput":{"c": 1.0}}"#),
            (permission, allow(None, true), &*always),
            (permission, deny("not now"), r#"{"behavior":"deny","message":"not now"}"#),
            (permission, deny(" "), denied),
            (permission, choose(), denied),
            (permission, form(FormAction::Accept, json("{}")), &*echo),
            (permission, form(FormAction::Cancel, None), denied),
            (permission, native(), r#"{"behavior":"deny","message":"m","interrupt":true}"#),
            (question, choose(), &*answered),
            (question, allow(None, false), &*echo),
            (question, form(FormAction::Accept, None), &*echo),
            (question, deny("no"), r#"{"behavior":"deny","message":"no"}"#),
            (fill, form(FormAction::Accept, json(r#"{"n":1e400}"#)), r#"{"action":"accept","content":{"n":1e400}}"#),
            (fill, form(FormAction::Accept, None), r#"{"action":"accept","content":{}}"#),
            (fill, form(FormAction::Decline, json("{}")), r#"{"action":"decline"}"#),
            (fill, form(FormAction::Cancel, None), r#"{"action":"cancel"}"#),
            (fill, allow(None, true), r#"{"action":"accept","content":{}}"#),
            (fill, deny("no"), r#"{"action":"decline"}"#),
            (fill, choose(), r#"{"action":"accept","content":{"Which \"env\"?":"staging, prod"}}"#),
            (link, form(FormAction::Accept, json("{}")), r#"{"action":"accept"}"#),
        ] {
            let (said, payload) = body(&super::answer(&ask(kind, INPUT, Some(r#"[{"type":"addRules"}]"#)), &answer));
            assert_eq!(payload, expected, "{kind:?} {answer:?}");
            assert_eq!(
                said,
                if matches!(kind, AskKind::Permission | AskKind::Question) { "permission_response" } else { "elicitation_response" }
            );
            let allows = payload.contains(r#""behavior":"allow""#);
            assert!(!allows || answer.outcome() != AskOutcome::Denied, "a refusal allowed: {answer:?}");
        }
        let (_, payload) = body(&super::answer(&ask(permission, "{}", None), &allow(None, true)));
        assert_eq!(payload, r#"{"behavior":"allow","updatedInput":{}}"#, "always, and nothing to accept");
    }

    #[test]
    fn answers_join_the_input_as_it_came() {
        for (input, expected) in [
            ("{}", r#"{"answers":1}"#),
            (r#"{ "a" : 1.0 }"#, r#"{ "a" : 1.0 ,"answers":1}"#),
            (r#"{"answers":{"old":"x"},"b":-0}"#, r#"{"b":-0,"answers":1}"#),
        ] {
            assert_eq!(with_answers(&Json::parse(input).unwrap(), "1"), expected);
        }
    }

    #[test]
    fn stopping_and_answering() {
        let text = interrupt("i");
        let Ok(Frame::Control(Control::Request(request))) = Frame::parse(&text) else { panic!("{text}") };
        assert!(matches!(request.request(), Some(Request::Interrupt(_))) && request.request_id().as_deref() == Some("i"));
        assert_eq!(&*cancel("c"), r#"{"type":"control_cancel_request","request_id":"c"}"#);
        assert_eq!(&*success("s", None), r#"{"type":"control_response","response":{"subtype":"success","request_id":"s"}}"#);
        let cancelled = Json::parse(r#"{"cancelled":true}"#).unwrap();
        assert_eq!(
            &*success("s", Some(&cancelled)),
            r#"{"type":"control_response","response":{"subtype":"success","request_id":"s","response":{"cancelled":true}}}"#
        );
        assert_eq!(
            &*failure("f", "no turn"),
            r#"{"type":"control_response","response":{"subtype":"error","request_id":"f","error":"no turn"}}"#
        );
        assert_eq!(&*keep_alive(7), r#"{"type":"keep_alive","ts":7}"#);
    }

    #[test]
    fn a_message_in_parts() {
        let text = Text::from_static;
        let input = [
            Part::Text(text("what\n\"is\" it?")),
            Part::Image { url: text("data:image/png;base64,AAAA") },
            Part::Image { url: text("https://example.com/a.png") },
            Part::File { name: text("a.PDF"), data: text("BBBB") },
        ];
        assert_eq!(
            &*user_message(&input, Some("s"), Some("u")),
            concat!(
                r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"what\n\"is\" it?"},"#,
                r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},"#,
                r#"{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}},"#,
                r#"{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"BBBB"},"title":"a.PDF"}]},"#,
                r#""parent_tool_use_id":null,"uuid":"u","session_id":"s"}"#
            )
        );
    }

    #[test]
    fn a_result_of_ours_reads_as_what_it_says() {
        let failed = Outcome::Failed { kind: FailureKind::Internal, message: Text::from_static("it \"broke\"") };
        for (outcome, is_error) in [
            (Outcome::Completed(Completion::EndTurn), false),
            (Outcome::Interrupted { reason: Text::from_static("interrupted") }, false),
            (Outcome::Completed(Completion::MaxTurns), true),
            (Outcome::Completed(Completion::MaxBudget), true),
            (failed, true),
        ] {
            let text = result(&RunEnd::synthesised(outcome.clone()), "s", "u");
            let frame = Frame::parse(&text).unwrap();
            assert_eq!(matches!(frame, Frame::Data(Data::ResultError(_))), is_error, "{text}");
            assert_eq!(crate::reader::outcome_of(frame.object()), Some(outcome), "{text}");
        }
    }

    #[test]
    fn a_form_answer() {
        let content = Json::parse(r#"{"a":1}"#).unwrap();
        assert_eq!(
            &*form_answer("r", Some("e"), "accept", Some(&content), "s", "u"),
            r#"{"type":"system","subtype":"form_answer","request_id":"r","elicitation_id":"e","action":"accept","content":{"a":1},"uuid":"u","session_id":"s"}"#
        );
    }
}
