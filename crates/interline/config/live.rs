//! Which keys a reload takes over while the program runs, and which wait for the next start.
//!
//! The README has the same table for people; a test holds both together. A key that is not named here needs a restart, so one that is added
//! later says so of itself until somebody makes it live.

use super::Config;

/// The keys that are live, and from when on the new value holds.
pub(crate) const LIVE: [(&str, &str); 20] = [
    ("auth.mode", "at once, for everything new"),
    ("token", "at once; streams and sockets of a token that is gone end"),
    ("cors.origins", "with the next request"),
    ("upstream", "with the next run of a session; a credential with the next request to the agent server"),
    ("route", "with the next run of a session; `on_busy` and `stop_unwatched_ms` at once"),
    ("policy", "at once, for what is asked from then on"),
    ("log.filter", "at once"),
    ("server.ready_off_ms", "when the program ends"),
    ("server.drain_ms", "when the program ends"),
    ("server.close_spread_ms", "when the program ends"),
    ("server.retry_min_ms", "when the program ends"),
    ("server.retry_max_ms", "when the program ends"),
    ("server.max_connections", "with the next connection"),
    ("server.header_read_timeout_ms", "with the next connection"),
    ("server.max_header_bytes", "with the next connection"),
    ("server.tcp_user_timeout_ms", "with the next connection"),
    ("server.tcp_keepalive_ms", "with the next connection"),
    ("server.write_stall_ms", "with the next connection"),
    ("server.client_window_bytes", "with the next connection"),
    ("server.body_stall_ms", "with the next connection"),
];

impl Config {
    /// What of `new` is taken over while this one is in use: the keys that are live. And the names of those that differ and are not.
    pub(crate) fn take_over(&self, new: &Self) -> (Self, Vec<String>) {
        let mut taken = self.clone();
        taken.auth.mode = new.auth.mode;
        taken.token.clone_from(&new.token);
        taken.upstream.clone_from(&new.upstream);
        taken.route.clone_from(&new.route);
        taken.policy.clone_from(&new.policy);
        taken.cors = new.cors.clone();
        taken.log.filter.clone_from(&new.log.filter);
        let super::ServerConfig { listen, max_body_bytes, trusted_proxies, .. } = taken.server;
        taken.server = super::ServerConfig { listen, max_body_bytes, trusted_proxies, ..new.server.clone() };
        let waiting = differing(&taken, new);
        (taken, waiting)
    }
}

impl Config {
    /// The live keys in which another config differs from this one.
    pub(crate) fn changed(&self, other: &Self) -> Vec<&'static str> {
        let written = differing(self, other);
        let differs = |key: &str| match key {
            "token" => self.token != other.token,
            "upstream" => self.upstream != other.upstream,
            "route" => self.route != other.route,
            "policy" => self.policy != other.policy,
            key => written.iter().any(|written| written == key),
        };
        LIVE.iter().map(|(key, _)| *key).filter(|key| differs(key)).collect()
    }
}

/// The keys in which two configs differ, of all that can be written down.
pub(crate) fn differing(one: &Config, other: &Config) -> Vec<String> {
    let (Ok(one), Ok(other)) = (toml::Table::try_from(one), toml::Table::try_from(other)) else { return Vec::new() };
    let mut keys = Vec::new();
    compare("", &toml::Value::Table(one), &toml::Value::Table(other), &mut keys);
    keys
}

fn compare(path: &str, one: &toml::Value, other: &toml::Value, keys: &mut Vec<String>) {
    match (one, other) {
        (toml::Value::Table(one), toml::Value::Table(other)) => {
            let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => compare(&key, one, other, keys),
                    _ => keys.push(key),
                }
            }
        }
        (one, other) if one != other => keys.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another value of the same kind.
    fn changed(value: &toml::Value) -> toml::Value {
        match value {
            toml::Value::Integer(number) => toml::Value::Integer(number + 1),
            toml::Value::Boolean(is) => toml::Value::Boolean(!is),
            toml::Value::Array(_) => toml::Value::Array(vec!["*".into()]),
            other => other.clone(),
        }
    }

    #[test]
    fn every_key_is_live_as_the_table_says_or_is_named() {
        let table = toml::Table::try_from(Config::default()).unwrap();
        let mut seen = 0;
        for (section, keys) in &table {
            for (name, value) in keys.as_table().unwrap() {
                let mut other = table.clone();
                other[section].as_table_mut().unwrap().insert(name.clone(), changed(value));
                let key = format!("{section}.{name}");
                // Words have their own spellings: what cannot be changed blindly is looked at below.
                let Ok(new) = toml::Value::Table(other).try_into::<Config>() else { continue };
                if new == Config::default() {
                    continue;
                }
                seen += 1;
                let (taken, waiting) = Config::default().take_over(&new);
                let is_live = LIVE.iter().any(|(live, _)| *live == key);
                assert_eq!(waiting.is_empty(), is_live, "{key}: {waiting:?}");
                assert!(is_live || waiting == [key.clone()], "{key}: {waiting:?}");
                assert_eq!(taken == new, is_live, "{key}");
            }
        }
        assert!(seen > 80, "{seen}");
        let words = |change: fn(&mut Config)| {
            let mut new = Config::default();
            change(&mut new);
            let (taken, waiting) = Config::default().take_over(&new);
            (taken == new, waiting)
        };
        let token = toml::from_str::<Config>("[[token]]\nname = \"a\"\nsecret = { env = \"A\" }\ncells = [\"*\"]").unwrap().token;
        let mut new = Config { token, ..Config::default() };
        new.server.drain_ms = 1;
        assert_eq!(Config::default().changed(&new), ["token", "server.drain_ms"]);
        assert_eq!(words(|config| config.log.filter = "debug".to_owned()), (true, vec![]));
        assert_eq!(words(|config| config.auth.mode = super::super::AuthMode::Tokens), (true, vec![]));
        assert_eq!(words(|config| config.log.format = super::super::LogFormat::Json), (false, vec!["log.format".to_owned()]));
        assert_eq!(words(|config| config.server.listen.set_port(1)), (false, vec!["server.listen".to_owned()]));
    }

    #[test]
    fn the_readme_has_the_same_table() {
        const README: &str = include_str!("../../../README.md");
        let rows: Vec<(String, String)> = README
            .lines()
            .skip_while(|line| !line.starts_with("| live key"))
            .skip(2)
            .take_while(|line| line.starts_with('|'))
            .map(|line| {
                let mut cells = line.trim_matches('|').splitn(2, '|').map(|cell| cell.trim().to_owned());
                (cells.next().unwrap().replace('`', ""), cells.next().unwrap())
            })
            .collect();
        let live: Vec<(String, String)> = LIVE.iter().map(|(key, when)| ((*key).to_owned(), (*when).to_owned())).collect();
        assert_eq!(rows, live);
    }
}
