//! Golden files: what each surface writes, to the byte. Every recorded transcript on every surface at the defaults, and four for each
//! option alone. `UPDATE_GOLDEN=1 cargo test --test golden` writes them anew; the diff of the commit then shows what changed.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod recording;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use interline_surface_socketio::Options as SocketOptions;
use interline_surface_sse::Options as SseOptions;
use interline_testkit::in_repository;
use recording::Recording;
use recording::options::{HEADLESS, socketio_options, sse_options};

/// How many files are told of when they differ.
const SHOWN: usize = 5;
/// How much of a line is shown on either side of the first difference.
const AROUND: usize = 100;

/// Every golden file by its path under `tests/golden`, and what it should say.
fn wanted() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for recording in Recording::recorded() {
        let name = &recording.name;
        files.insert(format!("sse/{name}.jsonl"), recording.sse(SseOptions::default()));
        files.insert(format!("socketio/{name}.jsonl"), recording.socketio(SocketOptions::default()));
        files.insert(format!("native/{name}.jsonl"), recording.native());
    }
    for option in sse_options() {
        for recording in option.recordings() {
            files.insert(format!("sse/options/{}/{}.jsonl", option.name, recording.name), recording.sse(option.options.clone()));
        }
    }
    for option in socketio_options() {
        for recording in option.recordings() {
            let path = format!("socketio/options/{}/{}.jsonl", option.name, recording.name);
            files.insert(path, recording.socketio(option.options.clone()));
        }
    }
    // The default of this one shows in runs without people only.
    for name in HEADLESS {
        let events = Recording::named(name).headless().socketio(SocketOptions::default());
        files.insert(format!("socketio/options/headless_result=superset/{name}.jsonl"), events);
    }
    files
}

fn present(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() { present(&path, files) } else { files.push(path) }
    }
}

#[test]
fn every_surface_writes_what_the_golden_files_say() {
    let root = in_repository("tests/golden");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let wanted = wanted();
    let mut there = Vec::new();
    present(&root, &mut there);
    let mut wrong = Vec::new();
    for path in there {
        let name = path.strip_prefix(&root).expect("inside").to_string_lossy().into_owned();
        if !wanted.contains_key(&name) {
            wrong.push(format!("{name}: nothing writes this file any more"));
            if update {
                std::fs::remove_file(&path).expect("it can go");
            }
        }
    }
    for (name, now) in &wanted {
        let path = root.join(name);
        let golden = std::fs::read_to_string(&path).ok();
        if golden.as_ref() == Some(now) {
            continue;
        }
        wrong.push(golden.map_or_else(|| format!("{name}: the file is missing"), |golden| format!("{name}: {}", difference(&golden, now))));
        if update {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, now).expect("it can be written");
        }
    }
    if update {
        return;
    }
    let shown: Vec<&str> = wrong.iter().take(SHOWN).map(String::as_str).collect();
    let hint = "if the change is meant: UPDATE_GOLDEN=1 cargo test --test golden, then read the diff";
    assert!(wrong.is_empty(), "{} of {} golden files differ\n\n{}\n\n{hint}", wrong.len(), wanted.len(), shown.join("\n\n"));
}

/// The first line that differs, around the first difference.
fn difference(golden: &str, now: &str) -> String {
    let (golden, now): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), now.lines().collect());
    let longest = golden.len().max(now.len());
    let at = (0..longest).find(|&at| golden.get(at) != now.get(at)).unwrap_or(longest);
    let (was, is) = (golden.get(at).copied(), now.get(at).copied());
    let same = was.unwrap_or_default().chars().zip(is.unwrap_or_default().chars()).take_while(|(was, is)| was == is).count();
    let part = |line: Option<&str>| {
        let Some(line) = line else { return "(no line)".to_owned() };
        let from = same.saturating_sub(AROUND);
        let part: String = line.chars().skip(from).take(2 * AROUND).collect();
        format!("{}{part}{}", if from > 0 { "…" } else { "" }, if line.chars().count() > from + 2 * AROUND { "…" } else { "" })
    };
    format!("{} lines were, {} are; line {}\n  - {}\n  + {}", golden.len(), now.len(), at + 1, part(was), part(is))
}

#[test]
fn every_option_changes_what_some_of_its_recordings_say() {
    for option in sse_options() {
        let changed = |recording: Recording| recording.sse(option.options.clone()) != recording.sse(SseOptions::default());
        assert!(option.recordings().any(changed), "{}", option.name);
    }
    for option in socketio_options() {
        let changed = |recording: Recording| recording.socketio(option.options.clone()) != recording.socketio(SocketOptions::default());
        assert!(option.recordings().any(changed), "{}", option.name);
    }
}

#[test]
fn differences_are_told_where_they_are() {
    let long = "x".repeat(500);
    let told = difference(&format!("same\n{long}a{long}\n"), &format!("same\n{long}b{long}\nmore\n"));
    assert!(
        told.starts_with("2 lines were, 3 are; line 2\n  - …") && told.contains("xax") && told.contains("xbx") && told.len() < 600,
        "{told}"
    );
    assert_eq!(difference("a\n", "a\nb\n"), "1 lines were, 2 are; line 2\n  - (no line)\n  + b");
}
