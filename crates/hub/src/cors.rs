//! What browsers need to hear before a page may talk to a surface, on every answer, errors and preflights included (sse.md §5.7,
//! socketio.md §1.4).

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::{Origins, Verdict};

/// Seconds that a browser may keep a preflight's answer: Chromium's ceiling.
const MAX_AGE: &str = "7200";

/// Whether a request's body is packed by some content coding. None is taken anywhere: what unpacks is larger than what was sent, and nobody says by
/// how much.
#[must_use]
pub fn is_packed(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::CONTENT_ENCODING).iter();
    codings
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"identity"))
}

/// What a surface says to pages.
#[derive(Clone, Copy, Debug)]
pub struct Cors {
    /// The methods that it has.
    pub methods: &'static str,
    /// The headers that a page may send, if its preflight does not say which it will.
    pub headers: &'static str,
    /// The headers that a page may read; empty for none but those that every page may.
    pub exposed: &'static str,
}

/// The page that a request comes from, if it comes from one.
#[derive(Clone, Debug)]
pub struct Page(Option<(HeaderValue, Verdict)>);

impl Page {
    /// The page of a request.
    #[must_use]
    pub fn of(request: &Request, origins: &Origins<'_>) -> Self {
        let verdict = origins.judge(request.uri(), request.headers());
        Self(request.headers().get(header::ORIGIN).cloned().zip(verdict))
    }

    fn allow(self, headers: &mut HeaderMap) -> bool {
        let Some((origin, verdict)) = self.0 else { return false };
        if verdict == Verdict::Foreign {
            return false;
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        // Clients of browsers that were told to send cookies refuse an answer without it.
        if verdict != Verdict::Anyone {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        true
    }
}

impl Cors {
    /// The answer to a preflight; `None` for any other request. Nobody is asked who they are: preflights carry no token.
    #[must_use]
    pub fn preflight(&self, request: &Request, page: &Page) -> Option<Response> {
        if *request.method() != Method::OPTIONS {
            return None;
        }
        let asked = request.headers();
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Origin, Access-Control-Request-Headers"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(self.methods));
        // Echoed, since `*` does not cover Authorization.
        let names = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(HeaderValue::from_static(self.headers));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        if page.clone().allow(headers) && asked.contains_key("access-control-request-private-network") {
            headers.insert("access-control-allow-private-network", HeaderValue::from_static("true"));
        }
        Some(response)
    }

    /// Marks any other answer. One that says already who may read it stays as it is.
    #[must_use]
    pub fn mark(&self, mut response: Response, page: Page) -> Response {
        let headers = response.headers_mut();
        if headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
            return response;
        }
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        if page.allow(headers) && !self.exposed.is_empty() {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(self.exposed));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    const CORS: Cors = Cors { methods: "GET, OPTIONS", headers: "Authorization", exposed: "Location" };

    fn request(method: &str, headers: &[(&str, &str)]) -> Request {
        let builder = axum::http::Request::builder().method(method).uri("/");
        headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(Body::empty()).unwrap()
    }

    fn heard(allowed: &str, method: &str, headers: &[(&str, &str)]) -> Response {
        let allowed = [allowed.to_owned()];
        let request = request(method, headers);
        let page = Page::of(&request, &Origins::new(&allowed, true));
        CORS.preflight(&request, &page).unwrap_or_else(|| CORS.mark(StatusCode::NOT_FOUND.into_response(), page))
    }

    fn said<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn only_identity_is_no_packing() {
        for (headers, expected) in [
            (&[][..], false),
            (&[("content-encoding", "identity")], false),
            (&[("content-encoding", "gzip")], true),
            (&[("content-encoding", "identity, br")], true),
            (&[("content-encoding", "Identity"), ("content-encoding", "x")], true),
            (&[("content-encoding", "")], true),
        ] {
            assert_eq!(is_packed(request("POST", headers).headers()), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_preflight_is_answered_without_a_token() {
        let asks = [
            ("origin", "http://localhost:1"),
            ("access-control-request-headers", "x-a"),
            ("access-control-request-private-network", "true"),
        ];
        let answer = heard("loopback", "OPTIONS", &asks);
        assert_eq!((answer.status(), said(&answer, "access-control-allow-headers")), (StatusCode::NO_CONTENT, Some("x-a")));
        assert_eq!(said(&answer, "access-control-allow-origin"), Some("http://localhost:1"));
        assert_eq!(said(&answer, "access-control-allow-private-network"), Some("true"));
        let foreign = [("origin", "https://evil.example"), ("access-control-request-private-network", "true")];
        let answer = heard("loopback", "OPTIONS", &foreign);
        assert_eq!((answer.status(), said(&answer, "access-control-allow-headers")), (StatusCode::NO_CONTENT, Some("Authorization")));
        assert_eq!(said(&answer, "access-control-allow-origin"), None);
        assert_eq!(said(&answer, "access-control-allow-private-network"), None);
    }

    #[test]
    fn errors_are_marked_and_only_named_origins_may_bring_cookies() {
        let answer = heard("https://app.example", "GET", &[("origin", "https://app.example")]);
        assert_eq!(said(&answer, "access-control-allow-credentials"), Some("true"));
        assert_eq!((said(&answer, "access-control-expose-headers"), said(&answer, "vary")), (Some("Location"), Some("Origin")));
        let answer = heard("*", "GET", &[("origin", "https://app.example")]);
        assert_eq!(said(&answer, "access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(said(&answer, "access-control-allow-credentials"), None);
        let answer = heard("loopback", "GET", &[("origin", "https://app.example")]);
        assert_eq!((said(&answer, "access-control-allow-origin"), said(&answer, "vary")), (None, Some("Origin")));
    }
}
