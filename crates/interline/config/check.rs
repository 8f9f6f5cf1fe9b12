//! What must hold before anything starts. All that is wrong is said at once.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use interline_hub::{
    Conduct, Decision, Durability, Gate, Network, OnBusy, Policies, Policy, Route, Routes, Secret, SecretHash, Token, TokenSecret,
    Unwatched, Upstream,
};
use interline_model::CellName;
use interline_upstream_native::{ConfigError, Kind, Mode};

use super::layers::Places;
use super::{
    AuthMode, BusyPolicy, Config, DurabilityName, Expiry, PolicyDecision, Problem, Problems, RouteConfig, TokenConfig, UpstreamSection,
    bounds,
};
use crate::admin::Target;
use crate::{logging, surfaces, upstreams};

/// A config that holds, and what was made of it on the way.
pub(crate) struct Checked {
    pub(crate) config: Config,
    pub(crate) gate: Gate,
    pub(crate) routes: Routes,
    /// Where the upstreams are, for readiness.
    pub(crate) targets: Vec<Target>,
    /// The upstreams, for the next reload.
    pub(crate) upstreams: Vec<Built>,
    /// What may well be a mistake, though it holds.
    pub(crate) warnings: Vec<Problem>,
}

/// An upstream, and what it was made of.
pub(crate) struct Built {
    section: UpstreamSection,
    credential: Option<Secret>,
    upstream: Arc<dyn Upstream>,
    /// It was there before, with another credential.
    renewed: bool,
}

impl Built {
    /// Whether it is the one from before with another credential.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// Hands the upstream from before its new credential, if it has one.
    pub(crate) fn renew(&self) {
        if self.renewed {
            self.upstream.replace_credential(self.credential.clone());
        }
    }

    /// The one from before in its place, where nothing but the credential differs.
    fn or_kept(mut self, before: &[Self]) -> Self {
        let bare = |section: &UpstreamSection| UpstreamSection { credential: None, ..section.clone() };
        if let Some(old) = before.iter().find(|old| bare(&old.section) == bare(&self.section)) {
            let exposed = |built: &Self| built.credential.as_ref().map(|secret| secret.expose().to_owned());
            self.upstream = old.upstream.clone();
            self.renewed = exposed(old) != exposed(&self);
        }
        self
    }
}

struct Findings<'a> {
    places: &'a Places,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Findings<'_> {
    fn add(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let key = key.into();
        self.problems.push(Problem::at(self.places.of(&key), key, message));
    }

    fn warn(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let key = key.into();
        self.warnings.push(Problem::at(self.places.of(&key), key, message));
    }
}

/// Checks a config; `problems` are those that reading it has found. `before` is what a running program has: its config and upstreams.
pub(crate) fn check(
    mut config: Config,
    places: &Places,
    problems: Vec<Problem>,
    before: Option<(&Config, &[Built])>,
) -> Result<Checked, Problems> {
    let mut found = Findings { places, problems, warnings: Vec::new() };
    server(&config, &mut found);
    let gate = gate(&config, &mut found);
    let (upstreams, targets) = upstreams(&config, before, &mut found);
    let routes = routes(&config, &upstreams, &mut found);
    for (number, origin) in config.cors.origins.iter().enumerate() {
        if let Err(why) = origin_is_sound(origin) {
            found.add(format!("cors.origins[{number}]"), why);
        }
    }
    if let Err(why) = logging::check_filter(&config.log.filter) {
        found.add("log.filter", why);
    }
    if !found.problems.is_empty() {
        return Err(Problems(found.problems));
    }
    let warnings = found.warnings;
    config.share();
    let upstreams = upstreams.into_iter().filter_map(|(_, built)| built).collect();
    Ok(Checked { config, gate, routes, targets, upstreams, warnings })
}

fn server(config: &Config, found: &mut Findings<'_>) {
    let server = &config.server;
    if config.auth.mode == AuthMode::Open && !server.listen.ip().is_loopback() {
        let message = format!(
            "{} can be reached from outside, and [auth] mode = \"open\" lets everybody in: name tokens ([auth] mode = \"tokens\"), or listen on 127.0.0.1",
            server.listen
        );
        found.add("server.listen", message);
    }
    for (number, proxy) in server.trusted_proxies.iter().enumerate() {
        if Network::parse(proxy).is_none() {
            let why = format!("{proxy:?} is no address or range of addresses; they are written 192.0.2.7 or 192.0.2.0/24");
            found.add(format!("server.trusted_proxies[{number}]"), why);
        }
    }
    if !config.journal.path.is_empty() {
        journal(Path::new(&config.journal.path), found);
    }
    bounds::check(config, |key, why| found.add(key, why));
    let places = found.places;
    bounds::check_pairs(config, |key| places.is_written(key), |key, why| found.add(key, why));
}

/// It may be checked on another machine than it serves on.
fn journal(path: &Path, found: &mut Findings<'_>) {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        found.warn("journal.path", "is a directory here, where it has to name a file: `serve` does not start with it");
    } else if !directory.is_dir() {
        let message = format!("there is no directory {} here: `serve` does not start without it, and makes none", directory.display());
        found.warn("journal.path", message);
    }
}

fn gate(config: &Config, found: &mut Findings<'_>) -> Gate {
    let mut names = HashSet::new();
    let mut tokens: Vec<Token> = Vec::new();
    for (number, token) in config.token.iter().enumerate() {
        let key = |name: &str| format!("token[{number}].{name}");
        if token.name.is_empty() || !names.insert(&token.name) {
            found.add(key("name"), "each token has a name of its own: it says whose sessions are whose");
        }
        if token.cells.is_empty() {
            found.add(key("cells"), "names the cells that the token may use; \"*\" is every cell");
        }
        for (index, cell) in token.cells.iter().enumerate() {
            if cell != "*" && !config.route.iter().any(|route| route.cell == *cell || route.cell == "*") {
                found.add(format!("token[{number}].cells[{index}]"), format!("no [[route]] serves the cell {cell:?}"));
            }
        }
        if token.surfaces.as_ref().is_some_and(Vec::is_empty) {
            found.add(key("surfaces"), "names the surfaces that the token may use; without it, it may use every one");
        }
        for (index, surface) in token.surfaces.iter().flatten().enumerate() {
            if !surfaces::NAMES.contains(&surface.as_str()) {
                let why = format!("there is no surface {surface:?}; there is: {}", surfaces::NAMES.join(", "));
                found.add(format!("token[{number}].surfaces[{index}]"), why);
            }
        }
        let secrets = secrets(token, number, &tokens, found);
        let cells = token.cells.iter().cloned().map(CellName::from).collect();
        tokens.push(Token { name: token.name.clone(), secrets, cells, surfaces: token.surfaces.clone() });
    }
    match config.auth.mode {
        AuthMode::Tokens if config.token.is_empty() => {
            found.add("auth.mode", "nobody could come in: add a [[token]] with name, secret and cells");
        }
        AuthMode::Open | AuthMode::Passthrough if !config.token.is_empty() => {
            found.add("token", "the tokens would not be asked for: set [auth] mode = \"tokens\", or remove them");
        }
        _ => {}
    }
    match config.auth.mode {
        AuthMode::Open => Gate::Open,
        AuthMode::Tokens => Gate::Tokens(tokens),
        AuthMode::Passthrough => Gate::Passthrough,
    }
}

/// The secrets of a token, beside those of the tokens before it.
fn secrets(token: &TokenConfig, number: usize, others: &[Token], found: &mut Findings<'_>) -> Vec<TokenSecret> {
    let mut secrets: Vec<TokenSecret> = Vec::new();
    if token.secret.0.is_empty() {
        found.add(format!("token[{number}].secret"), "is an empty list: nobody could bring it");
    }
    for (index, secret) in token.secret.0.iter().enumerate() {
        let key = if token.secret.0.len() == 1 { format!("token[{number}].secret") } else { format!("token[{number}].secret[{index}]") };
        let hash = match secret.fetch() {
            Ok(hash) => hash,
            Err(error) => {
                found.add(key, error.to_string());
                continue;
            }
        };
        let is_of = |other: &&Token| other.secrets.iter().any(|theirs: &TokenSecret| theirs.hash.matches(&hash));
        if let Some(other) = others.iter().find(is_of) {
            found.add(key.clone(), format!("is the secret of the token {:?}, too: who brings it could be either", other.name));
        }
        if secrets.iter().any(|own: &TokenSecret| SecretHash::matches(&own.hash, &hash)) {
            found.add(key.clone(), "stands here twice: which of them expires?");
        }
        let expires_at = secret.expires.or(token.expires).map(Expiry::millis);
        if expires_at.is_some_and(|at| at <= now()) {
            found.warn(key, "has expired: whoever brings it is refused");
        }
        secrets.push(TokenSecret { hash, expires_at });
    }
    secrets
}

#[expect(clippy::disallowed_methods, reason = "whether a token has expired is a matter of wall time")]
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

type Named = Vec<(String, Option<Built>)>;

fn upstreams(config: &Config, before: Option<(&Config, &[Built])>, found: &mut Findings<'_>) -> (Named, Vec<Target>) {
    // `[link]` is no live key: what is built later gets the one that the others have.
    let link = before.map_or(&config.link, |(before, _)| &before.link);
    let before = before.map_or(&[][..], |(_, built)| built);
    let mut upstreams = Named::new();
    let mut targets = Vec::new();
    if config.upstream.is_empty() {
        found.add("upstream", "there is no agent server: add an [[upstream]] with name, kind and url");
    }
    for (number, section) in config.upstream.iter().enumerate() {
        let key = |name: &str| format!("upstream[{number}].{name}");
        if section.name.is_empty() || upstreams.iter().any(|(name, _)| *name == section.name) {
            found.add(key("name"), "each upstream has a name of its own");
        }
        let credential = section.credential.as_ref().map(super::SecretSource::fetch).transpose();
        let built = match credential {
            Ok(credential) => match upstreams::build(section.resolved(credential.clone()), link) {
                Ok(upstream) => {
                    let built = Built { section: section.clone(), credential, upstream, renewed: false };
                    Some(built.or_kept(before))
                }
                Err(error) => {
                    let name = match &error {
                        ConfigError::Url { .. } => "url",
                        ConfigError::Credential { .. } => "credential",
                        ConfigError::CloudOnly { key, .. } => key,
                        _ => "name",
                    };
                    found.add(key(name), error.to_string());
                    None
                }
            },
            Err(error) => {
                found.add(key("credential"), error.to_string());
                None
            }
        };
        if config.auth.mode == AuthMode::Passthrough && section.credential.is_some() {
            let why = "[auth] mode = \"passthrough\" sends the client's own bearer, and never this one: remove it, or choose another mode";
            found.add(key("credential"), why);
        }
        if section.kind == Kind::Bridge && section.mode.is_some() {
            found.add(key("mode"), "is for kind = \"cloud\" only");
        }
        if section.kind == Kind::Cloud && section.mode == Some(Mode::Agent) && section.environment_id.is_none() {
            let why = "no environment_id says which device works; servers that do not choose one themselves refuse every run";
            found.warn(key("mode"), why);
        }
        targets.extend(target(&section.name, &section.url));
        upstreams.push((section.name.clone(), built));
    }
    (upstreams, targets)
}

/// Where an upstream's address leads.
fn target(name: &str, url: &str) -> Option<Target> {
    let uri: http::Uri = url.trim().parse().ok()?;
    let secure = matches!(uri.scheme_str(), Some("https" | "wss"));
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some(Target { name: name.to_owned(), host, port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }) })
}

fn routes(config: &Config, upstreams: &Named, found: &mut Findings<'_>) -> Routes {
    if config.route.is_empty() {
        found.add("route", "no cell is served: add a [[route]] with cell and upstream; cell = \"*\" is every cell");
    }
    let policies = policies(config, found);
    let mut cells = HashSet::new();
    let mut routes = Vec::new();
    for (number, section) in config.route.iter().enumerate() {
        let key = |name: &str| format!("route[{number}].{name}");
        if section.cell.is_empty() || !cells.insert(&section.cell) {
            found.add(key("cell"), "each cell has one route");
        }
        if section.stop_unwatched_ms == Some(0) {
            found.add(key("stop_unwatched_ms"), "must be more than 0: nobody watches a run in its first moment");
        }
        let durability = durability(config, section);
        if durability != Durability::Memory && config.journal.path.is_empty() {
            found.add(
                key("durability"),
                "needs a file that outlives the program: name one in [journal] path, or set durability = \"memory\"",
            );
        }
        match upstreams.iter().find(|(name, _)| *name == section.upstream) {
            Some((_, Some(built))) => {
                routes.push(Route {
                    cell: CellName::from(section.cell.as_str()),
                    upstream: built.upstream.clone(),
                    models: section.model.clone(),
                    conduct: conduct(section, &policies),
                    durability,
                });
            }
            // What is wrong with it is said already.
            Some((_, None)) => {}
            None => {
                let names: Vec<&str> = upstreams.iter().map(|(name, _)| name.as_str()).collect();
                found.add(key("upstream"), format!("no [[upstream]] is called {:?}; there is: {}", section.upstream, names.join(", ")));
            }
        }
    }
    Routes::new(routes)
}

fn durability(config: &Config, section: &RouteConfig) -> Durability {
    match section.durability {
        Some(DurabilityName::Memory) => Durability::Memory,
        Some(DurabilityName::Buffered) => Durability::Buffered,
        Some(DurabilityName::Fsync) => Durability::Fsync,
        None if config.journal.path.is_empty() => Durability::Memory,
        None => Durability::Buffered,
    }
}

/// Every policy that is sound.
fn policies(config: &Config, found: &mut Findings<'_>) -> Arc<Policies> {
    let mut names = HashSet::new();
    let mut policies = Vec::new();
    for (number, section) in config.policy.iter().enumerate() {
        let key = |name: &str| format!("policy[{number}].{name}");
        if section.name.is_empty() || !names.insert(&section.name) {
            found.add(key("name"), "each policy has a name of its own: it stands in the audit record");
        }
        for (index, cell) in section.cells.iter().enumerate() {
            if !config.route.iter().any(|route| route.cell == *cell || route.cell == "*") {
                found.add(format!("policy[{number}].cells[{index}]"), format!("no [[route]] serves the cell {cell:?}"));
            }
        }
        if section.argument.as_deref() == Some("") {
            found.add(key("argument"), "names a member of the tool's input, or is a JSON pointer into it such as /files/0");
        }
        let argument = match (&section.argument, &section.matches) {
            (Some(member), Some(pattern)) => Some((member.as_str(), pattern.as_str())),
            (None, None) => None,
            (Some(_), None) => {
                found.add(key("argument"), "needs `matches`, the expression that the whole of it must match");
                continue;
            }
            (None, Some(_)) => {
                found.add(key("matches"), "needs `argument`, the member of the tool's input that it is compared with");
                continue;
            }
        };
        let decision = match section.decision {
            PolicyDecision::Ask => Decision::Ask,
            PolicyDecision::Allow => Decision::Allow,
            PolicyDecision::Deny => Decision::Deny,
        };
        match Policy::new(section.name.as_str(), &section.tool, argument, decision) {
            Ok(policy) => policies.push(policy.in_cells(section.cells.iter().map(|cell| CellName::from(cell.as_str())).collect())),
            Err(error) => {
                let wrong = if Policy::new("", &section.tool, None, decision).is_err() { "tool" } else { "matches" };
                found.add(key(wrong), format!("is no regular expression: {error}"));
            }
        }
    }
    Arc::new(Policies::new(policies))
}

fn conduct(section: &RouteConfig, policies: &Arc<Policies>) -> Conduct {
    Conduct {
        policies: policies.clone(),
        on_busy: match section.on_busy {
            BusyPolicy::Reject => OnBusy::Reject,
            BusyPolicy::Queue => OnBusy::Queue,
            BusyPolicy::Interrupt => OnBusy::Interrupt,
        },
        unwatched: section
            .stop_unwatched_ms
            .map_or(Unwatched::Continue, |limit| Unwatched::StopAfter(std::time::Duration::from_millis(limit))),
    }
}

fn origin_is_sound(origin: &str) -> Result<(), &'static str> {
    const FORM: &str =
        "an origin is written https://app.example.com, with a port where it has one and nothing behind; or \"loopback\", or \"*\"";
    if matches!(origin, "*" | "loopback") {
        return Ok(());
    }
    let uri: http::Uri = origin.parse().map_err(|_| FORM)?;
    let whole = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
    if whole && uri.path_and_query().is_none_or(|path| path == "/") && !origin.ends_with('/') { Ok(()) } else { Err(FORM) }
}

impl Checked {
    /// What it amounts to, in a sentence.
    pub(crate) fn summary(&self) -> String {
        let count = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let who = match self.config.auth.mode {
            AuthMode::Open => "everybody on this machine".to_owned(),
            AuthMode::Tokens => count(self.config.token.len(), "token"),
            AuthMode::Passthrough => "whoever the upstream lets in".to_owned(),
        };
        format!(
            "Listens on {} for {who}; {}, {}.",
            self.config.server.listen,
            count(self.config.upstream.len(), "upstream"),
            count(self.config.route.len(), "route")
        )
    }
}
