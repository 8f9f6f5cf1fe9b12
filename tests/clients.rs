//! Real clients, unchanged: each does whole runs on both upstreams, and what it saw is what the transcript says.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use interline_testkit::{Client, Program, Surface, compare, transcript, transcript_path};
use support::{INTERLINE, Stand, UPSTREAMS, token};

/// Text, reasoning, tools, a permission, a question, a form, an error: one transcript of each kind.
const KINDS: [&str; 7] =
    ["chat-text-only", "chat-thinking", "bridge-with-permission", "ask", "agent-with-elicitation", "error", "tool-allow"];

/// `program` starts runs by POST on both upstreams.
async fn starts_runs_over_sse(program: &str) {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        for name in KINDS {
            let prompt = format!("play {name}");
            let seen = Client::new(program, stand.base()).args(["--token", &token(cell), "--cell", cell, "--prompt", &prompt]).run().await;
            compare(&transcript_path(name), Surface::Sse, &seen.content().output);
        }
    }
}

#[tokio::test]
async fn node_fetch_reading_loop() {
    starts_runs_over_sse("fetch.mjs").await;
}

#[tokio::test]
async fn npm_eventsource_parser() {
    starts_runs_over_sse("parser.mjs").await;
}

#[tokio::test]
async fn npm_fetch_event_source() {
    starts_runs_over_sse("fetch_event_source.mjs").await;
}

#[tokio::test]
async fn python_requests_lines() {
    starts_runs_over_sse("requests_lines.py").await;
}

#[tokio::test]
async fn curl_without_buffering() {
    starts_runs_over_sse("curl.sh").await;
}

#[tokio::test]
async fn npm_eventsource_follows_and_stops_for_good() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        for name in ["chat-text-only", "agent-with-tools", "error"] {
            let post = stand.run(cell, &format!("play {name}")).await;
            let run = post.headers["x-run-id"].to_str().expect("an id").to_owned();
            let seen =
                Client::new("eventsource.mjs", stand.base()).args(["--token", &token(cell), "--cell", cell, "--run", &run]).run().await;
            let seen = seen.content();
            let lines = seen.json_lines();
            let events: String = lines.iter().filter_map(|line| line["data"].as_str()).map(|data| format!("{data}\n")).collect();
            compare(&transcript_path(name), Surface::Sse, &events);
            assert_eq!(lines.last().map(|line| line["closed"].clone()), Some(true.into()), "{}", seen.output);
            drop(post);
        }
    }
}

async fn talks_over_socket_io(program: &str, args: &[&str]) {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        for name in KINDS {
            let prompt = format!("play {name}");
            let seen = Client::new(program, stand.base()).args(["--token", &token(cell), "--prompt", &prompt]).args(args).run().await;
            // An error is an answer, too: the client says so by its exit, after printing all it saw.
            let seen = if name == "error" { seen } else { seen.content() };
            compare(&transcript_path(name), Surface::SocketIo, &seen.socket_events());
        }
    }
}

#[tokio::test]
async fn socket_io_client_by_websocket() {
    talks_over_socket_io("socketio.mjs", &["--transport", "websocket"]).await;
}

#[tokio::test]
async fn socket_io_client_by_polling() {
    talks_over_socket_io("socketio.mjs", &["--transport", "polling"]).await;
}

#[tokio::test]
async fn socket_io_client_with_upgrade_and_acks() {
    talks_over_socket_io("socketio.mjs", &["--transport", "default", "--acks"]).await;
}

#[tokio::test]
async fn python_socketio_by_websocket() {
    talks_over_socket_io("socketio_client.py", &["--transport", "websocket"]).await;
}

#[tokio::test]
async fn python_socketio_by_polling() {
    talks_over_socket_io("socketio_client.py", &["--transport", "polling"]).await;
}

#[tokio::test]
async fn plain_websocket_on_the_native_surface() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        for surface in UPSTREAMS {
            for name in ["chat-text-only", "agent-with-permission", "agent-with-elicitation", "error", "chat-with-tools"] {
                let prompt = format!("play {name}");
                let args = ["--token", &token(cell), "--surface", surface, "--prompt", &prompt];
                let seen = Client::new("native.mjs", stand.base()).args(args).run().await.content();
                let sentinel = |line: &&str| !line.contains("\"type\":\"keep_alive\"");
                let ours: Vec<&str> = seen.output.lines().filter(sentinel).collect();
                let whole = transcript(name);
                assert_eq!(ours, whole.lines().filter(sentinel).collect::<Vec<_>>(), "{name} from {cell} on {surface}");
            }
        }
    }
}

/// What a person at the demo's page sees, a value for each prompt.
async fn demo_page(prompts: &[&str], args: &[&str]) -> Vec<serde_json::Value> {
    let demo = Program::start(INTERLINE, &["demo", "--listen", "127.0.0.1:0"]).await;
    let prompts = prompts.iter().flat_map(|prompt| ["--prompt", prompt]);
    let seen = Client::new("browser.mjs", demo.base()).args(prompts).args(args).run().await.content();
    seen.json_lines()
}

/// Both columns show the same, and nothing went wrong.
fn columns_agree(seen: &serde_json::Value, outcome: &str) {
    assert_eq!(seen["sse_text"], seen["socketio_text"], "{seen}");
    assert_eq!(seen["sse_tools"], seen["socketio_tools"], "{seen}");
    assert_eq!((seen["sse_outcome"].as_str(), seen["socketio_outcome"].as_str()), (Some(outcome), Some(outcome)), "{seen}");
    assert!(seen["problem"].is_null(), "{seen}");
}

#[tokio::test]
async fn chromium_on_the_demo_page() {
    let prompts = ["What does median do, please?", "And once more?", "a form", "quick", "one question, nothing else"];
    for answered in ["sse", "socketio"] {
        let seen = demo_page(&prompts, &["--column", answered, "--over", "both"]).await;
        assert_eq!(seen.len(), prompts.len());
        for (seen, prompt) in seen.iter().zip(prompts) {
            columns_agree(seen, "done");
            let text = seen["sse_text"].as_str().unwrap_or_default();
            assert!(text.ends_with(&format!("That is all there is to do for “{prompt}”.")), "{seen}");
            assert_eq!(text.matches("I'll look at the file first.").count(), 1, "{seen}");
            for column in ["sse_states", "socketio_states"] {
                let states = seen[column].to_string();
                assert_eq!(states.contains("waiting"), prompt != "quick", "{seen}");
                assert!(states.contains("running") && states.ends_with("\"ended\"]"), "{seen}");
            }
        }
        let tools = seen[0]["sse_tools"].to_string();
        assert!(tools.contains("cargo test --quiet") && tools.contains("Where should the result go?"), "{tools}");
    }
}

#[tokio::test]
async fn chromium_on_the_demo_page_while_it_waits() {
    for (prompt, asks) in [("What does median do?", 2), ("a form", 1), ("scene asks 3", 3)] {
        let seen = demo_page(&[prompt], &["--look"]).await.remove(0);
        columns_agree(&seen, "done");
        let looks = seen["looks"].as_array().cloned().unwrap_or_default();
        assert_eq!(looks.len(), asks, "{seen}");
        for look in looks {
            let (sse, socketio) = (look[0].to_string(), look[1].to_string());
            assert!(sse.contains("waiting") && !sse.contains("running"), "{look}");
            // The words of a permission apart, which Socket.IO offers to give for good.
            assert_eq!(sse, socketio.replace("Allow always", ""), "{look}");
        }
    }
}

#[tokio::test]
async fn chromium_on_the_demo_page_after_lost_connections() {
    let prompts = ["What does median do?", "a form", "And once more?"];
    for seen in demo_page(&prompts, &["--over", "both", "--cuts", "4"]).await {
        columns_agree(&seen, "done");
    }
}

#[tokio::test]
async fn chromium_stops_a_run() {
    for seen in demo_page(&["a long answer", "another long answer"], &["--over", "both", "--stop"]).await {
        columns_agree(&seen, "interrupted");
    }
}
