//! What a request for a run wants besides its input: settings that the agent server can make, and members that nobody behind a proxy can
//! honour (sse.md §2).
//!
//! A wish that would only add something (`tags`, `skill_hints`, `metadata`) or whose matter the route decides (`agent_id`, `provider_name`) is
//! passed over like an unknown member. One that would hold the agent back, or lead it elsewhere, is refused: a run without it is not what
//! was asked for.

use interline_hub::{Environment, EnvironmentError, Settings};
use interline_model::Text;
use serde_json::Value;

use crate::error::Refusal;
use crate::members::Members;

/// What is to hold for the run.
pub(crate) fn settings(body: &Members<'_>) -> Result<Settings, Refusal> {
    Ok(Settings {
        permission_mode: match body.text(&["permission_mode", "permissionMode", "mode"])? {
            Some(word) => Some(permission_mode(&word)?),
            None => None,
        },
        thinking_tokens: match body.text(&["thinking_level", "thinkingLevel"])? {
            Some(word) => Some(thinking_tokens(&word)?),
            None => None,
        },
        environment: environment(body)?,
        ..Settings::default()
    })
}

/// How many tokens the model may think. A budget has to stay below what a model may write at a time, which is 32,000 and 64,000 tokens for
/// those that think: hence the odd numbers.
pub(crate) fn thinking_tokens(level: &str) -> Result<u32, Refusal> {
    match &*level.trim().to_ascii_lowercase() {
        "low" => Ok(4_000),
        "medium" => Ok(10_000),
        "high" => Ok(31_999),
        "max" => Ok(63_999),
        _ => Err(Refusal::Unprocessable("`thinking_level` must be low, medium, high or max".to_owned())),
    }
}

/// The native name of a permission mode.
pub(crate) fn permission_mode(word: &str) -> Result<Text, Refusal> {
    Ok(Text::from_static(match &*word.trim().to_ascii_lowercase().replace(['_', '-', ' '], "") {
        "plan" | "planning" => "plan",
        "default" | "executing" | "execute" => "default",
        "acceptedits" => "acceptEdits",
        "dontask" => "dontAsk",
        // It would also pass by the policies of the deployment.
        "bypasspermissions" => return Err(Refusal::Forbidden("no client may have permissions passed over".to_owned())),
        _ => return Err(Refusal::Unprocessable("`mode` must be planning, executing, plan, default, acceptEdits or dontAsk".to_owned())),
    }))
}

fn environment(body: &Members<'_>) -> Result<Environment, Refusal> {
    let unfit = |why: String| Err(Refusal::Unprocessable(why));
    let variables = match body.value(&["runtime_env", "runtimeEnv", "env"])? {
        None => return Ok(Environment::default()),
        Some(Value::Object(variables)) => variables,
        Some(_) => return unfit("`runtime_env` must be an object of names and texts".to_owned()),
    };
    let mut texts = Vec::with_capacity(variables.len());
    for (name, value) in variables {
        let value = match value {
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return unfit(format!("`runtime_env`: {name} must be a text")),
        };
        texts.push((name, value));
    }
    Environment::checked(texts).map_err(|error| {
        let sentence = format!("`runtime_env`: {error}");
        match error {
            EnvironmentError::Harmful(_) => Refusal::Forbidden(sentence),
            EnvironmentError::TooMany | EnvironmentError::Name | EnvironmentError::Value(_) => Refusal::Unprocessable(sentence),
        }
    })
}

/// Refuses the documented wishes without which the run would be another one, and that cannot be had behind a proxy.
pub(crate) fn refuse_what_cannot_be(body: &Members<'_>) -> Result<(), Refusal> {
    const WISHES: [(&[&str], &str); 12] = [
        (&["tools"], "which tools there are"),
        (&["tool_allow", "toolAllow"], "which tools there are"),
        (&["tool_deny", "toolDeny"], "which tools there are"),
        (&["host_tool_allow", "hostToolAllow"], "which tools there are"),
        (&["primary_root", "primaryRoot"], "where the agent works"),
        (&["allow_paths", "allowPaths"], "where the agent works"),
        (&["resume"], "that an interrupted run goes on"),
        (&["timeout_seconds", "timeoutSeconds"], "how long a run may take"),
        (&["task_budget", "taskBudget"], "what a run may cost"),
        (&["max_token_estimate", "maxTokenEstimate"], "what a run may cost"),
        (&["cycle_detect_override", "cycleDetectOverride"], "how loops are found"),
        (&["media_files", "mediaFiles"], "files by reference; send them as parts of a message"),
    ];
    for (names, what) in WISHES {
        let wanted = match body.raw(names)?.map(|raw| raw.get().trim()) {
            None | Some("false" | "\"\"" | "0") => false,
            Some(raw) => !matches!((raw.as_bytes().first(), raw.trim_matches(['[', ']', '{', '}']).trim()), (Some(b'[' | b'{'), "")),
        };
        if wanted {
            let name = names.first().unwrap_or(&"");
            return Err(Refusal::Unsupported(format!("`{name}`: a client cannot say {what}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Settings, Refusal> {
        let members = Members::parse(body.as_bytes())?;
        refuse_what_cannot_be(&members)?;
        settings(&members)
    }

    #[test]
    fn modes_thinking_and_variables_are_settings() {
        for (word, mode) in [
            ("planning", "plan"),
            ("plan", "plan"),
            ("executing", "default"),
            ("default", "default"),
            ("acceptEdits", "acceptEdits"),
            ("accept_edits", "acceptEdits"),
            ("dontAsk", "dontAsk"),
        ] {
            for member in ["mode", "permission_mode", "permissionMode"] {
                let settings = read(&format!(r#"{{"{member}":"{word}"}}"#)).unwrap();
                assert_eq!(settings.permission_mode.as_deref(), Some(mode), "{member} {word}");
            }
        }
        for (level, tokens) in [("low", 4_000), ("medium", 10_000), ("high", 31_999), ("max", 63_999)] {
            for member in ["thinking_level", "thinkingLevel"] {
                assert_eq!(read(&format!(r#"{{"{member}":"{level}"}}"#)).unwrap().thinking_tokens, Some(tokens));
            }
        }
        for member in ["runtime_env", "runtimeEnv", "env"] {
            let settings = read(&format!(r#"{{"{member}":{{"RUST_LOG":"debug","n":1}}}}"#)).unwrap();
            assert_eq!(settings.environment.0, [("RUST_LOG".into(), "debug".into()), ("n".into(), "1".into())].into());
        }
        assert_eq!(read(r#"{"mode":null,"thinking_level":"","env":{}}"#).unwrap(), Settings::default());
    }

    #[test]
    fn what_is_not_a_clients_to_say_is_refused_by_kind() {
        for (body, expected) in [
            (r#"{"mode":"agent"}"#, 422),
            (r#"{"mode":1}"#, 422),
            (r#"{"permission_mode":"bypassPermissions"}"#, 403),
            (r#"{"thinking_level":"enormous"}"#, 422),
            (r#"{"env":[]}"#, 422),
            (r#"{"env":{"A B":"x"}}"#, 422),
            (r#"{"env":{"A":{}}}"#, 422),
            (r#"{"env":{"A":"\u0000"}}"#, 422),
            (r#"{"env":{"A":"\ud83d"}}"#, 400),
            (r#"{"env":{"PATH":"/tmp"}}"#, 403),
            (r#"{"env":{"Path":"/tmp"}}"#, 403),
            (r#"{"env":{"LD_PRELOAD":"x"}}"#, 403),
            (r#"{"env":{"ANTHROPIC_BASE_URL":"x"}}"#, 403),
            (r#"{"env":{"https_proxy":"x"}}"#, 403),
            (r#"{"tool_deny":["Bash"]}"#, 501),
            (r#"{"toolAllow":["Bash"]}"#, 501),
            (r#"{"primary_root":"/"}"#, 501),
            (r#"{"allow_paths":["/"]}"#, 501),
            (r#"{"resume":true}"#, 501),
            (r#"{"timeout_seconds":5}"#, 501),
        ] {
            assert_eq!(read(body).unwrap_err().status(), expected, "{body}");
        }
    }

    #[test]
    fn what_is_empty_or_only_adds_something_is_passed_over() {
        for body in [
            r#"{"tools":[],"tool_deny":null,"allow_paths":[ ],"resume":false,"primary_root":"","task_budget":0}"#,
            r#"{"tags":["a"],"metadata":{"a":1},"skill_hints":["x"],"agent_id":"a","provider_name":"p","active_domains":["x"]}"#,
        ] {
            assert_eq!(read(body).unwrap(), Settings::default());
        }
    }
}
