//! Changes to scripts that bytes flipped by chance would hardly hit upon: frames that refer to each other, lines moved about, values of one
//! type put where another is expected.

use arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzzer_mutate;
use serde_json::{Value, json};

use crate::words::{BODY, FRAME, Vocabulary};

/// Every kind of frame, one each: what the catalogue of the protocol shows.
const CATALOGUE: &str = include_str!("../../crates/native/tests/data/frames.jsonl");

const CALLS: [&str; 4] = ["t1", "t2", "t3", "t4"];
const MESSAGES: [&str; 3] = ["m1", "m2", ""];
const REQUESTS: [&str; 4] = ["r1", "r2", "r3", "r4"];
const FORMS: [&str; 2] = ["e1", "e2"];
const TASKS: [&str; 3] = ["a1", "a2", "t1"];
const TOOLS: [&str; 7] = ["Tool", "Agent", "Task", "TodoWrite", "TaskCreate", "AskUserQuestion", ""];
const SCRAPS: [&str; 20] = [
    "a",
    "é😀",
    "\n",
    "\n\n",
    "\r",
    "\"",
    "\\",
    "\u{85}",
    "\u{2028}",
    "\u{0}",
    "<think>",
    "</think>",
    "<th",
    "ink>",
    "</thi",
    "nk>",
    "",
    " ",
    "Error: x",
    "tool_use_error",
];

/// The mutator of request bodies: a byte that says where it goes, and JSON.
///
/// # Panics
/// Never: a change that does not work out is left to chance.
pub fn body(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let chance = chance(seed);
    let mut chance = Unstructured::new(&chance);
    let grafted = grafted(&data[..size], &mut chance).filter(|body| body.len() < max_size);
    let Some(body) = grafted else { return fuzzer_mutate(data, size, max_size) };
    data[1..=body.len()].copy_from_slice(body.as_bytes());
    body.len() + 1
}

fn grafted(data: &[u8], u: &mut Unstructured<'_>) -> Option<String> {
    let mut value = serde_json::from_slice::<Value>(data.get(1..)?).ok()?;
    if u.ratio(1_u8, 3_u8).ok()? {
        return None;
    }
    let vocabulary = if u.ratio(1_u8, 4_u8).ok()? { Vocabulary { values: FRAME.values, ..BODY } } else { BODY };
    let raw = graft(&mut value, &vocabulary, u).ok()?;
    Some(value.to_string().replacen(MARK, raw, 1))
}

/// The mutator of the targets whose input is lines.
///
/// # Panics
/// Never: a change that does not work out is left undone.
pub fn lines(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let chance = chance(seed);
    let mut chance = Unstructured::new(&chance);
    if chance.ratio(1_u8, 4_u8).unwrap_or(true) {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut lines: Vec<Vec<u8>> = data[..size].split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..chance.int_in_range(1..=3).unwrap_or(1) {
        if change(&mut lines, &mut chance).is_err() {
            break;
        }
    }
    let mut out = Vec::with_capacity(size);
    for line in &lines {
        if out.len() + line.len() + 1 > max_size {
            break;
        }
        if !out.is_empty() {
            out.push(b'\n');
        }
        out.extend_from_slice(line);
    }
    data[..out.len()].copy_from_slice(&out);
    out.len()
}

/// Bytes to choose by: the same for the same seed (SplitMix64).
fn chance(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed);
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    });
    words.take(64).flat_map(u64::to_le_bytes).collect()
}

fn change(lines: &mut Vec<Vec<u8>>, u: &mut Unstructured<'_>) -> Result<()> {
    let at = u.choose_index(lines.len().max(1))?;
    match u.int_in_range(0..=9)? {
        0..=3 => lines.insert(at, line(u)?.into_bytes()),
        4 if lines.len() > 1 => {
            let further = u.int_in_range(1..=4)?;
            lines.drain(at..lines.len().min(at + further));
        }
        5 if !lines.is_empty() => {
            let copy = lines[at].clone();
            lines.insert(u.choose_index(lines.len())?, copy);
        }
        6 if !lines.is_empty() => {
            let other = u.choose_index(lines.len())?;
            lines.swap(at, other);
        }
        7 => lines.insert(0, format!("#options {}", u.arbitrary::<u32>()?).into_bytes()),
        _ if !lines.is_empty() => {
            if let Ok(mut value) = serde_json::from_slice::<Value>(&lines[at]) {
                let raw = graft(&mut value, &FRAME, u)?;
                lines[at] = value.to_string().replacen(MARK, raw, 1).into_bytes();
            }
        }
        _ => {}
    }
    Ok(())
}

/// Stands for a value that no tree can hold until the line is written.
const MARK: &str = "\"@@\"";

/// Puts a mark at some place of the value, and says what is to be written there.
fn graft(value: &mut Value, vocabulary: &Vocabulary, u: &mut Unstructured<'_>) -> Result<&'static str> {
    let raw = *u.choose(vocabulary.values)?;
    let mut place = value;
    loop {
        let children = match &*place {
            Value::Object(members) => members.len(),
            Value::Array(elements) => elements.len(),
            _ => 0,
        };
        if children == 0 || u.ratio(1_u8, 5_u8)? {
            break;
        }
        let child = u.choose_index(children)?;
        let next = match place {
            Value::Object(members) => members.values_mut().nth(child),
            Value::Array(elements) => elements.get_mut(child),
            _ => None,
        };
        match next {
            Some(next) => place = next,
            None => return Ok(raw),
        }
    }
    match place {
        Value::Object(members) if u.ratio(1_u8, 2_u8)? => {
            members.insert((*u.choose(vocabulary.members)?).to_owned(), Value::from("@@"));
        }
        place => *place = Value::from("@@"),
    }
    Ok(raw)
}

/// A line of a script that means something beside others of its kind.
fn line(u: &mut Unstructured<'_>) -> Result<String> {
    if u.ratio(1_u8, 8_u8)? {
        return fact(u);
    }
    if u.ratio(1_u8, 10_u8)? {
        let frames: Vec<&str> = CATALOGUE.lines().collect();
        return Ok((*u.choose(&frames)?).to_owned());
    }
    let mut frame = frame(u)?;
    if let Some(members) = frame.as_object_mut() {
        if u.ratio(1_u8, 3_u8)? {
            members.insert("parent_tool_use_id".to_owned(), Value::from(*u.choose(&CALLS)?));
        }
        if u.ratio(1_u8, 5_u8)? {
            members.insert("uuid".to_owned(), Value::from(format!("u{}", u.int_in_range(0..=5)?)));
        }
    }
    Ok(frame.to_string())
}

fn fact(u: &mut Unstructured<'_>) -> Result<String> {
    let request = *u.choose(&REQUESTS)?;
    Ok(match u.int_in_range(0..=8)? {
        0 => "#run".to_owned(),
        1 => "#stop".to_owned(),
        2 => "#lost".to_owned(),
        3 => format!("#title {}", u.choose(&SCRAPS)?.replace('\n', " ")),
        4 => format!("#expire {request}"),
        5 => format!("#end {}", u.choose(&["gone", "grace", "idle", "stayed", "shutdown", "refused"])?),
        6 => format!("#wait {}", u.choose(&[1, 99, 100, 5_000, u32::MAX])?),
        _ => format!("#answer {request} {}", u.choose(&["allow", "always", "choose", "accept", "decline", "cancel", "native", "no"])?),
    })
}

fn scrap(u: &mut Unstructured<'_>) -> Result<String> {
    let pieces = u.int_in_range(1..=3)?;
    let mut text = String::new();
    for _ in 0..pieces {
        text.push_str(u.choose(&SCRAPS)?);
    }
    Ok(if u.ratio(1_u8, 40_u8)? { text.repeat(300) } else { text })
}

fn frame(u: &mut Unstructured<'_>) -> Result<Value> {
    let (call, message, text, tool) = (*u.choose(&CALLS)?, *u.choose(&MESSAGES)?, scrap(u)?, *u.choose(&TOOLS)?);
    let (request, form, task, index) = (*u.choose(&REQUESTS)?, *u.choose(&FORMS)?, *u.choose(&TASKS)?, u.int_in_range(0..=2)?);
    let event = |event: Value| json!({"type": "stream_event", "event": event});
    let usage = json!({"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 1});
    Ok(match u.int_in_range(0..=29)? {
        0..=2 => json!({"type": "streamlined_text", "text": text}),
        3 | 4 => event(json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}})),
        5 => event(json!({"type": "content_block_delta", "index": index, "delta": {"type": "thinking_delta", "thinking": text}})),
        6 => event(json!({"type": "message_start", "message": {"id": message, "usage": usage}})),
        7 => event(json!({"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": call, "name": tool}})),
        8 => {
            let part = *u.choose(&["{", "}", "\"a\":1", "\"todos\":[]", "[2]", "{\"description\":\"d\"}"])?;
            event(json!({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": part}}))
        }
        9 => event(json!({"type": "content_block_stop", "index": index})),
        10 => event(json!({"type": "message_delta", "usage": usage})),
        11 => event(json!({"type": "message_stop"})),
        12 => json!({"type": "assistant", "message": {"id": message, "usage": usage, "content": [
            {"type": "text", "text": text}, {"type": "thinking", "thinking": text}, {"type": "tool_use", "id": call, "name": tool, "input": input(u)?},
        ]}}),
        13 => json!({"type": "assistant", "message": {"id": message, "content": text}}),
        14 => {
            json!({"type": "assistant", "message": {"id": message, "content": [{"type": "tool_use", "id": call, "name": tool, "input": input(u)?}]}})
        }
        15 | 16 => json!({"type": "tool_progress", "tool_use_id": call, "tool_name": tool, "elapsed_time_seconds": 0}),
        17 | 18 => json!({"type": "tool_use_summary", "summary": text, "preceding_tool_use_ids": [call]}),
        19 => {
            json!({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": call, "content": text, "is_error": index == 0}]}})
        }
        20 => json!({"type": "streamlined_tool_use_summary", "tool_summary": text}),
        21 | 22 => json!({"type": "control_request", "request_id": request, "request": {
            "subtype": "can_use_tool", "tool_name": tool, "tool_use_id": call, "agent_id": task, "input": input(u)?, "permission_suggestions": [],
        }}),
        23 => json!({"type": "control_request", "request_id": request, "request": {
            "subtype": "elicitation", "elicitation_id": form, "mode": if index == 0 { "url" } else { "form" }, "message": text, "url": "https://e/",
            "requested_schema": {"type": "object", "properties": {"env": {"type": "string", "enum": ["a", "b"]}}},
        }}),
        24 => json!({"type": "control_cancel_request", "request_id": request}),
        25 => json!({"type": "system", "subtype": "elicitation_complete", "elicitation_id": form}),
        26 => {
            let subtype = *u.choose(&["task_started", "task_progress", "task_notification"])?;
            json!({"type": "system", "subtype": subtype, "task_id": task, "tool_use_id": call, "description": text, "summary": text})
        }
        27 => json!({"type": *u.choose(&["biumind.compact_started", "biumind.compact_finished"])?, "reason": "manual", "tokens_before": 9}),
        28 => json!({"type": "result", "is_error": true, "errors": [{"message": text, "recoverable": true}]}),
        _ => {
            let reason = *u.choose(&["end_turn", "interrupted", "max_tokens"])?;
            json!({"type": "result", "subtype": "success", "is_error": false, "stop_reason": reason, "result": text, "usage": usage,
                "structured_output": input(u)?})
        }
    })
}

fn input(u: &mut Unstructured<'_>) -> Result<Value> {
    let status = *u.choose(&["pending", "in_progress", "completed"])?;
    Ok(match u.int_in_range(0..=6)? {
        0 => json!({}),
        1 => json!({"description": scrap(u)?, "prompt": "p"}),
        2 => json!({"todos": [{"content": scrap(u)?, "status": status}, {"content": "b", "status": "pending"}]}),
        3 => {
            json!({"questions": [{"question": "Which?", "header": "H", "options": [{"label": "this"}, {"label": "that"}], "multiSelect": true}]})
        }
        4 => json!({"subject": scrap(u)?, "taskId": "1", "status": status}),
        5 => Value::Null,
        _ => json!([1]),
    })
}
