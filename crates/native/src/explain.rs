//! Why the reader says what it says: the same reader, and beside it which earlier frames waited for the one that made an event.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use interline_model::{Body, CallId, Event, ExplainReader, Fact, ForcedEnd, Held, Lane, Meaning, Reader as _, Reason, Record, Text, What};

use crate::frame::{Data, Frame, FrameKind, Key};
use crate::object::Object;
use crate::reader::{NativeReader, Settings};
use crate::rules;
use crate::string::text;

/// Explains one run. Its events are those of a [`NativeReader`] with the same settings.
#[derive(Debug)]
pub struct NativeExplainer {
    reader: NativeReader,
    /// How many records came.
    records: usize,
    /// A repeat means nothing, so it causes nothing.
    seen: HashSet<Key<'static>>,
    /// The frames of calls whose content block is being streamed.
    blocks: Vec<Block>,
    /// Frames whose text, or the end of it, waits for more.
    voices: HashMap<Lane, Vec<Held>>,
    stop: Option<usize>,
    recoverable: Option<usize>,
}

#[derive(Debug)]
struct Block {
    lane: Lane,
    index: Option<u64>,
    call: CallId,
    records: Vec<usize>,
}

impl NativeExplainer {
    /// An explainer for a new run.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            reader: NativeReader::new(settings),
            records: 0,
            seen: HashSet::new(),
            blocks: Vec::new(),
            voices: HashMap::new(),
            stop: None,
            recoverable: None,
        }
    }

    /// What a frame adds to what waits. Which blocks it ends is for afterwards: they still explain its events.
    fn notice(&mut self, number: usize, frame: &Frame<'_>) -> Vec<usize> {
        let Frame::Data(Data::StreamEvent(stream)) = frame else { return Vec::new() };
        let lane = lane_of(frame.object());
        let Some(event) = stream.event() else { return Vec::new() };
        let index = event.u64("index");
        let places = |blocks: &[Block], which: &dyn Fn(&Block) -> bool| {
            blocks.iter().enumerate().filter(|(_, block)| block.lane == lane && which(block)).map(|(at, _)| at).collect()
        };
        match event.cow("type").as_deref() {
            Some("content_block_start") => {
                // One that was never stopped makes room.
                let over = places(&self.blocks, &|block| block.index == index);
                let block = event.object("content_block");
                let call = block.filter(|block| block.cow("type").as_deref() == Some("tool_use")).and_then(|block| block.str("id"));
                if let Some(call) = call.filter(|call| !call.is_empty()) {
                    self.blocks.push(Block { lane, index, call: CallId::from(call), records: vec![number] });
                }
                over
            }
            Some("content_block_delta") => {
                let json = event.object("delta").is_some_and(|delta| delta.cow("type").as_deref() == Some("input_json_delta"));
                if let Some(block) = self.blocks.iter_mut().find(|block| json && block.lane == lane && block.index == index) {
                    block.records.push(number);
                }
                Vec::new()
            }
            Some("content_block_stop") => places(&self.blocks, &|block| block.index == index),
            Some("message_start" | "message_stop") => places(&self.blocks, &|_| true),
            _ => Vec::new(),
        }
    }

    fn held(&self, number: usize, record: &Record, event: &Event, before: Option<&Reason>) -> Vec<Held> {
        match &event.what {
            What::Text { .. } | What::Thinking { .. } => self.voices.get(&event.lane).cloned().unwrap_or_default(),
            What::ToolStarted { call, .. } | What::ToolInput { call, .. } => {
                let block = self.blocks.iter().find(|block| block.call == *call);
                let records = block.map(|block| block.records.as_slice()).unwrap_or_default();
                records.iter().filter(|held| **held != number).map(|held| Held { record: *held, rule: rules::TOOL_WAITS }).collect()
            }
            // It follows the call, or the input, that it is made of.
            What::PlanChanged { .. } => before.map(|before| before.held.clone()).unwrap_or_default(),
            What::RunEnded(_) => {
                let stop = self.stop.map(|record| Held { record, rule: rules::STOP_INTERRUPTS });
                let error = match &record.body {
                    Body::Fact(Fact::EndForced(ForcedEnd::ErrorStayed)) if stop.is_none() => self.recoverable,
                    _ => None,
                };
                let error = error.map(|record| Held { record, rule: rules::ERROR_STAYS });
                // A run that completes in spite of a stop does so for its own reasons.
                let counts =
                    matches!(&event.what, What::RunEnded(end) if matches!(end.outcome, interline_model::Outcome::Interrupted { .. }));
                stop.filter(|_| counts).into_iter().chain(error).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Keeps for later what this record said without its being told.
    fn remember(&mut self, number: usize, frame: Option<&Frame<'_>>, events: &[Event]) {
        for event in events {
            if let What::Text { .. } | What::Thinking { .. } = event.what {
                self.voices.remove(&event.lane);
            }
            if let What::Notice { code, .. } = &event.what
                && &**code == "recoverable_error"
            {
                self.recoverable = Some(number);
            }
        }
        let Some(Frame::Data(data)) = frame else { return };
        let lane = lane_of(data.object());
        let waits = match data {
            Data::StreamlinedText(said) => {
                let silent = !events.iter().any(|event| matches!(event.what, What::Text { .. } | What::Thinking { .. }));
                // A whole mark waits, too: what comes next is what it says because of it.
                self.reader.holds_text(&lane) || silent && said.text().is_some_and(|text| !text.is_empty())
            }
            Data::StreamEvent(_) | Data::Assistant(_) => self.reader.holds_text(&lane),
            _ => false,
        };
        if waits {
            self.voices.entry(lane).or_default().push(Held { record: number, rule: rules::THINK_MARKS });
        }
    }
}

impl ExplainReader for NativeExplainer {
    fn explain(&mut self, record: &Record) -> Meaning {
        let number = self.records;
        self.records += 1;
        let mut events = Vec::new();
        self.reader.read(record, &mut events);
        let frame = match &record.body {
            Body::Frame(text) => Frame::parse(text).ok(),
            Body::Fact(fact) => {
                if let Fact::StopRequested { .. } = fact {
                    self.stop.get_or_insert(number);
                }
                None
            }
        };
        let name = match (&record.body, &frame) {
            (Body::Frame(_), Some(frame)) => name(frame),
            (Body::Frame(_), None) => Text::from_static(FrameKind::Malformed.name()),
            (Body::Fact(fact), _) => Text::from_static(fact.name()),
        };
        let repeat = frame.as_ref().and_then(Frame::key).is_some_and(|key| !self.seen.insert(owned(&key)));
        let frame = frame.filter(|_| !repeat);
        let over = frame.as_ref().map(|frame| self.notice(number, frame)).unwrap_or_default();
        let table = frame.as_ref().map_or_else(|| rules::record_means(record), |frame| rules::means(frame.kind()));
        let mut reasons: Vec<Reason> = Vec::with_capacity(events.len());
        for event in &events {
            let held = self.held(number, record, event, reasons.last());
            reasons.push(Reason { rules: rules::pick(table, event), held });
        }
        for at in over.into_iter().rev() {
            self.blocks.remove(at);
        }
        self.remember(number, frame.as_ref(), &events);
        Meaning { name, events, reasons }
    }
}

fn owned(key: &Key<'_>) -> Key<'static> {
    let id = Cow::Owned(key.as_str().to_owned());
    match key {
        Key::Uuid(_) => Key::Uuid(id),
        Key::Request(_) => Key::Request(id),
    }
}

/// What a frame is called; one of the provider's stream also by its event.
fn name(frame: &Frame<'_>) -> Text {
    if let Frame::Data(Data::StreamEvent(stream)) = frame
        && let Some(event) = stream.event().and_then(|event| event.str("type"))
    {
        return Text::from(format!("{}/{event}", frame.name()));
    }
    frame.name()
}

/// The lane that the reader reads a frame in.
fn lane_of(object: &Object<'_>) -> Lane {
    let parent = object.raw("parent_tool_use_id").filter(|_| object.truthy("parent_tool_use_id"));
    parent.map_or(Lane::Root, |raw| Lane::Agent(CallId::from(text(object.frame(), raw).unwrap_or_else(|| Text::from(raw.get())))))
}
