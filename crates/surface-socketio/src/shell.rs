//! The sockets: Engine.IO by socketioxide, behind the guards of dependencies.md §1.4, and the routes of the whole surface.

use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use axum::Router;
use interline_hub::{Denied, Hub, Projection, Session, Surface};
use prometheus_client::registry::Registry;
use socketioxide::SocketIo;
use socketioxide::extract::{SocketRef, TryData};
use socketioxide::handler::ConnectHandler;
use socketioxide::handler::FromConnectParts;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bearer;
use crate::config::Config;
use crate::desk::Desk;
use crate::inbox::{Inbox, Received};
use crate::notes::Notes;
use crate::outlet::{MIN_OUTBOX, Outlet};
use crate::refusal::sentence;
use crate::telemetry::Telemetry;
use crate::{RawWriter, SocketWriter, cors, farewell, rest};

/// The surface's name in facts and logs.
pub(crate) const SURFACE: &str = "socketio";

/// How long sockets have to take their last events before their connections are closed.
const GOODBYE: Duration = Duration::from_secs(2);

/// What every socket and every request needs.
pub(crate) struct Shell {
    pub(crate) hub: Arc<Hub>,
    pub(crate) config: Config,
    pub(crate) telemetry: Telemetry,
    pub(crate) notes: Notes,
    /// The subscriptions, to be waited for at the end.
    pub(crate) tasks: TaskTracker,
    closer: Once,
}

/// The surface as the program registers it.
#[derive(Clone, Debug, Default)]
pub struct SocketIoSurface {
    config: Config,
    telemetry: Telemetry,
}

impl SocketIoSurface {
    /// The surface with its section of the config.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, telemetry: Telemetry::default() }
    }
}

impl Surface for SocketIoSurface {
    fn name(&self) -> &'static str {
        SURFACE
    }

    fn register(&self, registry: &mut Registry) {
        self.telemetry.register(registry);
    }

    fn router(self: Box<Self>, hub: Arc<Hub>) -> Router {
        routes(hub, self.config, self.telemetry)
    }
}

/// The routes of this surface: `/socket.io/` and `/api`, serving the sessions of `hub`.
pub fn router(hub: Arc<Hub>, config: Config) -> Router {
    routes(hub, config, Telemetry::default())
}

fn routes(hub: Arc<Hub>, config: Config, telemetry: Telemetry) -> Router {
    let shell = Arc::new(Shell { hub, config, telemetry, notes: Notes::default(), tasks: TaskTracker::new(), closer: Once::new() });
    let bytes = shell.config.transport_bytes();
    let (sockets, io) = SocketIo::builder()
        .ping_interval(shell.config.ping_interval())
        .ping_timeout(shell.config.ping_timeout())
        .connect_timeout(shell.config.connect_timeout())
        .max_buffer_size(shell.config.max_outbox.max(MIN_OUTBOX))
        .max_payload(bytes as u64)
        .ws_max_message_size(bytes)
        .ws_max_frame_size(bytes)
        .build_svc();
    let admitting = shell.clone();
    let connected = shell.clone();
    let admit = async move |socket: SocketRef, auth: TryData<serde_json::Value>, io: SocketIo| admitting.admit(&socket, &auth, io);
    let connect = move |socket: Connected| {
        let shell = connected.clone();
        async move { shell.connected(socket) }
    };
    io.ns("/", connect.with(admit));
    let sockets = Router::new()
        .route_service("/socket.io/", sockets.clone())
        .route_service("/socket.io", sockets)
        .route_layer(axum::middleware::from_fn_with_state(shell.clone(), farewell::layer));
    rest::routes().merge(sockets).route_layer(axum::middleware::from_fn_with_state(shell.clone(), cors::layer)).with_state(shell)
}

/// The CONNECT packet is refused. socketio.md §1.3: clients read the message and nothing else.
struct Unauthorized(Denied);

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(self.0))
    }
}

/// The socket itself, which the extractors of socketioxide hand out in a wrapper only.
struct Connected(Arc<socketioxide::socket::Socket<socketioxide::adapter::LocalAdapter>>);

impl FromConnectParts<socketioxide::adapter::LocalAdapter> for Connected {
    type Error = std::convert::Infallible;

    fn from_connect_parts(
        socket: &Arc<socketioxide::socket::Socket<socketioxide::adapter::LocalAdapter>>,
        _: &Option<socketioxide_core::Value>,
    ) -> Result<Self, Self::Error> {
        Ok(Self(socket.clone()))
    }
}

impl Shell {
    /// The session as this surface shows it.
    pub(crate) fn projection(&self, session: &Session) -> Arc<Projection<SocketWriter>> {
        let (options, title) = (self.config.options(), session.first_title().cloned().unwrap_or_default());
        session.projection("", move || SocketWriter::new(options.clone()).titled(title.clone()))
    }

    /// The session as sockets get it that asked for raw events.
    pub(crate) fn raw_projection(&self, session: &Session) -> Arc<Projection<RawWriter>> {
        let (options, title) = (self.config.options(), session.first_title().cloned().unwrap_or_default());
        session.projection("", move || RawWriter::new(options.clone()).titled(title.clone()))
    }

    /// Before the CONNECT reply: who is it? Everything that receives is in place before the client may send (guard: lost first packets).
    fn admit(self: &Arc<Self>, socket: &SocketRef, auth: &TryData<serde_json::Value>, io: SocketIo) -> Result<(), Unauthorized> {
        self.close_with_hub(io);
        let token = auth.0.as_ref().ok().and_then(|auth| auth.get("token")?.as_str());
        let origins = self.hub.origins(&self.config.origins);
        let bearer = bearer::of_socket(token, socket.req_parts(), &self.config, &origins).map_err(|_| Unauthorized(Denied::Missing))?;
        let peer = socket.req_parts().extensions.get().copied();
        let access = self.hub.admit_to(SURFACE, bearer.as_deref(), peer).map_err(Unauthorized)?;
        let visit = self.hub.visit(SURFACE, &access).map_err(Unauthorized)?;
        socket.extensions.insert(Inbox::new(access, visit, &self.config));
        // One handler for all events, known and unknown: what it does is done when its extractor is made.
        socket.on_fallback(async |_: Received| {});
        Ok(())
    }

    /// After the CONNECT reply.
    fn connected(self: Arc<Self>, Connected(socket): Connected) {
        let Some(inbox) = socket.extensions.get::<Inbox>() else { return };
        let Some((packets, visit)) = inbox.take() else { return };
        let gone = CancellationToken::new();
        let ends = gone.clone();
        socket.on_disconnect(async move || ends.cancel());
        if !socket.connected() {
            return;
        }
        let outlet = Arc::new(Outlet::new(socket, gone, self.config.max_outbox.max(MIN_OUTBOX), self.config.max_outbox_bytes));
        let counted = self.telemetry.socket();
        let desk = Desk { shell: self, inbox, outlet, subscriptions: std::collections::HashMap::new() };
        tokio::spawn(async move {
            desk.work(packets, visit).await;
            drop(counted);
        });
    }

    /// When the hub closes and every connection had its turn to end (`farewell.rs`), the subscriptions that are left say their last words and the
    /// library closes what it still holds.
    fn close_with_hub(self: &Arc<Self>, io: SocketIo) {
        self.closer.call_once(|| {
            let (closing, tasks) = (self.hub.closing().clone(), self.tasks.clone());
            tokio::spawn(async move {
                closing.over().await;
                tokio::time::sleep(2 * farewell::LAST_WORDS).await;
                tasks.close();
                let _ = tokio::time::timeout(GOODBYE, tasks.wait()).await;
                io.close().await;
            });
        });
    }
}
