//! Who a client is and what it may reach: the three modes of `[auth]`.
//!
//! The gate is a plain value: it knows no clock, counts nothing and can be exchanged as a whole. What is let in keeps its proof, so that it can be
//! asked again later whether it would still be let in: a token that was taken away, or whose time is over, is refused on connections that
//! are open already, too.

use std::fmt::Write as _;

use interline_model::{CellName, Millis, Principal};
use sha2::{Digest, Sha256};

use crate::secret::{Secret, SecretHash};

/// One secret of a token.
#[derive(Clone, Debug)]
pub struct TokenSecret {
    /// Its hash.
    pub hash: SecretHash,
    /// From when on it is refused.
    pub expires_at: Option<Millis>,
}

/// One configured token. It may have several secrets at a time, so that one can be replaced while both are in use.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its name: the principal (decision 3).
    pub name: String,
    /// What clients bring.
    pub secrets: Vec<TokenSecret>,
    /// The cells it may use; `*` is every cell.
    pub cells: Vec<CellName>,
    /// The surfaces it may use, by name; `None` is every surface.
    pub surfaces: Option<Vec<String>>,
}

impl Token {
    /// A token with one secret that does not expire, for every surface.
    #[must_use]
    pub fn new(name: impl Into<String>, hash: SecretHash, cells: Vec<CellName>) -> Self {
        Self { name: name.into(), secrets: vec![TokenSecret { hash, expires_at: None }], cells, surfaces: None }
    }
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
    /// It brought one that is not known, or not for what it wants.
    #[error("the token is not known")]
    Invalid,
    /// Its time is over.
    #[error("the token has expired: come with a new one")]
    Expired,
    /// Too much at a time.
    #[error("{limit}; try again in {seconds} s")]
    Limited {
        /// Of what.
        limit: Limit,
        /// When to come again.
        seconds: u64,
    },
}

/// What there was too much of. Each has its key in `[limits]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    /// Requests from one address.
    #[error("too many requests from this address: limits.peer_per_second")]
    Peer,
    /// Requests of one client.
    #[error("too many requests with this token: limits.client_per_second")]
    Client,
    /// Unknown tokens from one address.
    #[error("too many unknown tokens from this address: limits.unknown_tokens_per_minute")]
    UnknownTokens,
    /// Streams and sockets of one client.
    #[error("too many streams and sockets with this token: limits.max_client_connections")]
    Connections,
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
    surfaces: Option<Vec<String>>,
    credential: RunCredential,
    proof: Proof,
}

/// By what a client was let in.
#[derive(Clone, Debug)]
enum Proof {
    /// Nothing was asked for.
    Nothing,
    /// A token with this hash.
    Token(SecretHash),
    /// A bearer that the upstream judges.
    Bearer,
}

impl Gate {
    /// Judges the bearer a client brought, at this time.
    ///
    /// # Errors
    /// In `tokens` mode, when it is missing, unknown, or its time is over.
    pub fn admit(&self, bearer: Option<&str>, now: Millis) -> Result<Access, Denied> {
        let bearer = bearer.filter(|bearer| !bearer.is_empty());
        match self {
            Self::Open => Ok(Access {
                principal: Principal::from("anonymous"),
                cells: vec![CellName::from("*")],
                surfaces: None,
                credential: RunCredential::Configured,
                proof: Proof::Nothing,
            }),
            Self::Tokens(tokens) => {
                let presented = SecretHash::of(bearer.ok_or(Denied::Missing)?);
                let (token, secret) = find(tokens, &presented).ok_or(Denied::Invalid)?;
                secret.is_valid(now)?;
                Ok(Access {
                    principal: Principal::from(token.name.clone()),
                    cells: token.cells.clone(),
                    surfaces: token.surfaces.clone(),
                    credential: RunCredential::Configured,
                    proof: Proof::Token(presented),
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
                    surfaces: None,
                    credential: RunCredential::Client(bearer.map(Secret::new)),
                    proof: Proof::Bearer,
                })
            }
        }
    }

    /// Whether a client that was let in once would be let in now, to the same: on this surface, to no more cells than then, under the same name.
    /// Says until when, where that is known.
    ///
    /// # Errors
    /// When it would not.
    pub fn readmit(&self, access: &Access, surface: &str, now: Millis) -> Result<Option<Millis>, Denied> {
        match (self, &access.proof) {
            (Self::Open, Proof::Nothing) | (Self::Passthrough, Proof::Bearer) => Ok(None),
            (Self::Tokens(tokens), Proof::Token(hash)) => {
                let (token, secret) = find(tokens, hash).ok_or(Denied::Invalid)?;
                // What it may do was decided when it came. Whose rights were narrowed comes again.
                let narrower = access.cells.iter().any(|cell| !allows(&token.cells, cell));
                if token.name != access.principal.as_str() || narrower || !serves(token.surfaces.as_deref(), surface) {
                    return Err(Denied::Invalid);
                }
                secret.is_valid(now)?;
                Ok(secret.expires_at)
            }
            _ => Err(Denied::Invalid),
        }
    }
}

/// The token with this secret. Every secret is compared, so that the time says nothing about which one matched.
fn find<'a>(tokens: &'a [Token], presented: &SecretHash) -> Option<(&'a Token, &'a TokenSecret)> {
    let all = tokens.iter().flat_map(|token| token.secrets.iter().map(move |secret| (token, secret)));
    all.fold(None, |found, (token, secret)| if secret.hash.matches(presented) { Some((token, secret)) } else { found })
}

fn allows(cells: &[CellName], wanted: &CellName) -> bool {
    cells.iter().any(|allowed| allowed.as_str() == "*" || allowed == wanted)
}

fn serves(surfaces: Option<&[String]>, surface: &str) -> bool {
    surfaces.is_none_or(|surfaces| surfaces.iter().any(|allowed| allowed == surface))
}

impl TokenSecret {
    fn is_valid(&self, now: Millis) -> Result<(), Denied> {
        if self.expires_at.is_some_and(|at| at <= now) { Err(Denied::Expired) } else { Ok(()) }
    }
}

impl Access {
    /// For a run that a client of an earlier process started in this cell.
    pub(crate) fn of_earlier(principal: Principal, cell: CellName) -> Self {
        Self { principal, cells: vec![cell], surfaces: None, credential: RunCredential::Configured, proof: Proof::Nothing }
    }

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
        allows(&self.cells, cell)
    }

    /// Whether it may use a surface.
    #[must_use]
    pub fn serves(&self, surface: &str) -> bool {
        serves(self.surfaces.as_deref(), surface)
    }

    /// Whether nobody knows who it is: everybody of this machine is let in under one name.
    pub(crate) fn is_anybody(&self) -> bool {
        matches!(self.proof, Proof::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::Tokens(vec![
            Token::new("a", SecretHash::of("alpha"), vec![CellName::from("one")]),
            Token::new("b", SecretHash::of("beta"), vec![CellName::from("*")]),
        ])
    }

    /// A token with an old secret that expires at 10, and a new one.
    fn rotated() -> Token {
        let old = TokenSecret { hash: SecretHash::of("old"), expires_at: Some(10) };
        let new = TokenSecret { hash: SecretHash::of("new"), expires_at: None };
        Token { secrets: vec![old, new], surfaces: Some(vec!["sse".to_owned()]), ..Token::new("a", SecretHash::of(""), vec!["*".into()]) }
    }

    #[test]
    fn a_token_is_its_name_and_its_cells() {
        let access = gate().admit(Some("alpha"), 0).unwrap();
        assert_eq!(access.principal().as_str(), "a");
        assert!(access.allows(&CellName::from("one")));
        assert!(!access.allows(&CellName::from("two")));
        assert!(gate().admit(Some("beta"), 0).unwrap().allows(&CellName::from("two")));
    }

    #[test]
    fn an_empty_bearer_is_a_missing_one() {
        assert_eq!(gate().admit(Some(""), 0).unwrap_err(), Denied::Missing);
        assert_eq!(gate().admit(None, 0).unwrap_err(), Denied::Missing);
        assert_eq!(gate().admit(Some("gamma"), 0).unwrap_err(), Denied::Invalid);
    }

    #[test]
    fn a_secret_is_replaced_while_both_are_in_use() {
        let gate = Gate::Tokens(vec![rotated()]);
        let (old, new) = (gate.admit(Some("old"), 9).unwrap(), gate.admit(Some("new"), 9).unwrap());
        assert_eq!(old.principal(), new.principal());
        assert_eq!(gate.readmit(&old, "sse", 9), Ok(Some(10)));
        assert_eq!((gate.admit(Some("old"), 10).unwrap_err(), gate.readmit(&old, "sse", 10)), (Denied::Expired, Err(Denied::Expired)));
        assert_eq!(gate.readmit(&new, "sse", 10), Ok(None));
    }

    #[test]
    fn a_surface_that_is_not_named_is_closed() {
        let gate = Gate::Tokens(vec![rotated()]);
        let access = gate.admit(Some("new"), 0).unwrap();
        assert!(access.serves("sse") && !access.serves("socketio"));
        assert_eq!(gate.readmit(&access, "socketio", 0), Err(Denied::Invalid));
    }

    #[test]
    fn case_f4_who_was_let_in_is_not_for_ever() {
        let access = gate().admit(Some("alpha"), 0).unwrap();
        assert_eq!(gate().readmit(&access, "sse", 0), Ok(None));
        let with = |name: &str, cell: &'static str| Gate::Tokens(vec![Token::new(name, SecretHash::of("alpha"), vec![cell.into()])]);
        assert_eq!(with("a", "*").readmit(&access, "sse", 0), Ok(None));
        for gone in [Gate::Tokens(Vec::new()), with("a", "two"), with("c", "*"), Gate::Open, Gate::Passthrough] {
            assert_eq!(gone.readmit(&access, "sse", 0), Err(Denied::Invalid), "{gone:?}");
        }
    }

    #[test]
    fn passthrough_separates_bearers_without_keeping_them_readable() {
        let one = Gate::Passthrough.admit(Some("secret-1"), 0).unwrap();
        let two = Gate::Passthrough.admit(Some("secret-2"), 0).unwrap();
        assert_ne!(one.principal(), two.principal());
        assert!(!format!("{one:?}").contains("secret-1"));
        assert!(matches!(one.credential(), RunCredential::Client(Some(secret)) if secret.expose() == "secret-1"));
    }

    #[test]
    fn passthrough_without_a_bearer_never_falls_back_to_the_config() {
        let nobody = Gate::Passthrough.admit(None, 0).unwrap();
        assert!(matches!(nobody.credential(), RunCredential::Client(None)));
        assert!(matches!(Gate::Open.admit(None, 0).unwrap().credential(), RunCredential::Configured));
    }
}
