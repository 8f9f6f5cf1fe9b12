//! A run over SSE in Rust: prints the answer as it comes, allows what is asked, and survives a lost connection, because the run
//! goes on without its readers and can be read on from any event.
//!
//! ```sh
//! cargo run --example sse -- [BASE_URL] [PROMPT]
//! ```

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use eventsource_stream::Eventsource as _;
use futures_util::{Stream, StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyDataStream, BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value, json};

type Failure = Box<dyn Error + Send + Sync>;

/// How often a lost stream is looked for without a new event in between.
const ATTEMPTS: u32 = 5;
/// eventsource-stream takes time in the square of a piece's length.
const PIECE: usize = 16 * 1024;
/// eventsource-stream panics on a byte-order mark.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// One cell of a server. `https` takes a connector with TLS instead.
struct Cell {
    url: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl Cell {
    async fn request(&self, method: Method, path: &str, body: Option<Value>) -> Result<Response<Incoming>, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json") // where a token is wanted: .header("authorization", format!("Bearer {token}"))
            .body(Full::from(body.map(|body| body.to_string()).unwrap_or_default()))?;
        let response = self.http.request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let said = response.into_body().collect().await?.to_bytes();
        Err(format!("{path}: {status} {}", String::from_utf8_lossy(&said)).into())
    }

    /// Starts a run and follows it to its end. True if it was done, and neither failed nor was stopped.
    async fn run(&self, prompt: &str) -> Result<bool, Failure> {
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": prompt}]}]);
        let body = json!({"actor": "me", "model": "gpt-4o", "messages": messages});
        let mut response = self.request(Method::POST, "/run", Some(body)).await;
        let mut id = None;
        let (mut seen, mut failures) = (0, 0);
        while failures < ATTEMPTS {
            let mut events = Box::pin(harmless(BodyDataStream::new(response?.into_body())).eventsource());
            while let Some(Ok(event)) = events.next().await {
                let event: Value = serde_json::from_str(&event.data)?;
                (seen, failures) = (seen + 1, 0);
                id = id.or_else(|| event["run_id"].as_str().map(str::to_owned)); // the first event is run_start
                if let Some(done) = self.see(&event).await? {
                    return Ok(done);
                }
            }
            eprintln!("\nconnection lost after event {seen}");
            let Some(id) = &id else { break };
            let path = format!("/runs/{id}/events?from_seq={}", seen + 1);
            loop {
                failures += 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
                response = self.request(Method::GET, &path, None).await;
                if response.is_ok() || failures == ATTEMPTS {
                    break;
                }
            }
        }
        Err("the run is out of reach".into())
    }

    /// Shows one event. At the one that ends the run: whether it was done.
    async fn see(&self, event: &Value) -> Result<Option<bool>, Failure> {
        let text = |member: &str| event[member].as_str().unwrap_or_default();
        match text("type") {
            "stream_delta" => {
                print!("{}", text("content"));
                std::io::stdout().flush()?;
            }
            "tool_start" => println!("\n[tool] {}", text("tool_name")),
            "approval_request" => {
                let answer = answer(&event["arguments"]);
                println!("\n[asked] {} {}\n[answered] {answer}", text("tool_name"), event["arguments"]);
                self.request(Method::POST, &format!("/hitl/{}", text("request_id")), Some(answer)).await?;
            }
            "done" => {
                println!("\n[done] {}", text("reason"));
                return Ok(Some(true));
            }
            end @ ("error" | "interrupted") => {
                eprintln!("\n[{end}] {}{}", text("error"), text("reason"));
                return Ok(Some(false));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// Asks nobody: permissions are given, questions get their first option, forms their defaults.
fn answer(arguments: &Value) -> Value {
    let mut answer = json!({"grant": "allow"});
    if let Some(questions) = arguments["questions"].as_array() {
        let first = |question: &Value| {
            let label = question["options"][0]["label"].as_str().unwrap_or("you decide");
            (question["question"].as_str().unwrap_or_default().to_owned(), label.into())
        };
        answer["answers"] = questions.iter().map(first).collect::<Map<_, _>>().into();
    }
    if arguments["requested_schema"].is_object() {
        answer["content"] = filled_in(&arguments["requested_schema"]);
    }
    answer
}

/// What a form takes: its defaults, and of what else it demands the first choice.
fn filled_in(schema: &Value) -> Value {
    let mut content = Map::new();
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let required = schema["required"].as_array().is_some_and(|all| all.iter().any(|each| each == name));
        let known = [&member["default"], &member["enum"][0], &member["oneOf"][0]["const"], &member["minimum"]];
        let value = known.into_iter().find(|value| !value.is_null()).cloned().unwrap_or_else(|| match member["type"].as_str() {
            Some("boolean") => true.into(),
            Some("integer" | "number") => 0.into(),
            Some("array") => json!([]),
            _ => "you decide".into(),
        });
        if required || !member["default"].is_null() {
            content.insert(name.clone(), value);
        }
    }
    content.into()
}

/// A body without a byte-order mark and in small pieces. Whoever reads from servers they do not trust bounds an event's length as well.
fn harmless<E>(body: impl Stream<Item = Result<Bytes, E>>) -> impl Stream<Item = Result<Bytes, E>> {
    let mut begun = false;
    body.flat_map(move |piece| {
        let mut pieces = Vec::new();
        match piece {
            Ok(mut bytes) => {
                if !begun {
                    // Byte by byte, since the mark may come in pieces; no line that means something begins with one of them.
                    bytes.advance(bytes.iter().take_while(|byte| MARK.contains(byte)).count());
                    begun = !bytes.is_empty();
                }
                while !bytes.is_empty() {
                    pieces.push(Ok(bytes.split_to(bytes.len().min(PIECE))));
                }
            }
            Err(error) => pieces.push(Err(error)),
        }
        stream::iter(pieces)
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let base = args.next().unwrap_or_else(|| "http://127.0.0.1:9091".to_owned());
    let prompt = args.next().unwrap_or_else(|| "What does median do?".to_owned());
    let cell =
        Cell { url: format!("{}/cells/my-cell", base.trim_end_matches('/')), http: Client::builder(TokioExecutor::new()).build_http() };
    if cell.run(&prompt).await? { Ok(()) } else { Err("the run did not end well".into()) }
}
