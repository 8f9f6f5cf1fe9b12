//! The bounds of numbers: every integer of the config, found by walking it, so that a key that is added later has them, too; and the keys
//! that only work beside others.

use super::Config;

/// The most that any of them may be: thirty years in milliseconds, a terabyte, more connections than there are ports. Far below what timers,
/// semaphores and channels can take, so that no value makes one of them panic.
const MOST: u64 = 1_000_000_000_000;

/// Where 0 has a meaning: none, at once, or no waiting. Everywhere else nothing could work with it.
const MAY_BE_ZERO: [&str; 26] = [
    "server.ready_off_ms",
    "limits.client_per_second",
    "limits.peer_per_second",
    "limits.unknown_tokens_per_minute",
    "server.drain_ms",
    "server.close_spread_ms",
    "server.retry_min_ms",
    "run.stop_grace_ms",
    "run.recoverable_error_ms",
    "ask.permission_ms",
    "ask.form_ms",
    "link.backoff_first_ms",
    "link.backoff_max_ms",
    "link.attempts",
    "link.token_refresh_ms",
    "link.linger_ms",
    "link.replay_wait_ms",
    "link.sentinel_wait_ms",
    "link.resend_ms",
    "sse.heartbeat_ms",
    "sse.retry_ms",
    "sse.dedupe_posts_ms",
    "sse.first_turn_num",
    "socketio.context_window",
    "socketio.snapshot_ms",
    "socketio.snapshot_bytes",
];

/// What is needed for more than one's own sake.
const LEAST: [(&str, u64, &str); 1] = [("sse.max_event_bytes", 1024, "an event holds its names and ids whole")];

/// How one key has to be to another.
#[derive(Clone, Copy, Debug)]
enum Than {
    More,
    AtLeast,
}

/// Pairs of keys that hold only together, and why.
const PAIRS: [(&str, Than, &str, &str); 5] = [
    ("server.retry_max_ms", Than::AtLeast, "server.retry_min_ms", "it is the most of what the other is the least"),
    ("native.replace_timeout_ms", Than::More, "run.stop_grace_ms", "the turn that a new message replaces has that long to end"),
    ("native.pong_timeout_ms", Than::More, "native.ping_interval_ms", "no pong comes before its ping"),
    ("link.backoff_max_ms", Than::AtLeast, "link.backoff_first_ms", "it bounds all pauses, the first one, too"),
    ("run.forget_ms", Than::AtLeast, "run.keep_ms", "what is to be kept cannot be forgotten"),
];

/// Calls `found` with each key that is wrong beside another one, and why: of the two that which somebody wrote.
pub(super) fn check_pairs(config: &Config, is_written: impl Fn(&str) -> bool, mut found: impl FnMut(String, String)) {
    let Ok(sections) = serde_json::to_value(config) else { return };
    let value = |key: &str| key.split_once('.').and_then(|(section, key)| sections.get(section)?.get(key)?.as_u64());
    for (key, than, other, why) in PAIRS {
        let (Some(one), Some(two)) = (value(key), value(other)) else { continue };
        let (holds, word, reverse) = match than {
            Than::More => (one > two, "more than", "less than"),
            Than::AtLeast => (one >= two, "at least", "at most"),
        };
        // What is wrong alone is said already.
        if !holds && (one > 0 || MAY_BE_ZERO.contains(&key)) {
            if is_written(key) || !is_written(other) {
                found(key.to_owned(), format!("must be {word} {other}, which is {two}: {why}"));
            } else {
                found(other.to_owned(), format!("must be {reverse} {key}, which is {one}: {why}"));
            }
        }
    }
}

/// Calls `found` with each integer that is out of its bounds, and why.
pub(super) fn check(config: &Config, mut found: impl FnMut(String, String)) {
    // Not as TOML, whose integers end at 2^63: environment variables bring larger ones.
    let Ok(sections) = serde_json::to_value(config) else { return };
    for (section, keys) in sections.as_object().into_iter().flatten() {
        for (key, value) in keys.as_object().into_iter().flatten() {
            let Some(value) = value.as_u64() else { continue };
            let key = format!("{section}.{key}");
            let least = LEAST.iter().find(|(bounded, ..)| *bounded == key);
            if value == 0 && !MAY_BE_ZERO.contains(&key.as_str()) {
                found(key, "must be more than 0".to_owned());
            } else if value > MOST {
                found(key, format!("must be at most {MOST}"));
            } else if let Some((_, least, why)) = least.filter(|(_, least, _)| value < *least) {
                found(key, format!("must be at least {least}: {why}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut Config)) -> Vec<(String, String)> {
        let mut config = Config::default();
        change(&mut config);
        let mut all = Vec::new();
        check(&config, |key, why| all.push((key, why)));
        all
    }

    #[test]
    fn every_integer_has_bounds() {
        assert_eq!(wrong(|_| {}), []);
        let keys = |found: Vec<(String, String)>| found.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        for large in [usize::MAX >> 1, usize::MAX] {
            assert_eq!(keys(wrong(|config| config.server.max_connections = large)), ["server.max_connections"]);
        }
        assert_eq!(keys(wrong(|config| config.socketio.ping_interval_ms = 0)), ["socketio.ping_interval_ms"]);
        assert_eq!(keys(wrong(|config| config.native.max_write_buffer = 0)), ["native.max_write_buffer"]);
        assert_eq!(keys(wrong(|config| config.sse.max_event_bytes = 1023)), ["sse.max_event_bytes"]);
        assert_eq!(keys(wrong(|config| config.sse.heartbeat_ms = 0)), [""; 0]);
    }

    #[test]
    fn keys_that_need_one_another_are_both_named() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            let mut all = Vec::new();
            check_pairs(&config, |_| false, |key, why| all.push(format!("{key} {why}")));
            all.join("\n")
        };
        assert_eq!(wrong(|_| {}), "");
        for (change, expected) in [
            (
                (|config| config.native.replace_timeout_ms = 3000) as fn(&mut Config),
                "native.replace_timeout_ms must be more than run.stop_grace_ms, which is 3000: ",
            ),
            (|config| config.run.stop_grace_ms = 10_000, "native.replace_timeout_ms must be more than run.stop_grace_ms, which is 10000: "),
            (
                |config| config.native.pong_timeout_ms = 25_000,
                "native.pong_timeout_ms must be more than native.ping_interval_ms, which is 25000: ",
            ),
            (|config| config.link.backoff_max_ms = 0, "link.backoff_max_ms must be at least link.backoff_first_ms, which is 1000: "),
            (|config| config.run.forget_ms = 1, "run.forget_ms must be at least run.keep_ms, which is 3600000: "),
        ] {
            let said = wrong(change);
            assert!(said.starts_with(expected) && said.lines().count() == 1, "{said}");
        }
    }

    #[test]
    fn the_keys_that_are_named_here_are_there() {
        let sections = toml::Table::try_from(Config::default()).unwrap();
        let pairs = PAIRS.iter().flat_map(|(one, _, other, _)| [one, other]);
        for key in MAY_BE_ZERO.iter().chain(LEAST.iter().map(|(key, ..)| key)).chain(pairs) {
            let (section, key) = key.split_once('.').unwrap();
            assert!(sections[section].get(key).is_some_and(|value| value.is_integer()), "{section}.{key}");
        }
    }
}
