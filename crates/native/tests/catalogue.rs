//! Every frame of the catalogue is known by the name it has there, and every recorded line is a known frame.

use interline_model::Text;
use interline_native::Frame;
use interline_native::frame::{Control, Data};
use serde_json::Value;

const FRAMES: &str = include_str!("data/frames.jsonl");
const INDEX: &str = include_str!("data/frames.index.json");

/// What the index calls a frame, as [`Frame::name`] and this test say it.
fn index_name(frame: &Frame<'_>) -> String {
    match frame {
        Frame::Data(Data::UserReplay(_)) => "user_replay".to_owned(),
        Frame::Data(Data::ResultSuccess(_)) => "result success".to_owned(),
        Frame::Data(Data::ResultError(_)) => "result error".to_owned(),
        Frame::Control(Control::Response(_)) => "control_response".to_owned(),
        Frame::Unknown(_) => format!("unknown: {}", frame.name()),
        _ => frame.name().to_string(),
    }
}

#[test]
fn all_frames_of_the_catalogue_are_known() {
    let index: Vec<Value> = serde_json::from_str(INDEX).unwrap();
    let frames: Vec<Text> = FRAMES.lines().map(Text::from).collect();
    // The index also describes payloads of responses, which are no frames and have no line.
    let index: Vec<_> = index.iter().filter_map(|entry| Some((entry["line"].as_u64()?, entry["name"].as_str()?))).collect();
    assert_eq!((index.len(), frames.len()), (85, 85));
    for (line, wanted) in index {
        let text = &frames[usize::try_from(line).unwrap() - 1];
        // A remark behind the name, and what a response answers, are the index's own.
        let wanted = if wanted.starts_with("result ") { wanted } else { wanted.split(' ').next().unwrap() };
        let wanted = if wanted.starts_with("control_response/") { "control_response" } else { wanted };
        assert_eq!(index_name(&Frame::parse(text).unwrap()), wanted, "{text}");
    }
}

#[test]
fn every_recorded_line_is_a_frame() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/transcripts");
    let (mut count, mut unknown) = (0, Vec::new());
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            let text = if value.get("dir").is_some() { Text::from(value["frame"].to_string()) } else { Text::from(line) };
            let frame = Frame::parse(&text).unwrap();
            if let Frame::Unknown(_) = frame {
                unknown.push(frame.name().to_string());
            }
            count += 1;
        }
    }
    assert!(count > 300, "{count} lines");
    unknown.sort();
    unknown.dedup();
    assert_eq!(unknown, ["system/thinking_tokens"], "what the catalogue does not hold");
}
