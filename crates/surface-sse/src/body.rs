//! The body of a stream: a cursor into the run's blocks, framed for one reader (sse.md §5.2–§5.4).
//!
//! Dropping it drops the cursor and nothing else. It ends cleanly only behind a terminal event; in every other case the
//! connection is cut, so that no client takes a part for the whole.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use interline_hub::{InTurn, Leave, NotBegun, Projection, RunTail, Turn, Visit};
use interline_model::RunId;
use tokio::time::{sleep, timeout};

use crate::block::DATA;
use crate::posts::Answering;
use crate::shell::Shell;
use crate::{Block, Extras, Profile, SseWriter};

/// Blocks fetched at a time.
const BATCH: usize = 64;
/// Bytes fetched at a time, and joined into one frame: what is held for one reader. A longer block comes alone.
const FRAME: usize = 8 * 1024;

/// A run that waits has so long, when the server closes, to be refused.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What was written last has so long to be on its way before the connection is cut, which would take it along.
const FAREWELL: Duration = Duration::from_millis(50);

/// The connection is cut before the end of its run.
#[derive(Debug, thiserror::Error)]
#[error("the stream ends before its run does")]
struct CutShort;

/// One reader of one run.
pub(crate) struct Reading {
    shell: Arc<Shell>,
    source: Source,
    extras: Extras,
    /// The number of the first event wanted.
    from: u64,
    queue: VecDeque<Block>,
    framing: Framing,
    /// The stream answers a request that may be sent again.
    answering: Option<Answering>,
    /// Whose stream it is, as long as it may be.
    visit: Visit,
    progress: Progress,
    /// When this stream ends, if the server does.
    turn: Turn,
    /// The reader was told when to come back from the server that ends.
    dismissed: bool,
}

/// Where the events come from.
pub(crate) enum Source {
    /// The run's, as they come.
    Run { run: RunId, projection: Arc<Projection<SseWriter>>, tail: RunTail<SseWriter> },
    /// The run waits for its turn; until then there are heartbeats alone.
    InTurn(Arc<InTurn>),
    /// All that there are wait to be sent.
    Told,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Going,
    /// The terminal event was handed out.
    Whole,
    /// The last bytes before the connection is cut were handed out.
    Leaving,
    Cut,
}

impl Reading {
    pub(crate) fn new(
        shell: Arc<Shell>,
        source: Source,
        from: u64,
        framing: Framing,
        extras: Extras,
        answering: Option<Answering>,
        visit: Visit,
    ) -> Self {
        let turn = shell.hub.closing().turn();
        let (queue, progress, dismissed) = (VecDeque::new(), Progress::Going, false);
        Self { shell, source, extras, from, queue, framing, answering, visit, progress, turn, dismissed }
    }

    /// The stream as an HTTP body.
    pub(crate) fn into_body(self) -> Body {
        Body::from_stream(futures_util::stream::unfold(self, |mut reading| async move {
            let frame = reading.next().await?;
            Some((frame, reading))
        }))
    }

    /// What goes over the wire next; `None` behind the terminal event.
    async fn next(&mut self) -> Option<Result<Bytes, CutShort>> {
        match (self.progress, &mut self.answering) {
            (Progress::Going, _) => {}
            // Asked for more, so all before was taken.
            (Progress::Whole, Some(answering)) => {
                answering.is_whole();
                return None;
            }
            (Progress::Leaving, _) => {
                sleep(FAREWELL).await;
                self.progress = Progress::Cut;
                return Some(Err(CutShort));
            }
            (Progress::Whole | Progress::Cut, _) => return None,
        }
        while self.queue.is_empty() {
            let (turn, heartbeat) = (&self.turn, self.shell.config.heartbeat());
            match &mut self.source {
                Source::Run { run, projection, tail } => tokio::select! {
                    biased;
                    batch = tail.next_while(BATCH, room(FRAME)) => match batch {
                        Some(batch) => self.queue.extend(batch.items.into_iter().filter(|block| block.is_from(self.from))),
                        // The reader has all or asked for more than there ever was; its stream ends with the terminal all the same (sse.md §5.6).
                        None => {
                            self.queue.extend(projection.run_last(*run).filter(Block::is_terminal));
                            break;
                        }
                    },
                    () = turn.comes() => break,
                    // One that may finish does: a stream ends with its run.
                    leave = self.visit.leave() => if let Leave::Now(_) = leave { break },
                    () = idle(heartbeat) => return Some(Ok(self.framing.heartbeat())),
                },
                Source::InTurn(entry) => {
                    let entry = entry.clone();
                    let begun = tokio::select! {
                        biased;
                        leave = self.visit.leave() => match leave {
                            Leave::WhenDone => continue,
                            Leave::Now(_) => None,
                        },
                        begun = entry.begun() => Some(begun),
                        // Closing ends the run before it, too, and then it is refused: that can still be told.
                        begun = async { turn.comes().await; timeout(LAST_WORDS, entry.begun()).await.ok() } => begun,
                        () = idle(heartbeat) => return Some(Ok(self.framing.heartbeat())),
                    };
                    self.source = match begun {
                        Some(Ok((session, run))) => {
                            self.framing.run = run;
                            match self.shell.source(&session, run, self.from, self.extras) {
                                Ok(source) => source,
                                Err(_) => break,
                            }
                        }
                        Some(Err(NotBegun::Left)) | None => break,
                        Some(Err(error)) => {
                            let events = self.shell.not_begun(&entry, &error, self.extras);
                            self.queue.extend(events.into_iter().filter(|block| block.is_terminal() || block.is_from(self.from)));
                            Source::Told
                        }
                    };
                }
                Source::Told => break,
            }
        }
        let Some(last) = self.queue.back() else {
            if self.framing.full && self.shell.hub.closing().has_begun() && !std::mem::replace(&mut self.dismissed, true) {
                self.progress = Progress::Leaving;
                return Some(Ok(Framing::dismissal(self.shell.hub.closing().retry_ms())));
            }
            self.progress = Progress::Cut;
            return Some(Err(CutShort));
        };
        if self.framing.full && self.shell.hub.is_draining() && !std::mem::replace(&mut self.dismissed, true) {
            self.framing.retry_ms = self.shell.hub.closing().retry_ms();
        }
        let ends = last.is_terminal();
        let frame = self.framing.frame(&mut self.queue);
        if ends && self.queue.is_empty() {
            self.progress = Progress::Whole;
        }
        Some(Ok(frame))
    }
}

/// As many blocks as fit into so many bytes.
fn room(mut left: usize) -> impl FnMut(&Block) -> bool {
    move |block| {
        let fits = block.len() <= left;
        left = left.saturating_sub(block.len());
        fits
    }
}

async fn idle(heartbeat: Option<Duration>) {
    match heartbeat {
        Some(heartbeat) => sleep(heartbeat).await,
        None => pending().await,
    }
}

/// The framing of one connection.
pub(crate) struct Framing {
    run: RunId,
    full: bool,
    /// What the next event tells the reader about when to come back; 0 for nothing.
    retry_ms: u64,
    /// Heartbeats are events: the application's own timers see them (sse.md §5.2).
    pings: bool,
    pad_open: bool,
}

impl Framing {
    pub(crate) fn new(run: RunId, profile: Profile, retry_ms: u64, pings: bool) -> Self {
        Self { run, full: profile == Profile::Full, retry_ms, pings, pad_open: false }
    }

    /// The queue's first blocks as one piece of the body: at least one, more while they are small.
    fn frame(&mut self, queue: &mut VecDeque<Block>) -> Bytes {
        if !self.full
            && let Some(block) = queue.pop_front()
        {
            let first = if std::mem::take(&mut self.pad_open) { block.after_pad() } else { block.plain() };
            if queue.is_empty() || first.len() >= FRAME {
                // Shared with every other reader, not copied.
                return first;
            }
            let mut out = BytesMut::with_capacity(first.len().saturating_mul(2).max(1024));
            out.put(first);
            while out.len() < FRAME
                && let Some(block) = queue.pop_front()
            {
                out.put(block.plain());
            }
            return out.freeze();
        }
        let mut out = BytesMut::new();
        while out.len() < FRAME
            && let Some(block) = queue.pop_front()
        {
            if self.retry_ms > 0 {
                out.put(format!("retry: {}\n", std::mem::take(&mut self.retry_ms)).as_bytes());
            }
            // Without an `id:` an aside leaves the reader's last one as it is.
            if !block.is_aside() {
                out.put(format!("id: {}:{}\n", self.run, block.seq()).as_bytes());
            }
            out.put(block.plain());
        }
        out.freeze()
    }

    /// The last word on a stream that is cut, to a reader that gets no event any more that could carry it. Everybody reads the field as soon as
    /// its line has ended; a blank line behind it would make some clients deliver an empty message (sse.md §5.3).
    fn dismissal(retry_ms: u64) -> Bytes {
        Bytes::from(format!("retry: {retry_ms}\n"))
    }

    /// What keeps an idle connection alive, as no client can mistake it (sse.md §5.3).
    fn heartbeat(&mut self) -> Bytes {
        if self.pings {
            Bytes::from_static(b"data: {\"type\":\"ping\"}\n\n")
        } else if self.full {
            // No blank line: one would make some clients deliver an empty message and start the run again.
            Bytes::from_static(b":hb\n")
        } else if std::mem::replace(&mut self.pad_open, true) {
            Bytes::from_static(b" ")
        } else {
            Bytes::from_static(DATA.as_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Ink, Kind};

    fn blocks(bodies: &[&str]) -> VecDeque<Block> {
        let (mut ink, mut items) = (Ink::default(), Vec::new());
        for (n, body) in bodies.iter().enumerate() {
            let kind = if n + 1 == bodies.len() { Kind::End } else { Kind::Event };
            ink.put(&mut items, kind, |out| out.push_str(body.strip_suffix('}').unwrap()));
        }
        items.into()
    }

    fn wire(framing: &mut Framing, queue: &mut VecDeque<Block>) -> String {
        String::from_utf8(framing.frame(queue).to_vec()).unwrap()
    }

    #[test]
    fn plain_frames_join_what_is_ready_and_an_open_pad_becomes_the_next_event() {
        let mut framing = Framing::new(RunId::from_u128(1), Profile::Plain, 2000, false);
        assert_eq!(wire(&mut framing, &mut blocks(&["{\"a\":1}", "{}"])), "data: {\"a\":1}\n\ndata: {}\n\n");
        let beats: Vec<Bytes> = (0..3).map(|_| framing.heartbeat()).collect();
        assert_eq!(beats.concat(), b"data:   ");
        assert_eq!(wire(&mut framing, &mut blocks(&["{\"a\":1}", "{}"])), "{\"a\":1}\n\ndata: {}\n\n");
        assert_eq!(wire(&mut framing, &mut blocks(&["{}"])), "data: {}\n\n");
    }

    #[test]
    fn full_frames_carry_ids_and_say_once_when_to_come_back() {
        let run = RunId::from_u128(1);
        let mut framing = Framing::new(run, Profile::Full, 2000, false);
        let first = wire(&mut framing, &mut blocks(&["{}", "{\"b\":2}"]));
        assert_eq!(first, format!("retry: 2000\nid: {run}:1\ndata: {{}}\n\nid: {run}:2\ndata: {{\"b\":2}}\n\n"));
        assert_eq!(framing.heartbeat(), ":hb\n");
        assert_eq!(wire(&mut framing, &mut blocks(&["{}"])), format!("id: {run}:1\ndata: {{}}\n\n"));
    }

    #[test]
    fn asides_have_no_id_and_pings_are_events() {
        let run = RunId::from_u128(1);
        let (mut ink, mut items) = (Ink::default(), Vec::new());
        for kind in [Kind::Event, Kind::Aside, Kind::End] {
            ink.put(&mut items, kind, |out| out.push('{'));
        }
        let mut framing = Framing::new(run, Profile::Full, 0, true);
        assert_eq!(
            wire(&mut framing, &mut items.clone().into()),
            format!("id: {run}:1\ndata: {{}}\n\ndata: {{}}\n\nid: {run}:2\ndata: {{}}\n\n")
        );
        assert_eq!(framing.heartbeat(), "data: {\"type\":\"ping\"}\n\n");
        let mut framing = Framing::new(run, Profile::Plain, 0, true);
        assert_eq!(framing.heartbeat(), "data: {\"type\":\"ping\"}\n\n");
        assert_eq!(wire(&mut framing, &mut items.into()), "data: {}\n\n".repeat(3), "no pad was left open");
    }

    #[test]
    fn a_frame_is_bounded_and_nothing_is_left_behind() {
        let large = "x".repeat(FRAME / 4 * 3) + "}";
        for profile in [Profile::Plain, Profile::Full] {
            let mut framing = Framing::new(RunId::from_u128(1), profile, 0, false);
            let mut queue = blocks(&[large.as_str(); 5]);
            let mut frames = Vec::new();
            while !queue.is_empty() {
                frames.push(framing.frame(&mut queue));
            }
            assert_eq!(frames.len(), 3);
            assert_eq!(String::from_utf8(frames.concat()).unwrap().matches("data: xxx").count(), 5);
        }
    }
}
