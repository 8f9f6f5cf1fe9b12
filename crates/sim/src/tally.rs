//! A run that counts: every piece of text and every tool's result carries the run's name and a number, so that whoever reads it can tell
//! what is missing, what came twice and what came in the wrong order.

use std::sync::atomic::Ordering;

use serde_json::json;
use tokio::time;

use crate::{
    prompt::Tally,
    run::Outcome,
    script::Actor,
    stage::{Host, Stage},
    websocket::Delivery,
};

/// How many pieces nobody hears before a server forgets.
const FORGOTTEN: u64 = 3;

/// The n-th piece of the run of this name (0 is the first). Its marks are of two bytes, its words of up to four a character, so that a
/// connection may break inside any of them.
pub fn tally_text(name: &str, n: u64) -> String {
    format!("«{name}:{n}» é漢🎉 ")
}

pub(crate) async fn perform(stage: &Stage, tally: &Tally) -> Outcome {
    let mut actor = Actor::new(stage);
    // The first frame is none that counts: a client that cannot ask for it (native-ws.md §3.3) misses nothing.
    actor.think("Counting.").await;
    let filling = "x".repeat(tally.size);
    for n in 0..tally.pieces {
        if tally.forget == Some(n) {
            forget(stage).await;
        }
        if n + 1 == tally.pieces && !tally.hold.is_zero() {
            time::sleep(tally.hold).await;
        }
        if tally.vanish == Some(n) {
            vanish(stage).await;
        }
        let text = format!("{}{filling}", tally_text(&tally.name, n));
        if let (Some(from), Host::Cloud(_)) = (tally.forget, stage.host())
            && (from..from.saturating_add(FORGOTTEN)).contains(&n)
        {
            actor.note(&text);
            continue;
        }
        if tally.tools > 0 && n % tally.tools == tally.tools - 1 {
            let id = actor.announce("Bash", &json!({ "command": "count" })).await;
            actor.started(&id, "Bash").await;
            actor.tool_result(&id, &text).await;
        } else {
            actor.say_whole(&text).await;
        }
        if !tally.gap.is_zero() {
            time::sleep(tally.gap).await;
        } else if n % 64 == 63 {
            // Nothing else here gives the sockets their turn.
            tokio::task::yield_now().await;
        }
    }
    actor.finish().await;
    Outcome::Over
}

/// The connection is cut, some pieces are said that nobody hears, and then all of it is forgotten, but for what is in the bridge's queue.
/// The run waits for the client.
async fn forget(stage: &Stage) {
    let before = stage.attendance().ever();
    match stage.host() {
        Host::Cloud(ledger) => ledger.forget(FORGOTTEN),
        Host::Bridge(..) => stage.deliver(Delivery::Drop, false).await,
    }
    stage.attendance().more_than(before, stage.reattach_hold()).await;
}

/// The connection is cut, and from then on nobody gets a stream any more: what the run still says is in its result, if anywhere.
async fn vanish(stage: &Stage) {
    if let Host::Cloud(ledger) = stage.host() {
        stage.deliver(Delivery::Drop, false).await;
        ledger.vanished.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_characters_of_every_length() {
        let text = tally_text("r1", 7);
        let lengths: Vec<usize> = text.chars().map(char::len_utf8).collect();
        assert!([1, 2, 3, 4].iter().all(|length| lengths.contains(length)), "{text}");
        assert!(crate::frames::text("s", &text).contains("«r1:7»"), "it stands in a frame as it is");
    }
}
