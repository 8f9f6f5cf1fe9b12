//! The config's promises: the commented file is the defaults, errors say where, the environment counts, open stays at home.

use super::*;

/// The least that is right.
const LEAST: &str =
    "[[upstream]]\nname = \"plane\"\nkind = \"bridge\"\nurl = \"http://127.0.0.1:1\"\n\n[[route]]\ncell = \"*\"\nupstream = \"plane\"\n";
const FILE: &str = include_str!("../../../config/interline.toml");

fn file(text: &str) -> Layer {
    Layer::file("interline.toml", text.to_owned())
}

fn variables(pairs: &[(&str, &str)]) -> Vec<Layer> {
    Layer::environment(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))).unwrap()
}

fn refused(text: &str) -> String {
    from_layers(&[file(text)]).err().map(|problems| problems.to_string()).unwrap_or_default()
}

fn typed(text: &str) -> Config {
    layers::read::<Config>(&[file(text)]).unwrap().value
}

/// The commented examples of the file, uncommented.
fn with_examples() -> String {
    let sections = ["[[token]]", "[[upstream]]", "[[route]]", "[[policy]]"];
    let mut inside = false;
    FILE.lines()
        .map(|line| {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            inside = line.starts_with('#') && (inside || sections.contains(&bare));
            format!("{}\n", if inside { bare } else { line })
        })
        .collect()
}

#[test]
fn the_commented_file_is_the_defaults_and_holds_every_key() {
    assert_eq!(typed(FILE), typed(""));
    let written: toml::Table = FILE.parse().unwrap();
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    assert_eq!(written, defaults);
}

#[test]
fn every_key_of_the_commented_file_has_a_sentence() {
    let lines: Vec<&str> = FILE.lines().collect();
    for pair in lines.windows(2) {
        let [above, line] = pair else { continue };
        if line.contains(" = ") && !line.starts_with('#') {
            assert!(above.starts_with("# ") && above.ends_with('.'), "{line}");
        }
    }
}

#[test]
fn the_commented_examples_are_right() {
    let config = typed(&with_examples());
    assert_eq!((config.token.len(), config.upstream.len(), config.route.len(), config.policy.len()), (1, 1, 1, 1));
    assert_eq!((config.route[0].on_busy, config.route[0].stop_unwatched_ms), (BusyPolicy::Reject, Some(600_000)));
    assert_eq!(config.upstream[0].provider_id.as_deref(), Some("my-provider"));
    assert_eq!(config.route[0].model.map["gpt-4o"], "claude-sonnet-4-6");
}

#[test]
fn the_least_config_is_open_on_loopback() {
    let checked = from_layers(&[file(LEAST)]).unwrap();
    assert!(checked.config.server.listen.ip().is_loopback());
    assert!(checked.config.sse.on_loopback);
    assert!(checked.config.socketio.on_loopback);
    assert_eq!(checked.config.sse.origins, ["loopback"]);
    assert_eq!(checked.config.socketio.origins, ["loopback"]);
    assert_eq!((checked.targets[0].host.as_str(), checked.targets[0].port), ("127.0.0.1", 1));
    assert_eq!(checked.summary(), "Listens on 127.0.0.1:9091 for everybody on this machine; 1 upstream, 1 route.");
}

#[test]
fn errors_name_file_line_and_key() {
    let cases = [
        ("[server]\nlisten = 5\n", "interline.toml:2: server.listen: "),
        ("[server]\nlisten = \"nowhere\"\n", "interline.toml:2: server.listen: \"nowhere\" is no address"),
        ("\n[server]\nlissten = \"127.0.0.1:1\"\n", "interline.toml:3: server.lissten: unknown field"),
        ("[server]\n\n\ndrain_ms = -1\n", "interline.toml:4: server.drain_ms: "),
        ("[sever]\n", "interline.toml:1: sever: unknown field"),
        ("[server\n", "interline.toml:1: "),
        ("a = 1\na = 2\n", "interline.toml:2: "),
        ("[auth]\nmode = \"opne\"\n", "interline.toml:2: auth.mode: unknown variant `opne`"),
        ("[[route]]\ncell = \"a\"\nupstream = \"b\"\n\n[[route]]\nupstream = \"b\"\n", "interline.toml:5: route[1]: missing field `cell`"),
        ("[[upstream]]\nname = \"a\"\nkind = \"clod\"\nurl = \"http://x\"\n", "interline.toml:3: upstream[0].kind: "),
        ("[sse]\nsub_agents = \"none\"\n", "interline.toml:2: sse.sub_agents: "),
        ("\n[run]\n\nkeep_ms = 999999999999\n", "interline.toml:4: run.keep_ms: must be at most run.forget_ms, which is "),
        ("[run]\nforget_ms = 2\nkeep_ms = 3\n", "interline.toml:2: run.forget_ms: must be at least run.keep_ms, which is 3"),
    ];
    for (text, expected) in cases {
        let said = refused(text);
        assert!(said.starts_with(expected), "{text:?}: {said}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let text = r#"[server]
listen = "0.0.0.0:9091"
max_connections = 0

[cors]
origins = ["https://app.example.com", "app.example.com", "https://app.example.com/"]

[log]
filter = "info,=["

[[upstream]]
name = "a"
kind = "cloud"
url = "ftp://x"

[[upstream]]
name = "a"
kind = "bridge"
url = "http://127.0.0.1:1"
mode = "agent"

[[route]]
cell = "c"
upstream = "b"

[[route]]
cell = "c"
upstream = "a"
"#;
    let said = refused(text);
    let expected = [
        "interline.toml:2: server.listen: 0.0.0.0:9091 can be reached from outside",
        "interline.toml:3: server.max_connections: must be more than 0",
        "interline.toml:14: upstream[0].url: ",
        "interline.toml:17: upstream[1].name: ",
        "interline.toml:20: upstream[1].mode: ",
        "interline.toml:24: route[0].upstream: no [[upstream]] is called \"b\"",
        "interline.toml:27: route[1].cell: ",
        "interline.toml:6: cors.origins[1]: ",
        "interline.toml:6: cors.origins[2]: ",
        "interline.toml:9: log.filter: ",
    ];
    let lines: Vec<&str> = said.lines().collect();
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\nexpected {expected}");
    }
    assert_eq!(lines.len(), expected.len(), "{said}");
}

#[test]
fn an_unknown_key_hides_nothing() {
    let text = r#"[server]
lissten = "127.0.0.1:1"
max_connections = 0

[sever]
listen = "127.0.0.1:1"

[[upstream]]
name = "a"
kind = "bridge"
url = "ftp://x"
modle = "x"

[[route]]
cell = "*"
upstream = "b"
"#;
    let said = refused(text);
    let expected = [
        "interline.toml:2: server.lissten: unknown field",
        "interline.toml:5: sever: unknown field",
        "interline.toml:12: upstream[0].modle: unknown field",
        "interline.toml:3: server.max_connections: must be more than 0",
        "interline.toml:11: upstream[0].url: ",
        "interline.toml:16: route[0].upstream: no [[upstream]] is called \"b\"",
    ];
    for expected in expected {
        assert!(said.lines().any(|line| line.starts_with(expected)), "{expected}\n{said}");
    }
    assert_eq!(said.lines().count(), expected.len(), "{said}");
}

#[test]
fn all_values_that_cannot_be_read_are_told_and_nothing_that_follows_from_them() {
    let text = r#"[server]
listen = 5
drain_ms = "soon"
lissten = 1

[auth]
mode = "opne"

[[upstream]]
name = 7
kind = "clod"
url = "http://x"

[[upstream]]
name = "b"
url = "http://x"

[[route]]
upstream = "b"

[[route]]
cell = "c"
upstream = ["b"]
"#;
    let said = refused(text);
    let expected = [
        "interline.toml:2: server.listen: ",
        "interline.toml:3: server.drain_ms: ",
        "interline.toml:4: server.lissten: unknown field",
        "interline.toml:7: auth.mode: unknown variant `opne`",
        "interline.toml:10: upstream[0].name: ",
        "interline.toml:11: upstream[0].kind: ",
        "interline.toml:14: upstream[1]: missing field `kind`",
        "interline.toml:18: route[0]: missing field `cell`",
        "interline.toml:23: route[1].upstream: ",
    ];
    for expected in expected {
        assert!(said.lines().any(|line| line.starts_with(expected)), "{expected}\n{said}");
    }
    assert_eq!(said.lines().count(), expected.len(), "{said}");
}

#[test]
fn policies_are_checked_as_they_are_written() {
    let with = |policies: &str| refused(&format!("{}{policies}", LEAST.replace('*', "c")));
    let policy = |more: &str| format!("\n[[policy]]\nname = \"p\"\n{more}");
    let sound = "tool = \"Bash|Read\"\nargument = \"command\"\nmatches = \"git (status|diff)\"\ndecision = \"allow\"\ncells = [\"c\"]\n";
    assert_eq!(with(&policy(sound)), "");
    assert_eq!(with(&policy("tool = \".*\"\ndecision = \"ask\"\n")), "");
    for (more, expected) in [
        ("tool = \"(\"\ndecision = \"deny\"\n", "interline.toml:12: policy[0].tool: is no regular expression: "),
        (
            "tool = \"x\"\nargument = \"a\"\nmatches = \"[\"\ndecision = \"deny\"\n",
            "interline.toml:14: policy[0].matches: is no regular expression: ",
        ),
        ("tool = \"x\"\nargument = \"a\"\ndecision = \"deny\"\n", "interline.toml:13: policy[0].argument: needs `matches`"),
        ("tool = \"x\"\nmatches = \"a\"\ndecision = \"deny\"\n", "interline.toml:13: policy[0].matches: needs `argument`"),
        (
            "tool = \"x\"\ncells = [\"c\", \"d\"]\ndecision = \"deny\"\n",
            "interline.toml:13: policy[0].cells[1]: no [[route]] serves the cell \"d\"",
        ),
        ("tool = \"x\"\ndecision = \"maybe\"\n", "interline.toml:13: policy[0].decision: unknown variant `maybe`"),
        ("tool = \"x\"\n", "interline.toml:10: policy[0]: missing field `decision`"),
        ("decision = \"deny\"\n", "interline.toml:10: policy[0]: missing field `tool`"),
    ] {
        let said = with(&policy(more));
        assert!(said.starts_with(expected), "{said}\nexpected {expected}");
    }
    let twice = with(&(policy(sound) + &policy(sound)));
    assert!(twice.contains("policy[1].name: each policy has a name of its own"), "{twice}");
    let unnamed = with("[[policy]]\nname = \"\"\ntool = \"x\"\ndecision = \"deny\"\n");
    assert!(unnamed.contains("policy[0].name: "), "{unnamed}");
}

#[test]
fn a_device_that_nobody_names_is_a_warning() {
    let cloud = |more: &str| LEAST.replace("\"bridge\"", &format!("\"cloud\"\n{more}"));
    let warned = |more: &str| {
        let checked = from_layers(&[file(&cloud(more))]).map_err(|problems| problems.to_string()).unwrap();
        checked.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let said = warned("mode = \"agent\"");
    assert!(matches!(&said[..], [one] if one.starts_with("interline.toml:4: upstream[0].mode: no environment_id")), "{said:?}");
    assert!(warned("mode = \"agent\"\nenvironment_id = \"11111111-1111-4111-8111-111111111111\"").is_empty());
    assert!(warned("mode = \"task\"").is_empty() && warned("").is_empty());
}

#[test]
fn nothing_to_serve_is_an_error() {
    let said = refused("");
    assert!(
        said.starts_with("interline.toml: upstream: there is no agent server: add an [[upstream]]") && said.contains("add a [[route]]"),
        "{said}"
    );
}

#[test]
fn tokens_are_what_lets_a_server_out_of_the_house() {
    let outside = format!("[server]\nlisten = \"0.0.0.0:9091\"\n{LEAST}");
    assert!(refused(&outside).contains("lets everybody in"));
    let token =
        |secret: &str| format!("{outside}[auth]\nmode = \"tokens\"\n\n[[token]]\nname = \"web\"\nsecret = {secret}\ncells = [\"*\"]\n");
    let checked = from_layers(&[file(&token("{ value = \"s\" }"))]).unwrap();
    assert!(checked.gate.admit(Some("s"), 0).is_ok() && checked.gate.admit(Some("t"), 0).is_err());
    assert!(!checked.config.sse.on_loopback);
    assert!(refused(&format!("{outside}[auth]\nmode = \"tokens\"\n")).contains("nobody could come in"));
    let ignored = format!("{LEAST}[[token]]\nname = \"web\"\nsecret = {{ value = \"s\" }}\ncells = [\"*\"]\n");
    assert!(refused(&ignored).contains("set [auth] mode = \"tokens\""));
    for (secret, why) in [
        ("{ value = \"\" }", "it is empty"),
        ("{ value = \"  \" }", "it is empty"),
        ("{ env = \"INTERLINE_TEST_UNSET\" }", "INTERLINE_TEST_UNSET is not set"),
        ("{ file = \"/nowhere/at/all\" }", "/nowhere/at/all cannot be read"),
        ("{ hash = \"abc\" }", "sha256:"),
        // Of no text at all.
        ("{ hash = \"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\" }", "it is empty"),
        ("[]", "nobody could bring it"),
        ("{ value = \"a\", env = \"B\" }", "takes one of"),
        ("{ value = \"a\", expires = 2027-01-01T00:00:00 }", "with its offset"),
        ("{ value = \"a\", expires = \"tomorrow\" }", "with its offset"),
    ] {
        let said = refused(&token(secret));
        let line = token(secret).lines().position(|line| line.starts_with("secret")).unwrap() + 1;
        assert!(said.starts_with(&format!("interline.toml:{line}: token[0].secret")) && said.contains(why), "{secret}: {said}");
    }
}

#[test]
fn a_token_has_old_and_new_secrets_and_says_until_when_and_where() {
    let with = |token: &str| format!("{LEAST}[auth]\nmode = \"tokens\"\n[[token]]\nname = \"a\"\ncells = [\"*\"]\n{token}\n");
    let secrets = "secret = [{ value = \"old\", expires = 2001-01-01T00:00:00Z }, { value = \"new\" }]\nexpires = 2999-01-01T00:00:00Z";
    let checked = from_layers(&[file(&with(secrets))]).map_err(|problems| problems.to_string()).unwrap();
    let admits = |secret: &str, now: u64| checked.gate.admit(Some(secret), now).is_ok();
    // The first has its own end, the second that of the token.
    assert!(admits("old", 978_307_199_999) && !admits("old", 978_307_200_000));
    assert!(admits("new", 32_472_143_999_999) && !admits("new", 32_472_144_000_000));
    let warnings: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
    assert!(matches!(&warnings[..], [one] if one.contains("token[0].secret[0]: has expired")), "{warnings:?}");
    let access = checked.gate.admit(Some("new"), 0).unwrap();
    assert!(access.serves("sse") && access.serves("native"));
    let checked = from_layers(&[file(&with("secret = { value = \"s\" }\nsurfaces = [\"sse\"]"))]).unwrap();
    let access = checked.gate.admit(Some("s"), 0).unwrap();
    assert!(access.serves("sse") && !access.serves("native"));
    for (token, expected) in [
        ("secret = [{ value = \"s\" }, { value = \"s\" }]", "token[0].secret[1]: stands here twice"),
        ("secret = [{ value = \"s\" }, { value = \"\" }]", "token[0].secret[1]: it is empty"),
        ("secret = { value = \"s\" }\nsurfaces = []", "token[0].surfaces: names the surfaces"),
        ("secret = { value = \"s\" }\nsurfaces = [\"sse\", \"ws\"]", "token[0].surfaces[1]: there is no surface \"ws\""),
        ("secret = { value = \"s\" }\nexpires = 2027-01-01", "token[0].expires: "),
    ] {
        let said = refused(&with(token));
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn proxies_are_addresses_or_ranges() {
    assert_eq!(refused(&format!("[server]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\", \"fd00::/8\"]\n{LEAST}")), "");
    let said = refused(&format!("[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"nginx\"]\n{LEAST}"));
    assert!(said.contains("server.trusted_proxies[1]: \"nginx\" is no address"), "{said}");
}

#[test]
fn a_secret_from_a_file_is_what_stands_between_its_white_space() {
    let path = std::env::temp_dir().join(format!("interline-secret-{}", std::process::id()));
    std::fs::write(&path, "s3\n").unwrap();
    let text = format!(
        "{LEAST}[auth]\nmode = \"tokens\"\n[[token]]\nname = \"a\"\nsecret = {{ file = {:?} }}\ncells = [\"x\"]\n",
        path.to_str().unwrap()
    );
    let checked = from_layers(&[file(&text)]);
    std::fs::remove_file(&path).unwrap();
    assert!(checked.unwrap().gate.admit(Some("s3"), 0).is_ok());
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    for secret in [
        "\"canary-1\"",
        "{ value = \"canary-1\", env = \"X\" }",
        "{ vaule = \"canary-1\" }",
        "{ value = [\"canary-1\"] }",
        "[\"canary-1\"]",
    ] {
        for (section, key) in [
            ("[[token]]\nname = \"a\"\ncells = []\n", "secret"),
            ("[[upstream]]\nname = \"a\"\nkind = \"cloud\"\nurl = \"http://x\"\n", "credential"),
        ] {
            let said = refused(&format!("{section}{key} = {secret}\n"));
            assert!(said.contains(key) && !said.contains("canary"), "{said}");
        }
    }
    let config = typed("[[token]]\nname = \"a\"\ncells = []\nsecret = { value = \"canary-1\" }\n");
    assert!(!format!("{config:?}").contains("canary"));
}

#[test]
fn the_environment_wins_over_the_file_and_options_over_both() {
    let layered = |more: Vec<Layer>| {
        let mut layers = vec![file(&format!("[server]\nlisten = \"127.0.0.1:1\"\ndrain_ms = 7\n{LEAST}"))];
        layers.extend(more);
        from_layers(&layers).unwrap().config
    };
    assert_eq!(layered(Vec::new()).server.listen.port(), 1);
    let mut more = variables(&[
        ("INTERLINE__SERVER__LISTEN", "localhost:2"),
        ("INTERLINE__LOG__FORMAT", "json"),
        ("INTERLINE__LINK__CURSOR", "true"),
        ("INTERLINE__CORS__ORIGINS", "[\"*\"]"),
        ("HOME", "/nowhere"),
    ]);
    let config = layered(more.clone());
    assert_eq!((config.server.listen.port(), config.server.drain_ms, config.log.format), (2, 7, LogFormat::Json));
    assert!(config.link.cursor);
    assert_eq!(config.cors.origins, ["*"]);
    more.push(Layer::flag("--listen", "server.listen", "127.0.0.1:3"));
    assert_eq!(layered(more).server.listen.port(), 3);
}

#[test]
fn errors_name_the_variable_or_the_option() {
    let said = |layers: Vec<Layer>| from_layers(&[vec![file(LEAST)], layers].concat()).err().unwrap().to_string();
    let cases = [("INTERLINE__SERVER__LISTEN", "nowhere"), ("INTERLINE__SERVER__DRAIN_MS", "soon"), ("INTERLINE__SERVER__LISSTEN", "x")];
    for (name, value) in cases {
        let said = said(variables(&[(name, value)]));
        assert!(said.starts_with(&format!("environment variable {name}: server.")), "{said}");
    }
    assert!(said(vec![Layer::flag("--listen", "server.listen", "0.0.0.0:1")]).starts_with("option --listen: server.listen: "));
    let odd = Layer::environment([("INTERLINE____X".to_owned(), String::new())].into_iter()).err().unwrap().to_string();
    assert!(odd.starts_with("environment variable INTERLINE____X: "), "{odd}");
}

#[test]
fn upstream_credentials_are_fetched_and_checked() {
    let with = |credential: &str| LEAST.replacen("url =", &format!("credential = {credential}\nurl ="), 1);
    assert!(from_layers(&[file(&with("{ value = \"s\" }"))]).is_ok());
    for credential in ["{ value = \"\" }", "{ env = \"INTERLINE_TEST_UNSET\" }", "{ value = \"a\\nb\" }"] {
        let said = refused(&with(credential));
        assert!(said.starts_with("interline.toml:4: upstream[0].credential: "), "{said}");
    }
}

#[test]
fn in_passthrough_there_is_no_credential_but_the_clients() {
    let text = format!("[auth]\nmode = \"passthrough\"\n{}", LEAST.replacen("url =", "credential = { value = \"s\" }\nurl =", 1));
    let said = refused(&text);
    assert!(said.starts_with("interline.toml:6: upstream[0].credential: [auth] mode = \"passthrough\""), "{said}");
    assert!(from_layers(&[file(&format!("[auth]\nmode = \"passthrough\"\n{LEAST}"))]).is_ok());
}

#[test]
fn two_tokens_have_two_secrets() {
    let hash = "sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";
    let token = |name: &str, secret: &str| format!("[[token]]\nname = \"{name}\"\nsecret = {secret}\ncells = [\"*\"]\n");
    let with = |secret: &str| {
        let tokens = token("a", "{ value = \"alpha\" }") + &token("b", secret);
        refused(&format!("{LEAST}[auth]\nmode = \"tokens\"\n{tokens}"))
    };
    for secret in ["{ value = \"alpha\" }".to_owned(), format!("{{ hash = \"{hash}\" }}")] {
        let said = with(&secret);
        assert!(said.contains("token[1].secret: is the secret of the token \"a\", too"), "{said}");
    }
    assert_eq!(with("{ value = \"beta\" }"), "");
}

#[test]
fn heartbeats_come_before_a_balancer_that_waits_thirty_seconds_gives_up() {
    let Config { sse, socketio, native, .. } = Config::default();
    for (surface, every) in [("sse", sse.heartbeat_ms), ("socketio", socketio.ping_interval_ms), ("native", native.ping_interval_ms)] {
        // With something over for the way; none at all would be a zero.
        assert!((1..=27_000).contains(&every), "{surface}: {every} ms");
    }
}

#[test]
fn every_number_has_bounds_that_are_told() {
    for (line, why) in [
        ("[server]\nmax_connections = 9_223_372_036_854_775_807", "server.max_connections: must be at most 1000000000000"),
        ("[socketio]\nping_interval_ms = 0", "socketio.ping_interval_ms: must be more than 0"),
        ("[native]\nmax_session_tokens = 0", "native.max_session_tokens: must be more than 0"),
        ("[sse]\nmax_event_bytes = 1", "sse.max_event_bytes: must be at least 1024"),
        ("[link]\nmax_pending = 2_000_000_000_000", "link.max_pending: must be at most"),
        ("[native]\nreplace_timeout_ms = 3_000", "native.replace_timeout_ms: must be more than run.stop_grace_ms, which is 3000: "),
        ("[log]\nfilter = \"loud\"", "log.filter: \"loud\" is no level"),
    ] {
        let said = refused(&format!("{line}\n{LEAST}"));
        assert!(said.starts_with(&format!("interline.toml:2: {why}")), "{said}");
    }
}

#[test]
fn a_token_for_a_cell_that_nothing_serves_is_a_mistake() {
    let text = LEAST.replace('*', "my-cell")
        + "[auth]\nmode = \"tokens\"\n[[token]]\nname = \"a\"\nsecret = { value = \"s\" }\ncells = [\"my-cell\", \"my-sell\"]\n";
    let said = refused(&text);
    assert!(said.contains("token[0].cells[1]: no [[route]] serves the cell \"my-sell\""), "{said}");
}

#[test]
fn numbers_are_told_in_words_and_variables_by_name() {
    for wrong in ["\"5s\"", "-1", "10.5"] {
        let said = refused(&format!("[server]\ndrain_ms = {wrong}\n{LEAST}"));
        assert!(said.starts_with("interline.toml:2: server.drain_ms: invalid "), "{said}");
        assert!(said.contains("expected a whole number that is not negative") && !said.contains("u64"), "{said}");
    }
    let unnamed = format!("[auth]\nmode = \"tokens\"\n{LEAST}[[token]]\nname = \"web\"\nsecret = {{ env = \"\" }}\ncells = [\"*\"]\n");
    assert!(refused(&unnamed).contains("names no environment variable"), "{}", refused(&unnamed));
}

#[test]
fn a_place_where_no_journal_can_be_is_a_warning() {
    let here = std::env::temp_dir();
    let nowhere = here.join("interline-nowhere").join("journal");
    for (path, why) in [(here.as_path(), "is a directory here"), (nowhere.as_path(), "there is no directory")] {
        let checked = from_layers(&[file(&format!("{LEAST}[journal]\npath = {path:?}\n"))]).unwrap();
        let said: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|said| said.contains("journal.path: ") && said.contains(why)), "{said:?}");
    }
    let checked = from_layers(&[file(&format!("{LEAST}[journal]\npath = {:?}\n", here.join("journal")))]).unwrap();
    assert!(checked.warnings.is_empty(), "{:?}", checked.warnings);
}
