//! Session tokens: short-lived secrets, each good for one native session, which is a run or a session (native-ws.md §1.2).
//!
//! They are random and mean nothing by themselves. What is kept of one is its hash.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use interline_hub::Access;
use interline_model::{Millis, Principal, RunId, SessionId};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// What every session token begins with, so that it is never taken for a long-lived one.
const MARK: &str = "ist_";

type Hash = [u8; 32];

/// What a session token opens.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// Whose, and what they may use.
    pub(super) access: Access,
    /// The session.
    pub(super) session: SessionId,
    /// The run that it is for alone; `None` is the session with all its runs.
    pub(super) run: Option<RunId>,
}

/// Why a presented token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is a session token, and was never given out or is long gone.
    Unknown,
    /// Its time is over.
    Expired,
    /// It is no session token.
    Foreign,
}

/// The session tokens that were given out.
pub(super) struct Tokens {
    lifetime_ms: u64,
    /// For one principal.
    max: usize,
    issued: Mutex<Issued>,
}

#[derive(Default)]
struct Issued {
    grants: HashMap<Hash, (Millis, Grant)>,
    /// Every principal's, oldest first. All live equally long, so the first is the next to expire.
    owners: HashMap<Principal, VecDeque<Hash>>,
    /// When the tokens of principals that ask for no new ones were last looked at.
    swept_at: Millis,
}

impl Tokens {
    pub(super) fn new(lifetime_ms: u64, max: usize) -> Self {
        Self { lifetime_ms, max: max.max(1), issued: Mutex::default() }
    }

    fn issued(&self) -> MutexGuard<'_, Issued> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out a token, with the time when it expires.
    pub(super) fn issue(&self, grant: Grant, now: Millis) -> (String, Millis) {
        let token = format!("{MARK}{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let expires_at = now.saturating_add(self.lifetime_ms);
        let mut issued = self.issued();
        issued.sweep(now, self.lifetime_ms);
        let hash = hash(&token);
        let Issued { grants, owners, .. } = &mut *issued;
        let own = owners.entry(grant.access.principal().clone()).or_default();
        while own.len() >= self.max {
            own.pop_front().map(|oldest| grants.remove(&oldest));
        }
        own.push_back(hash);
        grants.insert(hash, (expires_at, grant));
        (token, expires_at)
    }

    /// What a presented token opens.
    pub(super) fn open(&self, token: &str, now: Millis) -> Result<Grant, Refused> {
        if !token.starts_with(MARK) {
            return Err(Refused::Foreign);
        }
        match self.issued().grants.get(&hash(token)) {
            Some((expires_at, grant)) if *expires_at > now => Ok(grant.clone()),
            Some(_) => Err(Refused::Expired),
            None => Err(Refused::Unknown),
        }
    }
}

impl Issued {
    /// Forgets tokens a lifetime after they expired: until then a client is told why its token opens nothing.
    fn sweep(&mut self, now: Millis, lifetime_ms: u64) {
        if now.saturating_sub(self.swept_at) < lifetime_ms / 8 {
            return;
        }
        self.swept_at = now;
        self.grants.retain(|_, (expires_at, _)| expires_at.saturating_add(lifetime_ms) > now);
        let grants = &self.grants;
        self.owners.retain(|_, own| {
            while own.front().is_some_and(|oldest| !grants.contains_key(oldest)) {
                own.pop_front();
            }
            !own.is_empty()
        });
    }
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_hub::Gate;

    fn grant(bearer: &str) -> Grant {
        Grant { access: Gate::Passthrough.admit(Some(bearer), 0).unwrap(), session: SessionId::from("s"), run: None }
    }

    #[test]
    fn a_token_opens_its_grant_until_it_expires() {
        let tokens = Tokens::new(1_000, 8);
        let (token, expires_at) = tokens.issue(grant("a"), 10);
        assert_eq!(expires_at, 1_010);
        assert_eq!(tokens.open(&token, 1_009).unwrap().session.as_str(), "s");
        assert_eq!(tokens.open(&token, 1_010).unwrap_err(), Refused::Expired);
        assert_eq!(tokens.open(&format!("{token}0"), 10).unwrap_err(), Refused::Unknown);
        assert_eq!(tokens.open("long-lived", 10).unwrap_err(), Refused::Foreign);
        let _ = tokens.issue(grant("b"), 5_000);
        assert_eq!(tokens.open(&token, 5_000).unwrap_err(), Refused::Unknown);
        assert_eq!(tokens.issued().owners.len(), 1);
    }

    #[test]
    fn one_principal_pushes_out_its_own_tokens_only() {
        let tokens = Tokens::new(1_000, 2);
        let other = tokens.issue(grant("b"), 0).0;
        let own: Vec<_> = (0..3).map(|_| tokens.issue(grant("a"), 0).0).collect();
        assert_eq!(tokens.open(&own[0], 1).unwrap_err(), Refused::Unknown);
        assert!(tokens.open(&own[1], 1).is_ok() && tokens.open(&own[2], 1).is_ok() && tokens.open(&other, 1).is_ok());
        assert_eq!(tokens.issued().grants.len(), 3);
    }

    #[test]
    fn nothing_of_a_token_is_kept() {
        let tokens = Tokens::new(1_000, 2);
        let (token, _) = tokens.issue(grant("a"), 0);
        let kept: Vec<Hash> = tokens.issued().grants.keys().copied().collect();
        assert_eq!(kept, [hash(&token)]);
        assert_ne!(token, tokens.issue(grant("a"), 0).0);
    }
}
