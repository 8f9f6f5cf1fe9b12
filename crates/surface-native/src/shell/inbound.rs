//! What a client may say on its socket (native-ws.md §3.4, §4.5).
//!
//! Everything that is not an answer, a stop, a request or environment variables is ignored, broken JSON included. Requests to stop are
//! served here. Any other is made of the upstream in Interline's name, and its reply is handed back under the client's own id: upstreams
//! answer whoever asked them, which is Interline (decision 28).

use std::sync::Arc;

use interline_hub::{Access, Action, ActionError, Denied, Environment, Hub, Session, Stopped};
use interline_model::{Answer, AskId, Json, RunId, Text};
use interline_native::frame::{Control, ControlRequest, ControlResponse, Lifecycle, Request};
use interline_native::{Frame, build};
use tokio::sync::{Semaphore, mpsc};

use super::{NAME, actor};

/// Replies to the client that asked. Bounded: a client that asks without reading waits.
pub(super) type Replies = mpsc::Sender<Text>;

/// Whether a request changes which tools there are, or when they are asked about.
fn reconfigures(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Initialize(_)
            | Request::ApplyFlagSettings(_)
            | Request::McpSetServers(_)
            | Request::McpMessage(_)
            | Request::McpReconnect(_)
            | Request::McpToggle(_)
            | Request::ReloadPlugins(_)
            | Request::SeedReadState(_)
    )
}

/// Bytes from which on a request counts as long.
const LONG_REQUEST: usize = 64 * 1024;

/// Which access surface a socket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    Cloud,
    Bridge,
}

/// What one socket may say, and to whom.
pub(super) struct Inbound {
    pub(super) plane: Plane,
    pub(super) hub: Arc<Hub>,
    pub(super) session: Arc<Session>,
    /// The run that is meant; `None` is the one that goes on.
    pub(super) run: Option<RunId>,
    pub(super) access: Access,
    /// One permit for each request that may wait for the upstream, and how many there are.
    pub(super) requests: Arc<Semaphore>,
    pub(super) max_requests: u32,
}

impl Inbound {
    /// Hears one message. `Err` if the client would not be let in any more: what it says is not done.
    pub(super) async fn hear(&self, text: &str, replies: &Replies) -> Result<(), Denied> {
        self.hub.readmit(NAME, &self.access)?;
        let text = Text::from(text);
        match Frame::parse(&text) {
            Ok(Frame::Control(Control::Response(response))) => self.answer(&response),
            Ok(Frame::Control(Control::Request(request))) => self.request(&request, replies).await,
            Ok(Frame::Lifecycle(Lifecycle::UpdateEnvironmentVariables(update))) => {
                self.set_environment(update.object().json("variables")).await
            }
            // The id names nothing, and there is no acknowledgement.
            Ok(Frame::Control(Control::Cancel(_))) if self.plane == Plane::Cloud => {
                self.stop();
            }
            _ => {}
        }
        Ok(())
    }

    /// There is no reply to this, so what is not taken is only logged.
    async fn set_environment(&self, variables: Option<Json>) {
        let variables = variables.map(|variables| variables.to_value()).unwrap_or_default();
        let texts = variables.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
        let error = match Environment::checked(texts) {
            Err(error) => error.to_string(),
            Ok(_) if !self.is_running() => return,
            Ok(environment) => match self.session.act(Action::SetEnvironment(environment), self.access.credential().clone()).await {
                Ok(_) => return,
                Err(error) => error.to_string(),
            },
        };
        tracing::info!(session = %self.session.id(), %error, "environment variables of a client were not taken");
    }

    fn answer(&self, response: &ControlResponse<'_>) {
        let Some(id) = response.request_id() else { return };
        let answer = match (response.error(), response.response()) {
            (None, Some(body)) if body.is_object() => Answer::Native(body),
            (Some(message), _) if !message.is_empty() => Answer::Deny { message },
            // native-ws.md §5.2: an error, and whatever cannot be read as an answer, denies.
            _ => Answer::Deny { message: Text::from_static("the client gave no answer") },
        };
        if self.run.is_some_and(|run| self.session.run_of_ask(&AskId::from(id.clone())) != Some(run)) {
            // Whoever may follow one run may answer what that run asks.
            tracing::debug!(session = %self.session.id(), "an answer was for another run");
            return;
        }
        if let Err(error) = self.session.answer(&AskId::from(id), answer, actor(&self.session)) {
            // native-ws.md §3.3: the loser of a race is not told.
            tracing::debug!(session = %self.session.id(), %error, "an answer was not taken");
        }
    }

    async fn request(&self, request: &ControlRequest<'_>, replies: &Replies) {
        let (Some(id), Some(subtype)) = (request.request_id(), request.subtype()) else { return };
        let running = self.is_running();
        let reply = match request.request() {
            Some(Request::Interrupt(_)) if running => build::success(&id, None),
            Some(Request::Interrupt(_)) => build::failure(&id, "no turn in progress"),
            Some(Request::CancelAsyncMessage(_)) if self.plane == Plane::Bridge => {
                build::success(&id, Some(&Json::written(format!("{{\"cancelled\":{running}}}"))))
            }
            // Those that servers make of clients.
            Some(Request::CanUseTool(_) | Request::Elicitation(_) | Request::HookCallback(_)) => {
                build::failure(&id, &format!("control subtype \"{subtype}\" not implemented"))
            }
            _ => return self.pass_on(request, id, replies).await,
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

    fn is_running(&self) -> bool {
        self.session.active_run().is_some_and(|active| self.run.is_none_or(|run| run == active))
    }

    /// Makes a request of the upstream, beside what the client says next.
    async fn pass_on(&self, request: &ControlRequest<'_>, id: Text, replies: &Replies) {
        let Some(body) = request.object().json("request") else { return };
        let length = body.as_str().len().saturating_add(id.len());
        let action = match request.request() {
            Some(Request::SetPermissionMode(set)) => Action::SetPermissionMode(set.mode().unwrap_or_default()),
            Some(request) if !self.session.conduct().policies.is_empty() && reconfigures(request) => {
                let why = "policies decide about tools here, and this changes which there are or when they are asked about";
                let _ = replies.send(build::failure(&id, why)).await;
                return;
            }
            // Nobody here knows what it would change.
            None if !self.session.conduct().policies.is_empty() => return,
            _ => Action::Request(body),
        };
        if !self.is_running() {
            let _ = replies.send(build::failure(&id, "no turn in progress")).await;
            return;
        }
        // A long one has the place of all: what waits for one socket is about one message, however many there are.
        let places = if length > LONG_REQUEST { self.max_requests } else { 1 };
        let Ok(permit) = self.requests.clone().try_acquire_many_owned(places) else {
            let _ = replies.send(build::failure(&id, "too many requests wait for the agent server")).await;
            return;
        };
        // native-ws.md §4.5: bridges say nothing at all to a subtype that they do not know.
        let is_known = request.request().is_some();
        let (session, credential, replies) = (self.session.clone(), self.access.credential().clone(), replies.clone());
        tokio::spawn(async move {
            let reply = match session.act(action, credential).await {
                Ok(reply) if reply.as_str() == "{}" => build::success(&id, None),
                Ok(reply) => build::success(&id, Some(&reply)),
                Err(ActionError::Unanswered(_)) if !is_known => return,
                Err(error) => build::failure(&id, &error.to_string()),
            };
            let _ = replies.send(reply).await;
            // Only now: a client that asks and does not read would gather replies.
            drop(permit);
        });
    }

    fn stop(&self) -> Stopped {
        self.session.stop(self.run, actor(&self.session))
    }
}
