//! The plan: what the planning tool is called with. Its calls are shown like any other's (decision 11); the plan comes on top.

use interline_model::{Json, PlanStep, StepStatus, Text};

use crate::object::Object;

/// The planning tool. Each call carries the whole list.
const PLANNING_TOOL: &str = "TodoWrite";

/// The plan that a call with this name and input sets.
pub(super) fn steps(name: &str, input: &Json) -> Option<Vec<PlanStep>> {
    if name != PLANNING_TOOL {
        return None;
    }
    let text = input.text();
    let object = Object::parse(&text).ok()?;
    object.raw("todos").filter(|raw| raw.get().starts_with('['))?;
    let steps = object.objects("todos").enumerate().filter_map(|(at, todo)| {
        Some(PlanStep {
            title: todo.str("content")?,
            id: todo.str("id").filter(|id| !id.is_empty()).unwrap_or_else(|| Text::from((at + 1).to_string())),
            status: match todo.cow("status").as_deref() {
                Some("in_progress") => StepStatus::Running,
                Some("completed") => StepStatus::Completed,
                _ => StepStatus::Pending,
            },
        })
    });
    Some(steps.collect())
}
