//! A server without sockets: both surfaces' routers over a hub whose only upstream asks one question of each kind and then waits.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use interline_hub::{
    Access, AskConfig, Conduct, Gate, Hub, Link, LinkFuture, Models, Route, Routes, RunConfig, RunInput, RunPort, Session, SessionSeed,
    StartRun, Upstream,
};
use interline_journal::Memory;
use interline_model::{CellName, Part, Reader, RunId, SessionId, Text};
use interline_native::{NativeReader, Settings};
use tower::ServiceExt;

/// The only cell.
pub const CELL: &str = "c";
/// The session whose run asks.
pub const SESSION: &str = "s";
/// What is asked: a permission, a question, a form, a link.
pub const ASKS: [&str; 4] = ["permission", "question", "form", "link"];

const FRAMES: [&str; 4] = [
    r#"{"type":"control_request","request_id":"permission","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"t1","input":{"command":"ls"},"permission_suggestions":[{"type":"addRules"}]}}"#,
    r#"{"type":"control_request","request_id":"question","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion","tool_use_id":"t2","input":{"questions":[{"question":"Which?","header":"H","options":[{"label":"this"},{"label":"that"}],"multiSelect":true},{"question":"When?","options":[{"label":"now"}]}]}}}"#,
    r#"{"type":"control_request","request_id":"form","request":{"subtype":"elicitation","mcp_server_name":"m","mode":"form","elicitation_id":"e1","message":"Where?","requested_schema":{"type":"object","properties":{"env":{"type":"string","enum":["a","b"]},"n":{"type":"integer"},"dry":{"type":"boolean"}},"required":["env"]}}}"#,
    r#"{"type":"control_request","request_id":"link","request":{"subtype":"elicitation","mcp_server_name":"m","mode":"url","elicitation_id":"e2","message":"Log in","url":"https://example.com/"}}"#,
];

struct Asking;

impl Upstream for Asking {
    fn name(&self) -> &str {
        "asking"
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(NativeReader::new(Settings::default()))
    }

    fn open(&self, _: &SessionSeed) -> Arc<dyn Link> {
        Arc::new(Self)
    }
}

impl Link for Asking {
    fn run(self: Arc<Self>, _: RunInput, port: RunPort) -> LinkFuture {
        Box::pin(async move {
            for frame in FRAMES {
                let _ = port.deliver(Text::from_static(frame));
            }
            port.over().cancelled().await;
            Ok(())
        })
    }

    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {})
    }
}

/// The server.
pub struct Server {
    hub: Arc<Hub>,
    router: Router,
}

/// An answer to a request.
pub struct Answered {
    /// Its status.
    pub status: StatusCode,
    /// Its body; empty for an event stream, which is not waited for.
    pub body: String,
}

impl Default for Server {
    fn default() -> Self {
        let route = Route {
            cell: CellName::from(CELL),
            upstream: Arc::new(Asking),
            models: Models::default(),
            conduct: Conduct::default(),
            durability: interline_hub::Durability::Memory,
        };
        let routes = Routes::new(vec![route]);
        let hub = Arc::new(Hub::new(Gate::Open, routes, RunConfig::default(), AskConfig::default(), Arc::new(Memory::default())));
        let sse = interline_surface_sse::router(hub.clone(), interline_surface_sse::Config::default());
        let sockets = interline_surface_socketio::router(hub.clone(), interline_surface_socketio::Config::default());
        Self { hub, router: sse.merge(sockets) }
    }
}

impl Server {
    fn access(&self) -> Access {
        self.hub.admit(None).expect("an open gate")
    }

    /// A session whose run has asked everything.
    ///
    /// # Panics
    /// If it has not.
    pub async fn asked(&self) -> (Arc<Session>, RunId) {
        let request = StartRun {
            surface: Text::from_static("sse"),
            session: Some(SessionId::from(SESSION)),
            input: vec![Part::Text(Text::from_static("hi"))],
            ..StartRun::default()
        };
        let (session, run) = self.hub.start(&self.access(), request).expect("a run");
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        assert_eq!(session.pending_asks().len(), ASKS.len(), "not all was asked");
        (session, run)
    }

    /// Sends a request.
    ///
    /// # Panics
    /// If the answer is no text.
    pub async fn send(&self, method: &str, path: &str, body: Vec<u8>) -> Answered {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let response = self.router.clone().oneshot(request.body(Body::from(body)).expect("a request")).await.expect("an answer");
        let status = response.status();
        if response.headers().get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
            return Answered { status, body: String::new() };
        }
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        Answered { status, body: String::from_utf8(body.to_vec()).expect("UTF-8") }
    }

    /// A Socket.IO client on the polling transport, connected.
    ///
    /// # Panics
    /// If it cannot connect.
    pub async fn socket(&self) -> Socket<'_> {
        const PATH: &str = "/socket.io/?EIO=4&transport=polling";
        let opened = self.send("GET", PATH, Vec::new()).await.body;
        let handshake: serde_json::Value = serde_json::from_str(opened.strip_prefix('0').expect("a handshake")).expect("JSON");
        let socket = Socket { server: self, path: format!("{PATH}&sid={}", handshake["sid"].as_str().expect("an id")) };
        assert!(socket.post("40{}".to_owned()).await, "no connection");
        while !socket.poll().await.expect("a payload").iter().any(|packet| packet.starts_with("40")) {}
        socket
    }
}

/// A connected socket.
pub struct Socket<'a> {
    server: &'a Server,
    path: String,
}

impl Socket<'_> {
    /// Sends packets; whether they were taken.
    pub async fn post(&self, packets: String) -> bool {
        self.server.send("POST", &self.path, packets.into_bytes()).await.status == StatusCode::OK
    }

    /// Leaves, so that nothing of it is kept.
    pub async fn close(self) {
        self.post("41\u{1e}1".to_owned()).await;
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
    }

    /// The packets that wait; `None` if the connection is gone.
    pub async fn poll(&self) -> Option<Vec<String>> {
        let answer = self.server.send("GET", &self.path, Vec::new()).await;
        (answer.status == StatusCode::OK).then(|| answer.body.split('\u{1e}').map(str::to_owned).collect())
    }
}
