//! Whole runs on the local bridge.

use interline_hub::StartRun;
use interline_model::{Answer, AskOutcome, FailureKind, Part, Text};
use interline_sim::{Plane, Voice, flood_text};
use interline_upstream_native::{Kind, LinkConfig, Mode};

use crate::world::{Line, Watched, World, end_of, fast, is_completed, is_interrupted, request, sim, text_of, until};

const VOICES: [Voice; 2] = [Voice::Documented, Voice::Observed];

async fn world(voice: Voice) -> World {
    World::new(sim(voice), Kind::Bridge, Mode::Chat, fast()).await
}

#[tokio::test]
async fn turns_follow_one_another_on_one_native_session() {
    for voice in VOICES {
        let world = world(voice).await;
        let first = world.start("flood 500");
        let lines = first.lines().await;
        assert!(is_completed(&end_of(&lines)));
        assert_eq!(text_of(&lines), (0..500).map(flood_text).collect::<String>());
        for n in 1..6 {
            let lines = world.again(&first, &format!("flood {n}")).lines().await;
            assert_eq!(text_of(&lines), (0..n).map(flood_text).collect::<String>(), "{voice}");
            assert!(is_completed(&end_of(&lines)), "{voice} {lines:?}");
        }
        let stats = world.sim.stats();
        assert_eq!((stats.bridge_sessions, stats.sockets, stats.prompts.len()), (1, 6, 6), "{voice}");
        assert_eq!(stats.prompts[0].bearer.as_deref(), Some("canary-credential"));
        world.quiet().await;
    }
}

#[tokio::test]
async fn permissions_are_given_and_refused() {
    for voice in VOICES {
        let world = world(voice).await;
        let first = world.start("ask");
        let ask = first.asked().await;
        first.allow(&ask);
        let lines = first.lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice} {lines:?}");
        assert!(lines.contains(&Line::Settled(AskOutcome::Allowed)), "{voice} {lines:?}");
        let second = world.again(&first, "ask");
        let ask = second.asked().await;
        second.answer(&ask, Answer::Deny { message: "no".into() });
        let lines = second.lines().await;
        assert!(lines.contains(&Line::Settled(AskOutcome::Denied)), "{voice} {lines:?}");
        assert!(lines.iter().any(|line| matches!(line, Line::ToolEnd { is_error: true, .. })), "{voice} {lines:?}");
        assert!(is_completed(&end_of(&lines)), "{voice} {lines:?}");
    }
}

#[tokio::test]
async fn a_stop_interrupts_and_the_next_turn_begins() {
    for voice in VOICES {
        let world = world(voice).await;
        let first = world.start("fault hang-after 3");
        first.says("frame 2").await;
        first.stop();
        let lines = first.lines().await;
        assert!(is_interrupted(&end_of(&lines)), "{voice} {lines:?}");
        let second = world.again(&first, "flood 3").lines().await;
        assert_eq!(text_of(&second), (0..3).map(flood_text).collect::<String>(), "{voice} {second:?}");
        let sent = world.sim.stats().control;
        let interrupts = sent.iter().filter(|frame| frame.plane == Plane::Bridge && frame.text.contains(r#""subtype":"interrupt""#));
        assert_eq!(interrupts.count(), 1, "{voice} {sent:?}");
    }
}

#[tokio::test]
async fn after_a_stop_that_was_not_heard_the_next_turn_waits_for_the_sentinel() {
    for voice in VOICES {
        let world = world(voice).await;
        let first = world.start("fault busy 1200");
        until("the turn has begun", || world.sim.stats().open_sockets == 1).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        first.stop();
        assert!(is_interrupted(&first.outcome().await), "{voice}");
        // Accepted at once, submitted when the command has ended: a message before that would fail on today's bridges.
        let second = world.again(&first, "flood 2");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        assert_eq!(world.sim.stats().prompts.len(), 1, "{voice}");
        let lines = second.lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice} {lines:?}");
        assert_eq!(text_of(&lines), (0..2).map(flood_text).collect::<String>(), "{voice}");
    }
}

#[tokio::test]
async fn a_turn_that_does_not_end_keeps_the_next_one_out_and_not_the_one_behind_it() {
    let link = LinkConfig { sentinel_wait_ms: 600, ..fast() };
    let world = World::new(sim(Voice::Observed), Kind::Bridge, Mode::Chat, link).await;
    let first = world.start("fault busy 20000");
    until("the turn has begun", || world.sim.stats().open_sockets == 1).await;
    first.stop();
    assert!(is_interrupted(&first.outcome().await));
    // A stop while it waits ends it at once.
    let second = world.again(&first, "flood 2");
    second.stop();
    assert!(is_interrupted(&second.outcome().await));
    let (kind, message) = world.again(&first, "flood 2").failure().await;
    assert_eq!(kind, FailureKind::EngineNotReady);
    assert!(message.contains("busy") && message.contains("without the history") && !message.contains("stopped"), "{message}");
    assert_eq!(world.sim.stats().prompts.len(), 1);
    let lines = world.again(&first, "flood 2").lines().await;
    assert_eq!(text_of(&lines), (0..2).map(flood_text).collect::<String>(), "{lines:?}");
    let stats = world.sim.stats();
    assert_ne!(stats.prompts[0].session, stats.prompts[1].session);
    assert_eq!(world.delete(&format!("/v1/code/sessions/{}", stats.prompts[0].session)).await, 404, "it was deleted");
    world.quiet().await;
}

#[tokio::test]
async fn a_stream_without_a_result_ends_the_run_and_not_the_session() {
    for voice in VOICES {
        let world = world(voice).await;
        let first = world.start("fault no-result");
        assert_eq!(first.failure().await.0, FailureKind::MissingTerminalEvent, "{voice}");
        assert!(is_completed(&world.again(&first, "flood 1").outcome().await), "{voice}");
    }
}

#[tokio::test]
async fn bad_frames_end_nothing() {
    for voice in VOICES {
        let world = world(voice).await;
        let lines = world.start("fault bad-frames").lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice}");
        assert_eq!(text_of(&lines), interline_sim::bad_frames_text(), "{voice}");
    }
}

#[tokio::test]
async fn a_bridge_that_forgot_the_session_gets_a_new_one() {
    let world = world(Voice::Documented).await;
    let first = world.start("flood 1");
    assert!(is_completed(&first.outcome().await));
    let native = world.sim.stats().prompts[0].session.clone();
    world.delete(&format!("/v1/code/sessions/{native}")).await;
    let second = world.again(&first, "flood 2").lines().await;
    assert_eq!(text_of(&second), (0..2).map(flood_text).collect::<String>());
    assert_ne!(world.sim.stats().prompts.last().unwrap().session, native);
}

#[tokio::test]
async fn a_deleted_session_is_deleted_at_the_bridge() {
    let world = world(Voice::Observed).await;
    let run = world.start("fault hang-after 1");
    run.says("frame 0").await;
    let native = world.sim.stats().prompts[0].session.clone();
    assert!(world.hub.delete_session(&world.access, run.session.id()));
    assert!(is_interrupted(&run.outcome().await));
    world.quiet().await;
    let path = format!("/v1/code/sessions/{native}");
    let mut status = 0;
    for _ in 0..100 {
        status = world.delete(&path).await;
        if status == 404 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(status, 404);
}

#[tokio::test]
async fn images_and_files_that_are_no_text_are_refused_before_anything_is_sent() {
    let world = world(Voice::Documented).await;
    let image = Part::Image { url: Text::from_static("data:image/png;base64,aGk=") };
    let file = Part::File { name: "a.txt".into(), data: "/w==".into() };
    for part in [image, file] {
        let request = StartRun { input: vec![Part::Text("look".into()), part], ..request("") };
        let (kind, message) = Watched::start(&world.hub, &world.access, request).failure().await;
        assert_eq!(kind, FailureKind::InvalidRequest, "{message}");
    }
    assert_eq!(world.sim.stats().bridge_sessions, 0);
}

#[tokio::test]
async fn refusals_have_their_token() {
    let options = interline_sim::Options { bridge_token: Some("right".into()), ..sim(Voice::Documented) };
    let closed = World::new(options, Kind::Bridge, Mode::Chat, fast()).await;
    let (kind, message) = closed.start("quick").failure().await;
    assert_eq!(kind, FailureKind::AuthRequired, "{message}");
    let world = world(Voice::Documented).await;
    for (status, kind) in [(400, FailureKind::InvalidRequest), (429, FailureKind::ProviderRateLimit), (503, FailureKind::EngineNotReady)] {
        assert_eq!(world.start(&format!("fault http {status}")).failure().await.0, kind, "{status}");
    }
}
