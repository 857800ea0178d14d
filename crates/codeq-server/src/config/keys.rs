//! The table of keys: the path of each, and how to set it.

use std::collections::BTreeMap;

use super::model::{Config, RateLimit};
use super::read::{Reader, Value, take, unknown_key};
use super::tree::{Kind, Name, Node};
use crate::near::nearest;

/// A configuration key.
pub(crate) struct Key {
    /// Dotted path, such as `http.maxBodyBytes`.
    pub(crate) path: &'static str,
    /// Whether its environment variable holds YAML.
    pub(crate) list: bool,
    set: fn(&mut Config, &Node, &mut Reader<'_>),
    same: fn(&Config, &Config) -> bool,
    copy: fn(&mut Config, &Config),
}

macro_rules! key {
    ($path:literal, $($field:ident).+) => {
        Key {
            path: $path,
            list: false,
            set: |config, node, reader| take(&mut config.$($field).+, node, $path, reader),
            same: |one, other| one.$($field).+ == other.$($field).+,
            copy: |to, from| to.$($field).+.clone_from(&from.$($field).+),
        }
    };
    (list $path:literal, $($field:ident).+) => {
        Key { list: true, ..key!($path, $($field).+) }
    };
    (rate $path:literal, $limit:ident, $field:ident) => {
        Key {
            path: $path,
            list: false,
            set: |config, node, reader| {
                let limit = &mut config.rate_limit.$limit;
                match <Option<u32>>::read(node, $path, reader) {
                    Some(Some(number)) => limit.get_or_insert(NO_RATE).$field = number,
                    Some(None) => *limit = None,
                    None => {}
                }
            },
            same: |one, other| {
                let value = |config: &Config| config.rate_limit.$limit.map(|limit| limit.$field);
                value(one) == value(other)
            },
            // Copy both fields together: one without the other is not a limit.
            copy: |to, from| to.rate_limit.$limit = from.rate_limit.$limit,
        }
    };
}

/// Placeholder while a limit is being read; the checks reject zeros that remain.
const NO_RATE: RateLimit = RateLimit { requests_per_minute: 0, burst: 0 };

/// All keys, in display order.
pub(crate) const KEYS: &[Key] = &[
    key!("dataDir", data_dir),
    key!("httpAddr", http_addr),
    key!("producerAddr", producer_addr),
    key!("workerAddr", worker_addr),
    key!("publicUrl", public_url),
    key!("shards", shards),
    key!("durability", durability),
    key!("logLevel", log_level),
    key!("logFormat", log_format),
    key!("timezone", timezone),
    key!("maxAttemptsDefault", max_attempts_default),
    key!("backoffPolicy", backoff_policy),
    key!("backoffBaseSeconds", backoff_base_seconds),
    key!("backoffMaxSeconds", backoff_max_seconds),
    key!("defaultLeaseSeconds", default_lease_seconds),
    key!("retentionSeconds", retention_seconds),
    key!("retention.deadLetterSeconds", retention.dead_letter_seconds),
    key!("maxBatchSize", max_batch_size),
    key!("maxClaimBatchSize", max_claim_batch_size),
    key!("maxPayloadBytes", max_payload_bytes),
    key!("resultWebhookMaxAttempts", result_webhook_max_attempts),
    key!("resultWebhookBaseBackoffSeconds", result_webhook_base_backoff_seconds),
    key!("resultWebhookMaxBackoffSeconds", result_webhook_max_backoff_seconds),
    key!(list "webhooks.allowedNetworks", webhooks.allowed_networks),
    key!(list "webhooks.secrets", webhooks.secrets),
    key!("webhooks.maxConcurrent", webhooks.max_concurrent),
    key!("webhooks.maxPerHost", webhooks.max_per_host),
    key!(list "producerAuth.jwt", producer_auth.jwt),
    key!(list "producerAuth.staticTokens", producer_auth.static_tokens),
    key!(list "workerAuth.jwt", worker_auth.jwt),
    key!(list "workerAuth.staticTokens", worker_auth.static_tokens),
    key!("allowProducerAsWorker", allow_producer_as_worker),
    key!("auth.endStreamsAtExpiry", auth.end_streams_at_expiry),
    key!(rate "rateLimit.producer.requestsPerMinute", producer, requests_per_minute),
    key!(rate "rateLimit.producer.burst", producer, burst),
    key!(rate "rateLimit.worker.requestsPerMinute", worker, requests_per_minute),
    key!(rate "rateLimit.worker.burst", worker, burst),
    key!(rate "rateLimit.admin.requestsPerMinute", admin, requests_per_minute),
    key!(rate "rateLimit.admin.burst", admin, burst),
    key!("tenantLimits.maxPendingTasks", tenant_limits.max_pending_tasks),
    key!("tenantLimits.maxPendingBytes", tenant_limits.max_pending_bytes),
    key!("tenantLimits.maxStoredBytes", tenant_limits.max_stored_bytes),
    key!("artifacts.url", artifacts.url),
    key!("artifacts.maxBytes", artifacts.max_bytes),
    key!("backup.target", backup.target),
    key!("http.maxBodyBytes", http.max_body_bytes),
    key!("http.maxBatchBodyBytes", http.max_batch_body_bytes),
    key!("http.maxBufferedBytes", http.max_buffered_bytes),
    key!("http.maxConnections", http.max_connections),
    key!("http.headerTimeoutSeconds", http.header_timeout_seconds),
    key!("http.bodyTimeoutSeconds", http.body_timeout_seconds),
    key!("http.idleTimeoutSeconds", http.idle_timeout_seconds),
    key!("http.unknownFields", http.unknown_fields),
    key!("grpc.reflection", grpc.reflection),
    key!("tls.certFile", tls.cert_file),
    key!("tls.keyFile", tls.key_file),
    key!("metrics.addr", metrics.addr),
    key!("metrics.public", metrics.public),
    key!("tracing.otlpEndpoint", tracing.otlp_endpoint),
    key!("tracing.sampleRatio", tracing.sample_ratio),
    key!("tracing.serviceName", tracing.service_name),
    key!("shutdownGraceSeconds", shutdown_grace_seconds),
];

/// Keys of codeQ's original configuration that have another name or no meaning here.
const MOVED: &[(&str, &str)] = &[
    ("port", "it is part of 'httpAddr', such as 0.0.0.0:8080"),
    ("redisAddr", "data lies in 'dataDir'; there is no database beside it"),
    ("redisPassword", "data lies in 'dataDir'; there is no database beside it"),
    ("persistenceProvider", "data lies in 'dataDir'; there is no database beside it"),
    ("persistenceConfig", "data lies in 'dataDir'; there is no database beside it"),
    ("identityIssuer", "see 'producerAuth.jwt'"),
    ("identityAudience", "see 'producerAuth.jwt'"),
    ("identityJwksUrl", "see 'producerAuth.jwt'"),
    ("workerIssuer", "see 'workerAuth.jwt'"),
    ("workerAudience", "see 'workerAuth.jwt'"),
    ("workerJwksUrl", "see 'workerAuth.jwt'"),
    ("tracingServiceName", "see 'tracing.serviceName'"),
    ("tracingOtlpEndpoint", "see 'tracing.otlpEndpoint'"),
    ("tracingSampleRatio", "see 'tracing.sampleRatio'"),
    ("burstSize", "see 'burst'"),
    ("webhookHmacSecret", "each tenant has its own: see 'webhooks.secrets'"),
];

impl Key {
    /// Its environment variable: `CODEQ_`, then the path with `_` between levels and words.
    pub(crate) fn variable(&self) -> String {
        let mut name = "CODEQ_".to_owned();
        for letter in self.path.chars() {
            match letter {
                '.' => name.push('_'),
                letter => {
                    if letter.is_ascii_uppercase() {
                        name.push('_');
                    }
                    name.push(letter.to_ascii_uppercase());
                }
            }
        }
        name
    }

    /// Whether two configurations have the same value for this key.
    pub(crate) fn same(&self, one: &Config, other: &Config) -> bool {
        (self.same)(one, other)
    }

    /// Copies the value from another configuration.
    pub(crate) fn copy(&self, to: &mut Config, from: &Config) {
        (self.copy)(to, from);
    }

    /// Sets the value and records its source. An invalid value is reported and changes nothing.
    pub(crate) fn set(&self, config: &mut Config, node: &Node, reader: &mut Reader<'_>) {
        let source = reader.origin.source(node.at);
        reader.sources.replace(self.path, source);
        (self.set)(config, node, reader);
    }
}

/// Applies every entry of a mapping.
pub(crate) fn apply(config: &mut Config, node: &Node, prefix: &str, reader: &mut Reader<'_>) {
    let Kind::Map(entries) = &node.kind else {
        if !node.is_null() {
            let known = children(prefix).into_iter().map(|(name, _)| name);
            let expected = format!("a mapping with {}", known.collect::<Vec<_>>().join(", "));
            reader.wrong::<()>(prefix, node, &expected);
        }
        return;
    };
    let mut places = BTreeMap::new();
    for (name, value) in entries {
        if let Some(first) = places.insert(name.text.as_str(), name.at) {
            reader.twice(name, first);
            continue;
        }
        let path = join(prefix, &name.text);
        if let Some(key) = KEYS.iter().find(|key| key.path == path) {
            key.set(config, value, reader);
        } else if KEYS.iter().any(|key| within(key.path, &path).is_some()) {
            apply(config, value, &path, reader);
        } else {
            unknown(name, prefix, reader);
        }
    }
}

fn unknown(name: &Name, prefix: &str, reader: &mut Reader<'_>) {
    if reader.is_full() {
        return;
    }
    let moved = MOVED.iter().find(|(moved, _)| *moved == name.text);
    let text = match moved {
        Some((_, instead)) => format!("{}: {instead}", unknown_key(&name.text, None)),
        None => {
            let near = nearest(&name.text, children(prefix).into_iter()).or_else(elsewhere(name));
            unknown_key(&name.text, near)
        }
    };
    reader.note(prefix, text, name.at);
}

/// A key on another level that the name could mean.
fn elsewhere(name: &Name) -> impl FnOnce() -> Option<&'static str> {
    let last = |key: &Key| key.path.rsplit('.').next().unwrap_or(key.path);
    move || nearest(&name.text, KEYS.iter().map(|key| (last(key), key.path)))
}

/// The keys allowed in the mapping at this path: name and full path.
fn children(prefix: &str) -> Vec<(&'static str, &'static str)> {
    let mut children: Vec<(&str, &str)> = Vec::new();
    for key in KEYS {
        let Some(rest) = within(key.path, prefix) else { continue };
        let name = rest.split('.').next().unwrap_or(rest);
        let whole = key.path.get(..key.path.len() - rest.len() + name.len()).unwrap_or(key.path);
        if children.last().is_none_or(|(last, _)| *last != name) {
            children.push((name, whole));
        }
    }
    children
}

/// The rest of a path below the prefix, if it is below it.
fn within<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    if prefix.is_empty() { Some(path) } else { path.strip_prefix(prefix)?.strip_prefix('.') }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}
