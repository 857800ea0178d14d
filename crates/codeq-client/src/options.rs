//! Where the server is, and how to talk to it.

use std::fmt;
use std::time::Duration;

use url::Url;

use crate::error::Error;

/// Where the server is, who is calling, and how patient the caller is.
///
/// Addresses are URLs: `http://` and `grpc://` in the clear, `https://` and `grpcs://` with TLS against the
/// certificates of the system and [`Options::ca_pem`].
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
    /// A server on this machine with its default ports.
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

    /// From the environment: `CODEQ_TOKEN` (required), `CODEQ_HTTP_URL`, `CODEQ_PRODUCER_URL`,
    /// `CODEQ_WORKER_URL`, and `CODEQ_CA_FILE` (a PEM file).
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

    /// Where HTTP is served.
    #[must_use]
    pub fn http_url(mut self, url: impl Into<String>) -> Options {
        self.http_url = url.into();
        self
    }

    /// Where the stream of producers is served.
    #[must_use]
    pub fn producer_url(mut self, url: impl Into<String>) -> Options {
        self.producer_url = url.into();
        self
    }

    /// Where the stream of workers is served.
    #[must_use]
    pub fn worker_url(mut self, url: impl Into<String>) -> Options {
        self.worker_url = url.into();
        self
    }

    /// Trust these certificates (PEM), too.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Options {
        self.ca_pem = Some(pem.into());
        self
    }

    /// How long opening a connection may take. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = timeout;
        self
    }

    /// How long an enqueue may take, reconnects included. Default 30 s.
    #[must_use]
    pub fn enqueue_timeout(mut self, timeout: Duration) -> Options {
        self.enqueue_timeout = timeout;
        self
    }

    /// A stream over which nothing comes for this long is asked for a sign of life, and given up if there is
    /// none for as long again. Default 10 s.
    #[must_use]
    pub fn keep_alive(mut self, interval: Duration) -> Options {
        self.keep_alive = interval;
        self
    }

    /// Enqueues of one producer that may wait for their acknowledgement; more wait for their turn.
    /// Default 1,024.
    #[must_use]
    pub fn max_in_flight(mut self, max: usize) -> Options {
        self.max_in_flight = max.clamp(1, 1 << 16);
        self
    }

    /// Longest payload and longest result that are sent, up to 16 MiB. What is longer is refused on this side: a
    /// message that is too long for the server would end the stream. Default 1 MiB, as the server's
    /// `maxPayloadBytes`; set both to the same.
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

/// An address without what somebody may have hidden in it.
fn shown(address: &str) -> String {
    match parse(address) {
        Ok(url) => url.to_string(),
        Err(_) => "(not an address)".to_owned(),
    }
}

/// Reads an address. `grpc` and `grpcs` are other names of `http` and `https`; without any, it is `http`.
pub(crate) fn parse(address: &str) -> Result<Url, Error> {
    let bad = |why: &str| Error::Config(format!("bad address: {why}"));
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
        return Err(bad("the token does not belong into it"));
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
