//! What an upstream is to the hub: a pure reader for its frames, and links that carry them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use interline_model::{
    Answer, Ask, CellName, ExplainReader, FailureKind, Json, NoticeLevel, Part, Principal, Reader, RunId, SessionId, Text, Unexplained,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::action::{Action, ActionError, ActionFuture, Control};
use crate::channel::ChannelFuture;
use crate::session::Session;
use crate::{RunCredential, Secret, Wire};

/// One agent server.
pub trait Upstream: Send + Sync + 'static {
    /// Its name in the config.
    fn name(&self) -> &str;

    /// A fresh reader for one run's records.
    fn reader(&self) -> Box<dyn Reader>;

    /// A fresh reader for one run's records that also says why. Its events are those of [`Upstream::reader`]. An upstream that has no rules to
    /// tell need not write one: then only the records are named.
    fn explainer(&self) -> Box<dyn ExplainReader> {
        Box::new(Unexplained::new(self.reader()))
    }

    /// Whether a run is started with a model. Where it is not, the model is set when it has begun, as [`Action::SetModel`].
    fn starts_with_model(&self) -> bool {
        true
    }

    /// The ask that a message raises, if it is one: what policies decide about before anybody sees it.
    fn ask_in(&self, message: &Text) -> Option<Ask> {
        let _ = message;
        None
    }

    /// How an action is said on the connection of a run; `None` if it is not said there.
    fn wire(&self, action: &Action) -> Option<Wire> {
        let _ = action;
        None
    }

    /// The link of a new session. Nothing is dialled before the first run.
    fn open(&self, session: &SessionSeed) -> Arc<dyn Link>;

    /// Takes another credential in the place of its own, for every request from now on. `false` if it cannot.
    fn replace_credential(&self, credential: Option<Secret>) -> bool {
        let _ = credential;
        false
    }

    /// Whether it has a coding channel.
    fn has_coding_channel(&self) -> bool {
        false
    }

    /// Opens the coding channel for one client.
    fn coding_channel(&self, credential: RunCredential) -> ChannelFuture {
        let _ = credential;
        let error = ActionError::Unsupported(format!("upstream {} has no coding channel", self.name()));
        Box::pin(std::future::ready(Err(error)))
    }
}

/// What a link may know of its session.
#[derive(Clone, Debug)]
pub struct SessionSeed {
    /// Its id on every surface.
    pub session: SessionId,
    /// Its owner.
    pub principal: Principal,
    /// Its cell.
    pub cell: CellName,
}

/// The future of a link's work.
pub type LinkFuture = Pin<Box<dyn Future<Output = Result<(), LinkError>> + Send>>;

/// The connection of one session to its upstream, over all its runs.
pub trait Link: Send + Sync {
    /// Carries one run: submits the input, delivers every frame to `port` in order, obeys its commands, restores the connection when it
    /// breaks, and returns when the upstream has nothing more to say of this run. The hub starts one run of a session at a time, but a
    /// run that was ended locally may still be winding down when the next one begins (decision 16).
    fn run(self: Arc<Self>, input: RunInput, port: RunPort) -> LinkFuture;

    /// Whether [`Link::take_up`] may find a run again, so that one can be left to the next process.
    fn takes_up(&self) -> bool {
        false
    }

    /// Carries on with a run that another process began: finds it again, delivers what was missed, lined up with what had come, and goes on
    /// as [`Link::run`]. Says [`RunPort::link_back`] when it has the run.
    fn take_up(self: Arc<Self>, resumption: Resumption, port: RunPort) -> LinkFuture {
        let _ = (resumption, port);
        Box::pin(std::future::ready(Err(LinkError::Gone("its runs cannot be found again".to_owned()))))
    }

    /// What the log says of the latest run that the upstream took: the handle it was attached under and the messages that came of it. Told when
    /// a log is read that another process wrote, and before anything else is asked; an upstream that keeps conversations goes on with that one.
    fn recalled(&self, handle: &Json, frames: &[Text]) {
        let _ = (handle, frames);
    }

    /// Does something else for the session, beside whatever run goes on.
    fn act(self: Arc<Self>, action: Action, credential: RunCredential) -> ActionFuture {
        let _ = credential;
        let error = ActionError::Unsupported(format!("this agent server cannot {}", action.what()));
        Box::pin(std::future::ready(Err(error)))
    }

    /// The session is deleted: lets go of what the upstream holds for it. Best effort.
    fn close(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// What a run submits.
#[derive(Clone, Debug)]
pub struct RunInput {
    /// The run.
    pub run: RunId,
    /// The model as the upstream knows it; `None` leaves it to the upstream.
    pub model: Option<Text>,
    /// The user's input.
    pub input: Vec<Part>,
    /// A system prompt from the client.
    pub system_prompt: Option<Text>,
    /// What it is submitted with.
    pub credential: RunCredential,
}

/// A run that another process left unfinished.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The run.
    pub run: RunId,
    /// What [`RunPort::attached`] was told.
    pub handle: Json,
    /// The messages of the run that the log has, in order.
    pub frames: Vec<Text>,
    /// What it was submitted with.
    pub credential: RunCredential,
}

/// Why a link gave up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The run could not be started, or the upstream refused to go on.
    #[error("{message}")]
    Refused {
        /// The machine token.
        kind: FailureKind,
        /// The sentence for people. Never holds a secret.
        message: String,
    },
    /// The upstream is gone and the run's end with it.
    #[error("the upstream is gone: {0}")]
    Gone(String),
}

/// What the hub wants from a running link.
#[derive(Debug)]
pub enum Command {
    /// Tell the upstream what was answered.
    Answer {
        /// The ask, with the input that an allow echoes.
        ask: Arc<Ask>,
        /// The answer.
        answer: Answer,
    },
    /// Ask the upstream to stop the run.
    Stop,
    /// Send a message that nothing answers, as it is: an action's [`Wire::Message`].
    Frame(Text),
    /// Ask the upstream for something while the run goes on.
    Control(Control),
}

/// Whether the run still wants frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Go,
    /// The run has ended: wind down.
    Over,
}

/// A link's side of one run.
pub struct RunPort {
    pub(crate) session: Arc<Session>,
    pub(crate) run: RunId,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) over: CancellationToken,
}

impl RunPort {
    /// Appends a received message to the log, as it is, and lets everybody see it.
    #[must_use]
    pub fn deliver(&self, frame: Text) -> Flow {
        self.session.deliver(self.run, frame)
    }

    /// The next command. Pends for ever when there is none; to be used in a `select!` beside the socket.
    pub async fn command(&mut self) -> Command {
        match self.commands.recv().await {
            Some(command) => command,
            None => std::future::pending().await,
        }
    }

    /// Records that the upstream has the run, and the handle under which it is found again, also by another process. No secret may be in it.
    pub fn attached(&self, handle: Json) {
        self.session.attached(self.run, handle);
    }

    /// Records that the connection broke and is being restored.
    pub fn link_lost(&self) {
        self.session.link_state(self.run, false);
    }

    /// Records that the connection is back.
    pub fn link_back(&self) {
        self.session.link_state(self.run, true);
    }

    /// Records that messages of the run are missing, or may be, and cannot be had any more.
    pub fn missed(&self, text: Text) {
        self.session.notice(self.run, NoticeLevel::Warning, "frames_missed", text);
    }

    /// Cancelled as soon as the run has ended, by a frame or by us.
    #[must_use]
    pub fn over(&self) -> &CancellationToken {
        &self.over
    }
}

impl RunInput {
    /// The text of all text parts, one after another.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.input {
            if let Part::Text(part) = part {
                text.push_str(part);
            }
        }
        text
    }
}
