//! Tool calls: announced any number of times by four kinds of frames in any order, told once, ended once (decision 11).

use std::collections::HashMap;

use interline_model::{AskOutcome, CallId, Event, Json, Text, What};

use super::Run;
use super::lanes::{Block, LaneId};
use super::plan;
use crate::object::{Object, elements, is_truthy};
use crate::string;

/// The name of a call of which only the result has come.
const NAMELESS: &str = "tool";
/// What an ended run says for a call that had no result.
const INTERRUPTED: &str = "interrupted";

/// Which tool call; only [`Tools`] makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToolId(usize);

/// All tool calls of a run.
#[derive(Debug, Default)]
pub(super) struct Tools {
    all: Vec<Tool>,
    by_id: HashMap<Text, ToolId>,
}

#[derive(Debug)]
pub(super) struct Tool {
    pub(super) call: CallId,
    pub(super) lane: LaneId,
    name: Option<Text>,
    pub(super) stage: Stage,
    has_input: bool,
    /// Its content block is being streamed, so its input will be known soon.
    streaming: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not announced yet.
    Waiting,
    /// Announced.
    Open,
    /// Ended.
    Ended,
}

impl Tools {
    pub(super) fn find(&self, id: &str) -> Option<ToolId> {
        self.by_id.get(id).copied()
    }

    pub(super) fn get(&self, tool: ToolId) -> Option<&Tool> {
        self.all.get(tool.0)
    }

    fn get_mut(&mut self, tool: ToolId) -> Option<&mut Tool> {
        self.all.get_mut(tool.0)
    }
}

impl Run {
    /// The call with this id. A new one belongs to `lane`; a known one stays where it is. The first name counts.
    pub(super) fn know(&mut self, id: Text, lane: LaneId, name: Option<Text>) -> ToolId {
        let name = name.filter(|name| !name.is_empty());
        if let Some(tool) = self.tools.find(&id) {
            if let Some(tool) = self.tools.get_mut(tool).filter(|tool| tool.name.is_none()) {
                tool.name = name;
            }
            return tool;
        }
        let tool = ToolId(self.tools.all.len());
        let call = CallId::from(id.clone());
        self.tools.all.push(Tool { call, lane, name, stage: Stage::Waiting, has_input: false, streaming: false });
        self.tools.by_id.insert(id, tool);
        self.lanes.get(lane).open_tools.push(tool);
        tool
    }

    /// A call came up, by whatever frame, with its input if that frame has it.
    pub(super) fn mention(&mut self, tool: ToolId, input: Option<Json>, events: &mut Vec<Event>) {
        match self.tools.get(tool) {
            Some(Tool { stage: Stage::Waiting, streaming: true, .. }) if input.is_none() => {}
            Some(Tool { stage: Stage::Waiting, .. }) => self.announce(tool, input, events),
            Some(Tool { stage: Stage::Open, has_input: false, .. }) => {
                if let Some(input) = input {
                    self.add_input(tool, input.into_object(), events);
                }
            }
            _ => {}
        }
    }

    /// Announces a call now, if that has not been done.
    pub(super) fn announce(&mut self, tool: ToolId, input: Option<Json>, events: &mut Vec<Event>) {
        let Some(tool) = self.tools.get_mut(tool).filter(|tool| tool.stage == Stage::Waiting) else { return };
        let input = input.map(Json::into_object);
        tool.stage = Stage::Open;
        tool.has_input = input.is_some();
        let name = tool.name.get_or_insert(Text::from_static(NAMELESS)).clone();
        let steps = input.as_ref().and_then(|input| plan::steps(&name, input));
        let speaker = &mut self.lanes.get(tool.lane).speaker;
        speaker.call_started(tool.call.clone(), name, input, events);
        events.extend(steps.map(|steps| speaker.event(What::PlanChanged { steps })));
    }

    fn add_input(&mut self, tool: ToolId, input: Json, events: &mut Vec<Event>) {
        let Some(tool) = self.tools.get_mut(tool) else { return };
        tool.has_input = true;
        let steps = tool.name.as_ref().and_then(|name| plan::steps(name, &input));
        let speaker = &self.lanes.get(tool.lane).speaker;
        events.push(speaker.event(What::ToolInput { call: tool.call.clone(), input }));
        events.extend(steps.map(|steps| speaker.event(What::PlanChanged { steps })));
    }

    /// A call is over. The first result counts.
    pub(super) fn finish(&mut self, tool: ToolId, result: impl Into<Told>, is_error: bool, aborted: bool, events: &mut Vec<Event>) {
        if self.tools.get(tool).is_some_and(|known| known.stage == Stage::Waiting) {
            let input = self.take_block(tool).and_then(Block::input);
            self.announce(tool, input, events);
        }
        let Some(known) = self.tools.get_mut(tool).filter(|known| known.stage == Stage::Open) else { return };
        known.stage = Stage::Ended;
        let (call, lane) = (known.call.clone(), known.lane);
        self.lanes.get(lane).open_tools.retain(|open| *open != tool);
        if let Some(agent) = self.lanes.started_by(call.as_str()) {
            agent.speaker.close(events);
        }
        self.lanes.get(lane).speaker.call_ended(call.clone(), result.into(), is_error, aborted, events);
        self.settle(|ask| ask.call.as_deref() == Some(call.as_str()), AskOutcome::Void, events);
    }

    /// Ends a call that nobody will end any more.
    pub(super) fn abort(&mut self, tool: ToolId, events: &mut Vec<Event>) {
        self.finish(tool, Text::from_static(INTERRUPTED), true, true, events);
    }

    /// A call's content block begins to stream.
    pub(super) fn block_started(&mut self, lane: LaneId, index: Option<u64>, block: &Object<'_>, events: &mut Vec<Event>) {
        // A block that was never stopped makes room.
        self.block_stopped(lane, index, events);
        let Some(id) = block.str("id").filter(|id| !id.is_empty()) else { return };
        if block.cow("type").as_deref() != Some("tool_use") {
            return;
        }
        let tool = self.know(id, lane, block.str("name"));
        if let Some(known) = self.tools.get_mut(tool) {
            known.streaming = true;
        }
        let initial = block.json("input").filter(|input| !input.is_empty_object());
        self.lanes.get(lane).blocks.push(Block { index, tool, json: String::new(), initial });
    }

    /// A call's content block is complete, so its input is known.
    pub(super) fn block_stopped(&mut self, lane: LaneId, index: Option<u64>, events: &mut Vec<Event>) {
        let blocks = &mut self.lanes.get(lane).blocks;
        if let Some(at) = blocks.iter().position(|block| block.index == index) {
            let block = blocks.remove(at);
            self.block_done(block, events);
        }
    }

    /// No block of this lane goes on.
    pub(super) fn all_blocks_stopped(&mut self, lane: LaneId, events: &mut Vec<Event>) {
        for block in std::mem::take(&mut self.lanes.get(lane).blocks) {
            self.block_done(block, events);
        }
    }

    fn block_done(&mut self, block: Block, events: &mut Vec<Event>) {
        let tool = block.tool;
        if let Some(known) = self.tools.get_mut(tool) {
            known.streaming = false;
        }
        self.mention(tool, block.input(), events);
    }

    fn take_block(&mut self, tool: ToolId) -> Option<Block> {
        let lane = self.tools.get(tool)?.lane;
        let blocks = &mut self.lanes.get(lane).blocks;
        let at = blocks.iter().position(|block| block.tool == tool)?;
        Some(blocks.remove(at))
    }
}

/// Whether the text of a result says that the call failed: `^(error: )?error in [^:]+: ` (decision 11).
pub(super) fn says_error(result: &str) -> bool {
    let rest = result.strip_prefix("error: ").unwrap_or(result);
    let Some((tool, rest)) = rest.strip_prefix("error in ").and_then(|rest| rest.split_once(':')) else { return false };
    !tool.is_empty() && rest.starts_with(' ')
}

/// A result as it is told.
pub(super) struct Told {
    pub(super) text: Text,
    /// As it came, where it is an object or a list.
    pub(super) raw: Option<Json>,
}

impl From<Text> for Told {
    fn from(text: Text) -> Self {
        Self { text, raw: None }
    }
}

/// The result of a `tool_result`.
pub(super) fn told(block: &Object<'_>) -> Told {
    let structured = block.raw("content").is_some_and(|raw| raw.get().starts_with(['{', '[']));
    Told { text: result_text(block), raw: structured.then(|| block.json("content")).flatten() }
}

/// The text of a `tool_result`: a string, the text parts of a list, else the JSON.
fn result_text(block: &Object<'_>) -> Text {
    let Some(raw) = block.raw("content") else { return Text::new() };
    if let Some(text) = string::text(block.frame(), raw) {
        return text;
    }
    if !raw.get().starts_with('[') {
        return block.json("content").map(|json| json.text()).unwrap_or_default();
    }
    let parts = elements(raw).into_iter().filter_map(|part| Object::inside(block.frame(), part));
    let texts: Vec<Text> = parts.filter(|part| part.cow("type").as_deref() == Some("text")).filter_map(|part| part.str("text")).collect();
    match texts.as_slice() {
        [one] => one.clone(),
        texts => Text::from(texts.iter().map(|text| &**text).collect::<String>()),
    }
}

/// Whether a `tool_result` is an error.
pub(super) fn is_error(block: &Object<'_>) -> bool {
    block.raw("is_error").is_some_and(is_truthy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_by_prefix() {
        for (text, error) in [
            ("error in Bash: denied by user", true),
            ("error: error in Bash: no", true),
            ("error in two\nlines: x", true),
            ("error in Bash:", false),
            ("error in Bash:x: y", false),
            ("error in : x", false),
            ("Error in Bash: x", false),
            ("error: error: error in Bash: x", false),
            (" error in Bash: x", false),
            ("no error in Bash: x", false),
            ("", false),
        ] {
            assert_eq!(says_error(text), error, "{text:?}");
        }
    }

    #[test]
    fn texts_of_results() {
        for (content, text) in [
            (r#""plain""#, "plain"),
            ("null", ""),
            ("[]", ""),
            (r#"[{"type":"text","text":"a"}]"#, "a"),
            (
                r#"[{"type":"text","text":"a"},{"type":"image"},7,{"type":"text","text":"b"},{"type":"text"},{"type":"text","text":"c"}]"#,
                "abc",
            ),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            ("1.50", "1.50"),
        ] {
            let frame = Text::from(format!("{{\"content\":{content}}}"));
            assert_eq!(&*result_text(&Object::parse(&frame).unwrap()), text, "{content}");
        }
        assert_eq!(&*result_text(&Object::parse(&Text::from_static("{}")).unwrap()), "");
    }

    #[test]
    fn what_is_more_than_text_is_kept_as_it_came() {
        for (content, raw) in [
            (r#""{}""#, None),
            ("null", None),
            ("7", None),
            (r#"{"ok":true,"n":1.0}"#, Some(r#"{"ok":true,"n":1.0}"#)),
            (r#"[{"type":"image"}]"#, Some(r#"[{"type":"image"}]"#)),
        ] {
            let frame = Text::from(format!("{{\"content\":{content}}}"));
            let told = told(&Object::parse(&frame).unwrap());
            assert_eq!(told.raw.as_ref().map(Json::as_str), raw, "{content}");
        }
    }
}
