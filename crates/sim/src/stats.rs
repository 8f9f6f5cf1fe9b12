//! What the simulator has seen, for tests to read.
//!
//! Lists keep the newest entries only, so that a simulator can run for days.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Mutex,
};

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

/// The `control_response`s to one of the server's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responses {
    /// How many arrived.
    pub received: u64,
    /// How many settled the ask: 1, or 0 if it is open or was settled otherwise.
    pub taken: u64,
}

/// A file that was uploaded to the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The bridge session's id.
    pub session: String,
    /// The id it was given.
    pub id: String,
    /// The name in its part of the body, if it had one.
    pub file_name: Option<String>,
    /// Its declared type.
    pub mime_type: String,
    /// Its bytes.
    pub size: usize,
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
    /// `update_environment_variables` frames in the order of their arrival; the newest ten thousand.
    pub environment: Vec<ControlFrame>,
    /// The `control_response`s by request id, whether or not there is such a request; the newest ten thousand ids.
    pub responses: HashMap<String, Responses>,
    /// Asks raised: permissions, questions, forms and links.
    pub asks: u64,
    /// Control messages that no reader fetched in time (see `fault deaf`).
    pub discarded: u64,
    /// `…/compact` requests that were carried out.
    pub compactions: u64,
    /// `…/resume` requests that resumed a paused session.
    pub resumes: u64,
    /// Files uploaded to the bridge, oldest first; the newest ten thousand.
    pub attachments: Vec<Attachment>,
    /// Frames that were put into the queue of a coding channel, which has 256 places.
    pub code_frames: u64,
}

impl Stats {
    /// The `control_response`s to one request.
    pub fn responses_to(&self, request_id: &str) -> Responses {
        self.responses.get(request_id).copied().unwrap_or_default()
    }
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
    environment: VecDeque<ControlFrame>,
    attachments: VecDeque<Attachment>,
    /// The ids of `counts.responses`, oldest first.
    answered: VecDeque<String>,
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

    pub(crate) fn environment(&self, plane: Plane, session: &str, text: &str) {
        let frame = ControlFrame { plane, session: session.to_owned(), text: text.to_owned() };
        keep(&mut crate::locked(&self.inner).environment, frame);
    }

    pub(crate) fn attachment(&self, attachment: Attachment) {
        keep(&mut crate::locked(&self.inner).attachments, attachment);
    }

    pub(crate) fn response(&self, request_id: &str, change: impl FnOnce(&mut Responses)) {
        let mut inner = crate::locked(&self.inner);
        let Inner { counts, answered, .. } = &mut *inner;
        if !counts.responses.contains_key(request_id) {
            if answered.len() == KEPT
                && let Some(oldest) = answered.pop_front()
            {
                counts.responses.remove(&oldest);
            }
            answered.push_back(request_id.to_owned());
        }
        change(counts.responses.entry(request_id.to_owned()).or_default());
    }

    pub(crate) fn responses_to(&self, request_id: &str) -> Responses {
        crate::locked(&self.inner).counts.responses_to(request_id)
    }

    pub(crate) fn read(&self) -> Stats {
        let inner = crate::locked(&self.inner);
        Stats {
            prompts: inner.prompts.iter().cloned().collect(),
            control: inner.control.iter().cloned().collect(),
            environment: inner.environment.iter().cloned().collect(),
            attachments: inner.attachments.iter().cloned().collect(),
            ..inner.counts.clone()
        }
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

    #[test]
    fn responses_are_counted_by_request_and_bounded() {
        let counters = Counters::default();
        counters.response("r", |responses| responses.received += 1);
        counters.response("r", |responses| responses.received += 1);
        counters.response("r", |responses| responses.taken += 1);
        assert_eq!(counters.read().responses_to("r"), Responses { received: 2, taken: 1 });
        for i in 0..KEPT {
            counters.response(&i.to_string(), |responses| responses.received += 1);
        }
        let stats = counters.read();
        assert_eq!((stats.responses.len(), stats.responses_to("r")), (KEPT, Responses::default()));
    }
}
