//! How the runs of a cell go about people: who decides about asks, what a second run meets, and what becomes of a run that nobody watches.

use std::sync::Arc;
use std::time::Duration;

use interline_model::CellName;

use crate::Policies;

/// A cell's ways.
#[derive(Clone, Debug, Default)]
pub struct Conduct {
    /// Which asks are decided without people.
    pub policies: Arc<Policies>,
    /// What happens to a run whose session has one already.
    pub on_busy: OnBusy,
    /// What happens to a run that nobody watches.
    pub unwatched: Unwatched,
}

impl Conduct {
    /// A cell's ways, with the policies that hold in it alone.
    pub(crate) fn of(&self, cell: &CellName) -> Self {
        Self { policies: Arc::new(self.policies.of(cell)), ..self.clone() }
    }
}

/// What happens to a run whose session has one already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBusy {
    /// It is refused.
    #[default]
    Reject,
    /// It waits for its turn.
    Queue,
    /// The run that goes on is stopped for it.
    Interrupt,
}

/// What happens to a run that nobody watches (design §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unwatched {
    /// It goes on.
    #[default]
    Continue,
    /// It is stopped when nobody has watched it for so long.
    StopAfter(Duration),
}
