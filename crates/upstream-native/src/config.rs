//! What an upstream is in the config file, and the timers and bounds of the links to all of them.

use std::time::Duration;

use interline_hub::Secret;
use serde::{Deserialize, Serialize};

/// Which of the two native servers an upstream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The cloud agent plane: one native session for each run.
    Cloud,
    /// The local bridge: one native session for each session, one socket for each run.
    Bridge,
}

/// The mode of the native sessions on a cloud upstream (decision 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The server itself runs the model; any error ends the run.
    #[default]
    Chat,
    /// A paired device does the work; needs an `environment_id`.
    Agent,
    /// A runtime of the pool does the work.
    Task,
}

impl Mode {
    /// The word that goes over the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Agent => "agent",
            Self::Task => "task",
        }
    }
}

/// One `[[upstream]]`, its credential resolved.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Its name: what routes and error messages call it.
    pub name: String,
    /// Which server it is.
    pub kind: Kind,
    /// Its base address, `http://` or `https://`.
    pub url: String,
    /// The bearer it is given, unless the client brings its own (`passthrough`).
    pub credential: Option<Secret>,
    /// Cloud only: the mode of its sessions.
    pub mode: Mode,
    /// Cloud only: the device that works. The server demands it in `agent` mode.
    pub environment_id: Option<String>,
    /// Cloud only: the directory for tools.
    pub workdir: Option<String>,
    /// Cloud only: narrows the pool of runtimes.
    pub pool_tag: Option<String>,
    /// Cloud only: the provider, where the account has several.
    pub provider_id: Option<String>,
}

/// `[link]`: the timers and bounds of the connections to all native upstreams (decision 30).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkConfig {
    /// Milliseconds for name resolution, TCP, TLS and the WebSocket handshake together.
    pub connect_timeout_ms: u64,
    /// Milliseconds for one HTTP request with its whole reply.
    pub request_timeout_ms: u64,
    /// Bridge: milliseconds for one compaction, which goes to the model, or for one upload, each with its reply.
    pub action_timeout_ms: u64,
    /// Milliseconds that a write may wait for the upstream to read.
    pub write_timeout_ms: u64,
    /// Milliseconds without a single byte until a connection counts as dead. Servers ping every 30 s.
    pub liveness_ms: u64,
    /// Milliseconds before the first reconnection; doubled for each further one, less a random part of up to a half.
    pub backoff_first_ms: u64,
    /// The longest pause between two reconnections, in milliseconds.
    pub backoff_max_ms: u64,
    /// Reconnections without a new frame between them until the run is given up.
    pub attempts: u32,
    /// Cloud: a session token that lives shorter than this, in milliseconds, is renewed before it is used again.
    pub token_refresh_ms: u64,
    /// Cloud: reconnect with `since_seq`, one less than the number of different frames received so far. Servers that replay nothing without it lose nothing with
    /// it; those whose numbers mean something else replay too much, which is lined up, or refuse, and then it is left out.
    pub cursor: bool,
    /// Cloud: fetch the final result when the stream cannot be had any more.
    pub result_fetch: bool,
    /// Milliseconds that a cloud socket stays open after the end of its run.
    pub linger_ms: u64,
    /// Milliseconds that frames wait which come first on a connection that should repeat something first, before they count as new.
    pub replay_wait_ms: u64,
    /// Bridge: milliseconds that a turn may go on after its run has ended, and that a run waits for the turn before it. Then that turn's
    /// session is given up, and a new one begins without its history.
    pub sentinel_wait_ms: u64,
    /// Milliseconds in which an answer that was sent on a lost connection is sent again on the next one.
    pub resend_ms: u64,
    /// The largest message taken from an upstream, in bytes.
    pub max_message_bytes: usize,
    /// The largest HTTP reply taken from an upstream, in bytes; final results count as messages.
    pub max_reply_bytes: usize,
    /// The largest message sent to the cloud plane, in bytes: a larger one would make it close the socket (1009).
    pub cloud_max_outbound: usize,
    /// The largest message sent to a bridge, in bytes.
    pub bridge_max_outbound: usize,
    /// How many answers and passed-on frames wait for a lost connection.
    pub max_pending: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            connect_timeout_ms: 10_000,
            request_timeout_ms: 30_000,
            action_timeout_ms: 300_000,
            write_timeout_ms: 10_000,
            liveness_ms: 75_000,
            backoff_first_ms: 1_000,
            backoff_max_ms: 30_000,
            attempts: 8,
            token_refresh_ms: 300_000,
            cursor: true,
            result_fetch: true,
            linger_ms: 250,
            replay_wait_ms: 250,
            sentinel_wait_ms: 60_000,
            resend_ms: 30_000,
            max_message_bytes: 64 * 1024 * 1024,
            max_reply_bytes: 1024 * 1024,
            cloud_max_outbound: 32_768,
            bridge_max_outbound: 16 * 1024 * 1024,
            max_pending: 256,
        }
    }
}

impl LinkConfig {
    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    pub(crate) fn action_timeout(&self) -> Duration {
        Duration::from_millis(self.action_timeout_ms)
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.write_timeout_ms)
    }

    pub(crate) fn liveness(&self) -> Duration {
        Duration::from_millis(self.liveness_ms)
    }

    pub(crate) fn linger(&self) -> Duration {
        Duration::from_millis(self.linger_ms)
    }

    /// How long frames wait for what tells whether they are new. Where they are likely to be older, so long that a stall does not decide it.
    pub(crate) fn replay_wait(&self, likely_older: bool) -> Duration {
        if likely_older {
            self.liveness().min(self.connect_timeout()).saturating_mul(2)
        } else {
            Duration::from_millis(self.replay_wait_ms)
        }
    }

    pub(crate) fn sentinel_wait(&self) -> Duration {
        Duration::from_millis(self.sentinel_wait_ms)
    }

    pub(crate) fn resend(&self) -> Duration {
        Duration::from_millis(self.resend_ms)
    }
}

/// Why an upstream cannot be what the config says.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It has no name.
    #[error("an upstream needs a name")]
    NoName,
    /// Its address cannot be used.
    #[error("upstream {name}: url {url:?}: {why}")]
    Url {
        /// The upstream.
        name: String,
        /// What was written.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Its credential cannot be sent.
    #[error("upstream {name}: the credential is empty or holds characters that no HTTP header may hold")]
    Credential {
        /// The upstream.
        name: String,
    },
    /// A key that only the other kind of upstream has.
    #[error("upstream {name}: {key} is for kind = \"cloud\" only")]
    CloudOnly {
        /// The upstream.
        name: String,
        /// The key.
        key: &'static str,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}
