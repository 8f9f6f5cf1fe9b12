//! Which web pages may do what: one policy for every surface, pure.
//!
//! Browsers let any page send a "simple" request anywhere, this machine's own ports included, and open a WebSocket and read all of it. They
//! say where the page is from (`Origin`); whether that page may is ours to judge. A page can also make its own name resolve to this machine
//! and so look same-origin, which [`names_this_machine`] sees through where nobody needs a token. Who sends no `Origin` is no page.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};

/// What the origin of a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The page came from this very server.
    Own,
    /// Named in the config: also with cookies.
    Known,
    /// Let in because the config lets in everybody.
    Anyone,
    /// Not let in.
    Foreign,
}

/// The origins that pages may come from, and whether a token can make up for a foreign one.
#[derive(Clone, Debug)]
pub struct Origins<'a> {
    allowed: Allowed<'a>,
    tokens_count: bool,
}

/// The entries of the config: the surface's own, or those that all share and that may change.
#[derive(Clone, Debug)]
enum Allowed<'a> {
    Own(&'a [String]),
    Shared(Arc<Vec<String>>),
}

impl<'a> Origins<'a> {
    /// Takes the entries of `[cors] origins`, and whether the config knows the tokens that are let in. Where it does not, anybody can make up
    /// one, so a token says nothing about who sent a page's request.
    #[must_use]
    pub fn new(allowed: &'a [String], tokens_count: bool) -> Self {
        Self { allowed: Allowed::Own(allowed), tokens_count }
    }

    /// The same, of entries that are shared.
    pub(crate) fn shared(allowed: Arc<Vec<String>>, tokens_count: bool) -> Self {
        Self { allowed: Allowed::Shared(allowed), tokens_count }
    }

    fn allowed(&self) -> &[String] {
        match &self.allowed {
            Allowed::Own(allowed) => allowed,
            Allowed::Shared(allowed) => allowed,
        }
    }

    /// Whether a token says who sent a request.
    #[must_use]
    pub fn tokens_count(&self) -> bool {
        self.tokens_count
    }

    /// What the origin of a request may do; `None` if it has none.
    #[must_use]
    pub fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Option<Verdict> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let origin = origins.next()?.to_str().ok().filter(|_| origins.next().is_none());
        let Some(origin) = origin else { return Some(Verdict::Foreign) };
        let names = |entry: &String| if entry == "loopback" { is_loopback(origin) } else { entry.eq_ignore_ascii_case(origin) };
        Some(if self.allowed().iter().any(names) {
            Verdict::Known
        } else if is_own(origin, uri, headers) && (self.tokens_count || names_this_machine(uri, headers)) {
            Verdict::Own
        } else if self.allowed().iter().any(|entry| entry == "*") {
            Verdict::Anyone
        } else {
            Verdict::Foreign
        })
    }

    /// Whether a request is to be refused as a foreign page's doing. `brings_token`: it has a token that no browser adds by itself, so no
    /// cookie.
    #[must_use]
    pub fn refuse(&self, method: &Method, uri: &Uri, headers: &HeaderMap, brings_token: bool) -> bool {
        let acts = !matches!(*method, Method::GET | Method::HEAD) || is_upgrade(headers);
        self.judge(uri, headers) == Some(Verdict::Foreign) && (!brings_token || (acts && !self.tokens_count))
    }
}

/// Whether a request asks for a WebSocket.
#[must_use]
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
}

/// Whether every name that a request calls this server by is one of this machine's: `localhost`, 127.0.0.0/8 or `[::1]`, with any port.
///
/// Whoever needs no token because only this machine can connect must hear no others: a page that made its own name resolve to 127.0.0.1
/// comes with that name.
#[must_use]
pub fn names_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter().map(HeaderValue::to_str);
    uri.authority().is_none_or(|authority| is_local(authority.as_str())) && hosts.all(|host| host.is_ok_and(is_local))
}

/// Whether an origin is that of the server which a request calls.
fn is_own(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let called = uri.authority().map(Authority::as_str).or(host);
    origin.split_once("://").is_some_and(|(_, authority)| called.is_some_and(|called| called.eq_ignore_ascii_case(authority)))
}

/// Whether an origin is a page of this machine.
fn is_loopback(origin: &str) -> bool {
    origin.split_once("://").is_some_and(|(scheme, authority)| matches!(scheme, "http" | "https") && is_local(authority))
}

/// Whether a host, with or without a port, is this machine by its very name. Browsers never look up `localhost` and what is under it.
fn is_local(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((v6, port)) => return is_port(port) && v6.parse().is_ok_and(|ip: Ipv6Addr| ip.to_canonical().is_loopback()),
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_name = host.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("localhost"));
    is_port(port) && (is_name || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()))
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn list(allowed: &[&str]) -> Vec<String> {
        allowed.iter().map(|entry| (*entry).to_owned()).collect()
    }

    fn judged(origin: &str, host: &str, allowed: &[&str], tokens_count: bool) -> Option<Verdict> {
        Origins::new(&list(allowed), tokens_count).judge(&Uri::from_static("/"), &headers(&[("origin", origin), ("host", host)]))
    }

    #[test]
    fn pages_of_this_machine_are_loopback() {
        for origin in [
            "http://localhost",
            "http://LocalHost:5173",
            "https://127.0.0.1:8443",
            "http://127.9.9.9",
            "http://[::1]:3000",
            "http://app.localhost",
        ] {
            assert_eq!(judged(origin, "x", &["loopback"], true), Some(Verdict::Known), "{origin}");
        }
        for origin in [
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://evillocalhost",
            "http://localhost:80@evil.example",
            "http://[::1].evil.example",
            "http://evil.example/localhost",
            "null",
            "file://localhost",
            "http://",
            "",
        ] {
            assert_eq!(judged(origin, "x", &["loopback"], true), Some(Verdict::Foreign), "{origin}");
        }
    }

    #[test]
    fn named_origins_are_known_and_with_a_star_the_others_are_anyone() {
        assert_eq!(judged("https://app.example", "x", &["loopback", "https://App.example"], true), Some(Verdict::Known));
        assert_eq!(judged("http://localhost:1", "x", &["loopback", "*"], true), Some(Verdict::Known));
        assert_eq!(judged("https://app.example", "x", &["*"], true), Some(Verdict::Anyone));
        let two = headers(&[("origin", "http://localhost"), ("origin", "https://evil.example")]);
        assert_eq!(Origins::new(&list(&["loopback"]), true).judge(&Uri::from_static("/"), &two), Some(Verdict::Foreign));
        assert_eq!(Origins::new(&[], true).judge(&Uri::from_static("/"), &HeaderMap::new()), None);
    }

    #[test]
    fn a_page_of_this_server_is_its_own_but_a_rebound_name_is_not_where_nobody_needs_a_token() {
        assert_eq!(judged("https://app.example", "app.example", &[], true), Some(Verdict::Own));
        assert_eq!(judged("http://127.0.0.1:9091", "127.0.0.1:9091", &[], false), Some(Verdict::Own));
        assert_eq!(judged("http://evil.example:9091", "evil.example:9091", &[], false), Some(Verdict::Foreign));
        assert_eq!(judged("http://localhost:1", "localhost:2", &[], true), Some(Verdict::Foreign));
        // HTTP/2 has the name in the address.
        let uri = Uri::from_static("http://app.example/cells");
        assert_eq!(Origins::new(&[], true).judge(&uri, &headers(&[("origin", "https://app.example")])), Some(Verdict::Own));
    }

    #[test]
    fn a_foreign_page_needs_a_token_that_counts() {
        let (allowed, uri) = (list(&["loopback"]), Uri::from_static("/"));
        let plain = headers(&[("origin", "https://evil.example")]);
        let upgrade = headers(&[("origin", "https://evil.example"), ("upgrade", "h2c, WebSocket")]);
        // Method, headers, with a token; refused where tokens count, and where they do not.
        for (method, headers, token, guarded, open) in [
            (Method::GET, &plain, false, true, true),
            (Method::GET, &plain, true, false, false),
            (Method::POST, &plain, false, true, true),
            (Method::POST, &plain, true, false, true),
            (Method::DELETE, &plain, true, false, true),
            (Method::GET, &upgrade, false, true, true),
            (Method::GET, &upgrade, true, false, true),
        ] {
            for (tokens_count, expected) in [(true, guarded), (false, open)] {
                let refused = Origins::new(&allowed, tokens_count).refuse(&method, &uri, headers, token);
                assert_eq!(refused, expected, "{method} {headers:?} {token} {tokens_count}");
            }
        }
        for page in [headers(&[]), headers(&[("origin", "http://localhost:3000")]), headers(&[("upgrade", "websocket")])] {
            assert!(!Origins::new(&allowed, false).refuse(&Method::POST, &uri, &page, false), "{page:?}");
        }
    }

    #[test]
    fn only_names_of_this_machine_are_this_machine() {
        let named = |uri: &'static str, hosts: &[&str]| {
            names_this_machine(&Uri::from_static(uri), &headers(&hosts.iter().map(|host| ("host", *host)).collect::<Vec<_>>()))
        };
        for host in ["localhost", "LOCALHOST:9091", "localhost.", "a.localhost:1", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:9091"] {
            assert!(named("/", &[host]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9091",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "localhost:80@evil.example",
            "0.0.0.0",
            "192.168.1.1",
            "[::2]",
            "[::1]evil",
            "",
            "xlocalhost",
        ] {
            assert!(!named("/", &[host]), "{host}");
        }
        assert!(named("/", &[]), "no browser leaves it out");
        assert!(!named("/", &["localhost", "evil.example"]));
        assert!(!named("http://evil.example/", &["localhost"]));
        assert!(named("http://localhost:1/", &[]));
    }
}
