//! Plans: whole snapshots of the steps in, the documented plan events out (sse.md §3.2, §3.5 rule 7, §7).
//!
//! A plan is what the agent's planning tools say. Where there is none, the background tasks are one: a step for each task that goes on.
//!
//! Every plan has an id of its own, one `plan_created`, and one end: `plan_completed` or `plan_interrupted`. No event adds, drops or renames a step,
//! so a plan whose steps become others is ended as `replaced`, and the next one is told whole.

use interline_model::{PlanStep, RunId, StepStatus, TaskPhase, Text, write_json_string};

use crate::block::{Block, Ink, Kind};
use crate::escape::within;

/// Steps of a plan made of tasks. What is started beyond them is told in no plan.
const MOST_TASKS: usize = 100;

/// A plan, as far as the clients know it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    of_tasks: bool,
    made: u32,
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    id: Text,
    title: Text,
    status: Status,
    result: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Pending,
    Running,
    Completed,
    Failed,
}

/// What there is to tell of a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Saying {
    /// All steps, under the plan's id.
    Created,
    /// This step, by its place.
    Updated(usize),
    /// Nothing more will be done of it.
    Completed,
    /// It ends before that.
    Interrupted,
    /// It ends because the plan that follows takes its place.
    Replaced,
}

/// The reason of the end of a plan whose steps became others.
const REPLACED: &str = "replaced";

impl From<&PlanStep> for Step {
    fn from(step: &PlanStep) -> Self {
        let status = match step.status {
            StepStatus::Pending => Status::Pending,
            StepStatus::Running => Status::Running,
            StepStatus::Completed => Status::Completed,
        };
        Self { id: step.id.clone(), title: step.title.clone(), status, result: Text::new() }
    }
}

impl Plan {
    /// Its steps, empty if there is none.
    #[cfg_attr(not(feature = "io"), allow(dead_code, reason = "only lists show a plan as a whole"))]
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Steps that came to something.
    pub(crate) fn done(&self) -> usize {
        self.steps.iter().filter(|step| step.status == Status::Completed).count()
    }

    /// The plan is now `steps`.
    pub(crate) fn change(&mut self, steps: &[PlanStep]) -> Vec<Saying> {
        let steps: Vec<Step> = steps.iter().map(Step::from).collect();
        if steps.is_empty() {
            self.steps.clear();
            return self.interrupt();
        }
        if self.steps == steps && !self.of_tasks {
            return Vec::new();
        }
        let mut sayings = Vec::new();
        if self.open && !self.of_tasks && same_shape(&self.steps, &steps) {
            let changed = self.steps.iter().zip(&steps).enumerate().filter(|(_, (old, new))| old.status != new.status);
            sayings.extend(changed.map(|(at, _)| Saying::Updated(at)));
            self.steps = steps;
        } else {
            self.create(steps, &mut sayings);
        }
        self.of_tasks = false;
        self.check(&mut sayings);
        sayings
    }

    /// Something about a background task.
    pub(crate) fn task(&mut self, id: &Text, phase: TaskPhase, said: &Text) -> Vec<Saying> {
        let mut sayings = Vec::new();
        if self.open && !self.of_tasks {
            // The agent's own plan is the plan.
            return sayings;
        }
        let status = match phase {
            TaskPhase::Started | TaskPhase::Progress => Status::Running,
            TaskPhase::Finished => Status::Completed,
            TaskPhase::Failed => Status::Failed,
        };
        let result = if phase == TaskPhase::Started { Text::new() } else { said.clone() };
        let known = self.steps.iter_mut().enumerate().find(|(_, step)| self.open && step.id == *id);
        match known {
            Some((at, step)) => {
                let result = if result.is_empty() { step.result.clone() } else { result };
                if step.status != status || step.result != result {
                    (step.status, step.result) = (status, result);
                    sayings.push(Saying::Updated(at));
                }
            }
            None if status == Status::Running => {
                let title = if phase == TaskPhase::Started && !said.is_empty() { said.clone() } else { id.clone() };
                let mut steps = if self.open { self.steps.clone() } else { Vec::new() };
                if steps.len() < MOST_TASKS {
                    steps.push(Step { id: id.clone(), title, status, result });
                    self.of_tasks = true;
                    self.create(steps, &mut sayings);
                }
            }
            None => {}
        }
        self.check(&mut sayings);
        sayings
    }

    /// The run ends, or the plan is taken back, before all was done.
    pub(crate) fn interrupt(&mut self) -> Vec<Saying> {
        if std::mem::take(&mut self.open) { vec![Saying::Interrupted] } else { Vec::new() }
    }

    /// The run ends well, and with it what the plan was for. How many steps came to something is said (sse.md §3.5 rule 7: an end by `end_turn`
    /// interrupts no plan, and no plan stays without an end).
    pub(crate) fn complete(&mut self) -> Vec<Saying> {
        if std::mem::take(&mut self.open) { vec![Saying::Completed] } else { Vec::new() }
    }

    /// A new plan, which takes the place of one that is open.
    fn create(&mut self, steps: Vec<Step>, sayings: &mut Vec<Saying>) {
        if self.open {
            sayings.push(Saying::Replaced);
        }
        self.made = self.made.saturating_add(1);
        self.open = true;
        self.steps = steps;
        sayings.push(Saying::Created);
    }

    fn check(&mut self, sayings: &mut Vec<Saying>) {
        let over = |step: &Step| matches!(step.status, Status::Completed | Status::Failed);
        if self.open && self.steps.iter().all(over) {
            self.open = false;
            sayings.push(Saying::Completed);
        }
    }

    /// Writes what there is to tell. `room` bounds the text of one event.
    pub(crate) fn tell(&self, ink: &mut Ink, items: &mut Vec<Block>, run: RunId, sayings: &[Saying], reason: &str, room: usize) {
        let stamped = ink.is_stamped();
        for saying in sayings {
            let made = if *saying == Saying::Replaced { self.made.saturating_sub(1) } else { self.made };
            let named = |out: &mut String| {
                if stamped {
                    out.push_str(&format!(",\"plan_id\":\"{run}-plan-{made}\""));
                }
            };
            ink.put(items, Kind::Event, |out| match saying {
                Saying::Created => {
                    out.push_str(&format!("{{\"type\":\"plan_created\",\"plan_id\":\"{run}-plan-{made}\",\"steps\":"));
                    write_steps(out, &self.steps, room);
                }
                Saying::Updated(at) => {
                    let Some(step) = self.steps.get(*at) else { return };
                    out.push_str("{\"type\":\"plan_updated\",\"task_id\":");
                    write_json_string(out, &step.id);
                    out.push_str(",\"status\":\"");
                    out.push_str(step.status.word());
                    out.push_str("\",\"result\":");
                    write_json_string(out, within(&step.result, room / 2));
                    named(out);
                    if stamped {
                        out.push_str(",\"title\":");
                        write_json_string(out, within(&step.title, room / 2));
                    }
                }
                Saying::Completed => {
                    let (total, done) = (self.steps.len(), self.done());
                    out.push_str(&format!("{{\"type\":\"plan_completed\",\"total_steps\":{total},\"done_steps\":{done}"));
                    named(out);
                }
                Saying::Interrupted | Saying::Replaced => {
                    let reason = if *saying == Saying::Replaced { REPLACED } else { reason };
                    out.push_str("{\"type\":\"plan_interrupted\",\"reason\":");
                    write_json_string(out, within(reason, room));
                    named(out);
                }
            });
        }
    }
}

fn same_shape(old: &[Step], new: &[Step]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.id == new.id && old.title == new.title)
}

/// The steps as a list of objects (A6). Texts are cut where all of them together would not fit into `room`.
pub(crate) fn write_steps(out: &mut String, steps: &[Step], room: usize) {
    let texts: usize = steps.iter().map(|step| step.title.len().saturating_mul(2).saturating_add(step.result.len())).sum();
    // Escapes make a byte six at most.
    let each = if texts.saturating_mul(6) <= room { usize::MAX } else { room / 3 / steps.len().max(1) };
    for (n, step) in steps.iter().enumerate() {
        out.push_str(if n == 0 { "[{\"id\":" } else { ",{\"id\":" });
        write_json_string(out, &step.id);
        // Both, since some read the title and some the description (sse.md §4.2).
        let title = within(&step.title, each);
        out.push_str(",\"title\":");
        write_json_string(out, title);
        out.push_str(",\"description\":");
        write_json_string(out, title);
        out.push_str(",\"status\":\"");
        out.push_str(step.status.word());
        out.push_str("\",\"result\":");
        write_json_string(out, within(&step.result, each));
        out.push('}');
    }
    out.push_str(if steps.is_empty() { "[]" } else { "]" });
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StepStatus::{Completed, Pending, Running};

    fn step(id: &str, status: StepStatus) -> PlanStep {
        PlanStep { id: id.to_owned().into(), title: format!("do {id}").into(), status }
    }

    /// The JSON lines of what a plan does, and then is cut short.
    fn lines(does: impl FnOnce(&mut dyn FnMut(&dyn Fn(&mut Plan) -> Vec<Saying>))) -> Vec<String> {
        let (mut ink, mut plan, mut items) = (Ink::default(), Plan::default(), Vec::new());
        let mut tell = |what: &dyn Fn(&mut Plan) -> Vec<Saying>, reason: &str| {
            let sayings = what(&mut plan);
            plan.tell(&mut ink, &mut items, RunId::from_u128(1), &sayings, reason, 4096);
        };
        does(&mut |what| tell(what, "cleared"));
        tell(&Plan::interrupt, "user_interrupt");
        items.iter().map(|block| String::from_utf8(block.json().to_vec()).unwrap()).collect()
    }

    /// The JSON lines that a row of snapshots becomes.
    fn told(snapshots: &[&[PlanStep]]) -> Vec<String> {
        lines(|tell| snapshots.iter().for_each(|steps| tell(&|plan| plan.change(steps))))
    }

    /// What tasks become: id, phase, what is said of it.
    fn tasks(told: &[(&'static str, TaskPhase, &'static str)]) -> Vec<String> {
        lines(|tell| {
            told.iter().for_each(|(id, phase, said)| tell(&|plan| plan.task(&Text::from_static(id), *phase, &Text::from_static(said))))
        })
    }

    const CREATED: &str = r#"{"type":"plan_created","plan_id":"run-00000000000000000000000000000001-plan-"#;

    #[test]
    fn created_updated_per_changed_step_completed() {
        let out = told(&[
            &[step("1", Pending), step("2", Pending)],
            &[step("1", Running), step("2", Pending)],
            &[step("1", Running), step("2", Pending)],
            &[step("1", Completed), step("2", Running)],
            &[step("1", Completed), step("2", Completed)],
        ]);
        assert_eq!(
            out,
            [
                &format!(
                    r#"{CREATED}1","steps":[{{"id":"1","title":"do 1","description":"do 1","status":"pending","result":""}},{{"id":"2","title":"do 2","description":"do 2","status":"pending","result":""}}]}}"#
                ),
                r#"{"type":"plan_updated","task_id":"1","status":"running","result":""}"#,
                r#"{"type":"plan_updated","task_id":"1","status":"completed","result":""}"#,
                r#"{"type":"plan_updated","task_id":"2","status":"running","result":""}"#,
                r#"{"type":"plan_updated","task_id":"2","status":"completed","result":""}"#,
                r#"{"type":"plan_completed","total_steps":2,"done_steps":2}"#,
            ]
        );
    }

    #[test]
    fn an_open_plan_with_other_steps_makes_room_for_the_next() {
        let out = told(&[
            &[step("1", Completed)],
            &[step("1", Completed)],
            &[step("1", Completed), step("2", Running)],
            &[step("1", Completed), step("2", Running), step("3", Pending)],
        ]);
        let heads: Vec<&str> = out.iter().map(|json| json.split(",\"steps\"").next().unwrap()).collect();
        assert_eq!(
            heads,
            [
                &format!("{CREATED}1\""),
                r#"{"type":"plan_completed","total_steps":1,"done_steps":1}"#,
                &format!("{CREATED}2\""),
                r#"{"type":"plan_interrupted","reason":"replaced"}"#,
                &format!("{CREATED}3\""),
                r#"{"type":"plan_interrupted","reason":"user_interrupt"}"#,
            ]
        );
    }

    #[test]
    fn an_emptied_plan_is_interrupted_and_no_plan_is_nothing() {
        assert_eq!(told(&[&[]]), [""; 0]);
        let out = told(&[&[step("1", Pending)], &[], &[]]);
        assert_eq!(out.last().unwrap(), r#"{"type":"plan_interrupted","reason":"cleared"}"#);
        assert_eq!(out.len(), 2);
    }

    #[test]
    fn background_tasks_are_a_plan_where_there_is_no_other() {
        use TaskPhase::{Failed, Finished, Progress, Started};
        let step = |id: &str, title: &str, status: &str, result: &str| {
            format!(r#"{{"id":"{id}","title":"{title}","description":"{title}","status":"{status}","result":"{result}"}}"#)
        };
        assert_eq!(
            tasks(&[
                ("a", Started, "find callers"),
                ("a", Started, "find callers"),
                ("a", Progress, "Grep"),
                ("a", Progress, "Grep"),
                ("b", Progress, "half"),
                ("a", Finished, "three of them"),
                ("nobody", Finished, "x"),
                ("b", Failed, ""),
                ("a", Finished, "late"),
                ("c", Started, ""),
            ]),
            [
                format!(r#"{CREATED}1","steps":[{}]}}"#, step("a", "find callers", "running", "")),
                r#"{"type":"plan_updated","task_id":"a","status":"running","result":"Grep"}"#.to_owned(),
                r#"{"type":"plan_interrupted","reason":"replaced"}"#.to_owned(),
                format!(
                    r#"{CREATED}2","steps":[{},{}]}}"#,
                    step("a", "find callers", "running", "Grep"),
                    step("b", "b", "running", "half")
                ),
                r#"{"type":"plan_updated","task_id":"a","status":"completed","result":"three of them"}"#.to_owned(),
                r#"{"type":"plan_updated","task_id":"b","status":"failed","result":"half"}"#.to_owned(),
                r#"{"type":"plan_completed","total_steps":2,"done_steps":1}"#.to_owned(),
                format!(r#"{CREATED}3","steps":[{}]}}"#, step("c", "c", "running", "")),
                r#"{"type":"plan_interrupted","reason":"user_interrupt"}"#.to_owned(),
            ]
        );
    }

    #[test]
    fn the_agents_own_plan_goes_before_its_tasks() {
        let todo = [step("1", Running)];
        let task = |phase| move |plan: &mut Plan| plan.task(&Text::from_static("t"), phase, &Text::from_static("x"));
        let out = lines(|tell| {
            tell(&task(TaskPhase::Started));
            tell(&|plan| plan.change(&todo));
            tell(&task(TaskPhase::Progress));
            tell(&|plan| plan.change(&[step("1", Completed)]));
            tell(&task(TaskPhase::Finished));
        });
        let heads: Vec<&str> = out.iter().map(|json| json.split(",\"steps\"").next().unwrap()).collect();
        assert_eq!(
            heads,
            [
                &format!("{CREATED}1\""),
                r#"{"type":"plan_interrupted","reason":"replaced"}"#,
                &format!("{CREATED}2\""),
                r#"{"type":"plan_updated","task_id":"1","status":"completed","result":""}"#,
                r#"{"type":"plan_completed","total_steps":1,"done_steps":1}"#,
            ]
        );
    }

    #[test]
    fn many_tasks_cost_no_more_than_a_bound() {
        let mut plan = Plan::default();
        for n in 0..10_000 {
            plan.task(&Text::from(format!("t{n}")), TaskPhase::Started, &Text::new());
        }
        assert_eq!(plan.steps.len(), MOST_TASKS);
    }

    #[test]
    fn a_plan_too_large_for_an_event_is_told_in_short() {
        let long = |n: u8| PlanStep { id: n.to_string().into(), title: "\u{1}".repeat(5000).into(), status: Pending };
        let out = told(&[&[long(1), long(2), long(3)]]);
        assert!(out[0].len() < 5000, "{}", out[0].len());
        assert!(out[0].contains(r#"{"id":"3","title":"\u0001"#));
    }
}
