//! `interline map` as its users run it: it prints what the golden files say, and those mean what the transcripts mean
//! (`tests/golden.rs`, `tests/transcripts.rs`).

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use interline_testkit::{Surface, TRANSCRIPTS, compare, grammar, in_repository, transcript, transcript_path};

const INTERLINE: &str = env!("CARGO_BIN_EXE_interline");

fn map(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(INTERLINE)
        .arg("map")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads its input");
    child.wait_with_output().expect("it ends")
}

fn mapped(surface: Surface, input: &str) -> String {
    let output = map(&["--to", surface.name()], input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn every_transcript_gives_the_bytes_of_its_golden_file() {
    for (name, _) in TRANSCRIPTS {
        for surface in [Surface::Sse, Surface::SocketIo] {
            let golden = in_repository(&format!("tests/golden/{}/{name}.jsonl", surface.name()));
            let golden = std::fs::read_to_string(golden).expect("a golden file");
            assert_eq!(mapped(surface, &transcript(name)), golden, "{name} on {surface:?}");
        }
    }
}

#[test]
fn a_transcript_that_stops_is_a_whole_run() {
    let whole = transcript("agent-with-permission");
    for cut in [0, 1, 8, 9] {
        let part: String = whole.lines().take(cut).map(|line| format!("{line}\n")).collect();
        for surface in [Surface::Sse, Surface::SocketIo] {
            assert_eq!(
                grammar(surface, &mapped(surface, &part))["outcome"].as_str(),
                Some(if surface == Surface::Sse { "missing" } else { "error" })
            );
        }
    }
}

#[test]
fn the_mark_that_editors_put_first_belongs_to_no_line() {
    let text = transcript("chat-text-only");
    assert_eq!(mapped(Surface::Sse, &format!("\u{feff}{text}")), mapped(Surface::Sse, &text));
}

#[test]
fn a_file_is_read_as_standard_input_is() {
    let path = transcript_path("chat-thinking");
    let output = map(&["--to", "sse", path.to_str().expect("a UTF-8 path")], "");
    assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), mapped(Surface::Sse, &transcript("chat-thinking")));
}

#[test]
fn lines_that_are_no_frames_are_survived() {
    let input = "null\n[]\n{\"type\"\n\n42\n{\"type\":\"from_the_future\",\"x\":1}\n".to_owned() + &transcript("chat-text-only");
    let with = mapped(Surface::Sse, &input);
    assert!(with.contains("\"done\""), "{with}");
    compare(&transcript_path("chat-text-only"), Surface::Sse, &with);
}

#[test]
fn what_is_asked_for_wrongly_is_said() {
    let output = map(&["--to", "carrier-pigeon"], "");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("carrier-pigeon"));
    let output = map(&["--to", "sse", "/nowhere/at/all.jsonl"], "");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all.jsonl"));
}
