//! The native reader: what the frames of one run mean.
//!
//! ```text
//! record ─▶ parse ─▶ repeat? ─▶ lane ─▶ text   once, thinking told apart   messages, think
//!                                    ├▶ tools  announced once, ended once  tools, stream
//!                                    ├▶ asks   raised, settled             asks
//!                                    ├▶ end    exactly one                 ends
//!                                    └▶ rest   session, tasks, notices     session
//! ```
//!
//! Whatever comes, in whatever order: what goes out begins with one [`What::RunStarted`], ends with at most one [`What::RunEnded`] after
//! which nothing comes, and in between keeps the order that [`What`] promises.

use std::collections::HashMap;

use interline_model::{AskOutcome, Body, CompactionPhase, Event, Fact, Reader, Record, RunAccepted, RunEnd, TaskPhase, Text, What};

use crate::frame::{Control, Data, Frame, Lifecycle, Request};
use crate::object::Object;
use crate::string::{pieces, text};

mod asks;
mod ends;
mod lanes;
mod messages;
mod plan;
mod repeats;
mod session;
mod stream;
mod tools;
mod turns;

use asks::Asks;
pub use asks::ask_in;
use lanes::{LaneId, Lanes, ROOT};
use repeats::Repeats;
use tools::Tools;

/// What a reader has to know of its upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The upstream's sessions have the mode `chat`: any error ends the run there (decision 5).
    pub chat: bool,
}

/// Reads one run.
#[derive(Debug)]
pub struct NativeReader {
    settings: Settings,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The run has not been accepted yet.
    Before,
    /// It runs.
    Running(Box<Run>),
    /// It has ended. Late frames are kept in the log and mean nothing.
    Over,
}

/// A run that has not ended.
#[derive(Debug)]
struct Run {
    settings: Settings,
    repeats: Repeats,
    lanes: Lanes,
    tools: Tools,
    asks: Asks,
    /// The calls that started background tasks, by task.
    tasks: HashMap<Text, Text>,
    compacting: bool,
    stop_requested: bool,
    /// The last recoverable error, in case nothing follows it.
    kept: Option<ends::Failure>,
}

impl NativeReader {
    /// A reader for a new run.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, state: State::Before }
    }

    /// Whether a part of what was said in this lane waits for more, because it may become a mark or a character.
    pub(crate) fn holds_text(&self, lane: &interline_model::Lane) -> bool {
        match &self.state {
            State::Running(run) => run.lanes.find(lane).is_some_and(lanes::LaneState::holds_text),
            State::Before | State::Over => false,
        }
    }
}

impl Reader for NativeReader {
    fn read(&mut self, record: &Record, events: &mut Vec<Event>) {
        let end = match (&mut self.state, &record.body) {
            (State::Before, Body::Fact(Fact::RunAccepted(accepted))) => {
                let RunAccepted { run, session, model, .. } = &**accepted;
                events.push(Event::root(What::RunStarted { run: *run, session: session.clone(), model: model.clone() }));
                self.state = State::Running(Box::new(Run::new(self.settings)));
                return;
            }
            (State::Running(run), Body::Frame(text)) => run.frame(text, events),
            (State::Running(run), Body::Fact(fact)) => run.fact(fact, events),
            (State::Before | State::Over, _) => return,
        };
        if let Some(end) = end {
            if let State::Running(run) = &mut self.state {
                run.wind_up(events);
            }
            events.push(Event::root(What::RunEnded(Box::new(end))));
            self.state = State::Over;
        }
    }
}

impl Run {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            repeats: Repeats::default(),
            lanes: Lanes::new(),
            tools: Tools::default(),
            asks: Asks::default(),
            tasks: HashMap::new(),
            compacting: false,
            stop_requested: false,
            kept: None,
        }
    }

    fn fact(&mut self, fact: &Fact, events: &mut Vec<Event>) -> Option<RunEnd> {
        match fact {
            Fact::AskAnswered { ask, answer, .. } => self.settle(|open| open.id == *ask, answer.outcome(), events),
            Fact::AskExpired { ask } => self.settle(|open| open.id == *ask, AskOutcome::Expired, events),
            Fact::AskDecided { ask, .. } => self.decided(ask),
            Fact::AskUnconfirmed { ask } => events.push(Event::root(session::unconfirmed(ask))),
            Fact::Noticed { level, code, text } => {
                events.push(Event::root(What::Notice { level: *level, code: code.clone(), text: text.clone() }));
            }
            Fact::StopRequested { .. } => self.stop_requested = true,
            Fact::EndForced(end) => return Some(ends::forced(end, self.stop_requested, self.kept.take())),
            Fact::Titled { title } => events.extend(session::title(Some(title.clone())).map(Event::root)),
            Fact::RunAccepted(_) | Fact::Compacted | Fact::Attached { .. } | Fact::Shortened { .. } | Fact::LinkLost | Fact::LinkBack => {}
        }
        None
    }

    fn frame(&mut self, text: &Text, events: &mut Vec<Event>) -> Option<RunEnd> {
        let Ok(frame) = Frame::parse(text) else {
            events.push(Event::root(What::Other { name: Text::from_static("malformed") }));
            return None;
        };
        if frame.key().is_some_and(|key| self.repeats.is_repeat(&key)) {
            return None;
        }
        match &frame {
            Frame::Data(data) => return self.data(&frame, data, events),
            Frame::Control(control) => self.control(&frame, control, events),
            Frame::Lifecycle(lifecycle) => self.lifecycle(&frame, lifecycle, events),
            Frame::Code(_) | Frame::Unknown(_) => other(&frame, events),
        }
        None
    }

    fn data(&mut self, frame: &Frame<'_>, data: &Data<'_>, events: &mut Vec<Event>) -> Option<RunEnd> {
        let object = frame.object();
        let what = match data {
            Data::StreamlinedText(_) => {
                if let Some(delta) = object.raw("text") {
                    let lane = self.lane_of(object);
                    self.lanes.get(lane).streamlined(pieces(object.frame(), delta), events);
                }
                return None;
            }
            Data::StreamEvent(event) => {
                let lane = self.lane_of(object);
                self.stream_event(lane, event, events);
                return None;
            }
            Data::Assistant(assistant) => {
                let lane = self.lane_of(object);
                self.assistant(lane, assistant, events);
                return None;
            }
            Data::User(_) | Data::UserReplay(_) => {
                let lane = self.lane_of(object);
                if self.tool_results(lane, object.object("message").as_ref(), events) {
                    return None;
                }
                None
            }
            Data::ToolProgress(progress) => {
                let id = progress.tool_use_id().filter(|id| !id.is_empty())?;
                let lane = self.lane_of(object);
                let tool = self.know(id, lane, progress.tool_name());
                self.mention(tool, None, events);
                return None;
            }
            Data::ToolUseSummary(summary) => {
                let result = summary.summary().unwrap_or_default();
                let is_error = tools::says_error(&result);
                let lane = self.lane_of(object);
                for id in object.strs("preceding_tool_use_ids").filter(|id| !id.is_empty()) {
                    let tool = self.know(id, lane, None);
                    self.finish(tool, result.clone(), is_error, false, events);
                }
                return None;
            }
            Data::StreamlinedToolUseSummary(summary) => {
                // It names no call, so it can only be meant if there is just one.
                if let ([tool], Some(result)) = (&*self.lanes.get(ROOT).open_tools, summary.tool_summary()) {
                    let is_error = tools::says_error(&result);
                    let tool = *tool;
                    self.finish(tool, result, is_error, false, events);
                }
                return None;
            }
            Data::ResultSuccess(_) | Data::ResultError(_) => match ends::read(object, self.settings.chat, self.stop_requested) {
                ends::Result::End(end) => return Some(end),
                ends::Result::Recoverable(failure) => {
                    let message = failure.message.clone();
                    self.kept = Some(failure);
                    Some(session::recoverable_error(message))
                }
            },
            Data::CompactBoundary(boundary) => {
                if !self.compacting {
                    self.compact_boundary(boundary, events);
                    return None;
                }
                None
            }
            Data::TaskStarted(task) => {
                self.task(task.task_id(), task.tool_use_id(), TaskPhase::Started, task.description(), events);
                return None;
            }
            Data::TaskProgress(task) => {
                let summary = task.summary().or_else(|| task.last_tool_name());
                self.task(task.task_id(), object.str("tool_use_id"), TaskPhase::Progress, summary, events);
                return None;
            }
            Data::TaskNotification(task) => {
                let phase = session::task_end(task.status());
                self.task(task.task_id(), task.tool_use_id(), phase, task.summary(), events);
                return None;
            }
            Data::ElicitationComplete(complete) => {
                let id = complete.elicitation_id();
                self.settle(|ask| id.is_some() && ask.elicitation == id, AskOutcome::Void, events);
                None
            }
            Data::FormAnswer(answer) => {
                let (request, elicitation) = (answer.request_id(), answer.elicitation_id());
                let meant = |id: &str, form: &Option<Text>| request.as_deref() == Some(id) || elicitation.is_some() && *form == elicitation;
                self.settle(|ask| meant(ask.id.as_str(), &ask.elicitation), AskOutcome::Void, events);
                None
            }
            Data::SystemInit(init) => session::model_and_mode(init.model(), init.permission_mode()),
            Data::SystemStatus(status) => session::model_and_mode(None, status.permission_mode()),
            Data::SessionStateChanged(changed) => changed.state().map(session::state),
            Data::FilesPersisted(files) => Some(session::files(files)),
            Data::ApiRetry(retry) => Some(session::api_retry(retry)),
            Data::RateLimitEvent(limit) => Some(session::rate_limit(limit)),
            Data::AuthStatus(status) => session::auth_status(status),
            Data::HookResponse(response) => session::hook_response(response),
            Data::PromptSuggestion(suggestion) => {
                suggestion.suggestion().filter(|text| !text.is_empty()).map(|text| What::Suggestion { text })
            }
            Data::PostTurnSummary(summary) => session::title(summary.title()),
            Data::LocalCommandOutput(_) | Data::HookStarted(_) | Data::HookProgress(_) => None,
        };
        match what {
            Some(what) => events.push(Event::root(what)),
            None => other(frame, events),
        }
        None
    }

    fn control(&mut self, frame: &Frame<'_>, control: &Control<'_>, events: &mut Vec<Event>) {
        match control {
            Control::Request(request) => match (request.request(), request.request_id().filter(|id| !id.is_empty())) {
                (Some(Request::CanUseTool(tool)), Some(id)) => self.can_use_tool(id, tool, events),
                (Some(Request::Elicitation(form)), Some(id)) => self.elicitation(id, form, request.object().json("request"), events),
                _ => other(frame, events),
            },
            Control::Cancel(cancel) => {
                let id = cancel.request_id();
                self.settle(|ask| Some(ask.id.as_str()) == id.as_deref(), AskOutcome::Void, events);
                other(frame, events);
            }
            Control::Response(_) => other(frame, events),
        }
    }

    fn lifecycle(&mut self, frame: &Frame<'_>, lifecycle: &Lifecycle<'_>, events: &mut Vec<Event>) {
        match lifecycle {
            Lifecycle::CompactStarted(started) => {
                self.compacting = true;
                self.compact_started(started.reason(), started.tokens_before(), events);
            }
            Lifecycle::CompactFinished(finished) => {
                self.compacting = false;
                let (tokens_before, tokens_after) = (finished.tokens_before(), finished.tokens_after());
                events.push(Event::root(What::Compaction(CompactionPhase::Finished { tokens_before, tokens_after })));
            }
            Lifecycle::SessionPaused(_) => events.push(Event::root(session::state(Text::from_static("paused")))),
            Lifecycle::SessionResumed(_) => events.push(Event::root(session::state(Text::from_static("resumed")))),
            Lifecycle::KeepAlive(_)
            | Lifecycle::UpdateEnvironmentVariables(_)
            | Lifecycle::SessionDesynced(_)
            | Lifecycle::SessionPrimaryPromoted(_) => other(frame, events),
        }
    }

    /// The lane of a frame: that of the sub-agent which `parent_tool_use_id` started, else the root's.
    fn lane_of(&mut self, object: &Object<'_>) -> LaneId {
        if !object.truthy("parent_tool_use_id") {
            return ROOT;
        }
        let Some(parent) = object.raw("parent_tool_use_id") else { return ROOT };
        self.lanes.of_agent(text(object.frame(), parent).unwrap_or_else(|| Text::from(parent.get())))
    }

    /// Leaves nothing open, sub-agents first (design §4, 7).
    fn wind_up(&mut self, events: &mut Vec<Event>) {
        for lane in self.lanes.inside_out() {
            self.lanes.get(lane).flush(events);
            self.all_blocks_stopped(lane, events);
            for tool in std::mem::take(&mut self.lanes.get(lane).open_tools) {
                self.abort(tool, events);
            }
            if self.lanes.get(lane).has_asked {
                self.settle(|ask| ask.lane == lane, AskOutcome::Void, events);
            }
            self.lanes.get(lane).speaker.close(events);
        }
    }
}

/// A frame without a meaning of its own.
fn other(frame: &Frame<'_>, events: &mut Vec<Event>) {
    events.push(Event::root(What::Other { name: frame.name() }));
}

/// The outcome that a `result` frame ends its run with, if it does.
#[cfg(test)]
pub(crate) fn outcome_of(result: &Object<'_>) -> Option<interline_model::Outcome> {
    match ends::read(result, false, false) {
        ends::Result::End(end) => Some(end.outcome),
        ends::Result::Recoverable(_) => None,
    }
}

#[cfg(test)]
mod order;
#[cfg(test)]
mod tests;
