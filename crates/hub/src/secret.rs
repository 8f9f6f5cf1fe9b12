//! Secrets: the type that cannot be printed, and the hash that is all that is kept of a token.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A secret that cannot be printed: `Debug` shows nothing of it and there is no `Display`.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        Self(SecretString::from(secret.into()))
    }

    /// The secret itself, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether it is empty, which no secret may be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The SHA-256 of a token: what is kept of it.
#[derive(Clone)]
pub struct SecretHash([u8; 32]);

/// A hash is not of the form `sha256:` and 64 hex digits.
#[derive(Debug, thiserror::Error)]
#[error("a token hash is written `sha256:` and 64 hex digits (`printf %s TOKEN | sha256sum`)")]
pub struct HashError;

impl SecretHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Reads the written form.
    ///
    /// # Errors
    /// When it is not `sha256:` and 64 hex digits.
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let hex = text.strip_prefix("sha256:").ok_or(HashError)?;
        if hex.len() != 64 || !hex.is_ascii() {
            return Err(HashError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| HashError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| HashError)?;
        }
        Ok(Self(bytes))
    }

    /// Whether it is the hash of no text at all, which anybody could bring.
    #[must_use]
    pub fn is_of_nothing(&self) -> bool {
        self.matches(&Self::of(""))
    }

    /// Whether both are of the same token; takes the same time either way.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_hash_is_that_of_sha256sum() {
        let hash = SecretHash::parse("sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8").unwrap();
        assert!(hash.matches(&SecretHash::of("alpha")) && !hash.is_of_nothing());
        assert!(SecretHash::parse("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").unwrap().is_of_nothing());
        assert!(SecretHash::parse("sha256:zz").is_err());
        assert!(SecretHash::parse("8ed3").is_err());
    }

    #[test]
    fn neither_can_be_printed() {
        let shown = format!("{:?} {:?}", Secret::new("canary"), SecretHash::of("canary"));
        assert_eq!(shown, "Secret(…) SecretHash(…)");
    }
}
