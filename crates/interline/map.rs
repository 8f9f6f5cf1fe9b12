//! `interline map`: a recorded native transcript in, one surface's events out. Pure but for its two ends.

use std::collections::HashSet;
use std::io::{self, Read as _, Write};
use std::path::Path;

use interline_model::{
    Actor, Answer, AskId, Body, Event, Fact, ForcedEnd, Json, Millis, Part, Principal, Reader as _, Record, RunAccepted, RunId, SessionId,
    Text, What, Writer,
};
use interline_native::{Frame, Key, NativeReader, Settings};
use interline_surface_socketio::SocketWriter;
use interline_surface_sse::SseWriter;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::args::{Map, MapTo, Mode};

mod explain;

/// When every transcript begins: 2026-01-01T00:00:00Z. Real arrival times are not recorded, and the output has to be the same each time.
const BEGINNING: Millis = 1_767_225_600_000;
/// How much later each record is than the one before.
const STEP: Millis = 1;
/// The session of every transcript.
const SESSION: &str = "00000000-0000-4000-8000-000000000001";

/// Why a translation is none, or not whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapError {
    #[error("{0} cannot be read: {1}")]
    Read(String, #[source] io::Error),
    #[error("the output cannot be written: {0}")]
    Write(#[from] io::Error),
    #[error("there is no frame in the input")]
    NoFrame,
}

/// Translates a file, or standard input, to standard output.
pub(crate) fn run(args: &Map) -> Result<(), MapError> {
    let input = read(args.file.as_deref())?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = match args.explain {
        None => translate(&input, args.to, args.mode, &mut out),
        Some(form) => explain::explain(&input, args.to, args.mode, form, &mut out),
    };
    let written = written.and_then(|()| out.flush());
    match written {
        // Whoever reads has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    let strange = Strange::of(&input);
    if let Some(first) = strange.first {
        eprintln!("interline: {} of {} lines are no frames (first: line {first})", strange.count, strange.lines);
    }
    match strange.lines {
        // A recording of nothing: a run that its agent never spoke in.
        0 => eprintln!("interline: the input is empty"),
        lines if lines == strange.count => return Err(MapError::NoFrame),
        _ => {}
    }
    Ok(())
}

/// The lines of a transcript that are no frames.
#[derive(Debug, Default, PartialEq)]
struct Strange {
    /// All lines that are not empty.
    lines: usize,
    count: usize,
    /// The first one's number in the file, from 1.
    first: Option<usize>,
}

impl Strange {
    fn of(input: &str) -> Self {
        let mut strange = Self::default();
        for (line, text) in (1..).zip(input.lines().map(str::trim)).filter(|(_, text)| !text.is_empty()) {
            strange.lines = strange.lines.saturating_add(1);
            if !is_frame(text) {
                strange.count = strange.count.saturating_add(1);
                strange.first.get_or_insert(line);
            }
        }
        strange
    }
}

/// Whether a line has the form of a frame: an object with a `type`, alone or with who sent it.
fn is_frame(line: &str) -> bool {
    let frame = serde_json::from_str::<Directed<'_>>(line).map_or(line, |directed| directed.frame.get());
    serde_json::from_str::<Typed>(frame).is_ok() && frame.starts_with('{')
}

fn read(file: Option<&Path>) -> Result<String, MapError> {
    let mut bytes = Vec::new();
    let (name, done) = match file {
        Some(path) => (path.display().to_string(), std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))),
        None => ("standard input".to_owned(), io::stdin().lock().read_to_end(&mut bytes)),
    };
    done.map_err(|error| MapError::Read(name, error))?;
    // Editors put a mark before the first line, which belongs to none.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    // What is no UTF-8 is no frame either; the rest of the file is still worth reading.
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Translates a transcript.
pub(crate) fn translate(input: &str, to: MapTo, mode: Mode, out: &mut dyn Write) -> io::Result<()> {
    let settings = Settings { chat: mode == Mode::Chat };
    let runs = split(input, settings);
    match to {
        MapTo::Sse => {
            let writer = SseWriter::new(interline_surface_sse::Options::default());
            write(&runs, settings, writer, |item| {
                out.write_all(&item.json())?;
                out.write_all(b"\n")
            })
        }
        MapTo::Socketio => {
            let writer = SocketWriter::new(interline_surface_socketio::Options::default());
            write(&runs, settings, writer, |item| writeln!(out, "{}", item.line()))
        }
    }
}

/// One run of a transcript.
#[derive(Debug, Default)]
struct Run {
    /// What the user said, if that is recorded.
    input: Option<Vec<Part>>,
    /// The line of the file where that stands.
    said_at: Option<usize>,
    steps: Vec<Step>,
    ended: bool,
}

/// What one line of a transcript adds to its run.
#[derive(Debug)]
struct Step {
    /// The line's number in the file, from 1.
    line: usize,
    body: Body,
}

/// One line of a transcript.
enum Line {
    User(Vec<Part>),
    Body(Body),
    /// A client's frame that changes nothing here.
    Silent,
}

/// Which lines belong to which run. Nothing counts after an end until the user speaks again, and no frame of an earlier run counts again:
/// a link hears one session, and drops what that repeats, whichever run it was of.
fn split(input: &str, settings: Settings) -> Vec<Run> {
    let mut runs = vec![Run::default()];
    let mut reader = Started::new(settings);
    let mut seen = Seen::default();
    for (line, text) in (1..).zip(input.lines().map(str::trim)).filter(|(_, text)| !text.is_empty()) {
        let Some(run) = runs.last_mut() else { break };
        match parse(text) {
            Line::User(said) if run.ended => {
                reader = Started::new(settings);
                seen.next_run();
                runs.push(Run { input: Some(said), said_at: Some(line), ..Run::default() });
            }
            Line::User(said) => {
                run.said_at.get_or_insert(line);
                run.input.get_or_insert(said);
            }
            Line::Body(body) if !run.ended && seen.counts(&body) => {
                run.ended = reader.ends(&body);
                run.steps.push(Step { line, body });
            }
            Line::Body(_) | Line::Silent => {}
        }
    }
    runs
}

/// Which frames have counted. The repeats within a run are its reader's to drop.
#[derive(Debug, Default)]
struct Seen {
    earlier: HashSet<Key<'static>>,
    run: HashSet<Key<'static>>,
}

impl Seen {
    fn next_run(&mut self) {
        self.earlier.extend(self.run.drain());
    }

    /// Whether it is of no earlier run; if so, it is of this one from now on.
    fn counts(&mut self, body: &Body) -> bool {
        let Body::Frame(text) = body else { return true };
        let Some(key) = Frame::parse(text).ok().and_then(|frame| frame.key().map(Key::into_owned)) else { return true };
        let counts = !self.earlier.contains(&key);
        if counts {
            self.run.insert(key);
        }
        counts
    }
}

/// A reader that has seen a run begin, to find out where it ends.
struct Started {
    reader: NativeReader,
    events: Vec<Event>,
}

impl Started {
    fn new(settings: Settings) -> Self {
        let mut started = Self { reader: NativeReader::new(settings), events: Vec::new() };
        started.ends(&accepted(1, Vec::new()));
        started
    }

    fn ends(&mut self, body: &Body) -> bool {
        self.events.clear();
        self.reader.read(&Record { at: BEGINNING, body: body.clone() }, &mut self.events);
        self.events.iter().any(|event| matches!(event.what, What::RunEnded(_)))
    }
}

/// Writes the runs one after another, as one session.
fn write<W: Writer>(runs: &[Run], settings: Settings, mut writer: W, mut put: impl FnMut(&W::Item) -> io::Result<()>) -> io::Result<()> {
    let (mut events, mut items) = (Vec::new(), Vec::new());
    let mut at = BEGINNING;
    for (number, run) in (1_u128..).zip(runs) {
        let mut reader = NativeReader::new(settings);
        for (_, body) in run.bodies(number) {
            let record = Record { at, body };
            at = at.saturating_add(STEP);
            events.clear();
            reader.read(&record, &mut events);
            writer.write(&record, &events, &mut items);
            for item in items.drain(..) {
                put(&item)?;
            }
        }
    }
    Ok(())
}

impl Run {
    /// The run's records, each with the line that it comes from. What begins it may stand on none, and an end that the file lacks does.
    fn bodies(&self, number: u128) -> impl Iterator<Item = (Option<usize>, Body)> {
        let stopped = self.steps.iter().any(|step| matches!(step.body, Body::Fact(Fact::StopRequested { .. })));
        let end = if stopped { ForcedEnd::StopGraceOver } else { ForcedEnd::UpstreamGone };
        let end = (!self.ended).then_some((None, Body::Fact(Fact::EndForced(end))));
        let begin = (self.said_at, accepted(number, self.input.clone().unwrap_or_default()));
        let steps = self.steps.iter().map(|step| (Some(step.line), step.body.clone()));
        [begin].into_iter().chain(steps).chain(end)
    }
}

fn accepted(number: u128, input: Vec<Part>) -> Body {
    Body::Fact(Fact::RunAccepted(Box::new(RunAccepted {
        run: RunId::from_u128(number),
        session: SessionId::from(SESSION),
        model: Text::from_static("default"),
        input,
        by: client(),
        actor: None,
        headless: false,
        output_schema: None,
    })))
}

fn client() -> Actor {
    Actor { principal: Principal::from("anonymous"), surface: Text::from_static("interline") }
}

/// A line in the form that says who sent it.
#[derive(Deserialize)]
struct Directed<'a> {
    dir: &'a str,
    #[serde(borrow)]
    frame: &'a RawValue,
}

/// As much of a frame as all of them have.
#[derive(Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    _type: String,
}

fn parse(line: &str) -> Line {
    match serde_json::from_str::<Directed<'_>>(line) {
        Ok(Directed { dir: "out", frame }) => Line::Body(Body::Frame(Text::from(frame.get()))),
        Ok(Directed { frame, .. }) => serde_json::from_str(frame.get()).map_or(Line::Silent, |frame: Value| from_client(&frame)),
        Err(_) => Line::Body(Body::Frame(Text::from(line))),
    }
}

/// What a recorded frame of the client did.
fn from_client(frame: &Value) -> Line {
    let text = |value: &Value| value.as_str().map(Text::from);
    match frame["type"].as_str() {
        Some("user") => Line::User(parts(&frame["message"]["content"])),
        Some("control_cancel_request") => stop(),
        Some("control_request") if frame["request"]["subtype"] == "interrupt" => stop(),
        Some("control_response") => {
            let response = &frame["response"];
            let Some(ask) = text(&response["request_id"]) else { return Line::Silent };
            let answer = match &response["response"] {
                Value::Object(_) => Answer::Native(Json::from_value(&response["response"])),
                _ => Answer::Deny { message: text(&response["error"]).unwrap_or_default() },
            };
            Line::Body(Body::Fact(Fact::AskAnswered { ask: AskId::from(ask), answer, by: client() }))
        }
        _ => Line::Silent,
    }
}

fn stop() -> Line {
    Line::Body(Body::Fact(Fact::StopRequested { by: client() }))
}

/// The user's words and pictures: a string, or content blocks.
fn parts(content: &Value) -> Vec<Part> {
    let text = |value: &Value| value.as_str().map(Text::from);
    match content {
        Value::String(said) => vec![Part::Text(Text::from(said.as_str()))],
        Value::Array(blocks) => blocks
            .iter()
            .filter_map(|block| match block["type"].as_str()? {
                "text" => Some(Part::Text(text(&block["text"])?)),
                "image" => {
                    let source = &block["source"];
                    let url = match (source["media_type"].as_str(), source["data"].as_str()) {
                        (Some(kind), Some(data)) => Text::from(format!("data:{kind};base64,{data}")),
                        _ => text(&source["url"])?,
                    };
                    Some(Part::Image { url })
                }
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
