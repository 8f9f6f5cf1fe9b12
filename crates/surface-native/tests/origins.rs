//! Which web pages may come: over HTTP, over both WebSockets, with and without tokens that count; and paths that nobody can read.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::sync::Arc;

use interline_hub::{Gate, SecretHash, Token};
use interline_journal::Memory;
use interline_model::CellName;
use interline_surface_native::Config;
use interline_testkit::request;
use support::{ALICE, Native, Stand, code};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

const EVIL: &str = "https://evil.example";

/// Opens a WebSocket as a page of this origin would; the status of what came of it.
async fn upgrade(url: &str, origin: &str, bearer: &str) -> (u16, String) {
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("origin", origin.parse().unwrap());
    if !bearer.is_empty() {
        request.headers_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
    }
    match connect_async(request).await {
        Ok((_, answer)) => (answer.status().as_u16(), String::new()),
        Err(Error::Http(answer)) => {
            let body = answer.body().as_deref().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
            (answer.status().as_u16(), body)
        }
        Err(error) => panic!("{url}: {error}"),
    }
}

#[tokio::test]
async fn on_an_open_server_a_foreign_page_starts_and_opens_nothing() {
    let stand = Stand::open().await;
    let prompt = r#"{"mode":"chat","prompt":"gate"}"#;
    let id = stand.bridge().await;
    let messages = format!("/v1/code/sessions/{id}/messages");
    for (path, body) in [("/v1/agent/sessions", prompt), ("/v1/code/sessions", ""), (&*messages, r#"{"prompt":"gate"}"#)] {
        for headers in [&[("origin", EVIL), ("content-type", "text/plain")][..], &[("origin", "null"), ("authorization", "Bearer made-up")]]
        {
            let answer = request("POST", &stand.http(path), headers, body).await;
            assert_eq!((answer.status, answer.headers.get("access-control-allow-origin")), (403, None), "{path}");
            let said = answer.rest().await;
            if path.starts_with("/v1/agent/") {
                assert_eq!(code(&said), "forbidden_origin");
            } else {
                assert!(said.starts_with(r#"{"error":"pages from this origin"#), "{said}");
            }
        }
    }
    assert_eq!(stand.script.inputs.lock().unwrap().len(), 0);

    let native = stand.run("gate").await;
    stand.message(&id, "gate").await;
    let stream = stand.ws(&native.path(""));
    let (status, said) = upgrade(&stream, EVIL, "").await;
    assert_eq!((status, code(&said).as_str()), (403, "forbidden_origin"));
    let turn = stand.ws(&format!("/v1/code/sessions/{id}/ws"));
    for bearer in ["", "made-up"] {
        assert_eq!(upgrade(&turn, EVIL, bearer).await.0, 403);
    }
    let delete = request("DELETE", &stand.http(&format!("/v1/code/sessions/{id}")), &[("origin", EVIL)], "").await;
    assert_eq!(delete.status, 403);

    // Pages of this machine, and who is no page, come as before.
    assert_eq!(upgrade(&stream, "http://localhost:5173", "").await.0, 101);
    assert_eq!(upgrade(&turn, "http://127.0.0.1:3000", "").await.0, 101);
    let _ = stand.stream(&native, "").await;
}

#[tokio::test]
async fn a_name_that_was_made_to_lead_here_is_not_this_server() {
    let stand = Stand::open().await;
    let headers = [("host", "evil.example:80"), ("origin", "http://evil.example:80")];
    let answer = request("POST", &stand.http("/v1/agent/sessions"), &headers, r#"{"mode":"chat","prompt":"gate"}"#).await;
    assert_eq!(answer.status, 403);
    assert_eq!(stand.script.inputs.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn where_tokens_count_a_socket_with_one_may_come_from_anywhere() {
    let stand = Stand::guarded().await;
    let bearer = format!("Bearer {ALICE}");
    let create = |path: &'static str, body: &'static str| {
        let (url, bearer) = (stand.http(path), bearer.clone());
        async move {
            let answer = request("POST", &url, &[("origin", EVIL), ("authorization", &bearer)], body).await;
            assert_eq!(answer.status, 201);
            serde_json::from_str::<serde_json::Value>(&answer.rest().await).unwrap()
        }
    };
    let created = create("/v1/agent/sessions", r#"{"mode":"chat","prompt":"gate"}"#).await;
    let member = |name: &str| created[name].as_str().unwrap().to_owned();
    let native = Native { id: member("session_id"), token: member("session_token"), thread: member("thread_id") };
    assert_eq!(upgrade(&stand.ws(&native.path("")), EVIL, "").await.0, 101);
    let bare = stand.ws(&format!("/v1/agent/sessions/{}/stream", native.id));
    assert_eq!(upgrade(&bare, EVIL, &native.token).await.0, 101);
    assert_eq!(upgrade(&bare, EVIL, "").await.0, 403);
    assert_eq!(upgrade(&format!("{bare}?session_token=made-up"), EVIL, "").await.0, 401);

    let bridge = create("/v1/code/sessions", "").await["id"].as_str().unwrap().to_owned();
    let url = stand.http(&format!("/v1/code/sessions/{bridge}/messages"));
    assert_eq!(request("POST", &url, &[("authorization", &bearer)], r#"{"prompt":"gate"}"#).await.status, 202);
    let turn = stand.ws(&format!("/v1/code/sessions/{bridge}/ws"));
    assert_eq!(upgrade(&turn, EVIL, "").await.0, 403);
    assert_eq!(upgrade(&turn, EVIL, ALICE).await.0, 101);
}

#[tokio::test]
async fn named_origins_come_in_and_hear_what_they_need() {
    let stand = Stand::configured(Config { origins: vec!["https://app.example".into()], ..Config::default() }).await;
    let page = ("origin", "https://app.example");
    for path in ["/v1/agent/sessions", "/v1/code/sessions/x/ws", "/v1/agent/no/such/path"] {
        let asks = [page, ("access-control-request-headers", "authorization")];
        let answer = request("OPTIONS", &stand.http(path), &asks, "").await;
        assert_eq!(answer.status, 204, "{path}");
        assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(answer.headers["access-control-allow-headers"], "authorization");
    }
    for (method, path, status) in [
        ("POST", "/v1/code/sessions", 201),
        ("POST", "/v1/agent/sessions", 400),
        ("GET", "/v1/agent/nothing", 404),
        ("PUT", "/v1/code/sessions", 405),
    ] {
        let answer = request(method, &stand.http(path), &[page], "").await;
        assert_eq!((answer.status, &answer.headers["access-control-allow-origin"]), (status, &"https://app.example".parse().unwrap()));
    }
    let native = stand.run("gate").await;
    assert_eq!(upgrade(&stand.ws(&native.path("")), "https://app.example", "").await.0, 101);
    assert_eq!(upgrade(&stand.ws(&native.path("")), "http://localhost:5173", "").await.0, 403, "the default is no longer there");
}

#[tokio::test]
async fn a_path_that_is_no_utf8_gets_the_surfaces_own_words() {
    let token = Token::new("alice", SecretHash::of(ALICE), vec![CellName::from("*")]);
    for gate in [Gate::Open, Gate::Tokens(vec![token])] {
        let stand = Stand::with(gate, Config::default(), Arc::new(Memory::default())).await;
        for path in ["/v1/agent/sessions/%ff/result", "/v1/agent/sessions/%ff/stream", "/v1/agent/%ff"] {
            let answer = request("GET", &stand.http(path), &[], "").await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(code(&answer.rest().await), "not_found");
        }
        for path in ["/v1/code/sessions/%ff/cost", "/v1/code/sessions/%ff/ws", "/v1/code/%c3%28"] {
            let answer = request("GET", &stand.http(path), &[], "").await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(answer.rest().await, r#"{"error":"the path is no UTF-8"}"#);
        }
    }
}
