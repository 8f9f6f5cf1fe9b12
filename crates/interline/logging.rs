//! The log on standard error: text for people or JSON for machines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Starts logging. Does nothing if somebody else did before.
pub(crate) fn start(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(&config.filter);
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = match config.format {
        LogFormat::Text => {
            lines.with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()).with_target(false).try_init()
        }
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
    };
}

/// What is wrong with a filter, if anything is.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    EnvFilter::builder().parse(filter).map(drop).map_err(|error| error.to_string())
}
