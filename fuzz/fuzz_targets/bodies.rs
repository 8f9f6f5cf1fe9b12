//! Whatever clients send as a body: it is taken or refused with a reason in the surface's own shape, never with a server's error.
//!
//! The first byte says where the rest is sent.

#![no_main]

use interline_fuzz::bodies::{ASKS, Answered, CELL, SESSION, Server, Socket};
use interline_fuzz::mutate;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    let Some((door, body)) = data.split_first() else { return };
    // Paused: what waits for a deadline waits no longer than everything else takes.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(knock(*door, body));
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::body(data, size, max_size, seed) });

async fn knock(door: u8, body: &[u8]) {
    let server = Server::default();
    match door {
        b'r' => sse(&server.send("POST", &format!("/cells/{CELL}/run"), body.to_vec()).await),
        b'0'..=b'3' => {
            server.asked().await;
            let ask = ASKS[usize::from(door - b'0')];
            sse(&server.send("POST", &format!("/cells/{CELL}/hitl/{ask}"), body.to_vec()).await);
        }
        b'4'..=b'7' => {
            let (_, run) = server.asked().await;
            let ask = ASKS[usize::from(door - b'4')];
            sse(&server.send("POST", &format!("/cells/{CELL}/runs/{run}/approvals/{ask}"), body.to_vec()).await);
        }
        b'a'..=b'c' => {
            server.asked().await;
            let action = ["model", "mode", "rewind"][usize::from(door - b'a')];
            sse(&server.send("POST", &format!("/cells/{CELL}/sessions/{SESSION}/{action}"), body.to_vec()).await);
        }
        b's' => rest(&server.send("POST", "/api/sessions", body.to_vec()).await, "session_id"),
        b'p' => {
            server.asked().await;
            rest(&server.send("PATCH", &format!("/api/sessions/{SESSION}"), body.to_vec()).await, "id");
        }
        // An event as it is, and the payload of a message to a session that is asked something, or of one that is not.
        b'e' => {
            let packet = String::from_utf8_lossy(body);
            event(&server, &packet).await;
        }
        b'm' | b'n' => {
            let Ok(Value::Object(mut payload)) = serde_json::from_slice(body) else { return };
            if door == b'm' {
                server.asked().await;
                payload.insert("session_id".to_owned(), Value::from(SESSION));
            } else {
                let made = server.send("POST", "/api/sessions", Vec::new()).await;
                let made: Value = serde_json::from_str(&made.body).expect("a session");
                payload.insert("session_id".to_owned(), made["session_id"].clone());
            }
            event(&server, &serde_json::json!(["chat:send", payload]).to_string()).await;
        }
        _ => {}
    }
}

/// Taken, or refused as `sse.md` §1.6 says.
fn sse(answer: &Answered) {
    if answer.status.is_success() {
        return;
    }
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body));
    // What no client can wish behind a proxy, or no agent server do, is said as such.
    let unsupported = answer.status.as_u16() == 501 && body["kind"] == "unsupported";
    assert!(answer.status.is_client_error() || unsupported, "{}: {body}", answer.status);
    for member in ["type", "error", "kind", "severity"] {
        assert!(body[member].is_string(), "no {member}: {body}");
    }
}

/// Taken, or refused as `socketio.md` §5 says.
fn rest(answer: &Answered, member: &str) {
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body));
    if answer.status.is_success() {
        assert!(body[member].is_string(), "no {member}: {body}");
    } else {
        assert!(answer.status.is_client_error(), "{}: {body}", answer.status);
        assert!(!body["detail"].is_null(), "no detail: {body}");
    }
}

/// Every event that is one is acknowledged, and whatever is none is survived.
async fn event(server: &Server, packet: &str) {
    let socket = server.socket().await;
    // Packets of one payload are told apart by this byte; JSON has it escaped.
    let packet = packet.replace('\u{1e}', " ");
    // The library's reader of packets takes no space before the array, and no escape in the event's name.
    let is_name = |name: &&RawValue| name.get().starts_with('"') && !name.get().contains('\\');
    let is_event = packet.starts_with('[')
        && serde_json::from_str::<Value>(&packet).is_ok()
        && serde_json::from_str::<Vec<&RawValue>>(&packet).is_ok_and(|parts| parts.first().is_some_and(is_name));
    let acknowledged = acknowledged(&socket, &packet).await;
    assert!(acknowledged || !is_event, "not acknowledged: {packet}");
    socket.close().await;
}

async fn acknowledged(socket: &Socket<'_>, packet: &str) -> bool {
    if !socket.post(format!("421{packet}")).await {
        return false;
    }
    for _ in 0..4 {
        let Some(packets) = socket.poll().await else { return false };
        // Digits at the packet's beginning belong to the number that is acknowledged: then it is another's.
        if let Some(ack) = packets.iter().find_map(|packet| packet.strip_prefix("431").filter(|ack| ack.starts_with('['))) {
            let ack: Vec<Value> = serde_json::from_str(ack).expect("an acknowledgement");
            assert!(ack.first().is_some_and(|ack| ack["ok"].is_boolean() && ack["status"].is_string()), "{ack:?}");
            return true;
        }
    }
    false
}
