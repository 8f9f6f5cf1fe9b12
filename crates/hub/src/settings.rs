//! What a client wants to hold for a run besides its input. Not every upstream can do it; then a notice in the run says so.

use interline_model::Text;

use crate::{Action, Environment};

/// The settings of a run. What is not set is left to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The model, where it is no part of how a run is started.
    pub model: Option<Text>,
    /// The permission mode.
    pub permission_mode: Option<Text>,
    /// How many tokens the model may think.
    pub thinking_tokens: Option<u32>,
    /// Environment variables for the agent's tools.
    pub environment: Environment,
}

impl Settings {
    /// What has to be done for them.
    pub(crate) fn actions(self) -> impl Iterator<Item = Action> {
        let environment = (!self.environment.0.is_empty()).then_some(self.environment);
        [
            environment.map(Action::SetEnvironment),
            self.model.map(Action::SetModel),
            self.permission_mode.map(Action::SetPermissionMode),
            self.thinking_tokens.map(|tokens| Action::SetThinkingTokens(Some(tokens))),
        ]
        .into_iter()
        .flatten()
    }
}
