//! The driver of one run: its link's work and its deadlines, until both are over.

use std::sync::Arc;
use std::time::Duration;

use interline_model::{NoticeLevel, RunId, Text};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Settings;
use crate::session::Session;
use crate::upstream::{LinkError, LinkFuture};

/// The longest sleep between two looks at the deadlines.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Has the settings of `run` made, and tells people of those that are not to be had.
pub(crate) async fn settle(session: Arc<Session>, run: RunId, settings: Settings) {
    // At the same time: one that is never answered must not hold up the others.
    let each = settings.actions().map(|action| {
        let session = &session;
        async move {
            if let Err(error) = session.say(run, &action).await {
                let text = format!("the run goes on without a setting: the agent server did not {} ({error})", action.what());
                session.notice(run, NoticeLevel::Warning, "setting_not_made", Text::from(text));
            }
        }
    });
    futures_util::future::join_all(each).await;
}

/// Drives `run` until it has ended and its link has wound down, or it is left to the next process.
pub(crate) async fn drive(session: Arc<Session>, run: RunId, work: LinkFuture, tasks: TaskTracker, handed_on: CancellationToken) {
    // A task of its own, so that a panic in a link ends this run and nothing else.
    let mut work = tasks.spawn(work);
    while let Some(wait) = session.due_in(run) {
        tokio::select! {
            result = &mut work => {
                let result = result.unwrap_or_else(|panic| Err(LinkError::Gone(panic.to_string())));
                if let Err(error) = &result {
                    tracing::warn!(run = %run, session = %session.id(), %error, "the link gave up");
                }
                session.link_ended(run, result);
                session.settle_warmth();
                return;
            }
            () = tokio::time::sleep(wait.min(LONGEST_SLEEP)) => session.check(run),
            () = session.alarm.notified() => {}
            () = handed_on.cancelled() => {
                work.abort();
                return;
            }
        }
    }
    session.settle_warmth();
    // Ended; the link sees its port's `over` and bounds its own winding down.
    if let Err(panic) = work.await {
        tracing::error!(run = %run, session = %session.id(), %panic, "the link broke while winding down");
    }
}
