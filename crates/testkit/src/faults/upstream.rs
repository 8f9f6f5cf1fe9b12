//! The proxy before an agent server: it reads the frames, breaks a run's connection at a given piece of it, and says how the next goes.
//!
//! A run is known by the marks in its text, `«NAME:NUMBER»`; until one has come its connections pass as they are. Everything that is no
//! WebSocket passes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::frames::{self, Frame, Frames};
use super::replay::{History, Replay};
use super::{Counts, Fault, host_of, locked, wire};
use crate::marks;
use crate::seed::Seed;

/// How long a side that was sent a close has to answer and to end the connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// Which of the two servers a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// The cloud agent plane.
    Cloud,
    /// The local bridge.
    Bridge,
}

/// What happens to a run's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFault {
    /// It breaks like any connection of bytes.
    Wire(Fault),
    /// The WebSocket is closed by the server with this code.
    Close(u16),
    /// It is closed in good order, and so many of the next connections go like this.
    Dial(Dial, u32),
}

/// How a connection goes that follows a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    /// Reset before there is an answer.
    Refused,
    /// Accepted, and never answered.
    Silent,
    /// Answered with 401.
    Unauthorized,
    /// Answered with 503.
    Unavailable,
    /// What was sent is sent again, each frame twice, and all of it once more.
    Duplicated,
    /// What was sent is sent again in another order.
    Reordered,
    /// A part of what was sent is sent again.
    Partial,
    /// The server takes no notice of the cursor: what was said meanwhile may be gone for good.
    Unreplayed,
    /// The server says that it cannot go on from there, and closes.
    Desynced,
}

impl UpstreamFault {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wire(fault) => fault.name(),
            Self::Close(1009) => "close 1009",
            Self::Close(1011) => "close 1011",
            Self::Close(_) => "close 1000",
            Self::Dial(Dial::Refused, _) => "refused dial",
            Self::Dial(Dial::Silent, _) => "silent accept",
            Self::Dial(Dial::Unauthorized, _) => "401 at reconnect",
            Self::Dial(Dial::Unavailable, _) => "503 at reconnect",
            Self::Dial(Dial::Duplicated, _) => "duplicated replay",
            Self::Dial(Dial::Reordered, _) => "reordered replay",
            Self::Dial(Dial::Partial, _) => "partial replay",
            Self::Dial(Dial::Unreplayed, _) => "cursor ignored",
            Self::Dial(Dial::Desynced, _) => "desync",
        }
    }
}

/// A fault, and the piece of the run at which it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The number of the piece.
    pub at: u64,
    /// Whether that piece still passes.
    pub after: bool,
    /// What happens.
    pub fault: UpstreamFault,
}

type Planner = dyn Fn(&str, Plane) -> Vec<Planned> + Send + Sync;

/// The proxy.
pub struct UpstreamProxy {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    address: SocketAddr,
    target: String,
    planner: Box<Planner>,
    seed: Seed,
    roads: Mutex<HashMap<String, Arc<Mutex<Road>>>>,
    counts: Counts,
    recoveries: Mutex<Vec<Duration>>,
    /// How many different pieces of each run the server has sent.
    sent: Mutex<HashMap<String, u64>>,
    /// The runs of which the server gives no stream any more, although it was asked again.
    finished: Mutex<HashSet<String>>,
}

/// The way to one native session, over all of its connections.
#[derive(Default)]
struct Road {
    run: String,
    planned: VecDeque<Planned>,
    history: History,
    next: VecDeque<Dial>,
    /// Pieces that were passed on and not lost on the way.
    had: BTreeSet<u64>,
    /// Pieces that were passed on over the connection that goes on.
    under_way: BTreeSet<u64>,
    /// The run's result was passed on over it.
    has_result: bool,
    /// A connection came.
    is_known: bool,
    /// Another one came, from somebody who had no more than one frame.
    from_nothing: bool,
    broken: Option<Instant>,
}

impl UpstreamProxy {
    /// Listens on a free port before `http://HOST:PORT`. `planner` says what a run of this name suffers on this server.
    ///
    /// # Panics
    /// When there is no port, or the target is no such URL.
    pub async fn before(target: &str, seed: Seed, planner: impl Fn(&str, Plane) -> Vec<Planned> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let shared = Arc::new(Shared {
            address: listener.local_addr().expect("an address"),
            target: host_of(target),
            planner: Box::new(planner),
            seed,
            roads: Mutex::default(),
            counts: Counts::default(),
            recoveries: Mutex::default(),
            sent: Mutex::default(),
            finished: Mutex::default(),
        });
        let for_task = shared.clone();
        let accepting = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((client, _)) => {
                        let shared = for_task.clone();
                        tokio::spawn(async move { pass(client, &shared).await });
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        Self { shared, accepting }
    }

    /// Its own base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// The faults that took effect, by name.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.shared.counts.read()
    }

    /// From each fault to the first new frame behind it.
    #[must_use]
    pub fn recoveries(&self) -> Vec<Duration> {
        locked(&self.shared.recoveries).clone()
    }

    /// Whether the server said, when it was asked again, that the run is over and has no stream: what was missed cannot be had.
    #[must_use]
    pub fn was_over(&self, run: &str) -> bool {
        locked(&self.shared.finished).contains(run)
    }

    /// Whether the run was asked for again by somebody who had nothing of it yet, or no more than its first frame: that one cannot be asked for
    /// from most servers.
    #[must_use]
    pub fn was_asked_from_nothing(&self, run: &str) -> bool {
        locked(&self.shared.roads).values().any(|road| {
            let road = locked(road);
            road.run == run && road.from_nothing
        })
    }

    /// The pieces of a run that the program has: they were passed on, and connections that ended in good order came later.
    #[must_use]
    pub fn had(&self, run: &str) -> BTreeSet<u64> {
        let roads = locked(&self.shared.roads);
        let of_run = roads.values().map(|road| locked(road)).filter(|road| road.run == run);
        of_run.flat_map(|road| road.had.iter().copied().collect::<Vec<_>>()).collect()
    }

    /// How many different pieces of a run the server has sent so far.
    #[must_use]
    pub fn sent(&self, run: &str) -> u64 {
        locked(&self.shared.sent).get(run).copied().unwrap_or_default()
    }
}

impl Drop for UpstreamProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn road(&self, path: &str) -> Arc<Mutex<Road>> {
        locked(&self.roads).entry(path.to_owned()).or_default().clone()
    }

    /// A connection to the server. A machine that has no port free for a moment is no fault that was asked for.
    async fn connect(&self) -> Option<TcpStream> {
        for _ in 0..50 {
            match TcpStream::connect(&self.target).await {
                Ok(server) => return Some(server),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        None
    }

    fn count(&self, fault: UpstreamFault) {
        self.counts.add(fault.name());
    }
}

async fn pass(mut client: TcpStream, shared: &Shared) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let (head, rest) = head(&mut client).await?;
    let line = head.lines().next().unwrap_or_default();
    let path = line.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().to_owned();
    if !head.to_ascii_lowercase().contains("upgrade: websocket") || path == "/v1/code/ws" {
        let mut server = shared.connect().await?;
        server.set_nodelay(true).ok()?;
        server.write_all(head.as_bytes()).await.ok()?;
        server.write_all(&rest).await.ok()?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()?;
        return Some(());
    }
    let road = shared.road(&path);
    let dial = {
        let mut road = locked(&road);
        road.from_nothing |= std::mem::replace(&mut road.is_known, true) && cursor(line) <= 1;
        road.history.counted(cursor(line));
        road.next.pop_front()
    };
    if let Some(dial) = dial {
        shared.count(UpstreamFault::Dial(dial, 0));
    }
    match dial {
        Some(Dial::Refused) => {
            wire::reset(client);
            return Some(());
        }
        Some(Dial::Silent) => {
            wire::swallow(&mut client).await;
            return Some(());
        }
        Some(Dial::Unauthorized) => {
            let body = r#"{"error":{"code":"invalid_session_token","message":"token has invalid claims: token is expired"}}"#;
            return answer(client, "401 Unauthorized", body).await;
        }
        Some(Dial::Unavailable) => return answer(client, "503 Service Unavailable", r#"{"error":{"code":"internal","message":""}}"#).await,
        _ => {}
    }
    let mut server = shared.connect().await?;
    server.set_nodelay(true).ok()?;
    let head = if dial == Some(Dial::Unreplayed) { without_cursor(&head) } else { head };
    server.write_all(head.as_bytes()).await.ok()?;
    server.write_all(&rest).await.ok()?;
    let (answer, rest) = self::head(&mut server).await?;
    client.write_all(answer.as_bytes()).await.ok()?;
    if !answer.starts_with("HTTP/1.1 101") {
        if answer.starts_with("HTTP/1.1 409") {
            let run = locked(&road).run.clone();
            locked(&shared.finished).insert(run);
        }
        client.write_all(&rest).await.ok()?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()?;
        return Some(());
    }
    let plane = if path.starts_with("/v1/code/") { Plane::Bridge } else { Plane::Cloud };
    if dial == Some(Dial::Desynced) {
        let notice = format!(
            r#"{{"final_result_url":"{}","reason":"a fault on demand","session_id":"","since_seq":0,"type":"biumind.session_desynced"}}"#,
            path.replace("/stream", "/result")
        );
        client.write_all(&frames::text(&notice)).await.ok()?;
        return close(client, 1000).await;
    }
    let mut connection = Connection { shared, road, plane, client, server, replay: None };
    connection.replay = match dial {
        Some(Dial::Duplicated) => Some(Replay::Duplicated),
        Some(Dial::Reordered) => Some(Replay::Reordered),
        Some(Dial::Partial) => Some(Replay::Partial),
        _ => None,
    };
    connection.carry(&rest).await
}

/// A WebSocket that passes.
struct Connection<'a> {
    shared: &'a Shared,
    road: Arc<Mutex<Road>>,
    plane: Plane,
    client: TcpStream,
    server: TcpStream,
    replay: Option<Replay>,
}

impl Connection<'_> {
    async fn carry(mut self, rest: &[u8]) -> Option<()> {
        {
            let mut road = locked(&self.road);
            road.under_way.clear();
            road.has_result = false;
        }
        if let Some(replay) = self.replay {
            let replayed = {
                let road = locked(&self.road);
                let mut seed = self.shared.seed.of(&road.run, road.planned.len() as u64);
                road.history.replayed(replay, &mut seed)
            };
            for text in replayed {
                self.client.write_all(&frames::text(&text)).await.ok()?;
            }
        }
        let (mut up, mut down, mut cutting) = (vec![0; 16 * 1024], vec![0; 64 * 1024], Frames::default());
        let mut waiting = cutting.feed(rest);
        loop {
            for frame in std::mem::take(&mut waiting) {
                match self.take(&frame).await? {
                    None => {}
                    Some(fault) => return self.end(&frame, fault).await,
                }
            }
            tokio::select! {
                read = self.client.read(&mut up) => match read {
                    Ok(length @ 1..) => self.server.write_all(up.get(..length)?).await.ok()?,
                    _ => {
                        // Behind the result it leaves by itself, with everything.
                        let has_result = locked(&self.road).has_result;
                        return if has_result { self.arrived() } else { None };
                    }
                },
                read = self.server.read(&mut down) => match read {
                    Ok(length @ 1..) => waiting = cutting.feed(down.get(..length)?),
                    Ok(_) => return self.finish().await,
                    Err(_) => {
                        wire::reset(self.client);
                        return None;
                    }
                },
            }
        }
    }

    /// Passes a frame on, or says which fault comes at it.
    async fn take(&mut self, frame: &Frame) -> Option<Option<UpstreamFault>> {
        let Some(text) = frame.text().filter(|text| text.contains("\"uuid\":") && !text.contains("\"type\":\"result\"")) else {
            if frame.text().is_some_and(|text| text.contains("\"type\":\"result\"")) {
                // Nothing is replayed behind the end.
                let mut road = locked(&self.road);
                road.history = History::default();
                road.has_result = true;
            }
            self.client.write_all(&frame.bytes).await.ok()?;
            return Some(None);
        };
        let (due, again) = self.look(text);
        let fault = due.map(|planned| planned.fault);
        if due.is_none_or(|planned| planned.after) {
            for _ in 0..again {
                self.client.write_all(&frame.bytes).await.ok()?;
            }
        }
        Some(fault)
    }

    /// What comes at this frame, and how often it is passed on.
    fn look(&self, text: &str) -> (Option<Planned>, u32) {
        let mut road = locked(&self.road);
        let own = if text.contains("\"type\":\"assistant\"") { None } else { marks::first(text) };
        if let Some((run, _)) = own.filter(|(run, _)| *run != road.run) {
            *road = Road {
                run: run.to_owned(),
                planned: (self.shared.planner)(run, self.plane).into(),
                is_known: true,
                from_nothing: road.from_nothing && road.run.is_empty(),
                ..Road::default()
            };
        }
        if let Some(replay) = self.replay.filter(|_| road.history.has_arrived(text)) {
            // The server replays it, too.
            return (None, if replay == Replay::Partial { 0 } else { 2 });
        }
        let due = own.and_then(|(_, number)| road.planned.pop_front_if(|planned| planned.at <= number));
        if let (Some((_, number)), true) = (own, due.is_none_or(|planned| planned.after)) {
            road.under_way.insert(number);
        }
        if due.is_none_or(|planned| planned.after) && road.history.keep(text) {
            if let (Some(_), run) = (own, road.run.clone()) {
                *locked(&self.shared.sent).entry(run).or_default() += 1;
            }
            if let Some(since) = road.broken.take() {
                locked(&self.shared.recoveries).push(since.elapsed());
            }
        }
        if let Some(planned) = due {
            road.broken = Some(Instant::now());
            if let UpstreamFault::Dial(dial, times) = planned.fault {
                road.next.extend((0..times).map(|_| dial));
            }
        }
        (due, 1)
    }

    /// What was passed on came to the other side: the connection ended in good order, or will only now go bad.
    fn arrived(&self) -> Option<()> {
        let mut road = locked(&self.road);
        let mut under_way = std::mem::take(&mut road.under_way);
        road.had.append(&mut under_way);
        Some(())
    }

    async fn end(mut self, frame: &Frame, fault: UpstreamFault) -> Option<()> {
        if fault != UpstreamFault::Wire(Fault::Reset) {
            self.arrived()?;
        }
        match fault {
            // Counted when the connections come that it is about.
            UpstreamFault::Dial(..) => return self.finish().await,
            _ => self.shared.count(fault),
        }
        match fault {
            UpstreamFault::Wire(Fault::Cut) => {
                if let Some(part) = frame.up_to_a_character() {
                    self.client.write_all(part).await.ok()?;
                }
                wire::broken(self.client, Some(self.server), Fault::Fin).await
            }
            UpstreamFault::Wire(Fault::Fin) | UpstreamFault::Dial(..) => self.finish().await,
            UpstreamFault::Wire(fault) => wire::broken(self.client, Some(self.server), fault).await,
            UpstreamFault::Close(code) => {
                drop(self.server);
                close(self.client, code).await
            }
        }
    }

    /// Ends the connection in good order.
    async fn finish(self) -> Option<()> {
        self.arrived()?;
        drop(self.server);
        wire::finish(self.client).await
    }
}

async fn close(mut client: TcpStream, code: u16) -> Option<()> {
    client.write_all(&frames::close(code)).await.ok()?;
    let mut scrap = vec![0; 4096];
    // Its own close, or its end.
    let _ = tokio::time::timeout(FAREWELL, client.read(&mut scrap)).await;
    wire::finish(client).await
}

async fn answer(mut client: TcpStream, status: &str, body: &str) -> Option<()> {
    let length = body.len();
    let answer =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    client.write_all(answer.as_bytes()).await.ok()?;
    wire::finish(client).await
}

/// The head of a request or an answer, and what came with it.
async fn head(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes).ok()?, rest));
        }
        match stream.read(&mut buffer).await {
            Ok(length @ 1..) => bytes.extend_from_slice(buffer.get(..length)?),
            _ => return None,
        }
    }
}

/// How many frames the client says that it has.
fn cursor(line: &str) -> usize {
    let value = ["since_seq=", "last_event_id="].iter().find_map(|name| Some(line.split_once(name)?.1));
    value.and_then(|value| value.split(['&', ' ']).next()?.parse().ok()).unwrap_or_default()
}

/// The request without what says how far the client is.
fn without_cursor(head: &str) -> String {
    let (line, rest) = head.split_once("\r\n").unwrap_or((head, ""));
    let mut words = line.split(' ');
    let (method, path, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("since_seq=") && !pair.starts_with("last_event_id=")).collect();
    format!("{method} {path}?{} {version}\r\n{rest}", kept.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_taken_out_and_the_rest_stays() {
        let head = "GET /v1/x/stream?session_token=t&since_seq=5 HTTP/1.1\r\nhost: x\r\n\r\n";
        assert_eq!(without_cursor(head), "GET /v1/x/stream?session_token=t HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!((cursor(head), cursor("GET /x?last_event_id=12 HTTP/1.1"), cursor("GET /x HTTP/1.1")), (5, 12, 0));
        assert_eq!(without_cursor("GET /x?last_event_id=5 HTTP/1.1\r\n\r\n"), "GET /x? HTTP/1.1\r\n\r\n");
    }
}
