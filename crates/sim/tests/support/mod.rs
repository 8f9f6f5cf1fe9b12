//! A simulator on a real port, and the plain clients that the tests talk to it with.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{net::SocketAddr, time::Duration};

use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use interline_sim::{Options, Pace, Simulator, Voice};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    time,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{self, Message, client::IntoClientRequest},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Nothing in these tests takes longer than this, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Server {
    pub sim: Simulator,
    pub address: SocketAddr,
    _stop: DropGuard,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Options without pauses.
pub fn fast(voice: Voice) -> Options {
    Options { voice, pace: Pace::none(), ..Options::default() }
}

pub async fn start(options: Options) -> Server {
    let sim = Simulator::new(options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(sim.clone().serve(listener, stop.clone()));
    Server { sim, address, _stop: stop.drop_guard() }
}

pub async fn documented() -> Server {
    start(fast(Voice::Documented)).await
}

pub async fn observed() -> Server {
    start(fast(Voice::Observed)).await
}

pub struct Session {
    pub id: String,
    pub token: String,
    pub created: Value,
}

impl Server {
    pub async fn http(&self, method: Method, path: &str, bearer: Option<&str>, body: impl Into<String>) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if let Some(bearer) = bearer {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        self.request(request.body(body.into()).unwrap()).await
    }

    pub async fn request(&self, request: Request<String>) -> Answer {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<bytes::Bytes>>();
        let request = request.map(|body| Full::new(body.into()));
        let response = time::timeout(PATIENCE, client.request(request)).await.unwrap().unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub async fn create(&self, request: Value) -> Session {
        let answer = self.http(Method::POST, "/v1/agent/sessions", Some("alice"), request.to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let created = answer.json();
        let text = |name: &str| created[name].as_str().unwrap().to_owned();
        Session { id: text("session_id"), token: text("session_token"), created }
    }

    pub async fn chat(&self, prompt: &str) -> Session {
        self.create(json!({ "mode": "chat", "prompt": prompt })).await
    }

    pub async fn agent(&self, prompt: &str) -> Session {
        let environment = "0d2a6cf0-5b1e-4a8e-9d0f-4a1b2c3d4e5f";
        self.create(json!({ "mode": "agent", "environment_id": environment, "prompt": prompt })).await
    }

    pub async fn stream(&self, session: &Session, query: &str) -> Socket {
        let path = format!("/v1/agent/sessions/{}/stream?session_token={}{query}", session.id, session.token);
        self.connect(&path).await.unwrap()
    }

    pub async fn bridge_session(&self) -> String {
        let answer = self.http(Method::POST, "/v1/code/sessions", None, "").await;
        assert_eq!(answer.status, 201);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    pub async fn message(&self, session: &str, prompt: &str) {
        let path = format!("/v1/code/sessions/{session}/messages");
        let answer = self.http(Method::POST, &path, None, json!({ "prompt": prompt }).to_string()).await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (202, r#"{"status":"running"}"#));
    }

    pub async fn bridge_socket(&self, session: &str, query: &str) -> Result<Socket, Answer> {
        self.connect(&format!("/v1/code/sessions/{session}/ws{query}")).await
    }

    pub async fn connect(&self, path: &str) -> Result<Socket, Answer> {
        let request = format!("ws://{}{path}", self.address).into_client_request().unwrap();
        match time::timeout(PATIENCE, connect_async(request)).await.unwrap() {
            Ok((socket, _)) => Ok(Socket { socket }),
            Err(tungstenite::Error::Http(response)) => {
                let (parts, body) = response.into_parts();
                let body = String::from_utf8(body.unwrap_or_default()).unwrap();
                Err(Answer { status: parts.status, headers: parts.headers, body })
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub struct Socket {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// How a stream of frames ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// A close frame: code and reason.
    Close(u16, String),
    /// The connection ended without one.
    Cut,
}

impl Socket {
    /// The next message's text, or how the stream ended.
    pub async fn next(&mut self) -> Result<String, Ending> {
        loop {
            match time::timeout(PATIENCE, self.socket.next()).await.expect("a message, or an end") {
                Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                Some(Ok(Message::Close(Some(frame)))) => return Err(Ending::Close(frame.code.into(), frame.reason.to_string())),
                Some(Ok(Message::Close(None))) => return Err(Ending::Close(1005, String::new())),
                Some(Ok(_)) => {}
                None | Some(Err(_)) => return Err(Ending::Cut),
            }
        }
    }

    /// Messages up to and with the first that `last` holds for.
    pub async fn until(&mut self, last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next().await.unwrap_or_else(|end| panic!("{end:?} after {messages:#?}")));
            if last(&messages[messages.len() - 1]) {
                return messages;
            }
        }
    }

    pub async fn until_type(&mut self, wanted: &str) -> Vec<Value> {
        let is_wanted = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|frame| frame["type"] == wanted);
        values(&self.until(is_wanted).await)
    }

    pub async fn until_result(&mut self) -> Vec<Value> {
        self.until_type("result").await
    }

    /// All messages to the end.
    pub async fn rest(&mut self) -> (Vec<String>, Ending) {
        let mut messages = Vec::new();
        loop {
            match self.next().await {
                Ok(message) => messages.push(message),
                Err(end) => return (messages, end),
            }
        }
    }

    /// True if nothing comes for a while.
    pub async fn is_silent(&mut self) -> bool {
        time::timeout(Duration::from_millis(250), self.socket.next()).await.is_err()
    }

    pub async fn send(&mut self, message: Value) {
        self.socket.send(Message::Text(message.to_string().into())).await.unwrap();
    }

    pub async fn cancel(&mut self) {
        self.send(json!({ "type": "control_cancel_request", "request_id": "cancel-1" })).await;
    }

    pub async fn interrupt(&mut self) {
        self.send(json!({ "type": "control_request", "request_id": "i1", "request": { "subtype": "interrupt" } })).await;
    }

    pub async fn answer(&mut self, request: &Value, response: Value) {
        let response = json!({ "subtype": "success", "request_id": request["request_id"], "response": response });
        self.send(json!({ "type": "control_response", "response": response })).await;
    }
}

pub fn values(messages: &[String]) -> Vec<Value> {
    messages.iter().map(|message| serde_json::from_str(message).unwrap()).collect()
}

/// The streamed text of some frames.
pub fn text(frames: &[Value]) -> String {
    frames.iter().filter(|frame| frame["type"] == "streamlined_text").filter_map(|frame| frame["text"].as_str()).collect()
}

/// How many frames of a type there are.
pub fn count(frames: &[Value], wanted: &str) -> usize {
    frames.iter().filter(|frame| frame["type"] == wanted).count()
}

/// The server's frames of a bundled transcript, byte for byte.
pub fn recorded(name: &str) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Line<'a> {
        dir: &'a str,
        #[serde(borrow)]
        frame: &'a serde_json::value::RawValue,
    }
    let (_, content) = interline_sim::BUNDLED.iter().find(|(known, _)| *known == name).unwrap();
    content
        .lines()
        .filter_map(|line| match serde_json::from_str::<Line<'_>>(line) {
            Ok(line) => (line.dir == "out").then(|| line.frame.get().to_owned()),
            Err(_) => Some(line.to_owned()),
        })
        .collect()
}
