//! The HTTP client that posts webhooks.
//!
//! Neither the receiver nor the tenant who named it is trusted: addresses are judged when they are dialled,
//! no redirect is followed, no proxy is taken from the environment, nothing is decompressed, and an answer is
//! bounded in time and size. What went wrong is told in words that are the same whatever is there, so that
//! nobody learns from them which ports are open.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use rustls::RootCertStore;
use tokio::time::{Instant, timeout_at};

use crate::connect::{Connector, DIAL, Dial, DialError, Judge};
use crate::dns::Resolve;
use crate::lookups::Lookups;
use crate::per_address::PerAddress;
use crate::policy::{Destination, Policy};
use crate::retry_after;

/// Who posts.
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("codeq/", env!("CARGO_PKG_VERSION")));
/// Time for everything, as the contract has it.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Largest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Most headers of an answer.
const HEADERS_MAX: usize = 100;
/// The part of the time that is given to the rest of an answer after its head.
const BODY_SHARE: u32 = 10;
/// What is read of the body, to use the connection again; nobody looks at it.
const BODY_BYTES_MAX: usize = 64 << 10;
/// All that a receiver may send for one request: head, body, and as much as a head for what surrounds them.
const ANSWER_BYTES_MAX: usize = BODY_BYTES_MAX + 2 * HEAD_BYTES_MAX;
/// How long a connection waits for its next request.
const IDLE: Duration = Duration::from_secs(30);
/// Connections to one host that wait for their next request.
const IDLE_PER_HOST_MAX: usize = 4;
/// Most connections that are left behind.
pub const KEPT_MAX: usize = 512;
/// Headers that are the connection's business.
const NOT_THE_CALLERS: [HeaderName; 7] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::EXPECT,
];

/// Posts webhooks. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    connector: Connector,
    judge: Judge,
    per_address: PerAddress,
    /// With so many connections, new requests leave none behind.
    kept_max: usize,
    time: Duration,
}

/// What a client can be given.
pub struct Options {
    /// Where this server listens: never dialled, unless the operator has opened the address. Other addresses
    /// of this machine are not dialled either, as far as the machine knows them for its own.
    pub own: Vec<SocketAddr>,
    /// Which certificates are trusted; none means those of the platform.
    pub roots: Option<RootCertStore>,
    /// Time for everything.
    pub time: Duration,
    /// Most connections.
    pub connections: usize,
    /// Most calls to one address at once, whatever name led there.
    pub per_address: usize,
    /// Most names looked up at once.
    pub lookups: usize,
}

/// A receiver answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// How.
    pub status: StatusCode,
    /// When it wants to be asked again: a day at most.
    pub retry_after: Option<Duration>,
}

/// Why there is no answer. The texts are for the tenant: refused, closed, filtered, broken and not speaking
/// HTTP are the same to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The destination has an address that may not be called; nothing was dialled.
    #[error("the destination cannot be reached")]
    NotAllowed,
    /// There is no connection, or none that works.
    #[error("the destination cannot be reached")]
    Unreachable,
    /// There was no slot for a lookup, a connection, or another call to this address: it was not tried, and
    /// will be later.
    #[error("the destination was not tried yet")]
    Busy,
    /// It was reached, and did not answer in time.
    #[error("the destination did not answer in time")]
    TimedOut,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            own: Vec::new(),
            roots: None,
            time: TIME_LIMIT,
            connections: 1_024,
            per_address: 256,
            lookups: 64,
        }
    }
}

impl Client {
    /// Dials only what the policy allows, at the addresses that `resolve` finds.
    pub fn new(policy: Arc<Policy>, resolve: Arc<dyn Resolve>, options: Options) -> Client {
        let Options { own, roots, time, connections, per_address, lookups } = options;
        let connector = Connector::new(roots, ANSWER_BYTES_MAX, connections);
        let lookups = Lookups::new(resolve, lookups);
        let judge = Judge { policy, lookups, own: own.into() };
        let per_address = PerAddress::new(per_address);
        // The other half is for calls to places that no connection is left to.
        let kept_max = KEPT_MAX.min(connections / 2);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http1_max_headers(HEADERS_MAX)
            .build(connector.clone());
        Client { http, connector, judge, per_address, kept_max, time }
    }

    /// Posts for a tenant, and waits for the head of the answer; 10 s at most for everything. If a body follows
    /// it is read and thrown away for a second, so that the connection can be used again.
    pub async fn post(
        &self,
        tenant: &Arc<str>,
        to: &Destination,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answered, SendError> {
        let (now, until) = (Instant::now(), Instant::now() + self.time);
        // Shorter than the whole, so that a port where nothing answers is told like one that is closed.
        let dial_until = now + self.time * 3 / 4;
        let found = self.judge.addresses(tenant, to, dial_until).await;
        let addresses = found.map_err(|error| failed(to, &error))?;
        let counted = self.per_address.take(tenant, addresses);
        let (_held, addresses) = counted.ok_or(SendError::Busy)?;
        let request = self.request(to, headers, body);
        let dial = Dial { addresses, until: dial_until };
        let sending = DIAL.scope(dial, self.http.request(request));
        let response = match timeout_at(until, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(failed(to, &error)),
            Err(_) => {
                tracing::debug!(target: "codeq::push", to = to.authority(), "no answer in time");
                return Err(SendError::TimedOut);
            }
        };
        let status = response.status();
        let retry_after = retry_after::read(response.headers(), Timestamp::now());
        // Whatever becomes of the body, there is an answer.
        let until = until.min(Instant::now() + self.time / BODY_SHARE);
        let _ = timeout_at(until, discard(response.into_body())).await;
        Ok(Answered { status, retry_after })
    }

    fn request(&self, to: &Destination, headers: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to.uri().clone();
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        for name in NOT_THE_CALLERS {
            headers.remove(name);
        }
        headers.insert(header::USER_AGENT, USER_AGENT);
        if self.connector.open() >= self.kept_max {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        request
    }
}

/// Reads a body to its end, or as much of it as is worth a connection.
async fn discard(mut body: Incoming) {
    let mut left = BODY_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let len = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(len) else { return };
        left = rest;
    }
}

/// Tells the operator what happened, and the tenant as much as it may know.
fn failed(to: &Destination, error: &(dyn Error + 'static)) -> SendError {
    let (mut cause, mut texts): (Option<&dyn Error>, _) = (Some(error), Vec::new());
    let mut told = SendError::Unreachable;
    while let Some(error) = cause {
        match error.downcast_ref::<DialError>() {
            Some(DialError::NotAllowed(_) | DialError::Own(_)) => told = SendError::NotAllowed,
            Some(DialError::Busy) => told = SendError::Busy,
            _ => {}
        }
        texts.push(error.to_string());
        cause = error.source();
    }
    let cause = texts.join(": ");
    tracing::debug!(target: "codeq::push", to = to.authority(), cause, "no answer");
    told
}
