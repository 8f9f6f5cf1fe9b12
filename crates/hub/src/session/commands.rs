//! What clients want done: answers, stops, and whatever else the upstream can do for a session.

use std::time::Duration;

use interline_model::{Actor, Answer, AskId, AskOutcome, Body, Fact, ForcedEnd, Json, RunId, Text};
use tokio::sync::oneshot;

use super::info::RunStatus;
use super::{Session, State, now};
use crate::RunCredential;
use crate::action::{Action, ActionError, Control, Wire};
use crate::upstream::Command;

/// Why an answer was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// There is no such ask.
    #[error("no ask has this id")]
    NotFound,
    /// It was settled before.
    #[error("the ask was already settled")]
    Settled {
        /// How.
        outcome: AskOutcome,
        /// By whom; `None` if by nobody (expired, or void with its run).
        by: Option<Actor>,
    },
    /// A policy refuses what the tool was to run with instead.
    #[error("the policy {rule} does not allow this input")]
    Forbidden {
        /// The rule.
        rule: Text,
    },
}

/// What a request to stop met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The run was told to stop.
    Stopping(RunId),
    /// The run had ended before.
    Ended(RunId, RunStatus),
    /// No run goes on.
    Idle,
}

impl Session {
    /// Answers an ask: the first answer wins and goes to the upstream.
    ///
    /// # Errors
    /// When there is no such ask, or it was settled before, or a policy refuses the input that it is answered with.
    pub fn answer(&self, ask: &AskId, answer: Answer, by: Actor) -> Result<AskOutcome, AnswerError> {
        let mut state = self.state();
        let active = state.active().map(|run| run.info.run);
        if let (Some(asked), Some(input)) = (state.asks.get(ask), answer.input())
            && let Some(rule) = self.serving.conduct().policies.refuses(&asked, &input)
        {
            return Err(AnswerError::Forbidden { rule });
        }
        let taken = state.asks.answer(ask, &answer, &by, now().max(self.birth.created_at), active)?;
        if let Some(run) = state.runs.iter_mut().find(|entry| entry.info.run == taken.run) {
            run.frame_at = now();
            // A closed channel means that the link is winding down; its run ends and voids the ask.
            let _ = run.commands.send(Command::Answer { ask: taken.ask, answer: answer.clone() });
        }
        self.append(&mut state, Body::Fact(Fact::AskAnswered { ask: ask.clone(), answer, by }));
        self.alarm.notify_one();
        Ok(taken.outcome)
    }

    /// Asks the upstream to stop a run, or whatever goes on; runs that wait for their turn are given up. Does nothing more if it was asked
    /// before.
    pub fn stop(&self, run: Option<RunId>, by: Actor) -> Stopped {
        let given_up = self.queue.give_up(run, &by);
        match (self.stop_begun(run, by), given_up) {
            (Stopped::Idle, Some(run)) => Stopped::Stopping(run),
            (stopped, _) => stopped,
        }
    }

    /// Stops the run that goes on for one that waits.
    pub(crate) fn make_room(&self, by: Actor) {
        self.stop_begun(None, by);
    }

    fn stop_begun(&self, run: Option<RunId>, by: Actor) -> Stopped {
        let mut state = self.state();
        let active = state.active().map(|run| run.info.run);
        let run = match (run, active) {
            (Some(wanted), active) if Some(wanted) != active => {
                let found = state.runs.iter().find(|entry| entry.info.run == wanted);
                return found.map_or(Stopped::Idle, |entry| Stopped::Ended(wanted, entry.info.status));
            }
            (_, Some(active)) => active,
            (_, None) => return Stopped::Idle,
        };
        self.stop_active(&mut state, by);
        Stopped::Stopping(run)
    }

    pub(super) fn stop_active(&self, state: &mut State, by: Actor) {
        if let Some(entry) = state.runs.last_mut()
            && entry.stop_at.is_none()
        {
            entry.stop_at = Some(now());
            let _ = entry.commands.send(Command::Stop);
            let run = entry.info.run;
            state.asks.stopping(run);
            self.append(state, Body::Fact(Fact::StopRequested { by }));
            self.alarm.notify_one();
        }
    }

    /// Does something else for the session.
    ///
    /// # Errors
    /// When the upstream cannot do it, or did not, or it is not the time for it.
    pub async fn act(&self, action: Action, credential: RunCredential) -> Result<Json, ActionError> {
        let active = self.active_run();
        if self.serving.upstream().wire(&action).is_some() {
            return self.say(active.ok_or(ActionError::Idle)?, &action).await;
        }
        if active.is_some() && matches!(action, Action::Compact) {
            return Err(ActionError::Busy);
        }
        let compacts = matches!(action, Action::Compact);
        let reply = self.link().act(action, credential).await?;
        if compacts {
            self.append(&mut self.state(), Body::Fact(Fact::Compacted));
        }
        Ok(reply)
    }

    /// Whether a client may have this done: not what would take decisions about tools out of people's and policies' hands.
    fn permit(&self, action: &Action) -> Result<(), ActionError> {
        let Action::SetPermissionMode(mode) = action else { return Ok(()) };
        match &**mode {
            "default" | "plan" | "dontAsk" => Ok(()),
            "acceptEdits" if self.serving.conduct().policies.is_empty() => Ok(()),
            "acceptEdits" => {
                Err(ActionError::Forbidden("policies decide about tools here, and in this mode some would not be asked about"))
            }
            "bypassPermissions" => Err(ActionError::Forbidden("no client may have permissions passed over")),
            _ => Err(ActionError::Forbidden("the permission mode is default, plan, acceptEdits or dontAsk")),
        }
    }

    /// Says an action on the connection of `run`, and waits for the reply.
    pub(crate) async fn say(&self, run: RunId, action: &Action) -> Result<Json, ActionError> {
        self.permit(action)?;
        let unsupported = || ActionError::Unsupported(format!("this agent server cannot {}", action.what()));
        let wire = self.serving.upstream().wire(action).ok_or_else(unsupported)?;
        let send = |command| {
            let state = self.state();
            let sent = state.active().is_some_and(|active| active.info.run == run && active.commands.send(command).is_ok());
            if sent { Ok(()) } else { Err(ActionError::Idle) }
        };
        let (reply, answer) = oneshot::channel();
        match wire {
            Wire::Message(text) => return send(Command::Frame(text)).map(|()| Json::empty_object()),
            Wire::Request(request) => send(Command::Control(Control { request, reply }))?,
        }
        let limit = Duration::from_millis(self.timers.run.control_ms);
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ActionError::Unreachable("the run ended before the agent server answered".to_owned())),
            Err(_) => Err(ActionError::Unanswered(limit)),
        }
    }

    /// Gives the session a title.
    pub fn set_title(&self, title: Text) {
        let mut state = self.state();
        state.title = Some(title.clone());
        self.append(&mut state, Body::Fact(Fact::Titled { title }));
    }

    /// The session is deleted: the run that goes on ends, and none begins any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if state.active().is_some() {
            self.append(&mut state, Body::Fact(Fact::EndForced(ForcedEnd::StopGraceOver)));
        }
    }

    /// Whether it is deleted or forgotten.
    pub(crate) fn is_closed(&self) -> bool {
        self.locked().is_closed
    }

    /// The session is forgotten, if nothing goes on in it and nothing waits. Says whether it is.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.locked();
        if state.active().is_some() || self.waiting() > 0 {
            return false;
        }
        state.is_closed = true;
        true
    }

    /// Ends the run that goes on, if one does: we are shutting down.
    pub(crate) fn end_now(&self, end: ForcedEnd) {
        let mut state = self.state();
        if state.active().is_some() {
            self.append(&mut state, Body::Fact(Fact::EndForced(end)));
        }
    }
}
