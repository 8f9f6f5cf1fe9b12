//! Patches of turns, and when a patch carries the whole turn (socketio.md §3.4, decision 23).
//!
//! Every piece of text goes out at once as a delta. Snapshots, for the readers that know nothing else, are thinned so that a long answer
//! costs what it is long and not the square of it.

use std::cell::Cell;
use std::ops::Range;

use interline_model::{Json, Millis, Text, path_segment};

use crate::ink::Ink;
use crate::mapping::{Facts, SocketEvent, SocketWriter};
use crate::object::{Object, object};
use crate::options::{Options, PatchFormat};
use crate::projection::{Block, Call, CallStatus, Results, Turn, TurnStatus};
use crate::result::beginning;

/// A turn whose text grew by this part since its last snapshot is worth a new one.
const GROWTH_PART: usize = 16;

/// What snapshots at boundaries (tool calls, results, new blocks, pauses) may cost: this much in any turn, and so many times the turn's own size. No
/// ordinary turn gets there; one with thousands of boundaries would cost the square of its length without it.
const BOUNDARY_BYTES: usize = 4 * 1024 * 1024;
const BOUNDARY_TIMES: usize = 4;

/// What must be left out of a patch for a shorter one to be written in its place: short turns, which are the most, are not worth the work.
const WORTH_SHORTENING: usize = 8 * 1024;

/// The envelope of a snapshot, roughly.
const SNAPSHOT_BYTES: usize = 512;

/// Whether a patch carries the whole turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Snapshot {
    /// No: too soon, or a snapshot follows at once.
    Without,
    /// Yes: the turn is due for one.
    Due,
    /// Yes, unless boundaries have cost too much.
    Boundary,
    /// Yes: nothing later would tell.
    Forced,
}

/// A patch that says again what others have said: a part of it that a later one says, too, need not be kept for whoever reads late.
pub(crate) struct Retold {
    /// Its number among the session's items.
    item: usize,
    /// How long it is.
    length: usize,
    /// The number of the block whose `content` it carries, and where that member is in it.
    content: Option<(usize, Range<usize>)>,
    /// Where the whole turn begins in it, which is its last member.
    turn: Option<usize>,
}

/// A patch that can be shorter: without the part of its JSON in `again`, and without what is behind `end`.
pub(crate) struct Shorter {
    item: usize,
    again: Range<usize>,
    end: usize,
}

impl Retold {
    /// What can be left out of it, now that there is a later one of the same turn. The `content` of a block that ended is said by no other.
    fn without(&self, later: &Self) -> Option<Shorter> {
        let whole = self.length.checked_sub(CLOSED.len())?;
        let end = self.turn.filter(|_| later.turn.is_some()).unwrap_or(whole);
        let again = match (&self.content, &later.content) {
            (Some((block, range)), Some((later, _))) if block == later => range.clone(),
            _ => end..end,
        };
        let left_out = again.len().saturating_add(whole.saturating_sub(end));
        (left_out >= WORTH_SHORTENING).then_some(Shorter { item: self.item, again, end })
    }
}

/// How a patch ends: its `data`, and itself.
const CLOSED: &str = "}}";

impl Shorter {
    pub(crate) fn apply(&self, items: &mut [SocketEvent], ink: &mut Ink) {
        let Some(event) = items.get_mut(self.item) else { return };
        let text = event.data.as_str();
        if let (Some(before), Some(behind)) = (text.get(..self.again.start), text.get(self.again.end..self.end)) {
            event.data = ink.joined(&[before, behind, CLOSED]);
        }
    }
}

/// Which kind of content a piece of text belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speech {
    Text,
    Thinking,
}

impl Turn {
    fn is_due(&self, now: Millis, options: &Options) -> bool {
        let (at, bytes) = self.shown;
        now.abs_diff(at) >= options.snapshot_ms
            && (self.bytes <= options.snapshot_bytes || self.bytes.saturating_sub(bytes) >= bytes / GROWTH_PART)
    }

    fn affords_boundary(&self) -> bool {
        self.boundary_bytes <= self.bytes.saturating_mul(BOUNDARY_TIMES).saturating_add(BOUNDARY_BYTES)
    }

    fn continues(&self, speech: Speech) -> bool {
        matches!((self.blocks.last(), speech), (Some(Block::Text(_)), Speech::Text) | (Some(Block::Thinking(_)), Speech::Thinking))
    }

    fn last_content(&self) -> &str {
        match self.blocks.last() {
            Some(Block::Text(text) | Block::Thinking(text)) => text,
            _ => "",
        }
    }

    fn append(&mut self, speech: Speech, delta: &str) {
        self.bytes = self.bytes.saturating_add(delta.len());
        match self.blocks.last_mut() {
            Some(Block::Text(text)) if speech == Speech::Text => text.push_str(delta),
            Some(Block::Thinking(text)) if speech == Speech::Thinking => text.push_str(delta),
            _ => self.blocks.push(if speech == Speech::Text { Block::Text(delta.to_owned()) } else { Block::Thinking(delta.to_owned()) }),
        }
    }
}

/// Writes a PatchEnvelope. Without a type it is a `sync` and carries the turn alone. `whole` hears where the turn begins in it.
fn write_envelope(
    object: &mut Object<'_>,
    facts: &Facts,
    turn: &Turn,
    patch_type: Option<&str>,
    whole: Option<&Cell<usize>>,
    data: impl FnOnce(&Turn, &mut Object<'_>),
) {
    object.text("session_id", facts.session.as_str());
    object.number("sequence", turn.patches);
    object.text("turn_id", &turn.turn_id);
    object.text("loop_id", &turn.loop_id);
    object.text("patch_type", patch_type.unwrap_or("sync"));
    object.object("data", |object| {
        if patch_type.is_some() {
            data(turn, object);
        }
        if let Some(begins) = whole {
            begins.set(object.len());
            object.object("turn", |object| turn.write(object, Results::Cut));
        }
    });
}

impl SocketWriter {
    /// Emits a patch of the turn number `at`, as it is now. `data` writes the members of the documented patch.
    fn patch(&mut self, at: usize, patch_type: &str, snapshot: Snapshot, data: impl FnOnce(&Turn, &mut Object<'_>)) {
        self.patch_with(at, patch_type, snapshot, &Cell::default(), data);
    }

    /// The same; `data` says where in the patch the `content` of the turn's last block is.
    fn patch_with(
        &mut self,
        at: usize,
        patch_type: &str,
        snapshot: Snapshot,
        content: &Cell<Range<usize>>,
        data: impl FnOnce(&Turn, &mut Object<'_>),
    ) {
        let Self { turns, options, facts, now, out, ink, raw: None, written, shorter, .. } = self else { return };
        let (Some(turn), Some(facts)) = (turns.get_mut(at), facts) else { return };
        let sync = options.patch_format == PatchFormat::Sync;
        let whole = match snapshot {
            _ if options.patch_format == PatchFormat::Delta => false,
            Snapshot::Without => false,
            Snapshot::Due | Snapshot::Forced => true,
            Snapshot::Boundary => turn.affords_boundary(),
        };
        if sync && !whole {
            turn.untold = true;
            return;
        }
        if whole {
            turn.shown = (*now, turn.bytes);
            turn.untold = false;
        }
        if whole && snapshot == Snapshot::Boundary {
            turn.boundary_bytes = turn.boundary_bytes.saturating_add(turn.bytes).saturating_add(SNAPSHOT_BYTES);
        }
        turn.patches += 1;
        let patch_type = if sync { None } else { Some(patch_type) };
        let begins = Cell::new(0);
        let data = ink.object(|object| write_envelope(object, facts, turn, patch_type, whole.then_some(&begins), data));
        let content = content.take();
        // A `sync` says nothing but what the next one says again, and there is no patch without anything.
        if !sync && (whole || !content.is_empty()) {
            let retold = Retold {
                item: *written + out.len(),
                length: data.as_str().len(),
                content: (!content.is_empty()).then_some((turn.blocks.len(), content)),
                turn: whole.then(|| begins.get()),
            };
            shorter.extend(turn.retold.as_ref().and_then(|before| before.without(&retold)));
            turn.retold = Some(retold);
        }
        out.push(SocketEvent { name: "turn:patch", data });
    }

    /// The status of a turn that paused earlier, for a socket that comes late: as the latest patch told it, under that patch's number.
    pub(crate) fn latest_status(&self, facts: &Facts, turn: &Turn) -> SocketEvent {
        let patch_type = if self.options.patch_format == PatchFormat::Sync { None } else { Some("set_status") };
        let whole = self.options.patch_format != PatchFormat::Delta;
        let status = |turn: &Turn, data: &mut Object<'_>| data.text("status", turn.status.as_str());
        let begins = Cell::new(0);
        let data = object(|object| write_envelope(object, facts, turn, patch_type, whole.then_some(&begins), status));
        SocketEvent { name: "turn:patch", data }
    }

    /// Adds a piece of text or thinking to a turn.
    pub(crate) fn say(&mut self, at: usize, speech: Speech, delta: &Text) {
        let starts = !self.turns.get(at).is_some_and(|turn| turn.continues(speech));
        if starts {
            self.tell_thinking(at);
        }
        let (now, filled) = (self.now, speech == Speech::Text || self.options.thinking_delta);
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.append(speech, delta);
        if self.raw.is_some() {
            return self.raw_said(at, speech, delta);
        }
        let due = starts || turn.is_due(now, &self.options);
        if due && self.options.patch_format == PatchFormat::Delta {
            // No snapshot will say so, and the whole `content` costs as much as one.
            turn.shown = (now, turn.bytes);
        }
        turn.thinking_unsent = !due && !filled;
        if !due && !filled {
            // socketio.md §3.4: a reader takes thinking from `content`, and a filled `text_delta` would leak into the answer.
            turn.untold = true;
            return;
        }
        let snapshot = match (starts, due) {
            (true, _) => Snapshot::Boundary,
            (false, true) => Snapshot::Due,
            (false, false) => Snapshot::Without,
        };
        let content = Cell::default();
        self.patch_with(at, "add_content", snapshot, &content, |turn, data| {
            data.text("type", if speech == Speech::Text { "text" } else { "thinking" });
            if due {
                let from = data.len();
                data.text("content", turn.last_content());
                content.set(from..data.len());
            }
            data.text("text_delta", if filled { delta } else { "" });
        });
    }

    /// Tells what no patch has told of a thinking block. Must come before anything else is appended to the turn.
    pub(crate) fn tell_thinking(&mut self, at: usize) {
        let Some(turn) = self.turns.get_mut(at) else { return };
        if std::mem::take(&mut turn.thinking_unsent) {
            self.patch(at, "add_content", Snapshot::Without, |turn, data| {
                data.text("type", "thinking");
                data.text("content", turn.last_content());
                data.text("text_delta", "");
            });
        }
    }

    /// Appends a call and its `tool_use` block.
    pub(crate) fn add_call(&mut self, at: usize, call: Call) -> usize {
        self.tell_thinking(at);
        let Some(turn) = self.turns.get_mut(at) else { return 0 };
        let number = turn.calls.len();
        turn.bytes = turn.bytes.saturating_add(2 * call.input.as_str().len()).saturating_add(SNAPSHOT_BYTES);
        if !call.is_final() {
            turn.open.insert(number);
        }
        turn.calls.push(call);
        turn.blocks.push(Block::ToolUse(number));
        self.raw_called(at, number);
        self.patch(at, "add_tool_call", Snapshot::Boundary, |turn, data| {
            let Some(call) = turn.calls.get(number) else { return };
            data.text("id", &call.id);
            data.text("tool_name", &call.tool_name);
            data.text("display_name", &call.display_name);
            data.text("arguments", call.input.as_str());
            data.text("status", call.status.as_str());
        });
        number
    }

    /// Ends a call with a result and appends its `tool_result` block.
    pub(crate) fn end_call(&mut self, at: usize, number: usize, status: CallStatus, result: Json) {
        self.tell_thinking(at);
        let (now, most) = (self.now, self.options.max_result_bytes);
        let session = self.facts.as_ref().map(|facts| &facts.session);
        let Some(turn) = self.turns.get_mut(at) else { return };
        let cut = beginning(&result, most, || {
            let session = session.map(|session| path_segment(session.as_str())).unwrap_or_default();
            format!("/api/sessions/{session}/turns/{}", turn.turn_id)
        });
        let told = cut.as_ref().unwrap_or(&result);
        turn.bytes = turn.bytes.saturating_add(2 * told.as_str().len()).saturating_add(SNAPSHOT_BYTES / 4);
        let Some(call) = turn.calls.get_mut(number) else { return };
        call.status = status;
        call.result = Some(result);
        call.cut = cut;
        call.duration_ms = Some(now.saturating_sub(call.started));
        call.waits_on = None;
        call.ask = None;
        turn.open.remove(&number);
        turn.blocks.push(Block::ToolResult(number));
        self.raw_ended(at, number);
        self.patch(at, "tool_result", Snapshot::Boundary, |turn, data| {
            let Some(call) = turn.calls.get(number) else { return };
            data.text("tool_call_id", &call.id);
            data.raw("result", call.result_as(Results::Cut));
            data.text("status", call.status.as_str());
            data.number_or_null("duration_ms", call.duration_ms);
        });
    }

    /// Appends a block that is neither spoken nor a call's beginning or end: whole, with `text_delta` null (socketio.md §3.4, rule 2).
    pub(crate) fn add_block(&mut self, at: usize, block: Block) {
        self.tell_thinking(at);
        let Some(turn) = self.turns.get_mut(at) else { return };
        let mut content = String::new();
        turn.write_content(&mut content, &block, Results::Cut);
        let (kind, call) = (block.kind(), block.call());
        turn.bytes = turn.bytes.saturating_add(content.len()).saturating_add(SNAPSHOT_BYTES / 4);
        turn.blocks.push(block);
        self.patch(at, "add_content", Snapshot::Boundary, |turn, data| {
            let call = call.and_then(|call| turn.calls.get(call));
            data.text("type", kind);
            data.raw("content", &content);
            data.null("text_delta");
            data.text_or_null("tool_call_id", call.map(|call| &*call.id));
            data.text_or_null("tool_name", call.map(|call| &*call.tool_name));
            data.text_or_null("display_name", call.map(|call| &*call.display_name));
        });
    }

    /// Tells a call's status, with its arguments if they changed (decision 11).
    pub(crate) fn tell_call(&mut self, at: usize, number: usize, with_arguments: bool, had_ref: bool, snapshot: Snapshot) {
        self.tell_thinking(at);
        if with_arguments {
            self.raw_arguments(at, number);
        }
        self.patch(at, "set_tool_status", snapshot, |turn, data| {
            let Some(call) = turn.calls.get(number) else { return };
            data.text("tool_call_id", &call.id);
            data.text("status", call.status.as_str());
            if with_arguments {
                data.text("arguments", call.input.as_str());
            }
            match &call.waits_on {
                Some(question) => data.object("pending_question_ref", |object| question.write(object)),
                None if had_ref => data.null("pending_question_ref"),
                None => {}
            }
        });
    }

    /// Changes the status of a turn whose `turn:end` has gone out, with the whole turn: nothing else tells a snapshot reader. A turn of a thousand
    /// sub-agents may pause and go on a thousand times, which tells itself no more at some point; its last status always does.
    pub(crate) fn set_turn_status(&mut self, at: usize, status: TurnStatus) {
        self.tell_thinking(at);
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.status = status;
        let last = !matches!(status, TurnStatus::Streaming | TurnStatus::Paused);
        let snapshot = if last { Snapshot::Forced } else { Snapshot::Boundary };
        self.patch(at, "set_status", snapshot, |turn, data| data.text("status", turn.status.as_str()));
    }

    /// What a reader of snapshots alone has not seen yet of a turn that is about to end.
    pub(crate) fn tell_all(&mut self, at: usize) {
        self.tell_thinking(at);
        let untold = self.turns.get(at).is_some_and(|turn| turn.untold);
        if untold && self.options.patch_format == PatchFormat::Sync {
            self.patch(at, "sync", Snapshot::Forced, |_, _| {});
        }
    }
}
