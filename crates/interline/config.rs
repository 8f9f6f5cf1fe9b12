//! The config: every option with its default, where it may come from, and what is checked before anything starts.
//!
//! Layers: defaults, then the file, then the environment (`INTERLINE__SECTION__KEY`), then options of the command line. They are
//! merged as TOML and read once, so an error names the file, the line and the key, wherever the value came from.

mod bounds;
mod check;
mod expiry;
mod layers;
mod live;
mod problem;
mod secret;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use interline_hub::{AskConfig, DoorConfig, Farewell, LimitsConfig, Models, OnExpiry, RunConfig, Secret};
use interline_journal::JournalConfig;
use interline_upstream_native::{Kind, LinkConfig, Mode, UpstreamConfig};
use serde::{Deserialize, Serialize};

pub(crate) use check::{Built, Checked};
pub(crate) use expiry::Expiry;
pub(crate) use layers::Layer;
pub(crate) use problem::{Problem, Problems};
pub(crate) use secret::{SecretSource, TokenSecrets};

/// The whole config file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) limits: LimitsConfig,
    #[serde(skip_serializing)]
    pub(crate) token: Vec<TokenConfig>,
    #[serde(skip_serializing)]
    pub(crate) upstream: Vec<UpstreamSection>,
    #[serde(skip_serializing)]
    pub(crate) route: Vec<RouteConfig>,
    #[serde(skip_serializing)]
    pub(crate) policy: Vec<PolicyConfig>,
    pub(crate) cors: CorsConfig,
    pub(crate) run: RunConfig,
    pub(crate) ask: AskConfig,
    pub(crate) journal: JournalConfig,
    pub(crate) link: LinkConfig,
    pub(crate) sse: interline_surface_sse::Config,
    pub(crate) socketio: interline_surface_socketio::Config,
    pub(crate) native: interline_surface_native::Config,
    pub(crate) log: LogConfig,
}

/// `[server]`: where clients connect, and what bounds their connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerConfig {
    /// The address to listen on. Port 0 takes any free one.
    #[serde(deserialize_with = "address")]
    pub(crate) listen: SocketAddr,
    /// Milliseconds after a signal to end in which nothing changes but that `/readyz` says so.
    pub(crate) ready_off_ms: u64,
    /// Milliseconds that runs may go on then, while no new one is taken.
    pub(crate) drain_ms: u64,
    /// Milliseconds over which the connections that are left are closed then.
    pub(crate) close_spread_ms: u64,
    /// Milliseconds that clients are told to wait at least until they come back.
    pub(crate) retry_min_ms: u64,
    /// The most that they are told.
    pub(crate) retry_max_ms: u64,
    /// Addresses and ranges of proxies in front whose `X-Forwarded-For` is believed.
    pub(crate) trusted_proxies: Vec<String>,
    /// Connections at a time; further ones are told to come back.
    pub(crate) max_connections: usize,
    /// Milliseconds in which the headers of a request have to arrive, and that a connection may wait for its next one.
    pub(crate) header_read_timeout_ms: u64,
    /// Milliseconds that the body of a request may stall.
    pub(crate) body_stall_ms: u64,
    /// Bytes of all bodies of requests that are being read, together.
    pub(crate) max_body_bytes: usize,
    /// Bytes of one request's headers.
    pub(crate) max_header_bytes: usize,
    /// Bytes that may wait unsent for one connection in the system, beside those that are on their way. Linux only.
    pub(crate) client_window_bytes: usize,
    /// Milliseconds that a client may read nothing of what waits to be written to it, until its connection is cut.
    pub(crate) write_stall_ms: u64,
    /// Milliseconds that sent data may stay unacknowledged until the connection is cut: what ends a client that is gone. Linux only.
    pub(crate) tcp_user_timeout_ms: u64,
    /// Milliseconds of silence until TCP asks whether the peer is still there.
    pub(crate) tcp_keepalive_ms: u64,
}

impl ServerConfig {
    /// What connections are to expect at the end.
    pub(crate) fn farewell(&self) -> Farewell {
        Farewell { spread: Duration::from_millis(self.close_spread_ms), retry_ms: (self.retry_min_ms, self.retry_max_ms) }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9091)),
            ready_off_ms: 0,
            drain_ms: 10_000,
            close_spread_ms: 2_000,
            retry_min_ms: 2_000,
            retry_max_ms: 10_000,
            trusted_proxies: Vec::new(),
            max_connections: 10_000,
            header_read_timeout_ms: 10_000,
            body_stall_ms: 30_000,
            max_body_bytes: 512 * 1024 * 1024,
            max_header_bytes: 32 * 1024,
            client_window_bytes: 64 * 1024,
            write_stall_ms: 60_000,
            tcp_user_timeout_ms: 60_000,
            tcp_keepalive_ms: 30_000,
        }
    }
}

/// `[auth]`: who may come in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthConfig {
    pub(crate) mode: AuthMode,
    /// What becomes of a stream whose token runs out while it is open.
    pub(crate) on_expiry: OnExpiry,
    /// Milliseconds in which a ticket has to be used.
    pub(crate) ticket_ms: u64,
    /// Tickets that one client may have at a time; the oldest goes first.
    pub(crate) max_tickets: usize,
}

impl Default for AuthConfig {
    fn default() -> Self {
        let DoorConfig { on_expiry, ticket_ms, max_tickets, limits: _ } = DoorConfig::default();
        Self { mode: AuthMode::default(), on_expiry, ticket_ms, max_tickets }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AuthMode {
    /// Everybody. Only on loopback.
    #[default]
    Open,
    /// Who brings one of `[[token]]`.
    Tokens,
    /// Everybody; the bearer goes on to the upstream, which judges it.
    Passthrough,
}

/// `[[token]]`: one who may come in.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    /// Whose token it is: the owner of everything done with it.
    pub(crate) name: String,
    pub(crate) secret: TokenSecrets,
    /// From when on it is refused, as far as its secrets do not say it themselves.
    pub(crate) expires: Option<Expiry>,
    /// The cells it may use; `*` is every cell.
    pub(crate) cells: Vec<String>,
    /// The surfaces it may use; `None` is every surface.
    pub(crate) surfaces: Option<Vec<String>>,
}

/// `[[upstream]]`: one agent server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamSection {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) url: String,
    pub(crate) credential: Option<SecretSource>,
    pub(crate) mode: Option<Mode>,
    pub(crate) environment_id: Option<String>,
    pub(crate) workdir: Option<String>,
    pub(crate) pool_tag: Option<String>,
    pub(crate) provider_id: Option<String>,
}

impl UpstreamSection {
    /// What the link is given: the same, with the credential itself.
    pub(crate) fn resolved(&self, credential: Option<Secret>) -> UpstreamConfig {
        UpstreamConfig {
            name: self.name.clone(),
            kind: self.kind,
            url: self.url.clone(),
            credential,
            mode: self.mode.unwrap_or_default(),
            environment_id: self.environment_id.clone(),
            workdir: self.workdir.clone(),
            pool_tag: self.pool_tag.clone(),
            provider_id: self.provider_id.clone(),
        }
    }
}

/// `[[route]]`: which upstream serves a cell.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteConfig {
    /// The cell; `*` is any that has no route of its own.
    pub(crate) cell: String,
    /// The name of an `[[upstream]]`.
    pub(crate) upstream: String,
    #[serde(default)]
    pub(crate) model: Models,
    /// What happens to a run whose session has one already.
    #[serde(default)]
    pub(crate) on_busy: BusyPolicy,
    /// Milliseconds after which a run that nobody watches is stopped; `None` lets it go on.
    pub(crate) stop_unwatched_ms: Option<u64>,
    /// What its sessions outlive; `buffered` where `[journal]` has a file, else `memory`.
    pub(crate) durability: Option<DurabilityName>,
}

/// `durability` of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityName {
    Memory,
    Buffered,
    Fsync,
}

/// `on_busy` of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BusyPolicy {
    #[default]
    Reject,
    Queue,
    Interrupt,
}

/// `[[policy]]`: permissions that are given or refused without asking anybody.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyConfig {
    /// What the audit record calls it.
    pub(crate) name: String,
    /// The cells in which it holds; none is all.
    #[serde(default)]
    pub(crate) cells: Vec<String>,
    /// A regular expression for the whole name of the tool.
    pub(crate) tool: String,
    /// A member of the tool's input, or a JSON pointer into it.
    pub(crate) argument: Option<String>,
    /// A regular expression for the whole of that member.
    pub(crate) matches: Option<String>,
    pub(crate) decision: PolicyDecision,
}

/// `decision` of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PolicyDecision {
    Ask,
    Allow,
    Deny,
}

/// `[cors]`: which web pages may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CorsConfig {
    /// Exact origins; `loopback` is every page of this machine, `*` any page.
    pub(crate) origins: Vec<String>,
}

impl Default for CorsConfig {
    fn default() -> Self {
        Self { origins: vec!["loopback".to_owned()] }
    }
}

/// `[log]`: what is written to standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    /// Levels by module, as `tracing-subscriber` reads them.
    pub(crate) filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

impl Config {
    /// How the door is set up.
    pub(crate) fn door(&self) -> DoorConfig {
        let AuthConfig { mode: _, on_expiry, ticket_ms, max_tickets } = self.auth;
        DoorConfig { limits: self.limits.clone(), on_expiry, ticket_ms, max_tickets }
    }

    /// Tells the surfaces what other sections say.
    fn share(&mut self) {
        let on_loopback = self.server.listen.ip().is_loopback();
        self.sse.origins.clone_from(&self.cors.origins);
        self.sse.on_loopback = on_loopback;
        self.socketio.origins.clone_from(&self.cors.origins);
        self.socketio.on_loopback = on_loopback;
        self.native.origins.clone_from(&self.cors.origins);
    }
}

fn address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let numeric = text.strip_prefix("localhost:").map_or_else(|| text.clone(), |port| format!("127.0.0.1:{port}"));
    numeric.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is no address and port; write it like 127.0.0.1:9091")))
}

/// Reads and checks a config file, under this process's environment and the options given.
pub(crate) fn load(file: &Path, flags: Vec<Layer>) -> Result<Checked, Problems> {
    from_layers(&layers_of(file, flags)?)
}

/// The file as it is now, this process's environment and the options given.
pub(crate) fn layers_of(file: &Path, flags: Vec<Layer>) -> Result<Vec<Layer>, Problems> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Problem::at(None, String::new(), format!("the config file {name} cannot be read: {error}")))?;
    let mut layers = vec![Layer::file(name, text)];
    layers.extend(Layer::environment(
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )?);
    layers.extend(flags);
    Ok(layers)
}

/// Reads and checks settings that come from these layers.
pub(crate) fn from_layers(layers: &[Layer]) -> Result<Checked, Problems> {
    let read = layers::read::<Config>(layers).map_err(Problems)?;
    check::check(read.value, &read.places, read.unknown, None)
}

/// The same for a program that runs with `config` and these upstreams: those that have not changed stay.
pub(crate) fn reread(layers: &[Layer], config: &Config, upstreams: &[Built]) -> Result<Checked, Problems> {
    let read = layers::read::<Config>(layers).map_err(Problems)?;
    check::check(read.value, &read.places, read.unknown, Some((config, upstreams)))
}

#[cfg(test)]
mod tests;
