//! Sessions that only say something. What is heard is what was said, whichever frames tell it and however often they tell it.

use interline_model::{Text, What};
use serde_json::{Value, json};

use crate::play::{Delivery, play};
use crate::script::{Script, Step};

/// Takes the texts of a script as those of one message, and has them told in the ways that servers have.
///
/// # Panics
/// If something else is heard.
pub fn is_heard(script: &Script) {
    let texts = texts(script);
    let whole = texts.concat();
    for frames in [streamlined(&texts), streamed(&texts, &whole), vec![assistant(&whole)]] {
        let result = json!({"type": "result", "subtype": "success", "is_error": false, "result": whole});
        let steps = frames.into_iter().chain([result]).map(|frame| Step::Frame(Text::from(frame.to_string()))).collect();
        let mut heard = String::new();
        play(&Script { options: script.options, steps }, Delivery::Once, |_, events| {
            for event in events {
                if let What::Text { delta } = &event.what {
                    heard.push_str(delta);
                }
            }
        });
        assert_eq!(heard, whole, "what was said");
    }
}

/// What the frames of a script say: text that cannot be the mark of a thought, which would be another thing to say.
fn texts(script: &Script) -> Vec<String> {
    let frames = script.steps.iter().filter_map(|step| match step {
        Step::Frame(text) => serde_json::from_str::<Value>(text).ok(),
        _ => None,
    });
    let texts = frames.filter_map(|frame| {
        let text = frame.get("text").or_else(|| frame.pointer("/event/delta/text"))?;
        text.as_str().filter(|text| !text.contains('<')).map(str::to_owned)
    });
    texts.collect()
}

fn streamlined(texts: &[String]) -> Vec<Value> {
    texts.iter().map(|text| json!({"type": "streamlined_text", "text": text})).collect()
}

/// In pieces, and then as a whole again.
fn streamed(texts: &[String], whole: &str) -> Vec<Value> {
    let event = |event: Value| json!({"type": "stream_event", "event": event});
    let mut frames = vec![
        event(json!({"type": "message_start", "message": {"id": "m1"}})),
        event(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})),
    ];
    let delta = |text| event(json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}));
    frames.extend(texts.iter().map(delta));
    frames.push(assistant(whole));
    frames.push(event(json!({"type": "content_block_stop", "index": 0})));
    frames.push(event(json!({"type": "message_stop"})));
    frames
}

fn assistant(whole: &str) -> Value {
    json!({"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": whole}]}})
}
