//! Actions beside the runs: compaction, cost, uploads, resuming.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use interline_hub::{Action, ActionError, Gate, NewSession, RunCredential, Session, StartRun, Upload};
use interline_model::{Answer, Json};
use interline_sim::Voice;
use interline_upstream_native::{Kind, LinkConfig, Mode};
use tokio::time::Instant;

use crate::rude::{CREATED, Do, RESULT, STAY, Seen, Setup, Step, cloud_with, result, script, sentinel, setup, text};
use crate::world::{Watched, World, config, end_of, fast, hub, is_completed, is_interrupted, request, sim, text_of, until};

async fn act(session: &Arc<Session>, action: Action) -> Result<Json, ActionError> {
    session.act(action, RunCredential::Configured).await
}

fn file() -> Action {
    Action::Upload(Upload { name: "a.png".into(), mime: "image/png".into(), data: Bytes::from_static(b"\x89PNG\r\n") })
}

fn refused(result: Result<Json, ActionError>) -> (Option<u16>, String) {
    match result {
        Err(ActionError::Refused { status, message }) => (status, message),
        other => panic!("{other:?}"),
    }
}

fn whole(n: usize) -> Do {
    let result = RESULT.replace("\"r\"", &format!("\"r{n}\""));
    script([Some(text(n)), Some(Step::Text(result)), Some(sentinel()), Some(Step::Close(1000))])
}

fn compacted() -> Do {
    Do::Reply(200, r#"{"status":"compacted"}"#.to_owned())
}

/// A bridge that does as it should, but for what is told here.
async fn bridge(link: LinkConfig, told: impl Fn(&str, usize) -> Option<Do> + Send + Sync + 'static) -> (Setup, Seen) {
    setup(Kind::Bridge, link, move |line, n| {
        if let Some(told) = told(line, n) {
            return told;
        }
        match line {
            "POST /v1/code/sessions" => Do::Reply(201, format!(r#"{{"id":"b{}"}}"#, n + 1)),
            _ if line.starts_with("DELETE ") => Do::Reply(204, String::new()),
            _ if line.ends_with("/messages") => Do::Reply(202, r#"{"status":"running"}"#.to_owned()),
            _ if line.ends_with("/compact") => compacted(),
            _ if line.ends_with("/cost") => Do::Reply(200, r#"{"Model":"m","USD":0.00144,"Big":12345678901234567890123}"#.to_owned()),
            _ if line.ends_with("/attachments") => Do::Reply(201, r#"{"attachment_id":"a1","size":6,"mime_type":"image/png"}"#.to_owned()),
            _ => whole(n),
        }
    })
    .await
}

fn empty_session(setup: &Setup) -> Arc<Session> {
    setup.hub.create_session(&setup.access, NewSession::default()).unwrap()
}

fn again(setup: &Setup, session: &Arc<Session>) -> Watched {
    Watched::start(&setup.hub, &setup.access, StartRun { session: Some(session.id().clone()), ..request("again") })
}

#[tokio::test]
async fn cost_and_uploads_go_beside_a_turn_and_a_compaction_does_not() {
    for voice in [Voice::Documented, Voice::Observed] {
        let world = World::new(sim(voice), Kind::Bridge, Mode::Chat, fast()).await;
        let run = world.start("fault hang-after 3");
        run.says("frame 2").await;
        let cost = act(&run.session, Action::Cost).await.unwrap().to_value();
        assert!(cost["Model"].is_string() && cost["USD"].is_number(), "{cost}");
        let kept = act(&run.session, file()).await.unwrap().to_value();
        assert_eq!((kept["size"].as_u64(), kept["mime_type"].as_str()), (Some(6), Some("image/png")), "{kept}");
        assert_eq!(act(&run.session, Action::Compact).await, Err(ActionError::Busy));
        run.stop();
        assert!(is_interrupted(&run.outcome().await));
        assert_eq!(act(&run.session, Action::Compact).await.unwrap().as_str(), "{}");
        assert!(is_completed(&world.again(&run, "flood 1").outcome().await), "{voice}");
        let stats = world.sim.stats();
        // One socket for each turn, and none for anything else: a second one would take frames away (§4.3).
        assert_eq!((stats.bridge_sessions, stats.sockets), (1, 2), "{voice}");
    }
}

#[tokio::test]
async fn nothing_is_made_to_compact_an_empty_conversation_or_to_ask_what_it_cost() {
    let (setup, seen) = bridge(fast(), |_, _| None).await;
    let session = empty_session(&setup);
    for action in [Action::Compact, Action::Cost] {
        let (status, message) = refused(act(&session, action).await);
        assert!(status.is_none() && message.contains("no session for this conversation yet"), "{message}");
    }
    assert_eq!(seen.requests(""), [""; 0]);
}

#[tokio::test]
async fn an_upload_makes_the_session_that_the_first_run_takes() {
    let (setup, seen) = bridge(fast(), |line, _| {
        (line == "POST /v1/code/sessions").then(|| Do::Later(50, Box::new(Do::Reply(201, r#"{"id":"b1"}"#.to_owned()))))
    })
    .await;
    let session = empty_session(&setup);
    let uploads: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn({
                let session = session.clone();
                async move { act(&session, file()).await }
            })
        })
        .collect();
    for upload in uploads {
        let kept = upload.await.unwrap().unwrap();
        assert_eq!(kept.as_str(), r#"{"attachment_id":"a1","size":6,"mime_type":"image/png"}"#);
    }
    assert!(is_completed(&again(&setup, &session).outcome().await));
    assert_eq!(seen.requests("POST /v1/code/sessions").iter().filter(|line| line.ends_with("/sessions")).count(), 1);
    assert_eq!(seen.requests("/b1/messages").len(), 1);
    let (head, body) = {
        let whole = seen.whole.lock().unwrap();
        let upload = whole.iter().find(|request| request.head.contains("/attachments")).unwrap();
        (upload.head.clone(), upload.body.clone())
    };
    assert!(head.to_lowercase().contains("authorization: bearer canary-credential"), "{head}");
    assert!(head.contains("multipart/form-data; boundary="), "{head}");
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("name=\"file\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n"), "{body}");
    assert!(setup.hub.delete_session(&setup.access, session.id()));
    until("it is deleted", || seen.requests("DELETE /v1/code/sessions/b1").len() == 1).await;
}

#[tokio::test]
async fn an_upload_and_a_first_run_at_once_share_one_session() {
    let (setup, seen) = bridge(fast(), |line, _| match line {
        "POST /v1/code/sessions" => Some(Do::Later(100, Box::new(Do::Reply(201, r#"{"id":"b1"}"#.to_owned())))),
        _ if line.contains("/ws") => {
            Some(script([Some(text(0)), Some(Step::Wait(600)), Some(result()), Some(sentinel()), Some(Step::Close(1000))]))
        }
        _ => None,
    })
    .await;
    let run = setup.start();
    let since = Instant::now();
    act(&run.session, file()).await.unwrap();
    assert!(since.elapsed() < Duration::from_millis(500), "it waited for the turn");
    assert!(is_completed(&run.outcome().await));
    assert_eq!(seen.requests("POST /v1/code/sessions").iter().filter(|line| line.ends_with("/sessions")).count(), 1);
}

#[tokio::test]
async fn refusals_are_in_the_servers_words_and_hold_no_secret() {
    let unknown = r#"disallowed mime type "image/bmp""#;
    for (status, body, expected) in [
        (400, r#"{"error":"disallowed mime type \"image/bmp\""}"#, Some(unknown)),
        (400, r#"{"error":"parse multipart: http: request body too large"}"#, Some("parse multipart: http: request body too large")),
        (500, r#"{"error":"compact: nothing to summarise"}"#, Some("compact: nothing to summarise")),
        (401, "unauthorized\n", Some("unauthorized")),
        (404, r#"{"error":"no such session"}"#, Some("no such session")),
        (502, "<html>bad</html>", Some("the agent server answered with 502")),
        (500, r#"{"error":"bad token canary-credential"}"#, Some("the agent server answered with 500")),
        (404, "404 page not found\n", None),
        (405, "Method Not Allowed\n", None),
    ] {
        let (setup, _) = bridge(fast(), move |line, _| {
            let acts = ["/compact", "/cost", "/attachments"].iter().any(|act| line.ends_with(act));
            acts.then(|| Do::Reply(status, body.to_owned()))
        })
        .await;
        let run = setup.start();
        assert!(is_completed(&run.outcome().await));
        for action in [Action::Compact, Action::Cost, file()] {
            let what = action.what();
            match (act(&run.session, action).await, expected) {
                (Err(ActionError::Refused { status: Some(got), message }), Some(expected)) => {
                    assert_eq!((got, message.as_str()), (status, expected));
                }
                (Err(ActionError::Unsupported(message)), None) => assert_eq!(message, format!("this agent server cannot {what}")),
                (other, _) => panic!("{status} {body} {other:?}"),
            }
        }
        assert!(is_completed(&again(&setup, &run.session).outcome().await), "{status}");
    }
}

#[tokio::test]
async fn answers_that_make_no_sense_are_no_objects() {
    for body in ["", "null", "[]", "<html>", "{"] {
        let (setup, _) = bridge(fast(), move |line, _| line.ends_with("/cost").then(|| Do::Reply(200, body.to_owned()))).await;
        let run = setup.start();
        run.outcome().await;
        let (status, message) = refused(act(&run.session, Action::Cost).await);
        assert!(status == Some(200) && message.contains("something else"), "{body} {message}");
    }
    // What is one is handed on to the digit.
    let (setup, _) = bridge(fast(), |_, _| None).await;
    let run = setup.start();
    run.outcome().await;
    assert!(act(&run.session, Action::Cost).await.unwrap().as_str().contains("12345678901234567890123"));
}

#[tokio::test]
async fn a_compaction_waits_for_a_turn_that_is_winding_down() {
    let (setup, seen) = bridge(fast(), |line, _| {
        line.contains("/ws").then(|| script([Some(result()), Some(Step::Wait(400)), Some(sentinel()), Some(Step::Close(1000))]))
    })
    .await;
    let run = setup.start();
    assert!(is_completed(&run.outcome().await));
    let since = Instant::now();
    act(&run.session, Action::Compact).await.unwrap();
    assert!(since.elapsed() > Duration::from_millis(300), "{:?}", since.elapsed());
    assert_eq!(seen.requests("/compact").len(), 1);
}

#[tokio::test]
async fn a_turn_whose_end_never_comes_is_not_compacted() {
    let (setup, seen) =
        bridge(LinkConfig { sentinel_wait_ms: 300, ..fast() }, |line, _| line.contains("/ws").then(|| script([Some(result()), STAY])))
            .await;
    let run = setup.start();
    assert!(is_completed(&run.outcome().await));
    // The native session is given up: there is nothing left to compact.
    let (_, message) = refused(act(&run.session, Action::Compact).await);
    assert!(message.contains("no session"), "{message}");
    assert_eq!(seen.requests("/compact").len(), 0);
}

#[tokio::test]
async fn a_turn_that_nobody_follows_is_stopped_before_a_compaction() {
    let (setup, seen) = bridge(fast(), |line, n| match line {
        _ if line.ends_with("/messages") && n == 0 => Some(Do::Cut),
        _ if line.contains("/ws") && n == 0 => Some(Do::Reply(503, String::new())),
        _ if line.contains("/ws") && n == 1 => {
            Some(script([Some(Step::Read), Some(Step::Acknowledge), Some(sentinel()), Some(Step::Close(1000))]))
        }
        _ => None,
    })
    .await;
    let run = setup.start();
    assert!(!is_completed(&run.outcome().await));
    act(&run.session, Action::Compact).await.unwrap();
    let order: Vec<String> = seen.requests("/b1/").iter().map(|line| line.split('/').next_back().unwrap().to_owned()).collect();
    assert_eq!(order, ["messages", "ws", "ws", "compact"]);
    assert!(seen.texts.lock().unwrap()[0].contains(r#""subtype":"interrupt""#));
}

#[tokio::test]
async fn a_run_waits_for_a_compaction_however_long_and_whoever_asked_for_it() {
    // Longer than a run waits for a turn.
    let link = LinkConfig { sentinel_wait_ms: 50, action_timeout_ms: 5_000, ..fast() };
    let (setup, seen) = bridge(link, |line, _| line.ends_with("/compact").then(|| Do::Later(1_500, Box::new(compacted())))).await;
    let first = setup.start();
    assert!(is_completed(&first.outcome().await));
    let asking = tokio::spawn({
        let session = first.session.clone();
        async move { act(&session, Action::Compact).await }
    });
    until("it has begun", || seen.requests("/compact").len() == 1).await;
    let (status, message) = refused(act(&first.session, Action::Compact).await);
    assert!(status.is_none() && message.contains("already"), "{message}");
    asking.abort();
    let since = Instant::now();
    // One that is stopped meanwhile does not.
    let stopped = again(&setup, &first.session);
    stopped.stop();
    assert!(is_interrupted(&stopped.outcome().await) && since.elapsed() < Duration::from_secs(1));
    let second = again(&setup, &first.session);
    let lines = second.lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert!(since.elapsed() > Duration::from_millis(1_300), "{:?}", since.elapsed());
    assert_eq!(seen.requests("/messages").len(), 2);
}

#[tokio::test]
async fn a_compaction_is_bounded_in_time() {
    let (setup, _) =
        bridge(LinkConfig { action_timeout_ms: 200, ..fast() }, |line, _| line.ends_with("/compact").then_some(Do::Hang)).await;
    let run = setup.start();
    run.outcome().await;
    assert_eq!(act(&run.session, Action::Compact).await, Err(ActionError::Unanswered(Duration::from_millis(200))));
    assert!(is_completed(&again(&setup, &run.session).outcome().await));
}

#[tokio::test]
async fn a_session_deleted_meanwhile_is_said_to_be() {
    let (setup, seen) = bridge(fast(), |line, _| line.ends_with("/compact").then_some(Do::Hang)).await;
    let run = setup.start();
    run.outcome().await;
    let session = run.session.clone();
    let asking = tokio::spawn(async move { act(&session, Action::Compact).await });
    until("it has begun", || seen.requests("/compact").len() == 1).await;
    assert!(setup.hub.delete_session(&setup.access, run.session.id()));
    assert_eq!(refused(asking.await.unwrap()).1, "the session was deleted");
    until("it is deleted", || seen.requests("DELETE ").len() == 1).await;
}

#[tokio::test]
async fn a_file_for_a_session_that_the_bridge_forgot_begins_a_new_one() {
    let (setup, seen) =
        bridge(fast(), |line, _| line.ends_with("/b1/attachments").then(|| Do::Reply(404, r#"{"error":"no such session"}"#.to_owned())))
            .await;
    let run = setup.start();
    run.outcome().await;
    act(&run.session, file()).await.unwrap();
    assert!(is_completed(&again(&setup, &run.session).outcome().await));
    assert_eq!(seen.requests("/b2/messages").len(), 1);
}

#[tokio::test]
async fn what_an_upstream_cannot_do_is_said_in_a_sentence() {
    let (setup, seen) = cloud_with(fast(), |_, _| Do::Hang).await;
    let session = empty_session(&setup);
    for (action, what) in [(Action::Compact, "compact on demand"), (Action::Cost, "tell what a session cost"), (file(), "take files")] {
        assert_eq!(act(&session, action).await, Err(ActionError::Unsupported(format!("this agent server cannot {what}"))));
    }
    assert_eq!(seen.requests(""), [""; 0]);
    let (setup, seen) = bridge(fast(), |_, _| None).await;
    let session = empty_session(&setup);
    assert_eq!(act(&session, Action::Resume).await, Err(ActionError::Unsupported("this agent server cannot resume a session".to_owned())));
    assert_eq!(seen.requests(""), [""; 0]);
}

#[tokio::test]
async fn a_server_that_is_down_is_said_to_be_down() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let hub = hub(Gate::Open, config(Kind::Bridge, format!("http://{closed}")), fast());
    let session = hub.create_session(&hub.admit(None).unwrap(), NewSession::default()).unwrap();
    match act(&session, file()).await {
        Err(ActionError::Unreachable(message)) => {
            assert!(message.contains("upstream main") && message.contains("cannot be reached") && !message.contains("canary"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_paused_session_is_resumed_while_its_run_goes_on() {
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Agent, fast()).await;
    let run = world.start("fault pause");
    let form = run.asked().await;
    until("it is paused", || run.frames().iter().any(|frame| frame.contains("session_paused"))).await;
    run.answer(&form, Answer::Allow { input: Some(Json::parse(r#"{"env":"staging"}"#).unwrap()), always: false });
    assert_eq!(act(&run.session, Action::Resume).await.unwrap().as_str(), r#"{"state":"active"}"#);
    let lines = run.lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert!(text_of(&lines).contains("live on staging"), "{lines:?}");
    // What an ended run's session did now would be seen by nobody.
    assert_eq!(act(&run.session, Action::Resume).await, Err(ActionError::Idle));
}

#[tokio::test]
async fn resuming_is_refused_as_the_server_refuses_it() {
    for (status, body, expected) in [
        (202, r#"{"session_id":"s1","state":"pending"}"#, Ok(r#"{"state":"pending"}"#)),
        (200, "", Ok(r#"{"state":"active"}"#)),
        (404, "404 page not found\n", Err(ActionError::Unsupported("this agent server cannot resume a session".to_owned()))),
        (
            404,
            r#"{"error":{"code":"not_found","message":"no session"}}"#,
            Err(ActionError::Refused { status: Some(404), message: "no session".to_owned() }),
        ),
        (
            409,
            r#"{"error":{"code":"not_paused","message":""}}"#,
            Err(ActionError::Refused { status: Some(409), message: "not_paused".to_owned() }),
        ),
        (
            401,
            r#"{"error":{"code":"","message":"canary-credential"}}"#,
            Err(ActionError::Refused { status: Some(401), message: "the agent server answered with 401".to_owned() }),
        ),
    ] {
        let (setup, seen) = cloud_with(fast(), move |line, _| match line {
            _ if line.ends_with("/s1/resume") => Do::Reply(status, body.to_owned()),
            _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
            _ => script([Some(text(0)), STAY]),
        })
        .await;
        assert_eq!(act(&empty_session(&setup), Action::Resume).await, Err(ActionError::Idle));
        let run = setup.start();
        run.says("0 ").await;
        let resumed = act(&run.session, Action::Resume).await;
        assert_eq!(resumed.as_ref().map(Json::as_str), expected.as_ref().copied(), "{status} {body}");
        assert_eq!(seen.requests("/resume").len(), 1);
        run.stop();
        assert!(is_interrupted(&run.outcome().await));
    }
}
