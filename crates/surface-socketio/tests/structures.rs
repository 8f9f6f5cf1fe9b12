//! The structures that not every chat has (socketio.md §3.3–§3.5, §4.3, §4.6–§4.9, §4.11): cards of tools, plans and modes, structured results,
//! nested sub-agents, and what is told beside the turns. Where there is a vendor-shaped fixture, ours is held to it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

mod fold;
mod scene;

use fold::{Fold, Format};
use interline_model::{
    AskKind, CompactionPhase, Completion, Json, NoticeLevel, Outcome, Part, PlanStep, RunEnd, StepStatus, TaskPhase, Text, What,
};
use interline_surface_socketio::{HeadlessResult, Options};
use scene::{Scene, completed, failed, mode, raised, root, sub, summary, text, thinking, tool, tool_ended, tool_gave, turn_ended};
use serde_json::{Value, json};

fn fixture(name: &str) -> Vec<(String, Value)> {
    let path = format!("{}/tests/fixtures/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let lines = std::fs::read_to_string(path).unwrap();
    let event = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        (line["event"].as_str().unwrap().to_owned(), line["data"].take())
    };
    lines.lines().map(event).collect()
}

fn hybrid(input: &str) -> Scene {
    Scene::started(Options::default(), input)
}

/// The names of what happened, without `session:updated`, which the fixtures leave out here and there (socketio.md §4.1).
fn story(names: impl Iterator<Item = String>) -> Vec<String> {
    names.filter(|name| !name.starts_with("session:updated")).collect()
}

fn same_story(scene: &Scene, name: &str) {
    assert_eq!(story(scene.names().into_iter()), story(fixture(name).iter().map(|(name, data)| summary(name, data))), "{name}");
    folded(scene);
}

fn folded(scene: &Scene) -> Fold {
    let mut fold = Fold::new(Format::Hybrid);
    for (event, data) in &scene.data() {
        fold.see(event, data);
    }
    for turn in rest(scene) {
        assert_eq!(fold.snapshots[turn["turn_id"].as_str().unwrap()], turn);
    }
    fold
}

fn rest(scene: &Scene) -> Vec<Value> {
    serde_json::from_str(scene.writer.messages_json().as_str()).unwrap()
}

// A tool's 8 MB stood three times in one patch, and twice more in every snapshot behind it.
#[test]
fn a_huge_result_is_told_by_its_beginning_and_rest_has_all_of_it() {
    const MOST: usize = 1000;
    let huge = "0123456789abcde\n".repeat(10_000);
    let object = format!(r#"{{"lines":"{}"}}"#, "x".repeat(5000));
    let mut scene = Scene::started(Options { max_result_bytes: MOST, ..Options::default() }, "read");
    scene.frame(
        1,
        vec![root(What::TurnStarted), root(tool("c1", "Read", "{}")), root(tool("c2", "Fetch", "{}")), root(tool("c3", "Read", "{}"))],
    );
    scene.frame(1, vec![root(tool_ended("c1", &huge, false))]);
    scene.frame(1, vec![root(tool_gave("c2", &object))]);
    let fits = "y".repeat(MOST - 2);
    scene.frame(1, vec![root(tool_ended("c3", &fits, false))]);
    scene.frame(1, vec![root(turn_ended()), root(completed())]);

    let turn = rest(&scene).pop().unwrap();
    let results: Vec<&Value> = turn["tool_calls"].as_array().unwrap().iter().map(|call| &call["result"]).collect();
    assert!(results == [&json!(huge), &serde_json::from_str::<Value>(&object).unwrap(), &json!(fits)], "REST has all of them");
    let path = format!("/api/sessions/{}/turns/{}", scene.data()[0].1["session_id"].as_str().unwrap(), turn["turn_id"].as_str().unwrap());
    assert_eq!(serde_json::from_str::<Value>(scene.writer.turn_json(path.rsplit('/').next().unwrap()).unwrap().as_str()).unwrap(), turn);

    let patches = all(&scene, "turn:patch").into_iter().filter(|patch| patch["patch_type"] == "tool_result");
    let told: Vec<Value> = patches.map(|mut patch| patch["data"]["result"].take()).collect();
    for (told, all) in told.iter().zip([&huge, &object]) {
        let (shown, mark) = told.as_str().unwrap().split_once("\n[output cut: ").unwrap();
        assert!(all.starts_with(shown) && shown.len() > MOST / 2 && shown.len() <= MOST);
        assert_eq!(mark, format!("{} of {} bytes shown; all of it: GET {path}]", shown.len(), all.len()));
    }
    assert_eq!(told[2], fits);
    // Patches, snapshots and the turn's end agree.
    let mut fold = Fold::new(Format::Hybrid);
    for (event, data) in &scene.data() {
        fold.see(event, data);
        assert!(data.to_string().len() < 12 * MOST, "{event}");
    }
    let last = &fold.snapshots[turn["turn_id"].as_str().unwrap()];
    let blocks =
        last["blocks"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_result").map(|block| block["content"].clone());
    assert_eq!(blocks.collect::<Vec<_>>(), told);
    assert_eq!(last["tool_calls"].as_array().unwrap().iter().map(|call| call["result"].clone()).collect::<Vec<_>>(), told);
}

/// The payloads of all events of this name.
fn all(scene: &Scene, name: &str) -> Vec<Value> {
    scene.data().into_iter().filter(|(found, _)| *found == name).map(|(_, data)| data).collect()
}

/// The patches' own members, and the blocks and calls of a turn: what does not depend on ids and times.
fn patches(events: &[(String, Value)], kind: &str) -> Vec<Value> {
    let patches = events.iter().filter(|(name, data)| name == "turn:patch" && data["patch_type"] == kind);
    patches
        .map(|(_, data)| {
            let mut own = data["data"].as_object().unwrap().clone();
            own.retain(|member, _| !["turn", "tool_call_id", "duration_ms", "display_name"].contains(&member.as_str()));
            Value::Object(own)
        })
        .collect()
}

fn owned(scene: &Scene) -> Vec<(String, Value)> {
    scene.data().into_iter().map(|(name, data)| (name.to_owned(), data)).collect()
}

const CARD: &str = r#"{"ok": true, "_meta": {"bridge": {"action": "map.highlight", "payload": {"cityIds": ["hangzhou"]}}, "ui": {"resourceHTML": "<!doctype html><p>ok</p>", "target": "inline", "height": 120, "title": "Card"}}}"#;

#[test]
fn what_a_result_holds_for_the_page_is_blocks_of_its_own() {
    let mut scene = hybrid("Highlight Hangzhou on the map");
    scene.frame(900, vec![root(What::TurnStarted), root(tool("t", "map_highlight", r#"{"city": "hangzhou"}"#))]);
    scene.frame(120, vec![root(tool_gave("t", CARD))]);
    scene.frame(10, vec![root(turn_ended()), root(What::TurnStarted), root(text("Done."))]);
    scene.frame(300, vec![root(turn_ended()), root(completed())]);
    same_story(&scene, "03c_tool_meta_bridge_ui");
    let (ours, theirs) = (owned(&scene), fixture("03c_tool_meta_bridge_ui"));
    for kind in ["tool_result", "add_content"] {
        assert_eq!(patches(&ours, kind), patches(&theirs, kind));
    }
    let blocks: Vec<Value> =
        rest(&scene)[1]["blocks"].as_array().unwrap().iter().map(|block| json!([block["type"], block["tool_call_id"]])).collect();
    assert_eq!(json!(blocks), json!([["tool_use", "t"], ["tool_result", "t"], ["tool_bridge", "t"], ["tool_ui", "t"]]));
    assert!(scene.writer.messages_json().as_str().contains(CARD), "as the tool wrote it");
}

#[test]
fn a_card_may_come_as_text_and_text_behind_it_is_a_new_block() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(What::TurnStarted), root(text("a")), root(tool("t", "show", "{}")), root(tool("u", "show", "{}"))]);
    scene.frame(0, vec![root(tool_ended("t", r#"{"_meta":{"ui":{"title":"T"}}}"#, false)), root(text("b")), root(thinking("c"))]);
    scene.frame(0, vec![root(tool_ended("u", r#"{"_meta":{"bridge":{}}}"#, true)), root(turn_ended()), root(completed())]);
    folded(&scene);
    let turn = rest(&scene).pop().unwrap();
    let types: Vec<&str> = turn["blocks"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["text", "tool_use", "tool_use", "tool_result", "tool_ui", "text", "thinking", "tool_result", "tool_bridge"]);
    assert!(turn["tool_calls"][0]["result"].is_string(), "what came as text stays text");
}

#[test]
fn planning_is_marked_where_it_begins_and_ends() {
    let mut scene = hybrid("Plan the migration");
    scene.frame(10, vec![root(mode("plan"))]);
    scene.frame(10, vec![root(What::TurnStarted), root(text("1. Back up\n"))]);
    scene.frame(150, vec![root(text("2. Migrate\n"))]);
    scene.frame(150, vec![root(text("3. Verify"))]);
    scene.frame(150, vec![root(turn_ended()), root(completed())]);
    same_story(&scene, "12_planning_mode");
    let theirs = fixture("12_planning_mode").into_iter().find(|(_, data)| data["role"] == "system").unwrap().1;
    let ours = rest(&scene).swap_remove(1);
    for member in ["kind", "role", "status", "blocks", "tool_calls", "loop_id", "model"] {
        assert_eq!(ours[member], theirs[member], "{member}");
    }

    // The mode is the session's, and only planning is told.
    scene.start(2, vec![Part::Text(Text::from_static("Go"))], false);
    scene.frame(10, vec![root(mode("plan"))]);
    scene.frame(10, vec![root(mode("acceptEdits"))]);
    scene.frame(10, vec![root(mode("default"))]);
    scene.frame(10, vec![root(completed())]);
    folded(&scene);
    let marks: Vec<Value> = rest(&scene).into_iter().filter(|turn| turn["role"] == "system").map(|turn| turn["blocks"].clone()).collect();
    let block = |kind: &str, content: Value| json!({"type": kind, "content": content, "tool_call_id": null, "tool_name": null, "display_name": null});
    let left = json!([block("mode_change", json!({"from": "planning", "to": "executing"})), block("planning_exit", Value::Null)]);
    assert_eq!(marks.len(), 2);
    assert_eq!(marks[1], left);
}

#[test]
fn a_plan_is_a_block_of_its_calls_turn() {
    let step = |id: &'static str, status| PlanStep { id: Text::from_static(id), title: Text::from_static("Do it"), status };
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(What::TurnStarted), root(thinking("hm"))]);
    let steps = vec![step("1", StepStatus::Completed), step("2", StepStatus::Running), step("3", StepStatus::Pending)];
    scene.frame(0, vec![root(tool("t", "TodoWrite", r#"{"todos":[]}"#)), root(What::PlanChanged { steps })]);
    scene.frame(0, vec![root(tool_ended("t", "ok", false)), root(turn_ended()), root(completed())]);
    folded(&scene);
    let plan = &rest(&scene)[1]["blocks"][2];
    assert_eq!(plan["type"], "plan_status");
    let steps = json!([
        {"id": "1", "title": "Do it", "status": "completed"}, {"id": "2", "title": "Do it", "status": "running"},
        {"id": "3", "title": "Do it", "status": "pending"},
    ]);
    assert_eq!(plan["content"], json!({"steps": steps, "total_steps": 3, "done_steps": 1}));
}

#[test]
fn a_plan_that_changes_while_people_are_asked_goes_into_the_paused_turn() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(What::TurnStarted), root(tool("t", "TodoWrite", "{}")), root(raised("a", AskKind::Permission, Some("t")))]);
    let turns = rest(&scene).len();
    scene.frame(5000, vec![root(What::PlanChanged { steps: Vec::new() })]);
    assert_eq!(rest(&scene).len(), turns);
    assert_eq!(rest(&scene)[1]["blocks"].as_array().unwrap().last().unwrap()["type"], "plan_status");
    folded(&scene);
}

fn end_with(structured_output: Option<&str>) -> What {
    let structured_output = structured_output.map(|text| Json::parse(text.to_owned()).unwrap());
    What::RunEnded(Box::new(RunEnd { structured_output, ..RunEnd::synthesised(Outcome::Completed(Completion::EndTurn)) }))
}

const SCHEMA: &str =
    r#"{"type": "object", "properties": {"countries": {"type": "array", "items": {"type": "string"}}}, "required": ["countries"]}"#;

fn one_shot(form: HeadlessResult, schema: &str) -> Scene {
    let mut scene = Scene::new(Options { headless_result: form, ..Options::default() });
    let schema = Json::parse(schema.to_owned()).unwrap();
    scene.start_with(1, vec![Part::Text(Text::from_static("Name the three largest countries"))], true, Some(schema));
    scene
}

#[test]
fn a_structured_result_says_its_schema() {
    let countries = r#"{"countries": ["Russia", "Canada", "China"]}"#;
    let mut scene = one_shot(HeadlessResult::Superset, SCHEMA);
    scene.frame(900, vec![root(What::TurnStarted), root(tool("t", "submit_result", countries))]);
    scene.frame(1, vec![root(tool_gave("t", r#"{"ok": true}"#))]);
    scene.frame(10, vec![root(turn_ended()), root(end_with(None))]);
    same_story(&scene, "08b_headless_schema");
    let theirs = fixture("08b_headless_schema");
    let mut end = theirs.last().unwrap().1.clone();
    end["session_id"] = json!("sess_1");
    end["chat_run_id"] = scene.data().last().unwrap().1["chat_run_id"].clone();
    assert_eq!(scene.data().last().unwrap().1, end);
    assert_eq!(patches(&owned(&scene), "tool_result"), patches(&theirs, "tool_result"));
}

#[test]
fn each_form_of_a_structured_result() {
    for (form, schema, value, expected) in [
        (HeadlessResult::Docs, "{}", r#"{"a":1}"#, r#"{"output":{"a":1},"schema":{}}"#),
        (HeadlessResult::Sdk, "{}", r#"{"a":1}"#, r#"{"err_msg":null,"a":1}"#),
        (HeadlessResult::Superset, "{}", r#"{"schema":1}"#, r#"{"output":{"schema":1},"err_msg":null,"schema":1}"#),
        (HeadlessResult::Superset, r#"{"type":"array"}"#, "[1]", r#"{"output":[1],"schema":{"type":"array"},"err_msg":null}"#),
    ] {
        let mut scene = one_shot(form, schema);
        scene.frame(0, vec![root(text("text")), root(turn_ended()), root(end_with(Some(value)))]);
        let end = scene.events.last().unwrap().data.as_str().to_owned();
        assert!(end.contains(&format!(r#""result":{expected},"finish_reason":"completed""#)), "{end}");
        folded(&scene);
    }
}

#[test]
fn text_may_be_the_structured_result_and_what_fits_no_schema_fails() {
    let mut scene = one_shot(HeadlessResult::Sdk, SCHEMA);
    scene.frame(0, vec![root(text(r#"{"countries":"#)), root(text("[]}")), root(turn_ended()), root(end_with(None))]);
    let end = scene.data().pop().unwrap().1;
    assert_eq!((&end["status"], &end["result"]), (&json!("completed"), &json!({"err_msg": null, "countries": []})));

    for (answer, structured) in [("Russia, Canada, China.", None), (r#"{"x":1}"#, None), ("", Some("{}")), (r#"["countries"]"#, None)] {
        let mut scene = one_shot(HeadlessResult::Superset, SCHEMA);
        scene.frame(0, vec![root(text(answer)), root(turn_ended()), root(end_with(structured))]);
        let end = scene.data().pop().unwrap().1;
        assert_eq!((&end["status"], &end["finish_reason"]), (&json!("failed"), &Value::Null), "{answer}");
        let why = end["result"]["err_msg"].as_str().unwrap();
        assert!(why.starts_with("The result does not fit the output schema: "), "{why}");
        folded(&scene);
    }
}

#[test]
fn a_failed_one_shot_run_says_why() {
    let mut scene = Scene::new(Options::default());
    scene.start(1, vec![Part::Text(Text::from_static("x"))], true);
    scene.frame(900, vec![root(What::TurnStarted)]);
    scene.frame(900, vec![root(turn_ended()), root(failed("model endpoint returned 503"))]);
    same_story(&scene, "08c_headless_failed");
    let theirs = fixture("08c_headless_failed").pop().unwrap().1;
    let ours = scene.data().pop().unwrap().1;
    for member in ["status", "result", "finish_reason"] {
        assert_eq!(ours[member], theirs[member]);
    }
    let failed = all(&scene, "turn:end").pop().unwrap();
    assert_eq!((&failed["status"], &failed["failure_reason"]), (&json!("failed"), &json!("model endpoint returned 503")));
}

#[test]
fn a_turn_limit_ends_a_chat_that_is_complete() {
    let mut scene = hybrid("Loop");
    scene.frame(900, vec![root(What::TurnStarted), root(tool("t", "Bash", r#"{"command": "true"}"#))]);
    scene.frame(3, vec![root(tool_ended("t", "", false)), root(turn_ended())]);
    scene.frame(3, vec![root(scene::ended(Outcome::Completed(Completion::MaxTurns)))]);
    same_story(&scene, "09c_max_turns");
    let (ours, theirs) = (scene.data().pop().unwrap().1, fixture("09c_max_turns").pop().unwrap().1);
    for member in ["status", "result", "finish_reason"] {
        assert_eq!(ours[member], theirs[member]);
    }
}

#[test]
fn a_sub_agents_turns_lie_between_its_call_and_its_result() {
    let mut scene = hybrid("Clean the data and summarise");
    scene.frame(900, vec![root(What::TurnStarted), root(text("Delegating the cleaning."))]);
    scene.frame(10, vec![root(tool("p", "Agent", r#"{"description": "Data cleaning", "prompt": "Clean data.csv"}"#))]);
    scene.frame(10, vec![sub("p", What::TurnStarted), sub("p", tool("c", "Read", r#"{"file_path": "data.csv"}"#))]);
    scene.frame(6, vec![sub("p", tool_ended("c", "a,b\n1,2", false)), sub("p", turn_ended())]);
    scene.frame(10, vec![sub("p", What::TurnStarted), sub("p", text("2 columns, "))]);
    scene.frame(150, vec![sub("p", text("1 row, clean."))]);
    scene.frame(10, vec![sub("p", turn_ended()), root(tool_ended("p", "2 columns, 1 row, clean.", false)), root(turn_ended())]);
    scene.frame(10, vec![root(What::TurnStarted), root(text("The data is clean."))]);
    scene.frame(10, vec![root(turn_ended()), root(completed())]);
    same_story(&scene, "07_sub_agent");
    let lanes = |events: &[(String, Value)]| {
        let starts = events.iter().filter(|(name, _)| name == "turn:start");
        starts.map(|(_, turn)| (turn["loop_id"] == "root", turn["parent_fork_tool_call_id"].is_null())).collect::<Vec<_>>()
    };
    assert_eq!(lanes(&owned(&scene)), lanes(&fixture("07_sub_agent")));
    let children: Vec<Value> = rest(&scene).into_iter().filter(|turn| turn["parent_fork_tool_call_id"] == "p").collect();
    assert_eq!(children.len(), 2);
    assert_eq!(children[0]["loop_id"], children[1]["loop_id"]);
}

#[test]
fn a_grandchilds_question_shows_on_every_call_above_it() {
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(What::TurnStarted), root(tool("p", "Agent", r#"{"description":"Parent"}"#))]);
    scene.frame(0, vec![sub("p", What::TurnStarted), sub("p", tool("c", "Agent", r#"{"description":"Child"}"#))]);
    scene.frame(0, vec![sub("c", What::TurnStarted), sub("c", tool("q", "AskUserQuestion", "{}"))]);
    scene.frame(0, vec![sub("c", raised("a", AskKind::Question, Some("q")))]);
    folded(&scene);
    let turns = rest(&scene);
    let (parent, child, grandchild) = (&turns[1], &turns[2], &turns[3]);
    assert_eq!((&child["parent_fork_tool_call_id"], &grandchild["parent_fork_tool_call_id"]), (&json!("p"), &json!("c")));
    let waits = json!({"child_loop_name": grandchild["loop_id"], "child_tool_call_id": "q", "description": "Child"});
    for turn in [parent, child] {
        let call = &turn["tool_calls"][0];
        assert_eq!((&call["status"], &turn["status"]), (&json!("awaiting_answer"), &json!("paused")));
        assert_eq!(call["pending_question_ref"]["child_tool_call_id"], waits["child_tool_call_id"]);
        assert_eq!(call["pending_question_ref"]["child_loop_name"], waits["child_loop_name"]);
    }
    let arguments: Value = serde_json::from_str(grandchild["tool_calls"][0]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["source_loop"], json!({"loop_name": grandchild["loop_id"], "description": "Child"}));
    let ends: Vec<Value> =
        all(&scene, "turn:end").into_iter().filter(|turn| turn["role"] == "assistant").map(|turn| turn["turn_id"].clone()).collect();
    assert_eq!(json!(ends), json!([grandchild["turn_id"], child["turn_id"], parent["turn_id"]]), "children end first");
}

#[test]
fn a_compaction_says_what_it_saved_and_leaves_null_what_no_upstream_says() {
    let mut scene = hybrid("x");
    let started = CompactionPhase::Started { reason: Text::from_static("max_tokens_recovery"), tokens_before: Some(100) };
    scene.frame(0, vec![root(What::Compaction(started))]);
    let open = all(&scene, "turn:start").pop().unwrap();
    assert_eq!((&open["kind"], &open["role"], &open["status"]), (&json!("compaction"), &json!("system"), &json!("streaming")));
    assert_eq!((&open["trigger"], &open["tokens_before"]), (&json!("forced_retry"), &json!(100)));
    // More than before: nothing saved, and nothing below zero.
    scene.frame(9, vec![root(What::Compaction(CompactionPhase::Finished { tokens_before: None, tokens_after: Some(120) }))]);
    let over = all(&scene, "turn:end").pop().unwrap();
    assert_eq!((&over["saved_ratio"], &over["tokens_after"], &over["duration_ms"]), (&json!(0.0), &json!(120), &json!(9)));
    for unknown in ["summary_preview", "summary_full", "archived_count"] {
        assert_eq!(over[unknown], Value::Null);
    }
    assert!(over["compaction_id"].as_str().unwrap().starts_with("comp_"));
}

#[test]
fn tasks_are_told_beside_the_turns() {
    let task = |phase, summary: &'static str| {
        root(What::Task { task: Text::from_static("bg-1"), call: Some("t".into()), phase, summary: Text::from_static(summary) })
    };
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(What::TurnStarted), root(tool("t", "Bash", "{}")), task(TaskPhase::Started, "cargo test")]);
    scene.frame(0, vec![task(TaskPhase::Progress, "compiling")]);
    scene.frame(0, vec![task(TaskPhase::Finished, "12 passed")]);
    let lost = What::Task { task: Text::from_static("bg-2"), call: None, phase: TaskPhase::Failed, summary: Text::new() };
    scene.frame(0, vec![root(lost), root(completed())]);
    folded(&scene);
    let started = json!({"session_id": "sess_1", "task_id": "bg-1", "tool_call_id": "t", "description": "cargo test"});
    assert_eq!(all(&scene, "bg:started"), [started]);
    let told: Vec<Value> =
        all(&scene, "task:updated").iter().map(|task| json!([task["task_id"], task["status"], task["summary"]])).collect();
    let expected = json!([
        ["bg-1", "running", "cargo test"],
        ["bg-1", "running", "compiling"],
        ["bg-1", "completed", "12 passed"],
        ["bg-2", "failed", ""]
    ]);
    assert_eq!(json!(told), expected);
    assert!(all(&scene, "task:updated")[3]["tool_call_id"].is_null());
}

#[test]
fn files_are_told_one_by_one_or_as_many() {
    let files = |count: usize| What::FilesChanged { paths: (0..count).map(|at| Text::from(format!("out/{at}.txt"))).collect() };
    for (count, expected) in [(0, json!([null])), (2, json!(["out/0.txt", "out/1.txt"])), (21, json!([null]))] {
        let mut scene = hybrid("x");
        scene.frame(0, vec![root(files(count)), root(completed())]);
        folded(&scene);
        for event in ["workspace:files_changed", "artifact:created"] {
            let paths: Vec<Value> = all(&scene, event).iter().map(|file| file["file_path"].clone()).collect();
            assert_eq!(json!(paths), expected, "{event} of {count}");
        }
    }
    let mut scene = hybrid("x");
    scene.frame(0, vec![root(files(1))]);
    assert_eq!(all(&scene, "artifact:created")[0]["name"], "0.txt");
}

#[test]
fn a_tool_that_writes_a_file_has_changed_it_once_it_is_done() {
    let mut scene = hybrid("x");
    let calls = [
        ("w", "Write", r#"{"file_path":"a.md","content":"x"}"#),
        ("e", "Edit", r#"{"file_path":"b.md"}"#),
        ("n", "NotebookEdit", r#"{"notebook_path":"c.ipynb"}"#),
        ("r", "Read", r#"{"file_path":"d.md"}"#),
        ("f", "Write", r#"{"file_path":"refused.md"}"#),
        ("x", "Write", "{}"),
    ];
    scene.frame(0, calls.iter().map(|(id, name, input)| root(tool(id, name, input))).collect());
    scene.frame(0, calls.iter().map(|(id, ..)| root(tool_ended(id, "ok", *id == "f"))).collect());
    folded(&scene);
    let paths: Vec<Value> = all(&scene, "workspace:files_changed").iter().map(|file| file["file_path"].clone()).collect();
    assert_eq!(json!(paths), json!(["a.md", "b.md", "c.ipynb"]));
    let names = scene.names();
    let at = |name: &str| names.iter().position(|found| found == name).unwrap();
    assert!(at("tool_result done") < at("workspace:files_changed"));
}

#[test]
fn notices_end_nothing() {
    let mut scene = hybrid("x");
    for (level, status) in [(NoticeLevel::Info, "info"), (NoticeLevel::Warning, "warning"), (NoticeLevel::Error, "error")] {
        scene.frame(0, vec![root(What::Notice { level, code: Text::from_static("api_retry"), text: Text::from_static("again") })]);
        let told = scene.data().pop().unwrap();
        assert_eq!(told.0, "system:notification");
        let expected =
            json!({"session_id": "sess_1", "notification_type": "api_retry", "title": "api retry", "detail": "again", "status": status});
        assert_eq!(told.1, expected);
    }
    assert!(scene.writer.chat_running());
    assert_eq!(all(&scene, "system:error"), Vec::<Value>::new());
}
