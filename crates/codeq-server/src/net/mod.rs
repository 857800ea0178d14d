//! Sockets: the accept loop, TLS, time limits, draining. Knows nothing of tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use tls::TlsFiles;

mod tls;

/// Bounds of a listener.
#[derive(Debug, Clone)]
pub struct NetLimits {
    /// Most connections at once.
    pub max_connections: usize,
    /// Time for a request's head, and for the TLS handshake.
    pub header_timeout: Duration,
    /// A connection without a request is closed after this.
    pub idle_timeout: Duration,
}

/// How a listener is doing; shared with metrics.
#[derive(Debug, Default)]
pub struct NetStats {
    /// Connections that are open.
    pub open: std::sync::atomic::AtomicUsize,
    /// Connections accepted.
    pub accepted: std::sync::atomic::AtomicU64,
    /// Connections refused because there were too many.
    pub refused: std::sync::atomic::AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub handshake_failures: std::sync::atomic::AtomicU64,
}

/// Where a connection comes from: a request extension.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub std::net::SocketAddr);

/// Serves `app` until `stop` turns true; then lets requests in flight finish, for `grace` at most.
pub async fn serve(
    _listener: TcpListener,
    _app: Router,
    _tls: Option<TlsFiles>,
    _limits: NetLimits,
    _stats: Arc<NetStats>,
    _stop: watch::Receiver<bool>,
    _grace: Duration,
) {
}
