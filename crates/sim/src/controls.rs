//! Replies to a client's `control_request`s, on both servers and in both voices.
//!
//! Today's bridge interrupts, refuses everything else it knows and is silent about the rest; today's cloud ignores them all
//! (native-ws.md §4.5, §3.4). The documented voice answers with the payloads of §5.2, and what was set has an effect.

use serde_json::{Map, Value, json};

use crate::{
    frames,
    inbound::{ControlRequest, Inner},
    settings::Settings,
};

/// What a control request does.
#[derive(Default)]
pub(crate) struct Effect {
    /// The `control_response`, unless the server is silent.
    pub(crate) reply: Option<String>,
    /// A data frame that tells everybody what changed.
    pub(crate) news: Option<String>,
    /// True if the turn is interrupted.
    pub(crate) interrupts: bool,
}

/// The session a request came to.
pub(crate) struct Target<'a> {
    pub(crate) session: &'a str,
    pub(crate) settings: &'a Settings,
    /// The model of the session, if none was set.
    pub(crate) model: &'a str,
    /// Whether a turn goes on.
    pub(crate) running: bool,
}

/// What today's bridge does (§4.5).
pub(crate) fn observed(request: &ControlRequest, running: bool) -> Effect {
    let id = &request.request_id;
    let subtype = &*request.request.subtype;
    match subtype {
        "interrupt" | "cancel_async_message" => cancelling(request, running),
        "set_model" => Effect::error(id, "set_model not supported by biu bridge; recreate session with desired model"),
        _ if KNOWN.contains(&subtype) => Effect::error(id, &format!("control subtype {subtype:?} not implemented")),
        _ => Effect::default(),
    }
}

/// The subtypes beside `interrupt`, `cancel_async_message` and `set_model` (§5.2).
const KNOWN: [&str; 18] = [
    "initialize",
    "can_use_tool",
    "set_permission_mode",
    "set_max_thinking_tokens",
    "mcp_status",
    "mcp_message",
    "mcp_set_servers",
    "mcp_reconnect",
    "mcp_toggle",
    "get_context_usage",
    "hook_callback",
    "rewind_files",
    "seed_read_state",
    "reload_plugins",
    "stop_task",
    "apply_flag_settings",
    "get_settings",
    "elicitation",
];

/// What the document promises (§5.2).
pub(crate) fn documented(request: &ControlRequest, target: &Target<'_>) -> Effect {
    let id = &request.request_id;
    let Inner { subtype, fields } = &request.request;
    let settings = target.settings;
    let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    match &**subtype {
        "interrupt" | "cancel_async_message" => cancelling(request, target.running),
        // These go the other way.
        "can_use_tool" | "elicitation" | "hook_callback" => Effect::error(id, &format!("control subtype {subtype:?} not implemented")),
        "initialize" => Effect::success(
            id,
            Some(json!({
                "commands": [], "agents": [], "output_style": "default", "model": settings.model().as_deref().unwrap_or(target.model),
                "permissionMode": settings.mode(),
            })),
        ),
        "set_model" => {
            settings.set_model(text("model"));
            Effect::success(id, None)
        }
        "set_permission_mode" => match text("mode").and_then(|mode| settings.set_mode(mode)) {
            Some(mode) => Effect { news: Some(frames::status(target.session, mode)), ..Effect::success(id, None) },
            None => Effect::error(id, &format!("unknown permission mode {:?}", text("mode").unwrap_or_default())),
        },
        "set_max_thinking_tokens" => {
            settings.set_thinking(fields.get("max_thinking_tokens").and_then(Value::as_u64));
            Effect::success(id, None)
        }
        "mcp_status" => Effect::success(id, Some(json!({ "mcpServers": [{ "name": "deploy", "status": "connected" }] }))),
        "get_context_usage" => Effect::success(id, Some(settings.context_usage())),
        "rewind_files" => rewind(id, target.session, fields),
        "reload_plugins" => {
            Effect::success(id, Some(json!({ "error_count": 0, "commands": [], "agents": [], "plugins": [], "mcpServers": [] })))
        }
        "stop_task" => match text("task_id") {
            Some(task) if settings.stop_task(task) => Effect::success(id, None),
            task => Effect::error(id, &format!("no task {:?}", task.unwrap_or_default())),
        },
        "apply_flag_settings" => {
            settings.set_flags(fields.get("settings").and_then(Value::as_object).cloned().unwrap_or_default());
            Effect::success(id, None)
        }
        "get_settings" => Effect::success(id, Some(settings.all(target.model))),
        "mcp_message" | "mcp_set_servers" | "mcp_reconnect" | "mcp_toggle" | "seed_read_state" => Effect::success(id, None),
        _ => Effect::default(),
    }
}

/// The requests that work everywhere: both mean the whole turn, whatever they name.
fn cancelling(request: &ControlRequest, running: bool) -> Effect {
    let id = &request.request_id;
    if request.request.subtype == "cancel_async_message" {
        return Effect { interrupts: running, ..Effect::success(id, Some(json!({ "cancelled": running }))) };
    }
    if running { Effect { interrupts: true, ..Effect::success(id, None) } } else { Effect::error(id, "no turn in progress") }
}

/// There is a checkpoint for every message but those whose id begins with `unknown`. A rewind that is no trial is told to everybody.
fn rewind(id: &str, session: &str, fields: &Map<String, Value>) -> Effect {
    let message = fields.get("user_message_id").and_then(Value::as_str).unwrap_or_default();
    if message.is_empty() || message.starts_with("unknown") {
        return Effect::success(id, Some(json!({ "canRewind": false, "error": format!("no checkpoint for message {message:?}") })));
    }
    let trial = fields.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
    let news = (!trial).then(|| frames::local_command_output(session, &format!("Rewound 2 files to message {message}.")));
    Effect { news, ..Effect::success(id, Some(json!({ "canRewind": true, "filesChanged": 2, "insertions": 7, "deletions": 3 }))) }
}

impl Effect {
    fn success(id: &str, payload: Option<Value>) -> Self {
        Self { reply: Some(frames::control_success(id, payload)), ..Self::default() }
    }

    fn error(id: &str, message: &str) -> Self {
        Self { reply: Some(frames::control_error(id, message)), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(inner: &Value) -> ControlRequest {
        serde_json::from_value(json!({ "request_id": "r", "request": inner })).unwrap()
    }

    fn answer(inner: &Value, settings: &Settings) -> (Value, Option<Value>) {
        let target = Target { session: "s", settings, model: "m", running: true };
        let effect = documented(&request(inner), &target);
        let parse = |frame: String| serde_json::from_str::<Value>(&frame).unwrap();
        (parse(effect.reply.unwrap())["response"].clone(), effect.news.map(parse))
    }

    #[test]
    fn the_documented_payloads_have_what_they_must_have() {
        let settings = Settings::default();
        let payload = |subtype: &str| {
            let (reply, _) = answer(&json!({ "subtype": subtype }), &settings);
            assert_eq!(reply["subtype"], "success", "{subtype}");
            reply["response"].clone()
        };
        assert!(payload("get_context_usage")["totalTokens"].is_u64());
        assert!(payload("get_settings")["effective"].is_object());
        assert_eq!(payload("reload_plugins")["error_count"], 0);
        assert_eq!(payload("cancel_async_message")["cancelled"], true);
        assert_eq!(payload("set_max_thinking_tokens"), Value::Null);
        let (reply, news) = answer(&json!({ "subtype": "rewind_files", "user_message_id": "u", "dry_run": true }), &settings);
        assert_eq!((&reply["response"]["canRewind"], news), (&json!(true), None));
        let (_, news) = answer(&json!({ "subtype": "rewind_files", "user_message_id": "u" }), &settings);
        assert_eq!(news.unwrap()["content"], "Rewound 2 files to message u.");
        let (reply, _) = answer(&json!({ "subtype": "rewind_files", "user_message_id": "unknown-1" }), &settings);
        assert_eq!(reply["response"]["canRewind"], false);
    }

    #[test]
    fn modes_are_told_to_everybody_and_unknown_ones_are_refused() {
        let settings = Settings::default();
        let (reply, news) = answer(&json!({ "subtype": "set_permission_mode", "mode": "plan" }), &settings);
        assert_eq!((&reply["subtype"], &news.unwrap()["permissionMode"]), (&json!("success"), &json!("plan")));
        let (reply, _) = answer(&json!({ "subtype": "set_permission_mode", "mode": "yolo" }), &settings);
        assert_eq!(reply["error"], "unknown permission mode \"yolo\"");
        let (reply, _) = answer(&json!({ "subtype": "stop_task", "task_id": "t" }), &settings);
        assert_eq!(reply["error"], "no task \"t\"");
    }

    #[test]
    fn todays_bridge_implements_two() {
        for subtype in KNOWN {
            let reply = observed(&request(&json!({ "subtype": subtype })), true).reply.unwrap();
            let frame: Value = serde_json::from_str(&reply).unwrap();
            assert_eq!(frame["response"]["error"], format!("control subtype \"{subtype}\" not implemented"));
        }
        assert!(observed(&request(&json!({ "subtype": "unheard_of" })), true).reply.is_none());
        assert!(observed(&request(&json!({ "subtype": "interrupt" })), true).interrupts);
        assert!(observed(&request(&json!({ "subtype": "interrupt" })), false).reply.unwrap().contains("no turn in progress"));
    }
}
