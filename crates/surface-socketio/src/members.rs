//! The members of an object that a client sent, each as it came until somebody reads it: those that nobody reads may hold anything, also what no
//! tree can, such as numbers beyond a double or a thousand brackets.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::refusal::Refusal;

/// An object's members by name.
pub(crate) struct Members<'a>(HashMap<String, &'a RawValue>);

impl<'a> Members<'a> {
    /// `None` if it is no object.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }

    /// None at all.
    pub(crate) fn none() -> Self {
        Self(HashMap::new())
    }

    /// A member as it came; null is absent.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|raw| raw.get() != "null")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// A member as a tree; null is absent.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>, Refusal> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| Refusal::Invalid(format!("`{name}` cannot be read: {error}")))
    }

    /// The same, and absent if it cannot be read.
    pub(crate) fn lenient(&self, name: &str) -> Option<Value> {
        self.value(name).ok().flatten()
    }

    /// A member that is text; anything else is absent.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.raw(name).and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    /// A member that is true; anything else is not.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.raw(name).is_some_and(|raw| raw.get() == "true")
    }

    /// The names that `keep` takes, each with its value if that can be read.
    pub(crate) fn pick(&self, keep: &[&str]) -> serde_json::Map<String, Value> {
        keep.iter().filter_map(|name| Some(((*name).to_owned(), self.lenient(name)?))).collect()
    }
}
