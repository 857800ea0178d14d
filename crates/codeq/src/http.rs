//! GET requests outside the API: probes, metrics, the API's description. They need no token.

use std::time::Duration;

use crate::cli::{Done, Failure, Session};

/// Longest response that is read.
const BODY_MAX: usize = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The status and the text at a path relative to the server's URL.
pub async fn get(session: &Session, path: &str) -> Done<(u16, String)> {
    let url = format!("{}/{path}", session.url.trim_end_matches('/'));
    let mut builder =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(TIMEOUT);
    if let Some(pem) = &session.ca_pem {
        let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(|error| {
            Failure::usage(format!("the certificates are not PEM: {error}"), "check --ca-file")
        })?;
        builder = builder.tls_certs_merge(certificates);
    }
    let read = async {
        let mut response = builder.build()?.get(url).send().await?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > BODY_MAX {
                return Ok(None);
            }
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        Ok(Some((response.status().as_u16(), text)))
    };
    let read = read.await.map_err(|error: reqwest::Error| {
        let text = format!("cannot reach {}: {}", session.url, causes(&error.without_url()));
        Failure::error(text, "start a server with `codeq dev`, or check --url and the network")
    })?;
    read.ok_or_else(|| {
        let what = format!("{} answers with more than {BODY_MAX} bytes", session.url);
        Failure::error(what, "check that --url is a codeQ server")
    })
}

/// Why a request failed. The outermost error only says that it did.
pub fn causes(error: &reqwest::Error) -> String {
    let mut texts = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        texts.push(inner.to_string());
        cause = inner.source();
    }
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}
