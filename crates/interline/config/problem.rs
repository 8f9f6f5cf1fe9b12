//! What is wrong with the settings: where, which key, and what to do. Never a secret.

use std::fmt;

use super::layers::Place;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    place: Option<Place>,
    key: String,
    message: String,
}

/// Everything that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl Problem {
    /// A problem with the key of this path (empty for none), at this place.
    pub(crate) fn at(place: Option<Place>, key: String, message: impl Into<String>) -> Self {
        Self { place, key, message: message.into() }
    }

    /// Where a secret belongs, the reader's own words could repeat one that was written in the wrong form.
    pub(crate) fn without_secrets(mut self) -> Self {
        let among = |word: &str| self.key.split(['.', '[']).any(|key| key == word);
        if among("secret") {
            "takes one of { env = \"NAME\" }, { file = \"PATH\" }, { hash = \"sha256:…\" }, { value = \"…\" }, or a list of them; each may have \
             an expires = 2027-01-31T18:00:00Z, with its offset"
                .clone_into(&mut self.message);
        } else if among("credential") {
            "takes one of { env = \"NAME\" }, { file = \"PATH\" }, { value = \"…\" }".clone_into(&mut self.message);
        }
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(self.message.trim_end())
    }
}
