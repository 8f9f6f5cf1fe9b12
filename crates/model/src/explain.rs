//! Why an item is there: the records that caused it, and the named rules by which they did.
//!
//! ```text
//! record ──▶ ExplainReader ──▶ events, each with its reason ──▶ ExplainWriter ──▶ items, each with its source
//!                      └──────────────── Explanation ────────────────┘
//! ```
//!
//! Explaining is a second run of the same pure code over the same records, so it says what really happened and costs nothing
//! while nobody asks. What it adds to a translation is only said here: no reader or writer works differently for it.

use std::collections::HashMap;

use crate::{Event, Json, Lane, Millis, Reader, Record, Text, Writer, write_json_string};

/// A rule of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// Its name, in kebab case: what tables and explanations say.
    pub name: &'static str,
    /// What it says.
    pub sentence: &'static str,
}

/// Declares rules as constants, and `ALL` of them in the order given.
#[macro_export]
macro_rules! rules {
    ($( $constant:ident = $name:literal : $sentence:literal; )*) => {
        $(
            #[doc = $sentence]
            pub const $constant: $crate::Rule = $crate::Rule { name: $name, sentence: $sentence };
        )*

        /// All rules, in the order in which pages list them.
        pub const ALL: &[$crate::Rule] = &[ $( $constant ),* ];
    };
}

/// A reader that also says why. It gives the same events as the [`Reader`] it explains.
pub trait ExplainReader: Send {
    /// Reads the next record of the run. The first one is number 0, the run's [`crate::Fact::RunAccepted`].
    fn explain(&mut self, record: &Record) -> Meaning;
}

/// What a record means, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Meaning {
    /// What the record is: a frame's `type/subtype`, `malformed`, or `fact/…`.
    pub name: Text,
    /// Its events.
    pub events: Vec<Event>,
    /// The reason of each event, in the same order.
    pub reasons: Vec<Reason>,
}

/// Why an event came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    /// The rules by which the record made it, the most particular one first.
    pub rules: Vec<Rule>,
    /// Earlier records that waited for this one.
    pub held: Vec<Held>,
}

/// A record that came earlier and waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number in the run, from 0.
    pub record: usize,
    /// The rule by which it waited.
    pub rule: Rule,
}

/// A writer that also says why.
pub trait ExplainWriter: Writer {
    /// The same as [`Writer::write`], and for each item that it appends a source to `sources`.
    fn write_explained(&mut self, record: &Record, events: &[Event], items: &mut Vec<Self::Item>, sources: &mut Vec<Source>);

    /// Whether an event that gave no item may yet come out with a later one of its lane, whose source then says [`Source::releases`].
    fn may_wait(&self, event: &Event) -> bool {
        let _ = event;
        false
    }
}

/// What made an item come out of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The number of the event among those of the record; `None` where the record as a whole did.
    pub event: Option<usize>,
    /// The rule by which it became this item.
    pub rule: Rule,
    /// What waited in this event's lane comes out with this item.
    pub releases: bool,
}

/// One line of a surface's table: what becomes of a kind of event there. The same lines make the surface's pages and its explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The item's name, as the page of the protocol has it; empty if the event gives none.
    pub item: &'static str,
    /// The rule by which it is that.
    pub rule: Rule,
    /// When it is, in a few words.
    pub when: &'static str,
    /// The option that it takes; empty if it is so by default.
    pub option: &'static str,
}

impl Shown {
    /// A line that holds by default.
    #[must_use]
    pub const fn item(item: &'static str, rule: Rule, when: &'static str) -> Self {
        Self { item, rule, when, option: "" }
    }

    /// A line that says why there is nothing.
    #[must_use]
    pub const fn nothing(rule: Rule, when: &'static str) -> Self {
        Self { item: "", rule, when, option: "" }
    }

    /// The same, if this option is set.
    #[must_use]
    pub const fn with(self, option: &'static str) -> Self {
        Self { option, ..self }
    }
}

/// One item, and why it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained<I> {
    /// The item.
    pub item: I,
    /// The records that caused it, in the order they came; the last one made it come out, the others had waited for that.
    pub causes: Vec<Cause>,
    /// The rules by which the events became this item on this surface.
    pub rules: Vec<Rule>,
}

/// One record that caused an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Its number in the run: 0 is the record that says that the run was accepted.
    pub record: usize,
    /// When it arrived.
    pub at: Millis,
    /// A frame's `type/subtype`, `malformed`, or `fact/…` for what we know ourselves.
    pub name: Text,
    /// It waited for a later one.
    pub held: bool,
    /// The rules by which it came to mean this.
    pub rules: Vec<Rule>,
}

impl<I> Explained<I> {
    /// The causes and rules as one JSON object, the same on every surface:
    /// `{"causes":[{"record":3,"at":1767225600003,"name":"stream_event/content_block_stop","held":false,"rules":["…"]}],"rules":["…"]}`.
    #[must_use]
    pub fn why(&self) -> Json {
        let mut out = String::from("{\"causes\":[");
        for (n, cause) in self.causes.iter().enumerate() {
            if n > 0 {
                out.push(',');
            }
            out.push_str(&format!("{{\"record\":{},\"at\":{},\"name\":", cause.record, cause.at));
            write_json_string(&mut out, &cause.name);
            out.push_str(if cause.held { ",\"held\":true,\"rules\":" } else { ",\"held\":false,\"rules\":" });
            write_names(&mut out, &cause.rules);
            out.push('}');
        }
        out.push_str("],\"rules\":");
        write_names(&mut out, &self.rules);
        out.push('}');
        Json::written(out)
    }

    /// The same explanation of something made from the item.
    pub fn map<J>(self, make: impl FnOnce(I) -> J) -> Explained<J> {
        Explained { item: make(self.item), causes: self.causes, rules: self.rules }
    }
}

fn write_names(out: &mut String, rules: &[Rule]) {
    out.push('[');
    for (n, rule) in rules.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        write_json_string(out, rule.name);
    }
    out.push(']');
}

/// A session explained, run by run.
pub struct Explanation<W: ExplainWriter> {
    writer: W,
    reader: Option<Box<dyn ExplainReader>>,
    /// The records of the run so far: when each came, and what it is.
    records: Vec<(Millis, Text)>,
    /// What the writer holds back, by lane.
    waiting: HashMap<Lane, Vec<(usize, Vec<Rule>)>>,
}

impl<W: ExplainWriter> Explanation<W> {
    /// An explanation of what this fresh writer will write.
    #[must_use]
    pub fn new(writer: W) -> Self {
        Self { writer, reader: None, records: Vec::new(), waiting: HashMap::new() }
    }

    /// The next record begins a run, which this fresh reader reads.
    pub fn begin(&mut self, reader: Box<dyn ExplainReader>) {
        self.reader = Some(reader);
        self.records.clear();
        self.waiting.clear();
    }

    /// The session's next record: the items that it makes the writer write, each explained.
    pub fn feed(&mut self, record: &Record) -> Vec<Explained<W::Item>> {
        let number = self.records.len();
        let Meaning { name, events, reasons } = match &mut self.reader {
            Some(reader) => reader.explain(record),
            None => Meaning { name: record.body.name(), events: Vec::new(), reasons: Vec::new() },
        };
        self.records.push((record.at, name));
        let (mut items, mut sources) = (Vec::new(), Vec::new());
        self.writer.write_explained(record, &events, &mut items, &mut sources);
        let mut explained = Vec::with_capacity(items.len());
        for (item, source) in items.into_iter().zip(&sources) {
            let about = source.event.and_then(|at| Some((events.get(at)?, reasons.get(at)?)));
            let mut causes = Vec::new();
            let mut rules = Vec::new();
            if let Some((event, reason)) = about {
                causes.extend(reason.held.iter().map(|held| (held.record, true, vec![held.rule])));
                if source.releases {
                    causes.extend(self.waiting.remove(&event.lane).into_iter().flatten().map(|(record, rules)| (record, true, rules)));
                }
                rules.clone_from(&reason.rules);
            }
            causes.sort_by_key(|(record, ..)| *record);
            causes.dedup_by_key(|(record, ..)| *record);
            causes.retain(|(record, ..)| *record != number);
            causes.push((number, false, rules));
            let causes = causes.into_iter().filter_map(|(record, held, rules)| {
                let (at, name) = self.records.get(record)?.clone();
                Some(Cause { record, at, name, held, rules })
            });
            explained.push(Explained { item, causes: causes.collect(), rules: vec![source.rule] });
        }
        for (at, event) in events.iter().enumerate() {
            if self.writer.may_wait(event) && !sources.iter().any(|source| source.event == Some(at)) {
                let Reason { rules, held } = reasons.get(at).cloned().unwrap_or_default();
                let waiting = self.waiting.entry(event.lane.clone()).or_default();
                waiting.extend(held.into_iter().map(|held| (held.record, vec![held.rule])));
                waiting.push((number, rules));
            }
        }
        explained
    }
}

/// A reader that explains nothing: where an upstream's reader has no rules to tell.
pub struct Unexplained(Box<dyn Reader>);

impl Unexplained {
    /// The events of this fresh reader, without reasons.
    #[must_use]
    pub fn new(reader: Box<dyn Reader>) -> Self {
        Self(reader)
    }
}

impl ExplainReader for Unexplained {
    fn explain(&mut self, record: &Record) -> Meaning {
        let mut events = Vec::new();
        self.0.read(record, &mut events);
        let reasons = events.iter().map(|_| Reason::default()).collect();
        Meaning { name: record.body.name(), events, reasons }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, What};

    const READ: Rule = Rule { name: "read", sentence: "Each frame is thinking, but for `!`, which is text." };
    const WAITED: Rule = Rule { name: "waited", sentence: "A frame of dots waits." };
    const WRITTEN: Rule = Rule { name: "written", sentence: "Thinking comes out with the text that follows it." };

    /// A frame that begins with a dot is held back by the reader.
    #[derive(Default)]
    struct Frames {
        number: usize,
        held: Vec<Held>,
    }

    impl ExplainReader for Frames {
        fn explain(&mut self, record: &Record) -> Meaning {
            let record_number = self.number;
            self.number += 1;
            let mut meaning = Meaning { name: record.body.name(), events: Vec::new(), reasons: Vec::new() };
            let Body::Frame(text) = &record.body else { return meaning };
            if text.starts_with('.') {
                self.held.push(Held { record: record_number, rule: WAITED });
                return meaning;
            }
            let delta = text.clone();
            let what = if text.starts_with('!') { What::Text { delta } } else { What::Thinking { delta } };
            meaning.events.push(Event::root(what));
            meaning.reasons.push(Reason { rules: vec![READ], held: std::mem::take(&mut self.held) });
            meaning
        }
    }

    /// Writes text only, and the thinking before it with it.
    #[derive(Default)]
    struct Texts(String);

    impl Writer for Texts {
        type Item = String;

        fn write(&mut self, _: &Record, events: &[Event], items: &mut Vec<String>) {
            for event in events {
                match &event.what {
                    What::Thinking { delta } => self.0.push_str(delta),
                    What::Text { delta } => items.push(std::mem::take(&mut self.0) + delta),
                    _ => {}
                }
            }
        }
    }

    impl ExplainWriter for Texts {
        fn write_explained(&mut self, record: &Record, events: &[Event], items: &mut Vec<String>, sources: &mut Vec<Source>) {
            self.write(record, events, items);
            sources.extend(items.iter().map(|_| Source { event: Some(0), rule: WRITTEN, releases: true }));
        }

        fn may_wait(&self, event: &Event) -> bool {
            matches!(event.what, What::Thinking { .. })
        }
    }

    #[test]
    fn an_item_names_what_the_reader_and_the_writer_held_back_for_it() {
        let mut explanation = Explanation::new(Texts::default());
        explanation.begin(Box::<Frames>::default());
        let mut told = Vec::new();
        for (at, text) in (10..).zip(["a", "..", "b", "!c", "!d"]) {
            told.extend(explanation.feed(&Record { at, body: Body::Frame(Text::from_static(text)) }));
        }
        let causes = |n: usize| -> Vec<(usize, Millis, bool)> { told[n].causes.iter().map(|c| (c.record, c.at, c.held)).collect() };
        assert_eq!(told.iter().map(|explained| explained.item.as_str()).collect::<Vec<_>>(), ["ab!c", "!d"]);
        assert_eq!(causes(0), [(0, 10, true), (1, 11, true), (2, 12, true), (3, 13, false)]);
        assert_eq!(causes(1), [(4, 14, false)]);
        assert_eq!(
            told[1].why().as_str(),
            r#"{"causes":[{"record":4,"at":14,"name":"frame","held":false,"rules":["read"]}],"rules":["written"]}"#
        );
    }
}
