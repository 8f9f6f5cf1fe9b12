//! What a chat looks like: the answer on standard output, everything else on standard error.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write as _};

use interline_model::{CallId, NoticeLevel, Outcome, Text, What};

const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";
/// How much of a tool's input, and of a line of its result, is shown.
const SHOWN: usize = 300;
/// How many lines of a result are.
const LINES: usize = 5;

/// What was written last, and so where the cursor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Line,
    Answer,
    Reasoning,
}

/// The terminal, or what stands in for it.
pub(crate) struct Screen {
    colours: bool,
    /// Control characters of a server could do anything to a terminal.
    answer_is_shown: bool,
    last: Last,
    tools: HashMap<CallId, Text>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { colours, answer_is_shown: io::stdout().is_terminal(), last: Last::Line, tools: HashMap::new() }
    }

    /// Shows what happened.
    pub(crate) fn show(&mut self, what: &What) {
        match what {
            What::Text { delta } => {
                if self.last == Last::Reasoning {
                    self.fresh_line();
                }
                let text = if self.answer_is_shown { harmless(delta) } else { delta.to_string() };
                self.out(&text);
            }
            What::Thinking { delta } => {
                if self.last == Last::Answer {
                    self.fresh_line();
                }
                let text = harmless(delta);
                self.err(&format!("{}{text}{}", self.style(DIM), self.style(PLAIN)));
                self.last = if text.ends_with('\n') { Last::Line } else { Last::Reasoning };
            }
            What::ToolStarted { call, name, input } => {
                self.tools.insert(call.clone(), name.clone());
                let input = input
                    .as_ref()
                    .filter(|input| !input.is_empty_object())
                    .map(|input| format!(" {}", short(input.as_str())))
                    .unwrap_or_default();
                self.line(&format!("{}▸ {}{}{input}", self.style(BOLD), harmless(name), self.style(PLAIN)));
            }
            What::ToolEnded { call, result, is_error, .. } => {
                let name = self.tools.remove(call).unwrap_or_default();
                let (colour, mark) = if *is_error { (RED, "✗") } else { (GREEN, "✓") };
                self.line(&format!("{}{mark} {}{}{}", self.style(colour), harmless(&name), self.style(PLAIN), beginning(result)));
            }
            What::Notice { level, text, .. } => {
                let colour = if *level == NoticeLevel::Info { DIM } else { RED };
                self.line(&format!("{}{}{}", self.style(colour), harmless(text), self.style(PLAIN)));
            }
            What::RunEnded(end) => {
                self.fresh_line();
                match &end.outcome {
                    Outcome::Completed(_) => {}
                    Outcome::Interrupted { .. } => self.line(&format!("{}stopped{}", self.style(DIM), self.style(PLAIN))),
                    Outcome::Failed { message, .. } => {
                        self.line(&format!("{}failed: {}{}", self.style(RED), harmless(message), self.style(PLAIN)))
                    }
                }
                self.tools.clear();
            }
            _ => {}
        }
    }

    /// A line of our own.
    pub(crate) fn line(&mut self, text: &str) {
        self.fresh_line();
        self.err(&format!("{text}\n"));
    }

    /// A line that is to be answered: the cursor stays behind it.
    pub(crate) fn prompt(&mut self, text: &str) {
        self.fresh_line();
        self.err(text);
        // Whoever answers ends the line.
    }

    /// Begins a new line if something stands in this one.
    pub(crate) fn fresh_line(&mut self) {
        match self.last {
            Last::Line => return,
            Last::Answer => self.out("\n"),
            Last::Reasoning => self.err("\n"),
        }
        self.last = Last::Line;
    }

    fn style(&self, code: &'static str) -> &'static str {
        if self.colours { code } else { "" }
    }

    fn out(&mut self, text: &str) {
        // A closed pipe shows at the end; until then the run goes on.
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        self.last = if text.ends_with('\n') { Last::Line } else { Last::Answer };
    }

    fn err(&self, text: &str) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Text without anything that a terminal would obey.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    let line = harmless(text).replace('\n', " ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The beginning of a text, to stand behind something: in its own lines; if there are several, moved in below that.
fn beginning(text: &str) -> String {
    let text = harmless(text);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    if let [] | [_] = lines.as_slice() {
        return format!(" {}", short(text.trim_end()));
    }
    let mut shown: String = lines.iter().take(LINES).map(|line| format!("\n    {}", short(line))).collect();
    match lines.len().saturating_sub(LINES) {
        0 => {}
        1 => shown.push_str("\n    … 1 more line"),
        more => shown.push_str(&format!("\n    … {more} more lines")),
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_server_sends_commands_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\x07\r\nc\u{9b}d"), "a[2Jb\ncd");
        assert_eq!(short(&"é\n".repeat(400)).chars().count(), SHOWN + 1);
        assert_eq!(short("two\nlines"), "two lines");
    }

    #[test]
    fn a_result_keeps_its_lines() {
        assert_eq!(beginning(""), " ");
        assert_eq!(beginning("one\n"), " one");
        assert_eq!(beginning("one\ntwo\n"), "\n    one\n    two");
        assert_eq!(beginning("1\n2\n3\n4\n5\n6"), "\n    1\n    2\n    3\n    4\n    5\n    … 1 more line");
        assert!(beginning("1\n2\n3\n4\n5\n6\n7").ends_with("    … 2 more lines"));
    }
}
