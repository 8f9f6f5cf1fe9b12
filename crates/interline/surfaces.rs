//! The surfaces: what clients can speak. A new one is one line here.

use interline_hub::Surface;

use crate::config::Config;

/// Every surface, as the config wants it.
pub(crate) fn all(config: &Config) -> Vec<Box<dyn Surface>> {
    vec![
        Box::new(interline_surface_sse::SseSurface { config: config.sse.clone() }),
        Box::new(interline_surface_socketio::SocketIoSurface::new(config.socketio.clone())),
        interline_surface_native::surface(config.native.clone()),
    ]
}
