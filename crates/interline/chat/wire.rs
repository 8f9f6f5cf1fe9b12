//! What goes between the person and a server, whatever protocol it speaks: the canonical vocabulary, and three things to say.

use interline_model::{Answer, Ask, CallId, FailureKind, Outcome, RunEnd, Text, What};
use tokio::sync::mpsc;

/// What the person wants.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    /// A new run.
    Prompt(String),
    /// An answer to something that is asked.
    Answer(Box<Ask>, Answer),
    /// The end of the run.
    Stop,
}

/// A server's side of the conversation: it hears what the person says and tells what happens.
pub(crate) struct Wire {
    says: mpsc::UnboundedReceiver<Say>,
    tells: mpsc::UnboundedSender<What>,
}

/// The person's side.
pub(crate) struct Ends {
    pub(crate) says: mpsc::UnboundedSender<Say>,
    pub(crate) tells: mpsc::UnboundedReceiver<What>,
}

/// Why the conversation is over. Never holds a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    #[error("{0} is no URL to talk to: it begins with http:// or https://")]
    Url(String),
    #[error("the token cannot be sent in a header")]
    Token,
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server sent something that is not its protocol: {0}")]
    Protocol(String),
}

impl Wire {
    /// Both ends of a conversation.
    pub(crate) fn new() -> (Self, Ends) {
        let (say, says) = mpsc::unbounded_channel();
        let (tell, tells) = mpsc::unbounded_channel();
        (Self { says, tells: tell }, Ends { says: say, tells })
    }

    /// What the person says next; `None` once they have left. Cancel safe.
    pub(crate) async fn hear(&mut self) -> Option<Say> {
        self.says.recv().await
    }

    /// The next prompt; whatever is said between two runs otherwise comes too late for the first.
    pub(crate) async fn prompt(&mut self) -> Option<String> {
        loop {
            if let Say::Prompt(prompt) = self.hear().await? {
                return Some(prompt);
            }
        }
    }

    /// Tells what happened.
    pub(crate) fn tell(&self, what: What) {
        // Nobody is there any more: then nobody wants to know.
        let _ = self.tells.send(what);
    }

    /// Tells that the run is over.
    pub(crate) fn end(&self, outcome: Outcome) {
        self.tell(What::RunEnded(Box::new(RunEnd::synthesised(outcome))));
    }

    /// Tells something that ends nothing.
    pub(crate) fn note(&self, text: impl Into<Text>) {
        let code = Text::from_static("chat");
        self.tell(What::Notice { level: interline_model::NoticeLevel::Info, code, text: text.into() });
    }
}

/// A failed run, in the server's words.
pub(crate) fn failed(message: impl Into<Text>) -> Outcome {
    Outcome::Failed { kind: FailureKind::Internal, message: message.into() }
}

/// A piece of a text that grows: what of `whole` was not told yet.
pub(crate) fn growth<'a>(told: &str, whole: &'a str) -> &'a str {
    whole.strip_prefix(told).unwrap_or_default()
}

/// A tool that ended.
pub(crate) fn tool_ended(call: &str, result: String, is_error: bool) -> What {
    What::ToolEnded { call: CallId::from(call), result: Text::from(result), raw: None, is_error, aborted: false }
}
