//! Asks and actions over HTTP: what waits is a list, what was decided a record, and what cannot be done a sentence.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use interline_hub::AskConfig;
use interline_model::{Answer, FormAction};
use interline_surface_sse::Config;
use serde_json::{Value, json};
use support::{Server, Setup, events, run_body, types};

async fn pending(server: &Server, of: &str) -> Vec<Value> {
    server.get(&format!("/cells/my-cell{of}/asks")).await.json().await["asks"].as_array().unwrap().clone()
}

/// Waits until what is pending in a session is as wished.
async fn eventually(server: &Server, of: &str, wished: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    for _ in 0..200 {
        let now = pending(server, of).await;
        if wished(&now) {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {:?}", pending(server, of).await);
}

/// C1: whoever loads the page again, or comes from elsewhere, finds what waits until it is answered, and not after.
#[tokio::test]
async fn case_c1_what_is_asked_is_listed_until_it_is_answered() {
    let server = Server::open(Config::default()).await;
    let body = run_body("turn\nask permission p\nask question q\nask form f\nturn_end\ndone", r#","session_id":"s""#);
    let mut stream = server.post("/cells/my-cell/run", &body).await;
    stream.until("approval_request").await;
    let run = stream.run_id();
    drop(stream);
    let places = ["".to_owned(), "/sessions/s".to_owned(), format!("/runs/{run}")];
    for _ in 0..3 {
        for of in &places {
            let asks = pending(&server, of).await;
            assert_eq!(asks.len(), 1, "{of}");
            for (name, value) in [
                ("type", json!("approval_request")),
                ("request_id", json!("p")),
                ("tool_name", json!("exec")),
                ("arguments", json!({"command": "ls"})),
                ("kind", json!("approval")),
                ("asks", json!("permission")),
                ("always", json!(false)),
                ("command_text", json!("ls")),
                ("run_id", json!(run)),
                ("session_id", json!("s")),
                ("unconfirmed", json!(false)),
            ] {
                assert_eq!(asks[0][name], value, "{name}");
            }
            assert!(asks[0]["created_at"].as_str() < asks[0]["expires_at"].as_str(), "{asks:?}");
        }
    }
    let answered = server.post("/cells/my-cell/hitl/p", r#"{"grant":"allow"}"#).await;
    assert_eq!(answered.status, 200);
    let asks = eventually(&server, "/sessions/s", |asks| asks.iter().any(|ask| ask["request_id"] == "q")).await;
    assert_eq!((asks.len(), &asks[0]["asks"], &asks[0]["questions"][0]["question"]), (1, &json!("question"), &json!("Which?")));
    server.post("/cells/my-cell/hitl/q", r#"{"choice":"this"}"#).await;
    eventually(&server, "/sessions/s", |asks| asks.iter().any(|ask| ask["asks"] == "form")).await;
    server.post("/cells/my-cell/hitl/f", r#"{"grant":"deny"}"#).await;
    eventually(&server, "", <[Value]>::is_empty).await;

    let record = server.get("/cells/my-cell/sessions/s/decisions").await.json().await;
    let told: Vec<_> =
        record["decisions"].as_array().unwrap().iter().map(|one| (&one["request_id"], &one["outcome"], &one["asks"])).collect();
    assert_eq!(
        told,
        [
            (&json!("p"), &json!("allowed"), &json!("permission")),
            (&json!("q"), &json!("answered"), &json!("question")),
            (&json!("f"), &json!("denied"), &json!("form")),
        ]
    );
    let first = &record["decisions"][0];
    assert_eq!((&first["surface"], &first["principal"], &first["run_id"]), (&json!("sse"), &json!("anonymous"), &json!(run)));
    assert!(first["at"].as_str().unwrap().ends_with('Z') && first.get("rule").is_none());
}

#[tokio::test]
async fn what_others_are_asked_is_nobodys_business() {
    let server = Server::guarded(Config::default()).await;
    let (alpha, gamma) = ([("Authorization", "Bearer alpha")], [("Authorization", "Bearer gamma")]);
    let body = run_body("turn\nask permission p\nturn_end\ndone", r#","session_id":"s""#);
    let mut stream = server.send("POST", "/cells/my-cell/run", &alpha, &body).await;
    stream.until("approval_request").await;
    let run = stream.run_id();
    assert_eq!(server.send("GET", "/cells/my-cell/asks", &gamma, "").await.json().await, json!({"asks": []}));
    assert_eq!(server.send("GET", "/cells/other/asks", &alpha, "").await.json().await, json!({"asks": []}), "another cell's");
    for path in ["sessions/s/asks", "sessions/s/decisions", "sessions/s/cost", "sessions/s/context", &format!("runs/{run}/asks")] {
        assert_eq!(server.send("GET", &format!("/cells/my-cell/{path}"), &gamma, "").await.status, 404, "{path}");
        assert_eq!(server.get(&format!("/cells/my-cell/{path}")).await.status, 401, "{path}");
    }
    let answered = server.send("POST", "/cells/my-cell/hitl/p", &gamma, r#"{"grant":"allow"}"#).await;
    assert_eq!((answered.status, answered.json().await["kind"].as_str()), (404, Some("request_not_found")));
}

/// C2: nobody answers. That is a no, for good; a late yes is told so. Agents take late forms.
#[tokio::test]
async fn case_c2_silence_is_a_no_and_a_late_yes_is_refused() {
    let ask = AskConfig { permission_ms: 60, form_ms: 60, confirm_ms: 60_000 };
    let server = Server::of(Setup { ask, ..Setup::default() }).await;
    let mut stream = server.run("turn\nask permission p\nask form f\ngate\ngate\nturn_end\ndone").await;
    stream.until("p").await;
    eventually(&server, "", |asks| asks.is_empty() || asks[0]["request_id"] == "f").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    for path in ["hitl/p".to_owned(), format!("runs/{}/approvals/p/approve", stream.run_id())] {
        let late = server.post(&format!("/cells/my-cell/{path}"), r#"{"grant":"allow"}"#).await;
        assert_eq!(late.status, 409, "{path}");
        let late = late.json().await;
        assert_eq!((&late["kind"], &late["winner"]), (&json!("already_resolved"), &json!({"outcome": "expired"})), "{path}");
    }
    let late = server.post("/cells/my-cell/hitl/f", r#"{"content":{"a":1}}"#).await;
    assert_eq!((late.status, late.json().await), (200, json!({"ok": true})));
    server.open_gate();
    server.open_gate();
    assert!(stream.rest().await.contains("\"done\""));
    let answers = std::mem::take(&mut *server.script.answers.lock().unwrap());
    assert!(matches!(&answers[0].1, Answer::Deny { .. }) && matches!(&answers[1].1, Answer::Deny { .. }), "{answers:?}");
    assert!(!answers.iter().any(|(_, answer)| matches!(answer, Answer::Allow { .. })), "never allowed: {answers:?}");
    assert!(matches!(&answers[2].1, Answer::Form { action: FormAction::Accept, .. }), "{answers:?}");
    let record = server.get(&format!("/cells/my-cell/sessions/{}/decisions", stream.header("x-session-id").unwrap())).await.json().await;
    assert_eq!((&record["decisions"][0]["outcome"], record["decisions"][0].get("surface")), (&json!("expired"), None));
}

/// C6: nothing shows that the agent took the answer: it is pending again, says so, and takes another one.
#[tokio::test]
async fn case_c6_an_answer_that_nothing_follows_is_given_again() {
    let ask = AskConfig { confirm_ms: 60, ..AskConfig::default() };
    let server = Server::of(Setup { ask, ..Setup::default() }).await;
    let mut stream =
        server.post("/cells/my-cell/run?extras=events", &run_body("turn\nask permission p\ngate\ngate\nturn_end\ndone", "")).await;
    stream.until("approval_request").await;
    assert_eq!(server.post("/cells/my-cell/hitl/p", r#"{"grant":"allow"}"#).await.status, 200);
    let asks = eventually(&server, "", |asks| asks.iter().any(|ask| ask["unconfirmed"] == true)).await;
    assert_eq!(asks[0]["request_id"], "p");
    assert_eq!(server.post("/cells/my-cell/hitl/p", r#"{"grant":"deny"}"#).await.status, 200, "another answer is taken");
    server.open_gate();
    server.open_gate();
    let body = stream.rest().await;
    assert!(types(&body).contains(&"done".to_owned()), "{body}");
    assert_eq!(server.script.answers.lock().unwrap().len(), 2);
    assert_eq!(server.post("/cells/my-cell/hitl/p", r#"{"grant":"deny"}"#).await.status, 409);
}

#[tokio::test]
async fn a_run_answers_for_its_own_asks_only() {
    let server = Server::open(Config::default()).await;
    let run = |script: &str| run_body(script, r#","session_id":"s""#);
    let mut earlier = server.post("/cells/my-cell/run", &run("turn\nturn_end\ndone")).await;
    earlier.rest().await;
    let mut later = server.post("/cells/my-cell/run", &run("turn\nask permission p\nturn_end\ndone")).await;
    later.until("approval_request").await;
    for word in ["", "/approve", "/deny"] {
        let path = format!("/cells/my-cell/runs/{}/approvals/p{word}", earlier.run_id());
        let refused = server.post(&path, r#"{"grant":"allow"}"#).await;
        assert_eq!((refused.status, refused.json().await["kind"].as_str()), (404, Some("request_not_found")), "{path}");
    }
    assert!(pending(&server, &format!("/runs/{}", earlier.run_id())).await.is_empty());
    assert_eq!(pending(&server, &format!("/runs/{}", later.run_id())).await.len(), 1);
    let path = format!("/cells/my-cell/runs/{}/approvals/p/deny", later.run_id());
    assert_eq!(server.post(&path, "").await.status, 200);
    assert!(later.rest().await.contains("\"done\""));
}

/// A half of a surrogate pair is no text that could be handed on: refused by the same words in every body.
#[tokio::test]
async fn half_a_surrogate_pair_is_refused_in_every_body() {
    let server = Server::open(Config::default()).await;
    let half = r"half \ud83d";
    let mut stream = server.post("/cells/my-cell/run", &run_body("turn\nask permission p\nturn_end\ndone", r#","session_id":"s""#)).await;
    stream.until("approval_request").await;
    let run = stream.run_id();
    for (path, body, member) in [
        ("run".to_owned(), format!(r#"{{"messages":[{{"content":"{half}"}}]}}"#), "messages"),
        ("run".to_owned(), format!(r#"{{"system_prompt":"{half}","messages":[{{"content":"x"}}]}}"#), "system_prompt"),
        ("run".to_owned(), format!(r#"{{"actor":"{half}","messages":[{{"content":"x"}}]}}"#), "actor"),
        ("run".to_owned(), format!(r#"{{"env":{{"A":"{half}"}},"messages":[{{"content":"x"}}]}}"#), "env"),
        ("hitl/p".to_owned(), format!(r#"{{"grant":"deny","feedback":"{half}"}}"#), "feedback"),
        (format!("runs/{run}/approvals/p"), format!(r#"{{"grant":"allow","arguments":{{"a":["{half}"]}}}}"#), "arguments"),
        ("hitl/p".to_owned(), format!(r#"{{"answers":{{"{half}":"x"}}}}"#), "answers"),
        ("hitl/p".to_owned(), format!(r#"{{"content":{{"x":"{half}"}}}}"#), "content"),
        ("sessions/s/model".to_owned(), format!(r#"{{"model":"{half}"}}"#), "model"),
        ("sessions/s/mode".to_owned(), format!(r#"{{"mode":"{half}"}}"#), "mode"),
        ("sessions/s/rewind".to_owned(), format!(r#"{{"message_id":"{half}"}}"#), "message_id"),
    ] {
        let refused = server.post(&format!("/cells/my-cell/{path}"), &body).await;
        assert_eq!(refused.status, 400, "{path} {body}");
        let refused = refused.json().await;
        assert_eq!(refused["kind"], "invalid_json", "{body}");
        let column = body.find(r"\ud83d").unwrap() + 1;
        let expected = format!("`{member}` holds half of a surrogate pair, which is no character, at line 1 column {column}");
        assert!(refused["error"].as_str().unwrap().ends_with(&expected), "{refused}");
    }
    assert_eq!(server.script.inputs.lock().unwrap().len(), 1, "nothing was started");
    assert_eq!(pending(&server, "").await.len(), 1, "nothing was answered");
}

#[tokio::test]
async fn settings_reach_the_agent_and_what_it_cannot_make_is_a_notice() {
    let server = Server::open(Config::default()).await;
    let more = r#","mode":"planning","thinkingLevel":"high","runtime_env":{"RUST_LOG":"debug"},"systemPrompt":"brief","appendSystemPrompt":"kind""#;
    let mut stream = server.post("/cells/my-cell/run", &run_body("turn\ngate\nturn_end\ndone", more)).await;
    stream.until("turn_start").await;
    for _ in 0..200 {
        if server.script.asked.lock().unwrap().len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let asked = std::mem::take(&mut *server.script.asked.lock().unwrap());
    assert!(asked[0].contains("RUST_LOG") && !asked[0].contains("debug"), "{asked:?}");
    assert!(asked[1].contains("SetPermissionMode") && asked[1].contains("plan"), "{asked:?}");
    assert!(asked[2].contains("SetThinkingTokens(Some(31999))"), "{asked:?}");
    server.open_gate();
    stream.rest().await;
    assert_eq!(server.script.inputs.lock().unwrap()[0].system_prompt.as_deref(), Some("brief\n\nkind"));
}

#[tokio::test]
async fn actions_go_where_they_can_be_done_and_else_are_told_why_not() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.post("/cells/my-cell/run", &run_body("turn\ngate\nturn_end\ndone", r#","session_id":"s""#)).await;
    stream.until("turn_start").await;
    let post = async |path: &str, body: &str| {
        let answer = server.post(&format!("/cells/my-cell/sessions/s/{path}"), body).await;
        (answer.status, answer.json().await)
    };
    let ok = (200, json!({"ok": true}));
    assert_eq!(post("model", r#"{"model":"gpt-4o"}"#).await, ok);
    assert_eq!(post("mode", r#"{"mode":"executing"}"#).await, ok);
    let told = json!({"session_id": "s", "rewind": {"told": 1.0}});
    assert_eq!(post("rewind", r#"{"message_id":"m","dry_run":true}"#).await, (200, told));
    let context = server.get("/cells/my-cell/sessions/s/context").await;
    assert_eq!((context.status, context.json().await), (200, json!({"session_id": "s", "context": {"told": 1.0}})));
    let asked = std::mem::take(&mut *server.script.asked.lock().unwrap());
    for (n, words) in [r#"SetModel(\"real\")"#, r#"SetPermissionMode(\"default\")"#, "dry_run: true", "ContextUsage"].iter().enumerate() {
        assert!(asked[n].contains(words), "{words}: {asked:?}");
    }
    for (path, body, status, kind, words) in [
        ("tasks/t/stop", "", 501, "unsupported", "cannot stop a background task"),
        ("compact", "", 409, "session_busy", "once it has ended"),
        ("mode", r#"{"mode":"bypassPermissions"}"#, 403, "forbidden", "no client may"),
        ("mode", "{}", 422, "invalid_request", "`mode` is missing"),
        ("model", r#"{"model":1}"#, 422, "invalid_request", "`model` must be a string"),
        ("rewind", "", 400, "invalid_json", "not valid JSON"),
    ] {
        let (found, told) = post(path, body).await;
        assert_eq!((found, told["kind"].as_str(), told["severity"].as_str()), (status, Some(kind), Some("error")), "{path} {told}");
        assert!(told["error"].as_str().unwrap().contains(words), "{path} {told}");
    }
    server.open_gate();
    stream.rest().await;
    for (path, body, status, kind) in [
        ("compact", "", 501, "unsupported"),
        ("model", r#"{"model":"gpt-4o"}"#, 409, "no_active_run"),
        ("mode", r#"{"mode":"plan"}"#, 409, "no_active_run"),
        ("rewind", r#"{"message_id":"m"}"#, 409, "no_active_run"),
    ] {
        let (found, told) = post(path, body).await;
        assert_eq!((found, told["kind"].as_str()), (status, Some(kind)), "{path} {told}");
    }
    let context = server.get("/cells/my-cell/sessions/s/context").await;
    assert_eq!((context.status, context.json().await["kind"].as_str()), (409, Some("no_active_run")));
    let cost = server.get("/cells/my-cell/sessions/s/cost").await.json().await;
    assert_eq!((&cost["source"], &cost["runs"][0]["run_id"]), (&json!("runs"), &json!(stream.run_id())));
    assert_eq!(post("nothing", "").await.0, 404);
    assert_eq!(server.post("/cells/my-cell/sessions/x/compact", "").await.json().await["kind"], "session_not_found");
}

#[tokio::test]
async fn runs_that_said_what_they_cost_are_summed() {
    let server = Server::native(Config::default()).await;
    let end = |cost: &str| {
        format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"total_cost_usd":{cost},"usage":{{"input_tokens":3,"output_tokens":4}}}}"#
        )
    };
    for cost in ["0.1", "0.2"] {
        let body = server.post("/cells/my-cell/run", &run_body(&end(cost), r#","session_id":"s""#)).await.rest().await;
        assert_eq!(events(&body).last().unwrap()["type"], "done");
    }
    let cost = server.get("/cells/my-cell/sessions/s/cost").await.json().await;
    assert_eq!((cost["total_cost_usd"].to_string().as_str(), &cost["usage"]["output_tokens"]), ("0.3", &json!(8)));
}

#[tokio::test]
async fn what_no_client_can_say_is_refused_before_anything_starts() {
    let server = Server::open(Config::default()).await;
    for (more, status, kind) in [
        (r#","tool_deny":["Bash"]"#, 501, "unsupported"),
        (r#","primaryRoot":"/""#, 501, "unsupported"),
        (r#","env":{"LD_PRELOAD":"x"}"#, 403, "forbidden"),
        (r#","permission_mode":"bypassPermissions""#, 403, "forbidden"),
        (r#","thinking_level":"odd""#, 422, "invalid_request"),
    ] {
        let refused = server.post("/cells/my-cell/run", &run_body("done", more)).await;
        assert_eq!((refused.status, refused.json().await["kind"].as_str()), (status, Some(kind)), "{more}");
    }
    assert!(server.script.inputs.lock().unwrap().is_empty());
}
