//! A pseudo-terminal without a terminal: its shell echoes bytes as they are, and knows a few commands.
//!
//! | line | output |
//! |---|---|
//! | `echo WORDS` | the words, byte for byte |
//! | `size` | columns and rows |
//! | `pwd` | the root of the workspace |
//! | `bytes` | all 256 byte values, once each |
//! | `flood N` | N chunks of 1 KiB; each begins with [`crate::flood_text`] of its number |
//! | `exit N` | nothing: the terminal ends with that code |

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{code_plane::Channel, faults::flood_text};

const PROMPT: &[u8] = b"$ ";

/// Largest chunk of output.
const CHUNK: usize = 4096;

/// The size of a flood's chunk.
const FLOOD_CHUNK: usize = 1024;

/// The exit code of a shell that was killed.
const KILLED: i64 = 137;

enum Event {
    Input(Vec<u8>),
    Resize(u16, u16),
    Kill,
}

/// The client's end. Dropping it ends the shell.
pub(crate) struct Pty {
    events: mpsc::UnboundedSender<Event>,
}

impl Pty {
    pub(crate) fn input(&self, bytes: Vec<u8>) {
        self.tell(Event::Input(bytes));
    }

    /// §5.5: sizes are clamped.
    pub(crate) fn resize(&self, cols: u16, rows: u16) {
        self.tell(Event::Resize(clamp(cols), clamp(rows)));
    }

    pub(crate) fn kill(&self) {
        self.tell(Event::Kill);
    }

    fn tell(&self, event: Event) {
        // A shell that has ended hears nothing more.
        let _ = self.events.send(event);
    }
}

fn clamp(size: u16) -> u16 {
    size.clamp(2, 10_000)
}

pub(crate) struct Shell {
    events: mpsc::UnboundedReceiver<Event>,
    line: Vec<u8>,
    cols: u16,
    rows: u16,
}

pub(crate) fn open(cols: u16, rows: u16) -> (Shell, Pty) {
    let (sender, events) = mpsc::unbounded_channel();
    (Shell { events, line: Vec::new(), cols: clamp(cols), rows: clamp(rows) }, Pty { events: sender })
}

/// What a piece of input comes to.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Print(Vec<u8>),
    Flood(u64),
    Exit(i64),
}

impl Shell {
    /// Runs until it exits, is killed, or the client is gone.
    pub(crate) async fn run(mut self, id: String, channel: Arc<Channel>) {
        let mut going = print(&id, &channel, PROMPT).await;
        while going {
            let steps = match self.events.recv().await {
                None => break,
                Some(Event::Kill) => vec![Step::Exit(KILLED)],
                Some(Event::Resize(cols, rows)) => {
                    (self.cols, self.rows) = (cols, rows);
                    continue;
                }
                Some(Event::Input(bytes)) => self.feed(&bytes),
            };
            for step in steps {
                going = match step {
                    Step::Print(bytes) => print(&id, &channel, &bytes).await,
                    Step::Flood(chunks) => flood(&id, &channel, chunks).await && print(&id, &channel, PROMPT).await,
                    Step::Exit(code) => {
                        channel.ended(&id);
                        channel.send(&json!({ "type": "code_pty_exit", "pty_id": id, "exit_code": code })).await;
                        return;
                    }
                };
                if !going {
                    break;
                }
            }
        }
        channel.ended(&id);
    }

    fn feed(&mut self, input: &[u8]) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut out = Vec::new();
        for byte in input {
            match byte {
                b'\r' | b'\n' => {
                    out.extend_from_slice(b"\r\n");
                    let line = std::mem::take(&mut self.line);
                    match self.command(&line) {
                        Step::Print(output) => {
                            out.extend_from_slice(&output);
                            out.extend_from_slice(PROMPT);
                        }
                        step => {
                            steps.push(Step::Print(std::mem::take(&mut out)));
                            steps.push(step);
                        }
                    }
                }
                // Ctrl-C, Ctrl-D, and the erase keys.
                3 => {
                    self.line.clear();
                    out.extend_from_slice(b"^C\r\n");
                    out.extend_from_slice(PROMPT);
                }
                4 if self.line.is_empty() => steps.push(Step::Exit(0)),
                8 | 127 => {
                    if self.line.pop().is_some() {
                        out.extend_from_slice(b"\x08 \x08");
                    }
                }
                byte => {
                    self.line.push(*byte);
                    out.push(*byte);
                }
            }
        }
        if !out.is_empty() {
            steps.push(Step::Print(out));
        }
        steps
    }

    fn command(&self, line: &[u8]) -> Step {
        let line = line.trim_ascii();
        let (name, rest) = line.iter().position(|byte| *byte == b' ').map_or((line, &b""[..]), |at| {
            let (name, rest) = line.split_at(at);
            (name, rest.trim_ascii())
        });
        let number = std::str::from_utf8(rest).ok().and_then(|rest| rest.parse::<u32>().ok());
        let mut output = match name {
            b"" => return Step::Print(Vec::new()),
            b"echo" => rest.to_vec(),
            b"size" => format!("{} {}", self.cols, self.rows).into_bytes(),
            b"pwd" => b"/repo".to_vec(),
            b"bytes" => (0..=u8::MAX).collect(),
            b"flood" => return Step::Flood(number.unwrap_or(1).into()),
            b"exit" => return Step::Exit(number.unwrap_or(0).into()),
            _ => [b"sh: ", name, b": not found"].concat(),
        };
        output.extend_from_slice(b"\r\n");
        Step::Print(output)
    }
}

async fn print(id: &str, channel: &Channel, bytes: &[u8]) -> bool {
    for chunk in bytes.chunks(CHUNK) {
        if !channel.send(&json!({ "type": "code_pty_chunk", "pty_id": id, "data": STANDARD.encode(chunk) })).await {
            return false;
        }
    }
    true
}

async fn flood(id: &str, channel: &Channel, chunks: u64) -> bool {
    for n in 0..chunks {
        let mut chunk = flood_text(n).into_bytes();
        chunk.resize(FLOOD_CHUNK, b'.');
        if !print(id, channel, &chunk).await {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell() -> Shell {
        open(80, 24).0
    }

    #[test]
    fn lines_are_echoed_and_run() {
        let mut shell = shell();
        assert_eq!(shell.feed(b"echo h"), [Step::Print(b"echo h".to_vec())]);
        assert_eq!(shell.feed(b"x\x7fi\r"), [Step::Print(b"x\x08 \x08i\r\nhi\r\n$ ".to_vec())]);
        assert_eq!(shell.feed(b"what\r"), [Step::Print(b"what\r\nsh: what: not found\r\n$ ".to_vec())]);
        assert_eq!(shell.feed(b"exit 3\r"), [Step::Print(b"exit 3\r\n".to_vec()), Step::Exit(3)]);
        assert_eq!(shell.feed(b"\x04"), [Step::Exit(0)]);
    }

    #[test]
    fn bytes_that_are_no_text_stay_what_they_are() {
        assert_eq!(shell().feed(&[0xff, 0x00, 0x80]), [Step::Print(vec![0xff, 0x00, 0x80])]);
        let Step::Print(all) = shell().command(b"bytes") else { panic!() };
        assert!(all.starts_with(&(0..=u8::MAX).collect::<Vec<u8>>()));
    }

    #[test]
    fn sizes_are_clamped() {
        let (shell, _) = open(0, u16::MAX);
        assert_eq!(shell.command(b"size"), Step::Print(b"2 10000\r\n".to_vec()));
    }
}
