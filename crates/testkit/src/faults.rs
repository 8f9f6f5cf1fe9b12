//! Connections that break on demand: proxies with real sockets between any two parties.
//!
//! [`FaultProxy`] knows bytes. It stands before a server, and each connection through it may have a [`Plan`]: after so many bytes of the
//! server's it breaks in one of the ways that networks and middleboxes break connections. Or all connections are broken at once, or none
//! are taken.
//!
//! [`UpstreamProxy`] knows WebSockets. It stands between a proxy under test and an agent server, breaks a run's connection at a given
//! piece of its text, and decides how the next one goes: refused, silent, or with a replay that repeats, reorders or leaves out.
//!
//! What took effect is counted by kind, so that a suite can say what it has shown.

mod frames;
mod replay;
mod upstream;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use upstream::{Dial, Plane, Planned, UpstreamFault, UpstreamProxy};

/// How a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is closed in TCP's good order, whatever was going on in it.
    Fin,
    /// It is reset; what was on the way is lost.
    Reset,
    /// It stays open, and nothing passes any more in either direction.
    Stall,
    /// It stays open, and what the server says does not arrive any more.
    HalfOpen,
    /// It stays open, and what the client says does not arrive any more.
    HalfOpenUp,
    /// What the server says comes so much later from here on, and then goes on.
    Delay(Duration),
    /// It is closed in the middle of a character, as soon as one of several bytes comes.
    Cut,
    /// It is accepted and reset at once.
    Refuse,
    /// It is accepted, and nothing more.
    Silent,
}

impl Fault {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fin => "fin",
            Self::Reset => "reset",
            Self::Stall => "stall",
            Self::HalfOpen => "half-open",
            Self::HalfOpenUp => "half-open, towards the server",
            Self::Delay(_) => "delay",
            Self::Cut => "cut in a character",
            Self::Refuse => "refused",
            Self::Silent => "silent accept",
        }
    }
}

/// A fault, and after how many bytes of the server's it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What happens.
    pub fault: Fault,
    /// When.
    pub after: u64,
}

/// How often something happened, by its name.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Counts {
    pub(crate) fn add(&self, name: &'static str) {
        *locked(&self.0).entry(name).or_default() += 1;
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.0).clone()
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A proxy of bytes before a server.
pub struct FaultProxy {
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    address: SocketAddr,
    target: Mutex<String>,
    /// What the connections from these addresses are to suffer.
    plans: Mutex<HashMap<SocketAddr, Plan>>,
    /// What every connection suffers.
    all: watch::Sender<Option<Fault>>,
    counts: Counts,
}

impl FaultProxy {
    /// Listens on a free port, before `http://HOST:PORT`.
    ///
    /// # Panics
    /// When there is no port, or the target is no such URL.
    pub async fn before(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let shared = Arc::new(Shared {
            address: listener.local_addr().expect("an address"),
            target: Mutex::new(host_of(target)),
            plans: Mutex::default(),
            all: watch::Sender::new(None),
            counts: Counts::default(),
        });
        let accepting = Mutex::new(Some(tokio::spawn(accept(listener, shared.clone()))));
        Self { shared, accepting }
    }

    /// Its own base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// From now on it stands before another server.
    ///
    /// # Panics
    /// When that is no `http://HOST:PORT`.
    pub fn retarget(&self, target: &str) {
        *locked(&self.shared.target) = host_of(target);
    }

    /// A connection through the proxy that suffers this.
    ///
    /// # Errors
    /// When it is not taken.
    pub async fn connect(&self, plan: Option<Plan>) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.shared.address).await?;
        stream.set_nodelay(true)?;
        if let Some(plan) = plan {
            // Before the first byte is written, so that the proxy finds it when that byte arrives.
            locked(&self.shared.plans).insert(stream.local_addr()?, plan);
        }
        Ok(stream)
    }

    /// Breaks every connection that there is and that comes, until [`Self::mend`].
    pub fn break_all(&self, fault: Fault) {
        self.shared.all.send_replace(Some(fault));
    }

    /// Further connections pass again.
    pub fn mend(&self) {
        self.shared.all.send_replace(None);
    }

    /// Further connections are refused by the system, since nobody listens any more. Those that there are go on.
    pub async fn close(&self) {
        let task = locked(&self.accepting).take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    /// Listens again, on the same port.
    ///
    /// # Panics
    /// When that is taken by somebody else meanwhile.
    pub async fn reopen(&self) {
        let listener = TcpListener::bind(self.shared.address).await.expect("the same port again");
        *locked(&self.accepting) = Some(tokio::spawn(accept(listener, self.shared.clone())));
    }

    /// The faults that took effect.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.shared.counts.read()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(task) = locked(&self.accepting).take() {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((client, from)) => {
                let shared = shared.clone();
                tokio::spawn(async move { wire::pass(client, from, &shared).await });
            }
            // Out of file descriptors, mostly, which come back.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

pub(crate) fn host_of(url: &str) -> String {
    url.strip_prefix("http://").expect("an http address").trim_end_matches('/').to_owned()
}
