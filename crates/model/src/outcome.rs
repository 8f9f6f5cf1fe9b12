//! How a run ends.

use crate::{Json, Text};

/// The one end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    /// What became of it.
    pub outcome: Outcome,
    /// Tokens over the whole run, where the upstream said.
    pub usage: Option<Usage>,
    /// `total_cost_usd` as the number came.
    pub cost_usd: Option<Json>,
    /// Wall time the upstream measured, milliseconds.
    pub duration_ms: Option<u64>,
    /// Model calls the upstream counted.
    pub num_turns: Option<u64>,
    /// The structured result of a headless run.
    pub structured_output: Option<Json>,
    /// The upstream did not say it; we did.
    pub synthesised: bool,
}

impl RunEnd {
    /// An end that we declare, with nothing known but the outcome.
    #[must_use]
    pub fn synthesised(outcome: Outcome) -> Self {
        Self { outcome, usage: None, cost_usd: None, duration_ms: None, num_turns: None, structured_output: None, synthesised: true }
    }
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It finished.
    Completed(Completion),
    /// Somebody or something stopped it; free text, for example `user_interrupt`.
    Interrupted {
        /// Who or what.
        reason: Text,
    },
    /// It failed.
    Failed {
        /// The machine token.
        kind: FailureKind,
        /// The sentence for people.
        message: Text,
    },
}

/// Why a finished run finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The model was done.
    EndTurn,
    /// The limit of model calls was reached (`error_max_turns`).
    MaxTurns,
    /// The limit of tokens, cost or time was reached (`error_max_budget*`).
    MaxBudget,
}

/// Why a run failed: the fine token that SSE puts into `kind` (sse.md §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The upstream ended without an end.
    MissingTerminalEvent,
    /// The upstream could not be reached, or refused to start.
    EngineNotReady,
    /// The upstream does not take the credential.
    AuthRequired,
    /// The provider is overloaded (HTTP 529, 503).
    ProviderOverloaded,
    /// The provider limits the rate (HTTP 429).
    ProviderRateLimit,
    /// The account has no credit left.
    ProviderBillingOverdue,
    /// No provider can serve the model.
    NoProvider,
    /// The request cannot be served as it is.
    InvalidRequest,
    /// The upstream said nothing for too long.
    UpstreamTimeout,
    /// The upstream connection was lost for good.
    UpstreamDisconnected,
    /// Anything else.
    Internal,
}

impl FailureKind {
    /// The token as it goes over the wire.
    #[must_use]
    pub fn token(self) -> &'static str {
        match self {
            Self::MissingTerminalEvent => "missing_terminal_event",
            Self::EngineNotReady => "engine_not_ready",
            Self::AuthRequired => "auth_required",
            Self::ProviderOverloaded => "provider_overloaded",
            Self::ProviderRateLimit => "provider_rate_limit",
            Self::ProviderBillingOverdue => "provider_billing_overdue",
            Self::NoProvider => "no_provider",
            Self::InvalidRequest => "invalid_request",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamDisconnected => "upstream_disconnected",
            Self::Internal => "internal",
        }
    }
}

/// Tokens used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens that were not cached.
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Prompt tokens read from the cache.
    pub cache_read_tokens: u64,
    /// Prompt tokens written to the cache.
    pub cache_write_tokens: u64,
}
