//! What a socket received, in the order in which it came.
//!
//! socketioxide spawns a task for every event, and tasks overtake each other: `chat:send` before its `session:subscribe`, say. Extractors
//! however run inside the receive loop, one packet after another (dependencies.md §1.4, guard 2). So the work of reception is done by an
//! extractor that puts the packet into the socket's queue, and the handler is empty.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use interline_hub::{Access, Visit};
use interline_model::Text;
use socketioxide::adapter::LocalAdapter;
use socketioxide::handler::FromMessageParts;
use socketioxide::socket::Socket;
use socketioxide_core::Value;
use tokio::sync::mpsc;

use crate::Config;
use crate::refusal::Refusal;

/// How many refusals may wait for each packet that may. Each is a few bytes.
const REFUSALS: usize = 64;

/// An event that arrived.
pub(crate) struct Packet {
    /// `["name", {…}]`, or why it is not taken.
    pub(crate) content: Result<Text, Refusal>,
    /// The number under which the client waits for an acknowledgement.
    pub(crate) ack: Option<i64>,
}

/// The entrance of a socket's queue, and who the socket is. Lives in the socket's extensions.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Entrance>);

struct Entrance {
    access: Access,
    sender: mpsc::UnboundedSender<Packet>,
    /// Taken by the worker, once the socket is connected.
    receiver: Mutex<Option<(mpsc::UnboundedReceiver<Packet>, Visit)>>,
    waiting: AtomicUsize,
    waiting_bytes: AtomicUsize,
    max_waiting: usize,
    max_bytes: usize,
    /// The socket is being closed, since it sends more than can be answered.
    overrun: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(access: Access, visit: Visit, config: &Config) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self(Arc::new(Entrance {
            access,
            sender,
            receiver: Mutex::new(Some((receiver, visit))),
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            max_waiting: config.max_inbox,
            max_bytes: config.max_message_bytes,
            overrun: AtomicBool::new(false),
        }))
    }

    pub(crate) fn access(&self) -> &Access {
        &self.0.access
    }

    pub(crate) fn take(&self) -> Option<(mpsc::UnboundedReceiver<Packet>, Visit)> {
        self.0.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts a packet into the queue. One that is too large, or one too many, leaves only its refusal there, so that it is answered in its turn.
    /// `false` if even refusals are too many: nothing is dropped in silence, so the socket has to go.
    fn put(&self, text: &str, ack: Option<i64>) -> bool {
        let entrance = &*self.0;
        let waiting = entrance.waiting.fetch_add(1, Ordering::Relaxed);
        let bytes = entrance.waiting_bytes.load(Ordering::Relaxed).saturating_add(text.len());
        let content = if text.len() > entrance.max_bytes {
            Err(Refusal::TooLarge { bytes: text.len(), limit: entrance.max_bytes })
        } else if waiting >= entrance.max_waiting || bytes > entrance.max_bytes.saturating_mul(2) {
            Err(Refusal::TooMany)
        } else {
            entrance.waiting_bytes.fetch_add(text.len(), Ordering::Relaxed);
            Ok(Text::from(text))
        };
        if waiting >= entrance.max_waiting.saturating_mul(REFUSALS) {
            entrance.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        // The worker is gone: the socket is, too.
        let _ = entrance.sender.send(Packet { content, ack });
        true
    }

    /// A packet was taken out of the queue.
    pub(crate) fn taken(&self, packet: &Packet) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Ok(text) = &packet.content {
            self.0.waiting_bytes.fetch_sub(text.len(), Ordering::Relaxed);
        }
    }
}

/// The extractor: the packet is in the queue when this is made.
pub(crate) struct Received;

impl FromMessageParts<LocalAdapter> for Received {
    type Error = Infallible;

    fn from_message_parts(socket: &Arc<Socket<LocalAdapter>>, value: &mut Value, ack: &Option<i64>) -> Result<Self, Infallible> {
        if let Some(inbox) = socket.extensions.get::<Inbox>() {
            let text = match value {
                Value::Str(text, _) => text.as_str(),
                Value::Bytes(_) => "",
            };
            if !inbox.put(text, *ack) && !inbox.0.overrun.swap(true, Ordering::Relaxed) {
                tracing::warn!(limit = inbox.0.max_waiting, "a socket sends more than it is answered, and is closed");
            }
            if inbox.0.overrun.load(Ordering::Relaxed) {
                // Fails while the way out is full; then the next packet tries again, and a client that never reads misses its heartbeats.
                let _ = socket.clone().disconnect();
            }
        }
        Ok(Self)
    }
}
