//! What the protocols share.

use std::sync::Arc;
use std::time::Duration;

use codeq_auth::Authenticator;
use codeq_net::NetStats;

use crate::config::{Config, LogFormat, UnknownFields};
use crate::limits::RateLimiter;
use crate::limits::budget::Budget;
use crate::limits::memory::buffered_bytes;
use crate::observe::Metrics;
use crate::service::Service;
use crate::times::Times;

mod reload;

pub(crate) use reload::Reloader;
pub use reload::{Reloading, Source};

/// What every request needs.
pub struct App {
    /// The service layer.
    pub service: Service,
    /// Tokens.
    pub auth: Authenticator,
    /// Rates.
    pub limiter: RateLimiter,
    /// Bytes that are held for clients.
    pub budget: Budget,
    /// Counting.
    pub metrics: Arc<Metrics>,
    /// The listener's numbers.
    pub net: Arc<NetStats>,
    /// How moments are written.
    pub times: Times,
    /// The edge's bounds.
    pub edge: Edge,
    /// The configuration, to be read again.
    pub reloader: Reloader,
}

/// Bounds of the edge.
#[derive(Debug, Clone)]
pub struct Edge {
    /// Largest body.
    pub body_max: usize,
    /// Largest body of a batch.
    pub batch_body_max: usize,
    /// Longest message of a stream.
    pub message_max: usize,
    /// Time for a body.
    pub body_timeout: Duration,
    /// `/metrics` answers everybody, not only loopback.
    pub metrics_public: bool,
    /// What becomes of fields and parameters that nobody knows.
    pub unknown_fields: UnknownFields,
    /// Log lines have paths as they came, instead of those of their routes.
    pub shows_paths: bool,
    /// A stream ends when its token does.
    pub end_streams_at_expiry: bool,
}

impl Edge {
    /// From the configuration.
    pub fn new(config: &Config) -> Edge {
        Edge {
            body_max: config.body_max(),
            batch_body_max: config.batch_body_max(),
            message_max: config.message_max(),
            body_timeout: Duration::from_secs(config.http.body_timeout_seconds),
            metrics_public: config.metrics.public,
            unknown_fields: config.http.unknown_fields,
            shows_paths: config.log_format == LogFormat::Short,
            end_streams_at_expiry: config.auth.end_streams_at_expiry,
        }
    }
}

/// The bytes that may be held for clients, from the configuration or the machine.
pub fn budget(config: &Config) -> Budget {
    let least = config.buffered_min();
    let set = config.http.max_buffered_bytes.map(|bytes| bytes.max(least));
    Budget::new(set.unwrap_or_else(|| buffered_bytes(least)))
}
