//! Marks between what is said: the session's mode and the plan, as hidden blocks (socketio.md §3.3, §4.11).

use interline_model::{Lane, PlanStep, StepStatus, Text};

use crate::mapping::SocketWriter;
use crate::object::{object, write_object};
use crate::projection::{Block, Kind, Mode};

impl SocketWriter {
    /// The session's mode is this now. Planning begins and ends with a turn of its own, which frontends hide; a change between modes in which the
    /// agent acts is none here.
    pub(crate) fn mode_changed(&mut self, permission_mode: &Text) {
        let (from, to) = (self.mode, Mode::of(permission_mode));
        if from == to || self.run.is_none() {
            return;
        }
        self.mode = to;
        self.stir();
        let mark = if to == Mode::Planning { Block::PlanningEnter } else { Block::PlanningExit };
        self.whole_turn(Kind::System, vec![Block::Mode { from, to }, mark]);
    }

    /// The plan is now this: a block of the turn whose call set it. No document says what it holds; it is the plan as SSE's answers have it.
    pub(crate) fn plan_changed(&mut self, lane: &Lane, steps: &[PlanStep]) {
        self.stir();
        let done = steps.iter().filter(|step| step.status == StepStatus::Completed).count();
        let content = object(|object| {
            object.array("steps", steps, |out, step| {
                write_object(out, |object| {
                    object.text("id", &step.id);
                    object.text("title", &step.title);
                    object.text("status", word(step.status));
                });
            });
            object.number("total_steps", steps.len() as u64);
            object.number("done_steps", done as u64);
        });
        // A turn that paused may still be told of what its calls do.
        let paused = self.latest_in(lane).filter(|&at| self.turns.get(at).is_some_and(|turn| turn.is_assistant() && turn.paused));
        let live = paused.filter(|at| self.run.as_ref().is_some_and(|run| run.live.contains(*at)));
        let at = match live {
            Some(at) => at,
            None => self.open_or_new(lane),
        };
        self.add_block(at, Block::Plan(content));
    }
}

fn word(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Pending => "pending",
        StepStatus::Running => "running",
        StepStatus::Completed => "completed",
    }
}
