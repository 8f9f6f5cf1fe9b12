//! The tables of `docs/mapping-*.md`: they are what the code says, and what the code says is what it does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use interline_model::{Body, Event, EventKind, ExplainReader as _, ExplainWriter, Meaning, Record, Shown};
use interline_native::rules::{self, Means};
use interline_native::{FrameKind, NativeExplainer, Settings};
use interline_surface_socketio::SocketWriter;
use interline_surface_sse::{AskLimits, Extras, InterruptTerminal, SseWriter, SubAgents};

#[path = "mapping/examples.rs"]
mod examples;
#[path = "mapping/page.rs"]
mod page;

use page::Surface;

const SSE: Surface = Surface {
    title: "SSE",
    name: "sse",
    shown: interline_surface_sse::rules::shown,
    besides: &[],
    rules: interline_surface_sse::rules::ALL,
    common: &["of a sub-agent"],
};

const SOCKETIO: Surface = Surface {
    title: "Socket.IO",
    name: "socketio",
    shown: interline_surface_socketio::rules::shown,
    besides: &[
        ("Of a record as a whole", interline_surface_socketio::rules::OF_THE_RECORD),
        ("What else the documents name", interline_surface_socketio::rules::BESIDES),
    ],
    rules: interline_surface_socketio::rules::ALL,
    common: &["if the chat was paused", "if thinking waits"],
};

#[test]
fn the_pages_are_what_the_code_gives() {
    for surface in [SSE, SOCKETIO] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/mapping-{}.md", surface.name));
        let page = page::page(&surface);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = committed.lines().zip(page.lines()).find(|(old, new)| old != new);
        assert!(committed == page, "{} is not what the code gives; UPDATE_DOCS=1 writes it again. First: {differs:?}", path.display());
    }
}

#[test]
fn every_fact_has_a_row() {
    // A match, so that a new one is thought of here.
    let names: BTreeSet<&str> = page::facts().iter().map(interline_model::Fact::name).collect();
    assert_eq!(names.len(), 8);
}

/// The records of an example, from the run's beginning on.
fn records(example: &[Body]) -> Vec<Record> {
    let accepted = page::facts().into_iter().next().map(Body::Fact).unwrap();
    let bodies = std::iter::once(accepted).chain(example.iter().cloned());
    (0..).map(|n| 1_767_225_600_000 + n).zip(bodies).map(|(at, body)| Record { at, body }).collect()
}

/// What the last record of an example means.
fn meanings(records: &[Record]) -> Vec<Meaning> {
    let mut reader = NativeExplainer::new(Settings::default());
    records.iter().map(|record| reader.explain(record)).collect()
}

fn table(body: &Body) -> (String, &'static [Means]) {
    match body {
        Body::Frame(text) => {
            let kind = FrameKind::of(text);
            (kind.name().to_owned(), rules::means(kind))
        }
        Body::Fact(fact) => (fact.name().to_owned(), rules::fact_means(fact)),
    }
}

#[test]
fn frames_mean_what_their_rows_say_and_nothing_else() {
    let mut shown: BTreeMap<String, BTreeSet<EventKind>> = BTreeMap::new();
    let mut tables: BTreeMap<String, &[Means]> = FrameKind::all().map(|kind| (kind.name().to_owned(), rules::means(kind))).collect();
    tables.extend(page::facts().iter().map(|fact| (fact.name().to_owned(), rules::fact_means(fact))));
    for example in examples::examples().into_iter().chain([Vec::new()]) {
        let records = records(&example);
        let last = meanings(&records).pop().unwrap();
        let (name, table) = table(&records.last().unwrap().body);
        for event in &last.events {
            let line = rules::line(table, event);
            assert!(line.is_some(), "no row says that {name} can mean {event:?}, as it does in {example:#?}");
            shown.entry(name.clone()).or_default().insert(event.what.kind());
        }
    }
    let mut unproved = Vec::new();
    for (name, table) in tables {
        let seen = shown.remove(&name).unwrap_or_default();
        unproved.extend(table.iter().filter(|means| !seen.contains(&means.event)).map(|means| format!("{name}: {}", means.event.name())));
    }
    assert!(unproved.is_empty(), "no example shows what these rows say: {unproved:#?}");
}

/// What came of one event: the kind, the items' names with their JSON.
type Told = (Option<EventKind>, Vec<(String, String)>);

/// What a writer makes of the last record of each example.
fn told<W: ExplainWriter>(writer: impl Fn() -> W, name: impl Fn(&W::Item) -> (String, String)) -> Vec<Told> {
    let mut all = Vec::new();
    for example in examples::examples().into_iter().chain([Vec::new()]) {
        let records = records(&example);
        let mut writer = writer();
        for (record, meaning) in records.iter().zip(meanings(&records)) {
            let (mut items, mut sources) = (Vec::new(), Vec::new());
            writer.write_explained(record, &meaning.events, &mut items, &mut sources);
            assert_eq!(items.len(), sources.len());
            // Every record counts, so that an item which is no event's is not missed.
            for number in (0..meaning.events.len()).map(Some).chain([None]) {
                let kind = number.and_then(|at| meaning.events.get(at)).map(|event: &Event| event.what.kind());
                let mine = items.iter().zip(&sources).filter(|(_, source)| source.event == number);
                all.push((kind, mine.map(|(item, _)| name(item)).collect()));
            }
        }
    }
    all
}

/// The lines that hold with this option, or by default.
fn lines(surface: &Surface, kind: Option<EventKind>, option: &str) -> impl Iterator<Item = &'static Shown> {
    let lines = match kind {
        Some(kind) => (surface.shown)(kind),
        None => surface.besides.first().map_or(&[][..], |(_, lines)| lines),
    };
    let option = option.to_owned();
    lines.iter().filter(move |line| line.option.is_empty() || line.option == option)
}

/// What came is what the lines say, and every line with this option (or without one) came.
fn hold(surface: &Surface, option: &str, told: &[Told]) {
    let mut seen: BTreeSet<(Option<EventKind>, String)> = BTreeSet::new();
    let mut members: BTreeMap<(Option<EventKind>, String), BTreeSet<String>> = BTreeMap::new();
    let mut wrong: BTreeMap<(Option<EventKind>, String), String> = BTreeMap::new();
    for (kind, items) in told {
        let known: Vec<&Shown> = lines(surface, *kind, option).collect();
        if items.is_empty() {
            seen.insert((*kind, String::new()));
        }
        for (name, json) in items {
            if !known.iter().any(|line| line.item == name) {
                wrong.entry((*kind, name.clone())).or_insert_with(|| json.clone());
            }
            seen.insert((*kind, name.clone()));
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            members.entry((*kind, name.clone())).or_default().extend(value.as_object().unwrap().keys().cloned());
        }
    }
    let mut unproved = Vec::new();
    for kind in EventKind::ALL.iter().copied().filter(|kind| *kind != EventKind::ToolOutput).map(Some).chain([None]) {
        for line in lines(surface, kind, option).filter(|line| line.option == option) {
            let key = (kind, line.item.to_owned());
            if !seen.contains(&key) {
                unproved.push(format!("{kind:?} gives {:?}", line.item));
            }
            let claimed = line.when.split('`').skip(1).step_by(2).filter(|_| line.when.starts_with("its "));
            let has = members.get(&key);
            unproved.extend(
                claimed.filter(|member| !has.is_some_and(|has| has.contains(*member))).map(|member| format!("{key:?} has {member}")),
            );
        }
    }
    let Surface { title, .. } = surface;
    assert!(wrong.is_empty() && unproved.is_empty(), "{title} ({option:?}): no line says {wrong:#?}; no example shows that {unproved:#?}");
}

#[test]
fn events_on_sse_are_what_the_rows_say() {
    type Options = interline_surface_sse::Options;
    type Set = fn(&mut Options);
    let limits = Some(AskLimits { permission_ms: 30_000, form_ms: 300_000 });
    let options: [(&str, Set); 5] = [
        ("", |_| {}),
        ("extras=fields", |options| options.extras = Extras::Fields),
        ("extras=events", |options| options.extras = Extras::Events),
        ("interrupt_terminal=done", |options| options.interrupt_terminal = InterruptTerminal::Done),
        ("sub_agents=hide", |options| options.sub_agents = SubAgents::Hide),
    ];
    for (option, set) in options {
        let mut chosen = Options { ask_limits: limits, ..Options::default() };
        set(&mut chosen);
        let told = told(
            || SseWriter::new(chosen.clone()),
            |block| (interline_surface_sse::rules::name(block), String::from_utf8(block.json().to_vec()).unwrap()),
        );
        hold(&SSE, option, &told);
    }
}

#[test]
fn events_on_socketio_are_what_the_rows_say() {
    let told = told(
        || SocketWriter::new(interline_surface_socketio::Options::default()),
        |event| (interline_surface_socketio::rules::name(event), event.data.as_str().to_owned()),
    );
    hold(&SOCKETIO, "", &told);
}

/// No two rules of one page share a name, and none that a table uses is missing from the list.
#[test]
fn every_rule_of_a_page_is_listed_once() {
    for surface in [SSE, SOCKETIO] {
        let mut listed: BTreeMap<&str, &str> = BTreeMap::new();
        for rule in rules::ALL.iter().chain(surface.rules) {
            assert!(listed.insert(rule.name, rule.sentence).is_none(), "{} twice", rule.name);
        }
        let used = EventKind::ALL.iter().flat_map(|kind| (surface.shown)(*kind)).map(|line| line.rule);
        let read = FrameKind::all().flat_map(rules::means).map(|means| means.rule);
        for rule in used.chain(read).chain(surface.besides.iter().flat_map(|(_, lines)| *lines).map(|line| line.rule)) {
            assert_eq!(listed.get(rule.name), Some(&rule.sentence));
        }
    }
}
