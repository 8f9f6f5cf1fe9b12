//! The actions on the Socket.IO surface: its events over a bare WebSocket, and its REST.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_testkit::{Answer, get, post};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::{Stand, token};
use crate::{Action, NO_PLACE, NOT_ASKED, WITHOUT_EFFECT, WORKS, said};

const PIXEL: &str =
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A session, and a socket that is subscribed to it.
struct Desk<'a> {
    stand: &'a Stand,
    cell: &'a str,
    session: String,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    sent: u64,
    /// The events so far, each a name and its data.
    events: Vec<(String, Value)>,
    acks: Vec<(u64, Value)>,
}

/// What comes of an action.
pub(crate) async fn outcome(stand: &Stand, cell: &str, action: Action) -> String {
    let mut desk = Desk::new(stand, cell).await;
    match action {
        Action::Start => desk.run(json!({"message": "quick"})).await,
        Action::Continue => {
            desk.run(json!({"message": "quick"})).await;
            desk.run(json!({"message": "quick"})).await
        }
        Action::Stop => {
            desk.begin(json!({"message": "fault cancel clean"})).await;
            desk.wait_for(|name, _| name == "turn:patch").await;
            let ack = desk.emit("chat:stop", json!({})).await;
            let end = desk.wait_for(|name, _| name == "chat:end").await;
            if end["status"] == "interrupted" { acked(&ack) } else { format!("{end}") }
        }
        Action::Allow => desk.answer("scene permission", "Allow", false).await,
        Action::Deny => desk.answer("scene permission", "Deny", true).await,
        Action::Question => desk.answer("scene questions", "", false).await,
        Action::Form => desk.answer("scene form", "", false).await,
        Action::Image => {
            let parts = json!([{"type": "text", "text": "quick"}, {"type": "image_url", "image_url": {"url": PIXEL}}]);
            desk.run(json!({"message": parts})).await
        }
        Action::File => {
            desk.run(json!({"message": [{"type": "text", "text": "quick"}, {"type": "file", "name": "a.txt", "data": "aGVsbG8="}]})).await
        }
        Action::Model => desk.setting(json!({"model": "another"}), "model another").await,
        Action::Mode => desk.setting(json!({"mode": "planning"}), "mode plan").await,
        Action::Environment => desk.setting(json!({"runtime_env": {"A": "1"}}), "A=1").await,
        Action::Whatif => desk.run(json!({"message": "quick", "whatif": {"from_step": 1, "quotes": [], "deprecate_entry_ids": []}})).await,
        Action::Context => {
            desk.meanwhile(async |desk| {
                let answer = get(&desk.url("/context-stats"), &token(desk.cell)).await;
                if answer.body == "{}" { "200 {}: the agent server does not tell".to_owned() } else { said(&answer) }
            })
            .await
        }
        Action::Rewind => {
            desk.meanwhile(async |desk| said(&post(&desk.url("/rewind"), &token(desk.cell), r#"{"checkpoint_id":"m1"}"#).await)).await
        }
        Action::Compact => {
            desk.run(json!({"message": "quick"})).await;
            let ack = desk.emit("chat:compact", json!({})).await;
            acked(&ack)
        }
        Action::Cost => {
            desk.run(json!({"message": "quick"})).await;
            let answer = get(&desk.url(""), &token(cell)).await;
            if answer.json()["usage"].is_object() { said(&answer) } else { NO_PLACE.to_owned() }
        }
        Action::Thinking | Action::ModelMeanwhile | Action::ModeMeanwhile | Action::StopTask | Action::Resume | Action::Coding => {
            NO_PLACE.to_owned()
        }
    }
}

/// What an acknowledgement says.
fn acked(ack: &Value) -> String {
    if ack["ok"] == true {
        return WORKS.to_owned();
    }
    format!("{} {}", ack["code"].as_str().unwrap_or_default(), ack["message"].as_str().unwrap_or_default()).trim().to_owned()
}

impl<'a> Desk<'a> {
    async fn new(stand: &'a Stand, cell: &'a str) -> Self {
        let created = post(&format!("{}/api/sessions", stand.base()), &token(cell), "{}").await.json();
        let session = created["session_id"].as_str().expect("an id").to_owned();
        let url = format!("{}/socket.io/?EIO=4&transport=websocket", stand.base().replacen("http", "ws", 1));
        let (socket, _) = connect_async(url).await.expect("a socket");
        let mut desk = Self { stand, cell, session, socket, sent: 0, events: Vec::new(), acks: Vec::new() };
        desk.say(format!("40{{\"token\":\"{}\"}}", token(cell))).await;
        while !desk.hear().await.starts_with("40") {}
        assert_eq!(desk.emit("session:subscribe", json!({})).await["ok"], true);
        desk
    }

    fn url(&self, what: &str) -> String {
        format!("{}/api/sessions/{}{what}", self.stand.base(), self.session)
    }

    async fn say(&mut self, packet: String) {
        self.socket.send(Message::text(packet)).await.expect("it can be said");
    }

    /// The next packet; pings are answered, events and acknowledgements kept.
    async fn hear(&mut self) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let message = timeout_at(deadline, self.socket.next()).await.expect("something comes");
            let Message::Text(packet) = message.expect("it is open").expect("a message") else { continue };
            if packet.as_str() == "2" {
                self.say("3".to_owned()).await;
                continue;
            }
            if let Some(event) = packet.strip_prefix("42") {
                let event: Vec<Value> = serde_json::from_str(event).expect("an event");
                self.events.push((event[0].as_str().expect("a name").to_owned(), event[1].clone()));
            } else if let Some(ack) = packet.strip_prefix("43") {
                let (id, values) = ack.split_at(ack.find('[').expect("values"));
                let values: Vec<Value> = serde_json::from_str(values).expect("values");
                self.acks.push((id.parse().expect("an id"), values[0].clone()));
            }
            return packet.to_string();
        }
    }

    /// Sends an event of the session and returns its acknowledgement.
    async fn emit(&mut self, event: &str, mut data: Value) -> Value {
        self.sent += 1;
        data["session_id"] = self.session.as_str().into();
        self.say(format!("42{}{}", self.sent, json!([event, data]))).await;
        let id = self.sent;
        loop {
            if let Some((_, ack)) = self.acks.iter().find(|(acked, _)| *acked == id) {
                return ack.clone();
            }
            self.hear().await;
        }
    }

    /// The first event since the last call that is like this.
    async fn wait_for(&mut self, is: impl Fn(&str, &Value) -> bool) -> Value {
        loop {
            while !self.events.is_empty() {
                let (name, data) = self.events.remove(0);
                if is(&name, &data) {
                    return data;
                }
            }
            self.hear().await;
        }
    }

    async fn begin(&mut self, message: Value) -> Value {
        self.events.clear();
        self.emit("chat:send", message).await
    }

    /// A whole chat.
    async fn run(&mut self, message: Value) -> String {
        let ack = self.begin(message).await;
        if ack["ok"] != true {
            return acked(&ack);
        }
        let mut error = String::new();
        loop {
            let (is_end, data) = self.next_of(&["chat:end", "system:error"]).await;
            if !is_end {
                error = format!("{} {}", data["code"].as_str().unwrap_or_default(), data["message"].as_str().unwrap_or_default());
            } else if data["status"] == "completed" {
                return WORKS.to_owned();
            } else {
                return error;
            }
        }
    }

    async fn next_of(&mut self, names: &[&str; 2]) -> (bool, Value) {
        loop {
            while !self.events.is_empty() {
                let (name, data) = self.events.remove(0);
                if names.contains(&name.as_str()) {
                    return (name == names[0], data);
                }
            }
            self.hear().await;
        }
    }

    /// All that was said in the session, and its calls.
    async fn turns(&self) -> Vec<Value> {
        let turns: Answer = get(&self.url("/messages"), &token(self.cell)).await;
        turns.json().as_array().expect("turns").clone()
    }

    async fn text(&self) -> String {
        let turns = self.turns().await;
        let blocks =
            turns.iter().filter(|turn| turn["role"] == "assistant").flat_map(|turn| turn["blocks"].as_array().into_iter().flatten());
        blocks.filter(|block| block["type"] == "text").filter_map(|block| block["content"].as_str()).collect()
    }

    async fn setting(&mut self, mut message: Value, told: &str) -> String {
        message["message"] = "scene settings 1000".into();
        let outcome = self.run(message).await;
        if outcome != WORKS || self.text().await.contains(told) { outcome } else { WITHOUT_EFFECT.to_owned() }
    }

    async fn meanwhile(&mut self, work: impl AsyncFn(&Self) -> String) -> String {
        self.begin(json!({"message": "scene settings 2500"})).await;
        self.wait_for(|name, data| name == "turn:start" && data["role"] == "assistant").await;
        let outcome = work(self).await;
        self.wait_for(|name, _| name == "chat:end").await;
        outcome
    }

    /// Starts a chat and answers what it asks: by the option of this label, or the first of each question.
    async fn answer(&mut self, prompt: &str, label: &str, refused: bool) -> String {
        self.begin(json!({"message": prompt})).await;
        let mut outcome = None;
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let turns = self.turns().await;
            let calls: Vec<Value> = turns.iter().flat_map(|turn| turn["tool_calls"].as_array().cloned().unwrap_or_default()).collect();
            if let Some(call) = calls.iter().find(|call| call["status"] == "awaiting_answer" && call["tool_name"] == "AskUserQuestion") {
                let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
                let questions = arguments["questions"].as_array().expect("questions");
                let choice = |question: &Value| {
                    let options = question["options"].as_array().cloned().unwrap_or_default();
                    options.iter().position(|option| option["label"] == label).unwrap_or(0)
                };
                let selections = questions.iter().enumerate().map(|(at, question)| (at.to_string(), json!([choice(question)])));
                let answer = json!({"tool_call_id": call["id"], "selections": serde_json::Map::from_iter(selections), "custom": {}});
                let ack = self.emit("chat:send", json!({"message": "", "askuser_answer": answer})).await;
                outcome.get_or_insert(acked(&ack));
            }
            let session = get(&self.url(""), &token(self.cell)).await.json();
            let is_over = !matches!(session["status"].as_str(), Some("running" | "waiting_for_input"));
            if is_over || Instant::now() > deadline {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.emit("chat:stop", json!({})).await;
        let told = match prompt {
            "scene permission" => {
                let turns = self.turns().await;
                let mut calls = turns.iter().flat_map(|turn| turn["tool_calls"].as_array().into_iter().flatten());
                let status = if refused { "error" } else { "done" };
                calls.any(|call| call["tool_name"] == "Bash" && call["status"] == status)
            }
            "scene questions" => self.text().await.contains("Answers: "),
            _ => self.text().await.contains("accept"),
        };
        match outcome {
            None => NOT_ASKED.to_owned(),
            Some(outcome) if outcome != WORKS || told => outcome,
            Some(_) => format!("taken, and the agent said {:?}", self.text().await),
        }
    }
}
