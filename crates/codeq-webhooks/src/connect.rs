//! Connections to judged addresses.
//!
//! A name is looked up for each call, every address of it is judged, and what is dialled is one of these addresses and
//! never the name: an answer of DNS that changes later has no effect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::lookups::{LookupError, Lookups};
use crate::policy::{Destination, Policy};

/// Addresses of one name that are tried.
const DIALS_MAX: usize = 4;

const V4_OF_ALL: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const V6_OF_ALL: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
/// Addresses for documentation: no machine has them.
const V4_OF_NOBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const V6_OF_NOBODY: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Why there is no connection. The texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// An address may not be called.
    #[error("{0} is not allowed")]
    NotAllowed(IpAddr),
    /// The address is one of the server's own.
    #[error("{0} is this server")]
    Own(SocketAddr),
    /// It is not a place that one can dial.
    #[error("no host")]
    NoHost,
    /// The name has no address.
    #[error("no address")]
    NoAddress,
    /// All that may be used at once is in use. Nothing was tried.
    #[error("no slot for a lookup or a connection")]
    Busy,
    /// It took too long.
    #[error("no connection in time")]
    TimedOut,
    /// There are no certificates to trust.
    #[error("no tls")]
    NoTls(#[source] io::Error),
    /// Looking up failed.
    #[error("no address: {0}")]
    NotFound(Arc<io::Error>),
    /// Connecting or shaking hands failed.
    #[error("no connection")]
    Failed(#[from] io::Error),
}

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Inner>);

struct Inner {
    roots: Option<RootCertStore>,
    tls: OnceCell<TlsConnector>,
    answer_bytes: usize,
    open: Arc<AtomicUsize>,
    open_max: usize,
}

/// What a call that needs a connection may dial, and until when.
#[derive(Clone)]
pub(crate) struct Dial {
    pub addresses: Vec<SocketAddr>,
    pub until: Instant,
}

tokio::task_local! {
    /// Of the call that runs in this task: the pool tells its connector nothing but the URI.
    pub(crate) static DIAL: Dial;
}

impl Connector {
    /// Makes `open_max` connections; each takes `answer_bytes` for an answer.
    pub fn new(roots: Option<RootCertStore>, answer_bytes: usize, open_max: usize) -> Connector {
        let (tls, open) = (OnceCell::new(), Arc::default());
        Connector(Arc::new(Inner { roots, tls, answer_bytes, open, open_max }))
    }

    /// How many connections there are.
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Conn>;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<TokioIo<Conn>, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let inner = Arc::clone(&self.0);
        // Called in the task of the call, whoever finishes the connection later.
        let dial = DIAL.try_with(Dial::clone);
        Box::pin(async move {
            let dial = dial.map_err(|_| DialError::NoHost)?;
            // Its own limit, for the pool may go on with a connection that nobody waits for.
            let conn = timeout_at(dial.until, inner.connect(&uri, &dial)).await;
            conn.unwrap_or(Err(DialError::TimedOut)).map(TokioIo::new)
        })
    }
}

impl Inner {
    async fn connect(&self, uri: &Uri, to: &Dial) -> Result<Conn, DialError> {
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().ok_or(DialError::NoHost)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let open = Open::new(&self.open, self.open_max).ok_or(DialError::Busy)?;
        let stream = dial(&to.addresses, to.until).await?;
        // Requests are written whole, and there is nothing to wait for behind them.
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = if is_tls {
            let name = ServerName::try_from(host.trim_end_matches('.').to_owned());
            let name = name.map_err(|_| DialError::NoHost)?;
            let tls = self.tls.get_or_try_init(|| connector(self.roots.clone())).await;
            Box::new(tls.map_err(DialError::NoTls)?.connect(name, stream).await?)
        } else {
            Box::new(stream)
        };
        Ok(Conn { stream, whole: self.answer_bytes, left: self.answer_bytes, _open: open })
    }
}

/// Finds where a call may go.
#[derive(Clone)]
pub(crate) struct Judge {
    pub policy: Arc<Policy>,
    pub lookups: Lookups,
    /// Where this server listens.
    pub own: Arc<[SocketAddr]>,
}

impl Judge {
    /// The addresses of a destination, all of them allowed. If one of them is not then none is: a name that
    /// leads inside has no business here, even if it leads elsewhere too.
    pub async fn addresses(
        &self,
        tenant: &Arc<str>,
        to: &Destination,
        until: Instant,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let (host, port) = (to.host().trim_start_matches('[').trim_end_matches(']'), to.port());
        let found: Arc<[IpAddr]> = match host.parse::<IpAddr>() {
            Ok(ip) => [ip].into(),
            Err(_) => {
                self.lookups.find(tenant, host, until).await.map_err(|error| match error {
                    LookupError::Busy => DialError::Busy,
                    LookupError::Failed(error) => DialError::NotFound(error),
                })?
            }
        };
        let mut addresses = Vec::with_capacity(found.len());
        for ip in found.iter() {
            let ip = ip.to_canonical();
            if !self.policy.allows(ip) {
                return Err(DialError::NotAllowed(ip));
            }
            let address = SocketAddr::new(ip, port);
            if !self.policy.opens(ip) && (self.own.contains(&address) || is_this_machine(ip)) {
                return Err(DialError::Own(address));
            }
            addresses.push(address);
        }
        if addresses.is_empty() {
            return Err(DialError::NoAddress);
        }
        Ok(in_turn(addresses))
    }
}

/// The addresses to try: the two families take turns, so that one which leads nowhere does not use up the
/// time.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::with_capacity(DIALS_MAX);
    while turns.len() < DIALS_MAX {
        let next = [first.next(), second.next()];
        if next == [None, None] {
            break;
        }
        turns.extend(next.into_iter().flatten());
    }
    turns.truncate(DIALS_MAX);
    turns
}

/// Tries one address after the other; each has its share of the time that is left.
async fn dial(addresses: &[SocketAddr], until: Instant) -> Result<TcpStream, DialError> {
    let mut failed = DialError::NoAddress;
    for (tried, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - tried).unwrap_or(1);
        failed = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => DialError::Failed(error),
            Err(_) => DialError::TimedOut,
        };
    }
    Err(failed)
}

/// Whether an address is one of this machine's. What listens on a public address may still be hidden from
/// the outside by a firewall, and there is nothing of that between a machine and itself.
fn is_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { V4_OF_ALL.into() } else { V6_OF_ALL.into() };
    let nobodys: IpAddr = if ip.is_ipv4() { V4_OF_NOBODY.into() } else { V6_OF_NOBODY.into() };
    // Nothing is sent by any of this; ports have no meaning. One can listen on what one owns; on everything
    // else too where the system is told so, then what counts is the address that it would send from.
    let binds = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    (binds(ip) && !binds(nobodys)) || from().is_ok_and(|from| from.ip() == ip)
}

/// Trusts the given roots, or else those of the platform. Not kept if it fails: certificates may come later.
async fn connector(roots: Option<RootCertStore>) -> io::Result<TlsConnector> {
    // Reads files.
    let config = tokio::task::spawn_blocking(move || tls_config(roots)).await;
    let config = config.map_err(io::Error::other)?.map_err(io::Error::other)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn tls_config(roots: Option<RootCertStore>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match roots {
        Some(roots) => builder.with_root_certificates(roots),
        None => builder.with_platform_verifier()?,
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that takes so many bytes between two writes and fails then: whatever the receiver sends,
/// informational answers without end included.
pub(crate) struct Conn {
    stream: Box<dyn Stream>,
    whole: usize,
    left: usize,
    _open: Open,
}

impl Connection for Conn {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::other("the answer is too long")));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.left = self.left.saturating_sub(buf.filled().len() - before);
        read
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.left = self.whole;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.left = self.whole;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Counts a connection while it lives.
struct Open(Arc<AtomicUsize>);

impl Open {
    /// None if there are so many already.
    fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<Open> {
        let one_more = |open| (open < most).then_some(open + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Open(Arc::clone(count)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let addresses = |text: &str| -> Vec<SocketAddr> {
            text.split_whitespace().map(|ip| SocketAddr::new(ip.parse().unwrap(), 1)).collect()
        };
        for (found, tried) in [
            ("", ""),
            ("::1", "::1"),
            ("::1 ::2 1.1.1.1 2.2.2.2", "::1 1.1.1.1 ::2 2.2.2.2"),
            ("1.1.1.1 ::1 ::2 ::3 ::4", "1.1.1.1 ::1 ::2 ::3"),
            ("::1 ::2 ::3 ::4 ::5 1.1.1.1", "::1 1.1.1.1 ::2 ::3"),
        ] {
            assert_eq!(in_turn(addresses(found)), addresses(tried), "{found}");
        }
    }

    #[test]
    fn addresses_of_this_machine() {
        for own in ["127.0.0.1", "127.9.9.9"] {
            assert!(is_this_machine(own.parse().unwrap()), "{own}");
        }
        for other in ["93.184.215.14", "2606:2800:21f:cb07::1"] {
            assert!(!is_this_machine(other.parse().unwrap()), "{other}");
        }
    }
}
