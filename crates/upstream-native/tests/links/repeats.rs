//! Servers that say things twice, and number what they say in ways of their own: nothing is lost, and nothing comes twice.

use interline_model::Answer;
use interline_upstream_native::Kind;

use crate::rude::{CREATED, Do, RESULT, STAY, Step, cloud, cloud_with, result, script, sentinel, setup, text, texts};
use crate::world::{end_of, fast, is_completed, text_of};

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
        assert!(seen.requests("/stream")[1].ends_with("since_seq=2"), "{:?}", seen.requests("/stream"));
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
    assert!(seen.requests("/ws")[1].ends_with("last_event_id=2"), "{:?}", seen.requests("/ws"));
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
