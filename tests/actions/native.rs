//! The actions on the native surface: runs, answers and requests on the cloud access surface, and what only the bridge access surface has.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_testkit::{Stream, get, post, request};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::{Stand, token};
use crate::{Action, NO_PLACE, NO_TASKS, NOT_ASKED, WITHOUT_EFFECT, WORKS, said};

const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A conversation.
struct Desk<'a> {
    stand: &'a Stand,
    cell: &'a str,
    thread: String,
}

/// One run of it, on its socket.
struct Run {
    id: String,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    frames: Vec<Value>,
}

/// What comes of an action.
pub(crate) async fn outcome(stand: &Stand, cell: &str, action: Action) -> String {
    let desk = Desk::new(stand, cell).await;
    let beside = |what: &str| format!("{}/v1/code/sessions/{}{what}", stand.base(), desk.thread);
    match action {
        Action::Start => desk.run(json!({"prompt": "quick"})).await,
        Action::Continue => {
            desk.run(json!({"prompt": "quick"})).await;
            desk.run(json!({"prompt": "quick"})).await
        }
        Action::Stop => {
            let mut run = desk.begin("fault cancel clean").await;
            run.until(|frame| frame["type"] == "streamlined_text").await;
            run.say(json!({"type": "control_cancel_request", "request_id": "c"})).await;
            let end = run.end().await;
            if end["stop_reason"] == "interrupted" { WORKS.to_owned() } else { end.to_string() }
        }
        Action::Allow => desk.answer("scene permission", |body| body["behavior"] = "allow".into(), |run| run.tool_ended(false)).await,
        Action::Deny => {
            let deny = |body: &mut Value| *body = json!({"behavior": "deny", "message": "no"});
            desk.answer("scene permission", deny, |run| run.tool_ended(true)).await
        }
        Action::Question => desk.answer("scene questions", answers, |run| run.text().contains("Answers: ")).await,
        Action::Form => {
            let fill = |body: &mut Value| *body = json!({"action": "accept", "content": {"env": "staging", "replicas": 2, "notify": true}});
            desk.answer("scene form", fill, |run| run.text().contains("accept")).await
        }
        Action::Image => desk.run(json!({"prompt": "quick", "images": [{"mime_type": "image/png", "data": PIXEL}]})).await,
        Action::File => {
            let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--b--\r\n";
            let bearer = format!("Bearer {}", token(cell));
            let headers = [("content-type", "multipart/form-data; boundary=b"), ("authorization", bearer.as_str())];
            refusal(request("POST", &beside("/attachments"), &headers, form).await).await
        }
        Action::Model => {
            let mut run = desk.open(json!({"prompt": "scene settings 1000", "model": "another"})).await.expect("it begins");
            run.end().await;
            if run.text().contains("model another") { WORKS.to_owned() } else { WITHOUT_EFFECT.to_owned() }
        }
        Action::Mode => desk.setting(json!({"subtype": "set_permission_mode", "mode": "plan"}), "mode plan").await,
        Action::Thinking => desk.setting(json!({"subtype": "set_max_thinking_tokens", "max_thinking_tokens": 4000}), "thinking 4000").await,
        Action::Environment => {
            let mut run = desk.begin("scene settings 1000").await;
            run.say(json!({"type": "update_environment_variables", "variables": {"A": "1"}})).await;
            run.end().await;
            if run.text().contains("A=1") { WORKS.to_owned() } else { WITHOUT_EFFECT.to_owned() }
        }
        Action::ModelMeanwhile => desk.ask("scene settings 2500", json!({"subtype": "set_model", "model": "another"})).await,
        Action::ModeMeanwhile => desk.ask("scene settings 2500", json!({"subtype": "set_permission_mode", "mode": "plan"})).await,
        Action::Context => desk.ask("scene settings 2500", json!({"subtype": "get_context_usage"})).await,
        Action::Rewind => desk.ask("scene settings 2500", json!({"subtype": "rewind_files", "user_message_id": "m1"})).await,
        Action::StopTask => desk.ask("scene task 2500", json!({"subtype": "stop_task", "task_id": "bg-1"})).await,
        Action::Compact => {
            desk.run(json!({"prompt": "quick"})).await;
            said(&post(&beside("/compact"), &token(cell), "").await)
        }
        Action::Cost => {
            desk.run(json!({"prompt": "quick"})).await;
            said(&get(&beside("/cost"), &token(cell)).await)
        }
        Action::Resume => {
            let run = desk.begin("fault pause").await;
            for _ in 0..100 {
                let pending = get(&format!("{}/v1/agent/sessions/{}/elicitations", stand.base(), run.id), &token(cell)).await.json();
                if pending["elicitations"].as_array().is_some_and(|asks| !asks.is_empty()) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let resumed = said(&post(&format!("{}/v1/agent/sessions/{}/resume", stand.base(), run.id), &token(cell), "").await);
                    return resumed;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            "the agent server does not pause".to_owned()
        }
        Action::Coding => match connect_async(bearing(&format!("{}/v1/code/ws", ws(stand)), cell)).await {
            Ok(_) => WORKS.to_owned(),
            Err(Error::Http(response)) => {
                let body: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap_or_default();
                format!("{} {}", response.status().as_u16(), body["error"].as_str().unwrap_or_default())
            }
            Err(error) => error.to_string(),
        },
        Action::Whatif => NO_PLACE.to_owned(),
    }
}

fn ws(stand: &Stand) -> String {
    stand.base().replacen("http", "ws", 1)
}

fn bearing(url: &str, cell: &str) -> http::Request<()> {
    let mut request = url.into_client_request().expect("a URL");
    request.headers_mut().insert("authorization", format!("Bearer {}", token(cell)).parse().expect("a header"));
    request
}

async fn refusal(stream: Stream) -> String {
    let status = stream.status;
    let body = stream.rest().await;
    if (200..300).contains(&status) {
        return WORKS.to_owned();
    }
    let json: Value = serde_json::from_str(&body).unwrap_or_default();
    format!("{status} {}", json["error"].as_str().unwrap_or(&body))
}

/// The first option of every question, in the input that an allow echoes.
fn answers(body: &mut Value) {
    let questions = body["updatedInput"]["questions"].as_array().cloned().unwrap_or_default();
    for question in questions {
        let name = question["question"].as_str().unwrap_or_default();
        body["updatedInput"]["answers"][name] = question["options"][0]["label"].clone();
    }
    body["behavior"] = "allow".into();
}

impl<'a> Desk<'a> {
    async fn new(stand: &'a Stand, cell: &'a str) -> Self {
        let created = post(&format!("{}/v1/code/sessions", stand.base()), &token(cell), "").await.json();
        Self { stand, cell, thread: created["id"].as_str().expect("an id").to_owned() }
    }

    async fn open(&self, mut body: Value) -> Result<Run, String> {
        body["mode"] = "agent".into();
        body["thread_id"] = self.thread.as_str().into();
        let created = post(&format!("{}/v1/agent/sessions", self.stand.base()), &token(self.cell), &body.to_string()).await;
        if created.status != 201 {
            return Err(said(&created));
        }
        let created = created.json();
        let (id, secret) = (created["session_id"].as_str().expect("an id"), created["session_token"].as_str().expect("a token"));
        let url = format!("{}/v1/agent/sessions/{id}/stream?session_token={secret}", ws(self.stand));
        let (socket, _) = connect_async(url).await.expect("a socket");
        Ok(Run { id: id.to_owned(), socket, frames: Vec::new() })
    }

    async fn begin(&self, prompt: &str) -> Run {
        self.open(json!({"prompt": prompt})).await.expect("it begins")
    }

    async fn run(&self, body: Value) -> String {
        let mut run = match self.open(body).await {
            Ok(run) => run,
            Err(refusal) => return refusal,
        };
        let end = run.end().await;
        match end["is_error"] == true {
            false => WORKS.to_owned(),
            true => end["errors"][0]["message"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// Makes a request while a run goes on.
    async fn ask(&self, prompt: &str, body: Value) -> String {
        let mut run = self.begin(prompt).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        run.say(json!({"type": "control_request", "request_id": "r", "request": body})).await;
        let reply = run.until(|frame| frame["type"] == "control_response" && frame["response"]["request_id"] == "r").await;
        if run.text().contains("no background tasks") {
            return NO_TASKS.to_owned();
        }
        if reply["response"]["subtype"] == "success" {
            WORKS.to_owned()
        } else {
            reply["response"]["error"].as_str().unwrap_or_default().to_owned()
        }
    }

    /// The same, and the agent says what it was told.
    async fn setting(&self, body: Value, told: &str) -> String {
        let mut run = self.begin("scene settings 1500").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        run.say(json!({"type": "control_request", "request_id": "r", "request": body})).await;
        let reply = run.until(|frame| frame["type"] == "control_response").await;
        run.end().await;
        match reply["response"]["error"].as_str() {
            Some(error) => error.to_owned(),
            None if run.text().contains(told) => WORKS.to_owned(),
            None => WITHOUT_EFFECT.to_owned(),
        }
    }

    /// Starts a run and answers whatever it asks.
    async fn answer(&self, prompt: &str, answer: impl Fn(&mut Value), shows: impl Fn(&Run) -> bool) -> String {
        let mut run = self.begin(prompt).await;
        let mut asked = false;
        while let Some(frame) = run.next(Duration::from_secs(2)).await {
            if frame["type"] == "result" {
                break;
            }
            let request = &frame["request"];
            if frame["type"] == "control_request" && (request["subtype"] == "can_use_tool" || request["subtype"] == "elicitation") {
                asked = true;
                let mut body = json!({"updatedInput": request["input"]});
                answer(&mut body);
                let response = json!({"subtype": "success", "request_id": frame["request_id"], "response": body});
                run.say(json!({"type": "control_response", "response": response})).await;
            }
        }
        run.say(json!({"type": "control_cancel_request", "request_id": "c"})).await;
        match (asked, shows(&run)) {
            (false, _) => NOT_ASKED.to_owned(),
            (true, true) => WORKS.to_owned(),
            (true, false) => format!("taken, and the agent said {:?}", run.text()),
        }
    }
}

impl Run {
    async fn say(&mut self, frame: Value) {
        self.socket.send(Message::text(frame.to_string())).await.expect("it can be said");
    }

    /// The next frame, if one comes in time.
    async fn next(&mut self, within: Duration) -> Option<Value> {
        loop {
            match timeout(within, self.socket.next()).await.ok()?.expect("it is open").expect("a message") {
                Message::Text(text) => {
                    let frame: Value = serde_json::from_str(&text).expect("JSON");
                    self.frames.push(frame.clone());
                    return Some(frame);
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn until(&mut self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let frame = self.next(Duration::from_secs(20)).await.expect("something comes");
            if is(&frame) {
                return frame;
            }
        }
    }

    async fn end(&mut self) -> Value {
        self.until(|frame| frame["type"] == "result").await
    }

    fn text(&self) -> String {
        self.frames.iter().filter(|frame| frame["type"] == "streamlined_text").filter_map(|frame| frame["text"].as_str()).collect()
    }

    /// Whether a tool ended this way: errors say so in their first words (native-ws.md §6.4).
    fn tool_ended(&self, is_error: bool) -> bool {
        let mut summaries = self.frames.iter().filter(|frame| frame["type"] == "tool_use_summary");
        summaries
            .any(|frame| frame["summary"].as_str().or(frame["output"].as_str()).unwrap_or_default().starts_with("error in ") == is_error)
    }
}
