//! Where an upstream lives: its base address, and the addresses below it. Nothing of a link leaves it.

use std::fmt;
use std::fmt::Write as _;

use http::Uri;
use http::uri::{Authority, Scheme};
use interline_model::path_segment;

/// The base address of an upstream.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    secure: bool,
    authority: Authority,
    /// Without a slash at its end.
    path: String,
}

impl Origin {
    /// Reads a base address; the error says what is wrong with it.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.trim().parse().map_err(|_| "this is no URL")?;
        let secure = match uri.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            _ => return Err("it must begin with http:// or https://"),
        };
        let authority = uri.authority().cloned().ok_or("it names no host")?;
        if authority.host().is_empty() {
            return Err("it names no host");
        }
        if authority.as_str().contains('@') {
            return Err("a secret in a URL ends up in logs: use the key credential");
        }
        if uri.query().is_some() {
            return Err("it must not have a query");
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { secure, authority, path })
    }

    /// The address of `path`, which begins with a slash, for requests.
    pub(crate) fn http(&self, path: &str) -> Result<Uri, http::Error> {
        let scheme = if self.secure { Scheme::HTTPS } else { Scheme::HTTP };
        Uri::builder().scheme(scheme).authority(self.authority.clone()).path_and_query(format!("{}{path}", self.path)).build()
    }

    /// The address of `path` for a WebSocket, with a query.
    pub(crate) fn websocket(&self, path: &str, query: &[(&str, &str)]) -> Result<Uri, http::Error> {
        let mut target = format!("{}{path}", self.path);
        let mut separator = '?';
        for (name, value) in query {
            let _ = write!(target, "{separator}{name}={}", escaped(value));
            separator = '&';
        }
        let scheme = if self.secure { "wss" } else { "ws" };
        Uri::builder().scheme(scheme).authority(self.authority.clone()).path_and_query(target).build()
    }

    /// An address that the server gave, if it leads back to this very server (design §7).
    pub(crate) fn resolve(&self, reference: &str) -> Option<Uri> {
        if reference.contains(['\\', '@', '#']) || reference.contains(char::is_control) {
            return None;
        }
        if reference.starts_with('/') && !reference.starts_with("//") {
            let scheme = if self.secure { Scheme::HTTPS } else { Scheme::HTTP };
            return Uri::builder().scheme(scheme).authority(self.authority.clone()).path_and_query(reference).build().ok();
        }
        let uri: Uri = reference.parse().ok()?;
        let scheme = if self.secure { "https" } else { "http" };
        let same = uri.scheme_str() == Some(scheme)
            && uri.host().is_some_and(|host| host.eq_ignore_ascii_case(self.authority.host()))
            && self.port_of(uri.port_u16()) == self.port_of(self.authority.port_u16());
        same.then_some(uri)
    }

    fn port_of(&self, port: Option<u16>) -> u16 {
        port.unwrap_or(if self.secure { 443 } else { 80 })
    }
}

/// For messages: the address without anything secret.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.secure { "https" } else { "http" }, self.authority, self.path)
    }
}

/// Text that may stand in a path segment or a query value, whatever it was.
pub(crate) fn escaped(text: &str) -> String {
    // `.` and `..` are no names in a path.
    if text.bytes().all(|byte| byte == b'.') {
        return "%2E".repeat(text.len());
    }
    path_segment(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_below_a_base() {
        let origin = Origin::parse("https://agents.example/base/").unwrap();
        assert_eq!(origin.http("/v1/x").unwrap().to_string(), "https://agents.example/base/v1/x");
        let socket = origin.websocket("/v1/x/ws", &[("session_token", "a b&c=d"), ("since_seq", "3")]).unwrap();
        assert_eq!(socket.to_string(), "wss://agents.example/base/v1/x/ws?session_token=a%20b%26c%3Dd&since_seq=3");
        let plain = Origin::parse("http://127.0.0.1:8088").unwrap();
        assert_eq!(plain.websocket("/w", &[]).unwrap().to_string(), "ws://127.0.0.1:8088/w");
        assert_eq!(plain.to_string(), "http://127.0.0.1:8088");
    }

    #[test]
    fn no_name_is_a_way_up() {
        for (name, expected) in [("..", "%2E%2E"), (".", "%2E"), ("../x", "..%2Fx"), ("a.b", "a.b"), ("", "")] {
            assert_eq!(escaped(name), expected);
        }
    }

    #[test]
    fn addresses_that_cannot_be_used() {
        for url in ["", "localhost", "ftp://x", "http://", "http://user:secret@host", "http://host/?token=x", "http:///path", "not a url"] {
            assert!(Origin::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_server_can_only_point_to_itself() {
        let origin = Origin::parse("http://agents.example:7003").unwrap();
        for good in ["/v1/agent/sessions/1/result", "http://agents.example:7003/r", "http://AGENTS.example:7003/r?x=1"] {
            assert!(origin.resolve(good).is_some(), "{good}");
        }
        for bad in [
            "//evil.example/r",
            "http://evil.example:7003/r",
            "http://agents.example/r",
            "http://agents.example:7004/r",
            "https://agents.example:7003/r",
            "http://agents.example:7003@evil.example/r",
            "/\\evil.example/r",
            "file:///etc/passwd",
            "r",
            "",
        ] {
            assert!(origin.resolve(bad).is_none(), "{bad}");
        }
        assert!(Origin::parse("https://a").unwrap().resolve("https://a:443/r").is_some());
    }
}
