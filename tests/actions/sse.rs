//! The actions on the SSE surface, as `fetch` does them.

use std::time::Duration;

use interline_testkit::{get, post, request};
use serde_json::{Value, json};

use crate::support::{Stand, events, text, token};
use crate::{Action, NO_PLACE, NO_TASKS, NOT_ASKED, WITHOUT_EFFECT, WORKS, said};

const PIXEL: &str =
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

struct Desk<'a> {
    stand: &'a Stand,
    cell: &'a str,
    session: String,
}

/// What comes of an action.
pub(crate) async fn outcome(stand: &Stand, cell: &str, action: Action) -> String {
    let desk = Desk { stand, cell, session: format!("sse-{action:?}") };
    let of_session = |what: &str| format!("{}/cells/{cell}/sessions/{}{what}", stand.base(), desk.session);
    let secret = token(cell);
    match action {
        Action::Start => ended(&desk.run("quick", json!({})).await),
        Action::Continue => {
            desk.run("quick", json!({})).await;
            ended(&desk.run("quick", json!({})).await)
        }
        Action::Stop => {
            let run = desk.begin("fault cancel clean");
            desk.running().await;
            let answer = post(&of_session("/interrupt"), &secret, "").await;
            let seen = run.await.expect("it ends");
            if seen.last().is_some_and(|event| event["type"] == "interrupted") { said(&answer) } else { ended(&seen) }
        }
        Action::Allow => desk.answer("scene permission", |_| json!({"grant": "allow"}), |seen| tool_ended(seen, false)).await,
        Action::Deny => desk.answer("scene permission", |_| json!({"grant": "deny"}), |seen| tool_ended(seen, true)).await,
        Action::Question => desk.answer("scene questions", answers, |seen| text(seen).contains("Answers: ")).await,
        Action::Form => {
            let content = json!({"content": {"env": "staging", "replicas": 2, "notify": true}});
            desk.answer("scene form", |_| content.clone(), |seen| text(seen).contains("accept")).await
        }
        Action::Image => {
            let parts = json!([{"type": "text", "text": "quick"}, {"type": "image", "source": PIXEL}]);
            ended(&desk.run("", json!({"messages": [{"role": "user", "content": parts}]})).await)
        }
        Action::File => {
            let parts = json!([{"type": "text", "text": "quick"}, {"type": "file", "name": "a.txt", "data": "aGVsbG8="}]);
            ended(&desk.run("", json!({"messages": [{"role": "user", "content": parts}]})).await)
        }
        Action::Model => desk.setting(json!({"model": "another"}), "model another").await,
        Action::Mode => desk.setting(json!({"mode": "planning"}), "mode plan").await,
        Action::Thinking => desk.setting(json!({"thinking_level": "low"}), "thinking 4").await,
        Action::Environment => desk.setting(json!({"runtime_env": {"A": "1"}}), "A=1").await,
        Action::ModelMeanwhile => {
            desk.meanwhile(async || said(&post(&of_session("/model"), &secret, r#"{"model":"another"}"#).await)).await
        }
        Action::ModeMeanwhile => desk.meanwhile(async || said(&post(&of_session("/mode"), &secret, r#"{"mode":"plan"}"#).await)).await,
        Action::Context => desk.meanwhile(async || said(&get(&of_session("/context"), &secret).await)).await,
        Action::Rewind => desk.meanwhile(async || said(&post(&of_session("/rewind"), &secret, r#"{"message_id":"m1"}"#).await)).await,
        Action::StopTask => {
            let run = desk.begin("scene task 2500");
            desk.running().await;
            let outcome = said(&post(&of_session("/tasks/bg-1/stop"), &secret, "").await);
            // An agent server without tasks has nothing to wait for.
            let seen = run.await.expect("it ends");
            if text(&seen).contains("no background tasks") { NO_TASKS.to_owned() } else { outcome }
        }
        Action::Compact => {
            desk.run("quick", json!({})).await;
            said(&post(&of_session("/compact"), &secret, "").await)
        }
        Action::Cost => {
            desk.run("quick", json!({})).await;
            said(&get(&of_session("/cost"), &secret).await)
        }
        Action::Whatif | Action::Resume | Action::Coding => NO_PLACE.to_owned(),
    }
}

/// The first option of every question.
fn answers(ask: &Value) -> Value {
    let questions = ask["questions"].as_array().cloned().unwrap_or_default();
    let pairs = questions.iter().map(|question| {
        let label = question["options"][0]["label"].as_str().unwrap_or("yes");
        (question["question"].as_str().unwrap_or_default().to_owned(), Value::from(label))
    });
    json!({"answers": serde_json::Map::from_iter(pairs)})
}

/// How a run ended.
fn ended(events: &[Value]) -> String {
    match events.last() {
        Some(event) if event["type"] == "done" => WORKS.to_owned(),
        Some(event) if event["type"] == "error" => {
            format!("{} {}", event["kind"].as_str().unwrap_or_default(), event["error"].as_str().unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

impl Desk<'_> {
    fn request(&self, prompt: &str, more: Value) -> (String, String) {
        let mut body = json!({"session_id": self.session, "messages": [{"role": "user", "content": prompt}]});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        (format!("{}/cells/{}/run", self.stand.base(), self.cell), body.to_string())
    }

    async fn run(&self, prompt: &str, more: Value) -> Vec<Value> {
        let (url, body) = self.request(prompt, more);
        post_run(&url, self.cell, &body).await
    }

    fn begin(&self, prompt: &str) -> tokio::task::JoinHandle<Vec<Value>> {
        let (url, body) = self.request(prompt, json!({}));
        let cell = self.cell.to_owned();
        tokio::spawn(async move { post_run(&url, &cell, &body).await })
    }

    /// Waits until a run goes on. `false` if it has ended already.
    async fn running(&self) -> bool {
        for _ in 0..1_000 {
            let runs = get(&format!("{}/cells/{}/runs?session_id={}", self.stand.base(), self.cell, self.session), &token(self.cell)).await;
            let runs = runs.json();
            match runs["runs"][0]["status"].as_str() {
                Some("running") => {
                    // Until the agent server has it, too.
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    return true;
                }
                Some(_) => return false,
                None => {}
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no run goes on in {}", self.session);
    }

    /// Does something while a run goes on that listens.
    async fn meanwhile(&self, work: impl AsyncFn() -> String) -> String {
        let run = self.begin("scene settings 2500");
        self.running().await;
        let outcome = work().await;
        run.await.expect("it ends");
        outcome
    }

    /// Starts a run with a setting; the agent says what it was told.
    async fn setting(&self, more: Value, told: &str) -> String {
        let seen = self.run("scene settings 1000", more).await;
        if text(&seen).contains(told) { WORKS.to_owned() } else { WITHOUT_EFFECT.to_owned() }
    }

    /// Starts a run, answers whatever it asks, and looks for what the agent makes of it.
    async fn answer(&self, prompt: &str, answer: impl Fn(&Value) -> Value, shows: impl Fn(&[Value]) -> bool) -> String {
        let run = self.begin(prompt);
        let asks = format!("{}/cells/{}/sessions/{}/asks", self.stand.base(), self.cell, self.session);
        let secret = token(self.cell);
        let mut outcome = None;
        for _ in 0..100 {
            if run.is_finished() {
                break;
            }
            let pending = get(&asks, &secret).await.json();
            for ask in pending["asks"].as_array().into_iter().flatten() {
                let id = ask["request_id"].as_str().unwrap_or_default();
                let url = format!("{}/cells/{}/hitl/{id}", self.stand.base(), self.cell);
                outcome = Some(said(&post(&url, &secret, &answer(ask).to_string()).await));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // One that waits for nobody would wait for long.
        post(&format!("{}/cells/{}/sessions/{}/interrupt", self.stand.base(), self.cell, self.session), &secret, "").await;
        let seen = run.await.expect("it ends");
        match outcome {
            None => NOT_ASKED.to_owned(),
            Some(outcome) if outcome != WORKS => outcome,
            Some(outcome) if shows(&seen) => outcome,
            Some(_) => format!("taken, and the agent said {:?}", text(&seen)),
        }
    }
}

/// Whether a tool ended this way.
fn tool_ended(events: &[Value], is_error: bool) -> bool {
    events.iter().any(|event| event["type"] == "tool_end" && event["is_error"] == is_error)
}

async fn post_run(url: &str, cell: &str, body: &str) -> Vec<Value> {
    let bearer = format!("Bearer {}", token(cell));
    let stream = request("POST", url, &[("content-type", "application/json"), ("authorization", &bearer)], body.to_owned()).await;
    let status = stream.status;
    let body = stream.rest().await;
    if status == 200 {
        return events(&body);
    }
    let refusal: Value = serde_json::from_str(&body).unwrap_or_default();
    vec![json!({"type": "error", "kind": status.to_string(), "error": refusal["error"]})]
}
