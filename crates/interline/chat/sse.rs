//! A chat over SSE run events (sse.md): a run is a POST whose body is its events. A lost stream is read on from the next event.

use std::pin::Pin;
use std::time::Duration;

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_core::Stream;
use futures_util::StreamExt as _;
use http::Method;
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use interline_model::{
    Answer, Ask, AskId, AskKind, CallId, Choice, Completion, FormAction, Json, Outcome, Question, Text, What, path_segment,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::guard::{Guard, GuardError};
use super::http::Server;
use super::wire::{ChatError, Say, Wire, failed, tool_ended};

/// How often a lost stream is looked for again without a new event in between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// What the requests say beside the prompt.
pub(crate) struct Options {
    pub(crate) cell: String,
    pub(crate) session: Option<String>,
    pub(crate) model: Option<String>,
}

type Events = Pin<Box<dyn Stream<Item = Result<Event, EventStreamError<GuardError<hyper::Error>>>> + Send>>;

/// One run as this client sees it.
struct Run<'a> {
    server: &'a Server,
    cell: String,
    id: Option<String>,
    /// Events seen: the next one's number is one more.
    seen: u64,
}

pub(crate) async fn talk(server: Server, options: Options, mut wire: Wire) -> Result<(), ChatError> {
    let cell = format!("/cells/{}", path_segment(&options.cell));
    let mut session = options.session;
    if let Some(id) = &session {
        // A run may name a session that there is not yet. Whoever wanted to continue one should know.
        let known = server.call(Method::GET, &format!("{cell}/sessions/{}/plan", path_segment(id)), None).await;
        if matches!(&known, Err(ChatError::Refused(why)) if why.starts_with("404") && why.contains(id.as_str())) {
            wire.note(format!("new session {id}"));
        }
    }
    while let Some(prompt) = wire.prompt().await {
        let body = json!({
            "actor": "terminal",
            "model": options.model.as_deref().unwrap_or("default"),
            "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
        });
        let mut body = body;
        if let (Some(session), Some(body)) = (&session, body.as_object_mut()) {
            body.insert("session_id".to_owned(), session.as_str().into());
        }
        let response = server.open(Method::POST, &format!("{cell}/run"), Some(&body)).await?;
        let mut run = Run { server: &server, cell: cell.clone(), id: None, seen: 0 };
        if !run.follow(decoded(response), &mut wire, &mut session).await? {
            return Ok(());
        }
    }
    Ok(())
}

fn decoded(response: http::Response<Incoming>) -> Events {
    Box::pin(Guard::new(BodyDataStream::new(response.into_body())).eventsource())
}

impl Run<'_> {
    /// Follows the run to its end; `false` once the person has left.
    async fn follow(&mut self, mut events: Events, wire: &mut Wire, session: &mut Option<String>) -> Result<bool, ChatError> {
        let mut failures = 0;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        failures = 0;
                        self.seen += 1;
                        let event: Value = serde_json::from_str(&event.data).map_err(|_| ChatError::Protocol(format!("an event is no JSON: {}", event.data)))?;
                        if event["type"] == "run_start" {
                            self.id = event["run_id"].as_str().map(str::to_owned);
                            *session = event["session_id"].as_str().map(str::to_owned).or(session.take());
                        }
                        let mut over = false;
                        for what in meaning(&event) {
                            over |= matches!(what, What::RunEnded(_));
                            wire.tell(what);
                        }
                        if over {
                            return Ok(true);
                        }
                    }
                    lost => {
                        let why = lost.and_then(Result::err).map_or_else(|| "the stream ended before the run".to_owned(), |error| error.to_string());
                        failures += 1;
                        let Some(id) = self.id.clone().filter(|_| failures <= ATTEMPTS) else {
                            wire.end(failed(why));
                            return Ok(true);
                        };
                        wire.note(format!("{why}; reading on from event {}", self.seen + 1));
                        sleep(PAUSE).await;
                        let path = format!("{}/runs/{}/events?from_seq={}", self.cell, path_segment(&id), self.seen + 1);
                        match self.server.open(Method::GET, &path, None).await {
                            Ok(response) => events = decoded(response),
                            Err(ChatError::Unreachable(_)) => events = Box::pin(futures_util::stream::empty()),
                            Err(error) => return Err(error),
                        }
                    }
                },
                say = wire.hear() => match say {
                    None => return Ok(false),
                    Some(Say::Prompt(_)) => wire.note("the run goes on; send it again when it has ended"),
                    Some(Say::Stop) => {
                        if let Some(id) = &self.id {
                            let path = format!("{}/runs/{}/interrupt", self.cell, path_segment(id));
                            self.post(&path, &json!({"reason": "user"}), wire).await;
                        }
                    }
                    Some(Say::Answer(ask, answer)) => {
                        let path = format!("{}/hitl/{}", self.cell, path_segment(ask.id.as_str()));
                        self.post(&path, &body_of(&answer), wire).await;
                    }
                },
            }
        }
    }

    async fn post(&self, path: &str, body: &Value, wire: &Wire) {
        if let Err(error) = self.server.call(Method::POST, path, Some(body)).await {
            wire.note(error.to_string());
        }
    }
}

/// The body that says an answer (sse.md §1.5).
fn body_of(answer: &Answer) -> Value {
    let word = |allow: bool| if allow { "allow" } else { "deny" };
    match answer {
        Answer::Allow { always, .. } => json!({"grant": "allow", "scope": if *always { "always" } else { "once" }}),
        Answer::Deny { message } => json!({"grant": "deny", "feedback": &**message}),
        Answer::Choose(answers) => {
            let answers = answers.iter().map(|(question, label)| (question.to_string(), Value::from(&**label))).collect();
            json!({"answers": Value::Object(answers)})
        }
        Answer::Form { action, content: None } => json!({"grant": word(*action == FormAction::Accept)}),
        Answer::Form { action, content: Some(content) } => {
            json!({"grant": word(*action == FormAction::Accept), "content": content.to_value()})
        }
        Answer::Native(body) => body.to_value(),
    }
}

/// What an event means; unknown ones mean nothing.
fn meaning(event: &Value) -> Vec<What> {
    let text = |name: &str| Text::from(event[name].as_str().unwrap_or_default());
    let call = || CallId::from(text("call_id"));
    vec![match event["type"].as_str().unwrap_or_default() {
        "turn_start" => What::TurnStarted,
        "stream_delta" => What::Text { delta: text("content") },
        "thinking_delta" => What::Thinking { delta: text("content") },
        "tool_start" => What::ToolStarted { call: call(), name: text("tool_name"), input: Some(Json::from_value(&event["arguments"])) },
        "tool_progress" => What::ToolOutput { call: call(), delta: text("output") },
        "tool_end" => tool_ended(
            event["call_id"].as_str().unwrap_or_default(),
            event["result"].as_str().unwrap_or_default().to_owned(),
            event["is_error"] == true,
        ),
        "approval_request" => What::AskRaised(Box::new(ask(event))),
        "done" if event["reason"] == "context_cancelled" => ended(Outcome::Interrupted { reason: text("reason") }),
        "done" => {
            ended(Outcome::Completed(if event["reason"] == "budget_exhausted" { Completion::MaxBudget } else { Completion::EndTurn }))
        }
        "interrupted" => ended(Outcome::Interrupted { reason: text("reason") }),
        "error" => ended(failed(text("error"))),
        _ => return Vec::new(),
    }]
}

fn ended(outcome: Outcome) -> What {
    What::RunEnded(Box::new(interline_model::RunEnd::synthesised(outcome)))
}

/// An `approval_request` as what it is: a question or a form shows by its arguments (sse.md A10).
fn ask(event: &Value) -> Ask {
    let input = &event["arguments"];
    let questions = questions(&input["questions"]);
    let kind = if !questions.is_empty() {
        AskKind::Question
    } else if input["requested_schema"].is_object() {
        AskKind::Form
    } else if input["mode"] == "url" && input["url"].is_string() {
        AskKind::Link
    } else {
        AskKind::Permission
    };
    Ask {
        id: AskId::from(event["request_id"].as_str().unwrap_or_default()),
        kind,
        call: None,
        tool_name: Text::from(event["tool_name"].as_str().unwrap_or_default()),
        message: input["message"].as_str().filter(|_| matches!(kind, AskKind::Form | AskKind::Link)).map(Text::from),
        input: Json::from_value(input),
        questions,
        suggestions: None,
    }
}

/// Questions as the question tool's input lists them.
pub(crate) fn questions(list: &Value) -> Vec<Question> {
    let text = |value: &Value| Text::from(value.as_str().unwrap_or_default());
    let option = |option: &Value| Choice {
        label: option.as_str().map_or_else(|| text(&option["label"]), Text::from),
        description: text(&option["description"]),
    };
    let question = |question: &Value| Question {
        question: text(&question["question"]),
        header: question["header"].as_str().map(Text::from),
        options: question["options"].as_array().into_iter().flatten().map(option).collect(),
        multi_select: question["multiSelect"] == true,
    };
    list.as_array().into_iter().flatten().map(question).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_shows_by_its_arguments() {
        let kind = |arguments: Value| ask(&json!({"request_id": "r", "tool_name": "t", "arguments": arguments})).kind;
        assert_eq!(kind(json!({"command": "ls"})), AskKind::Permission);
        assert_eq!(kind(json!({"questions": [{"question": "q", "options": ["a", {"label": "b"}]}]})), AskKind::Question);
        assert_eq!(kind(json!({"requested_schema": {}, "message": "m"})), AskKind::Form);
        assert_eq!(kind(json!({"mode": "url", "url": "https://x"})), AskKind::Link);
    }

    #[test]
    fn events_of_any_shape_are_survived() {
        for event in [
            json!(null),
            json!([]),
            json!({"type": 7}),
            json!({"type": "new"}),
            json!({"type": "tool_end"}),
            json!({"type": "approval_request"}),
        ] {
            meaning(&event);
        }
        let end = meaning(&json!({"type": "done", "reason": "context_cancelled"}));
        assert!(matches!(&end[..], [What::RunEnded(end)] if matches!(end.outcome, Outcome::Interrupted { .. })));
    }
}
