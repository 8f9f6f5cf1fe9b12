//! The way of a frame: the same reader and writers that a session drives, without the session.

use interline_model::{Actor, Body, Event, Fact, Millis, Principal, Reader, Record, RunAccepted, RunId, SessionId, Text, Writer};
use interline_native::{NativeReader, Settings};

/// Time between two frames: fifty tokens a second.
const BETWEEN: Millis = 20;

/// A run in progress, and one surface's writer behind it.
pub struct Path<W: Writer> {
    reader: NativeReader,
    writer: W,
    now: Millis,
    events: Vec<Event>,
    items: Vec<W::Item>,
}

impl<W: Writer> Path<W> {
    /// A run that has just been accepted.
    #[must_use]
    pub fn new(writer: W) -> Self {
        let reader = NativeReader::new(Settings::default());
        let mut path = Self { reader, writer, now: 1_767_225_600_000, events: Vec::new(), items: Vec::new() };
        path.record(Body::Fact(Fact::RunAccepted(Box::new(RunAccepted {
            run: RunId::from_u128(1),
            session: SessionId::from("6892e32d-ff7a-47e8-a800-e7ea87c41069"),
            model: Text::from_static("default"),
            input: Vec::new(),
            by: Actor { principal: Principal::from("anonymous"), surface: Text::from_static("sse") },
            actor: None,
            headless: false,
            output_schema: None,
        }))));
        path
    }

    /// Parses, reads and writes a frame; what was written is let go of.
    pub fn frame(&mut self, frame: &Text) {
        self.now += BETWEEN;
        self.record(Body::Frame(frame.clone()));
    }

    fn record(&mut self, body: Body) {
        let record = Record { at: self.now, body };
        self.events.clear();
        self.items.clear();
        self.reader.read(&record, &mut self.events);
        self.writer.write(&record, &self.events, &mut self.items);
    }
}
