//! The upstreams: what agent servers can speak. A new kind is one line here.

use std::sync::Arc;

use interline_hub::Upstream;
use interline_upstream_native::{ConfigError, Kind, LinkConfig, UpstreamConfig};

/// The upstream that a section of the config describes. Nothing is dialled.
pub(crate) fn build(config: UpstreamConfig, link: &LinkConfig) -> Result<Arc<dyn Upstream>, ConfigError> {
    match config.kind {
        Kind::Cloud | Kind::Bridge => interline_upstream_native::upstream(config, link.clone()),
    }
}
