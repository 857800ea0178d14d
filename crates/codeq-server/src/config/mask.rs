//! Hiding secrets from those who read logs and dumps.

use std::fmt;

use serde::{Serialize, Serializer};
use url::Url;

use super::model::{
    ArtifactsConfig, BackupConfig, JwtConfig, StaticToken, TracingConfig, WebhookSecret,
};

/// What stands for a secret.
pub(crate) const MASK: &str = "***";

/// The address without user, password and query. What is no address at all keeps only what stands behind
/// its last `@`.
pub(crate) fn mask_url(text: &str) -> String {
    let Ok(url) = Url::parse(text) else {
        return match text.rsplit_once('@') {
            Some((_, rest)) => format!("{MASK}@{rest}"),
            None => text.to_owned(),
        };
    };
    if url.username().is_empty() && url.password().is_none() && url.query().is_none() {
        return text.to_owned();
    }
    let user = if url.username().is_empty() && url.password().is_none() { "" } else { "***@" };
    let query = if url.query().is_some() { "?***" } else { "" };
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{user}{host}{port}{}{query}", url.scheme(), url.path())
}

/// Serialises a secret as its mask.
pub(crate) fn secret<S: Serializer>(
    secret: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| MASK).serialize(serializer)
}

/// Serialises an address without its credentials.
pub(crate) fn url<S: Serializer>(url: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    url.as_deref().map(mask_url).serialize(serializer)
}

impl fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticToken")
            .field("token", &self.token.as_ref().map(|_| MASK))
            .field("token_sha256", &self.token_sha256)
            .field("subject", &self.subject)
            .field("tenant", &self.tenant)
            .field("scopes", &self.scopes)
            .field("event_types", &self.event_types)
            .field("worker_group", &self.worker_group)
            .finish()
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSecret")
            .field("tenant", &self.tenant)
            .field("secret", &self.secret.as_ref().map(|_| MASK))
            .field("previous", &self.previous.as_ref().map(|_| MASK))
            .finish()
    }
}

impl fmt::Debug for JwtConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtConfig")
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .field("jwks_url", &self.jwks_url.as_deref().map(mask_url))
            .finish()
    }
}

impl fmt::Debug for ArtifactsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArtifactsConfig")
            .field("url", &self.url.as_deref().map(mask_url))
            .field("max_bytes", &self.max_bytes)
            .finish()
    }
}

impl fmt::Debug for BackupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupConfig")
            .field("target", &self.target.as_deref().map(mask_url))
            .finish()
    }
}

impl fmt::Debug for TracingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracingConfig")
            .field("otlp_endpoint", &self.otlp_endpoint.as_deref().map(mask_url))
            .field("sample_ratio", &self.sample_ratio)
            .field("service_name", &self.service_name)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_what_is_secret_and_nothing_else() {
        for (text, masked) in [
            ("https://a.example/x", "https://a.example/x"),
            ("https://a.example", "https://a.example"),
            ("https://u:p@a.example:8443/x", "https://***@a.example:8443/x"),
            ("https://key@a.example/", "https://***@a.example/"),
            ("https://:p@a.example/", "https://***@a.example/"),
            ("https://a.example/x?key=s", "https://a.example/x?***"),
            ("no address u:p@host", "***@host"),
            ("", ""),
        ] {
            assert_eq!(mask_url(text), masked);
        }
    }
}
