//! What a client has set on a session, for the agent to obey and for `get_settings` to show.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::locked;

/// The permission modes there are (native-ws.md §5.2).
const MODES: [&str; 5] = ["default", "acceptEdits", "bypassPermissions", "plan", "dontAsk"];

/// Tokens of the system prompt and the messages before anybody has said anything.
const SYSTEM_TOKENS: u64 = 3_100;
const MESSAGE_TOKENS: u64 = 12_130;

/// Tokens the messages have after a compaction.
const COMPACTED_TOKENS: u64 = 1_200;

#[derive(Default)]
pub(crate) struct Settings {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    model: Option<String>,
    mode: Option<&'static str>,
    thinking: Option<u64>,
    environment: BTreeMap<String, String>,
    flags: Map<String, Value>,
    /// Tools that a client has allowed for good.
    allowed: Vec<String>,
    /// Background tasks that run.
    tasks: HashMap<String, CancellationToken>,
    compacted: bool,
}

impl Settings {
    pub(crate) fn set_model(&self, model: Option<&str>) {
        locked(&self.inner).model = model.map(str::to_owned);
    }

    pub(crate) fn model(&self) -> Option<String> {
        locked(&self.inner).model.clone()
    }

    /// Sets the permission mode; `None` if there is no such mode.
    pub(crate) fn set_mode(&self, mode: &str) -> Option<&'static str> {
        let mode = MODES.into_iter().find(|known| *known == mode)?;
        locked(&self.inner).mode = Some(mode);
        Some(mode)
    }

    pub(crate) fn mode(&self) -> &'static str {
        locked(&self.inner).mode.unwrap_or("default")
    }

    pub(crate) fn set_thinking(&self, tokens: Option<u64>) {
        locked(&self.inner).thinking = tokens;
    }

    pub(crate) fn set_environment(&self, variables: BTreeMap<String, String>) {
        locked(&self.inner).environment.extend(variables);
    }

    pub(crate) fn set_flags(&self, flags: Map<String, Value>) {
        locked(&self.inner).flags.extend(flags);
    }

    /// Keeps the tools that a `PermissionUpdate` list allows; what comes out is the mode it sets, if it does.
    pub(crate) fn update_permissions(&self, updates: &Value) -> Option<&'static str> {
        let mut mode = None;
        for update in updates.as_array().into_iter().flatten() {
            match update["type"].as_str() {
                Some("addRules" | "replaceRules") if update["behavior"] == "allow" => {
                    let tools = update["rules"].as_array().into_iter().flatten().filter_map(|rule| rule["toolName"].as_str());
                    let tools: Vec<String> = tools.map(str::to_owned).collect();
                    locked(&self.inner).allowed.extend(tools);
                }
                Some("setMode") => mode = update["mode"].as_str().and_then(|mode| self.set_mode(mode)).or(mode),
                _ => {}
            }
        }
        mode
    }

    pub(crate) fn allows(&self, tool: &str) -> bool {
        let inner = locked(&self.inner);
        inner.mode == Some("bypassPermissions") || inner.allowed.iter().any(|allowed| allowed == tool)
    }

    pub(crate) fn begin_task(&self, id: &str) -> CancellationToken {
        let stop = CancellationToken::new();
        locked(&self.inner).tasks.insert(id.to_owned(), stop.clone());
        stop
    }

    pub(crate) fn end_task(&self, id: &str) {
        locked(&self.inner).tasks.remove(id);
    }

    /// Stops a background task; false if there is none of that id.
    pub(crate) fn stop_task(&self, id: &str) -> bool {
        let task = locked(&self.inner).tasks.remove(id);
        task.map(|task| task.cancel()).is_some()
    }

    pub(crate) fn compact(&self) {
        locked(&self.inner).compacted = true;
    }

    /// Tokens in the context.
    pub(crate) fn context(&self) -> u64 {
        SYSTEM_TOKENS + self.messages()
    }

    fn messages(&self) -> u64 {
        if locked(&self.inner).compacted { COMPACTED_TOKENS } else { MESSAGE_TOKENS }
    }

    /// The payload of `get_context_usage`.
    pub(crate) fn context_usage(&self) -> Value {
        json!({
            "totalTokens": self.context(), "maxTokens": 200_000,
            "categories": [
                { "name": "System prompt", "tokens": SYSTEM_TOKENS, "color": "#5B5BD6" },
                { "name": "Messages", "tokens": self.messages(), "color": "#12A594" },
            ],
            "gridRows": [], "memoryFiles": [], "mcpTools": [], "agents": [], "skills": [], "messageBreakdown": {}, "apiUsage": {},
        })
    }

    /// The payload of `get_settings`.
    pub(crate) fn all(&self, model: &str) -> Value {
        let inner = locked(&self.inner);
        let mut effective = Map::new();
        effective.insert("model".into(), json!(inner.model.as_deref().unwrap_or(model)));
        effective.insert("permissionMode".into(), json!(inner.mode.unwrap_or("default")));
        effective.insert("maxThinkingTokens".into(), json!(inner.thinking));
        effective.insert("env".into(), json!(inner.environment));
        effective.extend(inner.flags.clone());
        let set = |name: &str| match name {
            "model" => inner.model.is_some(),
            "permissionMode" => inner.mode.is_some(),
            "maxThinkingTokens" => inner.thinking.is_some(),
            "env" => !inner.environment.is_empty(),
            _ => true,
        };
        let applied: Map<String, Value> =
            effective.keys().map(|name| (name.clone(), json!(if set(name) { "flag" } else { "userSettings" }))).collect();
        let flags: Map<String, Value> = effective.iter().filter(|(name, _)| set(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
        json!({ "effective": effective, "sources": { "userSettings": {}, "flag": flags }, "applied": applied })
    }

    /// Everything in a sentence, for an agent that says what it was told.
    pub(crate) fn sentence(&self, model: &str) -> String {
        let inner = locked(&self.inner);
        let thinking = inner.thinking.map_or_else(|| "unset".to_owned(), |tokens| tokens.to_string());
        let mut variables: Vec<String> = inner.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if variables.is_empty() {
            variables.push("none".to_owned());
        }
        let (model, mode) = (inner.model.as_deref().unwrap_or(model), inner.mode.unwrap_or("default"));
        format!("Settings: model {model}, mode {mode}, thinking {thinking}, environment {}. ", variables.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_shown() {
        let settings = Settings::default();
        assert_eq!(settings.sentence("m"), "Settings: model m, mode default, thinking unset, environment none. ");
        settings.set_model(Some("claude-opus-4-1"));
        assert_eq!(settings.set_mode("plan"), Some("plan"));
        assert_eq!(settings.set_mode("yolo"), None);
        settings.set_thinking(Some(0));
        settings.set_environment(BTreeMap::from([("B".to_owned(), "2".to_owned()), ("A".to_owned(), "1".to_owned())]));
        assert_eq!(settings.sentence("m"), "Settings: model claude-opus-4-1, mode plan, thinking 0, environment A=1 B=2. ");
        let all = settings.all("m");
        assert_eq!((&all["effective"]["model"], &all["applied"]["model"]), (&json!("claude-opus-4-1"), &json!("flag")));
        assert_eq!(all["sources"]["flag"]["env"], json!({ "A": "1", "B": "2" }));
    }

    #[test]
    fn permission_updates_allow_tools_and_set_the_mode() {
        let settings = Settings::default();
        let updates = json!([
            { "type": "addRules", "rules": [{ "toolName": "Bash" }], "behavior": "allow", "destination": "session" },
            { "type": "addRules", "rules": [{ "toolName": "Write" }], "behavior": "deny", "destination": "session" },
            { "type": "setMode", "mode": "acceptEdits", "destination": "session" }, 7,
        ]);
        assert_eq!(settings.update_permissions(&updates), Some("acceptEdits"));
        assert!(settings.allows("Bash") && !settings.allows("Write"));
        assert_eq!(settings.update_permissions(&json!("nonsense")), None);
    }

    #[test]
    fn tasks_are_stopped_once_and_a_compaction_frees_tokens() {
        let settings = Settings::default();
        let task = settings.begin_task("t");
        assert!(settings.stop_task("t") && task.is_cancelled());
        assert!(!settings.stop_task("t"));
        let before = settings.context();
        settings.compact();
        assert!(settings.context_usage()["totalTokens"].as_u64().unwrap() < before);
    }
}
