//! Hides secrets in logs and dumps.

use std::fmt;

use serde::{Serialize, Serializer};
use url::Url;

/// Replaces a secret in output.
pub const MASK: &str = "***";

/// The URL without user, password, query and fragment. Text that is not a URL keeps only the part after its last `@`.
pub fn mask_url(text: &str) -> String {
    let Ok(url) = Url::parse(text) else {
        return match text.rsplit_once('@') {
            Some((_, rest)) => format!("{MASK}@{rest}"),
            None => text.to_owned(),
        };
    };
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !has_user && url.query().is_none() && url.fragment().is_none() {
        return text.to_owned();
    }
    let user = if has_user { "***@" } else { "" };
    let query = if url.query().is_some() { "?***" } else { "" };
    let fragment = if url.fragment().is_some() { "#***" } else { "" };
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{user}{host}{port}{}{query}{fragment}", url.scheme(), url.path())
}

/// Serialises a secret as [`MASK`].
pub fn secret<S: Serializer>(secret: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| MASK).serialize(serializer)
}

/// Serialises a URL without its credentials.
pub fn url<S: Serializer>(url: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    url.as_deref().map(mask_url).serialize(serializer)
}

/// Formats a value as it is serialised, so that its secrets are masked in one place only.
pub fn debug<T: Serialize>(value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&serde_json::to_string(value).map_err(|_| fmt::Error)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masking_removes_only_secrets() {
        for (text, masked) in [
            ("https://a.example/x", "https://a.example/x"),
            ("https://a.example", "https://a.example"),
            ("https://u:p@a.example:8443/x", "https://***@a.example:8443/x"),
            ("https://key@a.example/", "https://***@a.example/"),
            ("https://:p@a.example/", "https://***@a.example/"),
            ("https://a.example/x?key=s", "https://a.example/x?***"),
            ("https://a.example/x#s", "https://a.example/x#***"),
            ("no address u:p@host", "***@host"),
            ("", ""),
        ] {
            assert_eq!(mask_url(text), masked);
        }
    }
}
