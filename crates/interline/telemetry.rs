//! What the program itself counts, and the text that `/metrics` shows.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::SystemTime;

use interline_hub::Health;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of the server, and the registry of everybody's.
pub(crate) struct Telemetry {
    registry: Mutex<Registry>,
    open: Gauge<i64, AtomicI64>,
    accepted: Counter<u64, AtomicU64>,
    refused: Counter<u64, AtomicU64>,
    stalled: Counter<u64, AtomicU64>,
    panics: Counter<u64, AtomicU64>,
    journal_bytes: Gauge<i64, AtomicI64>,
    journal_failing: Gauge<i64, AtomicI64>,
    journal_unwritten: Gauge<i64, AtomicI64>,
    reloads: Family<Outcome, Counter>,
    reloaded_at: Family<Outcome, Gauge<i64, AtomicI64>>,
}

/// What became of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

impl Telemetry {
    pub(crate) fn new() -> Self {
        let telemetry = Self {
            registry: Mutex::new(Registry::default()),
            open: Gauge::default(),
            accepted: Counter::default(),
            refused: Counter::default(),
            stalled: Counter::default(),
            panics: Counter::default(),
            journal_bytes: Gauge::default(),
            journal_failing: Gauge::default(),
            journal_unwritten: Gauge::default(),
            reloads: Family::default(),
            reloaded_at: Family::default(),
        };
        telemetry.register(|registry| {
            let build: Family<Vec<(&'static str, &'static str)>, Gauge> = Family::default();
            build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION"))]).set(1);
            registry.register("interline_build_info", "The program, always 1", build);
            registry.register("interline_connections_open", "Connections of clients now", telemetry.open.clone());
            registry.register("interline_connections", "Connections accepted", telemetry.accepted.clone());
            registry.register("interline_connections_refused", "Connections refused: server.max_connections", telemetry.refused.clone());
            registry.register(
                "interline_connections_stalled",
                "Connections cut since their client read nothing: server.write_stall_ms",
                telemetry.stalled.clone(),
            );
            registry.register("interline_journal_bytes", "What the log keeps on the disk, in bytes", telemetry.journal_bytes.clone());
            registry.register("interline_journal_failing", "1 while the disk does not take the log", telemetry.journal_failing.clone());
            registry.register("interline_journal_unwritten_bytes", "What waits for a failing disk", telemetry.journal_unwritten.clone());
            registry.register("interline_config_reloads", "Reloads of the config, by outcome", telemetry.reloads.clone());
            let when = "When the config was last reloaded, by outcome, in seconds since 1970";
            registry.register("interline_config_last_reload_timestamp_seconds", when, telemetry.reloaded_at.clone());
            registry.register("interline_panics", "Requests that ended in a panic", telemetry.panics.clone());
        });
        telemetry
    }

    /// Lets a part of the program add its own metrics.
    pub(crate) fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a connection as open for as long as the guard lives.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        OpenConnection(self.open.clone())
    }

    /// How many connections are open.
    pub(crate) fn connections(&self) -> i64 {
        self.open.get()
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn connection_stalled(&self) {
        self.stalled.inc();
    }

    /// The config was read again; it was `taken`, or refused.
    #[expect(clippy::disallowed_methods, reason = "operators compare it with their own clocks")]
    pub(crate) fn reloaded(&self, taken: bool) {
        let outcome = Outcome { outcome: if taken { "taken" } else { "refused" } };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.reloads.get_or_create(&outcome).inc();
        self.reloaded_at.get_or_create(&outcome).set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    /// How the log is now.
    pub(crate) fn journal(&self, health: &Health, bytes: u64) {
        let (failing, unwritten) = match health {
            Health::Well => (0, 0),
            Health::Failing { unwritten_bytes, .. } => (1, *unwritten_bytes),
        };
        let count = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.journal_bytes.set(count(bytes));
        self.journal_failing.set(failing);
        self.journal_unwritten.set(count(unwritten));
    }

    /// Everything in the text format of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner));
        text
    }
}

/// A connection that is counted as open.
pub(crate) struct OpenConnection(Gauge<i64, AtomicI64>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
