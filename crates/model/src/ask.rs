//! Asks: what an agent wants to know from people, and what they may answer.

use crate::{AskId, CallId, Json, Millis, Text};

/// What kind of answer an ask waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskKind {
    /// May this tool run? (`can_use_tool`)
    Permission,
    /// A choice between options, asked through a permission request for the question tool.
    Question,
    /// A form to fill in (`elicitation`, mode `form`).
    Form,
    /// A link to follow (`elicitation`, mode `url`).
    Link,
}

/// A pending ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The native `request_id`, unchanged.
    pub id: AskId,
    /// What it waits for.
    pub kind: AskKind,
    /// The tool call it belongs to, if any.
    pub call: Option<CallId>,
    /// The tool's name, or the server's name for forms and links.
    pub tool_name: Text,
    /// A sentence for people, where the upstream gave one: the decision reason, the form's message.
    pub message: Option<Text>,
    /// Permission and question: the tool's input. Form and link: the request, with its schema or URL. Always an object.
    pub input: Json,
    /// The questions of a question, in order; empty for other kinds.
    pub questions: Vec<Question>,
    /// `permission_suggestions`, as the upstream sent them: an "always allow" exists only if they came.
    pub suggestions: Option<Json>,
}

/// One question of a question ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The question's text; also its key in `updatedInput.answers`.
    pub question: Text,
    /// A short heading.
    pub header: Option<Text>,
    /// What can be chosen.
    pub options: Vec<Choice>,
    /// Whether several options may be chosen.
    pub multi_select: bool,
}

/// One option of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Shown, and sent back as the answer.
    pub label: Text,
    /// A longer explanation, or empty.
    pub description: Text,
}

/// What somebody answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The tool may run; `input` replaces its input if given. `always` also accepts the suggestions.
    Allow {
        /// Edited input, an object.
        input: Option<Json>,
        /// Accept the ask's `permission_suggestions`, too.
        always: bool,
    },
    /// The tool may not run.
    Deny {
        /// What the model is told.
        message: Text,
    },
    /// Answers to questions: question text, then label (several joined by `, `).
    Choose(Vec<(Text, Text)>),
    /// The end of a form or link.
    Form {
        /// What became of it.
        action: FormAction,
        /// The values, an object.
        content: Option<Json>,
    },
    /// A native client's own response body: passed on as it came.
    Native(Json),
}

/// How a form or link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormAction {
    /// Filled in.
    Accept,
    /// Refused.
    Decline,
    /// Closed without an answer.
    Cancel,
}

impl FormAction {
    /// The protocol's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Decline => "decline",
            Self::Cancel => "cancel",
        }
    }
}

/// How an ask ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    /// Permission given.
    Allowed,
    /// Permission refused, or a form declined.
    Denied,
    /// A question answered or a form accepted.
    Answered,
    /// Nobody answered in time; counts as denied.
    Expired,
    /// The upstream went on without an answer of ours, or the run ended.
    Void,
}

impl AskOutcome {
    /// The word for it in lists and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Answered => "answered",
            Self::Expired => "expired",
            Self::Void => "void",
        }
    }
}

impl Answer {
    /// The input that a permission is given for instead of the one that was asked about.
    #[must_use]
    pub fn input(&self) -> Option<Json> {
        match self {
            Self::Allow { input, .. } => input.clone(),
            Self::Native(body) => {
                let input = body.to_value().get("updatedInput").cloned()?;
                Some(Json::written(input.to_string()).into_object())
            }
            Self::Deny { .. } | Self::Choose(_) | Self::Form { .. } => None,
        }
    }

    /// How the ask ends with this answer.
    #[must_use]
    pub fn outcome(&self) -> AskOutcome {
        match self {
            Self::Allow { .. } => AskOutcome::Allowed,
            Self::Deny { .. } => AskOutcome::Denied,
            Self::Choose(_) | Self::Form { action: FormAction::Accept, .. } => AskOutcome::Answered,
            Self::Form { .. } => AskOutcome::Denied,
            Self::Native(body) => {
                let body = body.to_value();
                match (body.get("behavior").and_then(|b| b.as_str()), body.get("action").and_then(|a| a.as_str())) {
                    (Some("allow"), _) => AskOutcome::Allowed,
                    (None, Some("accept")) => AskOutcome::Answered,
                    _ => AskOutcome::Denied,
                }
            }
        }
    }
}

impl AskKind {
    /// The deadline of an ask raised at `at`, given the limit for permissions and questions and the one for forms and links, both in milliseconds.
    #[must_use]
    pub fn deadline(self, at: Millis, permission: u64, form: u64) -> Millis {
        at.saturating_add(match self {
            Self::Permission | Self::Question => permission,
            Self::Form | Self::Link => form,
        })
    }
}
