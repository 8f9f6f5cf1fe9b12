//! Cases D7 and D9: real proxies before the program, in their own configurations. Silence within a run is no reason for any of them to end it,
//! the heartbeat is no event for a stock client, and no event waits in a buffer.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::process::Stdio;
use std::time::Duration;

use interline_sim::Options;
use interline_testkit::{Client, Temp, eventually, request};
use serde_json::json;
use support::{Stand, end, events, text, token};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long anything may take before a test gives it up; no time is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two texts of the run nothing is said for so long: more than twice what the proxies wait.
const SILENCE: u64 = 4_500;

/// A proxy as a child process.
struct Before {
    url: String,
    _child: Child,
    _config: Temp,
}

impl Before {
    /// `program ARGS CONFIG`, where `PORT` and `PROGRAM` in the config are filled in.
    async fn start(program: &str, args: &[&str], config: &str, stand: &Stand) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("an address").port();
        let config = config.replace("PORT", &port.to_string()).replace("PROGRAM", stand.base().trim_start_matches("http://"));
        let file = Temp::file("proxy.conf", &config);
        let folder = file.path().parent().expect("a folder").to_owned();
        let child = Command::new(program)
            .env("PATH", format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default()))
            .args(args)
            .arg(file.path())
            .current_dir(folder)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{program} cannot be started ({error}): run tests/setup first"));
        eventually("the proxy listens", PATIENCE, async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Self { url: format!("http://127.0.0.1:{port}"), _child: child, _config: file }
    }

    /// nginx as it comes, but for these directives: `proxy_buffering` is on, and so is `gzip`, which without a word more packs HTML only.
    async fn nginx(stand: &Stand, directives: &str) -> Self {
        let config = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr error;\nevents {{}}\nhttp {{\n access_log off;\n gzip on;\n \
             client_body_temp_path body;\n proxy_temp_path proxy;\n fastcgi_temp_path fastcgi;\n uwsgi_temp_path uwsgi;\n \
             scgi_temp_path scgi;\n server {{\n  listen 127.0.0.1:PORT;\n  location / {{\n   proxy_pass http://PROGRAM;\n   {directives}\n  }}\n }}\n}}\n"
        );
        Self::start("nginx", &["-p", ".", "-e", "stderr", "-c"], &config, stand).await
    }

    async fn haproxy(stand: &Stand, timeouts: &str) -> Self {
        let config = format!(
            "defaults\n mode http\n timeout connect 5s\n timeout http-request 60s\n {timeouts}\nfrontend in\n bind 127.0.0.1:PORT\n default_backend out\n\
             backend out\n server interline PROGRAM\n"
        );
        Self::start("haproxy", &["-db", "-f"], &config, stand).await
    }
}

/// A stand whose simulator says something, is silent for a long time, and says something again.
async fn stand(config: &str) -> (Stand, Temp) {
    let frames = [
        json!({"type": "streamlined_text", "text": "before, ", "uuid": "1"}),
        json!({"type": "streamlined_text", "text": "after", "uuid": "2"}),
        json!({"type": "result", "subtype": "success", "is_error": false, "uuid": "3"}),
    ];
    let file = Temp::file("silence.jsonl", &frames.iter().map(|frame| format!("{frame}\n")).collect::<String>());
    let transcripts = Some(file.path().parent().expect("a folder").to_owned());
    (Stand::with(Options { transcripts, ..Options::default() }, config).await, file)
}

// Others lost idle streams to a load balancer, or cut healthy long turns by the clock.
#[tokio::test(flavor = "multi_thread")]
async fn case_d7_silence_within_a_run_ends_behind_no_proxy_and_no_client_takes_the_heartbeat_for_an_event() {
    let (stand, _file) = stand("[sse]\nheartbeat_ms = 500\n[socketio]\nping_interval_ms = 500\n[native]\nping_interval_ms = 500\n").await;
    let nginx = Before::nginx(
        &stand,
        "proxy_read_timeout 2s; proxy_send_timeout 2s; proxy_http_version 1.1;\n   proxy_set_header Upgrade $http_upgrade; \
         proxy_set_header Connection $http_connection;",
    )
    .await;
    let haproxy = Before::haproxy(&stand, "timeout client 2s\n timeout server 2s\n timeout tunnel 2s").await;
    let prompt = format!("play silence gap={SILENCE}");
    let secret = token("cloud");
    let mut clients = Vec::new();
    for proxy in [&nginx, &haproxy] {
        let events = ["--cell", "cloud", "--token", &secret, "--prompt", &prompt];
        clients.push(Client::new("fetch_event_source.mjs", &proxy.url).args(events));
        clients.push(Client::new("fetch.mjs", &proxy.url).args(events));
        let chat = ["--token", &secret, "--prompt", &prompt, "--transport"];
        clients.push(Client::new("socketio.mjs", &proxy.url).args(chat).args(["websocket"]));
        clients.push(Client::new("native.mjs", &proxy.url).args([
            "--surface",
            "cloud",
            "--mode",
            "agent",
            "--token",
            &secret,
            "--prompt",
            &prompt,
        ]));
    }
    let begun = Instant::now();
    for seen in futures_util::future::join_all(clients.into_iter().map(Client::run)).await {
        // Each client fails by itself where a connection was lost, or a run started again.
        let seen = seen.content();
        assert!(seen.output.contains("before, ") && seen.output.contains("after"), "{}: {}", seen.name, seen.output);
    }
    assert!(begun.elapsed() > Duration::from_millis(2 * SILENCE), "it was silent");
    assert_eq!(stand.stats().prompts.len(), 8, "each of them started one run");
}

// Others' events stayed in a proxy's buffer until the run was over, since nothing said that they are wanted at once.
#[tokio::test(flavor = "multi_thread")]
async fn case_d9_nothing_waits_in_the_buffers_of_nginx_as_it_comes() {
    let (stand, _file) = stand("").await;
    let nginx = Before::nginx(&stand, "").await;
    let bearer = format!("Bearer {}", token("cloud"));
    let headers = [("content-type", "application/json"), ("authorization", &bearer), ("accept-encoding", "gzip, br")];
    let mut times = Vec::new();
    for _ in 0..5 {
        let body = json!({"messages": [{"role": "user", "content": "play silence gap=700"}]}).to_string();
        let begun = Instant::now();
        let mut stream = request("POST", &format!("{}/cells/cloud/run", nginx.url), &headers, body).await;
        stream.until("run_start").await;
        times.push(begun.elapsed());
        // Nor does what comes later wait for more.
        let seen = stream.until("before, ").await;
        assert!(!seen.contains("after"), "{seen}");
        assert_eq!(stream.headers.get("content-encoding"), None);
        // nginx keeps the header that is meant for it, and hands on the other.
        assert_eq!(stream.headers.get("cache-control").and_then(|value| value.to_str().ok()), Some("no-cache, no-transform"));
        let seen = events(&stream.rest().await);
        assert_eq!((end(&seen), text(&seen).as_str()), ("done", "before, after"));
    }
    assert_at_once("behind nginx", times);
}

// The same where somebody has switched compression on for everything. nginx knows no `no-transform`; what it packs has to leave it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn case_d9_nothing_waits_in_nginx_where_it_packs_events() {
    let (stand, _file) = stand("").await;
    let nginx = Before::nginx(&stand, "gzip_types *;").await;
    let bearer = format!("Authorization: Bearer {}", token("cloud"));
    let body = json!({"messages": [{"role": "user", "content": "play silence gap=700"}]}).to_string();
    let url = format!("{}/cells/cloud/run", nginx.url);
    let mut times = Vec::new();
    for _ in 0..5 {
        let args =
            ["-sS", "-i", "-N", "-m", "60", "--compressed", "-H", "Content-Type: application/json", "-H", &bearer, "-d", &body, &url];
        let begun = Instant::now();
        let mut curl = Command::new("curl").args(args).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("curl starts");
        let mut stdout = curl.stdout.take().expect("a pipe");
        let mut seen = Vec::new();
        let mut until = async |what: &str| {
            while !String::from_utf8_lossy(&seen).contains(what) {
                let read = tokio::time::timeout(PATIENCE, stdout.read_buf(&mut seen)).await.expect("something comes").expect("a pipe");
                assert!(read > 0, "no {what}: {}", String::from_utf8_lossy(&seen));
            }
            String::from_utf8_lossy(&seen).into_owned()
        };
        let head = until("\"run_start\"").await;
        times.push(begun.elapsed());
        assert!(head.to_lowercase().contains("\r\ncontent-encoding: gzip\r\n"), "it is packed: {head}");
        let seen = until("before, ").await;
        assert!(!seen.contains("after"), "{seen}");
        until("\"done\"").await;
    }
    assert_at_once("behind nginx that packs", times);
}

/// A busy machine adds to some of them, a buffer to all: the one in the middle tells.
fn assert_at_once(place: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("the first event {place}: {times:?}");
    assert!(times[times.len() / 2] < Duration::from_millis(100), "{place}: {times:?}");
}
