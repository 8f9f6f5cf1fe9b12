//! An independent check of Socket.IO events: each is valid JSON, readers of patches and of snapshots see the same turns, in order, and what
//! the root agent said stands in them.

use interline_model::{Event, What};
use interline_surface_socketio::{SocketEvent, SocketWriter};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::fold::{Fold, Format};

/// Reads the events of a session, from its beginning and as a socket that joins late.
///
/// Values that fit into no tree (numbers beyond a double, halves of characters) go through as they came. The readers of turns build trees,
/// so from the first such value on only the JSON itself is checked.
pub struct Checker {
    format: Format,
    whole: Option<Fold>,
    late: Option<Fold>,
    /// What the root agent says.
    meant: String,
}

impl Checker {
    /// A checker for patches of one format: 0 hybrid, 1 delta, else sync.
    #[must_use]
    pub fn new(format: u32) -> Self {
        let format = match format {
            0 => Format::Hybrid,
            1 => Format::Delta,
            _ => Format::Sync,
        };
        Self { format, whole: Some(Fold::new(format)), late: None, meant: String::new() }
    }

    /// What one record meant, and what was written for it.
    ///
    /// # Panics
    /// If that is not what it should be.
    pub fn see(&mut self, meant: &[Event], written: &[SocketEvent]) {
        for event in meant.iter().filter(|event| event.lane.is_root()) {
            if let What::Text { delta } = &event.what {
                self.meant.push_str(delta);
            }
        }
        for event in written {
            let Some(data) = tree(event) else {
                (self.whole, self.late) = (None, None);
                continue;
            };
            for fold in [&mut self.whole, &mut self.late].into_iter().flatten() {
                fold.see(event.name, &data);
            }
        }
    }

    /// A socket joins: it is shown what runs, and loads the rest.
    ///
    /// # Panics
    /// If what it is shown does not fit.
    pub fn join(&mut self, writer: &SocketWriter) {
        if self.whole.is_none() {
            return;
        }
        let mut late = Fold::late(self.format);
        for event in writer.late_subscriber() {
            late.see(event.name, &tree(&event).expect("what was told before"));
        }
        late.load(&turns(writer));
        self.late = Some(late);
    }

    /// The session is over for now: nothing runs, and REST shows what was told.
    ///
    /// # Panics
    /// If something runs, or was told otherwise.
    pub fn end(&self, writer: &SocketWriter) {
        assert!(!writer.chat_running(), "a chat without an end");
        assert!(writer.pending_question().is_none(), "a question without an end");
        if let Some(whole) = &self.whole {
            assert_eq!(said(whole), self.meant, "text");
        }
        for fold in self.whole.iter().chain(&self.late) {
            assert!(!fold.running, "a chat without an end");
            for turn in turns(writer) {
                let id = turn["turn_id"].as_str().expect("an id");
                for member in ["blocks", "tool_calls", "status"] {
                    assert_eq!(turn[member], fold.deltas[id][member], "{member} of {id}: REST and the events");
                }
            }
        }
    }
}

/// What the root agent's turns say.
fn said(fold: &Fold) -> String {
    let turns = fold.order.iter().filter_map(|id| fold.deltas.get(id));
    let own = turns.filter(|turn| turn["role"] == "assistant" && turn["loop_id"] == "root");
    let blocks = own.filter_map(|turn| turn["blocks"].as_array()).flatten();
    blocks.filter(|block| block["type"] == "text").filter_map(|block| block["content"].as_str()).collect()
}

fn turns(writer: &SocketWriter) -> Vec<Value> {
    serde_json::from_str(writer.messages_json().as_str()).expect("an array of turns")
}

/// The data as a tree, if all of it fits into one.
fn tree(event: &SocketEvent) -> Option<Value> {
    let json = event.data.as_str();
    assert!(json.starts_with('{') && !json.contains(['\n', '\r']), "{json}");
    let _: &RawValue = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in {json}"));
    serde_json::from_str(json).ok().filter(has_whole_arguments)
}

/// Whether the input of every call, JSON in a string, fits into a tree, too.
fn has_whole_arguments(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().all(|(name, value)| match value {
            Value::String(json) if name == "arguments" => serde_json::from_str::<Value>(json).is_ok(),
            value => has_whole_arguments(value),
        }),
        Value::Array(elements) => elements.iter().all(has_whole_arguments),
        _ => true,
    }
}
