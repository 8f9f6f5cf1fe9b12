//! The surfaces: what clients can speak. A new one is one line here.

use interline_hub::Surface;

use crate::config::Config;

/// What they are called where a token names those it may use.
pub(crate) const NAMES: [&str; 3] = ["sse", "socketio", "native"];

/// Every surface, as the config wants it.
pub(crate) fn all(config: &Config) -> Vec<Box<dyn Surface>> {
    vec![
        Box::new(interline_surface_sse::SseSurface { config: config.sse.clone() }),
        Box::new(interline_surface_socketio::SocketIoSurface::new(config.socketio.clone())),
        interline_surface_native::surface(config.native.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_surface_can_be_named() {
        let names: Vec<&str> = all(&Config::default()).iter().map(|surface| surface.name()).collect();
        assert_eq!(names, NAMES);
    }
}
