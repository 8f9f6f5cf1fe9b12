//! The surface over real sockets, and the traps of socketio.md §8.3 and dependencies.md §1.4, each with a test.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

mod fold;
mod server;

use std::time::Duration;

use fold::{Fold, Format};
use interline_model::{Actor, Answer, AskId, Part, Principal, Text};
use interline_surface_socketio::Config;
use serde_json::{Value, json};
use server::{Client, Incoming, PATIENCE, Server};

fn folded(seen: &[(String, Value)]) -> Fold {
    let mut fold = Fold::new(Format::Hybrid);
    for (name, data) in seen {
        fold.see(name, data);
    }
    fold
}

/// What the events told of each turn is what REST shows.
async fn same_as_rest(server: &Server, session: &str, fold: &Fold) {
    for turn in server.messages(session).await.as_array().unwrap() {
        assert_eq!(fold.snapshots[turn["turn_id"].as_str().unwrap()], *turn);
    }
}

fn answer_text(fold: &Fold) -> String {
    let turns = fold.order.iter().map(|id| &fold.deltas[id]).filter(|turn| turn["role"] == "assistant");
    let blocks = turns.flat_map(|turn| turn["blocks"].as_array().unwrap()).filter(|block| block["type"] == "text");
    blocks.map(|block| block["content"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_whole_run_over_a_websocket() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    // Back to back, as clients do that buffer until they are connected (socketio.md §1.5).
    client.emit("session:subscribe", json!({"session_id": session})).await;
    let sent = client
        .ask("chat:send", json!({"session_id": session, "message": "turn\ntext Hello, \ntext world.\ndone", "mode": "executing"}))
        .await;
    assert!(client.seen.is_empty(), "the acknowledgement comes before the run's first event (cases.md E6)");
    assert_eq!((&sent["status"], &sent["ok"], &sent["session_id"]), (&json!("ok"), &json!(true), &json!(session)));
    let end = client.until("chat:end").await;
    assert_eq!((&end["status"], &end["chat_run_id"]), (&json!("completed"), &sent["chat_run_id"]));
    let fold = folded(&client.seen);
    assert_eq!(answer_text(&fold), "Hello, world.");
    same_as_rest(&server, &session, &fold).await;
    assert_eq!(server.script.inputs.lock().unwrap()[0].model, Some(Text::from_static("house")));
}

#[tokio::test]
async fn a_whole_run_by_polling() {
    let server = Server::open().await;
    let session = server.session().await;
    let polling = server.polling().await;
    assert_eq!(polling.handshake["maxPayload"], 64 << 20);
    assert!(polling.poll().await.iter().any(|packet| packet.starts_with("40{\"sid\"")));
    let subscribe = json!(["session:subscribe", {"session_id": session}]);
    let send = json!(["chat:send", {"session_id": session, "message": "turn\nmany 500\ndone"}]);
    polling.post(&format!("42{subscribe}\u{1e}427{send}")).await;
    let seen = polling.until("chat:end").await;
    let acked = seen.iter().position(|incoming| matches!(incoming, Incoming::Ack(7, _))).unwrap();
    let events: Vec<(String, Value)> = seen
        .into_iter()
        .filter_map(|incoming| match incoming {
            Incoming::Event(name, data) => Some((name, data)),
            Incoming::Ack(..) => None,
        })
        .collect();
    assert_eq!(acked, 0);
    let fold = folded(&events);
    assert_eq!(answer_text(&fold), (0..500).map(|number| format!("{number} ")).collect::<String>());
    same_as_rest(&server, &session, &fold).await;
}

#[tokio::test]
async fn the_path_is_served_without_its_slash_too() {
    let server = Server::open().await;
    let opened = server.get("/socket.io?EIO=4&transport=polling").await;
    assert!(opened.body.starts_with("0{"), "{}", opened.body);
    let old = server.get("/socket.io/?EIO=3&transport=polling").await;
    assert_eq!((old.status, &old.json()["code"]), (400, &json!("5")));
}

#[tokio::test]
async fn who_may_not_come_in_is_told() {
    let server = Server::guarded().await;
    for auth in ["", "{}", r#"{"token":"wrong"}"#, r#"{"token":""}"#, r#"{"token":5}"#, "[1]"] {
        let mut client = server.transport().await;
        client.say(&format!("40{auth}")).await;
        assert_eq!(client.packet().await, r#"44{"message":"Unauthorized"}"#, "{auth}");
    }
    let mut client = server.transport().await;
    client.say("40/other,{}").await;
    assert_eq!(client.packet().await, r#"44/other,{"message":"Invalid namespace"}"#);

    let denied = server.get("/api/sessions").await;
    assert_eq!((denied.status, denied.json()), (401, json!({"detail": "Unauthorized"})));
    assert_eq!(server.get("/api/health").await.json(), json!({"status": "ok"}));
    assert_eq!(server.get("/api/version").await.status, 200);
}

#[tokio::test]
async fn sessions_of_others_do_not_exist() {
    let server = Server::guarded().await;
    let bearer = [("Authorization", "Bearer alpha")];
    let session = server.send("POST", "/api/sessions", &bearer, "").await.json()["id"].as_str().unwrap().to_owned();
    let mut client = server.socket_with(r#"{"token":"beta","sdk":"blade-agent-python"}"#).await;
    for event in ["session:subscribe", "session:unsubscribe", "chat:send", "chat:stop", "chat:compact"] {
        let answer = client.ask(event, json!({"session_id": session, "message": "x"})).await;
        if event == "session:unsubscribe" {
            assert_eq!(answer["ok"], true, "leaving what one is not in is harmless");
            continue;
        }
        assert_eq!((&answer["ok"], &answer["message"], &answer["code"]), (&json!(false), &json!("Access denied"), &json!("access_denied")));
        assert_eq!(client.until("system:error").await["session_id"], session);
    }
    let other = [("Authorization", "Bearer beta")];
    for path in ["", "/messages", "/turns", "/tasks"] {
        let answer = server.send("GET", &format!("/api/sessions/{session}{path}"), &other, "").await;
        assert_eq!((answer.status, answer.json()), (404, json!({"detail": "Session not found"})), "{path}");
    }
    assert_eq!(server.send("GET", "/api/sessions", &other, "").await.json()["total"], 0);
    assert_eq!(server.send("GET", "/api/sessions", &bearer, "").await.json()["total"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_first_packet_is_lost() {
    let server = Server::open().await;
    let session = server.session().await;
    for _ in 0..300 {
        let mut client = server.socket().await;
        assert_eq!(client.ask("session:subscribe", json!({"session_id": session})).await["ok"], true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_socket_sends_is_handled_in_order() {
    let server = Server::configured(Config { max_inbox: 10_000, ..Config::default() }).await;
    let mut client = server.socket().await;
    for number in 1..=5_000 {
        client.say(&format!(r#"42{number}["session:unsubscribe",{{"session_id":"s"}}]"#)).await;
    }
    for number in 1..=5_000 {
        assert!(matches!(client.next().await, Incoming::Ack(found, _) if found == number), "{number}");
    }
}

#[tokio::test]
async fn refusals_are_said_in_the_vendors_words() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let missing = client.ask("chat:send", json!({"message": "x"})).await;
    assert_eq!((&missing["status"], &missing["message"]), (&json!("error"), &json!("Missing session_id or message")));
    let error = client.until("system:error").await;
    assert!(error.get("session_id").is_none());
    let empty = client.ask("chat:send", json!({"session_id": session, "message": ""})).await;
    assert_eq!(empty["message"], "Missing session_id or message");
    client.until("system:error").await;

    client.ask("chat:send", json!({"session_id": session, "message": "text a\ngate\ndone"})).await;
    client.until("turn:patch").await;
    let busy = client.ask("chat:send", json!({"session_id": session, "message": "text b"})).await;
    assert!(busy["message"].as_str().unwrap().contains("has an active chat"));
    let error = client.until("system:error").await;
    assert_eq!((&error["session_id"], &error["code"]), (&json!(session), &json!("chat_active")));
    let compact = client.ask("chat:compact", json!({"session_id": session})).await;
    assert_eq!(compact["code"], "chat_active");
    server.script.gate.add_permits(1);
    client.until("chat:end").await;
    let compact = client.ask("chat:compact", json!({"session_id": session})).await;
    assert_eq!((&compact["status"], &compact["code"]), (&json!("error"), &json!("unsupported")));
    assert_eq!(server.script.inputs.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn unknown_events_are_answered_to_whoever_waits() {
    let server = Server::open().await;
    let mut client = server.socket().await;
    client.emit("asr:start", json!({})).await;
    client.say("42[\"vibe:logs:start\"]").await;
    client.say("429[\"gis.event\",1,2,3]").await;
    let expected = json!({"status": "error", "ok": false, "message": "unsupported event", "code": "unsupported", "detail": null});
    assert_eq!(client.next().await, Incoming::Ack(9, expected));
    assert_eq!(client.ask("chat:stop", json!(["x"])).await["code"], "invalid_request");
}

#[tokio::test]
async fn a_message_too_large_is_refused_and_the_socket_stays() {
    let server = Server::configured(Config { max_message_bytes: 1_000_000, ..Config::default() }).await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let refused = client.ask("chat:send", json!({"session_id": session, "message": "x".repeat(1_000_001)})).await;
    assert_eq!((&refused["ok"], &refused["code"]), (&json!(false), &json!("message_too_large")));
    client.until("system:error").await;
    let image = json!([{"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", "A".repeat(900_000))}}, {"type": "text", "text": "done"}]);
    assert_eq!(client.ask("chat:send", json!({"session_id": session, "message": image})).await["ok"], true);
    client.until("chat:end").await;
    assert!(matches!(&server.script.inputs.lock().unwrap()[0].input[0], Part::Image { url } if url.len() > 900_000));

    let polling = server.polling().await;
    polling.poll().await;
    polling.post(&format!("421{}", json!(["chat:send", {"session_id": session, "message": "x".repeat(1_000_001)}]))).await;
    let seen = polling.until("system:error").await;
    assert!(matches!(&seen[0], Incoming::Ack(1, answer) if answer["code"] == "message_too_large"));
}

#[tokio::test]
async fn large_events_arrive_on_both_transports() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let polling = server.polling().await;
    polling.poll().await;
    polling.post(&format!("42{}", json!(["session:subscribe", {"session_id": session}]))).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.ask("chat:send", json!({"session_id": session, "message": "long 3000000\ndone"})).await;
    client.until("chat:end").await;
    assert_eq!(answer_text(&folded(&client.seen)).len(), 3_000_000);
    let seen = polling.until("chat:end").await;
    let whole = seen
        .iter()
        .any(|incoming| matches!(incoming, Incoming::Event(name, data) if name == "turn:end" && data.to_string().len() > 3_000_000));
    assert!(whole);
}

#[tokio::test]
async fn a_late_subscriber_gets_the_open_turns_first_and_once() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut first = server.socket().await;
    first.ask("chat:send", json!({"session_id": session, "message": "turn\ntext Once upon \ngate\ntext a time.\ndone"})).await;
    first.until("turn:patch").await;

    let mut late = server.socket().await;
    late.ask("session:subscribe", json!({"session_id": session})).await;
    assert_eq!(late.until("turn:start").await["blocks"][0]["content"], "Once upon ");
    assert_eq!(late.names(), ["chat:start", "turn:start"]);
    late.ask("session:subscribe", json!({"session_id": session})).await;
    late.ask("session:subscribe", json!({"session_id": session})).await;
    assert_eq!(late.seen.len(), 2, "a repeated subscription repeats nothing");
    let open = server.messages(&session).await;
    assert_eq!((open.as_array().unwrap().len(), &open[1]["status"]), (2, &json!("streaming")));

    server.script.gate.add_permits(1);
    late.until("chat:end").await;
    first.until("chat:end").await;
    let mut fold = Fold::late(Format::Hybrid);
    for (name, data) in &late.seen {
        fold.see(name, data);
    }
    assert_eq!(answer_text(&fold), "Once upon a time.");
    assert_eq!(answer_text(&folded(&first.seen)), "Once upon a time.");
}

#[tokio::test]
async fn after_unsubscribing_nothing_comes_and_the_run_goes_on() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("chat:send", json!({"session_id": session, "message": "text a\ngate\ntext b\ndone"})).await;
    client.until("turn:patch").await;
    assert_eq!(client.ask("session:unsubscribe", json!({"session_id": session})).await["ok"], true);
    let seen = client.seen.len();
    server.script.gate.add_permits(1);
    let messages = finished(&server, &session).await;
    assert_eq!(messages[1]["blocks"][0]["content"], "ab");
    client.ask("chat:stop", json!({"session_id": session})).await;
    assert_eq!(client.seen.len(), seen);
}

/// REST's turns once no run goes on.
async fn finished(server: &Server, session: &str) -> Value {
    for _ in 0..200 {
        let status = server.get(&format!("/api/sessions/{session}")).await.json()["status"].clone();
        if !["running", "waiting_for_input"].contains(&status.as_str().unwrap()) {
            return server.messages(session).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the run did not end");
}

#[tokio::test]
async fn a_run_outlives_its_clients() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("chat:send", json!({"session_id": session, "message": "text a\ngate\ntext b\ndone"})).await;
    client.until("turn:patch").await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.script.gate.add_permits(1);
    assert_eq!(finished(&server, &session).await[1]["blocks"][0]["content"], "ab");
}

#[tokio::test]
async fn a_stop_is_acknowledged_and_then_happens() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let idle = client.ask("chat:stop", json!({"session_id": session})).await;
    assert_eq!((&idle["status"], client.seen.len()), (&json!("idle"), 0));
    let sent = client.ask("chat:send", json!({"session_id": session, "message": "text a\ntool t\ngate\ndone"})).await;
    client.until("turn:patch").await;
    let foreign = client.ask("chat:stop", json!({"session_id": session, "chat_run_id": "run-0"})).await;
    assert_eq!(foreign["status"], "idle");
    let stopped = client.ask("chat:stop", json!({"session_id": session, "chat_run_id": sent["chat_run_id"]})).await;
    assert_eq!((&stopped["status"], &stopped["chat_run_id"]), (&json!("stopping"), &sent["chat_run_id"]));
    assert!(!client.names().contains(&"chat:end"));
    assert_eq!(client.until("chat:end").await["status"], "interrupted");
    folded(&client.seen);
    let again = client.ask("chat:stop", json!({"session_id": session, "chat_run_id": sent["chat_run_id"]})).await;
    assert_eq!(again["status"], "interrupted");
    // The run is over when its end is seen: the next one may begin at once.
    assert_eq!(client.ask("chat:send", json!({"session_id": session, "message": "done"})).await["ok"], true);
}

async fn paused(server: &Server, script: &str) -> (String, Client) {
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("chat:send", json!({"session_id": session, "message": script})).await;
    client.until("chat:end").await;
    (session, client)
}

fn given(server: &Server) -> Vec<(AskId, Answer)> {
    server.script.answers.lock().unwrap().clone()
}

#[tokio::test]
async fn a_permission_is_answered_by_its_options() {
    let server = Server::open().await;
    let (session, mut client) = paused(&server, "tool t\nask permission p1\ntool_end t\ntext fine\ndone").await;
    let detail = server.get(&format!("/api/sessions/{session}")).await.json();
    assert_eq!(detail["status"], "waiting_for_input");
    let call = server.messages(&session).await[1]["tool_calls"][1].clone();
    assert_eq!((&call["id"], &call["status"]), (&json!("ask_p1"), &json!("awaiting_answer")));

    let wrong = json!({"tool_call_id": "ask_p1", "selections": {"0": [7]}, "custom": {}});
    let refused = client.ask("chat:send", json!({"session_id": session, "message": "", "askuser_answer": wrong})).await;
    assert_eq!(refused["code"], "invalid_request");
    let unknown = json!({"tool_call_id": "ask_p9", "selections": {"0": [0]}});
    let refused = client.ask("chat:send", json!({"session_id": session, "message": "", "askuser_answer": unknown})).await;
    assert_eq!(refused["code"], "not_pending");
    assert!(given(&server).is_empty());
    while client.seen.last().unwrap().0 != "system:error" {
        client.next().await;
    }
    client.seen.retain(|(name, _)| name != "system:error");

    let allow = json!({"tool_call_id": "ask_p1", "selections": {"0": [0]}, "custom": {}});
    let sent = client.ask("chat:send", json!({"session_id": session, "message": "Allow", "askuser_answer": allow})).await;
    assert_eq!(sent["chat_run_id"], client.seen[0].1["chat_run_id"], "the same run goes on");
    assert_eq!(client.until("chat:end").await["status"], "completed");
    assert_eq!(given(&server), [(AskId::from("p1"), Answer::Allow { input: None, always: false })]);
    client.seen.retain(|(name, _)| name != "system:error");
    let fold = folded(&client.seen);
    assert_eq!((fold.chats, answer_text(&fold).as_str()), (2, "fine"));
    same_as_rest(&server, &session, &fold).await;
}

#[tokio::test]
async fn a_plain_message_answers_a_question() {
    let server = Server::open().await;
    let (session, mut client) = paused(&server, "tool q\nask question a1\ntool_end q\ndone").await;
    client.ask("chat:send", json!({"session_id": session, "message": "neither"})).await;
    client.until("chat:end").await;
    let pair = (Text::from_static("Which?"), Text::from_static("neither"));
    assert_eq!(given(&server), [(AskId::from("a1"), Answer::Choose(vec![pair]))]);
    let block = &server.messages(&session).await[2]["blocks"][0];
    assert_eq!(block["content"], json!({"tool_call_id": "q", "selections": {}, "custom": {"0": "neither"}}));
}

#[tokio::test]
async fn an_answer_may_leave_out_which_question_it_is_for() {
    let server = Server::open().await;
    let (session, mut client) = paused(&server, "tool q\nask question a1\ntool_end q\ndone").await;
    client.ask("chat:send", json!({"session_id": session, "message": "", "askuser_answer": {"selections": {"0": [1]}}})).await;
    client.until("chat:end").await;
    let pair = (Text::from_static("Which?"), Text::from_static("b"));
    assert_eq!(given(&server), [(AskId::from("a1"), Answer::Choose(vec![pair]))]);
}

#[tokio::test]
async fn who_answers_second_is_told_who_was_first() {
    let server = Server::open().await;
    let (session, mut client) = paused(&server, "ask permission p1\ngate\ndone").await;
    let hub = server.hub.clone();
    let access = hub.admit(None).unwrap();
    let held = hub.session(&access, &session.clone().into()).unwrap();
    let by = Actor { principal: Principal::from("anonymous"), surface: Text::from_static("sse") };
    held.answer(&AskId::from("p1"), Answer::Deny { message: Text::from_static("no") }, by).unwrap();
    client.until("chat:start").await;
    let late = json!({"tool_call_id": "ask_p1", "selections": {"0": [0]}});
    let refused = client.ask("chat:send", json!({"session_id": session, "message": "", "askuser_answer": late})).await;
    assert_eq!((&refused["code"], &refused["detail"]["answered_from"]), (&json!("already_resolved"), &json!("sse")));
    assert_eq!(given(&server).len(), 1);
    server.script.gate.add_permits(1);
    client.until("chat:end").await;
}

#[tokio::test]
async fn an_upstream_that_is_down_is_a_failed_chat() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let sent = client.ask("chat:send", json!({"session_id": session, "message": "refuse"})).await;
    let error = client.until("system:error").await;
    assert_eq!((&error["code"], &error["chat_run_id"]), (&json!("engine_not_ready"), &sent["chat_run_id"]));
    assert_eq!(client.until("chat:end").await["status"], "failed");
    folded(&client.seen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_misses_nothing_and_keeps_its_heartbeat() {
    // A small outbox that is always about to be full, and a heartbeat that is due all the time: it ends a connection when it finds no room.
    let config = Config { ping_interval_ms: 20, ping_timeout_ms: 60_000, max_outbox: 32, ..Config::default() };
    let server = Server::configured(config).await;
    let session = server.session().await;
    let mut slow = server.socket().await;
    slow.emit("chat:send", json!({"session_id": session, "message": "turn\nmany 40000\ndone"})).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut packets = Vec::new();
    while packets.last().is_none_or(|packet: &String| !packet.starts_with("42[\"chat:end\"")) {
        let packet = slow.packet().await;
        assert_ne!(packet, "closed", "after {} packets", packets.len());
        packets.push(packet);
        if packets.len() % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let mut fold = Fold::new(Format::Hybrid);
    for packet in &packets {
        let Incoming::Event(name, data) = server::read(packet) else { panic!("{packet}") };
        fold.see(&name, &data);
    }
    let expected: String = (0..40_000).map(|number| format!("{number} ")).collect();
    assert_eq!(answer_text(&fold), expected);
    assert!(slow.heartbeats > 10, "{} heartbeats", slow.heartbeats);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_costs_nobody_else_anything() {
    let server = Server::configured(Config { max_outbox: 32, ..Config::default() }).await;
    let session = server.session().await;
    let mut deaf = server.socket().await;
    deaf.ask("session:subscribe", json!({"session_id": session})).await;
    let mut quick = server.socket().await;
    quick.ask("chat:send", json!({"session_id": session, "message": "turn\nmany 20000\ndone"})).await;
    quick.until("chat:end").await;
    assert_eq!(answer_text(&folded(&quick.seen)).split(' ').count(), 20_001);
}

#[tokio::test]
async fn rest_keeps_sessions() {
    let server = Server::open().await;
    let created = server.post("/api/sessions", &json!({"intent": "First", "template_id": "t/one", "model": "gpt-4o", "env": null})).await;
    assert_eq!(created.status, 200);
    let id = created.json()["session_id"].as_str().unwrap().to_owned();
    assert_eq!(created.json()["id"], id);
    let second = server.session().await;
    let detail = server.get(&format!("/api/sessions/{id}")).await.json();
    for (member, value) in [
        ("intent", json!("First")),
        ("status", json!("created")),
        ("template_id", json!("t/one")),
        ("viewer_role", json!("owner")),
        ("replay_state", Value::Null),
        ("user_id", json!("anonymous")),
    ] {
        assert_eq!(detail[member], value, "{member}");
    }
    assert!(detail["created_at"].as_str().unwrap().ends_with('Z'));

    let page = server.get("/api/sessions?limit=1&offset=1").await.json();
    assert_eq!((&page["total"], page["items"].as_array().unwrap().len()), (&json!(2), 1));
    assert_eq!(server.get("/api/sessions?q=FIR").await.json()["items"][0]["id"], id);
    assert_eq!(server.get("/api/sessions?template_id_prefix=t/").await.json()["total"], 1);
    assert_eq!(server.get("/api/sessions?limit=x").await.status, 422);

    for method in ["PATCH", "PUT"] {
        let renamed = server.send(method, &format!("/api/sessions/{id}"), &[], &json!({"intent": method}).to_string()).await;
        assert_eq!((renamed.status, &renamed.json()["intent"]), (200, &json!(method)));
    }
    let wrong = server.send("PATCH", &format!("/api/sessions/{id}"), &[], "{}").await;
    assert_eq!((wrong.status, &wrong.json()["detail"][0]["loc"]), (422, &json!(["body", "intent"])));
    assert_eq!(server.send("POST", "/api/sessions", &[], "[").await.status, 422);
    assert_eq!(server.send("POST", "/api/sessions", &[], &"x".repeat(2_000_000)).await.status, 413);

    let mut client = server.socket().await;
    client.ask("chat:send", json!({"session_id": id, "message": "text x\ngate\ndone"})).await;
    client.until("turn:patch").await;
    assert_eq!(server.script.inputs.lock().unwrap()[0].model, Some(Text::from_static("real")), "the model the session was made with");
    let turns = server.get(&format!("/api/sessions/{id}/turns")).await.json();
    let turn = turns[1]["turn_id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/api/sessions/{id}/turns/{turn}")).await.json(), turns[1]);
    assert_eq!(server.get(&format!("/api/sessions/{id}/turns/none")).await.status, 404);

    let deleted = server.send("DELETE", &format!("/api/sessions/{id}"), &[], "").await;
    assert_eq!(deleted.json(), json!({"deleted": true}));
    assert_eq!(client.until("chat:end").await["status"], "interrupted");
    assert_eq!(server.send("DELETE", &format!("/api/sessions/{id}"), &[], "").await.status, 404);
    assert_eq!(server.get(&format!("/api/sessions/{second}")).await.status, 200);
}

#[tokio::test]
async fn a_session_is_called_after_its_first_message() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("chat:send", json!({"session_id": session, "message": "text Hello\ndone"})).await;
    client.until("chat:end").await;
    assert_eq!(server.get(&format!("/api/sessions/{session}")).await.json()["intent"], "text Hello");
    let told: Vec<&Value> = client.seen.iter().filter(|(name, _)| name == "session:updated").map(|(_, data)| &data["intent"]).collect();
    assert_eq!(told, ["text Hello", "text Hello"]);
}

#[tokio::test]
async fn what_stock_frontends_ask_for_is_well_formed() {
    let server = Server::open().await;
    let session = server.session().await;
    for (path, array) in [
        ("/api/auth/me", false),
        ("/api/config", false),
        ("/api/config/models", false),
        ("/api/skills", true),
        ("/api/solutions", true),
        (&format!("/api/sessions/{session}/tasks"), true),
        (&format!("/api/sessions/{session}/skill-stats"), false),
        (&format!("/api/sessions/{session}/checkpoints"), false),
        (&format!("/api/sessions/{session}/history"), false),
    ] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.json().is_array()), (200, array), "{path}");
    }
    let nowhere = server.get("/api/memories").await;
    assert_eq!((nowhere.status, nowhere.json()), (404, json!({"detail": "Path not found"})));
    assert_eq!(server.send("POST", "/api/health", &[], "").await.status, 405);
}

#[tokio::test]
async fn browsers_hear_what_they_need() {
    let server = Server::open().await;
    let origin = ("Origin", "http://localhost:5173");
    for path in ["/socket.io/?EIO=4&transport=polling", "/api/sessions"] {
        let asks = [origin, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization,x-blade-client")];
        let preflight = server.send("OPTIONS", path, &asks, "").await;
        assert_eq!(preflight.status, 204, "{path}");
        for line in [
            "access-control-allow-origin: http://localhost:5173",
            "access-control-allow-credentials: true",
            "access-control-allow-headers: authorization,x-blade-client",
            "access-control-allow-methods: get, post, put, patch, delete, options",
        ] {
            assert!(preflight.head.contains(line), "{line} in {}", preflight.head);
        }
        let answer = server.send("GET", path, &[origin], "").await;
        assert!(answer.head.contains("access-control-allow-origin: http://localhost:5173"), "{}", answer.head);
    }
    let foreign = server.send("GET", "/api/sessions", &[("Origin", "https://evil.example")], "").await;
    assert_eq!(foreign.status, 403);
    assert!(!foreign.head.contains("access-control-allow-origin"));
    for headers in [&[("Origin", "https://evil.example")][..], &[("Origin", "https://evil.example"), ("Authorization", "Bearer x")]] {
        let forged = server.send("POST", "/api/sessions", headers, "{}").await;
        assert_eq!(forged.status, 403, "{headers:?}");
        assert!(forged.json()["detail"].is_string());
    }
    let rebound = server.send("POST", "/api/sessions", &[("Host", "evil.example:1"), ("Origin", "http://evil.example:1")], "{}").await;
    assert_eq!(rebound.status, 403);
}

/// Opens a WebSocket as a page of this origin would.
async fn page_socket(
    server: &Server,
    origin: &str,
    query: &str,
) -> Result<tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>, u16> {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
    let mut request = format!("ws://{}/socket.io/?EIO=4&transport=websocket{query}", server.address).into_client_request().unwrap();
    request.headers_mut().insert("origin", origin.parse().unwrap());
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => Err(answer.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn on_an_open_server_a_foreign_page_opens_no_transport() {
    let server = Server::configured(Config { on_loopback: true, ..Config::default() }).await;
    for query in ["", "&token=made-up"] {
        assert_eq!(page_socket(&server, "https://evil.example", query).await.unwrap_err(), 403, "{query}");
    }
    let evil = ("Origin", "https://evil.example");
    for (method, path) in [("GET", "/socket.io/?EIO=4&transport=polling"), ("POST", "/socket.io/?EIO=4&transport=polling&sid=x&token=t")] {
        assert_eq!(server.send(method, path, &[evil], "40").await.status, 403, "{method} {path}");
    }
    assert!(page_socket(&server, "http://localhost:5173", "").await.is_ok());
}

#[tokio::test]
async fn where_tokens_count_a_foreign_page_brings_one_when_it_connects() {
    use futures_util::{SinkExt as _, StreamExt as _};
    let server = Server::guarded().await;
    let mut socket = page_socket(&server, "https://evil.example", "").await.unwrap();
    socket.send("40{\"token\":\"alpha\"}".into()).await.unwrap();
    while !socket.next().await.unwrap().unwrap().into_text().unwrap().starts_with("40{") {}
    let mut socket = page_socket(&server, "https://evil.example", "").await.unwrap();
    socket.send("40".into()).await.unwrap();
    loop {
        let message = socket.next().await.unwrap().unwrap().into_text().unwrap();
        if message.starts_with("44") {
            assert_eq!(message.as_str(), r#"44{"message":"Unauthorized"}"#);
            break;
        }
        assert!(!message.starts_with("40"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_end_sockets_hear_the_rest_and_lose_their_transport() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("chat:send", json!({"session_id": session, "message": "text a\ngate\ndone"})).await;
    client.until("turn:patch").await;
    let hub = server.hub.clone();
    let closing = tokio::spawn(async move { hub.shutdown(Duration::from_millis(50)).await });
    assert_eq!(client.until("chat:end").await["status"], "failed");
    let last = tokio::time::timeout(PATIENCE, client.packet()).await.unwrap();
    // Not `41`, after which clients stay away.
    assert!(["1", "closed"].contains(&last.as_str()), "{last}");
    closing.await.unwrap();
}

#[tokio::test]
async fn a_burst_is_answered_packet_by_packet() {
    let server = Server::configured(Config { max_inbox: 64, ..Config::default() }).await;
    let session = server.session().await;
    let mut client = server.socket().await;
    // Far more than four times what may wait, and nobody reads meanwhile.
    for number in 0..2_000 {
        client.say(&format!("42{number}{}", json!(["session:subscribe", {"session_id": session}]))).await;
    }
    let (mut answered, mut refused) = (std::collections::BTreeSet::new(), 0);
    while answered.len() < 2_000 {
        if let Incoming::Ack(number, answer) = client.next().await {
            assert!(answered.insert(number), "{number} is answered twice");
            refused += usize::from(answer["code"] == "too_many");
        }
    }
    assert!(refused < 2_000);
    assert_eq!(client.ask("session:subscribe", json!({"session_id": session})).await["ok"], true);
}

#[tokio::test]
async fn a_client_that_never_waits_is_cut_and_not_ignored() {
    let server = Server::configured(Config { max_inbox: 1, ..Config::default() }).await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let packet = json!(["session:subscribe", {"session_id": session}]);
    let mut sent = 0_u64;
    let mut answered = std::collections::BTreeSet::new();
    // Either everything is answered, or the socket is closed: `41`, behind whatever had been answered.
    'until: for round in 0..200 {
        for _ in 0..100 {
            if !client.try_say(&format!("42{sent}{packet}")).await {
                return;
            }
            sent += 1;
        }
        if round % 20 == 19 {
            loop {
                let packet = client.packet().await;
                if packet == "41" || packet == "closed" {
                    return;
                }
                if let Some(ack) = packet.strip_prefix("43") {
                    let number: u64 = ack.split('[').next().unwrap().parse().unwrap();
                    answered.insert(number);
                }
                if answered.len() as u64 == sent {
                    continue 'until;
                }
            }
        }
    }
    assert_eq!(answered.len() as u64, sent);
}

#[tokio::test]
async fn members_that_nobody_knows_refuse_nothing() {
    let server = Server::open().await;
    let odd = ["1e400".to_owned(), r#""\ud83d""#.to_owned(), format!("{}{}", "[".repeat(3_000), "]".repeat(3_000))];
    for odd in &odd {
        let body = format!(r#"{{"intent":"x","app":{odd}}}"#);
        let made = server.send("POST", "/api/sessions", &[("Content-Type", "application/json")], &body).await;
        assert_eq!(made.status, 200, "{}", made.body);
        let session = made.json()["session_id"].as_str().unwrap().to_owned();
        let mut client = server.socket().await;
        client.say(&format!(r#"421["chat:send",{{"session_id":"{session}","message":"done","app":{odd}}}]"#)).await;
        let Incoming::Ack(1, answer) = client.next().await else { panic!("no acknowledgement") };
        assert_eq!(answer["ok"], true, "{answer}");
        client.until("chat:end").await;
        // In a member that is read it is refused, with the session's id.
        client.say(&format!(r#"42["chat:send",{{"session_id":"{session}","message":{odd}}}]"#)).await;
        assert_eq!(client.until("system:error").await["session_id"], json!(session));
    }
}

#[tokio::test]
async fn what_a_stock_frontend_marks_is_kept_and_what_has_no_meaning_is_said() {
    let server = Server::open().await;
    let session = server.session().await;
    let at = |path: &str| format!("/api/sessions/{session}/{path}");
    let send = |method: &'static str, path: String, body: Value| {
        let server = &server;
        async move { server.send(method, &path, &[("Content-Type", "application/json")], &body.to_string()).await }
    };
    assert_eq!(send("PATCH", at("pin"), json!({"pinned": true})).await.json()["is_pinned"], true);
    assert_eq!(server.get(&format!("/api/sessions/{session}")).await.json()["is_pinned"], true);
    assert_eq!(server.get("/api/sessions").await.json()["items"][0]["is_pinned"], true);
    assert_eq!(send("PATCH", at("sharing"), json!({"shared": false})).await.json(), json!({"shared": false}));
    for (method, path, body, status) in [
        ("PATCH", "sharing", json!({"shared": true}), 501),
        ("PATCH", "memory", json!({"memory_enabled": true}), 501),
        ("PATCH", "pin", json!({"pinned": "yes"}), 422),
        // This agent server has no variables; one that has is in the tests of the whole program.
        ("PUT", "env", json!({"env": {"A": "1"}}), 501),
        ("PUT", "env", json!({"env": {"A": 1}}), 422),
        ("PUT", "env", json!({}), 422),
        ("POST", "compact", json!({}), 501),
        ("POST", "rewind", json!({"checkpoint_id": "m"}), 501),
        ("POST", "rewind", json!({}), 422),
        ("POST", "checkout", json!({"checkpoint_id": "m", "position": "before"}), 501),
        ("POST", "switch-branch", json!({}), 501),
        ("POST", "replay", json!({"speed": 1}), 501),
        ("POST", "share", json!({}), 501),
        ("POST", "skills:upload", json!({}), 501),
        ("PUT", "files/a", json!({"content": "x"}), 501),
        ("DELETE", "files/a", json!({}), 501),
        ("POST", "files/a/rename", json!({"new_name": "b"}), 501),
        ("POST", "upload/x", json!({}), 422),
    ] {
        let answer = send(method, at(path), body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(!answer.json()["detail"].is_null(), "{method} {path}");
    }
    assert_eq!(server.get(&at("context-stats")).await.json(), json!({}));
    assert_eq!(server.get("/api/user/api-keys/").await.status, 501);
    assert_eq!(server.get("/api/sessions/none/ls").await.status, 404);
    let models = server.get("/api/config/models").await.json();
    let names: Vec<&str> = models["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!((&models["default"], names), (&json!("house"), vec!["house", "gpt-4o"]));
    assert_eq!(server.get(&format!("/api/sessions/{session}")).await.json()["usage"], Value::Null);
}
