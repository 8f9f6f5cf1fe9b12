//! Runs through the hub with a scripted link: one end each, whatever the link does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod scripted;

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{AnswerError, NewSession, RunConfig, RunStatus, Session, StartError, StartRun, Stopped};
use interline_model::{Answer, AskId, AskOutcome, CellName, RunId, Text};
use scripted::{Lines, hub, hub_with, lines, me, request};

async fn over(session: &Arc<Session>, run: RunId) -> RunStatus {
    lines(session, run).await;
    session.run_info(run).unwrap().status
}

#[tokio::test]
async fn live_and_late_readers_see_the_same() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("a b c end d")).unwrap();
    let live = lines(&session, run).await;
    assert_eq!(live, ["start", "a", "b", "c", "over"]);
    let late = session.projection("late", || Lines);
    assert_eq!(late.run_len(run), Ok((5, true)));
    assert_eq!(late.tail(0).ready(100), live);
}

#[tokio::test]
async fn every_way_a_link_can_leave_ends_the_run_once() {
    for (prompt, status) in [
        ("refuse", RunStatus::Failed),
        ("leave", RunStatus::Failed),
        ("panic", RunStatus::Failed),
        ("a", RunStatus::Failed),
        ("silent", RunStatus::Failed),
        ("nulls", RunStatus::Failed),
        ("a end", RunStatus::Completed),
    ] {
        let (hub, access) = hub();
        let (session, run) = hub.start(&access, request(prompt)).unwrap();
        assert_eq!(over(&session, run).await, status, "{prompt}");
        assert_eq!(lines(&session, run).await.iter().filter(|line| *line == "over").count(), 1, "{prompt}");
    }
}

#[tokio::test]
async fn a_stop_that_the_upstream_ignores_ends_the_run_after_the_grace() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("silent")).unwrap();
    assert_eq!(session.stop(Some(run), me(&access)), Stopped::Stopping(run));
    assert_eq!(session.stop(None, me(&access)), Stopped::Stopping(run));
    assert_eq!(over(&session, run).await, RunStatus::Interrupted);
    assert_eq!(session.stop(Some(run), me(&access)), Stopped::Ended(run, RunStatus::Interrupted));
    assert_eq!(session.stop(None, me(&access)), Stopped::Idle);
}

#[tokio::test]
async fn the_first_answer_wins_and_the_second_is_told_who_won() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("ask")).unwrap();
    while session.pending_asks().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let id = AskId::from("q1");
    let deny = Answer::Deny { message: Text::from_static("no") };
    assert_eq!(session.answer(&id, Answer::Allow { input: None, always: false }, me(&access)), Ok(AskOutcome::Allowed));
    let lost = AnswerError::Settled { outcome: AskOutcome::Allowed, by: Some(me(&access)) };
    assert_eq!(session.answer(&id, deny.clone(), me(&access)), Err(lost));
    assert_eq!(session.answer(&AskId::from("q2"), deny, me(&access)), Err(AnswerError::NotFound));
    assert_eq!(over(&session, run).await, RunStatus::Completed);
}

#[tokio::test]
async fn an_ask_that_nobody_answers_is_denied() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("ask")).unwrap();
    let seen = lines(&session, run).await;
    assert!(seen.iter().any(|line| line.contains("Answer")), "{seen:?}");
    let late = session.answer(&AskId::from("q1"), Answer::Allow { input: None, always: false }, me(&access));
    assert_eq!(late, Err(AnswerError::Settled { outcome: AskOutcome::Expired, by: None }));
}

#[tokio::test]
async fn a_session_has_one_run_at_a_time_and_a_client_a_bounded_number() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("silent")).unwrap();
    let again = StartRun { session: Some(session.id().clone()), ..request("a end") };
    assert_eq!(hub.start(&access, again.clone()).err(), Some(StartError::Busy { run }));
    hub.start(&access, request("silent")).unwrap();
    assert_eq!(hub.start(&access, request("silent")).err(), Some(StartError::TooManyRuns(2)));
    session.stop(None, me(&access));
    assert_eq!(over(&session, run).await, RunStatus::Interrupted);
    let (same, second) = hub.start(&access, again).unwrap();
    assert_eq!(same.id(), session.id());
    assert_eq!(lines(&same, second).await, ["start", "a", "over"]);
    assert_eq!(same.runs().len(), 2);
}

#[tokio::test]
async fn the_same_idempotency_key_starts_once() {
    let (hub, access) = hub();
    let request = StartRun { idempotency_key: Some(Text::from_static("k")), ..request("a end") };
    let (_, first) = hub.start(&access, request.clone()).unwrap();
    let (_, second) = hub.start(&access, request).unwrap();
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_deleted_session_is_gone_and_its_run_over() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("silent")).unwrap();
    assert!(hub.delete_session(&access, session.id()));
    assert!(!hub.delete_session(&access, session.id()));
    assert!(hub.run(&access, run).is_none());
    assert_eq!(over(&session, run).await, RunStatus::Interrupted);
}

#[tokio::test]
async fn shutting_down_refuses_new_runs_and_ends_the_others() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("silent")).unwrap();
    hub.shutdown(Duration::from_millis(30)).await;
    assert_eq!(hub.start(&access, request("a end")).err(), Some(StartError::Draining));
    assert_eq!(over(&session, run).await, RunStatus::Failed);
    assert!(hub.closing().has_begun());
}

#[tokio::test]
async fn a_session_keeps_its_cell() {
    let (hub, access) = hub();
    let session = hub.create_session(&access, NewSession::default()).unwrap();
    assert_eq!(session.cell().as_str(), "default");
    let elsewhere = StartRun { cell: Some(CellName::from("other")), session: Some(session.id().clone()), ..request("a end") };
    assert_eq!(hub.start(&access, elsewhere).err(), Some(StartError::CellNotFound(CellName::from("other"))));
}

#[tokio::test]
async fn a_run_without_an_end_to_its_words_is_ended() {
    let (hub, access) = hub_with(RunConfig { max_bytes: 20, ..RunConfig::default() });
    let (session, run) = hub.start(&access, request("0123456789 0123456789 one-more and-more end")).unwrap();
    assert_eq!(lines(&session, run).await, ["start", "0123456789", "0123456789", "over"]);
    assert_eq!(session.run_info(run).unwrap().status, RunStatus::Failed);
}

#[tokio::test]
async fn sessions_at_rest_make_room_and_are_forgotten() {
    let (hub, access) = hub_with(RunConfig { max_sessions: 2, keep_ms: 0, ..RunConfig::default() });
    let (first, run) = hub.start(&access, request("a end")).unwrap();
    over(&first, run).await;
    let (second, busy) = hub.start(&access, request("silent")).unwrap();
    let (third, _) = hub.start(&access, request("a end")).unwrap();
    assert!(hub.session(&access, first.id()).is_none(), "the one at rest made room");
    assert!(hub.run(&access, run).is_none());
    assert!(hub.session(&access, second.id()).is_some() && hub.session(&access, third.id()).is_some());
    second.stop(Some(busy), me(&access));

    let (hub, access) = hub_with(RunConfig { max_sessions: 1, ..RunConfig::default() });
    let (session, run) = hub.start(&access, request("a end")).unwrap();
    over(&session, run).await;
    assert_eq!(hub.start(&access, request("a end")).err(), Some(StartError::TooManySessions(1)), "kept for an hour at least");

    let (hub, access) = hub_with(RunConfig { forget_ms: 0, ..RunConfig::default() });
    let (session, run) = hub.start(&access, request("a end")).unwrap();
    over(&session, run).await;
    hub.start(&access, request("a end")).unwrap();
    assert!(hub.session(&access, session.id()).is_none(), "forgotten");
}
