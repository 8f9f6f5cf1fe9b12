//! How runs go about people: policies, runs without people, queues, runs that nobody watches, answers of which nothing is heard, settings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod scripted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use interline_hub::{
    Access, Action, ActionError, AnswerError, AskConfig, Conduct, Decision, Environment, Hub, NotBegun, OnBusy, Policies, Policy,
    RunConfig, RunStatus, Session, Settings, StartError, StartRun, Started, Stopped, Unwatched, draw_run,
};
use interline_model::{Answer, AskId, AskOutcome, Json, RunId, Text};
use scripted::{Lines, hub, hub_of, lines, me, request};

fn hub_that(conduct: Conduct) -> (Arc<Hub>, Access) {
    hub_of(RunConfig { max_queued: 2, ..RunConfig::default() }, AskConfig::default(), conduct)
}

async fn until(what: &str, check: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_policy_decides_before_anybody_is_asked() {
    for (decision, outcome) in [(Decision::Allow, AskOutcome::Allowed), (Decision::Deny, AskOutcome::Denied)] {
        let policies = Policies::new(vec![Policy::new("bash", "Bash", None, decision).unwrap()]);
        let (hub, access) = hub_that(Conduct { policies: Arc::new(policies), ..Conduct::default() });
        let (session, run) = hub.start(&access, request("ask")).unwrap();
        let seen = lines(&session, run).await;
        assert!(seen[1].contains("Answer"), "the link was told at once, and no ask was seen: {seen:?}");
        assert_eq!(seen, [seen[0].clone(), seen[1].clone(), "over".to_owned()]);
        assert_eq!(session.projection("late", || Lines).tail(0).ready(9), seen, "a replay shows the same");
        let verdict = session.verdicts().remove(0);
        assert_eq!((verdict.outcome, verdict.by, verdict.rule), (outcome, None, Some(Text::from_static("bash"))));
        assert!(session.pending_asks().is_empty());
    }
    let policies = Policies::new(vec![Policy::new("all", ".*", None, Decision::Allow).unwrap()]);
    let (hub, access) = hub_that(Conduct { policies: Arc::new(policies), ..Conduct::default() });
    let (session, _) = hub.start(&access, request("ask-question")).unwrap();
    until("the question is asked", || !session.pending_asks().is_empty()).await;
}

#[tokio::test]
async fn a_run_without_people_asks_nobody() {
    for (prompt, outcome) in [("ask", AskOutcome::Allowed), ("ask-question", AskOutcome::Denied)] {
        let (hub, access) = hub();
        let (session, run) = hub.start(&access, StartRun { headless: true, ..request(prompt) }).unwrap();
        assert_eq!(lines(&session, run).await.len(), 3, "{prompt}");
        let verdict = session.verdicts().remove(0);
        assert_eq!((verdict.outcome, verdict.rule), (outcome, Some(Text::from_static("headless"))), "{prompt}");
    }
}

fn again(session: &Session, prompt: &str) -> StartRun {
    StartRun { session: Some(session.id().clone()), ..request(prompt) }
}

async fn begun(started: Started) -> (Arc<Session>, RunId) {
    match started {
        Started::Begun(session, run) => (session, run),
        Started::InTurn(waiting) => waiting.begun().await.unwrap(),
    }
}

#[tokio::test]
async fn runs_wait_for_their_turn_in_order_also_when_nobody_waits_for_them() {
    let (hub, access) = hub_that(Conduct { on_busy: OnBusy::Queue, ..Conduct::default() });
    let (session, first) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let forgotten = hub.start_in_turn(&access, again(&session, "b end")).unwrap();
    assert!(matches!(forgotten, Started::InTurn(_)));
    drop(forgotten);
    let third = hub.start_in_turn(&access, again(&session, "c end")).unwrap();
    assert_eq!(hub.start_in_turn(&access, again(&session, "d end")).err(), Some(StartError::Busy { run: first }), "two may wait");
    session.stop(Some(first), me(&access));
    let (_, third) = begun(third).await;
    assert_eq!(lines(&session, third).await, ["start", "c", "over"]);
    let runs = session.runs();
    assert_eq!(runs.len(), 3);
    assert_eq!(lines(&session, runs[1].run).await, ["start", "b", "over"]);
}

#[tokio::test]
async fn a_stop_of_the_session_gives_up_the_runs_that_wait_and_a_stop_of_one_gives_up_that() {
    let (hub, access) = hub_that(Conduct { on_busy: OnBusy::Queue, ..Conduct::default() });
    let (session, first) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let id = draw_run();
    let second = hub.start_in_turn(&access, StartRun { run: Some(id), ..again(&session, "b end") }).unwrap();
    let third = hub.start_in_turn(&access, again(&session, "c end")).unwrap();
    assert!(hub.run(&access, id).is_some_and(|found| found.id() == session.id()), "it is known while it waits");
    assert_eq!(session.stop(Some(id), me(&access)), Stopped::Stopping(id));
    let Started::InTurn(second) = second else { panic!("it waits") };
    assert_eq!(second.begun().await.err(), Some(NotBegun::Stopped));
    until("nothing is known of it", || hub.run(&access, id).is_none()).await;
    assert_eq!(session.stop(None, me(&access)), Stopped::Stopping(first));
    let Started::InTurn(third) = third else { panic!("it waits") };
    assert_eq!(third.begun().await.err(), Some(NotBegun::Stopped));
    assert_eq!(session.runs().len(), 1);
}

#[tokio::test]
async fn a_run_is_decided_anew_whatever_ids_earlier_ones_used() {
    let policies = Policies::new(vec![Policy::new("bash", "Bash", None, Decision::Deny).unwrap()]);
    let (hub, access) = hub_that(Conduct { policies: Arc::new(policies), ..Conduct::default() });
    let (session, run) = hub.start(&access, request("ask")).unwrap();
    lines(&session, run).await;
    let (_, run) = hub.start(&access, again(&session, "ask")).unwrap();
    assert_eq!(lines(&session, run).await.len(), 3, "nobody is asked");
    assert_eq!(session.verdicts().len(), 2);
}

#[tokio::test]
async fn an_edited_input_is_judged_like_one_that_was_asked_about() {
    let policies = vec![
        Policy::new("never", "Bash", Some(("command", ".*rm .*")), Decision::Deny).unwrap(),
        Policy::new("rest", ".*", None, Decision::Ask).unwrap(),
    ];
    let (hub, access) = hub_that(Conduct { policies: Arc::new(Policies::new(policies)), ..Conduct::default() });
    let (session, _) = hub.start(&access, request("mute")).unwrap();
    until("it asks", || !session.pending_asks().is_empty()).await;
    let input = |command: &str| Json::parse(format!(r#"{{"command":"{command}"}}"#)).unwrap();
    let native = Json::parse(r#"{"behavior":"allow","updatedInput":{"command":"rm -rf /"}}"#).unwrap();
    for answer in [Answer::Allow { input: Some(input("rm -rf /")), always: false }, Answer::Native(native)] {
        let refused = session.answer(&AskId::from("q1"), answer, me(&access));
        assert_eq!(refused, Err(AnswerError::Forbidden { rule: "never".into() }));
    }
    let edited = Answer::Allow { input: Some(input("ls")), always: false };
    assert_eq!(session.answer(&AskId::from("q1"), edited, me(&access)), Ok(AskOutcome::Allowed));
}

#[tokio::test]
async fn a_stopped_run_takes_no_answers() {
    let (hub, access) = hub_of(RunConfig { stop_grace_ms: 500, ..RunConfig::default() }, AskConfig::default(), Conduct::default());
    let (session, run) = hub.start(&access, request("mute")).unwrap();
    until("it asks", || !session.pending_asks().is_empty()).await;
    session.stop(Some(run), me(&access));
    assert!(session.pending_asks().is_empty());
    let late = session.answer(&AskId::from("q1"), Answer::Allow { input: None, always: false }, me(&access));
    assert_eq!(late, Err(AnswerError::Settled { outcome: AskOutcome::Void, by: None }));
}

#[tokio::test]
async fn a_run_that_waits_does_not_bring_a_deleted_session_back() {
    let (hub, access) = hub_that(Conduct { on_busy: OnBusy::Queue, ..Conduct::default() });
    let (session, _) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let Started::InTurn(waiting) = hub.start_in_turn(&access, again(&session, "b end")).unwrap() else { panic!("it waits") };
    assert!(hub.delete_session(&access, session.id()));
    let gone = StartError::SessionNotFound(session.id().clone());
    assert_eq!(waiting.begun().await.err(), Some(NotBegun::Refused(gone)));
    assert!(hub.session(&access, session.id()).is_none());
}

/// By its key a request is found whatever else it says.
#[tokio::test]
async fn a_key_finds_the_run_that_waits_whatever_session_is_named() {
    let (hub, access) = hub_that(Conduct { on_busy: OnBusy::Queue, ..Conduct::default() });
    let (session, first) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let keyed = |request| StartRun { idempotency_key: Some("key".into()), ..request };
    let Started::InTurn(waiting) = hub.start_in_turn(&access, keyed(again(&session, "b end"))).unwrap() else { panic!("it waits") };
    for same in [again(&session, "b end"), request("b end"), StartRun { session: Some("another".into()), ..request("b end") }] {
        let Started::InTurn(found) = hub.start_in_turn(&access, keyed(same)).unwrap() else { panic!("it waits") };
        assert!(Arc::ptr_eq(&found, &waiting));
    }
    session.stop(Some(first), me(&access));
    let (_, run) = waiting.begun().await.unwrap();
    assert_eq!(run, waiting.run);
    let (_, found) = begun(hub.start_in_turn(&access, keyed(request("b end"))).unwrap()).await;
    assert_eq!(found, run);
}

#[tokio::test]
async fn what_waits_is_bounded_in_bytes_over_all_sessions_of_a_client() {
    let run = RunConfig { max_queued: 16, max_queued_bytes: 2000, ..RunConfig::default() };
    let (hub, access) = hub_of(run, AskConfig::default(), Conduct { on_busy: OnBusy::Queue, ..Conduct::default() });
    let (one, _) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let (two, first) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let long = "x".repeat(600);
    let Started::InTurn(waiting) = hub.start_in_turn(&access, again(&one, &long)).unwrap() else { panic!("it waits") };
    assert_eq!(hub.start_in_turn(&access, again(&two, &long)).err(), Some(StartError::Busy { run: first }));
    waiting.stop(me(&access));
    assert_eq!(waiting.begun().await.err(), Some(NotBegun::Stopped));
    assert!(hub.start_in_turn(&access, again(&two, &long)).is_ok(), "there is room again");
}

#[tokio::test]
async fn a_session_in_which_something_waits_is_not_at_rest_and_nothing_comes_to_wait_at_the_end() {
    let (hub, access) = hub_that(Conduct { on_busy: OnBusy::Queue, ..Conduct::default() });
    let (session, _) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let Started::InTurn(waiting) = hub.start_in_turn(&access, again(&session, "end")).unwrap() else { panic!("it waits") };
    let shutdown = tokio::spawn({
        let hub = hub.clone();
        async move { hub.shutdown(Duration::from_secs(5)).await }
    });
    until("it drains", || hub.is_draining()).await;
    assert_eq!(hub.start_in_turn(&access, again(&session, "end")).err(), Some(StartError::Draining));
    session.stop(None, me(&access));
    shutdown.await.unwrap();
    assert!(waiting.begun().await.is_err());
}

#[tokio::test]
async fn a_run_can_take_the_place_of_the_one_that_goes_on() {
    let (hub, access) = hub_that(Conduct { on_busy: OnBusy::Interrupt, ..Conduct::default() });
    let (session, first) = begun(hub.start_in_turn(&access, request("silent")).unwrap()).await;
    let second = hub.start_in_turn(&access, again(&session, "silent")).unwrap();
    let third = hub.start_in_turn(&access, again(&session, "c end")).unwrap();
    let (_, second) = begun(second).await;
    let (_, third) = begun(third).await;
    assert_eq!(lines(&session, third).await, ["start", "c", "over"]);
    for run in [first, second] {
        assert_eq!(session.run_info(run).unwrap().status, RunStatus::Interrupted);
    }
}

#[tokio::test]
async fn a_run_that_nobody_watches_is_stopped_where_that_is_said() {
    let limit = Duration::from_millis(60);
    let (hub, access) = hub_that(Conduct { unwatched: Unwatched::StopAfter(limit), ..Conduct::default() });
    let (session, run) = hub.start(&access, request("obey")).unwrap();
    let watcher = session.projection("", || Lines).run_tail(run, 1).unwrap();
    tokio::time::sleep(limit * 2).await;
    assert!(session.active_run().is_some(), "somebody watches");
    drop(watcher);
    until("it is stopped", || session.active_run().is_none()).await;
    assert!(lines(&session, run).await.contains(&"stop".to_owned()));

    let (hub, access) = hub_that(Conduct::default());
    let (session, _) = hub.start(&access, request("obey")).unwrap();
    tokio::time::sleep(limit * 2).await;
    assert!(session.active_run().is_some(), "by default it goes on");
}

#[tokio::test]
async fn an_answer_that_nothing_follows_is_said_to_be_unconfirmed_and_can_be_given_again() {
    let ask = AskConfig { confirm_ms: 50, ..AskConfig::default() };
    let (hub, access) = hub_of(RunConfig::default(), ask, Conduct::default());
    let (session, run) = hub.start(&access, request("mute")).unwrap();
    until("it asks", || !session.pending_asks().is_empty()).await;
    let (id, yes) = (AskId::from("q1"), Answer::Allow { input: None, always: false });
    session.answer(&id, yes.clone(), me(&access)).unwrap();
    assert!(session.pending_asks().is_empty());
    assert!(session.answer(&id, yes.clone(), me(&access)).is_err());
    until("it is told", || session.pending_asks().iter().any(|pending| pending.unconfirmed)).await;
    assert_eq!(session.answer(&id, yes, me(&access)), Ok(AskOutcome::Allowed));
    assert!(session.pending_asks().is_empty());
    session.stop(None, me(&access));
    // Once for each answer at most, and for the first certainly.
    let told = lines(&session, run).await.iter().filter(|line| *line == "unconfirmed").count();
    assert!((1..=2).contains(&told), "{told}");
}

#[tokio::test]
async fn settings_are_made_and_what_is_not_to_be_had_is_said() {
    let (hub, access) = hub();
    let environment = Environment(BTreeMap::from([(Text::from("TOKEN"), Text::from("canary"))]));
    let settings = Settings { permission_mode: Some("plan".into()), thinking_tokens: Some(5), environment, ..Settings::default() };
    assert!(!format!("{settings:?}").contains("canary"));
    let (session, run) = hub.start(&access, StartRun { settings, ..request("obey") }).unwrap();
    let seen = || session.projection("", || Lines).tail(0).ready(99);
    until("all is said", || seen().len() == 5).await;
    let mut said = seen();
    said.sort();
    assert_eq!(said, ["Frame(\"environment\")", "refused", "setting_not_made", "setting_not_made", "start"]);
    session.stop(None, me(&access));
    lines(&session, run).await;
}

#[tokio::test]
async fn no_client_takes_decisions_out_of_peoples_hands() {
    let policies = Policies::new(vec![Policy::new("bash", "Bash", None, Decision::Deny).unwrap()]);
    let guarded = hub_that(Conduct { policies: Arc::new(policies), ..Conduct::default() });
    for ((hub, access), mode, taken) in [
        (hub(), "plan", true),
        (hub(), "acceptEdits", true),
        (hub(), "bypassPermissions", false),
        (hub(), "BypassPermissions", false),
        (guarded, "acceptEdits", false),
    ] {
        let (session, _) = hub.start(&access, request("obey")).unwrap();
        let refused = session.act(Action::SetPermissionMode(mode.into()), access.credential().clone()).await.unwrap_err();
        assert_eq!(matches!(refused, ActionError::Forbidden(_)), !taken, "{mode}: {refused}");
        session.stop(None, me(&access));
    }
}

#[tokio::test]
async fn actions_have_their_time() {
    let (hub, access) = hub();
    let (session, run) = hub.start(&access, request("obey")).unwrap();
    let act = |action| session.act(action, access.credential().clone());
    assert_eq!(act(Action::ContextUsage).await, Err(ActionError::Refused { status: None, message: "not here".to_owned() }));
    assert_eq!(act(Action::Compact).await, Err(ActionError::Busy));
    session.stop(None, me(&access));
    lines(&session, run).await;
    assert_eq!(act(Action::ContextUsage).await, Err(ActionError::Idle));
    let refused = act(Action::Compact).await.unwrap_err();
    assert_eq!(refused.to_string(), "this agent server cannot compact on demand");
}
