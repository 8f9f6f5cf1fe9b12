//! Compactions: each a turn of its own, after the lane's turn or beside it (socketio.md §4.6).

use interline_model::{CompactionPhase, Lane};

use crate::mapping::SocketWriter;
use crate::projection::{Compaction, Kind, Turn, TurnStatus};
use crate::stamp::turn_id;

impl SocketWriter {
    pub(crate) fn compaction(&mut self, lane: &Lane, phase: &CompactionPhase) {
        self.stir();
        match phase {
            CompactionPhase::Started { reason, tokens_before } => {
                self.open_compaction(lane, reason, *tokens_before);
            }
            CompactionPhase::Finished { tokens_before, tokens_after } => {
                let at = self.open_compaction_of(lane).unwrap_or_else(|| self.open_compaction(lane, "", *tokens_before));
                if let Some(Kind::Compaction(compaction)) = self.turns.get_mut(at).map(|turn| &mut turn.kind) {
                    compaction.tokens_before = tokens_before.or(compaction.tokens_before);
                    compaction.tokens_after = *tokens_after;
                }
                self.end_turn(at, TurnStatus::Completed);
            }
        }
    }

    /// The context was compacted because somebody wanted it. Between runs that is a turn without a chat around it (socketio.md §4.6).
    pub(crate) fn compacted(&mut self) {
        if self.run.is_some() {
            self.stir();
            let at = self.open_compaction(&Lane::Root, "manual", None);
            self.end_turn(at, TurnStatus::Completed);
            return;
        }
        let Some(run) = self.facts.as_ref().map(|facts| facts.run) else { return };
        let at = self.turns.len();
        let kind =
            Kind::Compaction(Compaction { id: turn_id("comp", run, at), trigger: "manual", tokens_before: None, tokens_after: None });
        self.turns.push(Turn::new(run, at, Lane::Root, 0, kind, self.now, &self.options));
        self.tell_turn("turn:start", at);
        self.close_turn(at, TurnStatus::Completed);
    }

    /// The lane's compaction that goes on.
    fn open_compaction_of(&self, lane: &Lane) -> Option<usize> {
        let compacts = |turn: &Turn| matches!(turn.kind, Kind::Compaction(_)) && !turn.ended;
        self.run.as_ref()?.live.newest_of(lane).find(|&at| self.turns.get(at).is_some_and(compacts))
    }

    /// Opens a compaction turn: after the lane's turn, or beside it while calls of it go on, since their results are still to come.
    fn open_compaction(&mut self, lane: &Lane, reason: &str, tokens_before: Option<u64>) -> usize {
        let beside = self.open_in(lane).filter(|&at| self.turns.get(at).is_some_and(|turn| turn.is_assistant() && !turn.all_calls_final()));
        if beside.is_none() {
            self.end_lane(lane);
        }
        let id = self.run.as_ref().map(|run| turn_id("comp", run.id, self.turns.len())).unwrap_or_default();
        let trigger = match reason {
            "manual" => "manual",
            "max_tokens_recovery" => "forced_retry",
            _ => "auto",
        };
        let at = self.open_turn(lane, Kind::Compaction(Compaction { id, trigger, tokens_before, tokens_after: None }));
        if let (Some(turn), Some(run)) = (beside, &mut self.run) {
            run.latest.insert(lane.clone(), turn);
        }
        at
    }
}
