//! What frames and request bodies are made of, for changes that mean something.

/// Members, and values to put in their places.
pub struct Vocabulary {
    /// The names of members.
    pub members: &'static [&'static str],
    /// JSON, some of which fits into no tree.
    pub values: &'static [&'static str],
}

/// Every member of a frame that a table of `interline_native` names, and those that are read inside them; values that are hard to keep.
#[rustfmt::skip]
pub const FRAME: Vocabulary = Vocabulary { members: &[
    "action", "agentProgressSummaries", "agent_id", "agents", "answers", "apiKeySource", "api_error_status", "appendSystemPrompt",
    "artifact_urls", "attempt", "betas", "blocked_path", "callback_id", "claude_code_version", "cols", "compact_metadata", "content",
    "content_block", "cwd", "data", "decision_reason", "delta", "description", "display_name", "dry_run", "duration_api_ms", "duration_ms",
    "elapsed_time_seconds", "elicitation_id", "enabled", "error", "error_status", "errors", "event", "exit_code", "failed",
    "fast_mode_state", "files", "final_result_url", "hook_event", "hook_id", "hook_name", "hooks", "id", "index", "input",
    "isAuthenticating", "isReplay", "isSynthetic", "is_error", "is_noteworthy", "jsonSchema", "kind", "last_tool_name", "max_retries",
    "max_thinking_tokens", "mcp_server_name", "mcp_servers", "message", "message_uuid", "method", "mode", "model", "modelUsage", "mtime",
    "name", "needs_action", "num_turns", "ok", "outcome", "output", "output_file", "output_style", "params", "parent_tool_use_id",
    "partial_json", "path", "permissionMode", "permission_denials", "permission_suggestions", "plugins", "preceding_tool_use_ids",
    "primary_replica", "priority", "processed_at", "prompt", "promptSuggestions", "pty_id", "questions", "rate_limit_info", "reason",
    "recent_action", "recoverable", "request", "request_id", "requested_schema", "response", "result", "retry_delay_ms", "rows",
    "sdkMcpServers", "serverName", "server_name", "servers", "session_id", "settings", "since_seq", "skills", "slash_commands", "state",
    "status", "status_category", "status_detail", "stderr", "stdout", "stop_reason", "structured_output", "subtype", "suggestion",
    "summarizes_uuid", "summary", "systemPrompt", "task_id", "task_type", "terminal_reason", "text", "thinking", "title", "tokens_after",
    "tokens_before", "tokens_saved", "tool_name", "tool_summary", "tool_use_id", "tool_use_result", "tools", "total_cost_usd", "ts", "type",
    "ultraplan", "url", "usage", "user_message_id", "uuid", "variables", "workflow_name",
], values: &[
    "null", "true", "false", "0", "-0", "1.0", "1e400", "-1e-400", "12345678901234567890123", "18446744073709551615", r#""""#,
    r#""\ud83d""#, r#""\ude00""#, r#""\u0000""#, "[]", "{}", "[ ]", "{ }", "[{}]", r#"{"a":1,"a":2}"#, "[[[[[[[[[[]]]]]]]]]]",
    r#""<think>x</think>y""#, r#"["t1","t2"]"#, r#"{"":{"\ud800":1e999}}"#,
]};

/// The members that the surfaces read of bodies, and values that mean something there.
#[rustfmt::skip]
pub const BODY: Vocabulary = Vocabulary { members: &[
    "action", "actor", "answers", "appendSystemPrompt", "approved", "askuser_answer", "chat_run_id", "choice", "content", "data",
    "decision", "event_format", "feedback", "grant", "headless", "image_url", "intent", "is_persistent", "message", "messages", "model",
    "name", "output_schema", "prompt_id", "role", "scope", "selected", "session_id", "sessionId", "system_prompt", "template_id", "text",
    "tool_call_id", "type", "updated_arguments", "url", "value", "values",
], values: &[
    r#""user""#, r#""human""#, r#""assistant""#, r#""ai""#, r#""system""#, r#""tool""#, r#""text""#, r#""image_url""#, r#""file""#,
    r#""allow""#, r#""deny""#, r#""session""#, r#""accept""#, r#""decline""#, r#""cancel""#, r#""this""#, r#""form""#, r#""t2""#,
    r#"{"url":"data:image/png;base64,AA=="}"#, r#"["this","now"]"#, r#"{"Which?":["this"]}"#, r#"[{"role":"user","content":"x"}]"#,
]};
