//! The HTTP client that posts webhooks.
//!
//! It trusts neither the receiver nor the tenant who chose it: addresses are checked on every call, redirects are not
//! followed, no proxy is taken from the environment, nothing is decompressed, and an answer is bounded in time and
//! size. Error messages do not tell a closed port from a filtered one, or from a port where something other than HTTP
//! answers.

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

use crate::addresses::AllowedAddresses;
use crate::connect::{Connector, DIAL, Dial, DialError};
use crate::dns::Resolve;
use crate::lookups::Lookups;
use crate::per_address::PerAddress;
use crate::policy::{AddressPolicy, Destination};
use crate::retry_after;

const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("codeq/", env!("CARGO_PKG_VERSION")));
/// Time for the whole call, as documented.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 100;
/// Divisor of the call's time: one tenth is for reading the body of the answer.
const BODY_SHARE: u32 = 10;
/// How much of a body is read, so that the connection can be reused. The body itself is ignored.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes that a receiver may send for one request: head, body, and another head's worth for framing.
const ANSWER_BYTES_MAX: usize = BODY_BYTES_MAX + 2 * HEAD_BYTES_MAX;
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of idle connections kept to one host.
const IDLE_PER_HOST_MAX: usize = 4;
/// Maximum number of idle connections kept to all hosts.
pub const KEPT_MAX: usize = 512;
/// Headers that the HTTP library sets.
const CONNECTION_HEADERS: [HeaderName; 7] = [
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
    addresses: AllowedAddresses,
    per_address: PerAddress,
    /// While at least this many connections are open, a request closes its connection when it is done.
    kept_max: usize,
    time: Duration,
}

/// Settings of a client.
pub struct Options {
    /// Where this server listens. Neither these addresses nor any others that the machine recognises as its own are
    /// called, unless the operator has opened them.
    pub own: Vec<SocketAddr>,
    /// Which certificates are trusted; `None` means those that the platform trusts.
    pub roots: Option<RootCertStore>,
    /// Time for the whole call.
    pub time: Duration,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of calls in flight to one IP address and port, whatever host names led there.
    pub per_address: usize,
    /// Maximum number of concurrent DNS lookups.
    pub lookups: usize,
}

/// The answer of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The HTTP status.
    pub status: StatusCode,
    /// The pause that `Retry-After` asks for, a day at most.
    pub retry_after: Option<Duration>,
}

/// Why there is no answer. Tenants see the messages, so these look the same: an address that is not allowed, a closed or
/// filtered port, a broken connection, and an answer that is not HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The destination has an address that may not be called. No connection was made.
    #[error("the destination cannot be reached")]
    NotAllowed,
    /// There was no connection, or it broke.
    #[error("the destination cannot be reached")]
    Unreachable,
    /// There was no slot for a lookup, a connection, or another call to this address. The call was not tried, and will
    /// be later.
    #[error("the destination was not tried yet")]
    Busy,
    /// The destination was reached, but did not answer in time.
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
    /// A client that calls only what the policy allows, at the addresses that `resolve` finds.
    pub fn new(policy: Arc<AddressPolicy>, resolve: Arc<dyn Resolve>, options: Options) -> Client {
        let Options { own, roots, time, connections, per_address, lookups } = options;
        let connector = Connector::new(roots, ANSWER_BYTES_MAX, connections);
        let lookups = Lookups::new(resolve, lookups);
        let addresses = AllowedAddresses { policy, lookups, own: own.into() };
        let per_address = PerAddress::new(per_address);
        // The other half is for calls to hosts without an idle connection.
        let kept_max = KEPT_MAX.min(connections / 2);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http1_max_headers(HEADERS_MAX)
            .build(connector.clone());
        Client { http, connector, addresses, per_address, kept_max, time }
    }

    /// Posts on behalf of a tenant, and waits for the head of the answer. The body is read and ignored for a second at
    /// most, so that the connection can be reused.
    pub async fn post(
        &self,
        tenant: &Arc<str>,
        to: &Destination,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answered, SendError> {
        let (now, until) = (Instant::now(), Instant::now() + self.time);
        // Less than the whole time, so that a filtered port looks like a closed one.
        let dial_until = now + self.time * 3 / 4;
        let found = self.addresses.find(tenant, to, dial_until).await;
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
                tracing::debug!(target: "codeq::webhooks", to = to.authority(), "no answer in time");
                return Err(SendError::TimedOut);
            }
        };
        let status = response.status();
        let retry_after = retry_after::read(response.headers(), Timestamp::now());
        // The status is the answer, whatever happens to the body.
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
        for name in CONNECTION_HEADERS {
            headers.remove(name);
        }
        headers.insert(header::USER_AGENT, USER_AGENT);
        if self.connector.open() >= self.kept_max {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        request
    }
}

/// Reads a body to its end, so that the connection can be reused. Gives up on a long one: a new connection costs less.
async fn discard(mut body: Incoming) {
    let mut left = BODY_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let len = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(len) else { return };
        left = rest;
    }
}

/// Logs the cause for the operator, and returns what the tenant may know.
fn failed(to: &Destination, error: &(dyn Error + 'static)) -> SendError {
    let (mut cause, mut texts): (Option<&dyn Error>, _) = (Some(error), Vec::new());
    let mut public = SendError::Unreachable;
    while let Some(error) = cause {
        match error.downcast_ref::<DialError>() {
            Some(DialError::NotAllowed(_) | DialError::Own(_)) => public = SendError::NotAllowed,
            Some(DialError::Busy) => public = SendError::Busy,
            _ => {}
        }
        texts.push(error.to_string());
        cause = error.source();
    }
    let cause = texts.join(": ");
    tracing::debug!(target: "codeq::webhooks", to = to.authority(), cause, "no answer");
    public
}
