//! Turns and what is said in them, per lane (decision 10).
//!
//! A turn opens when something is said and none is open, or when all calls of the open one have ended. It is closed by the next
//! one, by compaction, or by the run's end, and never while a call in it is open.

use interline_model::{CallId, Event, Json, Lane, Text, Usage, What};

use super::tools::Told;
use crate::object::Object;
use crate::string::{Halves, Piece};
use crate::think::Voice;

/// Who speaks in one lane, and in which turn.
#[derive(Debug)]
pub(super) struct Speaker {
    lane: Lane,
    turn: Option<Turn>,
    /// Tokens, by message.
    pub(super) meter: Meter,
    text: Halves,
    thinking: Halves,
}

#[derive(Debug, Default)]
struct Turn {
    calls: usize,
    open: usize,
}

impl Speaker {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, turn: None, meter: Meter::default(), text: Halves::default(), thinking: Halves::default() }
    }

    /// An event of this lane.
    pub(super) fn event(&self, what: What) -> Event {
        Event { lane: self.lane.clone(), what }
    }

    /// Says a piece of text or reasoning.
    pub(super) fn say(&mut self, voice: Voice, piece: Piece, events: &mut Vec<Event>) {
        let halves = match voice {
            Voice::Text => &mut self.text,
            Voice::Thinking => &mut self.thinking,
        };
        if let Some(delta) = halves.join(piece) {
            self.tell(voice, delta, events);
        }
    }

    /// Whether half of a character is held back.
    pub(super) fn holds_text(&self) -> bool {
        self.text.holds() || self.thinking.holds()
    }

    /// Says what was held back.
    pub(super) fn flush(&mut self, events: &mut Vec<Event>) {
        for (voice, held) in [(Voice::Thinking, self.thinking.flush()), (Voice::Text, self.text.flush())] {
            if let Some(delta) = held {
                self.tell(voice, delta, events);
            }
        }
    }

    fn tell(&mut self, voice: Voice, delta: Text, events: &mut Vec<Event>) {
        if delta.is_empty() {
            return;
        }
        self.begin(events);
        events.push(self.event(match voice {
            Voice::Text => What::Text { delta },
            Voice::Thinking => What::Thinking { delta },
        }));
    }

    /// Announces a call.
    pub(super) fn call_started(&mut self, call: CallId, name: Text, input: Option<Json>, events: &mut Vec<Event>) {
        let turn = self.begin(events);
        turn.calls += 1;
        turn.open += 1;
        events.push(self.event(What::ToolStarted { call, name, input }));
    }

    /// Ends a call that was announced here.
    pub(super) fn call_ended(&mut self, call: CallId, result: Told, is_error: bool, aborted: bool, events: &mut Vec<Event>) {
        if let Some(turn) = &mut self.turn {
            turn.open = turn.open.saturating_sub(1);
        }
        let Told { text: result, raw } = result;
        events.push(self.event(What::ToolEnded { call, result, raw, is_error, aborted }));
    }

    /// The turn to say something in.
    fn begin(&mut self, events: &mut Vec<Event>) -> &mut Turn {
        if self.turn.as_ref().is_some_and(|turn| turn.calls > 0 && turn.open == 0) {
            self.close(events);
        }
        self.meter.turn_over();
        if self.turn.is_none() {
            events.push(self.event(What::TurnStarted));
        }
        self.turn.get_or_insert_default()
    }

    /// Closes the open turn, if no call in it is open.
    pub(super) fn close(&mut self, events: &mut Vec<Event>) {
        if self.turn.take_if(|turn| turn.open == 0).is_some() {
            let usage = self.meter.take();
            events.push(self.event(What::TurnEnded { usage }));
        }
    }
}

/// The tokens of a turn. A message's usage comes with its start, before anything is said, and is corrected at its end.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Of earlier messages in this turn.
    before: Option<Usage>,
    /// Of the message that speaks.
    current: Option<Usage>,
    /// Of a message that has not spoken yet: it may open a turn of its own.
    next: Option<Usage>,
    /// The message of the last snapshot.
    snapshot: Option<Text>,
}

impl Meter {
    /// A message starts.
    pub(super) fn message(&mut self, usage: &Object<'_>) {
        self.next = read_usage(usage);
    }

    /// The current message's numbers are these now.
    pub(super) fn update(&mut self, usage: &Object<'_>) {
        let known = if self.next.is_some() { &mut self.next } else { &mut self.current };
        if let Some(new) = read_usage(usage) {
            let known = known.get_or_insert_default();
            let replace = |number: &mut u64, new: u64, name| {
                if usage.raw(name).is_some() {
                    *number = new;
                }
            };
            replace(&mut known.input_tokens, new.input_tokens, INPUT);
            replace(&mut known.output_tokens, new.output_tokens, OUTPUT);
            replace(&mut known.cache_read_tokens, new.cache_read_tokens, CACHE_READ);
            replace(&mut known.cache_write_tokens, new.cache_write_tokens, CACHE_WRITE);
        }
    }

    /// A snapshot, in a lane where nothing is streamed. There may be several of one message.
    pub(super) fn snapshot(&mut self, id: Option<Text>, usage: &Object<'_>) {
        if id.is_some() && self.snapshot == id {
            self.update(usage);
        } else {
            self.message(usage);
            self.snapshot = id;
        }
    }

    /// Something is said: by the message that started last.
    fn turn_over(&mut self) {
        if let Some(next) = self.next.take() {
            self.before = sum(self.before, self.current);
            self.current = Some(next);
        }
    }

    fn take(&mut self) -> Option<Usage> {
        sum(self.before.take(), self.current.take())
    }
}

const INPUT: &str = "input_tokens";
const OUTPUT: &str = "output_tokens";
const CACHE_READ: &str = "cache_read_input_tokens";
const CACHE_WRITE: &str = "cache_creation_input_tokens";

/// The tokens that a `usage` object names; `None` if it names none.
pub(super) fn read_usage(usage: &Object<'_>) -> Option<Usage> {
    let [input, output, read, write] = [INPUT, OUTPUT, CACHE_READ, CACHE_WRITE].map(|name| usage.u64(name));
    [input, output, read, write].iter().any(Option::is_some).then(|| Usage {
        input_tokens: input.unwrap_or_default(),
        output_tokens: output.unwrap_or_default(),
        cache_read_tokens: read.unwrap_or_default(),
        cache_write_tokens: write.unwrap_or_default(),
    })
}

fn sum(a: Option<Usage>, b: Option<Usage>) -> Option<Usage> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    Some(Usage {
        input_tokens: a.input_tokens.saturating_add(b.input_tokens),
        output_tokens: a.output_tokens.saturating_add(b.output_tokens),
        cache_read_tokens: a.cache_read_tokens.saturating_add(b.cache_read_tokens),
        cache_write_tokens: a.cache_write_tokens.saturating_add(b.cache_write_tokens),
    })
}
