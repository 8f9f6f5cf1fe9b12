//! What the simulator has seen, for tests to read.
//!
//! Lists keep the newest entries only, so that a simulator can run for days.

use std::{collections::VecDeque, fmt, sync::Mutex};

/// The number of entries each list keeps.
const KEPT: usize = 10_000;

/// Which of the two servers something happened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// The cloud agent plane.
    Cloud,
    /// The local bridge.
    Bridge,
}

/// One prompt, as it reached a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The server it reached.
    pub plane: Plane,
    /// The native session's id.
    pub session: String,
    /// The text.
    pub prompt: String,
    /// Cloud: `mode` of the create request.
    pub mode: Option<String>,
    /// Cloud: `thread_id` as sent, also if it is not a UUID.
    pub thread_id: Option<String>,
    /// Cloud: `model` as sent.
    pub model: Option<String>,
    /// Cloud: `provider_id` as sent.
    pub provider_id: Option<String>,
    /// Cloud: `system_prompt` as sent.
    pub system_prompt: Option<String>,
    /// Cloud: `environment_id` as sent.
    pub environment_id: Option<String>,
    /// Cloud: `workdir` as sent.
    pub workdir: Option<String>,
    /// Cloud: `pool_tag` as sent.
    pub pool_tag: Option<String>,
    /// Cloud: how many images came along.
    pub images: usize,
    /// The bearer token of the request, without `Bearer `.
    pub bearer: Option<String>,
}

/// Shows everything but the bearer.
impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompt")
            .field("plane", &self.plane)
            .field("session", &self.session)
            .field("prompt", &self.prompt)
            .field("mode", &self.mode)
            .field("thread_id", &self.thread_id)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// One control frame (`control_request`, `control_response` or `control_cancel_request`) that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlFrame {
    /// The server it reached.
    pub plane: Plane,
    /// The native session's id.
    pub session: String,
    /// The message, byte for byte.
    pub text: String,
}

/// Counts and lists since the simulator was made.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Sessions created on the cloud plane.
    pub cloud_sessions: u64,
    /// Sessions created on the bridge.
    pub bridge_sessions: u64,
    /// WebSockets opened on either server.
    pub sockets: u64,
    /// WebSockets open now.
    pub open_sockets: u64,
    /// Session tokens given out by `refresh-token`.
    pub token_refreshes: u64,
    /// Prompts, oldest first; the newest ten thousand.
    pub prompts: Vec<Prompt>,
    /// Control frames in the order of their arrival; the newest ten thousand.
    pub control: Vec<ControlFrame>,
}

#[derive(Default)]
pub(crate) struct Counters {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    counts: Stats,
    prompts: VecDeque<Prompt>,
    control: VecDeque<ControlFrame>,
}

impl Counters {
    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut crate::locked(&self.inner).counts);
    }

    pub(crate) fn prompt(&self, prompt: Prompt) {
        keep(&mut crate::locked(&self.inner).prompts, prompt);
    }

    pub(crate) fn control(&self, plane: Plane, session: &str, text: &str) {
        let frame = ControlFrame { plane, session: session.to_owned(), text: text.to_owned() };
        keep(&mut crate::locked(&self.inner).control, frame);
    }

    pub(crate) fn read(&self) -> Stats {
        let inner = crate::locked(&self.inner);
        Stats { prompts: inner.prompts.iter().cloned().collect(), control: inner.control.iter().cloned().collect(), ..inner.counts.clone() }
    }
}

fn keep<T>(list: &mut VecDeque<T>, entry: T) {
    if list.len() == KEPT {
        list.pop_front();
    }
    list.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_bounded_and_keep_the_newest() {
        let counters = Counters::default();
        for i in 0..KEPT + 3 {
            counters.control(Plane::Cloud, "s", &i.to_string());
        }
        let control = counters.read().control;
        assert_eq!(control.len(), KEPT);
        assert_eq!(control[0].text, "3");
    }
}
