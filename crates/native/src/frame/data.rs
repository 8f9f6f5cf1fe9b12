//! The data plane: 28 kinds (native-ws.md §5.1), and `system/form_answer`, which only the vendor names (decision 29).
//!
//! Every one also carries `uuid` and `session_id`, except that a `user` frame may lack them.

use super::view::{plane, views};
use crate::object::Object;

plane! {
    /// A frame of the data plane.
    Data, DataKind {
        /// §5.1 (2): `user` with `isReplay`.
        UserReplay = "user" / "replay";
        /// §5.1 (1).
        User = "user";
        /// §5.1 (3).
        Assistant = "assistant";
        /// §5.1 (4).
        StreamEvent = "stream_event";
        /// §5.1 (5): `result` without `is_error`, whatever its subtype.
        ResultSuccess = "result" / "success";
        /// §5.1 (6): `result` with `is_error`, whatever its subtype.
        ResultError = "result" / "error";
        /// §5.1 (7).
        SystemInit = "system" / "init";
        /// §5.1 (8).
        SystemStatus = "system" / "status";
        /// §5.1 (9).
        CompactBoundary = "system" / "compact_boundary";
        /// §5.1 (10).
        ApiRetry = "system" / "api_retry";
        /// §5.1 (11).
        LocalCommandOutput = "system" / "local_command_output";
        /// §5.1 (12).
        HookStarted = "system" / "hook_started";
        /// §5.1 (13).
        HookProgress = "system" / "hook_progress";
        /// §5.1 (14).
        HookResponse = "system" / "hook_response";
        /// §5.1 (15).
        AuthStatus = "auth_status";
        /// §5.1 (16).
        FilesPersisted = "system" / "files_persisted";
        /// §5.1 (17).
        TaskNotification = "system" / "task_notification";
        /// §5.1 (18).
        TaskStarted = "system" / "task_started";
        /// §5.1 (19).
        TaskProgress = "system" / "task_progress";
        /// §5.1 (20).
        SessionStateChanged = "system" / "session_state_changed";
        /// §5.1 (21).
        RateLimitEvent = "rate_limit_event";
        /// §5.1 (22).
        ElicitationComplete = "system" / "elicitation_complete";
        /// §5.1 (23).
        PromptSuggestion = "prompt_suggestion";
        /// §5.1 (24).
        ToolProgress = "tool_progress";
        /// §5.1 (25).
        ToolUseSummary = "tool_use_summary";
        /// §5.1 (26).
        PostTurnSummary = "system" / "post_turn_summary";
        /// §5.1 (27).
        StreamlinedText = "streamlined_text";
        /// §5.1 (28).
        StreamlinedToolUseSummary = "streamlined_tool_use_summary";
        /// Decision 29.
        FormAnswer = "system" / "form_answer";
    }
}

impl<'a> Data<'a> {
    /// The second step where it is not by `subtype`.
    pub(crate) fn discriminate(kind: &str, object: Object<'a>) -> Result<Self, Object<'a>> {
        match kind {
            "user" if object.truthy("isReplay") => Ok(Self::UserReplay(UserReplay(object))),
            "user" => Ok(Self::User(User(object))),
            // §5: by `is_error`, never by `subtype`; real runtimes send `success` with `is_error: true`.
            "result" if object.truthy("is_error") => Ok(Self::ResultError(ResultError(object))),
            "result" => Ok(Self::ResultSuccess(ResultSuccess(object))),
            "system" => {
                let subtype = object.cow("subtype").unwrap_or_default();
                Self::read(kind, &subtype, object)
            }
            _ => Self::read(kind, "", object),
        }
    }
}

views! {
    /// A user's message, or the results of tools (native-ws.md §5.1 1).
    User {
        object message;
        str parent_tool_use_id;
        bool is_synthetic = "isSynthetic";
        json tool_use_result;
        str priority;
        str uuid;
        str session_id;
    }
    /// A user's message sent back to a client that joins (native-ws.md §5.1 2).
    UserReplay {
        object message;
        str parent_tool_use_id;
        bool is_replay = "isReplay";
        str uuid;
        str session_id;
    }
    /// A message of the model, or the part of it that is finished (native-ws.md §5.1 3).
    Assistant {
        object message;
        str parent_tool_use_id;
        str error;
        str uuid;
        str session_id;
    }
    /// One event of the model provider's stream, as it came (native-ws.md §5.1 4).
    StreamEvent {
        object event;
        str parent_tool_use_id;
        str uuid;
        str session_id;
    }
    /// The end of a run that did not fail (native-ws.md §5.1 5; what is really filled: §6.6).
    ResultSuccess {
        str subtype;
        u64 duration_ms;
        u64 duration_api_ms;
        u64 num_turns;
        str result;
        str stop_reason;
        str terminal_reason;
        json total_cost_usd;
        object usage;
        object model_usage = "modelUsage";
        array permission_denials;
        json structured_output;
        str fast_mode_state;
        str uuid;
        str session_id;
    }
    /// An error that ends a run, or one that is recoverable and does not (native-ws.md §5.1 6, §6.7).
    ResultError {
        str subtype;
        u64 duration_ms;
        u64 duration_api_ms;
        u64 num_turns;
        str result;
        str stop_reason;
        str terminal_reason;
        json total_cost_usd;
        object usage;
        object model_usage = "modelUsage";
        array permission_denials;
        array errors;
        u64 api_error_status;
        str uuid;
        str session_id;
    }
    /// What a session starts with (native-ws.md §5.1 7).
    SystemInit {
        array agents;
        str api_key_source = "apiKeySource";
        array betas;
        str claude_code_version;
        str cwd;
        array tools;
        array mcp_servers;
        str model;
        str permission_mode = "permissionMode";
        array slash_commands;
        str output_style;
        array skills;
        array plugins;
        str uuid;
        str session_id;
    }
    /// What the engine does (native-ws.md §5.1 8).
    SystemStatus {
        str status;
        str permission_mode = "permissionMode";
        str uuid;
        str session_id;
    }
    /// The context was compacted here (native-ws.md §5.1 9).
    CompactBoundary {
        object compact_metadata;
        str uuid;
        str session_id;
    }
    /// A call of the model is tried again (native-ws.md §5.1 10).
    ApiRetry {
        u64 attempt;
        u64 max_retries;
        u64 retry_delay_ms;
        json error_status;
        str error;
        str uuid;
        str session_id;
    }
    /// Output of a command that ran locally (native-ws.md §5.1 11).
    LocalCommandOutput {
        str content;
        str uuid;
        str session_id;
    }
    /// A hook begins (native-ws.md §5.1 12).
    HookStarted {
        str hook_id;
        str hook_name;
        str hook_event;
        str uuid;
        str session_id;
    }
    /// A hook goes on (native-ws.md §5.1 13).
    HookProgress {
        str hook_id;
        str hook_name;
        str hook_event;
        str stdout;
        str stderr;
        str output;
        str uuid;
        str session_id;
    }
    /// A hook is over (native-ws.md §5.1 14).
    HookResponse {
        str hook_id;
        str hook_name;
        str hook_event;
        str outcome;
        json exit_code;
        str stdout;
        str stderr;
        str output;
        str uuid;
        str session_id;
    }
    /// How signing in goes (native-ws.md §5.1 15).
    AuthStatus {
        bool is_authenticating = "isAuthenticating";
        array output;
        str error;
        str uuid;
        str session_id;
    }
    /// Files were stored (native-ws.md §5.1 16).
    FilesPersisted {
        array files;
        array failed;
        u64 processed_at;
        str uuid;
        str session_id;
    }
    /// A background task is over (native-ws.md §5.1 17).
    TaskNotification {
        str task_id;
        str tool_use_id;
        str status;
        str output_file;
        str summary;
        json usage;
        str uuid;
        str session_id;
    }
    /// A background task begins (native-ws.md §5.1 18).
    TaskStarted {
        str task_id;
        str tool_use_id;
        str description;
        str task_type;
        str workflow_name;
        str prompt;
        str uuid;
        str session_id;
    }
    /// A background task goes on (native-ws.md §5.1 19).
    TaskProgress {
        str task_id;
        str last_tool_name;
        str summary;
        str uuid;
        str session_id;
    }
    /// `idle`, `running` or `requires_action` (native-ws.md §5.1 20).
    SessionStateChanged {
        str state;
        str uuid;
        str session_id;
    }
    /// The provider's limit; its object has no defined members (native-ws.md §5.1 21).
    RateLimitEvent {
        object rate_limit_info;
        str uuid;
        str session_id;
    }
    /// A form or link is done with (native-ws.md §5.1 22).
    ElicitationComplete {
        str mcp_server_name;
        str elicitation_id;
        str uuid;
        str session_id;
    }
    /// What the user might ask next (native-ws.md §5.1 23).
    PromptSuggestion {
        str suggestion;
        str uuid;
        str session_id;
    }
    /// A tool call is announced, any number of times (native-ws.md §5.1 24).
    ToolProgress {
        str tool_use_id;
        str tool_name;
        f64 elapsed_time_seconds;
        str parent_tool_use_id;
        str task_id;
        str uuid;
        str session_id;
    }
    /// The result of the named tool calls, whole (native-ws.md §5.1 25).
    ToolUseSummary {
        str summary;
        array preceding_tool_use_ids;
        str parent_tool_use_id;
        str uuid;
        str session_id;
    }
    /// What a run came to, in words (native-ws.md §5.1 26).
    PostTurnSummary {
        str summarizes_uuid;
        str status_category;
        str status_detail;
        bool is_noteworthy;
        str title;
        str description;
        str recent_action;
        bool needs_action;
        array artifact_urls;
        str uuid;
        str session_id;
    }
    /// A piece of the answer, or of reasoning between `<think>` marks (native-ws.md §5.1 27).
    StreamlinedText {
        str text;
        str parent_tool_use_id;
        str uuid;
        str session_id;
    }
    /// What tools did, without saying which (native-ws.md §5.1 28).
    StreamlinedToolUseSummary {
        str tool_summary;
        str uuid;
        str session_id;
    }
    /// A form was answered, `action` `timeout` included (decision 29).
    FormAnswer {
        str request_id;
        str elicitation_id;
        str action;
        json content;
        str uuid;
        str session_id;
    }
}
