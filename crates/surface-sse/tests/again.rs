//! Runs that wait for their turn, and requests that are sent again: one run however often a library repeats itself (sse.md §1.3, §5.6).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use interline_hub::{Conduct, OnBusy};
use interline_surface_sse::{Config, Extras};
use serde_json::json;
use support::{Answered, Server, Setup, events, run_body, types};

const S: &str = r#","session_id":"s""#;

fn busy(on_busy: OnBusy) -> Setup {
    let config = Config { heartbeat_ms: 20, ..Config::default() };
    Setup { conduct: Conduct { on_busy, ..Conduct::default() }, config, ..Setup::default() }
}

async fn start(server: &Server, script: &str) -> Answered {
    server.post("/cells/my-cell/run", &run_body(script, S)).await
}

#[tokio::test]
async fn a_run_that_waits_has_its_id_and_heartbeats_and_then_begins() {
    let server = Server::of(busy(OnBusy::Queue)).await;
    let mut first = start(&server, "turn\ngate\nturn_end\ndone").await;
    first.until("turn_start").await;
    let mut second = start(&server, "turn\ntext two\nturn_end\ndone").await;
    assert_eq!((second.status, second.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    let run = second.run_id();
    assert_ne!(run, first.run_id());
    assert_eq!(second.header("x-session-id"), Some("s"));
    assert_eq!(second.header("location"), Some(&*format!("/cells/my-cell/runs/{run}/events")));
    let mut body = second.until("data:    ").await;
    assert!(!body.contains('{'), "nothing but heartbeats: {body}");
    // It can be followed by its id already.
    let path = format!("/cells/my-cell/runs/{run}/events");
    let mut follower = server.send("GET", &path, &[("Accept", "text/event-stream")], "").await;
    assert_eq!(follower.status, 200);
    let mut followed = follower.until(":hb\n").await;
    server.open_gate();
    body.push_str(&second.rest().await);
    followed.push_str(&follower.rest().await);
    assert_eq!(types(&body), ["run_start", "turn_start", "stream_delta", "turn_end", "done"]);
    assert_eq!(events(&body)[0]["run_id"], run.as_str());
    assert_eq!(events(&followed), events(&body));
    assert!(followed.contains(&format!("id: {run}:1\n")), "{followed}");
    assert!(second.ended_cleanly && first.rest().await.contains("\"done\""));
    assert_eq!(server.get(&path).await.rest().await.trim_start(), server.get(&format!("{path}?from_seq=1")).await.rest().await);
}

#[tokio::test]
async fn an_interrupting_run_stops_the_one_before_it() {
    let server = Server::of(busy(OnBusy::Interrupt)).await;
    let mut first = start(&server, "turn\ngate\nturn_end\ndone").await;
    first.until("turn_start").await;
    let mut second = start(&server, "turn\nturn_end\ndone").await;
    assert_eq!(events(&first.rest().await).last().unwrap()["type"], "interrupted");
    assert_eq!(types(&second.rest().await).last().unwrap(), "done");
}

#[tokio::test]
async fn a_run_that_waits_can_be_stopped_before_it_begins() {
    let server = Server::of(busy(OnBusy::Queue)).await;
    let mut first = start(&server, "turn\ngate\nturn_end\ndone").await;
    first.until("turn_start").await;
    let mut second = start(&server, "turn\ngate\ntext never\nturn_end\ndone").await;
    let shown = format!("/cells/my-cell/runs/{}", second.run_id());
    let waiting = server.get(&shown).await.json().await;
    assert_eq!((&waiting["status"], &waiting["model"], waiting.get("ended_at")), (&json!("running"), &json!("gpt-4o"), None));
    let path = format!("{shown}/interrupt");
    let stopped = server.post(&path, "").await;
    assert_eq!((stopped.status, stopped.json().await["status"].as_str()), (202, Some("interrupting")));
    let body = second.rest().await;
    assert_eq!(types(&body), ["run_start", "interrupted"], "at once, and not when its turn has come");
    assert_eq!(events(&body)[1]["reason"], "user_interrupt");
    assert!(second.ended_cleanly);
    server.open_gate();
    assert!(first.rest().await.contains("\"done\""), "the other one is not stopped by it");
    assert_eq!(server.script.inputs.lock().unwrap().len(), 1, "the agent never heard of it");
    let again = server.post(&path, "").await;
    assert_eq!((again.status, again.json().await), (200, json!({"ok": true, "status": "interrupted"})));
    let replay = server.get(&path.replace("/interrupt", "/events")).await.rest().await;
    assert_eq!(events(&replay), events(&body), "it can be read again");
    let ended = server.get(&shown).await.json().await;
    assert_eq!((&ended["status"], &ended["last_seq"], &ended["started_at"]), (&json!("interrupted"), &json!(2), &waiting["started_at"]));
    let id = format!("{}:2", second.run_id());
    let over = server.send("GET", &path.replace("/interrupt", "/events"), &[("Last-Event-ID", &id)], "").await;
    assert_eq!(over.status, 204, "an EventSource stops for good");
}

#[tokio::test]
async fn a_run_that_can_never_begin_ends_its_stream_regularly() {
    for extras in [Extras::Off, Extras::Fields] {
        let setup = busy(OnBusy::Queue);
        let server = Server::of(Setup { config: Config { extras, ..setup.config.clone() }, ..setup }).await;
        let mut first = start(&server, "turn\ngate\nturn_end\ndone").await;
        first.until("turn_start").await;
        let mut second = start(&server, "turn\nturn_end\ndone").await;
        let run = second.run_id();
        let mut body = second.until("data: ").await;
        server.hub.shutdown(Duration::from_millis(50)).await;
        body.push_str(&second.rest().await);
        assert_eq!(types(&body), ["run_start", "error"], "{body}");
        assert!(second.ended_cleanly, "{body}");
        interline_testkit::validate_sse(&body).unwrap();
        let told = events(&body);
        assert_eq!((&told[0]["run_id"], &told[0]["model"], &told[1]["kind"]), (&json!(run), &json!("gpt-4o"), &json!("engine_not_ready")));
        assert!(told[1]["error"].as_str().unwrap().contains("shutting down"), "{body}");
    }
}

#[tokio::test]
async fn the_same_key_attaches_to_a_run_that_waits() {
    let server = Server::of(busy(OnBusy::Queue)).await;
    let mut first = start(&server, "turn\ngate\nturn_end\ndone").await;
    first.until("turn_start").await;
    let keyed = async |key: &str| {
        server.send("POST", "/cells/my-cell/run", &[("Idempotency-Key", key)], &run_body("turn\nturn_end\ndone", S)).await
    };
    let (mut one, mut two, mut other) = (keyed("k").await, keyed("k").await, keyed("l").await);
    assert_eq!(one.run_id(), two.run_id());
    assert_ne!(one.run_id(), other.run_id());
    server.open_gate();
    let body = one.rest().await;
    assert_eq!(events(&body), events(&two.rest().await));
    other.rest().await;
    // While others wait, a key that has begun is found at once.
    let mut last = start(&server, "turn\ngate\nturn_end\ndone").await;
    last.until("turn_start").await;
    let _waiting = keyed("m").await;
    assert_eq!(events(&keyed("k").await.rest().await), events(&body));
    server.open_gate();
    assert_eq!(server.script.inputs.lock().unwrap().len(), 4);
}

const SSE: (&str, &str) = ("Accept", "text/event-stream");

async fn again(server: &Server, id: &str, body: &str) -> Answered {
    server.send("POST", "/cells/my-cell/run", &[SSE, ("Last-Event-ID", id)], body).await
}

#[tokio::test]
async fn with_ids_a_post_that_comes_again_goes_on_with_its_run() {
    let server = Server::open(Config { post_ids: true, ..Config::default() }).await;
    let body = run_body("turn\ntext one\ngate\ntext two\nturn_end\ndone", "");
    let mut plain = server.post("/cells/my-cell/run", &run_body("turn\nturn_end\ndone", "")).await;
    assert!(plain.rest().await.starts_with("data: {"), "who does not ask for a stream of events gets the documented wire");
    let mut stream = server.send("POST", "/cells/my-cell/run", &[SSE], &body).await;
    let run = stream.run_id();
    assert!(stream.until("one").await.contains(&format!("id: {run}:3\ndata: ")));
    drop(stream);
    let mut resumed = again(&server, &format!("{run}:3"), &body).await;
    assert_eq!((resumed.status, resumed.run_id()), (200, run.clone()));
    assert!(resumed.header("location").unwrap().contains(&run));
    server.open_gate();
    let rest = resumed.rest().await;
    assert_eq!(types(&rest), ["stream_delta", "turn_end", "done"]);
    assert!(rest.starts_with(&format!("id: {run}:4\n")));
    // Behind the end there is a body all the same, never a 204.
    let mut over = again(&server, &format!("{run}:6"), &body).await;
    assert_eq!((over.status, types(&over.rest().await)), (200, vec!["done".to_owned()]));
    let gone = again(&server, "run-00000000000000000000000000000001:2", &body).await;
    assert_eq!((gone.status, gone.json().await["kind"].as_str()), (404, Some("run_not_found")), "not run a second time");
    assert_eq!(server.script.inputs.lock().unwrap().len(), 2);

    let off = Server::open(Config::default()).await;
    let mut first = off.send("POST", "/cells/my-cell/run", &[SSE], &run_body("turn\nturn_end\ndone", "")).await;
    assert!(first.rest().await.starts_with("data: {"));
    let second = again(&off, &format!("{}:2", first.run_id()), &run_body("turn\nturn_end\ndone", "")).await;
    assert_ne!(second.run_id(), first.run_id(), "without the option an id means nothing, as documented");
}

#[tokio::test]
async fn where_it_is_on_the_same_request_attaches_to_the_run_whose_stream_broke() {
    let server = Server::open(Config { dedupe_posts_ms: 5_000, ..Config::default() }).await;
    let body = run_body("turn\ntext one\ngate\ntext two\nturn_end\ndone", "");
    let post = async |body: &str| server.post("/cells/my-cell/run", body).await;
    let mut stream = post(&body).await;
    let begun = stream.until("one").await;
    let run = stream.run_id();
    let mut beside = post(&body).await;
    assert_ne!(beside.run_id(), run, "two people with the same words are two runs");
    beside.until("one").await;
    let second = beside.run_id();
    drop(stream);
    drop(beside);
    let mut third = post(&body).await;
    assert_eq!(third.run_id(), second, "the latest run by these words");
    assert_eq!(types(&third.until("one").await), types(&begun), "from its beginning");
    assert_ne!(post(&run_body("turn\nturn_end\ndone", "")).await.run_id(), second, "other words");
    server.open_gate();
    server.open_gate();
    third.rest().await;
    let mut fourth = post(&body).await;
    assert_ne!(fourth.run_id(), second, "an answer that was read to its end is not given again");
    fourth.until("one").await;
    server.open_gate();
    let whole = fourth.rest().await;

    // It ended while nobody read it: nobody has had its end, so it is that run that is wanted.
    let quick = run_body("turn\ngate\nturn_end\ndone", "");
    let mut stream = post(&quick).await;
    stream.until("turn_start").await;
    let run = stream.run_id();
    drop(stream);
    // Time for the server to see it go: an end that was written before that counts as delivered.
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.open_gate();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut after = post(&quick).await;
    assert_eq!((after.run_id(), types(&after.rest().await).last().map(String::as_str)), (run, Some("done")));
    assert!(whole.contains("two"));
}

#[tokio::test]
async fn an_abandoned_request_is_attached_to_for_a_while_only_and_by_its_own_caller() {
    let setup = Setup { config: Config { dedupe_posts_ms: 50, ..Config::default() }, ..Setup::default() };
    let server = Server::of(setup).await;
    let body = run_body("turn\ngate\nturn_end\ndone", "");
    let mut stream = server.post("/cells/my-cell/run", &body).await;
    stream.until("turn_start").await;
    let run = stream.run_id();
    drop(stream);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_ne!(server.post("/cells/my-cell/run", &body).await.run_id(), run);

    let server = Server::guarded(Config { dedupe_posts_ms: 5_000, ..Config::default() }).await;
    let post = async |token: &str, cell: &str| {
        let bearer = format!("Bearer {token}");
        server.send("POST", &format!("/cells/{cell}/run"), &[("Authorization", &bearer)], &body).await
    };
    let mut stream = post("alpha", "my-cell").await;
    stream.until("turn_start").await;
    let run = stream.run_id();
    drop(stream);
    assert_ne!(post("gamma", "my-cell").await.run_id(), run);
    assert_ne!(post("alpha", "other").await.run_id(), run);
    assert_eq!(post("alpha", "my-cell").await.run_id(), run);
}
