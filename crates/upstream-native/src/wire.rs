//! Actions on the connection of a run: as control requests, which servers answer, or as messages, which nothing answers.
//!
//! Today's servers know few of them: bridges refuse all but the interrupt, and cloud planes are silent (native-ws.md §3.4, §4.5).

use interline_hub::{Action, ActionError, Wire};
use interline_model::{Json, Text, write_json_string};
use interline_native::frame::Control;
use interline_native::{Frame, build};

/// How an action is said there; `None` if it is none of these.
pub(crate) fn wire(action: &Action) -> Option<Wire> {
    let request = |subtype: &str, members: &[(&str, String)]| {
        let members: Vec<(&str, &str)> = members.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Some(Wire::Request(build::request_body(subtype, &members)))
    };
    match action {
        Action::Request(body) => Some(Wire::Request(body.clone())),
        Action::ContextUsage => request("get_context_usage", &[]),
        Action::SetModel(model) => request("set_model", &[("model", quoted(model))]),
        Action::SetPermissionMode(mode) => request("set_permission_mode", &[("mode", quoted(mode))]),
        Action::SetThinkingTokens(tokens) => {
            let tokens = tokens.map_or_else(|| "null".to_owned(), |tokens| tokens.to_string());
            request("set_max_thinking_tokens", &[("max_thinking_tokens", tokens)])
        }
        Action::SetEnvironment(environment) => {
            let variables = environment.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()));
            Some(Wire::Message(build::environment(variables)))
        }
        Action::StopTask(task) => request("stop_task", &[("task_id", quoted(task))]),
        Action::Rewind { message, dry_run } => {
            request("rewind_files", &[("user_message_id", quoted(message)), ("dry_run", dry_run.to_string())])
        }
        Action::Compact | Action::Cost | Action::Upload(_) | Action::Resume => None,
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::new();
    write_json_string(&mut out, text);
    out
}

/// The reply to a request of ours in this message: the request's id, and what it comes to.
pub(crate) fn reply_in(message: &Text) -> Option<(Text, Result<Json, ActionError>)> {
    let Ok(Frame::Control(Control::Response(response))) = Frame::parse(message) else { return None };
    let id = response.request_id()?;
    let body = response.body();
    if body.cow("subtype").as_deref() == Some("error") {
        let message = body.str("error").map_or_else(|| "the agent server refused, and gave no reason".to_owned(), |text| text.to_string());
        return Some((id, Err(ActionError::Refused { status: None, message })));
    }
    Some((id, Ok(body.json("response").map_or_else(Json::empty_object, Json::into_object))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use interline_hub::Environment;

    use super::*;

    fn said(action: &Action) -> String {
        match wire(action) {
            Some(Wire::Request(body)) => build::request("r", &body).to_string(),
            Some(Wire::Message(text)) => text.to_string(),
            None => String::new(),
        }
    }

    #[test]
    fn actions_are_the_protocols_requests() {
        let request = |body: &str| format!(r#"{{"type":"control_request","request_id":"r","request":{{{body}}}}}"#);
        for (action, body) in [
            (Action::ContextUsage, r#""subtype":"get_context_usage""#),
            (Action::SetModel("a\"b".into()), r#""subtype":"set_model","model":"a\"b""#),
            (Action::SetPermissionMode("plan".into()), r#""subtype":"set_permission_mode","mode":"plan""#),
            (Action::SetThinkingTokens(Some(7)), r#""subtype":"set_max_thinking_tokens","max_thinking_tokens":7"#),
            (Action::SetThinkingTokens(None), r#""subtype":"set_max_thinking_tokens","max_thinking_tokens":null"#),
            (Action::StopTask("bg-1".into()), r#""subtype":"stop_task","task_id":"bg-1""#),
            (Action::Rewind { message: "m".into(), dry_run: true }, r#""subtype":"rewind_files","user_message_id":"m","dry_run":true"#),
        ] {
            assert_eq!(said(&action), request(body));
        }
        let environment = Environment(BTreeMap::from([(Text::from("A"), Text::from("1"))]));
        assert_eq!(said(&Action::SetEnvironment(environment)), r#"{"type":"update_environment_variables","variables":{"A":"1"}}"#);
        assert_eq!(said(&Action::Cost), "");
    }

    #[test]
    fn replies_are_told_from_everything_else() {
        let reply = |text: &'static str| reply_in(&Text::from_static(text));
        let good = r#"{"type":"control_response","response":{"subtype":"success","request_id":"r","response":{"totalTokens":1}}}"#;
        let (id, body) = reply(good).unwrap();
        assert_eq!((&*id, body.unwrap().as_str()), ("r", r#"{"totalTokens":1}"#));
        let bare = r#"{"type":"control_response","response":{"subtype":"success","request_id":"r"}}"#;
        assert_eq!(reply(bare).unwrap().1.unwrap().as_str(), "{}");
        let bad = r#"{"type":"control_response","response":{"subtype":"error","request_id":"r","error":"no"}}"#;
        assert_eq!(reply(bad).unwrap().1, Err(ActionError::Refused { status: None, message: "no".to_owned() }));
        for other in ["null", "{}", r#"{"type":"control_response"}"#, r#"{"type":"control_request","request_id":"r","request":{}}"#] {
            assert!(reply(other).is_none(), "{other}");
        }
    }
}
