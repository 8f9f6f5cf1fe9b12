//! Turns: one per model call and lane, opened when something is said in it and ended once, children before their parents
//! (socketio.md §3.2, §4.3, §4.7).

use std::collections::{BTreeSet, HashSet};

use interline_model::{CallId, Lane, Usage};

use crate::mapping::{Facts, SocketEvent, SocketWriter};
use crate::object::object;
use crate::projection::{Kind, Results, Turn, TurnStatus};

impl SocketWriter {
    /// The numbers of the turns that can still change, parents before children or the other way round.
    pub(crate) fn live_turns(&self, children_first: bool) -> Vec<usize> {
        self.by_depth(self.run.iter().flat_map(|run| run.live.all()), children_first)
    }

    /// These turns, parents before children or the other way round.
    pub(crate) fn by_depth(&self, turns: impl Iterator<Item = usize>, children_first: bool) -> Vec<usize> {
        let mut turns: Vec<usize> = turns.collect();
        turns.sort_by_cached_key(|&at| (self.turns.get(at).map_or(0, |turn| turn.depth), at));
        if children_first {
            turns.reverse();
        }
        turns
    }

    pub(crate) fn new_turn(&mut self, lane: &Lane, kind: Kind) -> usize {
        let at = self.turns.len();
        let Some(run) = &self.run else { return at };
        let parent = match lane {
            Lane::Root => None,
            Lane::Agent(call) => run.calls.get(call).and_then(|(turn, _)| self.turns.get(*turn)),
        };
        let depth = match (lane, parent) {
            (Lane::Root, _) => 0,
            (Lane::Agent(_), parent) => parent.map_or(0, |parent| parent.depth) + 1,
        };
        let mut turn = Turn::new(run.id, at, lane.clone(), depth, kind, self.now, &self.options);
        if turn.is_assistant() {
            turn.model.clone_from(&self.model);
        }
        self.turns.push(turn);
        at
    }

    pub(crate) fn open_turn(&mut self, lane: &Lane, kind: Kind) -> usize {
        let at = self.new_turn(lane, kind);
        if let Some(run) = &mut self.run {
            run.live.add(at, lane);
            run.latest.insert(lane.clone(), at);
        }
        if self.turns.get(at).is_some_and(Turn::is_assistant) {
            self.raw_turn(at);
        }
        self.tell_turn("turn:start", at);
        at
    }

    pub(crate) fn latest_in(&self, lane: &Lane) -> Option<usize> {
        self.run.as_ref()?.latest.get(lane).copied()
    }

    /// The turn of a lane that is open for more.
    pub(crate) fn open_in(&self, lane: &Lane) -> Option<usize> {
        let at = self.latest_in(lane)?;
        self.turns.get(at).filter(|turn| !turn.ended).map(|_| at)
    }

    /// The lane's open assistant turn. What comes after a pause goes into a new one, since the old one has ended here.
    pub(crate) fn open_or_new(&mut self, lane: &Lane) -> usize {
        self.stir();
        match self.open_in(lane) {
            Some(at) if self.turns.get(at).is_some_and(Turn::is_assistant) => at,
            Some(at) => {
                self.end_turn(at, TurnStatus::Completed);
                self.open_turn(lane, Kind::Assistant)
            }
            None => self.open_turn(lane, Kind::Assistant),
        }
    }

    pub(crate) fn turn_ended(&mut self, lane: &Lane, usage: Option<Usage>, ending: bool) {
        let Some(at) = self.run.as_ref().and_then(|run| run.latest.get(lane).copied()) else { return };
        let Some(turn) = self.turns.get_mut(at) else { return };
        if usage.is_some() {
            turn.usage = usage;
        }
        let (open, told) = (!turn.ended, turn.paused && turn.status != TurnStatus::Streaming);
        let chatting = self.run.as_ref().is_some_and(|run| run.chatting);
        if open && !ending {
            // With the run's end in the same record, that end says how the turn ended.
            self.end_lane(lane);
        } else if told && chatting && usage.is_some() {
            let status = self.turns.get(at).map_or(TurnStatus::Completed, |turn| turn.status);
            self.set_turn_status(at, status);
        }
    }

    pub(crate) fn end_lane(&mut self, lane: &Lane) {
        let Some(at) = self.open_in(lane) else { return };
        self.stir();
        if self.holds_ask(at) {
            // Its calls cannot end before people have answered.
            self.pause_turn(at);
        } else {
            self.end_family(at, TurnStatus::Completed);
        }
    }

    /// Ends a turn, and before it the turns of its sub-agents that have come to rest.
    pub(crate) fn end_family(&mut self, at: usize, status: TurnStatus) {
        let (mut family, mut met) = (vec![at], HashSet::from([at]));
        let mut next = 0;
        while let Some(&parent) = family.get(next) {
            next += 1;
            family.extend(self.live_children(parent).into_iter().filter(|child| met.insert(*child)));
        }
        for &child in family.iter().skip(1).rev() {
            if self.turns.get(child).is_some_and(|turn| !turn.ended && turn.all_calls_final()) {
                self.end_turn(child, TurnStatus::Completed);
            }
        }
        self.end_turn(at, status);
    }

    /// The live turns of the sub-agents that were started in this turn, oldest first.
    fn live_children(&self, parent: usize) -> BTreeSet<usize> {
        let (Some(run), Some(turn)) = (&self.run, self.turns.get(parent)) else { return BTreeSet::new() };
        let started_here = |call: &CallId| run.calls.get(call).is_some_and(|(turn, _)| *turn == parent);
        // Whichever are fewer: a turn may have thousands of calls, and a run thousands of agents.
        if turn.calls.len() < run.live.lanes().len() {
            let calls = turn.calls.iter().map(|call| CallId::from(call.id.clone())).filter(started_here);
            calls.filter_map(|call| run.live.of(&Lane::Agent(call))).flatten().copied().collect()
        } else {
            let mine = run.live.lanes().filter(|(lane, _)| matches!(lane, Lane::Agent(call) if started_here(call)));
            mine.flat_map(|(_, turns)| turns).copied().collect()
        }
    }

    /// Ends a turn for good: `turn:end`, or `set_status` where that went out when it paused. No call stays open in it.
    pub(crate) fn end_turn(&mut self, at: usize, status: TurnStatus) {
        let open = self.turns.get(at).map(|turn| turn.open.clone()).unwrap_or_default();
        for number in open {
            self.cancel_call(at, number);
        }
        self.drop_live(at);
        match self.turns.get(at) {
            Some(turn) if !turn.ended => self.close_turn(at, status),
            Some(turn) if turn.paused => self.set_turn_status(at, status),
            _ => {}
        }
    }

    /// `turn:end`, the only one that a turn gets.
    pub(crate) fn close_turn(&mut self, at: usize, status: TurnStatus) {
        self.tell_all(at);
        let now = self.now;
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.status = status;
        turn.duration_ms = now.saturating_sub(turn.started);
        turn.ended = true;
        turn.paused = status == TurnStatus::Paused;
        turn.shown = (now, turn.bytes);
        let (lane, usage) = (turn.lane.clone(), turn.usage);
        self.raw_response(&lane, usage);
        self.tell_turn("turn:end", at);
    }

    pub(crate) fn drop_live(&mut self, at: usize) {
        if let (Some(run), Some(turn)) = (&mut self.run, self.turns.get(at)) {
            run.live.remove(at, &turn.lane);
        }
    }

    pub(crate) fn tell_turn(&mut self, name: &'static str, at: usize) {
        if let (Some(facts), Some(turn), None) = (&self.facts, self.turns.get(at), &self.raw) {
            self.out.push(turn_event(name, facts, turn, turn.status));
        }
    }
}

/// A TurnProjection in the envelope of `turn:start` and `turn:end`.
pub(crate) fn turn_event(name: &'static str, facts: &Facts, turn: &Turn, status: TurnStatus) -> SocketEvent {
    let data = object(|object| {
        object.text("session_id", facts.session.as_str());
        turn.write_as(object, status, Results::Cut);
        object.null("solution_id");
        object.null("template_id");
    });
    SocketEvent { name, data }
}
