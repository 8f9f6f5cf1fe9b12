//! The foreign clients of `tests/clients`, run as their users would run them.

use std::process::Stdio;

use tokio::process::Command;

use crate::in_repository;

/// One run of a client program.
pub struct Client {
    command: Command,
    name: String,
}

/// What a client saw.
#[derive(Debug)]
pub struct Seen {
    /// Its name and arguments, for messages.
    pub name: String,
    /// Its standard output: JSON lines, or a raw body.
    pub output: String,
    /// Whether the run ended as the client expects.
    pub success: bool,
    /// Its complaints.
    pub errors: String,
}

impl Client {
    /// A program of `tests/clients`, against a base URL.
    #[must_use]
    pub fn new(program: &str, base: &str) -> Self {
        let folder = in_repository("tests/clients");
        let path = folder.join(program);
        let mut command = match program.rsplit_once('.') {
            Some((_, "mjs")) => Command::new("node"),
            Some((_, "py")) => Command::new(folder.join(".venv/bin/python")),
            _ => Command::new("bash"),
        };
        command.arg(path).arg(base).stdin(Stdio::null()).kill_on_drop(true);
        Self { command, name: program.to_owned() }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<str>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        for arg in args {
            self.name.push(' ');
            self.name.push_str(arg.as_ref());
            self.command.arg(arg.as_ref());
        }
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it cannot be started: `tests/setup` installs what it needs.
    pub async fn run(mut self) -> Seen {
        let output = match self.command.output().await {
            Ok(output) => output,
            Err(error) => panic!("{} cannot be started ({error}): run tests/setup first", self.name),
        };
        Seen {
            name: self.name,
            output: String::from_utf8(output.stdout).expect("clients print UTF-8"),
            success: output.status.success(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Seen {
    /// Itself, if the client was content.
    ///
    /// # Panics
    /// When it was not, with what it said.
    #[must_use]
    pub fn content(self) -> Self {
        assert!(self.success, "{} failed: {}\nseen:\n{}", self.name, self.errors, self.output);
        self
    }

    /// Its lines as JSON.
    ///
    /// # Panics
    /// When a line is no JSON.
    #[must_use]
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        self.output.lines().map(|line| serde_json::from_str(line).expect("clients print JSON lines")).collect()
    }

    /// Its `{"event","data"}` lines, as the oracle reads them.
    #[must_use]
    pub fn socket_events(&self) -> String {
        self.output.lines().filter(|line| line.starts_with("{\"event\"")).map(|line| format!("{line}\n")).collect()
    }
}
