//! Frames: what the native protocol sends, told apart in two steps and left as they came (native-ws.md §5).
//!
//! First `type` decides the plane, then a second member the kind: `subtype` for `system` and for requests, `is_error` for
//! `result`, `isReplay` for `user`. A view borrows from the frame's text; the text itself is the truth and travels untouched.

use std::borrow::Cow;

use interline_model::Text;

use crate::object::{Malformed, Object, is_truthy};
use crate::string;

mod code;
mod control;
mod data;
mod kind;
mod lifecycle;
mod view;

pub use code::*;
pub use control::*;
pub use data::*;
pub use kind::FrameKind;
pub use lifecycle::*;

/// One frame.
#[derive(Clone, Debug)]
pub enum Frame<'a> {
    /// What is said and done in a run.
    Data(Data<'a>),
    /// Requests, answers, stopping.
    Control(Control<'a>),
    /// The session and its connection.
    Lifecycle(Lifecycle<'a>),
    /// The bridge's code plane.
    Code(Code<'a>),
    /// A kind that the protocol does not name yet.
    Unknown(Object<'a>),
}

impl<'a> Frame<'a> {
    /// Reads the text of one message.
    ///
    /// # Errors
    /// [`Malformed`] if it is not one JSON object. Every object is a frame, if only an unknown one.
    pub fn parse(text: &'a Text) -> Result<Self, Malformed> {
        let object = Object::parse(text)?;
        let Some(kind) = object.cow("type") else { return Ok(Self::Unknown(object)) };
        let object = match Data::discriminate(&kind, object) {
            Ok(data) => return Ok(Self::Data(data)),
            Err(object) => object,
        };
        let object = match Control::discriminate(&kind, object) {
            Ok(control) => return Ok(Self::Control(control)),
            Err(object) => object,
        };
        let object = match Lifecycle::read(&kind, "", object) {
            Ok(lifecycle) => return Ok(Self::Lifecycle(lifecycle)),
            Err(object) => object,
        };
        Ok(Code::read(&kind, "", object).map_or_else(Self::Unknown, Self::Code))
    }

    /// All members.
    #[must_use]
    pub fn object(&self) -> &Object<'a> {
        match self {
            Self::Data(data) => data.object(),
            Self::Control(control) => control.object(),
            Self::Lifecycle(lifecycle) => lifecycle.object(),
            Self::Code(code) => code.object(),
            Self::Unknown(object) => object,
        }
    }

    /// `type`, or `type/subtype` where there is a second step; `unknown` for an object without a `type`.
    #[must_use]
    pub fn name(&self) -> Text {
        let subtype = match self {
            Self::Data(Data::ResultSuccess(_) | Data::ResultError(_)) => self.object().cow("subtype"),
            Self::Data(data) => return Text::from_static(data.name()),
            Self::Control(Control::Request(request)) => match request.request() {
                Some(request) => return Text::from_static(request.name()),
                None => request.subtype(),
            },
            Self::Control(Control::Response(response)) => response.body().cow("subtype"),
            Self::Control(Control::Cancel(_)) => return Text::from_static("control_cancel_request"),
            Self::Lifecycle(lifecycle) => return Text::from_static(lifecycle.name()),
            Self::Code(code) => return Text::from_static(code.name()),
            Self::Unknown(object) => object.cow("subtype"),
        };
        match (self.object().cow("type"), subtype) {
            (Some(kind), Some(subtype)) => Text::from(format!("{kind}/{subtype}")),
            (Some(kind), None) => Text::from(kind.as_ref()),
            (None, _) => Text::from_static("unknown"),
        }
    }

    /// What tells a repeat from a new frame: `uuid`, else the `request_id` of a request (decision 13). `None` for frames that
    /// carry neither; nothing but their content tells those apart.
    #[must_use]
    pub fn key(&self) -> Option<Key<'a>> {
        let object = self.object();
        let member = |name| {
            let raw = object.raw(name).filter(|raw| is_truthy(raw))?;
            Some(string::cow(raw).unwrap_or(Cow::Borrowed(raw.get())))
        };
        member("uuid").map(Key::Uuid).or_else(|| match self {
            Self::Control(Control::Request(_)) => member("request_id").map(Key::Request),
            _ => None,
        })
    }
}

/// What tells a repeat of a frame from a new one. The two kinds of id are given out by different hands, so that one of each may
/// read the same and still name two frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// The frame's own id.
    Uuid(Cow<'a, str>),
    /// The id of the request in it.
    Request(Cow<'a, str>),
}

impl Key<'_> {
    /// The id as text, which does not tell the kinds apart.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Uuid(id) | Self::Request(id) => id,
        }
    }

    /// The same key without the frame.
    #[must_use]
    pub fn into_owned(self) -> Key<'static> {
        match self {
            Self::Uuid(id) => Key::Uuid(Cow::Owned(id.into_owned())),
            Self::Request(id) => Key::Request(Cow::Owned(id.into_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_and_key(text: &str) -> (String, Option<String>) {
        let text = Text::from(text);
        let frame = Frame::parse(&text).unwrap();
        (frame.name().to_string(), frame.key().map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn what_is_unknown_is_kept_and_named() {
        for (text, name) in [
            (r#"{"type":"streamlined_audio","data":1e400}"#, "streamlined_audio"),
            (r#"{"type":"system","subtype":"thinking_tokens"}"#, "system/thinking_tokens"),
            (r#"{"type":"system"}"#, "system"),
            (r#"{"type":"control_request","request_id":"a","request":{"subtype":"new"}}"#, "control_request/new"),
            (r#"{"type":"control_request","request_id":"a"}"#, "control_request"),
            (r#"{"type":"control_request","request_id":"a","request":null}"#, "control_request"),
            (r#"{"type":7}"#, "unknown"),
            (r#"{}"#, "unknown"),
            (r#"{"type":"result","subtype":"error_max_turns","is_error":false}"#, "result/error_max_turns"),
            (r#"{"type":"result"}"#, "result"),
            (r#"{"type":"user","isReplay":true}"#, "user/replay"),
            (r#"{"type":"keep_alive","type":"streamlined_text"}"#, "streamlined_text"),
        ] {
            assert_eq!(name_and_key(text).0, name, "{text}");
        }
    }

    #[test]
    fn a_result_is_told_by_is_error_and_never_by_its_subtype() {
        let text = Text::from_static(r#"{"type":"result","subtype":"success","is_error":true}"#);
        assert!(matches!(Frame::parse(&text), Ok(Frame::Data(Data::ResultError(_)))));
        let text = Text::from_static(r#"{"type":"result","subtype":"error_x","is_error":false}"#);
        assert!(matches!(Frame::parse(&text), Ok(Frame::Data(Data::ResultSuccess(_)))));
    }

    #[test]
    fn a_uuid_and_a_request_id_that_read_the_same_are_two_keys() {
        let frame = Text::from_static(r#"{"type":"x","uuid":"1"}"#);
        let request = Text::from_static(r#"{"type":"control_request","request_id":"1","request":{"subtype":"x"}}"#);
        let (uuid, request) = (Frame::parse(&frame).unwrap().key().unwrap(), Frame::parse(&request).unwrap().key().unwrap());
        assert_eq!((&uuid, &request), (&Key::Uuid("1".into()), &Key::Request("1".into())));
        assert_ne!(uuid, request.into_owned());
    }

    #[test]
    fn keys() {
        for (text, key) in [
            (r#"{"type":"x","uuid":"u1"}"#, Some("u1")),
            (r#"{"type":"x","uuid":"","request_id":"r"}"#, None),
            (r#"{"type":"control_request","request_id":"r","request":{"subtype":"x"}}"#, Some("r")),
            (r#"{"type":"control_request","request_id":"r","request":{"subtype":"x"},"uuid":"u"}"#, Some("u")),
            (r#"{"type":"control_cancel_request","request_id":"r"}"#, None),
            (r#"{"type":"keep_alive"}"#, None),
            (r#"{"type":"x","uuid":17}"#, Some("17")),
        ] {
            assert_eq!(name_and_key(text).1.as_deref(), key, "{text}");
        }
    }
}
