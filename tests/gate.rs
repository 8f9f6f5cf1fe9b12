//! Who comes in: tokens that are replaced, expire or are for some surfaces only, tickets, and how much is too much.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "support/wire.rs"]
mod wire;

use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use interline_sim::{Options, Pace, Simulator};
use interline_testkit::{Answer, Program, Stream, Temp, eventually, get, post, request};
use serde_json::{Value, json};
use support::{INTERLINE, end, events};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::{RawSocket, exchange};

struct Stand {
    program: Program,
    _stop: DropGuard,
}

impl Stand {
    /// A simulator, and the program before it with these tokens, and more of `[auth]` and of the rest.
    async fn new(auth: &str, tokens: &str, more: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let simulator = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let sim = Simulator::new(Options { pace: Pace::none(), ..Options::default() }).expect("a simulator");
        tokio::spawn(sim.serve(listener, stop.clone()));
        let config = format!(
            r#"
[auth]
mode = "tokens"
{auth}

{tokens}

[[upstream]]
name = "plane"
kind = "cloud"
mode = "agent"
environment_id = "7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11"
url = "http://{simulator}"
credential = {{ value = "upstream-secret" }}

[[route]]
cell = "*"
upstream = "plane"

{more}
"#
        );
        Self { program: Program::serve(INTERLINE, &config).await, _stop: stop.drop_guard() }
    }

    fn base(&self) -> &str {
        self.program.base()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base())
    }

    async fn start(&self, secret: &str, prompt: &str) -> (Stream, String, String) {
        let body = json!({"actor": "u", "messages": [{"role": "user", "content": prompt}]});
        let bearer = format!("Bearer {secret}");
        let stream = request("POST", &self.url("/cells/c/run"), &[("authorization", &bearer)], body.to_string()).await;
        assert_eq!(stream.status, 200);
        let header = |name: &str| stream.headers[name].to_str().expect("text").to_owned();
        let (run, session) = (header("x-run-id"), header("x-session-id"));
        (stream, run, session)
    }

    /// A request that waits for an answer, once there is one.
    async fn pending(&self, secret: &str, run: &str) -> String {
        let mut id = String::new();
        eventually("the run asks", Duration::from_secs(10), async || {
            let asks = get(&self.url(&format!("/cells/c/runs/{run}/asks")), secret).await.json();
            id = asks["asks"][0]["request_id"].as_str().unwrap_or_default().to_owned();
            !id.is_empty()
        })
        .await;
        id
    }

    async fn allow(&self, secret: &str, ask: &str) -> Answer {
        post(&self.url(&format!("/cells/c/hitl/{ask}")), secret, r#"{"grant":"allow"}"#).await
    }

    /// The counter of refusals for this reason.
    async fn denied(&self, reason: &str) -> u64 {
        let metrics = get(&self.url("/metrics"), "").await.body;
        let line = format!("interline_denied_total{{reason=\"{reason}\"}} ");
        metrics.lines().find_map(|text| text.strip_prefix(&line)?.parse().ok()).unwrap_or(0)
    }

    async fn native(&self, secret: &str, session: &str) -> Native {
        self.native_behind(secret, session, 1).await
    }

    /// The frames of a session behind so many.
    async fn native_behind(&self, secret: &str, session: &str, seen: usize) -> Native {
        let url = self.url(&format!("/v1/agent/sessions/{session}/stream?since_seq={seen}")).replacen("http", "ws", 1);
        let mut request = url.into_client_request().expect("a request");
        request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().expect("a header"));
        tokio_tungstenite::connect_async(request).await.expect("a WebSocket").0
    }
}

type Native = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// What a native socket says to its end, and the close frame.
async fn to_the_end(mut socket: Native) -> (Vec<String>, Option<(u16, String)>) {
    let mut frames = Vec::new();
    loop {
        match tokio::time::timeout(Duration::from_secs(20), socket.next()).await.expect("it ends in time") {
            Some(Ok(Message::Text(text))) => frames.push(text.to_string()),
            Some(Ok(Message::Close(close))) => return (frames, close.map(|close| (close.code.into(), close.reason.to_string()))),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return (frames, None),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tokens expire by wall time")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// The moment in so many milliseconds, as TOML has it, and how long until then.
fn moment(ahead: u64) -> (String, SystemTime) {
    let at = now() + Duration::from_millis(ahead);
    let since = at.duration_since(UNIX_EPOCH).expect("after 1970");
    let (days, of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant's civil_from_days.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    (format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis()), at)
}

fn token(name: &str, more: &str) -> String {
    format!("[[token]]\nname = \"{name}\"\ncells = [\"*\"]\n{more}\n")
}

/// A token whose old secret expires at a moment, beside its new one.
fn rotating(expires: &str) -> String {
    token("web", &format!("secret = [{{ value = \"old\", expires = {expires} }}, {{ value = \"new\" }}]"))
}

async fn until(at: SystemTime) {
    let wait = at.duration_since(now()).unwrap_or_default();
    tokio::time::sleep(wait + Duration::from_millis(50)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_d13_a_token_expires_in_the_middle_of_a_run_and_its_streams_show_it_to_the_end() {
    let (expires, at) = moment(3_000);
    let stand = Stand::new("", &rotating(&expires), "").await;
    let (sse, run, session) = stand.start("old", "ask").await;
    let ask = stand.pending("old", &run).await;
    let mut socket = RawSocket::connect(stand.base(), "", &json!({"token": "old"})).await.expect("a socket");
    assert_eq!(socket.emit("session:subscribe", &json!({"session_id": session})).await.expect("an answer")["ok"], true);
    let native = tokio::spawn(to_the_end(stand.native("old", &session).await));
    until(at).await;
    // Whatever is new needs a new token, on every surface, and is told why.
    let refused = get(&stand.url(&format!("/cells/c/runs/{run}")), "old").await;
    assert_eq!((refused.status, refused.json()["kind"].as_str()), (401, Some("invalid_token")));
    assert!(refused.body.contains("has expired: come with a new one"), "{}", refused.body);
    let refused = get(&stand.url("/api/sessions"), "old").await;
    assert!(refused.status == 401 && refused.body.contains("expired"), "{}", refused.body);
    let refused = post(&stand.url("/v1/agent/sessions"), "old", r#"{"mode":"chat"}"#).await;
    assert!(refused.status == 401 && refused.body.contains("expired"), "{}", refused.body);
    let refused = RawSocket::connect(stand.base(), "", &json!({"token": "old"})).await.err().expect("a refusal");
    assert!(refused.contains("Unauthorized: the token has expired"), "{refused}");
    let answer = json!({"session_id": session, "message": "Allow"});
    let refused = socket.emit("chat:send", &answer).await.expect("an answer");
    assert_eq!((refused["ok"].as_bool(), refused["code"].as_str()), (Some(false), Some("unauthorized")), "{refused}");
    // The new one goes on, and what was open shows all of it.
    assert_eq!(stand.allow("new", &ask).await.status, 200);
    let body = sse.rest().await;
    assert_eq!(end(&events(&body)), "done");
    let again = get(&stand.url(&format!("/cells/c/runs/{run}/events")), "new").await;
    assert_eq!(again.body, body, "the new token reads the same run");
    assert_eq!(socket.event("chat:end").await.expect("its end")["status"], "completed");
    let farewell = socket.event("system:error").await.expect("why it ends");
    assert_eq!(farewell["code"], "unauthorized");
    assert!(socket.packet().await.is_none_or(|packet| packet == "41"));
    let (frames, close) = native.await.expect("the native reader");
    assert!(frames.last().is_some_and(|frame| frame.contains(r#""type":"result""#)), "{frames:?}");
    assert_eq!(close.map(|(code, _)| code), Some(1008));
    assert!(stand.denied("expired_token").await >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_d13_where_expired_streams_are_closed_a_new_token_reads_on_without_loss() {
    let (expires, at) = moment(3_000);
    let stand = Stand::new("on_expiry = \"close\"", &rotating(&expires), "").await;
    let (mut sse, run, session) = stand.start("old", "ask").await;
    let ask = stand.pending("old", &run).await;
    let shown = sse.until("approval_request").await;
    let mut socket = RawSocket::connect(stand.base(), "", &json!({"token": "old"})).await.expect("a socket");
    assert_eq!(socket.emit("session:subscribe", &json!({"session_id": session})).await.expect("an answer")["ok"], true);
    let native = tokio::spawn(to_the_end(stand.native("old", &session).await));
    // Two that nobody breaks, to compare with.
    let mut unbroken = RawSocket::connect(stand.base(), "", &json!({"token": "new"})).await.expect("a socket");
    assert_eq!(unbroken.emit("session:subscribe", &json!({"session_id": session})).await.expect("an answer")["ok"], true);
    let unbroken = tokio::spawn(events_to_the_end(unbroken));
    let whole_native = tokio::spawn(to_the_result(stand.native_behind("new", &session, 1).await));
    until(at).await;
    let cut = tokio::spawn(async move { sse.until("no such text").await }).await;
    assert!(cut.is_err_and(|error| error.is_panic()), "the connection broke: nobody takes a part for the whole");
    assert_eq!(socket.event("system:error").await.expect("why it ends")["code"], "unauthorized");
    let (seen, close) = native.await.expect("the native reader");
    assert_eq!(close.map(|(code, _)| code), Some(1008));
    // The new one goes on where the old one had to stop, before anything follows.
    let resumed = tokio::spawn(to_the_result(stand.native_behind("new", &session, 1 + seen.len()).await));
    let mut socket = RawSocket::connect(stand.base(), "", &json!({"token": "new"})).await.expect("a socket");
    assert_eq!(socket.emit("session:subscribe", &json!({"session_id": session})).await.expect("an answer")["ok"], true);
    let socket = tokio::spawn(events_to_the_end(socket));
    assert_eq!(stand.allow("new", &ask).await.status, 200);
    // Each reads on where it was; together it is the whole.
    let next = events(&shown).len() + 1;
    let rest = get(&stand.url(&format!("/cells/c/runs/{run}/events?from_seq={next}")), "new").await.body;
    let whole = get(&stand.url(&format!("/cells/c/runs/{run}/events")), "new").await.body;
    assert_eq!([events(&shown), events(&rest)].concat(), events(&whole));
    let (resumed, whole) = (resumed.await.expect("a reader"), whole_native.await.expect("a reader"));
    assert!(!seen.is_empty() && !resumed.is_empty());
    assert_eq!([seen, resumed].concat(), whole);
    let (resumed, unbroken) = (socket.await.expect("a client"), unbroken.await.expect("a client"));
    assert_eq!(resumed, unbroken, "what the new socket is told is what one is told that was never cut");
    assert!(resumed.iter().filter(|event| event[0] == "turn:patch").count() > 3);
    assert_eq!(resumed.last().map(|event| event[1]["status"].clone()), Some(json!("completed")));
}

/// The frames of a native socket up to the end of a run.
async fn to_the_result(mut socket: Native) -> Vec<String> {
    let mut frames = Vec::new();
    while !frames.last().is_some_and(|frame: &String| frame.contains(r#""type":"result""#)) {
        let message = timeout(Duration::from_secs(20), socket.next()).await.expect("more comes in time");
        if let Message::Text(text) = message.expect("more").expect("a message") {
            frames.push(text.to_string());
        }
    }
    frames
}

/// The events of a Socket.IO client up to the end of a run.
async fn events_to_the_end(mut socket: RawSocket) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    while events.last().is_none_or(|event| event[0] != "chat:end") {
        let packet = socket.packet().await.expect("more");
        events.extend(packet.strip_prefix("42").map(|event| serde_json::from_str::<Value>(event).expect("an event")));
    }
    events
}

// Others took an empty secret for one like any other, and a bearer of nothing matched it.
#[tokio::test(flavor = "multi_thread")]
async fn case_f5_an_empty_secret_starts_nothing_wherever_it_comes_from() {
    let (empty, blank) = (Temp::file("empty", ""), Temp::file("blank", " \n\n"));
    let from_file = |file: &Temp| format!("{{ file = {:?} }}", file.path().to_str().expect("a UTF-8 path"));
    for secret in [
        "{ env = \"INTERLINE_TEST_TOKEN\" }".to_owned(),
        "{ env = \"INTERLINE_TEST_BLANK\" }".to_owned(),
        "[{ value = \"good\" }, { env = \"INTERLINE_TEST_TOKEN\" }]".to_owned(),
        "{ value = \"\" }".to_owned(),
        from_file(&empty),
        from_file(&blank),
    ] {
        let config = format!(
            "[auth]\nmode = \"tokens\"\n\n{}\n[[upstream]]\nname = \"plane\"\nkind = \"bridge\"\nurl = \"http://127.0.0.1:1\"\n\n\
             [[route]]\ncell = \"*\"\nupstream = \"plane\"\n",
            token("web", &format!("secret = {secret}"))
        );
        let file = Temp::file("interline.toml", &config);
        let line = config.lines().position(|line| line.starts_with("secret")).expect("its line") + 1;
        let key = if secret.starts_with('[') { "token[0].secret[1]" } else { "token[0].secret" };
        let wanted = format!("{}:{line}: {key}: it is empty", file.path().display());
        let mut program = Command::new(INTERLINE);
        program.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(file.path()).kill_on_drop(true).stdin(Stdio::null());
        program.env("INTERLINE_TEST_TOKEN", "").env("INTERLINE_TEST_BLANK", "  ");
        let over = timeout(Duration::from_secs(10), program.output()).await.expect("it does not serve").expect("it starts");
        let said = String::from_utf8_lossy(&over.stderr).into_owned() + &String::from_utf8_lossy(&over.stdout);
        assert!(!over.status.success() && said.contains(&wanted) && !said.contains("http://127.0.0.1"), "{secret}: {wanted}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f5_an_empty_bearer_opens_nothing_on_any_surface() {
    let queries = "[sse]\nquery_token = \"always\"\n[socketio]\nquery_token = \"always\"\n";
    let stand = Stand::new("", &token("a", "secret = { value = \"a\" }"), queries).await;
    let (stream, run, session) = stand.start("a", "quick").await;
    assert_eq!(end(&events(&stream.rest().await)), "done");
    let body = json!({"actor": "u", "messages": [{"role": "user", "content": "quick"}]}).to_string();
    let upgrade =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    for bearer in ["", "Authorization: Bearer \r\n", "Authorization: Bearer\r\n", "Authorization: Bearer  \t \r\n", "Authorization:\r\n"] {
        for (method, path, more, body) in [
            ("POST", "/cells/c/run".to_owned(), "Content-Type: application/json\r\n", body.as_str()),
            ("GET", format!("/cells/c/runs/{run}/events"), "Accept: text/event-stream\r\n", ""),
            ("GET", format!("/cells/c/runs/{run}/events?access_token="), "", ""),
            ("GET", format!("/cells/c/runs/{run}/events?token=&ticket="), "", ""),
            ("POST", "/cells/c/tickets".to_owned(), "", "{}"),
            ("GET", "/api/sessions".to_owned(), "", ""),
            ("GET", "/api/sessions?token=".to_owned(), "", ""),
            ("POST", "/v1/agent/sessions".to_owned(), "", r#"{"mode":"chat","prompt":"quick"}"#),
            ("GET", format!("/v1/agent/sessions/{session}/stream"), upgrade, ""),
            ("GET", format!("/v1/agent/sessions/{session}/stream?session_token="), upgrade, ""),
        ] {
            let (status, answer) = exchange(stand.base(), method, &path, &format!("{bearer}{more}"), body.as_bytes()).await;
            assert_eq!(status, 401, "{bearer:?} {method} {path}: {answer}");
        }
        // A Socket.IO client comes in or not when it connects to the namespace, whatever opened the transport before.
        for query in ["", "&token="] {
            let path = format!("/socket.io/?EIO=4&transport=polling{query}");
            for auth in ["40", r#"40{}"#, r#"40{"token":""}"#, r#"40{"token":" "}"#, r#"40{"token":null}"#] {
                let (_, opened) = exchange(stand.base(), "GET", &path, bearer, b"").await;
                let sid = opened.split("\"sid\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an Engine.IO session");
                let path = format!("{path}&sid={sid}");
                assert_eq!(exchange(stand.base(), "POST", &path, bearer, auth.as_bytes()).await.0, 200);
                let mut answer = String::new();
                // Heartbeats come between.
                while answer.is_empty() || answer.ends_with("\r\n\r\n2") {
                    answer = exchange(stand.base(), "GET", &path, bearer, b"").await.1;
                }
                assert!(answer.contains("44{\"message\":\"Unauthorized"), "{bearer:?} {query} {auth}: {answer}");
                assert!(!answer.contains("40{"), "{answer}");
            }
        }
    }
    for auth in [json!({}), json!({"token": ""})] {
        let refused = RawSocket::connect(stand.base(), "&token=", &auth).await.err().expect("a refusal");
        assert!(refused.contains("Unauthorized"), "{refused}");
    }
    // The one run that there is, is the one with a token.
    let runs = get(&stand.url("/cells/c/runs"), "a").await.json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_surface_is_an_unknown_one_on_the_others() {
    let tokens = token("sse", "secret = { value = \"s\" }\nsurfaces = [\"sse\"]")
        + &token("io", "secret = { value = \"i\" }\nsurfaces = [\"socketio\"]")
        + &token("native", "secret = { value = \"n\" }\nsurfaces = [\"native\"]");
    let stand = Stand::new("", &tokens, "").await;
    let places = [("s", "/cells"), ("i", "/api/sessions"), ("n", "/v1/agent/sessions/x/result"), ("n", "/v1/code/sessions/x/cost")];
    for (own, path) in places {
        let unknown = get(&stand.url(path), "made-up").await;
        assert_eq!(unknown.status, 401);
        for secret in ["s", "i", "n"] {
            let answer = get(&stand.url(path), secret).await;
            if secret == own {
                assert_ne!(answer.status, 401, "{path}");
            } else {
                assert_eq!((answer.status, &answer.body), (401, &unknown.body), "{path} {secret}");
            }
        }
    }
    let unknown = RawSocket::connect(stand.base(), "", &json!({"token": "made-up"})).await.err();
    assert_eq!(RawSocket::connect(stand.base(), "", &json!({"token": "s"})).await.err(), unknown);
    assert!(RawSocket::connect(stand.base(), "", &json!({"token": "i"})).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_f1_a_ticket_opens_one_runs_stream_and_nothing_else() {
    let stand =
        Stand::new("ticket_ms = 1500", &(token("a", "secret = { value = \"a\" }") + &token("b", "secret = { value = \"b\" }")), "").await;
    let (first, run, _) = stand.start("a", "ask").await;
    let (second, other, _) = stand.start("a", "quick").await;
    let other_body = second.rest().await;
    let issue = async |secret: &str, cell: &str, body: &str| post(&stand.url(&format!("/cells/{cell}/tickets")), secret, body).await;
    let issued = issue("a", "c", "").await;
    assert_eq!((issued.status, issued.header("cache-control"), issued.json()["expires_in"].as_u64()), (201, "no-store", Some(2)));
    let text = |answer: &Answer| answer.json()["ticket"].as_str().expect("a ticket").to_owned();
    let ticket = text(&issued);
    let path = |run: &str, ticket: &str| format!("/cells/c/runs/{run}/events?ticket={ticket}");
    // It opens the run that it is used for first, again and again, and no other one from then on.
    let mut opened = request("GET", &stand.url(&path(&run, &ticket)), &[], "").await;
    assert_eq!(opened.status, 200);
    let _ = opened.until("approval_request").await;
    assert_eq!(get(&stand.url(&path(&other, &ticket)), "").await.status, 401);
    for other_place in [
        format!("/cells/c/runs/{run}?ticket={ticket}"),
        format!("/cells?ticket={ticket}"),
        format!("/api/sessions?ticket={ticket}"),
        format!("/cells/d/runs/{run}/events?ticket={ticket}"),
        path(&run, "itk_made-up"),
        path(&run, ""),
    ] {
        assert_eq!(get(&stand.url(&other_place), "").await.status, 401, "{other_place}");
    }
    // Nor does it stand in for the token anywhere else, or make others.
    assert_eq!(issue(&ticket, "c", "").await.status, 401);
    // One got for a run is for that run; nobody gets one for somebody else's.
    let bound = text(&issue("a", "c", &json!({"run_id": other}).to_string()).await);
    assert_eq!(get(&stand.url(&path(&run, &bound)), "").await.status, 401);
    assert_eq!(get(&stand.url(&path(&other, &bound)), "").await.body, other_body);
    let foreign = issue("b", "c", &json!({"run_id": run}).to_string()).await;
    let unknown = issue("b", "c", r#"{"run_id":"run-00000000000000000000000000000001"}"#).await;
    assert_eq!((foreign.status, unknown.status), (404, 404));
    // And somebody else's ticket opens nothing here.
    let theirs = text(&issue("b", "c", "").await);
    assert_eq!(get(&stand.url(&path(&run, &theirs)), "").await.status, 404);
    // One that nobody used is gone when its time is over; the used one lasts as long as its run.
    let unused = text(&issue("a", "c", "").await);
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    let late = get(&stand.url(&path(&run, &unused)), "").await;
    assert!(late.status == 401 && late.body.contains("expired"), "{}", late.body);
    let mut again = request("GET", &stand.url(&path(&run, &ticket)), &[], "").await;
    assert_eq!(again.status, 200);
    let _ = again.until("approval_request").await;
    let ask = stand.pending("a", &run).await;
    assert_eq!(stand.allow("a", &ask).await.status, 200);
    assert_eq!((again.rest().await, opened.rest().await), (first.rest().await, get(&stand.url(&path(&run, &ticket)), "").await.body));
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    assert_eq!(get(&stand.url(&path(&run, &ticket)), "").await.status, 401);
}

/// Sends as another address, which the proxy in front names.
async fn from_address(stand: &Stand, address: &str, secret: &str, path: &str) -> (u16, String) {
    let headers = format!("Authorization: Bearer {secret}\r\nX-Forwarded-For: {address}\r\n");
    exchange(stand.base(), "GET", path, &headers, b"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_too_often_is_told_when_to_come_again_in_each_familys_own_words() {
    let limits = "[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[limits]\npeer_per_second = 1\npeer_burst = 3\n";
    let stand = Stand::new("", &token("a", "secret = { value = \"a\" }"), limits).await;
    type Shape = fn(&Value) -> bool;
    let places: [(&str, Shape); 5] = [
        ("/cells", |body| body["kind"] == "too_many_requests" && body["type"] == "error"),
        ("/api/sessions", |body| body["detail"].as_str().is_some_and(|detail| detail.contains("limits.peer_per_second"))),
        ("/v1/agent/sessions/x/result", |body| body["error"]["code"] == "too_many_requests"),
        ("/v1/code/sessions/x/cost", |body| body["error"].as_str().is_some_and(|error| error.contains("limits.peer_per_second"))),
        ("/nothing", |body| body["kind"] == "too_many_requests"),
    ];
    for (number, (path, shape)) in places.into_iter().enumerate() {
        let address = format!("203.0.113.{number}");
        let mut answers = Vec::new();
        for _ in 0..5 {
            answers.push(from_address(&stand, &address, "a", path).await);
        }
        let refused: Vec<_> = answers.iter().filter(|(status, _)| *status == 429).collect();
        assert!(!refused.is_empty() && answers[0].0 != 429, "{path}: {answers:?}");
        for (_, answer) in refused {
            assert!(answer.to_lowercase().contains("\r\nretry-after: "), "{answer}");
            let body = answer.split("\r\n\r\n").nth(1).expect("a body");
            assert!(shape(&serde_json::from_str(body).expect("JSON")), "{path}: {body}");
        }
        // Somebody else is not kept waiting, and neither is this machine.
        assert_ne!(from_address(&stand, "198.51.100.1", "a", path).await.0, 0);
        assert_ne!(get(&stand.url(path), "a").await.status, 429);
    }
    assert!(stand.denied("peer_rate").await >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_guesses_tokens_has_to_wait_and_nobody_else() {
    let limits = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[limits]\nunknown_tokens_per_minute = 5\n";
    let stand = Stand::new("", &token("a", "secret = { value = \"a\" }"), limits).await;
    let mut statuses = Vec::new();
    for guess in 0..10 {
        statuses.push(from_address(&stand, "203.0.113.7", &format!("guess-{guess}"), "/cells").await.0);
    }
    assert!(statuses.starts_with(&[401; 5]) && statuses.last() == Some(&429), "{statuses:?}");
    let right = from_address(&stand, "203.0.113.7", "a", "/api/sessions").await;
    assert!(right.0 == 429 && right.1.to_lowercase().contains("retry-after"), "the right token does not tell that it is: {}", right.1);
    assert_eq!(from_address(&stand, "203.0.113.8", "a", "/cells").await.0, 200);
    // What a client says of itself does not count, where no proxy of ours stands in front.
    assert_eq!(from_address(&stand, "198.51.100.1, 203.0.113.8", "a", "/cells").await.0, 200);
    assert!(stand.denied("unknown_token_rate").await >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_has_so_many_requests_streams_and_sockets_and_another_its_own() {
    let tokens = token("a", "secret = { value = \"a\" }") + &token("b", "secret = { value = \"b\" }");
    let stand = Stand::new("", &tokens, "[limits]\nmax_client_connections = 3\n").await;
    let (_first, run, session) = stand.start("a", "ask").await;
    let socket = RawSocket::connect(stand.base(), "", &json!({"token": "a"})).await.expect("a socket");
    let native = stand.native("a", &session).await;
    let refused = get(&stand.url(&format!("/cells/c/runs/{run}/events")), "a").await;
    assert_eq!((refused.status, refused.json()["kind"].as_str()), (429, Some("too_many_requests")));
    assert!(!refused.header("retry-after").is_empty() && refused.body.contains("limits.max_client_connections"), "{}", refused.body);
    let body = json!({"actor": "u", "messages": [{"role": "user", "content": "quick"}]}).to_string();
    assert_eq!(post(&stand.url("/cells/c/run"), "a", &body).await.status, 429);
    let runs = get(&stand.url("/cells/c/runs"), "a").await.json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "what cannot be shown was not started");
    let refused = RawSocket::connect(stand.base(), "", &json!({"token": "a"})).await.err().expect("a refusal");
    assert!(refused.contains("limits.max_client_connections"), "{refused}");
    assert!(RawSocket::connect(stand.base(), "", &json!({"token": "b"})).await.is_ok());
    drop((socket, native));
    eventually("there is room again", Duration::from_secs(10), async || {
        let stream = request("GET", &stand.url(&format!("/cells/c/runs/{run}/events")), &[("authorization", "Bearer a")], "").await;
        stream.status == 200
    })
    .await;
    assert!(stand.denied("client_connections").await >= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_clients_requests_have_a_rate_over_all_surfaces() {
    let tokens = token("a", "secret = { value = \"a\" }") + &token("b", "secret = { value = \"b\" }");
    let stand = Stand::new("", &tokens, "[limits]\nclient_per_second = 1\nclient_burst = 6\n").await;
    let mut socket = RawSocket::connect(stand.base(), "", &json!({"token": "a"})).await.expect("a socket");
    let mut seen = Vec::new();
    for path in ["/cells", "/api/sessions", "/v1/code/sessions/x/cost", "/cells", "/cells", "/cells", "/cells"] {
        seen.push(get(&stand.url(path), "a").await.status);
    }
    assert!(seen.first() == Some(&200) && seen.last() == Some(&429), "{seen:?}");
    let refused = socket.emit("session:subscribe", &json!({"session_id": "x"})).await.expect("an answer");
    assert_eq!((refused["code"].as_str(), refused["detail"]["retry_after"].is_u64()), (Some("too_many"), true), "{refused}");
    assert_eq!(get(&stand.url("/cells"), "b").await.status, 200);
    assert!(stand.denied("client_rate").await >= 1);
}
