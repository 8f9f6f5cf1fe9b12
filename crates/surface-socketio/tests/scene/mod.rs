//! Builds records and events for the writer's tests, and writes them.

#![allow(dead_code, reason = "each test program uses its own part")]

use interline_model::{
    Actor, Answer, Ask, AskId, AskKind, AskOutcome, Body, CallId, Choice, Completion, Event, Fact, FailureKind, Json, Lane, Outcome, Part,
    Principal, Question, Record, RunAccepted, RunEnd, RunId, SessionId, Text, What, Writer,
};
use interline_surface_socketio::{Options, SocketEvent, SocketWriter};
use serde_json::Value;

pub(crate) const BEGIN: u64 = 1_767_225_601_000;

/// A writer, the time, and what it wrote.
pub(crate) struct Scene {
    pub(crate) writer: SocketWriter,
    pub(crate) now: u64,
    pub(crate) events: Vec<SocketEvent>,
    /// The same, as it is kept for whoever reads late, for tests that look at that.
    pub(crate) kept: Option<Vec<SocketEvent>>,
    /// What was recorded last, for tests that write it otherwise, too.
    pub(crate) last: Option<(Record, Vec<Event>)>,
}

pub(crate) fn actor() -> Actor {
    Actor { principal: Principal::from("tester"), surface: Text::from_static("socketio") }
}

pub(crate) fn root(what: What) -> Event {
    Event::root(what)
}

pub(crate) fn sub(call: &str, what: What) -> Event {
    Event { lane: Lane::Agent(CallId::from(call.to_owned())), what }
}

pub(crate) fn text(delta: &str) -> What {
    What::Text { delta: Text::from(delta.to_owned()) }
}

pub(crate) fn thinking(delta: &str) -> What {
    What::Thinking { delta: Text::from(delta.to_owned()) }
}

pub(crate) fn tool(call: &str, name: &str, input: &str) -> What {
    let input = (!input.is_empty()).then(|| Json::parse(input.to_owned()).unwrap());
    What::ToolStarted { call: CallId::from(call.to_owned()), name: Text::from(name.to_owned()), input }
}

pub(crate) fn tool_ended(call: &str, result: &str, is_error: bool) -> What {
    What::ToolEnded { call: CallId::from(call.to_owned()), result: Text::from(result.to_owned()), raw: None, is_error, aborted: false }
}

/// A result that is more than text.
pub(crate) fn tool_gave(call: &str, raw: &str) -> What {
    let raw = Json::parse(raw.to_owned()).unwrap();
    What::ToolEnded { call: CallId::from(call.to_owned()), result: raw.text(), raw: Some(raw), is_error: false, aborted: false }
}

pub(crate) fn mode(mode: &str) -> What {
    What::SessionChanged { model: None, title: None, mode: Some(Text::from(mode.to_owned())), state: None }
}

pub(crate) fn aborted(call: &str) -> What {
    What::ToolEnded {
        call: CallId::from(call.to_owned()),
        result: Text::from_static("interrupted"),
        raw: None,
        is_error: true,
        aborted: true,
    }
}

pub(crate) fn turn_ended() -> What {
    What::TurnEnded { usage: None }
}

pub(crate) fn ended(outcome: Outcome) -> What {
    What::RunEnded(Box::new(RunEnd::synthesised(outcome)))
}

pub(crate) fn completed() -> What {
    ended(Outcome::Completed(Completion::EndTurn))
}

pub(crate) fn interrupted() -> What {
    ended(Outcome::Interrupted { reason: Text::from_static("user_interrupt") })
}

pub(crate) fn failed(message: &'static str) -> What {
    ended(Outcome::Failed { kind: FailureKind::UpstreamDisconnected, message: Text::from_static(message) })
}

pub(crate) fn ask(id: &str, kind: AskKind, call: Option<&str>) -> Ask {
    let options = |labels: &[&str]| {
        labels.iter().map(|label| Choice { label: Text::from((*label).to_owned()), description: Text::new() }).collect::<Vec<_>>()
    };
    let questions = if kind == AskKind::Question {
        vec![Question {
            question: Text::from_static("Which environment?"),
            header: Some(Text::from_static("Deploy")),
            options: options(&["staging", "production"]),
            multi_select: false,
        }]
    } else {
        Vec::new()
    };
    let input = match kind {
        AskKind::Form => {
            r#"{"message":"Where to?","requested_schema":{"type":"object","properties":{"env":{"type":"string","enum":["a","b"]},"n":{"type":"integer"}},"required":["env"]}}"#
        }
        AskKind::Link => r#"{"message":"Sign in","url":"https://example.com/x"}"#,
        AskKind::Permission => r#"{"command":"make"}"#,
        AskKind::Question => {
            r#"{"questions":[{"question":"Which environment?","header":"Deploy","options":[{"label":"staging"},{"label":"production"}]}]}"#
        }
    };
    Ask {
        id: AskId::from(id.to_owned()),
        kind,
        call: call.map(|call| CallId::from(call.to_owned())),
        tool_name: Text::from_static(if kind == AskKind::Question { "AskUserQuestion" } else { "Bash" }),
        message: None,
        input: Json::parse(input).unwrap(),
        questions,
        suggestions: None,
    }
}

pub(crate) fn raised(id: &str, kind: AskKind, call: Option<&str>) -> What {
    What::AskRaised(Box::new(ask(id, kind, call)))
}

pub(crate) fn settled(id: &str, outcome: AskOutcome) -> What {
    What::AskSettled { ask: AskId::from(id.to_owned()), outcome }
}

impl Scene {
    pub(crate) fn new(options: Options) -> Self {
        Self { writer: SocketWriter::new(options), now: BEGIN, events: Vec::new(), kept: None, last: None }
    }

    /// A session with its first run accepted.
    pub(crate) fn started(options: Options, input: &str) -> Self {
        let mut scene = Self::new(options);
        scene.start(1, vec![Part::Text(Text::from(input.to_owned()))], false);
        scene
    }

    pub(crate) fn start(&mut self, run: u128, input: Vec<Part>, headless: bool) {
        self.start_with(run, input, headless, None);
    }

    pub(crate) fn start_with(&mut self, run: u128, input: Vec<Part>, headless: bool, output_schema: Option<Json>) {
        let (run, session, model) = (RunId::from_u128(run << 100), SessionId::from("sess_1"), Text::from_static("example-model"));
        let accepted =
            RunAccepted { run, session: session.clone(), model: model.clone(), input, by: actor(), actor: None, headless, output_schema };
        self.record(Body::Fact(Fact::RunAccepted(Box::new(accepted))), vec![root(What::RunStarted { run, session, model })]);
    }

    pub(crate) fn record(&mut self, body: Body, events: Vec<Event>) {
        let record = Record { at: self.now, body };
        let before = self.events.len();
        self.writer.write(&record, &events, &mut self.events);
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.events[before..]);
            self.writer.shorten(kept);
        }
        self.last = Some((record, events));
    }

    /// A frame that means these events, `after` milliseconds later.
    pub(crate) fn frame(&mut self, after: u64, events: Vec<Event>) {
        self.now += after;
        self.record(Body::Frame(Text::from_static("{}")), events);
    }

    pub(crate) fn answered(&mut self, after: u64, id: &str, answer: Answer) {
        self.now += after;
        let outcome = answer.outcome();
        let fact = Fact::AskAnswered { ask: AskId::from(id.to_owned()), answer, by: actor() };
        self.record(Body::Fact(fact), vec![root(settled(id, outcome))]);
    }

    pub(crate) fn data(&self) -> Vec<(&'static str, Value)> {
        self.events.iter().map(|event| (event.name, event.data.to_value())).collect()
    }

    /// What happened, in one word each: an event's name, a patch's type, an end's status.
    pub(crate) fn names(&self) -> Vec<String> {
        self.data().iter().map(|(name, data)| summary(name, data)).collect()
    }
}

pub(crate) fn summary(name: &str, data: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    match name {
        "turn:patch" => match word(&data["patch_type"]).as_str() {
            kind @ ("set_status" | "set_tool_status" | "tool_result") => format!("{kind} {}", word(&data["data"]["status"])),
            kind @ "add_content" => format!("{kind} {}", word(&data["data"]["type"])),
            kind @ "add_tool_call" => format!("{kind} {}", word(&data["data"]["status"])),
            kind => kind.to_owned(),
        },
        "turn:start" => format!("{name} {}", word(&data["role"])),
        "turn:end" | "chat:end" | "session:updated" => format!("{name} {}", word(&data["status"])),
        _ => name.to_owned(),
    }
}
