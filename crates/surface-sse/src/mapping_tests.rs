//! The mapping against tables, a golden transcript, and a checker of the grammar that shares nothing with it.

use interline_model::{AskId, AskOutcome, Body, NoticeLevel, PlanStep, SessionId, StepStatus, TaskPhase, Usage};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::{AskLimits, Extras};

#[path = "../tests/grammar/mod.rs"]
mod grammar;

fn run() -> RunId {
    RunId::from_u128(0x833f_9576_9b05_4f9c_84bc_d457_1f98_1569)
}

const RUN_TEXT: &str = "run-833f95769b054f9c84bcd4571f981569";

fn record() -> Record {
    Record { at: 0, body: Body::Frame(Text::new()) }
}

fn blocks(options: Options, events: &[Event]) -> Vec<Block> {
    let (mut writer, mut items) = (SseWriter::new(options), Vec::new());
    writer.write(&record(), events, &mut items);
    items
}

/// The JSON lines of a run with these root events, without its `run_start`.
fn lines_with(options: Options, events: Vec<What>) -> Vec<String> {
    let events: Vec<Event> = [started()].into_iter().chain(events).map(Event::root).collect();
    json(&blocks(options, &events)).split_off(1)
}

fn lines(events: Vec<What>) -> Vec<String> {
    lines_with(Options::default(), events)
}

fn json(blocks: &[Block]) -> Vec<String> {
    blocks.iter().map(|block| String::from_utf8(block.json().to_vec()).unwrap()).collect()
}

fn started() -> What {
    What::RunStarted { run: run(), session: SessionId::from("ses-1"), model: "gpt-4o".into() }
}

fn text(delta: &str) -> What {
    What::Text { delta: delta.to_owned().into() }
}

fn tool(call: &str, input: Option<&str>) -> What {
    What::ToolStarted {
        call: call.to_owned().into(),
        name: "exec".into(),
        input: input.map(|input| Json::parse(input.to_owned()).unwrap()),
    }
}

fn output(call: &str, delta: &str) -> What {
    What::ToolOutput { call: call.to_owned().into(), delta: delta.to_owned().into() }
}

fn tool_ended(call: &str, result: &str, is_error: bool) -> What {
    What::ToolEnded { call: call.to_owned().into(), result: result.to_owned().into(), raw: None, is_error, aborted: false }
}

fn ended(outcome: Outcome) -> What {
    What::RunEnded(Box::new(RunEnd::synthesised(outcome)))
}

fn ask(kind: AskKind, tool_name: &str, input: &str) -> What {
    What::AskRaised(Box::new(Ask {
        id: AskId::from("req-1"),
        kind,
        call: None,
        tool_name: tool_name.to_owned().into(),
        message: None,
        input: Json::parse(input.to_owned()).unwrap(),
        questions: Vec::new(),
        suggestions: None,
    }))
}

fn step(id: &str, status: StepStatus) -> PlanStep {
    PlanStep { id: id.to_owned().into(), title: "do".into(), status }
}

fn agent(call: &str, what: What) -> Event {
    Event { lane: Lane::Agent(call.to_owned().into()), what }
}

#[test]
fn a_whole_run_to_the_byte() {
    let events: Vec<Event> = [
        started(),
        What::TurnStarted,
        What::Thinking { delta: "先看目录".into() },
        text("我来看看。"),
        tool("call_1", Some(r#"{"command":"ls"}"#)),
        ask(AskKind::Permission, "exec", r#"{"command":"ls"}"#),
        output("call_1", "a.txt\n"),
        tool_ended("call_1", "a.txt\nb.txt\n", false),
        What::TurnEnded { usage: None },
        What::TurnStarted,
        text("有两个文件。"),
        What::TurnEnded { usage: None },
        ended(Outcome::Completed(Completion::EndTurn)),
    ]
    .map(Event::root)
    .to_vec();
    let items = blocks(Options::default(), &events);
    let wire: String = items.iter().map(|block| String::from_utf8(block.plain().to_vec()).unwrap()).collect();
    assert_eq!(
        wire,
        r#"data: {"type":"run_start","run_id":"run-833f95769b054f9c84bcd4571f981569","session_id":"ses-1","model":"gpt-4o"}

data: {"type":"turn_start","turn_num":1}

data: {"type":"thinking_delta","content":"先看目录"}

data: {"type":"stream_delta","content":"我来看看。"}

data: {"type":"tool_start","tool_name":"exec","call_id":"call_1","arguments":{"command":"ls"}}

data: {"type":"approval_request","request_id":"req-1","tool_name":"exec","arguments":{"command":"ls"}}

data: {"type":"tool_progress","call_id":"call_1","output":"a.txt\n"}

data: {"type":"tool_end","call_id":"call_1","result":"a.txt\nb.txt\n","is_error":false}

data: {"type":"turn_end","turn_num":1}

data: {"type":"turn_start","turn_num":2}

data: {"type":"stream_delta","content":"有两个文件。"}

data: {"type":"turn_end","turn_num":2}

data: {"type":"done","reason":"end_turn","run_id":"run-833f95769b054f9c84bcd4571f981569"}

"#
    );
    assert_eq!(items.iter().map(Block::seq).collect::<Vec<_>>(), (1..=13).collect::<Vec<_>>());
    assert_eq!(items.iter().position(Block::is_terminal), Some(12));
    grammar(&items).unwrap();
}

#[test]
fn every_end_has_its_documented_words() {
    let failed = |kind, message: &str| Outcome::Failed { kind, message: message.to_owned().into() };
    let stopped = || Outcome::Interrupted { reason: "user_interrupt".into() };
    let done = |reason: &str| format!(r#"{{"type":"done","reason":"{reason}","run_id":"{RUN_TEXT}"}}"#);
    let error = |text: &str, kind: &str| format!(r#"{{"type":"error","error":"{text}","kind":"{kind}","severity":"error"}}"#);
    for (outcome, expected) in [
        (Outcome::Completed(Completion::EndTurn), done("end_turn")),
        (Outcome::Completed(Completion::MaxTurns), done("budget_exhausted")),
        (Outcome::Completed(Completion::MaxBudget), done("budget_exhausted")),
        (stopped(), r#"{"type":"interrupted","reason":"user_interrupt"}"#.to_owned()),
        (failed(FailureKind::ProviderRateLimit, "slow down"), error("slow down", "provider_rate_limit")),
        (failed(FailureKind::Internal, ""), error("internal", "internal")),
        (
            failed(FailureKind::MissingTerminalEvent, ""),
            error("missing_terminal_event: upstream closed before a terminal event", "missing_terminal_event"),
        ),
        (failed(FailureKind::MissingTerminalEvent, "gone"), error("missing_terminal_event: gone", "missing_terminal_event")),
        (
            failed(FailureKind::MissingTerminalEvent, "missing_terminal_event: gone"),
            error("missing_terminal_event: gone", "missing_terminal_event"),
        ),
    ] {
        assert_eq!(lines(vec![ended(outcome)]), [expected]);
    }
    let as_done = Options { interrupt_terminal: InterruptTerminal::Done, ..Options::default() };
    assert_eq!(lines_with(as_done, vec![ended(stopped())]), [done("context_cancelled")]);
}

#[test]
fn each_kind_of_ask_is_an_approval_request() {
    for (kind, name, input, expected) in [
        (AskKind::Permission, "Bash", r#"{"command":"ls"}"#, r#""Bash","arguments":{"command":"ls"}}"#),
        (AskKind::Question, "AskUserQuestion", r#"{"questions":[]}"#, r#""ask_user","arguments":{"questions":[]}}"#),
        (AskKind::Form, "server", r#"{"mode":"form"}"#, r#""elicitation","arguments":{"mode":"form"}}"#),
        (AskKind::Link, "server", r#"{"mode":"url"}"#, r#""elicitation","arguments":{"mode":"url"}}"#),
    ] {
        let expected = format!(r#"{{"type":"approval_request","request_id":"req-1","tool_name":{expected}"#);
        assert_eq!(lines(vec![ask(kind, name, input)]), [expected]);
    }
}

#[test]
fn arguments_are_the_input_as_it_came_or_an_empty_object() {
    let last = |options: Options, input| lines_with(options, vec![tool("c", input)]).pop().unwrap();
    let head = r#"{"type":"tool_start","tool_name":"exec","call_id":"c","arguments":"#;
    for (input, written) in [
        (None, "{}"),
        (Some(r#"{"b":1.0,"a":12345678901234567890123}"#), r#"{"b":1.0,"a":12345678901234567890123}"#),
        (Some("{\"s\":\"\u{2028}\u{85}\\ud83d\"}"), r#"{"s":"\u2028\u0085\ufffd"}"#),
        (Some("[1]"), r#"{"input":[1]}"#),
    ] {
        assert_eq!(last(Options::default(), input), format!("{head}{written}}}"));
    }
    let as_string = Options { arguments: ArgumentsForm::String, ..Options::default() };
    assert_eq!(last(as_string, Some(r#"{"a":"b"}"#)), format!(r#"{head}"{{\"a\":\"b\"}}"}}"#));
}

#[test]
fn later_input_and_all_that_has_no_documented_event_is_nothing() {
    let silent = [
        What::ToolInput { call: CallId::from("c"), input: Json::empty_object() },
        What::Compaction(interline_model::CompactionPhase::Started { reason: "manual".into(), tokens_before: None }),
        What::SessionChanged { model: Some("m".into()), title: None, mode: None, state: None },
        What::FilesChanged { paths: vec!["a".into()] },
        What::Task { task: "t".into(), call: None, phase: TaskPhase::Finished, summary: "s".into() },
        What::AskSettled { ask: AskId::from("a"), outcome: AskOutcome::Void },
        What::Notice { level: NoticeLevel::Error, code: "api_retry".into(), text: "t".into() },
        What::Suggestion { text: "t".into() },
        What::Other { name: "x/y".into() },
    ];
    for what in silent {
        assert_eq!(lines(vec![tool("c", None), what.clone()]).len(), 2, "{what:?}");
    }
}

/// The JSON lines of a run with everything that has extras, told with these.
fn with_extras(extras: Extras) -> Vec<String> {
    let usage = Usage { input_tokens: 5, output_tokens: 6, cache_read_tokens: 7, cache_write_tokens: 8 };
    let end = RunEnd {
        usage: Some(usage),
        cost_usd: Some(Json::parse("0.10").unwrap()),
        duration_ms: None,
        num_turns: Some(2),
        ..RunEnd::synthesised(Outcome::Completed(Completion::EndTurn))
    };
    let settled = What::AskSettled { ask: AskId::from("req-1"), outcome: AskOutcome::Allowed };
    let events = [
        Event::root(started()),
        Event::root(What::SessionChanged { model: Some("real".into()), title: None, mode: None, state: None }),
        Event::root(What::TurnStarted),
        Event::root(text("hi")),
        Event::root(tool("c", None)),
        Event::root(What::ToolInput { call: "c".into(), input: Json::parse(r#"{"n":1.0}"#).unwrap() }),
        Event::root(ask(AskKind::Permission, "exec", r#"{"command":"ls"}"#)),
        Event::root(settled),
        Event::root(What::Notice { level: NoticeLevel::Warning, code: "api_retry".into(), text: "again".into() }),
        agent("c", What::TurnEnded { usage: Some(usage) }),
        Event::root(tool_ended("c", "ok", false)),
        Event::root(What::PlanChanged { steps: vec![step("1", StepStatus::Running)] }),
        Event::root(What::PlanChanged { steps: vec![step("1", StepStatus::Completed)] }),
        Event::root(What::TurnEnded { usage: Some(usage) }),
        Event::root(What::FilesChanged { paths: vec!["a".into(), "b".into()] }),
        Event::root(What::Compaction(interline_model::CompactionPhase::Finished { tokens_before: Some(9), tokens_after: None })),
        Event::root(What::Task { task: "t".into(), call: Some("c".into()), phase: TaskPhase::Failed, summary: "s".into() }),
        Event::root(What::Suggestion { text: "more?".into() }),
        Event::root(What::RunEnded(Box::new(end))),
    ];
    let limits = AskLimits { permission_ms: 30_000, form_ms: 60_000 };
    let mut writer = SseWriter::new(Options { extras, ask_limits: Some(limits), ..Options::default() });
    let mut items = Vec::new();
    for (n, event) in (0..).zip(&events) {
        writer.write(&Record { at: 10 * n, ..record() }, std::slice::from_ref(event), &mut items);
    }
    let (mut numbered, lines) = (0, json(&items));
    for (block, line) in items.iter().zip(&lines) {
        numbered += u64::from(!block.is_aside());
        assert_eq!(block.seq(), numbered, "{line}");
        interline_testkit::validate_sse(line).unwrap();
    }
    lines
}

#[test]
fn fields_stand_behind_the_documented_members() {
    let plain = with_extras(Extras::Off);
    let lines = with_extras(Extras::Fields);
    assert_eq!(lines.len(), plain.len());
    for (n, (line, plain)) in lines.iter().zip(&plain).enumerate() {
        assert!(line.starts_with(plain.strip_suffix('}').unwrap()), "{line} begins as {plain}");
        assert!(line.contains(&format!(",\"seq\":{}", n + 1)), "{line}");
        for member in ["run_id", "session_id", "ts"] {
            assert_eq!(line.matches(&format!("\"{member}\":")).count(), 1, "{line}");
        }
    }
    let more = |n: usize| lines[n].strip_prefix(plain[n].strip_suffix('}').unwrap()).unwrap();
    let stamp = |seq: u64, ts: u64| format!(r#","seq":{seq},"run_id":"{RUN_TEXT}","session_id":"ses-1","ts":{ts}}}"#);
    let plan = format!(r#","plan_id":"{RUN_TEXT}-plan-1""#);
    for (n, expected) in [
        (0, r#","seq":1,"ts":0}"#.to_owned()),
        (1, stamp(2, 20)),
        (
            4,
            r#","kind":"approval","expires_at":"1970-01-01T00:00:30.060Z","command_text":"ls""#.to_owned() + &stamp(5, 60),
        ),
        (5, r#","tool_name":"exec","duration_ms":60"#.to_owned() + &stamp(6, 100)),
        (6, stamp(7, 110)),
        (7, format!(r#"{plan},"title":"do"{}"#, stamp(8, 120))),
        (8, format!("{plan}{}", stamp(9, 120))),
        (
            10,
            r#","usage":{"input_tokens":5,"output_tokens":6,"cache_read_tokens":7,"cache_write_tokens":8},"total_cost_usd":0.10,"num_turns":2,"elapsed_ms":180,"seq":11,"session_id":"ses-1","ts":180}"#.to_owned(),
        ),
    ] {
        assert_eq!(more(n), expected, "{}", lines[n]);
    }
}

#[test]
fn extra_events_come_between_the_documented_ones_and_take_no_number() {
    let fields = with_extras(Extras::Fields);
    let (documented, asides): (Vec<String>, Vec<String>) =
        with_extras(Extras::Events).into_iter().partition(|line| line.contains("\"seq\":"));
    assert_eq!(documented, fields, "the same bytes with and without the extra events");
    let usage = r#""input_tokens":5,"output_tokens":6,"cache_read_tokens":7,"cache_write_tokens":8"#;
    let expected = [
        (10, r#"{"type":"session_changed","model":"real""#.to_owned()),
        (50, r#"{"type":"tool_input","call_id":"c","arguments":{"n":1.0}"#.to_owned()),
        (70, r#"{"type":"hitl_resolved","request_id":"req-1","outcome":"allowed""#.to_owned()),
        (80, r#"{"type":"notice","level":"warning","code":"api_retry","message":"again""#.to_owned()),
        (90, format!(r#"{{"type":"token_usage",{usage},"parent_call_id":"c""#)),
        (130, format!(r#"{{"type":"token_usage","turn_num":1,{usage}"#)),
        (140, r#"{"type":"files_changed","paths":["a","b"]"#.to_owned()),
        (150, r#"{"type":"compaction","phase":"finished","tokens_before":9"#.to_owned()),
        (160, r#"{"type":"task","task_id":"t","call_id":"c","phase":"failed","summary":"s""#.to_owned()),
        (170, r#"{"type":"suggestion","text":"more?""#.to_owned()),
    ]
    .map(|(at, head)| format!(r#"{head},"run_id":"{RUN_TEXT}","session_id":"ses-1","ts":{at}}}"#));
    assert_eq!(asides, expected);
}

#[test]
fn an_error_says_with_fields_that_nothing_follows_it() {
    let failed = RunEnd {
        synthesised: false,
        ..RunEnd::synthesised(Outcome::Failed { kind: FailureKind::ProviderRateLimit, message: "429: slow".into() })
    };
    let end = What::RunEnded(Box::new(failed));
    let told = lines_with(Options { extras: Extras::Fields, ..Options::default() }, vec![end]);
    assert_eq!(
        told,
        [format!(
            r#"{{"type":"error","error":"429: slow","kind":"provider_rate_limit","severity":"error","code":"provider_rate_limit","recoverable":false,"provider_message":"429: slow","seq":2,"run_id":"{RUN_TEXT}","session_id":"ses-1","ts":0}}"#
        )]
    );
}

#[test]
fn a_sub_agent_speaks_through_the_call_that_it_works_for() {
    let events = [
        Event::root(started()),
        Event::root(What::TurnStarted),
        Event::root(tool("task", None)),
        agent("task", What::TurnStarted),
        agent("task", text("looking ")),
        agent("task", What::Thinking { delta: "hm".into() }),
        agent("task", tool("inner", None)),
        agent("inner", text("deeper")),
        agent("task", output("inner", "hidden")),
        agent("task", tool_ended("inner", "hidden", false)),
        agent("task", What::TurnEnded { usage: None }),
        agent("elsewhere", text("nobody's")),
        agent("task", ask(AskKind::Permission, "Bash", "{}")),
        Event::root(tool_ended("task", "found", false)),
        agent("task", text("too late")),
        Event::root(What::TurnEnded { usage: None }),
        Event::root(ended(Outcome::Completed(Completion::EndTurn))),
    ];
    let told = |sub_agents| json(&blocks(Options { sub_agents, ..Options::default() }, &events));
    let rest = [
        r#"{"type":"approval_request","request_id":"req-1","tool_name":"Bash","arguments":{}}"#,
        r#"{"type":"tool_end","call_id":"task","result":"found","is_error":false}"#,
        r#"{"type":"turn_end","turn_num":1}"#,
    ];
    let folded = told(SubAgents::Fold);
    assert_eq!(
        folded[3..5],
        [
            r#"{"type":"tool_progress","call_id":"task","output":"looking "}"#,
            r#"{"type":"tool_progress","call_id":"task","output":"deeper"}"#
        ]
    );
    assert_eq!(folded[5..8], rest);
    assert_eq!(told(SubAgents::Hide)[3..6], rest);
}

/// Where the whole of something cut is, of the session of these tests in no cell.
const WHOLE: &str = "; all of it: GET /cells/{cell}/sessions/ses-1/messages";

#[test]
fn huge_or_bottomless_arguments_are_left_out_and_say_so() {
    let long = format!(r#"{{"text":"{}"}}"#, "x".repeat(5000));
    // Within the cap as it came, beyond it once written.
    let separators = format!(r#"{{"text":"{}"}}"#, "\u{2028}".repeat(1100));
    let nested = |levels: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1));
    let brackets = format!(r#"{{"text":"\\\"{}"}}"#, "[".repeat(1000));
    for (extras, form) in [
        (Extras::Off, ArgumentsForm::Object),
        (Extras::Off, ArgumentsForm::String),
        (Extras::Fields, ArgumentsForm::Object),
        (Extras::Events, ArgumentsForm::String),
    ] {
        let options = Options { max_event_bytes: 4096, arguments: form, extras, ..Options::default() };
        let shown = |input: &str| -> Vec<Value> {
            let mut request = ask(AskKind::Permission, "exec", input);
            if let What::AskRaised(ask) = &mut request {
                ask.message = Some("why ".repeat(3000).into());
            }
            let told = lines_with(options.clone(), vec![tool("c", Some(input)), request]);
            assert!(told.iter().all(|json| json.len() <= 4096), "{told:?}");
            let events = told.iter().map(|json| serde_json::from_str::<Value>(json).unwrap());
            let arguments = events.filter(|event| event["type"] != "turn_start").map(|event| match &event["arguments"] {
                Value::String(text) => serde_json::from_str(text).unwrap(),
                object => object.clone(),
            });
            arguments.collect()
        };
        for input in [&long, &separators] {
            let why = format!("arguments of {} bytes are left out; the cap is sse.max_event_bytes", input.len());
            // What an ask asks about may be in no message.
            let expected = [format!("{why}{WHOLE}"), why].map(|why| serde_json::json!({"truncated": why}));
            let shown = shown(input);
            // In a string the separators are no longer than in an object.
            assert_eq!(shown, expected, "{extras:?} {form:?}");
        }
        let why = format!("arguments nested more than 512 levels deep are left out{WHOLE}");
        assert_eq!(shown(&nested(513))[0], serde_json::json!({"truncated": why}));
        assert_eq!(shown(&brackets)[0]["text"].as_str().unwrap().len(), 1002);
    }
    let told = lines(vec![tool("c", Some(&nested(512)))]);
    assert!(told[1].contains(&nested(512)), "the most is passed on");
}

#[test]
fn a_huge_result_is_cut_and_says_so_and_huge_text_is_split() {
    for extras in [Extras::Off, Extras::Fields, Extras::Events] {
        huge_text(Options { max_event_bytes: 4096, extras, ..Options::default() });
    }
}

fn huge_text(options: Options) {
    let huge = "é\u{1}\"".repeat(10_000);
    let events = vec![
        What::TurnStarted,
        text(&huge),
        tool("c", None),
        output("c", &huge),
        tool_ended("c", &huge, false),
        What::TurnEnded { usage: None },
        ended(Outcome::Completed(Completion::EndTurn)),
    ];
    let told: Vec<Value> = lines_with(options, events)
        .iter()
        .map(|json| {
            assert!(json.len() <= 4096);
            serde_json::from_str(json).unwrap()
        })
        .collect();
    let joined = |kind: &str, member: &str| -> String {
        told.iter().filter(|event| event["type"] == kind).map(|event| event[member].as_str().unwrap()).collect()
    };
    assert_eq!(joined("stream_delta", "content"), huge);
    assert_eq!(joined("tool_progress", "output"), huge);
    let result = joined("tool_end", "result");
    let (shown, mark) = result.split_once("\n[output cut: ").unwrap();
    assert!(huge.starts_with(shown) && shown.len() > 1000);
    assert_eq!(mark, format!("{} of {} bytes shown{WHOLE}]", shown.len(), huge.len()));
}

#[test]
fn what_is_open_is_closed_before_the_end_and_the_next_run_counts_anew() {
    let mut told = lines(vec![
        What::TurnStarted,
        tool("c", None),
        What::PlanChanged { steps: vec![step("1", StepStatus::Running)] },
        ended(Outcome::Interrupted { reason: "user_interrupt".into() }),
        text("late"),
        started(),
        What::TurnStarted,
    ]);
    let plan = told.remove(2);
    assert!(plan.starts_with(r#"{"type":"plan_created""#));
    assert_eq!(
        told[2..],
        [
            r#"{"type":"tool_end","call_id":"c","result":"interrupted","is_error":true}"#.to_owned(),
            r#"{"type":"turn_end","turn_num":1}"#.to_owned(),
            r#"{"type":"plan_interrupted","reason":"user_interrupt"}"#.to_owned(),
            r#"{"type":"interrupted","reason":"user_interrupt"}"#.to_owned(),
            format!(r#"{{"type":"run_start","run_id":"{RUN_TEXT}","session_id":"ses-1","model":"gpt-4o"}}"#),
            r#"{"type":"turn_start","turn_num":1}"#.to_owned(),
        ]
    );
}

#[test]
fn a_small_event_costs_no_allocation_of_its_own() {
    let (mut writer, mut items) = (SseWriter::new(Options::default()), Vec::new());
    writer.write(&record(), &[Event::root(started())], &mut items);
    writer.write(&record(), &vec![Event::root(text("word ")); 40], &mut items);
    let behind = items.windows(2).filter(|pair| pair[0].plain().as_ptr_range().end == pair[1].plain().as_ptr()).count();
    assert!(behind >= items.len() - 3, "{behind} of {} blocks follow their neighbour in memory", items.len());
}

/// What breaks the grammar, if anything does.
fn grammar(blocks: &[Block]) -> Result<(), String> {
    grammar::check(blocks.iter().map(|block| grammar::Line {
        seq: block.seq(),
        is_aside: block.is_aside(),
        is_terminal: block.is_terminal(),
        wire: block.plain(),
    }))
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![Just("\u{85}\u{2028}\r\n\"\\\u{0}😀".to_owned()), "[a-z<>\\n]{1,8}", Just("x".repeat(3000))]
}

fn any_call() -> impl Strategy<Value = CallId> {
    (0..4).prop_map(|n| CallId::from(format!("call-{n}")))
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Completed(Completion::EndTurn)),
        Just(Outcome::Completed(Completion::MaxTurns)),
        any_text().prop_map(|reason| Outcome::Interrupted { reason: reason.into() }),
        any_text().prop_map(|message| Outcome::Failed { kind: FailureKind::MissingTerminalEvent, message: message.into() }),
    ]
}

fn any_what() -> impl Strategy<Value = What> {
    let status = prop_oneof![Just(StepStatus::Pending), Just(StepStatus::Running), Just(StepStatus::Completed)];
    prop_oneof![
        1 => Just(started()),
        2 => Just(What::TurnStarted),
        2 => Just(What::TurnEnded { usage: None }),
        4 => any_text().prop_map(|delta| What::Text { delta: delta.into() }),
        2 => any_text().prop_map(|delta| What::Thinking { delta: delta.into() }),
        4 => any_call().prop_map(|call| What::ToolStarted { call, name: "t".into(), input: None }),
        2 => (any_call(), any_text()).prop_map(|(call, delta)| What::ToolOutput { call, delta: delta.into() }),
        3 => (any_call(), any_text(), any::<bool>()).prop_map(|(call, result, is_error)| What::ToolEnded { call, result: result.into(), raw: None, is_error, aborted: false }),
        1 => any_text().prop_map(|name| ask(AskKind::Permission, &name, "{}")),
        2 => prop::collection::vec(((0..3u8).prop_map(|n| n.to_string()), status), 0..4)
            .prop_map(|steps| What::PlanChanged { steps: steps.iter().map(|(id, status)| step(id, *status)).collect() }),
        1 => any_outcome().prop_map(ended),
        1 => Just(What::Other { name: "x".into() }),
        1 => any_text().prop_map(|text| What::Notice { level: NoticeLevel::Info, code: "x".into(), text: text.into() }),
        1 => Just(What::AskSettled { ask: AskId::from("req-1"), outcome: AskOutcome::Expired }),
        1 => any_text().prop_map(|title| What::SessionChanged { model: None, title: Some(title.into()), mode: None, state: None }),
        2 => (0..3u8, any_phase(), any_text()).prop_map(|(task, phase, said)| What::Task { task: format!("t{task}").into(), call: None, phase, summary: said.into() }),
    ]
}

fn any_phase() -> impl Strategy<Value = TaskPhase> {
    prop::sample::select(vec![TaskPhase::Started, TaskPhase::Progress, TaskPhase::Finished, TaskPhase::Failed])
}

fn any_event() -> impl Strategy<Value = Event> {
    let lane = prop_oneof![3 => Just(Lane::Root), 1 => any_call().prop_map(Lane::Agent)];
    (lane, any_what()).prop_map(|(lane, what)| Event { lane, what })
}

proptest! {
    #[test]
    fn any_events_in_any_order_keep_the_grammar(
        events in prop::collection::vec(any_event(), 0..120),
        hide: bool,
        small: bool,
        extras in prop::sample::select(vec![Extras::Off, Extras::Fields, Extras::Events]),
    ) {
        let options = Options {
            extras,
            sub_agents: if hide { SubAgents::Hide } else { SubAgents::Fold },
            max_event_bytes: if small { 1024 } else { 1 << 20 },
            ..Options::default()
        };
        let items = blocks(options.clone(), &events);
        prop_assert_eq!(grammar(&items), Ok(()));
        // Names are told whole.
        let whole = |json: &String| json.starts_with(r#"{"type":"approval_request""#);
        prop_assert!(json(&items).iter().all(|json| json.len() <= options.max_event_bytes || whole(json)), "an event is too large");

        // Extras change neither the number nor the kind of the documented events.
        let kinds = |items: &[Block]| -> Vec<(u64, String)> {
            let numbered = items.iter().filter(|block| !block.is_aside());
            numbered.map(|block| (block.seq(), json(std::slice::from_ref(block))[0].split('"').nth(3).unwrap().to_owned())).collect()
        };
        prop_assert_eq!(kinds(&items), kinds(&blocks(Options { extras: Extras::Off, ..options.clone() }, &events)));

        let (mut said, mut running) = (String::new(), false);
        for event in &events {
            match &event.what {
                What::RunStarted { .. } => running = true,
                What::RunEnded(_) => running = false,
                What::Text { delta } if running && event.lane.is_root() => said.push_str(delta),
                _ => {}
            }
        }
        let told: String = json(&items).iter().map(|json| serde_json::from_str::<Value>(json).unwrap())
            .filter(|event| event["type"] == "stream_delta").map(|event| event["content"].as_str().unwrap().to_owned()).collect();
        prop_assert_eq!(told, said);

        // The same, whatever the events are cut into, and once more.
        let (mut writer, mut again) = (SseWriter::new(options), Vec::new());
        for event in &events {
            writer.write(&record(), std::slice::from_ref(event), &mut again);
        }
        prop_assert_eq!(again, items);
    }
}
