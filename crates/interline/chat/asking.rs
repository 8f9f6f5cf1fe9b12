//! Asking a person in a terminal: an ask as one or more lines to answer, and the lines read back as an answer.

use interline_model::{Answer, Ask, AskKind, FormAction, Json, Text};
use serde_json::{Map, Value, json};

use crate::args::AutoAnswer;

/// What the model is told when somebody says no.
const DENIED: &str = "The user denied this.";
/// How much of a tool's input is shown.
const SHOWN: usize = 2000;

/// An ask that is being answered, line by line.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) ask: Box<Ask>,
    steps: Vec<Step>,
    answers: Vec<Value>,
}

/// One line to answer.
#[derive(Debug)]
enum Step {
    /// Yes, no, and perhaps always.
    Verdict { always: bool },
    /// Numbers of options, or words of one's own.
    Choice { question: String, options: Vec<(String, String)>, several: bool },
    /// A field of a form.
    Field { name: String, schema: Value, required: bool },
}

/// What a line did.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// It is no answer; this says what is.
    Again(&'static str),
    /// There is more to answer.
    Next,
    /// The answer is whole.
    Whole(Answer),
}

impl Asking {
    pub(crate) fn new(ask: Box<Ask>) -> Self {
        let steps = match ask.kind {
            AskKind::Permission | AskKind::Link => vec![Step::Verdict { always: ask.suggestions.is_some() }],
            AskKind::Question if !ask.questions.is_empty() => ask
                .questions
                .iter()
                .map(|question| Step::Choice {
                    question: question.question.to_string(),
                    options: question.options.iter().map(|option| (option.label.to_string(), option.description.to_string())).collect(),
                    several: question.multi_select,
                })
                .collect(),
            AskKind::Question => {
                vec![Step::Choice { question: ask.message.clone().unwrap_or_default().to_string(), options: Vec::new(), several: false }]
            }
            AskKind::Form => fields(&ask).into_iter().map(|(name, schema, required)| Step::Field { name, schema, required }).collect(),
        };
        let steps = if steps.is_empty() { vec![Step::Verdict { always: false }] } else { steps };
        Self { ask, steps, answers: Vec::new() }
    }

    /// What is asked as a whole.
    pub(crate) fn title(&self) -> String {
        let ask = &self.ask;
        let input = shown(ask.input.as_str());
        let message = ask.message.as_deref().unwrap_or_default();
        let reason = if message.is_empty() { String::new() } else { format!(" ({message})") };
        match ask.kind {
            AskKind::Permission if ask.input.is_empty_object() => format!("May {} run?{reason}", ask.tool_name),
            AskKind::Permission => {
                let plain = plainly(&ask.input.to_value()).map(|text| shown(&text).replace('\n', "\n  "));
                format!("May {} run?{reason}\n  {}", ask.tool_name, plain.unwrap_or(input))
            }
            AskKind::Question => "The agent asks".to_owned(),
            AskKind::Form => format!("{} asks: {message}", ask.tool_name),
            AskKind::Link => {
                let url = ask.input.to_value();
                format!("{} sends you to a page: {message}\n  {}", ask.tool_name, url["url"].as_str().unwrap_or(&input))
            }
        }
    }

    /// What is asked in this line.
    pub(crate) fn prompt(&self) -> String {
        match self.steps.get(self.answers.len()) {
            Some(Step::Verdict { always }) => format!("[y]es, [n]o{} > ", if *always { ", [a]lways" } else { "" }),
            Some(Step::Choice { question, options, several }) => {
                let mut text = format!("{question}\n");
                for (number, (label, description)) in (1..).zip(options) {
                    let more = if description.is_empty() { String::new() } else { format!(": {description}") };
                    text.push_str(&format!("  {number}. {label}{more}\n"));
                }
                text.push_str(match (options.is_empty(), several) {
                    (true, _) => "> ",
                    (false, false) => "a number, or your own words > ",
                    (false, true) => "numbers with commas, or your own words > ",
                });
                text
            }
            Some(Step::Field { name, schema, required }) => {
                let title = schema["title"].as_str().unwrap_or(name);
                let choices = schema["enum"].as_array().map(|all| format!(" ({})", all.iter().map(plain).collect::<Vec<_>>().join(", ")));
                let default = schema.get("default").map(|default| format!(" [{}]", plain(default)));
                let optional = if *required || default.is_some() { "" } else { " (may be empty)" };
                format!("{title}{}{}{optional} > ", choices.unwrap_or_default(), default.unwrap_or_default())
            }
            None => "> ".to_owned(),
        }
    }

    /// Takes a line as the answer to the current prompt.
    pub(crate) fn take(&mut self, line: &str) -> Taken {
        let line = line.trim();
        let value = match self.steps.get(self.answers.len()) {
            Some(Step::Verdict { always }) => match line.to_ascii_lowercase().as_str() {
                "y" | "yes" => json!("yes"),
                "n" | "no" => json!("no"),
                "a" | "always" if *always => json!("always"),
                _ => return Taken::Again("y or n"),
            },
            Some(Step::Choice { options, several, .. }) => match choose(line, options, *several) {
                Some(chosen) => json!(chosen),
                None => return Taken::Again("a number from the list, or your own words"),
            },
            Some(Step::Field { schema, required, .. }) => match field(line, schema, *required) {
                Some(value) => value,
                None => return Taken::Again("that does not fit"),
            },
            None => Value::Null,
        };
        self.answers.push(value);
        if self.answers.len() < self.steps.len() { Taken::Next } else { Taken::Whole(self.whole()) }
    }

    fn whole(&self) -> Answer {
        let given = |number: usize| self.answers.get(number).and_then(Value::as_str).unwrap_or_default();
        let verdict = matches!(self.steps.first(), Some(Step::Verdict { .. }));
        match self.ask.kind {
            AskKind::Form | AskKind::Link if verdict => {
                let action = if given(0) == "no" { FormAction::Decline } else { FormAction::Accept };
                Answer::Form { action, content: None }
            }
            AskKind::Form | AskKind::Link => {
                let mut content = Map::new();
                for (step, value) in self.steps.iter().zip(&self.answers) {
                    if let (Step::Field { name, .. }, false) = (step, value.is_null()) {
                        content.insert(name.clone(), value.clone());
                    }
                }
                Answer::Form { action: FormAction::Accept, content: Some(Json::from_value(&Value::Object(content))) }
            }
            AskKind::Permission | AskKind::Question if verdict => match given(0) {
                "no" => no(&self.ask),
                answer => Answer::Allow { input: None, always: answer == "always" },
            },
            AskKind::Permission | AskKind::Question => Answer::Choose(
                self.steps
                    .iter()
                    .zip(&self.answers)
                    .filter_map(|(step, answer)| match step {
                        Step::Choice { question, .. } => Some((Text::from(question.as_str()), Text::from(answer.as_str()?))),
                        _ => None,
                    })
                    .collect(),
            ),
        }
    }
}

/// The answer without asking anybody.
pub(crate) fn automatic(ask: &Ask, answer: AutoAnswer) -> Answer {
    if answer == AutoAnswer::Deny {
        return no(ask);
    }
    match ask.kind {
        AskKind::Permission => Answer::Allow { input: None, always: false },
        AskKind::Question => Answer::Choose(
            ask.questions
                .iter()
                .map(|question| {
                    let first = question.options.first().map_or(Text::from_static("yes"), |option| option.label.clone());
                    (question.question.clone(), first)
                })
                .collect(),
        ),
        AskKind::Link => Answer::Form { action: FormAction::Accept, content: None },
        AskKind::Form => {
            let least = fields(ask).into_iter().filter(|(_, _, required)| *required).map(|(name, schema, _)| (name, least(&schema)));
            let content = Value::Object(least.collect());
            Answer::Form { action: FormAction::Accept, content: Some(Json::from_value(&content)) }
        }
    }
}

/// No, in the words of the ask's kind.
pub(crate) fn no(ask: &Ask) -> Answer {
    match ask.kind {
        AskKind::Permission | AskKind::Question => Answer::Deny { message: Text::from_static(DENIED) },
        AskKind::Form | AskKind::Link => Answer::Form { action: FormAction::Decline, content: None },
    }
}

/// The fields of a form: name, schema, whether it must be filled in.
fn fields(ask: &Ask) -> Vec<(String, Value, bool)> {
    let request = ask.input.to_value();
    let schema = &request["requested_schema"];
    let required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|each| each == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(|(name, property)| (name.clone(), property.clone(), required(name))).collect()
}

fn choose(line: &str, options: &[(String, String)], several: bool) -> Option<String> {
    if line.is_empty() {
        return None;
    }
    let label = |word: &str| options.get(word.trim().parse::<usize>().ok()?.checked_sub(1)?).map(|(label, _)| label.as_str());
    let words: Vec<&str> = if several { line.split(',').collect() } else { vec![line] };
    if words.iter().all(|word| word.trim().parse::<usize>().is_ok()) && !options.is_empty() {
        let labels: Option<Vec<&str>> = words.into_iter().map(label).collect();
        return labels.map(|labels| labels.join(", "));
    }
    Some(line.to_owned())
}

/// A line as the value of a field; `null` leaves it out.
fn field(line: &str, schema: &Value, required: bool) -> Option<Value> {
    if line.is_empty() {
        return match schema.get("default") {
            Some(default) => Some(default.clone()),
            None => (!required).then_some(Value::Null),
        };
    }
    let value = match schema["type"].as_str() {
        Some("integer") => json!(line.parse::<i64>().ok()?),
        Some("number") => json!(line.parse::<f64>().ok().filter(|number| number.is_finite())?),
        Some("boolean") => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => json!(true),
            "n" | "no" | "false" => json!(false),
            _ => return None,
        },
        _ => json!(line),
    };
    match schema["enum"].as_array() {
        Some(all) => all.contains(&value).then_some(value),
        None => Some(value),
    }
}

/// The least that a schema takes.
fn least(schema: &Value) -> Value {
    if let Some(value) = schema.get("default").or_else(|| schema["enum"].get(0)) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(0)),
        Some("boolean") => json!(true),
        _ => json!(""),
    }
}

/// A tool's input without JSON around it, where all of it is one text and perhaps the agent's description of that.
fn plainly(input: &Value) -> Option<String> {
    let members = input.as_object()?;
    let is_told = |name: &str| name == "description" && members.len() > 1;
    let mut others = members.iter().filter(|(name, _)| !is_told(name));
    let (Some((_, Value::String(text))), None) = (others.next(), others.next()) else { return None };
    match members.get("description").filter(|_| members.len() > 1) {
        Some(Value::String(description)) => Some(format!("{text}\n({description})")),
        Some(_) => None,
        None => Some(text.clone()),
    }
}

/// The beginning of a text; whoever decides by it sees that there is more.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{AskId, Choice, Question};

    fn ask(kind: AskKind, input: Value) -> Box<Ask> {
        let option = |label: &'static str| Choice { label: Text::from_static(label), description: Text::new() };
        let question = |text: &'static str, multi_select| Question {
            question: Text::from_static(text),
            header: None,
            options: vec![option("staging"), option("production")],
            multi_select,
        };
        let questions = if kind == AskKind::Question { vec![question("Where?", false), question("Which?", true)] } else { Vec::new() };
        Box::new(Ask {
            id: AskId::from("a"),
            kind,
            call: None,
            tool_name: Text::from_static("Bash"),
            message: None,
            input: Json::from_value(&input),
            questions,
            suggestions: None,
        })
    }

    #[test]
    fn a_permission_takes_yes_and_no_and_nothing_else() {
        let mut asking = Asking::new(ask(AskKind::Permission, json!({"command": "ls"})));
        assert!(asking.title().contains("ls"));
        for line in ["", "maybe", "a"] {
            assert!(matches!(asking.take(line), Taken::Again(_)), "{line}");
        }
        assert_eq!(asking.take(" Yes "), Taken::Whole(Answer::Allow { input: None, always: false }));
        let mut asking = Asking::new(ask(AskKind::Permission, json!({})));
        assert!(matches!(asking.take("n"), Taken::Whole(Answer::Deny { .. })));
    }

    #[test]
    fn a_permission_shows_plainly_what_is_one_text_and_all_of_anything_else() {
        let title = |input: Value| Asking::new(ask(AskKind::Permission, input)).title();
        assert_eq!(title(json!({"command": "ls \"a\"\nrm b"})), "May Bash run?\n  ls \"a\"\n  rm b");
        assert_eq!(title(json!({"command": "ls", "description": "Lists"})), "May Bash run?\n  ls\n  (Lists)");
        assert_eq!(title(json!({"description": "Lists"})), "May Bash run?\n  Lists");
        for whole in [json!({"command": "ls", "sandbox": false}), json!({"n": 1}), json!({"command": "ls", "description": 1}), json!([])] {
            assert_eq!(title(whole.clone()), format!("May Bash run?\n  {whole}"));
        }
        assert!(title(json!({"command": "x".repeat(SHOWN + 1)})).ends_with("x…"));
    }

    #[test]
    fn always_is_offered_where_the_agent_suggests_it() {
        let mut suggested = ask(AskKind::Permission, json!({}));
        suggested.suggestions = Some(Json::empty_object());
        let mut asking = Asking::new(suggested);
        assert!(asking.prompt().contains("lways"));
        assert_eq!(asking.take("a"), Taken::Whole(Answer::Allow { input: None, always: true }));
    }

    #[test]
    fn questions_take_numbers_or_words_one_after_another() {
        let mut asking = Asking::new(ask(AskKind::Question, json!({})));
        assert!(matches!(asking.take("3"), Taken::Again(_)));
        assert_eq!(asking.take("2"), Taken::Next);
        let whole = asking.take("1, 2");
        let answer = |question: &'static str, label: &'static str| (Text::from_static(question), Text::from_static(label));
        assert_eq!(whole, Taken::Whole(Answer::Choose(vec![answer("Where?", "production"), answer("Which?", "staging, production")])));
        let mut asking = Asking::new(ask(AskKind::Question, json!({})));
        asking.take("somewhere else");
        let whole = asking.take("1");
        assert_eq!(whole, Taken::Whole(Answer::Choose(vec![answer("Where?", "somewhere else"), answer("Which?", "staging")])));
    }

    #[test]
    fn forms_take_what_their_fields_take() {
        let schema = json!({"requested_schema": {
            "properties": {"env": {"type": "string", "enum": ["staging", "production"]}, "notify": {"type": "boolean", "default": true}, "replicas": {"type": "integer"}},
            "required": ["env"],
        }});
        let mut asking = Asking::new(ask(AskKind::Form, schema.clone()));
        assert!(matches!(asking.take("nowhere"), Taken::Again(_)));
        assert_eq!(asking.take("staging"), Taken::Next);
        assert_eq!(asking.take(""), Taken::Next);
        let Taken::Whole(Answer::Form { action: FormAction::Accept, content: Some(content) }) = asking.take("3") else { panic!() };
        assert_eq!(content.to_value(), json!({"env": "staging", "notify": true, "replicas": 3}));
        let Answer::Form { content: Some(least), .. } = automatic(&ask(AskKind::Form, schema), AutoAnswer::Allow) else { panic!() };
        assert_eq!(least.to_value(), json!({"env": "staging"}));
    }

    #[test]
    fn without_a_person_the_answer_is_what_was_said_beforehand() {
        for kind in [AskKind::Permission, AskKind::Question, AskKind::Form, AskKind::Link] {
            let denied = automatic(&ask(kind, json!({})), AutoAnswer::Deny);
            assert_eq!(denied.outcome(), interline_model::AskOutcome::Denied);
            let allowed = automatic(&ask(kind, json!({})), AutoAnswer::Allow);
            assert_ne!(allowed.outcome(), interline_model::AskOutcome::Denied);
        }
    }
}
