//! An independent check of SSE run events: the bytes of each block (sse.md §5.4), its members (§3), and the order of a run (§3.5).

use std::collections::HashSet;
use std::fmt;

use interline_model::{Event, What};
use interline_surface_sse::{Block, Extras};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Reads the blocks of a session.
pub struct Checker {
    extras: Extras,
    run: Option<Run>,
    /// What the events say that the root agent said, and what the blocks say.
    meant: (String, String),
    told: (String, String),
}

#[derive(Default)]
struct Run {
    seq: u64,
    turn: Option<u64>,
    open: HashSet<String>,
    ended: HashSet<String>,
    /// A plan is open.
    planning: bool,
    /// The ids of all its plans.
    plans: HashSet<String>,
}

impl Checker {
    /// A checker of what clients get that want these extras.
    #[must_use]
    pub fn new(extras: Extras) -> Self {
        Self { extras, run: None, meant: Default::default(), told: Default::default() }
    }

    /// What one record meant, and what was written for it.
    ///
    /// # Panics
    /// If the blocks are not what they should be.
    pub fn see(&mut self, events: &[Event], blocks: &[Block]) {
        for event in events.iter().filter(|event| event.lane.is_root()) {
            match &event.what {
                What::Text { delta } => self.meant.0.push_str(delta),
                What::Thinking { delta } => self.meant.1.push_str(delta),
                _ => {}
            }
        }
        for block in blocks {
            self.block(block);
        }
        assert_eq!(self.told, self.meant, "text");
    }

    /// At the end of the session no run is open.
    ///
    /// # Panics
    /// If one is.
    pub fn end(&self) {
        assert!(self.run.is_none(), "a run without a terminal event");
    }

    fn block(&mut self, block: &Block) {
        let plain = block.plain();
        let text = std::str::from_utf8(&plain).expect("UTF-8");
        let json = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).expect("one data line");
        assert!(!json.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']), "a line separator in {json}");
        assert!(json.starts_with("{\"type\":\""), "{json}");
        assert_eq!(block.json(), json.as_bytes());
        assert_eq!(block.after_pad(), text.strip_prefix("data: ").unwrap_or_default().as_bytes());
        let members: Members = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in {json}"));
        assert!(!has_lone_surrogate(json), "half a character in {json}");
        let kind = members.text("type");
        if block.is_aside() {
            assert!(self.extras.has_events(), "nobody wants {json}");
            assert!(documented(&kind).is_none(), "documented, and without a number: {json}");
            assert_eq!(block.seq(), self.run.as_ref().map_or(0, |run| run.seq), "{json}");
            return;
        }
        members.are_those_of(&kind, self.extras, json);

        if kind == "run_start" {
            assert!(self.run.is_none(), "a run in a run: {json}");
            self.run = Some(Run::default());
        }
        let run = self.run.as_mut().unwrap_or_else(|| panic!("outside a run: {json}"));
        run.seq += 1;
        assert_eq!(block.seq(), run.seq, "{json}");
        let call = || members.text("call_id");
        match kind.as_str() {
            "turn_start" => assert!(run.turn.replace(members.number("turn_num")).is_none(), "a turn in a turn: {json}"),
            "turn_end" => {
                assert_eq!(run.turn.take(), Some(members.number("turn_num")), "{json}");
                assert!(run.open.is_empty(), "a call is open: {json}");
            }
            "stream_delta" | "thinking_delta" => {
                assert!(run.turn.is_some(), "outside a turn: {json}");
                let content = members.text("content");
                assert!(!content.is_empty(), "{json}");
                if kind == "stream_delta" { &mut self.told.0 } else { &mut self.told.1 }.push_str(&content);
            }
            "tool_start" => {
                assert!(run.turn.is_some(), "outside a turn: {json}");
                assert!(!run.ended.contains(&call()) && run.open.insert(call()), "starts again: {json}");
            }
            "tool_progress" => assert!(run.open.contains(&call()), "no such call: {json}"),
            "tool_end" => {
                assert!(run.open.remove(&call()), "no such call: {json}");
                run.ended.insert(call());
            }
            "plan_created" => {
                assert!(run.plans.insert(members.text("plan_id")), "a plan of this id was there: {json}");
                assert!(!std::mem::replace(&mut run.planning, true), "a plan in a plan: {json}");
            }
            "plan_updated" => assert!(run.planning, "no plan: {json}"),
            "plan_completed" => {
                assert!(members.number("done_steps") <= members.number("total_steps"), "{json}");
                assert!(std::mem::take(&mut run.planning), "no plan: {json}");
            }
            "plan_interrupted" => assert!(std::mem::take(&mut run.planning), "no plan: {json}"),
            _ => {}
        }
        let terminal = matches!(kind.as_str(), "done" | "interrupted" | "error");
        assert_eq!(block.is_terminal(), terminal, "{json}");
        if terminal {
            assert!(run.turn.is_none() && run.open.is_empty() && !run.planning, "something is open: {json}");
            self.run = None;
        }
    }
}

/// Whether a `\u` escape is half of a pair without the other half.
fn has_lone_surrogate(json: &str) -> bool {
    let mut high = false;
    let mut rest = json;
    while let Some((plain, after)) = rest.split_once('\\') {
        if high && !plain.is_empty() {
            return true;
        }
        let unit = after.strip_prefix('u').and_then(|hex| u16::from_str_radix(hex.get(..4)?, 16).ok());
        let is_low = unit.is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
        if high != is_low {
            return true;
        }
        high = unit.is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
        let mut chars = after.chars();
        chars.next();
        rest = if unit.is_some() { after.get(5..).unwrap_or_default() } else { chars.as_str() };
    }
    high
}

/// The members of an object as they came.
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    fn raw(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(member, _)| member == name);
        found.map_or_else(|| panic!("no {name}"), |(_, value)| value.get())
    }

    fn text(&self, name: &str) -> String {
        serde_json::from_str(self.raw(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn number(&self, name: &str) -> u64 {
        serde_json::from_str(self.raw(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The documented members, in the documented order, and others behind them if those are wanted.
    fn are_those_of(&self, kind: &str, extras: Extras, json: &str) {
        let documented = documented(kind).unwrap_or_else(|| panic!("an undocumented event: {json}"));
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.starts_with(documented), "members: {json}");
        assert!(extras.has_fields() || names.len() == documented.len(), "more members: {json}");
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "a member twice: {json}");
        for text in ["tool_name", "call_id", "request_id", "content", "output", "result", "reason", "error"] {
            if documented.contains(&text) {
                self.text(text);
            }
        }
    }
}

/// The members of a documented event, in order.
fn documented(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "run_start" => &["type", "run_id", "session_id", "model"],
        "turn_start" | "turn_end" => &["type", "turn_num"],
        "stream_delta" | "thinking_delta" => &["type", "content"],
        "tool_start" => &["type", "tool_name", "call_id", "arguments"],
        "tool_progress" => &["type", "call_id", "output"],
        "tool_end" => &["type", "call_id", "result", "is_error"],
        "approval_request" => &["type", "request_id", "tool_name", "arguments"],
        "plan_created" => &["type", "plan_id", "steps"],
        "plan_updated" => &["type", "task_id", "status", "result"],
        "plan_completed" => &["type", "total_steps", "done_steps"],
        "plan_interrupted" | "interrupted" => &["type", "reason"],
        "done" => &["type", "reason", "run_id"],
        "error" => &["type", "error", "kind", "severity"],
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
