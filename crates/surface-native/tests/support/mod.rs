//! A hub with a scripted upstream behind a real listener, and a WebSocket client that sees every message.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_hub::{
    Action, ActionError, AskConfig, Channel, ChannelFuture, ChannelMessage, Command, Conduct, Control, Flow, Gate, Hub, Link, LinkError,
    LinkFuture, Models, Route, Routes, RunConfig, RunCredential, RunInput, RunPort, SecretHash, SessionSeed, Token, Upstream, Wire,
};
use interline_journal::{Journal, Memory};
use interline_model::{Answer, AskId, CellName, FailureKind, Json, Reader, Text};
use interline_native::{NativeReader, Settings};
use interline_surface_native::{Config, surface};
use interline_testkit::{post, transcript};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const RESULT: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"","stop_reason":"end_turn","total_cost_usd":0.25,"usage":{"input_tokens":120,"output_tokens":24,"cache_read_input_tokens":0,"cache_creation_input_tokens":0},"uuid":"end","session_id":"up"}"#;
pub(crate) const INTERRUPTED: &str =
    r#"{"type":"result","subtype":"success","is_error":false,"result":"","stop_reason":"interrupted","uuid":"int","session_id":"up"}"#;

/// A piece of text, as a frame.
pub(crate) fn text(n: usize) -> String {
    format!(r#"{{"type":"streamlined_text","text":"{n} ","uuid":"t{n}","session_id":"up"}}"#)
}

/// A permission, as a frame.
pub(crate) fn permission(id: &str) -> String {
    format!(
        r#"{{"type":"control_request","request_id":"{id}","request":{{"subtype":"can_use_tool","tool_name":"Bash","input":{{"command":"ls"}},"tool_use_id":"toolu_{id}"}}}}"#
    )
}

/// What a client says to a request.
pub(crate) fn response(id: &str, body: &str) -> String {
    format!(r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"{id}","response":{body}}}}}"#)
}

/// An upstream that does what the prompt says, line by line: `play NAME` plays a transcript, waiting at each request for its answer;
/// `texts N` says N pieces; `gate` waits for the test; `deaf` ignores a stop from there on; `refuse` gives up; all else is a frame.
#[derive(Default)]
pub(crate) struct Script {
    gate: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) inputs: Mutex<Vec<RunInput>>,
    pub(crate) answers: Mutex<Vec<(AskId, Answer)>>,
    pub(crate) frames: Mutex<Vec<String>>,
}

struct Scripted(Arc<Script>);

impl Upstream for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(NativeReader::new(Settings::default()))
    }

    fn wire(&self, action: &Action) -> Option<Wire> {
        match action {
            Action::Request(body) => Some(Wire::Request(body.clone())),
            Action::SetPermissionMode(mode) => {
                Some(Wire::Request(Json::parse(format!(r#"{{"subtype":"set_permission_mode","mode":"{mode}"}}"#)).unwrap()))
            }
            Action::SetEnvironment(environment) => Some(Wire::Message(Text::from(format!("{environment:?}")))),
            _ => None,
        }
    }

    fn open(&self, _: &SessionSeed) -> Arc<dyn Link> {
        Arc::new(ScriptLink(self.0.clone()))
    }

    fn has_coding_channel(&self) -> bool {
        true
    }

    /// Says everything back, and closes when told to.
    fn coding_channel(&self, _: RunCredential) -> ChannelFuture {
        Box::pin(async {
            let (to, mut hears) = mpsc::channel(2);
            let (says, from) = mpsc::channel(2);
            tokio::spawn(async move {
                while let Some(message) = hears.recv().await {
                    let message = match message {
                        ChannelMessage::Text(text) if &*text == "bye" => ChannelMessage::Close { code: 4001, reason: "bye".to_owned() },
                        message => message,
                    };
                    if says.send(message).await.is_err() {
                        return;
                    }
                }
            });
            Ok(Channel { to, from })
        })
    }
}

struct ScriptLink(Arc<Script>);

impl Link for ScriptLink {
    fn run(self: Arc<Self>, input: RunInput, mut port: RunPort) -> LinkFuture {
        Box::pin(async move {
            let script = input.text();
            self.0.inputs.lock().unwrap().push(input);
            let mut frames = Vec::new();
            for line in script.lines() {
                match line.split_once(' ') {
                    Some(("play", name)) => frames.extend(transcript(name).lines().map(str::to_owned)),
                    Some(("texts", n)) => frames.extend((0..n.parse().unwrap()).map(text)),
                    _ => frames.push(line.to_owned()),
                }
            }
            self.0.play(frames, &mut port).await
        })
    }

    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {})
    }
}

impl Script {
    pub(crate) fn gate(&self) -> Arc<Semaphore> {
        self.gate.lock().unwrap().get_or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    /// Lets one `gate` pass.
    pub(crate) fn open(&self) {
        self.gate().add_permits(1);
    }

    async fn play(&self, frames: Vec<String>, port: &mut RunPort) -> Result<(), LinkError> {
        let gate = self.gate();
        let mut deaf = false;
        let mut unanswered = Vec::new();
        for frame in frames {
            let is_gate = frame == "gate";
            match frame.as_str() {
                "refuse" => return Err(LinkError::Refused { kind: FailureKind::EngineNotReady, message: "nobody is there".into() }),
                "deaf" => deaf = true,
                "gate" => {}
                _ => {
                    let flow = port.deliver(Text::from(frame.as_str()));
                    if flow == Flow::Over {
                        return Ok(());
                    }
                }
            }
            while is_gate || frame.contains(r#""type":"control_request""#) {
                let over = port.over().clone();
                tokio::select! {
                    permit = gate.acquire(), if is_gate => {
                        permit.unwrap().forget();
                        break;
                    }
                    command = port.command() => match command {
                        Command::Stop if deaf => {}
                        Command::Stop => {
                            let _ = port.deliver(Text::from_static(INTERRUPTED));
                            return Ok(());
                        }
                        Command::Answer { ask, answer } => {
                            self.answers.lock().unwrap().push((ask.id.clone(), answer));
                            if !is_gate {
                                break;
                            }
                        }
                        Command::Frame(text) => self.frames.lock().unwrap().push(text.to_string()),
                        Command::Control(Control { request, reply }) => {
                            // A subtype of its own for everything that an upstream may do with a request.
                            let body = request.as_str();
                            let answer = if body.contains("get_context_usage") {
                                Ok(Json::parse(r#"{"totalTokens":1.0}"#).unwrap())
                            } else if body.contains("set_permission_mode") {
                                Ok(Json::empty_object())
                            } else if body.contains("brand_new") {
                                unanswered.push(reply);
                                continue;
                            } else {
                                Err(ActionError::Refused { status: None, message: format!("no: {body}") })
                            };
                            let _ = reply.send(answer);
                        }
                    },
                    () = over.cancelled() => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

/// The surface on a port.
pub(crate) struct Stand {
    pub(crate) hub: Arc<Hub>,
    pub(crate) script: Arc<Script>,
    address: String,
}

/// The secrets of the two clients of a stand with tokens.
pub(crate) const ALICE: &str = "alice-secret";
pub(crate) const BOB: &str = "bob-secret";

impl Stand {
    pub(crate) async fn open() -> Self {
        Self::with(Gate::Open, Config::default(), Arc::new(Memory::default())).await
    }

    pub(crate) async fn configured(config: Config) -> Self {
        Self::with(Gate::Open, config, Arc::new(Memory::default())).await
    }

    pub(crate) async fn guarded() -> Self {
        let token = |name: &str, secret: &str| Token::new(name, SecretHash::of(secret), vec![CellName::from("*")]);
        let gate = Gate::Tokens(vec![token("alice", ALICE), token("bob", BOB)]);
        Self::with(gate, Config::default(), Arc::new(Memory::default())).await
    }

    /// One whose cell has these ways.
    pub(crate) async fn that(conduct: Conduct) -> Self {
        Self::of(Gate::Open, Config::default(), Arc::new(Memory::default()), conduct).await
    }

    pub(crate) async fn with(gate: Gate, config: Config, journal: Arc<dyn Journal>) -> Self {
        Self::of(gate, config, journal, Conduct::default()).await
    }

    async fn of(gate: Gate, config: Config, journal: Arc<dyn Journal>, conduct: Conduct) -> Self {
        let script = Arc::new(Script::default());
        let upstream = Arc::new(Scripted(script.clone()));
        let routes = Routes::new(vec![Route {
            cell: CellName::from("default"),
            upstream,
            models: Models::default(),
            conduct,
            durability: interline_hub::Durability::Memory,
        }]);
        let run = RunConfig { stop_grace_ms: 400, control_ms: 300, ..RunConfig::default() };
        let hub = Arc::new(Hub::new(gate, routes, run, AskConfig::default(), journal));
        let router = surface(config).router(hub.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { hub, script, address }
    }

    pub(crate) fn http(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn ws(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }

    /// Creates a cloud session that runs `prompt`.
    pub(crate) async fn run(&self, prompt: &str) -> Native {
        self.create(&serde_json::json!({ "mode": "chat", "prompt": prompt })).await
    }

    pub(crate) async fn create(&self, body: &serde_json::Value) -> Native {
        let answer = post(&self.http("/v1/agent/sessions"), "", &body.to_string()).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let json = answer.json();
        let member = |name: &str| json[name].as_str().unwrap().to_owned();
        Native { id: member("session_id"), token: member("session_token"), thread: member("thread_id") }
    }

    /// The session of a run, with a token for all of it.
    pub(crate) async fn whole_session(&self, native: &Native) -> Native {
        let answer = post(&self.http(&format!("/v1/agent/sessions/{}/refresh-token", native.thread)), "", "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let token = answer.json()["session_token"].as_str().unwrap().to_owned();
        Native { id: native.thread.clone(), token, thread: native.thread.clone() }
    }

    /// Opens a cloud stream; `query` is what follows the token.
    pub(crate) async fn stream(&self, native: &Native, query: &str) -> Socket {
        Socket::open(&self.ws(&native.path(query))).await
    }

    /// A bridge session.
    pub(crate) async fn bridge(&self) -> String {
        let answer = post(&self.http("/v1/code/sessions"), "", "").await;
        assert_eq!(answer.status, 201);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn message(&self, id: &str, prompt: &str) {
        let body = serde_json::json!({ "prompt": prompt }).to_string();
        let answer = post(&self.http(&format!("/v1/code/sessions/{id}/messages")), "", &body).await;
        assert_eq!((answer.status, answer.body.as_str()), (202, r#"{"status":"running"}"#));
    }

    pub(crate) async fn turn(&self, id: &str, query: &str) -> Socket {
        Socket::open(&self.ws(&format!("/v1/code/sessions/{id}/ws{query}"))).await
    }
}

/// A cloud session as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) thread: String,
}

impl Native {
    pub(crate) fn path(&self, query: &str) -> String {
        format!("/v1/agent/sessions/{}/stream?session_token={}{query}", self.id, self.token)
    }
}

/// A client's end of a WebSocket.
pub(crate) struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn open(url: &str) -> Self {
        Self::dial(url, "").await.unwrap_or_else(|refusal| panic!("{url}: {refusal:?}"))
    }

    /// Opens a socket, or tells the status and the body of the refusal.
    pub(crate) async fn dial(url: &str, bearer: &str) -> Result<Self, (u16, String)> {
        let mut request = url.into_client_request().unwrap();
        if !bearer.is_empty() {
            request.headers_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
        }
        match connect_async(request).await {
            Ok((socket, answer)) => {
                assert!(answer.headers().get("sec-websocket-protocol").is_none());
                Ok(Self(socket))
            }
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => {
                let body = answer.body().as_deref().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
                Err((answer.status().as_u16(), body))
            }
            Err(error) => panic!("{url}: {error}"),
        }
    }

    pub(crate) async fn send(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.unwrap();
    }

    pub(crate) async fn send_raw(&mut self, message: Message) {
        self.0.send(message).await.unwrap();
    }

    /// The next text, or the close (`None` if the connection just ended).
    pub(crate) async fn next(&mut self) -> Result<String, Option<CloseFrame>> {
        loop {
            match tokio::time::timeout(PATIENCE, self.0.next()).await.expect("something comes in time") {
                Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                Some(Ok(Message::Close(frame))) => return Err(frame),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(other)) => panic!("unexpected: {other:?}"),
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    pub(crate) async fn text(&mut self) -> String {
        self.next().await.unwrap_or_else(|close| panic!("closed: {close:?}"))
    }

    /// The frames up to the end of the run.
    pub(crate) async fn run(&mut self) -> Vec<String> {
        let mut frames = Vec::new();
        loop {
            let frame = self.text().await;
            let over = frame.contains(r#""type":"result""#);
            frames.push(frame);
            if over {
                return frames;
            }
        }
    }

    /// The frames up to the end of the run; says yes to every request.
    pub(crate) async fn answering_run(&mut self) -> Vec<String> {
        let mut frames: Vec<String> = Vec::new();
        while frames.last().is_none_or(|frame| !frame.contains(r#""type":"result""#)) {
            let frame = self.text().await;
            let json: serde_json::Value = serde_json::from_str(&frame).unwrap();
            if json["type"] == "control_request" {
                let body = if json["request"]["subtype"] == "elicitation" {
                    r#"{"action":"accept","content":{}}"#
                } else {
                    r#"{"behavior":"allow"}"#
                };
                self.send(response(json["request_id"].as_str().unwrap(), body)).await;
            }
            frames.push(frame);
        }
        frames
    }

    /// The frames up to the close, and the close.
    pub(crate) async fn all(&mut self) -> (Vec<String>, Option<(u16, String)>) {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Ok(frame) => frames.push(frame),
                Err(close) => return (frames, close.map(|close| (close.code.into(), close.reason.to_string()))),
            }
        }
    }

    /// The frames of a turn; asserts the sentinel and the close.
    pub(crate) async fn whole_turn(&mut self) -> Vec<String> {
        let (mut frames, close) = self.all().await;
        assert_eq!(close, Some((1000, "done".to_owned())), "{frames:?}");
        let sentinel = frames.pop().unwrap();
        let json: serde_json::Value = serde_json::from_str(&sentinel).unwrap();
        assert!(json["type"] == "keep_alive" && json["ts"].is_u64(), "{sentinel}");
        frames
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(150), self.0.next()).await.is_err()
    }
}

/// Waits until something is so.
pub(crate) async fn eventually(mut is_so: impl FnMut() -> bool) {
    tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it happens in time");
}

/// The code of a cloud error.
pub(crate) fn code(body: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert!(json["error"]["message"].is_string(), "{body}");
    json["error"]["code"].as_str().unwrap().to_owned()
}
