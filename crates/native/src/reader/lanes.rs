//! Lanes: the root agent and every sub-agent, each with its own text, turns and content blocks.

use std::collections::HashMap;

use interline_model::{CallId, Event, Json, Lane, Text};

use super::messages::Messages;
use super::tools::ToolId;
use super::turns::Speaker;
use crate::string::Pieces;
use crate::think::{Splitter, Voice};

/// Which lane; only [`Lanes`] makes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneId(usize);

/// The root agent's lane.
pub(super) const ROOT: LaneId = LaneId(0);

/// All lanes of a run.
#[derive(Debug)]
pub(super) struct Lanes {
    root: LaneState,
    agents: Vec<LaneState>,
    by_call: HashMap<Text, LaneId>,
}

/// One lane.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) speaker: Speaker,
    pub(super) messages: Messages,
    /// Tool calls whose content block is still being streamed.
    pub(super) blocks: Vec<Block>,
    /// The calls that have not ended, in the order they came up.
    pub(super) open_tools: Vec<ToolId>,
    /// Whether an ask was ever raised here.
    pub(super) has_asked: bool,
    think: Splitter,
    /// `streamlined_text` has come: it is the text, and the other copies are not (decision 9).
    streamed: bool,
}

/// A content block of a tool call that is being streamed.
#[derive(Debug)]
pub(super) struct Block {
    /// Its place in the message. Deltas name it; which block came last says nothing.
    pub(super) index: Option<u64>,
    /// Whose.
    pub(super) tool: ToolId,
    /// The input so far.
    pub(super) json: String,
    /// The input that came with the start, if any.
    pub(super) initial: Option<Json>,
}

impl Block {
    /// The input as far as it is known: nothing, if what was streamed is no JSON.
    pub(super) fn input(self) -> Option<Json> {
        if self.json.trim().is_empty() { self.initial } else { Json::parse(self.json).ok() }
    }
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { root: LaneState::new(Lane::Root), agents: Vec::new(), by_call: HashMap::new() }
    }

    /// The lane of the sub-agent that `call` started.
    pub(super) fn of_agent(&mut self, call: Text) -> LaneId {
        if let Some(lane) = self.by_call.get(&call) {
            return *lane;
        }
        self.agents.push(LaneState::new(Lane::Agent(CallId::from(call.clone()))));
        let lane = LaneId(self.agents.len());
        self.by_call.insert(call, lane);
        lane
    }

    /// The lane of the sub-agent that `call` started, if it has said anything.
    pub(super) fn started_by(&mut self, call: &str) -> Option<&mut LaneState> {
        self.by_call.get(call).copied().map(|lane| self.get(lane))
    }

    /// The state of this lane, if anything was ever said in it.
    pub(super) fn find(&self, lane: &Lane) -> Option<&LaneState> {
        let call = match lane {
            Lane::Root => return Some(&self.root),
            Lane::Agent(call) => call,
        };
        let at = self.by_call.get(call.as_str())?.0.checked_sub(1)?;
        self.agents.get(at)
    }

    pub(super) fn get(&mut self, lane: LaneId) -> &mut LaneState {
        match lane.0.checked_sub(1).and_then(|agent| self.agents.get_mut(agent)) {
            Some(agent) => agent,
            None => &mut self.root,
        }
    }

    /// All lanes, inner ones before those that they were started from, the root last.
    pub(super) fn inside_out(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..=self.agents.len()).rev().map(LaneId)
    }
}

impl LaneState {
    fn new(lane: Lane) -> Self {
        Self {
            speaker: Speaker::new(lane),
            messages: Messages::default(),
            blocks: Vec::new(),
            open_tools: Vec::new(),
            has_asked: false,
            think: Splitter::default(),
            streamed: false,
        }
    }

    /// A piece of `streamlined_text`.
    pub(super) fn streamlined(&mut self, pieces: Pieces, events: &mut Vec<Event>) {
        for piece in pieces {
            self.streamed = true;
            self.think.feed(piece, &mut |voice, piece| self.speaker.say(voice, piece, events));
        }
    }

    /// A delta of a streamed message.
    pub(super) fn delta(&mut self, voice: Voice, pieces: Pieces, events: &mut Vec<Event>) {
        if !self.streamed {
            self.messages.delta(voice, &pieces);
            self.say(voice, pieces, events);
        }
    }

    /// A block of a message's snapshot.
    pub(super) fn snapshot(&mut self, id: Option<Text>, voice: Voice, pieces: Pieces, events: &mut Vec<Event>) {
        if !self.streamed {
            let rest = self.messages.snapshot(id, voice, pieces);
            self.say(voice, rest, events);
        }
    }

    fn say(&mut self, voice: Voice, pieces: Pieces, events: &mut Vec<Event>) {
        for piece in pieces {
            self.speaker.say(voice, piece, events);
        }
    }

    /// Whether anything is held back in the hope of more.
    pub(super) fn holds_text(&self) -> bool {
        self.think.holds() || self.speaker.holds_text()
    }

    /// Says what was held back in the hope of more.
    pub(super) fn flush(&mut self, events: &mut Vec<Event>) {
        self.think.flush(&mut |voice, piece| self.speaker.say(voice, piece, events));
        self.speaker.flush(events);
    }
}
