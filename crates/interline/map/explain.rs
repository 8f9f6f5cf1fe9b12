//! `interline map --explain`: the events of a transcript, each with the lines that caused it and the rules by which they did.

use std::collections::HashSet;
use std::io::{self, Write};

use interline_model::{ExplainWriter, Explained, Explanation, Record, Rule};
use interline_native::{NativeExplainer, Settings};
use interline_surface_socketio::SocketWriter;
use interline_surface_sse::SseWriter;
use serde_json::value::RawValue;

use super::{BEGINNING, Run, STEP, split};
use crate::args::{ExplainForm, MapTo, Mode};

/// Explains a transcript.
pub(crate) fn explain(input: &str, to: MapTo, mode: Mode, form: ExplainForm, out: &mut dyn Write) -> io::Result<()> {
    let settings = Settings { chat: mode == Mode::Chat };
    let runs = split(input, settings);
    let mut said = HashSet::new();
    let mut put = |event: &str, causes: &[Line], rules: &[Rule]| match form {
        ExplainForm::Text => people(out, event, causes, rules, &mut said),
        ExplainForm::Json => machines(out, event, causes, rules),
    };
    match to {
        MapTo::Sse => {
            let writer = SseWriter::new(interline_surface_sse::Options::default());
            each(&runs, settings, writer, |explained, causes| {
                put(&String::from_utf8_lossy(&explained.item.json()), causes, &explained.rules)
            })
        }
        MapTo::Socketio => {
            let writer = SocketWriter::new(interline_surface_socketio::Options::default());
            each(&runs, settings, writer, |explained, causes| put(&explained.item.line(), causes, &explained.rules))
        }
    }
}

/// A cause, where it stands in the file.
struct Line {
    /// `None` for what no line says: that a run begins without a user's frame, or that it ends without an end.
    line: Option<usize>,
    name: String,
    held: bool,
    rules: Vec<Rule>,
}

fn each<W: ExplainWriter>(
    runs: &[Run],
    settings: Settings,
    writer: W,
    mut put: impl FnMut(&Explained<W::Item>, &[Line]) -> io::Result<()>,
) -> io::Result<()> {
    let mut explanation = Explanation::new(writer);
    let mut at = BEGINNING;
    for (number, run) in (1_u128..).zip(runs) {
        explanation.begin(Box::new(NativeExplainer::new(settings)));
        let bodies: Vec<_> = run.bodies(number).collect();
        let lines: Vec<Option<usize>> = bodies.iter().map(|(line, _)| *line).collect();
        for (_, body) in bodies {
            let record = Record { at, body };
            at = at.saturating_add(STEP);
            for explained in explanation.feed(&record) {
                let causes = explained.causes.iter().map(|cause| Line {
                    line: lines.get(cause.record).copied().flatten(),
                    name: cause.name.to_string(),
                    held: cause.held,
                    rules: cause.rules.clone(),
                });
                put(&explained, &causes.collect::<Vec<_>>())?;
            }
        }
    }
    Ok(())
}

/// The event, and below it, moved in, what caused it. A rule's sentence stands where the rule comes up first.
fn people(out: &mut dyn Write, event: &str, causes: &[Line], rules: &[Rule], said: &mut HashSet<Rule>) -> io::Result<()> {
    writeln!(out, "{event}")?;
    for cause in causes {
        match cause.line {
            Some(line) => write!(out, "    line {line}: {}", cause.name)?,
            None => write!(out, "    no line: {}", cause.name)?,
        }
        writeln!(out, "{}", if cause.held { ", which waited" } else { "" })?;
        sentences(out, &cause.rules, said)?;
    }
    writeln!(out, "    on this surface")?;
    sentences(out, rules, said)
}

fn sentences(out: &mut dyn Write, rules: &[Rule], said: &mut HashSet<Rule>) -> io::Result<()> {
    for rule in rules {
        if said.insert(*rule) {
            writeln!(out, "        {}: {}", rule.name, rule.sentence)?;
        } else {
            writeln!(out, "        {}", rule.name)?;
        }
    }
    Ok(())
}

#[derive(serde::Serialize)]
struct Said<'a> {
    event: &'a RawValue,
    causes: Vec<SaidCause<'a>>,
    rules: Vec<SaidRule>,
}

#[derive(serde::Serialize)]
struct SaidCause<'a> {
    line: Option<usize>,
    name: &'a str,
    held: bool,
    rules: Vec<SaidRule>,
}

#[derive(serde::Serialize)]
struct SaidRule {
    name: &'static str,
    sentence: &'static str,
}

fn all(rules: &[Rule]) -> Vec<SaidRule> {
    rules.iter().map(|Rule { name, sentence }| SaidRule { name, sentence }).collect()
}

/// One JSON object, on one line. The event is in it as it would be without an explanation, to the byte.
fn machines(out: &mut dyn Write, event: &str, causes: &[Line], rules: &[Rule]) -> io::Result<()> {
    let event: &RawValue = serde_json::from_str(event)?;
    let causes = causes.iter().map(|Line { line, name, held, rules }| SaidCause { line: *line, name, held: *held, rules: all(rules) });
    serde_json::to_writer(&mut *out, &Said { event, causes: causes.collect(), rules: all(rules) })?;
    out.write_all(b"\n")
}
