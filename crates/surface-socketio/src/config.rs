//! `[socketio]`: every choice of this surface, with its default.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{HeadlessResult, Options, PatchFormat, PauseStatus};

/// The section `[socketio]` of the config file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What a `turn:patch` carries: `hybrid` the documented patch and the turn's snapshot, `delta` the patch alone, `sync` the snapshot alone.
    pub patch_format: PatchFormat,
    /// Whether thinking patches fill `text_delta`, too. Readers that append every `text_delta` then show reasoning in the answer.
    pub thinking_delta: bool,
    /// `chat:end.status` when a question pauses the chat: `completed` as documented, or `paused` as newer servers send it.
    pub pause_status: PauseStatus,
    /// `chat:end.result` of headless runs: `docs`, `sdk`, or the `superset` of both.
    pub headless_result: HeadlessResult,
    /// `context_window` of every turn, in tokens.
    pub context_window: u64,
    /// Milliseconds between two snapshots of a turn while its text grows.
    pub snapshot_ms: u64,
    /// Bytes up to which a turn is shown whole every time; a larger one when it has grown by a sixteenth.
    pub snapshot_bytes: usize,
    /// The longest tool result in bytes that events tell whole. Of a longer one they tell the beginning, and the REST path that has all of it.
    pub max_result_bytes: usize,
    /// Milliseconds between two batches of `turn:events` to one socket, at least.
    pub raw_batch_ms: u64,
    /// Whether `GET …/messages?explain=1` tells which messages of the upstream, and which rules, caused each event of a turn.
    pub explain: bool,
    /// Milliseconds between two heartbeats.
    pub ping_interval_ms: u64,
    /// Milliseconds in which a client has to answer a heartbeat.
    pub ping_timeout_ms: u64,
    /// Milliseconds in which a client has to connect to the namespace.
    pub connect_timeout_ms: u64,
    /// The largest message a client may send, in bytes. A larger one is refused in its acknowledgement; beyond twice as much the connection ends.
    pub max_message_bytes: usize,
    /// Messages of one socket that may wait to be handled.
    pub max_inbox: usize,
    /// Packets of one socket that may wait to be sent. What comes after waits in the session, where it costs nothing.
    pub max_outbox: usize,
    /// Bytes of one socket that may wait to be sent; a longer packet waits alone.
    pub max_outbox_bytes: usize,
    /// Sessions that one socket may be subscribed to.
    pub max_subscriptions: usize,
    /// The largest REST body in bytes.
    pub max_body_bytes: usize,
    /// Milliseconds in which a REST body has to arrive.
    pub body_timeout_ms: u64,
    /// A token in the query (`token`): `loopback` takes it where the server listens on loopback only, `always`, `never`.
    pub query_token: QueryToken,
    /// The cookie in which pages of known origins may bring a token; empty for none.
    pub token_cookie: String,
    /// Origins that browser pages may come from: exact ones, `loopback` for all of this machine's, `*` for all. The program fills it from `[cors]`.
    #[serde(skip)]
    pub origins: Vec<String>,
    /// Whether the server listens on loopback only. The program fills it from `[server]`.
    #[serde(skip)]
    pub on_loopback: bool,
}

/// Whether a token may stand in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueryToken {
    /// Where the server listens on loopback only.
    Loopback,
    /// Everywhere. URLs end up in logs and histories of whatever stands between.
    Always,
    /// Nowhere.
    Never,
}

/// Takes what concerns the mapping from one structure into another that has the same keys, and maybe more: their names stand here once.
macro_rules! with_options {
    ($from:expr => $into:ident { $($more:tt)* }) => {{
        let from = $from;
        $into {
            patch_format: from.patch_format,
            thinking_delta: from.thinking_delta,
            pause_status: from.pause_status,
            headless_result: from.headless_result,
            context_window: from.context_window,
            snapshot_ms: from.snapshot_ms,
            snapshot_bytes: from.snapshot_bytes,
            max_result_bytes: from.max_result_bytes,
            $($more)*
        }
    }};
}

impl Default for Config {
    fn default() -> Self {
        with_options!(Options::default() => Self {
            raw_batch_ms: 200,
            explain: false,
            ping_interval_ms: 25_000,
            ping_timeout_ms: 20_000,
            connect_timeout_ms: 45_000,
            max_message_bytes: 32 << 20,
            max_inbox: 256,
            max_outbox: 64,
            max_outbox_bytes: 64 * 1024,
            max_subscriptions: 256,
            max_body_bytes: 1 << 20,
            body_timeout_ms: 30_000,
            query_token: QueryToken::Loopback,
            token_cookie: "blade_token".to_owned(),
            origins: vec!["loopback".to_owned()],
            on_loopback: false,
        })
    }
}

impl Config {
    /// What of it concerns the mapping.
    #[must_use]
    pub fn options(&self) -> Options {
        with_options!(self => Options {})
    }

    pub(crate) fn ping_interval(&self) -> Duration {
        Duration::from_millis(self.ping_interval_ms)
    }

    pub(crate) fn ping_timeout(&self) -> Duration {
        Duration::from_millis(self.ping_timeout_ms)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// What the transports take at all: enough for a message to arrive that is then refused in words.
    pub(crate) fn transport_bytes(&self) -> usize {
        self.max_message_bytes.saturating_mul(2).max(1 << 20)
    }

    pub(crate) fn takes_query_token(&self) -> bool {
        match self.query_token {
            QueryToken::Loopback => self.on_loopback,
            QueryToken::Always => true,
            QueryToken::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_is_the_default_and_unknown_keys_are_errors() {
        assert_eq!(serde_json::from_str::<Config>("{}").unwrap(), Config::default());
        let config: Config = serde_json::from_str(r#"{"patch_format":"sync","pause_status":"paused","headless_result":"docs"}"#).unwrap();
        assert_eq!((config.options().patch_format, config.pause_status), (PatchFormat::Sync, PauseStatus::Paused));
        assert!(serde_json::from_str::<Config>(r#"{"patches":1}"#).is_err());
    }
}
