//! `tests/oracle.py`: an independent reading of both sides of the translation.

use std::path::Path;
use std::process::Command;

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
