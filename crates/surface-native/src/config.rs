//! `[native]`: which access surfaces there are, and their timers and bounds (decision 30).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[native]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Offer the cloud access surface, `/v1/agent/sessions`.
    pub cloud: bool,
    /// Offer the bridge access surface, `/v1/code/sessions`.
    pub bridge: bool,
    /// Offer the coding channel, `/v1/code/ws`: a terminal on the machine of a bridge, for everybody who may use its cell.
    pub coding_channel: bool,
    /// Milliseconds between two pings.
    pub ping_interval_ms: u64,
    /// Milliseconds without a pong until a socket is cut.
    pub pong_timeout_ms: u64,
    /// Milliseconds that the client may take nothing of what waits for it; then the socket is cut.
    pub write_timeout_ms: u64,
    /// Milliseconds that the client has to answer a close.
    pub close_timeout_ms: u64,
    /// Milliseconds that a session token of the cloud surface opens streams.
    pub session_token_ms: u64,
    /// How many session tokens one principal may have; the oldest goes first.
    pub max_session_tokens: usize,
    /// Milliseconds that a new message of the bridge surface waits for the turn it replaces to end. Longer than `run.stop_grace_ms`.
    pub replace_timeout_ms: u64,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Bytes of an attachment's upload.
    pub max_upload: usize,
    /// Requests of one socket that may wait for the upstream's reply.
    pub max_requests: usize,
    /// Bytes of a message that a client of the cloud surface sends.
    pub max_cloud_message: usize,
    /// Bytes of a message that a client of the bridge surface sends.
    pub max_bridge_message: usize,
    /// Bytes of frames that may wait to be written to a socket. A frame longer than half of that goes out in fragments.
    pub max_write_buffer: usize,
    /// Origins that browser pages may come from: exact ones, `loopback` for all of this machine's, `*` for all. The program fills it from `[cors]`.
    #[serde(skip)]
    pub origins: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cloud: true,
            bridge: true,
            coding_channel: false,
            // Less than the thirty seconds after which many balancers cut what is silent.
            ping_interval_ms: 25_000,
            pong_timeout_ms: 60_000,
            write_timeout_ms: 10_000,
            close_timeout_ms: 1_000,
            session_token_ms: 1_800_000,
            max_session_tokens: 10_000,
            replace_timeout_ms: 10_000,
            max_body: 20 * 1024 * 1024,
            max_upload: 50 * 1024 * 1024,
            max_requests: 8,
            max_cloud_message: 32_768,
            max_bridge_message: 1024 * 1024,
            max_write_buffer: 64 * 1024,
            origins: vec!["loopback".to_owned()],
        }
    }
}

impl Config {
    pub(crate) fn ping_interval(&self) -> Duration {
        // A timer of zero would spin.
        Duration::from_millis(self.ping_interval_ms.max(1))
    }

    pub(crate) fn pong_timeout(&self) -> Duration {
        Duration::from_millis(self.pong_timeout_ms)
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.write_timeout_ms)
    }

    pub(crate) fn close_timeout(&self) -> Duration {
        Duration::from_millis(self.close_timeout_ms)
    }

    pub(crate) fn replace_timeout(&self) -> Duration {
        Duration::from_millis(self.replace_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_left_out_is_its_default_and_a_wrong_one_is_refused() {
        let config: Config = serde_json::from_str(r#"{"max_cloud_message":1024}"#).unwrap();
        assert_eq!(config, Config { max_cloud_message: 1024, ..Config::default() });
        assert!(serde_json::from_str::<Config>(r#"{"max_cloud_mesage":1024}"#).is_err());
    }
}
