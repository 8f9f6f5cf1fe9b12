//! The body of `POST …/run`: read leniently, refused only where nothing sensible can be made of it (sse.md §2).

use interline_hub::{MAX_MODEL_BYTES, Settings};
use interline_model::{Part, Text};
use serde_json::{Map, Value};

use crate::error::Refusal;
use crate::members::Members;
use crate::wishes;

/// The longest session id that a client may bring.
const LONGEST_ID: usize = 256;

/// A request for a run.
#[derive(Debug, PartialEq)]
pub(crate) struct RunRequest {
    pub(crate) actor: Option<Text>,
    pub(crate) model: Option<Text>,
    pub(crate) session: Option<Text>,
    pub(crate) system_prompt: Option<Text>,
    pub(crate) settings: Settings,
    history: Vec<(Speaker, Vec<Part>)>,
    prompt: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Speaker {
    User,
    Assistant,
    System,
    Other(String),
}

impl RunRequest {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let body = Members::parse(body)?;
        let messages = match body.value(&["messages"])? {
            Some(Value::Array(messages)) if !messages.is_empty() => messages,
            Some(_) => return Err(Refusal::Unprocessable("`messages` must be a list with at least one message".to_owned())),
            None => return Err(Refusal::Unprocessable("`messages` is missing".to_owned())),
        };
        let mut said = Vec::with_capacity(messages.len());
        for (n, message) in messages.iter().enumerate() {
            said.push(read_message(message, &format!("messages[{n}]"))?);
        }
        let last = said.iter().rposition(|(speaker, _)| *speaker == Speaker::User);
        let last = last.ok_or_else(|| Refusal::Unprocessable("`messages` has none whose role is `user`".to_owned()))?;
        let mut systems = Vec::new();
        systems.extend(body.text(&["system_prompt", "systemPrompt"])?);
        systems.extend(body.text(&["append_system_prompt", "appendSystemPrompt"])?);
        let (mut history, mut prompt) = (Vec::new(), Vec::new());
        for (n, (speaker, parts)) in said.into_iter().enumerate() {
            match speaker {
                Speaker::System => systems.push(plain_text(&parts).into()),
                _ if n == last => prompt = parts,
                _ if n < last => history.push((speaker, parts)),
                // An answer begun for the model behind the last question: no upstream can go on from it.
                _ => {}
            }
        }
        if !prompt.iter().any(|part| !matches!(part, Part::Text(text) if text.trim().is_empty())) {
            return Err(Refusal::Unprocessable("the last user message is empty".to_owned()));
        }
        let session = body.text(&["session_id", "sessionId"])?;
        if session.as_ref().is_some_and(|id| id.len() > LONGEST_ID || id.chars().any(char::is_control)) {
            return Err(Refusal::Unprocessable(format!("`session_id` must be at most {LONGEST_ID} bytes without control characters")));
        }
        systems.retain(|text| !text.trim().is_empty());
        wishes::refuse_what_cannot_be(&body)?;
        Ok(Self {
            actor: body.text(&["actor"])?,
            model: model(body.text(&["model"])?)?,
            session,
            settings: wishes::settings(&body)?,
            system_prompt: (!systems.is_empty()).then(|| systems.join("\n\n").into()),
            history,
            prompt,
        })
    }

    /// What goes to the upstream. Earlier messages are told only where the upstream does not remember them (sse.md §2).
    pub(crate) fn into_input(self, upstream_remembers: bool) -> Vec<Part> {
        if upstream_remembers || self.history.is_empty() {
            return self.prompt;
        }
        let mut preamble = String::from("The conversation so far:\n\n");
        let mut attachments = Vec::new();
        for (speaker, parts) in self.history {
            let name = match &speaker {
                Speaker::User => "User",
                Speaker::Assistant => "Assistant",
                Speaker::System => "System",
                Speaker::Other(name) => name,
            };
            preamble.push_str(name);
            preamble.push_str(": ");
            preamble.push_str(&plain_text(&parts));
            preamble.push_str("\n\n");
            attachments.extend(parts.into_iter().filter(|part| !matches!(part, Part::Text(_))));
        }
        preamble.push_str("The user now says:\n\n");
        let mut input = vec![Part::Text(preamble.into())];
        input.extend(attachments);
        input.extend(self.prompt);
        input
    }
}

/// A member under its documented name or an alias; `null` counts as absent.
fn member<'a>(object: &'a Map<String, Value>, name: &str, alias: &str) -> Option<&'a Value> {
    object.get(name).or_else(|| object.get(alias)).filter(|value| !value.is_null())
}

/// A member that is text; empty counts as absent.
fn text_member(object: &Map<String, Value>, name: &str, alias: &str) -> Result<Option<Text>, Refusal> {
    match member(object, name, alias) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(Text::from(&**text)).filter(|text| !text.is_empty())),
        Some(_) => Err(Refusal::Unprocessable(format!("`{name}` must be a string"))),
    }
}

/// A model's name, of sane length.
pub(crate) fn model(model: Option<Text>) -> Result<Option<Text>, Refusal> {
    if model.as_ref().is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
        return Err(Refusal::Unprocessable(format!("`model` must be at most {MAX_MODEL_BYTES} bytes")));
    }
    Ok(model)
}

fn read_message(message: &Value, at: &str) -> Result<(Speaker, Vec<Part>), Refusal> {
    let Value::Object(message) = message else {
        return Err(Refusal::Unprocessable(format!("{at} must be an object with `role` and `content`")));
    };
    let speaker = match text_member(message, "role", "role")?.as_deref() {
        None | Some("user" | "human") => Speaker::User,
        Some("assistant" | "model" | "ai") => Speaker::Assistant,
        Some("system" | "developer") => Speaker::System,
        Some(other) => Speaker::Other(other.to_owned()),
    };
    let mut parts = Vec::new();
    match member(message, "content", "content") {
        Some(Value::String(text)) => parts.push(Part::Text(Text::from(&**text))),
        Some(Value::Array(content)) => {
            for (n, part) in content.iter().enumerate() {
                parts.extend(read_part(part, &format!("{at}.content[{n}]"))?);
            }
        }
        Some(part @ Value::Object(_)) => parts.extend(read_part(part, &format!("{at}.content"))?),
        // What a tool-calling assistant said may be nothing.
        None if speaker != Speaker::User => {}
        _ => return Err(Refusal::Unprocessable(format!("{at}.content must be a string or a list of parts"))),
    }
    Ok((speaker, parts))
}

fn read_part(part: &Value, at: &str) -> Result<Option<Part>, Refusal> {
    let part = match part {
        Value::String(text) => return Ok(Some(Part::Text(Text::from(&**text)))),
        Value::Object(part) => part,
        _ => return Err(Refusal::Unprocessable(format!("{at} must be an object"))),
    };
    let name = ["name", "filename", "file_name", "fileName", "id"].iter().find_map(|name| part.get(*name)?.as_str()).unwrap_or("file");
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
    match kind {
        "text" | "input_text" => match part.get("text") {
            Some(Value::String(text)) => Ok(Some(Part::Text(Text::from(&**text)))),
            _ => Err(Refusal::Unprocessable(format!("{at}: a text part needs `text`"))),
        },
        "image" | "image_url" | "input_image" => match source_url(part, "image/png") {
            Some(url) if is_fetchable(&url) => Ok(Some(Part::Image { url: url.into() })),
            _ => Err(Refusal::Unprocessable(format!("{at}: an image needs a `data:` or web address in `source`, `url` or `image_url`"))),
        },
        "file" | "file_ref" | "input_file" => Ok(Some(match source_url(part, "application/octet-stream") {
            Some(url) => match url.split_once(";base64,") {
                Some((_, data)) => Part::File { name: Text::from(name), data: Text::from(data) },
                None => Part::Text(format!("[file {name}: {url}]").into()),
            },
            None => Part::Text(format!("[file {name}]").into()),
        })),
        // References that only their own engine can follow: what they say in words is kept.
        "context_ref" | "skill_ref" => {
            let text = part.get("text").and_then(Value::as_str).map_or_else(|| format!("[{kind} {name}]"), str::to_owned);
            Ok(Some(Part::Text(text.into())))
        }
        _ => Ok(part.get("text").and_then(Value::as_str).map(|text| Part::Text(Text::from(text)))),
    }
}

/// Where an image or file is, in the many ways that frontends say it; bare base64 becomes a `data:` URL.
fn source_url(part: &Map<String, Value>, default_type: &str) -> Option<String> {
    let text = |value: &Value, names: &[&str]| names.iter().find_map(|name| value.get(*name)?.as_str()).map(str::to_owned);
    let whole = Value::Object(part.clone());
    for place in ["image_url", "imageUrl", "source", "file", "url"] {
        match part.get(place) {
            Some(Value::String(url)) => return Some(url.clone()),
            Some(inner @ Value::Object(_)) => return text(inner, &["url"]).or_else(|| data_url(inner, default_type)),
            _ => {}
        }
    }
    data_url(&whole, default_type)
}

fn data_url(value: &Value, default_type: &str) -> Option<String> {
    let text = |names: &[&str]| names.iter().find_map(|name| value.get(*name)?.as_str());
    let data = text(&["data", "file_data", "content"])?;
    if data.starts_with("data:") {
        return Some(data.to_owned());
    }
    let media_type = text(&["media_type", "mediaType", "mime_type", "mimeType", "MIMEType"]).unwrap_or(default_type);
    Some(format!("data:{media_type};base64,{data}"))
}

fn is_fetchable(url: &str) -> bool {
    ["data:image/", "https://", "http://"]
        .iter()
        .any(|scheme| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

fn plain_text(parts: &[Part]) -> String {
    let words = parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(&**text) } else { None });
    words.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn parsed(body: &str) -> RunRequest {
        RunRequest::parse(body.as_bytes()).unwrap()
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned().into())
    }

    #[test]
    fn the_documented_request_is_read() {
        let request =
            parsed(r#"{"actor":"user-001","model":"gpt-4o","messages":[{"role":"user","content":[{"type":"text","text":"你好"}]}]}"#);
        assert_eq!((request.actor.as_deref(), request.model.as_deref()), (Some("user-001"), Some("gpt-4o")));
        assert_eq!((&request.session, &request.system_prompt), (&None, &None));
        assert_eq!(request.into_input(false), [text("你好")]);
    }

    #[test]
    fn other_spellings_mean_the_same() {
        let request = parsed(
            "\u{feff}{\"sessionId\":\"s\",\"systemPrompt\":\"be brief\",\"appendSystemPrompt\":\"\",\"model\":null,\"odd\":[1e400,{}],
              \"messages\":[{\"role\":\"developer\",\"content\":\"be kind\"},{\"content\":\"whole \\ud83d\\ude00\",\"x\":1}],\"nobody reads\":\"\\ud83d\"}",
        );
        assert_eq!(request.session.as_deref(), Some("s"));
        assert_eq!(request.system_prompt.as_deref(), Some("be brief\n\nbe kind"));
        assert_eq!(request.model, None);
        assert_eq!(request.into_input(false), [text("whole 😀")]);
    }

    #[test]
    fn earlier_messages_are_told_to_who_does_not_remember_them() {
        let body = r#"{"messages":[
            {"role":"user","content":"one"},{"role":"assistant","content":[{"type":"text","text":"two"}]},
            {"role":"tool","content":"three"},{"role":"user","content":"four"},{"role":"assistant","content":"begun"}]}"#;
        assert_eq!(parsed(body).into_input(true), [text("four")]);
        assert_eq!(
            parsed(body).into_input(false),
            [text("The conversation so far:\n\nUser: one\n\nAssistant: two\n\ntool: three\n\nThe user now says:\n\n"), text("four")]
        );
    }

    #[test]
    fn attachments_come_in_every_shape() {
        let image = |part: &str| parsed(&format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#)).into_input(false).remove(0);
        let png = Part::Image { url: "data:image/png;base64,QUJD".into() };
        for part in [
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}}"#,
            r#"{"type":"image","data":"QUJD","mimeType":"image/png"}"#,
            r#"{"type":"image","data":"data:image/png;base64,QUJD"}"#,
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD"}}"#,
            r#"{"type":"image","source":"data:image/png;base64,QUJD"}"#,
        ] {
            assert_eq!(image(part), png, "{part}");
        }
        assert_eq!(image(r#"{"type":"image","url":"https://e.example/a.png"}"#), Part::Image { url: "https://e.example/a.png".into() });
        let file = Part::File { name: "a.txt".into(), data: "QUJD".into() };
        assert_eq!(image(r#"{"type":"file_ref","name":"a.txt","source":"data:text/plain;base64,QUJD"}"#), file);
        assert_eq!(image(r#"{"type":"file","filename":"a.txt","data":"QUJD"}"#), file);
        assert_eq!(image(r#"{"type":"file_ref","id":"f-1"}"#), text("[file f-1]"));
        assert_eq!(image(r#"{"type":"context_ref","text":"see here"}"#), text("see here"));
        assert_eq!(image(r#""bare""#), text("bare"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (body, status, word) in [
            ("", 400, "JSON"),
            ("{", 400, "JSON"),
            ("[]", 400, "object"),
            ("null", 400, "object"),
            ("{}", 422, "`messages` is missing"),
            (r#"{"messages":[]}"#, 422, "at least one"),
            (r#"{"messages":"hi"}"#, 422, "list"),
            (r#"{"messages":[1]}"#, 422, "messages[0]"),
            (r#"{"messages":[{"role":"user"}]}"#, 422, "messages[0].content"),
            (r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#, 422, "messages[0].content[0]"),
            (r#"{"messages":[{"role":"user","content":"  "}]}"#, 422, "empty"),
            (r#"{"messages":[{"role":"assistant","content":"x"}]}"#, 422, "user"),
            (r#"{"messages":[{"role":"user","content":[{"type":"image","url":"file:///etc/passwd"}]}]}"#, 422, "image"),
            (r#"{"model":7,"messages":[{"content":"x"}]}"#, 422, "`model`"),
            (r#"{"session_id":"a\nb","messages":[{"content":"x"}]}"#, 422, "session_id"),
        ] {
            let refusal = RunRequest::parse(body.as_bytes()).unwrap_err();
            assert!(refusal.to_string().contains(word), "{body}: {refusal}");
            assert_eq!(refusal.into_response().status(), status, "{body}");
        }
        let named = |bytes| RunRequest::parse(format!(r#"{{"model":"{}","messages":[{{"content":"x"}}]}}"#, "m".repeat(bytes)).as_bytes());
        assert!(matches!(named(257), Err(Refusal::Unprocessable(why)) if why.contains("`model`")));
        assert_eq!(named(256).unwrap().model.map(|model| model.len()), Some(256));
        assert!(matches!(RunRequest::parse(b"{\"a\":\"\xff\"}"), Err(Refusal::InvalidJson(_))));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(RunRequest::parse(format!("{{\"messages\":{deep}}}").as_bytes()), Err(Refusal::InvalidJson(_))));
        assert!(RunRequest::parse(format!("{{\"odd\":{deep},\"messages\":[{{\"content\":\"x\"}}]}}").as_bytes()).is_ok());
    }
}
