//! Recordings through the pure reader and a pure writer, with a fixed clock: what `interline map` does, without its process.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

pub(crate) mod options;

use std::collections::HashSet;
use std::path::PathBuf;

use interline_model::{
    Actor, Answer, AskId, Body, Fact, ForcedEnd, Json, Millis, Part, Principal, Reader as _, Record, RunAccepted, RunId, SessionId, Text,
    What, Writer,
};
use interline_native::{Frame, Key, NativeReader, Settings};
use interline_surface_native::NativeWriter;
use interline_surface_socketio::SocketWriter;
use interline_surface_sse::SseWriter;
use interline_testkit::{TRANSCRIPTS, in_repository, transcript_path};
use serde_json::Value;
use serde_json::value::RawValue;

/// When every recording begins, as for `interline map`: 2026-01-01T00:00:00Z.
const BEGINNING: Millis = 1_767_225_600_000;
/// How much later each record comes than the one before, as for `interline map`.
const STEP: Millis = 1;
/// The same in a slow recording.
const SLOW_STEP: Millis = 60;

/// A recording: frames, and what a client did in between, run by run.
pub(crate) struct Recording {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    runs: Vec<Run>,
    headless: bool,
    step: Millis,
}

#[derive(Default)]
struct Run {
    input: Vec<Part>,
    steps: Vec<Body>,
    ended: bool,
}

impl Recording {
    /// The recorded transcripts of the simulator.
    pub(crate) fn recorded() -> Vec<Self> {
        TRANSCRIPTS.iter().map(|(name, _)| Self::of(name, transcript_path(name))).collect()
    }

    /// Our own transcripts, `tests/transcripts`.
    pub(crate) fn own() -> Vec<Self> {
        let folder = std::fs::read_dir(in_repository("tests/transcripts")).expect("the folder");
        let mut paths: Vec<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        paths.sort();
        paths.into_iter().map(|path| Self::of(&path.file_stem().expect("a name").to_string_lossy(), path.clone())).collect()
    }

    /// One of either kind.
    pub(crate) fn named(name: &str) -> Self {
        let own = in_repository(&format!("tests/transcripts/{name}.jsonl"));
        Self::of(name, if own.exists() { own } else { transcript_path(name) })
    }

    fn of(name: &str, path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).expect("a transcript");
        let lines: Vec<&str> = text.lines().collect();
        Self { runs: runs(&lines), name: name.to_owned(), path, headless: false, step: STEP }
    }

    /// One that is in no file.
    pub(crate) fn from_lines(name: &str, lines: &[String]) -> Self {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        Self { name: name.to_owned(), path: PathBuf::new(), runs: runs(&lines), headless: false, step: STEP }
    }

    /// The same, as a run without people.
    pub(crate) fn headless(self) -> Self {
        Self { headless: true, ..self }
    }

    /// The same at the pace of a model that writes.
    pub(crate) fn slow(self) -> Self {
        Self { step: SLOW_STEP, ..self }
    }

    /// The same without time between.
    pub(crate) fn at_once(self) -> Self {
        Self { step: 0, ..self }
    }

    /// The lines of its file.
    pub(crate) fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.path).expect("a transcript").lines().map(str::to_owned).collect()
    }

    /// What is left of it when it breaks off before a line.
    pub(crate) fn cut(&self, before: usize) -> Self {
        self.of_lines(self.lines().iter().take(before).map(String::as_str))
    }

    /// The same with repeats: behind each frame that has an id come the few before it and itself once more.
    pub(crate) fn with_repeats(&self) -> Self {
        /// How many frames come again each time.
        const AGAIN: usize = 7;
        let lines = self.lines();
        let (mut all, mut recent): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for line in lines.iter().map(String::as_str) {
            all.push(line);
            let (inward, frame) = split(line);
            if inward {
                // Ids count within a run, and this may be the next one.
                recent.clear();
            } else if Frame::parse(&Text::from(frame)).is_ok_and(|frame| frame.key().is_some()) {
                recent.push(line);
                all.extend(recent.iter().rev().take(AGAIN).rev());
            }
        }
        self.of_lines(all.into_iter())
    }

    fn of_lines<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Self {
        let lines: Vec<&str> = lines.collect();
        let name = format!("{}, {} lines of it", self.name, lines.len());
        Self { name, path: self.path.clone(), runs: runs(&lines), headless: self.headless, step: self.step }
    }

    /// On SSE: one event per line.
    pub(crate) fn sse(&self, options: interline_surface_sse::Options) -> String {
        self.play(SseWriter::new(options), |block| String::from_utf8(block.json().to_vec()).expect("UTF-8"))
    }

    /// On SSE, the events that have a number alone.
    pub(crate) fn sse_numbered(&self, options: interline_surface_sse::Options) -> String {
        let all = self.play(SseWriter::new(options), |block| {
            if block.is_aside() { String::new() } else { String::from_utf8(block.json().to_vec()).expect("UTF-8") }
        });
        all.lines().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
    }

    /// On Socket.IO: one event per line.
    pub(crate) fn socketio(&self, options: interline_surface_socketio::Options) -> String {
        self.play(SocketWriter::new(options), |event| event.line())
    }

    /// On the native surface: one frame per line.
    pub(crate) fn native(&self) -> String {
        self.play(NativeWriter::new(), |frame| frame.text.to_string())
    }

    fn play<W: Writer>(&self, mut writer: W, line: impl Fn(&W::Item) -> String) -> String {
        let (mut events, mut items, mut at) = (Vec::new(), Vec::new(), BEGINNING);
        let mut out = String::new();
        for (number, run) in (1_u128..).zip(&self.runs) {
            let mut reader = NativeReader::new(Settings::default());
            let stopped = run.steps.iter().any(|body| matches!(body, Body::Fact(Fact::StopRequested { .. })));
            let end = Fact::EndForced(if stopped { ForcedEnd::StopGraceOver } else { ForcedEnd::UpstreamGone });
            let end = (!run.ended).then_some(Body::Fact(end));
            for body in [accepted(number, run.input.clone(), self.headless)].into_iter().chain(run.steps.iter().cloned()).chain(end) {
                let record = Record { at, body };
                at += self.step;
                events.clear();
                reader.read(&record, &mut events);
                writer.write(&record, &events, &mut items);
                for item in items.drain(..) {
                    out.push_str(&line(&item));
                    out.push('\n');
                }
            }
        }
        out
    }
}

/// The runs in a transcript's lines: after an end nothing counts until the user speaks again, and no frame of an earlier run counts again.
fn runs(lines: &[&str]) -> Vec<Run> {
    let mut runs = vec![Run::default()];
    let mut reader = started();
    let (mut earlier, mut seen) = (HashSet::new(), HashSet::new());
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        let run = runs.last_mut().expect("the first is there");
        let (inward, frame) = split(line);
        if !inward {
            if !run.ended {
                let text = Text::from(frame);
                let key = Frame::parse(&text).ok().and_then(|frame| frame.key().map(Key::into_owned));
                if key.as_ref().is_some_and(|key| earlier.contains(key)) {
                    continue;
                }
                seen.extend(key);
                let (body, mut events) = (Body::Frame(text), Vec::new());
                reader.read(&Record { at: BEGINNING, body: body.clone() }, &mut events);
                run.ended = events.iter().any(|event| matches!(event.what, What::RunEnded(_)));
                run.steps.push(body);
            }
            continue;
        }
        let frame: Value = serde_json::from_str(frame).expect("what clients say is JSON");
        match frame["type"].as_str() {
            Some("user") if run.ended => {
                reader = started();
                earlier.extend(seen.drain());
                runs.push(Run { input: said(&frame), ..Run::default() });
            }
            Some("user") => run.input = said(&frame),
            _ if run.ended => {}
            Some("control_response") => run.steps.push(Body::Fact(answered(&frame["response"]))),
            Some("control_cancel_request") => run.steps.push(Body::Fact(Fact::StopRequested { by: client() })),
            Some("control_request") if frame["request"]["subtype"] == "interrupt" => {
                run.steps.push(Body::Fact(Fact::StopRequested { by: client() }));
            }
            _ => {}
        }
    }
    runs
}

/// Whether a client said it, and the frame.
pub(crate) fn split(line: &str) -> (bool, &str) {
    #[derive(serde::Deserialize)]
    struct Directed<'a> {
        dir: &'a str,
        #[serde(borrow)]
        frame: &'a RawValue,
    }
    match serde_json::from_str::<Directed<'_>>(line) {
        Ok(Directed { dir, frame }) => (dir == "in", frame.get()),
        Err(_) => (false, line),
    }
}

fn started() -> NativeReader {
    let mut reader = NativeReader::new(Settings::default());
    reader.read(&Record { at: BEGINNING, body: accepted(1, Vec::new(), false) }, &mut Vec::new());
    reader
}

fn accepted(number: u128, input: Vec<Part>, headless: bool) -> Body {
    Body::Fact(Fact::RunAccepted(Box::new(RunAccepted {
        run: RunId::from_u128(number),
        session: SessionId::from("00000000-0000-4000-8000-000000000001"),
        model: Text::from_static("default"),
        input,
        by: client(),
        actor: None,
        headless,
        output_schema: None,
    })))
}

fn client() -> Actor {
    Actor { principal: Principal::from("anonymous"), surface: Text::from_static("interline") }
}

fn said(frame: &Value) -> Vec<Part> {
    let content = &frame["message"]["content"];
    let texts = content.as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    texts.chain(content.as_str()).map(|text| Part::Text(Text::from(text))).collect()
}

fn answered(response: &Value) -> Fact {
    let ask = AskId::from(Text::from(response["request_id"].as_str().expect("an id")));
    Fact::AskAnswered { ask, answer: Answer::Native(Json::from_value(&response["response"])), by: client() }
}
