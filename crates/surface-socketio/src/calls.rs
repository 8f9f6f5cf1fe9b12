//! Tool calls: announced in the open turn of their lane, changed while they go on, and ended once (socketio.md §4.3).

use std::collections::HashMap;

use interline_model::{AskId, CallId, Json, Lane, Text};

use crate::mapping::SocketWriter;
use crate::patch::Snapshot;
use crate::projection::{Block, Call, CallStatus, Turn, TurnStatus};
use crate::result::{page_blocks, shown};

impl SocketWriter {
    pub(crate) fn start_tool(&mut self, lane: &Lane, id: &CallId, name: &Text, input: Option<&Json>) {
        if self.run.as_ref().is_some_and(|run| run.calls.contains_key(id)) {
            if let Some(input) = input {
                self.tool_input(id, input);
            }
            return;
        }
        let at = self.open_or_new(lane);
        let call = Call {
            id: id.text(),
            tool_name: name.clone(),
            display_name: name.clone(),
            input: input.cloned().unwrap_or_else(Json::empty_object),
            status: CallStatus::Pending,
            result: None,
            cut: None,
            started: self.now,
            duration_ms: None,
            ask: None,
            waits_on: None,
        };
        let number = self.add_call(at, call);
        self.place_call(id, at, number);
    }

    pub(crate) fn is_asked(&self, id: &AskId) -> bool {
        self.run.as_ref().is_some_and(|run| run.asks.contains(id))
    }

    /// Keeps where a call is.
    pub(crate) fn place_call(&mut self, id: &CallId, at: usize, number: usize) {
        let Self { run: Some(run), turns, .. } = self else { return };
        run.calls.insert(id.clone(), (at, number));
        if let Some(turn) = turns.get(at) {
            let calls = &run.calls;
            run.asks.found(id, &turn.lane, |call| parent_lane(calls, turns, call));
        }
    }

    fn call(&self, id: &CallId) -> Option<(usize, usize)> {
        self.run.as_ref()?.calls.get(id).copied()
    }

    pub(crate) fn tool_input(&mut self, id: &CallId, input: &Json) {
        let Some((at, number)) = self.call(id) else { return };
        let Some(call) = self.turns.get_mut(at).and_then(|turn| turn.calls.get_mut(number)) else { return };
        // A question that is shown keeps the form that clients can draw.
        if call.ask.is_some() || call.is_final() || call.input == *input {
            return;
        }
        call.input = input.clone();
        if let Some(run) = &mut self.run {
            run.descriptions.remove(id);
        }
        if let Some(turn) = self.turns.get_mut(at) {
            turn.bytes = turn.bytes.saturating_add(2 * input.as_str().len());
        }
        self.stir();
        self.tell_call(at, number, true, false, Snapshot::Boundary);
    }

    /// A call that is about to end, with its turn's number and its own in it.
    fn ending(&mut self, id: &CallId) -> Option<(usize, usize)> {
        let (at, number) = self.call(id)?;
        if self.turns.get(at)?.calls.get(number)?.is_final() {
            return None;
        }
        self.stir();
        self.end_children(id);
        Some((at, number))
    }

    pub(crate) fn tool_aborted(&mut self, id: &CallId) {
        let Some((at, number)) = self.ending(id) else { return };
        self.cancel_call(at, number);
        self.complete_paused(at);
    }

    pub(crate) fn tool_ended(&mut self, id: &CallId, text: &Text, raw: Option<&Json>, is_error: bool) {
        let Some((at, number)) = self.ending(id) else { return };
        self.end_call(at, number, if is_error { CallStatus::Error } else { CallStatus::Done }, shown(text, raw));
        for (kind, content) in page_blocks(text, raw) {
            self.add_block(at, Block::Meta { kind, call: number, content });
        }
        if !is_error {
            self.tool_wrote(at, number);
        }
        self.complete_paused(at);
    }

    /// A call that its tool will not end any more (socketio.md §4.5).
    pub(crate) fn cancel_call(&mut self, at: usize, number: usize) {
        let Some(turn) = self.turns.get_mut(at) else { return };
        let Some(call) = turn.calls.get_mut(number) else { return };
        let had_ref = call.waits_on.take().is_some();
        call.status = CallStatus::Cancelled;
        call.ask = None;
        turn.open.remove(&number);
        self.raw_ended(at, number);
        self.tell_call(at, number, false, had_ref, Snapshot::Boundary);
    }

    /// A sub-agent's turns end before the call that started it does. One that works on in the background goes on.
    fn end_children(&mut self, call: &CallId) {
        if let Some(child) = self.open_in(&Lane::Agent(call.clone()))
            && self.turns.get(child).is_some_and(Turn::all_calls_final)
        {
            self.end_family(child, TurnStatus::Completed);
        }
    }
}

/// The lane in which the call was made that started an agent.
pub(crate) fn parent_lane(calls: &HashMap<CallId, (usize, usize)>, turns: &[Turn], call: &CallId) -> Option<Lane> {
    calls.get(call).and_then(|(turn, _)| turns.get(*turn)).map(|turn| turn.lane.clone())
}
