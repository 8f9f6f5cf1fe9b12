//! Channels: connections of a client to an upstream that carry messages both ways and belong to no session, such as the coding channel
//! (native-ws.md §5.5). The hub does not look into them.

use std::pin::Pin;

use bytes::Bytes;
use interline_model::Text;
use tokio::sync::mpsc;

use crate::ActionError;

/// One message, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelMessage {
    /// A text message.
    Text(Text),
    /// A binary message.
    Binary(Bytes),
    /// The end, and the last message of its direction.
    Close {
        /// The WebSocket close code; 1005 if there was none.
        code: u16,
        /// The reason, or empty.
        reason: String,
    },
}

/// An open channel. Dropping it closes the upstream's side. Both directions are bounded: who does not read holds up who writes.
#[derive(Debug)]
pub struct Channel {
    /// To the upstream.
    pub to: mpsc::Sender<ChannelMessage>,
    /// From the upstream; ends with it.
    pub from: mpsc::Receiver<ChannelMessage>,
}

/// The future of opening one.
pub type ChannelFuture = Pin<Box<dyn Future<Output = Result<Channel, ActionError>> + Send>>;
