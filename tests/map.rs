//! `interline map` on every recorded transcript: the oracle, which shares no code with the product, reads the same from both sides.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use interline_testkit::{Surface, TRANSCRIPTS, compare, grammar, transcript, transcript_path};

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
fn every_transcript_means_the_same_on_both_surfaces() {
    for (name, _) in TRANSCRIPTS {
        for surface in [Surface::Sse, Surface::SocketIo] {
            compare(&transcript_path(name), surface, &mapped(surface, &transcript(name)));
        }
    }
}

#[test]
fn the_same_transcript_gives_the_same_bytes() {
    for (name, _) in TRANSCRIPTS {
        for surface in [Surface::Sse, Surface::SocketIo] {
            assert_eq!(mapped(surface, &transcript(name)), mapped(surface, &transcript(name)), "{name} on {surface:?}");
        }
    }
}

#[test]
fn a_transcript_that_stops_anywhere_is_a_whole_run() {
    for (name, _) in TRANSCRIPTS {
        let whole = transcript(name);
        let lines: Vec<&str> = whole.lines().collect();
        // Every third place is enough: the frames repeat, and each check is two processes.
        for cut in (0..lines.len()).step_by(3) {
            let part: String = lines.iter().take(cut).map(|line| format!("{line}\n")).collect();
            for surface in [Surface::Sse, Surface::SocketIo] {
                let _ = grammar(surface, &mapped(surface, &part));
            }
        }
    }
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
