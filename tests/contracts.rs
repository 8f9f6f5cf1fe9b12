//! The contracts and the program: every operation is there and answers as its document says, and no route is left out.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::collections::BTreeMap;

use interline_testkit::{Client, Program, delete, eventually, get, in_repository, post, request, validate, validate_http, validate_sse};
use serde_json::Value;

const INTERLINE: &str = env!("CARGO_BIN_EXE_interline");

/// One operation of the OpenAPI document.
struct Operation {
    method: String,
    path: String,
    id: String,
    /// Where it stands in the document.
    pointer: String,
    item: Value,
}

/// What came back.
struct Seen {
    status: u16,
    headers: http::HeaderMap,
    /// Not of streams.
    body: Option<String>,
}

fn document() -> Value {
    let text = std::fs::read_to_string(in_repository("contracts/openapi.json")).expect("the document");
    serde_json::from_str(&text).expect("JSON")
}

/// The value and its place; a reference is followed.
fn follow<'a>(document: &'a Value, pointer: &str) -> Option<(&'a Value, String)> {
    let value = document.pointer(pointer)?;
    match value["$ref"].as_str() {
        Some(target) => follow(document, target.trim_start_matches('#')),
        None => Some((value, pointer.to_owned())),
    }
}

fn escaped(path: &str) -> String {
    path.replace('~', "~0").replace('/', "~1")
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("a path").iter().filter(|(name, _)| *name != "parameters") {
            let id = operation["operationId"].as_str().expect("an id").to_owned();
            let pointer = format!("/paths/{}/{method}", escaped(path));
            found.push(Operation { method: method.to_uppercase(), path: path.clone(), id, pointer, item: operation.clone() });
        }
    }
    found
}

impl Operation {
    /// Its path with parameters filled in: by what is known, else by the document's examples; and what the query must have.
    fn url(&self, document: &Value, known: &BTreeMap<&str, String>) -> String {
        let mut url = self.path.clone();
        let mut query = Vec::new();
        let path = format!("/paths/{}/parameters", escaped(&self.path));
        for place in [path, format!("{}/parameters", self.pointer)] {
            let count = document.pointer(&place).and_then(Value::as_array).map_or(0, Vec::len);
            for number in 0..count {
                let (parameter, _) = follow(document, &format!("{place}/{number}")).expect("a parameter");
                let name = parameter["name"].as_str().expect("a name");
                let schema = &parameter["schema"];
                let values = [&parameter["example"], &schema["const"], &schema["enum"][0]];
                let value = known.get(name).map(String::as_str).or_else(|| values.into_iter().find_map(Value::as_str));
                if parameter["in"] == "path" {
                    url = url.replace(&format!("{{{name}}}"), value.expect("an example"));
                } else if parameter["required"] == true {
                    query.push(format!("{name}={}", value.expect("a value")));
                }
            }
        }
        if query.is_empty() { url } else { format!("{url}?{}", query.join("&")) }
    }

    async fn ask(&self, base: &str, url: &str, token: &str) -> Seen {
        let content = self.item["requestBody"]["content"].as_object().and_then(|content| content.iter().next());
        let (kind, body) = content.map_or(("text/plain", String::new()), |(kind, media)| {
            let example = &media["example"];
            (kind.as_str(), example.as_str().map_or_else(|| example.to_string(), str::to_owned))
        });
        let bearer = format!("Bearer {token}");
        let mut headers = vec![("content-type", kind)];
        if !token.is_empty() {
            headers.push(("authorization", &bearer));
        }
        let stream = request(&self.method, &format!("{base}{url}"), &headers, body).await;
        let (status, headers) = (stream.status, stream.headers.clone());
        let endless = headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        Seen { status, headers, body: if endless { None } else { Some(stream.rest().await) } }
    }

    /// Whether the document says that this may be the answer.
    fn expects(&self, document: &Value, seen: &Seen) -> Result<(), String> {
        let (answer, pointer) = follow(document, &format!("{}/responses/{}", self.pointer, seen.status))
            .ok_or_else(|| format!("{} is not documented", seen.status))?;
        for (name, header) in answer["headers"].as_object().into_iter().flatten() {
            match seen.headers.get(name).map(|value| value.to_str().expect("text")) {
                Some(value) => validate_http(&format!("{pointer}/headers/{name}/schema"), &value.into())?,
                None if header["required"] == true => return Err(format!("no header {name}")),
                None => {}
            }
        }
        let Some(body) = &seen.body else { return Ok(()) };
        if answer["content"].is_null() {
            return if body.is_empty() { Ok(()) } else { Err(format!("a body where none is documented: {body}")) };
        }
        let kind = seen.headers.get("content-type").map_or("", |kind| kind.to_str().expect("text"));
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if answer["content"][kind].is_null() {
            return Err(format!("`{kind}` is not documented"));
        }
        let value = if kind == "application/json" {
            serde_json::from_str(body).map_err(|error| format!("no JSON ({error}): {body}"))?
        } else {
            body.as_str().into()
        };
        validate_http(&format!("{pointer}/content/{}/schema", escaped(kind)), &value).map_err(|why| format!("{why}\n  in {body}"))
    }
}

async fn demo() -> Program {
    Program::start(INTERLINE, &["demo", "--listen", "127.0.0.1:0"]).await
}

/// Starts a run of the demo and reads it to its end.
async fn whole_run(base: &str, prompt: &str) -> BTreeMap<&'static str, String> {
    let body = serde_json::json!({"actor": "me", "messages": [{"role": "user", "content": prompt}]});
    let stream = request("POST", &format!("{base}/cells/my-cell/run"), &[], body.to_string()).await;
    let header = |name: &str| stream.headers[name].to_str().expect("text").to_owned();
    let (run, session) = (header("x-run-id"), header("x-session-id"));
    assert_eq!(validate_sse(&stream.rest().await), Ok(()));
    BTreeMap::from([("cell", "my-cell".to_owned()), ("run_id", run), ("session_id", session.clone()), ("id", session)])
}

#[tokio::test]
async fn the_documents_are_sound_and_made_of_their_sources() {
    let folder = in_repository("contracts");
    let _ = Client::new("contracts.py", folder.to_str().expect("a UTF-8 path")).run().await.content();
}

#[tokio::test]
async fn the_documents_are_served_to_pages_of_any_origin() {
    let demo = demo().await;
    for name in ["openapi", "asyncapi"] {
        let answer = get(&format!("{}/{name}.json", demo.base()), "").await;
        assert_eq!((answer.header("access-control-allow-origin"), answer.header("content-type")), ("*", "application/json"));
        assert_eq!(answer.json()["info"]["version"], env!("CARGO_PKG_VERSION"), "{name}.yaml: info.version");
        let file = std::fs::read_to_string(in_repository(&format!("contracts/{name}.json"))).expect("the document");
        assert!(answer.body == file, "the program was built from another {name}.json");
    }
}

#[tokio::test]
async fn every_operation_is_there_and_answers_as_documented_to_ids_that_name_nothing() {
    /// What surfaces and program say where there is no route.
    const NO_ROUTE: [&str; 4] = ["nothing at this path", "nothing here", "Path not found", "404 page not found"];
    let (demo, document) = (demo().await, document());
    let mut wrong = Vec::new();
    for operation in operations(&document) {
        let url = operation.url(&document, &BTreeMap::new());
        let seen = operation.ask(demo.base(), &url, "any").await;
        let absent = seen.status == 405 || seen.body.as_ref().is_some_and(|body| NO_ROUTE.iter().any(|words| body.contains(words)));
        if absent {
            wrong.push(format!("{} {url}: there is no such route", operation.method));
        } else if let Err(why) = operation.expects(&document, &seen) {
            wrong.push(format!("{} {url}: {why}", operation.method));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn every_get_answers_as_documented_to_ids_that_name_something() {
    let (demo, document) = (demo().await, document());
    let mut known = whole_run(demo.base(), "play agent-with-tools").await;
    let turns = get(&format!("{}/api/sessions/{}/messages", demo.base(), known["id"]), "").await.json();
    known.insert("turn_id", turns[0]["turn_id"].as_str().expect("a turn").to_owned());
    let mut wrong = Vec::new();
    for operation in operations(&document).iter().filter(|operation| operation.method == "GET") {
        let status = match operation.id.as_str() {
            // No WebSocket is asked for; and no turn goes on.
            "cloudStream" => 400,
            "bridgeSocket" | "getCellSessionContext" => 409,
            // Nothing was uploaded; and what has no meaning behind a proxy.
            "readFile" => 404,
            "downloadFolder" | "getShared" | "listApiKeys" => 501,
            // Switched off by default.
            "codingChannel" => 501,
            _ => 200,
        };
        let url = operation.url(&document, &known);
        let seen = operation.ask(demo.base(), &url, "any").await;
        if seen.status != status {
            wrong.push(format!("GET {url}: {} instead of {status}: {:?}", seen.status, seen.body));
        } else if let Err(why) = operation.expects(&document, &seen) {
            wrong.push(format!("GET {url}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn who_brings_no_token_is_told_so_as_documented() {
    let config = r#"
[auth]
mode = "tokens"
[[token]]
name = "a"
secret = { value = "secret" }
cells = ["*"]
[[upstream]]
name = "daemon"
kind = "bridge"
url = "http://127.0.0.1:1"
[[route]]
cell = "*"
upstream = "daemon"
"#;
    let (program, document) = (Program::serve(INTERLINE, config).await, document());
    let mut wrong = Vec::new();
    for operation in operations(&document) {
        let locked = operation.item.get("security").is_none_or(|security| security.as_array().is_some_and(|ways| !ways.is_empty()));
        let seen = operation.ask(program.base(), &operation.url(&document, &BTreeMap::new()), "").await;
        let refused = seen.status == 401 || operation.id == "refreshCookie";
        if locked != refused && operation.id != "refreshCookie" {
            wrong.push(format!("{} {}: locked is {locked}, the answer {}", operation.method, operation.path, seen.status));
        } else if let Err(why) = operation.expects(&document, &seen) {
            wrong.push(format!("{} {}: {why}", operation.method, operation.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn asks_and_their_answers_are_as_documented() {
    let demo = demo().await;
    let base = demo.base();
    let body = r#"{"messages":[{"content":"play agent-with-permission"}]}"#;
    let stream = request("POST", &format!("{base}/cells/my-cell/run"), &[], body).await;
    let header = |name: &str| stream.headers[name].to_str().expect("text").to_owned();
    let (run, session) = (header("x-run-id"), header("x-session-id"));
    let asks = format!("{base}/v1/agent/sessions/{run}/elicitations");
    eventually("the ask is listed", std::time::Duration::from_secs(10), async || {
        get(&asks, "").await.json()["elicitations"].as_array().is_some_and(|asks| !asks.is_empty())
    })
    .await;
    let pending = get(&asks, "").await.json();
    let at = "/paths/~1v1~1agent~1sessions~1{id}~1elicitations/get/responses/200/content/application~1json/schema";
    assert_eq!(validate_http(at, &pending), Ok(()));
    let paused = get(&format!("{base}/api/sessions/{session}"), "").await.json();
    assert_eq!((validate("types/session_detail", &paused), paused["status"].as_str()), (Ok(()), Some("waiting_for_input")));
    let ask = pending["elicitations"][0]["request_id"].as_str().expect("an id");
    let lists = ["".to_owned(), format!("/runs/{run}"), format!("/sessions/{session}")].map(|of| format!("{base}/cells/my-cell{of}/asks"));
    for list in &lists {
        let pending = get(list, "").await.json();
        assert_eq!(
            (validate_http("/components/schemas/AskPage", &pending), pending["asks"][0]["request_id"].as_str()),
            (Ok(()), Some(ask))
        );
    }
    let answer = format!("{base}/cells/my-cell/hitl/{ask}");
    for (body, status, schema, kind) in [
        ("[]", 400, "SseError", "invalid_request"),
        (r#"{"grant":"perhaps"}"#, 422, "SseError", "invalid_request"),
        (r#"{"grant":"allow"}"#, 200, "Done", ""),
        (r#"{"grant":"deny"}"#, 409, "SseError", "already_resolved"),
    ] {
        let answer = post(&answer, "", body).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert_eq!(validate_http(&format!("/components/schemas/{schema}"), &answer.json()), Ok(()), "{body}");
        assert_eq!(answer.json()["kind"].as_str().unwrap_or_default(), kind);
    }
    assert_eq!(validate_sse(&stream.rest().await), Ok(()));
    let decisions = get(&format!("{base}/cells/my-cell/sessions/{session}/decisions"), "").await.json();
    assert_eq!(
        (validate_http("/components/schemas/DecisionPage", &decisions), decisions["decisions"][0]["surface"].as_str()),
        (Ok(()), Some("sse"))
    );
    for (url, schema) in
        [(format!("{base}/cells/my-cell/runs/{run}"), "Done"), (format!("{base}/cells/my-cell/sessions/{session}"), "Done")]
    {
        let gone = delete(&url, "").await;
        assert_eq!((gone.status, validate_http(&format!("/components/schemas/{schema}"), &gone.json())), (200, Ok(())), "{url}");
    }
}

#[tokio::test]
async fn an_explained_run_is_as_documented() {
    let demo = demo().await;
    let known = whole_run(demo.base(), "play agent-with-tools").await;
    let url = format!("{}/cells/my-cell/runs/{}/events", demo.base(), known["run_id"]);
    for extras in ["off", "fields", "events"] {
        let told = get(&format!("{url}?extras={extras}&explain=1"), "").await.json();
        let schema = "/components/responses/Events/content/application~1json/schema";
        assert_eq!(validate_http(schema, &told), Ok(()));
        let body = get(&format!("{url}?extras={extras}"), "").await.body;
        assert_eq!(validate_sse(&body), Ok(()));
        let streamed: Vec<Value> =
            body.lines().filter_map(|line| line.strip_prefix("data: ")).map(|json| serde_json::from_str(json).expect("JSON")).collect();
        let entries = told.as_array().expect("a list");
        assert_eq!(entries.iter().map(|entry| entry["event"].clone()).collect::<Vec<_>>(), streamed);
        assert!(entries.iter().all(|entry| entry["rules"].as_array().is_some_and(|rules| !rules.is_empty())), "{told}");
        // Frames are named, and the rules by which they were read.
        let text = entries.iter().find(|entry| entry["event"]["type"] == "stream_delta").expect("text");
        let cause = text["causes"].as_array().and_then(|causes| causes.last()).expect("a cause");
        assert_ne!((&cause["name"], &cause["rules"]), (&"frame".into(), &serde_json::json!([])), "{text}");
    }
}

#[tokio::test]
async fn acknowledgements_and_turns_over_rest_are_as_documented() {
    let demo = demo().await;
    let args = ["--prompt", "a long answer", "--acks", "--stop-after", "3", "--transport", "websocket"];
    let seen = Client::new("socketio.mjs", demo.base()).args(args).run().await;
    let mut acknowledged = Vec::new();
    for line in seen.json_lines() {
        if let Some(event) = line["of"].as_str() {
            let schema = match event {
                "session:subscribe" => "subscribed",
                "chat:send" => "sent",
                _ => "stopped",
            };
            assert_eq!(validate(&format!("socketio/ack/{schema}"), &line["ack"]), Ok(()), "{line}");
            acknowledged.push(schema);
        }
        for turn in line["messages"].as_array().into_iter().flatten() {
            assert_eq!(validate("types/turn_projection", turn), Ok(()));
        }
    }
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, ["sent", "stopped", "subscribed"], "{}\n{}", seen.output, seen.errors);
    assert!(seen.output.contains("{\"messages\":"), "{}", seen.output);
}

#[tokio::test]
async fn native_frames_are_as_documented() {
    let demo = demo().await;
    for surface in ["cloud", "bridge"] {
        let args = ["--surface", surface, "--mode", "agent", "--prompt", "play agent-with-permission"];
        let seen = Client::new("native.mjs", demo.base()).args(args).run().await.content();
        let mut kinds = Vec::new();
        for frame in seen.json_lines() {
            let kind = frame["type"].as_str().unwrap_or_default().to_owned();
            let own = in_repository(&format!("contracts/schemas/native/{kind}.json")).exists();
            let schema = if own { format!("native/{kind}") } else { "native/frame".to_owned() };
            assert_eq!(validate(&schema, &frame), Ok(()), "{frame}");
            kinds.push(kind);
        }
        let last = if surface == "bridge" { "keep_alive" } else { "result" };
        assert!(kinds.iter().any(|kind| kind == "control_request") && kinds.last().is_some_and(|kind| kind == last), "{kinds:?}");
    }
}

/// Routers are lists of paths in the source: each path must have its entry.
#[test]
fn no_route_is_left_out() {
    let document = document();
    let documented = |path: &str| document["paths"].get(path).is_some();
    let mut routes = 0;
    for file in [
        "crates/surface-sse/src/shell.rs",
        "crates/surface-socketio/src/shell.rs",
        "crates/surface-socketio/src/rest.rs",
        "crates/surface-socketio/src/stock.rs",
        "crates/surface-socketio/src/files.rs",
        "crates/surface-socketio/src/marks.rs",
        "crates/surface-native/src/shell/cloud.rs",
        "crates/surface-native/src/shell/bridge.rs",
        "crates/interline/admin.rs",
        "crates/interline/contracts.rs",
        "crates/interline/page.rs",
    ] {
        let source = std::fs::read_to_string(in_repository(file)).expect("a source");
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        // Texts that begin with a slash. Patterns for what is left over, and paths put together, have no entry of their own.
        let texts = source.split('"').skip(1).step_by(2).filter(|text| text.starts_with('/'));
        for path in texts.filter(|path| !["{*", "{{", "{}", " "].iter().any(|mark| path.contains(mark))) {
            routes += 1;
            assert!(documented(path) || documented(&format!("{path}/")), "{file}: contracts/openapi.yaml has no {path}");
        }
    }
    assert!(routes > 50, "only {routes} routes were found: they are written differently now");
}
