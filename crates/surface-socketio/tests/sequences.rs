//! The sequences of socketio.md §4, each against the vendor-shaped fixture of the same story: the same events in the same order, with at
//! least the same members of the same types.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

mod fold;
mod scene;

use fold::{Fold, Format};
use interline_model::{Answer, AskKind, AskOutcome, CompactionPhase, Completion, Fact, Json, Outcome, Part, RunEnd, Text, Usage, What};
use interline_surface_socketio::{HeadlessResult, Options, PatchFormat, PauseStatus};
use scene::{
    Scene, aborted, completed, failed, interrupted, raised, root, settled, sub, summary, text, thinking, tool, tool_ended, turn_ended,
};
use serde_json::{Value, json};

fn fixture(name: &str) -> Vec<(String, Value)> {
    let path = format!("{}/tests/fixtures/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let lines = std::fs::read_to_string(path).unwrap();
    lines
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            (line["event"].as_str().unwrap().to_owned(), line["data"].take())
        })
        .collect()
}

/// Every member of `theirs` is in `ours`, with the same type unless one of the two is null.
fn has_shape(ours: &Value, theirs: &Value, path: &str) {
    match (ours, theirs) {
        (_, Value::Null) | (Value::Null, _) => {}
        (Value::Object(ours), Value::Object(theirs)) => {
            for (key, value) in theirs {
                // Decision 23: a piece of text may go without what only snapshot readers need.
                let thinned = theirs.contains_key("text_delta") && ["turn", "content"].contains(&key.as_str());
                if thinned && !ours.contains_key(key) {
                    continue;
                }
                let mine = ours.get(key).unwrap_or_else(|| panic!("no {path}.{key}"));
                // What tools take, and what answers hold, is their own.
                if key != "arguments" && key != "result" {
                    has_shape(mine, value, &format!("{path}.{key}"));
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            for (at, (mine, value)) in ours.iter().zip(theirs).enumerate() {
                if mine["type"] == value["type"] && mine["type"] != "tool_use" && mine["type"] != "tool_result" {
                    has_shape(mine, value, &format!("{path}[{at}]"));
                }
            }
        }
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) => {}
        (ours, theirs) => panic!("{path} is {ours}, and {theirs} in the fixture"),
    }
}

/// `session:updated` may come more often than in the fixtures, which leave it out here and there (socketio.md §4.1).
fn told(names: &str) -> bool {
    !names.starts_with("session:updated")
}

fn same_story(scene: &Scene, from: usize, name: &str) {
    let theirs: Vec<(String, Value)> = fixture(name).into_iter().filter(|(name, _)| told(name)).collect();
    let ours: Vec<(&str, Value)> = scene.data().drain(from..).filter(|(name, _)| told(name)).collect();
    let names = |list: Vec<String>| list.join("\n");
    assert_eq!(
        names(ours.iter().map(|(name, data)| summary(name, data)).collect()),
        names(theirs.iter().map(|(name, data)| summary(name, data)).collect()),
        "{name}"
    );
    for ((event, mine), (_, value)) in ours.iter().zip(&theirs) {
        has_shape(mine, value, event);
    }
    let mut fold = Fold::new(Format::Hybrid);
    for (event, data) in &scene.data() {
        fold.see(event, data);
    }
}

fn hybrid(input: &str) -> Scene {
    Scene::started(Options::default(), input)
}

#[test]
fn plain_text() {
    let mut scene = hybrid("What is the capital of France?");
    scene.frame(900, vec![root(What::TurnStarted), root(text("The capital "))]);
    scene.frame(150, vec![root(text("of France "))]);
    scene.frame(150, vec![root(text("is Paris."))]);
    let usage = Usage { input_tokens: 512, output_tokens: 9, ..Usage::default() };
    let end = RunEnd { usage: Some(usage), ..RunEnd::synthesised(Outcome::Completed(Completion::EndTurn)) };
    scene.frame(700, vec![root(turn_ended()), root(What::RunEnded(Box::new(end)))]);
    same_story(&scene, 0, "01_plain_text");
    let last = scene.data().into_iter().rfind(|(name, _)| *name == "turn:end").unwrap().1;
    assert_eq!(last["usage"], json!({"input_tokens": 512, "output_tokens": 9}));
    assert_eq!(last["duration_ms"], 1000);
    assert_eq!(last["started_at"], "2026-01-01T00:00:01Z");
    assert_eq!(last["sequence"], 1);
    assert_eq!(scene.data().last().unwrap().1["chat_run_id"], "run-00000010000000000000000000000000");
}

#[test]
fn thinking_is_one_block_and_fills_no_delta() {
    let mut scene = hybrid("Is 91 prime?");
    scene.frame(0, vec![root(What::TurnStarted), root(thinking("91 = 7 x 13, "))]);
    scene.frame(10, vec![root(thinking("so it is "))]);
    scene.frame(10, vec![root(thinking("composite."))]);
    scene.frame(10, vec![root(text("No. "))]);
    scene.frame(10, vec![root(text("91 = 7 × 13."))]);
    scene.frame(0, vec![root(turn_ended()), root(completed())]);
    same_story(&scene, 0, "02_thinking");
    let patches: Vec<Value> =
        scene.data().into_iter().filter(|(name, _)| *name == "turn:patch").map(|(_, data)| data["data"].clone()).collect();
    assert_eq!(patches[0]["text_delta"], "");
    assert_eq!(patches[1]["content"], "91 = 7 x 13, so it is composite.");
    assert_eq!(patches[1]["text_delta"], "");
    // A delta shortly after a snapshot goes alone: `content` is for who cannot append (decision 23).
    assert_eq!(patches[3], json!({"type": "text", "text_delta": "91 = 7 × 13."}));
}

#[test]
fn thinking_deltas_are_filled_on_demand() {
    let mut scene = Scene::started(Options { thinking_delta: true, ..Options::default() }, "x");
    scene.frame(0, vec![root(thinking("a"))]);
    scene.frame(1, vec![root(thinking("b"))]);
    let data = scene.data();
    assert_eq!(data.last().unwrap().1["data"], json!({"type": "thinking", "text_delta": "b"}));
}

#[test]
fn tools_of_one_model_call_share_a_turn() {
    let mut scene = hybrid("Create notes.md and check the config");
    let write = r##"{"file_path": "notes.md", "content": "# Notes\n", "n": 12345678901234567890123}"##;
    scene.frame(1000, vec![root(What::TurnStarted), root(tool("w", "Write", write))]);
    scene.frame(1, vec![root(tool("r", "Read", r#"{"file_path": "config.yml"}"#))]);
    scene.frame(4, vec![root(tool_ended("r", "ENOENT: config.yml does not exist", true))]);
    scene.frame(7, vec![root(tool_ended("w", "ok", false)), root(What::FilesChanged { paths: vec![Text::from_static("notes.md")] })]);
    scene.frame(100, vec![root(turn_ended()), root(What::TurnStarted), root(text("Wrote notes.md; "))]);
    scene.frame(100, vec![root(text("there is no config.yml."))]);
    scene.frame(1, vec![root(turn_ended()), root(completed())]);
    let names: Vec<String> = scene.names().into_iter().filter(|name| told(name)).collect();
    let theirs: Vec<String> =
        fixture("03b_tools_parallel_error_file").iter().map(|(name, data)| summary(name, data)).filter(|name| told(name)).collect();
    let until = theirs.iter().position(|name| name == "workspace:files_changed").unwrap();
    assert_eq!(names[..=until], theirs[..=until]);
    same_fold(&scene);
    let announced = &scene.data()[5].1["data"];
    assert_eq!(announced["arguments"].as_str(), Some(write), "numbers, order and white space as the upstream wrote them");
    let ended = scene.data().into_iter().find(|(name, data)| *name == "turn:patch" && data["patch_type"] == "tool_result").unwrap().1;
    assert_eq!(ended["data"]["duration_ms"], 4);
    assert_eq!(ended["data"]["status"], "error");
}

fn same_fold(scene: &Scene) -> Fold {
    let mut fold = Fold::new(Format::Hybrid);
    for (event, data) in &scene.data() {
        fold.see(event, data);
    }
    fold
}

#[test]
fn input_that_comes_later_is_told_with_the_status() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(tool("t", "Bash", ""))]);
    scene.frame(0, vec![root(What::ToolInput { call: "t".into(), input: Json::parse(r#"{"command":"ls"}"#).unwrap() })]);
    let data = scene.data();
    assert_eq!(data[data.len() - 2].1["data"]["arguments"], "{}");
    let last = &data.last().unwrap().1["data"];
    assert_eq!(last["arguments"], r#"{"command":"ls"}"#);
    assert_eq!(last["status"], "pending");
    assert_eq!(last["turn"]["blocks"][0]["content"], json!({"command": "ls"}));
}

const QUESTION: &str =
    r#"{"questions":[{"question":"Which environment?","header":"Deploy","options":[{"label":"staging"},{"label":"production"}]}]}"#;

#[test]
fn a_question_pauses_and_its_answer_goes_on() {
    let mut scene = hybrid("Deploy the app");
    scene.frame(1000, vec![root(What::TurnStarted), root(text("One question first."))]);
    scene.frame(200, vec![root(tool("q", "AskUserQuestion", QUESTION)), root(raised("a", AskKind::Question, Some("q")))]);
    same_story(&scene, 0, "04a_ask_user_pause");
    assert_eq!(scene.writer.status().as_str(), "waiting_for_input");
    assert_eq!(scene.writer.pending_question().unwrap().tool_call_id, "q");
    assert!(!scene.writer.chat_running());
    let told = scene.writer.late_subscriber();
    let [event] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((event.name, &event.data.to_value()["status"]), ("session:updated", &json!("waiting_for_input")));
    let end = scene.data().pop().unwrap().1;
    assert_eq!(end["status"], "completed");
    assert_eq!(end["pause_tool_data"]["arguments"]["questions"][0]["options"][1]["description"], "");

    let from = scene.events.len();
    let staging = vec![(Text::from_static("Which environment?"), Text::from_static("staging"))];
    scene.answered(8000, "a", Answer::Choose(staging));
    scene.frame(450, vec![root(tool_ended("q", "User answered: staging", false)), root(turn_ended())]);
    scene.frame(10, vec![root(What::TurnStarted), root(text("Deploying "))]);
    scene.frame(200, vec![root(text("to staging."))]);
    scene.frame(10, vec![root(turn_ended()), root(completed())]);
    let names: Vec<String> = scene.names().drain(from..).collect();
    assert_eq!(
        names,
        [
            "chat:start",
            "session:updated running",
            "turn:start user",
            "turn:end completed",
            // The call's own result is still to come from the tool.
            "set_tool_status pending",
            "set_status streaming",
            "tool_result done",
            "set_status completed",
            "turn:start assistant",
            "add_content text",
            "add_content text",
            "turn:end completed",
            "session:updated completed",
            "chat:end completed",
        ]
    );
    let answer = &scene.data()[from + 2].1["blocks"][0];
    assert_eq!(answer["type"], "ask_user_answer");
    assert_eq!(answer["content"], json!({"tool_call_id": "q", "selections": {"0": [0]}, "custom": {}}));
    let fold = same_fold(&scene);
    assert_eq!(fold.chats, 2);
    assert_eq!(scene.data()[0].1["chat_run_id"], scene.data()[from].1["chat_run_id"], "one run, two chats (decision 8)");
}

#[test]
fn the_pause_status_is_a_choice() {
    let mut scene = Scene::started(Options { pause_status: PauseStatus::Paused, ..Options::default() }, "x");
    scene.frame(0, vec![root(raised("a", AskKind::Question, Some("q")))]);
    assert_eq!(scene.names().last().unwrap(), "chat:end paused");
}

#[test]
fn a_permission_is_a_question_of_its_own_and_its_tool_waits() {
    let mut scene = hybrid("Run the tests");
    scene.frame(
        0,
        vec![
            root(What::TurnStarted),
            root(tool("b", "Bash", r#"{"command":"make"}"#)),
            root(raised("5f60", AskKind::Permission, Some("b"))),
        ],
    );
    let names: Vec<String> = scene.names().drain(4..).collect();
    assert_eq!(
        names,
        [
            "turn:start assistant",
            "add_tool_call pending",
            "add_tool_call awaiting_answer",
            "set_tool_status awaiting_answer",
            "turn:end paused",
            "session:updated waiting_for_input",
            "chat:end completed",
        ]
    );
    let call = &scene.data()[6].1["data"];
    assert_eq!(
        (&call["id"], &call["tool_name"], &call["display_name"]),
        (&json!("ask_5f60"), &json!("AskUserQuestion"), &json!("Permission: Bash"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    let labels: Vec<&Value> = arguments["questions"][0]["options"].as_array().unwrap().iter().map(|option| &option["label"]).collect();
    assert_eq!(labels, ["Allow", "Deny"], "no suggestions, so nothing to allow always");
    assert_eq!(arguments["ask"]["input"], json!({"command": "make"}));

    let from = scene.events.len();
    scene.answered(2000, "5f60", Answer::Allow { input: None, always: false });
    scene.frame(500, vec![root(tool_ended("b", "ok", false))]);
    scene.frame(0, vec![root(turn_ended()), root(What::TurnStarted), root(text("All pass."))]);
    scene.frame(0, vec![root(turn_ended()), root(completed())]);
    let names: Vec<String> = scene.names().drain(from..).collect();
    assert_eq!(
        names,
        [
            "chat:start",
            "session:updated running",
            "turn:start user",
            "turn:end completed",
            "tool_result done",
            "set_tool_status pending",
            "set_status streaming",
            "tool_result done",
            "set_status completed",
            "turn:start assistant",
            "add_content text",
            "turn:end completed",
            "session:updated completed",
            "chat:end completed",
        ]
    );
    let result = &scene.data()[from + 4].1["data"];
    assert_eq!((&result["tool_call_id"], &result["result"], &result["duration_ms"]), (&json!("ask_5f60"), &json!("Allow"), &json!(2000)));
    same_fold(&scene);
}

#[test]
fn an_ask_that_nobody_answers_ends_as_an_error() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(tool("b", "Bash", "{}")), root(raised("p", AskKind::Permission, Some("b")))]);
    let from = scene.events.len();
    scene.now += 30_000;
    scene.record(interline_model::Body::Fact(Fact::AskExpired { ask: "p".into() }), vec![root(settled("p", AskOutcome::Expired))]);
    let names: Vec<String> = scene.names().drain(from..).collect();
    assert_eq!(names, ["chat:start", "session:updated running", "tool_result error", "set_tool_status pending", "set_status streaming"]);
}

#[test]
fn of_two_asks_the_second_still_waits() {
    let mut scene = hybrid("x");
    let both = vec![
        root(tool("b", "Bash", "{}")),
        root(tool("c", "Bash", "{}")),
        root(raised("p", AskKind::Permission, Some("b"))),
        root(raised("q", AskKind::Permission, Some("c"))),
    ];
    scene.frame(0, both);
    let from = scene.events.len();
    scene.answered(10, "p", Answer::Deny { message: Text::from_static("not this") });
    scene.frame(10, vec![root(tool_ended("b", "denied", true))]);
    let again = scene.events.len();
    scene.answered(10, "q", Answer::Allow { input: None, always: false });
    let names = scene.names();
    assert_eq!(
        names[from..],
        [
            "chat:start",
            "session:updated running",
            "turn:start user",
            "turn:end completed",
            "tool_result done",
            "session:updated waiting_for_input",
            "chat:end completed",
            // The first tool's result moves the run on; the second ask still waits.
            "chat:start",
            "session:updated running",
            "tool_result error",
            "session:updated waiting_for_input",
            "chat:end completed",
            "chat:start",
            "session:updated running",
            "turn:start user",
            "turn:end completed",
            "tool_result done",
            "set_tool_status pending",
            "set_status streaming",
        ]
    );
    assert_eq!(scene.data()[again - 1].1["pause_tool_data"]["tool_call_id"], "ask_q");
    scene.frame(0, vec![root(tool_ended("c", "ok", false)), root(completed())]);
    same_fold(&scene);
}

#[test]
fn text_that_a_request_overtook_goes_into_a_new_turn_and_the_chat_pauses_again() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(text("I will ")), root(raised("p", AskKind::Permission, Some("b")))]);
    let from = scene.events.len();
    scene.frame(2, vec![root(text("run it"))]);
    scene.frame(1, vec![root(text("."))]);
    scene.frame(1, vec![root(What::Other { name: Text::from_static("stream_event/message_delta") })]);
    assert!(scene.writer.chat_running());
    scene.frame(200, vec![root(What::Other { name: Text::from_static("keep_alive") })]);
    let names: Vec<String> = scene.names().drain(from..).collect();
    assert_eq!(
        names,
        [
            "chat:start",
            "session:updated running",
            "turn:start assistant",
            "add_content text",
            "add_content text",
            "turn:end paused",
            "session:updated waiting_for_input",
            "chat:end completed",
        ]
    );
    scene.answered(10, "p", Answer::Allow { input: None, always: false });
    scene.frame(0, vec![root(completed())]);
    same_fold(&scene);
}

#[test]
fn a_stop_cancels_what_is_pending() {
    let mut scene = hybrid("Run the long job");
    scene.frame(1000, vec![root(What::TurnStarted), root(text("Starting it "))]);
    scene.frame(0, vec![root(tool("t", "Bash", r#"{"command": "sleep 600"}"#))]);
    scene.frame(4200, vec![root(aborted("t")), root(turn_ended()), root(interrupted())]);
    same_story(&scene, 0, "05_stop");
    assert_eq!(scene.data().last().unwrap().1["finish_reason"], Value::Null);
    assert_eq!(scene.writer.status().as_str(), "interrupted");
}

#[test]
fn a_stop_while_a_question_waits_ends_in_a_bracket_of_its_own() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(tool("b", "Bash", "{}")), root(raised("p", AskKind::Permission, Some("b")))]);
    let from = scene.events.len();
    scene.frame(10, vec![root(settled("p", AskOutcome::Void)), root(aborted("b")), root(turn_ended()), root(interrupted())]);
    let names: Vec<String> = scene.names().drain(from..).collect();
    assert_eq!(
        names,
        [
            "chat:start",
            "session:updated running",
            "set_tool_status cancelled",
            "set_tool_status cancelled",
            "set_status completed",
            "session:updated interrupted",
            "chat:end interrupted",
        ]
    );
    same_fold(&scene);
}

#[test]
fn a_compaction_is_a_turn_of_its_own() {
    let mut scene = hybrid("Continue the analysis");
    let started = CompactionPhase::Started { reason: Text::from_static("tokens_above_threshold"), tokens_before: Some(148_000) };
    scene.frame(1000, vec![root(What::Compaction(started))]);
    scene.frame(4100, vec![root(What::Compaction(CompactionPhase::Finished { tokens_before: None, tokens_after: Some(21_000) }))]);
    scene.frame(10, vec![root(What::TurnStarted), root(text("Continuing."))]);
    scene.frame(700, vec![root(turn_ended()), root(completed())]);
    same_story(&scene, 0, "06b_compaction_auto");
    let end = &scene.data()[5].1;
    assert_eq!((&end["tokens_before"], &end["tokens_after"], &end["saved_ratio"]), (&json!(148_000), &json!(21_000), &json!(0.858)));
    assert_eq!((&end["trigger"], &end["duration_ms"]), (&json!("auto"), &json!(4100)));
}

#[test]
fn a_sub_agents_question_pauses_its_parents() {
    let mut scene = hybrid("Delegate it");
    scene.frame(1000, vec![root(What::TurnStarted), root(tool("p", "Agent", r#"{"description": "Formatter"}"#))]);
    let question = vec![
        sub("p", What::TurnStarted),
        sub("p", tool("q", "AskUserQuestion", QUESTION)),
        sub("p", raised("a", AskKind::Question, Some("q"))),
    ];
    scene.frame(500, question);
    let ours = scene.names();
    assert_eq!(
        ours[6..],
        [
            "turn:start assistant",
            "add_tool_call awaiting_answer",
            "turn:end paused",
            "set_tool_status awaiting_answer",
            "turn:end paused",
            "session:updated waiting_for_input",
            "chat:end completed",
        ]
    );
    let theirs = fixture("07b_sub_agent_question_pause");
    let ends =
        |list: &[(String, Value)]| list.iter().filter(|(name, _)| name == "turn:end").map(|(_, data)| data.clone()).collect::<Vec<_>>();
    let mine: Vec<(String, Value)> = scene.data().into_iter().map(|(name, data)| (name.to_owned(), data)).collect();
    for (mine, value) in ends(&mine).iter().zip(&ends(&theirs)) {
        has_shape(mine, value, "turn:end");
    }
    let (child, parent) = (&ends(&mine)[1], &ends(&mine)[2]);
    assert_eq!(child["parent_fork_tool_call_id"], "p");
    assert!(child["loop_id"].as_str().unwrap().starts_with("agent:"));
    let waits = &parent["tool_calls"][0]["pending_question_ref"];
    assert_eq!(*waits, json!({"child_loop_name": child["loop_id"], "child_tool_call_id": "q", "description": "Formatter"}));
    let arguments: Value = serde_json::from_str(child["tool_calls"][0]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["source_loop"], json!({"loop_name": child["loop_id"], "description": "Formatter"}));

    let from = scene.events.len();
    scene.answered(5000, "a", Answer::Choose(vec![(Text::from_static("Which environment?"), Text::from_static("another"))]));
    scene.frame(10, vec![sub("p", tool_ended("q", "another", false)), sub("p", turn_ended())]);
    scene.frame(10, vec![sub("p", What::TurnStarted), sub("p", text("Formatted."))]);
    scene.frame(10, vec![root(tool_ended("p", "Formatted.", false)), root(turn_ended())]);
    scene.frame(10, vec![root(What::TurnStarted), root(text("Done."))]);
    scene.frame(10, vec![root(turn_ended()), root(completed())]);
    let answer = &scene.data()[from + 2].1["blocks"][0]["content"];
    assert_eq!(*answer, json!({"tool_call_id": "q", "selections": {}, "custom": {"0": "another"}}));
    let fold = same_fold(&scene);
    assert!(fold.deltas.values().all(|turn| turn["status"] == "completed"));
}

#[test]
fn a_one_shot_run_returns_its_answer() {
    let structured = Json::parse(r#"{"countries": ["Russia"], "n": 1.0}"#).unwrap();
    for (form, value, expected) in [
        (HeadlessResult::Superset, None, r#"{"output":"Paris.","result":"Paris.","err_msg":null}"#),
        (HeadlessResult::Docs, None, r#"{"output":"Paris."}"#),
        (HeadlessResult::Sdk, None, r#"{"result":"Paris.","err_msg":null}"#),
        (
            HeadlessResult::Superset,
            Some(structured.clone()),
            r#"{"output":{"countries": ["Russia"], "n": 1.0},"err_msg":null,"countries": ["Russia"], "n": 1.0}"#,
        ),
        (HeadlessResult::Sdk, Some(structured), r#"{"err_msg":null,"countries": ["Russia"], "n": 1.0}"#),
        (HeadlessResult::Superset, Some(Json::parse("[{}]").unwrap()), r#"{"output":[{}],"err_msg":null}"#),
        (HeadlessResult::Superset, Some(Json::empty_object()), r#"{"output":{},"err_msg":null}"#),
    ] {
        let mut scene = Scene::new(Options { headless_result: form, ..Options::default() });
        scene.start(1, vec![Part::Text(Text::from_static("Capital?"))], true);
        scene.frame(0, vec![root(text("Paris."))]);
        let end = RunEnd { structured_output: value, ..RunEnd::synthesised(Outcome::Completed(Completion::EndTurn)) };
        scene.frame(0, vec![root(turn_ended()), root(What::RunEnded(Box::new(end)))]);
        let end = scene.events.last().unwrap().data.as_str().to_owned();
        assert!(end.contains(&format!(r#""result":{expected},"finish_reason":"completed""#)), "{end}");
    }
}

#[test]
fn a_failure_ends_the_turn_then_says_why() {
    let mut scene = hybrid("Hello");
    scene.frame(1000, vec![root(What::TurnStarted), root(text("Hel"))]);
    scene.frame(2000, vec![root(turn_ended()), root(failed("upstream connection lost"))]);
    same_story(&scene, 0, "09_failure_mid_turn");
    let ends: Vec<String> = scene.names().into_iter().rev().take(4).collect();
    assert_eq!(ends, ["chat:end failed", "system:error", "session:updated failed", "turn:end failed"]);
    let data = scene.data();
    assert_eq!(data[data.len() - 2].1["code"], "upstream_disconnected");
    assert_eq!(data[data.len() - 4].1["failure_reason"], "upstream connection lost");
}

#[test]
fn a_limit_is_a_finish_reason() {
    for limit in [Completion::MaxTurns, Completion::MaxBudget] {
        let mut scene = hybrid("x");
        scene.frame(0, vec![root(scene::ended(Outcome::Completed(limit)))]);
        let end = scene.data().pop().unwrap().1;
        assert_eq!((&end["status"], &end["finish_reason"]), (&json!("completed"), &json!("max_turns")));
    }
}

#[test]
fn a_late_subscriber_joins_without_a_gap() {
    let mut scene = hybrid("Tell a story");
    scene.frame(1000, vec![root(What::TurnStarted), root(text("Once upon a time, "))]);
    let joined = scene.writer.late_subscriber();
    let from = scene.events.len();
    scene.frame(200, vec![root(text("there was "))]);
    scene.frame(200, vec![root(text("a proxy."))]);
    scene.frame(200, vec![root(turn_ended()), root(completed())]);
    let live = scene.events.drain(from..).collect::<Vec<_>>();
    let mut fold = Fold::late(Format::Hybrid);
    let mut names = Vec::new();
    for event in joined.into_iter().chain(live) {
        let data = event.data.to_value();
        fold.see(event.name, &data);
        names.push(summary(event.name, &data));
    }
    let theirs: Vec<String> = fixture("10_late_subscriber").iter().map(|(name, data)| summary(name, data)).collect();
    assert_eq!(names.into_iter().filter(|name| told(name)).collect::<Vec<_>>(), theirs);
}

#[test]
fn a_message_of_several_parts_is_a_turn_of_several_blocks() {
    let mut scene = Scene::new(Options::default());
    let parts = vec![
        Part::Text(Text::from_static("Describe this")),
        Part::Image { url: Text::from_static("data:image/png;base64,iVBORw0KGgo=") },
        Part::File { name: Text::from_static("data.csv"), data: Text::from_static("YSxiCg==") },
    ];
    scene.start(1, parts, false);
    scene.frame(900, vec![root(What::TurnStarted), root(text("A tiny picture and a two-column table."))]);
    scene.frame(100, vec![root(turn_ended()), root(completed())]);
    same_story(&scene, 0, "11_multimodal_user");
}

#[test]
fn without_input_there_is_no_user_turn() {
    let mut scene = Scene::new(Options::default());
    scene.start(1, Vec::new(), false);
    assert_eq!(scene.names(), ["chat:start", "session:updated running"]);
}

#[test]
fn a_title_is_told_once() {
    let mut scene = hybrid("  \nName   the capital\nof France");
    assert_eq!(scene.writer.intent(), &Text::from_static("Name   the capital"));
    let title = Text::from_static("Capitals");
    let changed = What::SessionChanged { model: None, title: Some(title.clone()), mode: None, state: None };
    scene.record(interline_model::Body::Fact(Fact::Titled { title }), vec![root(changed)]);
    assert_eq!(scene.names().iter().filter(|name| *name == "session:updated running").count(), 2);
    assert_eq!(scene.data().last().unwrap().1["intent"], "Capitals");
}

/// A long answer in small pieces, one every `pace` milliseconds: how many bytes go out for how much text.
fn cost(pieces: usize, pace: u64, format: PatchFormat, piece: &dyn Fn(usize) -> What) -> usize {
    let mut scene = Scene::started(Options { patch_format: format, ..Options::default() }, "x");
    let mut bytes = 0;
    for at in 0..pieces {
        scene.frame(pace, vec![root(piece(at))]);
        bytes += scene.events.drain(..).map(|event| event.data.as_str().len()).sum::<usize>();
    }
    scene.frame(1, vec![root(turn_ended()), root(completed())]);
    bytes + scene.events.drain(..).map(|event| event.data.as_str().len()).sum::<usize>()
}

#[test]
fn a_long_answer_costs_what_it_is_long() {
    const MIB: usize = 1024 * 1024;
    let words = |_| text("twenty bytes of text");
    for pace in [0, 1, 20, 150] {
        let half = cost(MIB / 40, pace, PatchFormat::Hybrid, &words);
        let whole = cost(MIB / 20, pace, PatchFormat::Hybrid, &words);
        assert!(whole < 80 * MIB, "{whole} bytes at {pace} ms");
        assert!(whole < half * 5 / 2, "{half} bytes for half of it, {whole} for all");
    }
    let delta = cost(MIB / 20, 150, PatchFormat::Delta, &words);
    assert!(delta < 50 * MIB, "{delta}");
}

#[test]
fn many_boundaries_do_not_cost_the_square_either() {
    const MIB: usize = 1024 * 1024;
    let turns = |at: usize| if at.is_multiple_of(2) { text("twenty bytes of text") } else { thinking("twenty bytes of text") };
    let whole = cost(20_000, 1, PatchFormat::Hybrid, &turns);
    assert!(whole < 120 * MIB, "{whole}");
}

#[test]
fn an_event_is_one_line() {
    let scene = hybrid("line\u{2028}break\nand \"quotes\"");
    for event in &scene.events {
        let line = event.line();
        assert!(!line.contains(['\n', '\r', '\u{2028}']));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["event"], event.name);
        assert_eq!(value["data"], event.data.to_value());
    }
}
