//! Cases C and D of approvals and lifecycles on the SSE surface, with plain HTTP clients, against both upstreams: the whole program, a
//! simulated agent server, real sockets.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use futures_util::StreamExt;
use interline_sim::Options;
use interline_testkit::{Answer, delete, eventually, get, post, request};
use serde_json::Value;
use support::{Stand, UPSTREAMS, end, events, token};

const SOON: Duration = Duration::from_secs(10);

/// What waits in a session, as this surface lists it.
async fn asks(stand: &Stand, cell: &str, of: &str) -> Vec<Value> {
    let list = get(&format!("{}/cells/{cell}{of}/asks", stand.base()), &token(cell)).await.json();
    list["asks"].as_array().expect("a list").clone()
}

async fn first_ask(stand: &Stand, cell: &str) -> Value {
    eventually("something is asked", SOON, async || !asks(stand, cell, "").await.is_empty()).await;
    asks(stand, cell, "").await.swap_remove(0)
}

async fn answer(stand: &Stand, cell: &str, ask: &Value, body: &str) -> Answer {
    let id = ask["request_id"].as_str().expect("an id");
    post(&format!("{}/cells/{cell}/hitl/{id}", stand.base()), &token(cell), body).await
}

async fn status(stand: &Stand, cell: &str, run: &str) -> String {
    let run = get(&format!("{}/cells/{cell}/runs/{run}", stand.base()), &token(cell)).await.json();
    run["status"].as_str().unwrap_or_default().to_owned()
}

fn id_of(stream: &interline_testkit::Stream) -> String {
    stream.headers["x-run-id"].to_str().expect("an id").to_owned()
}

/// What the agent server was told about a request.
fn told(stand: &Stand, ask: &Value) -> Vec<String> {
    let id = ask["request_id"].as_str().expect("an id");
    let answers = stand.stats().control.into_iter().filter(|frame| frame.text.contains("control_response") && frame.text.contains(id));
    answers.map(|frame| frame.text).collect()
}

/// The page is loaded again three times, then the run is joined from a second surface, and from a third: what is asked is there each time, until it is answered.
#[tokio::test]
async fn case_c1_what_is_asked_survives_reloads_and_is_seen_from_everywhere() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let stream = stand.run(cell, "scene asks 1").await;
        let (run, session) = (id_of(&stream), stream.headers["x-session-id"].to_str().expect("an id").to_owned());
        let ask = first_ask(&stand, cell).await;
        drop(stream);
        let events_of = format!("{}/cells/{cell}/runs/{run}/events", stand.base());
        let bearer = format!("Bearer {}", token(cell));
        for _ in 0..3 {
            let mut again = request("GET", &events_of, &[("authorization", &bearer)], "").await;
            assert!(again.until("approval_request").await.contains(ask["request_id"].as_str().expect("an id")));
            for of in [format!("/sessions/{session}"), format!("/runs/{run}")] {
                assert_eq!(asks(&stand, cell, &of).await, std::slice::from_ref(&ask));
            }
        }
        let native = format!("{}/v1/agent/sessions/{run}/elicitations", stand.base());
        let chat = format!("{}/api/sessions/{session}", stand.base());
        assert_eq!(get(&native, &token(cell)).await.json()["elicitations"][0]["request_id"], ask["request_id"]);
        assert_eq!(get(&chat, &token(cell)).await.json()["status"], "waiting_for_input");
        assert_eq!(answer(&stand, cell, &ask, r#"{"grant":"allow"}"#).await.status, 200);
        assert_eq!(asks(&stand, cell, "").await, [] as [Value; 0]);
        assert_eq!(get(&native, &token(cell)).await.json()["elicitations"], Value::Array(Vec::new()));
        eventually("the run ends", SOON, async || status(&stand, cell, &run).await == "completed").await;
        assert_eq!(told(&stand, &ask).len(), 1);
    }
}

/// Nobody answers for ten times the limit: the agent server hears a no, once, and a yes that comes then is told that it is late.
#[tokio::test]
async fn case_c2_silence_denies_and_a_late_answer_is_told_so() {
    let stand = Stand::with(Options::default(), "[ask]\npermission_ms = 150").await;
    for cell in UPSTREAMS {
        let stream = stand.run(cell, "scene asks 1").await;
        let ask = first_ask(&stand, cell).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        for grant in ["allow", "deny"] {
            let late = answer(&stand, cell, &ask, &format!(r#"{{"grant":"{grant}"}}"#)).await;
            assert_eq!(late.status, 409, "{late:?}");
            assert_eq!((&late.json()["kind"], &late.json()["winner"]["outcome"]), (&"already_resolved".into(), &"expired".into()));
        }
        let answers = told(&stand, &ask);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert!(answers[0].contains("deny") && !answers[0].contains("\"allow\""), "{answers:?}");
        let body = stream.rest().await;
        let denied = events(&body).into_iter().any(|event| event["type"] == "tool_end" && event["is_error"] == true);
        assert!(denied && end(&events(&body)) == "done", "{body}");
    }
}

/// The agent server sends a settled permission again after a break: it is never shown as pending, and never told twice.
#[tokio::test]
async fn case_c5_what_was_answered_does_not_come_back_with_a_replay() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let stream = stand.run(cell, "scene replayed 600").await;
        let ask = first_ask(&stand, cell).await;
        assert_eq!(answer(&stand, cell, &ask, r#"{"grant":"allow"}"#).await.status, 200);
        for _ in 0..20 {
            assert_eq!(asks(&stand, cell, "").await, [] as [Value; 0]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let events = events(&stream.rest().await);
        assert_eq!(events.iter().filter(|event| event["type"] == "approval_request").count(), 1);
        assert_eq!(end(&events), "done");
        assert_eq!(answer(&stand, cell, &ask, r#"{"grant":"deny"}"#).await.status, 409);
        // Sent again on the next connection (link.resend_ms), since nobody can know what the broken one carried: the same answer.
        let answers = told(&stand, &ask);
        assert!(answers.iter().all(|answer| answer.contains("\"allow\"")), "{answers:?}");
        assert_eq!(stand.stats().responses_to(ask["request_id"].as_str().expect("an id")).taken, 1);
    }
}

/// The agent server fetches nothing for a while and loses the answer: that is said, the request is pending again, and another answer counts.
#[tokio::test]
async fn case_c6_a_lost_answer_is_said_and_given_again() {
    // A tenth of the real times: the agent server keeps what nobody fetches for 30 s.
    let options = Options { control_retention: Duration::from_secs(3), ..Options::default() };
    let stand = Stand::with(options, "[ask]\nconfirm_ms = 3_500").await;
    let stream = stand.run("cloud", "fault deaf 3100").await;
    let ask = first_ask(&stand, "cloud").await;
    assert_eq!(answer(&stand, "cloud", &ask, r#"{"grant":"deny"}"#).await.status, 200);
    assert_eq!(asks(&stand, "cloud", "").await, [] as [Value; 0]);
    eventually("it is pending again", SOON, async || {
        asks(&stand, "cloud", "")
            .await
            .first()
            .is_some_and(|again| again["unconfirmed"] == true && again["request_id"] == ask["request_id"])
    })
    .await;
    assert_eq!(stand.stats().discarded, 1, "the first answer was lost");
    assert_eq!(answer(&stand, "cloud", &ask, r#"{"grant":"allow"}"#).await.status, 200);
    let body = stream.rest().await;
    assert_eq!(end(&events(&body)), "done", "{body}");
    assert!(events(&body).iter().any(|event| event["type"] == "tool_end" && event["is_error"] == false), "it was allowed: {body}");
    assert_eq!(asks(&stand, "cloud", "").await, [] as [Value; 0]);
}

/// Closing a stream is no stop, and a stop is one whoever reads.
#[tokio::test]
async fn case_d2_leaving_stops_nothing_and_a_stop_stops() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let mut stream = stand.run(cell, "scene settings 1500").await;
        stream.until("listening").await;
        let left = id_of(&stream);
        drop(stream);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(status(&stand, cell, &left).await, "running");
        eventually("it ends by itself", SOON, async || status(&stand, cell, &left).await == "completed").await;

        let mut stream = stand.run(cell, "scene settings 30000").await;
        stream.until("listening").await;
        let path = format!("{}/cells/{cell}/runs/{}/interrupt", stand.base(), id_of(&stream));
        assert_eq!(post(&path, &token(cell), "").await.status, 202);
        assert_eq!(end(&events(&stream.rest().await)), "interrupted");
        assert_eq!(post(&path, &token(cell), "").await.json()["status"], "interrupted");
    }
}

/// Two readers, one leaves: the other reads on. Both leave: the run goes on, and can be read again.
#[tokio::test]
async fn case_d3_one_reader_takes_nothing_from_another() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let mut first = stand.run(cell, "scene settings 1000").await;
        first.until("listening").await;
        let run = id_of(&first);
        let url = format!("{}/cells/{cell}/runs/{run}/events", stand.base());
        let bearer = format!("Bearer {}", token(cell));
        let read = async || request("GET", &url, &[("authorization", bearer.as_str())], "").await;
        let mut second = read().await;
        second.until("listening").await;
        drop(first);
        let whole = second.rest().await;
        assert_eq!(end(&events(&whole)), "done");
        assert_eq!(read().await.rest().await, whole);

        let mut both = (stand.run(cell, "scene settings 600").await, stand.run(cell, "scene settings 600").await);
        both.0.until("listening").await;
        both.1.until("listening").await;
        let runs = [id_of(&both.0), id_of(&both.1)];
        drop(both);
        for run in runs {
            eventually("it ends by itself", SOON, async || status(&stand, cell, &run).await == "completed").await;
            let url = format!("{}/cells/{cell}/runs/{run}/events", stand.base());
            assert_eq!(end(&events(&request("GET", &url, &[("authorization", &bearer)], "").await.rest().await)), "done");
        }
    }
}

/// Cells whose abandoned runs are stopped after a while, and nothing of them is left upstream.
const SHORT: &str = r#"
[[token]]
name = "short"
secret = { value = "short-cloud-secret" }
cells = ["short-cloud"]

[[token]]
name = "short-too"
secret = { value = "short-bridge-secret" }
cells = ["short-bridge"]

[[route]]
cell = "short-cloud"
upstream = "plane"
stop_unwatched_ms = 400

[[route]]
cell = "short-bridge"
upstream = "daemon"
stop_unwatched_ms = 400
"#;

/// Runs that everybody has left: where the cell says so they are stopped, else they go on to their end. No socket is left of either.
#[tokio::test]
async fn case_d4_abandoned_runs_are_stopped_where_the_cell_says_so() {
    const RUNS: usize = 100;
    let stand = Stand::with(Options::default(), SHORT).await;
    for cell in ["short-cloud", "short-bridge"] {
        for _ in 0..RUNS {
            drop(stand.run(cell, "scene settings 60000").await);
        }
        let mut watched = stand.run(cell, "scene settings 3000").await;
        // By the list: whoever asks for one run looks at its events, and so watches it.
        let list = format!("{}/cells/{cell}/runs?status=interrupted&limit=500", stand.base());
        eventually("they are stopped", SOON, async || get(&list, &token(cell)).await.json()["runs"].as_array().map_or(0, Vec::len) == RUNS)
            .await;
        watched.until("listening").await;
        assert_eq!(end(&events(&watched.rest().await)), "done", "somebody watched");
    }
    for cell in UPSTREAMS {
        let run = id_of(&stand.run(cell, "scene settings 900").await);
        eventually("it ends by itself", SOON, async || status(&stand, cell, &run).await == "completed").await;
        let listed = get(&format!("{}/cells/{cell}/sessions", stand.base()), &token(cell)).await.json();
        let session = listed["sessions"][0]["session_id"].as_str().expect("an id").to_owned();
        assert_eq!(delete(&format!("{}/cells/{cell}/sessions/{session}", stand.base()), &token(cell)).await.status, 200);
    }
    eventually("no socket is left", SOON, async || stand.stats().open_sockets == 0).await;
}

/// Ten thousand clients start a run and leave at once: every run ends, and no socket and no run is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn case_d4_nothing_is_left_of_abandoned_runs() {
    const RUNS: usize = 5_000;
    const AT_A_TIME: usize = 24;
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let started = futures_util::stream::iter(0..RUNS).map(|_| async {
            // Those before may not all have ended yet: then there is a moment to wait.
            while stand.run(cell, "play chat-text-only").await.status == 429 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        started.buffer_unordered(AT_A_TIME).for_each(async |()| ()).await;
    }
    eventually("every run has ended", Duration::from_secs(60), async || {
        let metrics = get(&format!("{}/metrics", stand.base()), "").await.body;
        let ended: usize = metrics
            .lines()
            .filter(|line| line.starts_with("interline_runs_ended_total"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok())
            .sum();
        ended == UPSTREAMS.len() * RUNS
    })
    .await;
    eventually("no socket is left", Duration::from_secs(60), async || stand.stats().open_sockets == 0).await;
}

/// Everything that can be done to a session besides: done where the agent server can, else refused in a sentence, as the contracts say.
#[tokio::test]
async fn actions_are_done_or_refused_in_a_sentence() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let mut stream = stand.run(cell, "scene settings 3000").await;
        stream.until("listening").await;
        let session = stream.headers["x-session-id"].to_str().expect("an id").to_owned();
        let at = |path: &str| format!("{}/cells/{cell}/sessions/{session}/{path}", stand.base());
        let mut seen = Vec::new();
        for (path, body) in [
            ("model", r#"{"model":"other-model"}"#),
            ("mode", r#"{"mode":"planning"}"#),
            ("rewind", r#"{"message_id":"m-1","dry_run":true}"#),
            ("tasks/bg-1/stop", "{}"),
            ("compact", "{}"),
        ] {
            seen.push((path, post(&at(path), &token(cell), body).await));
        }
        seen.push(("context", get(&at("context"), &token(cell)).await));
        let told = stream.rest().await;
        for path in ["cost", "context"] {
            seen.push((path, get(&at(path), &token(cell)).await));
        }
        seen.push(("compact", post(&at("compact"), &token(cell), "").await));
        for (path, answer) in &seen {
            let schema = match answer.status {
                200 if matches!(*path, "cost" | "context" | "rewind") => "Told",
                200 => "Done",
                _ => "SseError",
            };
            assert_eq!(
                interline_testkit::validate_http(&format!("/components/schemas/{schema}"), &answer.json()),
                Ok(()),
                "{cell} {path} {answer:?}"
            );
        }
        let told_of: Vec<(&str, u16, String)> = seen
            .iter()
            .map(|(path, answer)| (*path, answer.status, answer.json()["kind"].as_str().unwrap_or_default().to_owned()))
            .collect();
        println!("{cell}: {told_of:?}");
        let status = |n: usize| told_of[n].1;
        assert_eq!((status(0), status(1), status(2), status(4), status(5)), (200, 200, 200, 409, 200), "{cell}: {told_of:?}");
        assert!(told.contains("other-model"), "the agent heard of it: {told}");
        assert_eq!((status(6), status(7)), (200, 409), "{cell}: {told_of:?}");
        let compacts = if cell == "bridge" { 200 } else { 501 };
        assert_eq!(status(8), compacts, "{cell}: {told_of:?}");
    }
}

/// A request with all that it may wish.
fn wishes(image: bool) -> String {
    let image = if image { serde_json::json!({"type": "image", "source": "data:image/png;base64,iVBORw0KGgo="}) } else { "".into() };
    serde_json::json!({
        "actor": "a", "model": "wished-model", "systemPrompt": "Be brief.", "appendSystemPrompt": "Be kind.",
        "thinkingLevel": "medium", "mode": "planning", "runtimeEnv": {"RUST_LOG": "debug"}, "tags": ["x"], "metadata": {"n": 1},
        "messages": [
            {"role": "user", "content": "What was it?"},
            {"role": "assistant", "content": [{"type": "text", "text": "A blue one."}]},
            {"role": "user", "content": [image, {"type": "text", "text": "\nscene settings 900"}]},
        ],
    })
    .to_string()
}

/// It reaches the agent: the prompt with an image, the earlier messages, the system prompt, the settings. What an upstream cannot do is said.
#[tokio::test]
async fn what_a_request_wishes_reaches_the_agent_or_is_refused_in_a_sentence() {
    let stand = Stand::new().await;
    for cell in UPSTREAMS {
        let start = async |image: bool| {
            let bearer = format!("Bearer {}", token(cell));
            let url = format!("{}/cells/{cell}/run?extras=events", stand.base());
            request("POST", &url, &[("authorization", bearer.as_str())], wishes(image)).await.rest().await
        };
        // Neither of these two upstreams takes one: a cloud upstream in `chat` mode does.
        let refused = events(&start(true).await);
        let why = refused.last().filter(|event| event["kind"] == "invalid_request").and_then(|event| event["error"].as_str());
        assert!(why.is_some_and(|why| why.contains("images")), "{refused:?}");
        let told = start(false).await;
        let prompt = stand.stats().prompts.pop().unwrap_or_else(|| panic!("no prompt: {told}"));
        // A bridge has its model and system prompt from its own config.
        let (model, system) = if cell == "cloud" { (Some("wished-model"), Some("Be brief.\n\nBe kind.")) } else { (None, None) };
        assert_eq!((prompt.model.as_deref(), prompt.system_prompt.as_deref()), (model, system), "{prompt:?}");
        assert!(prompt.prompt.contains("A blue one."), "what the agent does not remember is told: {prompt:?}");
        let said = support::text(&events(&told));
        for wish in ["mode plan", "thinking 10000", "RUST_LOG=debug"] {
            assert!(said.contains(wish) || told.contains("setting_not_made"), "{cell}: {wish} is neither made nor missed: {told}");
        }
    }
}
