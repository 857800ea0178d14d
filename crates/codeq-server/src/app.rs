//! State shared by HTTP and gRPC.

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

pub(crate) use reload::ReloadState;
pub use reload::{ReloadInputs, Source};

/// Everything a request handler needs.
pub struct App {
    /// The operations behind both protocols.
    pub service: Service,
    /// Authenticates tokens.
    pub auth: Authenticator,
    /// Rate limits per tenant.
    pub limiter: RateLimiter,
    /// Limits the memory held for clients.
    pub budget: Budget,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
    /// Connection counters of the public listeners.
    pub net: Arc<NetStats>,
    /// Formats timestamps.
    pub times: Times,
    /// Limits and options for requests.
    pub request_options: RequestOptions,
    /// What reloads of the configuration need.
    pub reload_state: ReloadState,
}

/// Limits and options for requests, the same for every route and stream.
#[derive(Debug, Clone)]
pub struct RequestOptions {
    /// Maximum bytes of a request body.
    pub body_max: usize,
    /// Maximum bytes of a batch request body.
    pub batch_body_max: usize,
    /// Maximum bytes of a stream message.
    pub message_max: usize,
    /// Time limit for receiving a request body.
    pub body_timeout: Duration,
    /// Serves `/metrics` to all addresses, not just loopback.
    pub metrics_public: bool,
    /// How to handle unknown fields and query parameters.
    pub unknown_fields: UnknownFields,
    /// Logs paths as received instead of their route templates.
    pub shows_paths: bool,
    /// Ends a gRPC stream when its token expires. Event streams always end then.
    pub end_streams_at_expiry: bool,
}

impl RequestOptions {
    /// Takes the limits from the configuration.
    pub fn new(config: &Config) -> RequestOptions {
        RequestOptions {
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

/// The memory limit for clients, from the configuration or the machine's memory.
pub fn budget(config: &Config) -> Budget {
    let least = config.buffered_min();
    let set = config.http.max_buffered_bytes.map(|bytes| bytes.max(least));
    Budget::new(set.unwrap_or_else(|| buffered_bytes(least)))
}
