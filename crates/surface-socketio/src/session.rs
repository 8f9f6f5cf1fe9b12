//! The session as it stands: what REST lists, what a socket that comes late is shown first, and what waits for an answer.

use interline_model::{Ask, AskId, Json, Text};

use crate::beginning::chat_start;
use crate::mapping::{SocketEvent, SocketWriter};
#[cfg(feature = "io")]
use crate::object::Object;
use crate::object::{object, write_array, write_object};
use crate::pending::Asked;
#[cfg(feature = "io")]
use crate::projection::Mode;
use crate::projection::{Results, TurnStatus};
use crate::turns::turn_event;

/// A session's `status` (socketio.md §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// No run yet.
    Created,
    /// A run goes on.
    Running,
    /// A run waits for an answer.
    WaitingForInput,
    /// The latest run finished.
    Completed,
    /// The latest run failed.
    Failed,
    /// The latest run was stopped.
    Interrupted,
}

impl SessionStatus {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::WaitingForInput => "waiting_for_input",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// An ask that waits for an answer, as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingQuestion {
    /// The ask.
    pub ask: Ask,
    /// The call that shows it: what `askuser_answer.tool_call_id` names.
    pub tool_call_id: Text,
}

fn question_of(asked: &Asked) -> PendingQuestion {
    PendingQuestion { ask: asked.ask.clone(), tool_call_id: asked.shown.clone() }
}

impl SocketWriter {
    /// All turns as TurnProjections, oldest first: the body of `GET /api/sessions/{id}/messages`.
    #[must_use]
    pub fn messages_json(&self) -> Json {
        let mut out = String::new();
        write_array(&mut out, &self.turns, |out, turn| write_object(out, |object| turn.write(object, Results::Whole)));
        Json::written(out)
    }

    /// The same, with further members in each turn, written by `more`, which is told the `turn_id`.
    #[cfg(feature = "io")]
    pub(crate) fn messages_with(&self, mut more: impl FnMut(&mut Object<'_>, &str)) -> Json {
        let mut out = String::new();
        write_array(&mut out, &self.turns, |out, turn| {
            write_object(out, |object| {
                turn.write(object, Results::Whole);
                more(object, &turn.turn_id);
            });
        });
        Json::written(out)
    }

    /// One turn, by its `turn_id` or its entry `id`.
    #[must_use]
    pub fn turn_json(&self, id: &str) -> Option<Json> {
        let turn = self.turns.iter().find(|turn| *turn.turn_id == *id || *turn.id == *id)?;
        Some(object(|object| turn.write(object, Results::Whole)))
    }

    /// What a socket must get first that subscribes now (socketio.md §4.10): while a chat runs, its start and every turn that can still change,
    /// parents before children. While a question waits no chat runs, and turns have no place outside of one: that the session waits is told, and
    /// REST shows the question. Else nothing.
    #[must_use]
    pub fn late_subscriber(&self) -> Vec<SocketEvent> {
        let (Some(run), Some(facts)) = (&self.run, &self.facts) else { return Vec::new() };
        if !run.chatting {
            return self.session_event().into_iter().collect();
        }
        let mut events = vec![chat_start(facts, run)];
        for at in self.live_turns(false) {
            let Some(turn) = self.turns.get(at) else { continue };
            if !turn.ended {
                events.push(turn_event("turn:start", facts, turn, turn.status));
                continue;
            }
            // A turn that paused before gets no second `turn:end`, only patches: this socket must not wait for one.
            events.push(turn_event("turn:start", facts, turn, TurnStatus::Paused));
            events.push(turn_event("turn:end", facts, turn, TurnStatus::Paused));
            if turn.status != TurnStatus::Paused {
                events.push(self.latest_status(facts, turn));
            }
        }
        events
    }

    /// The asks that wait for an answer, oldest first.
    #[must_use]
    pub fn pending_questions(&self) -> Vec<PendingQuestion> {
        self.run.iter().flat_map(|run| run.asks.iter()).map(question_of).collect()
    }

    /// The ask that a plain message would answer: the oldest pending one.
    #[must_use]
    pub fn pending_question(&self) -> Option<PendingQuestion> {
        self.run.as_ref()?.asks.iter().next().map(question_of)
    }

    /// The ask that waits in the call of this id.
    #[must_use]
    pub fn question_in(&self, tool_call_id: &str) -> Option<PendingQuestion> {
        self.run.as_ref()?.asks.shown_by(tool_call_id).map(question_of)
    }

    /// The ask that waits, if it is the only one.
    #[must_use]
    pub fn only_question(&self) -> Option<PendingQuestion> {
        let mut asks = self.run.as_ref()?.asks.iter();
        asks.next().filter(|_| asks.next().is_none()).map(question_of)
    }

    /// The ask that a call of the latest run showed until it was settled.
    #[must_use]
    pub fn settled_ask(&self, tool_call_id: &str) -> Option<&AskId> {
        self.settled.get(tool_call_id)
    }

    /// Whether a bracket is open: a run goes on and does not wait for an answer.
    #[must_use]
    pub fn chat_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.chatting)
    }

    /// The mode, as far as the agent said.
    #[cfg(feature = "io")]
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The session's status.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        self.status
    }

    /// The model in use, once a run said.
    #[must_use]
    pub fn model(&self) -> Option<&Text> {
        self.model.as_ref()
    }

    /// The title, or the beginning of the first message.
    #[must_use]
    pub fn intent(&self) -> &Text {
        &self.intent
    }
}
