//! Asks as questions, and answers to questions as answers to asks.
//!
//! The clients know one form for asking people: the call of a tool named `AskUserQuestion` (socketio.md §4.4). Permissions, forms and
//! links are shown in it, too (decision 20); this module says with which questions and options, and reads the choices back.

use std::collections::BTreeMap;

use interline_model::{Answer, Ask, AskKind, Choice, FormAction, Json, Question, Text};
use serde_json::{Map, Value};

use crate::form::{self, Field};
use crate::object::{object, write_object};
use crate::projection::QuestionRef;

/// The tool name that makes clients draw a question form.
pub(crate) const ASK_TOOL: &str = "AskUserQuestion";

pub(crate) const ALLOW: &str = "Allow";
pub(crate) const ALLOW_ALWAYS: &str = "Allow always";
pub(crate) const DENY: &str = "Deny";
pub(crate) const ACCEPT: &str = "Accept";
pub(crate) const DECLINE: &str = "Decline";

/// How much of a tool's input is put into the question's text. The whole of it is in the call's arguments.
const SHOWN_INPUT_CHARS: usize = 2_000;

/// What the model is told when a denial came without words.
const DENIED: &str = "The user denied this.";

/// What somebody chose: `askuser_answer` (socketio.md §2.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// For each question, by number, the numbers of the chosen options.
    pub selections: BTreeMap<usize, Vec<usize>>,
    /// For each question, by number, free text.
    pub custom: BTreeMap<usize, String>,
}

/// Why choices are no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChoiceError {
    /// A question has neither a selection nor a text.
    Unanswered {
        /// Its number.
        question: usize,
    },
    /// A question has no such option.
    NoSuchOption {
        /// The question's number.
        question: usize,
        /// The option's.
        option: usize,
    },
    /// The text does not fit the form's field.
    DoesNotFit {
        /// The field's title.
        field: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl std::fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unanswered { question } => write!(f, "question {question} has no answer: send a selection or a custom text for it"),
            Self::NoSuchOption { question, option } => write!(f, "question {question} has no option {option}"),
            Self::DoesNotFit { field, expected } => write!(f, "`{field}` takes {expected}"),
        }
    }
}

impl std::error::Error for ChoiceError {}

impl Chosen {
    /// Reads `selections` and `custom` of an `askuser_answer`, and the `answer` of the Python client's typing. What has another shape is
    /// left out, so that it shows up as an unanswered question.
    #[must_use]
    pub fn read(answer: &Map<String, Value>) -> Self {
        let mut chosen = Self::default();
        for (question, options) in numbered(answer.get("selections")) {
            let options: Vec<usize> = match options {
                Value::Array(options) => options.iter().filter_map(number).collect(),
                option => number(option).into_iter().collect(),
            };
            if !options.is_empty() {
                chosen.selections.insert(question, options);
            }
        }
        for (question, text) in numbered(answer.get("custom")) {
            if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
                chosen.custom.insert(question, text.to_owned());
            }
        }
        if chosen.is_empty()
            && let Some(text) = answer.get("answer").and_then(Value::as_str)
        {
            chosen.custom.insert(0, text.to_owned());
        }
        chosen
    }

    /// Whether nothing was chosen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.selections.is_empty() && self.custom.is_empty()
    }

    /// The content of an `ask_user_answer` block.
    pub(crate) fn block(&self, call: &str) -> Json {
        object(|object| {
            object.text("tool_call_id", call);
            object.object("selections", |object| {
                for (question, options) in &self.selections {
                    object.array(&question.to_string(), options, |out, option| out.push_str(&option.to_string()));
                }
            });
            object.object("custom", |object| {
                for (question, text) in &self.custom {
                    object.text(&question.to_string(), text);
                }
            });
        })
    }

    /// The labels and texts of one question, in order.
    fn labels(&self, number: usize, question: &Question) -> Result<Vec<String>, ChoiceError> {
        let mut labels = Vec::new();
        for &option in self.selections.get(&number).into_iter().flatten() {
            let choice = question.options.get(option).ok_or(ChoiceError::NoSuchOption { question: number, option })?;
            labels.push(choice.label.to_string());
        }
        labels.extend(self.custom.get(&number).cloned());
        Ok(labels)
    }
}

fn numbered(member: Option<&Value>) -> impl Iterator<Item = (usize, &Value)> {
    member.and_then(Value::as_object).into_iter().flatten().filter_map(|(key, value)| Some((key.parse().ok()?, value)))
}

fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn choice(label: &'static str, description: impl Into<Text>) -> Choice {
    Choice { label: Text::from_static(label), description: description.into() }
}

/// The questions that stand for an ask. Never none.
#[must_use]
pub fn questions(ask: &Ask) -> Vec<Question> {
    match ask.kind {
        AskKind::Question if !ask.questions.is_empty() => ask.questions.clone(),
        AskKind::Question => {
            let question = ask.message.clone().unwrap_or_else(|| ask.tool_name.clone());
            vec![Question { question, header: None, options: Vec::new(), multi_select: false }]
        }
        AskKind::Permission => vec![permission(ask)],
        AskKind::Form => {
            let mut all = vec![consent(ask, None)];
            all.extend(form::fields(ask).iter().map(Field::question));
            all
        }
        AskKind::Link => {
            let request = ask.input.to_value();
            vec![consent(ask, request.get("url").and_then(Value::as_str))]
        }
    }
}

fn permission(ask: &Ask) -> Question {
    let mut text = format!("May {} run?", ask.tool_name);
    if let Some(reason) = &ask.message {
        text.push_str("\n\n");
        text.push_str(reason);
    }
    if !ask.input.is_empty_object() {
        text.push_str("\n\n");
        let input = ask.input.as_str();
        match input.char_indices().nth(SHOWN_INPUT_CHARS) {
            Some((end, _)) => {
                text.push_str(input.get(..end).unwrap_or_default());
                text.push('…');
            }
            None => text.push_str(input),
        }
    }
    let mut options = vec![choice(ALLOW, Text::from_static("Run it this once"))];
    if ask.suggestions.is_some() {
        options.push(choice(ALLOW_ALWAYS, Text::from_static("Run it, and do not ask again")));
    }
    options.push(choice(DENY, Text::from_static("Do not run it")));
    Question { question: Text::from(text), header: Some(Text::from_static("Permission")), options, multi_select: false }
}

fn consent(ask: &Ask, url: Option<&str>) -> Question {
    let mut text = ask.message.as_deref().unwrap_or(&ask.tool_name).to_owned();
    if let Some(url) = url {
        text.push_str("\n\n");
        text.push_str(url);
    }
    let options = vec![choice(ACCEPT, Text::new()), choice(DECLINE, Text::new())];
    Question { question: Text::from(text), header: Some(ask.tool_name.clone()), options, multi_select: false }
}

/// The `display_name` of an ask's own call.
pub(crate) fn display_name(ask: &Ask) -> Text {
    match ask.kind {
        AskKind::Question => ask.tool_name.clone(),
        AskKind::Permission => Text::from(format!("Permission: {}", ask.tool_name)),
        AskKind::Form | AskKind::Link => ask.message.clone().unwrap_or_else(|| ask.tool_name.clone()),
    }
}

/// The `arguments` of an ask's call. `source` is the sub-agent that asks.
pub(crate) fn arguments(ask: &Ask, questions: &[Question], source: Option<&QuestionRef>) -> Json {
    object(|object| {
        object.array("questions", questions, |out, question| {
            write_object(out, |object| {
                object.text("question", &question.question);
                if let Some(header) = &question.header {
                    object.text("header", header);
                }
                object.array("options", &question.options, |out, option| {
                    write_object(out, |object| {
                        object.text("label", &option.label);
                        object.text("description", &option.description);
                    });
                });
                object.bool("multiSelect", question.multi_select);
            });
        });
        match source {
            Some(source) => object.object("source_loop", |object| {
                object.text("loop_name", &source.loop_name);
                object.text("description", &source.description);
            }),
            None => object.null("source_loop"),
        }
        // Beside what clients draw, what it stands for: a client that wants to can tell a permission from the model's own question.
        if ask.kind != AskKind::Question {
            object.object("ask", |object| {
                object.text("request_id", ask.id.as_str());
                object.text("kind", kind_word(ask.kind));
                object.text("tool_name", &ask.tool_name);
                object.text_or_null("tool_call_id", ask.call.as_ref().map(|call| call.as_str()));
                object.raw("input", ask.input.as_str());
            });
        }
    })
}

fn kind_word(kind: AskKind) -> &'static str {
    match kind {
        AskKind::Permission => "permission",
        AskKind::Question => "question",
        AskKind::Form => "form",
        AskKind::Link => "link",
    }
}

/// The answer that somebody's choices are. `message` is the text that came with them; it stands in for the answer to an only question.
///
/// # Errors
/// [`ChoiceError`] says which question is not answered, or with what it cannot be.
pub fn answer(ask: &Ask, chosen: &Chosen, message: &str) -> Result<Answer, ChoiceError> {
    if chosen.is_empty() && !message.is_empty() {
        return Ok(answer_in_words(ask, message));
    }
    let questions = questions(ask);
    let first = questions.first().ok_or(ChoiceError::Unanswered { question: 0 })?;
    match ask.kind {
        AskKind::Question => {
            let mut pairs = Vec::with_capacity(questions.len());
            for (number, question) in questions.iter().enumerate() {
                let labels = chosen.labels(number, question)?;
                if labels.is_empty() {
                    return Err(ChoiceError::Unanswered { question: number });
                }
                pairs.push((question.question.clone(), Text::from(labels.join(", "))));
            }
            Ok(Answer::Choose(pairs))
        }
        AskKind::Permission => {
            let labels = chosen.labels(0, first)?;
            let words = chosen.custom.get(&0).map(String::as_str);
            match (labels.first().map(String::as_str), words) {
                (None, _) => Err(ChoiceError::Unanswered { question: 0 }),
                (Some(DENY), words) => Ok(Answer::Deny { message: Text::from(words.unwrap_or(DENIED)) }),
                (Some(ALLOW), _) => Ok(Answer::Allow { input: None, always: false }),
                (Some(ALLOW_ALWAYS), _) => Ok(Answer::Allow { input: None, always: true }),
                (Some(words), _) => Ok(answer_in_words(ask, words)),
            }
        }
        AskKind::Form | AskKind::Link => {
            let labels = chosen.labels(0, first)?;
            let declines = labels.iter().any(|label| label.eq_ignore_ascii_case(DECLINE));
            if declines {
                return Ok(Answer::Form { action: FormAction::Decline, content: None });
            }
            // Values without a word about consent are consent; nothing at all is not.
            if labels.is_empty() && chosen.selections.len() + chosen.custom.len() == 0 {
                return Err(ChoiceError::Unanswered { question: 0 });
            }
            let mut content = Map::new();
            for (at, field) in form::fields(ask).iter().enumerate() {
                let number = at + 1;
                let options = chosen.selections.get(&number).map(Vec::as_slice).unwrap_or_default();
                let words = chosen.custom.get(&number).map(String::as_str);
                if let Some(value) = field.value(number, options, words)? {
                    content.insert(field.name.clone(), value);
                }
            }
            let content = (ask.kind == AskKind::Form).then(|| Json::from_value(&Value::Object(content)));
            Ok(Answer::Form { action: FormAction::Accept, content })
        }
    }
}

/// The answer that a plain message is, while something is asked: an option by its name, or free text. Whatever is not clearly a yes to
/// a permission or form is a no, with the words for the model.
#[must_use]
pub fn answer_in_words(ask: &Ask, words: &str) -> Answer {
    let said = |label: &str| words.trim().eq_ignore_ascii_case(label);
    match ask.kind {
        AskKind::Question => {
            let first = questions(ask).first().map(|question| question.question.clone()).unwrap_or_default();
            Answer::Choose(vec![(first, Text::from(words))])
        }
        AskKind::Permission if said(ALLOW) => Answer::Allow { input: None, always: false },
        AskKind::Permission if said(ALLOW_ALWAYS) => Answer::Allow { input: None, always: ask.suggestions.is_some() },
        AskKind::Permission if said(DENY) => Answer::Deny { message: Text::from_static(DENIED) },
        AskKind::Permission => Answer::Deny { message: Text::from(words) },
        AskKind::Form if said(ACCEPT) => Answer::Form { action: FormAction::Accept, content: Some(Json::empty_object()) },
        AskKind::Link if said(ACCEPT) => Answer::Form { action: FormAction::Accept, content: None },
        AskKind::Form | AskKind::Link => Answer::Form { action: FormAction::Decline, content: None },
    }
}

/// The choices that an answer is, from whichever surface it came.
#[must_use]
pub fn chosen(ask: &Ask, answer: &Answer) -> Chosen {
    let mut chosen = Chosen::default();
    let questions = questions(ask);
    let mut pick = |number: usize, label: &str| {
        let Some(question) = questions.get(number) else { return };
        match options_of(question, label) {
            Some(options) => chosen.selections.insert(number, options).is_some(),
            None => chosen.custom.insert(number, label.to_owned()).is_some(),
        };
    };
    match answer {
        Answer::Allow { always, .. } => pick(0, if *always && ask.suggestions.is_some() { ALLOW_ALWAYS } else { ALLOW }),
        Answer::Deny { message } => {
            pick(0, DENY);
            if !message.is_empty() && **message != *DENIED {
                chosen.custom.insert(0, message.to_string());
            }
        }
        Answer::Choose(pairs) => {
            for (number, question) in questions.iter().enumerate() {
                if let Some((_, label)) = pairs.iter().find(|(text, _)| *text == question.question) {
                    pick(number, label);
                }
            }
        }
        Answer::Form { action, content } => {
            pick(0, if *action == FormAction::Accept { ACCEPT } else { DECLINE });
            let content = content.as_ref().map(Json::to_value);
            for (at, field) in form::fields(ask).iter().enumerate() {
                if let Some(value) = content.as_ref().and_then(|content| content.get(&field.name)) {
                    pick(at + 1, &field.label(value));
                }
            }
        }
        Answer::Native(body) => {
            let body = body.to_value();
            let answers = body.get("updatedInput").and_then(|input| input.get("answers")).and_then(Value::as_object);
            match (ask.kind, answers) {
                (AskKind::Question, Some(answers)) => {
                    for (number, question) in questions.iter().enumerate() {
                        if let Some(label) = answers.get(&*question.question).and_then(Value::as_str) {
                            pick(number, label);
                        }
                    }
                }
                (AskKind::Question, None) => {}
                (AskKind::Permission, _) => pick(0, if body.get("behavior").is_some_and(|word| word == "allow") { ALLOW } else { DENY }),
                (AskKind::Form | AskKind::Link, _) => {
                    pick(0, if body.get("action").is_some_and(|word| word == "accept") { ACCEPT } else { DECLINE });
                }
            }
        }
    }
    chosen
}

/// The numbers of the options that `label` names: one, or with `multi_select` several joined by `, ` (decision 19). A label may hold the
/// separator itself, so the longest match goes first.
fn options_of(question: &Question, label: &str) -> Option<Vec<usize>> {
    if let Some(option) = question.options.iter().position(|option| *option.label == *label) {
        return Some(vec![option]);
    }
    if !question.multi_select {
        return None;
    }
    let (mut rest, mut found) = (label, Vec::new());
    loop {
        let next = question
            .options
            .iter()
            .enumerate()
            .filter_map(|(number, option)| {
                let rest = rest.strip_prefix(&*option.label)?;
                if rest.is_empty() {
                    Some((number, option.label.len(), None))
                } else {
                    Some((number, option.label.len(), Some(rest.strip_prefix(", ")?)))
                }
            })
            .max_by_key(|(_, length, _)| *length);
        let (number, _, remainder) = next?;
        found.push(number);
        match remainder {
            Some(remainder) => rest = remainder,
            None => return Some(found),
        }
    }
}

#[cfg(test)]
#[path = "question_tests.rs"]
mod tests;
