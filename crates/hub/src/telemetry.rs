//! What the hub counts. Call sites name what happened; metric names live here alone.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::RunStatus;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeniedLabels {
    reason: &'static str,
}

/// The hub's counters.
#[derive(Default)]
pub struct Telemetry {
    runs_started: Counter<u64, AtomicU64>,
    runs_ended: Family<EndLabels, Counter>,
    runs_active: Gauge<i64, AtomicI64>,
    sessions: Gauge<i64, AtomicI64>,
    frames: Counter<u64, AtomicU64>,
    frame_bytes: Counter<u64, AtomicU64>,
    late_frames: Counter<u64, AtomicU64>,
    events: Counter<u64, AtomicU64>,
    runs_forgotten: Counter<u64, AtomicU64>,
    runs_resumed: Counter<u64, AtomicU64>,
    denied: Family<DeniedLabels, Counter>,
}

impl Telemetry {
    /// Registers everything with the program's registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("interline_runs_started", "Runs accepted", self.runs_started.clone());
        registry.register("interline_runs_ended", "Runs ended, by outcome", self.runs_ended.clone());
        registry.register("interline_runs_active", "Runs that go on", self.runs_active.clone());
        registry.register("interline_sessions", "Sessions kept", self.sessions.clone());
        registry.register("interline_upstream_frames", "Messages received from upstreams", self.frames.clone());
        registry.register("interline_upstream_frame_bytes", "Bytes of messages received from upstreams", self.frame_bytes.clone());
        registry.register("interline_upstream_late_frames", "Messages received after the end of their run", self.late_frames.clone());
        registry.register("interline_events", "Canonical events read from records", self.events.clone());
        registry.register("interline_runs_forgotten", "Runs no longer kept", self.runs_forgotten.clone());
        registry.register("interline_runs_resumed", "Unfinished runs of an earlier process taken up again", self.runs_resumed.clone());
        registry.register("interline_denied", "Requests and commands of clients that were not let in, by reason", self.denied.clone());
    }

    pub(crate) fn denied(&self, reason: &'static str) {
        self.denied.get_or_create(&DeniedLabels { reason }).inc();
    }

    /// How many runs go on.
    #[must_use]
    pub fn active_runs(&self) -> i64 {
        self.runs_active.get()
    }

    pub(crate) fn run_started(&self) {
        self.runs_started.inc();
        self.runs_active.inc();
    }

    pub(crate) fn run_ended(&self, status: RunStatus) {
        self.runs_ended.get_or_create(&EndLabels { outcome: status.as_str() }).inc();
        self.runs_active.dec();
    }

    pub(crate) fn sessions(&self, change: i64) {
        self.sessions.inc_by(change);
    }

    pub(crate) fn frame(&self, bytes: usize) {
        self.frames.inc();
        self.frame_bytes.inc_by(bytes as u64);
    }

    pub(crate) fn late_frame(&self) {
        self.late_frames.inc();
    }

    pub(crate) fn runs_forgotten(&self, count: usize) {
        self.runs_forgotten.inc_by(count as u64);
    }

    pub(crate) fn run_resumed(&self) {
        self.runs_resumed.inc();
    }

    pub(crate) fn events(&self, count: usize) {
        self.events.inc_by(count as u64);
    }
}
