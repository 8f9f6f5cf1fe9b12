//! Whole runs on servers that do worse than the simulator does.

use std::time::Duration;

use interline_hub::{Action, Environment, RunCredential};
use interline_model::{Answer, FailureKind, Text};
use interline_upstream_native::{Kind, LinkConfig};

use crate::rude::{CREATED, Do, RESULT, STAY, Seen, Setup, Step, cloud, cloud_with, result, script, sentinel, setup, text, texts};
use crate::world::{Line, Watched, end_of, fast, is_completed, is_interrupted, request, text_of, until};

#[tokio::test]
async fn five_breaks_of_every_kind_with_full_replays() {
    let (setup, seen) = cloud(|n| {
        let mut steps: Vec<Step> = (0..(n + 1) * 4).map(text).collect();
        steps.push(match n {
            0 => Step::Reset,
            1 => Step::Close(1011),
            2 => Step::Close(1000),
            3 => Step::Close(1009),
            4 => Step::Silence,
            _ => result(),
        });
        Do::Socket(steps)
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(24), "{lines:?}");
    assert!(is_completed(&end_of(&lines)));
    assert_eq!(lines.iter().filter(|line| **line == Line::Lost).count(), 5);
    assert_eq!(lines.iter().filter(|line| **line == Line::Back).count(), 5);
    until("the client closed in good order", || *seen.closes.lock().unwrap() == [1000]).await;
    // Every reconnection names the count of frames so far.
    assert_eq!(seen.requests("since_seq").len(), 5);
}

#[tokio::test]
async fn parts_repeats_and_nothing_are_lined_up() {
    let (setup, _) = cloud(|n| match n {
        0 => script([Some(text(0)), Some(text(1)), Some(text(2)), Some(Step::Reset)]),
        // A part, over again.
        1 => script([1, 2, 1, 2, 3, 3, 4].map(|n| Some(text(n))).into_iter().chain([Some(Step::Reset)])),
        // Nothing; then out of order.
        2 => script([5, 0, 6, 5].map(|n| Some(text(n))).into_iter().chain([Some(Step::Reset)])),
        _ => script([Some(text(7)), Some(result()), STAY]),
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(8), "{lines:?}");
    assert!(is_completed(&end_of(&lines)));
}

#[tokio::test]
async fn invalid_utf8_costs_the_link_and_not_the_run() {
    let (setup, _) = cloud(|n| match n {
        0 => script([Some(text(0)), Some(Step::Bytes(vec![b'"', 0xff, 0xfe, b'"'])), STAY]),
        _ => script([Some(text(0)), Some(text(1)), Some(result()), STAY]),
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(2), "{lines:?}");
    assert!(is_completed(&end_of(&lines)) && lines.contains(&Line::Lost), "{lines:?}");
}

#[tokio::test]
async fn messages_are_taken_in_any_wrapping() {
    let split = r#"{"type":"streamlined_text","text":"é漢🎉","uuid":"x"}"#;
    for at in 0..split.len() {
        let (setup, _) = cloud(move |_| {
            script([
                Some(Step::Split(split.to_owned(), at)),
                Some(Step::Binary(br#"{"type":"streamlined_text","text":"binary","uuid":"b"}"#.to_vec())),
                Some(Step::Binary(vec![0xff, 0xfe])),
                Some(Step::Text(String::new())),
                Some(result()),
                STAY,
            ])
        })
        .await;
        let lines = setup.start().lines().await;
        assert_eq!(text_of(&lines), "é漢🎉binary", "{at}");
        assert!(!lines.contains(&Line::Lost), "{at}");
    }
}

#[tokio::test]
async fn a_connection_that_died_without_a_word_is_noticed() {
    let link = LinkConfig { liveness_ms: 200, ..fast() };
    let (setup, _) = cloud_with(link, |line, n| match line {
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ if line.contains("/stream") && n == 0 => script([Some(text(0)), Some(Step::Silence)]),
        _ => script([Some(text(0)), Some(Step::Wait(120)), Some(text(1)), Some(Step::Wait(120)), Some(result()), STAY]),
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(2));
    // Any frame is a sign of life: the second connection lasts longer than the limit, and stays.
    assert_eq!(lines.iter().filter(|line| **line == Line::Lost).count(), 1, "{lines:?}");
}

#[tokio::test]
async fn a_frame_that_takes_long_to_arrive_is_a_sign_of_life() {
    let link = LinkConfig { liveness_ms: 300, ..fast() };
    let slow = format!(r#"{{"type":"streamlined_text","text":"{}","uuid":"s"}}"#, "slow ".repeat(12));
    let (setup, _) = cloud_with(link, move |line, _| match line {
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ => script([Some(Step::Slow(slow.clone(), 10, 60)), Some(result()), STAY]),
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), "slow ".repeat(12));
    assert!(!lines.contains(&Line::Lost), "{lines:?}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_does_not_hold_the_run_for_ever() {
    let link = LinkConfig { request_timeout_ms: 200, connect_timeout_ms: 200, attempts: 1, ..fast() };
    let (setup, _) = cloud_with(link.clone(), |_, _| Do::Hang).await;
    let (kind, message) = setup.start().failure().await;
    assert_eq!(kind, FailureKind::EngineNotReady);
    assert!(message.contains("200 ms"), "{message}");
    // It takes the run, and then nothing opens.
    let (setup, _) =
        cloud_with(link, |line, _| if line.starts_with("POST ") { Do::Reply(201, CREATED.to_owned()) } else { Do::Hang }).await;
    let (kind, message) = setup.start().failure().await;
    assert_eq!(kind, FailureKind::EngineNotReady, "{message}");
    assert!(!message.contains("canary"), "{message}");
}

#[tokio::test]
async fn answers_that_make_no_sense_are_survived() {
    for (status, body) in [(201, ""), (201, "null"), (200, r#"{"session_id":7}"#), (302, ""), (201, "<html>"), (500, "{")] {
        let (setup, seen) = cloud_with(fast(), move |_, _| Do::Reply(status, body.to_owned())).await;
        let (kind, message) = setup.start().failure().await;
        assert_eq!(kind, FailureKind::EngineNotReady, "{status} {body} {message}");
        assert!(seen.requests("/elsewhere").is_empty(), "a redirect was followed");
    }
    let link = LinkConfig { max_reply_bytes: 1000, ..fast() };
    let (setup, _) = cloud_with(link, |_, _| Do::Reply(201, " ".repeat(5_000))).await;
    assert!(setup.start().failure().await.1.contains("larger than 1000 bytes"));
}

#[tokio::test]
async fn closing_again_and_again_without_a_result_comes_to_an_end() {
    let (setup, seen) = cloud(|_| script([Some(text(0)), Some(Step::Close(1000))])).await;
    let run = setup.start();
    let lines = run.lines().await;
    assert_eq!(text_of(&lines), texts(1));
    assert_eq!(run.failure().await.0, FailureKind::MissingTerminalEvent);
    // The first connection and four more.
    assert_eq!(seen.requests("/stream").len(), 5);
    // After the third failure the token is new.
    assert!(seen.requests("canary-new").len() == 2 && seen.requests("refresh-token").len() == 2, "{:?}", seen.requests(""));
}

#[tokio::test]
async fn a_finalised_session_ends_with_its_result() {
    let finalised = r#"{"error":{"code":"session_finalized","message":"session is completed"}}"#;
    let (setup, _) = cloud_with(fast(), move |line, n| match line {
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ if line.contains("/stream") && n == 0 => script([Some(text(0)), Some(Step::Reset)]),
        _ if line.contains("/stream") => Do::Reply(409, finalised.to_owned()),
        // Not yet, at first.
        _ if line.contains("/result") && n == 0 => Do::Reply(404, r#"{"error":{"code":"result_not_ready","message":""}}"#.to_owned()),
        _ if line.contains("/result") => Do::Reply(200, RESULT.to_owned()),
        _ => Do::Hang,
    })
    .await;
    let lines = setup.start().lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert_eq!(text_of(&lines), texts(1));
}

#[tokio::test]
async fn a_finalised_session_without_a_result_is_lost_at_once() {
    let (setup, seen) = cloud(|_| Do::Reply(409, String::new())).await;
    let (kind, message) = setup.start().failure().await;
    assert_eq!(kind, FailureKind::EngineNotReady, "{message}");
    assert_eq!(seen.requests("/stream").len(), 1);
}

#[tokio::test]
async fn a_desync_is_mended_by_the_result_of_the_same_server_only() {
    for (url, told) in [("/told/result", true), ("http://169.254.0.1/result", false), ("//evil.example/result", false)] {
        let notice = format!(r#"{{"type":"biumind.session_desynced","session_id":"s1","final_result_url":"{url}"}}"#);
        let (setup, seen) = cloud_with(fast(), move |line, _| match line {
            _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
            _ if line.contains("/stream") => script([Some(text(0)), Some(Step::Text(notice.clone())), Some(Step::Close(1000))]),
            _ if line == "GET /told/result" && told => Do::Reply(200, format!("{{\"result\":{RESULT}}}")),
            _ if line == "GET /v1/agent/sessions/s1/result" && !told => Do::Reply(200, RESULT.to_owned()),
            _ => Do::Reply(404, String::new()),
        })
        .await;
        let lines = setup.start().lines().await;
        assert!(is_completed(&end_of(&lines)), "{url} {lines:?}");
        assert_eq!(seen.requests("GET ").len(), 2, "{url} {:?}", seen.requests(""));
    }
}

#[tokio::test]
async fn an_answer_lost_with_its_connection_is_sent_again() {
    let ask = r#"{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"t1","input":{"command":"ls"}}}"#;
    let (setup, seen) = cloud(move |n| match n {
        0 => script([Some(Step::Text(ask.to_owned())), Some(Step::Read), Some(Step::Reset)]),
        _ => script([Some(Step::Text(ask.to_owned())), Some(Step::Read), Some(text(0)), Some(result()), STAY]),
    })
    .await;
    let run = setup.start();
    let pending = run.asked().await;
    run.answer(&pending, Answer::Deny { message: Text::from_static("no") });
    let lines = run.lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| **line == Line::Ask).count(), 1, "{lines:?}");
    let texts = seen.texts.lock().unwrap().clone();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn an_answer_given_without_a_connection_is_sent_on_the_next_one() {
    let ask = r#"{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"t1","input":{}}}"#;
    let (setup, seen) = cloud_with(LinkConfig { backoff_first_ms: 300, backoff_max_ms: 300, ..fast() }, move |line, n| match line {
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ if line.contains("/stream") && n == 0 => script([Some(Step::Text(ask.to_owned())), Some(Step::Reset)]),
        _ => script([Some(Step::Read), Some(result()), STAY]),
    })
    .await;
    let run = setup.start();
    let pending = run.asked().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    run.answer(&pending, Answer::Allow { input: None, always: false });
    assert!(is_completed(&run.outcome().await));
    assert_eq!(seen.texts.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_credential_that_is_withdrawn_in_the_middle_is_said_to_be() {
    let (setup, _) = cloud_with(fast(), |line, n| match line {
        _ if line.contains("refresh-token") => Do::Reply(401, r#"{"error":{"code":"invalid_token","message":"expired"}}"#.to_owned()),
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ if line.contains("/stream") && n == 0 => script([Some(text(0)), Some(Step::Reset)]),
        _ => Do::Reply(401, r#"{"error":{"code":"invalid_session_token","message":"canary-token"}}"#.to_owned()),
    })
    .await;
    let (kind, message) = setup.start().failure().await;
    assert_eq!(kind, FailureKind::AuthRequired, "{message}");
    assert!(!message.contains("canary"), "{message}");
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_not_waited_for() {
    let (setup, _) = cloud_with(LinkConfig { write_timeout_ms: 200, max_pending: 4, ..fast() }, |line, n| match line {
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ if line.contains("/stream") && n == 0 => script([Some(text(0)), Some(Step::Silence)]),
        _ => script([Some(text(0)), Some(Step::Wait(200)), Some(text(1)), Some(result()), STAY]),
    })
    .await;
    let run = setup.start();
    run.says("0 ").await;
    let large = Environment([(Text::from_static("LARGE"), Text::from("x".repeat(30_000)))].into());
    for _ in 0..1_000 {
        // Refused once the run is over: the link gives up long before all of them are said.
        let _ = run.session.act(Action::SetEnvironment(large.clone()), RunCredential::Configured).await;
        tokio::task::yield_now().await;
    }
    let lines = run.lines().await;
    assert_eq!(text_of(&lines), texts(2), "{lines:?}");
    assert!(lines.contains(&Line::Lost));
}

/// A bridge whose sockets are as told.
async fn bridge(sockets: impl Fn(&str, usize) -> Do + Send + Sync + 'static) -> (Setup, Seen) {
    setup(Kind::Bridge, fast(), move |line, n| match line {
        "POST /v1/code/sessions" => Do::Reply(201, r#"{"id":"b1"}"#.to_owned()),
        _ if line.ends_with("/messages") => Do::Reply(202, r#"{"status":"running"}"#.to_owned()),
        _ if line.contains("/ws") => sockets(line, n),
        _ => Do::Reply(404, r#"{"error":"no such session"}"#.to_owned()),
    })
    .await
}

#[tokio::test]
async fn a_turn_that_was_over_before_we_came_is_replayed_by_its_count() {
    let (setup, seen) = bridge(|line, n| match (n, line.split("last_event_id=").nth(1)) {
        (0, None) => script([Some(text(0)), Some(text(1)), Some(result()), Some(sentinel()), Some(Step::Close(1000))]),
        (1, None) => Do::Reply(409, r#"{"error":"no turn in progress"}"#.to_owned()),
        // One less than what was had: what comes first shows that it was heard.
        (2, Some("2")) => {
            let (last, result) = (Step::Text(RESULT.to_owned()), RESULT.replace("\"r\"", "\"r2\""));
            script([Some(last), Some(text(2)), Some(Step::Text(result)), Some(sentinel()), Some(Step::Close(1000))])
        }
        other => panic!("{other:?}"),
    })
    .await;
    let first = setup.start();
    assert!(is_completed(&first.outcome().await));
    let again = interline_hub::StartRun { session: Some(first.session.id().clone()), ..request("again") };
    let lines = Watched::start(&setup.hub, &setup.access, again).lines().await;
    assert_eq!(text_of(&lines), "2 ");
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert_eq!(seen.requests("/ws").len(), 3);
}

#[tokio::test]
async fn a_first_turn_that_was_over_before_we_came_is_lost_and_said_to_be() {
    let (setup, seen) = bridge(|_, _| Do::Reply(409, r#"{"error":"no turn in progress"}"#.to_owned())).await;
    let run = setup.start();
    assert_eq!(run.failure().await.0, FailureKind::MissingTerminalEvent);
    assert!(seen.requests("/ws")[1].ends_with("last_event_id=0"), "{:?}", seen.requests("/ws"));
}

#[tokio::test]
async fn a_break_in_a_turn_asks_for_what_follows_the_last_numbered_frame() {
    let ask = r#"{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"t1","input":{}}}"#;
    let compact = r#"{"type":"biumind.compact_started","session_id":"s","reason":"x","tokens_before":1}"#;
    let (setup, seen) = bridge(move |_, n| match n {
        0 => script([Some(text(0)), Some(Step::Text(ask.into())), Some(Step::Text(compact.into())), Some(text(1)), Some(Step::Reset)]),
        // What is in the ring and in the queue comes twice on today's bridges. The compaction has no uuid and is not counted: it may be one
        // that was seen before.
        _ => {
            script([1, 2, 2, 3, 2, 3].map(|n| Some(text(n))).into_iter().chain([Some(result()), Some(sentinel()), Some(Step::Close(1000))]))
        }
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(4), "{lines:?}");
    assert!(seen.requests("/ws")[1].ends_with("last_event_id=1"), "{:?}", seen.requests("/ws"));
}

#[tokio::test]
async fn a_heartbeat_in_the_middle_is_no_sentinel_and_a_missing_close_is_no_matter() {
    let (setup, seen) =
        bridge(|_, _| script([Some(text(0)), Some(sentinel()), Some(text(1)), Some(result()), Some(sentinel()), STAY])).await;
    let first = setup.start();
    let lines = first.lines().await;
    assert_eq!(text_of(&lines), texts(2), "{lines:?}");
    assert!(is_completed(&end_of(&lines)));
    until("the client closed itself", || seen.closes.lock().unwrap().len() == 1).await;
}

#[tokio::test]
async fn neither_the_answer_to_our_own_interrupt_nor_the_sentinel_is_delivered() {
    let other = r#"{"type":"control_response","response":{"subtype":"success","request_id":"a-clients"}}"#;
    let (setup, seen) = bridge(move |_, _| {
        let rest = [Some(Step::Text(other.to_owned())), Some(sentinel()), Some(Step::Close(1000))];
        script([Some(text(0)), Some(Step::Read), Some(Step::Acknowledge)].into_iter().chain(rest))
    })
    .await;
    let run = setup.start();
    run.says("0 ").await;
    run.stop();
    assert!(is_interrupted(&run.outcome().await));
    let sent = seen.texts.lock().unwrap()[0].clone();
    assert!(sent.contains(r#""subtype":"interrupt""#), "{sent}");
    let frames = run.frames();
    assert_eq!(frames.len(), 2, "{frames:?}");
    assert_eq!(frames[1], other);
}
