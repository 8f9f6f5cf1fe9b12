//! Where a client's token may stand, and from which pages a client may come (socketio.md §1.2).

use axum::extract::Query;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use interline_hub::{Origins, Verdict};

use crate::Config;

/// The token of a socket: of the CONNECT packet's `auth` first, then of the handshake. `Err` for a page that may not come without one.
pub(crate) fn of_socket(
    auth: Option<&str>,
    handshake: &Parts,
    config: &Config,
    origins: &Origins<'_>,
) -> Result<Option<String>, ForeignPage> {
    let (headers, uri) = (&handshake.headers, &handshake.uri);
    let auth = auth.filter(|token| !token.is_empty()).map(str::to_owned);
    let own = auth.or_else(|| own_token(headers, uri, config));
    // Whatever the handshake's method was: who has a socket can do everything.
    if origins.refuse(&Method::POST, uri, headers, own.is_some()) {
        return Err(ForeignPage);
    }
    Ok(own.or_else(|| cookie(headers, uri, config, origins)))
}

/// A page of an origin that the config does not know brought nothing but what a browser adds by itself.
///
/// Browsers let any page open a WebSocket anywhere, with cookies, and read all of it: CORS does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignPage;

/// The token of a request: header, query, cookie; the first that is not empty.
pub(crate) fn of_request(headers: &HeaderMap, uri: &Uri, config: &Config, origins: &Origins<'_>) -> Option<String> {
    own_token(headers, uri, config).or_else(|| cookie(headers, uri, config, origins))
}

/// The token that a request brings by itself, which no browser adds.
pub(crate) fn own_token(headers: &HeaderMap, uri: &Uri, config: &Config) -> Option<String> {
    authorization(headers).or_else(|| query(uri, config))
}

fn authorization(headers: &HeaderMap) -> Option<String> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

fn query(uri: &Uri, config: &Config) -> Option<String> {
    if !config.takes_query_token() {
        return None;
    }
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).ok()?;
    pairs.into_iter().find(|(name, token)| name == "token" && !token.is_empty()).map(|(_, token)| token)
}

/// A cookie is what the browser adds, so only pages of this server or of a named origin may use one.
fn cookie(headers: &HeaderMap, uri: &Uri, config: &Config, origins: &Origins<'_>) -> Option<String> {
    let known = origins.judge(uri, headers).is_none_or(|verdict| matches!(verdict, Verdict::Known | Verdict::Own));
    if config.token_cookie.is_empty() || !known {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    let mut pairs = cookies.filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(name, token)| *name == config.token_cookie && !token.is_empty()).map(|(_, token)| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueryToken;

    fn found(auth: Option<&str>, uri: &str, headers: &[(&str, &str)]) -> Result<Option<String>, ForeignPage> {
        let mut request = axum::http::Request::builder().uri(uri).header("host", "proxy.example");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let config = Config { query_token: QueryToken::Always, ..Config::default() };
        of_socket(auth, &request.body(()).unwrap().into_parts().0, &config, &Origins::new(&config.origins, true))
    }

    #[test]
    fn the_first_token_that_is_not_empty_wins() {
        let all = [("authorization", "Bearer head"), ("cookie", "x=1; blade_token=cake")];
        let token = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(found(Some("auth"), "/socket.io/?token=query", &all), token("auth"));
        assert_eq!(found(Some(""), "/socket.io/?token=query", &all), token("head"));
        assert_eq!(found(None, "/socket.io/?token=query", &all[1..]), token("query"));
        assert_eq!(found(None, "/socket.io/?token=", &all[1..]), token("cake"));
        assert_eq!(found(None, "/socket.io/", &[("authorization", "Basic eA==")]), Ok(None));
    }

    #[test]
    fn a_foreign_page_comes_with_a_token_of_its_own_or_not_at_all() {
        let evil = ("origin", "https://evil.example");
        assert_eq!(found(None, "/", &[evil, ("cookie", "blade_token=cake")]), Err(ForeignPage));
        assert_eq!(found(None, "/", &[evil]), Err(ForeignPage));
        assert_eq!(found(Some("own"), "/", &[evil]), Ok(Some("own".to_owned())));
        let same = ("origin", "https://proxy.example");
        assert_eq!(found(None, "/", &[same, ("cookie", "blade_token=cake")]), Ok(Some("cake".to_owned())));
        assert_eq!(found(None, "/", &[("origin", "http://localhost:5173")]), Ok(None));
    }

    #[test]
    fn where_anybody_is_let_in_a_made_up_token_does_not_help_a_foreign_page() {
        let config = Config::default();
        let open = Origins::new(&config.origins, false);
        let from = |origin: &str| axum::http::Request::builder().header("origin", origin).body(()).unwrap().into_parts().0;
        assert_eq!(of_socket(Some("made-up"), &from("https://evil.example"), &config, &open), Err(ForeignPage));
        assert_eq!(of_socket(Some("any"), &from("http://localhost:5173"), &config, &open), Ok(Some("any".to_owned())));
    }

    #[test]
    fn a_token_in_the_url_needs_leave() {
        let uri = Uri::from_static("/?token=t");
        let found = |config: Config| of_request(&HeaderMap::new(), &uri, &config, &Origins::new(&config.origins, true));
        assert_eq!(found(Config::default()), None);
        assert_eq!(found(Config { on_loopback: true, ..Config::default() }), Some("t".to_owned()));
    }
}
