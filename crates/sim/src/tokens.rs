//! Session tokens: short-lived, scoped to one session, in the shape of a JWT.
//!
//! The signature is a keyed hash that only this process can check; nobody else has to.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use crate::frames::now_ms;

/// How far a clock may be behind (native-ws.md §1.2).
const LEEWAY_S: u64 = 30;

pub(crate) struct Signer {
    keys: [RandomState; 2],
    ttl: Duration,
}

/// A token and the time it ends, in milliseconds.
pub(crate) struct Minted {
    pub(crate) token: String,
    pub(crate) expires_at: u64,
}

#[derive(Deserialize, Serialize)]
struct Claims {
    sub: String,
    scope: Vec<String>,
    iat: u64,
    exp: u64,
    /// The same to the millisecond, so that tests can have short lifetimes.
    exp_ms: u64,
}

impl Signer {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { keys: [RandomState::new(), RandomState::new()], ttl }
    }

    pub(crate) fn mint(&self, session: &str) -> Minted {
        let now = now_ms();
        let expires_at = now.saturating_add(u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX));
        let claims = Claims {
            sub: "5f3c1d0e-0000-4000-8000-000000000001".to_owned(),
            scope: vec![format!("session:{session}")],
            iat: now / 1000,
            exp: expires_at / 1000,
            exp_ms: expires_at,
        };
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let claims = serde_json::to_string(&claims).unwrap_or_default();
        let signed = format!("{}.{}", part(r#"{"alg":"HS256","typ":"JWT"}"#), part(&claims));
        let token = format!("{signed}.{}", self.signature(&signed));
        Minted { token, expires_at }
    }

    /// Checks a token for a session; the error is the verifier's sentence.
    pub(crate) fn check(&self, token: &str, session: &str) -> Result<(), &'static str> {
        let claims = self.claims(token)?;
        if !claims.scope.iter().any(|scope| scope.starts_with("session:")) {
            return Err("agentplane: token missing session scope");
        }
        if !claims.scope.iter().any(|scope| scope.strip_prefix("session:") == Some(session)) {
            return Err("agentplane: token scope does not match session");
        }
        Ok(())
    }

    /// True for a token of any session that is still good.
    pub(crate) fn knows(&self, token: &str) -> bool {
        self.claims(token).is_ok()
    }

    fn claims(&self, token: &str) -> Result<Claims, &'static str> {
        let malformed = "token is malformed: token contains an invalid number of segments";
        let (signed, signature) = token.rsplit_once('.').ok_or(malformed)?;
        let (_, claims) = signed.split_once('.').ok_or(malformed)?;
        if self.signature(signed) != signature {
            return Err("token signature is invalid: signature is invalid");
        }
        let claims: Option<Claims> = URL_SAFE_NO_PAD.decode(claims).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let claims = claims.ok_or("token is malformed: could not decode claims")?;
        if now_ms() > claims.exp_ms.saturating_add(self.leeway_ms()) {
            return Err("token has invalid claims: token is expired");
        }
        Ok(claims)
    }

    /// A test's lifetime of seconds would never end under the real leeway.
    fn leeway_ms(&self) -> u64 {
        if self.ttl.as_secs() > 2 * LEEWAY_S { LEEWAY_S * 1000 } else { 0 }
    }

    fn signature(&self, signed: &str) -> String {
        let bytes = self.keys.each_ref().map(|key| key.hash_one(signed).to_be_bytes());
        URL_SAFE_NO_PAD.encode(bytes.as_flattened())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_open_their_own_session_only() {
        let signer = Signer::new(Duration::from_secs(1800));
        let token = signer.mint("a").token;
        assert_eq!(token.split('.').count(), 3);
        assert_eq!(signer.check(&token, "a"), Ok(()));
        assert_eq!(signer.check(&token, "b"), Err("agentplane: token scope does not match session"));
        assert_eq!(Signer::new(Duration::from_secs(1800)).check(&token, "a"), Err("token signature is invalid: signature is invalid"));
        assert!(signer.check("nonsense", "a").is_err());
        assert!(signer.check("..", "a").is_err());
    }

    #[test]
    fn tokens_end() {
        let signer = Signer::new(Duration::ZERO);
        let token = signer.mint("a").token;
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(signer.check(&token, "a"), Err("token has invalid claims: token is expired"));
    }
}
