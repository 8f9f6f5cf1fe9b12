//! What `map` makes of small transcripts; whole ones are compared by the oracle in `tests/map.rs`.

use super::*;
use crate::args::ExplainForm;

fn map(to: MapTo, lines: &[&str]) -> Vec<Value> {
    let mut out = Vec::new();
    translate(&lines.join("\n"), to, Mode::Agent, &mut out).unwrap();
    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().or(event["event"].as_str()).unwrap()).collect()
}

const TEXT: &str = r#"{"type":"streamlined_text","text":"hi","uuid":"a"}"#;
const END: &str = r#"{"type":"result","subtype":"success","is_error":false,"uuid":"b"}"#;

#[test]
fn a_bare_file_is_one_run_without_a_user_turn() {
    assert_eq!(types(&map(MapTo::Sse, &[TEXT, END])), ["run_start", "turn_start", "stream_delta", "turn_end", "done"]);
    let socket = map(MapTo::Socketio, &[TEXT, END]);
    assert_eq!(types(&socket).first(), Some(&"chat:start"));
    assert!(socket.iter().all(|event| event["data"]["role"] != "user"));
}

#[test]
fn nothing_counts_after_an_end_until_the_user_speaks_again() {
    let late = r#"{"type":"streamlined_text","text":"late","uuid":"c"}"#;
    let said = |text: &str| format!(r#"{{"dir":"in","frame":{{"type":"user","message":{{"role":"user","content":"{text}"}}}}}}"#);
    let out = |frame: &str| format!(r#"{{"dir":"out","frame":{frame}}}"#);
    let (text, end) = (TEXT.replace("\"a\"", "\"d\""), END.replace("\"b\"", "\"e\""));
    let lines = [said("one"), out(TEXT), out(END), out(late), said("two"), out(&text), out(&end)];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let events = map(MapTo::Sse, &lines);
    let texts: Vec<_> = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(texts, ["hi", "hi"]);
    let runs: Vec<_> = events.iter().filter(|event| event["type"] == "run_start").map(|event| event["run_id"].as_str().unwrap()).collect();
    assert_eq!(runs, ["run-00000000000000000000000000000001", "run-00000000000000000000000000000002"]);
    let users = map(MapTo::Socketio, &lines);
    let users = users.iter().filter(|event| event["event"] == "turn:start" && event["data"]["role"] == "user").count();
    assert_eq!(users, 2);
}

// A server that begins the second run with all of the first one ended it with the first one's result.
#[test]
fn no_run_ends_with_the_repeated_result_of_an_earlier_one() {
    let said = r#"{"dir":"in","frame":{"type":"user","message":{"role":"user","content":"on"}}}"#;
    let ask = r#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{},"tool_use_id":"t"}}"#;
    let new = r#"{"type":"streamlined_text","text":"new","uuid":"c"}"#;
    let end = r#"{"type":"result","subtype":"success","is_error":false,"uuid":"d"}"#;
    let events = map(MapTo::Sse, &[said, TEXT, ask, END, said, TEXT, ask, END, new, new, end]);
    let texts: Vec<_> = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(texts, ["hi", "new"]);
    let asks = types(&events).into_iter().filter(|kind| *kind == "approval_request").count();
    assert_eq!((asks, types(&events).last()), (1, Some(&"done")));
}

#[test]
fn a_run_without_an_end_gets_one() {
    let end = |lines: &[&str]| map(MapTo::Sse, lines).last().unwrap().clone();
    for lines in [&[][..], &[TEXT], &["null", "{"]] {
        let end = end(lines);
        assert_eq!((end["type"].as_str(), end["kind"].as_str()), (Some("error"), Some("missing_terminal_event")), "{lines:?}");
    }
    for stop in [
        r#"{"dir":"in","frame":{"type":"control_cancel_request","request_id":"s"}}"#,
        r#"{"dir":"in","frame":{"type":"control_request","request_id":"s","request":{"subtype":"interrupt"}}}"#,
    ] {
        assert_eq!(end(&[TEXT, stop])["type"], "interrupted");
    }
}

#[test]
fn lines_that_are_no_frames_are_counted() {
    let directed = r#"{"dir":"out","frame":{"type":"keep_alive"}}"#;
    let strange = |lines: &[&str]| Strange::of(&lines.join("\n"));
    assert_eq!(strange(&[TEXT, "", directed, END]), Strange { lines: 3, count: 0, first: None });
    let others = [TEXT, "", "no json", "null", "{}", r#"["type"]"#, r#"{"dir":"out","frame":1}"#, r#"{"type":1}"#];
    assert_eq!(strange(&others), Strange { lines: 7, count: 6, first: Some(3) });
    assert_eq!(strange(&[]), Strange::default());
}

#[test]
fn the_client_answers_where_the_transcript_says_so() {
    let ask = r#"{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}"#;
    let answer = |body: &str| {
        format!(
            r#"{{"dir":"in","frame":{{"type":"control_response","response":{{"subtype":"success","request_id":"r1","response":{body}}}}}}}"#
        )
    };
    for (body, label) in [(r#"{"behavior":"allow"}"#, "Allow"), (r#"{"behavior":"deny","message":"no"}"#, "Deny")] {
        let events = map(MapTo::Socketio, &[TEXT, ask, &answer(body), END]);
        let text = serde_json::to_string(&events).unwrap();
        assert!(text.contains("ask_r1"), "{text}");
        assert!(text.contains(label), "{text}");
    }
}

#[test]
fn content_blocks_are_the_users_words_and_pictures() {
    let content = serde_json::json!([
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "tool_result"},
        7,
    ]);
    let image = |url: &str| Part::Image { url: Text::from(url) };
    assert_eq!(parts(&content), [Part::Text(Text::from("look")), image("data:image/png;base64,QUJD"), image("https://example.com/a.png")]);
}

fn explained(to: MapTo, lines: &[&str]) -> Vec<Value> {
    let mut out = Vec::new();
    explain::explain(&lines.join("\n"), to, Mode::Agent, ExplainForm::Json, &mut out).unwrap();
    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(rules: &Value) -> Vec<&str> {
    rules.as_array().unwrap().iter().map(|rule| rule["name"].as_str().unwrap()).collect()
}

#[test]
fn each_event_names_the_lines_that_caused_it() {
    let stream = |event: &str| format!(r#"{{"type":"stream_event","event":{event}}}"#);
    let lines = [
        r#"{"dir":"in","frame":{"type":"user","message":{"role":"user","content":"hi"}}}"#.to_owned(),
        String::new(),
        stream(r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}}"#),
        stream(r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#),
        stream(r#"{"type":"content_block_stop","index":1}"#),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let events = explained(MapTo::Sse, &lines);
    let of = |kind: &str| events.iter().find(|event| event["event"]["type"] == kind).unwrap();
    let causes = |kind: &str| -> Vec<(Value, Value, Value)> {
        let causes = of(kind)["causes"].as_array().unwrap().iter();
        causes.map(|cause| (cause["line"].clone(), cause["name"].clone(), cause["held"].clone())).collect()
    };
    assert_eq!(causes("run_start"), [(1.into(), "fact/run_accepted".into(), false.into())]);
    let block = |line: u64, name: &str, held: bool| (line.into(), format!("stream_event/content_block_{name}").into(), held.into());
    assert_eq!(causes("tool_start"), [block(3, "start", true), block(4, "delta", true), block(5, "stop", false)]);
    assert_eq!(causes("error"), [(Value::Null, "fact/end_forced".into(), false.into())]);
    assert_eq!(names(&of("tool_start")["causes"][2]["rules"]), ["tool-waits-for-its-block"]);
    assert_eq!(names(&of("tool_start")["rules"]), ["call-starts-with-its-arguments"]);
}

#[test]
fn an_explanation_has_the_same_events_and_says_why_of_all() {
    let catalogue = include_str!("../../native/tests/data/frames.jsonl");
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/sim/transcripts");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default());
    for input in files.chain([catalogue.to_owned()]) {
        let lines: Vec<&str> = input.lines().collect();
        for to in [MapTo::Sse, MapTo::Socketio] {
            let explained = explained(to, &lines);
            let events: Vec<&Value> = explained.iter().map(|explained| &explained["event"]).collect();
            assert_eq!(events, map(to, &lines).iter().collect::<Vec<_>>());
            for explained in &explained {
                let made = explained["causes"].as_array().unwrap().last().unwrap();
                assert_eq!(made["held"], false, "{explained}");
                // On Socket.IO, that a chat pauses is the surface's own doing.
                let pauses = names(&explained["rules"]) == ["chat-pauses-for-an-ask"];
                assert!(pauses || !names(&made["rules"]).is_empty(), "{explained}");
                assert_eq!(names(&explained["rules"]).len(), 1, "{explained}");
                assert_ne!(names(&explained["rules"]), ["order-is-kept-whatever-comes"], "{explained}");
            }
        }
    }
}

#[test]
fn people_get_the_sentence_of_a_rule_once() {
    let mut out = Vec::new();
    let lines = [TEXT, r#"{"type":"streamlined_text","text":"!","uuid":"c"}"#, END].join("\n");
    explain::explain(&lines, MapTo::Sse, Mode::Agent, ExplainForm::Text, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("\n    line 2: streamlined_text\n        text-once\n    on this surface\n        text-is-a-delta\n"), "{out}");
    assert_eq!(out.matches(interline_native::rules::TEXT_ONCE.sentence).count(), 1, "{out}");
    assert!(out.starts_with("{\"type\":\"run_start\""), "{out}");
}
