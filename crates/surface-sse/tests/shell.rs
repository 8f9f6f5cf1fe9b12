//! The surface over real sockets, as its clients meet it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use interline_model::{Answer, Part};
use interline_surface_sse::{Config, Extras, Profile, QueryToken};
use support::{Server, events, run_body, text, types};
use tokio::time::Instant;

/// A run with something of everything.
const WHOLE: &str = "turn\ntext hello \ntool c\ntool_end c\ntext wörld\u{2028}\nturn_end\ndone";

#[tokio::test]
async fn the_first_event_comes_while_the_upstream_is_silent_and_the_body_ends_with_the_run() {
    let server = Server::open(Config::default()).await;
    let asked = Instant::now();
    let mut stream = server.run(&format!("gate\n{WHOLE}")).await;
    assert_eq!(stream.status, 200);
    for (name, value) in
        [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no")]
    {
        assert_eq!(stream.header(name), Some(value));
    }
    assert_eq!(stream.header("content-length"), None);
    let (run, session) = (stream.run_id(), stream.header("x-session-id").unwrap().to_owned());
    assert_eq!(stream.header("location").unwrap(), format!("/cells/my-cell/runs/{run}/events"));
    let first = stream.piece().await;
    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
    assert_eq!(
        first,
        format!("data: {{\"type\":\"run_start\",\"run_id\":\"{run}\",\"session_id\":\"{session}\",\"model\":\"gpt-4o\"}}\n\n")
    );
    server.open_gate();
    let rest = stream.rest().await;
    assert!(rest.ends_with(&format!("data: {{\"type\":\"done\",\"reason\":\"end_turn\",\"run_id\":\"{run}\"}}\n\n")));
    assert!(rest.contains("wörld\\u2028"));
    assert!(stream.ended_cleanly);
    assert_eq!(types(&rest), ["turn_start", "stream_delta", "tool_start", "tool_end", "stream_delta", "turn_end", "done"]);
    let input = server.script.inputs.lock().unwrap().remove(0);
    assert_eq!(input.model, Some(text("real")), "the route's name for the model");
}

#[tokio::test]
async fn every_from_seq_gives_the_tail_byte_for_byte() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run(WHOLE).await;
    let run = stream.run_id();
    let whole = stream.rest().await;
    let blocks: Vec<&str> = whole.split_inclusive("\n\n").collect();
    for k in 1..=blocks.len() {
        let mut replay = server.get(&format!("/cells/my-cell/runs/{run}/events?from_seq={k}")).await;
        assert_eq!(replay.status, 200);
        assert_eq!(replay.rest().await, blocks[k - 1..].concat(), "from_seq={k}");
        assert!(replay.ended_cleanly);
    }
    for path in ["", "?from_seq=", "?from_seq=0", "?from_seq=1"] {
        assert_eq!(server.get(&format!("/cells/my-cell/runs/{run}/events{path}")).await.rest().await, whole, "{path}");
    }
    for beyond in ["9", "1000000000", "18446744073709551616"] {
        let mut replay = server.get(&format!("/cells/my-cell/runs/{run}/events?from_seq={beyond}")).await;
        assert_eq!((replay.status, replay.rest().await), (200, (*blocks.last().unwrap()).to_owned()), "{beyond}");
    }
    for odd in ["-1", "abc"] {
        let refused = server.get(&format!("/cells/my-cell/runs/{run}/events?from_seq={odd}")).await;
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json().await["kind"], "invalid_from_seq");
    }
}

#[tokio::test]
async fn readers_at_once_see_the_same_and_leaving_stops_nothing() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run("turn\ntext one\ngate\ntext two\nturn_end\ndone").await;
    let run = stream.run_id();
    stream.until("one").await;
    drop(stream);
    let path = format!("/cells/my-cell/runs/{run}/events?from_seq=");
    let mut early = server.get(&format!("{path}1")).await;
    let mut ahead = server.get(&format!("{path}4")).await;
    let mut far = server.get(&format!("{path}100")).await;
    let mut body = early.until("one").await;
    server.open_gate();
    body.push_str(&early.rest().await);
    let blocks: Vec<&str> = body.split_inclusive("\n\n").collect();
    assert_eq!(types(&body), ["run_start", "turn_start", "stream_delta", "stream_delta", "turn_end", "done"]);
    assert_eq!(ahead.rest().await, blocks[3..].concat());
    assert_eq!(types(&far.rest().await), ["done"], "a stream ends with the terminal, however far ahead it began");
}

#[tokio::test]
async fn heartbeats_are_white_space_or_one_comment_line() {
    let server = Server::open(Config { heartbeat_ms: 20, retry_ms: 2000, ..Config::default() }).await;
    let mut plain = server.run("gate\nturn\ngate\nturn_end\ndone").await;
    let run = plain.run_id();
    let mut full = server.send("GET", &format!("/cells/my-cell/runs/{run}/events"), &[("Accept", "text/event-stream")], "").await;
    let mut beats = plain.until("data:     ").await;
    let mut comments = full.until(":hb\n:hb\n").await;
    server.open_gate();
    beats.push_str(&plain.until("turn_start").await);
    comments.push_str(&full.until("turn_start").await);
    server.open_gate();
    beats.push_str(&plain.rest().await);
    comments.push_str(&full.rest().await);
    assert_eq!(types(&beats), ["run_start", "turn_start", "turn_end", "done"]);
    assert!(beats.lines().all(|line| line.is_empty() || line.starts_with("data: ")), "{beats}");
    assert!(comments.starts_with(&format!("retry: 2000\nid: {run}:1\ndata: {{\"type\":\"run_start\"")), "{comments}");
    assert!(comments.contains(&format!("\n:hb\nid: {run}:2\ndata: {{\"type\":\"turn_start\"")), "{comments}");
    assert_eq!(comments.matches("retry:").count(), 1);
    assert!(!comments.contains("\n\n\n") && !comments.contains(":hb\n\n"), "a blank line by itself restarts some clients' runs");
}

#[tokio::test]
async fn an_event_source_resumes_by_id_and_is_stopped_behind_the_end() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run(WHOLE).await;
    let run = stream.run_id();
    stream.rest().await;
    let path = format!("/cells/my-cell/runs/{run}/events?from_seq=2&sse=full");
    let resumed = async |id: &str| {
        let mut answer = server.send("GET", &path, &[("Last-Event-ID", id), ("Accept", "text/event-stream")], "").await;
        (answer.status, answer.rest().await)
    };
    let (status, body) = resumed(&format!("{run}:6")).await;
    assert_eq!((status, types(&body)), (200, vec!["turn_end".to_owned(), "done".to_owned()]));
    assert!(body.starts_with(&format!("id: {run}:7\n")));
    assert_eq!(resumed("6").await.1, body);
    for done in [format!("{run}:8"), "8".to_owned(), "99".to_owned()] {
        assert_eq!(resumed(&done).await, (204, String::new()), "{done}");
    }
    for ignored in ["run-00000000000000000000000000000000:8", "nonsense", ""] {
        assert_eq!(types(&resumed(ignored).await.1).len(), 7, "{ignored}: from_seq counts");
    }
    let mut head = server.send("HEAD", &path, &[], "").await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    assert_eq!(head.rest().await, "");
}

#[tokio::test]
async fn a_run_is_stopped_by_its_own_or_its_sessions_path_and_only_once() {
    let server = Server::open(Config::default()).await;
    for (method, session, word) in [
        ("POST", false, "/interrupt"),
        ("POST", false, "/cancel"),
        ("DELETE", false, ""),
        ("POST", true, "/interrupt"),
        ("POST", false, "/interrupt/"),
    ] {
        let mut stream = server.run("turn\ntool c\ngate").await;
        let begun = stream.until("tool_start").await;
        let run = stream.run_id();
        let path = if session {
            format!("/cells/my-cell/sessions/{}{word}", stream.header("x-session-id").unwrap())
        } else {
            format!("/cells/my-cell/runs/{run}{word}")
        };
        let stopped = server.send(method, &path, &[], r#"{"reason":"user"}"#).await;
        assert_eq!(stopped.status, 202, "{method} {path}");
        assert_eq!(stopped.json().await, serde_json::json!({"ok": true, "run_id": run, "status": "interrupting"}));
        let body = begun + &stream.rest().await;
        assert_eq!(types(&body), ["run_start", "turn_start", "tool_start", "tool_end", "turn_end", "interrupted"]);
        assert_eq!(events(&body).last().unwrap()["reason"], "user_interrupt");
        let again = server.send(method, &path, &[], "").await;
        assert_eq!(again.status, 200);
        assert_eq!(again.json().await, serde_json::json!({"ok": true, "status": "interrupted"}));
    }
    assert_eq!(server.post("/cells/my-cell/runs/run-x/interrupt", "").await.status, 404);
    assert_eq!(server.post("/cells/my-cell/sessions/x/interrupt", "").await.json().await["kind"], "session_not_found");
}

#[tokio::test]
async fn an_ask_is_answered_once_whoever_comes_first() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run("turn\ntool c\nask permission p-1\nask question q-1\nask form f-1\ntool_end c\nturn_end\ndone").await;
    let run = stream.run_id();
    let begun = stream.until("p-1").await;
    assert_eq!(
        events(&begun).last().unwrap(),
        &serde_json::json!({"type": "approval_request", "request_id": "p-1", "tool_name": "exec", "arguments": {"command": "ls"}})
    );
    for (body, status, kind) in
        [("[]", 400, "invalid_request"), ("{", 400, "invalid_json"), (r#"{"grant":"purple"}"#, 422, "invalid_request")]
    {
        let refused = server.post("/cells/my-cell/hitl/p-1", body).await;
        assert_eq!(refused.status, status, "{body}");
        assert_eq!(refused.json().await["kind"], kind);
    }
    let taken = server.post("/cells/my-cell/hitl/p-1", r#"{"decision":"approve","scope":"always"}"#).await;
    assert_eq!((taken.status, taken.json().await), (200, serde_json::json!({"ok": true})));
    let late = server.post("/cells/my-cell/hitl/p-1", r#"{"grant":"deny"}"#).await;
    assert_eq!(late.status, 409);
    let late = late.json().await;
    assert_eq!(
        (&late["kind"], &late["winner"]),
        (&"already_resolved".into(), &serde_json::json!({"outcome": "allowed", "surface": "sse"}))
    );

    stream.until("q-1").await;
    assert_eq!(server.post(&format!("/cells/my-cell/runs/{run}/approvals/q-1"), r#"{"choice":"Blue"}"#).await.status, 200);
    stream.until("f-1").await;
    assert_eq!(server.post(&format!("/cells/my-cell/runs/{run}/approvals/f-1/approve"), "").await.status, 200);
    assert_eq!(server.post(&format!("/cells/my-cell/runs/{run}/approvals/f-1/deny"), "").await.status, 409);
    assert!(stream.rest().await.contains("\"done\""));
    assert_eq!(server.post("/cells/my-cell/hitl/nobody", "{}").await.json().await["kind"], "request_not_found");
    assert_eq!(server.post("/cells/other/hitl/p-1", "{}").await.json().await["kind"], "request_not_found", "another cell's");

    let answers: Vec<Answer> = server.script.answers.lock().unwrap().iter().map(|(_, answer)| answer.clone()).collect();
    assert_eq!(
        answers,
        [
            Answer::Allow { input: None, always: true },
            Answer::Choose(vec![(text("Which?"), text("Blue"))]),
            Answer::Form { action: interline_model::FormAction::Accept, content: None },
        ]
    );
}

#[tokio::test]
async fn an_ask_that_waits_when_its_run_ends_is_void() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run("turn\nask permission p-2\ndone").await;
    stream.until("p-2").await;
    let run = stream.run_id();
    server.post(&format!("/cells/my-cell/runs/{run}/interrupt"), "").await;
    stream.rest().await;
    let late = server.post("/cells/my-cell/hitl/p-2", r#"{"grant":"allow"}"#).await;
    assert_eq!(late.status, 409);
    assert_eq!(late.json().await["winner"]["outcome"], "void");
    assert!(server.script.answers.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_wrong_with_the_request_is_a_status_and_what_is_wrong_with_the_run_is_an_event() {
    let server = Server::open(Config { max_body_bytes: 2000, ..Config::default() }).await;
    let long = run_body(&"x".repeat(3000), "");
    let unknown = run_body("done", "");
    for (method, path, body, status, kind) in [
        ("POST", "/cells/none/run", &*unknown, 404, "cell_not_found"),
        ("POST", "/cells/my-cell/run", "{", 400, "invalid_json"),
        ("POST", "/cells/my-cell/run", "{}", 422, "invalid_request"),
        ("POST", "/cells/my-cell/run", &long, 413, "body_too_large"),
        ("GET", "/cells/my-cell/run", "", 405, "method_not_allowed"),
        ("PUT", "/cells/my-cell/runs", "", 405, "method_not_allowed"),
        ("GET", "/cells/my-cell/nothing/here", "", 404, "not_found"),
        ("GET", "/cells/my-cell/runs/run-abc123/events", "", 404, "run_not_found"),
        ("GET", "/cells/%ff/runs", "", 404, "not_found"),
        ("GET", "/cells/a%0d%0ab/runs", "", 404, "cell_not_found"),
    ] {
        let refused = server.send(method, path, &[], body).await;
        assert_eq!(refused.status, status, "{method} {path}");
        assert_eq!(refused.header("content-type"), Some("application/json; charset=utf-8"), "{method} {path}");
        let refused = refused.json().await;
        assert_eq!((&refused["type"], &refused["kind"], &refused["severity"]), (&"error".into(), &kind.into(), &"error".into()));
        assert!(refused["error"].is_string());
    }
    let mut stream = server.run("refuse").await;
    assert_eq!(stream.status, 200);
    let body = stream.rest().await;
    assert_eq!(
        events(&body)[1..],
        [serde_json::json!({"type": "error", "error": "nobody is there", "kind": "engine_not_ready", "severity": "error"})]
    );
    let mut stream = server.run("turn\ntext and then nothing").await;
    assert_eq!(events(&stream.rest().await).last().unwrap()["kind"], "missing_terminal_event");
}

#[tokio::test]
async fn a_session_has_one_run_at_a_time_and_remembers_the_last() {
    let server = Server::open(Config::default()).await;
    let mut first = server.post("/cells/my-cell/run", &run_body("turn\ngate\nturn_end\ndone", r#","session_id":"s 1""#)).await;
    assert_eq!(first.header("x-session-id"), Some("s 1"));
    first.until("turn_start").await;
    let busy = server.post("/cells/my-cell/run", &run_body("done", r#","sessionId":"s 1""#)).await;
    assert_eq!(busy.status, 409);
    let busy = busy.json().await;
    assert_eq!((&busy["kind"], &busy["run_id"]), (&"session_busy".into(), &first.run_id().into()));
    server.open_gate();
    first.rest().await;
    let history =
        r#"{"session_id":"s 1","messages":[{"role":"user","content":"before"},{"role":"user","content":"turn\nturn_end\ndone"}]}"#;
    server.post("/cells/my-cell/run", history).await.rest().await;
    server.post("/cells/my-cell/run", &history.replace("s 1", "s 2")).await.rest().await;
    let inputs = std::mem::take(&mut *server.script.inputs.lock().unwrap());
    assert_eq!(inputs[1].input, [Part::Text(text("turn\nturn_end\ndone"))], "known to the upstream, so not told again");
    assert!(inputs[2].text().contains("User: before"), "{}", inputs[2].text());
    assert_eq!(inputs[1].model, Some(text("house")), "the route's default");
    let elsewhere = server.post("/cells/other/run", &run_body("done", r#","session_id":"s 1""#)).await;
    assert_eq!((elsewhere.status, &elsewhere.json().await["kind"]), (404, &"session_not_found".into()));
}

#[tokio::test]
async fn the_same_key_attaches_to_the_same_run() {
    let server = Server::open(Config::default()).await;
    let start = async |key: &str| {
        server.send("POST", "/cells/my-cell/run", &[("Idempotency-Key", key)], &run_body("turn\nturn_end\ndone", "")).await
    };
    let mut one = start("k").await;
    let whole = one.rest().await;
    let mut two = start("k").await;
    assert_eq!((two.run_id(), two.rest().await), (one.run_id(), whole));
    assert_ne!(start("l").await.run_id(), one.run_id());
    assert_eq!(server.script.inputs.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn tokens_open_their_own_cells_and_runs_and_nothing_else() {
    let server = Server::guarded(Config { query_token: QueryToken::Always, token_cookie: "auth".into(), ..Config::default() }).await;
    let body = run_body("turn\nturn_end\ndone", "");
    let bearer = |token: &str| ("Authorization", format!("Bearer {token}"));
    let send = async |method: &str, path: &str, (name, value): (&str, String), body: &str| {
        server.send(method, path, &[(name, &value)], body).await
    };
    for (header, kind) in [(("X-None", String::new()), "auth_required"), (bearer("wrong"), "invalid_token"), (bearer(""), "auth_required")]
    {
        let refused = send("POST", "/cells/my-cell/run", header, &body).await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(refused.json().await["kind"], kind);
    }
    let mut stream = send("POST", "/cells/my-cell/run", bearer("alpha"), &body).await;
    let whole = stream.rest().await;
    let run = stream.run_id();
    let path = format!("/cells/my-cell/runs/{run}/events");
    assert_eq!(send("GET", &path, bearer("alpha"), "").await.rest().await, whole);
    assert_eq!(server.get(&format!("{path}?access_token=alpha")).await.rest().await, whole);
    assert_eq!(server.get(&format!("{path}?token=alpha")).await.rest().await, whole);
    assert_eq!(send("GET", &path, ("Cookie", "auth=alpha".into()), "").await.rest().await, whole);
    assert_eq!(server.post("/cells/my-cell/run?access_token=alpha", &body).await.status, 401, "no token in the URL of a POST");
    assert_eq!(send("GET", &path, bearer("beta"), "").await.json().await["kind"], "cell_not_found");
    assert_eq!(send("GET", &path, bearer("gamma"), "").await.json().await["kind"], "run_not_found");
    let elsewhere = path.replace("my-cell", "other");
    assert_eq!(send("GET", &elsewhere, bearer("alpha"), "").await.json().await["kind"], "run_not_found");
    assert_eq!(send("POST", &path.replace("/events", "/interrupt"), bearer("gamma"), "").await.status, 404);
}

#[tokio::test]
async fn browsers_hear_what_they_may_do_on_every_answer() {
    let server = Server::guarded(Config::default()).await;
    let page = ("Origin", "http://localhost:5173");
    let asked = [page, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization,content-type")];
    for path in ["/cells/my-cell/run", "/cells/none/run", "/cells/my-cell/no/such/path", "/cells"] {
        let preflight = server.send("OPTIONS", path, &asked, "").await;
        assert_eq!(preflight.status, 204, "{path}");
        for (name, value) in [
            ("access-control-allow-origin", "http://localhost:5173"),
            ("access-control-allow-headers", "authorization,content-type"),
            ("access-control-allow-methods", "GET, POST, DELETE, OPTIONS"),
            ("access-control-max-age", "7200"),
            ("vary", "Origin, Access-Control-Request-Headers"),
        ] {
            assert_eq!(preflight.header(name), Some(value), "{path}");
        }
        assert_eq!(preflight.header("access-control-allow-private-network"), None);
    }
    let private = server.send("OPTIONS", "/cells", &[page, ("Access-Control-Request-Private-Network", "true")], "").await;
    assert_eq!(private.header("access-control-allow-private-network"), Some("true"));

    let refused = server.send("POST", "/cells/my-cell/run", &[page], "{}").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some("http://localhost:5173")));
    let alpha = ("Authorization", "Bearer alpha");
    let missing = server.send("GET", "/cells/my-cell/runs/x/events", &[page, alpha], "").await;
    assert_eq!((missing.status, missing.header("access-control-allow-origin")), (404, Some("http://localhost:5173")));
    let wrong = server.send("PUT", "/cells/my-cell/run", &[page, alpha], "").await;
    assert_eq!((wrong.status, wrong.header("access-control-allow-origin")), (405, Some("http://localhost:5173")));
    let stream = server.send("POST", "/cells/my-cell/run", &[page, alpha, ("Accept-Encoding", "gzip, br")], &run_body("done", "")).await;
    assert_eq!(stream.header("access-control-expose-headers"), Some("X-Run-Id, X-Session-Id, Location"));
    assert_eq!(stream.header("access-control-allow-credentials"), Some("true"));
    assert_eq!((stream.header("vary"), stream.header("content-encoding")), (Some("Origin"), None));

    let foreign = server.send("POST", "/cells/my-cell/run", &[("Origin", "https://evil.example"), alpha], &run_body("done", "")).await;
    assert_eq!((foreign.status, foreign.header("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn a_foreign_page_starts_nothing_on_an_open_server() {
    let server = Server::open(Config::default()).await;
    let own = format!("http://{}", server.address);
    let body = run_body("done", "");
    for (origin, status) in [("https://evil.example", 403), ("null", 403), (&*own, 200)] {
        let answer = server.send("POST", "/cells/my-cell/run", &[("Origin", origin), ("Content-Type", "text/plain")], &body).await;
        assert_eq!(answer.status, status, "{origin}");
    }
    // A made-up token proves nothing where everybody is let in, and neither does a name that was made to lead here.
    let evil = ("Origin", "https://evil.example");
    let made_up = server.send("POST", "/cells/my-cell/run", &[evil, ("Authorization", "Bearer x")], &body).await;
    assert_eq!(made_up.status, 403);
    assert_eq!(server.send("GET", "/cells/my-cell/runs", &[evil], "").await.status, 403);
    assert_eq!(server.send("DELETE", "/cells/my-cell/sessions/s", &[evil], "").await.status, 403);
    let (rebound, page) = (("Host", "evil.example:80"), ("Origin", "http://evil.example:80"));
    assert_eq!(server.send("POST", "/cells/my-cell/run", &[rebound, page], &body).await.status, 403);
    assert_eq!(server.script.inputs.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn where_tokens_count_a_foreign_page_needs_one_of_its_own() {
    let server = Server::guarded(Config { token_cookie: "auth".into(), ..Config::default() }).await;
    let (evil, path) = (("Origin", "https://evil.example"), "/cells/my-cell/runs");
    assert_eq!(server.send("GET", path, &[evil], "").await.status, 403);
    assert_eq!(server.send("GET", path, &[evil, ("Cookie", "auth=alpha")], "").await.status, 403);
    assert_eq!(server.send("GET", path, &[("Cookie", "auth=alpha")], "").await.status, 200);
    assert_eq!(server.send("GET", path, &[evil, ("Authorization", "Bearer alpha")], "").await.status, 200);
    assert_eq!(server.send("GET", path, &[evil, ("Authorization", "Bearer x")], "").await.status, 401);
}

#[tokio::test]
async fn lists_show_what_there_is() {
    let server = Server::open(Config::default()).await;
    let mut stream = server
        .post("/cells/my-cell/run", &run_body("turn\nplan fix it\ntext hi\ntool c\ntool_end c\nturn_end\ndone", r#","session_id":"s""#))
        .await;
    stream.rest().await;
    let run = stream.run_id();
    server.post("/cells/my-cell/run", &run_body("turn\nturn_end\ndone", r#","session_id":"t""#)).await.rest().await;

    let page = server.get("/cells/my-cell/runs?limit=1&offset=0").await.json().await;
    assert_eq!((page["runs"].as_array().unwrap().len(), &page["limit"], &page["offset"]), (1, &1.into(), &0.into()));
    let page = server.get("/cells/my-cell/runs?session_id=s&status=completed&actor=user-001").await.json().await;
    assert_eq!((&page["runs"][0]["run_id"], page["runs"].as_array().unwrap().len()), (&(&*run).into(), 1));
    for none in ["?status=running", "?actor=x", "?session_id=x"] {
        assert_eq!(server.get(&format!("/cells/my-cell/runs{none}")).await.json().await["runs"], serde_json::json!([]), "{none}");
    }
    assert_eq!(server.get("/cells/my-cell/runs?limit=x").await.status, 400);
    let detail = server.get(&format!("/cells/my-cell/runs/{run}")).await.json().await;
    for (name, value) in [
        ("session_id", serde_json::json!("s")),
        ("model", "gpt-4o".into()),
        ("status", "completed".into()),
        ("total_turns", 1.into()),
        ("step_count", 1.into()),
        ("stop_reason", "end_turn".into()),
        ("last_seq", 9.into()),
    ] {
        assert_eq!(detail[name], value, "{name}");
    }
    assert!(detail["started_at"].as_str().unwrap().ends_with('Z') && detail["elapsed_ms"].is_u64());

    let sessions = server.get("/cells/my-cell/sessions").await.json().await;
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(sessions["sessions"][0]["running"], false);
    let messages = server.get("/cells/my-cell/sessions/s/messages").await.json().await;
    assert_eq!((&messages["messages"][0]["role"], &messages["messages"][1]["role"]), (&"user".into(), &"assistant".into()));
    assert_eq!(messages["messages"][1]["content"][0], serde_json::json!({"type": "text", "text": "hi"}));
    let plan = server.get("/cells/my-cell/sessions/s/plan").await.json().await;
    assert_eq!(plan["plan"]["steps"][0]["title"], "fix it");
    assert_eq!(server.get("/cells/my-cell/sessions/t/plan").await.json().await, serde_json::json!({"plan": null}));

    let cells = server.get("/cells").await.json().await;
    assert_eq!(cells["cells"][0], serde_json::json!({"cell": "my-cell", "state": "active", "models": ["gpt-4o", "house"]}));
    assert_eq!(server.get("/cells/other").await.json().await["cell"], "other");

    assert_eq!(server.send("DELETE", "/cells/my-cell/sessions/s", &[], "").await.json().await, serde_json::json!({"ok": true}));
    assert_eq!(server.get("/cells/my-cell/sessions/s/messages").await.status, 404);
    assert_eq!(server.get(&format!("/cells/my-cell/runs/{run}/events")).await.status, 404);
}

#[tokio::test]
async fn when_the_server_closes_every_stream_ends_with_a_terminal_or_is_cut() {
    let server = Server::open(Config { heartbeat_ms: 10, ..Config::default() }).await;
    let mut stream = server.run("turn\ngate\ndone").await;
    stream.until("data:   ").await;
    server.hub.shutdown(Duration::from_millis(50)).await;
    let body = stream.rest().await;
    assert!(body.contains("missing_terminal_event") && body.ends_with("\n\n"), "{body}");
    assert!(stream.ended_cleanly);
    let refused = server.run("done").await;
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
    assert_eq!(refused.json().await["kind"], "draining");

    let server = Server::open(Config { heartbeat_ms: 10, ..Config::default() }).await;
    let mut stream = server.run("turn\ngate\ndone").await;
    stream.until("data:   ").await;
    server.hub.closing().begin();
    let body = stream.rest().await;
    assert!(!stream.ended_cleanly && !body.contains("retry"), "a half-written event must not look like a whole body: {body}");
}

#[tokio::test]
async fn a_reader_with_ids_is_told_when_to_come_back_from_a_server_that_ends() {
    let told = |body: &str| body.lines().filter_map(|line| line.strip_prefix("retry: ")?.parse::<u64>().ok()).collect::<Vec<_>>();
    let farewell = interline_hub::Farewell { spread: Duration::ZERO, retry_ms: (3_000, 4_000) };
    let mut retries = Vec::new();
    for _ in 0..8 {
        let server = Server::open(Config { heartbeat_ms: 10, ..Config::default() }).await;
        server.hub.closing().arrange(farewell);
        let run = server.run("turn\ngate\ndone").await.run_id();
        let mut stream = server.send("GET", &format!("/cells/my-cell/runs/{run}/events"), &[("Accept", "text/event-stream")], "").await;
        stream.until(":hb").await;
        server.hub.closing().begin();
        let body = stream.rest().await;
        assert!(!stream.ended_cleanly && body.ends_with('\n') && !body.ends_with("\n\n"), "no client takes the line for an event: {body}");
        retries.extend(told(&body));
    }
    assert!(retries.len() == 8 && retries.iter().all(|retry| (3_000..=4_000).contains(retry)), "{retries:?}");
    retries.dedup();
    assert!(retries.len() > 1, "everybody is told the same: {retries:?}");

    let server = Server::open(Config { heartbeat_ms: 10, ..Config::default() }).await;
    server.hub.closing().arrange(farewell);
    let run = server.run("turn\ngate\ndone").await.run_id();
    let mut stream = server.send("GET", &format!("/cells/my-cell/runs/{run}/events"), &[("Accept", "text/event-stream")], "").await;
    stream.until(":hb").await;
    server.hub.shutdown(Duration::from_millis(50)).await;
    let body = stream.rest().await;
    assert!(stream.ended_cleanly && body.ends_with("\n\n"), "{body}");
    assert_eq!(told(&body).len(), 1, "an event that comes anyway carries it: {body}");
}

#[tokio::test]
async fn a_reader_that_pauses_misses_nothing_and_holds_up_nobody() {
    let server = Server::open(Config::default()).await;
    let script = format!("turn\n{}turn_end\ndone", "long 100000\n".repeat(100));
    let mut slow = server.run(&script).await;
    let run = slow.run_id();
    let quick = server.get(&format!("/cells/my-cell/runs/{run}/events")).await.rest().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(slow.rest().await, quick);
    assert_eq!(events(&quick).iter().filter_map(|event| event["content"].as_str()).map(str::len).sum::<usize>(), 10_000_000);
}

#[tokio::test]
async fn the_full_framing_of_a_post_is_there_for_who_asks() {
    let server = Server::open(Config { post_profile: Profile::Full, ..Config::default() }).await;
    let mut stream = server.run("turn\nturn_end\ndone").await;
    assert!(stream.rest().await.starts_with(&format!("id: {}:1\ndata: ", stream.run_id())));
    let mut plain = server.post("/cells/my-cell/run?sse=plain", &run_body("turn\nturn_end\ndone", "")).await;
    assert!(plain.rest().await.starts_with("data: {"));
}

/// A run with events that only `extras=events` tells, in between and beside each other.
const ASIDES: &str = "notice first\nturn\nnotice a\nnotice b\ntext one\ntool c\nask permission p\ntool_end c\nturn_end\nnotice c\ndone";

#[tokio::test]
async fn extras_are_asked_for_by_request_or_config_and_never_move_a_number() {
    for configured in [Extras::Off, Extras::Fields, Extras::Events] {
        let server = Server::open(Config { extras: configured, ..Config::default() }).await;
        let mut stream = server.post("/cells/my-cell/run?extras=events", &run_body(ASIDES, "")).await;
        let mut live = stream.until("approval_request").await;
        server.post("/cells/my-cell/hitl/p", r#"{"grant":"allow"}"#).await;
        live.push_str(&stream.rest().await);
        let path = format!("/cells/my-cell/runs/{}/events", stream.run_id());
        interline_testkit::validate_sse(&live).unwrap();
        assert_eq!(
            types(&live),
            [
                "run_start",
                "notice",
                "turn_start",
                "notice",
                "notice",
                "stream_delta",
                "tool_start",
                "approval_request",
                "hitl_resolved",
                "tool_end",
                "turn_end",
                "notice",
                "done"
            ]
        );
        assert_eq!(server.get(&format!("{path}?extras=events")).await.rest().await, live, "the same bytes again");

        let fields = server.get(&format!("{path}?extras=fields")).await.rest().await;
        let off = server.get(&format!("{path}?extras=off")).await.rest().await;
        for body in [&fields, &off] {
            interline_testkit::validate_sse(body).unwrap();
        }
        assert_eq!(types(&fields), types(&off));
        let asked = events(&fields).into_iter().find(|event| event["type"] == "approval_request").unwrap();
        assert_eq!(asked["expires_at"].as_str().map(str::len), Some("2026-01-01T00:00:00.000Z".len()), "the hub says until when");
        let numbered: String = live.split_inclusive("\n\n").filter(|block| block.contains("\"seq\":")).collect();
        assert_eq!(numbered, fields, "extra events come between the others and change none");

        let default = match configured {
            Extras::Off => &off,
            Extras::Fields => &fields,
            Extras::Events => &live,
        };
        assert_eq!(server.get(&path).await.rest().await, *default);
        assert_eq!(server.get(&format!("{path}?extras=odd")).await.rest().await, *default);
        let detail = server.get(path.strip_suffix("/events").unwrap()).await.json().await;
        assert_eq!((&detail["last_seq"], &detail["stop_reason"]), (&8.into(), &"end_turn".into()));

        // Every number means the same event, and no extra event that may have been missed is left out.
        for k in 1..=8 {
            let tail = server.get(&format!("{path}?extras=events&from_seq={k}")).await.rest().await;
            let first = events(&tail).iter().find_map(|event| event["seq"].as_u64());
            assert_eq!(first, Some(k), "{tail}");
            assert!(live.ends_with(&tail), "from_seq={k}: {tail}");
            let before = live.strip_suffix(&*tail).unwrap();
            assert!(before.is_empty() || before.rsplit("\n\n").nth(1).unwrap().contains(&format!("\"seq\":{},", k - 1)), "{before}");
        }
        let beyond = server.get(&format!("{path}?extras=events&from_seq=9")).await.rest().await;
        assert_eq!(types(&beyond), ["done"]);
        let id = format!("{}:8", stream.run_id());
        let over = server.send("GET", &format!("{path}?extras=events&sse=full"), &[("Last-Event-ID", &id)], "").await;
        assert_eq!(over.status, 204);
        let full = server.get(&format!("{path}?extras=events&sse=full")).await.rest().await;
        assert_eq!(full.matches("\nid: ").count() + 1, 8);
        assert!(full.contains("\n\ndata: {\"type\":\"notice\""));
    }
}

#[tokio::test]
async fn a_reader_ahead_of_a_run_with_extra_events_gets_its_number_when_it_comes() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run("turn\ngate\nnotice a\nnotice b\ntext one\nnotice c\ntext two\nturn_end\ndone").await;
    stream.until("turn_start").await;
    let path = format!("/cells/my-cell/runs/{}/events?extras=events&from_seq=4", stream.run_id());
    let mut ahead = server.get(&path).await;
    server.open_gate();
    let body = ahead.rest().await;
    assert_eq!(types(&body), ["notice", "stream_delta", "turn_end", "done"]);
    assert_eq!(server.get(&path).await.rest().await, body);
}

#[tokio::test]
async fn with_extra_events_a_heartbeat_is_one() {
    let server = Server::open(Config { heartbeat_ms: 20, ..Config::default() }).await;
    let mut stream = server.post("/cells/my-cell/run?extras=events", &run_body("turn\ngate\nturn_end\ndone", "")).await;
    let mut body = stream.until("ping").await;
    body.push_str(&stream.until("ping").await);
    server.open_gate();
    body.push_str(&stream.rest().await);
    interline_testkit::validate_sse(&body).unwrap();
    let replay = server.get(&format!("/cells/my-cell/runs/{}/events?extras=events", stream.run_id())).await.rest().await;
    assert_eq!(body.replace("data: {\"type\":\"ping\"}\n\n", ""), replay, "pings are the connection's, not the run's");
}

#[tokio::test]
async fn why_events_are_there_is_told_where_the_config_allows_it() {
    let server = Server::open(Config::default()).await;
    let mut stream = server.run(WHOLE).await;
    stream.rest().await;
    let path = format!("/cells/my-cell/runs/{}/events", stream.run_id());
    let refused = server.get(&format!("{path}?explain=1")).await;
    assert_eq!((refused.status, refused.json().await["kind"].as_str()), (403, Some("forbidden")));
    assert_eq!(server.get(&format!("{path}?explain=0")).await.header("content-type"), Some("text/event-stream; charset=utf-8"));

    let server = Server::guarded(Config { explain: true, ..Config::default() }).await;
    let alpha = [("Authorization", "Bearer alpha")];
    // An earlier run of the session, so that numbers and records must be the run's own.
    let body = |script: &str| run_body(script, r#","session_id":"s""#);
    server.send("POST", "/cells/my-cell/run", &alpha, &body("turn\ntext before\nturn_end\ndone")).await.rest().await;
    let mut stream = server.send("POST", "/cells/my-cell/run", &alpha, &body(&WHOLE.replace("turn_end", "notice x\ngate\nturn_end"))).await;
    let live = stream.until("wörld").await;
    let path = format!("/cells/my-cell/runs/{}/events", stream.run_id());
    for foreign in [&[("Authorization", "Bearer gamma")][..], &[]] {
        assert!(matches!(server.send("GET", &format!("{path}?explain=1"), foreign, "").await.status, 401 | 404));
    }
    let so_far = server.send("GET", &format!("{path}?explain=1"), &alpha, "").await;
    assert_eq!((so_far.status, so_far.header("content-type")), (200, Some("application/json; charset=utf-8")));
    let told = so_far.json().await;
    assert_eq!(told.as_array().unwrap().iter().map(|entry| entry["event"].clone()).collect::<Vec<_>>(), events(&live));
    server.open_gate();
    let whole = live + &stream.rest().await;
    let told = server.send("GET", &format!("{path}?explain=1&from_seq=2"), &alpha, "").await.json().await;
    for (entry, (n, event)) in told.as_array().unwrap().iter().zip(events(&whole).into_iter().enumerate().skip(1)) {
        assert_eq!((&entry["seq"], &entry["event"]), (&(n + 1).into(), &event));
        assert_eq!(entry["causes"][0]["name"], "frame");
        assert!(entry["rules"][0].is_string(), "{entry}");
    }
    assert_eq!(told.as_array().unwrap().len() + 1, events(&whole).len());
    assert_eq!(told[0]["causes"][0]["record"], 1, "records are counted in the run");
    let told = server.send("GET", &format!("{path}?explain=1&extras=events"), &alpha, "").await.json().await;
    let notice = told.as_array().unwrap().iter().find(|entry| entry["event"]["type"] == "notice").unwrap();
    assert_eq!(notice.get("seq"), None);
}

#[tokio::test]
async fn a_cell_without_a_name_is_no_cell() {
    let server = Server::guarded(Config::default()).await;
    let alpha = ("Authorization", "Bearer alpha");
    for (method, path) in
        [("POST", "/cells//run"), ("GET", "/cells//runs"), ("GET", "/cells//runs/x/events"), ("GET", "/cells//sessions/x/plan")]
    {
        assert_eq!(server.send(method, path, &[], "").await.status, 401, "{path}");
        let answer = server.send(method, path, &[alpha], "").await;
        assert_eq!((answer.status, answer.json().await["kind"].as_str()), (404, Some("cell_not_found")), "{path}");
    }
}
