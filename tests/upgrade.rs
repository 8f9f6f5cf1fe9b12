//! From polling to WebSocket while events flow, as stock clients do it: quick where WebSockets pass, and without any loss where they do not.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

#[path = "support/sockets.rs"]
mod sockets;
mod support;

use std::path::PathBuf;
use std::time::Duration;

use interline_sim::Options;
use interline_testkit::Client;
use serde_json::{Value, json};
use sockets::{Sockets, before};
use support::{Stand, UPSTREAMS, token};

fn told(count: usize) -> String {
    (0..count).map(|n| format!("{n},")).collect()
}

/// A stand whose simulator plays `ticks-10`, `ticks-40` and `ticks-80`, texts of so many parts; the folder goes with it.
async fn stand() -> (Stand, Folder) {
    let folder = Folder(std::env::temp_dir().join(format!("interline-ticks-{}-{:?}", std::process::id(), std::thread::current().id())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    for count in [10, 40, 80] {
        let texts = (0..count).map(|n| json!({"type": "streamlined_text", "text": format!("{n},"), "uuid": format!("t{n}")}));
        let end = json!({"type": "result", "subtype": "success", "is_error": false, "uuid": "end"});
        let lines: String = texts.chain([end]).map(|frame| format!("{frame}\n")).collect();
        std::fs::write(folder.0.join(format!("ticks-{count}.jsonl")), lines).expect("a transcript");
    }
    (Stand::with(Options { transcripts: Some(folder.0.clone()), ..Options::default() }, "").await, folder)
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn chats(base: &str, cell: &str, prompt: &str, more: &[&str]) -> Vec<Value> {
    let secret = token(cell);
    let client = Client::new("upgrade.mjs", base).args(["--token", &secret, "--prompt", prompt]).args(more);
    client.run().await.content().json_lines()
}

// Others' clients lost their session with the upgrade, or polled as fast as they could while it hung.
#[tokio::test(flavor = "multi_thread")]
async fn e3_a_proxy_that_breaks_websockets_leaves_polling() {
    let (stand, _folder) = stand().await;
    let broken = [Sockets::ClosedAfterHandshake, Sockets::ClosedAfterProbe, Sockets::Swallowed, Sockets::Mute];
    let (stand, mut chatting) = (&stand, Vec::new());
    for sockets in broken {
        for cell in UPSTREAMS {
            let base = before(stand.base(), sockets).await;
            chatting.push(async move { (sockets, cell, chats(&base, cell, "play ticks-10 gap=400", &[]).await) });
        }
    }
    for (sockets, cell, seen) in futures_util::future::join_all(chatting).await {
        let seen = &seen[0];
        assert_eq!(seen["text"], told(10), "{sockets:?} {cell}: {seen}");
        assert_eq!((&seen["connects"], &seen["disconnects"], &seen["transport"]), (&json!(1), &json!(0), &json!("polling")), "{seen}");
        // Four seconds: a poll for each event, the handshake's, and those that an upgrade lets go.
        assert!(seen["polls"].as_u64().is_some_and(|polls| polls < 60), "{sockets:?} {cell}: {seen}");
        assert!(seen["first_ms"].as_u64().is_some_and(|ms| ms < 2_500), "{sockets:?} {cell}: {seen}");
    }
}

// python-socketio waits for its probe before it polls again.
#[tokio::test(flavor = "multi_thread")]
async fn e3_python_stays_with_polling_too() {
    let (stand, _folder) = stand().await;
    let broken = [Sockets::ClosedAfterHandshake, Sockets::ClosedAfterProbe, Sockets::Swallowed, Sockets::Mute];
    let (stand, mut chatting) = (&stand, Vec::new());
    for sockets in broken {
        let base = before(stand.base(), sockets).await;
        chatting.push(async move {
            let plan = json!([["connect"], ["ask", "chat:send", {"message": "play ticks-80 gap=5"}], ["until", "chat:end"]]).to_string();
            let secret = token("cloud");
            let client = Client::new("desk.py", &base).args(["--token", &secret, "--plan", &plan, "--transport", "default"]);
            (sockets, client.run().await.content().json_lines())
        });
    }
    for (sockets, seen) in futures_util::future::join_all(chatting).await {
        let patches = seen.iter().filter(|line| line["event"] == "turn:patch" && line["data"]["patch_type"] == "add_content");
        let text: String = patches.filter_map(|line| line["data"]["data"]["text_delta"].as_str()).collect();
        assert_eq!(text, told(80), "{sockets:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_a_slow_proxy_is_waited_for() {
    let (stand, _folder) = stand().await;
    let base = before(stand.base(), Sockets::Slow(Duration::from_millis(300))).await;
    let seen = &chats(&base, "cloud", "play ticks-10 gap=400", &[]).await[0];
    assert_eq!((&seen["text"], &seen["transport"], &seen["connects"]), (&json!(told(10)), &json!("websocket"), &json!(1)), "{seen}");
}

// Others stalled for up to 25 s in the upgrade, or lost and mixed up what came during it.
#[tokio::test(flavor = "multi_thread")]
async fn e3_two_hundred_upgrades_with_events_lose_nothing_and_are_quick() {
    let (stand, _folder) = stand().await;
    let base = before(stand.base(), Sockets::Whole).await;
    for cell in UPSTREAMS {
        let seen = chats(&base, cell, "play ticks-40 gap=10", &["--count", "100", "--together", "3"]).await;
        assert_eq!(seen.len(), 100);
        for seen in &seen {
            assert_eq!(seen["text"], told(40), "{seen}");
            assert_eq!(
                (&seen["connects"], &seen["disconnects"], &seen["transport"]),
                (&json!(1), &json!(0), &json!("websocket")),
                "{seen}"
            );
        }
        // A stall takes ten seconds or more; what a busy machine adds is much less, and not for all.
        for what in ["upgrade_ms", "first_ms"] {
            let mut times: Vec<u64> = seen.iter().filter_map(|seen| seen[what].as_u64()).collect();
            times.sort_unstable();
            assert!(times.len() == 100 && times[79] < 1_000 && times[99] < 5_000, "{what} of {cell}: {times:?}");
        }
    }
}
