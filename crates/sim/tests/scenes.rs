//! Asks of every kind, and what becomes of their answers, through real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use http::Method;
use interline_sim::{Options, Responses, Voice};
use serde_json::{Value, json};
use support::{Ending, Server, Socket, count, documented, fast, observed, start, text};

/// A run on the cloud or on the bridge.
async fn one(server: &Server, prompt: &str, bridge: bool) -> Socket {
    if !bridge {
        return server.stream(&server.agent(prompt).await, "").await;
    }
    let session = server.bridge_session().await;
    server.message(&session, prompt).await;
    server.bridge_socket(&session, "").await.unwrap()
}

/// A run on each server.
async fn both(server: &Server, prompt: &str) -> [Socket; 2] {
    [one(server, prompt, false).await, one(server, prompt, true).await]
}

async fn request(socket: &mut Socket) -> Value {
    socket.until_type("control_request").await.pop().unwrap()
}

fn id(request: &Value) -> &str {
    request["request_id"].as_str().unwrap()
}

#[tokio::test]
async fn a_permission_for_good_is_not_asked_again_and_its_input_can_be_changed() {
    let server = documented().await;
    for mut socket in both(&server, "scene permission").await {
        let asked = request(&mut socket).await;
        let inner = &asked["request"];
        assert_eq!((&inner["display_name"], &inner["permission_suggestions"][1]["type"]), (&json!("Shell"), &json!("setMode")));
        let answer = json!({ "behavior": "allow", "updatedInput": { "command": "true" },
                             "updatedPermissions": inner["permission_suggestions"] });
        socket.answer(&asked, answer).await;
        let frames = socket.until_result().await;
        assert_eq!(count(&frames, "control_request"), 0);
        assert!(frames.iter().any(|frame| frame["subtype"] == "status" && frame["permissionMode"] == "acceptEdits"));
        let summaries: Vec<_> = frames.iter().filter_map(|frame| frame["summary"].as_str()).collect();
        assert!(summaries[0].contains("ran: true\n") && summaries[1].contains("ran: cargo test --quiet\n"), "{summaries:?}");
        assert!(text(&frames).contains("Allowed. ") && text(&frames).contains("That needed no answer. "));
    }
}

#[tokio::test]
async fn a_denial_is_heard_and_todays_servers_look_at_nothing_else() {
    let server = documented().await;
    let mut socket = server.stream(&server.agent("scene permission").await, "").await;
    let asked = request(&mut socket).await;
    socket.answer(&asked, json!({ "behavior": "deny", "message": "Not on a Friday." })).await;
    let again = request(&mut socket).await;
    socket.answer(&again, json!({ "behavior": "deny", "message": "Enough.", "interrupt": true })).await;
    let frames = socket.until_result().await;
    assert_eq!(frames.last().unwrap()["stop_reason"], "interrupted");

    let server = observed().await;
    for mut socket in both(&server, "scene permission").await {
        for _ in 0..2 {
            let asked = request(&mut socket).await;
            assert!(asked["request"].get("permission_suggestions").is_none() && asked["request"].get("title").is_none());
            let rule = json!([{ "type": "addRules", "rules": [{ "toolName": "Bash" }], "behavior": "allow", "destination": "session" }]);
            let answer = json!({ "behavior": "allow", "updatedInput": { "command": "true" }, "updatedPermissions": rule });
            socket.answer(&asked, answer).await;
        }
        let frames = socket.until_result().await;
        assert!(frames.iter().any(|frame| frame["summary"].as_str().is_some_and(|summary| summary.contains("ran: cargo test"))));
    }
    let frames = server.stream(&server.chat("scene permission").await, "").await.until_result().await;
    assert_eq!(count(&frames, "control_request"), 0, "chat never asks");
}

#[tokio::test]
async fn questions_are_answered_with_one_and_with_several() {
    let server = documented().await;
    for mut socket in both(&server, "scene questions").await {
        let asked = request(&mut socket).await;
        let mut input = asked["request"]["input"].clone();
        input["answers"] = json!({ "Where should it go?": "my own place", "Which checks first?": ["lint", "tests"] });
        socket.answer(&asked, json!({ "behavior": "allow", "updatedInput": input })).await;
        let said = text(&socket.until_result().await);
        assert!(said.contains("Answers: Where should it go?=my own place; Which checks first?=lint, tests. "), "{said}");
    }
    let server = observed().await;
    for mut socket in both(&server, "scene questions").await {
        socket.until(|message| message.contains("tool_progress")).await;
        socket.next().await.unwrap();
        assert!(socket.is_silent().await);
    }
}

#[tokio::test]
async fn forms_and_links_are_settled_in_every_way() {
    let server = start(Options { form_timeout: Duration::from_millis(300), ..fast(Voice::Documented) }).await;
    for prompt in ["scene form", "scene link"] {
        for action in ["accept", "decline", "cancel", "timeout"] {
            for bridge in [false, true] {
                let mut socket = one(&server, prompt, bridge).await;
                let asked = request(&mut socket).await;
                assert_eq!(asked["request"].get("url").is_some(), prompt == "scene link");
                match action {
                    "timeout" => {}
                    "accept" => socket.answer(&asked, json!({ "action": "accept", "content": { "env": "staging" } })).await,
                    action => socket.answer(&asked, json!({ "action": action })).await,
                }
                let frames = socket.until_result().await;
                let subtypes: Vec<_> = frames.iter().filter_map(|frame| frame["subtype"].as_str()).collect();
                let expected: &[&str] =
                    if action == "accept" { &["elicitation_complete", "form_answer", "success"] } else { &["form_answer", "success"] };
                assert_eq!(subtypes, expected, "{prompt} {action}");
                let settled = frames.iter().find(|frame| frame["subtype"] == "form_answer").unwrap();
                assert_eq!((&settled["action"], &settled["request_id"]), (&json!(action), &asked["request_id"]));
                assert!(text(&frames).contains(&format!("Settled with {action}")));
            }
        }
    }
    let server = observed().await;
    for prompt in ["scene form", "scene link"] {
        let frames = server.stream(&server.agent(prompt).await, "").await.until_result().await;
        assert!(text(&frames).contains("There is no way"));
    }
}

#[tokio::test]
async fn several_asks_go_on_in_the_order_of_their_answers() {
    for server in [documented().await, observed().await] {
        for mut socket in both(&server, "scene asks 3").await {
            let mut asked = Vec::new();
            for _ in 0..3 {
                asked.push(request(&mut socket).await);
            }
            for (n, behavior) in [(2, "allow"), (0, "deny"), (1, "allow")] {
                socket.answer(&asked[n], json!({ "behavior": behavior })).await;
                let summary = socket.until_type("tool_use_summary").await.pop().unwrap();
                assert_eq!(summary["preceding_tool_use_ids"][0], asked[n]["request"]["tool_use_id"]);
            }
            assert!(text(&socket.until_result().await).contains("Allowed were 2 of 3. "));
        }
        assert_eq!(server.sim.stats().asks, 6);
    }
}

#[tokio::test]
async fn a_sub_agents_ask_names_it() {
    let server = documented().await;
    for mut socket in both(&server, "scene subagent").await {
        let before = socket.until_type("control_request").await;
        let asked = before.last().unwrap();
        assert!(asked["request"]["agent_id"].as_str().unwrap().starts_with("agent-"));
        let inner = before.iter().find(|frame| frame["parent_tool_use_id"].is_string()).unwrap();
        assert_eq!(inner["tool_use_id"], asked["request"]["tool_use_id"]);
        socket.answer(asked, json!({ "behavior": "allow" })).await;
        let frames = socket.until_result().await;
        let outer =
            frames.iter().find(|frame| frame["summary"] == "[general-purpose] The tests pass." && frame["type"] == "tool_use_summary");
        assert_eq!(outer.unwrap()["preceding_tool_use_ids"][0], inner["parent_tool_use_id"]);
    }
    let server = observed().await;
    let mut socket = server.stream(&server.agent("scene subagent").await, "").await;
    socket.until(|message| message.contains("tool_progress")).await;
    socket.next().await.unwrap();
    assert!(socket.is_silent().await, "the ask goes nowhere");
    socket.cancel().await;
    assert_eq!(socket.until_result().await.pop().unwrap()["stop_reason"], "interrupted");
}

#[tokio::test]
async fn a_permission_overtakes_what_it_refers_to() {
    for server in [documented().await, observed().await] {
        for mut socket in both(&server, "scene overtake").await {
            let first: Value = serde_json::from_str(&socket.next().await.unwrap()).unwrap();
            assert_eq!(first["request"]["subtype"], "can_use_tool");
            socket.answer(&first, json!({ "behavior": "allow" })).await;
            let frames = socket.until_result().await;
            let announced = frames.iter().filter(|frame| frame["tool_use_id"] == first["request"]["tool_use_id"]);
            assert_eq!(announced.count(), 2);
        }
    }
}

#[tokio::test]
async fn a_settled_ask_is_sent_again_and_a_second_answer_counts_for_nothing() {
    for server in [documented().await, observed().await] {
        let session = server.agent("scene replayed 200").await;
        let mut socket = server.stream(&session, "").await;
        let asked = request(&mut socket).await;
        socket.answer(&asked, json!({ "behavior": "allow" })).await;
        assert_eq!(socket.rest().await.1, Ending::Cut);
        let mut socket = server.stream(&session, "").await;
        let again = request(&mut socket).await;
        assert_eq!(again, asked);
        socket.answer(&again, json!({ "behavior": "deny" })).await;
        assert!(text(&socket.until_result().await).contains("It was answered already. "));
        assert_eq!(server.sim.responses_to(id(&asked)), Responses { received: 2, taken: 1 });
    }
}

#[tokio::test]
async fn answers_that_nobody_fetches_in_time_are_gone_and_a_second_one_counts() {
    let server = start(Options { control_retention: Duration::from_millis(100), ..fast(Voice::Documented) }).await;
    for bridge in [false, true] {
        let mut socket = one(&server, "fault deaf 400", bridge).await;
        let asked = request(&mut socket).await;
        socket.answer(&asked, json!({ "behavior": "allow" })).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert_eq!(server.sim.responses_to(id(&asked)), Responses { received: 1, taken: 0 });
        socket.answer(&asked, json!({ "behavior": "deny" })).await;
        assert!(text(&socket.until_result().await).contains("Not allowed. "));
        assert_eq!(server.sim.responses_to(id(&asked)), Responses { received: 2, taken: 1 });
    }
    assert_eq!(server.sim.stats().discarded, 2);

    // What is still fresh when the reader is back is fetched.
    let server = documented().await;
    for bridge in [false, true] {
        let mut socket = one(&server, "fault deaf 100 form", bridge).await;
        let asked = request(&mut socket).await;
        socket.answer(&asked, json!({ "action": "decline" })).await;
        assert!(text(&socket.until_result().await).contains("Settled with decline. "));
    }
    assert_eq!(server.sim.stats().discarded, 0);
}

#[tokio::test]
async fn a_cancel_is_not_heard_while_nobody_fetches() {
    let server = documented().await;
    let mut socket = server.stream(&server.agent("fault deaf 500").await, "").await;
    request(&mut socket).await;
    socket.cancel().await;
    assert!(socket.is_silent().await);
    assert_eq!(socket.until_result().await.pop().unwrap()["stop_reason"], "interrupted");
}

#[tokio::test]
async fn a_form_is_answered_after_its_time_while_the_session_is_paused() {
    let server = start(Options { form_timeout: Duration::from_millis(100), ..fast(Voice::Documented) }).await;
    let session = server.agent("fault pause").await;
    let mut socket = server.stream(&session, "").await;
    let asked = request(&mut socket).await;
    socket.until_type("biumind.session_paused").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let path = format!("/v1/agent/sessions/{}", session.id);
    let listed = server.http(Method::GET, &format!("{path}/elicitations"), Some("alice"), "").await.json();
    assert_eq!(listed["elicitations"][0]["request_id"], asked["request_id"]);
    socket.answer(&asked, json!({ "action": "accept", "content": { "env": "production" } })).await;
    assert!(socket.is_silent().await);
    server.http(Method::POST, &format!("{path}/resume"), Some("alice"), "").await;
    let frames = socket.until_result().await;
    assert_eq!(frames[0]["type"], "biumind.session_resumed");
    assert_eq!(frames[1]["action"], "accept");
    assert_eq!(server.sim.stats().resumes, 1);
}

#[tokio::test]
async fn a_late_answer_to_a_permission_counts_for_nothing() {
    let server = start(fast(Voice::Documented).with_limits(0.01)).await;
    let mut socket = server.stream(&server.agent("scene permission").await, "").await;
    let asked = request(&mut socket).await;
    let again = request(&mut socket).await;
    socket.answer(&asked, json!({ "behavior": "allow" })).await;
    socket.answer(&again, json!({ "behavior": "allow" })).await;
    socket.until_result().await;
    assert_eq!(server.sim.responses_to(id(&asked)), Responses { received: 1, taken: 0 });
    assert_eq!(server.sim.responses_to(id(&again)).taken, 1);
}
