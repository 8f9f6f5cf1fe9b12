//! Whole runs on the cloud plane.

use interline_hub::{Gate, RunStatus, StartRun};
use interline_model::{Answer, AskOutcome, FailureKind, Part, Text};
use interline_sim::{Plane, Voice, flood_text};
use interline_upstream_native::{Kind, LinkConfig, Mode, UpstreamConfig};

use crate::world::{Line, Watched, World, config, end_of, fast, hub, is_completed, is_interrupted, request, sim, text_of, until};

const VOICES: [Voice; 2] = [Voice::Documented, Voice::Observed];

#[tokio::test]
async fn a_flood_arrives_whole_and_in_order() {
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Cloud, Mode::Chat, fast()).await;
        let lines = world.start("flood 3000").lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice}");
        assert_eq!(text_of(&lines), (0..3000).map(flood_text).collect::<String>());
        world.quiet().await;
    }
}

#[tokio::test]
async fn what_is_submitted_is_what_was_asked_for() {
    let world = World::with(sim(Voice::Documented), fast(), |url| UpstreamConfig {
        provider_id: Some("p".into()),
        workdir: Some("/w".into()),
        pool_tag: Some("t".into()),
        ..config(Kind::Cloud, url)
    })
    .await;
    let image = Part::Image { url: Text::from_static("data:image/png;base64,aGk=") };
    let request = StartRun {
        model: Some("m".into()),
        system_prompt: Some("be brief".into()),
        input: vec![Part::Text("quick ".into()), image, Part::Text("look".into())],
        ..request("")
    };
    let first = Watched::start(&world.hub, &world.access, request);
    assert!(is_completed(&first.outcome().await));
    let second = world.again(&first, "quick again");
    assert!(is_completed(&second.outcome().await));
    assert!(is_completed(&world.start("quick else").outcome().await));
    let stats = world.sim.stats();
    let [one, two, three] = stats.prompts.as_slice() else { panic!("{:?}", stats.prompts) };
    assert_eq!((one.prompt.as_str(), one.images, one.mode.as_deref()), ("quick look", 1, Some("chat")));
    assert_eq!((one.model.as_deref(), one.system_prompt.as_deref()), (Some("m"), Some("be brief")));
    assert_eq!((one.provider_id.as_deref(), one.workdir.as_deref(), one.pool_tag.as_deref()), (Some("p"), Some("/w"), Some("t")));
    assert_eq!(one.bearer.as_deref(), Some("canary-credential"));
    // Decision 1: one thread for each session, and never the session's own id.
    assert!(one.thread_id.is_some() && one.thread_id == two.thread_id && one.thread_id != three.thread_id);
    assert_ne!(one.thread_id.as_deref(), Some(first.session.id().as_str()));
}

#[tokio::test]
async fn a_permission_is_asked_for_and_given() {
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Cloud, Mode::Agent, fast()).await;
        let run = world.start("ask");
        let ask = run.asked().await;
        run.allow(&ask);
        let lines = run.lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice} {lines:?}");
        assert!(lines.contains(&Line::Settled(AskOutcome::Allowed)), "{voice} {lines:?}");
        let ended = lines.iter().filter(|line| matches!(line, Line::ToolEnd { result, is_error: false } if result.contains("exit=0")));
        assert_eq!(ended.count(), 1, "{voice} {lines:?}");
        let sent = world.sim.stats().control;
        assert_eq!(sent.iter().filter(|frame| frame.text.contains("updatedInput")).count(), 1, "{sent:?}");
    }
}

#[tokio::test]
async fn a_permission_is_asked_for_and_refused() {
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Cloud, Mode::Agent, fast()).await;
        let run = world.start("ask");
        let ask = run.asked().await;
        run.answer(&ask, Answer::Deny { message: "not now".into() });
        let lines = run.lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice} {lines:?}");
        assert!(lines.iter().any(|line| matches!(line, Line::ToolEnd { is_error: true, .. })), "{voice} {lines:?}");
        let sent = world.sim.stats().control;
        assert!(sent.iter().any(|frame| frame.text.contains("not now") && frame.plane == Plane::Cloud), "{sent:?}");
    }
}

#[tokio::test]
async fn an_answer_larger_than_the_plane_takes_does_not_kill_the_socket() {
    let world = World::new(sim(Voice::Observed), Kind::Cloud, Mode::Agent, fast()).await;
    let run = world.start("ask");
    let ask = run.asked().await;
    let input = interline_model::Json::parse(format!(r#"{{"command":"{}"}}"#, "x".repeat(40_000))).unwrap();
    run.answer(&ask, Answer::Allow { input: Some(input), always: false });
    let lines = run.lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert!(!lines.contains(&Line::Lost), "{lines:?}");
    let sent = world.sim.stats().control;
    assert!(sent.iter().any(|frame| frame.text.contains("could not be delivered")), "{sent:?}");
}

#[tokio::test]
async fn a_stop_ends_the_run_as_interrupted_whatever_the_server_says_to_it() {
    for voice in VOICES {
        for mode in [Mode::Chat, Mode::Agent] {
            let world = World::new(sim(voice), Kind::Cloud, mode, fast()).await;
            let run = world.start("fault hang-after 3");
            run.says("frame 2").await;
            run.stop();
            assert!(is_interrupted(&run.outcome().await), "{voice} {mode:?}");
            let sent = world.sim.stats().control;
            assert_eq!(sent.iter().filter(|frame| frame.text.contains("control_cancel_request")).count(), 1, "{sent:?}");
            world.quiet().await;
        }
    }
}

#[tokio::test]
async fn a_run_that_we_end_is_stopped_at_the_server_too() {
    let world = World::new(sim(Voice::Observed), Kind::Cloud, Mode::Chat, fast()).await;
    let run = world.start("fault hang-after 1");
    run.says("frame 0").await;
    assert!(world.hub.delete_session(&world.access, run.session.id()));
    assert!(is_interrupted(&run.outcome().await));
    until("the cancel arrived", || world.sim.stats().control.iter().any(|frame| frame.text.contains("control_cancel_request"))).await;
    world.quiet().await;
}

#[tokio::test]
async fn a_silent_server_stays_silent_until_somebody_stops_it() {
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Chat, fast()).await;
    let run = world.start("fault silent");
    until("the socket is open", || world.sim.stats().open_sockets == 1).await;
    assert_eq!(run.session.run_info(run.run).unwrap().status, RunStatus::Running);
    run.stop();
    assert!(is_interrupted(&run.outcome().await));
}

#[tokio::test]
async fn bad_frames_end_nothing() {
    for voice in VOICES {
        let world = World::new(sim(voice), Kind::Cloud, Mode::Chat, fast()).await;
        let lines = world.start("fault bad-frames").lines().await;
        assert!(is_completed(&end_of(&lines)), "{voice}");
        assert!(!lines.contains(&Line::Lost));
        assert_eq!(text_of(&lines), interline_sim::bad_frames_text(), "{voice}");
    }
}

#[tokio::test]
async fn errors_end_the_run_and_recoverable_ones_outside_of_chat_do_not() {
    for (mode, prompt, status) in [
        (Mode::Chat, "fault error", RunStatus::Failed),
        (Mode::Agent, "fault error", RunStatus::Failed),
        (Mode::Agent, "fault recoverable", RunStatus::Completed),
        (Mode::Agent, "fault late-result", RunStatus::Completed),
    ] {
        let world = World::new(sim(Voice::Documented), Kind::Cloud, mode, fast()).await;
        assert_eq!(world.start(prompt).status().await, status, "{mode:?} {prompt}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_a_result_fails_the_run_in_the_end() {
    for voice in VOICES {
        let link = LinkConfig { attempts: 2, ..fast() };
        let world = World::new(sim(voice), Kind::Cloud, Mode::Chat, link).await;
        let run = world.start("fault no-result");
        let (kind, _) = run.failure().await;
        assert!(matches!(kind, FailureKind::MissingTerminalEvent | FailureKind::UpstreamTimeout), "{voice} {kind:?}");
    }
}

#[tokio::test]
async fn a_device_that_is_away_is_waited_for() {
    let options = interline_sim::Options { pace: interline_sim::Pace::times(0.1), ..sim(Voice::Documented) };
    let world = World::with(options, fast(), |url| UpstreamConfig {
        mode: Mode::Agent,
        environment_id: Some("ffffffff-ffff-ffff-ffff-ffffffffffff".into()),
        ..config(Kind::Cloud, url)
    })
    .await;
    assert!(is_completed(&world.start("flood 10").outcome().await));
}

#[tokio::test]
async fn refusals_at_the_start_have_their_token_and_no_secret() {
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Chat, fast()).await;
    for (status, kind) in [
        (400, FailureKind::InvalidRequest),
        (401, FailureKind::AuthRequired),
        (403, FailureKind::AuthRequired),
        (429, FailureKind::ProviderRateLimit),
        (500, FailureKind::EngineNotReady),
        (503, FailureKind::EngineNotReady),
        (529, FailureKind::ProviderOverloaded),
    ] {
        let (got, message) = world.start(&format!("fault http {status}")).failure().await;
        assert_eq!(got, kind, "{status} {message}");
        assert!(message.contains("upstream main") && message.contains(&status.to_string()), "{message}");
        assert!(!message.contains("canary"), "{message}");
    }
}

#[tokio::test]
async fn a_wrong_credential_is_said_to_be_one() {
    let options = interline_sim::Options { cloud_token: Some("right".into()), ..sim(Voice::Documented) };
    let world = World::new(options, Kind::Cloud, Mode::Chat, fast()).await;
    let (kind, message) = world.start("quick").failure().await;
    assert_eq!(kind, FailureKind::AuthRequired);
    assert!(message.contains("invalid_token") && message.contains("credential"), "{message}");
}

#[tokio::test]
async fn in_passthrough_the_clients_bearer_is_the_credential() {
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Chat, fast()).await;
    // The same simulator, through another door.
    let url = world.url.clone();
    let hub = hub(Gate::Passthrough, config(Kind::Cloud, url), fast());
    let access = hub.admit(Some("the-clients")).unwrap();
    assert!(is_completed(&Watched::start(&hub, &access, request("quick")).outcome().await));
    assert_eq!(world.sim.stats().prompts[0].bearer.as_deref(), Some("the-clients"));
}

#[tokio::test]
async fn input_that_the_plane_cannot_take_never_reaches_it() {
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Agent, fast()).await;
    let image = Part::Image { url: Text::from_static("data:image/png;base64,aGk=") };
    let with_image = StartRun { input: vec![image], ..request("") };
    for request in [with_image, request("  ")] {
        let (kind, _) = Watched::start(&world.hub, &world.access, request).failure().await;
        assert_eq!(kind, FailureKind::InvalidRequest);
    }
    assert_eq!(world.sim.stats().prompts.len(), 0);
}

#[tokio::test]
async fn an_upstream_that_is_down_is_said_to_be_down() {
    for kind in [Kind::Cloud, Kind::Bridge] {
        let closed = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let hub = hub(Gate::Open, config(kind, format!("http://{closed}")), fast());
        let access = hub.admit(None).unwrap();
        let (failure, message) = Watched::start(&hub, &access, request("quick")).failure().await;
        assert_eq!(failure, FailureKind::EngineNotReady);
        assert!(message.contains("upstream main") && message.contains("refused"), "{message}");
    }
}
