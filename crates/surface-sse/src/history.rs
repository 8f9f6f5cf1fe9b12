//! What a page shows after a reload: the conversation as messages, and the plan as it stands (sse.md §1, E10 and E11).

use interline_model::{Body, CallId, Event, Fact, Json, Millis, Part, Record, RunAccepted, RunId, Text, What, Writer, write_json_string};

use crate::moment::rfc3339;
use crate::plan::{Plan, write_steps};

/// Writes a session's messages: what the user said, then one of the assistant's for each model call. The root agent's only.
#[derive(Debug, Default)]
pub(crate) struct HistoryWriter {
    run: Option<RunId>,
    written: u32,
    since: Millis,
    parts: Vec<Piece>,
    plan: Plan,
}

/// A part of the message being gathered.
#[derive(Debug)]
enum Piece {
    Text(String),
    Thinking(String),
    Tool { call: CallId, name: Text, input: Json, result: Option<(Text, bool)> },
}

impl HistoryWriter {
    /// The plan, as the session's events have told it.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    fn event(&mut self, at: Millis, what: &What, items: &mut Vec<Text>) {
        match what {
            What::Text { delta } => match self.parts.last_mut() {
                Some(Piece::Text(text)) => text.push_str(delta),
                _ => self.add(at, Piece::Text(delta.to_string())),
            },
            What::Thinking { delta } => match self.parts.last_mut() {
                Some(Piece::Thinking(text)) => text.push_str(delta),
                _ => self.add(at, Piece::Thinking(delta.to_string())),
            },
            What::ToolStarted { call, name, input } => {
                let input = input.clone().unwrap_or_else(Json::empty_object);
                self.add(at, Piece::Tool { call: call.clone(), name: name.clone(), input, result: None });
            }
            What::ToolInput { call: of, input: new } => {
                for piece in &mut self.parts {
                    if let Piece::Tool { call, input, .. } = piece
                        && call == of
                    {
                        input.clone_from(new);
                    }
                }
            }
            What::ToolEnded { call: of, result: new, is_error, .. } => {
                for piece in &mut self.parts {
                    if let Piece::Tool { call, result, .. } = piece
                        && call == of
                    {
                        *result = Some((new.clone(), *is_error));
                    }
                }
            }
            What::PlanChanged { steps } => {
                self.plan.change(steps);
            }
            What::Task { task, phase, summary, .. } => {
                self.plan.task(task, *phase, summary);
            }
            What::TurnEnded { .. } => self.finish(items),
            What::RunEnded(_) => {
                self.finish(items);
                // The next run's plan is another one.
                self.plan.interrupt();
            }
            _ => {}
        }
    }

    fn add(&mut self, at: Millis, piece: Piece) {
        if self.parts.is_empty() {
            self.since = at;
        }
        self.parts.push(piece);
    }

    fn finish(&mut self, items: &mut Vec<Text>) {
        let parts = std::mem::take(&mut self.parts);
        if let Some(run) = self.run
            && !parts.is_empty()
        {
            items.push(self.message(run, "assistant", self.since, parts.iter().map(piece_json).collect()));
        }
    }

    fn user(&mut self, at: Millis, accepted: &RunAccepted, items: &mut Vec<Text>) {
        self.run = Some(accepted.run);
        self.written = 0;
        if !accepted.input.is_empty() {
            items.push(self.message(accepted.run, "user", at, accepted.input.iter().map(part_json).collect()));
        }
    }

    fn message(&mut self, run: RunId, role: &str, at: Millis, parts: Vec<String>) -> Text {
        let (number, created_at, content) = (self.written, rfc3339(at), parts.join(","));
        self.written = number.saturating_add(1);
        format!(r#"{{"id":"{run}-{number}","role":"{role}","content":[{content}],"created_at":"{created_at}","run_id":"{run}"}}"#).into()
    }
}

impl Writer for HistoryWriter {
    type Item = Text;

    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<Text>) {
        if let Body::Fact(Fact::RunAccepted(accepted)) = &record.body {
            self.user(record.at, accepted, items);
        }
        for event in events.iter().filter(|event| event.lane.is_root()) {
            self.event(record.at, &event.what, items);
        }
    }
}

/// `{"type":kind,name:text,…}`.
fn object(kind: &str, members: &[(&str, &str)]) -> String {
    let mut out = format!("{{\"type\":\"{kind}\"");
    for (name, text) in members {
        out.push_str(&format!(",\"{name}\":"));
        write_json_string(&mut out, text);
    }
    out.push('}');
    out
}

fn part_json(part: &Part) -> String {
    match part {
        Part::Text(text) => object("text", &[("text", text)]),
        Part::Image { url } => object("image", &[("url", url)]),
        // The bytes of a file are not repeated.
        Part::File { name, .. } => object("file_ref", &[("name", name)]),
    }
}

fn piece_json(piece: &Piece) -> String {
    match piece {
        Piece::Text(text) => object("text", &[("text", text)]),
        Piece::Thinking(text) => object("thinking", &[("text", text)]),
        Piece::Tool { call, name, input, result } => {
            let mut out = object("tool", &[("tool_name", name), ("call_id", call.as_str())]);
            out.pop();
            out.push_str(&format!(",\"arguments\":{}", input.as_str()));
            if let Some((result, is_error)) = result {
                out.push_str(",\"result\":");
                write_json_string(&mut out, result);
                out.push_str(&format!(",\"is_error\":{is_error}"));
            }
            out.push('}');
            out
        }
    }
}

/// A plan as `GET …/plan` shows it; `null` if there is none.
pub(crate) fn plan_json(plan: &Plan) -> String {
    let steps = plan.steps();
    if steps.is_empty() {
        return r#"{"plan":null}"#.to_owned();
    }
    let mut shown = String::new();
    write_steps(&mut shown, steps, usize::MAX);
    format!(r#"{{"plan":{{"steps":{shown},"total_steps":{},"done_steps":{}}}}}"#, steps.len(), plan.done())
}

#[cfg(test)]
mod tests {
    use interline_model::{Actor, Completion, Lane, Outcome, PlanStep, Principal, RunEnd, SessionId, StepStatus};

    use super::*;

    #[test]
    fn a_conversation_is_told_message_by_message() {
        let run = RunId::from_u128(1);
        let accepted = RunAccepted {
            run,
            session: SessionId::from("s"),
            model: "m".into(),
            input: vec![Part::Text("hi \"you\"".into()), Part::File { name: "a.txt".into(), data: "QUJD".into() }],
            by: Actor { principal: Principal::from("p"), surface: "sse".into() },
            actor: None,
            headless: false,
            output_schema: None,
        };
        let (mut writer, mut items) = (HistoryWriter::default(), Vec::new());
        writer.write(&Record { at: 0, body: Body::Fact(Fact::RunAccepted(Box::new(accepted))) }, &[], &mut items);
        let text = |delta: &str| Event::root(What::Text { delta: delta.to_owned().into() });
        let frames = [
            vec![Event::root(What::Thinking { delta: "hm".into() }), text("he"), text("llo")],
            vec![
                Event::root(What::ToolStarted { call: "c".into(), name: "t".into(), input: None }),
                Event::root(What::ToolInput { call: "c".into(), input: Json::parse(r#"{"n":1.0}"#).unwrap() }),
                Event { lane: Lane::Agent("c".into()), what: What::Text { delta: "inner".into() } },
                Event::root(What::ToolEnded { call: "c".into(), result: "r".into(), raw: None, is_error: false, aborted: false }),
                Event::root(What::TurnEnded { usage: None }),
            ],
            vec![text("bye"), Event::root(What::RunEnded(Box::new(RunEnd::synthesised(Outcome::Completed(Completion::EndTurn)))))],
        ];
        for events in frames {
            writer.write(&Record { at: 1000, body: Body::Frame(Text::new()) }, &events, &mut items);
        }
        let id = run.to_string();
        let message = |n: u8, role: &str, content: &str, at: &str| {
            format!(r#"{{"id":"{id}-{n}","role":"{role}","content":[{content}],"created_at":"{at}","run_id":"{id}"}}"#)
        };
        assert_eq!(
            items,
            [
                message(0, "user", r#"{"type":"text","text":"hi \"you\""},{"type":"file_ref","name":"a.txt"}"#, "1970-01-01T00:00:00.000Z"),
                message(
                    1,
                    "assistant",
                    r#"{"type":"thinking","text":"hm"},{"type":"text","text":"hello"},{"type":"tool","tool_name":"t","call_id":"c","arguments":{"n":1.0},"result":"r","is_error":false}"#,
                    "1970-01-01T00:00:01.000Z"
                ),
                message(2, "assistant", r#"{"type":"text","text":"bye"}"#, "1970-01-01T00:00:01.000Z"),
            ]
        );
    }

    #[test]
    fn the_plan_is_its_latest_steps() {
        let step = PlanStep { id: "1".into(), title: "do".into(), status: StepStatus::Completed };
        let (mut writer, mut items) = (HistoryWriter::default(), Vec::new());
        assert_eq!(plan_json(writer.plan()), r#"{"plan":null}"#);
        writer.write(
            &Record { at: 0, body: Body::Frame(Text::new()) },
            &[Event::root(What::PlanChanged { steps: vec![step] })],
            &mut items,
        );
        assert_eq!(
            plan_json(writer.plan()),
            r#"{"plan":{"steps":[{"id":"1","title":"do","description":"do","status":"completed","result":""}],"total_steps":1,"done_steps":1}}"#
        );
    }
}
