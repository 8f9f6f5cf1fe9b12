//! The log on standard error: text for people or JSON for machines. It never holds a secret, whatever the filter asks for.

use std::fmt::{self, Write};
use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

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

/// The filter of what is logged, while it is.
pub(crate) struct LogFilter(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl LogFilter {
    /// Puts another filter in the place of this one.
    pub(crate) fn replace(&self, asked: &str) {
        (self.0)(filter(asked));
    }
}

/// Starts logging. Does nothing if somebody else did before.
pub(crate) fn start(config: &LogConfig) -> Option<LogFilter> {
    let lines = tracing_subscriber::fmt().with_env_filter(filter(&config.filter)).with_writer(std::io::stderr);
    let (begun, replace): (_, Box<dyn Fn(EnvFilter) + Send + Sync>) = match config.format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let lines = lines.fmt_fields(on_one_line()).with_ansi(colours).with_target(false).with_filter_reloading();
            let handle = lines.reload_handle();
            (lines.try_init(), Box::new(move |filter| drop(handle.reload(filter))))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false).with_filter_reloading();
            let handle = lines.reload_handle();
            (lines.try_init(), Box::new(move |filter| drop(handle.reload(filter))))
        }
    };
    begun.is_ok().then_some(LogFilter(replace))
}

/// Fields for people, whatever they hold on their one line: ids and messages are what clients and agent servers chose, and a line of the log
/// is nobody's but ours.
fn on_one_line() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(|writer: &mut Writer<'_>, field, value| {
        if field.name() != "message" {
            let name = field.name();
            if writer.has_ansi_escapes() { write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m") } else { write!(writer, "{name}=") }?;
        }
        write!(Escaping(writer), "{value:?}")
    })
    .delimited(" ")
}

/// Writes what could end a line, steer a terminal or turn text around as an escape.
struct Escaping<'a, 'writer>(&'a mut Writer<'writer>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, odd)) = rest.char_indices().find(|(_, c)| is_odd(*c)) {
            let (plain, behind) = rest.split_at(at);
            write!(self.0, "{plain}{}", odd.escape_default())?;
            rest = behind.strip_prefix(odd).unwrap_or_default();
        }
        self.0.write_str(rest)
    }
}

/// Control characters, separators of lines and paragraphs, and the marks that change the direction of text.
fn is_odd(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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

/// What is wrong with a filter, if anything is. A single word could name a module as well, of which everything would be logged and nothing
/// else: whoever writes one means a level.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    for word in filter.split(',').map(str::trim).filter(|word| !word.contains(['=', '['])) {
        if word.is_empty() || word.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{word:?} is no level: there are error, warn, info, debug, trace and off; a module's is written module=level"
            ));
        }
    }
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

    /// What is logged of a hostile id: in the message, in fields of every kind, in a span, as an error.
    fn hostile(ansi: bool) -> String {
        let page = Page::default();
        let writer = page.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || writer.clone()).without_time();
        let subscriber = lines.fmt_fields(on_one_line()).with_ansi(ansi).with_target(false).finish();
        let id = "x\r\n INFO forged\u{1b}[2J\u{2028}\u{2029}\u{85}\u{202e}\u{2066}\u{0}\u{7f}y é 文 \"\\";
        let error = std::io::Error::other(id);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("request", path = id, shown = %id);
            let _entered = span.enter();
            tracing::info!(session = %id, debug = ?id, text = id, number = 7, error = &error as &dyn std::error::Error, "an answer for {id}");
        });
        let text = page.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn nobody_but_us_writes_a_line() {
        let text = hostile(false);
        assert!(text.ends_with('\n') && text.trim_end_matches('\n').chars().all(|c| !is_odd(c)), "{text:?}");
        assert!(text.contains(r"an answer for x\r\n INFO forged\u{1b}[2J\u{2028}"), "{text}");
        assert!(text.contains(r"session=x\r\n INFO forged\u{1b}[2J\u{2028}\u{2029}\u{85}\u{202e}\u{2066}\u{0}\u{7f}y é 文"), "{text}");
        assert!(text.contains("number=7 error=") && text.contains("request{path="), "{text}");
        // With colours, the only escapes are ours.
        let coloured = hostile(true);
        assert_eq!(coloured.matches("\u{1b}[2J").count(), 0, "{coloured:?}");
        assert!(coloured.contains("\u{1b}[3m") && coloured.lines().count() == 1, "{coloured:?}");
    }

    #[test]
    fn a_filter_of_no_known_level_is_wrong() {
        for good in
            ["info", "WARN", "off", "info,interline_upstream_native=debug", "interline_hub::session=trace, error", "info,[run{id=1}]=debug"]
        {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["loud", "", "info,,debug", "info,interline_hub", "info,interline_hub=loud", "=["] {
            assert!(check_filter(bad).is_err(), "{bad}");
        }
        assert!(check_filter("loud").is_err_and(|why| why.starts_with("\"loud\" is no level: there are error, ")));
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
