//! `tests/oracle.py`: an independent reading of both sides of the translation.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::in_repository;
use crate::program::Temp;
use crate::schema::{validate_socketio, validate_sse};

/// A surface as the oracle calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// SSE run events, as JSON lines or as a raw body.
    Sse,
    /// Socket.IO events, as lines of `{"event","data"}`.
    SocketIo,
}

impl Surface {
    /// The oracle's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sse => "sse",
            Self::SocketIo => "socketio",
        }
    }
}

fn oracle(args: &[&str], events: &str) -> Result<String, String> {
    let file = Temp::file("events.jsonl", events);
    let output = Command::new("python3")
        .arg(in_repository("tests/oracle.py"))
        .args(args)
        .arg(file.path())
        .output()
        .expect("python3 runs the oracle");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Whether each event is what the contracts say.
fn contract(surface: Surface, events: &str) {
    let judged = match surface {
        Surface::Sse => validate_sse(events),
        Surface::SocketIo => validate_socketio(events),
    };
    if let Err(said) = judged {
        panic!("the contract of {surface:?} is broken:\n{said}\nseen:\n{events}");
    }
}

/// Whether a surface's events mean the same as a native transcript, obey the surface's grammar and are what the contracts say.
///
/// # Panics
/// When they do not, with the difference.
pub fn compare(native: &Path, surface: Surface, events: &str) {
    contract(surface, events);
    let native = native.to_str().expect("a UTF-8 path");
    if let Err(said) = oracle(&["compare", native, surface.name()], events) {
        panic!("{native} and what was seen on {surface:?} differ:\n{said}\nseen:\n{events}");
    }
}

/// What a surface's events mean, if they obey its grammar and are what the contracts say.
///
/// # Panics
/// When they do not, with the breach.
#[must_use]
pub fn grammar(surface: Surface, events: &str) -> serde_json::Value {
    contract(surface, events);
    match oracle(&[surface.name()], events) {
        Ok(said) => serde_json::from_str(&said).expect("the oracle prints JSON"),
        Err(said) => panic!("the grammar of {surface:?} is broken:\n{said}\nseen:\n{events}"),
    }
}

/// One stream for the oracle, and what it is called in messages.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is called.
    pub name: String,
    /// Whose events they are.
    pub surface: Surface,
    /// The events.
    pub events: String,
    /// The native transcript to compare them with; without one, only their grammar counts.
    pub native: Option<PathBuf>,
}

/// What the oracle says of many streams, in their order: for those with a native transcript the differences, for the others
/// nothing unless they break the grammar. A process for each processor, not for each stream. The contracts are not asked.
///
/// # Panics
/// When the oracle cannot be run.
#[must_use]
pub fn judge(cases: &[Case]) -> Vec<Vec<String>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let verdicts: Vec<Vec<String>> = std::thread::scope(|scope| {
        let parts = cases.chunks(cases.len().div_ceil(processors).max(1));
        let judges: Vec<_> = parts.map(|part| scope.spawn(move || judge_part(part))).collect();
        judges.into_iter().flat_map(|judge| judge.join().expect("the oracle answers")).collect()
    });
    assert_eq!(verdicts.len(), cases.len(), "a verdict for each");
    verdicts
}

fn judge_part(cases: &[Case]) -> Vec<Vec<String>> {
    let lines: String = cases
        .iter()
        .map(|case| {
            let native = case.native.as_deref().map(|path| path.to_str().expect("a UTF-8 path"));
            format!("{}\n", json!({"surface": case.surface.name(), "events": case.events, "native": native}))
        })
        .collect();
    let mut child = Command::new("python3")
        .arg(in_repository("tests/oracle_batch.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs the oracle");
    // It reads all before it writes anything.
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads its input");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the oracle failed");
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(verdict).collect()
}

fn verdict(line: &str) -> Vec<String> {
    let said: Value = serde_json::from_str(line).expect("the oracle prints JSON");
    match said["breach"].as_str() {
        Some(breach) => vec![format!("breach: {breach}")],
        None => said["diffs"].as_array().into_iter().flatten().filter_map(|diff| diff.as_str().map(str::to_owned)).collect(),
    }
}
