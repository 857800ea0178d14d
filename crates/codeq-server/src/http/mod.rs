//! HTTP/JSON: parse, call, shape.
//!
//! [`routes::ROUTES`] is the one list of what is served: for each route who may call it, how large its body
//! may be, and the function that answers. [`endpoint::run`] does for all of them what is the same for all:
//! request id, token, rate, body, limits, log line, metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use codeq_net::NetStats;
use tower::ServiceExt;

use crate::auth::Authenticator;
use crate::config::{Config, LogFormat, UnknownFields};
use crate::limits::RateLimiter;
use crate::limits::budget::Budget;
use crate::limits::memory::buffered_bytes;
use crate::observe::Metrics;
use crate::reload::Reloader;
use crate::service::Service;

pub mod answer;
pub mod body;
pub mod call;
pub mod endpoint;
pub mod fields;
pub mod json;
pub mod openapi;
pub mod problem;
pub mod routes;
pub mod wire;

mod abandon;
mod artifacts;
mod backup;
mod bulk;
mod cancel;
mod claim;
mod cleanup;
mod dead_letters;
mod docs;
mod enqueue;
mod events;
mod heartbeat;
mod nack;
mod parse_error;
mod probes;
mod queues;
mod reload;
mod submit;
mod subscriptions;
mod tasks;
mod topics;
mod unrouted;
mod webhooks;

use routes::{ROUTES, Route, Verb};
use wire::Times;

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

/// Serves every route of the list.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        let mut methods = MethodRouter::new();
        for route in ROUTES.iter().filter(|route| route.path == path) {
            let app = Arc::clone(&app);
            let serve = move |request: Request| endpoint::run(Arc::clone(&app), route, request);
            methods = methods.merge(on(filter(route), serve));
        }
        let app = Arc::clone(&app);
        methods = methods.fallback(move |request: Request| {
            let (method, asked) = (request.method().as_str(), request.uri().path());
            let problem = unrouted::wrong_method(method, path, asked);
            endpoint::refuse(Arc::clone(&app), request, problem)
        });
        router = router.route(path, methods);
    }
    let not_found = move |request: Request| {
        let problem = unrouted::not_found(request.method().as_str(), request.uri().path());
        endpoint::refuse(Arc::clone(&app), request, problem)
    };
    let exact = router.clone().fallback(not_found.clone());
    // A path with a slash at its end is served as the one without it.
    router.fallback(move |mut request: Request| {
        let (exact, not_found) = (exact.clone(), not_found.clone());
        async move {
            match unrouted::without_slash(request.uri()) {
                None => not_found(request).await,
                Some(uri) => {
                    *request.uri_mut() = uri;
                    exact.oneshot(request).await.into_response()
                }
            }
        }
    })
}

/// Serves the metrics alone, on a port of their own, to whoever reaches it.
pub fn metrics_router(app: Arc<App>) -> Router {
    let route = &routes::METRICS_ALONE;
    let serve = move |request: Request| endpoint::run(Arc::clone(&app), route, request);
    Router::new().route(route.path, on(filter(route), serve))
}

fn filter(route: &Route) -> MethodFilter {
    match route.verb {
        Verb::Get => MethodFilter::GET,
        Verb::Post => MethodFilter::POST,
        Verb::Put => MethodFilter::PUT,
        Verb::Delete => MethodFilter::DELETE,
    }
}
