//! Stories: what agents say and do in a run, told as frames in some of the many ways in which servers tell it. The story itself is the model
//! that the events are held to.

use interline_model::{Actor, Body, Fact, ForcedEnd, Principal, Record, RunAccepted, RunId, SessionId, Text};
use proptest::prelude::*;

pub(crate) const RUN: u128 = 7;

/// A run from its beginning to its end.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
    /// What stands between the frames: the place, and which noise.
    noise: Vec<(u16, u8)>,
    /// Which frames come again, and how much later.
    repeats: Vec<(u16, u8)>,
    /// Who goes first where several speak at once.
    picks: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Say(Said),
    /// Calls of one message, all open at once.
    Call(Vec<Call>),
}

#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) thinking: String,
    way: Way,
    /// Lengths of the pieces, in UTF-16 units: characters beyond the basic plane are cut in two.
    cuts: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// As deltas alone.
    Streamed,
    /// As deltas, and then whole.
    Both,
    /// Whole.
    Shown,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) result: String,
    pub(crate) is_error: bool,
    pub(crate) note: String,
    streamed: bool,
    /// What the sub-agent says that it starts.
    pub(crate) agent: Vec<Said>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Success,
    Error,
    Interrupted,
    TurnLimit,
    /// The upstream goes away.
    Silence,
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-zé漢😀🎉 \\n]{0,12}",
        1 => prop::sample::select(vec!["\r\n\r\nevent: done\ndata: {}\n\n", "\u{85}\u{2028}\u{2029}\u{0}", "data: {\"type\":\"done\"}", "\"\\", "</script>"]).prop_map(str::to_owned),
        1 => Just("漢😀".repeat(400)),
    ]
}

fn said() -> impl Strategy<Value = Said> {
    let way = prop::sample::select(vec![Way::Streamed, Way::Both, Way::Shown]);
    // Now and then longer than an event may be.
    let text = || prop_oneof![30 => any_text(), 1 => Just("é\u{1}😀".repeat(2500))];
    (text(), text(), way, prop::collection::vec(1..=255u8, 1..5)).prop_map(|(text, thinking, way, cuts)| Said { text, thinking, way, cuts })
}

fn call() -> impl Strategy<Value = Call> {
    (any_text(), any::<bool>(), any_text(), any::<bool>(), prop::collection::vec(said(), 0..3))
        .prop_map(|(result, is_error, note, streamed, agent)| Call { result, is_error, note, streamed, agent })
}

/// Any story.
pub(crate) fn stories() -> impl Strategy<Value = Story> {
    let step = prop_oneof![2 => said().prop_map(Step::Say), 1 => prop::collection::vec(call(), 1..4).prop_map(Step::Call)];
    let end = prop::sample::select(vec![End::Success, End::Error, End::Interrupted, End::TurnLimit, End::Silence]);
    (
        prop::collection::vec(step, 0..5),
        end,
        prop::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        prop::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        prop::collection::vec(any::<u8>(), 1..24),
    )
        .prop_map(|(steps, end, noise, repeats, picks)| Story { steps, end, noise, repeats, picks })
}

impl Call {
    /// The id of the `n`-th call of the `step`-th step.
    pub(crate) fn id(step: usize, n: usize) -> String {
        format!("call-{step}-{n}")
    }

    pub(crate) fn input(&self, step: usize, n: usize) -> String {
        format!(r#"{{"step":{step},"n":{n}.0,"note":{}}}"#, quoted(&self.note))
    }
}

impl Story {
    /// All records of the run.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut bodies = vec![accepted()];
        bodies.extend(self.frames().into_iter().map(frame));
        if self.end == End::Silence {
            bodies.push(Body::Fact(Fact::EndForced(ForcedEnd::UpstreamGone)));
        }
        // Whatever follows the end is late.
        bodies.push(frame(r#"{"type":"streamlined_text","text":"late"}"#));
        records(bodies)
    }

    fn frames(&self) -> Vec<String> {
        let mut frames = Vec::new();
        let mut picks = self.picks.iter().copied().cycle();
        for (at, step) in self.steps.iter().enumerate() {
            match step {
                Step::Say(said) => frames.extend(said.frames(&format!("m{at}"), None)),
                Step::Call(calls) => {
                    frames.extend(announced(at, calls, &mut picks));
                    let inner = calls.iter().enumerate().map(|(n, call)| {
                        let id = Call::id(at, n);
                        let said = call.agent.iter().enumerate().flat_map(|(k, said)| said.frames(&format!("{id}-m{k}"), Some(&id)));
                        let content = quoted(&call.result);
                        let ended = format!(
                            r#"{{"type":"user","message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":{content},"is_error":{}}}]}}}}"#,
                            call.is_error
                        );
                        said.chain([ended]).collect()
                    });
                    frames.extend(merged(inner.collect(), &mut picks));
                }
            }
        }
        // Repeats are known by their uuid (decision 13).
        let mut frames: Vec<String> =
            frames.iter().enumerate().map(|(n, frame)| format!(r#"{{"uuid":"u{n}",{}"#, frame.strip_prefix('{').unwrap())).collect();
        for (which, later) in &self.repeats {
            if !frames.is_empty() {
                let which = usize::from(*which) % frames.len();
                let place = (which + 1 + usize::from(*later)).min(frames.len());
                frames.insert(place, frames[which].clone());
            }
        }
        for (n, (place, which)) in self.noise.iter().enumerate() {
            frames.insert(usize::from(*place) % (frames.len() + 1), noise(*which, n));
        }
        frames.extend(self.end.frame());
        frames
    }
}

impl Said {
    fn frames(&self, id: &str, parent: Option<&str>) -> Vec<String> {
        let mut frames = Vec::new();
        let event = |event: String| wrapped(&format!(r#""type":"stream_event","event":{event}"#), parent);
        if self.way != Way::Shown {
            frames.push(event(format!(r#"{{"type":"message_start","message":{{"id":"{id}","role":"assistant","content":[]}}}}"#)));
            for (index, kind, member, text) in [(0, "thinking", "thinking", &self.thinking), (1, "text", "text", &self.text)] {
                frames.push(event(format!(
                    r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"{kind}","{member}":""}}}}"#
                )));
                for piece in pieces(text, &self.cuts) {
                    frames.push(event(format!(
                        r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"{kind}_delta","{member}":{piece}}}}}"#
                    )));
                }
                frames.push(event(format!(r#"{{"type":"content_block_stop","index":{index}}}"#)));
            }
        }
        if self.way != Way::Streamed {
            let (text, thinking) = (quoted(&self.text), quoted(&self.thinking));
            frames.push(wrapped(
                &format!(
                    r#""type":"assistant","message":{{"role":"assistant","id":"{id}","content":[{{"type":"thinking","thinking":{thinking}}},{{"type":"text","text":{text}}}]}}"#
                ),
                parent,
            ));
        }
        if self.way != Way::Shown {
            frames.push(event(r#"{"type":"message_stop"}"#.to_owned()));
        }
        frames
    }
}

impl End {
    fn frame(self) -> Option<String> {
        Some(match self {
            Self::Success => r#"{"type":"result","subtype":"success","is_error":false,"stop_reason":"end_turn","total_cost_usd":0.01,"num_turns":2,"usage":{"input_tokens":1,"output_tokens":2}}"#.to_owned(),
            Self::Error => r#"{"type":"result","subtype":"error_during_execution","is_error":true,"errors":[{"message":"529: Overloaded","recoverable":false}]}"#.to_owned(),
            Self::Interrupted => r#"{"type":"result","subtype":"success","is_error":false,"stop_reason":"interrupted"}"#.to_owned(),
            Self::TurnLimit => r#"{"type":"result","subtype":"error_max_turns","is_error":true,"errors":[]}"#.to_owned(),
            Self::Silence => return None,
        })
    }

    /// The terminal event's type, and its reason or kind.
    pub(crate) fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::Success => ("done", "end_turn"),
            Self::Error => ("error", "provider_overloaded"),
            Self::Interrupted => ("interrupted", "interrupted"),
            Self::TurnLimit => ("done", "budget_exhausted"),
            Self::Silence => ("error", "missing_terminal_event"),
        }
    }
}

/// The calls of one message: its blocks streamed across each other, or each shown whole.
fn announced(step: usize, calls: &[Call], picks: &mut impl Iterator<Item = u8>) -> Vec<String> {
    let event = |event: String| format!(r#"{{"type":"stream_event","event":{event}}}"#);
    let id = format!("m{step}");
    let mut frames = Vec::new();
    if calls.iter().any(|call| call.streamed) {
        frames.push(event(format!(r#"{{"type":"message_start","message":{{"id":"{id}"}}}}"#)));
    }
    let blocks = calls.iter().enumerate().filter(|(_, call)| call.streamed).map(|(n, call)| {
        let (index, call_id) = (n + 2, Call::id(step, n));
        let start = format!(
            r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"{call_id}","name":"Tool","input":{{}}}}}}"#
        );
        let deltas = pieces(&call.input(step, n), &[5]).into_iter().map(|piece| {
            format!(r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"input_json_delta","partial_json":{piece}}}}}"#)
        });
        let stop = format!(r#"{{"type":"content_block_stop","index":{index}}}"#);
        [start].into_iter().chain(deltas).chain([stop]).map(event).collect()
    });
    frames.extend(merged(blocks.collect(), picks));
    for (n, call) in calls.iter().enumerate().filter(|(_, call)| !call.streamed) {
        let (call_id, input) = (Call::id(step, n), call.input(step, n));
        frames.push(format!(
            r#"{{"type":"assistant","message":{{"id":"{id}-{n}","role":"assistant","content":[{{"type":"tool_use","id":"{call_id}","name":"Tool","input":{input}}}]}}}}"#
        ));
    }
    frames
}

/// The lists as one, each in its own order.
fn merged(lists: Vec<Vec<String>>, picks: &mut impl Iterator<Item = u8>) -> Vec<String> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    while !lists.is_empty() {
        let which = usize::from(picks.next().unwrap()) % lists.len();
        match lists[which].next() {
            Some(frame) => all.push(frame),
            None => drop(lists.remove(which)),
        }
    }
    all
}

/// What says nothing in the answer.
fn noise(which: u8, n: usize) -> String {
    match which % 9 {
        0 => r#"{"type":"keep_alive"}"#.to_owned(),
        1 => "null".to_owned(),
        2 => r#"{"type":"streamlined_text","text":"cut"#.to_owned(),
        3 => r#"{"type":"from_the_future","text":"no"}"#.to_owned(),
        4 => r#"{"type":"system","subtype":"api_retry","attempt":1,"error":"overloaded"}"#.to_owned(),
        5 => format!(
            r#"{{"type":"control_request","request_id":"r{n}","request":{{"subtype":"can_use_tool","tool_name":"Bash","input":{{"command":"ls"}}}}}}"#
        ),
        6 => r#"{"type":"result","is_error":true,"errors":[{"message":"once more","recoverable":true}]}"#.to_owned(),
        7 => format!(r#"{{"type":"system","subtype":"task_started","task_id":"t{n}","description":"look"}}"#),
        _ => r#"{"type":"system","subtype":"status","status":"compacting","permissionMode":"plan"}"#.to_owned(),
    }
}

/// A frame of the root's or a sub-agent's.
fn wrapped(members: &str, parent: Option<&str>) -> String {
    match parent {
        Some(parent) => format!(r#"{{{members},"parent_tool_use_id":"{parent}"}}"#),
        None => format!("{{{members}}}"),
    }
}

/// A text as JSON strings of so many UTF-16 units each.
fn pieces(text: &str, cuts: &[u8]) -> Vec<String> {
    let units: Vec<u16> = text.encode_utf16().collect();
    let mut cuts = cuts.iter().copied().cycle();
    let mut rest = units.as_slice();
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, further) = rest.split_at(usize::from(cuts.next().unwrap()).min(rest.len()));
        pieces.push(json_string(piece));
        rest = further;
    }
    pieces
}

pub(crate) fn quoted(text: &str) -> String {
    json_string(&text.encode_utf16().collect::<Vec<_>>())
}

fn json_string(units: &[u16]) -> String {
    let mut out = String::from("\"");
    for unit in units {
        match u8::try_from(*unit) {
            Ok(byte @ (b' '..=b'!' | b'#'..=b'[' | b']'..=b'~')) => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\u{unit:04x}")),
        }
    }
    out + "\""
}

pub(crate) fn accepted() -> Body {
    Body::Fact(Fact::RunAccepted(Box::new(RunAccepted {
        run: RunId::from_u128(RUN),
        session: SessionId::from("s"),
        model: "m".into(),
        input: Vec::new(),
        by: Actor { principal: Principal::from("p"), surface: "sse".into() },
        actor: None,
        headless: false,
        output_schema: None,
    })))
}

pub(crate) fn frame(text: impl Into<Text>) -> Body {
    Body::Frame(text.into())
}

pub(crate) fn records(bodies: impl IntoIterator<Item = Body>) -> Vec<Record> {
    (0..).zip(bodies).map(|(n, body)| Record { at: 1000 + 7 * n, body }).collect()
}
