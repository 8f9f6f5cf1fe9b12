//! Turns as they grow: deltas, snapshots or both in, what is new in them out. Servers of this family send any of these.

use std::collections::HashMap;

use interline_model::{Ask, AskId, AskKind, AskOutcome, CallId, Completion, Json, Outcome, Text, What};
use serde_json::Value;

use crate::chat::sse::questions;
use crate::chat::wire::{Wire, failed, growth, tool_ended};

/// The turns of a run.
#[derive(Debug, Default)]
pub(super) struct Turns {
    turns: HashMap<String, Turn>,
    calls: HashMap<String, Call>,
}

#[derive(Debug, Default)]
struct Turn {
    /// The root assistant's: its text is the answer.
    mine: bool,
    text: String,
    thinking: String,
}

#[derive(Debug)]
struct Call {
    name: String,
    arguments: Value,
    status: String,
}

/// What `chat:end` means.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    /// A question is open: the run goes on with its answer.
    Paused,
    /// The run is over.
    Over(Outcome),
}

impl Turns {
    /// Whether any turn was seen.
    pub(super) fn any(&self) -> bool {
        !self.turns.is_empty()
    }

    /// A whole turn: its beginning, its end, or a snapshot.
    pub(super) fn whole(&mut self, turn: &Value, wire: &Wire) {
        let Some(id) = turn["turn_id"].as_str() else { return };
        let entry = self.turns.entry(id.to_owned()).or_default();
        entry.mine = turn["role"] == "assistant" && turn["parent_fork_tool_call_id"].is_null();
        if entry.mine {
            for (kind, told) in [("thinking", &mut entry.thinking), ("text", &mut entry.text)] {
                let blocks = turn["blocks"].as_array().into_iter().flatten().filter(|block| block["type"] == kind);
                let whole: String = blocks.filter_map(|block| block["content"].as_str()).collect();
                tell(kind, growth(told, &whole), wire);
                if whole.len() > told.len() {
                    *told = whole;
                }
            }
        }
        for call in turn["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, wire);
        }
    }

    /// A change of a turn, with or without its snapshot.
    pub(super) fn patch(&mut self, patch: &Value, wire: &Wire) {
        let data = &patch["data"];
        match patch["patch_type"].as_str() {
            Some("add_content") => {
                let turn = patch["turn_id"].as_str().and_then(|id| self.turns.get_mut(id));
                if let Some(turn) = turn.filter(|turn| turn.mine) {
                    turn.add(data, wire);
                }
            }
            Some("add_tool_call") => self.call(data, wire),
            Some("tool_result" | "set_tool_status") => self.change(data, wire),
            _ => {}
        }
        if data["turn"].is_object() {
            self.whole(&data["turn"], wire);
        }
    }

    /// A call as it stands.
    fn call(&mut self, call: &Value, wire: &Wire) {
        let Some(id) = call["id"].as_str() else { return };
        if !self.calls.contains_key(id) {
            let text = |name: &str| call[name].as_str().unwrap_or_default().to_owned();
            let arguments = match &call["arguments"] {
                Value::String(json) => serde_json::from_str(json).unwrap_or_default(),
                other => other.clone(),
            };
            let entry = Call { name: text("tool_name"), arguments, status: String::new() };
            if !entry.asks() {
                let shown = call["display_name"].as_str().filter(|name| !name.is_empty()).unwrap_or(&entry.name);
                let input = Json::from_value(&entry.arguments);
                wire.tell(What::ToolStarted { call: CallId::from(id), name: Text::from(shown), input: Some(input) });
            }
            self.calls.insert(id.to_owned(), entry);
        }
        self.status(id, call, wire);
    }

    fn change(&mut self, data: &Value, wire: &Wire) {
        if let Some(id) = data["tool_call_id"].as_str() {
            self.status(id, data, wire);
        }
    }

    fn status(&mut self, id: &str, data: &Value, wire: &Wire) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if let Some(arguments) = data["arguments"].as_str() {
            call.arguments = serde_json::from_str(arguments).unwrap_or_default();
        }
        let status = data["status"].as_str().unwrap_or_default();
        if status == call.status || status.is_empty() || call.is_over() {
            return;
        }
        let was = std::mem::replace(&mut call.status, status.to_owned());
        if call.asks() {
            if status == "awaiting_answer" {
                wire.tell(What::AskRaised(Box::new(call.ask(id))));
            } else if was == "awaiting_answer" {
                let outcome = if status == "done" { AskOutcome::Answered } else { AskOutcome::Void };
                wire.tell(What::AskSettled { ask: AskId::from(id), outcome });
            }
        } else if call.is_over() {
            let result = data["result"].as_str().map_or_else(|| data["result"].to_string(), str::to_owned);
            let result = if result == "null" { String::new() } else { result };
            wire.tell(tool_ended(id, result, status != "done"));
        }
    }

    /// What the end of a chat means.
    pub(super) fn end(&self, data: &Value) -> End {
        let asking = self.calls.values().any(|call| call.asks() && call.status == "awaiting_answer");
        match data["status"].as_str() {
            Some("interrupted") => End::Over(Outcome::Interrupted { reason: Text::from_static("stopped") }),
            Some("failed") => End::Over(failed("")),
            Some("paused") => End::Paused,
            _ if asking => End::Paused,
            _ => End::Over(Outcome::Completed(Completion::EndTurn)),
        }
    }
}

impl Turn {
    /// A piece of content: text by its delta, reasoning by what stands so far (socketio.md §3.4).
    fn add(&mut self, data: &Value, wire: &Wire) {
        let delta = data["text_delta"].as_str().unwrap_or_default();
        match data["type"].as_str() {
            Some("text") => {
                self.text.push_str(delta);
                tell("text", delta, wire);
            }
            Some("thinking") => {
                let piece =
                    if delta.is_empty() { growth(&self.thinking, data["content"].as_str().unwrap_or_default()) } else { delta }.to_owned();
                tell("thinking", &piece, wire);
                self.thinking.push_str(&piece);
            }
            _ => {}
        }
    }
}

impl Call {
    fn asks(&self) -> bool {
        self.name.contains("AskUserQuestion")
    }

    fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "done" | "error" | "cancelled")
    }

    /// The question; one that stands for something else says so in its arguments, where the server is one of ours.
    fn ask(&self, id: &str) -> Ask {
        let questions = questions(&self.arguments["questions"]);
        let stands_for = &self.arguments["ask"];
        let kind = match stands_for["kind"].as_str() {
            Some("permission") => AskKind::Permission,
            Some("form") => AskKind::Form,
            Some("link") => AskKind::Link,
            _ => AskKind::Question,
        };
        let always = questions.first().is_some_and(|question| question.options.iter().any(|option| &*option.label == "Allow always"));
        let word = |value: &Value| value.as_str().map(Text::from);
        Ask {
            id: AskId::from(id),
            kind,
            call: None,
            tool_name: word(&stands_for["tool_name"]).unwrap_or_else(|| Text::from(self.name.as_str())),
            message: word(&stands_for["input"]["message"]).filter(|_| matches!(kind, AskKind::Form | AskKind::Link)),
            input: Json::from_value(if kind == AskKind::Question { &self.arguments } else { &stands_for["input"] }),
            questions,
            suggestions: (kind == AskKind::Permission && always).then(Json::empty_object),
        }
    }
}

fn tell(kind: &str, piece: &str, wire: &Wire) {
    if !piece.is_empty() {
        let delta = Text::from(piece);
        wire.tell(if kind == "text" { What::Text { delta } } else { What::Thinking { delta } });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn turn(blocks: Value, calls: Value) -> Value {
        json!({"turn_id": "t", "role": "assistant", "blocks": blocks, "tool_calls": calls})
    }

    fn text(content: &str) -> Value {
        json!({"type": "text", "content": content})
    }

    fn told(events: &[(&str, Value)]) -> Vec<What> {
        let (wire, mut ends) = Wire::new();
        let mut turns = Turns::default();
        for (name, data) in events {
            if *name == "turn:patch" { turns.patch(data, &wire) } else { turns.whole(data, &wire) }
        }
        std::iter::from_fn(|| ends.tells.try_recv().ok()).collect()
    }

    fn answer(told: &[What]) -> String {
        told.iter().filter_map(|what| if let What::Text { delta } = what { Some(delta.to_string()) } else { None }).collect()
    }

    #[test]
    fn deltas_snapshots_and_both_give_the_same_text() {
        let delta = |piece: &str| json!({"turn_id": "t", "patch_type": "add_content", "data": {"type": "text", "text_delta": piece}});
        let sync = |whole: &str| json!({"turn_id": "t", "patch_type": "sync", "data": {"turn": turn(json!([text(whole)]), json!([]))}});
        let both = |piece: &str, whole: &str| json!({"turn_id": "t", "patch_type": "add_content", "data": {"type": "text", "text_delta": piece, "turn": turn(json!([text(whole)]), json!([]))}});
        let begin = turn(json!([]), json!([]));
        let end = turn(json!([text("ab")]), json!([]));
        for patches in [[delta("a"), delta("b")], [sync("a"), sync("ab")], [both("a", "a"), delta("b")], [both("a", "a"), both("b", "ab")]]
        {
            let [one, two] = patches;
            let told = told(&[("turn:start", begin.clone()), ("turn:patch", one), ("turn:patch", two), ("turn:end", end.clone())]);
            assert_eq!(answer(&told), "ab");
        }
    }

    #[test]
    fn what_others_say_is_not_the_answer() {
        let mut child = turn(json!([text("child")]), json!([]));
        child["parent_fork_tool_call_id"] = json!("c");
        let mut user = turn(json!([text("user")]), json!([]));
        user["role"] = json!("user");
        assert_eq!(answer(&told(&[("turn:start", child), ("turn:start", user)])), "");
    }

    #[test]
    fn a_call_starts_once_and_ends_once() {
        let call = |status: &str, result: Value| json!([{"id": "c", "tool_name": "Bash", "arguments": "{\"command\":\"ls\"}", "status": status, "result": result}]);
        let told = told(&[
            ("turn:start", turn(json!([]), call("pending", json!(null)))),
            (
                "turn:patch",
                json!({"turn_id": "t", "patch_type": "tool_result", "data": {"tool_call_id": "c", "status": "done", "result": "a.txt"}}),
            ),
            ("turn:end", turn(json!([]), call("done", json!("a.txt")))),
        ]);
        assert!(
            matches!(&told[..], [What::ToolStarted { .. }, What::ToolEnded { is_error: false, result, .. }] if &**result == "a.txt"),
            "{told:?}"
        );
    }

    #[test]
    fn an_open_question_pauses_and_is_settled_by_its_status() {
        let arguments = json!({"questions": [{"question": "May Bash run?", "options": [{"label": "Allow"}, {"label": "Deny"}]}], "ask": {"kind": "permission", "tool_name": "Bash", "input": {"command": "ls"}}});
        let call =
            |status: &str| json!([{"id": "ask_1", "tool_name": "AskUserQuestion", "arguments": arguments.to_string(), "status": status}]);
        let (wire, mut ends) = Wire::new();
        let mut turns = Turns::default();
        turns.whole(&turn(json!([]), call("awaiting_answer")), &wire);
        assert_eq!(turns.end(&json!({"status": "completed"})), End::Paused);
        let Some(What::AskRaised(ask)) = ends.tells.try_recv().ok() else { panic!() };
        assert_eq!((ask.kind, &*ask.tool_name, ask.input.as_str()), (AskKind::Permission, "Bash", r#"{"command":"ls"}"#));
        turns.patch(&json!({"turn_id": "t", "patch_type": "set_tool_status", "data": {"tool_call_id": "ask_1", "status": "done"}}), &wire);
        assert!(matches!(ends.tells.try_recv(), Ok(What::AskSettled { .. })));
        assert_eq!(turns.end(&json!({"status": "completed"})), End::Over(Outcome::Completed(Completion::EndTurn)));
    }
}
