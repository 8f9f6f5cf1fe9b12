//! An independent reader of Socket.IO events: folds patches as a delta reader does, snapshots as a snapshot reader does, and holds the two
//! against each other and against the grammar (socketio.md §3.4, §4). It shares no code with the writer.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub(crate) const MEMBERS: [&str; 24] = [
    "id",
    "sequence",
    "turn_id",
    "loop_id",
    "kind",
    "role",
    "status",
    "blocks",
    "tool_calls",
    "model",
    "usage",
    "duration_ms",
    "started_at",
    "context_window",
    "memory_refs",
    "parent_fork_tool_call_id",
    "compaction_id",
    "summary_preview",
    "summary_full",
    "archived_count",
    "tokens_before",
    "tokens_after",
    "saved_ratio",
    "trigger",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Hybrid,
    Delta,
    Sync,
}

pub(crate) struct Fold {
    format: Format,
    pub(crate) order: Vec<String>,
    /// As a reader of documented patches has them.
    pub(crate) deltas: BTreeMap<String, Value>,
    /// As a reader of snapshots alone has them.
    pub(crate) snapshots: BTreeMap<String, Value>,
    ended: BTreeMap<String, String>,
    patches: BTreeMap<String, u64>,
    pub(crate) running: bool,
    pub(crate) chats: usize,
    pub(crate) last_end: Option<Value>,
    /// Whether it came late: then patch numbers may begin anywhere.
    late: bool,
    /// How many events of each name have been held against their schema.
    validated: BTreeMap<String, u32>,
}

fn without_envelope(data: &Value) -> Value {
    let mut turn = data.as_object().unwrap().clone();
    for member in ["session_id", "solution_id", "template_id"] {
        assert!(turn.remove(member).is_some(), "no {member}");
    }
    Value::Object(turn)
}

fn check_projection(turn: &Value) {
    for member in MEMBERS.into_iter().chain(["failure_reason"]) {
        assert!(turn.get(member).is_some(), "no {member} in {turn}");
    }
    assert_eq!(turn.as_object().unwrap().len(), MEMBERS.len() + 1, "{turn}");
    for call in turn["tool_calls"].as_array().unwrap() {
        assert!(call["tool_name"].is_string());
        serde_json::from_str::<Map<String, Value>>(call["arguments"].as_str().unwrap()).unwrap();
    }
}

impl Fold {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            order: Vec::new(),
            deltas: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            ended: BTreeMap::new(),
            patches: BTreeMap::new(),
            running: false,
            chats: 0,
            last_end: None,
            late: false,
            validated: BTreeMap::new(),
        }
    }

    pub(crate) fn late(format: Format) -> Self {
        Self { late: true, ..Self::new(format) }
    }

    /// Takes over what REST shows of turns that the socket was not told of, as frontends do when they open a session.
    pub(crate) fn load(&mut self, messages: &[Value]) {
        for turn in messages {
            let id = turn["turn_id"].as_str().unwrap().to_owned();
            if !self.deltas.contains_key(&id) {
                assert_ne!(turn["status"], "streaming", "{id} is open and was not told");
                self.order.push(id.clone());
                self.ended.insert(id.clone(), "paused".to_owned());
                self.deltas.insert(id.clone(), turn.clone());
                self.snapshots.insert(id, turn.clone());
            }
        }
    }

    pub(crate) fn see(&mut self, name: &str, data: &Value) {
        assert!(data["session_id"].is_string(), "{name} without session_id");
        let seen = self.validated.entry(name.to_owned()).or_default();
        *seen += 1;
        // A schema is slow to ask, and beyond some hundreds a chat only says more of the same.
        if !self.late
            && *seen <= 300
            && let Err(why) = interline_testkit::validate_socketio(&json!({"event": name, "data": data}).to_string())
        {
            panic!("{why}\n{data}");
        }
        match name {
            "chat:start" => {
                assert!(!self.running, "a chat is running");
                assert!(data["chat_run_id"].as_str().unwrap().starts_with("run-"));
                self.running = true;
                self.chats += 1;
            }
            "turn:start" => self.start(data),
            "turn:patch" => self.patch(data),
            "turn:end" => self.end(data),
            "chat:end" => {
                assert!(self.running, "no chat is running");
                self.running = false;
                for id in &self.order {
                    assert!(self.ended.contains_key(id), "{id} is open at chat:end");
                    let turn = &self.deltas[id];
                    assert_ne!(turn["status"], "streaming", "{id} streams at chat:end");
                    for call in turn["tool_calls"].as_array().unwrap() {
                        assert_ne!(call["status"], "pending", "{} is pending at chat:end", call["id"]);
                    }
                }
                for member in ["status", "result", "finish_reason", "chat_run_id"] {
                    assert!(data.get(member).is_some());
                }
                self.last_end = Some(data.clone());
            }
            "session:updated" => {
                for member in ["model", "intent", "replay_state", "status"] {
                    assert!(data.get(member).is_some(), "session:updated without {member}");
                }
            }
            "system:error" => {
                assert!(self.running);
                for member in ["message", "code", "detail", "chat_run_id"] {
                    assert!(data.get(member).is_some());
                }
            }
            // Their schemas say all there is to say.
            "workspace:files_changed" | "artifact:created" | "bg:started" | "task:updated" => {}
            "system:notification" => {
                for member in ["notification_type", "title", "detail", "status"] {
                    assert!(data[member].is_string());
                }
            }
            other => panic!("unknown event {other}"),
        }
    }

    fn start(&mut self, data: &Value) {
        assert!(self.running, "turn:start outside a chat");
        let turn = without_envelope(data);
        check_projection(&turn);
        let id = turn["turn_id"].as_str().unwrap().to_owned();
        assert!(!self.deltas.contains_key(&id), "{id} starts again");
        self.order.push(id.clone());
        self.deltas.insert(id.clone(), turn.clone());
        self.snapshots.insert(id, turn);
    }

    fn patch(&mut self, data: &Value) {
        assert!(self.running, "turn:patch outside a chat");
        let id = data["turn_id"].as_str().unwrap().to_owned();
        let turn = self.deltas.get_mut(&id).unwrap_or_else(|| panic!("patch of unknown {id}"));
        assert!(self.ended.get(&id).is_none_or(|status| status == "paused"), "{id} has ended");
        assert_eq!(data["loop_id"], turn["loop_id"]);
        let number = data["sequence"].as_u64().unwrap();
        match self.patches.get(&id) {
            Some(last) => assert_eq!(number, last + 1, "{id}"),
            None => assert!(self.late || number == 1, "{id} begins at {number}"),
        }
        self.patches.insert(id.clone(), number);
        let (kind, x) = (data["patch_type"].as_str().unwrap(), &data["data"]);
        match (self.format, x.get("turn")) {
            (Format::Delta, Some(_)) => panic!("a snapshot in delta format"),
            (Format::Sync, None) => panic!("no snapshot in sync format"),
            _ => {}
        }
        if self.format == Format::Sync {
            assert_eq!(kind, "sync");
            *turn = x["turn"].clone();
        } else {
            apply(turn, kind, x);
        }
        if let Some(snapshot) = x.get("turn") {
            check_projection(snapshot);
            for member in ["blocks", "tool_calls", "status"] {
                assert_eq!(snapshot[member], turn[member], "{member} of {id} after {kind}");
            }
            self.snapshots.insert(id, snapshot.clone());
        }
    }

    fn end(&mut self, data: &Value) {
        assert!(self.running, "turn:end outside a chat");
        let last = without_envelope(data);
        check_projection(&last);
        let id = last["turn_id"].as_str().unwrap().to_owned();
        let status = last["status"].as_str().unwrap().to_owned();
        assert_ne!(status, "streaming");
        let turn = self.deltas.get(&id).unwrap_or_else(|| panic!("end of unknown {id}"));
        assert!(self.ended.insert(id.clone(), status).is_none(), "{id} ends again");
        for member in ["blocks", "tool_calls"] {
            assert_eq!(last[member], turn[member], "{member} of {id} at its end");
        }
        if let Value::String(parent) = &last["parent_fork_tool_call_id"] {
            assert_ne!(last["loop_id"], "root");
            assert!(!parent.is_empty());
        }
        self.deltas.insert(id.clone(), last.clone());
        self.snapshots.insert(id, last);
    }
}

fn call<'a>(turn: &'a mut Value, id: &Value) -> &'a mut Value {
    let calls = turn["tool_calls"].as_array_mut().unwrap();
    calls.iter_mut().find(|call| call["id"] == *id).unwrap_or_else(|| panic!("unknown call {id}"))
}

fn block(kind: &str, content: Value, call: Option<&Value>) -> Value {
    let of = |member: &str| call.map_or(Value::Null, |call| call[member].clone());
    json!({"type": kind, "content": content, "tool_call_id": of("id"), "tool_name": of("tool_name"), "display_name": of("display_name")})
}

/// The rules of socketio.md §3.4, and decision 23 for a missing `content`.
fn apply(turn: &mut Value, kind: &str, x: &Value) {
    match kind {
        "add_content" => {
            if x["text_delta"].is_null() {
                // Rule 2: a whole block, of its call where it has one.
                let added = json!({
                    "type": x["type"], "content": x["content"], "tool_call_id": x["tool_call_id"], "tool_name": x["tool_name"],
                    "display_name": x["display_name"],
                });
                turn["blocks"].as_array_mut().unwrap().push(added);
                return;
            }
            let delta = x["text_delta"].as_str().expect("text_delta is text");
            let blocks = turn["blocks"].as_array_mut().unwrap();
            if !blocks.last().is_some_and(|last| last["type"] == x["type"] && last["tool_call_id"].is_null()) {
                blocks.push(block(x["type"].as_str().unwrap(), json!(""), None));
            }
            let last = blocks.last_mut().unwrap();
            let appended = format!("{}{delta}", last["content"].as_str().unwrap());
            match x.get("content") {
                Some(content) => {
                    if x["type"] == "text" {
                        assert_eq!(content.as_str().unwrap(), appended, "content is what the deltas add up to");
                    }
                    last["content"] = content.clone();
                }
                None => last["content"] = json!(appended),
            }
        }
        "add_tool_call" => {
            let arguments: Value = serde_json::from_str(x["arguments"].as_str().unwrap()).unwrap();
            turn["blocks"].as_array_mut().unwrap().push(block("tool_use", arguments, Some(x)));
            assert!(["pending", "awaiting_answer"].contains(&x["status"].as_str().unwrap()));
            let calls = turn["tool_calls"].as_array_mut().unwrap();
            assert!(calls.iter().all(|call| call["id"] != x["id"]), "{} again", x["id"]);
            calls.push(json!({
                "id": x["id"], "tool_name": x["tool_name"], "display_name": x["display_name"], "arguments": x["arguments"],
                "status": x["status"], "result": null, "duration_ms": null, "pending_question_ref": null,
            }));
        }
        "tool_result" => {
            let call = call(turn, &x["tool_call_id"]);
            for member in ["result", "status", "duration_ms"] {
                call[member] = x[member].clone();
            }
            call["pending_question_ref"] = Value::Null;
            let block = block("tool_result", x["result"].clone(), Some(&call.clone()));
            turn["blocks"].as_array_mut().unwrap().push(block);
        }
        "set_tool_status" => {
            let arguments = x.get("arguments").cloned();
            let call = call(turn, &x["tool_call_id"]);
            call["status"] = x["status"].clone();
            if let Some(question) = x.get("pending_question_ref") {
                call["pending_question_ref"] = question.clone();
            }
            if let Some(arguments) = arguments {
                call["arguments"] = arguments.clone();
                let content: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
                let blocks = turn["blocks"].as_array_mut().unwrap();
                let used = blocks.iter_mut().find(|block| block["type"] == "tool_use" && block["tool_call_id"] == x["tool_call_id"]);
                used.unwrap()["content"] = content;
            }
        }
        "set_status" => turn["status"] = x["status"].clone(),
        other => panic!("patch_type {other}"),
    }
}

impl Fold {
    pub(crate) fn has_snapshots(&self) -> bool {
        self.format != Format::Delta
    }

    pub(crate) fn is_late(&self) -> bool {
        self.late
    }
}
