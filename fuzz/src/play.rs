//! Plays a script through the native reader, and holds what comes out to the order that `What` promises.

use interline_model::{Body, Event, Fact, ForcedEnd, Millis, Part, Reader, Record, RunAccepted, RunId, SessionId, Text, What};
use interline_native::{Frame, NativeReader, Settings};

use crate::order;
use crate::script::{Script, Step, actor};

/// When the first record of every script arrives.
const BEGIN: Millis = 1_767_225_600_000;

/// Option bits 30 and 31 are the reader's.
const CHAT: u32 = 30;
const HEADLESS: u32 = 31;

/// How frames reach the reader.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Once each.
    Once,
    /// Those that carry an id twice, as servers do that replay after a break.
    Repeated,
}

/// Plays `script`, and shows every record with what it means. Each run begins once, ends once, and keeps the order.
///
/// # Panics
/// If one does not: that is the finding.
pub fn play(script: &Script, delivery: Delivery, mut see: impl FnMut(&Record, &[Event])) {
    let mut run = Run::begin(script, 1, BEGIN, &mut see);
    for step in &script.steps {
        match step {
            Step::Frame(text) => {
                run.frame(text, &mut see);
                if delivery == Delivery::Repeated && Frame::parse(text).is_ok_and(|frame| frame.key().is_some()) {
                    run.frame(text, &mut see);
                }
            }
            Step::Fact(fact) => run.record(Body::Fact(fact.clone()), &mut see),
            Step::Wait(time) => run.now += time,
            Step::Run => {
                let (number, now) = (run.number + 1, run.now);
                run.end(&mut see);
                run = Run::begin(script, number, now, &mut see);
            }
        }
    }
    run.end(&mut see);
}

struct Run {
    number: u128,
    now: Millis,
    reader: NativeReader,
    events: Vec<Event>,
    /// Bytes that frames brought.
    brought: usize,
}

impl Run {
    fn begin(script: &Script, number: u128, now: Millis, see: &mut impl FnMut(&Record, &[Event])) -> Self {
        let reader = NativeReader::new(Settings { chat: script.option(CHAT) });
        let mut run = Self { number, now, reader, events: Vec::new(), brought: 0 };
        let accepted = RunAccepted {
            run: RunId::from_u128(number),
            session: SessionId::from("session"),
            model: Text::from_static("default"),
            input: vec![Part::Text(Text::from_static("hi"))],
            by: actor(),
            actor: None,
            headless: script.option(HEADLESS),
            output_schema: None,
        };
        run.record(Body::Fact(Fact::RunAccepted(Box::new(accepted))), see);
        run
    }

    fn frame(&mut self, text: &Text, see: &mut impl FnMut(&Record, &[Event])) {
        self.brought += text.len();
        self.record(Body::Frame(text.clone()), see);
    }

    fn record(&mut self, body: Body, see: &mut impl FnMut(&Record, &[Event])) {
        let record = Record { at: self.now, body };
        let before = self.events.len();
        self.reader.read(&record, &mut self.events);
        see(&record, self.events.get(before..).unwrap_or_default());
    }

    fn end(mut self, see: &mut impl FnMut(&Record, &[Event])) {
        self.record(Body::Fact(Fact::EndForced(ForcedEnd::UpstreamGone)), see);
        assert!(order::check(&self.events), "a run without an end");
        let said = self.events.iter().map(|event| match &event.what {
            What::Text { delta } | What::Thinking { delta } => delta.len(),
            _ => 0,
        });
        assert!(said.sum::<usize>() <= self.brought, "more text than the frames brought");
    }
}
