//! A connection between the program and its upstream that a test has in its hand: it crumbles what passes, or breaks.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How connections break. None of them can be had again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// Nothing is broken.
    Whole,
    /// TCP ends orderly, the WebSocket does not.
    Finish,
    /// TCP is reset.
    Reset,
    /// The WebSocket is closed by the server with 1011.
    Close1011,
    /// Nothing passes any more, and nobody says so.
    Freeze,
}

/// What becomes of the bytes that the upstream sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crumbs {
    /// They pass as they come.
    None,
    /// Behind the head, each TCP write is one byte, and each WebSocket message one fragment per byte.
    Bytes,
}

/// Listens for the program and connects to the upstream.
pub(crate) struct Tap {
    address: SocketAddr,
    state: watch::Sender<Break>,
}

impl Tap {
    /// A tap before `http://HOST:PORT`.
    pub(crate) async fn before(upstream: &str, crumbs: Crumbs) -> Self {
        let target = upstream.strip_prefix("http://").expect("an http address").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (state, watching) = watch::channel(Break::Whole);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, watching) = (target.clone(), watching.clone());
                tokio::spawn(async move { pass(client, &target, crumbs, watching).await });
            }
        });
        Self { address, state }
    }

    /// Its own address, for the program.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks every connection, and every further one.
    pub(crate) fn break_by(&self, how: Break) {
        self.state.send_replace(how);
    }
}

async fn pass(mut client: TcpStream, target: &str, crumbs: Crumbs, mut state: watch::Receiver<Break>) -> Option<()> {
    let already = *state.borrow_and_update();
    if already != Break::Whole {
        return break_now(client, already, false).await;
    }
    let mut server = TcpStream::connect(target).await.ok()?;
    client.set_nodelay(true).ok()?;
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut shredder = (crumbs == Crumbs::Bytes).then(Shredder::default);
    let mut upgraded = false;
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read.ok()? {
                0 => return None,
                length => server.write_all(up.get(..length)?).await.ok()?,
            },
            read = server.read(&mut down) => {
                let length = read.ok()?;
                if length == 0 {
                    return None;
                }
                let bytes = down.get(..length)?;
                upgraded |= bytes.starts_with(b"HTTP/1.1 101");
                match &mut shredder {
                    None => client.write_all(bytes).await.ok()?,
                    Some(shredder) => {
                        let (head, frames) = shredder.feed(bytes);
                        // Whole: a head in a hundred packets is taken for an attack by whoever reads it.
                        client.write_all(&head).await.ok()?;
                        for byte in frames {
                            client.write_all(&[byte]).await.ok()?;
                        }
                    },
                }
            },
            _ = state.changed() => {
                let how = *state.borrow();
                return break_now(client, how, upgraded).await;
            }
        }
    }
}

async fn break_now(mut client: TcpStream, how: Break, upgraded: bool) -> Option<()> {
    match how {
        Break::Whole | Break::Finish => {}
        Break::Reset => socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).ok()?,
        Break::Close1011 if upgraded => client.write_all(&[0x88, 0x02, 0x03, 0xf3]).await.ok()?,
        Break::Close1011 => {}
        Break::Freeze => std::future::pending().await,
    }
    drop(client);
    Some(())
}

/// Cuts each text message of a server's WebSocket into fragments of one byte.
#[derive(Default)]
struct Shredder {
    waiting: Vec<u8>,
    place: Place,
}

#[derive(Default)]
enum Place {
    #[default]
    Head,
    Frames,
    /// It is no WebSocket.
    Plain,
}

impl Shredder {
    /// What of the head can go now, and what behind it.
    fn feed(&mut self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        self.waiting.extend_from_slice(bytes);
        let (mut head, mut out) = (Vec::new(), Vec::new());
        if matches!(self.place, Place::Head) {
            let Some(end) = self.waiting.windows(4).position(|four| four == b"\r\n\r\n") else { return (head, out) };
            self.place = if self.waiting.starts_with(b"HTTP/1.1 101") { Place::Frames } else { Place::Plain };
            head.extend(self.waiting.drain(..end + 4));
        }
        if matches!(self.place, Place::Plain) {
            out.append(&mut self.waiting);
        }
        while let Some((first, from, to)) = frame(&self.waiting) {
            let whole: Vec<u8> = self.waiting.drain(..to).collect();
            let payload = whole.get(from..).unwrap_or_default();
            if first != 0x81 || payload.is_empty() {
                out.extend(whole);
                continue;
            }
            for (at, byte) in payload.iter().enumerate() {
                let opcode = if at == 0 { 1 } else { 0 };
                let last = if at + 1 == payload.len() { 0x80 } else { 0 };
                out.extend([last | opcode, 1, *byte]);
            }
        }
        (head, out)
    }
}

/// The first byte of the frame at the beginning, and where its payload begins and ends, once all of it is there.
fn frame(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let first = *bytes.first()?;
    let (from, length) = match bytes.get(1)? & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?),
        length => (2, usize::from(length)),
    };
    (bytes.len() >= from + length).then_some((first, from, from + length))
}
