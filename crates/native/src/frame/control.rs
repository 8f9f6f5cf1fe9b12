//! The control plane: 3 frames, and 21 kinds of request inside one of them (native-ws.md §5.2).

use std::borrow::Cow;

use interline_model::{Json, Text};

use super::view::{plane, views};
use crate::object::Object;

/// A control frame.
#[derive(Clone, Debug)]
pub enum Control<'a> {
    /// A request, from either side.
    Request(ControlRequest<'a>),
    /// The answer to one.
    Response(ControlResponse<'a>),
    /// Stop the run (cloud), or take a request back.
    Cancel(ControlCancel<'a>),
}

impl<'a> Control<'a> {
    pub(crate) fn discriminate(kind: &str, object: Object<'a>) -> Result<Self, Object<'a>> {
        match kind {
            "control_request" => match object.object("request") {
                Some(request) => {
                    let subtype = request.cow("subtype").unwrap_or_default();
                    let request = Request::read("control_request", &subtype, request).map_err(Box::new);
                    Ok(Self::Request(ControlRequest { object, request }))
                }
                None => Err(object),
            },
            "control_response" => match object.object("response") {
                Some(response) => Ok(Self::Response(ControlResponse { object, response })),
                None => Err(object),
            },
            "control_cancel_request" => Ok(Self::Cancel(ControlCancel(object))),
            _ => Err(object),
        }
    }

    /// All members.
    #[must_use]
    pub fn object(&self) -> &Object<'a> {
        match self {
            Self::Request(request) => &request.object,
            Self::Response(response) => &response.object,
            Self::Cancel(cancel) => &cancel.0,
        }
    }
}

/// A request, from either side (native-ws.md §5.2).
#[derive(Clone, Debug)]
pub struct ControlRequest<'a> {
    object: Object<'a>,
    request: Result<Request<'a>, Box<Object<'a>>>,
}

impl<'a> ControlRequest<'a> {
    /// All members of the frame.
    #[must_use]
    pub fn object(&self) -> &Object<'a> {
        &self.object
    }

    /// Member `request_id`.
    #[must_use]
    pub fn request_id(&self) -> Option<Text> {
        self.object.str("request_id")
    }

    /// What is asked; `None` for a subtype that the protocol does not name.
    #[must_use]
    pub fn request(&self) -> Option<&Request<'a>> {
        self.request.as_ref().ok()
    }

    /// All members of `request`.
    #[must_use]
    pub fn body(&self) -> &Object<'a> {
        match &self.request {
            Ok(request) => request.object(),
            Err(object) => object,
        }
    }

    /// The request's `subtype`, known or not.
    #[must_use]
    pub fn subtype(&self) -> Option<Cow<'a, str>> {
        self.body().cow("subtype")
    }
}

/// The answer to a request (native-ws.md §5.2).
#[derive(Clone, Debug)]
pub struct ControlResponse<'a> {
    object: Object<'a>,
    response: Object<'a>,
}

impl<'a> ControlResponse<'a> {
    /// All members of the frame.
    #[must_use]
    pub fn object(&self) -> &Object<'a> {
        &self.object
    }

    /// All members of `response`.
    #[must_use]
    pub fn body(&self) -> &Object<'a> {
        &self.response
    }

    /// `permission_response` or `elicitation_response`, where the sender says it.
    #[must_use]
    pub fn kind(&self) -> Option<Text> {
        self.object.str("kind")
    }

    /// Which request it answers.
    #[must_use]
    pub fn request_id(&self) -> Option<Text> {
        self.response.str("request_id")
    }

    /// The payload of a success.
    #[must_use]
    pub fn response(&self) -> Option<Json> {
        self.response.json("response")
    }

    /// The message of an error; `None` for a success.
    #[must_use]
    pub fn error(&self) -> Option<Text> {
        (self.response.cow("subtype").as_deref() == Some("error")).then(|| self.response.str("error").unwrap_or_default())
    }
}

/// Stops the run on the cloud plane, whatever its id (native-ws.md §3.4, §5.2).
#[derive(Clone, Debug)]
pub struct ControlCancel<'a>(Object<'a>);

impl<'a> ControlCancel<'a> {
    /// All members.
    #[must_use]
    pub fn object(&self) -> &Object<'a> {
        &self.0
    }

    /// Member `request_id`.
    #[must_use]
    pub fn request_id(&self) -> Option<Text> {
        self.0.str("request_id")
    }
}

plane! {
    /// What a `control_request` asks for.
    Request, RequestKind {
        /// Client to server.
        Initialize = "control_request" / "initialize";
        /// Client to server.
        Interrupt = "control_request" / "interrupt";
        /// Server to client: may this tool run?
        CanUseTool = "control_request" / "can_use_tool";
        /// Client to server.
        SetModel = "control_request" / "set_model";
        /// Client to server.
        SetPermissionMode = "control_request" / "set_permission_mode";
        /// Client to server.
        SetMaxThinkingTokens = "control_request" / "set_max_thinking_tokens";
        /// Client to server.
        McpStatus = "control_request" / "mcp_status";
        /// Both ways.
        McpMessage = "control_request" / "mcp_message";
        /// Client to server.
        McpSetServers = "control_request" / "mcp_set_servers";
        /// Client to server.
        McpReconnect = "control_request" / "mcp_reconnect";
        /// Client to server.
        McpToggle = "control_request" / "mcp_toggle";
        /// Client to server.
        GetContextUsage = "control_request" / "get_context_usage";
        /// Server to client.
        HookCallback = "control_request" / "hook_callback";
        /// Client to server.
        RewindFiles = "control_request" / "rewind_files";
        /// Client to server.
        CancelAsyncMessage = "control_request" / "cancel_async_message";
        /// Client to server.
        SeedReadState = "control_request" / "seed_read_state";
        /// Client to server.
        ReloadPlugins = "control_request" / "reload_plugins";
        /// Client to server.
        StopTask = "control_request" / "stop_task";
        /// Client to server.
        ApplyFlagSettings = "control_request" / "apply_flag_settings";
        /// Client to server.
        GetSettings = "control_request" / "get_settings";
        /// Server to client: a form or a link.
        Elicitation = "control_request" / "elicitation";
    }
}

views! {
    /// Sets a session up (native-ws.md §5.2).
    Initialize {
        object hooks;
        array sdk_mcp_servers = "sdkMcpServers";
        object json_schema = "jsonSchema";
        str system_prompt = "systemPrompt";
        str append_system_prompt = "appendSystemPrompt";
        object agents;
        bool prompt_suggestions = "promptSuggestions";
        bool agent_progress_summaries = "agentProgressSummaries";
    }
    /// Stops the run on the bridge (native-ws.md §5.2).
    Interrupt {}
    /// May this tool run? (native-ws.md §5.2, §6.4)
    CanUseTool {
        str tool_name;
        json input;
        str tool_use_id;
        json permission_suggestions;
        str blocked_path;
        str decision_reason;
        str title;
        str display_name;
        str agent_id;
        str description;
    }
    /// Changes the model (native-ws.md §5.2).
    SetModel {
        str model;
    }
    /// Changes the permission mode (native-ws.md §5.2).
    SetPermissionMode {
        str mode;
        bool ultraplan;
    }
    /// Limits reasoning (native-ws.md §5.2).
    SetMaxThinkingTokens {
        u64 max_thinking_tokens;
    }
    /// Asks for the MCP servers' state (native-ws.md §5.2).
    McpStatus {}
    /// A JSON-RPC message for, or from, an MCP server (native-ws.md §5.2).
    McpMessage {
        str server_name;
        object message;
    }
    /// Replaces the MCP servers (native-ws.md §5.2).
    McpSetServers {
        object servers;
    }
    /// Reconnects an MCP server (native-ws.md §5.2).
    McpReconnect {
        str server_name = "serverName";
    }
    /// Switches an MCP server on or off (native-ws.md §5.2).
    McpToggle {
        str server_name = "serverName";
        bool enabled;
    }
    /// Asks how full the context is (native-ws.md §5.2).
    GetContextUsage {}
    /// Calls a client's hook (native-ws.md §5.2, §5.4).
    HookCallback {
        str callback_id;
        object input;
        str tool_use_id;
    }
    /// Takes files back to an earlier state (native-ws.md §5.2).
    RewindFiles {
        str user_message_id;
        bool dry_run;
    }
    /// Takes a queued message back (native-ws.md §5.2).
    CancelAsyncMessage {
        str message_uuid;
    }
    /// Tells that a file was read before (native-ws.md §5.2).
    SeedReadState {
        str path;
        f64 mtime;
    }
    /// Loads plugins again (native-ws.md §5.2).
    ReloadPlugins {}
    /// Stops a background task (native-ws.md §5.2).
    StopTask {
        str task_id;
    }
    /// Changes settings (native-ws.md §5.2).
    ApplyFlagSettings {
        object settings;
    }
    /// Asks for settings (native-ws.md §5.2).
    GetSettings {}
    /// A form to fill in, or a link to follow (native-ws.md §5.2, §6.5).
    Elicitation {
        str mcp_server_name;
        str message;
        str mode;
        str url;
        str elicitation_id;
        object requested_schema;
    }
}
