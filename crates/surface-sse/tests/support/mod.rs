//! A hub with a scripted upstream behind a real listener, and a small HTTP client that shows every byte.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use interline_hub::{
    Action, AskConfig, Command, Conduct, Gate, Hub, Link, LinkError, LinkFuture, Models, Route, Routes, RunConfig, RunInput, RunPort,
    SecretHash, SessionSeed, Token, Upstream, Wire,
};
use interline_journal::Memory;
use interline_model::{
    Answer, Ask, AskId, AskKind, AskOutcome, Body, CallId, CellName, Completion, Event, Fact, FailureKind, ForcedEnd, Json, NoticeLevel,
    Outcome, PlanStep, Question, Reader, Record, RunEnd, StepStatus, Text, What,
};
use interline_native::{NativeReader, Settings};
use interline_surface_sse::{Config, router};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The heartbeat of a stream with extra events.
pub(crate) const PING: &str = "data: {\"type\":\"ping\"}\n\n";

/// An upstream that does what the prompt says, line by line: `gate` waits for the test, `refuse` gives up, `hang-up` goes away, all
/// else is a frame.
pub(crate) struct Script {
    pub(crate) gate: Semaphore,
    pub(crate) inputs: Mutex<Vec<RunInput>>,
    pub(crate) answers: Mutex<Vec<(AskId, Answer)>>,
    /// What was asked of it on the connection of a run.
    pub(crate) asked: Mutex<Vec<String>>,
}

/// A server that is not at its defaults.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) gate: Gate,
    /// The upstream's frames are native ones.
    pub(crate) native: bool,
    pub(crate) conduct: Conduct,
    pub(crate) run: RunConfig,
    pub(crate) ask: AskConfig,
}

impl Default for Setup {
    fn default() -> Self {
        let (config, conduct) = (Config::default(), Conduct::default());
        Self { config, gate: Gate::Open, native: false, conduct, run: RunConfig::default(), ask: AskConfig::default() }
    }
}

pub(crate) struct Scripted {
    script: Arc<Script>,
    /// Its frames are native ones.
    native: bool,
}

impl Upstream for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn reader(&self) -> Box<dyn Reader> {
        if self.native { Box::new(NativeReader::new(Settings::default())) } else { Box::new(ScriptReader) }
    }

    /// Everything but stopping a task, in Rust's words.
    fn wire(&self, action: &Action) -> Option<Wire> {
        match action {
            Action::Compact | Action::Cost | Action::Upload(_) | Action::Resume | Action::StopTask(_) => None,
            Action::SetEnvironment(_) => Some(Wire::Message(format!("{action:?}").into())),
            action => Some(Wire::Request(Json::from_value(&serde_json::json!({"request": format!("{action:?}")})))),
        }
    }

    fn open(&self, _: &SessionSeed) -> Arc<dyn Link> {
        Arc::new(ScriptLink(self.script.clone()))
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
        for line in script.lines() {
            if line == "hang-up" {
                return Ok(());
            }
            if line == "refuse-token" {
                return Err(LinkError::Refused { kind: FailureKind::AuthRequired, message: "the token has expired".into() });
            }
            if line == "refuse" {
                return Err(LinkError::Refused { kind: FailureKind::EngineNotReady, message: "nobody is there".into() });
            }
            if line != "gate" {
                let _ = port.deliver(line.to_owned().into());
            }
            if line == "gate" || line.starts_with("ask ") {
                let over = port.over().clone();
                loop {
                    tokio::select! {
                        permit = self.gate.acquire(), if line == "gate" => permit.unwrap().forget(),
                        command = port.command() => match command {
                            Command::Stop => {
                                let native = r#"{"type":"result","subtype":"success","is_error":false,"stop_reason":"interrupted"}"#;
                                let _ = port.deliver(if script.starts_with('{') { native } else { "interrupted" }.into());
                                return Ok(());
                            }
                            Command::Answer { ask, answer } => self.answers.lock().unwrap().push((ask.id.clone(), answer)),
                            Command::Frame(text) => {
                                self.asked.lock().unwrap().push(text.to_string());
                                continue;
                            }
                            Command::Control(control) => {
                                self.asked.lock().unwrap().push(control.request.as_str().to_owned());
                                let _ = control.reply.send(Ok(Json::parse(r#"{"told":1.0}"#).unwrap()));
                                continue;
                            }
                        },
                        () = over.cancelled() => return Ok(()),
                    }
                    break;
                }
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
                _ => Outcome::Failed { kind: FailureKind::MissingTerminalEvent, message: "".into() },
            }),
            Body::Fact(_) => return,
            Body::Frame(frame) => match meaning(frame) {
                Some(what) => what,
                None => return,
            },
        };
        events.push(Event::root(what));
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
        "turn_end" => What::TurnEnded { usage: None },
        "notice" => What::Notice { level: NoticeLevel::Info, code: "x".into(), text: rest().into() },
        "settled" => What::AskSettled { ask: AskId::from(rest()), outcome: AskOutcome::Void },
        "plan" => What::PlanChanged { steps: vec![PlanStep { id: "1".into(), title: rest().into(), status: StepStatus::Running }] },
        "ask" => What::AskRaised(Box::new(ask(&rest()))),
        "interrupted" => ended(Outcome::Interrupted { reason: "user_interrupt".into() }),
        "done" => ended(Outcome::Completed(Completion::EndTurn)),
        _ => return None,
    })
}

/// `permission ID`, `question ID` or `form ID`.
fn ask(words: &str) -> Ask {
    let (kind, id) = words.split_once(' ').unwrap();
    let question = |text: &str| Question { question: text.to_owned().into(), header: None, options: Vec::new(), multi_select: false };
    Ask {
        id: AskId::from(id.to_owned()),
        kind: match kind {
            "permission" => AskKind::Permission,
            "question" => AskKind::Question,
            _ => AskKind::Form,
        },
        call: None,
        tool_name: "exec".into(),
        message: None,
        input: Json::parse(r#"{"command":"ls"}"#).unwrap(),
        questions: if kind == "question" { vec![question("Which?")] } else { Vec::new() },
        suggestions: None,
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) hub: Arc<Hub>,
    pub(crate) script: Arc<Script>,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) async fn open(config: Config) -> Self {
        Self::with(Gate::Open, config, false).await
    }

    /// Two tokens: `alpha` may use every cell, `beta` only `other`.
    pub(crate) async fn guarded(config: Config) -> Self {
        let token = |name: &str, cell: &str| Token::new(name, SecretHash::of(name), vec![CellName::from(cell.to_owned())]);
        Self::with(Gate::Tokens(vec![token("alpha", "*"), token("beta", "other"), token("gamma", "*")]), config, false).await
    }

    /// The upstream's frames are native ones.
    pub(crate) async fn native(config: Config) -> Self {
        Self::with(Gate::Open, config, true).await
    }

    async fn with(gate: Gate, config: Config, native: bool) -> Self {
        Self::of(Setup { gate, config, native, ..Setup::default() }).await
    }

    pub(crate) async fn of(setup: Setup) -> Self {
        let Setup { config, gate, native, conduct, run, ask } = setup;
        let (inputs, answers, asked) = (Mutex::default(), Mutex::default(), Mutex::default());
        let script = Arc::new(Script { gate: Semaphore::new(0), inputs, answers, asked });
        let upstream: Arc<dyn Upstream> = Arc::new(Scripted { script: script.clone(), native });
        let models = Models { default: Some("house".into()), map: [("gpt-4o".to_owned(), "real".to_owned())].into() };
        let route = |cell: &str| Route {
            cell: CellName::from(cell.to_owned()),
            upstream: upstream.clone(),
            models: models.clone(),
            conduct: conduct.clone(),
            durability: interline_hub::Durability::Memory,
        };
        let routes = Routes::new(vec![route("my-cell"), route("other")]);
        let hub = Arc::new(Hub::new(gate, routes, run, ask, Arc::new(Memory::default())));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = router(hub.clone(), config);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { hub, script, address }
    }

    /// Sends a request; the answer's head has arrived when this returns.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answered {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let host =
            headers.iter().find(|(name, _)| *name == "Host").map_or_else(|| self.address.to_string(), |(_, host)| (*host).to_owned());
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers.iter().filter(|(name, _)| *name != "Host") {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        socket.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        Answered::read_head(socket, method).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answered {
        self.send("POST", path, &[], body).await
    }

    /// Starts a run that plays this script.
    pub(crate) async fn run(&self, script: &str) -> Answered {
        self.post("/cells/my-cell/run", &run_body(script, "")).await
    }

    pub(crate) fn open_gate(&self) {
        self.script.gate.add_permits(1);
    }
}

/// The body of a run; `more` is further members, each behind a comma.
pub(crate) fn run_body(script: &str, more: &str) -> String {
    let text = serde_json::to_string(script).unwrap();
    format!(r#"{{"actor":"user-001","model":"gpt-4o","messages":[{{"role":"user","content":[{{"type":"text","text":{text}}}]}}]{more}}}"#)
}

/// An answer, its body read as it comes.
pub(crate) struct Answered {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    socket: BufReader<TcpStream>,
    chunked: bool,
    left: usize,
    /// Whether the body ended as HTTP says it should.
    pub(crate) ended_cleanly: bool,
}

impl Answered {
    async fn read_head(socket: TcpStream, method: &str) -> Self {
        let mut socket = BufReader::new(socket);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            tokio::time::timeout(PATIENCE, socket.read_line(&mut line)).await.expect("an answer").unwrap();
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status = lines.remove(0).split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .iter()
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        let mut answered = Self { status, headers, socket, chunked: false, left: 0, ended_cleanly: false };
        answered.chunked = answered.header("transfer-encoding") == Some("chunked");
        answered.left = answered.header("content-length").map_or(0, |length| length.parse().unwrap());
        if method == "HEAD" {
            (answered.chunked, answered.left) = (false, 0);
        }
        answered
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    pub(crate) fn run_id(&self) -> String {
        self.header("x-run-id").unwrap().to_owned()
    }

    /// The next piece of the body, as the server framed it; empty at its end.
    pub(crate) async fn piece(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.read_piece()).await.expect("a piece of the body")
    }

    async fn read_piece(&mut self) -> String {
        if self.chunked {
            let mut line = String::new();
            if self.socket.read_line(&mut line).await.unwrap_or(0) == 0 {
                return String::new();
            }
            self.left = usize::from_str_radix(line.trim_end(), 16).unwrap();
            if self.left == 0 {
                self.ended_cleanly = true;
                return String::new();
            }
        }
        let mut bytes = vec![0; std::mem::take(&mut self.left)];
        if self.socket.read_exact(&mut bytes).await.is_err() {
            return String::new();
        }
        if self.chunked {
            let mut end = [0; 2];
            self.socket.read_exact(&mut end).await.unwrap();
            assert_eq!(&end, b"\r\n");
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Reads until the body holds `mark`.
    pub(crate) async fn until(&mut self, mark: &str) -> String {
        let mut body = String::new();
        while !body.contains(mark) {
            let piece = self.piece().await;
            assert!(!piece.is_empty(), "the body ended without {mark}: {body}");
            body.push_str(&piece);
        }
        body
    }

    /// The rest of the body.
    pub(crate) async fn rest(&mut self) -> String {
        let mut body = String::new();
        loop {
            match &*self.piece().await {
                "" => return body,
                piece => body.push_str(piece),
            }
        }
    }

    /// What the body holds so far, up to the first heartbeat.
    pub(crate) async fn until_idle(&mut self) -> String {
        let mut body = String::new();
        loop {
            match &*self.piece().await {
                "data: " | PING => return body,
                piece => body.push_str(piece),
            }
        }
    }

    /// The rest of the body, taken from the socket one byte at a time, as it is without its framing.
    pub(crate) async fn raw_byte_by_byte(&mut self) -> Vec<u8> {
        let mut wire = self.socket.buffer().to_vec();
        let mut byte = [0];
        while !wire.ends_with(b"\r\n0\r\n\r\n") {
            tokio::time::timeout(PATIENCE, self.socket.get_mut().read_exact(&mut byte)).await.expect("a byte").unwrap();
            wire.extend_from_slice(&byte);
        }
        let mut body = Vec::new();
        let mut rest = wire.as_slice();
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            body.extend_from_slice(&rest[line + 2..line + 2 + length]);
            rest = &rest[line + 2 + length + 2..];
        }
        body
    }

    /// The rest of the body as JSON.
    pub(crate) async fn json(mut self) -> serde_json::Value {
        let text = self.rest().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// The events of a body, as the documented clients read them.
pub(crate) fn events(body: &str) -> Vec<serde_json::Value> {
    body.split('\n').filter_map(|line| line.strip_prefix("data: ")).map(|json| serde_json::from_str(json).unwrap()).collect()
}

/// The types of a body's events.
pub(crate) fn types(body: &str) -> Vec<String> {
    events(body).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

/// A text as the hub's facts have it.
pub(crate) fn text(text: &str) -> Text {
    text.to_owned().into()
}
