//! The API over HTTP.
//!
//! `tasks`, `artifacts`, `subscriptions`, `webhooks` and `admin` hold the routes, `types` what comes back. Nothing is repeated
//! by itself: what failed is the caller's to judge, see [`Error::is_transient`].

mod admin;
pub(crate) mod artifacts;
pub(crate) mod subscriptions;
mod tasks;
pub(crate) mod types;
pub(crate) mod webhooks;

use std::fmt;
use std::time::Duration;

use reqwest::{Certificate, Method, Response, StatusCode, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::error::Error;
use crate::options::{self, Options};

/// Longer answers are not read. A page of a thousand tasks with large payloads may be long.
const ANSWER_MAX: usize = 1 << 30;
/// How long an answer may take, beyond the time that the server was asked to wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of the whole API, for what the streams do not offer. Clones share their connections.
#[derive(Clone)]
pub struct HttpClient {
    client: reqwest::Client,
    base: Url,
    token: String,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// The fields of a problem (RFC 9457) that matter here.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Problem {
    error: String,
    code: String,
    retry_after_seconds: Option<u64>,
}

/// A request that is being put together.
pub(crate) struct Request<'a> {
    client: &'a HttpClient,
    method: Method,
    url: Url,
    body: Option<Result<Vec<u8>, Error>>,
    timeout: Duration,
}

impl HttpClient {
    /// A client for the server of these options. Connects when it is used.
    pub fn new(options: &Options) -> Result<HttpClient, Error> {
        let base = options::parse(&options.http_url)?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("codeq-client/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(options.connect_timeout);
        if let Some(pem) = &options.ca_pem {
            let bad = |error: reqwest::Error| Error::Config(format!("bad certificate: {error}"));
            builder = builder.tls_certs_merge(Certificate::from_pem_bundle(pem).map_err(bad)?);
        }
        let client = builder.build().map_err(|error| Error::Config(error.to_string()))?;
        Ok(HttpClient { client, base, token: options.token.clone() })
    }

    /// A request to the path of these segments, each escaped, under `/v1/codeq`.
    pub(crate) fn request(&self, method: Method, path: &[&str]) -> Result<Request<'_>, Error> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Error::Config("bad address".to_owned()))?
            .pop_if_empty()
            .extend(["v1", "codeq"])
            .extend(path);
        if path.iter().any(|segment| matches!(*segment, "" | "." | "..")) {
            return Err(Error::Config("an empty name, or one made of dots".to_owned()));
        }
        Ok(Request { client: self, method, url, body: None, timeout: PATIENCE })
    }
}

impl Request<'_> {
    /// With parameters; those without a value are left out.
    pub(crate) fn query(mut self, pairs: &[(&str, Option<&str>)]) -> Self {
        let given = pairs.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        self.url.query_pairs_mut().extend_pairs(given);
        self
    }

    /// With a body.
    pub(crate) fn body(mut self, body: &impl serde::Serialize) -> Self {
        self.body = Some(serde_json::to_vec(body).map_err(Error::Encode));
        self
    }

    /// With time for the server to wait.
    pub(crate) fn waits(mut self, wait: Duration) -> Self {
        self.timeout = PATIENCE.saturating_add(wait);
        self
    }

    /// Sends it and reads the answer.
    pub(crate) async fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let (_, body) = self.send().await?;
        serde_json::from_slice(&body).map_err(Error::Decode)
    }

    /// Sends it; an error is one if the status says so.
    pub(crate) async fn send(self) -> Result<(StatusCode, Vec<u8>), Error> {
        let timeout = self.timeout;
        let response = self.answer(Some(timeout)).await?;
        Ok((response.status(), read(response).await?))
    }

    /// Sends it and returns with the head of a good answer. The timeout is for all of the answer; without
    /// one, the head may take as long as an ordinary answer, and the rest is up to the caller.
    pub(crate) async fn answer(self, timeout: Option<Duration>) -> Result<Response, Error> {
        let HttpClient { client, token, .. } = self.client;
        let mut builder = client.request(self.method, self.url).bearer_auth(token);
        if let Some(timeout) = timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(body) = self.body {
            builder = builder.header("content-type", "application/json").body(body?);
        }
        let sent = tokio::time::timeout(self.timeout, builder.send()).await;
        let response = sent.map_err(|_| Error::Timeout)?.map_err(failed)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(&response);
        let problem: Problem = serde_json::from_slice(&read(response).await?).unwrap_or_default();
        let message = match problem.error.is_empty() {
            true => status.canonical_reason().unwrap_or("unknown status").to_owned(),
            false => problem.error,
        };
        let retry_after = problem.retry_after_seconds.or(retry_after).map(Duration::from_secs);
        Err(Error::Api { status: status.as_u16(), code: problem.code, message, retry_after })
    }
}

fn retry_after(response: &Response) -> Option<u64> {
    response.headers().get("retry-after")?.to_str().ok()?.parse().ok()
}

async fn read(mut response: Response) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len().saturating_add(chunk.len()) > ANSWER_MAX {
            return Err(Error::Unavailable("the answer is too long".to_owned()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn failed(error: reqwest::Error) -> Error {
    match error.is_timeout() {
        true => Error::Timeout,
        false => Error::unavailable(&error.without_url()),
    }
}
