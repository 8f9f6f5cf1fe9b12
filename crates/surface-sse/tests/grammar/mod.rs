//! The grammar of sse.md §3 as an independent reader sees it. It shares nothing with the mapping.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::Value;

/// An event as the writer hands it out.
pub(crate) struct Line {
    pub(crate) seq: u64,
    pub(crate) is_aside: bool,
    pub(crate) is_terminal: bool,
    pub(crate) wire: Bytes,
}

/// `Err` says what breaks the grammar or the contracts.
pub(crate) fn check(lines: impl IntoIterator<Item = Line>) -> Result<(), String> {
    const MEMBERS: &[(&str, &[&str])] = &[
        ("run_start", &["run_id", "session_id", "model"]),
        ("turn_start", &["turn_num"]),
        ("turn_end", &["turn_num"]),
        ("stream_delta", &["content"]),
        ("thinking_delta", &["content"]),
        ("tool_start", &["tool_name", "call_id", "arguments"]),
        ("tool_progress", &["call_id", "output"]),
        ("tool_end", &["call_id", "result", "is_error"]),
        ("plan_created", &["plan_id", "steps"]),
        ("plan_updated", &["task_id", "status", "result"]),
        ("plan_completed", &["total_steps", "done_steps"]),
        ("plan_interrupted", &["reason"]),
        ("approval_request", &["request_id", "tool_name", "arguments"]),
        ("done", &["reason", "run_id"]),
        ("error", &["error", "kind", "severity"]),
        ("interrupted", &["reason"]),
    ];
    let (mut running, mut turn, mut turns, mut plan) = (false, None, 0, false);
    let (mut open, mut all, mut plans, mut seq) = (HashSet::new(), HashSet::new(), HashSet::new(), 0);
    for line in lines {
        let text = std::str::from_utf8(&line.wire).map_err(|e| e.to_string())?;
        let json = text.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).ok_or("framing")?;
        let need = |ok: bool, what: &str| if ok { Ok(()) } else { Err(format!("{what}: {json}")) };
        need(!json.contains(|c: char| c < ' ' || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}')), "raw line separator")?;
        let event: Value = serde_json::from_str(json).map_err(|e| format!("{e}: {json}"))?;
        let kind = event["type"].as_str().ok_or("no type")?.to_owned();
        if line.is_aside {
            need(running && line.seq == seq && event.get("seq").is_none(), "aside")?;
            interline_testkit::validate_sse(json)?;
            continue;
        }
        let (_, members) = MEMBERS.iter().find(|(name, _)| *name == kind).ok_or(format!("unknown type {kind}"))?;
        let stamped = event["seq"].is_u64();
        need(stamped || event.as_object().is_some_and(|object| object.len() == members.len() + 1), "extra members")?;
        interline_testkit::validate_sse(json)?;
        let mut at = 0;
        need(json.starts_with(&format!("{{\"type\":\"{kind}\"")), "type is not first")?;
        for member in *members {
            let found = json.get(at..).and_then(|rest| rest.find(&format!(",\"{member}\":")));
            at += found.ok_or(format!("{member} is missing or out of order: {json}"))?;
            let value = &event[member];
            need(
                match *member {
                    "turn_num" | "total_steps" | "done_steps" => value.is_u64(),
                    "arguments" => value.is_object(),
                    "steps" => value.is_array(),
                    "is_error" => value.is_boolean(),
                    _ => value.is_string(),
                },
                member,
            )?;
        }
        if kind == "run_start" {
            need(!running, "run_start again")?;
            (running, turn, turns, plan, seq) = (true, None, 0, false, 0);
            open.clear();
            all.clear();
            plans.clear();
        }
        need(running, "outside a run")?;
        seq += 1;
        need(line.seq == seq && (!stamped || event["seq"] == seq), "number")?;
        let call = event["call_id"].as_str().unwrap_or_default().to_owned();
        match &*kind {
            "turn_start" => {
                turns += 1;
                need(turn.is_none() && event["turn_num"] == turns, "turn_start")?;
                turn = Some(turns);
            }
            "turn_end" => need(turn.take().is_some_and(|turn| event["turn_num"] == turn), "turn_end")?,
            "stream_delta" | "thinking_delta" => need(turn.is_some() && event["content"] != "", "delta")?,
            "tool_start" => {
                need(turn.is_some() && all.insert(call.clone()), "tool_start")?;
                open.insert(call);
            }
            "tool_progress" => need(open.contains(&call) && event["output"] != "", "tool_progress")?,
            "tool_end" => need(open.remove(&call), "tool_end")?,
            "plan_created" => need(!std::mem::replace(&mut plan, true) && plans.insert(event["plan_id"].to_string()), "plan_created")?,
            "plan_updated" => need(plan, "plan_updated")?,
            "plan_completed" | "plan_interrupted" => need(std::mem::take(&mut plan), "end of a plan")?,
            "done" | "error" | "interrupted" => {
                need(turn.is_none() && open.is_empty(), "something is open at the end")?;
                need(!plan, "a plan is open at the end")?;
                running = false;
            }
            _ => {}
        }
        need(line.is_terminal != running, "is_terminal")?;
    }
    Ok(())
}
