//! The native upstreams: links over real sockets to the cloud agent plane and to the local bridge.
//!
//! ```text
//!            POST, GET            WebSocket
//! Server ──▶ HttpClient           Dialer ──▶ Socket ──▶ LineUp ──▶ RunPort::deliver
//!                                            Socket ◀── Outbox ◀── RunPort::command
//! CloudLink: one native session for each run          BridgeLink: one for each session, one socket for each run
//! coding:    one socket for each client, beside all sessions, of a bridge only
//! ```
//!
//! A link knows no meaning. What it looks at in a frame is what the wire forces: ids, to line replays up with what was
//! seen; the sentinel that ends a bridge stream; the notice that a cloud stream cannot be continued.

#![warn(missing_docs)]

mod backoff;
mod bridge;
mod cloud;
mod coding;
mod config;
mod heard;
mod http;
mod lineup;
mod multipart;
mod origin;
mod outbox;
mod prompt;
mod refusal;
mod server;
mod socket;
mod wire;

use std::sync::Arc;

use interline_hub::{Action, ActionError, ChannelFuture, Link, RunCredential, Secret, SessionSeed, Upstream, Wire};
use interline_model::{Ask, ExplainReader, Reader, Text};
use interline_native::{NativeExplainer, NativeReader, Settings};

pub use config::{ConfigError, Kind, LinkConfig, Mode, UpstreamConfig};

use bridge::BridgeLink;
use cloud::CloudLink;
use server::Server;

/// Makes an upstream of its config. Nothing is dialled.
///
/// # Errors
/// When the config cannot work: no name, an address that is none, a credential that cannot be sent.
pub fn upstream(config: UpstreamConfig, link: LinkConfig) -> Result<Arc<dyn Upstream>, ConfigError> {
    Ok(Arc::new(NativeUpstream(Arc::new(Server::new(config, link)?))))
}

struct NativeUpstream(Arc<Server>);

impl NativeUpstream {
    fn settings(&self) -> Settings {
        Settings { chat: self.0.config.kind == Kind::Cloud && self.0.config.mode == Mode::Chat }
    }
}

impl Upstream for NativeUpstream {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(NativeReader::new(self.settings()))
    }

    fn ask_in(&self, message: &Text) -> Option<Ask> {
        interline_native::ask_in(message)
    }

    fn wire(&self, action: &Action) -> Option<Wire> {
        wire::wire(action)
    }

    fn explainer(&self) -> Box<dyn ExplainReader> {
        Box::new(NativeExplainer::new(self.settings()))
    }

    fn open(&self, session: &SessionSeed) -> Arc<dyn Link> {
        match self.0.config.kind {
            Kind::Cloud => Arc::new(CloudLink::new(self.0.clone(), session)),
            Kind::Bridge => Arc::new(BridgeLink::new(self.0.clone())),
        }
    }

    fn replace_credential(&self, credential: Option<Secret>) -> bool {
        self.0.replace_credential(credential);
        true
    }

    fn starts_with_model(&self) -> bool {
        // native-ws.md §4.2: a bridge's message is its prompt and nothing else.
        self.0.config.kind == Kind::Cloud
    }

    fn has_coding_channel(&self) -> bool {
        self.0.config.kind == Kind::Bridge
    }

    fn coding_channel(&self, credential: RunCredential) -> ChannelFuture {
        let server = self.0.clone();
        Box::pin(async move {
            match server.config.kind {
                Kind::Bridge => coding::open(server, &credential).await,
                Kind::Cloud => Err(ActionError::Unsupported(format!("upstream {} has no coding channel", server.name()))),
            }
        })
    }
}
