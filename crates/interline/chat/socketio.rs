//! A chat over Socket.IO turns (socketio.md): as much of Engine.IO 4 and Socket.IO 5 as one client needs, over a WebSocket.

mod turns;

use futures_util::{SinkExt as _, StreamExt as _};
use http::Method;
use interline_hub::Secret;
use interline_model::{Answer, Ask, FormAction, Outcome};
use serde_json::{Map, Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::asking::label_of;
use super::http::{Server, Socket};
use super::wire::{ChatError, Say, Wire, failed};
use turns::{End, Turns};

const PATH: &str = "/socket.io/?EIO=4&transport=websocket";

/// What the requests say beside the prompt.
pub(crate) struct Options {
    pub(crate) session: Option<String>,
    pub(crate) model: Option<String>,
}

pub(crate) async fn talk(server: Server, options: Options, mut wire: Wire) -> Result<(), ChatError> {
    let mut connection = Connection::open(&server).await?;
    let session = match options.session {
        Some(session) => session,
        None => {
            let made = server.call(Method::POST, "/api/sessions", Some(&json!({"intent": ""}))).await?;
            let id = made["session_id"].as_str().or(made["id"].as_str());
            id.ok_or_else(|| ChatError::Protocol("a new session has no id".to_owned()))?.to_owned()
        }
    };
    connection.emit("session:subscribe", json!({"session_id": session}), None).await?;
    while let Some(prompt) = wire.prompt().await {
        let send = json!({"session_id": session, "message": prompt, "model": options.model});
        let mut chat =
            Chat { session: &session, turns: Turns::default(), error: None, sent: connection.emit_acked("chat:send", send).await? };
        if !chat.follow(&mut connection, &mut wire).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// One run: chats, one after another, until one ends without a question.
struct Chat<'a> {
    session: &'a str,
    turns: Turns,
    /// The last `system:error`: why a failed chat failed.
    error: Option<String>,
    /// The ack that `chat:send` waits for.
    sent: u64,
}

impl Chat<'_> {
    /// Follows the run to its end; `false` once the person has left.
    async fn follow(&mut self, connection: &mut Connection, wire: &mut Wire) -> Result<bool, ChatError> {
        loop {
            tokio::select! {
                packet = connection.next() => match packet? {
                    Packet::Event(name, data) if data["session_id"].as_str().is_none_or(|id| id == self.session) => {
                        if let Some(outcome) = self.see(&name, &data, wire) {
                            wire.end(outcome);
                            return Ok(true);
                        }
                    }
                    Packet::Ack(number, answer) if number == self.sent && answer["ok"] == false => {
                        wire.end(failed(answer["message"].as_str().unwrap_or("the message was refused")));
                        return Ok(true);
                    }
                    Packet::Event(..) | Packet::Ack(..) => {}
                },
                say = wire.hear() => match say {
                    None => return Ok(false),
                    Some(Say::Prompt(_)) => wire.note("the run goes on; send it again when it has ended"),
                    Some(Say::Stop) => connection.emit("chat:stop", json!({"session_id": self.session}), None).await?,
                    Some(Say::Answer(ask, answer)) => {
                        let answer = chosen(&ask, &answer);
                        let send = json!({"session_id": self.session, "message": "", "askuser_answer": answer});
                        connection.emit("chat:send", send, None).await?;
                    }
                },
            }
        }
    }

    /// Takes an event; gives the outcome if it ends the run.
    fn see(&mut self, name: &str, data: &Value, wire: &Wire) -> Option<Outcome> {
        match name {
            "chat:start" => self.error = None,
            "turn:start" | "turn:end" => self.turns.whole(data, wire),
            "turn:patch" => self.turns.patch(data, wire),
            "system:error" => {
                let message = data["message"].as_str().unwrap_or("an error without words").to_owned();
                if !self.turns.any() {
                    return Some(failed(message));
                }
                wire.note(message.clone());
                self.error = Some(message);
            }
            "system:notification" => {
                wire.note(format!("{}: {}", data["title"].as_str().unwrap_or_default(), data["detail"].as_str().unwrap_or_default()))
            }
            "chat:end" => match self.turns.end(data) {
                End::Paused => {}
                End::Over(Outcome::Failed { .. }) => return Some(failed(self.error.take().unwrap_or_else(|| "the run failed".to_owned()))),
                End::Over(outcome) => return Some(outcome),
            },
            _ => {}
        }
        None
    }
}

/// What the agent is told instead of an answer. The protocol has no way to decline a question: whatever is sent is its answer, and a
/// stop would end the run. So the answer itself says it, in words that let the agent go on.
const DECLINED: &str = "No answer: the user does not want to decide this. Go on without it if you can.";

/// An answer as choices of the options that were shown (socketio.md §2.3); what is no option is free text.
fn chosen(ask: &Ask, answer: &Answer) -> Value {
    let label = |wanted: &[&str]| {
        let first = ask.questions.first().map(|question| question.options.as_slice()).unwrap_or_default();
        wanted.iter().find_map(|word| first.iter().position(|option| option.label.eq_ignore_ascii_case(word)))
    };
    let (mut selections, mut custom) = (Map::new(), Map::new());
    match answer {
        Answer::Choose(answers) => {
            for (number, question) in ask.questions.iter().enumerate() {
                let Some((_, text)) = answers.iter().find(|(asked, _)| *asked == question.question) else { continue };
                let words: Vec<&str> = if question.multi_select { text.split(", ").collect() } else { vec![text] };
                let picks: Option<Vec<usize>> =
                    words.iter().map(|word| question.options.iter().position(|option| *option.label == **word)).collect();
                match picks {
                    Some(picks) => selections.insert(number.to_string(), json!(picks)),
                    None => custom.insert(number.to_string(), json!(&**text)),
                };
            }
        }
        Answer::Allow { always, .. } => {
            let wanted: &[&str] = if *always { &["Allow always", "Allow"] } else { &["Allow", "Accept", "Yes"] };
            selections.insert("0".to_owned(), json!([label(wanted).unwrap_or_default()]));
        }
        Answer::Deny { .. } | Answer::Form { action: FormAction::Decline | FormAction::Cancel, .. } => {
            match label(&["Deny", "Decline", "No"]) {
                Some(option) => {
                    selections.insert("0".to_owned(), json!([option]));
                }
                // Each question wants an answer of its own.
                None => {
                    let all = (0..ask.questions.len().max(1)).map(|number| (number.to_string(), json!(DECLINED)));
                    custom.extend(all);
                }
            }
        }
        Answer::Form { action: FormAction::Accept, content } => {
            selections.insert("0".to_owned(), json!([label(&["Accept", "Allow"]).unwrap_or_default()]));
            if let Some(content) = content {
                fill_in(ask, &content.to_value(), &mut selections, &mut custom);
            }
        }
        Answer::Native(_) => {
            selections.insert("0".to_owned(), json!([label(&["Accept", "Allow"]).unwrap_or_default()]));
        }
    }
    json!({"tool_call_id": ask.id.as_str(), "selections": selections, "custom": custom})
}

/// The members of a form's content, each as the answer to the question whose header is its name; what is left out is skipped.
fn fill_in(ask: &Ask, content: &Value, selections: &mut Map<String, Value>, custom: &mut Map<String, Value>) {
    let request = ask.input.to_value();
    for (number, question) in ask.questions.iter().enumerate().skip(1) {
        let Some(name) = question.header.as_deref() else { continue };
        let field = &request["requested_schema"]["properties"][name];
        let labels: Vec<String> = match content.get(name) {
            Some(Value::Array(values)) => values.iter().map(|value| label_of(field, value)).collect(),
            Some(value) => vec![label_of(field, value)],
            None => vec!["Skip".to_owned()],
        };
        let picks = labels.iter().map(|label| question.options.iter().position(|option| *option.label == **label));
        match picks.collect::<Option<Vec<usize>>>() {
            Some(picks) => selections.insert(number.to_string(), json!(picks)),
            None => custom.insert(number.to_string(), json!(labels.join(", "))),
        };
    }
}

/// A connected socket.
struct Connection {
    socket: Socket,
    next_ack: u64,
}

/// What a server sends beside heartbeats.
enum Packet {
    Event(String, Value),
    Ack(u64, Value),
}

impl Connection {
    /// Connects to the default namespace.
    async fn open(server: &Server) -> Result<Self, ChatError> {
        let mut connection = Self { socket: server.socket(PATH, true).await?, next_ack: 0 };
        let token = server.bearer().map(Secret::expose);
        let auth = token.map_or_else(|| json!({}), |token| json!({"token": token}));
        loop {
            let text = connection.text().await?;
            if text.starts_with('0') {
                connection.send(format!("40{auth}")).await?;
            } else if text.starts_with("40") {
                return Ok(connection);
            } else if let Some(body) = text.strip_prefix("44") {
                let body: Value = serde_json::from_str(body).unwrap_or_default();
                return Err(ChatError::Refused(body["message"].as_str().unwrap_or("no reason given").to_owned()));
            }
        }
    }

    /// The next text that is no heartbeat. Cancel safe but for the answer to a ping, which the next one repeats.
    async fn text(&mut self) -> Result<String, ChatError> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) if text.as_str() == "2" => self.send("3".to_owned()).await?,
                Some(Ok(Message::Text(text))) => return Ok(text.as_str().to_owned()),
                Some(Ok(Message::Close(_))) | None => return Err(ChatError::Unreachable("the server closed the socket".to_owned())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(ChatError::Unreachable(error.to_string())),
            }
        }
    }

    async fn next(&mut self) -> Result<Packet, ChatError> {
        loop {
            let text = self.text().await?;
            if text == "1" || text == "41" {
                return Err(ChatError::Unreachable("the server ended the connection".to_owned()));
            }
            if let Some(packet) = parse(&text) {
                return Ok(packet);
            }
        }
    }

    async fn send(&mut self, text: String) -> Result<(), ChatError> {
        self.socket.send(Message::text(text)).await.map_err(|error| ChatError::Unreachable(error.to_string()))
    }

    async fn emit(&mut self, name: &str, payload: Value, ack: Option<u64>) -> Result<(), ChatError> {
        let number = ack.map(|number| number.to_string()).unwrap_or_default();
        self.send(format!("42{number}{}", json!([name, payload]))).await
    }

    /// Sends an event that is to be acked, and gives the ack's number.
    async fn emit_acked(&mut self, name: &str, payload: Value) -> Result<u64, ChatError> {
        self.next_ack += 1;
        self.emit(name, payload, Some(self.next_ack)).await?;
        Ok(self.next_ack)
    }
}

/// Reads `42[…]`, `421[…]` and `431[…]`.
fn parse(text: &str) -> Option<Packet> {
    let (is_event, rest) = match (text.strip_prefix("42"), text.strip_prefix("43")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return None,
    };
    let begin = rest.find('[')?;
    let (number, body) = (rest.get(..begin)?, rest.get(begin..)?);
    let Ok(Value::Array(mut values)) = serde_json::from_str(body) else { return None };
    if is_event {
        let data = values.get_mut(1).map(Value::take).unwrap_or_default();
        return Some(Packet::Event(values.first()?.as_str()?.to_owned(), data));
    }
    Some(Packet::Ack(number.parse().ok()?, values.first_mut().map(Value::take).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{AskId, AskKind, Choice, Json, Question, Text};

    fn ask(labels: &[&'static str], multi_select: bool) -> Ask {
        let options = labels.iter().map(|label| Choice { label: Text::from_static(label), description: Text::new() }).collect();
        Ask {
            id: AskId::from("ask_1"),
            kind: AskKind::Question,
            call: None,
            tool_name: Text::from_static("AskUserQuestion"),
            message: None,
            input: Json::empty_object(),
            questions: vec![Question { question: Text::from_static("q"), header: None, options, multi_select }],
            suggestions: None,
        }
    }

    #[test]
    fn packets_with_and_without_numbers() {
        assert!(
            matches!(parse(r#"42["chat:start",{"session_id":"s"}]"#), Some(Packet::Event(name, data)) if name == "chat:start" && data["session_id"] == "s")
        );
        assert!(matches!(parse(r#"427["x"]"#), Some(Packet::Event(_, Value::Null))));
        assert!(matches!(parse(r#"4312[{"ok":true}]"#), Some(Packet::Ack(12, answer)) if answer["ok"] == true));
        for text in ["", "2", "40", "42", "42[", "42[1]", "43[1]", "451-[\"x\"]"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn answers_are_choices_of_what_was_shown() {
        let verdicts = ask(&["Allow", "Allow always", "Deny"], false);
        let picks = |ask: &Ask, answer: &Answer| chosen(ask, answer)["selections"]["0"].clone();
        assert_eq!(picks(&verdicts, &Answer::Allow { input: None, always: false }), json!([0]));
        assert_eq!(picks(&verdicts, &Answer::Allow { input: None, always: true }), json!([1]));
        assert_eq!(picks(&verdicts, &Answer::Deny { message: Text::new() }), json!([2]));
        let choose = |label: &'static str| Answer::Choose(vec![(Text::from_static("q"), Text::from_static(label))]);
        let cities = ask(&["Rome", "Oslo"], true);
        assert_eq!(picks(&cities, &choose("Oslo, Rome")), json!([1, 0]));
        let own = chosen(&cities, &choose("Bern"));
        assert_eq!((own["selections"]["0"].clone(), own["custom"]["0"].clone()), (Value::Null, json!("Bern")));
        assert_eq!(own["tool_call_id"], "ask_1");
    }

    #[test]
    fn who_declines_says_so_for_every_question() {
        let mut asked = ask(&["Rome", "Oslo"], false);
        asked.questions.push(asked.questions[0].clone());
        let declined = chosen(&asked, &Answer::Deny { message: Text::new() });
        assert_eq!((declined["selections"].clone(), declined["custom"].clone()), (json!({}), json!({"0": DECLINED, "1": DECLINED})));
    }

    #[test]
    fn a_form_is_filled_in_by_its_questions() {
        let mut form = ask(&["Accept", "Decline"], false);
        form.kind = AskKind::Form;
        form.input = Json::from_value(&json!({"requested_schema": {"properties": {
            "env": {"enum": ["s", "p"], "enumNames": ["Staging", "Production"]}, "dry": {"type": "boolean"}, "n": {"type": "integer"}, "mail": {"type": "string"},
        }}}));
        let field = |name: &'static str, labels: &[&'static str]| Question {
            header: Some(Text::from_static(name)),
            ..ask(labels, false).questions.remove(0)
        };
        let fields = [
            field("dry", &["Yes", "No", "Skip"]),
            field("env", &["Staging", "Production"]),
            field("mail", &["Skip"]),
            field("n", &["Skip"]),
        ];
        form.questions.extend(fields);
        let content = Json::from_value(&json!({"env": "p", "dry": false, "n": 3}));
        let filled = chosen(&form, &Answer::Form { action: FormAction::Accept, content: Some(content) });
        assert_eq!(filled["selections"], json!({"0": [0], "1": [1], "2": [1], "3": [0]}));
        assert_eq!(filled["custom"], json!({"4": "3"}));
        let declined = chosen(&form, &Answer::Form { action: FormAction::Decline, content: None });
        assert_eq!(declined["selections"], json!({"0": [1]}));
    }
}
