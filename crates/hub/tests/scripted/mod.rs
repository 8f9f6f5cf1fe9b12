//! An upstream that does what its prompt says, a reader for which each frame is a word, and a writer of one line for each event.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{
    Access, Action, ActionError, AskConfig, Command, Conduct, Control, Flow, Gate, Hub, Link, LinkError, LinkFuture, Models, Resumption,
    Route, Routes, RunConfig, RunInput, RunPort, Session, SessionSeed, StartRun, Upstream, Wire,
};
use interline_journal::{Journal, JournalConfig, Memory};
use interline_model::{
    Actor, Ask, AskId, AskKind, Body, CellName, Completion, Event, Fact, FailureKind, ForcedEnd, Json, Outcome, Part, Reader, Record,
    RunEnd, RunId, Text, What, Writer,
};

/// What the scripted link does with a prompt.
pub(crate) struct Scripted;

impl Upstream for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Words(Vec::new()))
    }

    fn ask_in(&self, message: &Text) -> Option<Ask> {
        message.starts_with("ask").then(|| ask(message))
    }

    fn wire(&self, action: &Action) -> Option<Wire> {
        match action {
            Action::SetPermissionMode(_) | Action::ContextUsage => Some(Wire::Request(Json::empty_object())),
            Action::SetEnvironment(_) => Some(Wire::Message(Text::from_static("environment"))),
            _ => None,
        }
    }

    fn open(&self, _: &SessionSeed) -> Arc<dyn Link> {
        Arc::new(Self)
    }
}

impl Link for Scripted {
    fn run(self: Arc<Self>, input: RunInput, mut port: RunPort) -> LinkFuture {
        Box::pin(async move {
            match input.text().as_str() {
                "refuse" => {
                    return Err(LinkError::Refused { kind: FailureKind::EngineNotReady, message: "the upstream is down".to_owned() });
                }
                "leave" => return Ok(()),
                "panic" => panic!("a link broke"),
                "silent" => port.over().cancelled().await,
                // The upstream takes it, says two words, and waits.
                "attach" => {
                    port.attached(Json::from_value(&serde_json::json!({ "at": 2 })));
                    for word in ["one", "two"] {
                        let _ = port.deliver(Text::from_static(word));
                    }
                    port.over().cancelled().await;
                }
                "attach-and-ask" => {
                    port.attached(Json::empty_object());
                    let _ = port.deliver(Text::from_static("ask"));
                    port.over().cancelled().await;
                }
                "nulls" => {
                    while port.deliver(Text::from_static("null")) == Flow::Go {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                "ask" => {
                    assert_eq!(port.deliver(Text::from_static("ask")), Flow::Go);
                    let command = port.command().await;
                    assert_eq!(port.deliver(Text::from(format!("{command:?}"))), Flow::Go);
                    assert_eq!(port.deliver(Text::from_static("end")), Flow::Over);
                }
                "ask-question" => {
                    assert_eq!(port.deliver(Text::from_static("ask-question")), Flow::Go);
                    let command = port.command().await;
                    assert_eq!(port.deliver(Text::from(format!("{command:?}"))), Flow::Go);
                    assert_eq!(port.deliver(Text::from_static("end")), Flow::Over);
                }
                // What it is told, until it is told to stop.
                "obey" => loop {
                    let said = match port.command().await {
                        Command::Stop => "end".to_owned(),
                        Command::Control(Control { reply, .. }) => {
                            let _ = reply.send(Err(ActionError::Refused { status: None, message: "not here".to_owned() }));
                            "refused".to_owned()
                        }
                        command => format!("{command:?}"),
                    };
                    if port.deliver(Text::from(said)) == Flow::Over {
                        break;
                    }
                },
                // Takes answers, and never says a word of it.
                "mute" => {
                    assert_eq!(port.deliver(Text::from_static("ask")), Flow::Go);
                    port.over().cancelled().await;
                }
                words => {
                    for word in words.split(' ') {
                        let _ = port.deliver(Text::from(word));
                    }
                }
            }
            Ok(())
        })
    }

    fn takes_up(&self) -> bool {
        true
    }

    fn take_up(self: Arc<Self>, resumption: Resumption, mut port: RunPort) -> LinkFuture {
        Box::pin(async move {
            port.link_back();
            let _ = port.deliver(Text::from(format!("again-after-{}-frames", resumption.frames.len())));
            if resumption.frames.iter().any(|frame| frame.starts_with("ask")) {
                let command = port.command().await;
                let _ = port.deliver(Text::from(format!("{command:?}")));
            }
            let _ = port.deliver(Text::from_static("end"));
            Ok(())
        })
    }

    fn close(self: Arc<Self>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {})
    }
}

/// `ask`, or `ask-KIND` of another kind.
fn ask(message: &Text) -> Ask {
    Ask {
        id: AskId::from("q1"),
        kind: if message.ends_with("question") { AskKind::Question } else { AskKind::Permission },
        call: None,
        tool_name: Text::from_static("Bash"),
        message: None,
        input: Json::empty_object(),
        questions: Vec::new(),
        suggestions: None,
    }
}

/// Each frame is a word of text; `end` ends the run, `ask` asks.
pub(crate) struct Words(Vec<AskId>);

impl Reader for Words {
    fn read(&mut self, record: &Record, events: &mut Vec<Event>) {
        let end = |outcome| What::RunEnded(Box::new(RunEnd::synthesised(outcome)));
        let what = match &record.body {
            Body::Frame(text) if &**text == "null" => What::Other { name: Text::from_static("malformed") },
            Body::Frame(text) if &**text == "end" => end(Outcome::Completed(Completion::EndTurn)),
            Body::Frame(text) if text.starts_with("ask") && self.0.is_empty() => What::AskRaised(Box::new(ask(text))),
            Body::Frame(text) if text.starts_with("ask") => return,
            Body::Frame(text) => What::Text { delta: text.clone() },
            Body::Fact(Fact::RunAccepted(run)) => What::RunStarted { run: run.run, session: run.session.clone(), model: run.model.clone() },
            Body::Fact(Fact::EndForced(ForcedEnd::StopGraceOver)) => end(Outcome::Interrupted { reason: Text::from_static("user") }),
            Body::Fact(Fact::EndForced(why)) => {
                end(Outcome::Failed { kind: FailureKind::MissingTerminalEvent, message: Text::from(format!("{why:?}")) })
            }
            Body::Fact(Fact::AskUnconfirmed { .. }) => What::Text { delta: Text::from_static("unconfirmed") },
            Body::Fact(Fact::Noticed { code, .. }) => What::Text { delta: code.clone() },
            Body::Fact(Fact::StopRequested { .. }) => What::Text { delta: Text::from_static("stop") },
            Body::Fact(Fact::AskDecided { ask, .. }) => {
                self.0.push(ask.clone());
                return;
            }
            Body::Fact(_) => return,
        };
        events.push(Event::root(what));
    }
}

/// One line for each event.
pub(crate) struct Lines;

impl Writer for Lines {
    type Item = String;

    fn write(&mut self, _: &Record, events: &[Event], items: &mut Vec<String>) {
        items.extend(events.iter().map(|event| match &event.what {
            What::Text { delta } => delta.to_string(),
            What::RunStarted { .. } => "start".to_owned(),
            What::RunEnded(_) => "over".to_owned(),
            other => format!("{other:?}").chars().take(9).collect(),
        }));
    }
}

pub(crate) fn hub() -> (Arc<Hub>, Access) {
    hub_with(RunConfig::default())
}

pub(crate) fn hub_with(run: RunConfig) -> (Arc<Hub>, Access) {
    hub_of(run, AskConfig { permission_ms: 150, form_ms: 150, ..AskConfig::default() }, Conduct::default())
}

pub(crate) fn hub_of(run: RunConfig, ask: AskConfig, conduct: Conduct) -> (Arc<Hub>, Access) {
    hub_on(Arc::new(Memory::default()), JournalConfig::default(), interline_hub::Durability::Memory, run, ask, conduct)
}

pub(crate) fn hub_on(
    journal: Arc<dyn Journal>,
    keeping: JournalConfig,
    durability: interline_hub::Durability,
    run: RunConfig,
    ask: AskConfig,
    conduct: Conduct,
) -> (Arc<Hub>, Access) {
    let run = RunConfig { stop_grace_ms: 50, max_idle_ms: 400, max_active: 2, ..run };
    let route = Route { cell: CellName::from("default"), upstream: Arc::new(Scripted), models: Models::default(), conduct, durability };
    let hub = Arc::new(Hub::new(Gate::Open, Routes::new(vec![route]), run, ask, journal).keeping(keeping));
    let access = hub.admit(None).unwrap();
    (hub, access)
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

pub(crate) fn me(access: &Access) -> Actor {
    Actor { principal: access.principal().clone(), surface: Text::from_static("test") }
}

pub(crate) async fn lines(session: &Arc<Session>, run: RunId) -> Vec<String> {
    let mut tail = session.projection("", || Lines).run_tail(run, 1).unwrap();
    let mut lines = Vec::new();
    while let Some(batch) = tail.next(3).await {
        assert_eq!(batch.first, lines.len() as u64 + 1);
        lines.extend(batch.items);
    }
    lines
}
