//! The hub: sessions, runs and asks between the links that bring frames and the shells that serve clients.
//!
//! ```text
//!   Link ──RunPort::deliver──▶ Session ──record──▶ log ──Reader──▶ events ──Writer──▶ Projection ◀──pull── shell
//!   Link ◀──RunPort::command── Session ◀──answer, stop────────────────────────────────────────────────── shell
//! ```
//!
//! - A surface calls [`Hub::admit_to`] with the bearer it got, then [`Hub::start`], [`Hub::create_session`], [`Hub::session`] or [`Hub::run`].
//! - It asks the [`Session`] for its [`Projection`] (one for each surface and set of options, built from the log when first
//!   asked for, live ever after) and reads it by position: [`Projection::tail`] for a session, [`Projection::run_tail`] for one run.
//!   A client is such a position and nothing else: no queue, no channel. Slow, late and reconnecting clients are one code path.
//! - Commands go the other way: [`Session::answer`], [`Session::stop`].
//!
//! The hub does no translation: what frames mean is the upstream's [`interline_model::Reader`], what events look like the surface's
//! [`interline_model::Writer`].

#![warn(missing_docs)]

mod access;
mod action;
mod asks;
mod channel;
mod closing;
mod conduct;
mod config;
mod cors;
mod door;
mod driver;
mod environment;
mod explaining;
mod hub;
mod in_turn;
mod numbering;
mod origin;
mod peer;
mod policy;
mod projection;
mod queue;
mod queued;
#[cfg(all(test, feature = "shuttle"))]
mod races;
mod rates;
mod restore;
mod retention;
mod route;
mod secret;
mod session;
mod settings;
mod surface;
mod sync;
mod telemetry;
mod tickets;
mod turns;
mod upstream;
mod warmth;
mod watchers;

pub use access::{Access, Denied, Gate, Limit, RunCredential, Token, TokenSecret};
pub use action::{Action, ActionError, ActionFuture, Control, Upload, Wire};
pub use asks::{AskVerdict, PendingAsk};
pub use channel::{Channel, ChannelFuture, ChannelMessage};
pub use closing::{Closing, Farewell, Hangup, Turn};
pub use conduct::{Conduct, OnBusy, Unwatched};
pub use config::{AskConfig, RunConfig};
pub use cors::{Cors, Page, is_packed};
pub use door::{DoorConfig, Leave, LimitsConfig, OnExpiry, Visit};
pub use environment::{Environment, EnvironmentError};
pub use explaining::Explaining;
pub use hub::{Filter, Hub, NewSession, StartError, StartRun, draw_run};
pub use in_turn::{Begun, InTurn, NotBegun};
pub use interline_journal::{Durability, Health};
pub use numbering::Numbering;
pub use origin::{Origins, Verdict, is_upgrade, names_this_machine};
pub use peer::{Network, Peer};
pub use policy::{Decision, Policies, Policy};
pub use projection::{Gone, Projection, RunBatch, RunTail, Tail};
pub use restore::Restored;
pub use route::{MAX_MODEL_BYTES, Models, Route, Routes};
pub use secret::{HashError, Secret, SecretHash};
pub use session::{AnswerError, RunInfo, RunStatus, Session, SessionInfo, Stopped};
pub use settings::Settings;
pub use surface::Surface;
pub use telemetry::Telemetry;
pub use turns::Started;
pub use upstream::{Command, Flow, Link, LinkError, LinkFuture, Resumption, RunInput, RunPort, SessionSeed, Upstream};
