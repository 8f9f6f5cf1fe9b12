//! Frames through the native reader and this writer: whatever comes, in whatever order, cut and repeated however, the stream obeys the grammar,
//! ends once, says what the frames said, and says it again in the same bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod grammar;
mod story;

use std::collections::BTreeMap;

use interline_model::{Body, Fact, ForcedEnd, Reader, Record, Text, Writer};
use interline_native::{NativeReader, Settings};
use interline_surface_sse::{Block, Extras, Options, SseWriter, SubAgents};
use proptest::prelude::*;
use serde_json::Value;
use story::{Call, Said, Step, Story, accepted, frame, records, stories};

/// The frames of every kind, as the protocol's page shows them.
const CATALOGUE: &str = include_str!("../../native/tests/data/frames.jsonl");

fn play(records: &[Record], options: &Options) -> Vec<Block> {
    let (mut reader, mut writer) = (NativeReader::new(Settings::default()), SseWriter::new(options.clone()));
    let (mut events, mut blocks) = (Vec::new(), Vec::new());
    for record in records {
        events.clear();
        reader.read(record, &mut events);
        writer.write(record, &events, &mut blocks);
    }
    blocks
}

fn check(blocks: &[Block]) -> Result<(), String> {
    grammar::check(blocks.iter().map(|block| grammar::Line {
        seq: block.seq(),
        is_aside: block.is_aside(),
        is_terminal: block.is_terminal(),
        wire: block.plain(),
    }))?;
    let ends = blocks.iter().filter(|block| block.is_terminal()).count();
    if ends == 1 && blocks.last().is_some_and(Block::is_terminal) { Ok(()) } else { Err(format!("{ends} ends, or not last")) }
}

fn parsed(blocks: &[Block]) -> Vec<Value> {
    blocks.iter().map(|block| serde_json::from_slice(&block.json()).unwrap()).collect()
}

/// What a reader of the stream has understood.
#[derive(Debug, Default, PartialEq)]
struct Understood {
    text: String,
    thinking: String,
    /// Input, result, whether it failed, and output, by call.
    calls: BTreeMap<String, (Value, String, bool, String)>,
    end: (String, String),
}

impl Understood {
    fn of_stream(events: &[Value]) -> Self {
        let mut understood = Self::default();
        let word = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
        for event in events {
            let call = || word(event, "call_id");
            match event["type"].as_str().unwrap() {
                "stream_delta" => understood.text.push_str(&word(event, "content")),
                "thinking_delta" => understood.thinking.push_str(&word(event, "content")),
                "tool_start" => {
                    understood.calls.insert(call(), (event["arguments"].clone(), String::new(), false, String::new()));
                }
                "tool_progress" => understood.calls.get_mut(&call()).unwrap().3.push_str(&word(event, "output")),
                "tool_end" => {
                    let known = understood.calls.get_mut(&call()).unwrap();
                    (known.1, known.2) = (word(event, "result"), event["is_error"].as_bool().unwrap());
                }
                kind @ ("done" | "interrupted") => understood.end = (kind.to_owned(), word(event, "reason")),
                "error" => understood.end = ("error".to_owned(), word(event, "kind")),
                _ => {}
            }
        }
        understood
    }

    /// What there is to understand: the story without the ways of telling it.
    fn of_story(story: &Story, folds: bool) -> Self {
        let joined = |said: &[Said], which: fn(&Said) -> &String| said.iter().map(which).cloned().collect::<String>();
        let mut understood = Self::default();
        for (at, step) in story.steps.iter().enumerate() {
            match step {
                Step::Say(said) => {
                    understood.text.push_str(&said.text);
                    understood.thinking.push_str(&said.thinking);
                }
                Step::Call(calls) => {
                    for (n, call) in calls.iter().enumerate() {
                        let input = serde_json::from_str(&call.input(at, n)).unwrap();
                        let output = if folds { joined(&call.agent, |said| &said.text) } else { String::new() };
                        understood.calls.insert(Call::id(at, n), (input, call.result.clone(), call.is_error, output));
                    }
                }
            }
        }
        let (kind, word) = story.end.told();
        understood.end = (kind.to_owned(), word.to_owned());
        understood
    }
}

fn any_options() -> impl Strategy<Value = Options> {
    let extras = prop::sample::select(vec![Extras::Off, Extras::Fields, Extras::Events]);
    (extras, any::<bool>(), any::<bool>()).prop_map(|(extras, hide, small)| Options {
        extras,
        sub_agents: if hide { SubAgents::Hide } else { SubAgents::Fold },
        // Small enough that long text goes out in pieces, large enough for the results of stories.
        max_event_bytes: if small { 20_000 } else { 1 << 20 },
        ..Options::default()
    })
}

/// Few, since each event of each case is held to its schema; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() { ProptestConfig { cases: 80, ..config } } else { config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_story_is_understood_however_it_is_told(story in stories(), options in any_options()) {
        let records = story.records();
        let blocks = play(&records, &options);
        prop_assert_eq!(check(&blocks), Ok(()));
        let folds = options.sub_agents == SubAgents::Fold;
        prop_assert_eq!(Understood::of_stream(&parsed(&blocks)), Understood::of_story(&story, folds));
        prop_assert_eq!(&play(&records, &options), &blocks, "the same bytes again");

        // With and without extras an event has the same number, type and members.
        let strict = play(&records, &Options { extras: Extras::Off, ..options });
        let numbered: Vec<&Block> = blocks.iter().filter(|block| !block.is_aside()).collect();
        prop_assert_eq!(numbered.len(), strict.len());
        for (block, strict) in numbered.into_iter().zip(&strict) {
            let (json, strict_json) = (block.json(), strict.json());
            let head = strict_json.strip_suffix(b"}").unwrap();
            prop_assert!(json.starts_with(head) && block.seq() == strict.seq(), "{json:?} does not begin as {strict_json:?}");
        }
    }

    /// Once `streamlined_text` has come, it alone is the answer (decision 9): whatever else comes, in any order, the text is its pieces in the
    /// order of their arrival, each once.
    #[test]
    fn any_frames_in_any_order_obey_the_grammar(chosen in prop::collection::vec(chaos(), 0..60), options in any_options(), end in 0..3u8) {
        let first = r#"{"type":"streamlined_text","text":"So: ","uuid":"first"}"#.to_owned();
        let frames: Vec<String> = [first].into_iter().chain(chosen).collect();
        let mut seen = std::collections::HashSet::new();
        let mut said = String::new();
        for frame in frames.iter().filter_map(|frame| serde_json::from_str::<Value>(frame).ok()) {
            let repeated = frame["uuid"].as_str().is_some_and(|uuid| !seen.insert(uuid.to_owned()));
            if frame["type"] == "streamlined_text" && frame["parent_tool_use_id"].is_null() && !repeated {
                said.push_str(frame["text"].as_str().unwrap());
            }
        }
        let input: usize = frames.iter().map(String::len).sum();
        let last = match end {
            0 => frame(r#"{"type":"result","subtype":"success","is_error":false}"#),
            1 => Body::Fact(Fact::EndForced(ForcedEnd::Idle)),
            _ => Body::Fact(Fact::EndForced(ForcedEnd::StopGraceOver)),
        };
        let bodies = [accepted()].into_iter().chain(frames.into_iter().map(frame)).chain([last, frame(r#"{"type":"streamlined_text","text":"late"}"#)]);
        let records = records(bodies);
        let blocks = play(&records, &options);
        prop_assert_eq!(check(&blocks), Ok(()));
        prop_assert_eq!(Understood::of_stream(&parsed(&blocks)).text, said);
        prop_assert_eq!(&play(&records, &options), &blocks);
        // No frame becomes more than a few events, each little larger than what it says.
        let output: usize = blocks.iter().map(|block| block.json().len()).sum();
        prop_assert!(output <= 20 * input + 4000, "{input} bytes became {output}");
    }

    #[test]
    fn any_text_at_all_is_survived(texts in prop::collection::vec(".{0,60}", 0..8), options in any_options()) {
        let end = Body::Fact(Fact::EndForced(ForcedEnd::UpstreamGone));
        let records = records([accepted()].into_iter().chain(texts.into_iter().map(frame)).chain([end]));
        prop_assert_eq!(check(&play(&records, &options)), Ok(()));
    }
}

/// A frame of any kind, with ids that meet those of others, now and then in a sub-agent's lane, now and then with a uuid that was there before.
fn chaos() -> impl Strategy<Value = String> {
    let call = || prop::sample::select(vec!["c1", "c2", "c3"]);
    let ends_nothing = |frame: &&str| !frame.contains(r#""type":"result""#) && !frame.contains(r#""type":"streamlined_text""#);
    let catalogue: Vec<&str> = CATALOGUE.lines().filter(ends_nothing).collect();
    let frame = prop_oneof![
        3 => "[a-z 漢😀\\n]{1,6}".prop_map(|text| format!(r#"{{"type":"streamlined_text","text":{}}}"#, story::quoted(&text))),
        3 => prop::sample::select(catalogue).prop_map(str::to_owned),
        2 => call().prop_map(|id| format!(r#"{{"type":"assistant","message":{{"id":"m","content":[{{"type":"tool_use","id":"{id}","name":"Tool","input":{{"a":1}}}}]}}}}"#)),
        1 => call().prop_map(|id| format!(r#"{{"type":"tool_progress","tool_use_id":"{id}","tool_name":"Tool"}}"#)),
        2 => call().prop_map(|id| format!(r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"{id}","content":"r"}}]}}}}"#)),
        1 => call().prop_map(|id| format!(r#"{{"type":"tool_use_summary","summary":"error in Tool: x","preceding_tool_use_ids":["{id}"]}}"#)),
        1 => (call(), 0..4u8).prop_map(|(id, n)| format!(r#"{{"type":"control_request","request_id":"r{n}","request":{{"subtype":"can_use_tool","tool_name":"Tool","input":{{}},"tool_use_id":"{id}"}}}}"#)),
        1 => (0..4u8).prop_map(|n| format!(r#"{{"type":"control_cancel_request","request_id":"r{n}"}}"#)),
        1 => (call(), prop::sample::select(vec!["pending", "in_progress", "completed"]), 1..4u8).prop_map(|(id, status, n)| {
            let todo = format!(r#"{{"content":"do","status":"{status}"}}"#);
            let todos = vec![todo; usize::from(n)].join(",");
            format!(r#"{{"type":"assistant","message":{{"id":"m","content":[{{"type":"tool_use","id":"{id}-{n}-{status}","name":"TodoWrite","input":{{"todos":[{todos}]}}}}]}}}}"#)
        }),
        1 => (prop::sample::select(vec!["started", "progress", "notification"]), 0..3u8).prop_map(|(what, n)| format!(r#"{{"type":"system","subtype":"task_{what}","task_id":"t{n}","summary":"s"}}"#)),
        1 => Just(r#"{"type":"result","is_error":true,"errors":[{"message":"m","recoverable":true}]}"#.to_owned()),
        1 => Just(r#"{"type":"biumind.compact_started"}"#.to_owned()),
        1 => ".{0,20}".prop_map(|text| text),
    ];
    (frame, prop::option::weighted(0.3, call()), prop::option::weighted(0.2, 0..6u8)).prop_map(|(frame, parent, uuid)| {
        let Some(rest) = frame.strip_prefix('{') else { return frame };
        // The first of two members counts for nobody, so none is added where one is.
        let parent = parent
            .filter(|_| !frame.contains("parent_tool_use_id"))
            .map_or_else(String::new, |id| format!(r#""parent_tool_use_id":"{id}","#));
        let uuid = uuid.filter(|_| !frame.contains("uuid")).map_or_else(String::new, |n| format!(r#""uuid":"u{n}","#));
        format!("{{{parent}{uuid}{rest}")
    })
}

#[test]
fn what_is_said_leaves_nothing_behind_in_the_writer() {
    let options = Options { extras: Extras::Events, ..Options::default() };
    let (mut reader, mut writer) = (NativeReader::new(Settings::default()), SseWriter::new(options));
    let (mut events, mut blocks) = (Vec::new(), Vec::new());
    let mut feed = |body: Body| {
        events.clear();
        blocks.clear();
        reader.read(&Record { at: 0, body }, &mut events);
        writer.write(&Record { at: 0, body: Body::Frame(Text::new()) }, &events, &mut blocks);
        // Its state as text stands for its size.
        (format!("{reader:?}").len(), format!("{writer:?}").len())
    };
    feed(accepted());
    let text = || frame(format!(r#"{{"type":"streamlined_text","text":"{}"}}"#, "word ".repeat(20)));
    let notice = || frame(r#"{"type":"system","subtype":"api_retry","attempt":1,"error":"overloaded"}"#);
    feed(notice());
    let before = feed(text());
    for _ in 0..2000 {
        feed(notice());
        feed(text());
    }
    let after = feed(text());
    assert!(after.1 <= before.1 + 64 && after.0 <= before.0 + 64, "{before:?} grew to {after:?}");
}

/// The events of a run with these frames.
fn told(frames: &[&str], end: Option<ForcedEnd>, options: &Options) -> Vec<Value> {
    let bodies = frames.iter().map(|text| frame((*text).to_owned())).chain(end.map(|end| Body::Fact(Fact::EndForced(end))));
    let blocks = play(&records([accepted()].into_iter().chain(bodies)), options);
    assert_eq!(check(&blocks), Ok(()));
    parsed(&blocks)
}

/// Every documented type of event comes of frames. Only a sub-agent's text gives `tool_progress`: the native frame of that name carries no output.
#[test]
fn the_whole_vocabulary_comes_of_frames() {
    let todo = |id: &str, status: &str| {
        format!(
            r#"{{"type":"assistant","message":{{"id":"{id}","content":[{{"type":"tool_use","id":"{id}","name":"TodoWrite","input":{{"todos":[{{"content":"do","status":"{status}"}}]}}}}]}}}}"#
        )
    };
    let (pending, running, completed, again) =
        (todo("p1", "pending"), todo("p2", "in_progress"), todo("p3", "completed"), todo("p4", "pending"));
    let frames = [
        r#"{"type":"streamlined_text","text":"<think>\nhm\n</think>\n\nso "}"#,
        &pending,
        &running,
        &completed,
        &again,
        r#"{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"c","name":"Agent","input":{}}]}}"#,
        r#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Agent","input":{},"tool_use_id":"c"}}"#,
        r#"{"type":"streamlined_text","text":"looking","parent_tool_use_id":"c"}"#,
        r#"{"type":"tool_use_summary","summary":"found","preceding_tool_use_ids":["c"]}"#,
    ];
    let mut seen = std::collections::BTreeSet::new();
    for end in [ForcedEnd::StopGraceOver, ForcedEnd::UpstreamGone] {
        seen.extend(told(&frames, Some(end), &Options::default()).iter().map(|event| event["type"].as_str().unwrap().to_owned()));
    }
    let done = [frames[0], r#"{"type":"result","subtype":"success","is_error":false}"#];
    seen.extend(told(&done, None, &Options::default()).iter().map(|event| event["type"].as_str().unwrap().to_owned()));
    let all: std::collections::BTreeSet<String> = [
        "run_start",
        "turn_start",
        "turn_end",
        "stream_delta",
        "thinking_delta",
        "tool_start",
        "tool_progress",
        "tool_end",
        "plan_created",
        "plan_updated",
        "plan_completed",
        "plan_interrupted",
        "approval_request",
        "done",
        "error",
        "interrupted",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(seen, all);
}

/// Which ends mean which words. Of the documented reasons of `done` two are missing: no native end says that a loop guard or a row of errors
/// ended the run, and the text of an error never chooses the outcome (decisions 11 and 14).
#[test]
fn every_native_end_has_its_word() {
    let result = |members: &str| format!(r#"{{"type":"result",{members}}}"#);
    let failed = |message: &str| result(&format!(r#""is_error":true,"errors":[{{"message":"{message}","recoverable":false}}]"#));
    let interrupted = || result(r#""is_error":false,"stop_reason":"interrupted""#);
    let strict = Options::default();
    let as_done = Options { interrupt_terminal: interline_surface_sse::InterruptTerminal::Done, ..Options::default() };
    for (frame, options, kind, word) in [
        (result(r#""subtype":"success","is_error":false,"stop_reason":"end_turn""#), &strict, "done", "end_turn"),
        (result(r#""subtype":"success","is_error":false,"stop_reason":"max_tokens""#), &strict, "done", "end_turn"),
        (result(r#""subtype":"success","is_error":false,"stop_reason":"refusal""#), &strict, "done", "end_turn"),
        (result(r#""subtype":"error_max_turns","is_error":true"#), &strict, "done", "budget_exhausted"),
        (result(r#""subtype":"error_max_budget_usd","is_error":true"#), &strict, "done", "budget_exhausted"),
        (interrupted(), &strict, "interrupted", "interrupted"),
        (interrupted(), &as_done, "done", "context_cancelled"),
        (result(r#""is_error":true,"terminal_reason":"aborted_streaming""#), &as_done, "done", "context_cancelled"),
        (failed("the loop guard stopped the run: cycle_detected"), &strict, "error", "internal"),
        (failed("too many errors in a row: error_streak"), &strict, "error", "internal"),
        (failed("529: Overloaded"), &strict, "error", "provider_overloaded"),
        (failed("429: slow down"), &strict, "error", "provider_rate_limit"),
        (failed("402: insufficient_credits"), &strict, "error", "provider_billing_overdue"),
        (failed("no_provider for this model"), &strict, "error", "no_provider"),
        (failed("missing_api_key: set one"), &strict, "error", "auth_required"),
        (failed("invalid_request: too long"), &strict, "error", "invalid_request"),
    ] {
        let events = told(&[&frame], None, options);
        let last = events.last().unwrap();
        assert_eq!((last["type"].as_str(), last["reason"].as_str().or(last["kind"].as_str())), (Some(kind), Some(word)), "{frame}");
    }
    let refused = |kind| ForcedEnd::Refused { kind, message: "no".into() };
    for (end, word) in [
        (ForcedEnd::UpstreamGone, "missing_terminal_event"),
        (ForcedEnd::Shutdown, "missing_terminal_event"),
        (ForcedEnd::Idle, "upstream_timeout"),
        (ForcedEnd::ErrorStayed, "internal"),
        (refused(interline_model::FailureKind::EngineNotReady), "engine_not_ready"),
        (refused(interline_model::FailureKind::AuthRequired), "auth_required"),
    ] {
        let events = told(&[], Some(end.clone()), &strict);
        let last = events.last().unwrap();
        assert_eq!((&last["kind"], &last["severity"]), (&word.into(), &"error".into()), "{end:?}");
        assert!(word != "missing_terminal_event" || last["error"].as_str().unwrap().starts_with("missing_terminal_event: "), "{last}");
    }
}
