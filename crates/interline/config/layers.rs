//! Layers: defaults, file, environment and options as TOML, laid over one another and then read once, as one typed whole.
//!
//! Every value keeps its place. The layers stand one behind the other in one imaginary text, so that a position in it names
//! a layer and a line, whatever layer a value came from.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::problem::Problem;

/// What the names of environment variables begin with.
const PREFIX: &str = "INTERLINE__";

/// One source of settings.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    source: Source,
    text: String,
}

/// What a layer is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file, with lines.
    File(String),
    /// An environment variable.
    Variable(String),
    /// An option of the command line.
    Flag(&'static str),
}

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    source: Source,
    /// From 1; 0 is the file as a whole.
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::File(name) if self.line == 0 => f.write_str(name),
            Source::File(name) => write!(f, "{name}:{}", self.line),
            Source::Variable(name) => write!(f, "environment variable {name}"),
            Source::Flag(name) => write!(f, "option {name}"),
        }
    }
}

impl Layer {
    /// The text of a config file.
    pub(crate) fn file(name: impl Into<String>, text: String) -> Self {
        Self { source: Source::File(name.into()), text }
    }

    /// An option that stands for the key at `path`.
    pub(crate) fn flag(name: &'static str, path: &str, value: &str) -> Self {
        Self { source: Source::Flag(name), text: format!("{path} = {}", toml::Value::from(value)) }
    }

    /// The variables `INTERLINE__SECTION__KEY`, in the order of their names. A value that reads as TOML is that, anything else is text.
    pub(crate) fn environment(variables: impl Iterator<Item = (String, String)>) -> Result<Vec<Self>, Problem> {
        let mut layers = Vec::new();
        for (name, value) in variables {
            let Some(keys) = name.strip_prefix(PREFIX) else { continue };
            let path = keys.to_ascii_lowercase().replace("__", ".");
            let bare = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
            if !path.split('.').all(bare) {
                let place = Place { source: Source::Variable(name), line: 1 };
                return Err(Problem::at(
                    Some(place),
                    String::new(),
                    "the name is INTERLINE__SECTION__KEY, for example INTERLINE__SERVER__LISTEN",
                ));
            }
            let value = if DeValue::parse(&value).is_ok() { value } else { toml::Value::from(value).to_string() };
            layers.push(Self { source: Source::Variable(name), text: format!("{path} = {value}") });
        }
        layers.sort_by(|a, b| a.source.name().cmp(b.source.name()));
        Ok(layers)
    }
}

impl Source {
    fn name(&self) -> &str {
        match self {
            Self::File(name) | Self::Variable(name) => name,
            Self::Flag(name) => name,
        }
    }
}

/// Where each key of the merged whole stands.
#[derive(Debug, Default)]
pub(crate) struct Places {
    keys: Vec<Key>,
    /// The file, for what is written nowhere.
    file: Option<Place>,
}

#[derive(Debug)]
struct Key {
    path: String,
    spans: [Range<usize>; 2],
    place: Place,
}

impl Places {
    /// The place of a key such as `upstream[0].url`; if it is not written anywhere, that of the nearest table around it.
    pub(crate) fn of(&self, path: &str) -> Option<Place> {
        let mut path = path;
        loop {
            if let Some(key) = self.keys.iter().find(|key| key.path == path) {
                return Some(key.place.clone());
            }
            match path.rfind(['.', '[']).and_then(|end| path.get(..end)) {
                Some(around) => path = around,
                None => return self.file.clone(),
            }
        }
    }

    /// Whether somebody wrote a key, wherever.
    pub(crate) fn is_written(&self, path: &str) -> bool {
        self.keys.iter().any(|key| key.path == path)
    }

    /// The innermost key around a position.
    fn around(&self, span: &Range<usize>) -> Option<&Key> {
        let holds = |outer: &&Range<usize>| outer.start <= span.start && span.end <= outer.end;
        let size = |key: &Key| key.spans.iter().filter(holds).map(ExactSizeIterator::len).min();
        self.keys.iter().filter(|key| size(key).is_some()).min_by_key(|key| (size(key), usize::MAX - key.path.len()))
    }
}

/// What the layers come to.
#[derive(Debug)]
pub(crate) struct Read<T> {
    pub(crate) value: T,
    pub(crate) places: Places,
    /// Keys that there are not: all else was read without them.
    pub(crate) unknown: Vec<Problem>,
}

/// Reads the layers, later ones over earlier ones.
///
/// # Errors
/// Every key whose value cannot be read, and every key that there is not.
pub(crate) fn read<T: DeserializeOwned>(layers: &[Layer]) -> Result<Read<T>, Vec<Problem>> {
    let mut starts = Vec::new();
    let mut texts = Vec::new();
    let mut end = 0;
    for layer in layers {
        starts.push(end);
        // Blanks in front move every position of the layer behind those of the layers before.
        texts.push(format!("{}{}\n", " ".repeat(end), layer.text));
        end = texts.last().map_or(end, String::len);
    }
    let locate = |at: usize| {
        let number = starts.partition_point(|start| *start <= at).saturating_sub(1);
        let (layer, text, start) = (layers.get(number)?, texts.get(number)?, starts.get(number)?);
        let before = text.as_bytes().get(*start..at.min(text.len()))?;
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Some(Place { source: layer.source.clone(), line })
    };
    let mut merged = DeTable::new();
    for text in &texts {
        match DeTable::parse(text) {
            Ok(table) => lay_over(&mut merged, table.into_inner()),
            Err(error) => {
                let place = error.span().and_then(|span| locate(span.start));
                return Err(vec![Problem::at(place, String::new(), error.message())]);
            }
        }
    }
    let file = layers.iter().find(|layer| matches!(layer.source, Source::File(_)));
    let mut places = Places { keys: Vec::new(), file: file.map(|layer| Place { source: layer.source.clone(), line: 0 }) };
    list(&merged, "", &locate, &mut places.keys);
    // The reader gives up at the first mistake, so what it stumbled over is taken away and the rest is read again.
    let (mut unknown, mut unreadable) = (Vec::new(), Vec::new());
    let mut taken: Vec<String> = Vec::new();
    loop {
        let error = match T::deserialize(toml::Deserializer::from(Spanned::new(0..end, merged.clone()))) {
            Ok(value) if unreadable.is_empty() => return Ok(Read { value, places, unknown }),
            Ok(_) => break,
            Err(error) => error,
        };
        let key = error.span().and_then(|span| places.around(&span));
        let place = key.map(|key| key.place.clone()).or_else(|| locate(error.span()?.start));
        let path = key.map(|key| key.path.clone()).unwrap_or_default();
        let message = error.message();
        if message.starts_with(UNKNOWN) {
            unknown.push(Problem::at(place, path.clone(), message).without_secrets());
        } else if !taken.iter().any(|taken| *message == missing(&path, taken)) {
            unreadable.push(Problem::at(place, path.clone(), in_words(message)).without_secrets());
        }
        // Whatever cannot be taken away ends the search, and so does the last key.
        if !key.is_some_and(|key| take(&mut merged, &key.spans)) {
            break;
        }
        taken.push(path);
    }
    unknown.append(&mut unreadable);
    Err(unknown)
}

/// How serde begins to say that there is no such key.
const UNKNOWN: &str = "unknown field";

/// How serde says that the key at `taken` is missing from the table at `path`.
fn missing(path: &str, taken: &str) -> String {
    let key = taken.strip_prefix(path).and_then(|rest| rest.strip_prefix('.')).unwrap_or_default();
    format!("missing field `{key}`")
}

/// Takes the key with these spans away, with its value.
fn take(table: &mut DeTable<'_>, spans: &[Range<usize>; 2]) -> bool {
    let found = table.iter().find(|(key, value)| [key.span(), value.span()] == *spans).map(|(key, _)| key.clone());
    match found {
        Some(key) => table.remove_entry(&key).is_some(),
        None => table.iter_mut().any(|(_, value)| take_from(value.get_mut(), spans)),
    }
}

fn take_from(value: &mut DeValue<'_>, spans: &[Range<usize>; 2]) -> bool {
    match value {
        DeValue::Table(table) => take(table, spans),
        DeValue::Array(values) => {
            let before = values.len();
            let kept = values.iter().filter(|value| [value.span(), value.span()] != *spans);
            let kept: DeArray<'_> = kept.cloned().collect();
            *values = kept;
            values.len() < before || values.iter_mut().any(|value| take_from(value.get_mut(), spans))
        }
        _ => false,
    }
}

fn lay_over<'i>(lower: &mut DeTable<'i>, upper: DeTable<'i>) {
    for (key, value) in upper {
        let below = lower.remove_entry(&key);
        let span = value.span();
        let value = match (below, value.into_inner()) {
            (Some((_, below)), DeValue::Table(above)) => match below.into_inner() {
                DeValue::Table(mut table) => {
                    lay_over(&mut table, above);
                    DeValue::Table(table)
                }
                _ => DeValue::Table(above),
            },
            (_, value) => value,
        };
        lower.insert(key, Spanned::new(span, value));
    }
}

fn list(table: &DeTable<'_>, prefix: &str, locate: &impl Fn(usize) -> Option<Place>, keys: &mut Vec<Key>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.to_string() } else { format!("{prefix}.{key}") };
        list_value(path, key.span(), value, locate, keys);
    }
}

fn list_value(
    path: String,
    key: Range<usize>,
    value: &Spanned<DeValue<'_>>,
    locate: &impl Fn(usize) -> Option<Place>,
    keys: &mut Vec<Key>,
) {
    match value.get_ref() {
        DeValue::Table(table) => list(table, &path, locate, keys),
        DeValue::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                list_value(format!("{path}[{number}]"), value.span(), value, locate, keys);
            }
        }
        _ => {}
    }
    if let Some(place) = locate(key.start) {
        keys.push(Key { path, spans: [key, value.span()], place });
    }
}
/// What a key takes, without the names of types.
fn in_words(message: &str) -> String {
    let kinds = ["u64", "u32", "u16", "u8", "usize"];
    match message.split_once("expected ") {
        Some((before, kind)) if kinds.contains(&kind) => format!("{before}expected a whole number that is not negative"),
        _ => message.to_owned(),
    }
}
