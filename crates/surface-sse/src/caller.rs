//! Who asks, and for what: the token wherever it may stand, the parts of the path, the query (sse.md §1.1).

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use interline_hub::{Access, Denied, Session};
use interline_model::{Actor, CellName, RunId, SessionId, Text};

use crate::Config;
use crate::error::Refusal;
use crate::shell::{Shell, Target};

/// The surface's name in facts.
pub(crate) const SURFACE: &str = "sse";

/// An admitted client with its request.
pub(crate) struct Caller {
    pub(crate) access: Access,
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
}

impl FromRequestParts<Arc<Shell>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shell: &Arc<Shell>) -> Result<Self, Refusal> {
        let query = pairs(&parts.uri);
        let bearer = bearer(&parts.method, &parts.headers, &query, &shell.config);
        let access = shell.hub.admit_to(SURFACE, bearer.as_deref(), parts.extensions.get().copied())?;
        let path = path(parts, shell).await?;
        Ok(Self { access, path, query })
    }
}

async fn path(parts: &mut Parts, shell: &Arc<Shell>) -> Result<Vec<(String, String)>, Refusal> {
    match RawPathParams::from_request_parts(parts, shell).await {
        Ok(params) => Ok(params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()),
        Err(_) => Err(Refusal::PathNotFound),
    }
}

/// A client that wants to read a run: with a token like any other, or with a ticket in its place.
pub(crate) struct Viewer(pub(crate) Caller);

impl FromRequestParts<Arc<Shell>> for Viewer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shell: &Arc<Shell>) -> Result<Self, Refusal> {
        let Some(ticket) = ticket(&parts.method, &parts.uri).filter(|_| !parts.headers.contains_key(header::AUTHORIZATION)) else {
            return Caller::from_request_parts(parts, shell).await.map(Self);
        };
        let path = path(parts, shell).await?;
        let named = |name: &str| path.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str()).unwrap_or_default();
        let (cell, run) = (CellName::from(named("cell").to_owned()), named("run_id"));
        // Before the ticket is looked at, so it tells nothing: no run has such an id.
        let run = run.parse().map_err(|_| Refusal::Denied(Denied::Invalid))?;
        let access = shell.hub.redeem(SURFACE, &ticket, &cell, run, parts.extensions.get().copied())?;
        Ok(Self(Caller { access, path, query: pairs(&parts.uri) }))
    }
}

/// The ticket of a request that reads, if it brings one.
pub(crate) fn ticket(method: &Method, uri: &Uri) -> Option<String> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let mut pairs = if reads { pairs(uri) } else { Vec::new() };
    let at = pairs.iter().position(|(name, ticket)| name == "ticket" && !ticket.is_empty())?;
    Some(pairs.swap_remove(at).1)
}

impl Caller {
    /// A part of the path; empty if the route has none of that name.
    pub(crate) fn path(&self, name: &str) -> &str {
        self.path.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// A parameter of the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// The cell of the path, if it is there and the client may use it.
    pub(crate) fn cell(&self, shell: &Shell) -> Result<CellName, Refusal> {
        let cell = CellName::from(self.path("cell").to_owned());
        match shell.hub.route(&self.access, &cell) {
            // No route leads there any more: what was said there stays readable.
            Err(error) if !shell.hub.has_sessions(&self.access, &cell) => Err(error.into()),
            _ => Ok(cell),
        }
    }

    /// The run of the path and its session. Somebody else's, or another cell's, does not exist.
    pub(crate) fn run(&self, shell: &Shell) -> Result<(Arc<Session>, RunId), Refusal> {
        let cell = self.cell(shell)?;
        let text = self.path("run_id");
        let run: Option<RunId> = text.parse().ok();
        run.and_then(|run| Some((shell.hub.run(&self.access, run)?, run)))
            .filter(|(session, _)| *session.cell() == cell)
            .ok_or_else(|| Refusal::RunNotFound(text.to_owned()))
    }

    /// The same, or the run that waits for its turn under that id.
    pub(crate) fn target(&self, shell: &Shell) -> Result<Target, Refusal> {
        let cell = self.cell(shell)?;
        let text = self.path("run_id");
        text.parse().ok().and_then(|run| shell.target(&self.access, &cell, run)).ok_or_else(|| Refusal::RunNotFound(text.to_owned()))
    }

    /// The session of the path; the same holds.
    pub(crate) fn session(&self, shell: &Shell) -> Result<Arc<Session>, Refusal> {
        let cell = self.cell(shell)?;
        let text = self.path("session_id");
        let session = shell.hub.session(&self.access, &SessionId::from(text.to_owned()));
        session.filter(|session| *session.cell() == cell).ok_or_else(|| Refusal::SessionNotFound(text.to_owned()))
    }

    /// The client as facts name it.
    pub(crate) fn actor(&self) -> Actor {
        Actor { principal: self.access.principal().clone(), surface: Text::from_static(SURFACE) }
    }
}

/// The token that a request brings by itself, which no browser adds.
pub(crate) fn own_token(method: &Method, uri: &Uri, headers: &HeaderMap, config: &Config) -> Option<String> {
    header_or_query(method, headers, &pairs(uri), config).filter(|token| !token.is_empty())
}

/// The parameters of a query. Lists of pairs are read from any query, however odd.
fn pairs(uri: &Uri) -> Vec<(String, String)> {
    Query::<Vec<(String, String)>>::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default()
}

/// The token: a header first; on GET, where the config allows, the query or a cookie, since `EventSource` can set no header.
fn bearer(method: &Method, headers: &HeaderMap, query: &[(String, String)], config: &Config) -> Option<String> {
    let is_get = matches!(*method, Method::GET | Method::HEAD);
    let own = header_or_query(method, headers, query, config);
    if own.is_some() || !is_get || headers.contains_key(header::AUTHORIZATION) { own } else { cookie(headers, config) }
}

fn header_or_query(method: &Method, headers: &HeaderMap, query: &[(String, String)], config: &Config) -> Option<String> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned());
    }
    if !matches!(*method, Method::GET | Method::HEAD) || !config.takes_query_token() {
        return None;
    }
    query.iter().find(|(name, _)| name == "access_token" || name == "token").map(|(_, token)| token.clone())
}

fn cookie(headers: &HeaderMap, config: &Config) -> Option<String> {
    if config.token_cookie.is_empty() {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    cookies
        .filter_map(|cookie| cookie.trim().split_once('='))
        .find(|(name, _)| *name == config.token_cookie)
        .map(|(_, token)| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueryToken;

    fn found(method: &Method, headers: &[(&str, &str)], query: &[(&str, &str)]) -> Option<String> {
        let config = Config { query_token: QueryToken::Always, token_cookie: "auth".into(), ..Config::default() };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        let query: Vec<_> = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        bearer(method, &map, &query, &config)
    }

    #[test]
    fn the_header_wins_and_urls_and_cookies_count_on_get_only() {
        let header = [("authorization", "bearer  abc ")];
        let cookie = [("cookie", "a=b; auth=xyz=1; c")];
        let query = [("from_seq", "1"), ("access_token", "def")];
        assert_eq!(found(&Method::POST, &header, &query).as_deref(), Some("abc"));
        assert_eq!(found(&Method::GET, &header, &query).as_deref(), Some("abc"));
        assert_eq!(found(&Method::GET, &cookie, &query).as_deref(), Some("def"));
        assert_eq!(found(&Method::HEAD, &cookie, &[]).as_deref(), Some("xyz=1"));
        assert_eq!(found(&Method::GET, &[], &[("token", "ghi")]).as_deref(), Some("ghi"));
        assert_eq!(found(&Method::POST, &cookie, &query), None);
        assert_eq!(found(&Method::DELETE, &cookie, &query), None);
        assert_eq!(found(&Method::GET, &[("authorization", "Basic abc")], &query), None);
    }

    #[test]
    fn both_are_off_unless_configured() {
        let config = Config::default();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, "auth=x; =y".parse().unwrap());
        assert_eq!(bearer(&Method::GET, &headers, &[("token".into(), "x".into())], &config), None);
    }
}
