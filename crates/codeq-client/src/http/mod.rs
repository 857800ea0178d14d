//! The HTTP API.
//!
//! `tasks`, `artifacts`, `subscriptions`, `webhooks`, `events` and `admin` have the routes, `types` the responses. Only
//! `wait_result` retries; otherwise the caller decides, see [`Error::is_transient`].

mod admin;
pub(crate) mod artifacts;
pub(crate) mod events;
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

/// Longest response that is read. The server's longest is a task with a payload of 16 MiB, escaped, and a result of the
/// same size.
const RESPONSE_MAX: usize = 64 << 20;
/// Longest error that is read. The server's errors have a few hundred bytes.
const PROBLEM_MAX: usize = 64 << 10;
/// Time limit for a response, in addition to the time the server was asked to wait.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client for the HTTP API, which covers what the streams do not. Clones share connections.
///
/// ```no_run
/// use codeq_client::{HttpClient, Options, Search};
///
/// # async fn example() -> Result<(), codeq_client::Error> {
/// let client = HttpClient::new(&Options::from_env()?)?;
/// let page = client.dead_letters("send-mail", &Search::default()).await?;
/// for task in page.items {
///     println!("{}: {}", task.id, task.error);
///     client.replay_task(&task.id).await?;
/// }
/// # Ok(())
/// # }
/// ```
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

/// The fields of a problem document (RFC 9457) that are used here.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Problem {
    error: String,
    detail: String,
    code: String,
    retry_after_seconds: Option<u64>,
    request_id: Option<String>,
}

/// A request being built.
pub(crate) struct Request<'a> {
    client: &'a HttpClient,
    method: Method,
    url: Url,
    body: Option<Result<Vec<u8>, Error>>,
    last_event_id: Option<String>,
    timeout: Duration,
}

impl HttpClient {
    /// A client for the server of these options. Connects on first use.
    pub fn new(options: &Options) -> Result<HttpClient, Error> {
        let base = options::parse(&options.http_url)?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("codeq-client/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(options.connect_timeout);
        if let Some(pem) = &options.ca_pem {
            let bad =
                |error: reqwest::Error| Error::Config(format!("invalid certificate: {error}"));
            builder = builder.tls_certs_merge(Certificate::from_pem_bundle(pem).map_err(bad)?);
        }
        let client = builder.build().map_err(|error| Error::Config(error.to_string()))?;
        Ok(HttpClient { client, base, token: options.token.clone() })
    }

    /// A request to `/v1/codeq` and these path segments, which are escaped.
    pub(crate) fn request(&self, method: Method, path: &[&str]) -> Result<Request<'_>, Error> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Error::Config("invalid address".to_owned()))?
            .pop_if_empty()
            .extend(["v1", "codeq"])
            .extend(path);
        if path.iter().any(|segment| matches!(*segment, "" | "." | "..")) {
            return Err(Error::Config("a name or id is empty or consists of dots".to_owned()));
        }
        let (body, last_event_id) = (None, None);
        Ok(Request { client: self, method, url, body, last_event_id, timeout: RESPONSE_TIMEOUT })
    }

    /// Calls a GET route that has no method of its own. `path` is relative to `/v1/codeq`, one segment per item;
    /// parameters without a value are left out.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, Option<&str>)],
    ) -> Result<T, Error> {
        self.request(Method::GET, path)?.query(query).json().await
    }

    /// Calls a POST route that has no method of its own. `path` is relative to `/v1/codeq`, one segment per item.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl serde::Serialize,
    ) -> Result<T, Error> {
        self.request(Method::POST, path)?.body(body).json().await
    }
}

impl Request<'_> {
    /// Adds query parameters; those without a value are left out.
    pub(crate) fn query(mut self, pairs: &[(&str, Option<&str>)]) -> Self {
        let given = pairs.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        self.url.query_pairs_mut().extend_pairs(given);
        self
    }

    /// Sets the JSON body.
    pub(crate) fn body(mut self, body: &impl serde::Serialize) -> Self {
        self.body = Some(serde_json::to_vec(body).map_err(Error::Encode));
        self
    }

    /// Continues an event stream after this event.
    pub(crate) fn last_event_id(mut self, id: Option<&str>) -> Self {
        self.last_event_id = id.map(str::to_owned);
        self
    }

    /// Adds the time that the server is asked to wait.
    pub(crate) fn waits(mut self, wait: Duration) -> Self {
        self.timeout = RESPONSE_TIMEOUT.saturating_add(wait);
        self
    }

    /// Sends the request and decodes the response.
    pub(crate) async fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let (_, body) = self.send().await?;
        serde_json::from_slice(&body).map_err(Error::Decode)
    }

    /// Sends the request; an error status becomes an error.
    pub(crate) async fn send(self) -> Result<(StatusCode, Vec<u8>), Error> {
        let timeout = self.timeout;
        let response = self.answer(Some(timeout)).await?;
        Ok((response.status(), read(response, RESPONSE_MAX).await?))
    }

    /// Sends the request and returns the head of a successful response. `timeout` covers the whole response; without
    /// one, only the head is limited, and the rest is up to the caller.
    pub(crate) async fn answer(self, timeout: Option<Duration>) -> Result<Response, Error> {
        let HttpClient { client, token, .. } = self.client;
        let mut builder = client.request(self.method, self.url).bearer_auth(token);
        if let Some(timeout) = timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(body) = self.body {
            builder = builder.header("content-type", "application/json").body(body?);
        }
        if let Some(id) = self.last_event_id {
            builder = builder.header("last-event-id", id);
        }
        let sent = tokio::time::timeout(self.timeout, builder.send()).await;
        let response = sent.map_err(|_| Error::Timeout)?.map_err(failed)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let (retry_after, request_id) = (retry_after(&response), request_id(&response));
        // The status alone says enough if the rest is too long, cut off, or not from codeQ.
        let body = read(response, PROBLEM_MAX).await.unwrap_or_default();
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        let message = match problem.error.is_empty() {
            true => status.canonical_reason().unwrap_or("unknown status").to_owned(),
            false => problem.error,
        };
        let detail = match problem.detail.is_empty() {
            true => message.clone(),
            false => problem.detail,
        };
        let retry_after = problem.retry_after_seconds.or(retry_after).map(Duration::from_secs);
        let request_id = problem.request_id.or(request_id);
        let (status, code) = (status.as_u16(), problem.code);
        Err(Error::Api { status, code, message, detail, retry_after, request_id })
    }
}

fn retry_after(response: &Response) -> Option<u64> {
    response.headers().get("retry-after")?.to_str().ok()?.parse().ok()
}

fn request_id(response: &Response) -> Option<String> {
    Some(response.headers().get("x-request-id")?.to_str().ok()?.to_owned())
}

async fn read(mut response: Response, max: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len().saturating_add(chunk.len()) > max {
            let text = format!("the response has more than {max} bytes");
            return Err(Error::TooLarge(text));
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
