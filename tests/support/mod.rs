//! The stand of the end-to-end tests: a simulator of both native servers, and the program in front of it, as a team would run it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

use interline_sim::{Options, Pace, Simulator, Stats, Voice};
use interline_testkit::{Program, Stream, request};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The program under test.
pub(crate) const INTERLINE: &str = env!("CARGO_BIN_EXE_interline");

/// The two upstreams: each is a cell, and the default cell of the token of the same name.
pub(crate) const UPSTREAMS: [&str; 2] = ["cloud", "bridge"];

/// Simulator and program; both end with it.
pub(crate) struct Stand {
    pub(crate) program: Program,
    pub(crate) simulator: String,
    stats: Box<dyn Fn() -> Stats + Send + Sync>,
    _stop: DropGuard,
}

/// The token that may use only this cell.
pub(crate) fn token(cell: &str) -> String {
    format!("{cell}-secret")
}

/// A simulator without pacing, its base URL, and what ends it.
pub(crate) async fn simulator(options: Options) -> (Simulator, String, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let stop = CancellationToken::new();
    let simulator = Simulator::new(Options { pace: Pace::none(), ..options }).expect("a simulator");
    tokio::spawn(simulator.clone().serve(listener, stop.clone()));
    (simulator, url, stop.drop_guard())
}

impl Stand {
    /// Everything at its default, without pacing.
    pub(crate) async fn new() -> Self {
        Self::with(Options::default(), "").await
    }

    /// With the simulator's options, and more lines of config.
    pub(crate) async fn with(options: Options, config: &str) -> Self {
        let (counting, simulator, stop) = simulator(options).await;
        let program = Program::serve(INTERLINE, &config_for(&simulator, config)).await;
        Self { program, simulator, stats: Box::new(move || counting.stats()), _stop: stop }
    }

    /// In one of the simulator's voices.
    pub(crate) async fn in_voice(voice: Voice) -> Self {
        Self::with(Options { voice, ..Options::default() }, "").await
    }

    /// The program's base URL.
    pub(crate) fn base(&self) -> &str {
        self.program.base()
    }

    /// What the simulator counted.
    pub(crate) fn stats(&self) -> Stats {
        (self.stats)()
    }

    /// Starts a run over SSE and returns when its headers are there.
    pub(crate) async fn run(&self, cell: &str, prompt: &str) -> Stream {
        self.run_in(cell, prompt, None).await
    }

    /// The same, in a session.
    pub(crate) async fn run_in(&self, cell: &str, prompt: &str, session: Option<&str>) -> Stream {
        let mut body = serde_json::json!({
            "actor": "user-001", "model": "gpt-4o",
            "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
        });
        if let (Some(session), Some(body)) = (session, body.as_object_mut()) {
            body.insert("session_id".to_owned(), session.into());
        }
        let bearer = format!("Bearer {}", token(cell));
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        request("POST", &format!("{}/cells/{cell}/run", self.base()), &headers, body.to_string()).await
    }
}

/// The config of a stand before this simulator, with more lines.
pub(crate) fn config_for(simulator: &str, more: &str) -> String {
    format!(
        r#"
[auth]
mode = "tokens"

[[token]]
name = "cloud"
secret = {{ value = "cloud-secret" }}
cells = ["cloud"]

[[token]]
name = "bridge"
secret = {{ value = "bridge-secret" }}
cells = ["bridge"]

[[upstream]]
name = "plane"
kind = "cloud"
mode = "agent"
environment_id = "7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11"
url = "{simulator}"
credential = {{ value = "upstream-secret" }}

[[upstream]]
name = "daemon"
kind = "bridge"
url = "{simulator}"

[[route]]
cell = "cloud"
upstream = "plane"

[[route]]
cell = "bridge"
upstream = "daemon"

[link]
backoff_first_ms = 20
backoff_max_ms = 200

{more}
"#
    )
}

/// The events of an SSE body, in order.
pub(crate) fn events(body: &str) -> Vec<serde_json::Value> {
    body.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|json| serde_json::from_str(json).expect("each data line is JSON"))
        .collect()
}

/// The answer text of SSE events.
pub(crate) fn text(events: &[serde_json::Value]) -> String {
    events.iter().filter(|event| event["type"] == "stream_delta").filter_map(|event| event["content"].as_str()).collect()
}

/// The last event's type.
pub(crate) fn end(events: &[serde_json::Value]) -> &str {
    events.last().and_then(|event| event["type"].as_str()).unwrap_or_default()
}
