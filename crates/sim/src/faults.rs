//! Servers that misbehave, on demand.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;
use tokio::time;

use crate::{
    frames::{self, Success},
    prompt::{Cancelled, Fault, Plan},
    run::{self, Outcome},
    script::Actor,
    stage::{Host, Stage},
    transcript::End,
    websocket::Delivery,
};

/// How many frames get lost in a gap.
const LOST: u64 = 5;

/// How many frames follow a cut.
const AFTERWARDS: u64 = 10;

/// The size of the big frame's text.
const BIG: usize = 1024 * 1024;

/// The text of the n-th frame of a flood (0 is the first): 20 bytes.
pub fn flood_text(n: u64) -> String {
    format!("flood {n:>13} ")
}

/// The text of the n-th counted frame (0 is the first) of the faults `drop`, `gap` and `hang-after`.
pub fn counted_text(n: u64) -> String {
    format!("frame {n} ")
}

/// The whole text of a `fault bad-frames` run, each part once.
pub fn bad_frames_text() -> String {
    format!("Before. {TWICE}{}{SPLIT}After.", big())
}

const TWICE: &str = "Sent twice, meant once. ";

/// Characters of two, three and four bytes; the fragments cut each of them.
const SPLIT: &str = "größer 漢字 🎉 ";

fn big() -> String {
    "0123456789abcde ".repeat(BIG / 16)
}

pub(crate) async fn perform(stage: &Stage, plan: &Plan) -> Outcome {
    match plan {
        Plan::Flood(count) => flood(stage, *count).await,
        Plan::Refuse(message) => fail(stage, message).await,
        Plan::Fault(fault) => return misbehave(stage, fault).await,
        // The others are performed elsewhere.
        Plan::Play(_) | Plan::Script(_) | Plan::Scene(_) | Plan::Tally(_) => {}
    }
    Outcome::Over
}

async fn misbehave(stage: &Stage, fault: &Fault) -> Outcome {
    match fault {
        Fault::Silent => std::future::pending().await,
        Fault::Drop(after) => {
            count(stage, 0, *after).await;
            stage.cut().await;
            count(stage, *after, after.saturating_add(AFTERWARDS)).await;
            succeed(stage).await;
        }
        Fault::Gap(after) => {
            count(stage, 0, *after).await;
            let before = stage.attendance().ever();
            stage.deliver(Delivery::Drop, false).await;
            let lost = after.saturating_add(LOST);
            count(stage, *after, lost).await;
            stage.attendance().more_than(before, stage.reattach_hold()).await;
            count(stage, lost, lost.saturating_add(AFTERWARDS)).await;
            succeed(stage).await;
        }
        Fault::NoResult => no_result(stage).await,
        Fault::BadFrames => bad_frames(stage).await,
        Fault::Recoverable => {
            text(stage, "Working on it. ").await;
            let message = "parse tool input: unexpected end of JSON input";
            stage.send(frames::error(stage.session(), message, true)).await;
            stage.pause(100).await;
            text(stage, "It works after all.").await;
            succeed(stage).await;
        }
        Fault::Error => {
            text(stage, "This will not go well.").await;
            fail(stage, "provider stream: anthropic-engine: 529: Overloaded").await;
        }
        Fault::HangAfter(after) => {
            count(stage, 0, *after).await;
            std::future::pending::<()>().await;
        }
        Fault::Cancel(how) => cancelled(stage, *how).await,
        Fault::Cli(millis) => external(stage, *millis).await,
        Fault::Deaf { millis, form } => deaf(stage, *millis, *form).await,
        Fault::CompactFailed => {
            let before = stage.settings().context();
            text(stage, "There is much to remember. ").await;
            stage.send(frames::compact_started(stage.session(), "tokens_above_threshold", before)).await;
            stage.pause(200).await;
            stage.send(frames::error(stage.session(), "compact: provider stream: anthropic-engine: 529: Overloaded", true)).await;
            text(stage, "It goes on without a summary.").await;
            succeed(stage).await;
        }
        Fault::Redelivered => {
            text(stage, "Once. ").await;
            stage.send(frames::error(stage.session(), "biumindkit: internal panic: out of range", false)).await;
            stage.pause(200).await;
            text(stage, "Once. ").await;
            succeed(stage).await;
        }
        Fault::Busy(millis) => return busy(stage, *millis).await,
        Fault::Pause => {
            let mut actor = Actor::new(stage);
            actor.say("I'll start the deployment. ").await;
            actor.form(true).await;
            actor.finish().await;
        }
        Fault::LateResult => {
            text(stage, "Done, or so it seems.").await;
            succeed(stage).await;
            stage.pause(100).await;
            // §6.7: a device that goes away later fails every session it ever had.
            stage.send(frames::error(stage.session(), "device offline, please retry", false)).await;
        }
        // A request that was refused has no run.
        Fault::Http(_) => {}
    }
    Outcome::Over
}

async fn text(stage: &Stage, text: &str) {
    stage.pause(40).await;
    stage.spoke(1);
    stage.send(frames::text(stage.session(), text)).await;
}

async fn count(stage: &Stage, from: u64, to: u64) {
    for n in from..to {
        text(stage, &counted_text(n)).await;
    }
}

async fn succeed(stage: &Stage) {
    let success = Success { duration_ms: stage.duration_ms(), stop_reason: "end_turn", usage: stage.usage(), ..Success::default() };
    stage.end(frames::success(stage.session(), &success), End::Completed).await;
}

async fn fail(stage: &Stage, message: &str) {
    stage.end(frames::error(stage.session(), message, false), End::Failed).await;
}

async fn flood(stage: &Stage, count: u64) {
    for n in 0..count {
        stage.spoke(1);
        stage.send(frames::text(stage.session(), &flood_text(n))).await;
        if n % 64 == 63 {
            // Nothing else here gives the sockets their turn.
            tokio::task::yield_now().await;
        }
    }
    succeed(stage).await;
}

async fn no_result(stage: &Stage) {
    text(stage, "This answer has ").await;
    text(stage, "no end.").await;
    if let Host::Cloud(ledger) = stage.host() {
        ledger.set_state(crate::ledger::SessionState::Failed);
        stage.deliver(Delivery::Close(1000, ""), false).await;
    }
}

/// A command that no interrupt reaches (§6.8): the cancel counts once it has ended.
async fn busy(stage: &Stage, millis: u64) -> Outcome {
    let mut actor = Actor::new(stage);
    actor.say("This takes a while. ").await;
    let id = actor.announce("Bash", &json!({ "command": "sleep" })).await;
    actor.started(&id, "Bash").await;
    time::sleep(Duration::from_millis(millis)).await;
    actor.tool_result(&id, "[sandbox=off exit=0]\nstdout:\n").await;
    if stage.cancel().is_cancelled() {
        return Outcome::Interrupted;
    }
    actor.say("Done.").await;
    actor.finish().await;
    Outcome::Over
}

/// Works until somebody cancels, and then ends as it was told to (§6.8, §4.5).
async fn cancelled(stage: &Stage, how: Cancelled) {
    text(stage, "Working until somebody says stop. ").await;
    stage.cancel().cancelled().await;
    match how {
        Cancelled::Clean => run::cleanly(stage).await,
        Cancelled::Silent => std::future::pending().await,
        Cancelled::NoResult => {}
        Cancelled::Error => fail(stage, "provider stream: anthropic-engine: context canceled").await,
        Cancelled::Late(millis) => {
            time::sleep(Duration::from_millis(millis)).await;
            run::cleanly(stage).await;
        }
        Cancelled::Success => {
            text(stage, "It was done already.").await;
            succeed(stage).await;
        }
    }
}

/// An external agent speaks under its own session id, thinks without marks, and hears nothing (§6.11).
async fn external(stage: &Stage, millis: u64) {
    let session = format!("cli-{}", frames::frame_id());
    let say = async |words: &str| stage.send(frames::text(&session, words)).await;
    say("First I think about it. ").await;
    say("$ sleep\n").await;
    stage.send(frames::tool_progress(&session, "item_1", "command_execution")).await;
    time::sleep(Duration::from_millis(millis)).await;
    stage.send(frames::tool_use_summary(&session, "item_1", "done\n")).await;
    say("That was all.").await;
    stage.end(frames::external_success(&session, stage.duration_ms()), End::Completed).await;
}

/// Asks, and then fetches nothing for a while: what is older than the broker keeps it is gone when the reader is back (§3.4). The
/// ask's own time begins only then, so that a second answer finds it open.
async fn deaf(stage: &Stage, millis: u64, form: bool) {
    let mut actor = Actor::new(stage);
    actor.say("I have to ask. ").await;
    stage.inbox().sleep();
    let asked = if form { actor.ask_form().await } else { actor.ask_command(json!({ "command": "cargo test --quiet" })).await };
    time::sleep(Duration::from_millis(millis)).await;
    stage.wake();
    actor.settle(asked).await;
    actor.finish().await;
}

async fn bad_frames(stage: &Stage) {
    let session = stage.session();
    text(stage, "Before. ").await;
    for bad in [
        r#"{"type":"streamlined_text","text":"#,
        "null",
        "",
        r#"[{"type":"streamlined_text","text":"in an array"}]"#,
        r#""a string""#,
        r#"{"text":"no type"}"#,
        r#"{"type":42}"#,
    ] {
        stage.send(bad).await;
    }
    for (r#type, subtype) in [("weather_report", None), ("system", Some("moon_phase"))] {
        let mut frame = json!({ "type": r#type, "uuid": frames::frame_id(), "session_id": session, "phase": [1.0, null] });
        if let Some(subtype) = subtype {
            frame["subtype"] = json!(subtype);
        }
        stage.send(frame.to_string()).await;
    }
    let twice = frames::text(session, TWICE);
    stage.send(twice.clone()).await;
    stage.send(twice).await;
    stage.send(frames::text(session, &big())).await;
    stage.deliver(Delivery::Fragments(fragments(&frames::text(session, SPLIT))), true).await;
    text(stage, "After.").await;
    succeed(stage).await;
}

/// The bytes of a message, cut after the first byte of every character that has more than one.
fn fragments(message: &str) -> Arc<[Bytes]> {
    let whole = Bytes::copy_from_slice(message.as_bytes());
    let cuts = message.char_indices().filter(|(_, c)| c.len_utf8() > 1).map(|(at, _)| at + 1);
    let mut parts = Vec::new();
    let mut from = 0;
    for cut in cuts {
        parts.push(whole.slice(from..cut));
        from = cut;
    }
    parts.push(whole.slice(from..));
    parts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_cut_inside_characters_and_whole_together() {
        let message = frames::text("s", SPLIT);
        let parts = fragments(&message);
        assert_eq!(parts.len(), 6);
        assert!(parts.iter().take(5).all(|part| std::str::from_utf8(part).is_err()));
        assert_eq!(parts.concat(), message.as_bytes());
    }

    #[test]
    fn texts_have_the_promised_sizes() {
        assert_eq!(flood_text(0).len(), 20);
        assert_eq!(flood_text(u64::from(u32::MAX)).len(), 20);
        assert_eq!(big().len(), BIG);
    }
}
