//! Where a secret is kept, and how it is fetched. What is fetched cannot be printed.

use std::fmt;
use std::path::{Path, PathBuf};

use interline_hub::{HashError, Secret, SecretHash};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};

use super::expiry::Expiry;

/// `{ env = … }`, `{ file = … }` or `{ value = … }`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file; white space at its ends does not count.
    File(PathBuf),
    /// The secret itself.
    Value(Written),
}

/// One secret of a token, or several: the old one and the new one while clients change over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenSecrets(pub(crate) Vec<HashedSecret>);

impl<'de> Deserialize<'de> for TokenSecrets {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = TokenSecrets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a secret or a list of them")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<TokenSecrets, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(values)).map(TokenSecrets)
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<TokenSecrets, A::Error> {
                HashedSecret::deserialize(MapAccessDeserializer::new(members)).map(|secret| TokenSecrets(vec![secret]))
            }
        }

        deserializer.deserialize_any(OneOrMore)
    }
}

/// Where a token's secret is, or its hash; and until when it is good.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "SecretTable")]
pub(crate) struct HashedSecret {
    source: HashedSource,
    /// From when on it is refused.
    pub(crate) expires: Option<Expiry>,
}

#[derive(Clone, Debug, PartialEq)]
enum HashedSource {
    /// An environment variable.
    Env(String),
    /// A file; white space at its ends does not count.
    File(PathBuf),
    /// The secret itself.
    Value(Written),
    /// `sha256:` and 64 hex digits.
    Hash(String),
}

/// How it stands in the config.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretTable {
    env: Option<String>,
    file: Option<PathBuf>,
    value: Option<Written>,
    hash: Option<String>,
    expires: Option<Expiry>,
}

impl TryFrom<SecretTable> for HashedSecret {
    type Error = &'static str;

    fn try_from(table: SecretTable) -> Result<Self, Self::Error> {
        let source = match (table.env, table.file, table.value, table.hash) {
            (Some(name), None, None, None) => HashedSource::Env(name),
            (None, Some(path), None, None) => HashedSource::File(path),
            (None, None, Some(secret), None) => HashedSource::Value(secret),
            (None, None, None, Some(hash)) => HashedSource::Hash(hash),
            _ => return Err("one of env, file, hash and value"),
        };
        Ok(Self { source, expires: table.expires })
    }
}

/// A secret as it stands in a config.
#[derive(Clone, Debug)]
pub(crate) struct Written(Secret);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The reader's own error would repeat what stands there.
        String::deserialize(deserializer).map(|text| Self(Secret::new(text))).map_err(|_| serde::de::Error::custom("takes text"))
    }
}

impl PartialEq for Written {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose() == other.0.expose()
    }
}

/// Why a secret could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("the environment variable {0} is not set")]
    Unset(String),
    #[error("names no environment variable: env = \"NAME\"")]
    Unnamed,
    #[error("the file {0} cannot be read: {1}")]
    Unreadable(String, std::io::Error),
    #[error("it is empty")]
    Empty,
    #[error(transparent)]
    Hash(#[from] HashError),
}

impl SecretSource {
    /// Fetches the secret.
    pub(crate) fn fetch(&self) -> Result<Secret, SecretError> {
        match self {
            Self::Env(name) => from_env(name),
            Self::File(path) => from_file(path),
            Self::Value(Written(secret)) => not_empty(secret.clone()),
        }
    }
}

impl HashedSecret {
    /// Fetches the secret and keeps its hash alone.
    pub(crate) fn fetch(&self) -> Result<SecretHash, SecretError> {
        let secret = match &self.source {
            HashedSource::Hash(hash) => {
                let hash = SecretHash::parse(hash)?;
                return if hash.is_of_nothing() { Err(SecretError::Empty) } else { Ok(hash) };
            }
            HashedSource::Env(name) => from_env(name)?,
            HashedSource::File(path) => from_file(path)?,
            HashedSource::Value(Written(secret)) => not_empty(secret.clone())?,
        };
        Ok(SecretHash::of(secret.expose()))
    }
}

fn from_env(name: &str) -> Result<Secret, SecretError> {
    if name.is_empty() {
        return Err(SecretError::Unnamed);
    }
    not_empty(Secret::new(std::env::var(name).map_err(|_| SecretError::Unset(name.to_owned()))?))
}

fn from_file(path: &Path) -> Result<Secret, SecretError> {
    let text = std::fs::read_to_string(path).map_err(|error| SecretError::Unreadable(path.display().to_string(), error))?;
    not_empty(Secret::new(text.trim()))
}

fn not_empty(secret: Secret) -> Result<Secret, SecretError> {
    if secret.expose().trim().is_empty() { Err(SecretError::Empty) } else { Ok(secret) }
}
