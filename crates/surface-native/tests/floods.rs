//! Clients that talk and never read: what waits for them stays small. Alone in its process, because it measures memory.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::io::ErrorKind;
use std::time::Duration;

use support::Stand;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// One test at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

/// What one client tries to send.
const FLOOD: usize = 96 * 1024 * 1024;

/// What the kernel may take for both ends of a connection; it is not the process's.
const KERNEL: usize = 16 * 1024 * 1024;

/// What a socket may cost.
const EACH: usize = 3 * 1024 * 1024;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A frame as a client sends it, masked with zeroes.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | opcode];
    match u16::try_from(payload.len()).unwrap() {
        short @ 0..126 => bytes.push(0x80 | u8::try_from(short).unwrap()),
        long => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&long.to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Opens `path` and sends `frame` over and over without reading; what the other end took within a while.
async fn flood(stand: &Stand, path: &str, frame: &[u8]) -> (tokio::net::TcpStream, usize) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let address = stand.http("").trim_start_matches("http://").parse().unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    let many = frame.repeat(64 * 1024 / frame.len() + 1);
    let (mut taken, mut offset, mut moved) = (0, 0, Instant::now());
    while taken < FLOOD && moved.elapsed() < Duration::from_millis(700) {
        match stream.try_write(&many[offset..]) {
            Ok(written) => {
                taken += written;
                offset = (offset + written) % many.len();
                moved = Instant::now();
                tokio::task::yield_now().await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
    (stream, taken)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_costs_little() {
    let _alone = ALONE.lock().await;
    let stand = Stand::open().await;
    let native = stand.run("gate").await;
    let cloud = native.path("");
    let turn = stand.bridge().await;
    stand.message(&turn, "gate").await;
    let bridge = format!("/v1/code/sessions/{turn}/ws");
    let request = r#"{"type":"control_request","request_id":"a","request":{"subtype":"set_model","model":"m"}}"#;
    let long = r#"{"type":"control_request","request_id":"R","request":{"subtype":"mcp_status"}}"#.replace('R', &"r".repeat(30_000));
    for (what, count, frame) in [
        ("pings", 6, frame(9, &[0; 125])),
        ("empty pings", 2, frame(9, &[])),
        ("requests", 2, frame(1, request.as_bytes())),
        ("long requests", 2, frame(1, long.as_bytes())),
    ] {
        let before = resident();
        let mut sockets = Vec::new();
        for path in [&cloud, &bridge].into_iter().cycle().take(count) {
            let (socket, taken) = flood(&stand, path, &frame).await;
            assert!(taken < KERNEL + EACH, "{what} on {path}: {taken} bytes were taken");
            sockets.push(socket);
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < count * EACH, "{what}: {grown} bytes for {count} sockets");
    }
}

#[tokio::test]
async fn a_client_that_reads_is_answered_whatever_it_sends() {
    let _alone = ALONE.lock().await;
    let stand = Stand::open().await;
    let native = stand.run("gate").await;
    let (mut stream, taken) = flood(&stand, &native.path(""), &frame(9, b"0123456789")).await;
    // Each ping is 16 bytes, each pong 12; the last ping may have been cut off.
    let mut left = taken / 16 * 12;
    let mut scrap = vec![0; 64 * 1024];
    while left > 0 {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut scrap)).await.expect("pongs come").unwrap();
        assert!(read > 0, "closed with {left} bytes to come");
        left = left.saturating_sub(read);
    }
}
