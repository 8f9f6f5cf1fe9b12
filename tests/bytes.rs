//! What a frame holds comes out of every surface as it came in: frames as their own bytes, the inputs and results inside them as the
//! JSON text that was sent. Where a page demands a change, or a bound cuts, the tests say so.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod recording;

use interline_model::Text;
use interline_native::Frame;
use interline_surface_sse::{ArgumentsForm, Options};
use interline_testkit::in_repository;
use recording::{Recording, split};
use serde_json::Value;

/// Values that no tree of numbers, maps and strings gives back as they were.
const HARD: [&str; 16] = [
    "9223372036854775807",
    "1234567890123456789",
    "12345678901234567890123456789012345678901234567890",
    "1.0",
    "1.10",
    "-0",
    "-0.0",
    "0e0",
    "1e400",
    "-1E+400",
    "1E-400",
    r#"{"a":1,"a":2,"b":{},"a":{"a":3,"a":4}}"#,
    r#"{"\u0061":"\u0062\/\"\\","":""}"#,
    r#"[ 1 ,	2 , { "x" : [ ] } ]"#,
    r#""\ud83d\ude00 \uD83D\uDE00 😀 \u2028""#,
    r#"{"z":1,"y":2,"x":3}"#,
];

/// How deep the input of a tool may be nested on SSE.
const DEEPEST: usize = 512;

/// Halves of characters: legal JSON that no text can hold.
const HALVES: [&str; 4] = [r#""\ud83d""#, r#""a\udc00b""#, r#"{"\ud800":"\uDFFF\ud83d\u0041"}"#, r#"["\ude00\ud83d"]"#];

fn deep(levels: usize) -> [String; 3] {
    [
        format!("{}{}", "[".repeat(levels), "]".repeat(levels)),
        format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels)),
        format!("{}0{}", r#"[{"a":"#.repeat(levels / 2), "}]".repeat(levels / 2)),
    ]
}

/// A run that announces a tool with this input, asks for it and gives a result, in every way that frames have.
fn run_with(value: &str) -> Recording {
    let input = format!(r#"{{"v":{value},"last":true}}"#);
    let pieces: Vec<&str> = input.split_inclusive(':').collect();
    let mut lines = vec![
        format!(r#"{{"type":"assistant","message":{{"id":"m","content":[{{"type":"tool_use","id":"snap","name":"T","input":{input}}}]}},"uuid":"1"}}"#),
        format!(
            r#"{{"type":"control_request","request_id":"ask","request":{{"subtype":"can_use_tool","tool_name":"T","input":{input},"tool_use_id":"asked"}}}}"#
        ),
        r#"{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"streamed","name":"T","input":{}}},"uuid":"2"}"#.to_owned(),
    ];
    lines.extend(pieces.iter().enumerate().map(|(at, piece)| {
        let piece = Value::from(*piece);
        format!(
            r#"{{"type":"stream_event","event":{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{piece}}}}},"uuid":"2-{at}"}}"#
        )
    }));
    lines.push(r#"{"type":"stream_event","event":{"type":"content_block_stop","index":0},"uuid":"3"}"#.to_owned());
    lines.push(r#"{"type":"tool_progress","tool_use_id":"late","tool_name":"T","uuid":"4"}"#.to_owned());
    lines.push(format!(r#"{{"type":"assistant","message":{{"id":"n","content":[{{"type":"tool_use","id":"late","name":"T","input":{input}}}]}},"uuid":"5"}}"#));
    let result = if value.starts_with('"') { format!(r#"{{"in":{value}}}"#) } else { value.to_owned() };
    lines.push(format!(
        r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"snap","content":{result}}}]}},"uuid":"6"}}"#
    ));
    lines.push(r#"{"type":"result","is_error":false,"uuid":"7"}"#.to_owned());
    Recording::from_lines("hard", &lines)
}

#[test]
fn every_frame_that_was_recorded_keeps_its_bytes() {
    let catalogue = std::fs::read_to_string(in_repository("crates/native/tests/data/frames.jsonl")).expect("the catalogue");
    let mut lines: Vec<String> = catalogue.lines().map(str::to_owned).collect();
    for recording in Recording::recorded().into_iter().chain(Recording::own()) {
        lines.extend(recording.lines().iter().map(|line| split(line).1.to_owned()));
    }
    let mut frames = 0;
    for line in lines {
        let text = Text::from(line.as_str());
        if let Ok(frame) = Frame::parse(&text) {
            frames += 1;
            assert_eq!(frame.object().frame().as_bytes(), line.as_bytes());
            assert_eq!(frame.object().frame().as_ptr(), text.as_ptr(), "not even copied");
        } else {
            assert!(serde_json::from_str::<Value>(&line).map_or(true, |value| !value.is_object()), "an object is a frame: {line}");
        }
    }
    assert!(frames > 900, "only {frames}");
}

#[test]
fn native_clients_get_the_upstreams_own_bytes() {
    for recording in Recording::recorded().into_iter().chain(Recording::own()) {
        let lines = recording.lines();
        let sent: Vec<&str> = lines.iter().map(|line| split(line)).filter(|(inward, _)| !inward).map(|(_, frame)| frame).collect();
        let mut rest = sent.iter();
        let native = recording.native();
        for frame in native.lines() {
            // Ours is the end that the upstream did not give, and nothing else.
            let theirs = rest.any(|sent| *sent == frame);
            assert!(theirs || frame.starts_with(r#"{"type":"result""#), "{}: {frame}", recording.name);
        }
    }
}

#[test]
fn inputs_and_results_pass_as_they_were_written() {
    for value in HARD.into_iter().map(str::to_owned).chain(deep(DEEPEST - 1)) {
        let run = run_with(&value);
        let input = format!(r#"{{"v":{value},"last":true}}"#);
        // The one change that sse.md §5.4 demands of an SSE line: a raw separator is written as its escape.
        let spliced = input.replace('\u{2028}', r"\u2028");
        let sse = run.sse(Options::default());
        let starts = sse.lines().filter(|line| line.ends_with(&format!(r#""arguments":{spliced}}}"#))).count();
        assert_eq!(starts, 4, "three announcements and the ask: {value}\n{sse}");
        let strings = run.sse(Options { arguments: ArgumentsForm::String, ..Options::default() });
        assert_eq!(members(&strings, "arguments").iter().filter(|arguments| **arguments == input).count(), 4, "{value}\n{strings}");
        let socketio = run.socketio(Default::default());
        let shown = members(&socketio, "arguments").into_iter().filter(|arguments| *arguments == input).count();
        assert!(shown >= 4, "{shown} times: {value}\n{socketio}");
        let result = if value.starts_with('"') { format!(r#"{{"in":{value}}}"#) } else { value.clone() };
        if !result.starts_with('[') {
            assert!(members(&sse, "result").contains(&result), "{value}\n{sse}");
        }
    }
}

#[test]
fn what_is_nested_too_deeply_for_sse_is_left_out_and_said_to_be() {
    for value in deep(DEEPEST + 1) {
        let run = run_with(&value);
        let input = format!(r#"{{"v":{value},"last":true}}"#);
        let sse = run.sse(Options::default());
        assert!(!sse.contains(&value), "{sse}");
        let mark = r#""arguments":{"truncated":"arguments nested more than 512 levels deep are left out"#;
        assert_eq!(sse.matches(mark).count(), 4, "{sse}");
        // Where all of it is, is said of calls; what is asked need not be in any message.
        assert_eq!(sse.matches("; all of it: GET /cells/").count(), 3, "{sse}");
        // Whoever splits no lines takes them as they are.
        assert!(members(&run.socketio(Default::default()), "arguments").contains(&input));
        assert_eq!(run.native().matches(&input).count(), 3);
    }
}

#[test]
fn halves_of_characters_are_replaced_where_the_page_says_so_and_kept_elsewhere() {
    for value in HALVES {
        let run = run_with(value);
        let input = format!(r#"{{"v":{value},"last":true}}"#);
        let native = run.native();
        assert_eq!(native.matches(&input).count(), 3, "{native}");
        let socketio = run.socketio(Default::default());
        assert!(members(&socketio, "arguments").contains(&input), "{value}\n{socketio}");
        // sse.md §5.4: strict decoders refuse halves, so they become U+FFFD, and nothing else changes.
        let sse = run.sse(Options::default());
        assert!(sse.contains(r"\ufffd"), "{sse}");
        for line in sse.lines() {
            serde_json::from_str::<Value>(line).expect("a strict decoder takes it");
        }
    }
}

#[test]
fn what_is_no_json_ends_nothing_and_changes_nothing() {
    let good =
        [r#"{"type":"streamlined_text","text":"hi","uuid":"1"}"#.to_owned(), r#"{"type":"result","is_error":false,"uuid":"2"}"#.to_owned()];
    let plain = Recording::from_lines("plain", &good).sse(Options::default());
    for bad in ["01", "+1", "1.", ".5", "NaN", "Infinity", "'a'", "\"\\x\"", "{\"a\":}", "[1,]", "\"\u{1}\"", "nul", "[", "\"\\ud83\""] {
        let frame = format!(r#"{{"type":"streamlined_text","text":"bad","n":{bad},"uuid":"x"}}"#);
        assert!(Frame::parse(&Text::from(frame.as_str())).is_err(), "{bad}");
        let lines: Vec<String> = [frame].into_iter().chain(good.iter().cloned()).collect();
        let run = Recording::from_lines("bad", &lines);
        assert_eq!(run.sse(Options::default()), plain, "{bad}");
        assert_eq!(run.native().lines().count(), 2, "{bad}");
    }
}

/// The string members of that name, at any depth, decoded.
fn members(events: &str, name: &str) -> Vec<String> {
    let head = format!(r#""{name}":""#);
    let mut found = Vec::new();
    for line in events.lines() {
        for (at, _) in line.match_indices(&head) {
            let string = line.get(at + head.len() - 1..).expect("a string");
            let value = serde_json::Deserializer::from_str(string).into_iter::<String>().next();
            found.push(value.expect("a string").expect("whole"));
        }
    }
    found
}
