//! `[sse]`: every choice of this surface, with its default.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ArgumentsForm, Extras, InterruptTerminal, Options, SubAgents};

/// The section `[sse]` of the config file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Milliseconds of silence after which a heartbeat is written; 0 writes none. Proxies cut idle streams after 60 s and more.
    pub heartbeat_ms: u64,
    /// Milliseconds that a browser waits before it reconnects, told once in a `full` stream; 0 leaves it to the browser.
    pub retry_ms: u64,
    /// Framing of `POST …/run`: `auto` and `plain` write `data:` lines alone, `full` adds `id:` lines.
    pub post_profile: Profile,
    /// Whether POSTs that accept `text/event-stream` are answered with `id:` lines, and one with a `Last-Event-ID` goes on with that run instead of
    /// starting one. For libraries that send their request again after a drop or a hidden tab.
    pub post_ids: bool,
    /// Milliseconds in which the same request from the same caller attaches to the run it started, if its stream broke off before the run's end
    /// was delivered; 0 starts another run.
    pub dedupe_posts_ms: u64,
    /// Framing of `GET …/events`: `auto` is `full` for requests that accept `text/event-stream`, else `plain`.
    pub get_profile: Profile,
    /// The longest event in bytes: longer text is split, a longer tool result cut and marked.
    pub max_event_bytes: usize,
    /// A sub-agent's text: `fold` shows it as output of the call that started it, `hide` drops it.
    pub sub_agents: SubAgents,
    /// The end of a stopped run: `interrupted`, or `done` with the reason `context_cancelled`.
    pub interrupt_terminal: InterruptTerminal,
    /// A tool's input as an `object`, or as a `string` of JSON.
    pub arguments: ArgumentsForm,
    /// The number of a run's first turn.
    pub first_turn_num: u64,
    /// What goes beyond the documented vocabulary: `off` nothing, `fields` more members, `events` more types of events, too. `?extras=` asks
    /// for another one.
    pub extras: Extras,
    /// Whether `GET …/events?explain=1` tells which messages of the upstream, and which rules, caused each event.
    pub explain: bool,
    /// The largest request body in bytes.
    pub max_body_bytes: usize,
    /// Milliseconds in which a request body has to arrive.
    pub body_timeout_ms: u64,
    /// A token in the query (`access_token`, `token`) of GET requests, for browsers' `EventSource`: `loopback` takes it where the server listens on loopback only, `always`, `never`.
    pub query_token: QueryToken,
    /// The cookie in which GET requests may bring a token; empty for none.
    pub token_cookie: String,
    /// Origins that browser pages may come from: exact ones, `loopback` for all of this machine's, `*` for all. The program fills it from `[cors]`.
    #[serde(skip)]
    pub origins: Vec<String>,
    /// Whether the server listens on loopback only. The program fills it from `[server]`.
    #[serde(skip)]
    pub on_loopback: bool,
}

/// How events are framed (sse.md §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As the request asks for.
    Auto,
    /// `data:` lines alone; the heartbeat is white space in front of the next event's JSON.
    Plain,
    /// With `id:` lines; the heartbeat is a comment line.
    Full,
}

/// Whether a token may stand in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueryToken {
    /// Where the server listens on loopback only.
    Loopback,
    /// Everywhere. URLs end up in logs and histories of whatever stands between.
    Always,
    /// Nowhere.
    Never,
}

impl Default for Config {
    fn default() -> Self {
        let Options { max_event_bytes, sub_agents, interrupt_terminal, arguments, first_turn_num, extras, ask_limits: _, cell: _ } =
            Options::default();
        Self {
            heartbeat_ms: 15_000,
            retry_ms: 0,
            post_profile: Profile::Auto,
            post_ids: false,
            dedupe_posts_ms: 0,
            get_profile: Profile::Auto,
            max_event_bytes,
            sub_agents,
            interrupt_terminal,
            arguments,
            first_turn_num,
            extras,
            explain: false,
            max_body_bytes: 16 << 20,
            body_timeout_ms: 30_000,
            query_token: QueryToken::Loopback,
            token_cookie: String::new(),
            origins: vec!["loopback".to_owned()],
            on_loopback: false,
        }
    }
}

impl Config {
    /// What of it concerns the mapping. How long asks wait, and of which cell a session is, is not said here.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            max_event_bytes: self.max_event_bytes,
            sub_agents: self.sub_agents,
            interrupt_terminal: self.interrupt_terminal,
            arguments: self.arguments,
            first_turn_num: self.first_turn_num,
            extras: self.extras,
            ask_limits: None,
            cell: None,
        }
    }

    pub(crate) fn heartbeat(&self) -> Option<Duration> {
        (self.heartbeat_ms > 0).then(|| Duration::from_millis(self.heartbeat_ms))
    }

    pub(crate) fn takes_query_token(&self) -> bool {
        match self.query_token {
            QueryToken::Loopback => self.on_loopback,
            QueryToken::Always => true,
            QueryToken::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_is_the_default_and_unknown_keys_are_errors() {
        assert_eq!(serde_json::from_str::<Config>("{}").unwrap(), Config::default());
        let config: Config = serde_json::from_str(r#"{"sub_agents":"hide","interrupt_terminal":"done","get_profile":"full"}"#).unwrap();
        assert_eq!((config.options().sub_agents, config.get_profile), (SubAgents::Hide, Profile::Full));
        assert!(serde_json::from_str::<Config>(r#"{"heartbeat":1}"#).is_err());
    }

    #[test]
    fn a_token_in_the_query_is_for_loopback_only_unless_said_otherwise() {
        let takes = |query_token, on_loopback| Config { query_token, on_loopback, ..Config::default() }.takes_query_token();
        assert!(takes(QueryToken::Loopback, true) && takes(QueryToken::Always, false));
        assert!(!takes(QueryToken::Loopback, false) && !takes(QueryToken::Never, true));
    }
}
