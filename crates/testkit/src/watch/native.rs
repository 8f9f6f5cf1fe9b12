//! The native cloud surface: frames are counted, and the count is the cursor.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tokio::time::{timeout, timeout_at};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::{Run, Way, ask};
use crate::faults::FaultProxy;

/// Bytes of a run's frames, roughly, in which connections break.
const LENGTH: u64 = 8_000;

/// Starts a run.
///
/// # Errors
/// With what the program said instead.
pub async fn start(proxy: &FaultProxy, cell: &str, token: &str, name: &str, prompt: &str) -> Result<Run, String> {
    let body = serde_json::json!({ "mode": "chat", "prompt": prompt, "model": "m" });
    let answer = ask::json(proxy, "POST", "/v1/agent/sessions", token, Some(&body), Duration::from_secs(10)).await;
    let (status, created) = answer.ok_or("no answer to a create request")?;
    if status != 201 {
        return Err(format!("{status}: {created}"));
    }
    let text = |member: &str| created[member].as_str().unwrap_or_default().to_owned();
    let id = format!("run-{}", text("session_id").replace('-', ""));
    Ok(Run { name: name.to_owned(), cell: cell.to_owned(), session: text("thread_id"), id })
}

pub(super) async fn watch(way: &mut Way<'_>, run: &Run) {
    let mut had = Had::default();
    loop {
        let leaves = way.leaves(60);
        let until = way.until;
        // Where patience is over, it is over.
        if timeout_at(until, follow(way, run, &mut had, leaves)).await.unwrap_or(true) || !way.broke().await {
            return;
        }
    }
}

/// What the client has.
#[derive(Default)]
struct Had {
    count: u64,
    last: Option<Value>,
}

impl Had {
    /// The number to ask from. The first frame of a run cannot be asked for (native-ws.md §3.3), and it comes or does not: from the count of those that came,
    /// nothing is left out, and one may come again.
    fn cursor(&self) -> u64 {
        self.count.max(1)
    }

    /// Whether the frame is the one that may come again, first on a connection.
    fn is_last(&self, frame: &Value) -> bool {
        self.last.as_ref() == Some(frame)
    }
}

/// One connection; true if the run has ended.
async fn follow(way: &mut Way<'_>, run: &Run, had: &mut Had, leaves: Option<u64>) -> bool {
    let Ok(stream) = way.connect(LENGTH).await else { return false };
    let Ok(mut request) = format!("ws://interline/v1/agent/sessions/{}/stream?since_seq={}", run.id, had.cursor()).into_client_request()
    else {
        return false;
    };
    let Ok(bearer) = format!("Bearer {}", way.token).parse() else { return false };
    request.headers_mut().insert("authorization", bearer);
    let idle = way.habits.idle;
    let Ok(Ok((mut socket, _))) = timeout(idle, client_async(request, stream)).await else { return false };
    let (mut seen, mut first) = (0, true);
    loop {
        // After the end the socket stays open and silent: a moment shows that there is no second one.
        let wait = if way.watched.view.ends > 0 { Duration::from_millis(30) } else { idle };
        let Ok(Some(Ok(message))) = timeout(wait, socket.next()).await else { return way.watched.view.ends > 0 };
        let Message::Text(text) = message else { continue };
        let Ok(frame) = serde_json::from_str::<Value>(&text) else {
            way.watched.view.text.push_str(&text);
            return true;
        };
        way.came();
        let is_first = std::mem::take(&mut first);
        if is_first && had.is_last(&frame) {
            continue;
        }
        had.count += 1;
        had.last = Some(frame.clone());
        let view = &mut way.watched.view;
        match frame["type"].as_str().unwrap_or_default() {
            "streamlined_text" => {
                // Reasoning stands between marks of its own in the same frames.
                let text = frame["text"].as_str().unwrap_or_default();
                if text.starts_with('«') {
                    view.text.push_str(text);
                }
            }
            "tool_use_summary" => view.text.push_str(frame["summary"].as_str().unwrap_or_default()),
            "result" => {
                view.ends += 1;
                view.said_incomplete |= frame["is_error"] == true;
                view.outcome = frame["subtype"].as_str().unwrap_or_default().to_owned();
                view.ended_well = view.outcome == "success" && frame["is_error"] == false;
            }
            "biumind.session_desynced" => view.said_incomplete = true,
            _ => {}
        }
        seen += 1;
        if leaves.is_some_and(|after| seen >= after) && view.ends == 0 {
            way.watched.left += 1;
            return false;
        }
    }
}
