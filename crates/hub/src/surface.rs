//! What a surface is to the program: a name and its routes.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::Hub;

/// One protocol offered to clients. The program merges the routers of all surfaces into one server.
pub trait Surface: Send {
    /// Its name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Adds what it counts to the program's registry. Called once, before [`Surface::router`].
    fn register(&self, registry: &mut Registry) {
        let _ = registry;
    }

    /// Its routes, serving sessions of this hub. Paths of two surfaces never overlap.
    fn router(self: Box<Self>, hub: Arc<Hub>) -> axum::Router;
}
