//! The asks of a run that wait for an answer, found by their id, by the call that shows them, by their turn and by the sub-agents that wait with
//! them: there may be thousands, and none is searched for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use interline_model::{Ask, AskId, CallId, Lane, Text};

/// A pending ask and where it is shown.
pub(crate) struct Asked {
    pub(crate) ask: Ask,
    pub(crate) lane: Lane,
    pub(crate) turn: usize,
    pub(crate) call: usize,
    /// The id of that call.
    pub(crate) shown: Text,
    /// The call is ours and stands for the ask alone.
    pub(crate) synthetic: bool,
}

/// All of them, in the order in which they were raised.
#[derive(Default)]
pub(crate) struct Pending {
    next: u64,
    asks: BTreeMap<u64, Asked>,
    by_id: HashMap<AskId, u64>,
    by_shown: HashMap<Text, BTreeSet<u64>>,
    by_turn: HashMap<usize, usize>,
    /// What waits under the call that started a sub-agent: its own asks and those of the agents that it started.
    under: HashMap<CallId, BTreeSet<u64>>,
    /// Calls of which a pause has not told yet that something waits under them.
    untold: Vec<CallId>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.asks.is_empty()
    }

    pub(crate) fn contains(&self, id: &AskId) -> bool {
        self.by_id.contains_key(id)
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Asked> {
        self.asks.values()
    }

    /// The oldest that a call of this id shows.
    pub(crate) fn shown_by(&self, call: &str) -> Option<&Asked> {
        self.asks.get(self.by_shown.get(call)?.first()?)
    }

    /// The oldest that waits under the call of a sub-agent.
    pub(crate) fn under(&self, call: &CallId) -> Option<&Asked> {
        self.asks.get(self.under.get(call)?.first()?)
    }

    /// Whether one is shown in this turn.
    pub(crate) fn is_in(&self, turn: usize) -> bool {
        self.by_turn.contains_key(&turn)
    }

    /// One more. `parent` tells in which lane the call was made that started an agent, as far as it is known.
    pub(crate) fn add(&mut self, asked: Asked, parent: impl Fn(&CallId) -> Option<Lane>) {
        let number = self.next;
        self.next += 1;
        self.by_id.insert(asked.ask.id.clone(), number);
        self.by_shown.entry(asked.shown.clone()).or_default().insert(number);
        *self.by_turn.entry(asked.turn).or_default() += 1;
        self.spread(&asked.lane, &BTreeSet::from([number]), parent);
        self.asks.insert(number, asked);
    }

    /// Tells all agents up from `lane` that these wait. Lanes may go round in a circle.
    fn spread(&mut self, lane: &Lane, numbers: &BTreeSet<u64>, parent: impl Fn(&CallId) -> Option<Lane>) {
        let mut lane = Some(lane.clone());
        while let Some(Lane::Agent(call)) = lane {
            let under = self.under.entry(call.clone()).or_default();
            if under.is_empty() {
                self.untold.push(call.clone());
            }
            let before = under.len();
            under.extend(numbers);
            if under.len() == before {
                return;
            }
            lane = parent(&call);
        }
    }

    /// A call is known now that may have started an agent, and in which lane it was made.
    pub(crate) fn found(&mut self, call: &CallId, lane: &Lane, parent: impl Fn(&CallId) -> Option<Lane>) {
        let Some(numbers) = self.under.get(call).filter(|numbers| !numbers.is_empty()).cloned() else { return };
        self.spread(lane, &numbers, parent);
    }

    /// Takes one out that is settled.
    pub(crate) fn remove(&mut self, id: &AskId, parent: impl Fn(&CallId) -> Option<Lane>) -> Option<Asked> {
        let number = self.by_id.remove(id)?;
        let asked = self.asks.remove(&number)?;
        if self.asks.is_empty() {
            let next = self.next;
            *self = Self { next, ..Self::default() };
            return Some(asked);
        }
        if let Some(shown) = self.by_shown.get_mut(&asked.shown) {
            shown.remove(&number);
            if shown.is_empty() {
                self.by_shown.remove(&asked.shown);
            }
        }
        if let Some(count) = self.by_turn.get_mut(&asked.turn) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_turn.remove(&asked.turn);
            }
        }
        let mut lane = Some(asked.lane.clone());
        while let Some(Lane::Agent(call)) = lane {
            let Some(under) = self.under.get_mut(&call) else { break };
            if !under.remove(&number) {
                break;
            }
            if under.is_empty() {
                self.under.remove(&call);
            }
            lane = parent(&call);
        }
        Some(asked)
    }

    /// The calls under which something waits since this was asked last.
    pub(crate) fn take_untold(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.untold)
    }
}
