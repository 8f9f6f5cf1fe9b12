//! Builders of the native frames the simulator makes up itself.
//!
//! Members come in the order of the real servers' structs, and `<`, `>`, `&` and the two line separators are escaped as
//! their encoder does (native-ws.md §1.1), so that nothing downstream can come to rely on an easier spelling.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

/// Milliseconds since the epoch, the only time on this wire.
#[expect(clippy::disallowed_methods, reason = "the simulator is a server of its own, and its frames carry its own time")]
pub(crate) fn now_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// A frame's own id: 32 hex digits.
pub(crate) fn frame_id() -> String {
    Uuid::new_v4().simple().to_string()
}

pub(crate) fn encode(frame: &impl Serialize) -> String {
    let plain = serde_json::to_string(frame).unwrap_or_default();
    if !plain.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return plain;
    }
    let mut out = String::with_capacity(plain.len() + 32);
    for c in plain.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

/// What every data frame ends with.
#[derive(Serialize)]
struct Mark<'a> {
    uuid: String,
    session_id: &'a str,
}

impl<'a> Mark<'a> {
    fn of(session_id: &'a str) -> Self {
        Self { uuid: frame_id(), session_id }
    }
}

pub(crate) fn text(session: &str, text: &str) -> String {
    #[derive(Serialize)]
    struct StreamlinedText<'a> {
        r#type: &'a str,
        text: &'a str,
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    encode(&StreamlinedText { r#type: "streamlined_text", text, mark: Mark::of(session) })
}

pub(crate) fn tool_progress(session: &str, tool_use_id: &str, tool_name: &str) -> String {
    #[derive(Serialize)]
    struct ToolProgress<'a> {
        r#type: &'a str,
        tool_use_id: &'a str,
        tool_name: &'a str,
        elapsed_time_seconds: u32,
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    encode(&ToolProgress { r#type: "tool_progress", tool_use_id, tool_name, elapsed_time_seconds: 0, mark: Mark::of(session) })
}

pub(crate) fn tool_use_summary(session: &str, tool_use_id: &str, summary: &str) -> String {
    #[derive(Serialize)]
    struct ToolUseSummary<'a> {
        r#type: &'a str,
        summary: &'a str,
        preceding_tool_use_ids: [&'a str; 1],
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    encode(&ToolUseSummary { r#type: "tool_use_summary", summary, preceding_tool_use_ids: [tool_use_id], mark: Mark::of(session) })
}

/// A tool of a sub-agent, which runs under a tool of the agent.
pub(crate) fn inner_tool_progress(session: &str, tool_use_id: &str, tool_name: &str, parent: &str) -> String {
    data(
        session,
        json!({ "type": "tool_progress", "tool_use_id": tool_use_id, "tool_name": tool_name, "elapsed_time_seconds": 0,
                          "parent_tool_use_id": parent }),
    )
}

/// A data frame of a kind that only the document has; these have no order of members to keep.
pub(crate) fn data(session: &str, mut frame: Value) -> String {
    if let Some(members) = frame.as_object_mut() {
        members.insert("uuid".to_owned(), json!(frame_id()));
        members.insert("session_id".to_owned(), json!(session));
    }
    encode(&frame)
}

pub(crate) fn status(session: &str, permission_mode: &str) -> String {
    data(session, json!({ "type": "system", "subtype": "status", "status": null, "permissionMode": permission_mode }))
}

pub(crate) fn local_command_output(session: &str, content: &str) -> String {
    data(session, json!({ "type": "system", "subtype": "local_command_output", "content": content }))
}

pub(crate) fn elicitation_complete(session: &str, server: &str, elicitation_id: &str) -> String {
    data(
        session,
        json!({ "type": "system", "subtype": "elicitation_complete", "mcp_server_name": server, "elicitation_id": elicitation_id }),
    )
}

/// The last frame of an external command-line agent: no usage, no stop reason (§6.11).
pub(crate) fn external_success(session: &str, duration_ms: u64) -> String {
    data(
        session,
        json!({ "type": "result", "subtype": "success", "duration_ms": duration_ms, "duration_api_ms": duration_ms, "is_error": false,
                "num_turns": 0, "result": "", "stop_reason": null, "total_cost_usd": 0, "usage": {}, "modelUsage": {},
                "permission_denials": [] }),
    )
}

pub(crate) fn compact_started(session: &str, reason: &str, before: u64) -> String {
    encode(&json!({ "type": "biumind.compact_started", "session_id": session, "reason": reason, "tokens_before": before }))
}

pub(crate) fn compact_finished(session: &str, before: u64, after: u64) -> String {
    let saved = i128::from(before) - i128::from(after);
    encode(&json!({ "type": "biumind.compact_finished", "session_id": session, "tokens_before": before, "tokens_after": after,
                    "tokens_saved": i64::try_from(saved).unwrap_or_default() }))
}

/// Tokens of one run, in the shape of `result.usage`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    pub(crate) cache_creation_input_tokens: u64,
    pub(crate) cache_read_input_tokens: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl Usage {
    /// Dollars, at the price of the model the servers default to.
    pub(crate) fn cost(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a price, not an account")]
        let micro = (self.input_tokens * 3 + self.output_tokens * 15) as f64;
        micro / 1_000_000.0
    }
}

/// The members of a successful `result` that are not fixed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Success<'a> {
    pub(crate) duration_ms: u64,
    pub(crate) num_turns: u64,
    pub(crate) result: &'a str,
    pub(crate) stop_reason: &'a str,
    pub(crate) usage: Usage,
    /// Filled: `total_cost_usd` and `modelUsage` too, as the document shows them; today's servers leave both empty (§6.6).
    pub(crate) model: Option<&'a str>,
}

pub(crate) fn success(session: &str, success: &Success<'_>) -> String {
    #[derive(Serialize)]
    struct ResultSuccess<'a> {
        r#type: &'a str,
        subtype: &'a str,
        duration_ms: u64,
        duration_api_ms: u64,
        is_error: bool,
        num_turns: u64,
        result: &'a str,
        stop_reason: &'a str,
        total_cost_usd: Value,
        usage: Usage,
        #[serde(rename = "modelUsage")]
        model_usage: Value,
        permission_denials: [(); 0],
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    let usage = success.usage;
    let (cost, model_usage) = match success.model {
        None => (json!(0), json!({})),
        Some(model) => (
            json!(usage.cost()),
            json!({ model: {
                "inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens,
                "cacheReadInputTokens": 0, "cacheCreationInputTokens": 0, "webSearchRequests": 0,
                "costUSD": usage.cost(), "contextWindow": 200_000, "maxOutputTokens": 8192,
            }}),
        ),
    };
    encode(&ResultSuccess {
        r#type: "result",
        subtype: "success",
        duration_ms: success.duration_ms,
        duration_api_ms: success.duration_ms,
        is_error: false,
        num_turns: success.num_turns,
        result: success.result,
        stop_reason: success.stop_reason,
        total_cost_usd: cost,
        usage,
        model_usage,
        permission_denials: [],
        mark: Mark::of(session),
    })
}

pub(crate) fn error(session: &str, message: &str, recoverable: bool) -> String {
    #[derive(Serialize)]
    struct Cause<'a> {
        message: &'a str,
        recoverable: bool,
    }
    #[derive(Serialize)]
    struct ResultError<'a> {
        r#type: &'a str,
        subtype: &'a str,
        duration_ms: u64,
        duration_api_ms: u64,
        is_error: bool,
        num_turns: u64,
        total_cost_usd: u64,
        usage: Value,
        #[serde(rename = "modelUsage")]
        model_usage: Value,
        permission_denials: [(); 0],
        errors: [Cause<'a>; 1],
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    encode(&ResultError {
        r#type: "result",
        subtype: "error_during_execution",
        duration_ms: 0,
        duration_api_ms: 0,
        is_error: true,
        num_turns: 0,
        total_cost_usd: 0,
        usage: json!({}),
        model_usage: json!({}),
        permission_denials: [],
        errors: [Cause { message, recoverable }],
        mark: Mark::of(session),
    })
}

/// The `assistant` snapshot that the document puts before `result`.
pub(crate) fn assistant(session: &str, model: &str, content: &[Value]) -> String {
    #[derive(Serialize)]
    struct Message<'a> {
        role: &'a str,
        id: String,
        model: &'a str,
        content: &'a [Value],
        stop_reason: &'a str,
    }
    #[derive(Serialize)]
    struct Assistant<'a> {
        r#type: &'a str,
        message: Message<'a>,
        parent_tool_use_id: Option<&'a str>,
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    encode(&Assistant {
        r#type: "assistant",
        message: Message { role: "assistant", id: format!("msg_{}", frame_id()), model, content, stop_reason: "end_turn" },
        parent_tool_use_id: None,
        mark: Mark::of(session),
    })
}

pub(crate) fn can_use_tool(request_id: &str, request: &PermissionRequest<'_>) -> String {
    #[derive(Serialize)]
    struct ControlRequest<'a> {
        r#type: &'a str,
        request_id: &'a str,
        request: &'a PermissionRequest<'a>,
    }
    encode(&ControlRequest { r#type: "control_request", request_id, request })
}

/// The inner request of `can_use_tool`.
#[derive(Serialize)]
pub(crate) struct PermissionRequest<'a> {
    pub(crate) subtype: &'static str,
    pub(crate) tool_name: &'a str,
    pub(crate) input: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision_reason: Option<&'a str>,
    pub(crate) tool_use_id: &'a str,
    /// In the schema; today's servers do not send it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permission_suggestions: Option<Value>,
    /// What else the schema has: `title`, `display_name`, `description`, `blocked_path`, `agent_id`.
    #[serde(flatten)]
    pub(crate) more: serde_json::Map<String, Value>,
}

pub(crate) fn elicitation(request_id: &str, elicitation_id: &str, message: &str, schema: &Value) -> String {
    #[derive(Serialize)]
    struct Elicitation<'a> {
        subtype: &'a str,
        mcp_server_name: &'a str,
        message: &'a str,
        mode: &'a str,
        elicitation_id: &'a str,
        requested_schema: &'a Value,
    }
    #[derive(Serialize)]
    struct ControlRequest<'a> {
        r#type: &'a str,
        request_id: &'a str,
        request: Elicitation<'a>,
    }
    encode(&ControlRequest {
        r#type: "control_request",
        request_id,
        request: Elicitation {
            subtype: "elicitation",
            mcp_server_name: "deploy",
            message,
            mode: "form",
            elicitation_id,
            requested_schema: schema,
        },
    })
}

/// A link for the user to open.
pub(crate) fn link(request_id: &str, elicitation_id: &str, message: &str, url: &str) -> String {
    encode(&json!({ "type": "control_request", "request_id": request_id, "request": {
        "subtype": "elicitation", "mcp_server_name": "github", "message": message, "mode": "url", "url": url,
        "elicitation_id": elicitation_id,
    }}))
}

pub(crate) fn form_answer(session: &str, request_id: &str, elicitation_id: &str, action: &str, content: Option<&Value>) -> String {
    #[derive(Serialize)]
    struct FormAnswer<'a> {
        r#type: &'a str,
        subtype: &'a str,
        request_id: &'a str,
        elicitation_id: &'a str,
        action: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<&'a Value>,
        #[serde(flatten)]
        mark: Mark<'a>,
    }
    encode(&FormAnswer { r#type: "system", subtype: "form_answer", request_id, elicitation_id, action, content, mark: Mark::of(session) })
}

/// An end-of-turn sentinel of the bridge (§4.3).
pub(crate) fn keep_alive() -> String {
    format!(r#"{{"type":"keep_alive","ts":{}}}"#, now_ms())
}

/// `biumind.session_desynced`, with its keys in alphabetical order as on the wire (§3.3).
pub(crate) fn session_desynced(session: &str, since: u64, first: u64) -> String {
    #[derive(Serialize)]
    struct Desynced<'a> {
        final_result_url: String,
        reason: String,
        session_id: &'a str,
        since_seq: u64,
        r#type: &'a str,
    }
    encode(&Desynced {
        final_result_url: format!("/v1/agent/sessions/{session}/result"),
        reason: format!("requested seq {since} before stream first seq {first}"),
        session_id: session,
        since_seq: since,
        r#type: "biumind.session_desynced",
    })
}

pub(crate) fn session_paused(session: &str, reason: &str) -> String {
    format!(r#"{{"type":"biumind.session_paused","session_id":"{session}","reason":"{reason}"}}"#)
}

pub(crate) fn session_resumed(session: &str, since_seq: u64) -> String {
    format!(r#"{{"type":"biumind.session_resumed","session_id":"{session}","since_seq":{since_seq}}}"#)
}

pub(crate) fn control_success(request_id: &str, response: Option<Value>) -> String {
    #[derive(Serialize)]
    struct Inner<'a> {
        subtype: &'a str,
        request_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<Value>,
    }
    #[derive(Serialize)]
    struct ControlResponse<'a> {
        r#type: &'a str,
        response: Inner<'a>,
    }
    encode(&ControlResponse { r#type: "control_response", response: Inner { subtype: "success", request_id, response } })
}

pub(crate) fn control_error(request_id: &str, error: &str) -> String {
    #[derive(Serialize)]
    struct Inner<'a> {
        subtype: &'a str,
        request_id: &'a str,
        error: &'a str,
    }
    #[derive(Serialize)]
    struct ControlResponse<'a> {
        r#type: &'a str,
        response: Inner<'a>,
    }
    encode(&ControlResponse { r#type: "control_response", response: Inner { subtype: "error", request_id, error } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_the_servers_order_and_marks_are_escaped() {
        let frame = text("s1", "<think>\n a & b\u{2028}");
        assert!(frame.starts_with(r#"{"type":"streamlined_text","text":"\u003cthink\u003e\n a \u0026 b\u2028","uuid":""#));
        assert!(frame.ends_with(r#"","session_id":"s1"}"#));
        let value: Value = serde_json::from_str(&frame).unwrap();
        assert_eq!(value["text"], "<think>\n a & b\u{2028}");
        assert_eq!(value["uuid"].as_str().unwrap().len(), 32);
    }

    #[test]
    fn result_shapes_match_the_catalogue() {
        let ok: Value = serde_json::from_str(&success("s", &Success { stop_reason: "end_turn", ..Success::default() })).unwrap();
        assert_eq!(ok["is_error"], false);
        assert_eq!(ok["modelUsage"], json!({}));
        assert_eq!(ok["permission_denials"], json!([]));
        let bad: Value = serde_json::from_str(&error("s", "529: Overloaded", true)).unwrap();
        assert_eq!(bad["errors"], json!([{"message": "529: Overloaded", "recoverable": true}]));
        assert!(bad.get("result").is_none());
    }

    #[test]
    fn desynced_has_alphabetical_keys() {
        assert_eq!(
            session_desynced("x", 5, 191),
            r#"{"final_result_url":"/v1/agent/sessions/x/result","reason":"requested seq 5 before stream first seq 191","session_id":"x","since_seq":5,"type":"biumind.session_desynced"}"#
        );
    }
}
