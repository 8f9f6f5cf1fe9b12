//! The cloud access surface, over real sockets.

#![cfg(feature = "io")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use interline_hub::{Conduct, Gate, OnBusy, StartRun};
use interline_journal::{Birth, Damaged, Durability, Health, Journal, JournalError, Log, LogKey, Mark, Stored, Unstored};
use interline_model::{Answer, Part, Record, RunId, SessionId, Text};
use interline_surface_native::Config;
use interline_testkit::{delete, get, post, request, transcript};
use serde_json::json;
use support::*;
use tokio_tungstenite::tungstenite::{Bytes, Message};

#[tokio::test]
async fn a_create_answers_with_the_documented_members_in_order() {
    let stand = Stand::open().await;
    let thread = "6f1c2f0e-8a57-4b7e-9a53-0d6a2f3c9b10";
    let body = json!({ "mode": "agent", "prompt": "texts 1", "thread_id": thread, "environment_id": "e1", "model": "m", "history": [1], "unknown": {} });
    let answer = post(&stand.http("/v1/agent/sessions"), "", &body.to_string()).await;
    assert_eq!((answer.status, answer.header("content-type")), (201, "application/json"));
    let json = answer.json();
    let id = json["session_id"].as_str().unwrap();
    let (created, expires) = (json["created_at"].as_u64().unwrap(), json["expires_at"].as_u64().unwrap());
    let expected = format!(
        r#"{{"session_id":"{id}","session_token":{},"expires_at":{expires},"mode":"agent","state":"active","created_at":{created},"jetstream_subject_in":"biu.session.{id}.in","jetstream_subject_out":"biu.session.{id}.out","environment_id":"e1","thread_id":"{thread}"}}"#,
        json["session_token"]
    );
    assert_eq!(answer.body, expected);
    assert!(id.parse::<RunId>().is_ok_and(|run| run.dashed() == id));
    assert!((1_800_000..1_801_000).contains(&(expires - created)));
    let input = stand.script.inputs.lock().unwrap().pop().unwrap();
    assert_eq!((input.model.as_deref(), input.input), (Some("m"), vec![Part::Text("texts 1".into())]));
}

#[tokio::test]
async fn images_system_prompt_and_a_thread_that_is_no_uuid() {
    let stand = Stand::open().await;
    let images = json!([{ "mime_type": "image/gif", "data": "R0lG" }, { "data": "AAAA" }, { "mime_type": "image/png" }]);
    let native = stand
        .create(
            &json!({ "mode": "chat", "prompt": null, "images": images, "system_prompt": "be brief", "thread_id": "no uuid", "model": "" }),
        )
        .await;
    assert!(native.thread.parse::<RunId>().is_ok(), "a new session: {native:?}");
    let input = stand.script.inputs.lock().unwrap().pop().unwrap();
    let image = |url: &str| Part::Image { url: Text::from(url) };
    assert_eq!(input.input, [image("data:image/gif;base64,R0lG"), image("data:image/png;base64,AAAA")]);
    assert_eq!((input.system_prompt.as_deref(), input.model), (Some("be brief"), None));
}

#[tokio::test]
async fn refused_creates_say_why() {
    let stand = Stand::guarded().await;
    let url = stand.http("/v1/agent/sessions");
    let good = r#"{"mode":"chat","prompt":"x"}"#;
    for (headers, code) in [
        (vec![], "missing_bearer"),
        (vec![("authorization", "bearer alice-secret")], "missing_bearer"),
        (vec![("authorization", "Bearer ")], "missing_bearer"),
        (vec![("authorization", "Basic x")], "missing_bearer"),
        (vec![("authorization", "Bearer nope")], "invalid_token"),
    ] {
        let answer = request("POST", &url, &headers, good).await;
        assert_eq!(answer.status, 401);
        let body = answer.rest().await;
        assert_eq!(support::code(&body), code, "{headers:?}");
        assert!(code != "missing_bearer" || body == r#"{"error":{"code":"missing_bearer","message":""}}"#);
    }
    for (body, code) in [
        ("", "bad_json"),
        ("{", "bad_json"),
        ("[]", "bad_json"),
        (r#"{"mode":7}"#, "bad_json"),
        (r#"{"mode":"chat","images":{}}"#, "bad_json"),
        ("null", "bad_json"),
        ("{}", "bad_mode"),
        (r#"{"mode":null}"#, "bad_mode"),
        (r#"{"mode":"dance"}"#, "bad_mode"),
        (&*format!(r#"{{"mode":"chat","prompt":"x","model":"{}"}}"#, "m".repeat(257)), "bad_model"),
    ] {
        let answer = post(&url, ALICE, body).await;
        assert_eq!((answer.status, support::code(&answer.body).as_str()), (400, code), "{body}");
    }
}

#[tokio::test]
async fn bodies_have_a_bound() {
    let stand = Stand::configured(Config { max_body: 1_000, ..Config::default() }).await;
    let body = |n: usize| format!(r#"{{"mode":"chat","prompt":"{}"}}"#, "x".repeat(n));
    let room = 1_000 - body(0).len();
    assert_eq!(post(&stand.http("/v1/agent/sessions"), "", &body(room)).await.status, 201);
    let answer = post(&stand.http("/v1/agent/sessions"), "", &body(room + 1)).await;
    assert_eq!((answer.status, support::code(&answer.body).as_str()), (413, "body_too_large"));
    let id = stand.bridge().await;
    let answer = post(&stand.http(&format!("/v1/code/sessions/{id}/messages")), "", &body(room + 1)).await;
    assert_eq!((answer.status, answer.body.as_str()), (413, r#"{"error":"http: request body too large"}"#));
}

#[tokio::test]
async fn every_transcript_passes_byte_for_byte_and_can_be_had_again_from_every_frame() {
    let names = [
        "chat-text-only",
        "chat-thinking",
        "chat-with-tools",
        "agent-with-tools",
        "agent-with-permission",
        "agent-permission-denied",
        "agent-with-elicitation",
        "error",
        "bridge-compaction",
    ];
    for name in names {
        let stand = Stand::open().await;
        let native = stand.run(&format!("play {name}")).await;
        let mut first = stand.stream(&native, "").await;
        let original = transcript(name);
        let original: Vec<&str> = original.lines().filter(|line| !line.contains(r#""type":"keep_alive""#)).collect();
        let until = original.iter().position(|line| line.contains(r#""type":"result""#)).unwrap();
        let seen = first.answering_run().await;
        assert_eq!(seen, original[..=until], "{name}");
        assert!(first.is_silent().await, "the client closes");
        for k in 1..seen.len() {
            let again = stand.stream(&native, &format!("&since_seq={k}")).await.run().await;
            assert_eq!(again, seen[k..], "{name} from {k}");
        }
        let result = get(&stand.http(&format!("/v1/agent/sessions/{}/result", native.id)), "").await;
        assert_eq!((result.status, result.body.as_str()), (200, original[until]));
    }
}

#[tokio::test]
async fn the_first_connect_gets_all_and_later_ones_what_comes() {
    let stand = Stand::open().await;
    let native = stand.run(&format!("texts 3\ngate\n{}\ngate\n{RESULT}", text(3))).await;
    let mut first = stand.stream(&native, "").await;
    for n in 0..3 {
        assert_eq!(first.text().await, text(n));
    }
    // What is no cursor is none (§3.3).
    let mut later = Vec::new();
    for query in ["", "&since_seq=0", "&since_seq=abc", "&since_seq=-1", "&since_seq=99999999999999999999999", "&since_seq="] {
        later.push(stand.stream(&native, query).await);
    }
    let mut exact = stand.stream(&native, "&since_seq=2").await;
    assert_eq!(exact.text().await, text(2));
    let mut beyond = stand.stream(&native, "&since_seq=7000").await;
    assert!(later[0].is_silent().await && beyond.is_silent().await);
    stand.script.open();
    for socket in later.iter_mut().chain([&mut first, &mut exact, &mut beyond]) {
        assert_eq!(socket.text().await, text(3));
    }
    stand.script.open();
    for socket in later.iter_mut().chain([&mut first, &mut exact, &mut beyond]) {
        assert_eq!(socket.run().await, [RESULT]);
    }
    // Over and seen: nothing to say without a cursor.
    let refused = Socket::dial(&stand.ws(&native.path("")), "").await.err().unwrap();
    assert_eq!((refused.0, support::code(&refused.1).as_str()), (409, "session_finalized"));
    let message = format!("session is completed; read result via /v1/agent/sessions/{}/result", native.id);
    assert!(refused.1.contains(&message), "{}", refused.1);
    assert_eq!(stand.stream(&native, "&since_seq=4").await.run().await, [RESULT]);
    assert!(stand.stream(&native, "&since_seq=5").await.is_silent().await);
}

#[tokio::test]
async fn a_run_that_was_faster_than_its_client_is_not_lost() {
    let stand = Stand::open().await;
    let native = stand.run(&format!("texts 2\n{RESULT}")).await;
    eventually(|| stand.script.inputs.lock().unwrap().len() == 1).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(stand.stream(&native, "").await.run().await, [text(0), text(1), RESULT.to_owned()]);
}

#[tokio::test]
async fn either_id_names_the_stream_and_a_sessions_numbers_go_on_over_its_runs() {
    let stand = Stand::open().await;
    let one = stand.run(&format!("texts 2\n{RESULT}")).await;
    let hex = format!("run-{}", one.id.replace('-', ""));
    let by_hex = Native { id: hex, ..one.clone() };
    assert_eq!(stand.stream(&by_hex, "").await.run().await.len(), 3);
    let two = stand.create(&json!({ "mode": "chat", "prompt": format!("gate\n{}\n{RESULT}", text(9)), "thread_id": one.thread })).await;
    assert_eq!((&two.thread, two.id == one.id), (&one.thread, false));
    let session = stand.whole_session(&one).await;
    let mut whole = stand.stream(&session, "&since_seq=2").await;
    assert_eq!(whole.run().await, [RESULT]);
    stand.script.open();
    assert_eq!(whole.run().await, [text(9), RESULT.to_owned()]);
    // The second run has numbers of its own.
    assert_eq!(stand.stream(&two, "&since_seq=1").await.run().await, [RESULT]);
    assert_eq!(stand.stream(&session, "&since_seq=4").await.run().await, [RESULT]);
}

#[tokio::test]
async fn a_session_without_a_prompt_is_silent_until_something_runs_in_it() {
    let stand = Stand::open().await;
    let native = stand.create(&json!({ "mode": "chat" })).await;
    assert_eq!(native.id, native.thread);
    let mut socket = stand.stream(&native, "").await;
    assert!(socket.is_silent().await);
    // From another surface.
    let access = stand.hub.admit(None).unwrap();
    let start = StartRun {
        surface: Text::from_static("sse"),
        cell: None,
        session: Some(SessionId::from(native.id.clone())),
        model: None,
        input: vec![Part::Text(Text::from(format!("texts 1\n{RESULT}")))],
        system_prompt: None,
        actor: None,
        headless: false,
        output_schema: None,
        ..StartRun::default()
    };
    stand.hub.start(&access, start).unwrap();
    assert_eq!(socket.run().await, [text(0), RESULT.to_owned()]);
}

#[tokio::test]
async fn a_session_that_is_busy_says_so() {
    let stand = Stand::open().await;
    let native = stand.run("gate").await;
    let body = json!({ "mode": "chat", "prompt": "x", "thread_id": native.thread }).to_string();
    let answer = post(&stand.http("/v1/agent/sessions"), "", &body).await;
    assert_eq!((answer.status, support::code(&answer.body).as_str()), (409, "session_busy"));
}

#[tokio::test]
async fn answers_reach_the_upstream_as_they_came_and_the_first_wins() {
    let stand = Stand::open().await;
    let native = stand.run(&format!("{}\n{}\n{RESULT}", permission("a"), permission("b"))).await;
    let mut first = stand.stream(&native, "").await;
    let mut second = stand.stream(&native, "").await;
    assert_eq!(first.text().await, permission("a"));
    assert_eq!(second.text().await, permission("a"), "a pending ask is shown to whoever comes");
    first.send(response("unknown", r#"{"behavior":"allow"}"#)).await;
    let allow = r#"{"behavior":"allow","updatedInput":{"n":1e400}}"#;
    first.send(response("a", allow)).await;
    assert_eq!(first.text().await, permission("b"));
    second.send(response("a", r#"{"behavior":"deny","message":"late"}"#)).await;
    assert_eq!(second.text().await, permission("b"));
    second.send(r#"{"type":"control_response","response":{"subtype":"error","request_id":"b","error":"broke"}}"#).await;
    assert_eq!(first.run().await, [RESULT]);
    assert_eq!(second.run().await, [RESULT]);
    let answers = stand.script.answers.lock().unwrap();
    let denied = Answer::Deny { message: "broke".into() };
    assert!(matches!(&answers[0], (ask, Answer::Native(body)) if ask.as_str() == "a" && body.as_str() == allow), "{answers:?}");
    assert_eq!((answers[1].0.as_str(), &answers[1].1), ("b", &denied));
    assert_eq!(answers.len(), 2);
}

#[tokio::test]
async fn an_answer_that_says_nothing_denies() {
    for body in
        [r#"{"type":"control_response","response":{"request_id":"a"}}"#.to_owned(), response("a", "\"allow\""), response("a", "null")]
    {
        let stand = Stand::open().await;
        let native = stand.run(&format!("{}\n{RESULT}", permission("a"))).await;
        let mut socket = stand.stream(&native, "").await;
        assert_eq!(socket.text().await, permission("a"));
        socket.send(body.clone()).await;
        socket.run().await;
        let answers = stand.script.answers.lock().unwrap();
        assert!(matches!(answers[..], [(_, Answer::Deny { .. })]), "{body}: {answers:?}");
    }
}

#[tokio::test]
async fn nobody_takes_a_settled_ask_for_pending_and_cursors_stay_exact() {
    let stand = Stand::open().await;
    let native = stand.run(&format!("{}\n{}\ngate\n{RESULT}", text(0), permission("a"))).await;
    let session = stand.hub.session(&stand.hub.admit(None).unwrap(), &SessionId::from(native.thread.clone())).unwrap();
    eventually(|| !session.pending_asks().is_empty()).await;
    let url = |what: &str| stand.http(&format!("/v1/agent/sessions/{}/{what}", native.id));
    let listed = get(&url("elicitations"), &native.token).await;
    let deadline = session.pending_asks()[0].deadline;
    let request = permission("a");
    let request = request.strip_suffix('}').unwrap();
    assert_eq!(listed.body, format!(r#"{{"elicitations":[{request},"deadline":{deadline}}}]}}"#));

    let by = interline_model::Actor { principal: session.principal().clone(), surface: "sse".into() };
    session.answer(&interline_model::AskId::from("a"), Answer::Allow { input: None, always: false }, by).unwrap();
    assert_eq!(get(&url("elicitations"), "").await.body, r#"{"elicitations":[]}"#);
    let mut fresh = stand.stream(&native, "").await;
    assert_eq!(fresh.text().await, text(0));
    assert_eq!(fresh.text().await, r#"{"type":"control_cancel_request","request_id":"a"}"#);
    let mut exact = stand.stream(&native, "&since_seq=1").await;
    assert_eq!(exact.text().await, permission("a"));
    let mut later = stand.stream(&native, "").await;
    assert!(later.is_silent().await);
    stand.script.open();
    for socket in [&mut fresh, &mut exact, &mut later] {
        assert_eq!(socket.run().await, [RESULT]);
    }
    assert_eq!(stand.stream(&native, "&since_seq=2").await.run().await, [RESULT]);
}

#[tokio::test]
async fn a_cancel_stops_the_run_and_nothing_else_does() {
    let stand = Stand::open().await;
    let native = stand.run("texts 1\ngate").await;
    let mut socket = stand.stream(&native, "").await;
    assert_eq!(socket.text().await, text(0));
    for nothing in [
        "",
        "null",
        "{",
        "[]",
        "7",
        "\"x\"",
        "{}",
        r#"{"type":7}"#,
        r#"{"type":"user","message":{"role":"user"}}"#,
        r#"{"type":"keep_alive"}"#,
        r#"{"type":"update_environment_variables","variables":{"A":"b"}}"#,
        r#"{"type":"control_request"}"#,
        r#"{"type":"control_request","request":{"subtype":"interrupt"}}"#,
        r#"{"type":"control_request","request_id":"r","request":{}}"#,
        r#"{"type":"control_response"}"#,
        r#"{"type":"control_response","response":{}}"#,
    ] {
        socket.send(nothing).await;
    }
    socket.send_raw(Message::Binary(Bytes::from_static(b"\xff\xfe"))).await;
    socket.send(r#"{"type":"control_request","request_id":"r\"1","request":{"subtype":"set_model","model":"m"}}"#).await;
    let error = r#"{"type":"control_response","response":{"subtype":"error","request_id":"r\"1","error":"no: {\"subtype\":\"set_model\",\"model\":\"m\"}"}}"#;
    assert_eq!(socket.text().await, error);
    socket.send(r#"{"type":"control_request","request_id":"r","request":{"subtype":"new"}}"#).await;
    assert!(socket.text().await.contains(r#"no: {\"subtype\":\"new\"}"#));
    // The opcode does not matter.
    socket.send_raw(Message::Binary(Bytes::from_static(br#"{"type":"control_cancel_request","request_id":"cancel-1"}"#))).await;
    assert_eq!(socket.run().await, [INTERRUPTED]);
    socket.send(r#"{"type":"control_cancel_request","request_id":"cancel-2"}"#).await;
    socket.send(r#"{"type":"control_request","request_id":"i","request":{"subtype":"interrupt"}}"#).await;
    assert!(socket.text().await.contains("no turn in progress"));
}

#[tokio::test]
async fn an_interrupt_is_acknowledged_before_what_it_brings_about_and_a_deaf_upstream_is_spoken_for() {
    let stand = Stand::open().await;
    let native = stand.run("texts 1\ndeaf\ngate").await;
    let mut socket = stand.stream(&native, "").await;
    assert_eq!(socket.text().await, text(0));
    socket.send(r#"{"type":"control_request","request_id":"i","request":{"subtype":"interrupt"}}"#).await;
    assert_eq!(socket.text().await, r#"{"type":"control_response","response":{"subtype":"success","request_id":"i"}}"#);
    let end = socket.text().await;
    assert!(end.contains(r#""subtype":"success""#) && end.contains(r#""stop_reason":"interrupted""#), "{end}");
    assert!(end.ends_with(r#""session_id":"up"}"#), "{end}");
    let state = post(&stand.http(&format!("/v1/agent/sessions/{}/resume", native.id)), "", "").await;
    assert_eq!((state.status, state.body), (202, format!(r#"{{"session_id":"{}","state":"cancelled"}}"#, native.id)));
}

#[tokio::test]
async fn an_upstream_that_is_down_ends_in_a_result() {
    let stand = Stand::open().await;
    let native = stand.run("refuse").await;
    let frames = stand.stream(&native, "").await.run().await;
    assert_eq!(frames.len(), 1);
    assert!(frames[0].contains(r#""errors":[{"message":"nobody is there","recoverable":false}]"#), "{}", frames[0]);
}

#[tokio::test]
async fn streams_are_checked_in_the_documented_order() {
    let stand = Stand::guarded().await;
    let start = |secret: &'static str| {
        let url = stand.http("/v1/agent/sessions");
        async move { post(&url, secret, r#"{"mode":"chat","prompt":"gate"}"#).await.json() }
    };
    let (alice, other, bob) = (start(ALICE).await, start(ALICE).await, start(BOB).await);
    let id = |session: &serde_json::Value| session["session_id"].as_str().unwrap().to_owned();
    let token = |session: &serde_json::Value| session["session_token"].as_str().unwrap().to_owned();
    let unknown = "00000000-0000-4000-8000-000000000000".to_owned();
    let path = |id: &str, token: &str| stand.ws(&format!("/v1/agent/sessions/{id}/stream?session_token={token}"));
    for (url, bearer, status, code) in [
        (path("no-uuid", ""), "", 400, "bad_session_id"),
        (path("no-uuid", &token(&alice)), "", 400, "bad_session_id"),
        (path(&id(&alice), ""), "", 401, "missing_session_token"),
        (path(&unknown, ""), "", 401, "missing_session_token"),
        (path(&id(&alice), "ist_0"), "", 401, "invalid_session_token"),
        (path(&id(&alice), ALICE), "", 401, "invalid_session_token"),
        (path(&id(&alice), ""), "nope", 401, "invalid_session_token"),
        (path(&id(&alice), &token(&other)), "", 401, "invalid_session_token"),
        (path(&id(&alice), &token(&bob)), ALICE, 401, "invalid_session_token"),
        (path(&unknown, &token(&alice)), "", 401, "invalid_session_token"),
        (path(&unknown, ""), ALICE, 404, "session_not_found"),
        (path(&id(&alice), ""), BOB, 404, "session_not_found"),
    ] {
        let (seen, body) = Socket::dial(&url, bearer).await.err().unwrap_or_else(|| panic!("{url} opens"));
        assert_eq!((seen, support::code(&body).as_str()), (status, code), "{url} {bearer}");
    }
    assert!(Socket::dial(&path(&id(&alice), &token(&alice)), "").await.is_ok());
    assert!(Socket::dial(&path(&id(&alice), ""), &token(&alice)).await.is_ok());
    assert!(Socket::dial(&path(&id(&alice), ""), ALICE).await.is_ok());
    let plain = get(&stand.http(&format!("/v1/agent/sessions/{}/stream?session_token={}", id(&alice), token(&alice))), "").await;
    assert_eq!((plain.status, plain.body.as_str()), (400, "Bad Request\n"));
}

#[tokio::test]
async fn a_token_opens_what_it_was_given_out_for() {
    let stand = Stand::open().await;
    let one = stand.run(&format!("texts 1\n{RESULT}")).await;
    let body = json!({ "mode": "chat", "prompt": format!("texts 2\n{RESULT}"), "thread_id": one.thread });
    assert_eq!(stand.stream(&one, "").await.run().await.len(), 2);
    let two = stand.create(&body).await;
    let session = stand.whole_session(&one).await;
    let hex = |native: &Native| format!("run-{}", native.id.replace('-', ""));
    let with = |id: &str, token: &str| Native { id: id.to_owned(), token: token.to_owned(), ..one.clone() };
    // Not the thread, nor another run of it, by a run's token; in the query or the header, for the stream or beside it.
    for foreign in [with(&one.thread, &one.token), with(&two.id, &one.token), with(&hex(&two), &one.token), with(&one.id, &two.token)] {
        let in_query = Socket::dial(&stand.ws(&foreign.path("")), "").await.err().unwrap();
        let in_header = Socket::dial(&stand.ws(&format!("/v1/agent/sessions/{}/stream", foreign.id)), &foreign.token).await.err().unwrap();
        for (status, body) in [in_query, in_header] {
            assert_eq!((status, support::code(&body).as_str()), (401, "invalid_session_token"), "{foreign:?}");
        }
        for what in ["result", "elicitations"] {
            let answer = get(&stand.http(&format!("/v1/agent/sessions/{}/{what}", foreign.id)), &foreign.token).await;
            assert_eq!(answer.status, 404, "{foreign:?}");
        }
        let resumed = post(&stand.http(&format!("/v1/agent/sessions/{}/resume", foreign.id)), &foreign.token, "").await;
        assert_eq!(resumed.status, 404, "{foreign:?}");
    }
    assert_eq!(stand.stream(&with(&hex(&one), &one.token), "&since_seq=1").await.run().await, [RESULT]);
    assert_eq!(stand.stream(&session, "&since_seq=4").await.run().await, [RESULT]);
    assert_eq!(stand.stream(&with(&hex(&two), &session.token), "&since_seq=2").await.run().await, [RESULT]);
}

#[tokio::test]
async fn tokens_are_refreshed_by_a_long_lived_one_only() {
    let stand = Stand::guarded().await;
    let created =
        post(&stand.http("/v1/agent/sessions"), ALICE, &json!({ "mode": "chat", "prompt": format!("texts 1\n{RESULT}") }).to_string())
            .await
            .json();
    let id = created["session_id"].as_str().unwrap();
    let url = |id: &str, what: &str| stand.http(&format!("/v1/agent/sessions/{id}/{what}"));
    let refreshed = post(&url(id, "refresh-token"), ALICE, "").await;
    assert_eq!(refreshed.status, 200);
    let token = refreshed.json()["session_token"].as_str().unwrap().to_owned();
    assert!(refreshed.json()["expires_at"].is_u64());
    let ws = |token: &str| stand.ws(&format!("/v1/agent/sessions/{id}/stream?session_token={token}"));
    assert_eq!(Socket::open(&ws(&token)).await.run().await.len(), 2);
    let old = created["session_token"].as_str().unwrap();
    assert!(Socket::open(&format!("{}&since_seq=1", ws(old))).await.run().await.len() == 1, "the old one stays valid");
    for (id, secret, status, code) in [
        (id, token.as_str(), 401, "invalid_token"),
        (id, "", 401, "missing_bearer"),
        (id, BOB, 404, "not_found"),
        ("00000000-0000-4000-8000-000000000000", ALICE, 404, "not_found"),
        ("x", ALICE, 400, "bad_id"),
    ] {
        let answer = post(&url(id, "refresh-token"), secret, "").await;
        assert_eq!((answer.status, support::code(&answer.body).as_str()), (status, code), "{id} {secret}");
    }
    for what in ["result", "elicitations"] {
        assert_eq!(get(&url(id, what), ALICE).await.status, 200);
        assert_eq!(get(&url(id, what), &token).await.status, 200);
        assert_eq!(get(&url(id, what), BOB).await.status, 404);
        assert_eq!(get(&url(id, what), "nope").await.status, 401);
        assert_eq!(get(&url("x", what), ALICE).await.status, 400);
    }
    assert!(!format!("{created}{}", refreshed.body).contains(ALICE));
}

#[tokio::test]
async fn a_session_token_expires() {
    let stand = Stand::configured(Config { session_token_ms: 1_000, ..Config::default() }).await;
    let native = stand.run("gate").await;
    let mut socket = stand.stream(&native, "").await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let (status, body) = Socket::dial(&stand.ws(&native.path("")), "").await.err().unwrap();
    assert_eq!((status, support::code(&body).as_str()), (401, "invalid_session_token"));
    assert!(body.contains("token has invalid claims: token is expired"));
    stand.script.open();
    assert!(!socket.run().await.is_empty(), "a connection outlives its token");
}

#[tokio::test]
async fn what_is_not_there_is_answered_in_plain_text() {
    let stand = Stand::open().await;
    let native = stand.run("gate").await;
    let session = format!("/v1/agent/sessions/{}", native.id);
    for (method, path, status) in [
        ("GET", "/v1/agent/sessions".to_owned(), 405),
        ("POST", format!("{session}/stream"), 405),
        ("GET", format!("{session}/refresh-token"), 405),
        ("GET", session.clone(), 404),
        ("DELETE", session.clone(), 404),
        ("POST", format!("{session}/cancel"), 404),
        ("GET", format!("{session}/cost"), 404),
        ("GET", "/v1/agent/x".to_owned(), 404),
        ("GET", "/v1/code/sessions".to_owned(), 405),
    ] {
        let answer = request(method, &stand.http(&path), &[], "").await;
        let text = if status == 405 { "Method Not Allowed\n" } else { "404 page not found\n" };
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
        assert_eq!(answer.rest().await, text, "{method} {path}");
    }
    let result = get(&stand.http(&format!("{session}/result")), "").await;
    assert_eq!((result.status, support::code(&result.body).as_str()), (404, "result_not_ready"));
    assert_eq!(
        delete(&stand.http(&format!("/v1/code/sessions/{}", native.thread)), "").await.status,
        204,
        "the same session on the bridge"
    );
}

#[tokio::test]
async fn a_message_over_the_limit_closes_with_1009_and_one_at_the_limit_does_not() {
    let stand = Stand::open().await;
    let native = stand.run("gate").await;
    let message = |size: usize| {
        let frame = r#"{"type":"control_request","request_id":"r","request":{"subtype":"x","pad":""}}"#;
        frame.replace(r#""pad":"""#, &format!(r#""pad":"{}""#, "p".repeat(size - frame.len())))
    };
    let mut socket = stand.stream(&native, "").await;
    socket.send(message(32_768)).await;
    assert!(socket.text().await.contains("no: "));
    socket.send(message(32_769)).await;
    assert_eq!(socket.all().await, (vec![], Some((1009, String::new()))));

    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
    let mut socket = stand.stream(&native, "").await;
    let half = |opcode, is_final| Message::Frame(Frame::message(Bytes::from("x".repeat(20_000)), OpCode::Data(opcode), is_final));
    socket.send_raw(half(Data::Text, false)).await;
    socket.send_raw(half(Data::Continue, true)).await;
    assert_eq!(socket.all().await, (vec![], Some((1009, String::new()))), "fragments add up");
    assert!(stand.stream(&native, "").await.is_silent().await, "others do not notice");
}

#[tokio::test]
async fn pings_are_sent_and_a_client_without_pongs_is_cut() {
    let config = Config { ping_interval_ms: 100, pong_timeout_ms: 800, ..Config::default() };
    let stand = Stand::configured(config).await;
    let native = stand.run("gate").await;
    let mut alive = stand.stream(&native, "").await;
    let mut silent = stand.stream(&native, "").await;
    // Whoever reads answers pings; whoever does not, does not.
    let keeps = tokio::spawn(async move {
        let quiet = tokio::time::timeout(Duration::from_millis(2_000), alive.next()).await;
        quiet.is_err()
    });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (frames, close) = silent.all().await;
    assert_eq!((frames.len(), close), (0, None), "cut without a close frame");
    assert!(keeps.await.unwrap(), "whoever answers stays");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_and_can_come_back() {
    let stand = Stand::configured(Config { write_timeout_ms: 1_000, ..Config::default() }).await;
    let big = |n: usize| format!(r#"{{"type":"streamlined_text","text":"{}","uuid":"b{n}"}}"#, "x".repeat(1 << 20));
    let frames: Vec<String> = (0..24).map(big).collect();
    // The frames are too large to be the prompt of a request.
    let access = stand.hub.admit(None).unwrap();
    let start = StartRun {
        surface: Text::from_static("sse"),
        cell: None,
        session: None,
        model: None,
        input: vec![Part::Text(Text::from(format!("gate\n{}\ngate\n{RESULT}", frames.join("\n"))))],
        system_prompt: None,
        actor: None,
        headless: false,
        output_schema: None,
        ..StartRun::default()
    };
    let (session, run) = stand.hub.start(&access, start).unwrap();
    let native = Native { id: run.dashed(), token: String::new(), thread: session.id().to_string() };
    let token = post(&stand.http(&format!("/v1/agent/sessions/{}/refresh-token", native.id)), "", "").await.json();
    let native = Native { token: token["session_token"].as_str().unwrap().to_owned(), ..native };
    let mut stalled = stand.stream(&native, "").await;
    let mut reading = stand.stream(&native, "").await;
    stand.script.open();
    for frame in &frames {
        assert!(reading.text().await == *frame, "the others do not notice");
    }
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    let (got, close) = stalled.all().await;
    assert!(got.len() < frames.len() && close.is_none(), "cut after {}", got.len());
    stand.script.open();
    let rest = stand.stream(&native, &format!("&since_seq={}", got.len())).await.run().await;
    assert!([&got[..], &rest[..rest.len() - 1]].concat() == frames, "what it lacked, exactly");
}

#[tokio::test]
async fn sockets_close_when_the_server_goes() {
    let stand = Stand::open().await;
    let native = stand.run("gate").await;
    let mut cloud = stand.stream(&native, "").await;
    let mut bridge = stand.turn(&native.thread, "").await;
    stand.hub.shutdown(Duration::from_millis(10)).await;
    let (frames, close) = cloud.all().await;
    assert_eq!(close.unwrap().0, 1001, "{frames:?}");
    let code = bridge.all().await.1.unwrap().0;
    assert!(code == 1001 || code == 1000, "{code}");
    let answer = post(&stand.http("/v1/agent/sessions"), "", r#"{"mode":"chat","prompt":"x"}"#).await;
    assert_eq!((answer.status, support::code(&answer.body).as_str()), (503, "shutting_down"));
}

/// A log that has lost everything, as after retention.
struct Forgetful;

impl Journal for Forgetful {
    fn open(&self, _: &LogKey, _: &Birth, _: Durability) -> Arc<dyn Log> {
        Arc::new(Self)
    }

    fn remove(&self, _: &LogKey) {}

    fn stored(&self) -> Result<Vec<Stored>, JournalError> {
        Ok(Vec::new())
    }

    fn health(&self) -> Health {
        Health::Well
    }

    fn stored_bytes(&self) -> u64 {
        0
    }

    fn flush(&self) -> Result<(), JournalError> {
        Ok(())
    }
}

impl Log for Forgetful {
    fn append(&self, _: Record, _: Mark) -> Result<(), Unstored> {
        Ok(())
    }

    fn len(&self) -> usize {
        0
    }

    fn first(&self) -> usize {
        0
    }

    fn replay(&self, _: usize, _: &mut dyn FnMut(&Record)) -> Result<(), Damaged> {
        Ok(())
    }

    fn forget_before(&self, _: usize) {}

    fn durability(&self) -> Durability {
        Durability::Memory
    }
}

#[tokio::test]
async fn what_is_no_longer_kept_is_said_and_never_guessed() {
    let stand = Stand::with(Gate::Open, Config::default(), Arc::new(Forgetful)).await;
    let native = stand.run(&format!("texts 2\n{RESULT}")).await;
    eventually(|| {
        stand.hub.session(&stand.hub.admit(None).unwrap(), &SessionId::from(native.thread.clone())).unwrap().active_run().is_none()
    })
    .await;
    let (frames, close) = stand.stream(&native, "&since_seq=1").await.all().await;
    assert_eq!(close, Some((1000, "desynced".to_owned())));
    let id = &native.id;
    assert_eq!(
        frames,
        [format!(
            r#"{{"final_result_url":"/v1/agent/sessions/{id}/result","reason":"requested seq 1, and nothing of the run is kept","session_id":"{id}","since_seq":1,"type":"biumind.session_desynced"}}"#
        )]
    );
}

#[tokio::test]
async fn a_session_waits_for_its_turn_where_its_cell_lets_it() {
    let stand = Stand::that(Conduct { on_busy: OnBusy::Interrupt, ..Conduct::default() }).await;
    let first = stand.run("texts 1\ngate").await;
    let mut socket = stand.stream(&first, "").await;
    assert_eq!(socket.text().await, text(0));
    let second = stand.create(&json!({ "mode": "chat", "prompt": RESULT, "thread_id": first.thread })).await;
    assert_eq!(socket.text().await, INTERRUPTED);
    let mut socket = stand.stream(&second, "").await;
    assert_eq!(socket.text().await, RESULT);
}

#[tokio::test]
async fn a_token_for_one_run_answers_what_that_run_asks() {
    let stand = Stand::open().await;
    let first = stand.run("texts 1\ngate").await;
    let mut old = stand.stream(&first, "").await;
    assert_eq!(old.text().await, text(0));
    stand.script.open();
    old.send(r#"{"type":"control_cancel_request","request_id":"c"}"#).await;
    let second = stand.create(&json!({ "mode": "chat", "prompt": permission("q"), "thread_id": first.thread })).await;
    let mut socket = stand.stream(&second, "").await;
    assert_eq!(socket.text().await, permission("q"));
    old.send(response("q", r#"{"behavior":"allow"}"#)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(stand.script.answers.lock().unwrap().is_empty(), "the first run's socket answers nothing of the second's");
    socket.send(response("q", r#"{"behavior":"allow"}"#)).await;
    eventually(|| stand.script.answers.lock().unwrap().len() == 1).await;
}
