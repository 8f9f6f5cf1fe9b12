//! What a user may want of an upstream besides a run's input, answers and a stop: actions on the session, each with one reply.
//!
//! An upstream that has no such thing says so in a sentence that the surfaces hand on.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use interline_model::{Json, Text};
use tokio::sync::oneshot;

use crate::Environment;

/// An action.
#[derive(Debug)]
pub enum Action {
    /// Make the context smaller now. The reply is an empty object.
    Compact,
    /// What the session has cost so far. The reply is the upstream's own object.
    Cost,
    /// Keep a file for the conversation. The reply is the upstream's own object.
    Upload(Upload),
    /// Let a paused session go on. The reply is an object with its `state`.
    Resume,
    /// A native client's own request: its body, as it came. The reply is the upstream's own object. During a run only, as all that follows.
    Request(Json),
    /// Tell how full the context is. The reply is the upstream's own object.
    ContextUsage,
    /// Go on with another model.
    SetModel(Text),
    /// Go on in another permission mode: `default`, `plan`, `acceptEdits` …
    SetPermissionMode(Text),
    /// Go on with this many tokens to think, or without a limit.
    SetThinkingTokens(Option<u32>),
    /// Let the agent's tools have these environment variables.
    SetEnvironment(Environment),
    /// Stop a background task.
    StopTask(Text),
    /// Take back what was done to files since a user's message. The reply is the upstream's own object.
    Rewind {
        /// The message's id, as the upstream knows it.
        message: Text,
        /// Only tell what would happen.
        dry_run: bool,
    },
}

/// How an action reaches the upstream on the connection of the run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A request that is answered: its body, an object.
    Request(Json),
    /// A message that nothing answers.
    Message(Text),
}

impl Action {
    /// What it does, as it stands after "cannot".
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            Self::Compact => "compact on demand",
            Self::Cost => "tell what a session cost",
            Self::Upload(_) => "take files",
            Self::Resume => "resume a session",
            Self::Request(_) => "take requests of native clients",
            Self::ContextUsage => "tell how full the context is",
            Self::SetModel(_) => "change the model",
            Self::SetPermissionMode(_) => "change the permission mode",
            Self::SetThinkingTokens(_) => "change how much is thought",
            Self::SetEnvironment(_) => "set environment variables",
            Self::StopTask(_) => "stop a background task",
            Self::Rewind { .. } => "rewind",
        }
    }
}

/// A file from a user.
#[derive(Clone, Debug)]
pub struct Upload {
    /// Its name: one path segment.
    pub name: Text,
    /// Its declared media type.
    pub mime: Text,
    /// Its bytes.
    pub data: Bytes,
}

/// A request of ours on its way to the upstream.
#[derive(Debug)]
pub struct Control {
    /// Its body, from [`Wire::Request`].
    pub request: Json,
    /// Where the reply goes; `{}` if it had no content. Dropped unanswered when the connection cannot carry it.
    pub reply: oneshot::Sender<Result<Json, ActionError>>,
}

/// Why an action came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// This kind of upstream cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// No client may do it.
    #[error("{0}")]
    Forbidden(&'static str),
    /// It can only be done while no run goes on.
    #[error("the session has an active run; this is possible once it has ended")]
    Busy,
    /// It can only be done while a run goes on.
    #[error("no run goes on, and this reaches the agent only during one")]
    Idle,
    /// The upstream said no.
    #[error("{message}")]
    Refused {
        /// The upstream's HTTP status, where it was said over HTTP.
        status: Option<u16>,
        /// The upstream's words. Never holds a secret.
        message: String,
    },
    /// The upstream could not be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The upstream took it and said nothing.
    #[error("the agent server did not answer within {} ms", .0.as_millis())]
    Unanswered(Duration),
}

impl ActionError {
    /// The HTTP status that says this best. What the upstream refuses over HTTP keeps its status; but that it does not let Interline in
    /// is no business of the client's.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Unsupported(_) => 501,
            Self::Forbidden(_) => 403,
            Self::Busy | Self::Idle => 409,
            Self::Refused { status: Some(status @ (400 | 402 | 404..=599)), .. } => *status,
            Self::Refused { .. } | Self::Unreachable(_) => 502,
            Self::Unanswered(_) => 504,
        }
    }

    /// The machine token that says this.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unsupported(_) => "unsupported",
            Self::Forbidden(_) => "forbidden",
            Self::Busy => "session_busy",
            Self::Idle => "no_active_run",
            Self::Refused { .. } => "upstream_refused",
            Self::Unreachable(_) => "upstream_unreachable",
            Self::Unanswered(_) => "upstream_timeout",
        }
    }
}

/// The future of an action.
pub type ActionFuture = Pin<Box<dyn Future<Output = Result<Json, ActionError>> + Send>>;
