//! What holds for every path of the program, over real sockets: who may call it by which name, and what pages hear.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::config::{Layer, from_layers};

const OPEN: &str =
    "[[upstream]]\nname = \"plane\"\nkind = \"bridge\"\nurl = \"http://127.0.0.1:1\"\n\n[[route]]\ncell = \"*\"\nupstream = \"plane\"\n";
const GUARDED: &str = "[auth]\nmode = \"tokens\"\n\n[[token]]\nname = \"a\"\nsecret = { value = \"alpha\" }\ncells = [\"*\"]\n";

/// Every path, one of each kind: the program's own, each surface's, and those that are nobody's.
const PATHS: [&str; 12] = [
    "/",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/nothing/at/all",
    "/cells/my-cell/run",
    "/cells/nothing/at/all/here",
    "/api/sessions",
    "/api/nothing",
    "/socket.io/?EIO=4&transport=polling",
    "/v1/agent/sessions",
    "/v1/code/sessions/x/ws",
];

async fn start(more: &str) -> App {
    let checked = from_layers(&[Layer::file("interline.toml", format!("{OPEN}{more}"))]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    App::start(checked, listener, Router::new().route("/", axum::routing::get(async || "home")), None).unwrap()
}

/// Status and the whole answer, its head in lower case.
async fn ask(app: &App, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n");
    if headers.iter().all(|(name, _)| *name != "Host") {
        request.push_str(&format!("Host: {}\r\n", app.address()));
    }
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(app.address()).await.unwrap();
    stream.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("an answer in time").unwrap();
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[tokio::test]
async fn an_open_server_answers_to_names_of_this_machine_only() {
    let app = start("").await;
    let port = app.address().port();
    for path in PATHS {
        for method in ["GET", "POST", "OPTIONS"] {
            for host in [format!("evil.example:{port}"), "localhost.evil.example".to_owned(), "192.168.0.7".to_owned()] {
                let origin = format!("http://{host}");
                let (status, answer) = ask(&app, method, path, &[("Host", &host), ("Origin", &origin)]).await;
                assert!(status == 403 && answer.contains("\"kind\":\"forbidden_host\""), "{method} {path} {host}: {answer}");
            }
        }
    }
    let socket = [("Host", "evil.example"), ("Upgrade", "websocket"), ("Connection", "Upgrade")];
    assert_eq!(ask(&app, "GET", "/v1/code/sessions/x/ws", &socket).await.0, 403);
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:5173", "127.1.2.3", "[::1]:80"] {
        assert_eq!(ask(&app, "GET", "/healthz", &[("Host", host)]).await.0, 200, "{host}");
    }
    assert_eq!(ask(&app, "GET", "http://evil.example/healthz", &[("Host", "localhost")]).await.0, 403);
}

#[tokio::test]
async fn with_tokens_any_name_will_do() {
    let app = start(GUARDED).await;
    assert_eq!(ask(&app, "GET", "/healthz", &[("Host", "agents.example")]).await.0, 200);
    let own = [("Host", "agents.example"), ("Origin", "https://agents.example"), ("Authorization", "Bearer alpha")];
    assert_eq!(ask(&app, "POST", "/api/sessions", &own).await.0, 200);
}

#[tokio::test]
async fn a_foreign_page_changes_nothing_anywhere() {
    let app = start("").await;
    let evil = ("Origin", "https://evil.example");
    for path in PATHS {
        let (status, answer) = ask(&app, "POST", path, &[evil, ("Content-Type", "text/plain")]).await;
        // The program's own routes are read only.
        let expected =
            if ["/cells", "/api", "/socket", "/v1"].iter().any(|surface| path.starts_with(surface)) { &[403][..] } else { &[404, 405] };
        assert!(expected.contains(&status), "{path}: {answer}");
        assert!(!answer.contains("access-control-allow-origin: https"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn preflights_are_answered_on_every_path_without_a_token() {
    let app = start(GUARDED).await;
    let asks = [
        ("Origin", "http://localhost:5173"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    for path in PATHS {
        let (status, answer) = ask(&app, "OPTIONS", path, &asks).await;
        assert_eq!(status, 204, "{path}: {answer}");
        for line in ["access-control-allow-origin: http://localhost:5173\r\n", "access-control-allow-headers: authorization\r\n"] {
            assert!(answer.contains(line), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn every_error_can_be_read_by_pages_that_may() {
    let app = start(GUARDED).await;
    let page = ("Origin", "http://localhost:5173");
    for path in PATHS {
        for method in ["GET", "PUT"] {
            let (_, answer) = ask(&app, method, path, &[page]).await;
            assert!(answer.contains("access-control-allow-origin: "), "{method} {path}: {answer}");
        }
    }
    let (status, answer) = ask(&app, "GET", "/nothing", &[page]).await;
    assert!(status == 404 && answer.contains("access-control-allow-origin: http://localhost:5173"), "{answer}");
    let (status, answer) = ask(&app, "DELETE", "/healthz", &[page]).await;
    assert!(status == 405 && answer.contains("access-control-allow-origin: http://localhost:5173"), "{answer}");
}

#[tokio::test]
async fn a_path_that_is_no_utf8_gets_each_surfaces_own_words() {
    let app = start("").await;
    for (method, path, words) in [
        ("GET", "/%ff", "\"kind\":\"not_found\""),
        ("GET", "/cells/%ff", "\"kind\":\"not_found\""),
        ("POST", "/cells/%ff/run", "\"kind\":\"not_found\""),
        ("GET", "/cells/my-cell/runs/%ff/events", "\"kind\":\"not_found\""),
        ("GET", "/api/sessions/%ff/messages", "{\"detail\":\"path not found\"}"),
        ("GET", "/v1/agent/sessions/%ff/result", "{\"error\":{\"code\":\"not_found\""),
        ("GET", "/v1/code/sessions/%ff/cost", "{\"error\":\"the path is no utf-8\"}"),
    ] {
        let (status, answer) = ask(&app, method, path, &[]).await;
        assert!(status == 404 && answer.contains(words), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_listen_any_more_says_so() {
    let mut app = start("").await;
    assert!(timeout(Duration::from_millis(50), app.deaf()).await.is_err(), "it listens");
    app.server.abort();
    let deaf = timeout(Duration::from_secs(1), app.deaf()).await.unwrap();
    assert!(deaf.to_string().starts_with("no connection is accepted any more: "), "{deaf}");
}

/// Every integer key, at 0, at the least, and at the most that is let through: whatever the config takes, nothing panics with.
#[tokio::test]
async fn no_number_makes_anything_panic() {
    static PANICS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A failed assertion of another test is no panic of the program.
        if panic.location().is_none_or(|place| !place.file().contains("tests")) {
            PANICS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        before(panic);
    }));
    let defaults = toml::Table::try_from(crate::config::Config::default()).unwrap();
    let sections =
        defaults.iter().flat_map(|(section, keys)| keys.as_table().unwrap().iter().map(move |(key, value)| (section, key, value)));
    let mut tried = 0;
    for (section, key, _) in sections.filter(|(.., value)| value.is_integer()) {
        for value in ["0", "1", "1_000_000_000_000", "9_223_372_036_854_775_807"] {
            let text = format!("{OPEN}[{section}]\n{key} = {value}\n");
            let Ok(checked) = from_layers(&[Layer::file("interline.toml", text)]) else { continue };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut app = App::start(checked, listener, Router::new(), None).unwrap();
            try_everything(app.address()).await;
            let alive = timeout(Duration::from_millis(1), app.deaf()).await.is_err();
            assert!(alive && PANICS.load(std::sync::atomic::Ordering::Relaxed) == 0, "{section}.{key} = {value}");
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// A little of all surfaces. What is answered does not matter.
async fn try_everything(address: SocketAddr) {
    const SOCKET: &str =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    let run = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    let chat = r#"{"mode":"chat","prompt":"x","thread_id":"11111111-1111-4111-8111-111111111111"}"#;
    let requests = [
        ("POST /cells/c/run", "", run),
        ("POST /v1/agent/sessions", "", chat),
        ("GET /v1/agent/sessions/11111111-1111-4111-8111-111111111111/stream", &*format!("{SOCKET}Authorization: Bearer x\r\n"), ""),
        ("GET /socket.io/?EIO=4&transport=websocket", SOCKET, ""),
        ("GET /socket.io/?EIO=4&transport=polling", "", ""),
    ];
    for (line, headers, body) in requests {
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
        let _ = stream.write_all(request.as_bytes()).await;
        let mut some = [0; 512];
        let _ = timeout(Duration::from_millis(200), stream.read(&mut some)).await;
        if line.contains("websocket") {
            // A CONNECT packet, masked with zeros.
            let _ = stream.write_all(b"\x81\x82\0\0\0\x0040").await;
            let _ = timeout(Duration::from_millis(20), stream.read(&mut some)).await;
        }
    }
}
