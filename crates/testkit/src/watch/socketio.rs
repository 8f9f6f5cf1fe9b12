//! Socket.IO turns over a bare WebSocket: Engine.IO's packets by hand, patches folded as a frontend folds them, and REST for what was missed.
//!
//! A socket that was away is told the open turns again, and finds the ended ones under REST. So what is judged is what the screen shows in the
//! end; and on each connection the patches of a turn are numbered without a gap.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

use super::{Run, Way, ask};
use crate::faults::FaultProxy;

/// Bytes of a run's events, roughly, in which connections break.
const LENGTH: u64 = 40_000;

/// So long after the end nothing more may come.
const QUIET: Duration = Duration::from_millis(60);

/// So long after the subscription, what is told of a chat that goes on has come.
const TOLD: Duration = Duration::from_millis(400);

struct Socket {
    socket: WebSocketStream<TcpStream>,
    idle: Duration,
}

/// What a server says.
enum Packet {
    Event(String, Value),
    Ack(Value),
}

impl Socket {
    async fn open(stream: TcpStream, token: &str, idle: Duration) -> Option<Self> {
        let address = "ws://interline/socket.io/?EIO=4&transport=websocket";
        let (socket, _) = timeout(idle, client_async(address, stream)).await.ok()?.ok()?;
        let mut socket = Self { socket, idle };
        socket.raw('0').await?;
        socket.say(format!("40{}", json!({ "token": token }))).await?;
        socket.raw('4').await?.starts_with("40{").then_some(socket)
    }

    async fn say(&mut self, packet: String) -> Option<()> {
        self.socket.send(Message::text(packet)).await.ok()
    }

    /// The next packet of this kind; heartbeats are answered.
    async fn raw(&mut self, kind: char) -> Option<String> {
        loop {
            let Message::Text(text) = timeout(self.idle, self.socket.next()).await.ok()??.ok()? else { continue };
            match text.chars().next() {
                Some('2') => self.say("3".to_owned()).await?,
                Some(found) if found == kind => return Some(text.to_string()),
                _ => {}
            }
        }
    }

    /// The next event or acknowledgement; `None` if the connection is no good any more, or if there is none within `limit`.
    async fn next(&mut self, limit: Option<Duration>) -> Option<Packet> {
        match limit {
            Some(limit) => timeout(limit, self.packet()).await.ok()?,
            None => self.packet().await,
        }
    }

    async fn packet(&mut self) -> Option<Packet> {
        loop {
            let packet = self.raw('4').await?;
            let (kind, rest) = packet.split_at_checked(2)?;
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let Value::Array(mut list) = serde_json::from_str::<Value>(rest).unwrap_or_default() else { continue };
            match kind {
                "42" if list.len() > 1 => {
                    let data = list.swap_remove(1);
                    return Some(Packet::Event(list.first()?.as_str()?.to_owned(), data));
                }
                "43" => return Some(Packet::Ack(list.into_iter().next().unwrap_or_default())),
                _ => {}
            }
        }
    }
}

/// Starts a run in a new session.
///
/// # Errors
/// With what the program said instead.
pub async fn start(proxy: &FaultProxy, cell: &str, token: &str, name: &str, prompt: &str) -> Result<Run, String> {
    let created = ask::json(proxy, "POST", "/api/sessions", token, Some(&json!({})), Duration::from_secs(10)).await;
    let (status, created) = created.ok_or("no answer to a new session")?;
    if status != 200 {
        return Err(format!("{status}: {created}"));
    }
    let session = created["session_id"].as_str().unwrap_or_default().to_owned();
    let stream = proxy.connect(None).await.map_err(|error| error.to_string())?;
    let mut socket = Socket::open(stream, token, Duration::from_secs(10)).await.ok_or("the socket did not open")?;
    let message = json!(["chat:send", { "session_id": session, "message": prompt }]);
    socket.say(format!("421{message}")).await.ok_or("the socket broke")?;
    loop {
        match socket.next(None).await.ok_or("the socket broke before the acknowledgement")? {
            Packet::Ack(ack) if ack["ok"] == true => {
                let id = ack["chat_run_id"].as_str().unwrap_or_default().to_owned();
                return Ok(Run { name: name.to_owned(), cell: cell.to_owned(), session, id });
            }
            Packet::Ack(ack) => return Err(ack.to_string()),
            Packet::Event(..) => {}
        }
    }
}

/// The turns as a screen shows them.
#[derive(Default)]
struct Screen {
    turns: BTreeMap<String, Turn>,
    /// The turns that this connection has told of.
    told: HashSet<String>,
}

#[derive(Default)]
struct Turn {
    place: u64,
    text: String,
}

impl Turn {
    fn of(projection: &Value) -> Self {
        let blocks = projection["blocks"].as_array().into_iter().flatten();
        let shown = blocks.filter(|block| block["type"] == "text" || block["type"] == "tool_result");
        Self {
            place: projection["sequence"].as_u64().unwrap_or_default(),
            text: shown.filter_map(|block| block["content"].as_str()).collect(),
        }
    }
}

fn is_answer(projection: &Value) -> bool {
    projection["role"] == "assistant"
}

impl Screen {
    fn text(&self) -> String {
        let mut turns: Vec<&Turn> = self.turns.values().collect();
        turns.sort_by_key(|turn| turn.place);
        turns.iter().map(|turn| turn.text.as_str()).collect()
    }

    /// A turn that begins, is told again, or has ended.
    fn show(&mut self, projection: &Value) {
        let Some(id) = projection["turn_id"].as_str().filter(|_| is_answer(projection)) else { return };
        self.told.insert(id.to_owned());
        self.turns.insert(id.to_owned(), Turn::of(projection));
    }

    fn patch(&mut self, patch: &Value, snapshots: bool) {
        let Some(turn) = patch["turn_id"].as_str().and_then(|id| self.turns.get_mut(id)) else { return };
        let data = &patch["data"];
        if snapshots && data["turn"].is_object() {
            turn.text = Turn::of(&data["turn"]).text;
            return;
        }
        match patch["patch_type"].as_str().unwrap_or_default() {
            "add_content" if data["type"] == "text" => {
                turn.text.push_str(data["text_delta"].as_str().or_else(|| data["content"].as_str()).unwrap_or_default());
            }
            "tool_result" => turn.text.push_str(data["result"].as_str().unwrap_or_default()),
            _ => {}
        }
    }

    /// What REST has of turns that this connection was not told of.
    fn load(&mut self, messages: &Value) {
        for projection in messages.as_array().into_iter().flatten().filter(|projection| is_answer(projection)) {
            let Some(id) = projection["turn_id"].as_str() else { continue };
            if !self.told.contains(id) && projection["status"] != "streaming" {
                self.turns.insert(id.to_owned(), Turn::of(projection));
            }
        }
    }
}

pub(super) async fn watch(way: &mut Way<'_>, run: &Run, snapshots: bool) {
    let mut screen = Screen::default();
    let mut connections = 0;
    loop {
        let leaves = way.leaves(60);
        connections += 1;
        screen.told.clear();
        let until = way.until;
        let ended = timeout_at(until, follow(way, run, &mut screen, snapshots, connections, leaves)).await.unwrap_or(true);
        if ended || !way.broke().await {
            break;
        }
    }
    way.watched.view.text = screen.text();
}

/// One connection; true if the run has ended.
async fn follow(way: &mut Way<'_>, run: &Run, screen: &mut Screen, snapshots: bool, connection: u64, leaves: Option<u64>) -> bool {
    let idle = way.habits.idle;
    let Ok(stream) = way.connect(LENGTH).await else { return false };
    let Some(mut socket) = Socket::open(stream, way.token, idle).await else { return false };
    let subscribe = json!(["session:subscribe", { "session_id": run.session }]);
    if socket.say(format!("421{subscribe}")).await.is_none() {
        return false;
    }
    let (mut seen, mut chatting) = (0, false);
    loop {
        // An end that was found under REST is the end, unless this connection was told of a chat that goes on: then it is told its end, too.
        let view = &way.watched.view;
        let wait = match (view.ends > 0, view.found_ended) {
            (true, _) => Some(QUIET),
            (false, true) if !chatting => Some(TOLD),
            _ => None,
        };
        let Some(packet) = socket.next(wait).await else {
            let view = &way.watched.view;
            return view.ends > 0 || view.found_ended && !chatting;
        };
        way.came();
        match packet {
            Packet::Ack(ack) => {
                if ack["ok"] != true {
                    way.watched.view.outcome = ack.to_string();
                    return false;
                }
                if !load(way, run, screen).await {
                    return false;
                }
            }
            Packet::Event(name, data) => {
                let view = &mut way.watched.view;
                match name.as_str() {
                    "chat:start" => chatting = true,
                    "turn:start" | "turn:end" => screen.show(&data),
                    "turn:patch" => {
                        if let (Some(turn), Some(number)) = (data["turn_id"].as_str(), data["sequence"].as_u64()) {
                            view.numbers.entry(format!("{turn} on connection {connection}")).or_default().push(number);
                        }
                        screen.patch(&data, snapshots);
                    }
                    "chat:end" => {
                        view.ends += 1;
                        view.outcome = data["status"].as_str().unwrap_or_default().to_owned();
                        view.ended_well = data["status"] == "completed";
                        view.said_incomplete |= !view.ended_well;
                    }
                    "system:error" | "system:notification" => view.said_incomplete = true,
                    _ => {}
                }
                seen += 1;
                if leaves.is_some_and(|after| seen >= after) && view.ends == 0 {
                    way.watched.left += 1;
                    return false;
                }
            }
        }
    }
}

/// What the socket does not tell: turns that ended while it was away, and whether the run is over.
async fn load(way: &mut Way<'_>, run: &Run, screen: &mut Screen) -> bool {
    let (proxy, token, idle) = (way.proxy, way.token, way.habits.idle);
    let path = format!("/api/sessions/{}", run.session);
    // The state first: turns that are read after a run has ended are its last.
    let Some((200, session)) = ask::json(proxy, "GET", &path, token, None, idle).await else { return false };
    let Some((200, messages)) = ask::json(proxy, "GET", &format!("{path}/messages"), token, None, idle).await else { return false };
    screen.load(&messages);
    let status = session["status"].as_str().unwrap_or_default().to_owned();
    if ["completed", "failed", "interrupted"].contains(&status.as_str()) {
        let view = &mut way.watched.view;
        view.found_ended = true;
        view.ended_well |= status == "completed";
        view.said_incomplete |= status != "completed";
        if view.outcome.is_empty() {
            view.outcome = status;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(id: &str, place: u64, status: &str, text: &str) -> Value {
        json!({ "turn_id": id, "sequence": place, "role": "assistant", "status": status,
                "blocks": [{ "type": "thinking", "content": "no" }, { "type": "text", "content": text }] })
    }

    fn delta(id: &str, text: &str) -> Value {
        json!({ "turn_id": id, "patch_type": "add_content", "data": { "type": "text", "text_delta": text } })
    }

    #[test]
    fn a_screen_shows_what_was_told_over_what_it_loaded() {
        let mut screen = Screen::default();
        screen.show(&turn("b", 2, "streaming", "1"));
        screen.patch(&delta("b", "2"), false);
        let tool = json!({ "turn_id": "b", "patch_type": "tool_result", "data": { "result": "3" } });
        screen.patch(&tool, false);
        assert_eq!(screen.text(), "123");
        // On the next connection it is told again, and an earlier one is found under REST.
        screen.told.clear();
        screen.show(&turn("b", 2, "streaming", "123"));
        screen.load(&json!([turn("a", 1, "completed", "0"), turn("b", 2, "completed", "12345"), turn("c", 3, "streaming", "x"), { "role": "user" }]));
        screen.patch(&delta("b", "4"), false);
        assert_eq!(screen.text(), "01234");
        let snapshot = json!({ "turn_id": "b", "patch_type": "sync", "data": { "turn": turn("b", 2, "streaming", "12345") } });
        screen.patch(&snapshot, true);
        assert_eq!(screen.text(), "012345");
    }
}
