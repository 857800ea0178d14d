//! Prometheus metrics.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::effect::Effect;
use codeq_engine::{Engine, Observer};

use crate::net::NetStats;

/// Every metric of a server.
pub struct Metrics {}

impl Metrics {
    /// Fresh ones, all zero.
    pub fn new() -> Arc<Metrics> {
        Arc::new(Metrics {})
    }

    /// A request was answered. `operation` is the route's `operationId`.
    pub fn answered(&self, _operation: &'static str, _method: &str, _status: u16, _took: Duration) {
    }

    /// A request was refused for its rate.
    pub fn rate_limited(&self, _scope: &'static str, _operation: &'static str) {}

    /// The text that Prometheus reads.
    pub async fn render(&self, _engine: &Engine, _net: &NetStats) -> String {
        String::new()
    }
}

impl Observer for Metrics {
    fn committed(&self, _shard: u16, _effects: &[Effect]) {}
}
