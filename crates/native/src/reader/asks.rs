//! Asks: raised by requests, settled by answers, by their deadline, or by the upstream going on without one.

use std::collections::HashSet;

use interline_model::{Ask, AskId, AskKind, AskOutcome, Choice, Event, Json, Question, Text, What};

use super::Run;
use super::lanes::{LaneId, ROOT};
use super::tools::Stage;
use crate::Frame;
use crate::frame::{CanUseTool, Control, Elicitation, Request};
use crate::object::{Object, elements};
use crate::string;

/// The tool by which an agent asks a question; its permission request is the question.
const QUESTION_TOOL: &str = "AskUserQuestion";

/// The asks of a run.
#[derive(Debug, Default)]
pub(super) struct Asks {
    raised: HashSet<Text>,
    open: Vec<OpenAsk>,
}

/// An ask that waits.
#[derive(Debug)]
pub(super) struct OpenAsk {
    pub(super) id: AskId,
    pub(super) lane: LaneId,
    /// The call that it is about, announced or not.
    pub(super) call: Option<Text>,
    /// The form or link that it is.
    pub(super) elicitation: Option<Text>,
}

impl Run {
    /// A tool wants permission, or asks a question. Comes before, between or after the frames that announce the tool (native-ws.md §6.4).
    pub(super) fn can_use_tool(&mut self, id: Text, request: &CanUseTool<'_>, events: &mut Vec<Event>) {
        let name = request.tool_name().filter(|name| !name.is_empty());
        let input = request.input();
        let call = request.tool_use_id().filter(|call| !call.is_empty());
        let agent = request.agent_id().filter(|agent| !agent.is_empty());
        // Decision 12.
        let known = call.as_ref().and_then(|call| self.tools.find(call));
        let lane = match (&known, &agent) {
            (Some(tool), _) => self.tools.get(*tool).map_or(ROOT, |tool| tool.lane),
            (None, Some(agent)) => self.tasks.get(agent).cloned().map_or(ROOT, |starter| self.lanes.of_agent(starter)),
            (None, None) => ROOT,
        };
        // A call of an agent that nobody has heard of is shown nowhere; it is certainly not the root agent's.
        if let Some(call) = call.clone().filter(|_| known.is_some() || agent.is_none() || lane != ROOT) {
            let tool = self.know(call, lane, name);
            self.mention(tool, input, events);
            self.announce(tool, None, events);
        }
        let announced = call.as_ref().and_then(|call| self.tools.get(self.tools.find(call)?)).filter(|tool| tool.stage != Stage::Waiting);
        let announced = announced.map(|tool| tool.call.clone());
        self.raise(Ask { call: announced, ..permission(id, request) }, lane, call, None, events);
    }

    /// A form or a link; `whole` is the request as it came.
    pub(super) fn elicitation(&mut self, id: Text, request: &Elicitation<'_>, whole: Option<Json>, events: &mut Vec<Event>) {
        self.raise(form(id, request, whole), ROOT, None, request.elicitation_id(), events);
    }

    /// A policy decided about an ask that is to come: it is not raised.
    pub(super) fn decided(&mut self, ask: &AskId) {
        self.asks.raised.insert(ask.text());
    }

    fn raise(&mut self, ask: Ask, lane: LaneId, call: Option<Text>, elicitation: Option<Text>, events: &mut Vec<Event>) {
        if self.asks.raised.insert(ask.id.text()) {
            self.asks.open.push(OpenAsk { id: ask.id.clone(), lane, call, elicitation });
            let lane = self.lanes.get(lane);
            lane.has_asked = true;
            events.push(lane.speaker.event(What::AskRaised(Box::new(ask))));
        }
    }

    /// Settles the open asks that `which` picks.
    pub(super) fn settle(&mut self, which: impl Fn(&OpenAsk) -> bool, outcome: AskOutcome, events: &mut Vec<Event>) {
        for ask in self.asks.open.extract_if(.., |ask| which(ask)) {
            events.push(self.lanes.get(ask.lane).speaker.event(What::AskSettled { ask: ask.id, outcome }));
        }
    }
}

/// The ask that a message raises, if it is one, as far as the message alone tells: without the call that it belongs to.
#[must_use]
pub fn ask_in(message: &Text) -> Option<Ask> {
    if !message.contains("can_use_tool") && !message.contains("elicitation") {
        return None;
    }
    let Ok(Frame::Control(Control::Request(control))) = Frame::parse(message) else { return None };
    let id = control.request_id().filter(|id| !id.is_empty())?;
    match control.request()? {
        Request::CanUseTool(request) => Some(permission(id, request)),
        Request::Elicitation(request) => Some(form(id, request, control.object().json("request"))),
        _ => None,
    }
}

/// A permission or question.
fn permission(id: Text, request: &CanUseTool<'_>) -> Ask {
    let name = request.tool_name().filter(|name| !name.is_empty());
    let input = request.input().map_or_else(Json::empty_object, Json::into_object);
    let is_question = name.as_deref() == Some(QUESTION_TOOL);
    Ask {
        id: AskId::from(id),
        kind: if is_question { AskKind::Question } else { AskKind::Permission },
        call: None,
        tool_name: name.unwrap_or_else(|| Text::from_static("tool")),
        message: [request.decision_reason(), request.title(), request.description()].into_iter().flatten().find(|text| !text.is_empty()),
        questions: if is_question { questions(&input) } else { Vec::new() },
        input,
        suggestions: request.permission_suggestions().filter(is_filled_list),
    }
}

/// A form or link; `whole` is the request as it came.
fn form(id: Text, request: &Elicitation<'_>, whole: Option<Json>) -> Ask {
    let is_link = match request.mode().as_deref() {
        Some("url") => true,
        Some(_) => false,
        None => request.url().is_some() && request.requested_schema().is_none(),
    };
    Ask {
        id: AskId::from(id),
        kind: if is_link { AskKind::Link } else { AskKind::Form },
        call: None,
        tool_name: request.mcp_server_name().filter(|name| !name.is_empty()).unwrap_or_else(|| Text::from_static("form")),
        message: request.message().filter(|message| !message.is_empty()),
        input: whole.map_or_else(Json::empty_object, Json::into_object),
        questions: Vec::new(),
        suggestions: None,
    }
}

fn is_filled_list(json: &Json) -> bool {
    json.as_str().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(|inside| !inside.trim().is_empty())
}

/// The questions in the input of the question tool, taken as leniently as they can be shown.
fn questions(input: &Json) -> Vec<Question> {
    let text = input.text();
    let Ok(input) = Object::parse(&text) else { return Vec::new() };
    let question = |question: Object<'_>| {
        let choice = |raw| match Object::inside(&text, raw) {
            Some(option) => Some(Choice {
                label: option.str("label").or_else(|| option.str("value"))?,
                description: option.str("description").unwrap_or_default(),
            }),
            None => Some(Choice { label: string::text(&text, raw)?, description: Text::new() }),
        };
        Some(Question {
            question: question.str("question").or_else(|| question.str("header"))?,
            header: question.str("header").filter(|header| !header.is_empty()),
            options: question.raw("options").map(elements).unwrap_or_default().into_iter().filter_map(choice).collect(),
            multi_select: question.truthy("multiSelect"),
        })
    };
    input.objects("questions").filter_map(question).collect()
}
