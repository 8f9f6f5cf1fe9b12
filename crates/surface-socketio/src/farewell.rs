//! How sockets end with the server: as lost transports, each at its own moment.
//!
//! Stock clients come back by themselves when their transport is lost. They do not after a `disconnect` of the namespace, and python-engineio
//! does not after the `close` packet of Engine.IO either, which is all that the library can send. So a WebSocket's connection is hung up, and a
//! request of a polling client is answered with an error; both are told by whatever stands between them and us, too.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use interline_hub::{Hangup, is_upgrade};

use crate::shell::Shell;

/// What the hub tells of runs at its end has so long to reach a socket whose turn comes at once.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(250);

/// Ends what this request is about when its turn has come.
pub(crate) async fn layer(State(shell): State<Arc<Shell>>, request: Request, next: Next) -> Response {
    let turn = shell.hub.closing().turn();
    if is_upgrade(request.headers()) {
        if let Some(hangup) = request.extensions().get::<Hangup>().cloned() {
            let end = {
                let hangup = hangup.clone();
                async move {
                    turn.comes().await;
                    tokio::time::sleep(LAST_WORDS).await;
                    hangup.cut();
                }
            };
            tokio::spawn(async move {
                tokio::select! {
                    () = end => {}
                    () = hangup.gone() => {}
                }
            });
        }
        return next.run(request).await;
    }
    let ended = async {
        turn.comes().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        biased;
        answer = next.run(request) => answer,
        () = ended => (StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down").into_response(),
    }
}
