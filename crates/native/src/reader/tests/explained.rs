//! Explanations: they change nothing, leave nothing unexplained, and name the frames that waited.

use interline_model::{EventKind, ExplainReader as _, Meaning};

use super::generated::bodies;
use super::*;
use crate::rules;
use crate::{FrameKind, NativeExplainer};

/// What each record of a run means, the acceptance first.
fn explained(settings: Settings, bodies: impl IntoIterator<Item = Body>) -> Vec<Meaning> {
    let mut explainer = NativeExplainer::new(settings);
    let records = [Body::Fact(accepted())].into_iter().chain(bodies).chain([Body::Fact(Fact::EndForced(ForcedEnd::UpstreamGone))]);
    records.map(|body| explainer.explain(&Record { at: 0, body })).collect()
}

fn frames(frames: impl IntoIterator<Item = String>) -> Vec<Meaning> {
    explained(Settings::default(), frames.into_iter().map(|frame| Body::Frame(Text::from(frame))))
}

/// For each event of the record number `at`: its kind, its first rule, and the records that waited for it.
fn reasons(meanings: &[Meaning], at: usize) -> Vec<(EventKind, &'static str, Vec<usize>)> {
    let meaning = &meanings[at];
    let reason = |(event, reason): (&Event, &interline_model::Reason)| {
        (event.what.kind(), reason.rules[0].name, reason.held.iter().map(|held| held.record).collect())
    };
    meaning.events.iter().zip(&meaning.reasons).map(reason).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn whatever_comes_is_the_same_and_explained(bodies in bodies(), chat: bool) {
        let mut bench = Bench::with(Settings { chat });
        for body in &bodies {
            bench.record(body.clone());
        }
        bench.record(Body::Fact(Fact::EndForced(ForcedEnd::UpstreamGone)));
        let meanings = explained(Settings { chat }, bodies);
        for (number, meaning) in meanings.iter().enumerate() {
            prop_assert_eq!(meaning.events.len(), meaning.reasons.len());
            for (event, reason) in meaning.events.iter().zip(&meaning.reasons) {
                let known = reason.rules.first().is_some_and(|rule| *rule != rules::OWN_LANE);
                prop_assert!(known, "no table says that {} can mean {:?}", meaning.name, event);
                prop_assert!(reason.held.iter().all(|held| held.record < number), "{:?} waited for an earlier one", reason);
            }
        }
        let events: Vec<Event> = meanings.into_iter().flat_map(|meaning| meaning.events).collect();
        prop_assert_eq!(events, bench.events);
    }
}

#[test]
fn a_call_is_caused_by_all_frames_of_its_block() {
    let meanings = frames([
        start("m1"),
        block(0, "t1", "Bash"),
        input(0, "{\"a\""),
        text("between"),
        input(0, ":1}"),
        input(1, "of nothing"),
        stop(0),
    ]);
    assert_eq!(&*meanings[2].name, "stream_event/content_block_start");
    assert_eq!(reasons(&meanings, 7), [(EventKind::ToolStarted, "tool-waits-for-its-block", vec![2, 3, 5])]);
}

#[test]
fn a_call_that_is_asked_about_is_caused_by_its_block_twice() {
    let ask = permission("r1", r#""tool_name":"Bash","tool_use_id":"t1""#);
    let meanings = frames([block(0, "t1", "Bash"), input(0, "{}"), ask, stop(0)]);
    let kinds = [EventKind::TurnStarted, EventKind::ToolStarted, EventKind::PermissionAsked];
    assert_eq!(reasons(&meanings, 3).iter().map(|reason| reason.0).collect::<Vec<_>>(), kinds);
    assert_eq!(reasons(&meanings, 3)[1], (EventKind::ToolStarted, "tool-announced-at-once", vec![1, 2]));
    assert_eq!(reasons(&meanings, 4), [(EventKind::ToolInput, "tool-waits-for-its-block", vec![1, 2])]);
}

#[test]
fn a_mark_and_the_half_of_one_cause_what_follows_them() {
    let meanings = frames(["so <thi", "nk>", "hm", " hm\n</thi", "nk>\n\nyes", "!"].map(said));
    assert_eq!(reasons(&meanings, 1)[1], (EventKind::Text, "text-once", vec![]));
    assert_eq!(reasons(&meanings, 2), []);
    assert_eq!(reasons(&meanings, 3), [(EventKind::Thinking, "think-marks", vec![1, 2])]);
    assert_eq!(reasons(&meanings, 4), [(EventKind::Thinking, "think-marks", vec![])]);
    assert_eq!(reasons(&meanings, 5), [(EventKind::Text, "text-once", vec![4])]);
    assert_eq!(reasons(&meanings, 6), [(EventKind::Text, "text-once", vec![])]);
}

#[test]
fn a_repeat_causes_nothing() {
    let delta = stream(r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#);
    let delta = delta.replacen('{', r#"{"uuid":"u1","#, 1);
    let meanings = frames([block(0, "t1", "Bash"), delta.clone(), delta, stop(0)]);
    assert_eq!(reasons(&meanings, 4)[1], (EventKind::ToolStarted, "tool-waits-for-its-block", vec![1, 2]));
}

#[test]
fn an_interruption_is_caused_by_the_stop_and_a_late_failure_by_its_error() {
    let stopped = explained(Settings::default(), [Body::Fact(Fact::StopRequested { by: actor() })]);
    assert_eq!(reasons(&stopped, 2), [(EventKind::RunInterrupted, "stop-makes-it-an-interruption", vec![1])]);
    let error = r#"{"type":"result","is_error":true,"errors":[{"message":"m","recoverable":true}]}"#;
    let stayed = [Body::Frame(Text::from_static(error)), Body::Fact(Fact::EndForced(ForcedEnd::ErrorStayed))];
    let stayed = explained(Settings::default(), stayed);
    assert_eq!(reasons(&stayed, 1), [(EventKind::Notice, "recoverable-error-ends-nothing", vec![])]);
    assert_eq!(reasons(&stayed, 2), [(EventKind::RunFailed, "missing-end-is-supplied", vec![1])]);
}

#[test]
fn a_sub_agents_events_say_so() {
    let meanings = frames([within("t1", &said("inner"))]);
    assert_eq!(meanings[1].reasons[1].rules, [rules::TEXT_ONCE, rules::OWN_LANE]);
}

#[test]
fn rules_are_named_once_and_every_kind_has_a_table() {
    let mut names: Vec<&str> = rules::ALL.iter().map(|rule| rule.name).collect();
    assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')), "{names:?}");
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    // 28 variants and one that only the vendor names; 21 requests and one for any other; 2 more control frames; 8; 7; 2 for the rest.
    assert_eq!(FrameKind::all().count(), 29 + 22 + 2 + 8 + 7 + 2);
    assert!(FrameKind::all().all(|kind| !rules::means(kind).is_empty()));
}
