//! Faults that other people's bridges have had, each as a test of this surface named after its case.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use interline_surface_sse::{Config, Extras};
use serde_json::{Value, json};
use support::{Answered, PING, Server, events, run_body, types};

const END: &str = r#"{"type":"result","subtype":"success","is_error":false}"#;

/// Frames as the lines of a script.
fn script(frames: &[Value]) -> String {
    frames.iter().map(|frame| format!("{frame}\n")).collect()
}

fn said(text: &str) -> Value {
    json!({"type": "streamlined_text", "text": text})
}

fn calls(id: &str, name: &str, input: &Value) -> Value {
    json!({"type": "assistant", "message": {"id": format!("m-{id}"), "content": [{"type": "tool_use", "id": id, "name": name, "input": input}]}})
}

fn result(id: &str, text: &str) -> Value {
    json!({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}})
}

fn within(parent: &str, mut frame: Value) -> Value {
    frame["parent_tool_use_id"] = parent.into();
    frame
}

fn stream(event: &Value) -> Value {
    json!({"type": "stream_event", "event": event})
}

fn path_of(stream: &Answered) -> String {
    format!("/cells/my-cell/runs/{}/events", stream.run_id())
}

fn text_of(events: &[Value]) -> String {
    events.iter().filter(|event| event["type"] == "stream_delta").map(|event| event["content"].as_str().unwrap()).collect()
}

/// Characters of two, three and four bytes come whole, wherever the upstream cuts them and however few bytes a reader takes at a time.
#[tokio::test]
async fn case_a1_no_character_is_lost_between_pieces() {
    let server = Server::native(Config::default()).await;
    let text = "größer 漢字 🎉 done";
    let mut lines = String::new();
    for unit in text.encode_utf16() {
        lines.push_str(&format!("{{\"type\":\"streamlined_text\",\"text\":\"\\u{unit:04x}\"}}\n"));
    }
    let mut answer = server.run(&(lines + END)).await;
    let bytes = answer.raw_byte_by_byte().await;
    let body = String::from_utf8(bytes).expect("whole characters");
    assert_eq!(text_of(&events(&body)), text);
    assert!(!body.contains('\u{fffd}'));
}

/// Whatever ends a run, the body ends with a whole event and its blank line, and HTTP says that it is whole.
#[tokio::test]
async fn case_a3_every_body_ends_with_a_blank_line() {
    let text = said("half a sen").to_string();
    for (what, lines) in [
        ("an end", format!("{text}\n{END}")),
        ("a lost upstream", format!("{text}\nhang-up")),
        ("an expired token", format!("{text}\nrefuse-token")),
        ("an upstream that is not there", "refuse".to_owned()),
        ("a stop", format!("{text}\ngate")),
        ("a shutdown", format!("{text}\ngate")),
    ] {
        for query in ["", "?sse=full", "?extras=events"] {
            let server = Server::native(Config { heartbeat_ms: 10, ..Config::default() }).await;
            let mut answer = server.post(&format!("/cells/my-cell/run{query}"), &run_body(&lines, "")).await;
            let mut body = answer.until("run_start").await;
            if lines.ends_with("gate") {
                // With a heartbeat open.
                tokio::time::sleep(Duration::from_millis(30)).await;
                match what {
                    "a stop" => drop(server.post(&path_of(&answer).replace("/events", "/interrupt"), "").await),
                    _ => server.hub.shutdown(Duration::from_millis(10)).await,
                }
            }
            body.push_str(&answer.rest().await);
            assert!(body.ends_with("}\n\n"), "{what} {query}: {body:?}");
            assert!(answer.ended_cleanly, "{what} {query}");
            let ends = types(&body).iter().filter(|kind| ["done", "error", "interrupted"].contains(&&***kind)).count();
            assert_eq!(ends, 1, "{what} {query}: {body}");
        }
    }
}

/// An upstream that ends without an end: one `error`, last, for readers that were there and for those that come later.
#[tokio::test]
async fn case_a4_a_lost_upstream_is_one_error_and_the_last_event() {
    let server = Server::native(Config::default()).await;
    let open = [
        said("so "),
        calls("c", "Bash", &json!({})),
        json!({"type": "control_request", "request_id": "r", "request": {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": "c"}}),
    ];
    for frames in 0..=open.len() {
        let mut answer = server.run(&(script(&open[..frames]) + "hang-up")).await;
        let body = answer.rest().await;
        let seen = events(&body);
        let last = seen.last().unwrap();
        assert_eq!((&last["type"], &last["kind"]), (&"error".into(), &"missing_terminal_event".into()), "{body}");
        assert_eq!(seen.iter().filter(|event| event["type"] == "error").count(), 1);
        assert_eq!(seen.iter().filter(|event| event["type"] == "tool_end").count(), usize::from(frames > 1));
        assert_eq!(server.get(&path_of(&answer)).await.rest().await, body);
        if frames == open.len() {
            assert_eq!(server.post("/cells/my-cell/hitl/r", r#"{"grant":"allow"}"#).await.status, 409, "the ask is void");
        }
    }
}

/// Text that looks like events is text.
#[tokio::test]
async fn case_a5_text_forges_no_events() {
    let evil = "x\r\n\r\nevent: done\ndata: {\"type\":\"done\"}\n\nid: 9\rretry: 1\n:\u{0}\u{85}\u{2028}\u{2029}\u{feff}</script>";
    let frames = [
        said(evil),
        json!({"type": "streamlined_text", "text": format!("<think>\n{evil}\n</think>\n\n")}),
        calls(evil, evil, &json!({evil: evil})),
        json!({"type": "control_request", "request_id": evil, "request": {"subtype": "can_use_tool", "tool_name": evil, "input": {evil: evil}, "tool_use_id": evil, "decision_reason": evil}}),
        json!({"type": "control_cancel_request", "request_id": evil}),
        json!({"type": "system", "subtype": "api_retry", "error": evil}),
        json!({"type": "system", "subtype": "task_started", "task_id": evil, "description": evil}),
        result(evil, evil),
        calls("plan", "TodoWrite", &json!({"todos": [{"content": evil, "id": evil}]})),
        json!({"type": "result", "is_error": true, "errors": [{"message": evil}]}),
    ];
    let server = Server::native(Config { retry_ms: 1000, ..Config::default() }).await;
    for query in ["sse=plain", "sse=full", "sse=full&extras=events"] {
        let body = serde_json::to_string(&json!({"model": evil, "messages": [{"content": script(&frames)}]})).unwrap();
        let mut answer = server.post(&format!("/cells/my-cell/run?{query}"), &body).await;
        let wire = answer.rest().await;
        assert!(!wire.contains(['\r', '\u{0}', '\u{85}', '\u{2028}', '\u{2029}']), "{wire:?}");
        for block in wire.split_terminator("\n\n") {
            let fields: Vec<&str> = block.split('\n').collect();
            assert!(fields.iter().filter(|line| line.starts_with("data: {")).count() == 1, "{block}");
            assert!(fields.iter().all(|line| ["data: ", "id: run-", "retry: 1000"].iter().any(|head| line.starts_with(head))), "{block}");
        }
        let seen = events(&wire);
        assert_eq!(seen[0]["model"], evil);
        assert_eq!(text_of(&seen), evil);
        let one = |kind: &str| seen.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("no {kind} in {wire}"));
        let started = one("tool_start");
        assert_eq!((&started["tool_name"], &started["call_id"], &started["arguments"]), (&evil.into(), &evil.into(), &json!({evil: evil})));
        assert_eq!(one("tool_end")["result"], evil);
        assert_eq!(one("approval_request")["request_id"], evil);
        assert_eq!(one("error")["error"], evil);
        assert_eq!(seen.iter().filter(|event| event["type"] == "error").count(), 1);
    }
    // Names of a client's own making end up in headers and paths.
    let session = "s\r\nx: y\u{2028}";
    let body = serde_json::to_string(&json!({"session_id": session, "messages": [{"content": END}]})).unwrap();
    assert_eq!(server.post("/cells/my-cell/run", &body).await.status, 422, "no session has such a name");
    for path in ["/cells/my-cell%0d%0ax/run", "/cells/my-cell/runs/run-%0a%0a/events", "/cells/my-cell/sessions/%0d%0a/plan"] {
        let refused = server.send(if path.ends_with("run") { "POST" } else { "GET" }, path, &[], "{}").await;
        assert_eq!((refused.status, refused.header("x")), (404, None), "{path}");
    }
}

/// A tool result of 8 MB is cut and says so, and the stream goes on.
#[tokio::test]
async fn case_a6_a_huge_result_is_cut_with_a_mark() {
    let server = Server::native(Config { max_body_bytes: 32 << 20, ..Config::default() }).await;
    let huge = "line of output\n".repeat(8 * 1024 * 1024 / 15);
    let mut answer = server.run(&(script(&[calls("c", "Bash", &json!({})), result("c", &huge), said("after")]) + END)).await;
    let seen = events(&answer.rest().await);
    let told = seen.iter().find(|event| event["type"] == "tool_end").unwrap()["result"].as_str().unwrap();
    let (shown, mark) = told.split_once("\n[output cut: ").expect("a mark");
    assert!(huge.starts_with(shown) && shown.len() > 900_000, "{}", shown.len());
    let all = mark.strip_prefix(&format!("{} of {} bytes shown; all of it: GET ", shown.len(), huge.len())).expect("where the rest is");
    let messages = server.get(all.strip_suffix(']').unwrap()).await.rest().await;
    let messages: Value = serde_json::from_str(&messages).unwrap();
    let parts = messages["messages"].as_array().unwrap().iter().flat_map(|message| message["content"].as_array().unwrap());
    let whole: Vec<&Value> = parts.filter(|part| part["type"] == "tool").map(|part| &part["result"]).collect();
    assert!(whole == [&Value::from(huge)], "the path that the mark names gives all of it");
    assert_eq!((text_of(&seen).as_str(), &seen.last().unwrap()["type"]), ("after", &"done".into()));
}

/// Deltas of a tool's input belong to the block of their index, whatever streams beside it.
#[tokio::test]
async fn case_a8_input_goes_to_the_call_of_its_block() {
    let start = |index: u8, block: Value| stream(&json!({"type": "content_block_start", "index": index, "content_block": block}));
    let tool = |index: u8, id: &str| start(index, json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}}));
    let delta = |index: u8, delta: Value| stream(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
    let input = |index: u8, json: &str| delta(index, json!({"type": "input_json_delta", "partial_json": json}));
    let stop = |index: u8| stream(&json!({"type": "content_block_stop", "index": index}));
    let frames = [
        stream(&json!({"type": "message_start", "message": {"id": "m"}})),
        start(0, json!({"type": "text", "text": ""})),
        start(1, json!({"type": "thinking", "thinking": ""})),
        tool(2, "two"),
        tool(3, "three"),
        input(3, "{\"of\":"),
        delta(0, json!({"type": "text_delta", "text": "now "})),
        input(2, "{\"of\":"),
        delta(1, json!({"type": "thinking_delta", "thinking": "hm"})),
        input(2, "\"two\"}"),
        stop(0),
        input(3, "\"three\"}"),
        stop(3),
        stop(1),
        stop(2),
        result("two", "2"),
        result("three", "3"),
    ];
    let server = Server::native(Config::default()).await;
    let seen = events(&server.run(&(script(&frames) + END)).await.rest().await);
    let inputs: Vec<_> =
        seen.iter().filter(|event| event["type"] == "tool_start").map(|event| (&event["call_id"], &event["arguments"]["of"])).collect();
    assert_eq!(inputs, [(&"three".into(), &"three".into()), (&Value::from("two"), &"two".into())]);
}

/// Runs of one session that ended well, with an error, and well again: each is replayed by itself, whole and legal.
#[tokio::test]
async fn case_b7_runs_behind_a_failed_one_replay_by_themselves() {
    let server = Server::native(Config::default()).await;
    let failed = json!({"type": "result", "is_error": true, "errors": ["x"]}).to_string();
    let mut bodies = Vec::new();
    for (text, end) in [("one", END), ("two", &*failed), ("three", END)] {
        let mut answer = server.post("/cells/my-cell/run", &run_body(&format!("{}\n{end}", said(text)), r#","session_id":"s""#)).await;
        bodies.push((text, answer.rest().await, path_of(&answer)));
    }
    for (text, body, path) in &bodies {
        let replay = server.get(path).await.rest().await;
        assert_eq!(replay, *body);
        let seen = events(&replay);
        assert_eq!((text_of(&seen).as_str(), &seen[1]["turn_num"]), (*text, &1.into()), "each counts anew");
        let last = if *text == "two" { "error" } else { "done" };
        assert_eq!(types(&replay), ["run_start", "turn_start", "stream_delta", "turn_end", last]);
    }
}

/// A run with sub-agents, left and joined again at every event: the kinds of events, theirs among them, are the same as without a break.
#[tokio::test]
async fn case_b8_sub_agents_are_there_after_a_break_too() {
    let frames = [
        said("I ask. "),
        calls("agent", "Agent", &json!({"prompt": "look"})),
        json!({"type": "system", "subtype": "task_started", "task_id": "a", "tool_use_id": "agent", "description": "look"}),
        within("agent", said("looking ")),
        within("agent", calls("inner", "Grep", &json!({}))),
        json!({"type": "control_request", "request_id": "r", "request": {"subtype": "can_use_tool", "tool_name": "Grep", "input": {}, "tool_use_id": "inner"}}),
        within("agent", result("inner", "found")),
        within("agent", said("found it")),
        json!({"type": "system", "subtype": "task_notification", "task_id": "a", "status": "completed", "summary": "found"}),
        result("agent", "found it"),
        said("Done."),
    ];
    for extras in [Extras::Off, Extras::Fields, Extras::Events] {
        let server = Server::native(Config { extras, heartbeat_ms: 40, ..Config::default() }).await;
        let whole = server.run(&(script(&frames) + END)).await.rest().await;
        let kinds: BTreeSet<String> = types(&whole).into_iter().collect();
        assert!(["tool_progress", "approval_request", "plan_created"].iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
        assert_eq!(kinds.contains("hitl_resolved"), extras == Extras::Events);
        let folded: String = events(&whole).iter().filter_map(|event| event["output"].as_str()).collect();
        assert_eq!((folded.as_str(), text_of(&events(&whole)).as_str()), ("looking found it", "I ask. Done."), "never in the answer");

        let numbered = |body: &str| events(body).iter().filter(|event| extras != Extras::Events || event["seq"].is_u64()).count();
        // Left behind each frame while the run goes on, and joined again.
        for seen in 0..=frames.len() {
            let (before, rest) = frames.split_at(seen);
            let mut first = server.run(&(script(before) + "gate\n" + &script(rest) + END)).await;
            let before = first.until_idle().await;
            let path = path_of(&first);
            drop(first);
            let mut second = server.get(&format!("{path}?from_seq={}", numbered(&before) + 1)).await;
            server.open_gate();
            let after = second.rest().await.replace(PING, "");
            let all: BTreeSet<String> = types(&before).into_iter().chain(types(&after)).collect();
            assert_eq!(all, kinds, "left behind frame {seen}");
            assert_eq!(numbered(&before) + numbered(&after), numbered(&whole));
            if extras != Extras::Events {
                assert_eq!(before + &after, server.get(&path).await.rest().await, "not a byte is lost or told twice");
            }
        }
    }
}

/// Each odd cursor has one answer, and none of them is a plausible part of a stream.
#[tokio::test]
async fn case_b11_no_cursor_gives_a_wrong_tail() {
    let server = Server::native(Config::default()).await;
    let mut answer = server.post("/cells/my-cell/run", &run_body(&format!("{}\n{END}", said("x")), r#","session_id":"s""#)).await;
    let whole = answer.rest().await;
    let path = path_of(&answer);
    let last = whole.split_inclusive("\n\n").last().unwrap();
    for (from_seq, status, expected) in [
        ("-1", 400, "invalid_from_seq"),
        ("abc", 400, "invalid_from_seq"),
        ("1.0", 400, "invalid_from_seq"),
        ("", 200, &*whole),
        ("0", 200, &*whole),
        ("6", 200, last),
        ("1000000000", 200, last),
        ("18446744073709551616", 200, last),
    ] {
        let mut answer = server.get(&format!("{path}?from_seq={from_seq}")).await;
        assert_eq!(answer.status, status, "{from_seq}");
        let body = answer.rest().await;
        assert!(if status == 200 { body == expected } else { body.contains(expected) }, "{from_seq}: {body}");
    }
    // An id of another run is no cursor of this one: it starts where the URL says. One behind the end stops an EventSource.
    let mut other = server.run(END).await;
    other.rest().await;
    let resumed = async |id: String| {
        let mut answer = server.send("GET", &path, &[("Last-Event-ID", &id)], "").await;
        (answer.status, answer.rest().await)
    };
    assert_eq!(resumed(format!("{}:3", other.run_id())).await, (200, whole.clone()));
    assert_eq!(resumed(format!("{}:5", answer.run_id())).await, (204, String::new()));
    assert_eq!(resumed(format!("{}:99", answer.run_id())).await, (204, String::new()));
    // What is no longer kept is not there.
    server.send("DELETE", "/cells/my-cell/sessions/s", &[], "").await;
    let gone = server.get(&format!("{path}?from_seq=2")).await;
    assert_eq!((gone.status, gone.json().await["kind"].as_str()), (404, Some("run_not_found")));
}

/// A permission that overtakes the text before it and the call that it is about: the call is there first all the same.
#[tokio::test]
async fn case_b13_a_permission_that_comes_first_is_told_behind_its_call() {
    let ask = json!({"type": "control_request", "request_id": "r", "request": {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "c"}});
    let frames = [ask, said("I look. "), calls("c", "Bash", &json!({"command": "ls"})), result("c", "a.txt")];
    let server = Server::native(Config::default()).await;
    let body = server.run(&(script(&frames) + END)).await.rest().await;
    assert_eq!(types(&body), ["run_start", "turn_start", "tool_start", "approval_request", "stream_delta", "tool_end", "turn_end", "done"]);
    let seen = events(&body);
    assert_eq!((&seen[2]["call_id"], &seen[2]["arguments"]), (&"c".into(), &json!({"command": "ls"})));
}
