//! Records: the ordered truth of a session. What a frame said, or a fact that we added ourselves.

use crate::{Answer, AskId, FailureKind, Json, NoticeLevel, Principal, RunId, SessionId, Text};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;

/// One entry of a session's log.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When it arrived. The only clock that writers have (decision 22).
    pub at: Millis,
    /// What it is.
    pub body: Body,
}

/// A received frame, or a local fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The text of one upstream message, untouched: also when it is no JSON at all.
    Frame(Text),
    /// Something that we know and the upstream did not say.
    Fact(Fact),
}

impl Body {
    /// What it is, as far as that can be said without knowing the upstream's protocol: `frame`, or `fact/…`.
    #[must_use]
    pub fn name(&self) -> Text {
        Text::from_static(match self {
            Self::Frame(_) => "frame",
            Self::Fact(fact) => fact.name(),
        })
    }
}

/// A local fact: everything besides frames that changes what a client sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A run exists. Always the first record of a run.
    RunAccepted(Box<RunAccepted>),
    /// Somebody answered an ask first.
    AskAnswered {
        /// Which ask.
        ask: AskId,
        /// What was answered.
        answer: Answer,
        /// Who did.
        by: Actor,
    },
    /// The deadline of an ask passed without an answer.
    AskExpired {
        /// Which ask.
        ask: AskId,
    },
    /// A policy answered an ask that the next frame raises: nobody is asked. Stands before that frame, so that whoever reads the
    /// log knows in time.
    AskDecided {
        /// Which ask.
        ask: AskId,
        /// Whether it is allowed.
        allowed: bool,
        /// The rule that decided, by its name.
        rule: Text,
    },
    /// Nothing shows that the upstream took an answer.
    AskUnconfirmed {
        /// Which ask.
        ask: AskId,
    },
    /// Something that people should know, and that no frame says.
    Noticed {
        /// How bad.
        level: NoticeLevel,
        /// Machine token.
        code: Text,
        /// The sentence.
        text: Text,
    },
    /// Somebody wants the run to stop.
    StopRequested {
        /// Who.
        by: Actor,
    },
    /// The upstream took the run. Under this handle its link finds it again, also in another process.
    Attached {
        /// The link's own words. Never holds a secret.
        handle: Json,
    },
    /// The upstream connection broke and is being restored.
    LinkLost,
    /// The upstream connection is back, lined up with the log.
    LinkBack,
    /// We end the run, because the upstream did not.
    EndForced(ForcedEnd),
    /// The session's context was compacted because somebody wanted it, while no run went on: no frame says so.
    Compacted,
    /// The session's oldest runs are no longer kept.
    Shortened {
        /// Up to which numbers what is gone was counted, as the surface that counts a whole session says it.
        numbers: Json,
    },
    /// The session got a title.
    Titled {
        /// The title.
        title: Text,
    },
}

impl Fact {
    /// `fact/…`, as explanations name it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::RunAccepted(_) => "fact/run_accepted",
            Self::AskAnswered { .. } => "fact/ask_answered",
            Self::AskExpired { .. } => "fact/ask_expired",
            Self::AskDecided { .. } => "fact/ask_decided",
            Self::AskUnconfirmed { .. } => "fact/ask_unconfirmed",
            Self::Noticed { .. } => "fact/noticed",
            Self::StopRequested { .. } => "fact/stop_requested",
            Self::Attached { .. } => "fact/attached",
            Self::LinkLost => "fact/link_lost",
            Self::LinkBack => "fact/link_back",
            Self::EndForced(_) => "fact/end_forced",
            Self::Compacted => "fact/compacted",
            Self::Shortened { .. } => "fact/shortened",
            Self::Titled { .. } => "fact/titled",
        }
    }
}

/// The facts of a new run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunAccepted {
    /// Its id.
    pub run: RunId,
    /// Its session.
    pub session: SessionId,
    /// The model asked for, or the route's, or `default` (decision 6).
    pub model: Text,
    /// The user's input; empty where it is not known (`interline map` without one).
    pub input: Vec<Part>,
    /// Who started it, from which surface.
    pub by: Actor,
    /// The label of the end user, where the client gave one.
    pub actor: Option<Text>,
    /// One-shot run without people (socketio.md §4.8).
    pub headless: bool,
    /// The JSON Schema that a one-shot run's result was asked to have, an object.
    pub output_schema: Option<Json>,
}

/// A part of a user's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(Text),
    /// An image: a `data:` URL or a web address.
    Image {
        /// The URL.
        url: Text,
    },
    /// A file.
    File {
        /// Its name.
        name: Text,
        /// Base64.
        data: Text,
    },
}

impl Part {
    /// Bytes of its texts.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) | Self::Image { url: text } => text.len(),
            Self::File { name, data } => name.len().saturating_add(data.len()),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Who did something, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The owner of the session in whose name it was done.
    pub principal: Principal,
    /// The surface: `sse`, `socketio`, `native`, or `interline` for ourselves.
    pub surface: Text,
}

/// Why we end a run ourselves (decisions 14–16).
#[derive(Clone, Debug, PartialEq)]
pub enum ForcedEnd {
    /// It was to stop and the upstream did not end it within the grace.
    StopGraceOver,
    /// The upstream is gone without an end.
    UpstreamGone,
    /// The run could not be started, or the upstream refused to go on.
    Refused {
        /// The machine token.
        kind: FailureKind,
        /// The sentence.
        message: Text,
    },
    /// No frame for `run.max_idle`.
    Idle,
    /// A recoverable error was followed by nothing: it was not recoverable.
    ErrorStayed,
    /// We are shutting down.
    Shutdown,
}
