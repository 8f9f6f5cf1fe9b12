//! What kind of message a client sent.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) enum Kind {
    /// `control_request`, if it has what one must have.
    Request(ControlRequest),
    /// `control_response`.
    Response,
    /// `update_environment_variables`.
    Environment(BTreeMap<String, String>),
    /// `control_cancel_request`.
    CancelRequest,
    /// A control frame without what it must have: it gets no reply at all (native-ws.md §4.5).
    Malformed,
    /// JSON of another type.
    Other,
    /// No JSON object.
    Nonsense,
}

impl Kind {
    pub(crate) const fn is_control(&self) -> bool {
        matches!(self, Self::Request(_) | Self::Response | Self::CancelRequest | Self::Malformed)
    }
}

#[derive(Deserialize)]
pub(crate) struct ControlRequest {
    pub(crate) request_id: String,
    pub(crate) request: Inner,
}

#[derive(Deserialize)]
pub(crate) struct Inner {
    pub(crate) subtype: String,
    /// Whatever else the request has.
    #[serde(flatten)]
    pub(crate) fields: Map<String, Value>,
}

#[derive(Deserialize)]
struct Environment {
    variables: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
}

pub(crate) fn kind(text: &str) -> Kind {
    let Ok(Typed { r#type }) = serde_json::from_str(text) else { return Kind::Nonsense };
    match &*r#type {
        "control_request" => serde_json::from_str(text).map_or(Kind::Malformed, Kind::Request),
        "control_response" => Kind::Response,
        "control_cancel_request" => Kind::CancelRequest,
        "update_environment_variables" => {
            serde_json::from_str::<Environment>(text).map_or(Kind::Other, |frame| Kind::Environment(frame.variables))
        }
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        assert!(matches!(kind(r#"{"type":"control_cancel_request","request_id":"c"}"#), Kind::CancelRequest));
        assert!(matches!(kind(r#"{"type":"control_request","request_id":"c"}"#), Kind::Malformed));
        assert!(matches!(kind(r#"{"type":"keep_alive"}"#), Kind::Other));
        let environment = kind(r#"{"type":"update_environment_variables","variables":{"A":"1"}}"#);
        assert!(matches!(environment, Kind::Environment(variables) if variables["A"] == "1"));
        for nonsense in ["", "null", "[]", "{", "{\"type\":1}"] {
            assert!(matches!(kind(nonsense), Kind::Nonsense), "{nonsense}");
        }
        let request = kind(r#"{"type":"control_request","request_id":"i","request":{"subtype":"interrupt"}}"#);
        assert!(matches!(request, Kind::Request(ControlRequest { request: Inner { subtype, .. }, .. }) if subtype == "interrupt"));
    }
}
