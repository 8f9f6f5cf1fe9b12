//! Identifiers as distinct types, so that a run can never be passed where a session is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Text;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Text);

        impl $name {
            /// The id as it goes over the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The id as shared text.
            #[must_use]
            pub fn text(&self) -> Text {
                self.0.clone()
            }
        }

        impl<T: Into<Text>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}

text_id! {
    /// One conversation; the same string on every surface (decision 1).
    SessionId
}
text_id! {
    /// The native `request_id` of a permission, question, form or link (decision 18).
    AskId
}
text_id! {
    /// A tool call: the native `tool_use_id`.
    CallId
}
text_id! {
    /// The route key of the SSE surface, and what a session is bound to for life (decision 4).
    CellName
}
text_id! {
    /// Who owns a session (decision 3): a token's name, a hash of a passed-through bearer, or `anonymous`.
    Principal
}

/// One run: one user input and everything it causes, up to exactly one end.
///
/// A UUIDv4 in two written forms (decision 2): `run-` + 32 hex digits on SSE and Socket.IO, dashed on the native cloud surface.
/// Both are accepted wherever a run id is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(u128);

impl RunId {
    /// A run id from the 128 bits of a UUID that the caller drew.
    #[must_use]
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128 bits.
    #[must_use]
    pub fn as_u128(self) -> u128 {
        self.0
    }

    /// The dashed form, as the native cloud surface writes it.
    #[must_use]
    pub fn dashed(self) -> String {
        let b = self.0;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            b >> 96,
            (b >> 80) & 0xffff,
            (b >> 64) & 0xffff,
            (b >> 48) & 0xffff,
            b & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run-{:032x}", self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is neither `run-` + 32 hex digits nor a dashed UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseRunIdError;

impl fmt::Display for ParseRunIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a run id is `run-` and 32 hex digits, or a dashed UUID")
    }
}

impl std::error::Error for ParseRunIdError {}

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex: String = match text.strip_prefix("run-") {
            Some(hex) => hex.to_owned(),
            None => {
                let parts: Vec<&str> = text.split('-').collect();
                if parts.iter().map(|part| part.len()).ne([8, 4, 4, 4, 12]) {
                    return Err(ParseRunIdError);
                }
                parts.concat()
            }
        };
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseRunIdError);
        }
        u128::from_str_radix(&hex, 16).map(Self).map_err(|_| ParseRunIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_run_id_name_the_same_run() {
        let id = RunId::from_u128(0x833f_9576_9b05_4f9c_84bc_d457_1f98_1569);
        assert_eq!(id.to_string(), "run-833f95769b054f9c84bcd4571f981569");
        assert_eq!(id.dashed(), "833f9576-9b05-4f9c-84bc-d4571f981569");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.dashed().parse(), Ok(id));
    }

    #[test]
    fn other_text_is_no_run_id() {
        for text in ["", "run-", "run-abc123", "run-+33f95769b054f9c84bcd4571f981569", "833f95769b054f9c84bcd4571f981569", "8-3-3-9-5"] {
            assert_eq!(text.parse::<RunId>(), Err(ParseRunIdError), "{text:?}");
        }
    }
}
