//! Servers that do worse than the simulator does, each made by hand for one fault.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use interline_hub::{Access, Gate, Hub};
use interline_upstream_native::{Kind, LinkConfig, Mode, UpstreamConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

use crate::world::{Watched, config, fast, hub, request};

/// What a server does with a request.
pub(crate) enum Do {
    Reply(u16, String),
    Socket(Vec<Step>),
    /// That, after so many milliseconds.
    Later(u64, Box<Self>),
    /// Nothing, with the connection open.
    Hang,
    /// Nothing, and the connection is closed.
    Cut,
}

/// What it does with a socket.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Text(String),
    Binary(Vec<u8>),
    /// A message cut into two WebSocket frames at this byte.
    Split(String, usize),
    /// A message in one WebSocket frame, in this many pieces with a pause before each.
    Slow(String, usize, u64),
    /// A text message of these bytes, valid or not.
    Bytes(Vec<u8>),
    /// Waits for a text message.
    Read,
    /// Says that the request that was read last was granted.
    Acknowledge,
    Wait(u64),
    Close(u16),
    Reset,
    /// TCP ends in good order, and the WebSocket without a word.
    Fin,
    /// Neither sends nor pings, nor answers pings.
    Silence,
}

/// Ends a script: as the connection stays open, with answers to pings, until the client closes.
pub(crate) const STAY: Option<Step> = None;

/// A request.
pub(crate) struct Whole {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// Method and target of each request.
    requests: Arc<Mutex<Vec<String>>>,
    pub(crate) whole: Arc<Mutex<Vec<Whole>>>,
    pub(crate) texts: Arc<Mutex<Vec<String>>>,
    pub(crate) closes: Arc<Mutex<Vec<u16>>>,
}

impl Seen {
    pub(crate) fn requests(&self, part: &str) -> Vec<String> {
        self.requests.lock().unwrap().iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

/// Serves; `script` gets each request line and the number of the ones like it before.
pub(crate) async fn serve(script: impl Fn(&str, usize) -> Do + Send + Sync + 'static) -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, script) = (Seen::default(), Arc::new(script));
    let shared = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, script) = (shared.clone(), script.clone());
            tokio::spawn(async move { connection(stream, &seen, &*script).await });
        }
    });
    (address, seen)
}

/// One request on each connection.
async fn connection(mut stream: TcpStream, seen: &Seen, script: &(dyn Fn(&str, usize) -> Do + Send + Sync)) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let header =
        |name: &str| head.lines().find_map(|line| line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v));
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    seen.whole.lock().unwrap().push(Whole { head: head.clone(), body });
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    let path = line.split('?').next().unwrap().to_owned();
    let before = {
        let mut requests = seen.requests.lock().unwrap();
        let before = requests.iter().filter(|line| line.split('?').next() == Some(path.as_str())).count();
        requests.push(line.clone());
        before
    };
    let mut deed = script(&line, before);
    while let Do::Later(millis, then) = deed {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        deed = *then;
    }
    match deed {
        Do::Reply(status, body) => {
            let location = if status == 302 { "Location: /elsewhere\r\n" } else { "" };
            let reply = format!("HTTP/1.1 {status} X\r\n{location}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            stream.write_all(reply.as_bytes()).await.ok()?;
        }
        Do::Socket(steps) => {
            let accept = derive_accept_key(header("sec-websocket-key").unwrap().as_bytes());
            let reply = format!("HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.ok()?;
            play(stream, steps, seen).await?;
        }
        Do::Hang | Do::Later(..) => std::future::pending().await,
        Do::Cut => return None,
    }
    Some(())
}

async fn play(stream: TcpStream, steps: Vec<Step>, seen: &Seen) -> Option<()> {
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    for step in steps {
        match step {
            Step::Text(text) => socket.send(Message::text(text)).await.ok()?,
            Step::Binary(bytes) => socket.send(Message::binary(bytes)).await.ok()?,
            Step::Slow(text, pieces, pause_ms) => {
                let mut bytes = vec![0x81, u8::try_from(text.len()).unwrap()];
                bytes.extend_from_slice(text.as_bytes());
                for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                    socket.get_mut().write_all(piece).await.ok()?;
                }
            }
            Step::Split(text, at) => {
                let (head, tail) = text.as_bytes().split_at(at);
                let mut bytes = vec![0x01, u8::try_from(head.len()).unwrap()];
                bytes.extend_from_slice(head);
                bytes.extend_from_slice(&[0x80, u8::try_from(tail.len()).unwrap()]);
                bytes.extend_from_slice(tail);
                socket.get_mut().write_all(&bytes).await.ok()?;
            }
            Step::Bytes(payload) => {
                let mut bytes = vec![0x81, u8::try_from(payload.len()).unwrap()];
                bytes.extend_from_slice(&payload);
                socket.get_mut().write_all(&bytes).await.ok()?;
            }
            Step::Read => loop {
                match socket.next().await?.ok()? {
                    Message::Text(text) => {
                        seen.texts.lock().unwrap().push(text.to_string());
                        break;
                    }
                    _ => continue,
                }
            },
            Step::Acknowledge => {
                let id = {
                    let texts = seen.texts.lock().unwrap();
                    let (_, rest) = texts.last().unwrap().split_once(r#""request_id":""#).unwrap();
                    rest.split('"').next().unwrap().to_owned()
                };
                let reply = format!(r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"{id}"}}}}"#);
                socket.send(Message::text(reply)).await.ok()?;
            }
            Step::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            Step::Close(code) => {
                let close = CloseFrame { code: CloseCode::from(code), reason: "".into() };
                socket.close(Some(close)).await.ok()?;
                while socket.next().await?.is_ok() {}
            }
            Step::Reset => {
                socket.get_ref().set_zero_linger().ok()?;
                return None;
            }
            Step::Fin => return None,
            Step::Silence => std::future::pending().await,
        }
    }
    // The client closes when it is done.
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Text(text) => seen.texts.lock().unwrap().push(text.to_string()),
            Message::Close(Some(close)) => seen.closes.lock().unwrap().push(close.code.into()),
            _ => {}
        }
    }
    Some(())
}

pub(crate) const CREATED: &str =
    r#"{"session_id":"s1","session_token":"canary-token","state":"active","created_at":1000,"expires_at":1801000}"#;

pub(crate) fn text(n: usize) -> Step {
    Step::Text(format!(r#"{{"type":"streamlined_text","text":"{n} ","uuid":"u{n}","session_id":"s1"}}"#))
}

pub(crate) fn texts(n: usize) -> String {
    (0..n).map(|n| format!("{n} ")).collect()
}

pub(crate) const RESULT: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"","stop_reason":"end_turn","uuid":"r"}"#;

pub(crate) fn result() -> Step {
    Step::Text(RESULT.to_owned())
}

/// A cloud plane whose streams are as told; everything else is as it should be.
pub(crate) async fn cloud(streams: impl Fn(usize) -> Do + Send + Sync + 'static) -> (Setup, Seen) {
    cloud_with(fast(), move |line, before| match line {
        _ if line.starts_with("POST /v1/agent/sessions/s1/refresh-token") => Do::Reply(200, r#"{"session_token":"canary-new"}"#.to_owned()),
        _ if line.starts_with("POST ") => Do::Reply(201, CREATED.to_owned()),
        _ if line.contains("/stream") => streams(before),
        _ => Do::Reply(404, "404 page not found\n".to_owned()),
    })
    .await
}

pub(crate) struct Setup {
    pub(crate) hub: Arc<Hub>,
    pub(crate) access: Access,
}

impl Setup {
    pub(crate) fn start(&self) -> Watched {
        Watched::start(&self.hub, &self.access, request("go"))
    }
}

pub(crate) async fn cloud_with(link: LinkConfig, script: impl Fn(&str, usize) -> Do + Send + Sync + 'static) -> (Setup, Seen) {
    setup(Kind::Cloud, link, script).await
}

pub(crate) async fn setup(kind: Kind, link: LinkConfig, script: impl Fn(&str, usize) -> Do + Send + Sync + 'static) -> (Setup, Seen) {
    let (address, seen) = serve(script).await;
    let hub = hub(Gate::Open, UpstreamConfig { mode: Mode::Task, ..config(kind, format!("http://{address}")) }, link);
    let access = hub.admit(None).unwrap();
    (Setup { hub, access }, seen)
}

pub(crate) fn script(steps: impl IntoIterator<Item = Option<Step>>) -> Do {
    Do::Socket(steps.into_iter().flatten().collect())
}

pub(crate) fn sentinel() -> Step {
    Step::Text(r#"{"type":"keep_alive","ts":1}"#.to_owned())
}
