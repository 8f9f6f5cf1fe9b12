//! SSE run events, read by hand: `data:` and `id:` lines, comments passed over.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::ask::ask;
use super::{Run, Way};
use crate::faults::{FaultProxy, Plan, locked};

/// Bytes of a run's events, roughly, in which connections break.
const LENGTH: u64 = 5_000;

/// Starts a run over connections that may break before the answer: by its key it is started once, however often it is asked for. Where that is
/// said, in a session that there is.
///
/// # Errors
/// With what the program said instead.
pub async fn start(
    proxy: &FaultProxy,
    plans: &[Option<Plan>],
    (cell, session): (&str, Option<&str>),
    token: &str,
    name: &str,
    prompt: &str,
) -> Result<Run, String> {
    let mut body = serde_json::json!({
        "actor": "chaos", "model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
    });
    if let Some(session) = session {
        body["session_id"] = Value::from(session);
    }
    let body = Bytes::from(body.to_string());
    let mut why = String::new();
    for plan in plans.iter().copied().chain([None; 20]) {
        let request = http::Request::post(format!("/cells/{cell}/run"))
            .header("host", "interline")
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .header("idempotency-key", name)
            .body(Full::new(body.clone()))
            .map_err(|error| error.to_string())?;
        let Ok(stream) = proxy.connect(plan).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        match ask(stream, request, Duration::from_secs(5)).await {
            Some(answer) if answer.status == 200 => {
                let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
                return Ok(Run { name: name.to_owned(), cell: cell.to_owned(), session: header("x-session-id"), id: header("x-run-id") });
            }
            Some(mut answer) => {
                let body = answer.body.frame().await.and_then(|frame| frame.ok()?.into_data().ok()).unwrap_or_default();
                why = format!("{}: {}", answer.status, String::from_utf8_lossy(&body));
            }
            None => "the connection broke".clone_into(&mut why),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(why)
}

/// Cuts a stream of bytes into events, each with its id, if it has one, and its data.
#[derive(Default)]
struct Events {
    waiting: Vec<u8>,
}

impl Events {
    /// `Err` if an event that is whole is no UTF-8 or no JSON.
    fn feed(&mut self, bytes: &[u8]) -> Result<Vec<(Option<u64>, Value)>, String> {
        self.waiting.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.waiting.windows(2).position(|two| two == b"\n\n") {
            let whole: Vec<u8> = self.waiting.drain(..end + 2).collect();
            let text = String::from_utf8(whole).map_err(|error| error.to_string())?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
            let id = field("id: ").and_then(|id| id.rsplit(':').next()?.parse().ok());
            if let Some(data) = field("data: ") {
                events.push((id, serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))?));
            }
        }
        Ok(events)
    }
}

/// One event as it was shown.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its number in the run.
    pub seq: u64,
    /// What it says.
    pub event: Value,
    /// When it came.
    pub at: Instant,
}

impl Shown {
    /// Whether nothing may follow it.
    #[must_use]
    pub fn is_end(&self) -> bool {
        ["done", "interrupted", "error"].iter().any(|kind| self.event["type"] == *kind)
    }
}

/// Reads a run from its first event on, until its end or until the connection is no good any more; what was shown is in `into` at any time.
/// The status, if there was an answer.
pub async fn read(proxy: &FaultProxy, run: &Run, token: &str, idle: Duration, into: &Mutex<Vec<Shown>>) -> Option<u16> {
    events(proxy, run, token, idle, "sse=full", |seq, event| {
        if let Some(seq) = seq {
            locked(into).push(Shown { seq, event, at: Instant::now() });
        }
    })
    .await
}

/// Whether the program says of a run that something may be missing: by a notice, or by an end that is no success. Whoever asks for
/// `extras=events` is told at any time.
pub async fn is_incomplete(proxy: &FaultProxy, run: &Run, token: &str, idle: Duration) -> bool {
    let mut told = false;
    let _ = events(proxy, run, token, idle, "extras=events", |_, event| {
        told |= event["code"] == "frames_missed" || event["type"] == "error" || event["type"] == "interrupted";
    })
    .await;
    told
}

async fn events(
    proxy: &FaultProxy,
    run: &Run,
    token: &str,
    idle: Duration,
    query: &str,
    mut take: impl FnMut(Option<u64>, Value),
) -> Option<u16> {
    let request = http::Request::get(format!("/cells/{}/runs/{}/events?{query}", run.cell, run.id))
        .header("host", "interline")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::default())
        .ok()?;
    let mut answer = ask(proxy.connect(None).await.ok()?, request, idle).await?;
    let mut events = Events::default();
    while answer.status == 200 {
        let Ok(Some(Ok(frame))) = timeout(idle, answer.body.frame()).await else { break };
        let Ok(data) = frame.into_data() else { continue };
        let Ok(found) = events.feed(&data) else { break };
        found.into_iter().for_each(|(seq, event)| take(seq, event));
    }
    Some(answer.status)
}

pub(super) async fn watch(way: &mut Way<'_>, run: &Run, by_id: bool) {
    let mut last = 0_u64;
    loop {
        let leaves = way.leaves(60);
        let until = way.until;
        // Where patience is over, it is over.
        if timeout_at(until, follow(way, run, by_id, &mut last, leaves)).await.unwrap_or(true) || !way.broke().await {
            return;
        }
    }
}

/// One connection; true if the run has ended.
async fn follow(way: &mut Way<'_>, run: &Run, by_id: bool, last: &mut u64, leaves: Option<u64>) -> bool {
    let Ok(stream) = way.connect(LENGTH).await else { return false };
    let path = format!("/cells/{}/runs/{}/events", run.cell, run.id);
    let mut request =
        http::Request::get(if by_id { format!("{path}?extras=events") } else { format!("{path}?sse=plain&from_seq={}", *last + 1) })
            .header("host", "interline")
            .header("authorization", format!("Bearer {}", way.token));
    if by_id {
        request = request.header("accept", "text/event-stream");
        if *last > 0 {
            request = request.header("last-event-id", format!("{}:{last}", run.id));
        }
    }
    let Ok(request) = request.body(Full::default()) else { return false };
    let idle = way.habits.idle;
    let Some(mut answer) = ask(stream, request, idle).await else { return false };
    if answer.status == 204 {
        // The one answer that means there is nothing more: only to somebody who has the end.
        way.watched.view.outcome.push_str(" and nothing more");
        return true;
    }
    if answer.status != 200 {
        way.watched.view.outcome = format!("refused with {}", answer.status);
        return false;
    }
    let (mut events, mut seen) = (Events::default(), 0);
    loop {
        let Ok(Some(Ok(frame))) = timeout(idle, answer.body.frame()).await else {
            // A body that ends, breaks or stalls; with the end of the run in it, it is over.
            return way.watched.view.ends > 0;
        };
        let Ok(data) = frame.into_data() else { continue };
        let found = match events.feed(&data) {
            Ok(found) => found,
            Err(why) => {
                way.watched.view.text.push_str(&why);
                return true;
            }
        };
        for (id, event) in found {
            if event["type"] == "ping" {
                continue;
            }
            way.came();
            let view = &mut way.watched.view;
            // Without ids the events are counted, as the documents say; among those with ids one without is an aside.
            if let Some(seq) = if by_id { id } else { Some(*last + 1) } {
                *last = seq;
                view.numbers.entry("seq".to_owned()).or_default().push(seq);
            }
            match event["type"].as_str().unwrap_or_default() {
                "stream_delta" => view.text.push_str(event["content"].as_str().unwrap_or_default()),
                "tool_end" => view.text.push_str(event["result"].as_str().unwrap_or_default()),
                kind @ ("done" | "interrupted" | "error") => {
                    view.ends += 1;
                    view.outcome = kind.to_owned();
                    view.ended_well = kind == "done";
                    view.said_incomplete |= kind != "done";
                }
                "notice" => view.said_incomplete = true,
                _ => {}
            }
            seen += 1;
            if leaves.is_some_and(|after| seen >= after) && view.ends == 0 {
                way.watched.left += 1;
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_wherever_the_bytes_break() {
        let body =
            "retry: 5\n\n: nothing\n\nid: run-1:7\ndata: {\"type\":\"a\",\"t\":\"漢\"}\n\ndata: {\"type\":\"b\"}\n\ndata: {\"type\":";
        for step in [1, 3, body.len()] {
            let mut events = Events::default();
            let found: Vec<(Option<u64>, Value)> = body.as_bytes().chunks(step).flat_map(|chunk| events.feed(chunk).unwrap()).collect();
            assert_eq!(found.len(), 2);
            assert_eq!((found[0].0, &found[0].1["t"]), (Some(7), &Value::from("漢")));
            assert_eq!((found[1].0, &found[1].1["type"]), (None, &Value::from("b")));
        }
        assert!(Events::default().feed(b"data: {\"a\":\xff}\n\n").is_err());
        assert!(Events::default().feed(b"data: {\n\n").is_err());
    }
}
