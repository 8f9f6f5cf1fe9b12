//! The contracts of the folder `contracts`: whether what the program says is what its documents promise.

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::{Draft, Registry, Validator};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::in_repository;

/// References between schemas are relative, so any address will do. Nothing is fetched from it.
const BASE: &str = "https://contracts.invalid/";

/// Breaches shown of one event.
const SHOWN: usize = 5;

/// The longest that one breach is told: values may be whole turns.
const LONGEST: usize = 400;

static REGISTRY: LazyLock<Registry<'static>> = LazyLock::new(|| {
    let folder = in_repository("contracts");
    let mut found = vec!["openapi.json".to_owned()];
    find(&folder, "schemas", &mut found);
    let mut registry = Registry::new();
    for path in found {
        let text = std::fs::read_to_string(folder.join(&path)).expect("a contract");
        let contents: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("contracts/{path}: {error}"));
        let resource = Draft::Draft202012.create_resource(contents);
        registry = registry.add(format!("{BASE}{path}"), resource).unwrap_or_else(|error| panic!("contracts/{path}: {error}"));
    }
    registry.prepare().expect("contracts refer to each other only")
});

static SSE: LazyLock<HashMap<String, Validator>> = LazyLock::new(|| events_of("sse"));
/// With `extras`: the documented ones with more members, and the others.
static SSE_EXTRAS: LazyLock<HashMap<String, Validator>> = LazyLock::new(|| events_of("sse-extras"));
static SOCKETIO: LazyLock<HashMap<String, Validator>> = LazyLock::new(|| events_of("socketio"));

/// The paths of all schemas in a folder and below it.
fn find(root: &Path, folder: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(folder)).expect("the contracts").map(|entry| entry.expect("an entry")) {
        let path = format!("{folder}/{}", entry.file_name().to_str().expect("a UTF-8 name"));
        if entry.path().is_dir() {
            find(root, &path, found);
        } else {
            found.push(path);
        }
    }
}

/// The schemas of a surface's events by file name.
fn events_of(surface: &str) -> HashMap<String, Validator> {
    let folder = in_repository("contracts/schemas").join(surface);
    let files = std::fs::read_dir(folder).expect("the schemas").map(|entry| entry.expect("an entry").file_name());
    files
        .filter_map(|file| {
            let name = file.to_str()?.strip_suffix(".json")?.to_owned();
            let validator = validator(&format!("schemas/{surface}/{name}.json"));
            Some((name, validator))
        })
        .collect()
}

fn validator(target: &str) -> Validator {
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_registry(&REGISTRY).offline();
    options.build(&json!({"$ref": format!("{BASE}{target}")})).unwrap_or_else(|error| panic!("contracts/{target}: {error}"))
}

/// Whether each SSE run event is what its schema says, with extras if it has a `seq` or is of an undocumented type. Takes JSON lines, or a raw body.
///
/// # Errors
/// The first event that is not, and why.
pub fn validate_sse(events: &str) -> Result<(), String> {
    let is_raw = events.lines().any(|line| line.starts_with("data: "));
    let json = events.lines().filter_map(|line| if is_raw { line.strip_prefix("data: ") } else { Some(line) });
    for (number, line) in json.filter(|line| !line.trim().is_empty()).enumerate() {
        let event = tree(line)?;
        let kind = event["type"].as_str().unwrap_or_default();
        let strict = SSE.get(kind).filter(|_| event.get("seq").is_none());
        judge(strict.or_else(|| SSE_EXTRAS.get(kind)), &event).map_err(|why| format!("SSE event {} `{kind}`: {why}", number + 1))?;
    }
    Ok(())
}

/// Whether each Socket.IO event is what its schema says. Takes lines of `{"event","data"}`.
///
/// # Errors
/// The first event that is not, and why.
pub fn validate_socketio(events: &str) -> Result<(), String> {
    for (number, line) in events.lines().filter(|line| !line.trim().is_empty()).enumerate() {
        let event = tree(line)?;
        let name = event["event"].as_str().unwrap_or_default();
        // A colon cannot stand in a file's name everywhere.
        let validator = SOCKETIO.get(&name.replacen(':', "-", 1));
        judge(validator, &event["data"]).map_err(|why| format!("Socket.IO event {} `{name}`: {why}", number + 1))?;
    }
    Ok(())
}

/// Whether a value is what a schema in the OpenAPI document says. `pointer` names the schema, as a JSON pointer.
///
/// # Errors
/// Why it is not.
pub fn validate_http(pointer: &str, value: &Value) -> Result<(), String> {
    judge(Some(&validator(&format!("openapi.json#{}", fragment(pointer)))), value)
}

/// Whether a value is what a schema of the folder says: `socketio/ack/sent`.
///
/// # Errors
/// Why it is not.
pub fn validate(schema: &str, value: &Value) -> Result<(), String> {
    judge(Some(&validator(&format!("schemas/{schema}.json"))), value)
}

/// A pointer as it may stand in an address: paths with parameters have braces.
fn fragment(pointer: &str) -> String {
    pointer.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}

fn judge(validator: Option<&Validator>, value: &Value) -> Result<(), String> {
    let validator = validator.ok_or("contracts/schemas has no schema for it")?;
    let breaches: Vec<String> = validator.iter_errors(value).take(SHOWN).map(|error| told(&error)).collect();
    if breaches.is_empty() { Ok(()) } else { Err(breaches.join("\n  ")) }
}

fn told(error: &jsonschema::ValidationError<'_>) -> String {
    format!("at `{}`: {error}", error.instance_path()).chars().take(LONGEST).collect()
}

/// JSON as a tree. What no tree of serde_json can hold (`1e400`, half a surrogate pair, great depth) is legal in a tool's
/// input and no business of a schema: it becomes something of its kind.
fn tree(text: &str) -> Result<Value, String> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| format!("no JSON ({error}): {text}"))?;
    Ok(branch(raw))
}

fn branch(raw: &RawValue) -> Value {
    let text = raw.get();
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    match text.as_bytes().first() {
        Some(b'{') => {
            let members: HashMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
            Value::Object(members.into_iter().map(|(name, raw)| (name, branch(raw))).collect::<Map<_, _>>())
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            Value::Array(items.into_iter().map(branch).collect())
        }
        Some(b'"') => Value::from(text),
        _ => Value::from(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_held_to_their_schemas() {
        let good = "{\"type\":\"turn_start\",\"turn_num\":1}\n{\"type\":\"stream_delta\",\"content\":\"x\"}\n";
        assert_eq!(validate_sse(good), Ok(()));
        assert_eq!(validate_sse("id: run-1:1\ndata:   {\"type\":\"turn_end\",\"turn_num\":1}\n\n:hb\n"), Ok(()));
        for bad in [
            r#"{"type":"stream_delta","content":""}"#,
            r#"{"type":"stream_delta","content":"x","seq":1}"#,
            r#"{"type":"stream_delta","content":"x","ts":1}"#,
            r#"{"type":"notice","level":"info","code":"x","message":"y"}"#,
            r#"{"type":"turn_start","turn_num":"1"}"#,
            r#"{"type":"done","reason":"end_turn","run_id":"run-1"}"#,
            r#"{"type":"done","reason":"tired","run_id":"run-00000000000000000000000000000001"}"#,
            r#"{"type":"from_the_future"}"#,
            "data: [DONE]",
        ] {
            assert!(validate_sse(bad).is_err(), "{bad}");
        }
        let stamp = r#""run_id":"run-00000000000000000000000000000001","session_id":"s","ts":1"#;
        assert_eq!(validate_sse(&format!(r#"{{"type":"stream_delta","content":"x","seq":1,{stamp}}}"#)), Ok(()));
        assert_eq!(
            validate_sse(&format!("data: {{\"type\":\"ping\"}}\n\ndata: {{\"type\":\"suggestion\",\"text\":\"y\",{stamp}}}\n\n")),
            Ok(())
        );
        assert!(validate_sse(&format!(r#"{{"type":"suggestion","text":"y","seq":1,{stamp}}}"#)).is_err(), "numbered");
        let number = validate_sse(&format!("{good}{{\"type\":\"turn_end\"}}")).unwrap_err();
        assert!(number.contains("event 3 `turn_end`") && number.contains("turn_num"), "{number}");
    }

    #[test]
    fn patches_are_held_to_their_type() {
        let patch = |kind: &str, data: &str| {
            validate_socketio(&format!(
                r#"{{"event":"turn:patch","data":{{"session_id":"s","sequence":1,"turn_id":"t","loop_id":"root","patch_type":"{kind}","data":{data}}}}}"#
            ))
        };
        assert_eq!(patch("set_status", r#"{"status":"paused"}"#), Ok(()));
        assert_eq!(patch("add_content", r#"{"type":"thinking","content":"hm","text_delta":""}"#), Ok(()));
        for (kind, data) in [
            ("set_status", r#"{"status":"tired"}"#),
            ("set_status", r#"{"status":"paused","turn":{}}"#),
            ("add_content", r#"{"type":"thinking","content":"hm","text_delta":null}"#),
            ("add_content", r#"{"type":"text","text_delta":"x","seq":1}"#),
            ("add_tool_call", r#"{"id":"c","tool_name":"t","display_name":"t","arguments":{},"status":"pending"}"#),
            ("replace", "{}"),
        ] {
            assert!(patch(kind, data).is_err(), "{kind} {data}");
        }
        assert!(validate_socketio(r#"{"event":"chat:begin","data":{}}"#).is_err());
    }

    #[test]
    fn what_no_tree_can_hold_is_no_breach() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let arguments = format!(r#"{{"n":1e400,"half":"\ud800","deep":{deep},"big":1234567890123456789012}}"#);
        let event = format!(r#"{{"type":"tool_start","tool_name":"t","call_id":"c","arguments":{arguments}}}"#);
        assert_eq!(validate_sse(&event), Ok(()));
        assert!(validate_sse(&event.replace("\"t\"", "1e400")).is_err());
    }

    #[test]
    fn parts_of_the_openapi_document_can_be_asked_for() {
        assert_eq!(validate_http("/components/schemas/Healthy", &json!({"status": "ok"})), Ok(()));
        assert!(validate_http("/components/schemas/Healthy", &json!({"status": "ill"})).is_err());
        let plan = json!({"steps": [], "total_steps": 1, "done_steps": 0});
        assert!(validate_http("/components/schemas/PlanAnswer", &json!({"plan": plan})).is_err());
    }
}
