//! What the bridge does for a session besides its turns: compaction, cost, uploads (native-ws.md §4.2).
//!
//! - A compaction rewrites what a turn reads: it waits for a turn that is winding down, holds the conversation until it is answered, also
//!   when whoever asked for it has gone, and a run that begins meanwhile waits for it.
//! - Cost and uploads do not touch the turn, and go beside it.
//! - Only an upload makes a native session: files come before the first message, and the run that follows takes the same session. To compact
//!   an empty conversation or to ask what it cost, none is made.

use std::sync::Arc;

use interline_hub::{Action, ActionError, RunCredential, Secret, Upload, draw_run};
use interline_model::Json;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::turn::{Turn, outbox};
use super::{BridgeLink, Conversation, SLACK};
use crate::http::{HttpError, Reply};
use crate::multipart::form;
use crate::origin::escaped;
use crate::refusal::{beforehand, done, object, unanswered};

/// Does `action`.
pub(super) async fn act(link: Arc<BridgeLink>, action: Action, credential: &RunCredential) -> Result<Json, ActionError> {
    let credential = link.server.credential(credential);
    match action {
        Action::Compact => {
            let one = link.compaction.clone().try_lock_owned();
            let Ok(one) = one else { return Err(refused("the session is being compacted already")) };
            to_its_end(async move {
                let compacted = link.compact(credential).await;
                drop(one);
                compacted
            })
            .await
        }
        Action::Cost => link.cost(credential.as_ref()).await,
        Action::Upload(upload) => to_its_end(async move { link.upload(&upload, credential).await }).await,
        other => Err(ActionError::Unsupported(format!("this agent server cannot {}", other.what()))),
    }
}

/// Does something to its end, whether or not somebody waits for it.
async fn to_its_end(work: impl Future<Output = Result<Json, ActionError>> + Send + 'static) -> Result<Json, ActionError> {
    let ended = |_| Err(ActionError::Unreachable("the program is about to end".to_owned()));
    tokio::spawn(work).await.unwrap_or_else(ended)
}

impl BridgeLink {
    async fn compact(&self, credential: Option<Secret>) -> Result<Json, ActionError> {
        let conversation = self.conversation().await?;
        let run = draw_run();
        let mut turn = Turn::new(self, run, credential.clone(), conversation, outbox(&self.server, run));
        let Some(session) = turn.rest().await.map_err(beforehand)? else { return Err(no_session()) };
        let path = format!("/v1/code/sessions/{}/compact", escaped(&session));
        let reply = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(deleted()),
            reply = self.server.post_patiently(&path, credential.as_ref(), None) => reply,
        };
        self.answer(reply, Action::Compact.what(), credential.as_ref())?;
        Ok(Json::empty_object())
    }

    async fn cost(&self, credential: Option<&Secret>) -> Result<Json, ActionError> {
        let Some(session) = self.native_session() else { return Err(no_session()) };
        let path = format!("/v1/code/sessions/{}/cost", escaped(&session));
        let uri = self.server.origin.http(&path).map_err(|error| self.unanswered(&error.into()))?;
        object(&self.answer(self.server.get(uri, credential).await, Action::Cost.what(), credential)?)
    }

    async fn upload(&self, upload: &Upload, credential: Option<Secret>) -> Result<Json, ActionError> {
        let session = self.session_to_fill(credential.clone()).await?;
        match self.attach(&session, upload, credential.as_ref()).await {
            Err(ActionError::Refused { status: Some(404), message }) => {
                // Forgotten, as after a restart: the next run would begin a new session as well.
                let Ok(conversation) = self.turn.clone().try_lock_owned() else {
                    return Err(ActionError::Refused { status: Some(404), message });
                };
                tracing::warn!(upstream = self.server.name(), "the bridge has forgotten the session; a new one begins with a file");
                let session = self.session_instead(&session, conversation, credential.clone()).await?;
                self.attach(&session, upload, credential.as_ref()).await
            }
            answer => answer,
        }
    }

    async fn attach(&self, session: &str, upload: &Upload, credential: Option<&Secret>) -> Result<Json, ActionError> {
        let form = form(upload, uuid::Uuid::new_v4().as_u128()).map_err(|error| refused(&error.to_string()))?;
        let path = format!("/v1/code/sessions/{}/attachments", escaped(session));
        let reply = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(deleted()),
            reply = self.server.post_patiently(&path, credential, Some(form)) => reply,
        };
        object(&self.answer(reply, "take files", credential)?)
    }

    /// The native session, made if there is none. One that a run is about to make is waited for.
    async fn session_to_fill(&self, credential: Option<Secret>) -> Result<String, ActionError> {
        let mut held = self.held.subscribe();
        let conversation = self.conversation();
        tokio::pin!(conversation);
        loop {
            if let Some(held) = held.borrow_and_update().as_ref() {
                return Ok(held.session.clone());
            }
            tokio::select! {
                biased;
                // The sender is the link's own, and outlives this.
                _ = held.changed() => {}
                conversation = &mut conversation => return self.session_in(conversation?, credential).await,
            }
        }
    }

    /// A new native session in the place of one that the bridge does not know any more.
    async fn session_instead(
        &self,
        forgotten: &str,
        conversation: OwnedMutexGuard<Conversation>,
        credential: Option<Secret>,
    ) -> Result<String, ActionError> {
        let run = draw_run();
        let mut turn = Turn::new(self, run, credential.clone(), conversation, outbox(&self.server, run));
        turn.forget(forgotten);
        self.made(&mut turn).await
    }

    async fn session_in(&self, conversation: OwnedMutexGuard<Conversation>, credential: Option<Secret>) -> Result<String, ActionError> {
        let run = draw_run();
        self.made(&mut Turn::new(self, run, credential, conversation, outbox(&self.server, run))).await
    }

    async fn made(&self, turn: &mut Turn<'_>) -> Result<String, ActionError> {
        let (session, _) = turn.session().await.map_err(beforehand)?;
        if self.closed.is_cancelled() {
            // Deleted meanwhile: then there was nothing to delete yet.
            self.delete_held().await;
            return Err(deleted());
        }
        Ok(session)
    }

    /// The conversation, once the turn that may be winding down has let go of it.
    async fn conversation(&self) -> Result<OwnedMutexGuard<Conversation>, ActionError> {
        let wait = timeout(self.server.link.sentinel_wait().saturating_add(SLACK), self.turn.clone().lock_owned());
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(deleted()),
            conversation = wait => conversation.map_err(|_| ActionError::Busy),
        }
    }

    fn native_session(&self) -> Option<String> {
        self.held.borrow().as_ref().map(|held| held.session.clone())
    }

    fn answer(&self, reply: Result<Reply, HttpError>, what: &str, credential: Option<&Secret>) -> Result<Reply, ActionError> {
        done(reply.map_err(|error| self.unanswered(&error))?, what, credential)
    }

    fn unanswered(&self, error: &HttpError) -> ActionError {
        unanswered(self.server.name(), &self.server.origin, error)
    }
}

fn no_session() -> ActionError {
    refused("the agent server has no session for this conversation yet: one begins with its first run")
}

fn deleted() -> ActionError {
    refused("the session was deleted")
}

fn refused(message: &str) -> ActionError {
    ActionError::Refused { status: None, message: message.to_owned() }
}
