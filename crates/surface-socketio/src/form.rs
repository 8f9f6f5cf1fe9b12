//! The fields of a form ask, each as one question: the flat part of JSON Schema that `elicitation` uses (native-ws.md §6.5).

use interline_model::{Ask, Choice, Question, Text};
use serde_json::Value;

use crate::question::ChoiceError;

/// How many fields of a form are shown. Clients ask for an answer to every question, so a longer form is not usable this way.
const MAX_FIELDS: usize = 20;

/// The option that leaves a field out.
const SKIP: &str = "Skip";

/// One field.
pub(crate) struct Field {
    pub(crate) name: String,
    title: String,
    description: String,
    required: bool,
    kind: FieldKind,
}

enum FieldKind {
    /// One of these values, each with its label.
    Choice(Vec<(Value, String)>),
    /// Any of these values.
    Choices(Vec<(Value, String)>),
    Boolean,
    Integer,
    Number,
    Text,
}

/// The fields of a form, by name.
pub(crate) fn fields(ask: &Ask) -> Vec<Field> {
    let request = ask.input.to_value();
    let schema = request.get("requested_schema").or_else(|| request.get("requestedSchema"));
    let required: Vec<&str> = schema
        .and_then(|schema| schema.get("required"))
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    properties
        .into_iter()
        .flatten()
        .take(MAX_FIELDS)
        .map(|(name, property)| Field {
            title: text_of(property, "title").unwrap_or(name).to_owned(),
            description: text_of(property, "description").unwrap_or_default().to_owned(),
            required: required.contains(&name.as_str()),
            kind: kind_of(property),
            name: name.clone(),
        })
        .collect()
}

fn text_of<'a>(property: &'a Value, member: &str) -> Option<&'a str> {
    property.get(member).and_then(Value::as_str)
}

fn kind_of(property: &Value) -> FieldKind {
    let values = enumerated(property);
    if !values.is_empty() {
        return FieldKind::Choice(values);
    }
    match text_of(property, "type") {
        Some("boolean") => FieldKind::Boolean,
        Some("integer") => FieldKind::Integer,
        Some("number") => FieldKind::Number,
        Some("array") => {
            let items = property.get("items").map(enumerated).unwrap_or_default();
            if items.is_empty() { FieldKind::Text } else { FieldKind::Choices(items) }
        }
        _ => FieldKind::Text,
    }
}

/// The values of `enum` with their `enumNames`, or of `oneOf`/`anyOf` with `const` and `title`.
fn enumerated(property: &Value) -> Vec<(Value, String)> {
    if let Some(values) = property.get("enum").and_then(Value::as_array) {
        let names = property.get("enumNames").and_then(Value::as_array);
        return values
            .iter()
            .enumerate()
            .map(|(at, value)| {
                let name = names.and_then(|names| names.get(at)).and_then(Value::as_str);
                (value.clone(), name.map_or_else(|| plain(value), str::to_owned))
            })
            .collect();
    }
    let titled = property.get("oneOf").or_else(|| property.get("anyOf")).and_then(Value::as_array);
    titled
        .into_iter()
        .flatten()
        .filter_map(|option| {
            let value = option.get("const")?;
            Some((value.clone(), text_of(option, "title").map_or_else(|| plain(value), str::to_owned)))
        })
        .collect()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Field {
    /// The labels to choose from, each with what choosing it means; `None` leaves the field out.
    fn options(&self) -> Vec<(Option<Value>, String)> {
        let mut options: Vec<(Option<Value>, String)> = match &self.kind {
            FieldKind::Choice(values) | FieldKind::Choices(values) => {
                values.iter().map(|(value, label)| (Some(value.clone()), label.clone())).collect()
            }
            FieldKind::Boolean => vec![(Some(Value::Bool(true)), "Yes".to_owned()), (Some(Value::Bool(false)), "No".to_owned())],
            FieldKind::Integer | FieldKind::Number | FieldKind::Text => Vec::new(),
        };
        if !self.required {
            options.push((None, SKIP.to_owned()));
        }
        options
    }

    pub(crate) fn question(&self) -> Question {
        let text = if self.description.is_empty() { self.title.clone() } else { format!("{}\n\n{}", self.title, self.description) };
        let options = self.options().into_iter().map(|(_, label)| Choice { label: Text::from(label), description: Text::new() }).collect();
        Question {
            question: Text::from(text),
            header: Some(Text::from(self.name.clone())),
            options,
            multi_select: matches!(self.kind, FieldKind::Choices(_)),
        }
    }

    /// The value that was chosen or written; `None` leaves the field out.
    pub(crate) fn value(&self, question: usize, chosen: &[usize], words: Option<&str>) -> Result<Option<Value>, ChoiceError> {
        let options = self.options();
        let mut values = Vec::new();
        for &option in chosen {
            let (value, _) = options.get(option).ok_or(ChoiceError::NoSuchOption { question, option })?;
            values.extend(value.clone());
        }
        if matches!(self.kind, FieldKind::Choices(_)) {
            values.extend(words.map(Value::from));
            return Ok((!values.is_empty()).then_some(Value::Array(values)));
        }
        if let Some(value) = values.into_iter().next() {
            return Ok(Some(value));
        }
        let Some(words) = words else {
            // Nothing at all is only an answer where the field may be left out.
            return if chosen.is_empty() && self.required { Err(ChoiceError::Unanswered { question }) } else { Ok(None) };
        };
        let wrong = |expected| ChoiceError::DoesNotFit { field: self.title.clone(), expected };
        match &self.kind {
            FieldKind::Integer => words.trim().parse::<i64>().map(|number| Some(Value::from(number))).map_err(|_| wrong("a whole number")),
            FieldKind::Number => {
                let number = words.trim().parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                number.map(|number| Some(Value::Number(number))).ok_or_else(|| wrong("a number"))
            }
            FieldKind::Boolean => match words.trim().to_ascii_lowercase().as_str() {
                "yes" | "true" => Ok(Some(Value::Bool(true))),
                "no" | "false" => Ok(Some(Value::Bool(false))),
                _ => Err(wrong("yes or no")),
            },
            FieldKind::Choice(values) => {
                let named = values.iter().find(|(_, label)| label.eq_ignore_ascii_case(words.trim())).map(|(value, _)| value.clone());
                named.map(Some).ok_or_else(|| wrong("one of its options"))
            }
            FieldKind::Choices(_) | FieldKind::Text => Ok(Some(Value::from(words))),
        }
    }

    /// What a value reads like among the options, or as text.
    pub(crate) fn label(&self, value: &Value) -> String {
        if let (FieldKind::Choices(_), Value::Array(values)) = (&self.kind, value) {
            return values.iter().map(|value| self.label_of(value)).collect::<Vec<_>>().join(", ");
        }
        self.label_of(value)
    }

    fn label_of(&self, value: &Value) -> String {
        let named = self.options().into_iter().find(|(option, _)| option.as_ref() == Some(value));
        named.map_or_else(|| plain(value), |(_, label)| label)
    }
}
