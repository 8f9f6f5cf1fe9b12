//! The reload by SIGHUP: the config is read and checked as at start, and what may change while the program runs is put in its place.
//!
//! A config that is not right changes nothing. Nothing that is open is dropped: streams, sockets and runs go on with what they have.

use std::sync::Arc;

use arc_swap::ArcSwap;
use interline_hub::Hub;

use crate::admin::Target;
use crate::config::{Built, Checked, Config, Layer, Problem, Problems, ServerConfig};
use crate::logging::LogFilter;
use crate::telemetry::Telemetry;

/// What a reload may change, wherever it is used.
pub(crate) struct Live {
    /// The config as it is in effect.
    config: Config,
    hub: Arc<Hub>,
    upstreams: Vec<Built>,
    server: Arc<ArcSwap<ServerConfig>>,
    targets: Arc<ArcSwap<Vec<Target>>>,
    telemetry: Arc<Telemetry>,
    log: Option<LogFilter>,
}

impl Live {
    pub(crate) fn new(
        config: Config,
        hub: Arc<Hub>,
        upstreams: Vec<Built>,
        server: Arc<ArcSwap<ServerConfig>>,
        targets: Arc<ArcSwap<Vec<Target>>>,
        telemetry: Arc<Telemetry>,
        log: Option<LogFilter>,
    ) -> Self {
        Self { config, hub, upstreams, server, targets, telemetry, log }
    }

    /// `[server]`, as it is in effect.
    pub(crate) fn server(&self) -> &ServerConfig {
        &self.config.server
    }

    /// Reads these layers and takes over what can be. Whatever comes of it is in the log.
    pub(crate) fn reload(&mut self, layers: Result<Vec<Layer>, Problems>) {
        let checked = layers.and_then(|layers| crate::config::reread(&layers, &self.config, &self.upstreams));
        match checked.and_then(|checked| self.is_safe(checked)) {
            Ok(checked) => {
                self.take_over(checked);
                self.telemetry.reloaded(true);
            }
            Err(problems) => {
                for problem in &problems.0 {
                    tracing::error!("not reloaded: {problem}");
                }
                tracing::warn!("the config is not right: nothing of it was taken, the one before goes on");
                self.telemetry.reloaded(false);
            }
        }
    }

    /// What is checked about the address in the file holds for the address in use, too.
    fn is_safe(&self, checked: Checked) -> Result<Checked, Problems> {
        let is_open = checked.config.auth.mode == crate::config::AuthMode::Open;
        if is_open && !self.config.server.listen.ip().is_loopback() {
            let why = format!("\"open\" lets everybody in, and {} can be reached from outside", self.config.server.listen);
            return Err(Problems(vec![Problem::at(None, "auth.mode".to_owned(), why)]));
        }
        Ok(checked)
    }

    fn take_over(&mut self, checked: Checked) {
        let Checked { config: new, gate, routes, targets, upstreams, warnings } = checked;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let (taken, waiting) = self.config.take_over(&new);
        for key in waiting {
            tracing::warn!(key, "this key needs a restart: until then its old value holds");
        }
        let mut changed = self.config.changed(&taken);
        if upstreams.iter().any(Built::is_renewed) && !changed.contains(&"upstream") {
            // Nothing in the file differs, but what a secret's file holds.
            changed.push("upstream");
        }
        for built in &upstreams {
            built.renew();
        }
        if let Some(log) = &self.log
            && taken.log.filter != self.config.log.filter
        {
            log.replace(&taken.log.filter);
        }
        self.hub.replace_origins(taken.cors.origins.clone());
        self.hub.replace_routes(routes);
        self.hub.replace_gate(gate);
        self.hub.closing().arrange(taken.server.farewell());
        self.server.store(Arc::new(taken.server.clone()));
        self.targets.store(Arc::new(targets));
        tracing::info!(
            tokens = taken.token.len(),
            upstreams = upstreams.len(),
            routes = taken.route.len(),
            policies = taken.policy.len(),
            changed = changed.join(", "),
            "reloaded; what the tokens' files and variables hold was read again"
        );
        self.config = taken;
        self.upstreams = upstreams;
    }
}
