//! The log on standard error: text for people or JSON for machines. It never holds a secret, whatever the filter asks for.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Libraries that write down what passes through them, tokens and all, once they are let to: the Socket.IO ones the packets, the WebSocket and
/// HTTP ones headers and addresses. From these only what is wrong is logged.
const QUIET: [&str; 16] = [
    "axum",
    "engineioxide",
    "engineioxide_core",
    "h2",
    "hyper",
    "hyper_rustls",
    "hyper_util",
    "mio",
    "rustls",
    "socketioxide",
    "socketioxide_core",
    "socketioxide_parser_common",
    "tokio_tungstenite",
    "tower",
    "tower_http",
    "tungstenite",
];

/// Starts logging. Does nothing if somebody else did before.
pub(crate) fn start(config: &LogConfig) {
    let lines = tracing_subscriber::fmt().with_env_filter(filter(&config.filter)).with_writer(std::io::stderr);
    let _ = match config.format {
        LogFormat::Text => {
            lines.with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()).with_target(false).try_init()
        }
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
    };
}

/// The filter as it is asked for, but for the libraries that say too much.
fn filter(asked: &str) -> EnvFilter {
    // A finer target under a library would win over the library's own: what is asked of those is left out.
    let own = |directive: &&str| !QUIET.iter().any(|library| names(directive, library));
    let kept: Vec<&str> = asked.split(',').filter(own).collect();
    let quiet = QUIET.iter().filter_map(|library| format!("{library}=warn").parse().ok());
    quiet.fold(EnvFilter::builder().parse_lossy(kept.join(",")), EnvFilter::add_directive)
}

/// Whether a directive is about this library or a part of it.
fn names(directive: &str, library: &str) -> bool {
    let rest = directive.trim().strip_prefix(library);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['=', ':', '[', '_']))
}

/// What is wrong with a filter, if anything is.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    EnvFilter::builder().parse(filter).map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(asked: &str) -> String {
        let page = Page::default();
        let writer = page.clone();
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter(asked)).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::trace!(target: "interline_hub::session", "ours");
            tracing::debug!(target: "engineioxide::socket", "received message: 0{{\"token\":\"canary\"}}");
            tracing::debug!(target: "socketioxide", "auth: canary");
            tracing::trace!(target: "tungstenite::handshake::client", "Request: canary");
            tracing::trace!(target: "h2::codec", "canary");
            tracing::warn!(target: "engineioxide", "trouble");
        });
        let text = page.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn no_filter_makes_the_libraries_tell_secrets() {
        for asked in ["trace", "trace,engineioxide=trace", "trace,engineioxide::socket=debug", "trace,h2::codec[x]=trace,socketioxide"] {
            let text = logged(asked);
            assert!(text.contains("ours") && text.contains("trouble"), "{asked}: {text}");
            assert!(!text.contains("canary"), "{asked}: {text}");
        }
        assert!(!logged("info").contains("ours"));
    }
}
