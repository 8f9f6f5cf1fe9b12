//! Who a client is and what it may reach: the three modes of `[auth]`.

use std::fmt;
use std::fmt::Write as _;

use interline_model::{CellName, Principal};
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

/// One configured token.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its name: the principal (decision 3).
    pub name: String,
    /// Its hash.
    pub hash: SecretHash,
    /// The cells it may use; `*` is every cell.
    pub cells: Vec<CellName>,
}

/// The door: turns the bearer a client brought into what it may do.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Everybody is `anonymous`. Only for loopback.
    Open,
    /// Only who brings one of these tokens.
    Tokens(Vec<Token>),
    /// The client's bearer is the upstream's credential; the upstream judges it.
    Passthrough,
}

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It brought no token.
    #[error("a token is needed: send `Authorization: Bearer <token>`")]
    Missing,
    /// It brought one that is not known.
    #[error("the token is not known")]
    Invalid,
}

/// What a run is started with upstream.
#[derive(Clone, Debug)]
pub enum RunCredential {
    /// What the config says for the upstream.
    Configured,
    /// The client's own bearer, in `passthrough`. Without one nothing is sent: the config's would let everybody in.
    Client(Option<Secret>),
}

/// What an admitted client is and may do.
#[derive(Clone, Debug)]
pub struct Access {
    principal: Principal,
    cells: Vec<CellName>,
    credential: RunCredential,
}

impl Gate {
    /// Judges the bearer a client brought.
    ///
    /// # Errors
    /// In `tokens` mode, when it is missing or unknown.
    pub fn admit(&self, bearer: Option<&str>) -> Result<Access, Denied> {
        let bearer = bearer.filter(|bearer| !bearer.is_empty());
        match self {
            Self::Open => Ok(Access {
                principal: Principal::from("anonymous"),
                cells: vec![CellName::from("*")],
                credential: RunCredential::Configured,
            }),
            Self::Tokens(tokens) => {
                let presented = SecretHash::of(bearer.ok_or(Denied::Missing)?);
                // Every token is compared, so that the time says nothing about which one matched.
                let found = tokens.iter().fold(None, |found, token| if token.hash.matches(&presented) { Some(token) } else { found });
                let token = found.ok_or(Denied::Invalid)?;
                Ok(Access {
                    principal: Principal::from(token.name.clone()),
                    cells: token.cells.clone(),
                    credential: RunCredential::Configured,
                })
            }
            Self::Passthrough => {
                let principal = bearer.map_or_else(
                    || "anonymous".to_owned(),
                    |bearer| {
                        let mut name = String::from("bearer-");
                        for byte in Sha256::digest(bearer.as_bytes()).iter().take(16) {
                            let _ = write!(name, "{byte:02x}");
                        }
                        name
                    },
                );
                Ok(Access {
                    principal: Principal::from(principal),
                    cells: vec![CellName::from("*")],
                    credential: RunCredential::Client(bearer.map(Secret::new)),
                })
            }
        }
    }
}

impl Access {
    /// Who.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// What its runs are started with upstream.
    #[must_use]
    pub fn credential(&self) -> &RunCredential {
        &self.credential
    }

    /// The first cell that it may use by name.
    pub(crate) fn first_cell(&self) -> Option<&CellName> {
        self.cells.iter().find(|cell| cell.as_str() != "*")
    }

    /// Whether it may use a cell.
    #[must_use]
    pub fn allows(&self, cell: &CellName) -> bool {
        self.cells.iter().any(|allowed| allowed.as_str() == "*" || allowed == cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::Tokens(vec![
            Token { name: "a".into(), hash: SecretHash::of("alpha"), cells: vec![CellName::from("one")] },
            Token { name: "b".into(), hash: SecretHash::of("beta"), cells: vec![CellName::from("*")] },
        ])
    }

    #[test]
    fn a_token_is_its_name_and_its_cells() {
        let access = gate().admit(Some("alpha")).unwrap();
        assert_eq!(access.principal().as_str(), "a");
        assert!(access.allows(&CellName::from("one")));
        assert!(!access.allows(&CellName::from("two")));
        assert!(gate().admit(Some("beta")).unwrap().allows(&CellName::from("two")));
    }

    #[test]
    fn an_empty_bearer_is_a_missing_one() {
        assert_eq!(gate().admit(Some("")).unwrap_err(), Denied::Missing);
        assert_eq!(gate().admit(None).unwrap_err(), Denied::Missing);
        assert_eq!(gate().admit(Some("gamma")).unwrap_err(), Denied::Invalid);
    }

    #[test]
    fn passthrough_separates_bearers_without_keeping_them_readable() {
        let one = Gate::Passthrough.admit(Some("secret-1")).unwrap();
        let two = Gate::Passthrough.admit(Some("secret-2")).unwrap();
        assert_ne!(one.principal(), two.principal());
        assert!(!format!("{one:?}").contains("secret-1"));
        assert!(matches!(one.credential(), RunCredential::Client(Some(secret)) if secret.expose() == "secret-1"));
    }

    #[test]
    fn passthrough_without_a_bearer_never_falls_back_to_the_config() {
        let nobody = Gate::Passthrough.admit(None).unwrap();
        assert!(matches!(nobody.credential(), RunCredential::Client(None)));
        assert!(matches!(Gate::Open.admit(None).unwrap().credential(), RunCredential::Configured));
    }

    #[test]
    fn the_written_hash_is_that_of_sha256sum() {
        let hash = SecretHash::parse("sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8").unwrap();
        assert!(hash.matches(&SecretHash::of("alpha")));
        assert!(SecretHash::parse("sha256:zz").is_err());
        assert!(SecretHash::parse("8ed3").is_err());
    }
}
