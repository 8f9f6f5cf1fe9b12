//! Stopping: twice, before the start, during an ask, in the middle of sub-agents, and with every way servers end or fail to end
//! (native-ws.md §6.8).

use std::time::Duration;

use interline_hub::{AnswerError, Settings, StartRun};
use interline_model::{Actor, Answer, Outcome, Text};
use interline_sim::{Voice, flood_text};
use interline_upstream_native::{Kind, LinkConfig, Mode};
use tokio::time::Instant;

use crate::rude::{CREATED, Do, RESULT, STAY, Seen, Setup, Step, cloud_with, script, sentinel, setup, text, texts};
use crate::world::{Line, Watched, World, end_of, fast, is_completed, is_interrupted, request, sim, text_of, until};

const VOICES: [Voice; 2] = [Voice::Documented, Voice::Observed];
const UPSTREAMS: [(Kind, Mode); 3] = [(Kind::Cloud, Mode::Chat), (Kind::Cloud, Mode::Agent), (Kind::Bridge, Mode::Chat)];

/// How often a server was told to stop.
fn stops(texts: &[String]) -> usize {
    texts.iter().filter(|text| text.contains("control_cancel_request") || text.contains(r#""subtype":"interrupt""#)).count()
}

fn told(world: &World) -> usize {
    stops(&world.sim.stats().control.into_iter().map(|frame| frame.text).collect::<Vec<_>>())
}

fn heard(seen: &Seen) -> usize {
    stops(&seen.texts.lock().unwrap())
}

fn again(setup: &Setup, earlier: &Watched) -> Watched {
    Watched::start(&setup.hub, &setup.access, StartRun { session: Some(earlier.session.id().clone()), ..request("again") })
}

fn interrupted() -> Step {
    Step::Text(RESULT.replace("end_turn", "interrupted"))
}

/// A turn or a stream as it should be.
fn whole(n: usize) -> Do {
    let result = RESULT.replace("\"r\"", &format!("\"r{n}\""));
    script([Some(text(n)), Some(Step::Text(result)), Some(sentinel()), Some(Step::Close(1000))])
}

/// A cloud plane that does as it should, but for what is told here.
async fn cloud(link: LinkConfig, told: impl Fn(&str, usize) -> Option<Do> + Send + Sync + 'static) -> (Setup, Seen) {
    cloud_with(link, move |line, n| {
        told(line, n).unwrap_or_else(|| match line {
            "POST /v1/agent/sessions" => Do::Reply(201, CREATED.replace("s1", &format!("s{}", n + 1))),
            _ if line.contains("/stream") => whole(9),
            _ => Do::Reply(404, "404 page not found\n".to_owned()),
        })
    })
    .await
}

/// The same of a bridge.
async fn bridge(link: LinkConfig, told: impl Fn(&str, usize) -> Option<Do> + Send + Sync + 'static) -> (Setup, Seen) {
    setup(Kind::Bridge, link, move |line, n| {
        told(line, n).unwrap_or_else(|| match line {
            "POST /v1/code/sessions" => Do::Reply(201, format!(r#"{{"id":"b{}"}}"#, n + 1)),
            _ if line.starts_with("DELETE ") => Do::Reply(204, String::new()),
            _ if line.ends_with("/messages") => Do::Reply(202, r#"{"status":"running"}"#.to_owned()),
            _ => whole(9),
        })
    })
    .await
}

#[tokio::test]
async fn a_second_stop_is_not_said_again() {
    for voice in VOICES {
        for (kind, mode) in UPSTREAMS {
            let world = World::new(sim(voice), kind, mode, fast()).await;
            let run = world.start("fault hang-after 3");
            run.says("frame 2").await;
            for _ in 0..3 {
                run.stop();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let lines = run.lines().await;
            run.stop();
            assert!(is_interrupted(&end_of(&lines)), "{voice} {kind:?} {mode:?} {lines:?}");
            assert!(is_completed(&world.again(&run, "flood 2").outcome().await), "{voice} {kind:?} {mode:?}");
            assert_eq!(told(&world), 1, "{voice} {kind:?} {mode:?}");
            assert_eq!(run.lines().await, lines, "nothing came after the end");
        }
    }
}

#[tokio::test]
async fn a_cloud_run_stopped_before_it_was_created_is_cancelled_as_soon_as_it_is() {
    // Within the grace, and long after.
    for millis in [150, 900] {
        let (setup, seen) = cloud(fast(), move |line, n| match line {
            "POST /v1/agent/sessions" if n == 0 => Some(Do::Later(millis, Box::new(Do::Reply(201, CREATED.to_owned())))),
            _ if line.contains("/s1/stream") => Some(script([Some(Step::Read), Some(interrupted()), STAY])),
            _ => None,
        })
        .await;
        let run = setup.start();
        until("it is asked for", || seen.requests("POST ").len() == 1).await;
        let since = Instant::now();
        run.stop();
        run.stop();
        assert!(is_interrupted(&run.outcome().await), "{millis}");
        assert!(since.elapsed() < Duration::from_millis(800), "the grace is the grace, {millis}");
        // The next one does not wait for it.
        assert!(is_completed(&again(&setup, &run).outcome().await), "{millis}");
        until("it is cancelled", || heard(&seen) == 1).await;
    }
}

#[tokio::test]
async fn a_cancel_that_finds_no_connection_is_tried_again() {
    let (setup, seen) = cloud(fast(), |line, n| match line {
        "POST /v1/agent/sessions" => Some(Do::Later(700, Box::new(Do::Reply(201, CREATED.to_owned())))),
        _ if line.contains("/stream") && n < 3 => Some(Do::Reply(503, String::new())),
        _ if line.contains("/stream") => Some(script([Some(Step::Read), STAY])),
        _ => None,
    })
    .await;
    let run = setup.start();
    run.stop();
    assert!(is_interrupted(&run.outcome().await));
    until("it is cancelled", || heard(&seen) == 1).await;
    assert_eq!(seen.requests("/stream").len(), 4);
}

#[tokio::test]
async fn a_bridge_run_stopped_before_its_session_was_made_is_never_submitted() {
    for millis in [150, 900] {
        let (setup, seen) = bridge(fast(), move |line, n| {
            (line == "POST /v1/code/sessions" && n == 0).then(|| Do::Later(millis, Box::new(Do::Reply(201, r#"{"id":"b1"}"#.to_owned()))))
        })
        .await;
        let run = setup.start();
        until("it is asked for", || seen.requests("POST ").len() == 1).await;
        run.stop();
        assert!(is_interrupted(&run.outcome().await), "{millis}");
        assert!(is_completed(&again(&setup, &run).outcome().await), "{millis}");
        // The session that was made for the one is the other's.
        assert_eq!(seen.requests("/messages"), ["POST /v1/code/sessions/b1/messages"], "{millis}");
        assert_eq!(heard(&seen), 0);
    }
}

#[tokio::test]
async fn a_bridge_run_stopped_before_it_was_accepted_is_interrupted_and_waited_for() {
    for millis in [150, 900] {
        let (setup, seen) = bridge(fast(), move |line, n| match line {
            _ if line.ends_with("/messages") && n == 0 => Some(Do::Later(millis, Box::new(Do::Reply(202, "{}".to_owned())))),
            _ if line.contains("/ws") && n == 0 => {
                Some(script([Some(Step::Read), Some(Step::Acknowledge), Some(Step::Wait(200)), Some(sentinel()), Some(Step::Close(1000))]))
            }
            _ => None,
        })
        .await;
        let run = setup.start();
        until("it is submitted", || seen.requests("/messages").len() == 1).await;
        run.stop();
        assert!(is_interrupted(&run.outcome().await), "{millis}");
        let lines = again(&setup, &run).lines().await;
        assert!(is_completed(&end_of(&lines)), "{millis} {lines:?}");
        let order: Vec<String> = seen.requests("/b1/").iter().map(|line| line.split('/').next_back().unwrap().to_owned()).collect();
        assert_eq!(order, ["messages", "ws", "messages", "ws"], "{millis}");
        assert_eq!(heard(&seen), 1, "{millis}");
    }
}

#[tokio::test]
async fn a_stop_during_an_ask_voids_it() {
    for voice in VOICES {
        for (kind, mode) in [(Kind::Cloud, Mode::Agent), (Kind::Bridge, Mode::Chat)] {
            let what = format!("{voice} {kind:?}");
            let world = World::new(sim(voice), kind, mode, fast()).await;
            let run = world.start("ask");
            let ask = run.asked().await;
            run.stop();
            let lines = run.lines().await;
            assert!(is_interrupted(&end_of(&lines)), "{what} {lines:?}");
            assert!(run.session.pending_asks().is_empty(), "{what}");
            assert_eq!(lines.iter().filter(|line| matches!(line, Line::Settled(_))).count(), 1, "{what} {lines:?}");
            assert!(lines.iter().filter(|line| matches!(line, Line::Tool(_))).count() == tool_ends(&lines), "{what} {lines:?}");
            let by = Actor { principal: run.session.principal().clone(), surface: Text::from_static("late") };
            let late = run.session.answer(&ask.id, Answer::Allow { input: None, always: false }, by);
            assert!(matches!(late, Err(AnswerError::Settled { by: None, .. })), "{what} {late:?}");
            // Nothing was allowed.
            let sent = world.sim.stats().control;
            assert!(!sent.iter().any(|frame| frame.text.contains(r#""behavior":"allow""#)), "{what} {sent:?}");
            assert!(is_completed(&world.again(&run, "flood 2").outcome().await), "{what}");
        }
    }
}

fn tool_ends(lines: &[Line]) -> usize {
    lines.iter().filter(|line| matches!(line, Line::ToolEnd { .. })).count()
}

#[tokio::test]
async fn a_stop_in_the_middle_of_sub_agents_ends_all_of_them() {
    let progress = |id: &str, name: &str, parent: &str| {
        let frame = format!(
            r#"{{"type":"tool_progress","tool_use_id":"{id}","tool_name":"{name}","elapsed_time_seconds":0,"parent_tool_use_id":{parent},"uuid":"u-{id}","session_id":"s1"}}"#
        );
        Some(Step::Text(frame))
    };
    let ask = r#"{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"t3","agent_id":"a1","input":{}}}"#;
    // A clean end, silence, and an error.
    let error =
        r#"{"type":"result","subtype":"error_during_execution","is_error":true,"errors":[{"message":"context canceled"}],"uuid":"e"}"#;
    for end in [Some(interrupted()), None, Some(Step::Text(error.to_owned()))] {
        for kind in [Kind::Cloud, Kind::Bridge] {
            let end = end.clone();
            let steps = move || {
                let frames = [
                    Some(text(0)),
                    progress("t1", "Agent", "null"),
                    progress("t2", "Agent", "null"),
                    progress("t3", "Bash", "\"t1\""),
                    progress("t4", "Grep", "\"t2\""),
                    Some(Step::Text(ask.to_owned())),
                    Some(Step::Read),
                ];
                let closing = [Some(sentinel()), Some(Step::Close(1000))].into_iter().filter(|_| kind == Kind::Bridge);
                script(frames.into_iter().chain([end.clone()]).chain(closing))
            };
            let (setup, seen) = match kind {
                Kind::Cloud => cloud(fast(), move |line, _| line.contains("/s1/stream").then(&steps)).await,
                Kind::Bridge => bridge(fast(), move |line, n| (line.contains("/ws") && n == 0).then(&steps)).await,
            };
            let run = setup.start();
            run.asked().await;
            run.stop();
            let lines = run.lines().await;
            assert!(is_interrupted(&end_of(&lines)), "{kind:?} {lines:?}");
            assert_eq!(tool_ends(&lines), 4, "{kind:?} {lines:?}");
            assert!(lines.iter().all(|line| !matches!(line, Line::ToolEnd { is_error: false, .. })), "{kind:?} {lines:?}");
            assert!(run.session.pending_asks().is_empty());
            assert!(is_completed(&again(&setup, &run).outcome().await), "{kind:?}");
            assert_eq!(heard(&seen), 1, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_cannot_be_interrupted_is_left_behind() {
    // As an external CLI: it goes on talking, and has a result long after (§6.11).
    let (setup, seen) = cloud(fast(), |line, _| {
        line.contains("/s1/stream").then(|| {
            let talk = (1..60).flat_map(|n| [Some(Step::Wait(50)), Some(text(n))]);
            script([Some(text(0)), Some(Step::Read)].into_iter().chain(talk).chain([Some(Step::Text(RESULT.to_owned())), STAY]))
        })
    })
    .await;
    let run = setup.start();
    run.says("0 ").await;
    let since = Instant::now();
    run.stop();
    let lines = run.lines().await;
    assert!(is_interrupted(&end_of(&lines)), "{lines:?}");
    assert!(since.elapsed() < Duration::from_millis(1_500), "{:?}", since.elapsed());
    let second = again(&setup, &run).lines().await;
    assert!(is_completed(&end_of(&second)) && text_of(&second) == "9 ", "{second:?}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(run.lines().await, lines, "what it says now is nobody's");
    assert_eq!(heard(&seen), 1);
}

#[tokio::test]
async fn a_command_that_runs_on_at_a_device_does_not_hold_the_next_run() {
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Cloud, Mode::Agent, fast()).await;
        let run = world.start("fault busy 1500");
        run.says("This takes a while").await;
        run.stop();
        let lines = run.lines().await;
        assert!(is_interrupted(&end_of(&lines)), "{voice} {lines:?}");
        let second = world.again(&run, "flood 3").lines().await;
        assert_eq!(text_of(&second), (0..3).map(flood_text).collect::<String>(), "{voice} {second:?}");
        // Its own result comes now.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(run.lines().await, lines, "{voice}");
        world.quiet().await;
    }
}

#[tokio::test]
async fn a_bridge_ends_an_interrupted_turn_in_its_own_ways() {
    let error = r#"{"type":"result","subtype":"error_during_execution","is_error":true,"errors":[{"message":"provider stream: context canceled"}],"uuid":"e"}"#;
    let recoverable =
        r#"{"type":"result","subtype":"error_during_execution","is_error":true,"errors":[{"message":"x","recoverable":true}],"uuid":"e"}"#;
    let ways = [
        ("the sentinel alone", None, false),
        ("an error before it", Some(error), false),
        ("a recoverable error before it", Some(recoverable), false),
        ("a result that was on its way", Some(RESULT), true),
    ];
    for (what, frame, is_whole) in ways {
        let steps = move || {
            let frame = frame.map(|frame| Step::Text(frame.to_owned()));
            script([Some(text(0)), Some(Step::Read), Some(Step::Acknowledge), frame, Some(sentinel()), Some(Step::Close(1000))])
        };
        let (setup, seen) = bridge(fast(), move |line, n| (line.contains("/ws") && n == 0).then(steps)).await;
        let run = setup.start();
        run.says("0 ").await;
        run.stop();
        let outcome = run.outcome().await;
        let expected: fn(&Outcome) -> bool = if is_whole { is_completed } else { is_interrupted };
        assert!(expected(&outcome), "{what} {outcome:?}");
        assert_eq!(text_of(&run.lines().await), texts(1), "{what}");
        assert!(is_completed(&again(&setup, &run).outcome().await), "{what}");
        assert_eq!(seen.requests("/ws").len(), 2, "{what}");
    }
}

#[tokio::test]
async fn what_is_asked_for_while_a_run_waits_for_its_turn_is_asked_for_then() {
    let (setup, seen) = bridge(fast(), |line, n| match line {
        _ if line.contains("/ws") && n == 0 => {
            Some(script([Some(Step::Text(RESULT.to_owned())), Some(Step::Wait(400)), Some(sentinel()), Some(Step::Close(1000))]))
        }
        _ if line.contains("/ws") => {
            let result = RESULT.replace("\"r\"", "\"r2\"");
            let steps = [Some(Step::Read), Some(Step::Acknowledge), Some(text(1)), Some(Step::Text(result)), Some(sentinel())];
            Some(script(steps.into_iter().chain([Some(Step::Close(1000))])))
        }
        _ => None,
    })
    .await;
    let first = setup.start();
    assert!(is_completed(&first.outcome().await));
    let settings = Settings { permission_mode: Some("plan".into()), ..Settings::default() };
    let start = StartRun { session: Some(first.session.id().clone()), settings, ..request("again") };
    let lines = Watched::start(&setup.hub, &setup.access, start).lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    let sent = seen.texts.lock().unwrap().clone();
    assert!(sent.len() == 1 && sent[0].contains(r#""subtype":"set_permission_mode","mode":"plan""#), "{sent:?}");
}

#[tokio::test]
async fn however_many_watch_a_turn_it_has_one_socket() {
    // Two would take frames from each other (§4.3).
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Bridge, Mode::Chat, fast()).await;
        let run = world.start("fault drop 5");
        let watching: Vec<_> = (0..3).map(|_| run.lines()).collect();
        let mut all = Vec::new();
        for lines in watching {
            all.push(lines.await);
        }
        assert!(is_completed(&end_of(&all[0])), "{voice} {all:?}");
        assert!(all.iter().all(|lines| *lines == all[0]), "{voice}");
        // One, and one after the break.
        assert_eq!(world.sim.stats().sockets, 2, "{voice}");
    }
}

#[tokio::test]
async fn runs_that_are_stopped_one_after_another_never_meet() {
    // Today's bridges fail, or die, when a message comes in the middle of a turn (§4.4): the simulated one fails.
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Bridge, Mode::Chat, fast()).await;
        let mut latest = world.start("fault busy 300");
        for n in 0..8 {
            tokio::time::sleep(Duration::from_millis(n * 15)).await;
            latest.stop();
            assert!(is_interrupted(&latest.outcome().await), "{voice} {n}");
            latest = world.again(&latest, "fault busy 300");
        }
        latest.stop();
        latest.outcome().await;
        let last = world.again(&latest, "flood 4").lines().await;
        assert!(is_completed(&end_of(&last)), "{voice} {last:?}");
        assert_eq!(text_of(&last), (0..4).map(flood_text).collect::<String>(), "{voice}");
        assert_eq!(world.sim.stats().bridge_sessions, 1, "{voice}");
    }
}
