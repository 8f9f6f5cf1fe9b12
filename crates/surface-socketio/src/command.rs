//! What clients send, read by hand: a typed extractor that fails would drop the event and leave the user waiting (socketio.md §2).

use interline_hub::{Environment, EnvironmentError, MAX_MODEL_BYTES};
use interline_model::{Json, Part, SessionId, Text};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::members::Members;
use crate::projection::Mode;
use crate::refusal::Refusal;
use crate::schema;

/// A client's event.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Subscribe(Subscribe),
    Unsubscribe(SessionId),
    Send(Message),
    Stop { session: SessionId, run: Option<String> },
    Compact(SessionId),
}

/// A `session:subscribe`.
#[derive(Debug, PartialEq)]
pub(crate) struct Subscribe {
    pub(crate) session: SessionId,
    /// Raw events are wanted, and which (socketio.md §6.1).
    pub(crate) raw: Option<RawFrom>,
}

/// From where on a socket wants raw events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFrom {
    /// The last `stream_sequence` that it has seen.
    pub(crate) after: u64,
    /// It was there before.
    pub(crate) resume: bool,
}

/// A `chat:send`.
#[derive(Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) session: SessionId,
    pub(crate) input: Vec<Part>,
    pub(crate) answer: Option<Map<String, Value>>,
    pub(crate) model: Option<Text>,
    /// None keeps the session's.
    pub(crate) mode: Option<Mode>,
    pub(crate) headless: bool,
    /// An object, and a JSON Schema.
    pub(crate) output_schema: Option<Json>,
    pub(crate) environment: Environment,
}

impl Message {
    /// Its text, for when it is an answer.
    pub(crate) fn text(&self) -> String {
        let texts = self.input.iter().filter_map(|part| match part {
            Part::Text(text) => Some(&**text),
            Part::Image { .. } | Part::File { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// A refused event, with the session it was for if it said.
#[derive(Debug, PartialEq)]
pub(crate) struct Unread {
    pub(crate) refusal: Refusal,
    pub(crate) session: Option<SessionId>,
}

/// Reads an event packet's payload, `["name", {…}]`. Null is the same as absent, and unknown members are nobody's business, whatever they hold.
pub(crate) fn read(packet: &str) -> Result<Command, Unread> {
    let bare = |refusal| Unread { refusal, session: None };
    let parts: Vec<&RawValue> = match serde_json::from_str(packet) {
        Ok(parts) => parts,
        Err(error) => return Err(bare(Refusal::Invalid(format!("The event cannot be read: {error}")))),
    };
    let name = parts.first().and_then(|name| serde_json::from_str::<String>(name.get()).ok()).unwrap_or_default();
    if !matches!(name.as_str(), "session:subscribe" | "session:unsubscribe" | "chat:send" | "chat:stop" | "chat:compact") {
        return Err(bare(Refusal::UnsupportedEvent));
    }
    let Some(payload) = parts.get(1).and_then(|payload| Members::read(payload.get())) else {
        return Err(bare(Refusal::Invalid(format!("`{name}` takes one object"))));
    };
    let Some(session) = payload.text("session_id").filter(|id| !id.is_empty()).map(SessionId::from) else {
        return Err(bare(Refusal::Incomplete));
    };
    Ok(match name.as_str() {
        "session:subscribe" => Command::Subscribe(Subscribe { session, raw: raw_from(&payload) }),
        "session:unsubscribe" => Command::Unsubscribe(session),
        "chat:compact" => Command::Compact(session),
        "chat:stop" => Command::Stop { session, run: payload.text("chat_run_id") },
        _ => Command::Send(message(session.clone(), &payload).map_err(|refusal| Unread { refusal, session: Some(session) })?),
    })
}

/// Of the formats only `raw` is one of its own. What is no number is none.
fn raw_from(payload: &Members<'_>) -> Option<RawFrom> {
    let raw = payload.text("event_format").as_deref() == Some("raw");
    raw.then(|| RawFrom {
        after: payload.lenient("after_sequence").as_ref().and_then(Value::as_u64).unwrap_or(0),
        resume: payload.flag("resume"),
    })
}

fn message(session: SessionId, payload: &Members<'_>) -> Result<Message, Refusal> {
    let invalid = |why: &str| Refusal::Invalid(why.to_owned());
    for (member, what) in [("whatif", "run a part of a session again"), ("replay_decision", "go on with a replay")] {
        if payload.has(member) {
            return Err(Refusal::Unsupported(format!("The agent behind this session cannot {what}: leave out `{member}`")));
        }
    }
    let answer = match payload.value("askuser_answer")? {
        Some(Value::Object(answer)) => Some(answer),
        None => None,
        Some(_) => return Err(invalid("`askuser_answer` takes an object")),
    };
    let input = match payload.value("message")? {
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::String(text)) => vec![Part::Text(Text::from(text))],
        Some(Value::Array(parts)) => parts.into_iter().map(part).collect::<Result<_, _>>()?,
        // The generated TypeScript types say object, and mean a part.
        Some(Value::Object(part_)) => vec![part(Value::Object(part_))?],
        _ => Vec::new(),
    };
    if input.is_empty() && answer.is_none() {
        return Err(Refusal::Incomplete);
    }
    let model = payload.text("model").filter(|model| !model.is_empty()).map(Text::from);
    if model.as_ref().is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
        return Err(Refusal::Invalid(format!("`model` takes at most {MAX_MODEL_BYTES} bytes")));
    }
    let mode = match payload.value("mode")? {
        None => None,
        Some(Value::String(mode)) if mode.is_empty() => None,
        Some(Value::String(mode)) => match mode.as_str() {
            "planning" => Some(Mode::Planning),
            "executing" => Some(Mode::Executing),
            _ => return Err(invalid("`mode` is `planning` or `executing`")),
        },
        Some(_) => return Err(invalid("`mode` is `planning` or `executing`")),
    };
    let output_schema = match payload.raw("output_schema").map(Json::from_raw) {
        Some(schema) if !schema.is_object() => return Err(invalid("`output_schema` takes an object")),
        Some(schema) => {
            schema::check(&schema).map_err(|why| Refusal::Invalid(format!("`output_schema` is no JSON Schema: {why}")))?;
            Some(schema)
        }
        None => None,
    };
    let environment = match payload.value("runtime_env")? {
        None => Environment::default(),
        Some(value) => environment(&value).ok_or_else(|| invalid("`runtime_env` takes an object of texts"))??,
    };
    Ok(Message { session, input, answer, model, mode, headless: payload.flag("headless"), output_schema, environment })
}

/// Environment variables: an object of texts, `None` for anything else; and which of them may be set, the hub says.
pub(crate) fn environment(value: &Value) -> Option<Result<Environment, EnvironmentError>> {
    let pairs = value.as_object()?.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    pairs.collect::<Option<Vec<_>>>().map(Environment::checked)
}

fn part(value: Value) -> Result<Part, Refusal> {
    let text_of = |member: &str| value.get(member).and_then(Value::as_str).map(|text| Text::from(text.to_owned()));
    let kind = value.get("type").and_then(Value::as_str).unwrap_or_default();
    let read = match (kind, &value) {
        (_, Value::String(text)) => Some(Part::Text(Text::from(text.clone()))),
        ("text", _) => text_of("text").map(Part::Text),
        ("image_url", _) => {
            let image = value.get("image_url");
            let url = image.and_then(|image| image.as_str().or_else(|| image.get("url")?.as_str()));
            url.map(|url| Part::Image { url: Text::from(url.to_owned()) })
        }
        ("file", _) => text_of("name").zip(text_of("data")).map(|(name, data)| Part::File { name, data }),
        _ => None,
    };
    read.ok_or_else(|| Refusal::Invalid(format!("The message has a part of type `{kind}` that cannot be read")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sent(payload: Value) -> Result<Message, Refusal> {
        match read(&json!(["chat:send", payload]).to_string()) {
            Ok(Command::Send(message)) => Ok(message),
            Ok(other) => panic!("{other:?}"),
            Err(unread) => Err(unread.refusal),
        }
    }

    #[test]
    fn null_is_absent_and_the_rest_is_ignored() {
        let message = sent(json!({
            "session_id": "s", "message": "hi", "mode": null, "askuser_answer": null, "model": null, "headless": null, "whatif": null, "x": 1,
        }));
        let expected = Message {
            session: SessionId::from("s"),
            input: vec![Part::Text(Text::from_static("hi"))],
            answer: None,
            model: None,
            mode: None,
            headless: false,
            output_schema: None,
            environment: Environment::default(),
        };
        assert_eq!(message, Ok(expected));
    }

    #[test]
    fn a_message_has_parts() {
        let parts = json!([
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:x"}},
            {"type": "image_url", "image_url": "https://e/x"},
            {"type": "file", "name": "a.csv", "data": "eA=="},
        ]);
        let message = sent(json!({"session_id": "s", "message": parts})).unwrap();
        let image = |url| Part::Image { url: Text::from_static(url) };
        let file = Part::File { name: Text::from_static("a.csv"), data: Text::from_static("eA==") };
        assert_eq!(message.input, [Part::Text(Text::from_static("look")), image("data:x"), image("https://e/x"), file]);
        assert!(sent(json!({"session_id": "s", "message": [{"type": "video"}]})).is_err());
        assert_eq!(sent(json!({"session_id": "s", "message": {"type": "text", "text": "x"}})).unwrap().text(), "x");
    }

    #[test]
    fn what_is_missing_is_said() {
        for payload in [
            json!({}),
            json!({"session_id": "s"}),
            json!({"session_id": "", "message": "x"}),
            json!({"session_id": "s", "message": ""}),
            json!({"session_id": "s", "message": []}),
            json!({"session_id": 5, "message": "x"}),
        ] {
            assert_eq!(sent(payload.clone()), Err(Refusal::Incomplete), "{payload}");
        }
        assert!(sent(json!({"session_id": "s", "message": "", "askuser_answer": {"tool_call_id": "t"}})).is_ok());
        assert!(sent(json!({"session_id": "s", "message": "x", "askuser_answer": []})).is_err());
        assert!(sent(json!({"session_id": "s", "message": "x", "output_schema": "string"})).is_err());
        let named = |bytes| sent(json!({"session_id": "s", "message": "x", "model": "m".repeat(bytes)}));
        assert!(matches!(named(257), Err(Refusal::Invalid(why)) if why.contains("`model`")) && named(256).is_ok());
        let schema = sent(json!({"session_id": "s", "message": "x", "output_schema": {"type": "object"}})).unwrap().output_schema;
        assert_eq!(schema.unwrap().as_str(), r#"{"type":"object"}"#);
    }

    #[test]
    fn nothing_that_arrives_is_dropped_in_silence() {
        let refused = |packet: &str| read(packet).unwrap_err().refusal;
        assert_eq!(refused(r#"["asr:start",{}]"#), Refusal::UnsupportedEvent);
        assert_eq!(refused("[]"), Refusal::UnsupportedEvent);
        assert!(matches!(refused(r#"["chat:send"]"#), Refusal::Invalid(_)));
        assert!(matches!(refused(r#"["chat:send","x"]"#), Refusal::Invalid(_)));
        assert!(matches!(refused("{"), Refusal::Invalid(_)));
        let deep = format!(r#"["chat:send",{{"session_id":"s","message":{}1{}}}]"#, "[".repeat(300), "]".repeat(300));
        assert!(matches!(refused(&deep), Refusal::Invalid(_)));
        let unread = read(r#"["chat:send",{"session_id":"s","message":""}]"#).unwrap_err();
        assert_eq!(unread.session, Some(SessionId::from("s")));
    }

    #[test]
    fn members_that_nobody_knows_may_hold_anything() {
        for odd in ["1e400".to_owned(), r#""\ud83d""#.to_owned(), format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000))] {
            let packet = format!(r#"["chat:send",{{"session_id":"s","message":"x","app_context":{odd}}}]"#);
            assert!(matches!(read(&packet), Ok(Command::Send(_))), "{odd:.20}");
            let known = format!(r#"["chat:send",{{"session_id":"s","message":{odd}}}]"#);
            assert_eq!(read(&known).unwrap_err().session, Some(SessionId::from("s")), "{odd:.20}");
        }
    }

    #[test]
    fn modes_environments_and_schemas_are_read_and_replays_are_refused() {
        let with = |member: &str, value: Value| {
            let mut payload = json!({"session_id": "s", "message": "x"});
            payload[member] = value;
            sent(payload)
        };
        assert_eq!(with("mode", json!("planning")).unwrap().mode, Some(Mode::Planning));
        assert_eq!(with("mode", json!("executing")).unwrap().mode, Some(Mode::Executing));
        assert!(with("mode", json!("dreaming")).is_err() && with("mode", json!(1)).is_err());
        let environment = with("runtime_env", json!({"A": "1"})).unwrap().environment;
        assert_eq!(environment.0.get("A").map(|value| &**value), Some("1"));
        for wrong in [json!([]), json!({"A": 1}), json!({"A=B": "x"}), json!({"": "x"}), json!({"A": "\0"})] {
            assert!(with("runtime_env", wrong.clone()).is_err(), "{wrong}");
        }
        let long = json!({"A": "x".repeat(8193)});
        let many: Map<String, Value> = (0..65).map(|at| (format!("A{at}"), json!("x"))).collect();
        for harmful in [json!({"LD_PRELOAD": "x"}), json!({"PATH": "x"}), json!({"ANTHROPIC_BASE_URL": "x"}), long, Value::Object(many)] {
            assert!(matches!(with("runtime_env", harmful), Err(Refusal::Invalid(why)) if why.starts_with("`runtime_env`: ")));
        }
        assert!(matches!(with("output_schema", json!({"type": 5})), Err(Refusal::Invalid(why)) if why.contains("no JSON Schema")));
        for (member, value) in [("whatif", json!({"from_step": 1})), ("replay_decision", json!("keep_replay"))] {
            assert!(matches!(with(member, value), Err(Refusal::Unsupported(why)) if why.contains(member)));
        }
    }

    #[test]
    fn a_subscription_may_be_raw() {
        let subscribed = |payload: Value| match read(&json!(["session:subscribe", payload]).to_string()) {
            Ok(Command::Subscribe(subscribe)) => subscribe.raw,
            other => panic!("{other:?}"),
        };
        let raw = |after, resume| Some(RawFrom { after, resume });
        assert_eq!(subscribed(json!({"session_id": "s"})), None);
        assert_eq!(subscribed(json!({"session_id": "s", "event_format": null, "after_sequence": 4})), None);
        assert_eq!(subscribed(json!({"session_id": "s", "event_format": "raw"})), raw(0, false));
        assert_eq!(subscribed(json!({"session_id": "s", "event_format": "raw", "after_sequence": 7, "resume": true})), raw(7, true));
        assert_eq!(subscribed(json!({"session_id": "s", "event_format": "raw", "after_sequence": -1, "resume": null})), raw(0, false));
    }

    #[test]
    fn a_stop_may_name_its_run() {
        let stop = read(r#"["chat:stop",{"session_id":"s","chat_run_id":"run-1"}]"#);
        assert_eq!(stop, Ok(Command::Stop { session: SessionId::from("s"), run: Some("run-1".to_owned()) }));
    }
}
