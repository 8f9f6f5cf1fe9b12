//! Asks on this surface: a chat pauses for them and goes on in a new bracket (socketio.md §4.4, decisions 8 and 20).
//!
//! While an ask waits, the chat is over for the client: every open turn has ended as `paused`, no call is `pending`, and the answer is a
//! new `chat:send`. Whatever moves the run on opens the next bracket, in which the paused turns get patches and no second `turn:end`.

use std::collections::BTreeMap;

use interline_model::{Ask, AskId, AskKind, AskOutcome, Body, CallId, Event, Fact, Json, Lane, Millis, Record, Text, What};

use crate::calls::parent_lane;
use crate::mapping::SocketWriter;
use crate::options::PauseStatus;
use crate::patch::Snapshot;
use crate::pending::Asked;
use crate::projection::{Block, Call, CallStatus, Kind, QuestionRef, TurnStatus};
use crate::question::{self, ACCEPT, ALLOW, ASK_TOOL, DECLINE, DENY};
use crate::session::SessionStatus;
use crate::stamp::loop_id;

/// How long a run whose ask still waits must have been still, in record time, to pause again after frames moved it on by themselves. Without
/// it, text that a permission request overtook, or another sub-agent's, would be a chat for every piece.
const REST_MS: Millis = 100;

impl SocketWriter {
    pub(crate) fn raise(&mut self, lane: &Lane, ask: &Ask) {
        if self.run.is_none() || self.is_asked(&ask.id) {
            return;
        }
        self.stir();
        let questions = question::questions(ask);
        let source = match lane {
            Lane::Root => None,
            Lane::Agent(call) => Some(QuestionRef { loop_name: loop_id(lane), call: Text::new(), description: self.description(call) }),
        };
        let arguments = question::arguments(ask, &questions, source.as_ref());
        // A question is its own call, unless that one has ended already.
        let place = |call: &CallId| self.run.as_ref()?.calls.get(call).copied();
        let open =
            |(turn, call): (usize, usize)| self.turns.get(turn).and_then(|turn| turn.calls.get(call)).is_some_and(|call| !call.is_final());
        let own = ask.call.as_ref().filter(|call| ask.kind == AskKind::Question && place(call).is_none_or(open));
        let known = own.and_then(place);
        let (turn, call) = match known {
            Some((turn, number)) => {
                if let Some(call) = self.turns.get_mut(turn).and_then(|turn| turn.calls.get_mut(number)) {
                    call.input = arguments;
                    call.status = CallStatus::Awaiting;
                    call.ask = Some(ask.id.clone());
                }
                self.tell_call(turn, number, true, false, Snapshot::Boundary);
                (turn, number)
            }
            None => {
                let turn = self.open_or_new(lane);
                let (id, tool_name) = match own {
                    Some(call) => (call.text(), ask.tool_name.clone()),
                    None => (self.free_id(turn, &ask.id), Text::from_static(ASK_TOOL)),
                };
                let call = Call {
                    id,
                    tool_name,
                    display_name: question::display_name(ask),
                    input: arguments,
                    status: CallStatus::Awaiting,
                    result: None,
                    cut: None,
                    started: self.now,
                    duration_ms: None,
                    ask: Some(ask.id.clone()),
                    waits_on: None,
                };
                let number = self.add_call(turn, call);
                if let Some(own) = own {
                    self.place_call(own, turn, number);
                }
                (turn, number)
            }
        };
        let synthetic = own.is_none();
        let Self { run: Some(run), turns, .. } = self else { return };
        if let Some(own) = &ask.call {
            // A question's arguments are those that clients can draw.
            run.descriptions.remove(own);
        }
        let shown = turns.get(turn).and_then(|turn| turn.calls.get(call)).map(|call| call.id.clone()).unwrap_or_default();
        let calls = &run.calls;
        let asked = Asked { ask: ask.clone(), lane: lane.clone(), turn, call, shown, synthetic };
        run.asks.add(asked, |call| parent_lane(calls, turns, call));
    }

    /// `ask_<request_id>`, and a number behind it if an upstream asks again under an old id.
    fn free_id(&self, turn: usize, ask: &AskId) -> Text {
        let taken = |id: &str| self.turns.get(turn).is_some_and(|turn| turn.calls.iter().any(|call| *call.id == *id));
        let plain = format!("ask_{ask}");
        let numbered = (2_u32..).map(|again| format!("{plain}_{again}"));
        Text::from(std::iter::once(plain.clone()).chain(numbered).find(|id| !taken(id)).unwrap_or(plain))
    }

    /// The description that the call of a sub-agent was given.
    pub(crate) fn description(&mut self, call: &CallId) -> Text {
        let Self { run: Some(run), turns, .. } = self else { return Text::new() };
        if let Some(known) = run.descriptions.get(call) {
            return known.clone();
        }
        let place = run.calls.get(call);
        let Some(input) = place.and_then(|&(turn, number)| Some(&turns.get(turn)?.calls.get(number)?.input)) else { return Text::new() };
        // A sub-agent's input is as long as what it was told, and this is asked for with each of its asks.
        let input = input.to_value();
        let description = Text::from(input.get("description").and_then(|description| description.as_str()).unwrap_or_default());
        run.descriptions.insert(call.clone(), description.clone());
        description
    }

    pub(crate) fn settle(&mut self, record: &Record, id: &AskId, outcome: AskOutcome, ending: bool) {
        let Some(run) = &mut self.run else { return };
        let (calls, turns) = (&run.calls, &self.turns);
        let Some(asked) = run.asks.remove(id, |call| parent_lane(calls, turns, call)) else { return };
        let waiting = !run.asks.is_empty();
        self.stir();
        let answer = match &record.body {
            Body::Fact(Fact::AskAnswered { ask, answer, .. }) if ask == id => Some(answer),
            Body::Fact(_) | Body::Frame(_) => None,
        };
        let chosen = answer.map(|answer| question::chosen(&asked.ask, answer));
        let call_id = self.turns.get(asked.turn).and_then(|turn| turn.calls.get(asked.call)).map(|call| call.id.clone());
        if let Some(call_id) = &call_id {
            self.settled.insert(call_id.clone(), id.clone());
        }
        if let (Some(chosen), Some(call_id)) = (&chosen, &call_id) {
            self.whole_turn(Kind::User, vec![Block::Answer(chosen.block(call_id))]);
        }
        if asked.synthetic {
            match outcome {
                AskOutcome::Void => self.cancel_call(asked.turn, asked.call),
                AskOutcome::Expired => {
                    self.end_call(asked.turn, asked.call, CallStatus::Error, Json::string("Nobody answered in time."));
                }
                AskOutcome::Allowed | AskOutcome::Denied | AskOutcome::Answered => {
                    let label = chosen.and_then(|chosen| first_label(&asked.ask, &chosen)).unwrap_or_else(|| {
                        Text::from_static(match (asked.ask.kind, outcome) {
                            (AskKind::Permission, AskOutcome::Denied) => DENY,
                            (AskKind::Permission, _) => ALLOW,
                            (_, AskOutcome::Denied) => DECLINE,
                            (_, _) => ACCEPT,
                        })
                    });
                    self.end_call(asked.turn, asked.call, CallStatus::Done, Json::string(&label));
                }
            }
        } else if let Some(call) = self.turns.get_mut(asked.turn).and_then(|turn| turn.calls.get_mut(asked.call)) {
            // Its own result is still to come.
            call.ask = None;
            if !waiting && !ending && call.status == CallStatus::Awaiting {
                call.status = CallStatus::Pending;
                let had_ref = call.waits_on.take().is_some();
                self.tell_call(asked.turn, asked.call, false, had_ref, Snapshot::Boundary);
            }
        }
        if waiting || ending {
            self.complete_paused(asked.turn);
        } else {
            self.resume();
        }
    }

    /// A paused turn whose calls have all ended is completed: by a patch, since its `turn:end` went out when it paused.
    pub(crate) fn complete_paused(&mut self, at: usize) {
        let live = self.run.as_ref().is_some_and(|run| run.live.contains(at));
        if live && self.turns.get(at).is_some_and(|turn| turn.ended && turn.all_calls_final()) {
            self.end_turn(at, TurnStatus::Completed);
        }
    }

    /// Nothing is asked any more: what waited goes on.
    fn resume(&mut self) {
        for at in self.live_turns(false) {
            let Some(turn) = self.turns.get_mut(at) else { continue };
            let (ended, mut woken) = (turn.ended, Vec::new());
            for &number in &turn.open {
                if let Some(call) = turn.calls.get_mut(number).filter(|call| call.status == CallStatus::Awaiting) {
                    call.status = CallStatus::Pending;
                    woken.push((number, call.waits_on.take().is_some()));
                }
            }
            if let Some(run) = &mut self.run {
                run.live.stirs(at);
            }
            for (number, had_ref) in woken {
                // The turn's own status follows at once, with the snapshot.
                self.tell_call(at, number, false, had_ref, if ended { Snapshot::Without } else { Snapshot::Boundary });
            }
            if ended && self.turns.get(at).is_some_and(|turn| !turn.all_calls_final()) {
                self.set_turn_status(at, TurnStatus::Streaming);
            } else if ended {
                self.end_turn(at, TurnStatus::Completed);
            }
        }
    }

    /// At the end of a record: pauses if people are asked and nothing else goes on.
    pub(crate) fn pause_if_waiting(&mut self, events: &[Event]) {
        let Some(run) = &self.run else { return };
        if run.asks.is_empty() || !run.chatting {
            return;
        }
        let asked = events.iter().any(|event| matches!(event.what, What::AskRaised(_) | What::AskSettled { .. }));
        let open = run.live.restless().iter().any(|&at| self.turns.get(at).is_some_and(|turn| !turn.ended));
        let still = self.now.saturating_sub(run.moved) >= REST_MS;
        if asked || !open || still {
            self.pause();
        }
    }

    fn pause(&mut self) {
        self.pause_turns();
        self.set_status(SessionStatus::WaitingForInput);
        let Some(run) = &mut self.run else { return };
        run.chatting = false;
        let shown = run.asks.iter().next().and_then(|asked| self.turns.get(asked.turn)?.calls.get(asked.call));
        let shown = shown.map(|call| (call.id.clone(), call.input.clone()));
        let status = match self.options.pause_status {
            PauseStatus::Completed => "completed",
            PauseStatus::Paused => "paused",
        };
        let chat_run_id = self.chat_run_id();
        self.chat_end(&chat_run_id, status, None, Some("completed"), |object| {
            let Some((id, arguments)) = shown else { return };
            object.text("pause_tool", "builtin:AskUserQuestion");
            object.object("pause_tool_data", |object| {
                object.text("name", ASK_TOOL);
                object.raw("arguments", arguments.as_str());
                object.text("tool_call_id", &id);
            });
        });
    }

    /// Whether an ask waits in this turn.
    pub(crate) fn holds_ask(&self, at: usize) -> bool {
        self.run.as_ref().is_some_and(|run| run.asks.is_in(at))
    }

    /// Pauses every turn that goes on. Those that rest are left alone, but for the calls of theirs under which something waits now.
    fn pause_turns(&mut self) {
        let Some(run) = &mut self.run else { return };
        let mut turns: BTreeMap<usize, Vec<usize>> = run.live.restless().iter().map(|&at| (at, Vec::new())).collect();
        let told = run.asks.take_untold();
        for (at, number) in told.iter().filter_map(|call| run.calls.get(call).copied()) {
            if run.live.contains(at) {
                turns.entry(at).or_default().push(number);
            }
        }
        for at in self.by_depth(turns.keys().copied(), true) {
            if self.run.as_ref().is_some_and(|run| run.live.restless().contains(&at)) {
                self.pause_turn(at);
            } else if let Some(mut calls) = turns.remove(&at) {
                calls.sort_unstable();
                self.pause_calls(at, calls);
            }
        }
    }

    /// Ends a turn for the time being: its calls wait, and patches follow once they do not.
    pub(crate) fn pause_turn(&mut self, at: usize) {
        let open = self.turns.get(at).map(|turn| turn.open.iter().copied().collect()).unwrap_or_default();
        self.pause_calls(at, open);
        if let Some(run) = &mut self.run {
            run.live.rests(at);
        }
    }

    /// The same, of these calls of it.
    fn pause_calls(&mut self, at: usize, calls: Vec<usize>) {
        let mut changed = false;
        for number in calls {
            let Some(call) = self.turns.get(at).and_then(|turn| turn.calls.get(number)) else { continue };
            let pending = call.status == CallStatus::Pending;
            if !pending && (call.status != CallStatus::Awaiting || call.waits_on.is_some()) {
                continue;
            }
            let question = self.question_under(at, number);
            if !pending && question.is_none() {
                continue;
            }
            let Some(call) = self.turns.get_mut(at).and_then(|turn| turn.calls.get_mut(number)) else { continue };
            call.status = CallStatus::Awaiting;
            let had_ref = std::mem::replace(&mut call.waits_on, question).is_some();
            changed = true;
            // The end, or the status, of the turn follows with all of it.
            self.tell_call(at, number, false, had_ref, Snapshot::Without);
        }
        match self.turns.get(at) {
            Some(turn) if !turn.ended && !turn.is_assistant() => self.end_turn(at, TurnStatus::Completed),
            Some(turn) if !turn.ended => self.close_turn(at, TurnStatus::Paused),
            Some(turn) if changed || turn.status != TurnStatus::Paused => self.set_turn_status(at, TurnStatus::Paused),
            _ => {}
        }
    }

    /// The question that a sub-agent's call waits on, if it started one and that one or one of its own waits (socketio.md §4.7).
    fn question_under(&mut self, at: usize, number: usize) -> Option<QuestionRef> {
        let run = self.run.as_ref().filter(|run| !run.asks.is_empty())?;
        let call = CallId::from(self.turns.get(at)?.calls.get(number)?.id.clone());
        let asked = run.asks.under(&call).filter(|_| run.calls.get(&call) == Some(&(at, number)))?;
        let (loop_name, shown) = (loop_id(&asked.lane), asked.shown.clone());
        Some(QuestionRef { loop_name, call: shown, description: self.description(&call) })
    }
}

/// The option chosen for the first question, or the text given instead.
fn first_label(ask: &Ask, chosen: &question::Chosen) -> Option<Text> {
    let option = chosen.selections.get(&0).and_then(|options| options.first());
    let questions = question::questions(ask);
    let label = option.and_then(|&option| questions.first()?.options.get(option)).map(|option| option.label.clone());
    label.or_else(|| chosen.custom.get(&0).map(|text| Text::from(text.clone())))
}
