//! What one socket is sent: a position in the session's frames, and nothing else.
//!
//! A frame that was there before the socket came is shown as it was, with one exception: nobody may take an ask for pending that
//! is settled already. What becomes of such a request is [`Settled`]. A pending one is shown to everybody, once.

use std::collections::HashSet;
use std::sync::Arc;

use interline_hub::Tail;
use interline_model::{AskId, RunId, Text, write_json_string};
use interline_native::build;

use super::{Projection, now};
use crate::{Kind, NativeFrame, NativeWriter, PendingAsk, RunSpan};

/// How many frames are taken at a time.
const BATCH: usize = 64;
/// And how many bytes of them. A longer frame comes alone.
const BYTES: usize = 64 * 1024;

/// What a socket does next.
#[derive(Debug)]
pub(super) enum Step {
    /// Send these messages.
    Send(Vec<Text>),
    /// Close in good order.
    Close(u16, &'static str),
}

/// A session at one moment.
pub(super) struct Glance {
    /// How many frames it has.
    pub(super) end: u64,
    /// Its latest run.
    pub(super) latest: Option<RunSpan>,
    /// The asks that wait; all are the latest run's.
    pub(super) pending: Vec<PendingAsk>,
}

impl Glance {
    pub(super) fn at(writer: &NativeWriter, end: u64) -> Self {
        Self { end, latest: writer.runs().last().copied(), pending: writer.pending().to_vec() }
    }

    /// The run that goes on.
    pub(super) fn running(&self) -> Option<RunSpan> {
        self.latest.filter(|span| span.to.is_none())
    }
}

/// What becomes of requests that were settled before the socket came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// They are shown: the cursor says that the client counts every frame and wants the exact rest.
    Shown,
    /// `control_cancel_request` stands in their place, so that whoever counts counts right.
    Withdrawn,
    /// They are left out: the bridge does not count them.
    LeftOut,
    /// They are left out, and so are other control frames: the bridge does not replay any behind a cursor (native-ws.md §4.3).
    WithoutControl,
}

/// Where a feed stops.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// Before this position.
    Position(u64),
    /// Behind the next end of a run that comes.
    NextEnd,
    /// Nowhere.
    Never,
}

/// What comes behind the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Nothing: the client closes (native-ws.md §3.2).
    Silence,
    /// The sentinel, then close 1000 (native-ws.md §4.3).
    Sentinel,
    /// Close 1000 at once (native-ws.md §3.3).
    Desynced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Following,
    Over,
    Closing(&'static str),
}

/// What one socket is sent.
pub(super) struct Feed {
    tail: Tail<NativeWriter>,
    /// Frames to be sent before those of the tail.
    opening: Vec<Text>,
    /// Frames before this position were there when the socket came.
    past: u64,
    settled: Settled,
    /// The asks that were pending when the socket came.
    pending: HashSet<AskId>,
    until: Until,
    after: After,
    stage: Stage,
}

impl Feed {
    /// From position `from` on, for good.
    pub(super) fn session(projection: &Arc<Projection>, glance: Glance, from: u64, settled: Settled) -> Self {
        Self::new(projection, glance, from, settled, Until::Never, After::Silence)
    }

    /// From position `from` on to the end of the run; then the socket stays open.
    pub(super) fn run(projection: &Arc<Projection>, glance: Glance, span: RunSpan, from: u64, settled: Settled) -> Self {
        let until = span.to.map_or(Until::NextEnd, Until::Position);
        Self::new(projection, glance, from, settled, until, After::Silence)
    }

    /// From position `from` on to the end of the turn that goes on, or to where the session stands; then the socket is closed.
    pub(super) fn turn(projection: &Arc<Projection>, glance: Glance, from: u64, settled: Settled) -> Self {
        let until = if glance.running().is_some() { Until::NextEnd } else { Until::Position(glance.end) };
        Self::new(projection, glance, from, settled, until, After::Sentinel)
    }

    /// Nothing but the news that what was asked for is no longer there. Its members are in the order of the wire.
    pub(super) fn desynced(projection: &Arc<Projection>, id: &str, run: RunId, since_seq: u64) -> Self {
        let mut text = format!(r#"{{"final_result_url":"/v1/agent/sessions/{}/result","reason":"#, run.dashed());
        write_json_string(&mut text, &format!("requested seq {since_seq}, and nothing of the run is kept"));
        text.push_str(r#","session_id":"#);
        write_json_string(&mut text, id);
        text.push_str(&format!(r#","since_seq":{since_seq},"type":"biumind.session_desynced"}}"#));
        let glance = projection.with(Glance::at);
        let end = glance.end;
        let mut feed = Self::new(projection, glance, end, Settled::Shown, Until::Position(end), After::Desynced);
        feed.opening = vec![Text::from(text)];
        feed
    }

    fn new(projection: &Arc<Projection>, glance: Glance, from: u64, settled: Settled, until: Until, after: After) -> Self {
        let Glance { end, pending, .. } = glance;
        // Whoever counts has these already. A run that is over has none, and neither has one that another run followed.
        let again = settled != Settled::Shown && !matches!((until, after), (Until::Position(_), After::Silence));
        let opening = pending.iter().filter(|ask| again && ask.at < from).map(|ask| ask.text.clone()).collect();
        let pending = pending.into_iter().map(|ask| ask.ask).collect();
        Self { tail: projection.tail(from), opening, past: end, settled, pending, until, after, stage: Stage::Following }
    }

    /// What to do next; waits until there is something. Cancel safe.
    pub(super) async fn next(&mut self) -> Step {
        loop {
            if !self.opening.is_empty() {
                return Step::Send(std::mem::take(&mut self.opening));
            }
            match self.stage {
                Stage::Following => {
                    let at = self.tail.position();
                    let left = match self.until {
                        Until::Position(end) => usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX),
                        Until::NextEnd | Until::Never => BATCH,
                    };
                    if left == 0 {
                        self.stage = Stage::Over;
                        continue;
                    }
                    let mut room = BYTES;
                    let fits = |frame: &NativeFrame| {
                        let fits = frame.text.len() <= room;
                        room = room.saturating_sub(frame.text.len());
                        fits
                    };
                    let frames = self.tail.next_while(left.min(BATCH), fits).await;
                    let texts = self.show(at, frames);
                    if !texts.is_empty() {
                        return Step::Send(texts);
                    }
                }
                Stage::Over => match self.after {
                    After::Silence => std::future::pending().await,
                    After::Desynced => self.stage = Stage::Closing("desynced"),
                    After::Sentinel => {
                        self.stage = Stage::Closing("done");
                        return Step::Send(vec![build::keep_alive(now())]);
                    }
                },
                Stage::Closing(reason) => return Step::Close(1000, reason),
            }
        }
    }

    fn show(&mut self, at: u64, frames: Vec<NativeFrame>) -> Vec<Text> {
        let mut texts = Vec::with_capacity(frames.len());
        for (position, frame) in (at..).zip(frames) {
            let is_past = position < self.past;
            match (&frame.kind, self.settled) {
                (Kind::Ask(ask), settled) if is_past && !self.pending.contains(ask) => match settled {
                    Settled::Shown => texts.push(frame.text),
                    Settled::Withdrawn => texts.push(build::cancel(ask.as_str())),
                    Settled::LeftOut | Settled::WithoutControl => {}
                },
                (Kind::Control, Settled::WithoutControl) if is_past => {}
                (Kind::End, _) if !is_past && matches!(self.until, Until::NextEnd) => {
                    texts.push(frame.text);
                    self.stage = Stage::Over;
                    break;
                }
                _ => texts.push(frame.text),
            }
        }
        texts
    }
}
