//! Lifecycle: 8 kinds, without `uuid` (native-ws.md §5.3).

use super::view::{plane, views};

plane! {
    /// A lifecycle frame.
    Lifecycle, LifecycleKind {
        /// The bridge's end of a stream; a client's heartbeat.
        KeepAlive = "keep_alive";
        /// Client to server only.
        UpdateEnvironmentVariables = "update_environment_variables";
        /// What was asked for is gone.
        SessionDesynced = "biumind.session_desynced";
        /// The session waits.
        SessionPaused = "biumind.session_paused";
        /// It goes on.
        SessionResumed = "biumind.session_resumed";
        /// Another server has it now.
        SessionPrimaryPromoted = "biumind.session_primary_promoted";
        /// The context is being compacted.
        CompactStarted = "biumind.compact_started";
        /// It was compacted.
        CompactFinished = "biumind.compact_finished";
    }
}

views! {
    /// The sentinel that ends a bridge stream, or a heartbeat (native-ws.md §5.3).
    KeepAlive {
        u64 ts;
    }
    /// New variables for the session (native-ws.md §5.3).
    UpdateEnvironmentVariables {
        object variables;
    }
    /// The history asked for was trimmed (native-ws.md §3.3, §5.3).
    SessionDesynced {
        str session_id;
        str final_result_url;
        u64 since_seq;
        str reason;
    }
    /// The session is paused (native-ws.md §5.3).
    SessionPaused {
        str session_id;
        str reason;
    }
    /// The session goes on (native-ws.md §5.3).
    SessionResumed {
        str session_id;
        u64 since_seq;
    }
    /// Another replica took the session over (native-ws.md §5.3).
    SessionPrimaryPromoted {
        str session_id;
        str primary_replica;
    }
    /// Compaction begins (native-ws.md §5.3, §6.9).
    CompactStarted {
        str session_id;
        str reason;
        u64 tokens_before;
    }
    /// Compaction is over (native-ws.md §5.3, §6.9).
    CompactFinished {
        str session_id;
        u64 tokens_before;
        u64 tokens_after;
        json tokens_saved;
    }
}
