//! Fetches an issuer's keys over HTTP.
//!
//! The provider is trusted for the content of its tokens, not for its behaviour: redirects are not
//! followed, proxy variables are ignored, responses are bounded in time and size, and plain HTTP
//! works only on loopback.

use std::time::Duration;

use http::HeaderMap;
use http::header::CACHE_CONTROL;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use url::{Host, Url};

use crate::jwk::KeySet;

/// Time limit per request, including connecting and reading.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest response.
const BODY_BYTES_MAX: usize = 256 << 10;
/// How long keys stay fresh if the provider does not say.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
/// Lower bound on `max-age`.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
/// Upper bound on `max-age`: withdrawn keys must stop working.
const LIFETIME_MAX: Duration = Duration::from_secs(3_600);

/// The location of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A JWKS URL.
    Jwks(Url),
    /// Named by the issuer's discovery document.
    Discovery {
        /// The issuer the document must name.
        issuer: String,
        /// The document's URL.
        document: Url,
    },
}

impl Source {
    /// Derives the location from the settings. The error says what is wrong with `jwks_url` or, without it, with the
    /// issuer.
    pub fn new(issuer: &str, jwks_url: Option<&str>) -> Result<Source, &'static str> {
        if let Some(text) = jwks_url {
            return Ok(Source::Jwks(checked_url(text, true)?));
        }
        checked_url(issuer, true)?;
        let text = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document = checked_url(&text, true)?;
        Ok(Source::Discovery { issuer: issuer.to_owned(), document })
    }

    /// The host name, for logs.
    pub fn host(&self) -> &str {
        let (Source::Jwks(url) | Source::Discovery { document: url, .. }) = self;
        url.host_str().unwrap_or("")
    }
}

fn checked_url(text: &str, plain_loopback: bool) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "is not a url")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("has credentials");
    }
    if url.fragment().is_some() {
        return Err("has a fragment");
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if plain_loopback && is_loopback(&url) => Ok(url),
        _ => Err("is not https"),
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Creates the HTTP client shared by all providers.
pub(crate) fn client() -> Result<Client, String> {
    Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(REQUEST_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .build()
        .map_err(|error| format!("no http client for identity providers: {error}"))
}

/// Fetches the keys and their lifetime. The error is for the log.
pub(crate) async fn fetch(client: &Client, source: &Source) -> Result<(KeySet, Duration), String> {
    let found;
    let url = match source {
        Source::Jwks(url) => url,
        Source::Discovery { issuer, document } => {
            found = discover(client, issuer, document).await?;
            &found
        }
    };
    let response = get(client, url).await?;
    let lifetime = lifetime(response.headers());
    let keys = KeySet::parse(&body(response).await?)?;
    Ok((keys, lifetime))
}

async fn discover(client: &Client, issuer: &str, document: &Url) -> Result<Url, String> {
    #[derive(Deserialize)]
    struct Document {
        issuer: String,
        jwks_uri: String,
    }
    let bytes = body(get(client, document).await?).await?;
    let found: Document =
        serde_json::from_slice(&bytes).map_err(|_| "not a discovery document".to_owned())?;
    if found.issuer != issuer {
        return Err("the discovery document names another issuer".to_owned());
    }
    // Plain HTTP to loopback is only for a provider that is there itself: a remote one must not send us to it.
    checked_url(&found.jwks_uri, is_loopback(document)).map_err(|why| format!("jwks_uri {why}"))
}

async fn get(client: &Client, url: &Url) -> Result<Response, String> {
    let response = client.get(url.clone()).send().await.map_err(text)?;
    if response.status() != StatusCode::OK {
        return Err(format!("answered {}", response.status()));
    }
    Ok(response)
}

async fn body(mut response: Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(text)? {
        if body.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(format!("answered more than {BODY_BYTES_MAX} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An error with its causes but without the URL, whose query may hold a secret.
fn text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn lifetime(headers: &HeaderMap) -> Duration {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut lifetime = None;
    for directive in values.flat_map(|value| value.split(',')) {
        let (name, argument) = directive.split_once('=').unwrap_or((directive, ""));
        let name = name.trim().to_ascii_lowercase();
        if name == "no-cache" || name == "no-store" {
            return LIFETIME_MIN;
        }
        if name == "max-age"
            && let Ok(seconds) = argument.trim().trim_matches('"').parse()
        {
            lifetime = Some(Duration::from_secs(seconds));
        }
    }
    lifetime.unwrap_or(LIFETIME_DEFAULT).clamp(LIFETIME_MIN, LIFETIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_works_only_on_loopback() {
        for good in [
            "https://id.example.com/keys",
            "http://127.0.0.1:8080/keys",
            "http://127.9.9.9/",
            "http://[::1]:1/keys",
            "http://localhost:1/keys",
        ] {
            assert!(checked_url(good, true).is_ok(), "{good}");
        }
        for bad in [
            "http://id.example.com/keys",
            "http://localhost.example.com/",
            "http://10.0.0.1/",
            "http://0.0.0.0/",
            "http://127.0.0.1@example.com/",
            "https://user:word@example.com/",
            "https://example.com/#x",
            "file:///etc/passwd",
            "ftp://localhost/",
            "",
            "keys",
        ] {
            assert!(checked_url(bad, true).is_err(), "{bad}");
        }
        assert!(checked_url("http://127.0.0.1/keys", false).is_err());
        assert!(checked_url("https://example.com/keys", false).is_ok());
    }

    #[test]
    fn discovery_ignores_trailing_slashes() {
        let issuers = ["https://id.example.com/realm", "https://id.example.com/realm/"];
        for issuer in issuers.into_iter().chain(["https://id.example.com/realm//"]) {
            let Ok(Source::Discovery { issuer: kept, document }) = Source::new(issuer, None) else {
                panic!("{issuer} is refused");
            };
            assert_eq!(kept, issuer);
            let want = "https://id.example.com/realm/.well-known/openid-configuration";
            assert_eq!(document.as_str(), want);
        }
    }

    #[test]
    fn max_age_has_bounds() {
        let cases = [
            (None, 300),
            (Some("public"), 300),
            (Some("max-age=600"), 600),
            (Some("public, Max-Age=\"900\", must-revalidate"), 900),
            (Some("max-age=0"), 60),
            (Some("max-age=999999999"), 3_600),
            (Some("max-age=soon"), 300),
            (Some("max-age=-1"), 300),
            (Some("no-cache"), 60),
            (Some("max-age=900, no-store"), 60),
        ];
        for (value, seconds) in cases {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(CACHE_CONTROL, value.parse().unwrap());
            }
            assert_eq!(lifetime(&headers), Duration::from_secs(seconds), "{value:?}");
        }
    }
}
