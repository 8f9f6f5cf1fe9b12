//! One upstream as its links see it: its config, and the ways to reach it.

use std::sync::{Arc, Mutex, PoisonError};

use http::Method;
use interline_hub::{LinkError, RunCredential, Secret};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;

use crate::http::{HttpClient, HttpError, Payload, Reply};
use crate::origin::Origin;
use crate::refusal::unreachable;
use crate::socket::Dialer;
use crate::{ConfigError, Kind, LinkConfig, UpstreamConfig};

/// Shared by all links of one upstream.
pub(crate) struct Server {
    pub(crate) config: UpstreamConfig,
    pub(crate) link: LinkConfig,
    pub(crate) origin: Origin,
    pub(crate) dialer: Dialer,
    /// The configured one, which may be replaced.
    credential: Mutex<Option<Secret>>,
    http: HttpClient,
}

impl Server {
    pub(crate) fn new(config: UpstreamConfig, link: LinkConfig) -> Result<Self, ConfigError> {
        let name = || config.name.clone();
        if config.name.trim().is_empty() {
            return Err(ConfigError::NoName);
        }
        let origin = Origin::parse(&config.url).map_err(|why| ConfigError::Url { name: name(), url: shown(&config.url), why })?;
        if config.credential.as_ref().is_some_and(|secret| secret.is_empty() || crate::http::bearer_header(secret).is_none()) {
            return Err(ConfigError::Credential { name: name() });
        }
        if config.kind == Kind::Bridge {
            let cloud_only = [
                ("environment_id", &config.environment_id),
                ("workdir", &config.workdir),
                ("pool_tag", &config.pool_tag),
                ("provider_id", &config.provider_id),
            ];
            if let Some((key, _)) = cloud_only.into_iter().find(|(_, value)| value.is_some()) {
                return Err(ConfigError::CloudOnly { name: name(), key });
            }
        }
        let tls = tls()?;
        let largest = match config.kind {
            Kind::Cloud => link.cloud_max_outbound,
            Kind::Bridge => link.bridge_max_outbound,
        };
        let http = HttpClient::new(tls.clone(), &link);
        let dialer = Dialer::new(Arc::new(tls), &link, largest);
        let credential = Mutex::new(config.credential.clone());
        Ok(Self { config, link, origin, dialer, credential, http })
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Takes another credential in the place of the configured one.
    pub(crate) fn replace_credential(&self, credential: Option<Secret>) {
        *self.credential.lock().unwrap_or_else(PoisonError::into_inner) = credential;
    }

    /// The bearer for a client's run or action: its own in `passthrough`, else the configured one.
    pub(crate) fn credential(&self, of: &RunCredential) -> Option<Secret> {
        match of {
            RunCredential::Configured => self.credential.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            RunCredential::Client(bearer) => bearer.clone(),
        }
    }

    /// Posts JSON.
    pub(crate) async fn post(&self, path: &str, bearer: Option<&Secret>, body: Option<&impl Serialize>) -> Result<Reply, HttpError> {
        // Plain structs of strings always serialise.
        let body = body.map(|body| Payload::json(serde_json::to_string(body).unwrap_or_default()));
        self.http.send(Method::POST, self.origin.http(path)?, bearer, body, self.link.max_reply_bytes, self.link.request_timeout()).await
    }

    /// Posts what the server may work on for a while.
    pub(crate) async fn post_patiently(&self, path: &str, bearer: Option<&Secret>, body: Option<Payload>) -> Result<Reply, HttpError> {
        self.http.send(Method::POST, self.origin.http(path)?, bearer, body, self.link.max_reply_bytes, self.link.action_timeout()).await
    }

    /// Gets something as large as a message.
    pub(crate) async fn get(&self, uri: http::Uri, bearer: Option<&Secret>) -> Result<Reply, HttpError> {
        self.http.send(Method::GET, uri, bearer, None, self.link.max_message_bytes, self.link.request_timeout()).await
    }

    /// Deletes something.
    pub(crate) async fn delete(&self, path: &str, bearer: Option<&Secret>) -> Result<Reply, HttpError> {
        self.http.send(Method::DELETE, self.origin.http(path)?, bearer, None, self.link.max_reply_bytes, self.link.request_timeout()).await
    }

    pub(crate) fn unreachable(&self, why: &dyn std::fmt::Display) -> LinkError {
        unreachable(self.name(), &self.origin, why)
    }
}

/// A URL fit for an error message: without what stands before an `@`, which may be a secret.
fn shown(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            let (head, tail) = (url.get(..scheme).unwrap_or_default(), url.get(at + 1..).unwrap_or_default());
            format!("{head}://…@{tail}")
        }
        _ => url.split('?').next().unwrap_or_default().to_owned(),
    }
}

/// TLS with Mozilla's roots, on a provider named here, so that nothing depends on which one the process has made its default.
fn tls() -> Result<ClientConfig, ConfigError> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| ConfigError::Tls(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    fn config(url: &str) -> UpstreamConfig {
        UpstreamConfig {
            name: "main".into(),
            kind: Kind::Bridge,
            url: url.into(),
            credential: None,
            mode: Mode::Chat,
            environment_id: None,
            workdir: None,
            pool_tag: None,
            provider_id: None,
        }
    }

    fn error(config: UpstreamConfig) -> String {
        Server::new(config, LinkConfig::default()).err().unwrap().to_string()
    }

    #[test]
    fn what_cannot_work_is_said_at_once() {
        assert!(Server::new(config("https://agents.example"), LinkConfig::default()).is_ok());
        assert!(error(config("agents.example")).contains("http://"));
        assert!(error(UpstreamConfig { workdir: Some("/w".into()), ..config("http://x") }).contains("workdir"));
        assert!(error(UpstreamConfig { name: " ".into(), ..config("http://x") }).contains("name"));
        for secret in ["", "a\nb"] {
            let config = UpstreamConfig { credential: Some(Secret::new(secret)), ..config("http://x") };
            assert!(error(config).contains("credential"));
        }
    }

    #[test]
    fn a_secret_in_the_url_is_not_repeated() {
        for url in ["http://user:canary@host/", "http://host/?token=canary"] {
            let error = error(config(url));
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
