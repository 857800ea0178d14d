//! Sockets: the accept loop, TLS, time limits, draining. It serves any router, and knows none of codeQ's
//! other crates.
//!
//! ```text
//! accept ─> connection: TLS handshake ─> h1 or h2 ─> hyper ─> router
//!              socket   write stalls                    pulse   is a request in flight, since when not
//!              wire     strict h1 framing               stream  h2 responses nobody takes
//!              stall    for how long: less once the server stops
//! ```
//!
//! Every wait on a client has a limit, except the one that is wanted: a request in flight may wait
//! for its answer as long as the handler likes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

pub use accept::serve;
// For the fuzz targets.
#[doc(hidden)]
pub use framing::Framing;
pub use host::Hosts;
pub use protocol::H2_STREAM_WINDOW;
pub use tls::{TlsError, TlsFiles};

mod accept;
mod connection;
mod framing;
mod host;
mod protocol;
mod pulse;
mod service;
mod slot;
mod socket;
mod stall;
mod stream;
mod tls;
mod wire;

/// Bounds of a listener.
#[derive(Debug, Clone)]
pub struct NetLimits {
    /// Most connections at once, on all listeners that share their [`NetStats`].
    pub max_connections: usize,
    /// Time for a request's head, and for the TLS handshake.
    pub header_timeout: Duration,
    /// A connection without a request is closed after this. A client that takes nothing of its
    /// response is closed after this too, or after 30 seconds if that is shorter.
    pub idle_timeout: Duration,
    /// Which hosts requests may name.
    pub hosts: Hosts,
}

/// Beyond this a limit is none; and sums with it cannot overflow.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

impl NetLimits {
    /// The same, fit to calculate with.
    fn bounded(mut self) -> Self {
        self.header_timeout = self.header_timeout.min(LONGEST);
        self.idle_timeout = self.idle_timeout.min(LONGEST);
        self
    }

    /// Longest time in which a client takes no byte of a response.
    fn write_timeout(&self) -> Duration {
        self.idle_timeout.min(Duration::from_secs(30))
    }
}

/// How listeners are doing; shared with metrics.
#[derive(Debug, Default)]
pub struct NetStats {
    /// Connections that are open.
    pub open: AtomicUsize,
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections refused because there were too many.
    pub refused: AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub handshake_failures: AtomicU64,
}

/// Who is at the other end of a connection: a request extension.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where it comes from.
    pub addr: SocketAddr,
    /// Bytes that are held for it; whoever serves it counts them.
    pub held: Arc<AtomicUsize>,
}
