//! Frames by chance: whatever comes in whatever order, the order of the events holds and text is told as at once.

use super::*;

fn ids() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["t1", "t2", "t3", "t4"])
}

fn scraps() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["a", "<think>", "</think>", "\n", "<th", "ink>", "\n\n", "", "é😀"]).prop_map(str::to_owned),
        "[a-c<>\n]{0,4}",
    ]
}

/// One frame of any kind that means something, and now and then one that means nothing.
fn frames() -> impl Strategy<Value = String> {
    let plain = prop_oneof![
        scraps().prop_map(|text| said(&text)),
        Just(r#"{"type":"streamlined_text","text":"\ud83d"}"#.to_owned()),
        Just(r#"{"type":"streamlined_text","text":"\ude00"}"#.to_owned()),
        scraps().prop_map(|scrap| text(&scrap)),
        scraps().prop_map(|scrap| delta(1, "thinking", "thinking", &scrap)),
        prop::sample::select(vec!["m1", "m2"]).prop_map(start),
        (prop::sample::select(vec!["m1", "m2"]), scraps()).prop_map(|(id, text)| {
            let text = Json::string(&text);
            message(id, &format!(r#"[{{"type":"text","text":{0}}},{{"type":"thinking","thinking":{0}}}]"#, text.as_str()))
        }),
        (0..3u64, ids()).prop_map(|(index, id)| block(index, id, "Tool")),
        (0..3u64, prop::sample::select(vec!["{", "}", "\"a\":1", "[2]"])).prop_map(|(index, json)| input(index, json)),
        (0..3u64).prop_map(stop),
        Just(stream(r#"{"type":"message_stop"}"#)),
        ids().prop_map(|id| progress(id, "Tool")),
        ids().prop_map(|id| calls(id, "Tool", r#"{"b":2}"#)),
        ids().prop_map(|id| summary(id, "result")),
        ids().prop_map(|id| tool_result(id, r#""result""#, true)),
        Just(r#"{"type":"streamlined_tool_use_summary","tool_summary":"done"}"#.to_owned()),
    ];
    let rest = prop_oneof![
        (prop::sample::select(vec!["r1", "r2", "r3"]), ids(), prop::option::of(prop::sample::select(vec!["a1", "a2"]))).prop_map(
            |(request, id, agent)| {
                let agent = agent.map_or_else(String::new, |agent| format!(r#","agent_id":"{agent}""#));
                permission(request, &format!(r#""tool_name":"Tool","input":{{}},"tool_use_id":"{id}"{agent}"#))
            }
        ),
        (prop::sample::select(vec!["r3", "r4"]), prop::sample::select(vec!["e1", "e2"])).prop_map(|(request, id)| format!(
            r#"{{"type":"control_request","request_id":"{request}","request":{{"subtype":"elicitation","elicitation_id":"{id}"}}}}"#
        )),
        prop::sample::select(vec!["e1", "e2"])
            .prop_map(|id| format!(r#"{{"type":"system","subtype":"elicitation_complete","elicitation_id":"{id}"}}"#)),
        ids().prop_map(|id| format!(r#"{{"type":"system","subtype":"task_started","task_id":"a1","tool_use_id":"{id}"}}"#)),
        Just(r#"{"type":"biumind.compact_started"}"#.to_owned()),
        Just(r#"{"type":"result","is_error":true,"errors":[{"message":"m","recoverable":true}]}"#.to_owned()),
        Just("null".to_owned()),
    ];
    let inner = (plain, prop::option::weighted(0.3, ids())).prop_map(|(frame, parent)| match parent {
        Some(parent) => within(parent, &frame),
        None => frame,
    });
    let known = prop_oneof![6 => inner, 2 => rest, 1 => prop::sample::select(include_str!("../../../tests/data/frames.jsonl").lines().collect::<Vec<_>>()).prop_map(str::to_owned)];
    // A uuid now and then, so that some are repeats.
    (known, prop::option::weighted(0.2, 0..4u8)).prop_map(|(frame, uuid)| match (uuid, frame.strip_prefix('{')) {
        (Some(uuid), Some(rest)) => format!(r#"{{"uuid":"u{uuid}",{rest}"#),
        _ => frame,
    })
}

fn facts() -> impl Strategy<Value = Fact> {
    let ask = || prop::sample::select(vec!["r1", "r2", "r3", "r4"]).prop_map(AskId::from);
    prop_oneof![
        ask().prop_map(|ask| Fact::AskExpired { ask }),
        ask().prop_map(|ask| Fact::AskAnswered { ask, answer: Answer::Deny { message: Text::new() }, by: actor() }),
        Just(Fact::StopRequested { by: actor() }),
        Just(Fact::LinkLost),
    ]
}

pub(super) fn bodies() -> impl Strategy<Value = Vec<Body>> {
    let body = prop_oneof![9 => frames().prop_map(|frame| Body::Frame(Text::from(frame))), 1 => facts().prop_map(Body::Fact)];
    prop::collection::vec(body, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_order_holds(bodies in bodies(), chat: bool) {
        let mut bench = Bench::with(Settings { chat });
        for body in &bodies {
            bench.record(body.clone());
        }
        bench.end();
        prop_assert!(order::check(&bench.events), "no end");
        // Pure: the same records, the same events.
        let mut again = Bench::with(Settings { chat });
        for body in bodies {
            again.record(body);
        }
        again.end();
        prop_assert_eq!(bench.events, again.events);
    }

    #[test]
    fn any_text_is_survived(texts in prop::collection::vec(".{0,40}", 0..6)) {
        let mut bench = Bench::new();
        for text in texts {
            bench.frame(text);
        }
        prop_assert!(order::check(&bench.end().events));
    }

    #[test]
    fn any_members_are_survived(kind in prop::sample::select(include_str!("../../../tests/data/frames.jsonl").lines().collect::<Vec<_>>()), value in prop::sample::select(vec!["null", "7", "\"\"", "\"x\"", "[]", "[{}]", "{}", "true", "-1e400"])) {
        // Every member of every frame, replaced by something else.
        let text = Text::from(kind);
        let names: Vec<String> = Object::parse(&text).unwrap().members().map(|(name, _)| name.to_owned()).filter(|name| name != "type").collect();
        let mut bench = Bench::new();
        for name in names {
            bench.frame(format!("{},\"{name}\":{value}}}", kind.strip_suffix('}').unwrap()));
        }
        prop_assert!(order::check(&bench.end().events));
    }
}
