//! The fault proxies, each fault seen from both sides.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use interline_testkit::Seed;
use interline_testkit::faults::{Dial, Fault, FaultProxy, Plan, Planned, UpstreamFault, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message, protocol::frame::coding::CloseCode};

/// Long enough for what comes at once to have come.
const MOMENT: Duration = Duration::from_millis(150);

/// What the server below says to whoever speaks to it: 300 bytes, all of them in characters of three.
fn speech() -> Vec<u8> {
    "漢".repeat(100).into_bytes()
}

/// A server that answers the first words of each client with its speech, and keeps what it hears.
async fn speaker() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
    let hearing = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let hearing = hearing.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                let mut first = true;
                while let Ok(length @ 1..) = client.read(&mut buffer).await {
                    hearing.lock().unwrap().extend(&buffer[..length]);
                    if std::mem::take(&mut first) && client.write_all(&speech()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (url, heard)
}

/// What arrives, and how it ended: `None` if it did not.
async fn hear(stream: &mut TcpStream) -> (Vec<u8>, Option<Result<(), ErrorKind>>) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 64]);
    loop {
        match timeout(MOMENT, stream.read(&mut buffer)).await {
            Err(_) => return (seen, None),
            Ok(Ok(0)) => return (seen, Some(Ok(()))),
            Ok(Ok(length)) => seen.extend(&buffer[..length]),
            Ok(Err(error)) => return (seen, Some(Err(error.kind()))),
        }
    }
}

async fn suffering(fault: Fault, after: u64) -> (FaultProxy, TcpStream, Arc<Mutex<Vec<u8>>>) {
    let (url, heard) = speaker().await;
    let proxy = FaultProxy::before(&url).await;
    let mut stream = proxy.connect(Some(Plan { fault, after })).await.unwrap();
    stream.write_all(b"hello ").await.unwrap();
    (proxy, stream, heard)
}

fn heard(words: &Arc<Mutex<Vec<u8>>>) -> String {
    String::from_utf8(words.lock().unwrap().clone()).unwrap()
}

#[tokio::test]
async fn without_a_plan_everything_passes() {
    let (url, heard_there) = speaker().await;
    let proxy = FaultProxy::before(&url).await;
    let mut stream = proxy.connect(None).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(hear(&mut stream).await, (speech(), None));
    assert_eq!(heard(&heard_there), "hello");
    assert!(proxy.injected().is_empty());
}

#[tokio::test]
async fn a_connection_ends_at_the_byte_that_was_planned() {
    for after in [0, 1, 100, 299] {
        let (proxy, mut stream, _) = suffering(Fault::Fin, after).await;
        let (seen, end) = hear(&mut stream).await;
        assert_eq!((seen.len() as u64, end), (after, Some(Ok(()))));
        assert_eq!(proxy.injected().get("fin"), Some(&1));
    }
    // Beyond what comes there is no fault, and none is counted.
    let (proxy, mut stream, _) = suffering(Fault::Fin, 300).await;
    assert_eq!(hear(&mut stream).await, (speech(), None));
    assert!(proxy.injected().is_empty());
}

#[tokio::test]
async fn a_reset_is_an_error() {
    let (_proxy, mut stream, _) = suffering(Fault::Reset, 10).await;
    let (_, end) = hear(&mut stream).await;
    assert_eq!(end, Some(Err(ErrorKind::ConnectionReset)));
}

#[tokio::test]
async fn a_stalled_connection_passes_nothing_and_stays() {
    let (_proxy, mut stream, heard_there) = suffering(Fault::Stall, 10).await;
    let (seen, end) = hear(&mut stream).await;
    assert_eq!((seen.len(), end), (10, None));
    stream.write_all(b"and more").await.unwrap();
    assert_eq!(hear(&mut stream).await, (vec![], None));
    assert_eq!(heard(&heard_there), "hello ");
}

#[tokio::test]
async fn a_half_open_connection_passes_one_way() {
    let (_proxy, mut stream, heard_there) = suffering(Fault::HalfOpen, 10).await;
    assert_eq!(hear(&mut stream).await.0.len(), 10);
    stream.write_all(b"and more").await.unwrap();
    assert_eq!(hear(&mut stream).await, (vec![], None));
    assert_eq!(heard(&heard_there), "hello and more");
    let (_proxy, mut stream, heard_there) = suffering(Fault::HalfOpenUp, 299).await;
    hear(&mut stream).await;
    stream.write_all(b"and more").await.unwrap();
    assert_eq!(hear(&mut stream).await.1, None);
    assert_eq!(heard(&heard_there), "hello ");
}

#[tokio::test]
async fn a_delay_loses_nothing() {
    let (_proxy, mut stream, _) = suffering(Fault::Delay(MOMENT * 3), 10).await;
    assert_eq!(hear(&mut stream).await.0.len(), 10);
    tokio::time::sleep(MOMENT * 3).await;
    assert_eq!(hear(&mut stream).await.0, speech()[10..]);
}

#[tokio::test]
async fn a_cut_is_inside_a_character() {
    for after in [0, 4, 12] {
        let (_proxy, mut stream, _) = suffering(Fault::Cut, after).await;
        let (seen, end) = hear(&mut stream).await;
        assert_eq!(end, Some(Ok(())));
        assert!(seen.len() as u64 > after && seen.len() % 3 != 0, "{}", seen.len());
        assert!(std::str::from_utf8(&seen).is_err());
    }
}

#[tokio::test]
async fn connections_are_refused_or_taken_in_silence() {
    let (_proxy, mut stream, heard_there) = suffering(Fault::Refuse, 0).await;
    assert_eq!(hear(&mut stream).await, (vec![], Some(Err(ErrorKind::ConnectionReset))));
    assert_eq!(heard(&heard_there), "");
    let (_proxy, mut stream, heard_there) = suffering(Fault::Silent, 0).await;
    assert_eq!(hear(&mut stream).await, (vec![], None));
    assert_eq!(heard(&heard_there), "");
}

#[tokio::test]
async fn all_connections_break_at_once_until_they_are_mended() {
    let (url, _) = speaker().await;
    let proxy = FaultProxy::before(&url).await;
    let mut there = proxy.connect(None).await.unwrap();
    there.write_all(b"hello").await.unwrap();
    hear(&mut there).await;
    proxy.break_all(Fault::Reset);
    assert_eq!(hear(&mut there).await.1, Some(Err(ErrorKind::ConnectionReset)));
    let mut late = proxy.connect(None).await.unwrap();
    assert!(matches!(hear(&mut late).await, (seen, Some(_)) if seen.is_empty()));
    proxy.mend();
    let mut again = proxy.connect(None).await.unwrap();
    again.write_all(b"hello").await.unwrap();
    assert_eq!(hear(&mut again).await, (speech(), None));
}

#[tokio::test]
async fn nobody_listens_until_it_is_opened_again() {
    let (url, _) = speaker().await;
    let proxy = FaultProxy::before(&url).await;
    proxy.close().await;
    assert_eq!(proxy.connect(None).await.err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
    proxy.reopen().await;
    let mut stream = proxy.connect(None).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(hear(&mut stream).await, (speech(), None));
}

fn frame(n: u64) -> String {
    format!(r#"{{"type":"streamlined_text","text":"«r:{n}» 漢","uuid":"{n}"}}"#)
}

/// An agent server that sends ten frames to everybody, whatever cursor they bring, and says what it was asked for.
async fn server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let asking = asked.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let asking = asking.clone();
            tokio::spawn(async move {
                let mut peeked = [0; 1024];
                let length = client.peek(&mut peeked).await.unwrap();
                asking.lock().unwrap().push(String::from_utf8_lossy(&peeked[..length]).lines().next().unwrap_or_default().to_owned());
                let Ok(mut socket) = tokio_tungstenite::accept_async(client).await else { return };
                for n in 0..10 {
                    if futures_util::SinkExt::send(&mut socket, Message::text(frame(n))).await.is_err() {
                        return;
                    }
                }
                while let Some(Ok(_)) = socket.next().await {}
            });
        }
    });
    (url, asked)
}

/// What a client sees on its next connection, and how that ends.
async fn visit(proxy: &UpstreamProxy) -> (Vec<String>, String) {
    let url = format!("{}/v1/agent/sessions/1/stream?session_token=t&since_seq=3", proxy.url().replace("http:", "ws:"));
    let mut socket = match timeout(MOMENT * 4, tokio_tungstenite::connect_async(url)).await {
        Err(_) => return (Vec::new(), "no answer".to_owned()),
        Ok(Err(Error::Http(answer))) => return (Vec::new(), answer.status().as_u16().to_string()),
        Ok(Err(error)) => return (Vec::new(), format!("refused: {error}")),
        Ok(Ok((socket, _))) => socket,
    };
    let mut seen = Vec::new();
    loop {
        match timeout(MOMENT, socket.next()).await {
            Err(_) => return (seen, "open".to_owned()),
            Ok(None) => return (seen, "closed".to_owned()),
            Ok(Some(Err(error))) => return (seen, format!("broken: {error}")),
            Ok(Some(Ok(Message::Close(close)))) => {
                let code = close.map_or(CloseCode::Status, |close| close.code);
                return (seen, format!("close {}", u16::from(code)));
            }
            Ok(Some(Ok(message))) => seen.push(message.into_text().unwrap().to_string()),
        }
    }
}

async fn planned(fault: UpstreamFault, after: bool) -> (UpstreamProxy, Arc<Mutex<Vec<String>>>) {
    let (url, asked) = server().await;
    let proxy = UpstreamProxy::before(&url, Seed::new(1), move |run, _| {
        assert_eq!(run, "r");
        vec![Planned { at: 4, after, fault }]
    })
    .await;
    (proxy, asked)
}

fn frames(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(frame).collect()
}

#[tokio::test]
async fn a_run_breaks_at_its_piece_and_once() {
    for (fault, how) in [
        (UpstreamFault::Wire(Fault::Fin), "broken: "),
        (UpstreamFault::Wire(Fault::Cut), "broken: "),
        (UpstreamFault::Wire(Fault::Stall), "open"),
        (UpstreamFault::Wire(Fault::HalfOpen), "open"),
        (UpstreamFault::Close(1009), "close 1009"),
        (UpstreamFault::Close(1011), "close 1011"),
    ] {
        for after in [true, false] {
            let (proxy, _) = planned(fault, after).await;
            let (seen, end) = visit(&proxy).await;
            assert_eq!(seen, frames(0..if after { 5 } else { 4 }), "{fault:?}");
            assert!(end.starts_with(how), "{fault:?}: {end}");
            assert_eq!(visit(&proxy).await, (frames(0..10), "open".to_owned()), "{fault:?}");
            assert_eq!(proxy.injected().into_iter().collect::<Vec<_>>(), [(fault.name(), 1)]);
            assert_eq!((proxy.sent("r"), proxy.recoveries().len()), (10, 1));
        }
    }
    // What a reset takes with it is chance.
    let (proxy, _) = planned(UpstreamFault::Wire(Fault::Reset), true).await;
    let (seen, end) = visit(&proxy).await;
    assert!(seen.len() <= 5 && end.starts_with("broken: "), "{end}");
}

#[tokio::test]
async fn the_next_connections_are_refused() {
    for (dial, how) in [
        (Dial::Refused, "refused: "),
        (Dial::Silent, "no answer"),
        (Dial::Unauthorized, "401"),
        (Dial::Unavailable, "503"),
        (Dial::Desynced, "close 1000"),
    ] {
        let fault = UpstreamFault::Dial(dial, 2);
        let (proxy, _) = planned(fault, true).await;
        assert_eq!(visit(&proxy).await.0, frames(0..5));
        for _ in 0..2 {
            let (seen, end) = visit(&proxy).await;
            assert!(end.starts_with(how), "{dial:?}: {end}");
            assert_eq!(seen.iter().any(|frame| frame.contains("biumind.session_desynced")), dial == Dial::Desynced);
        }
        assert_eq!(visit(&proxy).await.0, frames(0..10));
        assert_eq!(proxy.injected().into_iter().collect::<Vec<_>>(), [(fault.name(), 2)]);
    }
}

#[tokio::test]
async fn replays_repeat_reorder_and_leave_out_what_had_arrived_only() {
    for dial in [Dial::Duplicated, Dial::Reordered, Dial::Partial] {
        let (proxy, _) = planned(UpstreamFault::Dial(dial, 1), true).await;
        assert_eq!(visit(&proxy).await.0, frames(0..5));
        let (seen, _) = visit(&proxy).await;
        let (old, new): (Vec<String>, Vec<String>) = seen.into_iter().partition(|text| frames(0..3).contains(text));
        assert_eq!(new, frames(3..10), "{dial:?}");
        match dial {
            Dial::Duplicated => assert!(old.len() == 15, "{old:?}"),
            Dial::Reordered => assert!(old.len() == 9 && old[..3] != frames(0..3), "{old:?}"),
            _ => assert!(old.len() < 3, "{old:?}"),
        }
        assert_eq!(visit(&proxy).await.0, frames(0..10));
    }
}

#[tokio::test]
async fn a_cursor_can_be_kept_from_the_server() {
    let (proxy, asked) = planned(UpstreamFault::Dial(Dial::Unreplayed, 1), true).await;
    for _ in 0..3 {
        visit(&proxy).await;
    }
    let asked = asked.lock().unwrap();
    let cursors: Vec<bool> = asked.iter().map(|line| line.contains("since_seq=3")).collect();
    assert_eq!(cursors, [true, false, true]);
    assert!(asked.iter().all(|line| line.contains("session_token=t")));
}

#[tokio::test]
async fn what_is_no_websocket_passes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let proxy = UpstreamProxy::before(&url, Seed::new(1), |_, _| Vec::new()).await;
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 1024];
        let length = client.read(&mut buffer).await.unwrap();
        assert!(buffer[..length].starts_with(b"POST /v1/agent/sessions HTTP/1.1\r\n"));
        client.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await.unwrap();
    });
    let answer = interline_testkit::post(&format!("{}/v1/agent/sessions", proxy.url()), "", "{}").await;
    assert_eq!((answer.status, answer.body.as_str()), (201, "{}"));
}
