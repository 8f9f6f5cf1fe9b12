//! A hub with one upstream, a simulator behind it, and somebody who watches.

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{Access, AskConfig, Conduct, Gate, Hub, Models, Route, Routes, RunConfig, RunStatus, Secret, Session, StartRun};
use interline_journal::{Durability, Journal, Memory};
use interline_model::{
    Actor, Answer, Ask, AskOutcome, Body, CellName, Event, Fact, FailureKind, Outcome, Part, Record, RunId, Text, What, Writer,
};
use interline_sim::{Options, Pace, Simulator, Voice};
use interline_upstream_native::{Kind, LinkConfig, Mode, UpstreamConfig, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the watcher writes down of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    Start,
    Text(String),
    Tool(String),
    ToolEnd {
        result: String,
        is_error: bool,
    },
    Ask,
    Settled(AskOutcome),
    Lost,
    Back,
    /// Something may be missing.
    Missed,
    End(Outcome),
    Other,
}

struct Lines;

impl Writer for Lines {
    type Item = Line;

    fn write(&mut self, record: &Record, events: &[Event], lines: &mut Vec<Line>) {
        match &record.body {
            Body::Fact(Fact::LinkLost) => lines.push(Line::Lost),
            Body::Fact(Fact::LinkBack) => lines.push(Line::Back),
            _ => {}
        }
        lines.extend(events.iter().map(|event| match &event.what {
            What::RunStarted { .. } => Line::Start,
            What::Text { delta } => Line::Text(delta.to_string()),
            What::ToolStarted { name, .. } => Line::Tool(name.to_string()),
            What::ToolEnded { result, is_error, .. } => Line::ToolEnd { result: result.to_string(), is_error: *is_error },
            What::AskRaised(_) => Line::Ask,
            What::AskSettled { outcome, .. } => Line::Settled(*outcome),
            What::Notice { code, .. } if &**code == "frames_missed" => Line::Missed,
            What::RunEnded(end) => Line::End(end.outcome.clone()),
            _ => Line::Other,
        }));
    }
}

/// The frames themselves.
struct Frames;

impl Writer for Frames {
    type Item = String;

    fn write(&mut self, record: &Record, _: &[Event], frames: &mut Vec<String>) {
        if let Body::Frame(text) = &record.body {
            frames.push(text.to_string());
        }
    }
}

pub(crate) struct World {
    pub(crate) hub: Arc<Hub>,
    pub(crate) access: Access,
    pub(crate) sim: Simulator,
    pub(crate) url: String,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Timers at a twentieth of the real ones and less.
pub(crate) fn fast() -> LinkConfig {
    LinkConfig {
        connect_timeout_ms: 1_000,
        request_timeout_ms: 1_500,
        write_timeout_ms: 500,
        liveness_ms: 3_000,
        backoff_first_ms: 20,
        backoff_max_ms: 200,
        attempts: 4,
        token_refresh_ms: 0,
        linger_ms: 20,
        replay_wait_ms: 50,
        sentinel_wait_ms: 2_000,
        resend_ms: 2_000,
        ..LinkConfig::default()
    }
}

pub(crate) fn sim(voice: Voice) -> Options {
    Options { voice, pace: Pace::none(), ..Options::default() }
}

pub(crate) fn config(kind: Kind, url: String) -> UpstreamConfig {
    UpstreamConfig {
        name: "main".to_owned(),
        kind,
        url,
        credential: Some(Secret::new("canary-credential")),
        mode: Mode::Chat,
        environment_id: None,
        workdir: None,
        pool_tag: None,
        provider_id: None,
    }
}

pub(crate) fn hub(gate: Gate, config: UpstreamConfig, link: LinkConfig) -> Arc<Hub> {
    hub_on(gate, config, link, Arc::new(Memory::default()), Durability::Memory)
}

pub(crate) fn hub_on(gate: Gate, config: UpstreamConfig, link: LinkConfig, journal: Arc<dyn Journal>, durability: Durability) -> Arc<Hub> {
    let run = RunConfig { stop_grace_ms: 400, max_idle_ms: 8_000, recoverable_error_ms: 2_000, ..RunConfig::default() };
    let route = Route {
        cell: CellName::from("default"),
        upstream: upstream(config, link).unwrap(),
        models: Models::default(),
        conduct: Conduct::default(),
        durability,
    };
    let ask = AskConfig { permission_ms: 3_000, form_ms: 3_000, ..AskConfig::default() };
    Arc::new(Hub::new(gate, Routes::new(vec![route]), run, ask, journal))
}

pub(crate) fn request(prompt: &str) -> StartRun {
    StartRun {
        surface: Text::from_static("test"),
        cell: None,
        session: None,
        model: None,
        input: vec![Part::Text(Text::from(prompt))],
        system_prompt: None,
        actor: None,
        headless: false,
        output_schema: None,
        ..StartRun::default()
    }
}

impl World {
    pub(crate) async fn new(options: Options, kind: Kind, mode: Mode, link: LinkConfig) -> Self {
        Self::with(options, link, |url| UpstreamConfig {
            mode,
            environment_id: (mode == Mode::Agent).then(|| "11111111-1111-4111-8111-111111111111".to_owned()),
            ..config(kind, url)
        })
        .await
    }

    pub(crate) async fn with(options: Options, link: LinkConfig, config: impl FnOnce(String) -> UpstreamConfig) -> Self {
        let sim = Simulator::new(options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(sim.clone().serve(listener, stop.clone()));
        let hub = hub(Gate::Open, config(url.clone()), link);
        let access = hub.admit(None).unwrap();
        Self { hub, access, sim, url, stop }
    }

    pub(crate) fn start(&self, prompt: &str) -> Watched {
        Watched::start(&self.hub, &self.access, request(prompt))
    }

    /// A further run of a session.
    pub(crate) fn again(&self, earlier: &Watched, prompt: &str) -> Watched {
        Watched::start(&self.hub, &self.access, StartRun { session: Some(earlier.session.id().clone()), ..request(prompt) })
    }

    /// A further run, as soon as the one before has ended.
    pub(crate) async fn again_when_over(&self, earlier: &Watched, prompt: &str) -> Watched {
        earlier.lines().await;
        self.again(earlier, prompt)
    }

    /// The simulator is gone, with all connections.
    pub(crate) fn shut_down(&self) {
        self.stop.cancel();
    }

    /// Sends `DELETE` past the hub; what comes out is the status.
    pub(crate) async fn delete(&self, path: &str) -> u16 {
        delete(&self.url, path).await
    }

    /// Every socket to the simulator is closed, soon.
    pub(crate) async fn quiet(&self) {
        until("all sockets are closed", || self.sim.stats().open_sockets == 0).await;
    }
}

/// Sends `DELETE`; what comes out is the status.
pub(crate) async fn delete(url: &str, path: &str) -> u16 {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("DELETE {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A run, and whoever watches it.
pub(crate) struct Watched {
    pub(crate) session: Arc<Session>,
    pub(crate) run: RunId,
    actor: Actor,
}

impl Watched {
    pub(crate) fn start(hub: &Arc<Hub>, access: &Access, request: StartRun) -> Self {
        let (session, run) = hub.start(access, request).unwrap();
        Self::of(access, session, run)
    }

    pub(crate) fn of(access: &Access, session: Arc<Session>, run: RunId) -> Self {
        let actor = Actor { principal: access.principal().clone(), surface: Text::from_static("test") };
        Self { session, run, actor }
    }

    /// Everything, once the run has ended.
    pub(crate) async fn lines(&self) -> Vec<Line> {
        let mut tail = self.session.projection("", || Lines).run_tail(self.run, 1).unwrap();
        let mut lines = Vec::new();
        let all = async {
            while let Some(batch) = tail.next(1000).await {
                lines.extend(batch.items);
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(20), all).await;
        assert!(ended.is_ok(), "the run does not end: {lines:?}");
        assert_eq!(lines.iter().filter(|line| matches!(line, Line::End(_))).count(), 1, "{lines:?}");
        lines
    }

    /// What there is now, of the whole session.
    pub(crate) fn so_far(&self) -> Vec<Line> {
        self.session.projection("", || Lines).tail(0).ready(100_000)
    }

    /// The frames that were delivered.
    pub(crate) fn frames(&self) -> Vec<String> {
        self.session.projection("", || Frames).tail(0).ready(100_000)
    }

    pub(crate) async fn outcome(&self) -> Outcome {
        end_of(&self.lines().await)
    }

    /// The kind and sentence of a failed run.
    pub(crate) async fn failure(&self) -> (FailureKind, String) {
        match self.outcome().await {
            Outcome::Failed { kind, message } => (kind, message.to_string()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn status(&self) -> RunStatus {
        self.lines().await;
        self.session.run_info(self.run).unwrap().status
    }

    pub(crate) fn stop(&self) {
        self.session.stop(Some(self.run), self.actor.clone());
    }

    /// Waits for the text to hold `part`.
    pub(crate) async fn says(&self, part: &str) {
        until(part, || text_of(&self.so_far()).contains(part)).await;
    }

    pub(crate) async fn asked(&self) -> Arc<Ask> {
        until("an ask is pending", || !self.session.pending_asks().is_empty()).await;
        self.session.pending_asks().remove(0).ask
    }

    pub(crate) fn answer(&self, ask: &Ask, answer: Answer) -> AskOutcome {
        self.session.answer(&ask.id, answer, self.actor.clone()).unwrap()
    }

    pub(crate) fn allow(&self, ask: &Ask) {
        self.answer(ask, Answer::Allow { input: None, always: false });
    }
}

pub(crate) fn text_of(lines: &[Line]) -> String {
    lines.iter().filter_map(|line| if let Line::Text(text) = line { Some(text.as_str()) } else { None }).collect()
}

pub(crate) fn end_of(lines: &[Line]) -> Outcome {
    match lines.last() {
        Some(Line::End(outcome)) => outcome.clone(),
        _ => panic!("{lines:?}"),
    }
}

pub(crate) fn is_completed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed(_))
}

pub(crate) fn is_interrupted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Interrupted { .. })
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited for too long: {what}");
}
