//! What a client may say on its socket (native-ws.md §3.4, §4.5).
//!
//! Everything that is not an answer, a stop or a request is ignored, broken JSON included. Of the requests only those to stop are
//! served. None is passed on: the upstream's replies go to whoever asked it, which is Interline, and never reach a client (decision 28),
//! so a passed request would be one that is never answered.

use std::sync::Arc;

use interline_hub::{Session, Stopped};
use interline_model::{Answer, AskId, Json, RunId, Text};
use interline_native::frame::{Control, ControlRequest, ControlResponse, Request};
use interline_native::{Frame, build};
use tokio::sync::mpsc;

use super::actor;

/// Replies to the client that asked. Bounded: a client that asks without reading waits.
pub(super) type Replies = mpsc::Sender<Text>;

/// Which access surface a socket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    Cloud,
    Bridge,
}

/// What one socket may say, and to whom.
pub(super) struct Inbound {
    pub(super) plane: Plane,
    pub(super) session: Arc<Session>,
    /// The run that is meant; `None` is the one that goes on.
    pub(super) run: Option<RunId>,
}

impl Inbound {
    /// Hears one message.
    pub(super) async fn hear(&self, text: &str, replies: &Replies) {
        let text = Text::from(text);
        match Frame::parse(&text) {
            Ok(Frame::Control(Control::Response(response))) => self.answer(&response),
            Ok(Frame::Control(Control::Request(request))) => self.request(&request, replies).await,
            // The id names nothing, and there is no acknowledgement.
            Ok(Frame::Control(Control::Cancel(_))) if self.plane == Plane::Cloud => {
                self.stop();
            }
            _ => {}
        }
    }

    fn answer(&self, response: &ControlResponse<'_>) {
        let Some(id) = response.request_id() else { return };
        let answer = match (response.error(), response.response()) {
            (None, Some(body)) if body.is_object() => Answer::Native(body),
            (Some(message), _) if !message.is_empty() => Answer::Deny { message },
            // native-ws.md §5.2: an error, and whatever cannot be read as an answer, denies.
            _ => Answer::Deny { message: Text::from_static("the client gave no answer") },
        };
        if let Err(error) = self.session.answer(&AskId::from(id), answer, actor(&self.session)) {
            // native-ws.md §3.3: the loser of a race is not told.
            tracing::debug!(session = %self.session.id(), %error, "an answer was not taken");
        }
    }

    async fn request(&self, request: &ControlRequest<'_>, replies: &Replies) {
        let (Some(id), Some(subtype)) = (request.request_id(), request.subtype()) else { return };
        let running = self.session.active_run().filter(|active| self.run.is_none_or(|run| run == *active)).is_some();
        let reply = match request.request() {
            Some(Request::Interrupt(_)) if running => build::success(&id, None),
            Some(Request::Interrupt(_)) => build::failure(&id, "no turn in progress"),
            Some(Request::CancelAsyncMessage(_)) if self.plane == Plane::Bridge => {
                build::success(&id, Some(&Json::written(format!("{{\"cancelled\":{running}}}"))))
            }
            Some(Request::SetModel(_)) if self.plane == Plane::Bridge => {
                build::failure(&id, "set_model not supported by biu bridge; recreate session with desired model")
            }
            // native-ws.md §4.5: no reply at all.
            None if self.plane == Plane::Bridge => return,
            _ => build::failure(&id, &format!("control subtype \"{subtype}\" not implemented")),
        };
        // The reply goes before whatever the stop brings about. Nobody is left to read it if this fails.
        let _ = replies.send(reply).await;
        let stops = match request.request() {
            Some(Request::Interrupt(_)) => true,
            Some(Request::CancelAsyncMessage(_)) => self.plane == Plane::Bridge,
            _ => false,
        };
        if stops && running {
            self.stop();
        }
    }

    fn stop(&self) -> Stopped {
        self.session.stop(self.run, actor(&self.session))
    }
}
