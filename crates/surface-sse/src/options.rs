//! What the protocol page leaves to choose, and the choices' defaults (sse.md §6).

use interline_model::Text;

use crate::extras::{AskLimits, Extras};

/// What the protocol page leaves to choose (sse.md §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest event, in bytes. Longer text goes out as several deltas; a longer tool result is cut, and says so.
    pub max_event_bytes: usize,
    /// What becomes of a sub-agent's text.
    pub sub_agents: SubAgents,
    /// How a stopped run ends.
    pub interrupt_terminal: InterruptTerminal,
    /// How a tool's input is written.
    pub arguments: ArgumentsForm,
    /// The number of a run's first turn.
    pub first_turn_num: u64,
    /// What goes beyond the documented vocabulary.
    pub extras: Extras,
    /// How long asks wait, for `expires_at`; `None` leaves it out.
    pub ask_limits: Option<AskLimits>,
    /// The cell that the session is of, for the path where the whole of something cut is; `None` where nothing is served.
    pub cell: Option<Text>,
}

/// What becomes of a sub-agent's text (A13, decision 25). Its reasoning and tools are never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum SubAgents {
    /// It is output of the call that started the sub-agent, or that started the one which did.
    Fold,
    /// Nothing.
    Hide,
}

/// How a stopped run ends (A3). Both are documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum InterruptTerminal {
    /// `interrupted{reason}`.
    Interrupted,
    /// `done{context_cancelled}`.
    Done,
}

/// How a tool's input is written (A5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "io", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum ArgumentsForm {
    /// As an object.
    Object,
    /// As a string that holds the object's JSON.
    String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_event_bytes: 1 << 20,
            sub_agents: SubAgents::Fold,
            interrupt_terminal: InterruptTerminal::Interrupted,
            arguments: ArgumentsForm::Object,
            first_turn_num: 1,
            extras: Extras::Off,
            ask_limits: None,
            cell: None,
        }
    }
}
