//! The code plane: 7 kinds on the bridge's own socket, independent of runs (native-ws.md §5.5).

use super::view::{plane, views};

plane! {
    /// A frame of the code plane.
    Code, CodeKind {
        /// A call.
        CodeRequest = "code_request";
        /// Its answer, in any order.
        CodeResponse = "code_response";
        /// Terminal output.
        CodePtyChunk = "code_pty_chunk";
        /// Terminal input.
        CodePtyInput = "code_pty_input";
        /// A new terminal size.
        CodePtyResize = "code_pty_resize";
        /// A terminal ended.
        CodePtyExit = "code_pty_exit";
        /// An event of a code task.
        CodeSessionEvent = "code_session_event";
    }
}

views! {
    /// A call of one of the bridge's methods (native-ws.md §5.5).
    CodeRequest {
        str request_id;
        str method;
        object params;
    }
    /// The answer to a call (native-ws.md §5.5).
    CodeResponse {
        str request_id;
        bool ok;
        json result;
        str error;
    }
    /// Output of a terminal, Base64 (native-ws.md §5.5).
    CodePtyChunk {
        str pty_id;
        str data;
    }
    /// Input for a terminal, Base64 (native-ws.md §5.5).
    CodePtyInput {
        str pty_id;
        str data;
    }
    /// The size of a terminal (native-ws.md §5.5).
    CodePtyResize {
        str pty_id;
        u64 cols;
        u64 rows;
    }
    /// A terminal ended (native-ws.md §5.5).
    CodePtyExit {
        str pty_id;
        json exit_code;
        str error;
    }
    /// What happens in a code task (native-ws.md §5.5).
    CodeSessionEvent {
        str task_id;
        object event;
    }
}
