//! Checks values, individually and together.

mod auth;
mod files;
mod networks;
mod webhooks;

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use codeq_auth::mask::mask_url;
use codeq_core::limits::{
    ATTEMPTS_MAX, BATCH_MAX, CALLBACK_ATTEMPTS_MAX, CLAIM_MAX, DELAY_MS_MAX, LEASE_MS_MAX,
    LEASE_MS_MIN, PAYLOAD_BYTES_MAX, RETENTION_MS_MAX,
};
use codeq_engine::options::SHARDS_MAX;
use jiff::tz::TimeZone;
use tracing_subscriber::EnvFilter;

use super::dev::DEV_TOKEN;
use super::model::{Config, Durability, RateLimit};
use super::problem::{Problem, shown};

/// Bounds on request bodies, in bytes.
const BODY_BYTES: RangeInclusive<u64> = 1 << 10..=64 << 20;
/// Bounds on bodies that may hold artifacts, in bytes.
const BATCH_BODY_BYTES: RangeInclusive<u64> = 1 << 10..=1 << 30;
const BUFFERED_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Bounds on the size of an artifact, in bytes.
const ARTIFACT_BYTES: RangeInclusive<u64> = 1..=1 << 30;
/// Bounds on timeouts, in seconds.
const TIMEOUT_SECONDS: RangeInclusive<u64> = 1..=3_600;
/// Maximum number of connections.
const CONNECTIONS_MAX: u64 = 1_000_000;
/// Words that are a log level on their own.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Config {
    /// Lists every problem. Reads the files that are named; changes nothing.
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = self.check_fields();
        self.check_relations(&mut problems);
        problems
    }

    /// Startup warnings about settings that are valid but risky.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |applies: bool, text: &str| {
            if applies {
                warnings.push(text.to_owned());
            }
        };
        warn(
            self.durability == Durability::Os,
            "durability is 'os': a power cut loses writes that were acknowledged",
        );
        warn(
            self.allow_producer_as_worker,
            "allowProducerAsWorker is on: every producer may act as a worker",
        );
        if let (Some((key, _)), None) = (self.exposed(), &self.tls.cert_file) {
            let text = "is open to the network without TLS: tokens travel in the clear unless a proxy \
                        adds it";
            warn(true, &format!("{key} {text}"));
        }
        warn(
            self.retention.dead_letter_seconds < self.retention_seconds,
            "retention.deadLetterSeconds is shorter than retentionSeconds: dead letters are removed before \
             other finished tasks",
        );
        warn(self.metrics.public, "metrics.public is on: /metrics answers everybody");
        warn(
            !self.producer_auth.accepts_tokens(),
            "producerAuth has no jwt and no staticTokens: nobody can enqueue",
        );
        let producers_work = self.allow_producer_as_worker && self.producer_auth.accepts_tokens();
        warn(
            !self.worker_auth.accepts_tokens() && !producers_work,
            "workerAuth has no jwt and no staticTokens: nobody can claim",
        );
        warnings.extend(networks::opened(self));
        warnings.extend(auth::powerless_worker_tokens(&self.worker_auth));
        warnings.extend(webhooks::unknown_tenants(self));
        warnings
    }

    /// Whether the publicly known development token is accepted.
    pub(crate) fn has_dev_token(&self) -> bool {
        let mut tokens =
            self.producer_auth.static_tokens.iter().chain(&self.worker_auth.static_tokens);
        tokens.any(|token| auth::is_token(token, DEV_TOKEN))
    }

    /// Checks each value on its own.
    pub(crate) fn check_fields(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.check_ranges(&mut problems);
        self.check_http(&mut problems);
        self.check_limits(&mut problems);
        self.check_texts(&mut problems);
        auth::check(&self.producer_auth, "producerAuth", &mut problems);
        auth::check(&self.worker_auth, "workerAuth", &mut problems);
        webhooks::check(&self.webhooks, &mut problems);
        files::check(&self.tls, &mut problems);
        problems
    }

    fn check_ranges(&self, problems: &mut Vec<Problem>) {
        let delay = DELAY_MS_MAX / 1_000;
        let mut range = |key, value, range| in_range(problems, key, value, range);
        if let Some(shards) = self.shards {
            range("shards", shards.into(), 1..=SHARDS_MAX.into());
        }
        range("maxAttemptsDefault", self.max_attempts_default.into(), 1..=ATTEMPTS_MAX.into());
        range("backoffBaseSeconds", self.backoff_base_seconds, 0..=delay);
        range("backoffMaxSeconds", self.backoff_max_seconds, 0..=delay);
        let lease = LEASE_MS_MIN / 1_000..=LEASE_MS_MAX / 1_000;
        range("defaultLeaseSeconds", self.default_lease_seconds, lease);
        let retention = || 1..=RETENTION_MS_MAX / 1_000;
        range("retentionSeconds", self.retention_seconds, retention());
        let dead_letters = self.retention.dead_letter_seconds;
        range("retention.deadLetterSeconds", dead_letters, retention());
        range("maxBatchSize", self.max_batch_size as u64, 1..=BATCH_MAX as u64);
        range("maxClaimBatchSize", self.max_claim_batch_size as u64, 1..=CLAIM_MAX as u64);
        if let Some(bytes) = self.max_payload_bytes {
            range("maxPayloadBytes", bytes as u64, 1 << 10..=PAYLOAD_BYTES_MAX as u64);
        }
        let attempts = 1..=CALLBACK_ATTEMPTS_MAX.into();
        range("resultWebhookMaxAttempts", self.result_webhook_max_attempts.into(), attempts);
        // A receiver that is down must not be called without a pause.
        let base = self.result_webhook_base_backoff_seconds;
        range("resultWebhookBaseBackoffSeconds", base, 1..=delay);
        let max = self.result_webhook_max_backoff_seconds;
        range("resultWebhookMaxBackoffSeconds", max, 1..=delay);
        let webhooks = &self.webhooks;
        range("webhooks.maxConcurrent", webhooks.max_concurrent as u64, 1..=4_096);
        range("webhooks.maxPerHost", webhooks.max_per_host as u64, 1..=256);
        range("shutdownGraceSeconds", self.shutdown_grace_seconds, 0..=3_600);
    }

    fn check_http(&self, problems: &mut Vec<Problem>) {
        let http = &self.http;
        let mut range = |key, value, range| in_range(problems, key, value, range);
        range("http.maxBodyBytes", http.max_body_bytes as u64, BODY_BYTES);
        range("http.maxBatchBodyBytes", http.max_batch_body_bytes as u64, BATCH_BODY_BYTES);
        if let Some(bytes) = http.max_buffered_bytes {
            range("http.maxBufferedBytes", bytes as u64, BUFFERED_BYTES);
        }
        range("artifacts.maxBytes", self.artifacts.max_bytes as u64, ARTIFACT_BYTES);
        range("http.maxConnections", http.max_connections as u64, 1..=CONNECTIONS_MAX);
        range("http.headerTimeoutSeconds", http.header_timeout_seconds, TIMEOUT_SECONDS);
        range("http.bodyTimeoutSeconds", http.body_timeout_seconds, TIMEOUT_SECONDS);
        range("http.idleTimeoutSeconds", http.idle_timeout_seconds, TIMEOUT_SECONDS);
    }

    fn check_limits(&self, problems: &mut Vec<Problem>) {
        rate("rateLimit.producer", self.rate_limit.producer, problems);
        rate("rateLimit.worker", self.rate_limit.worker, problems);
        rate("rateLimit.admin", self.rate_limit.admin, problems);
        let limits = [
            ("tenantLimits.maxPendingTasks", self.tenant_limits.max_pending_tasks),
            ("tenantLimits.maxPendingBytes", self.tenant_limits.max_pending_bytes),
            ("tenantLimits.maxStoredBytes", self.tenant_limits.max_stored_bytes),
        ];
        for (key, limit) in limits {
            if limit == Some(0) {
                let text = "found 0, expected at least 1; leave it out for no limit";
                problems.push(Problem::of(key, text));
            }
        }
    }

    fn check_texts(&self, problems: &mut Vec<Problem>) {
        if self.data_dir.as_os_str().is_empty() {
            problems.push(Problem::of("dataDir", "found nothing, expected a directory"));
        }
        if let Err(text) = check_level(&self.log_level) {
            problems.push(Problem::of("logLevel", text));
        }
        if TimeZone::get(&self.timezone).is_err() {
            let found = shown(&self.timezone);
            let text = format!("found '{found}', expected an IANA name such as America/Sao_Paulo");
            problems.push(Problem::of("timezone", text));
        }
        if !(0.0..=1.0).contains(&self.tracing.sample_ratio) {
            let text = format!("found {}, expected 0 to 1", self.tracing.sample_ratio);
            problems.push(Problem::of("tracing.sampleRatio", text));
        }
        if self.tracing.service_name.is_empty() {
            problems.push(Problem::of("tracing.serviceName", "found nothing, expected a name"));
        }
        if let Some(url) = &self.public_url
            && !is_base(url)
        {
            let found = shown(&mask_url(url));
            let text =
                format!("found '{found}', expected an address such as https://codeq.example.com");
            problems.push(Problem::of("publicUrl", text));
        }
        for (key, url) in
            [("artifacts.url", &self.artifacts.url), ("backup.target", &self.backup.target)]
        {
            let Some(url) = url.as_ref().filter(|url| !is_store(url)) else { continue };
            let found = shown(&mask_url(url));
            let text = format!(
                "found '{found}', expected file:///directory, s3://bucket/prefix, gs://bucket/prefix or \
                 az://container/prefix; credentials come from the environment"
            );
            problems.push(Problem::of(key, text));
        }
        if let (Some(endpoint), Err(why)) = (&self.tracing.otlp_endpoint, self.tracing.traces_url())
        {
            let found = shown(&mask_url(endpoint));
            let expected = "expected an address such as http://localhost:4318";
            let text = format!("found '{found}', which {why}; {expected}");
            problems.push(Problem::of("tracing.otlpEndpoint", text));
        }
    }

    /// Checks how the values fit together.
    fn check_relations(&self, problems: &mut Vec<Problem>) {
        let mut at_most = |key: &str, value: u64, other: &str, most: u64| {
            if value > most {
                let text = format!("found {value}, expected at most {other}, which is {most}");
                problems.push(Problem::of(key, text));
            }
        };
        let (base, max) = (self.backoff_base_seconds, self.backoff_max_seconds);
        at_most("backoffBaseSeconds", base, "backoffMaxSeconds", max);
        let base = self.result_webhook_base_backoff_seconds;
        let max = self.result_webhook_max_backoff_seconds;
        let key = "resultWebhookBaseBackoffSeconds";
        at_most(key, base, "resultWebhookMaxBackoffSeconds", max);
        let (body, batch) =
            (self.http.max_body_bytes as u64, self.http.max_batch_body_bytes as u64);
        at_most("http.maxBodyBytes", body, "http.maxBatchBodyBytes", batch);
        let needed = self.buffered_for_payload();
        if let Some(buffered) = self.http.max_buffered_bytes.filter(|bytes| *bytes < needed) {
            let text = format!(
                "found {buffered}, expected at least twelve times maxPayloadBytes, which is {needed}; raise it, \
                 leave it out, or lower maxPayloadBytes"
            );
            problems.push(Problem::of("http.maxBufferedBytes", text));
        }
        self.check_collisions(problems);
        if let Some((key, addr)) = self.exposed() {
            self.check_exposed(key, addr, problems);
        }
    }

    /// Rejects two listeners on one port. The streams may share a port, because both ports serve both.
    fn check_collisions(&self, problems: &mut Vec<Problem>) {
        let (producer, worker) = self.stream_addrs();
        let (http, metrics) = (Some(self.http_addr), self.metrics.addr);
        let pairs = [
            ("metrics.addr", metrics, "httpAddr", http),
            ("metrics.addr", metrics, "producerAddr", Some(producer)),
            ("metrics.addr", metrics, "workerAddr", Some(worker)),
            ("producerAddr", Some(producer), "httpAddr", http),
            ("workerAddr", Some(worker), "httpAddr", http),
        ];
        for (key, addr, other_key, other) in pairs {
            if let (Some(addr), Some(other)) = (addr, other)
                && collide(addr, other)
            {
                let text = format!("collides with {other_key}, which is {other}");
                problems.push(Problem::of(key, text));
            }
        }
    }

    /// A listener reachable from the network.
    fn exposed(&self) -> Option<(&'static str, SocketAddr)> {
        let (producer, worker) = self.stream_addrs();
        [("httpAddr", self.http_addr), ("producerAddr", producer), ("workerAddr", worker)]
            .into_iter()
            .find(|(_, addr)| !addr.ip().is_loopback())
    }

    /// Rejects settings that are unsafe on a server reachable from the network.
    fn check_exposed(&self, key: &str, addr: SocketAddr, problems: &mut Vec<Problem>) {
        if !self.producer_auth.accepts_tokens() && !self.worker_auth.accepts_tokens() {
            let text = format!(
                "{addr} is open to the network, but nobody could authenticate: set producerAuth and \
                 workerAuth, or listen on 127.0.0.1"
            );
            problems.push(Problem::of(key, text));
        }
        let auths = [("producerAuth", &self.producer_auth), ("workerAuth", &self.worker_auth)];
        for (name, auth) in auths {
            for (index, token) in auth.static_tokens.iter().enumerate() {
                if auth::is_token(token, DEV_TOKEN) {
                    let key = format!("{name}.staticTokens[{index}]");
                    let text = "the development token is known to everybody; it is refused on an \
                                address that the network can reach";
                    problems.push(Problem::of(key, text));
                }
            }
        }
    }
}

/// Whether the text is a URL to which paths can be appended.
fn is_base(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        let bare = url.query().is_none() && url.fragment().is_none() && url.password().is_none();
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && bare
    })
}

/// Whether the text is a store URL without extras such as a password.
fn is_store(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        let bare = url.query().is_none() && url.fragment().is_none() && url.password().is_none();
        let place = match url.scheme() {
            "file" => url.to_file_path().is_ok(),
            "s3" | "gs" | "az" => url.host_str().is_some_and(|bucket| !bucket.is_empty()),
            _ => false,
        };
        place && bare && url.username().is_empty()
    })
}

fn in_range(problems: &mut Vec<Problem>, key: &str, value: u64, range: RangeInclusive<u64>) {
    if !range.contains(&value) {
        let text = format!("found {value}, expected {} to {}", range.start(), range.end());
        problems.push(Problem::of(key, text));
    }
}

fn rate(key: &str, limit: Option<RateLimit>, problems: &mut Vec<Problem>) {
    let Some(RateLimit { requests_per_minute, burst }) = limit else { return };
    for (name, value) in [("requestsPerMinute", requests_per_minute), ("burst", burst)] {
        if value == 0 {
            let text = "missing or 0: a limit has requestsPerMinute and burst, both at least 1; \
                        leave both out for no limit";
            problems.push(Problem::of(format!("{key}.{name}"), text));
        }
    }
}

/// Whether two listeners would bind the same port.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (any || one.ip() == other.ip())
}

/// Rejects a lone word that is not a level: the filter would take it for a module name and log nothing else.
fn check_level(level: &str) -> Result<(), String> {
    let expected = "expected error, warn, info, debug, trace, off, or a filter such as \
                    info,codeq::net=debug";
    let lone = |part: &str| !part.contains(['=', '[']);
    let is_level = |part: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
    let words = level.split(',').map(str::trim);
    let unknown = words.filter(|part| lone(part)).any(|part| !is_level(part));
    if unknown || EnvFilter::builder().parse(level).is_err() {
        return Err(format!("found '{}', {expected}", shown(level)));
    }
    Ok(())
}
