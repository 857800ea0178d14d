//! Connections to addresses that were checked, for the HTTP client's pool.

use std::io;
use std::net::{IpAddr, SocketAddr};
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

/// Why there is no connection. Only operators see the messages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// An address may not be called.
    #[error("{0} is not allowed")]
    NotAllowed(IpAddr),
    /// The address is one of the server's own.
    #[error("{0} is this server")]
    Own(SocketAddr),
    /// The URI has no host that can be dialled.
    #[error("no host")]
    NoHost,
    /// The host name has no address.
    #[error("no address")]
    NoAddress,
    /// All slots are in use. Nothing was tried.
    #[error("no slot for a lookup or a connection")]
    Busy,
    #[error("no connection in time")]
    TimedOut,
    /// TLS could not be set up, for example without root certificates.
    #[error("no tls")]
    NoTls(#[source] io::Error),
    /// The lookup failed.
    #[error("no address: {0}")]
    NotFound(Arc<io::Error>),
    /// Connecting, or the TLS handshake, failed.
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
    /// What the call that runs in this task may dial. A task-local, because the pool passes nothing but the URI to its
    /// connector.
    pub(crate) static DIAL: Dial;
}

impl Connector {
    /// Makes at most `open_max` connections; an answer may have `answer_bytes`.
    pub fn new(roots: Option<RootCertStore>, answer_bytes: usize, open_max: usize) -> Connector {
        let (tls, open) = (OnceCell::new(), Arc::default());
        Connector(Arc::new(Inner { roots, tls, answer_bytes, open, open_max }))
    }

    /// How many connections are open.
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
        // Read here because the pool may finish the connection in another task.
        let dial = DIAL.try_with(Dial::clone);
        Box::pin(async move {
            let dial = dial.map_err(|_| DialError::NoHost)?;
            // Limited here because the pool may go on with a connection that nobody waits for.
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
        // Requests are written whole, so Nagle's algorithm would only delay them.
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

/// Tries one address after the other; each gets an equal share of the remaining time.
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

/// Trusts the given roots, or else those of the platform. A failure is not cached: certificates may be installed later.
async fn connector(roots: Option<RootCertStore>) -> io::Result<TlsConnector> {
    // Reading files blocks.
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

/// A connection that fails once it has read too many bytes since the last write. This bounds whatever a receiver sends,
/// endless informational answers included.
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
    /// `None` if `most` are open already.
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
