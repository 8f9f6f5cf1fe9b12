//! Explaining a run: its items on one surface, each with its causes, so far and as they come.

use std::sync::Arc;

use interline_model::{Body, ExplainWriter, Explained, Explanation, Fact, RunId};

use crate::session::Session;

/// A run that is being explained. Made by [`Session::explain`].
pub struct Explaining<W: ExplainWriter> {
    session: Arc<Session>,
    run: RunId,
    explanation: Explanation<W>,
    /// How many records have been read.
    read: usize,
    /// The records now read are the run's.
    inside: bool,
}

impl<W: ExplainWriter> Explaining<W> {
    pub(crate) fn new(session: Arc<Session>, run: RunId, writer: W) -> Self {
        Self { session, run, explanation: Explanation::new(writer), read: 0, inside: false }
    }

    /// The items of the run that came since the last call, or since its beginning, each explained. Every item that a projection of the
    /// session has handed out by now is among those handed out here by now. Never waits: a [`crate::RunTail`] tells when there is more.
    pub fn more(&mut self) -> Vec<Explained<W::Item>> {
        let mut all = Vec::new();
        for record in self.session.records(self.read) {
            self.read += 1;
            if let Body::Fact(Fact::RunAccepted(accepted)) = &record.body {
                // A writer goes through all runs of its session, as the projection's did.
                self.explanation.begin(self.session.explainer(accepted.run));
                self.inside = accepted.run == self.run;
            }
            let explained = self.explanation.feed(&record);
            if self.inside {
                all.extend(explained);
            }
        }
        all
    }
}
