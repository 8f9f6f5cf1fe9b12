//! The reader's rules, one by one: frames in, events out, written as short lines.

use interline_model::{
    Actor, Answer, AskId, AskKind, Completion, Fact, FailureKind, ForcedEnd, Json, Lane, NoticeLevel, Outcome, Principal, RunId, SessionId,
    StepStatus, Usage,
};
use proptest::prelude::*;

use super::*;

mod explained;
mod generated;
mod rules;

fn actor() -> Actor {
    Actor { principal: Principal::from("anonymous"), surface: Text::from_static("sse") }
}

fn accepted() -> Fact {
    Fact::RunAccepted(Box::new(RunAccepted {
        run: RunId::from_u128(1),
        session: SessionId::from("s"),
        model: Text::from_static("default"),
        input: Vec::new(),
        by: actor(),
        actor: None,
        headless: false,
        output_schema: None,
    }))
}

/// A run that has been accepted, and what came of it.
struct Bench {
    reader: NativeReader,
    events: Vec<Event>,
    shown: usize,
}

impl Bench {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let mut bench = Self { reader: NativeReader::new(settings), events: Vec::new(), shown: 0 };
        bench.fact(accepted());
        bench.shown = 1;
        bench
    }

    fn record(&mut self, body: Body) {
        self.reader.read(&Record { at: 0, body }, &mut self.events);
    }

    fn fact(&mut self, fact: Fact) -> &mut Self {
        self.record(Body::Fact(fact));
        self
    }

    fn frame(&mut self, text: impl Into<Text>) -> &mut Self {
        self.record(Body::Frame(text.into()));
        self
    }

    fn frames(&mut self, texts: &[&str]) -> &mut Self {
        for text in texts {
            self.frame(*text);
        }
        self
    }

    fn end(&mut self) -> &mut Self {
        self.fact(Fact::EndForced(ForcedEnd::UpstreamGone))
    }

    /// What came since the last look, in short.
    fn news(&mut self) -> Vec<String> {
        order::check(&self.events);
        let news = self.events[self.shown..].iter().map(short).collect();
        self.shown = self.events.len();
        news
    }

    /// The whole text and reasoning of a lane.
    fn said(&self, lane: &Lane) -> (String, String) {
        let mut said = (String::new(), String::new());
        for event in self.events.iter().filter(|event| event.lane == *lane) {
            match &event.what {
                What::Text { delta } => said.0.push_str(delta),
                What::Thinking { delta } => said.1.push_str(delta),
                _ => {}
            }
        }
        said
    }
}

fn short(event: &Event) -> String {
    let json = |json: &Option<Json>| json.as_ref().map_or_else(|| "-".to_owned(), |json| json.as_str().to_owned());
    let what = match &event.what {
        What::TurnStarted => "(".to_owned(),
        What::TurnEnded { usage: None } => ")".to_owned(),
        What::TurnEnded { usage: Some(usage) } => format!(") {}+{}", usage.input_tokens, usage.output_tokens),
        What::Text { delta } => format!("'{delta}'"),
        What::Thinking { delta } => format!("~{delta}~"),
        What::ToolStarted { call, name, input } => format!("start {call} {name} {}", json(input)),
        What::ToolInput { call, input } => format!("input {call} {}", input.as_str()),
        What::ToolEnded { call, result, is_error, aborted, .. } => {
            format!("end {call} {result}{}{}", if *is_error { " error" } else { "" }, if *aborted { " aborted" } else { "" })
        }
        What::AskRaised(ask) => {
            format!("ask {} {:?} {} of {}", ask.id, ask.kind, ask.tool_name, ask.call.as_ref().map_or("-", |call| call.as_str()))
        }
        What::AskSettled { ask, outcome } => format!("settled {ask} {outcome:?}"),
        What::Other { name } => format!("other {name}"),
        What::RunEnded(end) => match &end.outcome {
            Outcome::Completed(completion) => format!("completed {completion:?}"),
            Outcome::Interrupted { reason } => format!("interrupted {reason}"),
            Outcome::Failed { kind, message } => format!("failed {}: {message}", kind.token()),
        },
        other => format!("{other:?}"),
    };
    match &event.lane {
        Lane::Root => what,
        Lane::Agent(call) => format!("[{call}] {what}"),
    }
}

// Frames, in short. Without a uuid, so that none is a repeat.

fn said(text: &str) -> String {
    format!(r#"{{"type":"streamlined_text","text":{}}}"#, Json::string(text).as_str())
}

fn within(parent: &str, frame: &str) -> String {
    format!(r#"{{"parent_tool_use_id":"{parent}",{}"#, frame.strip_prefix('{').unwrap())
}

fn stream(event: &str) -> String {
    format!(r#"{{"type":"stream_event","event":{event}}}"#)
}

fn start(id: &str) -> String {
    stream(&format!(r#"{{"type":"message_start","message":{{"id":"{id}"}}}}"#))
}

fn delta(index: u64, kind: &str, member: &str, text: &str) -> String {
    let text = Json::string(text);
    stream(&format!(r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"{kind}_delta","{member}":{}}}}}"#, text.as_str()))
}

fn text(text: &str) -> String {
    delta(0, "text", "text", text)
}

fn block(index: u64, id: &str, name: &str) -> String {
    stream(&format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}}}"#
    ))
}

fn input(index: u64, json: &str) -> String {
    delta(index, "input_json", "partial_json", json)
}

fn stop(index: u64) -> String {
    stream(&format!(r#"{{"type":"content_block_stop","index":{index}}}"#))
}

fn message(id: &str, content: &str) -> String {
    format!(r#"{{"type":"assistant","message":{{"id":"{id}","role":"assistant","content":{content}}}}}"#)
}

fn calls(id: &str, name: &str, input: &str) -> String {
    message("m", &format!(r#"[{{"type":"tool_use","id":"{id}","name":"{name}","input":{input}}}]"#))
}

fn progress(id: &str, name: &str) -> String {
    format!(r#"{{"type":"tool_progress","tool_use_id":"{id}","tool_name":"{name}","elapsed_time_seconds":0}}"#)
}

fn summary(id: &str, result: &str) -> String {
    format!(r#"{{"type":"tool_use_summary","summary":{},"preceding_tool_use_ids":["{id}"]}}"#, Json::string(result).as_str())
}

fn tool_result(id: &str, content: &str, is_error: bool) -> String {
    format!(
        r#"{{"type":"user","message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":{content},"is_error":{is_error}}}]}}}}"#
    )
}

fn permission(request: &str, members: &str) -> String {
    format!(r#"{{"type":"control_request","request_id":"{request}","request":{{"subtype":"can_use_tool",{members}}}}}"#)
}
