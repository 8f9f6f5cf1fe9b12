//! How runs and chats begin: `chat:start`, and the turn of what the user said (socketio.md §4.1).

use std::collections::HashMap;

use interline_model::{Body, Fact, Lane, Outcome, Part, Record, RunEnd, RunId, SessionId, Text};

use crate::live::Live;
use crate::mapping::{Facts, Run, SocketEvent, SocketWriter};
use crate::object::object;
use crate::pending::Pending;
use crate::projection::{Block, Kind, TurnStatus};
use crate::session::SessionStatus;

/// How much of the first message stands in for a title.
const INTENT_CHARS: usize = 80;

impl SocketWriter {
    pub(crate) fn start(&mut self, record: &Record, run: RunId, session: &SessionId, model: &Text) {
        if self.run.is_some() {
            self.finish(&RunEnd::synthesised(Outcome::Interrupted { reason: Text::from_static("superseded") }));
        }
        let accepted = match &record.body {
            Body::Fact(Fact::RunAccepted(accepted)) => Some(accepted),
            Body::Fact(_) | Body::Frame(_) => None,
        };
        self.facts = Some(Facts { session: session.clone(), run });
        self.model = Some(model.clone());
        self.settled.clear();
        self.run = Some(Run {
            id: run,
            chat_run_id: run.to_string(),
            headless: accepted.is_some_and(|accepted| accepted.headless),
            output_schema: accepted.and_then(|accepted| accepted.output_schema.clone()),
            first_turn: self.turns.len(),
            live: Live::default(),
            latest: HashMap::new(),
            calls: HashMap::new(),
            asks: Pending::default(),
            descriptions: HashMap::new(),
            chatting: false,
            moved: self.now,
        });
        let input = accepted.map(|accepted| accepted.input.as_slice()).unwrap_or_default();
        if self.intent.is_empty() {
            self.intent = intent_of(input);
        }
        self.stir();
        if !input.is_empty() {
            self.whole_turn(Kind::User, input.iter().map(block_of).collect());
        }
    }

    /// Something moves the run on: a chat that paused goes on in a new bracket (decision 8).
    pub(crate) fn stir(&mut self) {
        let (Some(run), Some(facts)) = (&mut self.run, &self.facts) else { return };
        run.moved = self.now;
        if run.chatting {
            return;
        }
        run.chatting = true;
        if let Some(raw) = &mut self.raw {
            raw.begin();
        }
        self.out.push(chat_start(facts, run));
        self.set_status(SessionStatus::Running);
    }

    /// A whole turn in one: what the user said, or a mark between turns.
    pub(crate) fn whole_turn(&mut self, kind: Kind, blocks: Vec<Block>) {
        let at = self.new_turn(&Lane::Root, kind);
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.status = TurnStatus::Completed;
        turn.blocks = blocks;
        turn.ended = true;
        self.tell_turn("turn:start", at);
        self.tell_turn("turn:end", at);
    }
}

pub(crate) fn chat_start(facts: &Facts, run: &Run) -> SocketEvent {
    let data = object(|object| {
        object.text("session_id", facts.session.as_str());
        object.text("chat_run_id", &run.chat_run_id);
    });
    SocketEvent { name: "chat:start", data }
}

fn block_of(part: &Part) -> Block {
    match part {
        Part::Text(text) => Block::Text(text.to_string()),
        Part::Image { url } => Block::Image(url.clone()),
        Part::File { name, .. } => Block::File(name.clone()),
    }
}

/// What stands in for a session's title: the first line of its first message.
pub(crate) fn intent_of(input: &[Part]) -> Text {
    let text = input.iter().find_map(|part| match part {
        Part::Text(text) => text.lines().map(str::trim).find(|line| !line.is_empty()),
        Part::Image { .. } | Part::File { .. } => None,
    });
    Text::from(text.unwrap_or_default().chars().take(INTENT_CHARS).collect::<String>())
}
