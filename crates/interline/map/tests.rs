//! What `map` makes of small transcripts; whole ones are compared by the oracle in `tests/map.rs`.

use super::*;

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
    let lines = [said("one"), out(TEXT), out(END), out(late), said("two"), out(TEXT), out(END)];
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
