//! The plan: what the planning tool is called with. Its calls are shown like any other's (decision 11); the plan comes on top.

use interline_model::{Json, PlanStep, StepStatus, Text};

use crate::object::Object;

/// The planning tools: name, the member of the input that is the whole list, the member of each step that says what is to be done. The second is
/// that of the external CLIs (native-ws.md §6.11).
const PLANNING_TOOLS: [(&str, &str, &str); 2] = [("TodoWrite", "todos", "content"), ("update_plan", "plan", "step")];

/// The plan that a call with this name and input sets.
pub(super) fn steps(name: &str, input: &Json) -> Option<Vec<PlanStep>> {
    let (_, list, title) = PLANNING_TOOLS.iter().find(|(tool, ..)| *tool == name)?;
    let text = input.text();
    let object = Object::parse(&text).ok()?;
    object.raw(list).filter(|raw| raw.get().starts_with('['))?;
    let steps = object.objects(list).enumerate().filter_map(|(at, todo)| {
        Some(PlanStep {
            title: todo.str(title)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planning_tool_carries_the_whole_list() {
        let told = |name: &str, input: &str| steps(name, &Json::parse(input.to_owned()).unwrap());
        let expected = |title: &'static str, status| PlanStep { id: "1".into(), title: title.into(), status };
        for (name, input, step) in [
            ("TodoWrite", r#"{"todos":[{"content":"a","status":"completed"}]}"#, expected("a", StepStatus::Completed)),
            ("update_plan", r#"{"explanation":"x","plan":[{"step":"b","status":"in_progress"}]}"#, expected("b", StepStatus::Running)),
        ] {
            assert_eq!(told(name, input), Some(vec![step]), "{name}");
        }
        for (name, input) in [("update_plan", r#"{"todos":[]}"#), ("TodoWrite", r#"{"todos":{}}"#), ("Bash", r#"{"todos":[]}"#)] {
            assert_eq!(told(name, input), None, "{name} {input}");
        }
    }
}
