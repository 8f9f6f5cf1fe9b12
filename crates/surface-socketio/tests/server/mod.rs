//! A hub with a scripted upstream behind a real listener, and hand-made Socket.IO clients for both transports.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_hub::{
    AskConfig, Command, Conduct, Gate, Hub, Link, LinkError, LinkFuture, Models, Route, Routes, RunConfig, RunInput, RunPort, SecretHash,
    SessionSeed, Token, Upstream,
};
use interline_journal::Memory;
use interline_model::{
    Answer, Ask, AskId, AskKind, AskOutcome, Body, CallId, CellName, Choice, Completion, Event, Fact, FailureKind, ForcedEnd, Json, Lane,
    Outcome, Question, Reader, Record, RunEnd, Text, What,
};
use interline_surface_socketio::{Config, router};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An upstream that does what the prompt says, line by line: `gate` waits for the test, `many N` is N pieces of text, all else is a frame.
pub(crate) struct Script {
    pub(crate) gate: Semaphore,
    pub(crate) inputs: Mutex<Vec<RunInput>>,
    pub(crate) answers: Mutex<Vec<(AskId, Answer)>>,
}

struct Scripted(Arc<Script>);

impl Upstream for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ScriptReader)
    }

    fn open(&self, _: &SessionSeed) -> Arc<dyn Link> {
        Arc::new(ScriptLink(self.0.clone()))
    }
}

struct ScriptLink(Arc<Script>);

impl Link for ScriptLink {
    fn run(self: Arc<Self>, input: RunInput, port: RunPort) -> LinkFuture {
        Box::pin(async move { self.0.play(input, port).await })
    }

    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {})
    }
}

impl Script {
    async fn play(&self, input: RunInput, mut port: RunPort) -> Result<(), LinkError> {
        let script = input.text();
        self.inputs.lock().unwrap().push(input);
        // It hears a wish to stop, and works on.
        let deaf = script.lines().any(|line| line == "deaf");
        for line in script.lines() {
            if line == "refuse" {
                return Err(LinkError::Refused { kind: FailureKind::EngineNotReady, message: "nobody is there".into() });
            }
            if let Some(many) = line.strip_prefix("many ") {
                for number in 0..many.parse::<usize>().unwrap() {
                    let _ = port.deliver(format!("text {number} ").into());
                    if number % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                continue;
            }
            if line != "gate" {
                let _ = port.deliver(line.to_owned().into());
            }
            while line == "gate" || line.starts_with("ask ") {
                let over = port.over().clone();
                tokio::select! {
                    permit = self.gate.acquire(), if line == "gate" => permit.unwrap().forget(),
                    command = port.command() => match command {
                        Command::Stop if deaf => continue,
                        Command::Stop => {
                            let _ = port.deliver("interrupted".into());
                            return Ok(());
                        }
                        Command::Answer { ask, answer } => self.answers.lock().unwrap().push((ask.id.clone(), answer)),
                        Command::Frame(_) | Command::Control(_) => {}
                    },
                    () = over.cancelled() => return Ok(()),
                }
                break;
            }
        }
        Ok(())
    }
}

struct ScriptReader;

impl Reader for ScriptReader {
    fn read(&mut self, record: &Record, events: &mut Vec<Event>) {
        let what = match &record.body {
            Body::Fact(Fact::RunAccepted(run)) => What::RunStarted { run: run.run, session: run.session.clone(), model: run.model.clone() },
            Body::Fact(Fact::AskAnswered { ask, answer, .. }) => What::AskSettled { ask: ask.clone(), outcome: answer.outcome() },
            Body::Fact(Fact::AskExpired { ask }) => What::AskSettled { ask: ask.clone(), outcome: AskOutcome::Expired },
            Body::Fact(Fact::EndForced(end)) => ended(match end {
                ForcedEnd::Refused { kind, message } => Outcome::Failed { kind: *kind, message: message.clone() },
                ForcedEnd::StopGraceOver => Outcome::Interrupted { reason: "user_interrupt".into() },
                _ => Outcome::Failed { kind: FailureKind::MissingTerminalEvent, message: "the upstream is gone".into() },
            }),
            Body::Fact(_) => return,
            Body::Frame(frame) => {
                let (lane, frame) = lane_of(frame);
                events.extend(meaning(frame).map(|what| Event { lane, what }));
                return;
            }
        };
        events.push(Event { lane: Lane::Root, what });
    }
}

/// `sub CALL …` is in the lane of the sub-agent that this call started.
fn lane_of(frame: &str) -> (Lane, &str) {
    match frame.strip_prefix("sub ").and_then(|rest| rest.split_once(' ')) {
        Some((call, rest)) => (Lane::Agent(CallId::from(call.to_owned())), rest),
        None => (Lane::Root, frame),
    }
}

fn ended(outcome: Outcome) -> What {
    What::RunEnded(Box::new(RunEnd::synthesised(outcome)))
}

fn meaning(frame: &str) -> Option<What> {
    let (word, rest) = frame.split_once(' ').unwrap_or((frame, ""));
    let rest = || rest.to_owned();
    Some(match word {
        "turn" => What::TurnStarted,
        "text" => What::Text { delta: rest().into() },
        "long" => What::Text { delta: "x".repeat(rest().parse().unwrap()).into() },
        "tool" => What::ToolStarted { call: CallId::from(rest()), name: "exec".into(), input: None },
        "tool_end" => What::ToolEnded { call: CallId::from(rest()), result: "ok".into(), raw: None, is_error: false, aborted: false },
        "ask" => What::AskRaised(Box::new(ask(&rest()))),
        "interrupted" => ended(Outcome::Interrupted { reason: "user_interrupt".into() }),
        "done" => ended(Outcome::Completed(Completion::EndTurn)),
        _ => return None,
    })
}

/// `permission ID` or `question ID`.
fn ask(words: &str) -> Ask {
    let (kind, id) = words.split_once(' ').unwrap();
    let options = ["a", "b"].map(|label| Choice { label: label.into(), description: Text::new() }).to_vec();
    let question = Question { question: "Which?".into(), header: None, options, multi_select: false };
    let asks = kind == "question";
    Ask {
        id: AskId::from(id.to_owned()),
        kind: if asks { AskKind::Question } else { AskKind::Permission },
        call: asks.then(|| CallId::from("q")),
        tool_name: if asks { "AskUserQuestion".into() } else { "exec".into() },
        message: None,
        input: Json::parse(r#"{"command":"ls"}"#).unwrap(),
        questions: if asks { vec![question] } else { Vec::new() },
        suggestions: None,
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) hub: Arc<Hub>,
    pub(crate) script: Arc<Script>,
    pub(crate) address: SocketAddr,
}

/// An HTTP answer.
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}\n{}", self.head, self.body))
    }
}

impl Server {
    pub(crate) async fn open() -> Self {
        Self::with(Gate::Open, Config::default()).await
    }

    pub(crate) async fn configured(config: Config) -> Self {
        Self::with(Gate::Open, config).await
    }

    /// The tokens `alpha` and `beta` are let in.
    pub(crate) async fn guarded() -> Self {
        let token = |name: &str| Token::new(name, SecretHash::of(name), vec![CellName::from("*")]);
        Self::with(Gate::Tokens(vec![token("alpha"), token("beta")]), Config::default()).await
    }

    async fn with(gate: Gate, config: Config) -> Self {
        Self::conducted(gate, config, Conduct::default()).await
    }

    /// Its only cell conducts itself like this.
    pub(crate) async fn conducted(gate: Gate, config: Config, conduct: Conduct) -> Self {
        let script = Arc::new(Script { gate: Semaphore::new(0), inputs: Mutex::default(), answers: Mutex::default() });
        let upstream: Arc<dyn Upstream> = Arc::new(Scripted(script.clone()));
        let models = Models { default: Some("house".into()), map: [("gpt-4o".to_owned(), "real".to_owned())].into() };
        let routes = Routes::new(vec![Route {
            cell: CellName::from("default"),
            upstream,
            models,
            conduct,
            durability: interline_hub::Durability::Memory,
        }]);
        let hub = Arc::new(Hub::new(gate, routes, RunConfig::default(), AskConfig::default(), Arc::new(Memory::default())));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = router(hub.clone(), config);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { hub, script, address }
    }

    /// One request on a connection of its own.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answered {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let host =
            headers.iter().find(|(name, _)| *name == "Host").map_or_else(|| self.address.to_string(), |(_, host)| (*host).to_owned());
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers.iter().filter(|(name, _)| *name != "Host") {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        socket.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.unwrap().unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body = if head.to_lowercase().contains("transfer-encoding: chunked") { dechunked(body) } else { body.to_owned() };
        Answered { status: head.split(' ').nth(1).unwrap().parse().unwrap(), head: head.to_lowercase(), body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answered {
        self.send("POST", path, &[("Content-Type", "application/json")], &body.to_string()).await
    }

    /// A new session's id.
    pub(crate) async fn session(&self) -> String {
        self.post("/api/sessions", &json!({"intent": ""})).await.json()["session_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn messages(&self, session: &str) -> Value {
        self.get(&format!("/api/sessions/{session}/messages")).await.json()
    }

    pub(crate) async fn socket(&self) -> Client {
        self.socket_with("{}").await
    }

    /// A socket that is connected with this `auth`.
    pub(crate) async fn socket_with(&self, auth: &str) -> Client {
        let mut client = self.transport().await;
        client.connect(auth).await;
        client
    }

    /// A WebSocket whose Engine.IO handshake is done.
    pub(crate) async fn transport(&self) -> Client {
        let url = format!("ws://{}/socket.io/?EIO=4&transport=websocket", self.address);
        let (socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let mut client = Client { socket, acks: 0, heartbeats: 0, seen: Vec::new() };
        assert!(client.packet().await.starts_with("0{"));
        client
    }

    pub(crate) async fn polling(&self) -> Polling<'_> {
        let opened = self.get("/socket.io/?EIO=4&transport=polling").await;
        let handshake: Value = serde_json::from_str(opened.body.strip_prefix('0').unwrap()).unwrap();
        let path = format!("/socket.io/?EIO=4&transport=polling&sid={}", handshake["sid"].as_str().unwrap());
        let polling = Polling { server: self, path, handshake };
        polling.post("40{}").await;
        polling
    }
}

fn dechunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").unwrap();
    }
    out
}

/// What came in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Incoming {
    Event(String, Value),
    Ack(u64, Value),
}

pub(crate) fn read(packet: &str) -> Incoming {
    if let Some(event) = packet.strip_prefix("42") {
        let mut parts: Vec<Value> = serde_json::from_str(event).unwrap();
        assert_eq!(parts.len(), 2, "every event has one argument");
        let data = parts.pop().unwrap();
        return Incoming::Event(parts[0].as_str().unwrap().to_owned(), data);
    }
    let ack = packet.strip_prefix("43").unwrap_or_else(|| panic!("{packet}"));
    let (number, answer) = ack.split_at(ack.find('[').unwrap());
    let answer: Vec<Value> = serde_json::from_str(answer).unwrap();
    Incoming::Ack(number.parse().unwrap(), answer[0].clone())
}

/// A client on a WebSocket.
pub(crate) struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    acks: u64,
    pub(crate) heartbeats: usize,
    /// Every event, in order.
    pub(crate) seen: Vec<(String, Value)>,
}

impl Client {
    pub(crate) async fn connect(&mut self, auth: &str) {
        self.say(&format!("40{auth}")).await;
        let reply = self.packet().await;
        assert!(reply.starts_with("40{"), "{reply}");
    }

    pub(crate) async fn say(&mut self, packet: &str) {
        assert!(self.try_say(packet).await, "the socket is open");
    }

    /// `false` if the socket is closed.
    pub(crate) async fn try_say(&mut self, packet: &str) -> bool {
        self.socket.send(Message::text(packet)).await.is_ok()
    }

    /// The next packet that is no heartbeat.
    pub(crate) async fn packet(&mut self) -> String {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let message = tokio::time::timeout_at(deadline, self.socket.next()).await.expect("a packet in time");
            let Some(Ok(message)) = message else { return "closed".to_owned() };
            match message {
                Message::Text(text) if text.as_str() == "2" => {
                    self.heartbeats += 1;
                    self.say("3").await;
                }
                Message::Text(text) => return text.to_string(),
                Message::Close(_) => return "closed".to_owned(),
                _ => {}
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Incoming {
        let packet = self.packet().await;
        let incoming = read(&packet);
        if let Incoming::Event(name, data) = &incoming {
            self.seen.push((name.clone(), data.clone()));
        }
        incoming
    }

    pub(crate) async fn emit(&mut self, name: &str, data: Value) {
        self.say(&format!("42{}", json!([name, data]))).await;
    }

    /// Emits and waits for the acknowledgement; what comes before it is kept in `seen`.
    pub(crate) async fn ask(&mut self, name: &str, data: Value) -> Value {
        self.acks += 1;
        let number = self.acks;
        self.say(&format!("42{number}{}", json!([name, data]))).await;
        loop {
            if let Incoming::Ack(found, answer) = self.next().await {
                assert_eq!(found, number);
                return answer;
            }
        }
    }

    /// Reads until an event of this name, which is returned.
    pub(crate) async fn until(&mut self, wanted: &str) -> Value {
        loop {
            if let Incoming::Event(name, data) = self.next().await
                && name == wanted
            {
                return data;
            }
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.seen.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// A client that polls.
pub(crate) struct Polling<'a> {
    server: &'a Server,
    path: String,
    pub(crate) handshake: Value,
}

impl Polling<'_> {
    pub(crate) async fn post(&self, packets: &str) {
        let answer = self.server.send("POST", &self.path, &[("Content-Type", "text/plain")], packets).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    }

    /// The packets of one poll, heartbeats answered.
    pub(crate) async fn poll(&self) -> Vec<String> {
        let answer = self.server.get(&self.path).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let mut packets = Vec::new();
        let count = answer.body.split('\u{1e}').count();
        assert!(count <= 16, "python-engineio takes no payload of more than 16 packets: {count}");
        for packet in answer.body.split('\u{1e}') {
            if packet == "2" {
                self.post("3").await;
            } else {
                packets.push(packet.to_owned());
            }
        }
        packets
    }

    pub(crate) async fn until(&self, wanted: &str) -> Vec<Incoming> {
        let mut seen = Vec::new();
        loop {
            for packet in self.poll().await.iter().filter(|packet| !packet.starts_with("40")) {
                seen.push(read(packet));
            }
            if seen.iter().any(|incoming| matches!(incoming, Incoming::Event(name, _) if name == wanted)) {
                return seen;
            }
        }
    }
}
