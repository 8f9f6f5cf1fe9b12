//! Servers that say things twice, number what they say in ways of their own, or repeat what was never had: nothing is lost, nothing comes twice, and
//! nothing comes behind what followed it.

use interline_model::Answer;
use interline_upstream_native::{Kind, LinkConfig};

use crate::rude::{CREATED, Do, RESULT, STAY, Step, cloud, cloud_with, result, script, sentinel, setup, text, texts};
use crate::world::{Line, end_of, fast, is_completed, text_of};

/// The number after `name=` in a request line.
fn cursor(line: &str, name: &str) -> usize {
    line.split_once(name).map_or(0, |(_, number)| number.trim_start_matches('=').parse().unwrap())
}

#[tokio::test]
async fn frames_that_came_twice_before_a_break_are_counted_once() {
    // Numbers of distinct frames, and numbers of all messages that had an id.
    for numbers in [[1, 1, 2, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]] {
        let (setup, seen) = cloud_with(fast(), move |line, n| {
            let all = [0, 0, 1, 1, 2, 3].map(text).into_iter().chain([result()]);
            match line {
                _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
                _ if n == 0 => script(all.take(4).map(Some).chain([Some(Step::Reset)])),
                _ => {
                    let behind = numbers.iter().take_while(|number| **number <= cursor(line, "since_seq")).count();
                    script(all.skip(behind).map(Some).chain([STAY]))
                }
            }
        })
        .await;
        let lines = setup.start().lines().await;
        assert_eq!(text_of(&lines), texts(4), "{numbers:?} {lines:?}");
        assert!(is_completed(&end_of(&lines)), "{lines:?}");
        assert!(seen.requests("/stream")[1].ends_with("since_seq=1"), "{:?}", seen.requests("/stream"));
    }
}

#[tokio::test]
async fn what_is_no_frame_does_not_move_the_cursor() {
    let (setup, seen) = cloud(|n| match n {
        0 => script([
            Some(text(0)),
            Some(Step::Text("null".to_owned())),
            Some(Step::Text("{broken".to_owned())),
            Some(Step::Binary(vec![0xff])),
            Some(Step::Text(String::new())),
            Some(Step::Text(r#"{"type":"biumind.compact_started","session_id":"s","tokens_before":1}"#.to_owned())),
            Some(Step::Reset),
        ]),
        _ => script([Some(text(1)), Some(result()), STAY]),
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(2), "{lines:?}");
    assert!(seen.requests("/stream")[1].ends_with("since_seq=1"), "{:?}", seen.requests("/stream"));
}

#[tokio::test]
async fn a_bridge_that_says_things_twice_is_asked_for_no_more_than_it_numbered() {
    let (setup, seen) = setup(Kind::Bridge, fast(), |line, n| match line {
        "POST /v1/code/sessions" => Do::Reply(201, r#"{"id":"b1"}"#.to_owned()),
        _ if line.ends_with("/messages") => Do::Reply(202, r#"{"status":"running"}"#.to_owned()),
        _ if n == 0 => {
            let compact = Step::Text(r#"{"type":"biumind.compact_started","session_id":"s","tokens_before":1}"#.to_owned());
            let first = [0, 0, 1, 1].map(|n| Some(text(n))).into_iter();
            script(first.chain([Some(compact.clone()), Some(compact), Some(Step::Reset)]))
        }
        _ => {
            let all = [0, 1, 2, 3].map(text).into_iter().chain([Step::Text(RESULT.to_owned())]);
            script(all.skip(cursor(line, "last_event_id")).map(Some).chain([Some(sentinel()), Some(Step::Close(1000))]))
        }
    })
    .await;
    let lines = setup.start().lines().await;
    assert_eq!(text_of(&lines), texts(4), "{lines:?}");
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    assert!(seen.requests("/ws")[1].ends_with("last_event_id=1"), "{:?}", seen.requests("/ws"));
}

#[tokio::test]
async fn a_request_whose_id_reads_like_an_earlier_uuid_is_asked() {
    let ask = r#"{"type":"control_request","request_id":"u0","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"t1","input":{}}}"#;
    // Also on a connection that is not the first.
    for breaks in [0, 1] {
        let (setup, _) = cloud(move |n| match n {
            _ if n < breaks => script([Some(text(0)), Some(Step::Reset)]),
            _ => script([Some(text(0)), Some(Step::Text(ask.to_owned())), Some(Step::Read), Some(text(1)), Some(result()), STAY]),
        })
        .await;
        let run = setup.start();
        let pending = run.asked().await;
        assert_eq!(pending.id.as_str(), "u0");
        run.answer(&pending, Answer::Allow { input: None, always: false });
        let lines = run.lines().await;
        assert_eq!(text_of(&lines), texts(2), "{lines:?}");
    }
}

/// A run over sockets that say these frames, and then `fault`; the last one goes on to the end. What is shown, `-` where something is said to be
/// missing.
async fn shown(kind: Kind, link: LinkConfig, sockets: &'static [&'static [usize]], fault: Step) -> String {
    let (setup, _) = setup(kind, link, move |line, n| {
        let end = match kind {
            Kind::Cloud => vec![Some(result()), STAY],
            Kind::Bridge => vec![Some(result()), Some(sentinel()), Some(Step::Close(1000))],
        };
        match line {
            "POST /v1/code/sessions" => Do::Reply(201, r#"{"id":"b1"}"#.to_owned()),
            _ if line.ends_with("/messages") => Do::Reply(202, r#"{"status":"running"}"#.to_owned()),
            _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
            _ => {
                let frames = sockets[n].iter().map(|n| Some(text(*n)));
                if n + 1 < sockets.len() { script(frames.chain([Some(fault.clone()), STAY])) } else { script(frames.chain(end)) }
            }
        }
    })
    .await;
    let lines = setup.start().lines().await;
    assert!(is_completed(&end_of(&lines)), "{lines:?}");
    let words = lines.iter().filter_map(|line| match line {
        Line::Text(text) => Some(text.as_str()),
        Line::Missed => Some("- "),
        _ => None,
    });
    words.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_notice_of_the_number_is_found_out() {
    for kind in [Kind::Cloud, Kind::Bridge] {
        assert_eq!(shown(kind, fast(), &[&[0, 1, 2], &[5, 6]], Step::Reset).await, "0 1 2 - 5 6 ", "{kind:?}");
        // Again and again.
        assert_eq!(shown(kind, fast(), &[&[0, 1, 2], &[5, 6], &[8, 9]], Step::Reset).await, "0 1 2 - 5 6 - 8 9 ", "{kind:?}");
        // One frame is none that can be asked behind: nobody can tell.
        assert_eq!(shown(kind, fast(), &[&[0], &[3, 4]], Step::Reset).await, "0 3 4 ", "{kind:?}");
        // With the next connection it replays what it kept to itself.
        assert_eq!(shown(kind, fast(), &[&[0, 1, 2], &[5], &[3, 4, 5, 6]], Step::Reset).await, "0 1 2 - 5 6 ", "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_before_the_first_frame_that_was_had_is_not_shown_behind_it() {
    for kind in [Kind::Cloud, Kind::Bridge] {
        // The first connection came late.
        assert_eq!(shown(kind, fast(), &[&[3, 4], &[1, 2, 3, 4, 5]], Step::Reset).await, "3 4 - 5 ", "{kind:?}");
        assert_eq!(shown(kind, fast(), &[&[3], &[1, 2, 3, 4, 5]], Step::Reset).await, "3 - 4 5 ", "{kind:?}");
        // It broke before anything came, which was said.
        assert_eq!(shown(kind, fast(), &[&[], &[3, 4], &[1, 2, 3, 4, 5]], Step::Reset).await, "- 3 4 5 ", "{kind:?}");
        // In the middle of the replay nothing comes any more, for longer than frames wait.
        let link = LinkConfig { liveness_ms: 250, connect_timeout_ms: 250, replay_wait_ms: 10, ..fast() };
        let sockets: &[&[usize]] = &[&[], &[3, 4], &[1, 2], &[1, 2, 3, 4, 5]];
        assert_eq!(shown(kind, link, sockets, Step::Silence).await, "- 3 4 5 ", "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_waits_where_everything_is_repeated() {
    let link = LinkConfig { replay_wait_ms: 3_600_000, ..fast() };
    for kind in [Kind::Cloud, Kind::Bridge] {
        assert_eq!(shown(kind, link.clone(), &[&[0, 1, 2], &[2, 3], &[0, 1, 2, 3, 4]], Step::Reset).await, "0 1 2 3 4 ", "{kind:?}");
    }
}
