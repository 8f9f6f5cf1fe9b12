//! Plays a recorded run: every frame verbatim, waiting for the client wherever the real server did.

use std::time::Duration;

use serde_json::Value;
use tokio::time;

use crate::{
    frames,
    prompt::Play,
    run::Outcome,
    stage::{Host, Stage},
    transcript::{End, Kind, Step, ends_by_cancel},
};

/// The pause before a frame where the play gives none, in milliseconds; recordings keep no times.
const PAUSES: [u64; 4] = [40, 120, 60, 80];

pub(crate) struct Recording {
    steps: Vec<Step>,
    auto: bool,
    gap: Option<Duration>,
}

impl Recording {
    /// True if the recording itself has the client's cancel in it, so that it must not be broken off.
    pub(crate) fn ends_by_cancel(&self) -> bool {
        ends_by_cancel(&self.steps)
    }
}

/// Looks up what a play asks for; the error is a sentence for the client.
pub(crate) async fn find(stage: &Stage, play: &Play) -> Result<Recording, String> {
    let transcript = stage.state.library.load(&play.name).await?;
    let run = match (play.run, &stage.conversation) {
        (Some(run), _) => run.saturating_sub(1),
        (None, Some(conversation)) => stage.state.plays.next(conversation, &play.name),
        (None, None) => 0,
    };
    Ok(Recording { steps: transcript.run(run), auto: play.auto, gap: play.gap })
}

pub(crate) async fn play(stage: &Stage, recording: Result<Recording, String>) -> Outcome {
    let recording = match recording {
        Ok(recording) => recording,
        Err(message) => {
            stage.end(frames::error(stage.session(), &message, false), End::Failed).await;
            return Outcome::Over;
        }
    };
    let waits_for_cancel = recording.ends_by_cancel();
    let count = recording.steps.len();
    for (i, step) in recording.steps.into_iter().enumerate() {
        let Step::Out { frame, kind } = step else {
            if !recording.auto {
                stage.cancel().cancelled().await;
            }
            continue;
        };
        match recording.gap {
            Some(gap) => time::sleep(gap).await,
            None => stage.pause(PAUSES[i % PAUSES.len()]).await,
        }
        note_tools(stage, &frame);
        match kind {
            Kind::Data => stage.send(frame).await,
            Kind::Control => stage.send_control(frame).await,
            Kind::KeepAlive => match stage.host() {
                // The file's own sentinel is the turn's; a second one would be one too many.
                Host::Bridge(..) if i + 1 == count => stage.set_sentinel(frame.into()),
                _ => stage.send_control(frame).await,
            },
            Kind::Ask { .. } if recording.auto => stage.send_control(frame).await,
            Kind::Ask { request_id, form } => {
                let answer = stage.ask(&request_id, &frame, form);
                if waits_for_cancel {
                    tokio::select! {
                        _ = answer => {}
                        () = stage.cancel().cancelled() => {}
                    }
                } else {
                    // Whatever the client says, the recording goes on as it was.
                    let _ = answer.await;
                }
            }
            Kind::End(end) => {
                if end == End::Interrupted && !recording.auto {
                    stage.cancel().cancelled().await;
                }
                stage.end(frame, end).await;
            }
        }
    }
    Outcome::Over
}

/// Keeps track of the tools that are open, in case the client cancels.
fn note_tools(stage: &Stage, frame: &str) {
    let Ok(frame) = serde_json::from_str::<Value>(frame) else { return };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match frame["type"].as_str() {
        Some("tool_progress") => stage.announced(&text(&frame["tool_use_id"]), &text(&frame["tool_name"])),
        Some("control_request") if frame["request"]["subtype"] == "can_use_tool" => {
            stage.announced(&text(&frame["request"]["tool_use_id"]), &text(&frame["request"]["tool_name"]));
        }
        Some("tool_use_summary") => {
            for id in frame["preceding_tool_use_ids"].as_array().into_iter().flatten() {
                stage.tool_ended(&text(id));
            }
        }
        Some(kind @ ("assistant" | "user")) => {
            for block in frame["message"]["content"].as_array().into_iter().flatten() {
                match (kind, block["type"].as_str()) {
                    ("assistant", Some("tool_use")) => stage.announced(&text(&block["id"]), &text(&block["name"])),
                    ("user", Some("tool_result")) => stage.tool_ended(&text(&block["tool_use_id"])),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
