//! How chats end: the last events of a run, and `chat:end` with its result (socketio.md §4.5, §4.8, §4.9).

use interline_model::{Completion, Json, Outcome, RunEnd, Usage};

use crate::mapping::{Run, SocketEvent, SocketWriter};
use crate::object::{Object, object};
use crate::options::HeadlessResult;
use crate::projection::{CallStatus, Turn, TurnStatus};
use crate::schema::misfit;
use crate::session::SessionStatus;

/// The tool by which agents submit a structured result (socketio.md §4.8).
const SUBMIT_TOOL: &str = "submit_result";

/// What a caller is told whose schema the result does not fit.
const UNFIT: &str = "The result does not fit the output schema";

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
        let (result, unfit) = match run.headless.then(|| self.headless_result(&run, end)) {
            Some((result, unfit)) => (result, unfit),
            None => (None, false),
        };
        let reason = match &end.outcome {
            Outcome::Completed(Completion::EndTurn) => Some("completed"),
            // The documents know one limit (socketio.md §4.9, decision 14).
            Outcome::Completed(Completion::MaxTurns | Completion::MaxBudget) => Some("max_turns"),
            Outcome::Interrupted { .. } | Outcome::Failed { .. } => None,
        };
        let (status, reason) = if unfit { (SessionStatus::Failed, None) } else { (status, reason) };
        self.chat_end(&run.chat_run_id, status.as_str(), result.as_ref(), reason, |_| {});
    }

    /// The run's tokens are its only turn's, where the upstream told no turn's own.
    fn spread_usage(&mut self, usage: Option<Usage>) {
        let Some(run) = &self.run else { return };
        let mut mine = self.turns.iter_mut().skip(run.first_turn).filter(|turn| turn.is_assistant());
        if let (Some(only), None, Some(usage)) = (mine.next(), mine.next(), usage)
            && run.live.contains(only.sequence)
        {
            only.usage.get_or_insert(usage);
        }
    }

    /// `chat:end.result` of a one-shot run, and whether it is not what the run's schema asks for, which is a failure of the chat though none of
    /// the run (socketio.md §4.8).
    fn headless_result(&self, run: &Run, end: &RunEnd) -> (Option<Json>, bool) {
        let form = self.options.headless_result;
        match &end.outcome {
            Outcome::Interrupted { .. } => return (None, false),
            Outcome::Failed { message, .. } => return (Some(object(|object| object.text("err_msg", message))), false),
            Outcome::Completed(_) => {}
        }
        let answer = || {
            let mine = self.turns.iter().skip(run.first_turn).rev();
            mine.filter(|turn| turn.is_assistant() && turn.lane.is_root()).map(Turn::text).find(|text| !text.is_empty()).unwrap_or_default()
        };
        let schema = run.output_schema.as_ref();
        let value = match schema {
            Some(_) => end.structured_output.clone().or_else(|| self.submitted(run)).or_else(|| Json::parse(answer()).ok()),
            None => end.structured_output.clone(),
        };
        let unfit = |why: &str| (Some(object(|object| object.text("err_msg", &format!("{UNFIT}: {why}")))), true);
        match (value, schema) {
            (Some(value), schema) => match schema.and_then(|schema| misfit(&value, schema)) {
                Some(why) => unfit(&why),
                None => (Some(object(|object| write_structured(object, &value, schema, form))), false),
            },
            (None, Some(_)) => unfit("the answer is no JSON"),
            (None, None) => {
                let answer = answer();
                let result = object(|object| {
                    if form != HeadlessResult::Sdk {
                        object.text("output", &answer);
                    }
                    if form != HeadlessResult::Docs {
                        object.text("result", &answer);
                        object.null("err_msg");
                    }
                });
                (Some(result), false)
            }
        }
    }

    /// What the agent submitted by a call, where the upstream's end does not say it.
    fn submitted(&self, run: &Run) -> Option<Json> {
        let calls = self.turns.iter().skip(run.first_turn).filter(|turn| turn.lane.is_root()).flat_map(|turn| &turn.calls);
        calls.filter(|call| &*call.tool_name == SUBMIT_TOOL && call.status == CallStatus::Done).last().map(|call| call.input.clone())
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
        self.raw_chat_end(&data);
        self.out.push(SocketEvent { name: "chat:end", data });
    }

    pub(crate) fn chat_run_id(&self) -> String {
        self.run.as_ref().map(|run| run.chat_run_id.clone()).unwrap_or_default()
    }
}

/// The structured value, and its own members beside it; these win over ours of the same name.
fn write_structured(object: &mut Object<'_>, value: &Json, schema: Option<&Json>, form: HeadlessResult) {
    let tree = value.to_value();
    let has = |name: &str| tree.get(name).is_some();
    let members = value.as_str().trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    if form != HeadlessResult::Sdk && (form == HeadlessResult::Docs || !has("output")) {
        object.raw("output", value.as_str());
    }
    if let Some(schema) = schema.filter(|_| form != HeadlessResult::Sdk && (form == HeadlessResult::Docs || !has("schema"))) {
        object.raw("schema", schema.as_str());
    }
    if form == HeadlessResult::Docs {
        return;
    }
    if !has("err_msg") {
        object.null("err_msg");
    }
    object.spliced(members);
}
