//! Every transcript, recorded or our own, means the same on both legacy surfaces, at the defaults and with every option alone. The
//! judge is the oracle, which shares no code with the product.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod recording;

use std::process::Command;

use interline_surface_sse::Extras;
use interline_testkit::{Case, Surface, TRANSCRIPTS, in_repository, judge, validate_socketio, validate_sse};
use recording::Recording;
use recording::options::{socketio_options, sse_options};

/// Where a surface cannot say what the frames say, and why: transcript, option (or nothing for all), what the oracle finds.
const KNOWN: [(&str, &str, &str); 3] = [
    // The result comes before anything has named the tool, and what was sent cannot be renamed.
    ("result-first", "", "tool call-1: name 'Read' but 'tool'"),
    // This option cuts long results, and says so in them.
    ("long-texts", "max_event_bytes=1024", "tool call-1: result "),
    // So does this one.
    ("long-texts", "max_result_bytes=1000", "tool call-1: result "),
];

fn all() -> Vec<Recording> {
    Recording::recorded().into_iter().chain(Recording::own()).collect()
}

fn is_recorded(recording: &Recording) -> bool {
    TRANSCRIPTS.iter().any(|(name, _)| *name == recording.name)
}

fn case(recording: &Recording, surface: Surface, option: &str, events: String) -> Case {
    let name = format!("{} on {} {option}", recording.name, surface.name());
    Case { name, surface, events, native: Some(recording.path.clone()) }
}

/// What the oracle finds that is not known.
fn surprises(cases: &[Case]) -> Vec<String> {
    let mut surprises = Vec::new();
    let mut met = vec![false; KNOWN.len()];
    for (case, diffs) in cases.iter().zip(judge(cases)) {
        for diff in diffs {
            let known = KNOWN.iter().position(|(transcript, option, known)| {
                case.name.split(' ').next() == Some(transcript) && case.name.contains(option) && diff.starts_with(known)
            });
            match known.and_then(|at| met.get_mut(at)) {
                Some(met) => *met = true,
                None => surprises.push(format!("{}: {diff}", case.name)),
            }
        }
    }
    let gone = KNOWN.iter().zip(met).filter(|(_, met)| !met);
    surprises.extend(gone.map(|(known, _)| format!("no difference any more, take it out of the list: {known:?}")));
    surprises
}

#[test]
fn every_transcript_means_the_same_on_both_surfaces_with_every_option() {
    let mut cases = Vec::new();
    for recording in all() {
        cases.push(case(&recording, Surface::Sse, "", recording.sse(Default::default())));
        cases.push(case(&recording, Surface::SocketIo, "", recording.socketio(Default::default())));
        for option in sse_options().into_iter().filter(|option| option.readable) {
            cases.push(case(&recording, Surface::Sse, option.name, recording.sse(option.options)));
        }
        for option in socketio_options() {
            cases.push(case(&recording, Surface::SocketIo, option.name, recording.socketio(option.options)));
        }
    }
    let surprises = surprises(&cases);
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}

#[test]
fn every_event_is_what_the_contracts_say() {
    let recordings = all();
    let half = recordings.len().div_ceil(2);
    let judged = |recordings: &[Recording]| {
        for recording in recordings {
            let sse = validate_sse(&recording.sse(Default::default()));
            let socketio = validate_socketio(&recording.socketio(Default::default()));
            assert_eq!((sse, socketio), (Ok(()), Ok(())), "{}", recording.name);
        }
    };
    std::thread::scope(|scope| {
        for part in recordings.chunks(half) {
            scope.spawn(move || judged(part));
        }
    });
}

#[test]
fn a_transcript_that_stops_anywhere_is_a_whole_run() {
    let mut cases = Vec::new();
    for recording in all() {
        for before in 0..recording.lines().len() {
            // The recorded ones are longer and say the same again and again.
            if is_recorded(&recording) && before % 3 != 0 {
                continue;
            }
            let cut = recording.cut(before);
            for (surface, events) in [(Surface::Sse, cut.sse(Default::default())), (Surface::SocketIo, cut.socketio(Default::default()))] {
                cases.push(Case { name: format!("{} on {surface:?}", cut.name), surface, events, native: None });
            }
        }
    }
    for (case, breaches) in cases.iter().zip(judge(&cases)) {
        assert!(breaches.is_empty(), "{}: {breaches:?}\n{}", case.name, case.events);
    }
}

#[test]
fn repeats_change_nothing() {
    for recording in all() {
        // More frames take more time, and durations say so.
        let recording = recording.at_once();
        let repeated = recording.with_repeats();
        assert_eq!(repeated.sse(Default::default()), recording.sse(Default::default()), "{}", recording.name);
        assert_eq!(repeated.socketio(Default::default()), recording.socketio(Default::default()), "{}", recording.name);
        assert_eq!(repeated.native(), recording.native(), "{}", recording.name);
    }
}

#[test]
fn further_events_on_sse_move_none_of_the_others() {
    let with = |extras| interline_surface_sse::Options { extras, ..Default::default() };
    for recording in all() {
        let numbered = recording.sse_numbered(with(Extras::Events));
        assert_eq!(numbered, recording.sse(with(Extras::Fields)), "{}", recording.name);
    }
}

#[test]
fn the_same_transcript_gives_the_same_bytes() {
    for recording in all() {
        assert_eq!(recording.socketio(Default::default()), recording.socketio(Default::default()), "{}", recording.name);
        assert_eq!(recording.sse(Default::default()), recording.sse(Default::default()), "{}", recording.name);
    }
}

#[test]
fn the_files_are_what_the_generator_writes() {
    let output = Command::new("python3").arg(in_repository("tests/transcripts/make.py")).arg("--check").output().expect("python3 runs");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
