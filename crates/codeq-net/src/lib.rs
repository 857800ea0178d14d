//! Sockets: the accept loop, TLS, timeouts, draining. Serves any router and depends on no other
//! codeQ crate.
//!
//! ```text
//! accept ─> connection: TLS handshake ─> h1 or h2 ─> hyper ─> router
//!              socket   blocked writes                  activity  requests in flight, idle time
//!              wire     strict h1 framing               stream    h2 responses the client does not read
//!              write_timeout   for socket and stream, shorter once the server stops
//! ```
//!
//! Every wait on a client has a limit, except the wait for a request's body, which its handler limits.
//! A request in flight has no limit of its own, on purpose: it may wait for its handler indefinitely.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

pub use accept::serve;
// Public for the fuzz targets.
#[doc(hidden)]
pub use framing::Framing;
pub use host::Hosts;
pub use protocol::H2_STREAM_WINDOW;
pub use tls::{TlsError, TlsFiles};

mod accept;
mod activity;
mod connection;
mod framing;
mod host;
mod protocol;
mod service;
mod slot;
mod socket;
mod stream;
mod tls;
mod unread;
mod wire;
mod write_timeout;

/// Limits of a listener.
#[derive(Debug, Clone)]
pub struct NetLimits {
    /// Maximum open connections, across all listeners that share a [`NetStats`].
    pub max_connections: usize,
    /// Time limit for a request head, and for the TLS handshake.
    pub header_timeout: Duration,
    /// Closes a connection that has had no request for this long. A client that reads nothing of its
    /// response for this long, 30 seconds at most, is disconnected too. If the socket still takes
    /// bytes, as it can over HTTP/2, only the stream is reset.
    pub idle_timeout: Duration,
    /// Hosts that requests may name.
    pub hosts: Hosts,
}

/// Longer timeouts are clamped to this, so that adding one to an `Instant` cannot overflow.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

impl NetLimits {
    /// Clamps the timeouts to [`LONGEST`].
    fn bounded(mut self) -> Self {
        self.header_timeout = self.header_timeout.min(LONGEST);
        self.idle_timeout = self.idle_timeout.min(LONGEST);
        self
    }

    /// How long a client may go without reading a byte of a response.
    fn write_timeout(&self) -> Duration {
        self.idle_timeout.min(Duration::from_secs(30))
    }
}

/// Connection counters, shared with the metrics.
#[derive(Debug, Default)]
pub struct NetStats {
    /// Connections open now.
    pub open: AtomicUsize,
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections refused because `max_connections` was reached.
    pub refused: AtomicU64,
    /// TLS handshakes that failed or timed out.
    pub handshake_failures: AtomicU64,
}

/// The remote end of a connection, attached to every request as an extension.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The remote address.
    pub addr: SocketAddr,
    /// Bytes held in memory for this connection. The request handlers keep the count.
    pub held: Arc<AtomicUsize>,
}
