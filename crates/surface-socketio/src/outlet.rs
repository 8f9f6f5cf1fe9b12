//! The way out to one socket: everything in order, nothing lost when the client is slow, and always room for the heartbeat.
//!
//! socketioxide has no `send().await`: a full buffer is an error (dependencies.md §1.4, guards 1 and 3). So a sender first counts the free
//! places, leaves some of them free for what the library sends itself, and otherwise waits. Places say nothing of bytes, so once as many were sent as
//! may wait, it waits until all of them are fetched.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use interline_model::Json;
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use socketioxide::adapter::LocalAdapter;
use socketioxide::extract::AckSender;
use socketioxide::handler::FromMessageParts;
use socketioxide::socket::Socket;
use socketioxide::{SendError, SocketError, TransportType};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::SocketEvent;

/// Places that stay free, for the heartbeat and the packets of the protocol itself.
const SPARE: usize = 4;

/// Places that are counted at a time beyond these.
const BATCH: usize = 16;

/// A buffer must at least hold both.
pub(crate) const MIN_OUTBOX: usize = SPARE + BATCH;

/// How long a sender waits for room, at first and at most.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Packets that a polling client is sent before it has fetched them. python-engineio takes no payload of more than 16 packets
/// (socketio.md §1.1 names it), and what is sent while a payload is being collected goes into it, too: two windows and a heartbeat must fit.
const POLLING_WINDOW: usize = 7;

/// The socket is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// One socket's way out, shared by whoever sends to it.
pub(crate) struct Outlet {
    socket: Arc<Socket<LocalAdapter>>,
    gone: CancellationToken,
    /// How many places its buffer has.
    places: usize,
    /// How many bytes may wait in it; a longer packet waits alone.
    window: usize,
    credit: Mutex<Credit>,
}

/// How many packets may be sent before the places are counted again.
struct Credit {
    left: usize,
    /// How many bytes may be sent before everything is seen to be fetched.
    bytes: usize,
    /// When they were counted last. Collecting a polling payload takes far less than [`PAUSE`], so if a polling client is granted one
    /// window in that time, at most one is added to a payload meanwhile.
    granted: Option<Instant>,
}

/// The outlet, held: what is sent through it comes out without anything in between.
pub(crate) struct Held<'a> {
    outlet: &'a Outlet,
    credit: MutexGuard<'a, Credit>,
}

impl Outlet {
    /// The way out to `socket`, whose buffer has this many places, and room for so many bytes.
    pub(crate) fn new(socket: Arc<Socket<LocalAdapter>>, gone: CancellationToken, places: usize, window: usize) -> Self {
        Self { socket, gone, places, window, credit: Mutex::new(Credit { left: 0, bytes: window, granted: None }) }
    }

    /// Whether what is sent next, of this length, may be sent; grants what may be.
    fn may_send(&self, credit: &mut Credit, length: usize) -> Result<bool, Gone> {
        let fits = |credit: &Credit| credit.bytes >= length || credit.bytes == self.window;
        if credit.left > 0 && fits(credit) {
            return Ok(true);
        }
        let is_polling = self.socket.transport_type() == TransportType::Polling;
        credit.left = if is_polling || !fits(credit) {
            if is_polling && credit.granted.is_some_and(|last| last.elapsed() < PAUSE) {
                return Ok(false);
            }
            let free = free_places(&self.socket, self.places)?;
            if free < self.places {
                credit.left = 0;
                return Ok(false);
            }
            credit.bytes = self.window;
            if is_polling { POLLING_WINDOW } else { free.saturating_sub(SPARE) }
        } else {
            free_places(&self.socket, MIN_OUTBOX)?.saturating_sub(SPARE)
        };
        if credit.left > 0 {
            credit.granted = Some(Instant::now());
        }
        Ok(credit.left > 0)
    }

    /// Waits until something of this length may be sent: then how many bytes at least. Whoever asks first takes nothing out of the session that then
    /// waits.
    pub(crate) async fn room(&self, length: usize) -> Result<usize, Gone> {
        let mut pause = PAUSE;
        loop {
            {
                let mut credit = self.credit.lock().await;
                if self.may_send(&mut credit, length)? {
                    return Ok(credit.bytes);
                }
            }
            self.rest(&mut pause).await?;
        }
    }

    /// A pause between two tries, longer each time.
    async fn rest(&self, pause: &mut Duration) -> Result<(), Gone> {
        tokio::select! {
            () = tokio::time::sleep(*pause) => {
                *pause = (*pause * 2).min(LONGEST_PAUSE);
                Ok(())
            }
            () = self.gone.cancelled() => Err(Gone),
        }
    }

    /// Waits for its turn to send.
    pub(crate) async fn hold(&self) -> Held<'_> {
        Held { outlet: self, credit: self.credit.lock().await }
    }

    /// Ends the socket. While its way out is full it cannot be told; then the next try does it, or it misses its heartbeat.
    pub(crate) async fn close(&self) {
        while !self.gone.is_cancelled() && self.socket.clone().disconnect().is_err() {
            tokio::select! {
                () = tokio::time::sleep(LONGEST_PAUSE) => {}
                () = self.gone.cancelled() => {}
            }
        }
    }

    /// Cancelled when the socket is gone.
    pub(crate) fn gone(&self) -> &CancellationToken {
        &self.gone
    }
}

/// Counts free places: what is never sent, since it refuses to be written, holds a place while it is asked to, and puts in another like it.
struct Probe<'a> {
    socket: &'a Socket<LocalAdapter>,
    /// Its place among those that are held at the moment, from 1.
    number: usize,
    /// How many are held at the same time, at most.
    enough: usize,
    /// How many were.
    found: &'a Cell<usize>,
}

impl Serialize for Probe<'_> {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        // Asked twice by the parser, which first looks whether it is a tuple.
        if self.found.get() < self.number {
            self.found.set(self.number);
            if self.number < self.enough {
                let _ = self.socket.emit("", &Probe { number: self.number + 1, ..*self });
            }
        }
        Err(S::Error::custom("a probe"))
    }
}

/// How many places are free, counted up to `enough`.
fn free_places(socket: &Socket<LocalAdapter>, enough: usize) -> Result<usize, Gone> {
    let found = Cell::new(0);
    match socket.emit("", &Probe { socket, number: 1, enough, found: &found }) {
        Err(SendError::Socket(SocketError::Closed)) => Err(Gone),
        _ => Ok(found.get()),
    }
}

impl Held<'_> {
    /// Sends an event, as soon as there is room.
    pub(crate) async fn event(&mut self, event: &SocketEvent) -> Result<(), Gone> {
        self.raw(event.name, &event.data).await
    }

    pub(crate) async fn value(&mut self, name: &str, data: &Value) -> Result<(), Gone> {
        self.raw(name, &Json::from_value(data)).await
    }

    async fn raw(&mut self, name: &str, data: &Json) -> Result<(), Gone> {
        let length = data.as_str().len();
        let Ok(data) = serde_json::from_str::<&RawValue>(data.as_str()) else { return Ok(()) };
        self.send(length, |socket| socket.emit(name, data)).await
    }

    /// Answers the packet that waits under this number; nobody waits under `None`.
    pub(crate) async fn ack(&mut self, ack: Option<i64>, answer: &Value) -> Result<(), Gone> {
        if ack.is_none() {
            return Ok(());
        }
        // A few words, whoever is answered.
        self.send(0, |socket| {
            // A sender is used up by a try that finds the buffer full, so each try has its own.
            let mut nothing = socketioxide_core::Value::Bytes(bytes::Bytes::new());
            match AckSender::from_message_parts(socket, &mut nothing, &ack) {
                Ok(sender) => sender.send(answer),
                Err(never) => match never {},
            }
        })
        .await
    }

    async fn send(&mut self, length: usize, attempt: impl Fn(&Arc<Socket<LocalAdapter>>) -> Result<(), SendError>) -> Result<(), Gone> {
        let mut pause = PAUSE;
        loop {
            if self.outlet.may_send(&mut self.credit, length)? {
                match attempt(&self.outlet.socket) {
                    Ok(()) => {
                        self.credit.left = self.credit.left.saturating_sub(1);
                        self.credit.bytes = self.credit.bytes.saturating_sub(length);
                        return Ok(());
                    }
                    Err(SendError::Socket(SocketError::InternalChannelFull)) => self.credit.left = 0,
                    Err(SendError::Socket(SocketError::Closed)) => return Err(Gone),
                    Err(SendError::Serialize(error)) => {
                        tracing::error!(%error, "an event could not be written");
                        return Ok(());
                    }
                }
            }
            self.outlet.rest(&mut pause).await?;
        }
    }
}
