//! Where a secret is kept, and how it is fetched. What is fetched cannot be printed.

use std::path::{Path, PathBuf};

use interline_hub::{HashError, Secret, SecretHash};
use serde::Deserialize;

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

/// The same, or only its hash.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum HashedSecret {
    /// An environment variable.
    Env(String),
    /// A file; white space at its ends does not count.
    File(PathBuf),
    /// The secret itself.
    Value(Written),
    /// `sha256:` and 64 hex digits.
    Hash(String),
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
        let secret = match self {
            Self::Hash(hash) => return Ok(SecretHash::parse(hash)?),
            Self::Env(name) => from_env(name)?,
            Self::File(path) => from_file(path)?,
            Self::Value(Written(secret)) => not_empty(secret.clone())?,
        };
        Ok(SecretHash::of(secret.expose()))
    }
}

fn from_env(name: &str) -> Result<Secret, SecretError> {
    not_empty(Secret::new(std::env::var(name).map_err(|_| SecretError::Unset(name.to_owned()))?))
}

fn from_file(path: &Path) -> Result<Secret, SecretError> {
    let text = std::fs::read_to_string(path).map_err(|error| SecretError::Unreadable(path.display().to_string(), error))?;
    not_empty(Secret::new(text.trim()))
}

fn not_empty(secret: Secret) -> Result<Secret, SecretError> {
    if secret.expose().trim().is_empty() { Err(SecretError::Empty) } else { Ok(secret) }
}
