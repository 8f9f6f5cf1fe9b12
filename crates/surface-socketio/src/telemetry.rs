//! What this surface counts. Call sites name what happened; metric names live here alone.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Count = Gauge<i64, AtomicI64>;

/// The surface's gauges; clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Telemetry {
    sockets: Count,
    subscriptions: Count,
}

/// Counted until it is dropped.
pub(crate) struct Counted(Count);

impl Telemetry {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("interline_socketio_sockets", "Sockets that are connected", self.sockets.clone());
        registry.register("interline_socketio_subscriptions", "Subscriptions of sockets to sessions", self.subscriptions.clone());
    }

    pub(crate) fn socket(&self) -> Counted {
        Counted::new(&self.sockets)
    }

    pub(crate) fn subscription(&self) -> Counted {
        Counted::new(&self.subscriptions)
    }
}

impl Counted {
    fn new(count: &Count) -> Self {
        count.inc();
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
