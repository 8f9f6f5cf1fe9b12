//! One test a rule.

use super::*;

#[test]
fn a_run_starts_once_and_nothing_comes_before_or_after_it() {
    let mut reader = NativeReader::new(Settings::default());
    let mut events = Vec::new();
    let mut read = |body| reader.read(&Record { at: 0, body }, &mut events);
    read(Body::Frame(Text::from(said("too early"))));
    read(Body::Fact(Fact::EndForced(ForcedEnd::Idle)));
    read(Body::Fact(accepted()));
    read(Body::Fact(accepted()));
    read(Body::Frame(Text::from_static(r#"{"type":"result"}"#)));
    read(Body::Frame(Text::from(said("too late"))));
    read(Body::Fact(Fact::EndForced(ForcedEnd::Idle)));
    read(Body::Fact(accepted()));
    assert!(order::check(&events));
    assert_eq!(events.len(), 2, "{events:?}");
}

#[test]
fn repeats_are_dropped() {
    let mut bench = Bench::new();
    let piece = r#"{"type":"streamlined_text","text":"a","uuid":"u1"}"#;
    let ask = permission("r1", r#""tool_name":"Bash","input":{},"tool_use_id":"t1""#);
    bench.frames(&[piece, piece, &ask, &ask, r#"{"type":"streamlined_text","text":"b","uuid":"u2"}"#, piece]);
    assert_eq!(bench.news(), ["(", "'a'", "start t1 Bash {}", "ask r1 Permission Bash of t1", "'b'"]);
}

#[test]
fn a_request_whose_id_reads_like_an_earlier_uuid_is_no_repeat() {
    let mut bench = Bench::new();
    let ask = permission("u1", r#""tool_name":"Bash","input":{},"tool_use_id":"t1""#);
    bench.frames(&[r#"{"type":"streamlined_text","text":"a","uuid":"u1"}"#, &ask, &ask]);
    assert_eq!(bench.news(), ["(", "'a'", "start t1 Bash {}", "ask u1 Permission Bash of t1"]);
}

#[test]
fn what_is_no_frame_is_counted_and_survived() {
    let mut bench = Bench::new();
    bench.frames(&["null", "", "[1]", "{\"type\":", "7", r#"{"type":"new","x":1e400}"#, "{}", &said("ok")]);
    let malformed = "other malformed";
    assert_eq!(bench.news(), [malformed, malformed, malformed, malformed, malformed, "other new", "other unknown", "(", "'ok'"]);
}

#[test]
fn streamlined_text_wins_over_the_other_copies() {
    let mut bench = Bench::new();
    bench.frames(&[&said(""), &start("m"), &text("a"), &said("b"), &text("c"), &message("m", r#"[{"type":"text","text":"ac and more"}]"#)]);
    assert_eq!(bench.news(), ["(", "'a'", "'b'"]);
}

#[test]
fn deltas_and_snapshots_are_told_once() {
    let mut bench = Bench::new();
    bench.frames(&[
        &start("m1"),
        &delta(0, "thinking", "thinking", "hm"),
        &message("m1", r#"[{"type":"thinking","thinking":"hm, well"}]"#),
        &text("Hel"),
        &text("lo"),
        &message("m1", r#"[{"type":"text","text":"Hello"}]"#),
        &message("m2", r#"[{"type":"text","text":"Hello"},{"type":"image"},{"type":"text","text":"!"}]"#),
        &message("m2", r#""text alone""#),
    ]);
    assert_eq!(bench.news(), ["(", "~hm~", "~, well~", "'Hel'", "'lo'", "'Hello'", "'!'", "'text alone'"]);
}

#[test]
fn think_marks_split_streamlined_text_only() {
    let mut bench = Bench::new();
    bench.frames(&[&said("<thi"), &said("nk>\nwhy"), &said("\n"), &said("</think>\n"), &said("\nso <"), &said("b")]);
    assert_eq!(bench.news(), ["(", "~why~", "'so '", "'<'", "'b'"]);
    let mut bench = Bench::new();
    bench.frames(&[&text("<think>a</think>"), &message("m2", r#"[{"type":"text","text":"<think>"}]"#)]);
    assert_eq!(bench.said(&Lane::Root), ("<think>a</think><think>".to_owned(), String::new()));
}

#[test]
fn what_is_held_back_is_said_at_the_end() {
    let mut bench = Bench::new();
    bench.frame(said("a<thi")).frame(r#"{"type":"streamlined_text","text":"\ud83d"}"#).frame(r#"{"type":"result"}"#);
    assert_eq!(bench.said(&Lane::Root).0, "a<thi\u{fffd}");
    let mut bench = Bench::new();
    bench.frame(said("<think>a\n</thi")).end();
    assert_eq!(bench.said(&Lane::Root), (String::new(), "a\n</thi".to_owned()));
}

#[test]
fn halves_of_a_character_meet_over_frames() {
    let mut bench = Bench::new();
    bench
        .frame(r#"{"type":"streamlined_text","text":"a\ud83d"}"#)
        .frame(progress("t", "T"))
        .frame(r#"{"type":"streamlined_text","text":"\ude00b"}"#);
    assert_eq!(bench.news(), ["(", "'a'", "start t T -", "'😀'", "'b'"]);
    let mut bench = Bench::new();
    let half = |half| stream(&format!(r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"{half}"}}}}"#));
    bench.frame(half(r"\ud83d")).frame(delta(1, "thinking", "thinking", "x")).frame(half(r"\ude00"));
    assert_eq!(bench.said(&Lane::Root), ("😀".to_owned(), "x".to_owned()));
}

#[test]
fn a_tool_is_announced_once_by_whatever_comes_first() {
    let ask = permission("r", r#""tool_name":"Bash","input":{"a":1},"tool_use_id":"t""#);
    let snapshot = calls("t", "Bash", r#"{"a":1}"#);
    let asked = "ask r Permission Bash of t";
    for (frames, expected) in [
        (vec![&progress("t", "Bash"), &progress("t", "Bash")], vec!["(", "start t Bash -"]),
        (vec![&ask, &progress("t", "Bash")], vec!["(", r#"start t Bash {"a":1}"#, asked]),
        (vec![&progress("t", "Bash"), &ask, &snapshot], vec!["(", "start t Bash -", r#"input t {"a":1}"#, asked]),
        (vec![&snapshot, &ask], vec!["(", r#"start t Bash {"a":1}"#, asked]),
        (vec![&summary("t", "done"), &progress("t", "Bash"), &snapshot], vec!["(", "start t tool -", "end t done"]),
        (vec![&calls("t", "Bash", "[1]")], vec!["(", r#"start t Bash {"input":[1]}"#]),
        (vec![&progress("", "Bash"), &progress("t", "")], vec!["(", "start t tool -"]),
    ] {
        let mut bench = Bench::new();
        for frame in frames {
            bench.frame(frame.as_str());
        }
        assert_eq!(bench.news(), expected);
    }
}

#[test]
fn a_tool_whose_block_is_open_waits_for_its_input() {
    let mut bench = Bench::new();
    bench.frames(&[&start("m"), &block(0, "t", "Bash"), &input(0, r#"{"a":"#), &progress("t", "Bash")]);
    assert_eq!(bench.news(), [""; 0]);
    bench.frames(&[&input(0, "1}"), &stop(0), &calls("t", "Bash", r#"{"a":1}"#)]);
    assert_eq!(bench.news(), ["(", r#"start t Bash {"a":1}"#]);

    // A snapshot before the block's stop, as real runtimes send it.
    let mut bench = Bench::new();
    bench.frames(&[&block(0, "t", "Bash"), &input(0, r#"{"a":1}"#), &calls("t", "Bash", r#"{"a":1}"#), &stop(0)]);
    assert_eq!(bench.news(), ["(", r#"start t Bash {"a":1}"#]);

    // Announced before its block: the input comes later.
    let mut bench = Bench::new();
    bench.frames(&[&progress("t", "Bash"), &block(0, "t", "Bash"), &input(0, r#"{"a":1}"#), &stop(0), &stop(0)]);
    assert_eq!(bench.news(), ["(", "start t Bash -", r#"input t {"a":1}"#]);
}

#[test]
fn a_waiting_tool_is_announced_at_the_latest_when() {
    let broken = [block(0, "t", "Bash"), input(0, r#"{"a":"#)];
    let open = || {
        let mut bench = Bench::new();
        bench.frames(&[&start("m"), &broken[0], &broken[1]]);
        bench
    };
    for frame in [stop(0), stream(r#"{"type":"message_stop"}"#), start("m2"), block(0, "t", "Bash")] {
        assert_eq!(open().frame(&*frame).news(), ["(", "start t Bash -"], "{frame}");
    }
    assert_eq!(open().frame(summary("t", "done")).news(), ["(", "start t Bash -", "end t done"]);
    assert_eq!(open().end().news()[..4], ["(", "start t Bash -", "end t interrupted error aborted", ")"]);
    let ask = permission("r", r#""tool_name":"Bash","tool_use_id":"t""#);
    assert_eq!(open().frame(ask).news(), ["(", "start t Bash -", "ask r Permission Bash of t"]);
}

/// rivet-dev/dynamic-apps#134: deltas of interleaved blocks credited to the latest tool.
#[test]
fn input_deltas_belong_to_their_block() {
    let mut bench = Bench::new();
    bench.frames(&[
        &start("m"),
        &text("look"),
        &delta(1, "thinking", "thinking", "hm"),
        &block(2, "a", "Read"),
        &block(3, "b", "Grep"),
        &input(2, r#"{"of":"#),
        &input(3, r#"{"of":"#),
        &input(2, r#""a"}"#),
        &input(0, "nobody's"),
        &input(3, r#""b"}"#),
        &stop(3),
        &stop(2),
    ]);
    assert_eq!(bench.news(), ["(", "'look'", "~hm~", r#"start b Grep {"of":"b"}"#, r#"start a Read {"of":"a"}"#]);
}

#[test]
fn results_end_tools_and_the_first_one_counts() {
    let mut bench = Bench::new();
    bench.frames(&[&progress("a", "A"), &progress("b", "B"), &progress("c", "C"), &progress("d", "D")]).news();
    bench.frames(&[
        r#"{"type":"tool_use_summary","summary":"both","preceding_tool_use_ids":["a","b",7,""]}"#,
        &summary("a", "late"),
        &summary("c", "error in C: no"),
        &tool_result("c", r#""fine""#, false),
        &tool_result("d", r#"[{"type":"text","text":"x"},{"type":"text","text":"y"}]"#, true),
    ]);
    assert_eq!(bench.news(), ["end a both", "end b both", "end c error in C: no error", "end d xy error"]);
}

#[test]
fn a_summary_without_ids_ends_the_only_open_tool() {
    let summary = r#"{"type":"streamlined_tool_use_summary","tool_summary":"ran it"}"#;
    let mut bench = Bench::new();
    bench.frames(&[&progress("a", "A"), &progress("b", "B"), summary, &tool_result("a", "null", false), summary, summary]);
    assert_eq!(bench.news(), ["(", "start a A -", "start b B -", "end a ", "end b ran it"]);
}

#[test]
fn turns() {
    let mut bench = Bench::new();
    bench.frames(&[
        &said("a"),
        &progress("t1", "T"),
        &progress("t2", "T"),
        &summary("t1", "1"),
        &said("b"),
        &summary("t2", "2"),
        &said("c"),
        &said("d"),
    ]);
    assert_eq!(bench.news(), ["(", "'a'", "start t1 T -", "start t2 T -", "end t1 1", "'b'", "end t2 2", ")", "(", "'c'", "'d'"]);
    bench.frames(&[&progress("t1", "T"), &progress("t3", "T"), &summary("t3", "3"), &progress("t4", "T")]);
    assert_eq!(bench.news(), ["start t3 T -", "end t3 3", ")", "(", "start t4 T -"]);
    bench.frame(r#"{"type":"biumind.compact_started","reason":"x","tokens_before":9}"#);
    assert_eq!(bench.news(), [r#"Compaction(Started { reason: "x", tokens_before: Some(9) })"#], "a call is open");
    bench.frames(&[
        &summary("t4", "4"),
        &said("e"),
        r#"{"type":"biumind.compact_started"}"#,
        r#"{"type":"biumind.compact_finished","tokens_after":3}"#,
    ]);
    let compaction = [
        r#"Compaction(Started { reason: "", tokens_before: None })"#,
        "Compaction(Finished { tokens_before: None, tokens_after: Some(3) })",
    ];
    assert_eq!(bench.news(), ["end t4 4", ")", "(", "'e'", ")", compaction[0], compaction[1]]);
    bench.frames(&[r#"{"type":"biumind.compact_started"}"#, r#"{"type":"result"}"#]);
    assert_eq!(bench.news(), [compaction[0], "completed EndTurn"]);
}

#[test]
fn a_boundary_is_both_moments_unless_they_come_themselves() {
    let boundary = r#"{"type":"system","subtype":"compact_boundary","compact_metadata":{"trigger":"auto","pre_tokens":7}}"#;
    let mut bench = Bench::new();
    bench.frames(&[boundary]);
    let (started, finished) = (
        r#"Compaction(Started { reason: "auto", tokens_before: Some(7) })"#,
        "Compaction(Finished { tokens_before: Some(7), tokens_after: None })",
    );
    assert_eq!(bench.news(), [started, finished]);
    bench.frames(&[r#"{"type":"biumind.compact_started"}"#]).news();
    bench.frames(&[boundary]);
    assert_eq!(bench.news(), ["other system/compact_boundary"]);
}

#[test]
fn turns_count_their_tokens() {
    let usage = |input, output| format!(r#"{{"input_tokens":{input},"output_tokens":{output}}}"#);
    let started = |id, usage: String| stream(&format!(r#"{{"type":"message_start","message":{{"id":"{id}","usage":{usage}}}}}"#));
    let ended = |output| stream(&format!(r#"{{"type":"message_delta","usage":{{"output_tokens":{output}}}}}"#));
    let mut bench = Bench::new();
    bench.frames(&[&started("m1", usage(10, 1)), &progress("t", "T"), &ended(5), &summary("t", "r")]);
    bench.frames(&[&started("m2", usage(20, 1)), &text("a"), &ended(7), &started("m3", usage(30, 1)), &text("b"), &ended(9)]).end();
    let ends: Vec<String> = bench.news().into_iter().filter(|line| line.starts_with(')')).collect();
    assert_eq!(ends, [") 10+5", ") 50+16"]);
    // Without a stream, from snapshots: several of one message are one.
    let snapshot = |id, output| format!(r#"{{"type":"assistant","message":{{"id":"{id}","content":"x","usage":{}}}}}"#, usage(4, output));
    let mut bench = Bench::new();
    bench.frames(&[&snapshot("m1", 1), &snapshot("m1", 2), &snapshot("m2", 3)]).end();
    assert_eq!(bench.news()[4], ") 8+5");
}

#[test]
fn sub_agents_have_lanes_of_their_own() {
    let mut bench = Bench::new();
    bench.frames(&[
        &progress("agent", "Agent"),
        &within("agent", &said("inner")),
        &within("agent", &start("m")),
        &within("agent", &progress("sub", "Grep")),
        &summary("sub", "found"),
        &said("outer"),
        &tool_result("agent", r#""done""#, false),
        &within("agent", &said("late")),
    ]);
    let lines = [
        "(",
        "start agent Agent -",
        "[agent] (",
        "[agent] 'inner'",
        "[agent] start sub Grep -",
        "[agent] end sub found",
        "'outer'",
        "[agent] )",
        "end agent done",
    ];
    assert_eq!(bench.news(), [&lines[..], &["[agent] (", "[agent] 'late'"]].concat());
    bench.end();
    let end = "failed missing_terminal_event: missing_terminal_event: the upstream closed before a terminal event";
    assert_eq!(bench.news(), ["[agent] )", ")", end]);
}

#[test]
fn the_lane_of_an_ask() {
    let started = r#"{"type":"system","subtype":"task_started","task_id":"a1","tool_use_id":"agent","description":"d"}"#;
    let mut bench = Bench::new();
    bench.frames(&[&progress("agent", "Agent"), started, &within("agent", &progress("sub", "Grep"))]).news();
    bench.frames(&[
        &permission("r1", r#""tool_name":"Grep","input":{},"tool_use_id":"sub""#),
        &permission("r2", r#""tool_name":"Bash","input":{},"tool_use_id":"new","agent_id":"a1""#),
        &permission("r3", r#""tool_name":"Bash","input":{},"tool_use_id":"lost","agent_id":"a2""#),
        &permission("r4", r#""tool_name":"Bash","input":{},"tool_use_id":"root""#),
        &permission("r5", r#""tool_name":"Bash","input":7"#),
    ]);
    let lines = [
        "[agent] input sub {}",
        "[agent] ask r1 Permission Grep of sub",
        "[agent] start new Bash {}",
        "[agent] ask r2 Permission Bash of new",
    ];
    assert_eq!(
        bench.news(),
        [
            &lines[..],
            &["ask r3 Permission Bash of -", "start root Bash {}", "ask r4 Permission Bash of root", "ask r5 Permission Bash of -"]
        ]
        .concat()
    );
}

#[test]
fn what_is_asked() {
    let mut bench = Bench::new();
    let question = r#"{"questions":[{"question":"Which?","header":"Env","multiSelect":true,"options":[{"label":"a","description":"d"},"b",7]},{"header":"H"},{},1]}"#;
    bench.frame(permission(
        "q",
        &format!(r#""tool_name":"AskUserQuestion","input":{question},"tool_use_id":"t","permission_suggestions":[]"#),
    ));
    bench.frame(permission("p", r#""tool_name":"Bash","input":{"n":1e400},"tool_use_id":"u","decision_reason":"","title":"First use","permission_suggestions":[{"type":"x"}]"#));
    let form = r#"{"subtype":"elicitation","mcp_server_name":"deploy","message":"Where?","mode":"form","elicitation_id":"e1","requested_schema":{"type":"object"}}"#;
    bench.frame(format!(r#"{{"type":"control_request","request_id":"f","request":{form}}}"#));
    bench.frame(r#"{"type":"control_request","request_id":"l","request":{"subtype":"elicitation","message":"Sign in","mode":"url","url":"https://x"}}"#);
    let asks: Vec<_> =
        bench.events.iter().filter_map(|event| if let What::AskRaised(ask) = &event.what { Some(ask) } else { None }).collect();
    let [q, p, f, l] = asks[..] else { panic!("{asks:?}") };
    assert_eq!((q.kind, q.input.as_str(), &q.suggestions), (AskKind::Question, question, &None));
    assert_eq!(q.questions.len(), 2);
    assert_eq!((&*q.questions[0].question, q.questions[0].header.as_deref(), q.questions[0].multi_select), ("Which?", Some("Env"), true));
    let options: Vec<_> = q.questions[0].options.iter().map(|option| (&*option.label, &*option.description)).collect();
    assert_eq!(options, [("a", "d"), ("b", "")]);
    assert_eq!((p.kind, p.input.as_str(), p.message.as_deref()), (AskKind::Permission, r#"{"n":1e400}"#, Some("First use")));
    assert_eq!(p.suggestions.as_ref().map(Json::as_str), Some(r#"[{"type":"x"}]"#));
    assert_eq!((f.kind, &*f.tool_name, f.message.as_deref(), f.input.as_str()), (AskKind::Form, "deploy", Some("Where?"), form));
    assert_eq!((l.kind, l.call.as_ref()), (AskKind::Link, None));
    bench.end();
    order::check(&bench.events);
}

#[test]
fn how_asks_are_settled() {
    let ask = |request, call| permission(request, &format!(r#""tool_name":"Bash","input":{{}},"tool_use_id":"{call}""#));
    let form = |request, id| {
        format!(r#"{{"type":"control_request","request_id":"{request}","request":{{"subtype":"elicitation","elicitation_id":"{id}"}}}}"#)
    };
    let mut bench = Bench::new();
    for (request, call) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")] {
        bench.frame(ask(request, call));
    }
    for (request, id) in [("f", "el1"), ("g", "el2"), ("h", "el3")] {
        bench.frame(form(request, id));
    }
    bench.news();
    let allow = |ask| Fact::AskAnswered { ask: AskId::from(ask), answer: Answer::Allow { input: None, always: false }, by: actor() };
    bench.fact(allow("a")).fact(allow("a")).fact(allow("nobody")).fact(Fact::AskExpired { ask: AskId::from("b") });
    bench
        .frame(summary("3", "went on"))
        .frame(r#"{"type":"control_cancel_request","request_id":"d"}"#)
        .frame(r#"{"type":"system","subtype":"elicitation_complete","elicitation_id":"el1"}"#);
    bench.frame(r#"{"type":"system","subtype":"form_answer","request_id":"g","action":"timeout"}"#);
    let lines =
        ["settled a Allowed", "settled b Expired", "end 3 went on", "settled c Void", "settled d Void", "other control_cancel_request"];
    assert_eq!(
        bench.news(),
        [&lines[..], &["settled f Void", "other system/elicitation_complete", "settled g Void", "other system/form_answer"]].concat()
    );
    bench.frame(ask("late", "3"));
    assert_eq!(bench.news(), ["ask late Permission Bash of 3"], "asked of a call that has ended: still shown");
    let ends: Vec<String> = bench.frame(r#"{"type":"result"}"#).news().into_iter().filter(|line| line.starts_with("settled")).collect();
    assert_eq!(ends, ["settled e Void", "settled h Void", "settled late Void"]);
}

#[test]
fn what_a_policy_decided_is_not_asked_and_what_we_notice_is_said() {
    let mut bench = Bench::new();
    let asked = permission("a", r#""tool_name":"Bash","input":{},"tool_use_id":"1""#);
    bench.fact(Fact::AskDecided { ask: AskId::from("a"), allowed: true, rule: "r".into() });
    bench.frame(asked.clone()).frame(asked.clone());
    assert_eq!(bench.news().last().map(String::as_str), Some("start 1 Bash {}"), "the tool is announced, and nobody is asked");
    bench.frame(permission("b", r#""tool_name":"Bash","input":{},"tool_use_id":"1""#));
    assert_eq!(bench.news(), ["ask b Permission Bash of 1"]);
    bench.fact(Fact::AskUnconfirmed { ask: AskId::from("b") });
    bench.fact(Fact::Noticed { level: NoticeLevel::Info, code: "x".into(), text: "y".into() });
    let news = bench.news();
    assert!(news[0].contains("answer_unconfirmed") && news[0].contains(" b;"), "{news:?}");
    assert!(news[1].contains("Info") && news[1].contains("\"x\""), "{news:?}");

    let found = crate::ask_in(&Text::from(asked)).unwrap();
    assert_eq!((found.id, found.kind, &*found.tool_name), (AskId::from("a"), AskKind::Permission, "Bash"));
    for other in [
        "null",
        "can_use_tool",
        r#"{"type":"streamlined_text","text":"can_use_tool"}"#,
        r#"{"type":"control_request","request_id":"","request":{"subtype":"can_use_tool"}}"#,
    ] {
        assert_eq!(crate::ask_in(&Text::from(other)), None, "{other}");
    }
}

#[test]
fn ends_leave_nothing_open() {
    let mut bench = Bench::new();
    bench
        .frames(&[
            &said("a"),
            &progress("agent", "Agent"),
            &within("agent", &progress("sub", "Grep")),
            &permission("r", r#""tool_name":"B","input":{},"tool_use_id":"sub""#),
        ])
        .news();
    bench.frame(r#"{"type":"result","subtype":"success","usage":{"input_tokens":3,"output_tokens":4},"total_cost_usd":0.10,"duration_ms":5,"num_turns":2,"structured_output":{"x":1.0}}"#);
    let aborted = "interrupted error aborted";
    assert_eq!(
        bench.news(),
        [
            &format!("[agent] end sub {aborted}"),
            "[agent] settled r Void",
            "[agent] )",
            &format!("end agent {aborted}"),
            ")",
            "completed EndTurn"
        ]
    );
    let Some(Event { what: What::RunEnded(end), .. }) = bench.events.last() else { panic!() };
    assert_eq!(end.usage, Some(Usage { input_tokens: 3, output_tokens: 4, ..Usage::default() }));
    assert_eq!((end.cost_usd.as_ref().map(Json::as_str), end.duration_ms, end.num_turns), (Some("0.10"), Some(5), Some(2)));
    assert_eq!((end.structured_output.as_ref().map(Json::as_str), end.synthesised), (Some(r#"{"x":1.0}"#), false));
}

#[test]
fn recoverable_errors_end_chat_sessions_only() {
    let error = r#"{"type":"result","is_error":true,"errors":[{"message":"529 try again","recoverable":true}]}"#;
    let notice = format!(
        "{:?}",
        What::Notice { level: NoticeLevel::Error, code: Text::from_static("recoverable_error"), text: Text::from_static("529 try again") }
    );
    assert_eq!(
        Bench::new().frame(error).frame(said("on")).frame(r#"{"type":"result"}"#).news(),
        [&*notice, "(", "'on'", ")", "completed EndTurn"]
    );
    assert_eq!(
        Bench::new().frame(error).fact(Fact::EndForced(ForcedEnd::ErrorStayed)).news(),
        [&*notice, "failed provider_overloaded: 529 try again"]
    );
    assert_eq!(Bench::with(Settings { chat: true }).frame(error).news(), ["failed provider_overloaded: 529 try again"]);
}

#[test]
fn a_stop_makes_errors_and_silence_interruptions() {
    let stopped = || {
        let mut bench = Bench::new();
        bench.fact(Fact::StopRequested { by: actor() });
        bench
    };
    let error = r#"{"type":"result","is_error":true,"errors":[{"message":"context canceled"}]}"#;
    assert_eq!(stopped().frame(error).news(), ["interrupted user_interrupt"]);
    assert_eq!(stopped().frame(r#"{"type":"result","subtype":"success"}"#).news(), ["completed EndTurn"]);
    let refused = ForcedEnd::Refused { kind: FailureKind::EngineNotReady, message: Text::from_static("no") };
    for end in [ForcedEnd::StopGraceOver, ForcedEnd::UpstreamGone, ForcedEnd::Idle, ForcedEnd::ErrorStayed, refused.clone()] {
        assert_eq!(stopped().fact(Fact::EndForced(end)).news(), ["interrupted user_interrupt"]);
    }
    assert_eq!(Bench::new().frame(error).news(), ["failed internal: context canceled"]);
    assert_eq!(Bench::new().fact(Fact::EndForced(refused)).news(), ["failed engine_not_ready: no"]);
    assert_eq!(
        Bench::new().frame(r#"{"type":"result","is_error":true,"subtype":"error_max_turns"}"#).news(),
        [format!("completed {:?}", Completion::MaxTurns)]
    );
}

#[test]
fn the_rest() {
    let changed = |model: Option<&'static str>, title: Option<&'static str>, mode: Option<&'static str>, state: Option<&'static str>| {
        let text = |text: Option<&'static str>| text.map(Text::from_static);
        What::SessionChanged { model: text(model), title: text(title), mode: text(mode), state: text(state) }
    };
    let notice = |level, code, text| What::Notice { level, code: Text::from_static(code), text: Text::from_static(text) };
    let other = |name| What::Other { name: Text::from_static(name) };
    let system = |members| format!(r#"{{"type":"system","subtype":{members}}}"#);
    for (frame, what) in [
        (system(r#""init","model":"m","permissionMode":"plan""#), changed(Some("m"), None, Some("plan"), None)),
        (system(r#""status","permissionMode":"default""#), changed(None, None, Some("default"), None)),
        (system(r#""status","status":"requesting""#), other("system/status")),
        (system(r#""session_state_changed","state":"idle""#), changed(None, None, None, Some("idle"))),
        (system(r#""post_turn_summary","title":"Fixed""#), changed(None, Some("Fixed"), None, None)),
        (
            system(r#""files_persisted","files":["a",{"filename":"b"},7]"#),
            What::FilesChanged { paths: vec![Text::from_static("a"), Text::from_static("b")] },
        ),
        (
            system(r#""api_retry","attempt":1,"max_retries":5,"retry_delay_ms":2000,"error":"overloaded_error""#),
            notice(NoticeLevel::Warning, "api_retry", "overloaded_error; attempt 1 of 5 in 2000 ms"),
        ),
        (
            system(r#""hook_response","hook_name":"fmt","outcome":"error","stderr":"bad\n""#),
            notice(NoticeLevel::Warning, "hook_error", "hook fmt failed: bad"),
        ),
        (system(r#""hook_response","outcome":"success""#), other("system/hook_response")),
        (system(r#""hook_started""#), other("system/hook_started")),
        (
            system(r#""task_progress","task_id":"b","last_tool_name":"Grep""#),
            What::Task { task: Text::from_static("b"), call: None, phase: TaskPhase::Progress, summary: Text::from_static("Grep") },
        ),
        (
            r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected"}}"#.to_owned(),
            notice(NoticeLevel::Warning, "rate_limit", "rate limit: rejected"),
        ),
        (r#"{"type":"auth_status","error":"expired"}"#.to_owned(), notice(NoticeLevel::Error, "auth_status", "expired")),
        (r#"{"type":"auth_status","error":null}"#.to_owned(), other("auth_status")),
        (r#"{"type":"prompt_suggestion","suggestion":"Next?"}"#.to_owned(), What::Suggestion { text: Text::from_static("Next?") }),
        (r#"{"type":"biumind.session_paused"}"#.to_owned(), changed(None, None, None, Some("paused"))),
        (r#"{"type":"biumind.session_resumed"}"#.to_owned(), changed(None, None, None, Some("resumed"))),
        (r#"{"type":"biumind.session_desynced"}"#.to_owned(), other("biumind.session_desynced")),
        (r#"{"type":"keep_alive"}"#.to_owned(), other("keep_alive")),
        (r#"{"type":"control_response","response":{"subtype":"success"}}"#.to_owned(), other("control_response/success")),
        (r#"{"type":"user","message":{"content":"hello"}}"#.to_owned(), other("user")),
        (r#"{"type":"code_response"}"#.to_owned(), other("code_response")),
        (
            r#"{"type":"control_request","request_id":"x","request":{"subtype":"get_settings"}}"#.to_owned(),
            other("control_request/get_settings"),
        ),
    ] {
        let mut bench = Bench::new();
        bench.frame(&*frame);
        assert_eq!(bench.events.get(1).map(|event| &event.what), Some(&what), "{frame}");
        assert_eq!(bench.events.len(), 2, "{frame}");
    }
    let mut bench = Bench::new();
    bench.fact(Fact::Titled { title: Text::from_static("T") }).fact(Fact::LinkLost).fact(Fact::LinkBack);
    assert_eq!(bench.events[1..], [Event::root(changed(None, Some("T"), None, None))]);
}

#[test]
fn tasks_know_the_call_that_started_them() {
    let system = |members| format!(r#"{{"type":"system","subtype":{members}}}"#);
    let mut bench = Bench::new();
    bench.frames(&[
        &progress("t", "Agent"),
        &system(r#""task_started","task_id":"a","tool_use_id":"t","description":"find""#),
        &system(r#""task_progress","task_id":"a","summary":"half""#),
        &system(r#""task_notification","task_id":"a","summary":"found""#),
        &system(r#""task_started","task_id":"b","tool_use_id":"unknown","description":"x""#),
    ]);
    let tasks: Vec<_> = bench
        .events
        .iter()
        .filter_map(|event| {
            if let What::Task { call, phase, summary, .. } = &event.what {
                Some((call.as_ref().map(|call| call.as_str()), *phase, &**summary))
            } else {
                None
            }
        })
        .collect();
    let t = Some("t");
    assert_eq!(
        tasks,
        [
            (t, TaskPhase::Started, "find"),
            (t, TaskPhase::Progress, "half"),
            (t, TaskPhase::Finished, "found"),
            (None, TaskPhase::Started, "x")
        ]
    );
}

#[test]
fn the_planning_tool_sets_the_plan() {
    let mut bench = Bench::new();
    bench.frame(calls(
        "t",
        "TodoWrite",
        r#"{"todos":[{"content":"one","status":"completed"},{"content":"two","status":"in_progress","id":"x"},{"status":"pending"}]}"#,
    ));
    let Some(Event { what: What::PlanChanged { steps }, .. }) = bench.events.last() else { panic!("{:?}", bench.events) };
    let steps: Vec<_> = steps.iter().map(|step| (&*step.id, &*step.title, step.status)).collect();
    assert_eq!(steps, [("1", "one", StepStatus::Completed), ("x", "two", StepStatus::Running)]);
    assert!(bench.news().iter().any(|line| line.starts_with("start t TodoWrite")));
}
