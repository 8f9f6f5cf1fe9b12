//! How chats end: the last events of a run, and `chat:end` with its result (socketio.md §4.5, §4.8, §4.9).

use interline_model::{Completion, Json, Outcome, RunEnd, Usage};

use crate::mapping::{Run, SessionStatus, SocketEvent, SocketWriter};
use crate::object::{Object, object};
use crate::options::HeadlessResult;
use crate::projection::{Turn, TurnStatus};

impl SocketWriter {
    pub(crate) fn finish(&mut self, end: &RunEnd) {
        self.stir();
        let (turn_status, status, failure) = match &end.outcome {
            Outcome::Completed(_) => (TurnStatus::Completed, SessionStatus::Completed, None),
            Outcome::Interrupted { .. } => (TurnStatus::Interrupted, SessionStatus::Interrupted, None),
            Outcome::Failed { message, .. } => (TurnStatus::Failed, SessionStatus::Failed, Some(message)),
        };
        self.spread_usage(end.usage);
        for at in self.live_turns(true) {
            if let Some(turn) = self.turns.get_mut(at) {
                turn.failure = failure.cloned();
            }
            self.end_turn(at, turn_status);
        }
        let Some(run) = self.run.take() else { return };
        self.set_status(status);
        if let (Outcome::Failed { kind, message }, Some(facts)) = (&end.outcome, &self.facts) {
            let data = object(|object| {
                object.text("message", message);
                object.text("session_id", facts.session.as_str());
                object.text("code", kind.token());
                object.null("detail");
                object.text("chat_run_id", &run.chat_run_id);
            });
            self.out.push(SocketEvent { name: "system:error", data });
        }
        let result = run.headless.then(|| self.headless_result(&run, end)).flatten();
        let reason = match &end.outcome {
            Outcome::Completed(Completion::EndTurn) => Some("completed"),
            // The documents know one limit (socketio.md §4.9, decision 14).
            Outcome::Completed(Completion::MaxTurns | Completion::MaxBudget) => Some("max_turns"),
            Outcome::Interrupted { .. } | Outcome::Failed { .. } => None,
        };
        self.chat_end(&run.chat_run_id, status.as_str(), result.as_ref(), reason, |_| {});
    }

    /// The run's tokens are its only turn's, where the upstream told no turn's own.
    fn spread_usage(&mut self, usage: Option<Usage>) {
        let Some(run) = &self.run else { return };
        let mut mine = self.turns.iter_mut().skip(run.first_turn).filter(|turn| turn.is_assistant());
        if let (Some(only), None, Some(usage)) = (mine.next(), mine.next(), usage)
            && run.live.contains(&only.sequence)
        {
            only.usage.get_or_insert(usage);
        }
    }

    /// `chat:end.result` of a one-shot run (socketio.md §4.8).
    fn headless_result(&self, run: &Run, end: &RunEnd) -> Option<Json> {
        let form = self.options.headless_result;
        match &end.outcome {
            Outcome::Interrupted { .. } => None,
            Outcome::Failed { message, .. } => Some(object(|object| object.text("err_msg", message))),
            Outcome::Completed(_) => Some(match &end.structured_output {
                Some(value) => object(|object| write_structured(object, value, form)),
                None => {
                    let mine = self.turns.iter().skip(run.first_turn).rev();
                    let answer =
                        mine.filter(|turn| turn.is_assistant() && turn.lane.is_root()).map(Turn::text).find(|text| !text.is_empty());
                    let answer = answer.unwrap_or_default();
                    object(|object| {
                        if form != HeadlessResult::Sdk {
                            object.text("output", &answer);
                        }
                        if form != HeadlessResult::Docs {
                            object.text("result", &answer);
                            object.null("err_msg");
                        }
                    })
                }
            }),
        }
    }

    /// `chat:end`. `extras` writes what newer consumers read besides.
    pub(crate) fn chat_end(
        &mut self,
        chat_run_id: &str,
        status: &str,
        result: Option<&Json>,
        reason: Option<&str>,
        extras: impl FnOnce(&mut Object<'_>),
    ) {
        let Some(facts) = &self.facts else { return };
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text("status", status);
            object.raw("result", result.map_or("null", Json::as_str));
            object.text_or_null("finish_reason", reason);
            object.text("chat_run_id", chat_run_id);
            extras(object);
        });
        self.out.push(SocketEvent { name: "chat:end", data });
    }

    pub(crate) fn chat_run_id(&self) -> String {
        self.run.as_ref().map(|run| run.chat_run_id.clone()).unwrap_or_default()
    }
}

/// The structured value, and its own members beside it; these win over ours of the same name.
fn write_structured(object: &mut Object<'_>, value: &Json, form: HeadlessResult) {
    let tree = value.to_value();
    let has = |name: &str| tree.get(name).is_some();
    let members = value.as_str().trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    if form != HeadlessResult::Sdk && (form == HeadlessResult::Docs || !has("output")) {
        object.raw("output", value.as_str());
    }
    if form == HeadlessResult::Docs {
        return;
    }
    if !has("err_msg") {
        object.null("err_msg");
    }
    object.spliced(members);
}
