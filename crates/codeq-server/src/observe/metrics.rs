//! The server's metrics, rendered as OpenMetrics text.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use codeq_auth::Reason;
use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_engine::{Engine, Observer};
use codeq_net::NetStats;
use codeq_webhooks::{WebhookKind, WebhookOutcome};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::commands::Commands;
use super::disk::Disk;
use super::refusals::{Refusals, Refused};
use super::scrape::{self, Depths};
use super::token_refusals::TokenRefusals;
use crate::limits::budget::Budget;

/// The prefix of all metric names.
const PREFIX: &str = "codeq";

/// 0.5 ms to 60 s: from an enqueue to a claim that waits.
const REQUEST_SECONDS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];
/// A fast disk syncs in 50 µs; a failing one takes a second.
const SYNC_SECONDS: [f64; 14] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0,
];
/// A checkpoint writes up to a few hundred megabytes.
const CHECKPOINT_SECONDS: [f64; 11] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Labels that are all text.
type Labels<const N: usize = 1> = [(&'static str, &'static str); N];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    operation: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StreamLabels {
    service: &'static str,
    code: i32,
}

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    commands: Arc<Commands>,
    refusals: Arc<Refusals>,
    token_refusals: TokenRefusals,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
    rate_limits: Family<Labels<2>, Counter>,
    streams_open: Family<Labels, Gauge>,
    streams_ended: Family<StreamLabels, Counter>,
    stream_events: Family<Labels, Counter>,
    artifacts: Family<Labels, Counter>,
    artifact_bytes: Counter,
    batches: Histogram,
    syncs: Histogram,
    checkpoints: Histogram,
    checkpoint_failures: Counter,
    /// The directory whose filesystem is measured.
    data_dir: OnceLock<PathBuf>,
    /// Allows one scrape at a time: a second one would only slow the first.
    scrape: tokio::sync::Mutex<()>,
}

impl Metrics {
    /// Creates all metrics, at zero.
    pub fn new() -> Arc<Metrics> {
        let mut metrics = Metrics {
            registry: Registry::with_prefix(PREFIX),
            commands: Arc::default(),
            refusals: Arc::default(),
            token_refusals: TokenRefusals::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(REQUEST_SECONDS)),
            rate_limits: Family::default(),
            streams_open: Family::default(),
            streams_ended: Family::default(),
            stream_events: Family::default(),
            artifacts: Family::default(),
            artifact_bytes: Counter::default(),
            // Up to the maximum size of a commit group.
            batches: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            syncs: Histogram::new(SYNC_SECONDS),
            checkpoints: Histogram::new(CHECKPOINT_SECONDS),
            checkpoint_failures: Counter::default(),
            data_dir: OnceLock::new(),
            scrape: tokio::sync::Mutex::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let to = &mut self.registry;
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        to.register("build", "Version of the running server", build);
        to.register_collector(Box::new(Arc::clone(&self.commands)));
        to.register_collector(Box::new(Arc::clone(&self.refusals)));
        to.register("http_requests", "Requests answered", self.requests.clone());
        let help = "Time from a request's head to its response";
        let durations = self.durations.clone();
        to.register_with_unit("http_request_duration", help, Unit::Seconds, durations);
        let help = "Tokens refused, by reason";
        to.register("token_refusals", help, self.token_refusals.counts.clone());
        let help = "Requests refused by a rate limit";
        to.register("rate_limit_hits", help, self.rate_limits.clone());
        to.register("grpc_streams_open", "Open streams", self.streams_open.clone());
        let help = "Ended streams, by gRPC code";
        to.register("grpc_streams", help, self.streams_ended.clone());
        let help = "Events received on streams that have ended";
        to.register("grpc_events", help, self.stream_events.clone());
        let help = "Artifacts stored, failed or removed";
        to.register("artifacts", help, self.artifacts.clone());
        let help = "Bytes of stored artifacts";
        to.register_with_unit("artifact_stored", help, Unit::Bytes, self.artifact_bytes.clone());
        to.register("commit_batch_commands", "Commands per log sync", self.batches.clone());
        let help = "Duration of a log sync";
        to.register_with_unit("log_sync", help, Unit::Seconds, self.syncs.clone());
        let help = "Duration of a checkpoint";
        to.register_with_unit("checkpoint", help, Unit::Seconds, self.checkpoints.clone());
        let help = "Checkpoints that failed";
        to.register("checkpoint_failures", help, self.checkpoint_failures.clone());
    }

    /// Adds the size and free space of the filesystem that holds this directory.
    pub fn measure_disk(&self, data_dir: &Path) {
        let _ = self.data_dir.set(data_dir.to_owned());
    }

    /// Counts an answered request. `operation` is the route's `operationId`.
    pub fn answered(&self, operation: &'static str, method: &str, status: u16, took: Duration) {
        let labels = RequestLabels { operation, method: known_method(method), status };
        self.requests.get_or_create(&labels).inc();
        let labels = DurationLabels { operation, status };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Counts a refusal because a limit of the tenant or of the server was reached.
    pub fn refused(&self, tenant: &Arc<str>, what: Refused) {
        self.refusals.count(tenant, what);
    }

    /// Counts a refused token. If it should be logged, returns how many with the same reason went
    /// unlogged before it.
    pub fn token_refused(&self, reason: Reason) -> Option<u64> {
        self.token_refusals.count(reason, Instant::now())
    }

    /// Counts a request refused by a rate limit.
    pub fn rate_limited(&self, scope: &'static str, operation: &'static str) {
        self.rate_limits.get_or_create(&[("scope", scope), ("operation", operation)]).inc();
    }

    /// Counts an opened stream.
    pub fn stream_opened(&self, service: &'static str) {
        self.streams_open.get_or_create(&[("service", service)]).inc();
    }

    /// Counts a stream that ended with this gRPC code, and its events.
    pub fn stream_closed(&self, service: &'static str, code: i32, events: u64) {
        self.streams_open.get_or_create(&[("service", service)]).dec();
        self.streams_ended.get_or_create(&StreamLabels { service, code }).inc();
        self.stream_events.get_or_create(&[("service", service)]).inc_by(events);
    }

    /// Counts a webhook for a queue, given as tenant and name if known.
    pub fn webhook(
        &self,
        kind: WebhookKind,
        outcome: WebhookOutcome,
        queue: Option<(&Arc<str>, &str)>,
    ) {
        self.commands.webhook(kind, outcome, queue);
        if let (WebhookOutcome::Dropped, Some((tenant, _))) = (outcome, queue) {
            self.refused(tenant, Refused::Notification);
        }
    }

    /// Counts an artifact outcome: `stored`, `failed` or `removed`.
    pub fn artifact(&self, outcome: &'static str) {
        self.artifacts.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a stored artifact and its bytes.
    pub fn artifact_stored(&self, bytes: u64) {
        self.artifact("stored");
        self.artifact_bytes.inc_by(bytes);
    }

    /// Renders all metrics as OpenMetrics text. [`Format`](super::Format) converts it.
    pub async fn render(
        &self,
        engine: &Engine,
        net: &NetStats,
        budget: &Budget,
        workers: u64,
        leads: bool,
    ) -> String {
        let _one = self.scrape.lock().await;
        let depths = Depths::gather(engine, &self.commands).await;
        let mut now = Registry::with_prefix(PREFIX);
        depths.register(&mut now, engine.wall());
        scrape::register(&mut now, engine, net, budget);
        if let Some(disk) = self.data_dir.get().and_then(|dir| Disk::of(dir)) {
            scrape::of_disk(&mut now, disk);
        }
        let help = "Workers with an open stream or a claim within the last minute";
        now.register("workers_active", help, ConstGauge::<u64>::new(workers));
        let help = "0 once this server is stopping or its storage has failed, otherwise 1";
        now.register("leader", help, ConstGauge::<u64>::new(leads.into()));
        let mut text = String::new();
        // Writing to a `String` cannot fail. If a metric ever did, the others are still worth
        // serving.
        let _ = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &now))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}

impl Observer for Metrics {
    fn committed(&self, _shard: ShardId, effects: &[Effect]) {
        self.commands.count(effects);
    }

    fn synced(&self, took: Duration, commands: usize) {
        self.syncs.observe(took.as_secs_f64());
        self.batches.observe(commands as f64);
    }

    fn checkpointed(&self, took: Duration, done: bool) {
        if done {
            self.checkpoints.observe(took.as_secs_f64());
        } else {
            self.checkpoint_failures.inc();
        }
    }
}

/// Maps unknown methods to a fixed name, so that clients cannot invent label values or span
/// attributes.
pub(super) fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 9] =
        ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
}
