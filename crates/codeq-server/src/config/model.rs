//! The configuration's fields and defaults.
//!
//! Secrets are masked wherever a configuration is shown: in `Debug` and when serialised. The serialised form is
//! therefore for people: a server that loads it would lack the secrets.
//!
//! serde reads these types from the layers (`read`) and tells which keys there are (`keys`).

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use codeq_auth::AuthConfig;
use codeq_auth::mask;
use codeq_webhooks::results::CallLimits;
use codeq_webhooks::signing::Secret;
use ipnet::IpNet;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Data directory.
    pub data_dir: PathBuf,
    /// HTTP listen address.
    pub http_addr: SocketAddr,
    /// Listen address of the producer stream. Default: port 9092 on the HTTP address, or a free
    /// port if HTTP uses one. Both stream ports serve both streams.
    pub producer_addr: Option<SocketAddr>,
    /// Listen address of the worker stream: like `producer_addr`, with port 9091.
    pub worker_addr: Option<SocketAddr>,
    /// Public base URL, such as `https://codeq.example.com`, for URLs in responses. Default: the HTTP address.
    pub public_url: Option<String>,
    /// Shards of a new data directory; must match an existing one. Default: the existing number, or 1.
    pub shards: Option<u16>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a `tracing-subscriber` filter.
    pub log_level: String,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// IANA time zone of timestamps in responses.
    pub timezone: String,

    /// Attempts per task unless the task sets its own.
    pub max_attempts_default: u32,
    /// How the delay before a retry grows.
    pub backoff_policy: BackoffPolicy,
    /// The first delay.
    pub backoff_base_seconds: u64,
    /// The longest delay.
    pub backoff_max_seconds: u64,
    /// Lease of a claim and extension by a heartbeat, unless the request sets its own.
    pub default_lease_seconds: u64,
    /// How long finished tasks are kept.
    pub retention_seconds: u64,
    /// Retention of dead letters.
    pub retention: RetentionConfig,
    /// Maximum number of tasks or results per batch request.
    pub max_batch_size: usize,
    /// Maximum number of tasks per batch claim.
    pub max_claim_batch_size: usize,
    /// Largest payload or result, in bytes. Default: 1 MiB. Setting it raises the limits of bodies
    /// and messages as far as needed to fit it.
    pub max_payload_bytes: Option<usize>,
    /// Delivery attempts per result callback.
    pub result_webhook_max_attempts: u32,
    /// Delay after the first failed delivery; doubles with each failure.
    pub result_webhook_base_backoff_seconds: u64,
    /// Longest delay between deliveries.
    pub result_webhook_max_backoff_seconds: u64,
    /// Calls to URLs that tenants choose.
    pub webhooks: WebhookConfig,

    /// Tokens that may enqueue.
    pub producer_auth: AuthConfig,
    /// Tokens that may claim.
    pub worker_auth: AuthConfig,
    /// Lets a producer token act as a worker with all scopes. For development.
    pub allow_producer_as_worker: bool,
    /// Settings for the tokens of both roles.
    pub auth: TokenConfig,

    /// Request rates per tenant.
    pub rate_limit: RateLimits,
    /// Quotas per tenant.
    pub tenant_limits: TenantLimits,
    /// Storage of task outputs.
    pub artifacts: ArtifactsConfig,
    /// Online backups.
    pub backup: BackupConfig,
    /// Limits of the public listeners, and of HTTP requests.
    pub http: HttpConfig,
    /// Settings of the gRPC listeners.
    pub grpc: GrpcConfig,
    /// TLS on all ports except metrics; both files or neither.
    pub tls: TlsConfig,
    /// Prometheus metrics.
    pub metrics: MetricsConfig,
    /// OpenTelemetry traces.
    pub tracing: TracingConfig,
    /// How long shutdown waits for requests in flight.
    pub shutdown_grace_seconds: u64,
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After `fdatasync`; survives a power cut.
    Fsync,
    /// After the write reaches the operating system; survives only a process crash.
    Os,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Human-readable.
    Text,
    /// For a terminal: a request is its method, path, status and time.
    Short,
}

/// How the delay before a retry grows with the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackoffPolicy {
    /// Always the base delay.
    Fixed,
    /// The base delay times the number of attempts.
    Linear,
    /// The base delay, doubled with each further attempt.
    Exponential,
    /// Half of the exponential delay, plus a random part of the other half.
    ExpEqualJitter,
    /// A random part of the exponential delay.
    ExpFullJitter,
}

/// Calls to URLs that tenants choose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookConfig {
    /// Non-public networks that webhooks may reach.
    #[serde(deserialize_with = "networks")]
    pub allowed_networks: Vec<IpNet>,
    /// Signing secrets by tenant. Secrets created by a tenant's admins take precedence.
    pub secrets: Vec<WebhookSecret>,
    /// Maximum number of result callbacks in flight.
    pub max_concurrent: usize,
    /// Maximum number in flight to one host and port.
    pub max_per_host: usize,
}

/// Signing secrets of one tenant.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookSecret {
    /// The tenant.
    pub tenant: String,
    /// The current secret.
    #[serde(serialize_with = "mask::secret")]
    pub secret: Option<String>,
    /// The previous secret, while receivers switch over.
    #[serde(serialize_with = "mask::secret")]
    pub previous: Option<String>,
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mask::debug(self, f)
    }
}

/// Settings for the tokens of both roles.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenConfig {
    /// Ends a gRPC stream when its token expires. Otherwise it continues until the client reconnects. Event streams always
    /// end when their token expires.
    pub end_streams_at_expiry: bool,
}

/// Token buckets per tenant, one per scope.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RateLimits {
    /// Producer routes, and reads by producers.
    #[serde(deserialize_with = "rate_limit")]
    pub producer: Option<RateLimit>,
    /// Worker routes, and reads by workers.
    #[serde(deserialize_with = "rate_limit")]
    pub worker: Option<RateLimit>,
    /// Admin routes.
    #[serde(deserialize_with = "rate_limit")]
    pub admin: Option<RateLimit>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Refill rate of the bucket.
    pub requests_per_minute: u32,
    /// Capacity of the bucket.
    pub burst: u32,
}

/// Reads a limit. If both parts are missing, there is none. A part that is null also means no limit, so that a variable
/// can remove a limit that the file sets. One missing part is read as zero, which the checks reject.
fn rate_limit<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<RateLimit>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Parts {
        #[serde(deserialize_with = "given")]
        requests_per_minute: Option<Option<u32>>,
        #[serde(deserialize_with = "given")]
        burst: Option<Option<u32>>,
    }
    fn given<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Option<u32>>, D::Error> {
        Option::deserialize(reader).map(Some)
    }
    let Parts { requests_per_minute, burst } =
        Option::<Parts>::deserialize(reader)?.unwrap_or_default();
    if requests_per_minute.is_none() && burst.is_none() {
        return Ok(None);
    }
    let both = requests_per_minute.unwrap_or(Some(0)).zip(burst.unwrap_or(Some(0)));
    Ok(both.map(|(requests_per_minute, burst)| RateLimit { requests_per_minute, burst }))
}

/// Retention of dead letters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Tasks that ran out of attempts.
    pub dead_letter_seconds: u64,
}

impl Default for RetentionConfig {
    fn default() -> RetentionConfig {
        RetentionConfig { dead_letter_seconds: 30 * 86_400 }
    }
}

/// Quotas per tenant; `None` means no limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TenantLimits {
    /// Pending, delayed and running tasks.
    pub max_pending_tasks: Option<u64>,
    /// Bytes of those tasks.
    pub max_pending_bytes: Option<u64>,
    /// Bytes of all tasks, including finished ones until retention removes them.
    pub max_stored_bytes: Option<u64>,
}

/// Storage of task outputs.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ArtifactsConfig {
    /// `file:///…`, `s3://bucket/prefix`, `gs://…` or `az://…`. Default: `artifacts` in the data
    /// directory.
    #[serde(serialize_with = "mask::url")]
    pub url: Option<String>,
    /// Largest artifact, in bytes.
    pub max_bytes: usize,
}

impl fmt::Debug for ArtifactsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mask::debug(self, f)
    }
}

/// Online backups.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackupConfig {
    /// Destination, where each backup gets a new name: `file:///…`, `s3://bucket/prefix`, `gs://…`
    /// or `az://…`. `None` disables backups.
    #[serde(serialize_with = "mask::url")]
    pub target: Option<String>,
}

impl fmt::Debug for BackupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mask::debug(self, f)
    }
}

/// Limits of the public listeners, and of HTTP requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Largest body of a batch request, in bytes.
    pub max_batch_body_bytes: usize,
    /// Bytes held for all clients at once. Default: a fraction of the available memory.
    pub max_buffered_bytes: Option<usize>,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Time limit for a request's head and for the TLS handshake.
    pub header_timeout_seconds: u64,
    /// Time limit for a request's body.
    pub body_timeout_seconds: u64,
    /// Time after which an idle connection is closed.
    pub idle_timeout_seconds: u64,
    /// What to do with fields and query parameters a route does not know.
    pub unknown_fields: UnknownFields,
}

/// What to do with fields and query parameters a route does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// Reject the request without side effects: a typo must not widen what a call does.
    Refuse,
    /// Ignore the field.
    Ignore,
}

/// Settings of the gRPC listeners.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// Lets tools list the services. For development.
    pub reflection: bool,
}

/// TLS files; reloaded when they change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Certificate chain in PEM.
    pub cert_file: Option<PathBuf>,
    /// Private key in PEM.
    pub key_file: Option<PathBuf>,
}

/// Exposure of metrics.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Dedicated port. Without one, `/metrics` on the HTTP port answers only loopback clients.
    pub addr: Option<SocketAddr>,
    /// Lets `/metrics` on the HTTP port answer all clients.
    pub public: bool,
}

/// Trace export over OTLP.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TracingConfig {
    /// The collector's OTLP/HTTP address, such as `http://localhost:4318`; `None` disables traces.
    #[serde(serialize_with = "mask::url")]
    pub otlp_endpoint: Option<String>,
    /// Fraction of locally started traces to keep.
    pub sample_ratio: f64,
    /// The resource attribute `service.name`.
    pub service_name: String,
}

impl fmt::Debug for TracingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mask::debug(self, f)
    }
}

/// Reads networks and single addresses; `IpNet` itself parses only networks. Rejects host bits beyond the prefix as a
/// likely typo.
fn networks<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<IpNet>, D::Error> {
    struct Network(IpNet);

    impl<'de> Deserialize<'de> for Network {
        fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Network, D::Error> {
            reader.deserialize_str(NetworkVisitor)
        }
    }

    struct NetworkVisitor;

    impl Visitor<'_> for NetworkVisitor {
        type Value = Network;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a network or an address, such as 10.0.0.0/8, 192.168.1.7 or fd00::/8")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Network, E> {
            let net = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse());
            let net = net.ok().filter(|net: &IpNet| net.trunc() == *net);
            net.map(Network).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    Ok(Vec::<Network>::deserialize(reader)?.into_iter().map(|network| network.0).collect())
}

impl Default for Config {
    fn default() -> Config {
        Config {
            data_dir: PathBuf::from("codeq-data"),
            http_addr: SocketAddr::from(([127, 0, 0, 1], 8080)),
            producer_addr: None,
            worker_addr: None,
            public_url: None,
            shards: None,
            durability: Durability::Fsync,
            log_level: "info".to_owned(),
            log_format: LogFormat::Json,
            timezone: "UTC".to_owned(),
            max_attempts_default: 5,
            backoff_policy: BackoffPolicy::ExpFullJitter,
            backoff_base_seconds: 5,
            backoff_max_seconds: 900,
            default_lease_seconds: 300,
            retention_seconds: 86_400,
            retention: RetentionConfig::default(),
            max_batch_size: 100,
            max_claim_batch_size: 10,
            max_payload_bytes: None,
            result_webhook_max_attempts: 5,
            result_webhook_base_backoff_seconds: 2,
            result_webhook_max_backoff_seconds: 60,
            webhooks: WebhookConfig::default(),
            producer_auth: AuthConfig::default(),
            worker_auth: AuthConfig::default(),
            allow_producer_as_worker: false,
            auth: TokenConfig::default(),
            rate_limit: RateLimits::default(),
            tenant_limits: TenantLimits::default(),
            artifacts: ArtifactsConfig::default(),
            backup: BackupConfig::default(),
            http: HttpConfig::default(),
            grpc: GrpcConfig::default(),
            tls: TlsConfig::default(),
            metrics: MetricsConfig::default(),
            tracing: TracingConfig::default(),
            shutdown_grace_seconds: 30,
        }
    }
}

impl Config {
    /// Base of the URLs in responses, without a trailing slash. `http` is the actual listen
    /// address, for a configuration that lets the system choose the port.
    pub fn public_url(&self, http: SocketAddr) -> String {
        if let Some(url) = &self.public_url {
            return url.trim_end_matches('/').to_owned();
        }
        let scheme = if self.tls.cert_file.is_some() { "https" } else { "http" };
        if http.ip().is_unspecified() {
            return format!("{scheme}://localhost:{}", http.port());
        }
        format!("{scheme}://{http}")
    }

    /// Listen addresses of the producer and worker streams.
    pub fn stream_addrs(&self) -> (SocketAddr, SocketAddr) {
        let beside_http = |port| match self.http_addr.port() {
            0 => self.http_addr,
            _ => SocketAddr::new(self.http_addr.ip(), port),
        };
        let producer = self.producer_addr.unwrap_or_else(|| beside_http(9092));
        (producer, self.worker_addr.unwrap_or_else(|| beside_http(9091)))
    }
}

impl WebhookConfig {
    /// Secrets by tenant, oldest first.
    pub fn signing_secrets(&self) -> HashMap<String, Vec<Secret>> {
        let secrets = self.secrets.iter().map(|entry| {
            let texts = entry.previous.iter().chain(&entry.secret);
            (entry.tenant.clone(), texts.filter_map(|text| Secret::read(text).ok()).collect())
        });
        secrets.collect()
    }

    /// Concurrency limits for result callbacks.
    pub fn call_limits(&self) -> CallLimits {
        CallLimits { max_concurrent: self.max_concurrent, max_per_host: self.max_per_host }
    }
}

impl Default for WebhookConfig {
    fn default() -> WebhookConfig {
        WebhookConfig {
            allowed_networks: Vec::new(),
            secrets: Vec::new(),
            max_concurrent: 256,
            max_per_host: 16,
        }
    }
}

impl Default for ArtifactsConfig {
    fn default() -> ArtifactsConfig {
        ArtifactsConfig { url: None, max_bytes: 64 << 20 }
    }
}

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        HttpConfig {
            max_body_bytes: 1 << 20,
            max_batch_body_bytes: 16 << 20,
            max_buffered_bytes: None,
            max_connections: 16_384,
            header_timeout_seconds: 10,
            body_timeout_seconds: 30,
            idle_timeout_seconds: 75,
            unknown_fields: UnknownFields::Refuse,
        }
    }
}

impl Default for TracingConfig {
    fn default() -> TracingConfig {
        TracingConfig { otlp_endpoint: None, sample_ratio: 1.0, service_name: "codeq".to_owned() }
    }
}

/// Default largest payload.
const PAYLOAD_BYTES: usize = 1 << 20;
/// Room in a body or message around a payload or result: names, texts, artifact URLs.
const AROUND_BYTES: usize = 512 << 10;
/// Default longest stream message, the usual default of gRPC servers.
const MESSAGE_BYTES: usize = 4 << 20;

impl Config {
    /// Largest payload or result, in bytes.
    pub fn payload_max(&self) -> usize {
        self.max_payload_bytes.unwrap_or(PAYLOAD_BYTES)
    }

    /// Largest request body, in bytes.
    pub fn body_max(&self) -> usize {
        self.http.max_body_bytes.max(self.around_payload())
    }

    /// Largest body of a batch, or of a result with its artifacts, in bytes.
    pub fn batch_body_max(&self) -> usize {
        self.http.max_batch_body_bytes.max(self.around_payload())
    }

    /// Longest stream message, in bytes.
    pub fn message_max(&self) -> usize {
        MESSAGE_BYTES.max(self.around_payload())
    }

    /// Smallest workable `maxBufferedBytes`. A tenant gets half of it, which must hold two of the largest bodies. A
    /// connection gets three quarters of that half, which must hold the largest task together with the answer made from
    /// it; in the answer, every character of the payload may be escaped.
    pub fn buffered_min(&self) -> usize {
        self.batch_body_max().saturating_mul(4).max(self.buffered_for_payload())
    }

    /// The part of that minimum due to `maxPayloadBytes`, if set.
    pub(crate) fn buffered_for_payload(&self) -> usize {
        self.max_payload_bytes.unwrap_or(0).saturating_mul(12)
    }

    fn around_payload(&self) -> usize {
        self.max_payload_bytes.map_or(0, |bytes| bytes.saturating_add(AROUND_BYTES))
    }
}
