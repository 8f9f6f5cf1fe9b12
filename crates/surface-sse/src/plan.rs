//! Plans: whole snapshots of the steps in, the documented plan events out (sse.md §3.2, §3.5 rule 7, §7).

use interline_model::{PlanStep, RunId, StepStatus, write_json_string};

use crate::block::{Block, Ink};

/// What the clients know of the run's plan.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    steps: Vec<PlanStep>,
    made: u32,
    open: bool,
}

impl Plan {
    /// The plan is now `steps`.
    pub(crate) fn change(&mut self, ink: &mut Ink, items: &mut Vec<Block>, run: RunId, steps: &[PlanStep]) {
        if steps.is_empty() {
            self.interrupt(ink, items, "cleared");
            self.steps.clear();
            return;
        }
        if self.steps == steps {
            return;
        }
        if self.open && same_shape(&self.steps, steps) {
            for step in self.steps.iter().zip(steps).filter(|(old, new)| old.status != new.status).map(|(_, new)| new) {
                ink.put(items, false, |out| {
                    out.push_str("{\"type\":\"plan_updated\",\"task_id\":");
                    write_json_string(out, &step.id);
                    out.push_str(",\"status\":\"");
                    out.push_str(word(step.status));
                    out.push_str("\",\"result\":\"\"}");
                });
            }
        } else {
            // No event adds or renames a step. An open plan whose steps are others is told again under its own id; a finished one stays finished.
            if !self.open {
                self.made = self.made.saturating_add(1);
            }
            let made = self.made;
            ink.put(items, false, |out| created(out, run, made, steps));
        }
        self.steps = steps.to_vec();
        self.open = true;
        if steps.iter().all(|step| step.status == StepStatus::Completed) {
            self.open = false;
            let total = steps.len();
            ink.put(items, false, |out| {
                out.push_str(&format!("{{\"type\":\"plan_completed\",\"total_steps\":{total},\"done_steps\":{total}}}"));
            });
        }
    }

    /// The run ends, or the plan is taken back, before all was done.
    pub(crate) fn interrupt(&mut self, ink: &mut Ink, items: &mut Vec<Block>, reason: &str) {
        if std::mem::take(&mut self.open) {
            ink.put(items, false, |out| {
                out.push_str("{\"type\":\"plan_interrupted\",\"reason\":");
                write_json_string(out, reason);
                out.push('}');
            });
        }
    }
}

fn same_shape(old: &[PlanStep], new: &[PlanStep]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.id == new.id && old.title == new.title)
}

fn created(out: &mut String, run: RunId, made: u32, steps: &[PlanStep]) {
    out.push_str(&format!("{{\"type\":\"plan_created\",\"plan_id\":\"{run}-plan-{made}\",\"steps\":"));
    write_steps(out, steps);
    out.push('}');
}

/// The steps as a list of objects (A6).
pub(crate) fn write_steps(out: &mut String, steps: &[PlanStep]) {
    for (n, step) in steps.iter().enumerate() {
        out.push_str(if n == 0 { "[{\"id\":" } else { ",{\"id\":" });
        write_json_string(out, &step.id);
        // Both, since some read the title and some the description (sse.md §4.2).
        out.push_str(",\"title\":");
        write_json_string(out, &step.title);
        out.push_str(",\"description\":");
        write_json_string(out, &step.title);
        out.push_str(",\"status\":\"");
        out.push_str(word(step.status));
        out.push_str("\",\"result\":\"\"}");
    }
    out.push_str(if steps.is_empty() { "[]" } else { "]" });
}

fn word(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Pending => "pending",
        StepStatus::Running => "running",
        StepStatus::Completed => "completed",
    }
}

#[cfg(test)]
mod tests {
    use StepStatus::{Completed, Pending, Running};

    use super::*;

    fn step(id: &str, status: StepStatus) -> PlanStep {
        PlanStep { id: id.to_owned().into(), title: format!("do {id}").into(), status }
    }

    /// The JSON lines that a row of snapshots becomes.
    fn told(snapshots: &[&[PlanStep]]) -> Vec<String> {
        let (mut ink, mut plan, mut items) = (Ink::default(), Plan::default(), Vec::new());
        for steps in snapshots {
            plan.change(&mut ink, &mut items, RunId::from_u128(1), steps);
        }
        plan.interrupt(&mut ink, &mut items, "user_interrupt");
        items.iter().map(|block| String::from_utf8(block.json().to_vec()).unwrap()).collect()
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
    fn an_open_plan_with_other_steps_keeps_its_id_and_a_finished_one_does_not() {
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
                &format!("{CREATED}2\""),
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
}
