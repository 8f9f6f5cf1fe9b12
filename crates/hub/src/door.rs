//! The door: the gate with all that changes behind it: how often anybody may knock, who is inside, tickets, and what becomes of those whose
//! token is taken away or runs out while they are inside.
//!
//! A surface asks at four places. [`Hub::knock`] comes before anything else about a request and counts for its address. [`Hub::admit_to`] is who
//! it is. [`Hub::visit`] is a stream or a socket that stays: it counts for its client and says when it has to go. [`Hub::readmit`] is asked for
//! each command that comes over a socket which was let in before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use interline_model::{CellName, Millis, Principal, RunId};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::access::{Access, Denied, Gate, Limit};
use crate::hub::Hub;
use crate::peer::Peer;
use crate::rates::Rate;
use crate::session::now;
use crate::tickets::{Life, Tickets};

/// So long a visit sleeps at most before it looks again: clocks are set, and timers do not notice.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// `[limits]`: how much is too much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Requests a second that one client may make, on average; 0 is no bound.
    pub client_per_second: u32,
    /// Requests that one client may make at once.
    pub client_burst: u32,
    /// Requests a second that may come from one address, on average, before anybody is asked who it is; 0 is no bound.
    pub peer_per_second: u32,
    /// Requests that may come from one address at once.
    pub peer_burst: u32,
    /// Unknown tokens a minute that may come from one address, on average and at once; 0 is no bound.
    pub unknown_tokens_per_minute: u32,
    /// Streams and sockets that one client may have at a time, over all surfaces.
    pub max_client_connections: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            client_per_second: 1_000,
            client_burst: 10_000,
            peer_per_second: 1_000,
            peer_burst: 10_000,
            unknown_tokens_per_minute: 120,
            max_client_connections: 10_000,
        }
    }
}

/// What becomes of a stream whose token runs out while it is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExpiry {
    /// It may show the run that goes on to its end; whatever else the client wants needs a new token.
    #[default]
    Finish,
    /// It is closed; the client comes back with a new token and reads on where it was.
    Close,
}

/// How the door is set up.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// The bounds.
    pub limits: LimitsConfig,
    /// What becomes of open streams.
    pub on_expiry: OnExpiry,
    /// Milliseconds in which a ticket has to be used.
    pub ticket_ms: u64,
    /// Tickets that one client may have at a time.
    pub max_tickets: usize,
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self { limits: LimitsConfig::default(), on_expiry: OnExpiry::Finish, ticket_ms: 30_000, max_tickets: 1_000 }
    }
}

/// The door.
pub(crate) struct Door {
    /// Exchanged as a whole; who is inside looks at each new one.
    gate: watch::Sender<Arc<Gate>>,
    on_expiry: OnExpiry,
    clients: Rate,
    peers: Rate,
    unknown: Rate,
    /// Until when an address that brought too many unknown tokens is not heard.
    shut: Mutex<HashMap<std::net::IpAddr, tokio::time::Instant>>,
    inside: Arc<Mutex<HashMap<Principal, usize>>>,
    max_inside: usize,
    tickets: Tickets,
}

/// Addresses that are shut out at a time; beyond it those whose time is over are forgotten, then all of them.
const MOST_SHUT: usize = 10_000;

impl Door {
    pub(crate) fn new(gate: Gate, config: &DoorConfig) -> Self {
        let limits = &config.limits;
        let second = Duration::from_secs(1);
        Self {
            gate: watch::Sender::new(Arc::new(gate)),
            on_expiry: config.on_expiry,
            clients: Rate::new(limits.client_per_second, second, limits.client_burst),
            peers: Rate::new(limits.peer_per_second, second, limits.peer_burst),
            unknown: Rate::new(limits.unknown_tokens_per_minute, Duration::from_secs(60), limits.unknown_tokens_per_minute),
            shut: Mutex::default(),
            inside: Arc::default(),
            max_inside: limits.max_client_connections,
            tickets: Tickets::new(config.ticket_ms, config.max_tickets),
        }
    }

    /// The gate as it is now.
    pub(crate) fn gate(&self) -> Arc<Gate> {
        self.gate.borrow().clone()
    }

    fn limited(limit: Limit, wait: Duration) -> Denied {
        Denied::Limited { limit, seconds: wait.as_secs().saturating_add(1) }
    }

    /// An unknown token came from an address.
    fn unknown_from(&self, peer: Option<Peer>) {
        let Some(peer) = peer.filter(|peer| !peer.is_here()) else { return };
        let Err(wait) = self.unknown.count(&peer.subnet()) else { return };
        let mut shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        let now = tokio::time::Instant::now();
        if shut.len() >= MOST_SHUT {
            shut.retain(|_, until| *until > now);
        }
        if shut.len() >= MOST_SHUT {
            shut.clear();
        }
        shut.insert(peer.subnet(), now + wait);
    }

    /// How long an address is not heard any more.
    fn shut_for(&self, peer: Option<Peer>) -> Option<Duration> {
        let peer = peer.filter(|peer| !peer.is_here())?;
        let shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        let until = shut.get(&peer.subnet())?;
        Some(until.saturating_duration_since(tokio::time::Instant::now())).filter(|wait| !wait.is_zero())
    }

    /// Counts a request of a client. Where everybody is let in under one name, that name has no rate.
    fn count(&self, access: &Access) -> Result<(), Denied> {
        if access.is_anybody() {
            return Ok(());
        }
        self.clients.count(access.principal()).map_err(|wait| Self::limited(Limit::Client, wait))
    }

    fn readmit(&self, access: &Access, surface: &str) -> Result<Option<Millis>, Denied> {
        self.gate().readmit(access, surface, now())
    }
}

impl Hub {
    /// Counts a request for the address it comes from, before anything else about it.
    ///
    /// # Errors
    /// When there are too many.
    pub fn knock(&self, peer: Option<Peer>) -> Result<(), Denied> {
        let Some(peer) = peer.filter(|peer| !peer.is_here()) else { return Ok(()) };
        let counted = self.door().peers.count(&peer.subnet()).map_err(|wait| Door::limited(Limit::Peer, wait));
        self.telling(counted)
    }

    /// Lets a client in to a surface, or not.
    ///
    /// # Errors
    /// In `tokens` mode, when the bearer is missing, unknown or for other surfaces, or its time is over; in every mode, when there is too much.
    pub fn admit_to(&self, surface: &str, bearer: Option<&str>, peer: Option<Peer>) -> Result<Access, Denied> {
        let door = self.door();
        let judge = || {
            if let Some(wait) = door.shut_for(peer) {
                return Err(Door::limited(Limit::UnknownTokens, wait));
            }
            let access = door.gate().admit(bearer, now()).inspect_err(|denied| {
                if *denied == Denied::Invalid {
                    door.unknown_from(peer);
                }
            })?;
            if !access.serves(surface) {
                return Err(Denied::Invalid);
            }
            door.count(&access)?;
            Ok(access)
        };
        self.telling(judge())
    }

    /// Counts a command for the client that gives it.
    ///
    /// # Errors
    /// When there are too many.
    pub fn count(&self, access: &Access) -> Result<(), Denied> {
        self.telling(self.door().count(access))
    }

    /// Whether a client that was let in to a surface would still be let in: asked for each command over a connection that stays, and for whatever was
    /// given out for a token (case F4).
    ///
    /// # Errors
    /// When its token was taken away or narrowed, or its time is over.
    pub fn readmit(&self, surface: &str, access: &Access) -> Result<(), Denied> {
        self.telling(self.door().readmit(access, surface).map(drop))
    }

    /// A stream or socket of a client, for as long as it lives.
    ///
    /// # Errors
    /// When the client has too many.
    pub fn visit(&self, surface: &'static str, access: &Access) -> Result<Visit, Denied> {
        let door = self.door();
        let mut inside = door.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let count = inside.entry(access.principal().clone()).or_default();
        if *count >= door.max_inside {
            drop(inside);
            return self.telling(Err(Door::limited(Limit::Connections, Duration::ZERO)));
        }
        *count = count.saturating_add(1);
        drop(inside);
        Ok(Visit {
            access: access.clone(),
            surface,
            inside: door.inside.clone(),
            gate: door.gate.subscribe(),
            on_expiry: door.on_expiry,
            finishing: false,
        })
    }

    /// Exchanges the gate. Whoever is inside and would not be let in any more has to go.
    pub fn replace_gate(&self, gate: Gate) {
        self.door().gate.send_replace(Arc::new(gate));
    }

    /// Gives out a ticket for the stream of a run in a cell, with the milliseconds in which it is to be used first.
    #[must_use]
    pub fn ticket(&self, access: &Access, cell: CellName, run: Option<RunId>) -> (String, u64) {
        self.door().tickets.issue(access.clone(), cell, run, now(), |access, run| self.life(access, run))
    }

    /// Lets in whoever brings a ticket, to the stream of one run.
    ///
    /// # Errors
    /// When the ticket is unknown, for something else or over, or its token is no longer good; when there is too much.
    pub fn redeem(&self, surface: &str, ticket: &str, cell: &CellName, run: RunId, peer: Option<Peer>) -> Result<Access, Denied> {
        let door = self.door();
        let judge = || {
            if let Some(wait) = door.shut_for(peer) {
                return Err(Door::limited(Limit::UnknownTokens, wait));
            }
            let opened = door.tickets.open(ticket, cell, run, now(), |access| self.life(access, run));
            let access = opened.inspect_err(|denied| {
                if *denied == Denied::Invalid {
                    door.unknown_from(peer);
                }
            })?;
            door.readmit(&access, surface)?;
            door.count(&access)?;
            Ok(access)
        };
        self.telling(judge())
    }

    fn life(&self, access: &Access, run: RunId) -> Life {
        let Some(session) = self.run(access, run) else { return Life::None };
        match session.run_info(run).and_then(|info| info.ended_at) {
            Some(at) => Life::Ended(at),
            None => Life::Going,
        }
    }

    fn telling<T>(&self, judged: Result<T, Denied>) -> Result<T, Denied> {
        judged.inspect_err(|denied| self.telemetry().denied(reason(*denied)))
    }
}

/// What the counter of refusals calls it.
fn reason(denied: Denied) -> &'static str {
    match denied {
        Denied::Missing => "no_token",
        Denied::Invalid => "unknown_token",
        Denied::Expired => "expired_token",
        Denied::Limited { limit: Limit::Peer, .. } => "peer_rate",
        Denied::Limited { limit: Limit::Client, .. } => "client_rate",
        Denied::Limited { limit: Limit::UnknownTokens, .. } => "unknown_token_rate",
        Denied::Limited { limit: Limit::Connections, .. } => "client_connections",
    }
}

/// A stream or socket that is open. Given back when it is dropped.
pub struct Visit {
    access: Access,
    surface: &'static str,
    inside: Arc<Mutex<HashMap<Principal, usize>>>,
    gate: watch::Receiver<Arc<Gate>>,
    on_expiry: OnExpiry,
    /// It was told that it may finish.
    finishing: bool,
}

/// What a visit is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// What is shown may be shown to its end; then it is over. Told once.
    WhenDone,
    /// At once, and why.
    Now(Denied),
}

impl Visit {
    /// Waits until the visitor has to go. Cancel safe.
    pub async fn leave(&mut self) -> Leave {
        loop {
            let gate = self.gate.borrow_and_update().clone();
            let wait = match (gate.readmit(&self.access, self.surface, now()), self.on_expiry) {
                (Err(Denied::Expired), OnExpiry::Finish) if !self.finishing => {
                    self.finishing = true;
                    return Leave::WhenDone;
                }
                (Err(Denied::Expired), OnExpiry::Finish) | (Ok(None), _) => LOOK_AGAIN,
                (Err(denied), _) => return Leave::Now(denied),
                (Ok(Some(at)), _) => Duration::from_millis(at.saturating_sub(now()).saturating_add(1)).min(LOOK_AGAIN),
            };
            tokio::select! {
                changed = self.gate.changed() => if changed.is_err() {
                    // The hub is gone, and everything with it.
                    std::future::pending::<()>().await;
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = inside.get_mut(self.access.principal()) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                inside.remove(self.access.principal());
            }
        }
    }
}
