//! Messages of the model: streamed as the provider's own events, and as snapshots (native-ws.md §5.1 3–4).

use interline_model::{Event, Text};
use serde_json::value::RawValue;

use super::Run;
use super::lanes::LaneId;
use super::tools;
use crate::frame::{Assistant, StreamEvent};
use crate::object::{Object, elements, pick, whole_number};
use crate::string::{cow, pieces};
use crate::think::Voice;

impl Run {
    /// One event of the provider's stream. The commonest frame of some servers, so it is read without lists.
    pub(super) fn stream_event(&mut self, lane: LaneId, event: &StreamEvent<'_>, events: &mut Vec<Event>) {
        let frame = event.object().frame();
        let Some(event) = event.object().raw("event") else { return };
        let [kind, index, delta, block, message, usage] = pick(event, ["type", "index", "delta", "content_block", "message", "usage"]);
        let index = index.and_then(whole_number);
        match kind.and_then(cow).as_deref() {
            Some("content_block_delta") => {
                if let Some(delta) = delta {
                    self.delta(lane, frame, index, delta, events);
                }
            }
            Some("content_block_start") => {
                if let Some(block) = block.and_then(|block| Object::inside(frame, block)) {
                    self.block_started(lane, index, &block, events);
                }
            }
            Some("content_block_stop") => self.block_stopped(lane, index, events),
            Some("message_start") => {
                self.all_blocks_stopped(lane, events);
                let message = message.and_then(|message| Object::inside(frame, message));
                let lane = self.lanes.get(lane);
                lane.messages.start(message.as_ref().and_then(|message| message.str("id")));
                if let Some(usage) = message.and_then(|message| message.object("usage")) {
                    lane.speaker.meter.message(&usage);
                }
            }
            Some("message_delta") => {
                if let Some(usage) = usage.and_then(|usage| Object::inside(frame, usage)) {
                    self.lanes.get(lane).speaker.meter.update(&usage);
                }
            }
            Some("message_stop") => self.all_blocks_stopped(lane, events),
            _ => {}
        }
    }

    fn delta(&mut self, lane: LaneId, frame: &Text, index: Option<u64>, delta: &RawValue, events: &mut Vec<Event>) {
        let [kind, answer, thinking, json] = pick(delta, ["type", "text", "thinking", "partial_json"]);
        let lane = self.lanes.get(lane);
        match (kind.and_then(cow).as_deref(), answer, thinking, json) {
            (Some("text_delta"), Some(delta), ..) => lane.delta(Voice::Text, pieces(frame, delta), events),
            (Some("thinking_delta"), _, Some(delta), _) => lane.delta(Voice::Thinking, pieces(frame, delta), events),
            (Some("input_json_delta"), .., Some(delta)) => {
                if let Some(block) = lane.blocks.iter_mut().find(|block| block.index == index) {
                    block.json.push_str(&cow(delta).unwrap_or_default());
                }
            }
            _ => {}
        }
    }

    /// A message, or those of its blocks that are finished.
    pub(super) fn assistant(&mut self, lane: LaneId, frame: &Assistant<'_>, events: &mut Vec<Event>) {
        let Some(message) = frame.message() else { return };
        let id = message.str("id");
        let state = self.lanes.get(lane);
        if let Some(usage) = message.object("usage").filter(|_| !state.messages.streams()) {
            state.speaker.meter.snapshot(id.clone(), &usage);
        }
        let Some(content) = message.raw("content") else { return };
        if content.get().starts_with('"') {
            self.lanes.get(lane).snapshot(id, Voice::Text, pieces(message.frame(), content), events);
            return;
        }
        for block in elements(content).into_iter().filter_map(|block| Object::inside(message.frame(), block)) {
            let said = |name| block.raw(name).map(|raw| pieces(message.frame(), raw)).unwrap_or_default();
            match block.cow("type").as_deref() {
                Some("text") => self.lanes.get(lane).snapshot(id.clone(), Voice::Text, said("text"), events),
                Some("thinking") => self.lanes.get(lane).snapshot(id.clone(), Voice::Thinking, said("thinking"), events),
                Some("tool_use") => {
                    if let Some(call) = block.str("id").filter(|call| !call.is_empty()) {
                        let tool = self.know(call, lane, block.str("name"));
                        self.mention(tool, block.json("input"), events);
                    }
                }
                _ => {}
            }
        }
    }

    /// Results of tools in a user's message; whether there were any.
    pub(super) fn tool_results(&mut self, lane: LaneId, message: Option<&Object<'_>>, events: &mut Vec<Event>) -> bool {
        let Some(message) = message else { return false };
        let mut any = false;
        for block in message.objects("content").filter(|block| block.cow("type").as_deref() == Some("tool_result")) {
            if let Some(call) = block.str("tool_use_id").filter(|call| !call.is_empty()) {
                let tool = self.know(call, lane, None);
                self.finish(tool, tools::told(&block), tools::is_error(&block), false, events);
                any = true;
            }
        }
        any
    }
}
