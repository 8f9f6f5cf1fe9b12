//! The stage a run is performed on: one way to send, pause, ask and end, whichever server the run is on.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{self, Instant},
};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    asks::Asks,
    bridge,
    bridge_session::{BridgeSession, Turn},
    cloud,
    frames::{self, Usage},
    inbound,
    inbox::Inbox,
    ledger::{Ledger, Mode},
    locked,
    options::Options,
    settings::Settings,
    state::{Attendance, State},
    transcript::End,
    websocket::Delivery,
};

/// The model the servers take when the request names none (§2.2).
pub(crate) const DEFAULT_MODEL: &str = "claude-sonnet-4-6";

pub(crate) struct Stage {
    pub(crate) state: Arc<State>,
    pub(crate) prompt: String,
    /// What `play` counts runs by; without one every play is the first.
    pub(crate) conversation: Option<String>,
    host: Host,
    model: Option<String>,
    began: Instant,
    work: Mutex<Work>,
}

/// The session the run belongs to.
pub(crate) enum Host {
    Cloud(Arc<Ledger>),
    Bridge(Arc<BridgeSession>, Arc<Turn>),
}

#[derive(Default)]
struct Work {
    /// Tools that were announced and have not ended: id and name.
    open_tools: Vec<(String, String)>,
    usage: Usage,
    sentinel: Option<Utf8Bytes>,
}

impl Stage {
    pub(crate) fn new(state: Arc<State>, host: Host, prompt: String, model: Option<String>, conversation: Option<String>) -> Self {
        let usage = Usage { input_tokens: 12 + prompt.len() as u64 / 4, ..Usage::default() };
        let work = Mutex::new(Work { usage, ..Work::default() });
        Self { state, prompt, conversation, host, model, began: Instant::now(), work }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.state.options
    }

    pub(crate) fn observed(&self) -> bool {
        self.options().observed()
    }

    pub(crate) const fn host(&self) -> &Host {
        &self.host
    }

    /// The cloud mode; `None` on the bridge.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match &self.host {
            Host::Cloud(ledger) => Some(ledger.mode),
            Host::Bridge(..) => None,
        }
    }

    pub(crate) fn session(&self) -> &str {
        match &self.host {
            Host::Cloud(ledger) => &ledger.id,
            Host::Bridge(session, _) => &session.id,
        }
    }

    /// The model that was set last, or that the request named, or the servers' default.
    pub(crate) fn model(&self) -> String {
        self.settings().model().unwrap_or_else(|| self.first_model().to_owned())
    }

    /// The model the run began with.
    pub(crate) fn first_model(&self) -> &str {
        self.model.as_deref().filter(|model| !model.is_empty()).unwrap_or(DEFAULT_MODEL)
    }

    /// What clients have set on the session.
    pub(crate) fn settings(&self) -> &Settings {
        match &self.host {
            Host::Cloud(ledger) => &ledger.settings,
            Host::Bridge(session, _) => &session.settings,
        }
    }

    fn asks(&self) -> &Asks {
        match &self.host {
            Host::Cloud(ledger) => &ledger.asks,
            Host::Bridge(_, turn) => &turn.asks,
        }
    }

    /// Where control messages wait for this run.
    pub(crate) fn inbox(&self) -> &Inbox {
        match &self.host {
            Host::Cloud(ledger) => &ledger.inbox,
            Host::Bridge(_, turn) => &turn.inbox,
        }
    }

    /// The reader is back, and takes what is still there.
    pub(crate) fn wake(&self) {
        let (fresh, discarded) = self.inbox().wake(self.options().control_retention);
        self.state.counters.count(|stats| stats.discarded += discarded);
        for held in fresh {
            let kind = inbound::kind(&held.text);
            match (&self.host, &held.replies) {
                (Host::Cloud(ledger), _) => cloud::fetched(&self.state, ledger, &held.text, kind),
                (Host::Bridge(session, turn), Some(replies)) => {
                    bridge::fetched(&self.state, session, Some(turn), &held.text, kind, replies);
                }
                (Host::Bridge(..), None) => {}
            }
        }
    }

    pub(crate) fn attendance(&self) -> &Attendance {
        match &self.host {
            Host::Cloud(ledger) => &ledger.attendance,
            Host::Bridge(_, turn) => &turn.attendance,
        }
    }

    /// Cancelled when the client cancels or interrupts.
    pub(crate) fn cancel(&self) -> &CancellationToken {
        match &self.host {
            Host::Cloud(ledger) => &ledger.cancel,
            Host::Bridge(_, turn) => &turn.cancel,
        }
    }

    /// A request id as this server makes them (§1.1).
    pub(crate) fn request_id(&self) -> String {
        match &self.host {
            Host::Cloud(_) => Uuid::new_v4().to_string(),
            Host::Bridge(..) => frames::frame_id(),
        }
    }

    /// Sends a data frame.
    pub(crate) async fn send(&self, frame: impl Into<Utf8Bytes>) {
        self.deliver(Delivery::text(frame), true).await;
    }

    /// Sends a control frame, which the bridge neither numbers nor replays (§4.3).
    pub(crate) async fn send_control(&self, frame: impl Into<Utf8Bytes>) {
        self.deliver(Delivery::text(frame), false).await;
    }

    pub(crate) async fn deliver(&self, delivery: Delivery, counted: bool) {
        match &self.host {
            Host::Cloud(ledger) => ledger.push(delivery),
            Host::Bridge(session, turn) => session.push(turn, delivery, counted).await,
        }
    }

    /// Sends the frame that ends the run.
    pub(crate) async fn end(&self, frame: impl Into<Utf8Bytes>, end: End) {
        let frame = frame.into();
        match &self.host {
            Host::Cloud(ledger) => ledger.end(frame, end),
            Host::Bridge(..) => self.send(frame).await,
        }
    }

    pub(crate) async fn pause(&self, millis: u64) {
        let pause = self.options().pace.of(Duration::from_millis(millis));
        if !pause.is_zero() {
            time::sleep(pause).await;
        }
    }

    /// Holds a run that was cut until somebody comes back.
    pub(crate) async fn cut(&self) {
        let before = self.attendance().ever();
        self.deliver(Delivery::Drop, false).await;
        self.attendance().more_than(before, self.reattach_hold()).await;
    }

    /// How long a run waits for a client to come back; longer than any client's first backoff.
    pub(crate) fn reattach_hold(&self) -> Duration {
        self.options().attach_hold().max(Duration::from_secs(3))
    }

    /// Sends an ask and waits for its answer; `None` if it was denied, or not answered in time.
    pub(crate) async fn ask(&self, request_id: &str, frame: &str, form: bool) -> Option<Value> {
        let answer = self.raise(request_id, frame, form).await;
        self.answered(request_id, answer, form).await
    }

    /// Sends an ask. It is open before anybody can have seen it.
    pub(crate) async fn raise(&self, request_id: &str, frame: &str, form: bool) -> oneshot::Receiver<Option<Value>> {
        let limit = u64::try_from(self.ask_limit(form).as_millis()).unwrap_or(u64::MAX);
        let answer = self.asks().open(request_id, frame, form, frames::now_ms().saturating_add(limit));
        self.state.counters.count(|stats| stats.asks += 1);
        self.send_control(frame).await;
        answer
    }

    /// Waits for the answer to an ask that was raised.
    pub(crate) async fn answered(&self, request_id: &str, answer: oneshot::Receiver<Option<Value>>, form: bool) -> Option<Value> {
        let answer = time::timeout(self.ask_limit(form), answer).await;
        self.asks().close(request_id);
        answer.ok()?.ok()?
    }

    fn ask_limit(&self, form: bool) -> Duration {
        if form { self.options().form_timeout } else { self.options().permission_timeout }
    }

    pub(crate) fn announced(&self, tool_use_id: &str, name: &str) {
        let mut work = locked(&self.work);
        if !work.open_tools.iter().any(|(id, _)| id == tool_use_id) {
            work.open_tools.push((tool_use_id.to_owned(), name.to_owned()));
        }
    }

    pub(crate) fn tool_ended(&self, tool_use_id: &str) {
        locked(&self.work).open_tools.retain(|(id, _)| id != tool_use_id);
    }

    pub(crate) fn take_open_tools(&self) -> Vec<(String, String)> {
        std::mem::take(&mut locked(&self.work).open_tools)
    }

    pub(crate) fn spoke(&self, tokens: u64) {
        locked(&self.work).usage.output_tokens += tokens;
    }

    pub(crate) fn usage(&self) -> Usage {
        locked(&self.work).usage
    }

    /// The bridge's end-of-turn frame, if the run brought its own.
    pub(crate) fn set_sentinel(&self, frame: Utf8Bytes) {
        locked(&self.work).sentinel = Some(frame);
    }

    pub(crate) fn take_sentinel(&self) -> Option<Utf8Bytes> {
        locked(&self.work).sentinel.take()
    }

    /// Milliseconds since the run began; always 0 in chat mode on today's servers (§6.1).
    pub(crate) fn duration_ms(&self) -> u64 {
        if self.observed() && self.mode() == Some(Mode::Chat) {
            return 0;
        }
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
