//! An independent check of the order that [`What`] promises, over the events of one run.

use std::collections::{HashMap, HashSet};

use interline_model::{AskId, CallId, Event, Lane, What};

#[derive(Default)]
struct Checker {
    started: bool,
    ended: bool,
    /// Open turns, by lane, with the calls that began in each.
    turns: HashMap<Lane, HashSet<CallId>>,
    calls: HashMap<CallId, Call>,
    asks: HashMap<AskId, bool>,
}

struct Call {
    lane: Lane,
    open: bool,
}

/// Panics unless the events are those of a run in progress, or of one whole run; whether it has ended.
pub(super) fn check(events: &[Event]) -> bool {
    let mut checker = Checker::default();
    for (at, event) in events.iter().enumerate() {
        checker.see(event, &format!("event {at}, {event:?}"));
    }
    checker.ended
}

impl Checker {
    fn see(&mut self, Event { lane, what }: &Event, place: &str) {
        assert!(!self.ended, "{place}: after the end");
        assert_eq!(self.started, !matches!(what, What::RunStarted { .. }), "{place}: one start, first");
        match what {
            What::RunStarted { .. } => {
                assert!(lane.is_root(), "{place}");
                self.started = true;
            }
            What::TurnStarted => assert!(self.turns.insert(lane.clone(), HashSet::new()).is_none(), "{place}: a turn is open"),
            What::TurnEnded { .. } => {
                let calls = self.turns.remove(lane).unwrap_or_else(|| panic!("{place}: no turn is open"));
                assert!(calls.iter().all(|call| !self.calls[call].open), "{place}: a call is open in it");
            }
            What::Text { delta } | What::Thinking { delta } => {
                assert!(!delta.is_empty(), "{place}: empty");
                assert!(self.turns.contains_key(lane), "{place}: outside a turn");
            }
            What::ToolStarted { call, name, input } => {
                assert!(!name.is_empty(), "{place}: no name");
                assert!(input.as_ref().is_none_or(|input| input.is_object()), "{place}: input");
                let turn = self.turns.get_mut(lane).unwrap_or_else(|| panic!("{place}: outside a turn"));
                turn.insert(call.clone());
                assert!(self.calls.insert(call.clone(), Call { lane: lane.clone(), open: true }).is_none(), "{place}: again");
            }
            What::ToolInput { call, input } => {
                assert!(input.is_object(), "{place}: input");
                self.of_open_call(lane, call, place);
            }
            What::ToolOutput { call, delta } => {
                assert!(!delta.is_empty(), "{place}: empty");
                self.of_open_call(lane, call, place);
            }
            What::ToolEnded { call, .. } => {
                self.of_open_call(lane, call, place);
                assert!(self.turns.get(lane).is_some_and(|turn| turn.contains(call)), "{place}: outside its turn");
                self.calls.get_mut(call).unwrap().open = false;
            }
            What::AskRaised(ask) => {
                assert!(ask.input.is_object(), "{place}: input");
                assert!(ask.call.as_ref().is_none_or(|call| self.calls.contains_key(call)), "{place}: its call was not started");
                assert!(self.asks.insert(ask.id.clone(), true).is_none(), "{place}: again");
            }
            What::AskSettled { ask, .. } => assert_eq!(self.asks.insert(ask.clone(), false), Some(true), "{place}: not open"),
            What::Task { call, .. } => {
                assert!(call.as_ref().is_none_or(|call| self.calls.contains_key(call)), "{place}: its call was not started");
            }
            What::RunEnded(_) => {
                assert!(lane.is_root(), "{place}");
                assert!(self.turns.is_empty(), "{place}: a turn is open");
                assert!(self.calls.values().all(|call| !call.open), "{place}: a call is open");
                assert!(self.asks.values().all(|open| !open), "{place}: an ask is open");
                self.ended = true;
            }
            What::PlanChanged { .. }
            | What::Compaction(_)
            | What::SessionChanged { .. }
            | What::FilesChanged { .. }
            | What::Notice { .. }
            | What::Suggestion { .. }
            | What::Other { .. } => {}
        }
    }

    fn of_open_call(&self, lane: &Lane, call: &CallId, place: &str) {
        let call = self.calls.get(call).unwrap_or_else(|| panic!("{place}: not started"));
        assert!(call.open, "{place}: has ended");
        assert_eq!(call.lane, *lane, "{place}: another lane");
    }
}
