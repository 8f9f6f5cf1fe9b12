//! A proxy before the program that is no friend of WebSockets: everything else passes, a WebSocket fails in one of the ways that are
//! seen in the wild.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// It passes.
    Whole,
    /// It passes, each way this much later.
    Slow(Duration),
    /// It is closed right behind the server's 101.
    ClosedAfterHandshake,
    /// It is closed when the client's first message has reached the server.
    ClosedAfterProbe,
    /// Nothing passes behind the 101.
    Swallowed,
    /// What the server says does not pass.
    Mute,
}

/// Listens for clients before `http://HOST:PORT`; its own base URL.
pub(crate) async fn before(program: &str, sockets: Sockets) -> String {
    let target = program.strip_prefix("http://").expect("an http address").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move { pass(client, &target, sockets).await });
        }
    });
    format!("http://{address}")
}

async fn pass(mut client: TcpStream, target: &str, sockets: Sockets) -> Option<()> {
    let head = head(&mut client).await?;
    let mut server = TcpStream::connect(target).await.ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    server.write_all(&head).await.ok()?;
    if sockets == Sockets::Whole || !String::from_utf8_lossy(&head).to_lowercase().contains("upgrade: websocket") {
        tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()?;
        return None;
    }
    let answer = self::head(&mut server).await?;
    client.write_all(&answer).await.ok()?;
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    match sockets {
        Sockets::Whole | Sockets::ClosedAfterHandshake => {}
        Sockets::ClosedAfterProbe => {
            let _ = tokio::time::timeout(Duration::from_millis(200), copy(client_reads, server_writes, Duration::ZERO)).await;
        }
        Sockets::Swallowed => {
            tokio::join!(copy(client_reads, tokio::io::sink(), Duration::ZERO), copy(server_reads, tokio::io::sink(), Duration::ZERO));
        }
        Sockets::Mute => {
            tokio::join!(copy(client_reads, server_writes, Duration::ZERO), copy(server_reads, tokio::io::sink(), Duration::ZERO));
        }
        Sockets::Slow(delay) => {
            tokio::join!(copy(client_reads, server_writes, delay), copy(server_reads, client_writes, delay));
        }
    }
    Some(())
}

async fn head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(head)
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: Duration) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        tokio::time::sleep(delay).await;
        if to.write_all(buffer.get(..length).unwrap_or_default()).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
