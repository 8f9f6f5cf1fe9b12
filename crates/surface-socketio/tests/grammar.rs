//! Whatever the order of events: the grammar holds, deltas and snapshots tell the same, REST shows what the sockets were told, late
//! subscribers converge, and no text is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

mod fold;
mod scene;

use fold::{Fold, Format};
use interline_model::{
    Answer, AskId, AskKind, AskOutcome, Body, CallId, CompactionPhase, Event, Fact, Json, Lane, NoticeLevel, Part, PlanStep, StepStatus,
    TaskPhase, Text, Usage, What, Writer,
};
use interline_surface_socketio::{Options, PatchFormat, RawWriter, batch};
use proptest::prelude::*;
use scene::{Scene, actor, ask, completed, failed, interrupted};

const CALLS: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];
const ASKS: [&str; 3] = ["a0", "a1", "a2"];

#[derive(Clone, Debug)]
struct Step {
    after: u64,
    /// Comes with the step before, in one record.
    joined: bool,
    event: Event,
    answer: Option<(AskId, Answer)>,
}

fn lane() -> impl Strategy<Value = Lane> {
    prop_oneof![3 => Just(Lane::Root), 1 => Just(Lane::Agent(CallId::from("c0"))), 1 => Just(Lane::Agent(CallId::from("c1")))]
}

fn call() -> impl Strategy<Value = CallId> {
    prop::sample::select(&CALLS[..]).prop_map(CallId::from)
}

const PHASES: &[TaskPhase] = &[TaskPhase::Started, TaskPhase::Progress, TaskPhase::Finished, TaskPhase::Failed];

fn results() -> impl Strategy<Value = Json> {
    let results = [r#"{"ok":1.0}"#, r#"{"_meta":{"ui":{"title":"T"},"bridge":{"action":"a"}}}"#, r#"[{"type":"image"}]"#, "[]"];
    prop::sample::select(results.to_vec()).prop_map(|text| Json::parse(text).unwrap())
}

fn piece() -> impl Strategy<Value = Text> {
    prop_oneof![Just(Text::from_static("é\"\n")), "[a-z ]{1,9}".prop_map(Text::from), Just(Text::from("x".repeat(9_000)))]
}

fn what() -> impl Strategy<Value = (What, Option<(AskId, Answer)>)> {
    let kind = prop::sample::select(vec![AskKind::Permission, AskKind::Question, AskKind::Form, AskKind::Link]);
    let answer = prop_oneof![
        Just(Answer::Allow { input: None, always: true }),
        Just(Answer::Deny { message: Text::from_static("no") }),
        Just(Answer::Choose(vec![(Text::from_static("Which environment?"), Text::from_static("staging"))])),
        Just(Answer::Native(Json::parse(r#"{"behavior":"allow","action":"accept"}"#).unwrap())),
    ];
    prop_oneof![
        6 => piece().prop_map(|delta| (What::Text { delta }, None)),
        4 => piece().prop_map(|delta| (What::Thinking { delta }, None)),
        2 => Just((What::TurnStarted, None)),
        2 => any::<bool>().prop_map(|told| (What::TurnEnded { usage: told.then(Usage::default) }, None)),
        4 => (call(), any::<bool>()).prop_map(|(call, known)| {
            let input = known.then(|| Json::parse(r#"{"description":"d"}"#).unwrap());
            (What::ToolStarted { call, name: Text::from_static("Agent"), input }, None)
        }),
        1 => call().prop_map(|call| (What::ToolInput { call, input: Json::parse(r#"{"x":1.0}"#).unwrap() }, None)),
        4 => (call(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(call, is_error, aborted)| {
            (What::ToolEnded { call, result: Text::from_static("r"), raw: None, is_error, aborted }, None)
        }),
        2 => (call(), results()).prop_map(|(call, raw)| {
            (What::ToolEnded { call, result: raw.text(), raw: Some(raw), is_error: false, aborted: false }, None)
        }),
        1 => prop::sample::select(vec!["plan", "default", "acceptEdits"]).prop_map(|mode| (scene::mode(mode), None)),
        1 => (0_usize..3).prop_map(|count| {
            let step = |at: usize| PlanStep { id: Text::from(at.to_string()), title: Text::from_static("t"), status: StepStatus::Running };
            (What::PlanChanged { steps: (0..count).map(step).collect() }, None)
        }),
        1 => (prop::option::of(call()), prop::sample::select(PHASES)).prop_map(|(call, phase)| {
            (What::Task { task: Text::from_static("bg"), call, phase, summary: Text::new() }, None)
        }),
        3 => (prop::sample::select(&ASKS[..]), kind, prop::option::of(prop::sample::select(&CALLS[..]))).prop_map(|(id, kind, call)| {
            (What::AskRaised(Box::new(ask(id, kind, call))), None)
        }),
        3 => (prop::sample::select(&ASKS[..]), prop::option::of(answer), any::<bool>()).prop_map(|(id, answer, expired)| {
            let id = AskId::from(id);
            let outcome = match &answer {
                Some(answer) => answer.outcome(),
                None if expired => AskOutcome::Expired,
                None => AskOutcome::Void,
            };
            (What::AskSettled { ask: id.clone(), outcome }, answer.map(|answer| (id, answer)))
        }),
        1 => any::<bool>().prop_map(|starts| {
            let phase = if starts {
                CompactionPhase::Started { reason: Text::from_static("manual"), tokens_before: Some(9) }
            } else {
                CompactionPhase::Finished { tokens_before: Some(9), tokens_after: Some(3) }
            };
            (What::Compaction(phase), None)
        }),
        1 => Just((What::Other { name: Text::from_static("keep_alive") }, None)),
        1 => Just((What::Notice { level: NoticeLevel::Warning, code: Text::from_static("api_retry"), text: Text::new() }, None)),
        1 => Just((What::FilesChanged { paths: vec![Text::from_static("a.rs")] }, None)),
        1 => Just((What::SessionChanged { model: Some(Text::from_static("m2")), title: None, mode: None, state: None }, None)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop::sample::select(vec![0, 1, 30, 120, 5_000]);
    (after, prop::bool::weighted(0.2), lane(), what()).prop_map(|(after, joined, lane, (what, answer))| {
        let lane = if matches!(what, What::AskSettled { .. }) { Lane::Root } else { lane };
        Step { after, joined, event: Event { lane, what }, answer }
    })
}

fn run() -> impl Strategy<Value = (Vec<Step>, What)> {
    (prop::collection::vec(step(), 0..60), prop_oneof![Just(completed()), Just(interrupted()), Just(failed("gone"))])
}

fn rest(scene: &Scene) -> Vec<serde_json::Value> {
    serde_json::from_str(scene.writer.messages_json().as_str()).unwrap()
}

/// Feeds what was written since `from` to the reader; holds REST against it whenever no chat runs.
fn follow(fold: &mut Fold, scene: &Scene, from: usize) {
    for event in &scene.events[from..] {
        fold.see(event.name, &event.data.to_value());
    }
    assert_eq!(fold.running, scene.writer.chat_running());
    if !fold.running {
        for turn in rest(scene) {
            let id = turn["turn_id"].as_str().unwrap();
            if let Some(told) = fold.snapshots.get(id) {
                for member in ["blocks", "tool_calls", "status"] {
                    assert_eq!(turn[member], fold.deltas[id][member], "{member} of {id}: REST and the deltas");
                }
                if fold.has_snapshots() {
                    let mut told = told.clone();
                    // A late subscriber takes a turn that paused earlier from its `turn:end`; usage told in between is in later patches.
                    told["usage"] = turn["usage"].clone();
                    assert_eq!(turn, told, "{id}: REST and the snapshots");
                }
            } else {
                panic!("{id} was never told");
            }
        }
    }
}

fn play(runs: &[(Vec<Step>, What)], format: Format, late_at: usize) {
    let patch_format = match format {
        Format::Hybrid => PatchFormat::Hybrid,
        Format::Delta => PatchFormat::Delta,
        Format::Sync => PatchFormat::Sync,
    };
    let mut scene = Scene::new(Options { patch_format, ..Options::default() });
    scene.kept = Some(Vec::new());
    let (mut fold, mut late) = (Fold::new(format), Fold::late(format));
    let mut said: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    let (mut seen, mut records, mut joined_late) = (0, 0, false);
    for (number, (steps, end)) in runs.iter().enumerate() {
        scene.start(number as u128 + 1, vec![Part::Text(Text::from_static("hi"))], number % 2 == 1);
        let mut at = 0;
        let mut all = steps.clone();
        all.push(Step { after: 1, joined: false, event: Event::root(end.clone()), answer: None });
        loop {
            follow(&mut fold, &scene, seen);
            if joined_late {
                follow(&mut late, &scene, seen);
            } else if records == late_at {
                joined_late = true;
                for event in scene.writer.late_subscriber() {
                    late.see(event.name, &event.data.to_value());
                }
                late.load(&rest(&scene));
            }
            (seen, records) = (scene.events.len(), records + 1);
            if at == all.len() {
                break;
            }
            let mut events = Vec::new();
            let (after, answer) = (all[at].after, all[at].answer.clone());
            loop {
                if let What::Text { delta } = &all[at].event.what {
                    said.entry(format!("{:?}", all[at].event.lane)).or_default().push_str(delta);
                }
                events.push(all[at].event.clone());
                at += 1;
                if at >= all.len() || !all[at].joined || all[at].answer.is_some() {
                    break;
                }
            }
            scene.now += after;
            let body = match answer {
                Some((ask, answer)) => Body::Fact(Fact::AskAnswered { ask, answer, by: actor() }),
                None => Body::Frame(Text::from_static("{}")),
            };
            scene.record(body, events);
        }
        assert!(!scene.writer.chat_running());
        assert!(scene.writer.pending_question().is_none());
    }
    let mut told: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    for turn in rest(&scene).iter().filter(|turn| turn["role"] == "assistant") {
        let lane = match turn["parent_fork_tool_call_id"].as_str() {
            Some(call) => format!("{:?}", Lane::Agent(CallId::from(call.to_owned()))),
            None => format!("{:?}", Lane::Root),
        };
        for block in turn["blocks"].as_array().unwrap().iter().filter(|block| block["type"] == "text") {
            told.entry(lane.clone()).or_default().push_str(block["content"].as_str().unwrap());
        }
    }
    assert_eq!(said, told);
    let mut kept = Fold::new(format);
    for event in scene.kept.iter().flatten() {
        kept.see(event.name, &event.data.to_value());
    }
    assert_eq!((kept.deltas, kept.snapshots), (fold.deltas, fold.snapshots), "whoever reads late ends up with the same");
}

/// Each case plays its runs in all three formats; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_keeps_the_grammar(runs in prop::collection::vec(run(), 1..3), late_at in 0_usize..60) {
        for format in [Format::Hybrid, Format::Delta, Format::Sync] {
            play(&runs, format, late_at);
        }
    }

    #[test]
    fn the_raw_stream_counts_brackets_and_says_the_same_text(run in run()) {
        let mut scene = Scene::new(Options::default());
        let mut writer = RawWriter::new(Options::default());
        let (mut items, mut said) = (Vec::new(), String::new());
        let mut write = |scene: &Scene| {
            let (record, events) = scene.last.clone().unwrap();
            writer.write(&record, &events, &mut items);
        };
        scene.start(1, vec![Part::Text(Text::from_static("hi"))], false);
        write(&scene);
        for step in run.0.iter().chain([&Step { after: 1, joined: false, event: Event::root(run.1.clone()), answer: None }]) {
            if let What::Text { delta } = &step.event.what {
                said.push_str(delta);
            }
            scene.now += step.after;
            let body = match &step.answer {
                Some((ask, answer)) => Body::Fact(Fact::AskAnswered { ask: ask.clone(), answer: answer.clone(), by: actor() }),
                None => Body::Frame(Text::from_static("{}")),
            };
            scene.record(body, vec![step.event.clone()]);
            write(&scene);
        }
        let typed = scene.events.iter().filter(|event| !event.name.starts_with("turn:")).cloned().collect::<Vec<_>>();
        let (mut others, mut told, mut last) = (Vec::new(), String::new(), 0);
        for event in batch("sess_1", items) {
            if event.name == "turn:events" {
                interline_testkit::validate_socketio(&event.line()).unwrap();
                for raw in event.data.to_value()["events"].as_array().unwrap() {
                    last += 1;
                    assert_eq!(raw["stream_sequence"], last);
                    if raw["type"] == "llm:content:delta" {
                        told.push_str(raw["payload"]["content"].as_str().unwrap());
                    }
                }
                continue;
            }
            if event.name == "chat:start" {
                last = 0;
            }
            others.push(event);
        }
        prop_assert_eq!(typed, others, "brackets and side events are the same, in the same order");
        prop_assert_eq!(said, told);
    }

    #[test]
    fn the_same_records_give_the_same_bytes(run in run()) {
        let write = || {
            let mut scene = Scene::started(Options::default(), "hi");
            for step in &run.0 {
                scene.frame(step.after, vec![step.event.clone()]);
            }
            scene.events
        };
        prop_assert_eq!(write(), write());
    }
}
