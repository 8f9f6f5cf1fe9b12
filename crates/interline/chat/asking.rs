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
    Again(String),
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
                let choices = Some(options(schema)).filter(|all| !all.is_empty()).map(|all| format!(" ({})", labels(&all)));
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
                _ => return Taken::Again(if *always { "y, n or a" } else { "y or n" }.to_owned()),
            },
            Some(Step::Choice { options, several, .. }) => match choose(line, options, *several) {
                Some(chosen) => json!(chosen),
                None if options.is_empty() => return Taken::Again("say something".to_owned()),
                None => return Taken::Again(format!("a number from 1 to {}, or your own words", options.len())),
            },
            Some(Step::Field { schema, required, .. }) => match field(line, schema, *required) {
                Some(value) => value,
                None => return Taken::Again(format!("that does not fit: {}", fitting(schema))),
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

/// The values that a field lets choose from, with their labels; of a list, those of its members.
fn options(schema: &Value) -> Vec<(Value, String)> {
    let schema = if schema["type"] == "array" { &schema["items"] } else { schema };
    if let Some(values) = schema["enum"].as_array() {
        let name = |at: usize, value: &Value| schema["enumNames"][at].as_str().map_or_else(|| plain(value), str::to_owned);
        return values.iter().enumerate().map(|(at, value)| (value.clone(), name(at, value))).collect();
    }
    let titled = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array());
    let pair = |option: &Value| Some((option.get("const")?.clone(), plain(option.get("title").unwrap_or(option.get("const")?))));
    titled.into_iter().flatten().filter_map(pair).collect()
}

fn labels(options: &[(Value, String)]) -> String {
    options.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>().join(", ")
}

/// What a field takes.
fn fitting(schema: &Value) -> String {
    let options = options(schema);
    let bound = |word: &str, name: &str| schema[name].as_f64().map(|bound| format!(", {word} {bound}")).unwrap_or_default();
    let number = |word: &str| format!("{word}{}{}", bound("at least", "minimum"), bound("at most", "maximum"));
    match schema["type"].as_str() {
        Some("array") if !options.is_empty() => format!("any of {}, with commas", labels(&options)),
        _ if !options.is_empty() => format!("one of {}", labels(&options)),
        Some("integer") => number("a whole number"),
        Some("number") => number("a number"),
        Some("boolean") => "y or n".to_owned(),
        _ => "it must be filled in".to_owned(),
    }
}

/// A line as the value of a field; `null` leaves it out.
fn field(line: &str, schema: &Value, required: bool) -> Option<Value> {
    if line.is_empty() {
        return match schema.get("default") {
            Some(default) => Some(default.clone()),
            None => (!required).then_some(Value::Null),
        };
    }
    let options = options(schema);
    let named = |word: &str| {
        let is_it = |(value, label): &&(Value, String)| plain(value) == word || label.eq_ignore_ascii_case(word);
        options.iter().find(is_it).map(|(value, _)| value.clone())
    };
    let inside = |number: &f64| {
        number.is_finite()
            && schema["minimum"].as_f64().is_none_or(|least| *number >= least)
            && schema["maximum"].as_f64().is_none_or(|most| *number <= most)
    };
    Some(match schema["type"].as_str() {
        Some("array") => {
            let words = line.split(',').map(str::trim).filter(|word| !word.is_empty());
            Value::Array(words.map(|word| if options.is_empty() { Some(json!(word)) } else { named(word) }).collect::<Option<_>>()?)
        }
        _ if !options.is_empty() => named(line)?,
        Some("integer") => json!(line.parse::<i64>().ok().filter(|_| line.parse().is_ok_and(|real| inside(&real)))?),
        Some("number") => json!(line.parse::<f64>().ok().filter(inside)?),
        Some("boolean") => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => json!(true),
            "n" | "no" | "false" => json!(false),
            _ => return None,
        },
        _ => json!(line),
    })
}

/// The least that a schema takes.
fn least(schema: &Value) -> Value {
    if let Some(value) = schema.get("default") {
        return value.clone();
    }
    let first = options(schema).into_iter().next().map(|(value, _)| value);
    match (schema["type"].as_str(), first) {
        (Some("array"), first) => Value::Array(first.into_iter().collect()),
        (_, Some(first)) => first,
        (Some("integer" | "number"), _) => schema.get("minimum").cloned().unwrap_or(json!(0)),
        (Some("boolean"), _) => json!(true),
        _ => json!(""),
    }
}

/// What a value of a form reads like among the options that a server draws for its field.
pub(crate) fn label_of(field: &Value, value: &Value) -> String {
    match value {
        Value::Bool(true) => "Yes".to_owned(),
        Value::Bool(false) => "No".to_owned(),
        value => options(field).into_iter().find(|(option, _)| option == value).map_or_else(|| plain(value), |(_, label)| label),
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
        assert_eq!(asking.take("1"), Taken::Again("that does not fit: one of staging, production".to_owned()));
        assert_eq!(asking.take("staging"), Taken::Next);
        assert_eq!(asking.take(""), Taken::Next);
        let Taken::Whole(Answer::Form { action: FormAction::Accept, content: Some(content) }) = asking.take("3") else { panic!() };
        assert_eq!(content.to_value(), json!({"env": "staging", "notify": true, "replicas": 3}));
        let Answer::Form { content: Some(least), .. } = automatic(&ask(AskKind::Form, schema), AutoAnswer::Allow) else { panic!() };
        assert_eq!(least.to_value(), json!({"env": "staging"}));
    }

    #[test]
    fn what_does_not_fit_a_field_is_told_what_would() {
        let named = json!({"type": "string", "enum": ["a", "b"], "enumNames": ["Alpha", "Beta"]});
        let several = json!({"type": "array", "items": {"anyOf": [{"const": "x", "title": "Ex"}, {"const": "y"}]}});
        let count = json!({"type": "integer", "minimum": 1, "maximum": 10});
        for (schema, bad, fits) in [
            (&named, "c", "one of Alpha, Beta"),
            (&several, "Ex, z", "any of Ex, y, with commas"),
            (&count, "11", "a whole number, at least 1, at most 10"),
            (&count, "abc", "a whole number, at least 1, at most 10"),
            (&json!({"type": "number"}), "NaN", "a number"),
            (&json!({"type": "boolean"}), "1", "y or n"),
            (&json!({"type": "string"}), "", "it must be filled in"),
        ] {
            assert_eq!((field(bad, schema, true), fitting(schema).as_str()), (None, fits), "{bad}");
        }
        assert_eq!(field("beta", &named, true), Some(json!("b")));
        assert_eq!(field("Ex, y", &several, true), Some(json!(["x", "y"])));
        assert_eq!(field("10", &count, true), Some(json!(10)));
        assert_eq!((label_of(&named, &json!("b")), label_of(&json!({}), &json!(true))), ("Beta".to_owned(), "Yes".to_owned()));
        assert_eq!((least(&several), least(&count), least(&named)), (json!(["x"]), json!(1), json!("a")));
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
