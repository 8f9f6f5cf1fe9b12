//! What a headless run's result is asked to be: a JSON Schema, judged by a library (socketio.md §4.8).

use interline_model::Json;

/// Whether it is a schema at all; else why not, in one sentence.
#[cfg(feature = "io")]
pub(crate) fn check(schema: &Json) -> Result<(), String> {
    // A tree cannot hold everything that JSON can.
    let schema: serde_json::Value = serde_json::from_str(schema.as_str()).map_err(|error| error.to_string())?;
    jsonschema::validator_for(&schema).map(|_| ()).map_err(|error| error.to_string())
}

/// Why a value is not what the schema asks for: the first thing that does not fit, and where. Nothing is fetched: a reference to another place
/// is one that cannot be followed.
pub(crate) fn misfit(value: &Json, schema: &Json) -> Option<String> {
    let (value, schema) = (value.to_value(), schema.to_value());
    let validator = match jsonschema::validator_for(&schema) {
        Ok(validator) => validator,
        Err(error) => return Some(format!("the schema is none: {error}")),
    };
    let error = validator.iter_errors(&value).next()?;
    let place = error.instance_path().to_string();
    Some(if place.is_empty() { error.to_string() } else { format!("{error} at {place}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_misfit_is_named_with_its_place() {
        let schema = Json::parse(r#"{"type":"object","required":["n"],"properties":{"n":{"type":"integer","minimum":1}}}"#).unwrap();
        let why = |value: &str| misfit(&Json::parse(value.to_owned()).unwrap(), &schema);
        assert_eq!(why(r#"{"n":3,"more":[]}"#), None);
        assert!(why(r#"{"n":0}"#).unwrap().ends_with("at /n"));
        assert!(why("{}").unwrap().contains("\"n\""));
        assert!(why("[]").is_some());
    }

    #[cfg(feature = "io")]
    #[test]
    fn what_is_no_schema_is_said_at_once() {
        let check = |schema: &str| check(&Json::parse(schema.to_owned()).unwrap());
        assert!(check(r#"{"type":"object"}"#).is_ok());
        assert!(check(r#"{"type":"thing"}"#).is_err());
        assert!(check(r#"{"$ref":"https://example.com/schema.json"}"#).is_err());
        assert!(check(r#"{"maximum":1e400}"#).is_err());
    }
}
