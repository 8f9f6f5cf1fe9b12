//! Asides: what the documented vocabulary has no event for, told to clients that ask for `extras=events` (sse.md §3.1, decision 26).
//!
//! They have no number, so that `from_seq` and ids mean the same events with and without them, and come only between a run's first event and its last.

use interline_model::{AskOutcome, CallId, CompactionPhase, Lane, NoticeLevel, TaskPhase, Text, What, write_json_string};

use crate::block::{Block, Ink, Kind};
use crate::escape::within;
use crate::extras;
use crate::mapping::{InputForm, write_arguments};

/// Tells `what` of `lane`, if it is something that only an aside can say. `turn` is the root agent's open turn.
pub(crate) fn tell(ink: &mut Ink, items: &mut Vec<Block>, lane: &Lane, turn: Option<u64>, what: &What, input_form: &InputForm<'_>) {
    let room = input_form.room;
    let mut aside = |kind: &str, write: &dyn Fn(&mut String)| {
        ink.put(items, Kind::Aside, |out| {
            out.push_str("{\"type\":\"");
            out.push_str(kind);
            out.push('"');
            write(out);
            if let Lane::Agent(parent) = lane {
                member(out, "parent_call_id", parent.as_str());
            }
        });
    };
    match what {
        What::TurnEnded { usage: Some(usage) } => aside("token_usage", &|out| {
            if let (Lane::Root, Some(turn)) = (lane, turn) {
                out.push_str(&format!(",\"turn_num\":{turn}"));
            }
            out.push(',');
            extras::usage(out, usage);
        }),
        What::AskSettled { ask, outcome } => aside("hitl_resolved", &|out| {
            member(out, "request_id", ask.as_str());
            member(out, "outcome", outcome_word(*outcome));
        }),
        What::ToolInput { call, input } if lane.is_root() => aside("tool_input", &|out| {
            member(out, "call_id", call.as_str());
            out.push_str(",\"arguments\":");
            write_arguments(out, Some(input), input_form);
        }),
        What::Notice { level, code, text } => aside("notice", &|out| {
            member(out, "level", level_word(*level));
            member(out, "code", code);
            member(out, "message", within(text, room));
        }),
        What::Task { task, call, phase, summary } => aside("task", &|out| {
            member(out, "task_id", task);
            if let Some(call) = call {
                member(out, "call_id", CallId::as_str(call));
            }
            member(out, "phase", phase_word(*phase));
            member(out, "summary", within(summary, room));
        }),
        What::Suggestion { text } => aside("suggestion", &|out| member(out, "text", within(text, room))),
        What::SessionChanged { model, title, mode, state } => aside("session_changed", &|out| {
            for (name, value) in [("model", model), ("title", title), ("mode", mode), ("state", state)] {
                if let Some(value) = value {
                    member(out, name, within(value, room / 4));
                }
            }
        }),
        What::FilesChanged { paths } => aside("files_changed", &|out| list(out, "paths", paths, room)),
        What::Compaction(CompactionPhase::Started { reason, tokens_before }) => aside("compaction", &|out| {
            member(out, "phase", "started");
            member(out, "reason", within(reason, room));
            count(out, "tokens_before", *tokens_before);
        }),
        What::Compaction(CompactionPhase::Finished { tokens_before, tokens_after }) => aside("compaction", &|out| {
            member(out, "phase", "finished");
            count(out, "tokens_before", *tokens_before);
            count(out, "tokens_after", *tokens_after);
        }),
        _ => {}
    }
}

fn member(out: &mut String, name: &str, text: &str) {
    out.push_str(",\"");
    out.push_str(name);
    out.push_str("\":");
    write_json_string(out, text);
}

fn count(out: &mut String, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        out.push_str(&format!(",\"{name}\":{number}"));
    }
}

/// As many as fit.
fn list(out: &mut String, name: &str, texts: &[Text], room: usize) {
    let most = out.len().saturating_add(room);
    out.push_str(&format!(",\"{name}\":["));
    for (n, text) in texts.iter().enumerate() {
        let before = out.len();
        if n > 0 {
            out.push(',');
        }
        write_json_string(out, text);
        if out.len() > most {
            out.truncate(before);
            break;
        }
    }
    out.push(']');
}

fn outcome_word(outcome: AskOutcome) -> &'static str {
    match outcome {
        AskOutcome::Allowed => "allowed",
        AskOutcome::Denied => "denied",
        AskOutcome::Answered => "answered",
        AskOutcome::Expired => "expired",
        AskOutcome::Void => "void",
    }
}

fn level_word(level: NoticeLevel) -> &'static str {
    match level {
        NoticeLevel::Info => "info",
        NoticeLevel::Warning => "warning",
        NoticeLevel::Error => "error",
    }
}

fn phase_word(phase: TaskPhase) -> &'static str {
    match phase {
        TaskPhase::Started => "started",
        TaskPhase::Progress => "progress",
        TaskPhase::Finished => "finished",
        TaskPhase::Failed => "failed",
    }
}
