//! What is said about the session rather than in it: compaction, state, files, tasks, notices.

use interline_model::{AskId, CompactionPhase, Event, NoticeLevel, TaskPhase, Text, What};

use super::Run;
use super::lanes::ROOT;
use super::tools::Stage;
use crate::frame::{ApiRetry, AuthStatus, CompactBoundary, FilesPersisted, HookResponse, RateLimitEvent};
use crate::object::Object;
use crate::string;

impl Run {
    /// Compaction begins. It closes the root agent's turn (decision 10), unless a call in it is open.
    pub(super) fn compact_started(&mut self, reason: Option<Text>, tokens_before: Option<u64>, events: &mut Vec<Event>) {
        self.lanes.get(ROOT).speaker.close(events);
        let reason = reason.unwrap_or_default();
        events.push(Event::root(What::Compaction(CompactionPhase::Started { reason, tokens_before })));
    }

    /// The boundary stands for both moments, where the others are not sent.
    pub(super) fn compact_boundary(&mut self, frame: &CompactBoundary<'_>, events: &mut Vec<Event>) {
        let metadata = frame.compact_metadata();
        let metadata = metadata.as_ref();
        let tokens_before = metadata.and_then(|metadata| metadata.u64("pre_tokens"));
        let tokens_after = metadata.and_then(|metadata| metadata.u64("post_tokens"));
        self.compact_started(metadata.and_then(|metadata| metadata.str("trigger")), tokens_before, events);
        events.push(Event::root(What::Compaction(CompactionPhase::Finished { tokens_before, tokens_after })));
    }

    /// A background task, in the lane of the call that started it.
    pub(super) fn task(
        &mut self,
        task: Option<Text>,
        starter: Option<Text>,
        phase: TaskPhase,
        summary: Option<Text>,
        events: &mut Vec<Event>,
    ) {
        let Some(task) = task else { return };
        let starter = starter.filter(|starter| !starter.is_empty()).or_else(|| self.tasks.get(&task).cloned());
        if let Some(starter) = &starter {
            self.tasks.entry(task.clone()).or_insert_with(|| starter.clone());
        }
        let tool = starter.and_then(|starter| self.tools.get(self.tools.find(&starter)?)).filter(|tool| tool.stage != Stage::Waiting);
        let lane = tool.map_or(ROOT, |tool| tool.lane);
        let call = tool.map(|tool| tool.call.clone());
        let summary = summary.unwrap_or_default();
        events.push(self.lanes.get(lane).speaker.event(What::Task { task, call, phase, summary }));
    }
}

/// An answer of which nothing shows that the agent took it.
pub(super) fn unconfirmed(ask: &AskId) -> What {
    let text = Text::from(format!("nothing shows yet that the agent took the answer to {ask}; it can be given again"));
    What::Notice { level: NoticeLevel::Warning, code: Text::from_static("answer_unconfirmed"), text }
}

/// How a task ended. No page lists the words of `status`; what is not plainly a failure is an end like any other.
pub(super) fn task_end(status: Option<Text>) -> TaskPhase {
    match status.as_deref() {
        Some("failed" | "error" | "killed" | "stopped" | "cancelled" | "canceled" | "timeout") => TaskPhase::Failed,
        _ => TaskPhase::Finished,
    }
}

/// The model or the permission mode is said again; nothing if neither is.
pub(super) fn model_and_mode(model: Option<Text>, mode: Option<Text>) -> Option<What> {
    (model.is_some() || mode.is_some()).then_some(What::SessionChanged { model, title: None, mode, state: None })
}

/// The session is in this state now.
pub(super) fn state(state: Text) -> What {
    What::SessionChanged { model: None, title: None, mode: None, state: Some(state) }
}

/// The session is called this now; nothing if the title is empty.
pub(super) fn title(title: Option<Text>) -> Option<What> {
    let title = title.filter(|title| !title.trim().is_empty());
    title.is_some().then_some(What::SessionChanged { model: None, title, mode: None, state: None })
}

/// The files, however each is written.
pub(super) fn files(frame: &FilesPersisted<'_>) -> What {
    let text = frame.object().frame();
    let path = |raw| {
        string::text(text, raw).or_else(|| {
            let file = Object::inside(text, raw)?;
            file.str("path").or_else(|| file.str("file_path")).or_else(|| file.str("filename"))
        })
    };
    What::FilesChanged { paths: frame.files().into_iter().filter_map(path).collect() }
}

fn notice(level: NoticeLevel, code: &'static str, text: impl Into<Text>) -> What {
    What::Notice { level, code: Text::from_static(code), text: text.into() }
}

/// A call of the model is tried again.
pub(super) fn api_retry(frame: &ApiRetry<'_>) -> What {
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let error = frame.error().filter(|error| !error.is_empty()).unwrap_or_else(|| Text::from_static("unknown error"));
    let text =
        format!("{error}; attempt {} of {} in {} ms", number(frame.attempt()), number(frame.max_retries()), number(frame.retry_delay_ms()));
    notice(NoticeLevel::Warning, "api_retry", text)
}

/// The provider's limit comes near or is reached. Only `allowed` is no reason to worry.
pub(super) fn rate_limit(frame: &RateLimitEvent<'_>) -> What {
    let status = frame.rate_limit_info().and_then(|info| info.str("status")).unwrap_or_else(|| Text::from_static("unknown"));
    let level = if &*status == "allowed" { NoticeLevel::Info } else { NoticeLevel::Warning };
    notice(level, "rate_limit", format!("rate limit: {status}"))
}

/// Signing in failed; nothing if it did not.
pub(super) fn auth_status(frame: &AuthStatus<'_>) -> Option<What> {
    frame.error().filter(|error| !error.is_empty()).map(|error| notice(NoticeLevel::Error, "auth_status", error))
}

/// A hook failed; nothing if it did not.
pub(super) fn hook_response(frame: &HookResponse<'_>) -> Option<What> {
    if frame.outcome().as_deref() != Some("error") {
        return None;
    }
    let name = frame.hook_name().or_else(|| frame.hook_id()).unwrap_or_default();
    let said = [frame.stderr(), frame.output(), frame.stdout()].into_iter().flatten().find(|said| !said.trim().is_empty());
    let said = said.unwrap_or_else(|| Text::from_static("no output"));
    Some(notice(NoticeLevel::Warning, "hook_error", format!("hook {name} failed: {}", said.trim())))
}

/// A recoverable error, after which the run may go on.
pub(super) fn recoverable_error(message: Text) -> What {
    notice(NoticeLevel::Error, "recoverable_error", message)
}
