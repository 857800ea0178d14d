//! Connection settings.

use std::fmt;
use std::time::Duration;

use url::Url;

use crate::error::Error;

/// Where the server is, which token to use, and how long to wait.
///
/// Addresses are URLs: `http://` and `grpc://` are plaintext, `https://` and `grpcs://` use TLS with the system's
/// certificates plus [`Options::ca_pem`].
///
/// ```
/// use std::time::Duration;
///
/// use codeq_client::Options;
///
/// let options = Options::new("my-token")
///     .http_url("https://queue.example")
///     .producer_url("grpcs://queue.example:9092")
///     .worker_url("grpcs://queue.example:9091")
///     .enqueue_timeout(Duration::from_secs(5));
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) http_url: String,
    pub(crate) producer_url: String,
    pub(crate) worker_url: String,
    pub(crate) token: String,
    pub(crate) ca_pem: Option<Vec<u8>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) enqueue_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) max_payload_bytes: usize,
}

impl Options {
    /// Options for a server on this machine with its default ports.
    pub fn new(token: impl Into<String>) -> Options {
        Options {
            http_url: "http://127.0.0.1:8080".to_owned(),
            producer_url: "http://127.0.0.1:9092".to_owned(),
            worker_url: "http://127.0.0.1:9091".to_owned(),
            token: token.into(),
            ca_pem: None,
            connect_timeout: Duration::from_secs(10),
            enqueue_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            max_in_flight: 1_024,
            max_payload_bytes: 1 << 20,
        }
    }

    /// Reads the environment: `CODEQ_TOKEN` (required), `CODEQ_HTTP_URL`, `CODEQ_PRODUCER_URL`, `CODEQ_WORKER_URL` and
    /// `CODEQ_CA_FILE` (a PEM file).
    pub fn from_env() -> Result<Options, Error> {
        let token = std::env::var("CODEQ_TOKEN")
            .map_err(|_| Error::Config("CODEQ_TOKEN is not set".to_owned()))?;
        let mut options = Options::new(token);
        let set = |name: &str, field: &mut String| {
            if let Ok(value) = std::env::var(name) {
                *field = value;
            }
        };
        set("CODEQ_HTTP_URL", &mut options.http_url);
        set("CODEQ_PRODUCER_URL", &mut options.producer_url);
        set("CODEQ_WORKER_URL", &mut options.worker_url);
        if let Ok(path) = std::env::var("CODEQ_CA_FILE") {
            let pem = std::fs::read(&path)
                .map_err(|error| Error::Config(format!("CODEQ_CA_FILE {path}: {error}")))?;
            options.ca_pem = Some(pem);
        }
        Ok(options)
    }

    /// Address of the HTTP API. Default `http://127.0.0.1:8080`.
    #[must_use]
    pub fn http_url(mut self, url: impl Into<String>) -> Options {
        self.http_url = url.into();
        self
    }

    /// Address of the producer stream. Default `http://127.0.0.1:9092`.
    #[must_use]
    pub fn producer_url(mut self, url: impl Into<String>) -> Options {
        self.producer_url = url.into();
        self
    }

    /// Address of the worker stream. Default `http://127.0.0.1:9091`.
    #[must_use]
    pub fn worker_url(mut self, url: impl Into<String>) -> Options {
        self.worker_url = url.into();
        self
    }

    /// Additional trusted certificates, in PEM format.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Options {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Time limit for opening a connection. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = timeout;
        self
    }

    /// Time limit for an enqueue, including reconnects. Default 30 s.
    #[must_use]
    pub fn enqueue_timeout(mut self, timeout: Duration) -> Options {
        self.enqueue_timeout = timeout;
        self
    }

    /// How long a stream may be silent before it is pinged. If the ping is not answered within the same time, the
    /// stream is closed and reopened. Default 10 s.
    #[must_use]
    pub fn keep_alive(mut self, interval: Duration) -> Options {
        self.keep_alive = interval;
        self
    }

    /// How many enqueues of one producer may await their acknowledgement; further ones wait. Default 1,024.
    #[must_use]
    pub fn max_in_flight(mut self, max: usize) -> Options {
        self.max_in_flight = max.clamp(1, 1 << 16);
        self
    }

    /// Largest payload or result to send, up to 16 MiB. Larger ones are refused by the client, because a message that
    /// is too long for the server would end the stream. Default 1 MiB, like the server's `maxPayloadBytes`; keep both
    /// the same.
    #[must_use]
    pub fn max_payload_bytes(mut self, max: usize) -> Options {
        self.max_payload_bytes = max.clamp(1, 16 << 20);
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("http_url", &shown(&self.http_url))
            .field("producer_url", &shown(&self.producer_url))
            .field("worker_url", &shown(&self.worker_url))
            .field("token", &"***")
            .field("connect_timeout", &self.connect_timeout)
            .field("enqueue_timeout", &self.enqueue_timeout)
            .field("keep_alive", &self.keep_alive)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}

/// The address without credentials that it may contain.
fn shown(address: &str) -> String {
    match parse(address) {
        Ok(url) => url.to_string(),
        Err(_) => "(invalid address)".to_owned(),
    }
}

/// Parses an address. `grpc` and `grpcs` are aliases of `http` and `https`; the default is `http`.
pub(crate) fn parse(address: &str) -> Result<Url, Error> {
    let bad = |why: &str| Error::Config(format!("invalid address: {why}"));
    let text = match address.split_once("://") {
        Some(("grpc", rest)) => format!("http://{rest}"),
        Some(("grpcs", rest)) => format!("https://{rest}"),
        Some(_) => address.to_owned(),
        None => format!("http://{address}"),
    };
    let url = Url::parse(&text).map_err(|error| bad(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad("expected http, https, grpc or grpcs"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("credentials in the address are not supported; use the token"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_four_schemes_and_a_default() {
        let text = |address: &str| parse(address).unwrap().to_string();
        assert_eq!(text("grpc://queue:9092"), "http://queue:9092/");
        assert_eq!(text("grpcs://queue:9092"), "https://queue:9092/");
        assert_eq!(text("127.0.0.1:9092"), "http://127.0.0.1:9092/");
        assert_eq!(text("https://queue/base"), "https://queue/base");
        for bad in ["ftp://queue", "http://", "http://me:secret@queue"] {
            assert!(matches!(parse(bad), Err(Error::Config(_))), "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = Options::new("s3cret").http_url("http://me:s3cret@queue").ca_pem("s3cret");
        assert!(!format!("{options:?}").contains("s3cret"));
    }
}
