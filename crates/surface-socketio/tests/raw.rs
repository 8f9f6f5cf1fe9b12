//! The raw stream (socketio.md §6.1), read by a reader that builds turns of it as such clients do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

mod scene;

use std::collections::BTreeMap;

use interline_model::{Answer, AskKind, Body, Fact, Json, Outcome, Part, Record, RunEnd, Text, Usage, What, Writer};
use interline_surface_socketio::{Options, RawItem, RawWriter, batch};
use scene::{Scene, completed, raised, root, sub, text, thinking, tool, tool_ended, tool_gave, turn_ended};
use serde_json::{Value, json};

/// A client that knows raw events only.
#[derive(Default)]
struct Reader {
    last: u64,
    running: bool,
    /// Text by loop.
    said: BTreeMap<String, String>,
    thought: BTreeMap<String, String>,
    /// Calls by id: name, arguments as the fragments add up to, result.
    calls: BTreeMap<String, (String, String, Option<Value>)>,
    agents: Vec<String>,
    responses: Vec<Value>,
    types: Vec<String>,
}

impl Reader {
    fn see(&mut self, name: &str, data: &Value) {
        if let Err(why) = interline_testkit::validate_socketio(&json!({"event": name, "data": data}).to_string()) {
            panic!("{why}\n{data}");
        }
        assert!(!["turn:start", "turn:patch", "turn:end"].contains(&name), "both families on one stream");
        match name {
            "chat:start" => {
                assert!(!self.running);
                (self.running, self.last) = (true, 0);
            }
            "chat:end" => {
                assert!(self.running);
                assert_eq!(self.types.last().unwrap(), "chat:end", "the copy comes first");
                self.running = false;
            }
            "turn:events" => data["events"].as_array().unwrap().iter().for_each(|event| self.raw(event)),
            _ => {}
        }
    }

    fn raw(&mut self, event: &Value) {
        assert!(self.running, "raw event outside a chat");
        assert_eq!(event["stream_sequence"].as_u64().unwrap(), self.last + 1);
        self.last += 1;
        let (kind, x) = (event["type"].as_str().unwrap(), &event["payload"]);
        self.types.push(kind.to_owned());
        let loop_name = x["loop_name"].as_str().unwrap().to_owned();
        let content = || x["content"].as_str().unwrap();
        match kind {
            "llm:content:delta" => self.said.entry(loop_name).or_default().push_str(content()),
            "llm:thinking:delta" => self.thought.entry(loop_name).or_default().push_str(content()),
            "llm:tool_call:created" => {
                let call = self.calls.entry(x["id"].as_str().unwrap().to_owned()).or_default();
                call.0 = x["function"]["name"].as_str().unwrap().to_owned();
                call.1.push_str(x["arguments_delta"].as_str().unwrap());
            }
            "llm:response:done" => self.responses.push(x.clone()),
            "tool:result:done" | "tool:result:error" => {
                let call = self.calls.get_mut(x["tool_call_id"].as_str().unwrap()).expect("announced before");
                assert!(call.2.is_none(), "one result");
                call.2 = Some(json!([kind == "tool:result:done", x["content"]]));
            }
            "agent:start" => self.agents.push(loop_name),
            "agent:end" => {
                let at = self.agents.iter().position(|agent| *agent == loop_name).expect("started before");
                self.agents.remove(at);
            }
            _ => {}
        }
    }
}

/// Builds records as the other tests do, and writes them raw.
struct RawScene {
    scene: Scene,
    writer: RawWriter,
    items: Vec<RawItem>,
}

impl RawScene {
    fn new() -> Self {
        let mut raw = Self { scene: Scene::new(Options::default()), writer: RawWriter::new(Options::default()), items: Vec::new() };
        raw.start(1);
        raw
    }

    fn start(&mut self, run: u128) {
        self.scene.start(run, vec![Part::Text(Text::from_static("List the files here"))], false);
        let (record, events) = self.scene.last.clone().unwrap();
        self.writer.write(&record, &events, &mut self.items);
    }

    fn frame(&mut self, events: Vec<interline_model::Event>) {
        self.scene.frame(150, events);
        let (record, events) = self.scene.last.clone().unwrap();
        self.writer.write(&record, &events, &mut self.items);
    }

    fn answered(&mut self, ask: &str, answer: Answer) {
        self.scene.answered(150, ask, answer);
        let (record, events) = self.scene.last.clone().unwrap();
        self.writer.write(&record, &events, &mut self.items);
    }

    fn read(&self) -> Reader {
        let mut reader = Reader::default();
        for event in batch("sess_1", self.items.clone()) {
            reader.see(event.name, &event.data.to_value());
        }
        reader
    }
}

fn usage(input_tokens: u64, output_tokens: u64) -> What {
    What::TurnEnded { usage: Some(Usage { input_tokens, output_tokens, cache_read_tokens: 0, cache_write_tokens: 0 }) }
}

/// The raw events of a stream, whatever the batches.
fn flat(events: impl Iterator<Item = (String, Value)>) -> Vec<Value> {
    events.filter(|(name, _)| name == "turn:events").flat_map(|(_, data)| data["events"].as_array().unwrap().clone()).collect()
}

#[test]
fn a_chat_with_a_tool_is_the_fixtures() {
    let mut raw = RawScene::new();
    raw.frame(vec![root(What::TurnStarted), root(thinking("list first")), root(text("Let me look."))]);
    raw.frame(vec![root(tool("call_1", "Bash", ""))]);
    raw.frame(vec![root(What::ToolInput { call: "call_1".into(), input: Json::parse(r#"{"command":"ls"}"#).unwrap() })]);
    raw.frame(vec![root(tool_ended("call_1", "README.md", false))]);
    raw.frame(vec![root(usage(600, 30)), root(What::TurnStarted), root(text("One file."))]);
    raw.frame(vec![root(usage(660, 3)), root(completed())]);
    let reader = raw.read();
    assert!(!reader.running);

    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        (line["event"].as_str().unwrap().to_owned(), line["data"].take())
    };
    let file = std::fs::read_to_string(format!("{}/tests/fixtures/20_raw_events_gen2.jsonl", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let theirs = flat(file.lines().map(line));
    let ours = flat(batch("sess_1", raw.items.clone()).into_iter().map(|event| (event.name.to_owned(), event.data.to_value())));
    let run = ours.last().unwrap()["payload"]["chat_run_id"].clone();
    assert_eq!(ours.len(), theirs.len());
    for (mine, value) in ours.iter().zip(&theirs) {
        let (mut mine, mut value) = (mine.clone(), value.clone());
        match value["type"].as_str().unwrap() {
            // The fragments are cut elsewhere; together they are the same.
            "llm:tool_call:created" => {
                mine["payload"]["arguments_delta"].take();
                value["payload"]["arguments_delta"].take();
            }
            // Tokens of a call whose tools still run are not known yet.
            "llm:response:done" if value["payload"]["finish_reason"] == "tool_calls" => {
                assert!(mine["payload"]["usage"].take().is_null());
                value["payload"]["usage"].take();
            }
            "chat:end" => value["payload"]["chat_run_id"] = run.clone(),
            _ => {}
        }
        assert_eq!(mine, value);
    }
    assert_eq!(reader.calls["call_1"].1, r#"{"command":"ls"}"#);
}

#[test]
fn every_chat_counts_from_one_and_a_question_ends_one() {
    let mut raw = RawScene::new();
    raw.frame(vec![root(What::TurnStarted), root(tool("q", "AskUserQuestion", "{}")), root(raised("a", AskKind::Question, Some("q")))]);
    let paused = raw.read();
    assert!(!paused.running);
    assert_eq!(paused.types, ["loop:turn", "llm:tool_call:created", "llm:response:done", "chat:end"]);
    assert!(paused.calls["q"].1.contains("Which environment?"), "what the form is drawn of");
    raw.answered("a", Answer::Choose(vec![("Which environment?".into(), "staging".into())]));
    raw.frame(vec![root(tool_ended("q", "staging", false)), root(turn_ended()), root(What::TurnStarted), root(text("Ok."))]);
    raw.frame(vec![root(turn_ended()), root(completed())]);
    let reader = raw.read();
    assert_eq!(reader.calls["q"].2, Some(json!([true, "staging"])));
    assert_eq!(reader.said["root"], "Ok.");
}

#[test]
fn a_permission_is_a_call_with_its_answer_as_result() {
    let mut raw = RawScene::new();
    raw.frame(vec![
        root(What::TurnStarted),
        root(tool("t", "Bash", r#"{"command":"make"}"#)),
        root(raised("a", AskKind::Permission, Some("t"))),
    ]);
    raw.answered("a", Answer::Allow { input: None, always: false });
    raw.frame(vec![root(tool_gave("t", r#"{"ok":true}"#)), root(turn_ended()), root(completed())]);
    let reader = raw.read();
    assert_eq!(reader.calls["ask_a"].0, "AskUserQuestion");
    assert_eq!(reader.calls["ask_a"].2, Some(json!([true, "Allow"])));
    assert_eq!(reader.calls["t"].2, Some(json!([true, r#"{"ok":true}"#])), "a result is text here");
}

#[test]
fn sub_agents_begin_and_end_and_keep_their_loops_apart() {
    let mut raw = RawScene::new();
    raw.frame(vec![root(What::TurnStarted), root(tool("p", "Agent", r#"{"description":"Clean"}"#)), root(tool("r", "Agent", "{}"))]);
    raw.frame(vec![sub("p", What::TurnStarted), sub("p", text("mine"))]);
    raw.frame(vec![sub("r", What::TurnStarted), sub("r", text("other"))]);
    raw.frame(vec![
        sub("p", turn_ended()),
        root(tool_ended("p", "mine", false)),
        sub("r", turn_ended()),
        root(tool_ended("r", "no", true)),
    ]);
    raw.frame(vec![root(turn_ended()), root(What::TurnStarted), root(text("Done.")), root(turn_ended()), root(completed())]);
    let reader = raw.read();
    assert!(reader.agents.is_empty(), "all have ended");
    assert_eq!(reader.said.len(), 3);
    assert_eq!(reader.said["root"], "Done.");
    let flat = flat(batch("sess_1", raw.items.clone()).into_iter().map(|event| (event.name.to_owned(), event.data.to_value())));
    let agents: Vec<&Value> =
        flat.iter().filter(|event| event["type"].as_str().unwrap().starts_with("agent:")).map(|event| &event["payload"]).collect();
    assert_eq!((&agents[0]["description"], &agents[0]["parent_fork_tool_call_id"]), (&json!("Clean"), &json!("p")));
    assert_eq!((&agents[2]["ok"], &agents[3]["ok"]), (&json!(true), &json!(false)));
}

#[test]
fn what_is_cut_off_ends_as_an_error_and_the_copy_is_the_end() {
    let mut raw = RawScene::new();
    raw.frame(vec![root(What::TurnStarted), root(text("Hel")), root(tool("t", "Bash", "{}"))]);
    let end = RunEnd::synthesised(Outcome::Interrupted { reason: Text::from_static("user_interrupt") });
    raw.frame(vec![root(scene::aborted("t")), root(turn_ended()), root(What::RunEnded(Box::new(end)))]);
    let reader = raw.read();
    assert_eq!(reader.calls["t"].2, Some(json!([false, "cancelled"])));
    let events = batch("sess_1", raw.items.clone());
    let [.., copy, typed] = events.as_slice() else { panic!("{events:?}") };
    let copy = copy.data.to_value()["events"].as_array().unwrap().last().cloned().unwrap();
    let mut typed = typed.data.to_value();
    typed.as_object_mut().unwrap().remove("session_id");
    typed["loop_name"] = json!("root");
    assert_eq!((&copy["type"], &copy["payload"]), (&json!("chat:end"), &typed));
}

#[test]
fn what_a_socket_is_owed_depends_on_what_it_has_seen() {
    let mut raw = RawScene::new();
    assert_eq!(raw.writer.owed_from(0, false), Some((0, 0)), "the chat runs");
    raw.frame(vec![root(What::TurnStarted), root(text("Hello.")), root(turn_ended()), root(completed())]);
    let last = raw.items.iter().filter(|item| matches!(item, RawItem::Raw { .. })).count() as u64;
    assert_eq!(raw.writer.owed_from(0, false), None, "who is new finds the history by REST");
    assert_eq!(raw.writer.owed_from(1, false), Some((0, 1)));
    assert_eq!(raw.writer.owed_from(0, true), Some((0, 0)));
    // Case B11: a number of another chat, or of none.
    for beyond in [last + 1, 1_000_000_000, u64::MAX] {
        assert_eq!(raw.writer.owed_from(beyond, true), Some((0, 0)), "all of it, and no part");
    }
    assert_eq!(raw.writer.owed_from(last, true), None, "it has seen the end");
    let before = raw.items.len() as u64;
    raw.start(2);
    assert_eq!(raw.writer.owed_from(0, false), Some((before, 0)), "of the chat that runs, and of none before");
}

#[test]
fn a_title_is_an_event_like_any_other() {
    let mut writer = RawWriter::new(Options::default()).titled(Text::from_static("Old"));
    let mut items = Vec::new();
    let record = |body| Record { at: 0, body };
    writer.write(&record(Body::Fact(Fact::Titled { title: Text::from_static("New") })), &[], &mut items);
    assert!(items.is_empty(), "no run, no id to tell it under");
}
