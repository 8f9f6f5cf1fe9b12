//! The coding channel of a bridge: messages both ways as they are, back-pressure both ways, and every way it ends.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use interline_hub::{ActionError, Channel, ChannelMessage, RunCredential};
use interline_upstream_native::{Kind, LinkConfig, upstream};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::rude::{Do, serve};
use crate::world::{config, fast, until};

type Server = WebSocketStream<TcpStream>;

/// A channel to a server that does `deeds`.
async fn channel<F: Future<Output = ()> + Send>(link: LinkConfig, deeds: impl FnOnce(Server) -> F + Send + 'static) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        deeds(tokio_tungstenite::accept_async(stream).await.unwrap()).await;
    });
    let upstream = upstream(config(Kind::Bridge, url), link).unwrap();
    upstream.coding_channel(RunCredential::Configured).await.unwrap()
}

async fn echo(mut server: Server) {
    while let Some(Ok(message)) = server.next().await {
        if message.is_text() || message.is_binary() {
            server.send(message).await.unwrap();
        }
    }
}

/// Keeps the connection, and does nothing with it.
async fn hold(server: Server) {
    let _server = server;
    std::future::pending().await
}

/// The next message, soon.
async fn next(channel: &mut Channel) -> Option<ChannelMessage> {
    timeout(Duration::from_secs(10), channel.from.recv()).await.unwrap()
}

/// The end, after so many messages.
async fn end(channel: &mut Channel) -> (usize, u16, String) {
    let mut before = 0;
    loop {
        match next(channel).await {
            Some(ChannelMessage::Close { code, reason }) => {
                assert_eq!(next(channel).await, None, "it is the last");
                return (before, code, reason);
            }
            Some(_) => before += 1,
            None => panic!("no close after {before} messages"),
        }
    }
}

fn text(text: &str) -> ChannelMessage {
    ChannelMessage::Text(text.into())
}

/// A text of about `size` bytes that is like no other.
fn numbered(n: usize, size: usize) -> String {
    format!("{n} {}", "x".repeat(size))
}

fn close(code: u16, reason: &str) -> Message {
    Message::Close(Some(CloseFrame { code: code.into(), reason: reason.into() }))
}

#[tokio::test]
async fn messages_go_both_ways_as_they_are() {
    let mut channel = channel(fast(), echo).await;
    let sent = [
        text(r#"{"type":"code_request","request_id":"c1" , "n":12345678901234567890123,"f":1.0}"#),
        text("größer 漢字 🎉 \u{2028} \\u2028"),
        text(""),
        text("null"),
        ChannelMessage::Binary((0..=255).collect::<Vec<u8>>().into()),
        ChannelMessage::Binary(Bytes::new()),
        text(&"x".repeat(3_000_000)),
    ];
    for message in &sent {
        channel.to.send(message.clone()).await.unwrap();
        assert_eq!(next(&mut channel).await.as_ref(), Some(message));
    }
    // And in order, however many.
    let to = channel.to.clone();
    let sending = tokio::spawn(async move {
        for n in 0..20_000 {
            to.send(text(&n.to_string())).await.unwrap();
        }
    });
    for n in 0..20_000 {
        assert_eq!(next(&mut channel).await, Some(text(&n.to_string())));
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn a_close_of_the_server_is_passed_on() {
    for (sent, code, reason) in
        [(Some((1000, "done")), 1000, "done"), (Some((4001, "größer")), 4001, "größer"), (Some((1011, "")), 1011, ""), (None, 1005, "")]
    {
        let mut channel = channel(fast(), move |mut server: Server| async move {
            server.send(Message::text("last")).await.unwrap();
            let message = sent.map_or(Message::Close(None), |(code, reason)| close(code, reason));
            server.send(message).await.unwrap();
            // The reply.
            while let Some(Ok(_)) = server.next().await {}
        })
        .await;
        assert_eq!(end(&mut channel).await, (1, code, reason.to_owned()));
        until("nobody reads any more", || channel.to.is_closed()).await;
    }
}

#[tokio::test]
async fn a_close_of_the_client_is_passed_on_behind_what_it_said() {
    for (code, reason, expected) in
        [(4002, "bye", Some((4002, "bye".to_owned()))), (1000, "", Some((1000, String::new()))), (1005, "", None)]
    {
        let (heard, hearing) = oneshot::channel();
        let channel = channel(fast(), |mut server: Server| async move {
            sleep(Duration::from_millis(100)).await;
            let mut messages = Vec::new();
            while let Some(Ok(message)) = server.next().await {
                messages.push(message);
            }
            heard.send(messages).unwrap();
        })
        .await;
        for n in 0..5 {
            channel.to.send(text(&n.to_string())).await.unwrap();
        }
        channel.to.send(ChannelMessage::Close { code, reason: reason.to_owned() }).await.unwrap();
        drop(channel);
        let messages = timeout(Duration::from_secs(5), hearing).await.unwrap().unwrap();
        let [texts @ .., Message::Close(closed)] = messages.as_slice() else { panic!("{messages:?}") };
        assert_eq!(texts, (0..5).map(|n: u8| Message::text(n.to_string())).collect::<Vec<_>>());
        let closed = closed.as_ref().map(|close| (u16::from(close.code), close.reason.to_string()));
        assert_eq!(closed, expected);
    }
}

#[tokio::test]
async fn a_channel_that_is_dropped_closes_the_server_s_side() {
    let (heard, hearing) = oneshot::channel();
    let channel = channel(fast(), |mut server: Server| async move {
        let mut last = None;
        while let Some(Ok(message)) = server.next().await {
            last = Some(message);
        }
        heard.send(last).unwrap();
    })
    .await;
    drop(channel);
    assert_eq!(timeout(Duration::from_secs(5), hearing).await.unwrap().unwrap(), Some(Message::Close(None)));
}

#[tokio::test]
async fn pings_are_answered() {
    let (heard, hearing) = oneshot::channel();
    let _channel = channel(fast(), |mut server: Server| async move {
        server.send(Message::Ping(Bytes::from_static(b"you?"))).await.unwrap();
        heard.send(server.next().await.unwrap().unwrap()).unwrap();
    })
    .await;
    assert_eq!(timeout(Duration::from_secs(5), hearing).await.unwrap().unwrap(), Message::Pong(Bytes::from_static(b"you?")));
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_the_server_up() {
    // Of messages above and below their share of the bound.
    for (size, count) in [(2_000_000, 60_usize), (20_000, 4_000), (200, 300_000)] {
        let written = Arc::new(AtomicUsize::new(0));
        let counter = written.clone();
        let link = LinkConfig { max_message_bytes: 8_000_000, ..fast() };
        let mut channel = channel(link, move |mut server: Server| async move {
            for n in 0..count {
                server.send(Message::text(numbered(n, size))).await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
            }
            server.close(None).await.unwrap();
            while let Some(Ok(_)) = server.next().await {}
        })
        .await;
        let mut before = usize::MAX;
        timeout(Duration::from_secs(20), async {
            while written.load(Ordering::Relaxed) != before {
                before = written.load(Ordering::Relaxed);
                sleep(Duration::from_millis(300)).await;
            }
        })
        .await
        .unwrap();
        // The kernel's buffers hold some millions; ours no more than twice the largest message.
        assert!(before > 0 && before * size < 30_000_000, "{before} of {count}");
        for n in 0..count {
            assert_eq!(next(&mut channel).await, Some(text(&numbered(n, size))));
        }
        assert_eq!(end(&mut channel).await.0, 0);
    }
}

#[tokio::test]
async fn a_server_that_does_not_read_holds_the_client_up_and_not_for_ever() {
    let link = LinkConfig { write_timeout_ms: 30_000, ..fast() };
    let (go, gone) = oneshot::channel::<()>();
    let mut slow = channel(link, |server: Server| async move {
        gone.await.unwrap();
        echo(server).await;
    })
    .await;
    let message = text(&"x".repeat(100_000));
    let mut sent = 0;
    while timeout(Duration::from_millis(500), slow.to.send(message.clone())).await.is_ok() {
        sent += 1;
        assert!(sent < 300, "nothing holds it up");
    }
    go.send(()).unwrap();
    for _ in 0..sent {
        assert_eq!(next(&mut slow).await, Some(message.clone()));
    }
    let mut dead = channel(LinkConfig { write_timeout_ms: 200, ..fast() }, hold).await;
    let to = dead.to.clone();
    tokio::spawn(async move { while to.send(message.clone()).await.is_ok() {} });
    let (_, code, reason) = end(&mut dead).await;
    assert!(code == 1011 && reason.contains("did not read for 200 ms"), "{code} {reason}");
}

#[tokio::test]
async fn a_connection_that_died_without_a_word_is_noticed() {
    let link = LinkConfig { liveness_ms: 200, ..fast() };
    let mut channel = channel(link, hold).await;
    let (before, code, reason) = end(&mut channel).await;
    assert!(before == 0 && code == 1011 && reason.contains("silent for 200 ms"), "{code} {reason}");
}

#[tokio::test]
async fn a_client_that_pauses_for_longer_than_silence_may_last_loses_nothing() {
    let link = LinkConfig { liveness_ms: 200, ..fast() };
    let pongs = Arc::new(AtomicUsize::new(0));
    let counter = pongs.clone();
    let mut channel = channel(link, move |server: Server| async move {
        let (mut sink, mut stream) = server.split();
        for n in 0..1_000 {
            sink.send(Message::text(n.to_string())).await.unwrap();
        }
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(50)).await;
                if sink.send(Message::Ping(Bytes::from_static(b"p"))).await.is_err() {
                    break;
                }
            }
        });
        while let Some(Ok(message)) = stream.next().await {
            // Servers go by these alone (§3.2).
            counter.fetch_add(usize::from(message == Message::Pong(Bytes::new())), Ordering::Relaxed);
        }
    })
    .await;
    sleep(Duration::from_millis(700)).await;
    assert!(pongs.load(Ordering::Relaxed) >= 3, "{pongs:?}");
    for n in 0..1_000 {
        assert_eq!(next(&mut channel).await, Some(text(&n.to_string())));
    }
    sleep(Duration::from_millis(400)).await;
    assert!(channel.from.try_recv().is_err_and(|error| error == tokio::sync::mpsc::error::TryRecvError::Empty));
}

#[tokio::test]
async fn messages_that_are_too_large_end_the_channel() {
    let link = LinkConfig { max_message_bytes: 1_000, bridge_max_outbound: 100, ..fast() };
    let mut large = channel(link.clone(), |mut server: Server| async move {
        server.send(Message::text("x".repeat(1_000))).await.unwrap();
        server.send(Message::text("x".repeat(1_001))).await.unwrap();
        while let Some(Ok(_)) = server.next().await {}
    })
    .await;
    let (before, code, reason) = end(&mut large).await;
    assert!(before == 1 && code == 1009 && reason.contains("1000 bytes"), "{code} {reason}");
    let mut large = channel(link, echo).await;
    large.to.send(text(&"x".repeat(101))).await.unwrap();
    let (_, code, reason) = end(&mut large).await;
    assert!(code == 1009 && reason.contains("100 bytes"), "{code} {reason}");
}

#[tokio::test]
async fn a_connection_that_breaks_is_said_to_have_broken_behind_all_that_came() {
    let mut broken = channel(fast(), |mut server: Server| async move {
        for _ in 0..50 {
            server.send(Message::text("x")).await.unwrap();
        }
        sleep(Duration::from_millis(100)).await;
        server.get_ref().set_zero_linger().unwrap();
    })
    .await;
    let (before, code, reason) = end(&mut broken).await;
    assert!(before == 50 && code == 1011 && reason.contains("broke"), "{before} {code} {reason}");
    let mut invalid = channel(fast(), |mut server: Server| async move {
        server.get_mut().write_all(&[0x81, 2, 0xff, 0xfe]).await.unwrap();
        while let Some(Ok(_)) = server.next().await {}
    })
    .await;
    let (_, code, reason) = end(&mut invalid).await;
    assert!(code == 1007 && reason.contains("UTF-8"), "{code} {reason}");
}

#[tokio::test]
async fn a_refused_upgrade_is_a_refusal() {
    for (status, body, expected) in [
        (401, "unauthorized\n", "unauthorized"),
        (404, "404 page not found\n", "404 page not found"),
        (409, r#"{"error":"too many"}"#, "too many"),
        (503, "", "the agent server answered with 503"),
        (403, "canary-credential", "the agent server answered with 403"),
    ] {
        let (address, seen) = serve(move |_, _| Do::Reply(status, body.to_owned())).await;
        let upstream = upstream(config(Kind::Bridge, format!("http://{address}")), fast()).unwrap();
        let error = upstream.coding_channel(RunCredential::Configured).await.unwrap_err();
        assert_eq!(error, ActionError::Refused { status: Some(status), message: expected.to_owned() });
        assert_eq!(seen.requests(""), ["GET /v1/code/ws"]);
        let head = seen.whole.lock().unwrap()[0].head.to_lowercase();
        assert!(head.contains("authorization: bearer canary-credential"), "{head}");
    }
}

#[tokio::test]
async fn who_has_no_coding_channel_says_so() {
    let cloud = upstream(config(Kind::Cloud, "http://127.0.0.1:1".to_owned()), fast()).unwrap();
    let error = cloud.coding_channel(RunCredential::Configured).await.unwrap_err();
    assert_eq!(error, ActionError::Unsupported("upstream main has no coding channel".to_owned()));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let bridge = upstream(config(Kind::Bridge, format!("http://{closed}")), fast()).unwrap();
    match bridge.coding_channel(RunCredential::Configured).await {
        Err(ActionError::Unreachable(message)) => assert!(message.contains("main") && message.contains("refused"), "{message}"),
        other => panic!("{other:?}"),
    }
}
