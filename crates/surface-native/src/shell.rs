//! The I/O: HTTP requests and WebSockets of both access surfaces, and what they share.
//!
//! | file | what |
//! |---|---|
//! | `cloud` | `/v1/agent/sessions…`: a native session is a run |
//! | `bridge` | `/v1/code/sessions…`: a native session is a session |
//! | `coding` | `/v1/code/ws`: the coding channel, passed through |
//! | `feed` | what one socket is sent: a position in the projection |
//! | `inbound` | what one socket may say |
//! | `cors` | which pages may come, and what they hear |
//! | `socket` | the upgrade and the pump |
//! | `paced` | reading no faster than can be written |
//! | `tokens` | session tokens |
//! | `connects` | which runs had their first connect |
//! | `replies` | the answers' shapes |

mod base;
mod bridge;
mod cloud;
mod coding;
mod connects;
mod cors;
mod feed;
mod inbound;
mod paced;
mod replies;
mod socket;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use http::HeaderMap;
use http::request::Parts;
use interline_hub::{Access, Denied, Hub, Peer, Session, Surface};
use interline_model::{Actor, Millis, Text};
use tokio::sync::Semaphore;

use crate::{Config, NativeWriter};
use connects::Connects;
use tokens::Tokens;

/// The name of this surface in records, logs and metrics.
const NAME: &str = "native";

/// The native surface.
#[must_use]
pub fn surface(config: Config) -> Box<dyn Surface> {
    Box::new(Native(config))
}

struct Native(Config);

impl Surface for Native {
    fn name(&self) -> &'static str {
        NAME
    }

    fn router(self: Box<Self>, hub: Arc<Hub>) -> Router {
        hub.number_by(base::numbering);
        let config = self.0;
        let shell = Arc::new(Shell {
            tokens: Tokens::new(config.session_token_ms, config.max_session_tokens),
            connects: Connects::default(),
            hub,
            config,
        });
        let mut router = Router::new();
        if shell.config.cloud {
            router = router.merge(cloud::router());
        }
        if shell.config.bridge {
            router = router.merge(bridge::router(shell.config.max_upload));
        }
        if !shell.config.cloud && !shell.config.bridge {
            // A layer around no routes is refused.
            return router.with_state(shell);
        }
        // native-ws.md §2.1
        router
            .method_not_allowed_fallback(replies::method_not_allowed)
            .route_layer(axum::middleware::from_fn_with_state(shell.clone(), cors::layer))
            .with_state(shell)
    }
}

/// What all requests share.
struct Shell {
    hub: Arc<Hub>,
    config: Config,
    tokens: Tokens,
    connects: Connects,
}

/// Requests of one socket that may wait at most, whatever the config says: more than anybody makes, and less than a semaphore takes.
const MOST_REQUESTS: u32 = 65_536;

impl Shell {
    /// One permit for each request of a socket that may wait for the upstream, and how many there are.
    fn requests(&self) -> (Arc<Semaphore>, u32) {
        let max = u32::try_from(self.config.max_requests).unwrap_or(u32::MAX).min(MOST_REQUESTS);
        (Arc::new(Semaphore::new(max as usize)), max)
    }
}

/// A session as native frames.
type Projection = interline_hub::Projection<NativeWriter>;

fn projection(session: &Session) -> Arc<Projection> {
    session.projection("", NativeWriter::new)
}

/// Who does something here to a session.
fn actor(session: &Session) -> Actor {
    Actor { principal: session.principal().clone(), surface: Text::from_static(NAME) }
}

/// What says who makes a request: its headers, and where it comes from.
struct Caller {
    headers: HeaderMap,
    peer: Option<Peer>,
}

impl Caller {
    fn of(request: &Request) -> Self {
        Self { headers: request.headers().clone(), peer: request.extensions().get().copied() }
    }

    fn bearer(&self) -> Option<&str> {
        bearer(&self.headers)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self { headers: parts.headers.clone(), peer: parts.extensions.get().copied() })
    }
}

impl Shell {
    /// Who brings a long-lived token.
    fn admit(&self, caller: &Caller) -> Result<Access, Denied> {
        self.hub.admit_to(NAME, caller.bearer(), caller.peer)
    }

    /// Whether what was given out for a token is still good: no longer than the token.
    fn readmit(&self, access: &Access) -> Result<(), Denied> {
        self.hub.readmit(NAME, access)?;
        self.hub.count(access)
    }
}

/// The bearer of a request. `Bearer ` is case-sensitive (native-ws.md §2.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").filter(|token| !token.is_empty())
}

/// A parameter of the query, decoded; the first of that name.
fn query(uri: &http::Uri, name: &str) -> Option<String> {
    let axum::extract::Query(pairs) = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).ok()?;
    pairs.into_iter().find_map(|(key, value)| (key == name).then_some(value))
}

/// A cursor in the query. Zero and what is no number are no cursor (native-ws.md §3.3, §4.2).
fn cursor(uri: &http::Uri, name: &str) -> Option<u64> {
    query(uri, name)?.parse().ok().filter(|cursor| *cursor > 0)
}

/// Wall time, for expiries and the sentinel's `ts`.
#[expect(clippy::disallowed_methods, reason = "the wire shows wall time; the mapping has its times from records")]
fn now() -> Millis {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX))
}
