//! Stories of cases.md over real sockets, raw subscriptions, and every patch format end to end.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]

mod fold;
#[allow(dead_code, reason = "each test program uses its own part")]
mod server;

use std::collections::BTreeSet;

use fold::{Fold, Format};
use interline_surface_socketio::{Config, PatchFormat};
use serde_json::{Value, json};
use server::{Client, Server};

fn folded(format: Format, seen: &[(String, Value)]) -> Fold {
    let mut fold = Fold::new(format);
    for (name, data) in seen {
        fold.see(name, data);
    }
    fold
}

fn quick() -> Config {
    Config { raw_batch_ms: 5, ..Config::default() }
}

async fn chat(client: &mut Client, session: &str, script: &str) -> Value {
    let sent = client.ask("chat:send", json!({"session_id": session, "message": script})).await;
    client.until("chat:end").await;
    sent["chat_run_id"].clone()
}

/// The raw events of what a socket saw.
fn raw(seen: &[(String, Value)]) -> Vec<Value> {
    seen.iter().filter(|(name, _)| name == "turn:events").flat_map(|(_, data)| data["events"].as_array().unwrap().clone()).collect()
}

/// No socket gets both families, and each event is what the contracts say.
fn is_raw_alone(seen: &[(String, Value)]) {
    for (name, data) in seen {
        assert!(!["turn:start", "turn:patch", "turn:end"].contains(&name.as_str()), "{name}");
        interline_testkit::validate_socketio(&json!({"event": name, "data": data}).to_string()).unwrap();
    }
}

/// B7: several runs of one session, one of them failed, each with its own bracket, id and turns.
#[tokio::test]
async fn b7_a_session_with_a_failed_run_between_two_good_ones() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let runs = [
        chat(&mut client, &session, "turn\ntext one\ndone").await,
        chat(&mut client, &session, "refuse").await,
        chat(&mut client, &session, "turn\ntext two\ndone").await,
    ];
    // The reader stops at whatever is out of place: an event between brackets, a turn told twice, an end without its start.
    let fold = folded(Format::Hybrid, &client.seen);
    assert_eq!(fold.chats, 3);
    let of = |name: &str| client.seen.iter().filter(|(found, _)| found == name).map(|(_, data)| data.clone()).collect::<Vec<_>>();
    let ids = |events: Vec<Value>| events.iter().map(|data| data["chat_run_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(of("chat:start")), runs);
    assert_eq!(ids(of("chat:end")), runs);
    assert_eq!(ids(of("system:error")), runs[1..2]);
    let statuses: Vec<Value> = of("chat:end").iter().map(|data| data["status"].clone()).collect();
    assert_eq!(json!(statuses), json!(["completed", "failed", "completed"]));
    assert_eq!(runs.iter().map(Value::to_string).collect::<BTreeSet<_>>().len(), 3);

    // Read again, by REST and by a socket that comes now: the same turns, and nothing of runs that are over.
    let messages = server.messages(&session).await;
    let turns: Vec<&str> = messages.as_array().unwrap().iter().map(|turn| turn["turn_id"].as_str().unwrap()).collect();
    assert_eq!(turns, fold.order);
    let mut late = server.socket().await;
    late.ask("session:subscribe", json!({"session_id": session})).await;
    chat(&mut late, &session, "turn\ntext three\ndone").await;
    assert_eq!(folded(Format::Hybrid, &late.seen).chats, 1);
}

const TEAM: &str = "turn\ntool p\nsub p turn\nsub p text first, \ngate\nsub p text second\nsub p tool c\nsub p tool_end c\ngate\ntool_end p\nturn\ntext all done\ndone";

/// B8: whoever joins again in the middle is told of sub-agents as whoever stayed.
#[tokio::test]
async fn b8_coming_back_in_the_middle_of_a_sub_agent_loses_no_kind_of_event() {
    let server = Server::open().await;
    let session = server.session().await;
    let mut stays = server.socket().await;
    let mut leaves = server.socket().await;
    leaves.ask("session:subscribe", json!({"session_id": session})).await;
    stays.ask("chat:send", json!({"session_id": session, "message": TEAM})).await;
    leaves.until("turn:patch").await;
    drop(leaves);
    let mut back = server.socket().await;
    back.ask("session:subscribe", json!({"session_id": session})).await;
    server.script.gate.add_permits(2);
    back.until("chat:end").await;
    stays.until("chat:end").await;

    let mut late = Fold::late(Format::Hybrid);
    for (name, data) in &back.seen {
        late.see(name, data);
    }
    late.load(server.messages(&session).await.as_array().unwrap());
    let whole = folded(Format::Hybrid, &stays.seen);
    assert_eq!(late.snapshots, whole.snapshots, "the same turns, sub-agents' included");
    let kinds = |seen: &[(String, Value)]| {
        let kind = |(name, data): &(String, Value)| (name.clone(), data["loop_id"].clone().to_string(), data["patch_type"].to_string());
        seen.iter().map(kind).collect::<BTreeSet<_>>()
    };
    let after = stays.seen.iter().position(|(_, data)| data["data"]["text_delta"] == "second").unwrap();
    assert!(kinds(&back.seen).is_superset(&kinds(&stays.seen[after..])));
    assert!(back.seen.iter().any(|(name, data)| name == "turn:start" && data["parent_fork_tool_call_id"] == "p"));
}

#[tokio::test]
async fn b8_a_raw_client_resumes_behind_the_last_event_it_saw() {
    let server = Server::configured(quick()).await;
    let session = server.session().await;
    let subscribe =
        |after: u64, resume: bool| json!({"session_id": session, "event_format": "raw", "after_sequence": after, "resume": resume});
    let mut stays = server.socket().await;
    stays.ask("session:subscribe", subscribe(0, false)).await;
    let mut leaves = server.socket().await;
    leaves.ask("session:subscribe", subscribe(0, false)).await;
    stays.ask("chat:send", json!({"session_id": session, "message": TEAM})).await;
    while !raw(&leaves.seen).iter().any(|event| event["payload"]["content"] == "first, ") {
        leaves.next().await;
    }
    let seen = raw(&leaves.seen);
    let last = seen.last().unwrap()["stream_sequence"].as_u64().unwrap();
    drop(leaves);
    server.script.gate.add_permits(1);
    while !raw(&stays.seen).iter().any(|event| event["type"] == "tool:result:done") {
        stays.next().await;
    }
    let mut back = server.socket().await;
    back.ask("session:subscribe", subscribe(last, true)).await;
    server.script.gate.add_permits(1);
    back.until("chat:end").await;
    stays.until("chat:end").await;
    for client in [&stays, &back] {
        is_raw_alone(&client.seen);
    }
    assert!(!back.names().contains(&"chat:start"), "it has seen the chat begin");
    let mut together = seen;
    together.extend(raw(&back.seen));
    assert_eq!(together, raw(&stays.seen), "nothing twice, nothing lost");

    // The chat ended while it was away: it still hears so. Who has heard it hears nothing.
    let mut after = server.socket().await;
    after.ask("session:subscribe", subscribe(last, true)).await;
    after.until("chat:end").await;
    assert_eq!(raw(&after.seen), raw(&back.seen));
    let end = raw(&stays.seen).last().unwrap()["stream_sequence"].as_u64().unwrap();
    let mut done = server.socket().await;
    done.ask("session:subscribe", subscribe(end, true)).await;
    chat(&mut done, &session, "turn\ntext again\ndone").await;
    assert_eq!(raw(&done.seen)[0]["stream_sequence"], 1, "the next chat counts from one");
    assert_eq!(done.names().iter().filter(|name| **name == "chat:end").count(), 1);
}

#[tokio::test]
async fn raw_events_take_the_place_of_turns_on_their_socket_alone() {
    let server = Server::configured(quick()).await;
    let session = server.session().await;
    let mut turns = server.socket().await;
    turns.ask("session:subscribe", json!({"session_id": session})).await;
    let mut client = server.socket().await;
    // First turns, then raw: the second takes the place of the first, and plain subscriptions after it change nothing.
    client.ask("session:subscribe", json!({"session_id": session})).await;
    client.ask("session:subscribe", json!({"session_id": session, "event_format": "raw"})).await;
    client.ask("session:subscribe", json!({"session_id": session})).await;
    chat(&mut client, &session, "turn\ntext Hello, \ntext world.\ndone").await;
    is_raw_alone(&client.seen);
    let text: String = raw(&client.seen)
        .iter()
        .filter(|event| event["type"] == "llm:content:delta")
        .map(|event| event["payload"]["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "Hello, world.");
    let names = client.names();
    assert_eq!((names.first(), names.last()), (Some(&"chat:start"), Some(&"chat:end")), "typed, in order with the raw ones");
    assert_eq!(raw(&client.seen).last().unwrap()["type"], "chat:end");
    turns.until("chat:end").await;
    assert!(!turns.names().contains(&"turn:events"));
    folded(Format::Hybrid, &turns.seen);

    client.ask("session:unsubscribe", json!({"session_id": session})).await;
    client.ask("session:subscribe", json!({"session_id": session})).await;
    chat(&mut client, &session, "turn\ntext again\ndone").await;
    assert!(client.names().contains(&"turn:end"), "after unsubscribing it may choose again");
}

#[tokio::test]
async fn a_failed_run_is_told_raw_with_its_typed_error() {
    let server = Server::configured(quick()).await;
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("session:subscribe", json!({"session_id": session, "event_format": "raw"})).await;
    chat(&mut client, &session, "refuse").await;
    is_raw_alone(&client.seen);
    let names: Vec<&str> = client.names().into_iter().filter(|name| *name != "session:updated").collect();
    assert_eq!(names, ["chat:start", "system:error", "turn:events", "chat:end"]);
}

#[tokio::test]
async fn many_raw_events_share_a_packet() {
    let server = Server::configured(Config { raw_batch_ms: 200, ..Config::default() }).await;
    let session = server.session().await;
    let mut client = server.socket().await;
    client.ask("session:subscribe", json!({"session_id": session, "event_format": "raw"})).await;
    chat(&mut client, &session, "turn\nmany 500\ndone").await;
    is_raw_alone(&client.seen);
    let batches = client.names().iter().filter(|name| **name == "turn:events").count();
    assert!(batches < 40, "{batches} packets");
    assert_eq!(raw(&client.seen).iter().filter(|event| event["type"] == "llm:content:delta").count(), 500);
}

#[tokio::test]
async fn each_patch_format_is_what_the_config_says() {
    for (patch_format, format) in
        [(PatchFormat::Hybrid, Format::Hybrid), (PatchFormat::Delta, Format::Delta), (PatchFormat::Sync, Format::Sync)]
    {
        let config: Config = serde_json::from_value(json!({"patch_format": patch_format})).unwrap();
        let server = Server::configured(config).await;
        let session = server.session().await;
        let mut client = server.socket().await;
        let script = "turn\ntext Hello, \ntool t\ntool_end t\nturn\ntext world.\nask question a\ntext Bye.\ndone";
        let sent = client.ask("chat:send", json!({"session_id": session, "message": script})).await;
        assert_eq!(sent["status"], "ok");
        client.until("chat:end").await;
        client.ask("chat:send", json!({"session_id": session, "message": "a"})).await;
        client.until("chat:end").await;
        let fold = folded(format, &client.seen);
        let messages = server.messages(&session).await;
        for turn in messages.as_array().unwrap() {
            let id = turn["turn_id"].as_str().unwrap();
            let told = if fold.has_snapshots() { &fold.snapshots[id] } else { &fold.deltas[id] };
            for member in ["blocks", "tool_calls", "status"] {
                assert_eq!(told[member], turn[member], "{member} in {format:?}");
            }
        }
        let patches: BTreeSet<String> = client
            .seen
            .iter()
            .filter(|(name, _)| name == "turn:patch")
            .map(|(_, data)| data["patch_type"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(patches == BTreeSet::from(["sync".to_owned()]), format == Format::Sync, "{patches:?}");
    }
}

#[tokio::test]
async fn turns_are_explained_to_who_may_ask() {
    let refusing = Server::open().await;
    let session = refusing.session().await;
    let refused = refusing.get(&format!("/api/sessions/{session}/messages?explain=1")).await;
    assert_eq!((refused.status, refused.json()["detail"].is_string()), (403, true));
    assert_eq!(refusing.get(&format!("/api/sessions/{session}/messages?explain=0")).await.json(), json!([]));

    let server = Server::configured(Config { explain: true, ..Config::default() }).await;
    let session = server.session().await;
    let mut client = server.socket().await;
    let one = chat(&mut client, &session, "turn\ntext one\ndone").await;
    let two = chat(&mut client, &session, "turn\ntool t\ntool_end t\nturn\ntext two\ndone").await;
    let plain = server.messages(&session).await;
    let explained = server.get(&format!("/api/sessions/{session}/messages?explain=1")).await.json();
    let mut turns = explained.as_array().unwrap().clone();
    let mut told: Vec<(Value, Value)> = Vec::new();
    for turn in &mut turns {
        interline_testkit::validate("types/explained_turn", turn).unwrap();
        let Value::Array(events) = turn.as_object_mut().unwrap().remove("explain").unwrap() else { panic!() };
        let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!((names.first(), names.last()), (Some(&"turn:start"), Some(&"turn:end")));
        told.extend(events.iter().map(|event| (turn["turn_id"].clone(), event.clone())));
    }
    assert_eq!(json!(turns), plain, "the turns are as ever");
    // In the order of the turns: what was sent is what is explained.
    let sent = client.seen.iter().filter(|(name, _)| name.starts_with("turn:")).count();
    assert_eq!(told.len(), sent);
    let runs: BTreeSet<String> = told.iter().map(|(_, event)| event["run_id"].to_string()).collect();
    assert_eq!(runs, BTreeSet::from([one.to_string(), two.to_string()]));
    let patch = told.iter().find(|(_, event)| event["event"] == "turn:patch/tool_result").unwrap();
    assert_eq!(patch.1["causes"][0]["name"], "frame");
    assert_eq!(patch.1["rules"], json!(["result-is-a-patch"]));
    assert!(told.iter().all(|(_, event)| !event["causes"].as_array().unwrap().is_empty()));
}
