//! Frames as servers send them, in the three kinds that make up a run.

use bytes::{Bytes, BytesMut};
use interline_model::Text;

/// Frames of one kind, all of them new ones.
pub struct Load {
    /// What they are.
    pub name: &'static str,
    /// In order. Slices of one buffer, as a WebSocket hands them out.
    pub frames: Vec<Text>,
}

/// Frames of each load: an answer of some thousand words, eight seconds at fifty frames a second.
const FRAMES: usize = 400;

const SESSION: &str = "6892e32d-ff7a-47e8-a800-e7ea87c41069";

/// All loads.
#[must_use]
pub fn loads() -> Vec<Load> {
    vec![
        Load::new("text", |n| text(n, "Hello world, ")),
        Load::new("text-escaped", |n| text(n, r#"\"caf\u00e9\",\nand "#)),
        Load::new("text-provider", |n| {
            let delta = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello world, "}}"#;
            format!(r#"{{"type":"stream_event","event":{delta},"parent_tool_use_id":null,{}}}"#, ids(n))
        }),
        Load::new("tools", tool),
        Load::new("snapshots", snapshot),
    ]
}

impl Load {
    fn new(name: &'static str, frame: impl Fn(usize) -> String) -> Self {
        let mut buffer = BytesMut::new();
        let mut frames = Vec::with_capacity(FRAMES);
        for n in 0..FRAMES {
            buffer.extend_from_slice(frame(n).as_bytes());
            let bytes: Bytes = buffer.split().freeze();
            frames.push(Text::try_from(bytes).unwrap_or_default());
        }
        Self { name, frames }
    }

    /// Bytes of a frame, on average.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frames.iter().map(|frame| frame.len()).sum::<usize>() / self.frames.len().max(1)
    }
}

fn ids(n: usize) -> String {
    format!(r#""uuid":"305ee83d-4d14-4a96-9a15-{n:012x}","session_id":"{SESSION}""#)
}

fn text(n: usize, escaped: &str) -> String {
    format!(r#"{{"type":"streamlined_text","text":"{escaped}",{}}}"#, ids(n))
}

/// Calls as chat sessions tell them: announced, still at it, done.
fn tool(n: usize) -> String {
    let call = n / 3;
    let running = |seconds| {
        format!(
            r#"{{"type":"tool_progress","tool_use_id":"toolu_{call:08}","tool_name":"Bash","elapsed_time_seconds":{seconds},{}}}"#,
            ids(n)
        )
    };
    match n % 3 {
        0 => running(0),
        1 => running(1),
        _ => {
            let result = r"test reader::tests::rules ... ok\n".repeat(8);
            format!(r#"{{"type":"tool_use_summary","summary":"{result}","preceding_tool_use_ids":["toolu_{call:08}"],{}}}"#, ids(n))
        }
    }
}

/// Messages that come whole, with a paragraph each.
fn snapshot(n: usize) -> String {
    let said = "There is one Rust file, `src/lib.rs`, and its function panics on an empty slice.\\n".repeat(6);
    let content = format!(r#"[{{"type":"text","text":"{said}"}}]"#);
    let usage = r#"{"input_tokens":240,"output_tokens":48,"cache_read_input_tokens":0,"cache_creation_input_tokens":0}"#;
    let message = format!(r#"{{"id":"msg_{n:08}","type":"message","role":"assistant","model":"m","content":{content},"usage":{usage}}}"#);
    format!(r#"{{"type":"assistant","message":{message},"parent_tool_use_id":null,{}}}"#, ids(n))
}
