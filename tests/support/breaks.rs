//! A client of the SSE surface that shows what went over the wire and can break off at any event, and how it does.

#![allow(dead_code, reason = "each test file uses its part")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How a client's connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Orderly.
    Fin,
    /// By a reset.
    Rst,
}

/// A request whose answer's body is the rest of its connection (HTTP/1.0).
pub(crate) struct Wire {
    stream: TcpStream,
    seen: Vec<u8>,
    /// The status code.
    pub(crate) status: u16,
    head: String,
}

impl Wire {
    /// Sends a request and reads the head of its answer.
    pub(crate) async fn ask(base: &str, method: &str, path: &str, token: &str, headers: &[(&str, String)], body: &str) -> Self {
        let address = base.strip_prefix("http://").expect("an http address");
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let mut request = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).await.expect("it can be written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        let head = String::from_utf8(head).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { stream, seen: Vec::new(), status, head }
    }

    /// A header of the answer.
    pub(crate) fn header(&self, name: &str) -> String {
        let line = self.head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)));
        line.map(|(_, value)| value.to_owned()).unwrap_or_default()
    }

    /// Reads so many events and breaks off. What came beyond them, perhaps a part of an event, is as good as not received.
    pub(crate) async fn cut_after(mut self, events: usize, cut: Cut) -> String {
        while blocks(&self.seen).len() < events {
            let read = self.stream.read_buf(&mut self.seen).await.expect("it goes on");
            assert!(read > 0, "it ends after {} of {events} events", blocks(&self.seen).len());
        }
        if cut == Cut::Rst {
            socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO)).expect("linger");
        }
        drop(self.stream);
        blocks(&self.seen).into_iter().take(events).collect()
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> String {
        self.stream.read_to_end(&mut self.seen).await.expect("it ends orderly");
        String::from_utf8(self.seen).expect("UTF-8")
    }
}

/// The whole events of a body.
pub(crate) fn blocks(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    text.split_inclusive("\n\n").filter(|block| block.ends_with("\n\n")).map(str::to_owned).collect()
}
