//! A run from its beginning to its end: the pause before the first frame, the performance, and what a cancel leaves.

use std::time::Duration;

use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::{
    faults, frames,
    ledger::{Mode, SessionState},
    play,
    prompt::{Fault, Plan},
    scenes, script,
    stage::{Host, Stage},
    tally,
    transcript::End,
};

/// How a performance came to its end.
pub(crate) enum Outcome {
    /// It said all it had to say.
    Over,
    /// It was cut short, and the server still has to say so in its voice.
    Interrupted,
}

/// Performs a run, and ends it as its server does.
pub(crate) async fn perform(stage: Stage, plan: Plan) {
    let stop = stage.state.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = killed(&stage) => {}
        () = until_over(&stage, plan) => {}
    }
    match stage.host() {
        Host::Cloud(ledger) => ledger.asks.deny_all(),
        Host::Bridge(session, turn) => {
            turn.asks.deny_all();
            session.end(turn, stage.take_sentinel(), stage.usage());
        }
    }
}

async fn killed(stage: &Stage) {
    match stage.host() {
        Host::Bridge(_, turn) => turn.killed.cancelled().await,
        Host::Cloud(_) => std::future::pending().await,
    }
}

async fn until_over(stage: &Stage, plan: Plan) {
    // Some performances have to see the cancel themselves; from the others it takes the stage.
    let outcome = match &plan {
        Plan::Fault(Fault::Silent) => {
            std::future::pending::<()>().await;
            return;
        }
        Plan::Play(wanted) => {
            let recording = play::find(stage, wanted).await;
            let unbroken = recording.as_ref().is_ok_and(play::Recording::ends_by_cancel);
            let run = async {
                open(stage).await;
                play::play(stage, recording).await
            };
            if unbroken { run.await } else { interruptible(stage.cancel(), run).await }
        }
        Plan::Fault(Fault::Busy(_) | Fault::Cancel(_) | Fault::Cli(_)) => {
            open(stage).await;
            faults::perform(stage, &plan).await
        }
        _ => {
            let run = async {
                open(stage).await;
                match &plan {
                    Plan::Script(scenes) => script::perform(stage, *scenes).await,
                    Plan::Scene(scene) => scenes::perform(stage, *scene).await,
                    Plan::Tally(tally) => tally::perform(stage, tally).await,
                    plan => faults::perform(stage, plan).await,
                }
            };
            interruptible(stage.cancel(), run).await
        }
    };
    if matches!(outcome, Outcome::Interrupted) {
        interrupted(stage).await;
    }
}

async fn interruptible(cancel: &CancellationToken, run: impl Future<Output = Outcome>) -> Outcome {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Outcome::Interrupted,
        outcome = run => outcome,
    }
}

/// What happens before the first frame.
async fn open(stage: &Stage) {
    match stage.host() {
        Host::Cloud(ledger) => {
            if ledger.state() == SessionState::Pending {
                // The device comes back after a while.
                stage.pause(2000).await;
                ledger.set_state(SessionState::Active);
            }
            // §2.2: chat waits a second before it says anything.
            stage.pause(if ledger.mode == Mode::Chat { 1000 } else { 150 }).await;
        }
        Host::Bridge(..) => stage.pause(120).await,
    }
    let hold = stage.options().attach_hold();
    if !hold.is_zero() {
        stage.attendance().more_than(0, hold).await;
    }
}

/// What the servers say when a run was cancelled (§6.8, §4.5).
async fn interrupted(stage: &Stage) {
    match (stage.observed(), stage.mode()) {
        // Today's chat runner and bridge say nothing: the one falls silent, the other goes on to its sentinel.
        (true, Some(Mode::Chat) | None) => {}
        (true, Some(_)) => {
            time::sleep(Duration::from_millis(10)).await;
            interrupted_result(stage).await;
        }
        (false, _) => cleanly(stage).await,
    }
}

/// What the document says a cancel leaves: results for the tools that were open, then the end.
pub(crate) async fn cleanly(stage: &Stage) {
    for (id, name) in stage.take_open_tools() {
        let summary = format!("error in {name}: interrupted by user before tool execution");
        stage.send(frames::tool_use_summary(stage.session(), &id, &summary)).await;
    }
    interrupted_result(stage).await;
}

async fn interrupted_result(stage: &Stage) {
    let success = frames::Success {
        duration_ms: stage.duration_ms(),
        stop_reason: "interrupted",
        usage: stage.usage(),
        ..frames::Success::default()
    };
    stage.end(frames::success(stage.session(), &success), End::Interrupted).await;
}
