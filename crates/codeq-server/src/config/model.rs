//! The fields, and their defaults.
//!
//! Secrets are masked wherever a configuration is shown: in `Debug`, and when it is serialised. What is
//! serialised is therefore for people, not for another server to read.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use codeq_auth::AuthConfig;
use codeq_auth::mask::{self, MASK, mask_url};
use codeq_webhooks::results::CallLimits;
use codeq_webhooks::signing::Secret;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Where the data lies.
    pub data_dir: PathBuf,
    /// Where HTTP is served.
    pub http_addr: SocketAddr,
    /// Where producers' streams are served. None is port 9092 of the address of HTTP, or any free port if
    /// HTTP takes any too. Both ports serve both streams.
    pub producer_addr: Option<SocketAddr>,
    /// Where workers' streams are served: like `producer_addr`, with port 9091.
    pub worker_addr: Option<SocketAddr>,
    /// How clients reach HTTP from outside, such as `https://codeq.example.com`: the start of the addresses that
    /// the server hands out. None is the address of HTTP.
    pub public_url: Option<String>,
    /// Shards of a new data directory; an existing one must agree. None takes what is there, or 1.
    pub shards: Option<u16>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter of `tracing-subscriber`.
    pub log_level: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The offset of timestamps in answers: an IANA name.
    pub timezone: String,

    /// Attempts of a task that does not say.
    pub max_attempts_default: u32,
    /// How the pause before a retry grows.
    pub backoff_policy: BackoffPolicy,
    /// The first pause.
    pub backoff_base_seconds: u64,
    /// The longest pause.
    pub backoff_max_seconds: u64,
    /// Lease of a claim, and extension of a heartbeat, that do not say.
    pub default_lease_seconds: u64,
    /// How long finished tasks are kept.
    pub retention_seconds: u64,
    /// How long tasks are kept that finished in another way.
    pub retention: RetentionConfig,
    /// Most tasks or results in one batch request.
    pub max_batch_size: usize,
    /// Most tasks of one batch claim.
    pub max_claim_batch_size: usize,
    /// Largest payload and largest result, in bytes. None is 1 MiB, with the bodies and messages of their own limits;
    /// these grow with a value that is set, so that it fits into them.
    pub max_payload_bytes: Option<usize>,
    /// Delivery attempts of a result callback.
    pub result_webhook_max_attempts: u32,
    /// The pause after the first failed delivery; it doubles with each one.
    pub result_webhook_base_backoff_seconds: u64,
    /// The longest pause between deliveries.
    pub result_webhook_max_backoff_seconds: u64,
    /// What the server posts to addresses that tenants name.
    pub webhooks: WebhookConfig,

    /// Who may enqueue.
    pub producer_auth: AuthConfig,
    /// Who may claim.
    pub worker_auth: AuthConfig,
    /// A producer token acts as a worker with all scopes. For development.
    pub allow_producer_as_worker: bool,
    /// What holds for tokens of both roles.
    pub auth: TokenConfig,

    /// Requests per tenant.
    pub rate_limit: RateLimits,
    /// What a tenant may hold.
    pub tenant_limits: TenantLimits,
    /// Outputs of tasks that are stored here.
    pub artifacts: ArtifactsConfig,
    /// Copies of the data that are made while the server runs.
    pub backup: BackupConfig,
    /// The HTTP edge.
    pub http: HttpConfig,
    /// The streams' edge.
    pub grpc: GrpcConfig,
    /// TLS on all ports but that of the metrics; both files, or none.
    pub tls: TlsConfig,
    /// Prometheus.
    pub metrics: MetricsConfig,
    /// OpenTelemetry.
    pub tracing: TracingConfig,
    /// How long a shutdown waits for requests in flight.
    pub shutdown_grace_seconds: u64,
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After `fdatasync`: survives a power cut.
    Fsync,
    /// After the write reached the operating system: survives a crash of the process only.
    Os,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
    /// For people who watch: a request is its method, path, status and time.
    Short,
}

/// How the pause before a retry grows with the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackoffPolicy {
    /// Always the base.
    Fixed,
    /// The base times the attempts.
    Linear,
    /// The base, doubled with each further attempt.
    Exponential,
    /// Half of the exponential pause, and a random part of the other half.
    ExpEqualJitter,
    /// A random part of the exponential pause.
    ExpFullJitter,
}

/// What the server posts to addresses that tenants name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookConfig {
    /// Networks where webhooks may go although they are not public.
    pub allowed_networks: Vec<IpNet>,
    /// What calls are signed with, by tenant. Those that a tenant's admins make come first.
    pub secrets: Vec<WebhookSecret>,
    /// Result callbacks that are being sent at once.
    pub max_concurrent: usize,
    /// The same, to one host and port.
    pub max_per_host: usize,
}

/// What the calls of one tenant are signed with.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookSecret {
    /// The tenant.
    pub tenant: String,
    /// The secret.
    #[serde(serialize_with = "mask::secret")]
    pub secret: Option<String>,
    /// The one before, while receivers change over.
    #[serde(serialize_with = "mask::secret")]
    pub previous: Option<String>,
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSecret")
            .field("tenant", &self.tenant)
            .field("secret", &self.secret.as_ref().map(|_| MASK))
            .field("previous", &self.previous.as_ref().map(|_| MASK))
            .finish()
    }
}

/// What holds for tokens of both roles.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenConfig {
    /// A stream ends when its token expires. Otherwise it goes on until the client reconnects.
    pub end_streams_at_expiry: bool,
}

/// Token buckets per tenant, one for each scope.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RateLimits {
    /// Routes of producers, and reads.
    pub producer: Option<RateLimit>,
    /// Routes of workers.
    pub worker: Option<RateLimit>,
    /// Routes of admins.
    pub admin: Option<RateLimit>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// The rate at which the bucket fills.
    pub requests_per_minute: u32,
    /// The size of the bucket.
    pub burst: u32,
}

/// How long tasks are kept that did not end as they should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Tasks whose attempts are spent.
    pub dead_letter_seconds: u64,
}

impl Default for RetentionConfig {
    fn default() -> RetentionConfig {
        RetentionConfig { dead_letter_seconds: 30 * 86_400 }
    }
}

/// What a tenant may hold at once; none means no limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TenantLimits {
    /// Tasks that are pending, delayed or in progress.
    pub max_pending_tasks: Option<u64>,
    /// Bytes of such tasks.
    pub max_pending_bytes: Option<u64>,
    /// Bytes of all tasks, finished ones included until retention removes them.
    pub max_stored_bytes: Option<u64>,
}

/// Outputs of tasks that are stored here.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ArtifactsConfig {
    /// `file:///…`, `s3://bucket/prefix`, `gs://…` or `az://…`. None is `artifacts` in the data directory.
    #[serde(serialize_with = "mask::url")]
    pub url: Option<String>,
    /// Largest artifact.
    pub max_bytes: usize,
}

impl fmt::Debug for ArtifactsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArtifactsConfig")
            .field("url", &self.url.as_deref().map(mask_url))
            .field("max_bytes", &self.max_bytes)
            .finish()
    }
}

/// Copies of the data that are made while the server runs.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackupConfig {
    /// Where they go, each under a new name: `file:///…`, `s3://bucket/prefix`, `gs://…` or `az://…`. None means that
    /// there are none.
    #[serde(serialize_with = "mask::url")]
    pub target: Option<String>,
}

impl fmt::Debug for BackupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupConfig")
            .field("target", &self.target.as_deref().map(mask_url))
            .finish()
    }
}

/// Bounds of the HTTP edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Largest request body.
    pub max_body_bytes: usize,
    /// Largest body of a batch request.
    pub max_batch_body_bytes: usize,
    /// Bytes that are held for all clients at once. None is a part of the memory that there is.
    pub max_buffered_bytes: Option<usize>,
    /// Most connections at once.
    pub max_connections: usize,
    /// Time for a request's head, and for the TLS handshake.
    pub header_timeout_seconds: u64,
    /// Time for a request's body.
    pub body_timeout_seconds: u64,
    /// A connection without a request is closed after this.
    pub idle_timeout_seconds: u64,
    /// What becomes of a request with a field or query parameter that its route does not know.
    pub unknown_fields: UnknownFields,
}

/// What becomes of a request with a field or query parameter that its route does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// It is refused, and nothing is done: a typo must not widen what a call does.
    Refuse,
    /// The field is ignored.
    Ignore,
}

/// The edge of the streams.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// Tools may ask what is served. For development.
    pub reflection: bool,
}

/// TLS; reloaded when the files change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Certificate chain, PEM.
    pub cert_file: Option<PathBuf>,
    /// Private key, PEM.
    pub key_file: Option<PathBuf>,
}

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// A port of their own. Without one, `/metrics` on the HTTP port answers loopback clients only.
    pub addr: Option<SocketAddr>,
    /// `/metrics` on the HTTP port answers everybody.
    pub public: bool,
}

/// Traces over OTLP.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TracingConfig {
    /// The collector's OTLP/HTTP address, such as `http://localhost:4318`; none means no traces.
    #[serde(serialize_with = "mask::url")]
    pub otlp_endpoint: Option<String>,
    /// The part of traces that begin here and are kept.
    pub sample_ratio: f64,
    /// `service.name`.
    pub service_name: String,
}

impl fmt::Debug for TracingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracingConfig")
            .field("otlp_endpoint", &self.otlp_endpoint.as_deref().map(mask_url))
            .field("sample_ratio", &self.sample_ratio)
            .field("service_name", &self.service_name)
            .finish()
    }
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
    /// The start of the addresses that the server hands out, without a slash at the end. `http` is where HTTP
    /// is served, should the configuration leave the port to the system.
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

    /// Where the streams of producers and of workers are served.
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
    /// The secrets of each tenant, oldest first.
    pub fn signing_secrets(&self) -> HashMap<String, Vec<Secret>> {
        let secrets = self.secrets.iter().map(|entry| {
            let texts = entry.previous.iter().chain(&entry.secret);
            (entry.tenant.clone(), texts.filter_map(|text| Secret::read(text).ok()).collect())
        });
        secrets.collect()
    }

    /// How many result callbacks are sent at once.
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

/// Largest payload of a configuration that does not say.
const PAYLOAD_BYTES: usize = 1 << 20;
/// What surrounds a payload or a result in a body or message: names, texts, artifacts that lie elsewhere.
const AROUND_BYTES: usize = 512 << 10;
/// Longest message of a stream: what gRPC servers take unless they are told otherwise.
const MESSAGE_BYTES: usize = 4 << 20;

impl Config {
    /// Largest payload and largest result.
    pub fn payload_max(&self) -> usize {
        self.max_payload_bytes.unwrap_or(PAYLOAD_BYTES)
    }

    /// Largest body of a request.
    pub fn body_max(&self) -> usize {
        self.http.max_body_bytes.max(self.around_payload())
    }

    /// Largest body of a batch, or of a result with its artifacts.
    pub fn batch_body_max(&self) -> usize {
        self.http.max_batch_body_bytes.max(self.around_payload())
    }

    /// Longest message of a stream.
    pub fn message_max(&self) -> usize {
        MESSAGE_BYTES.max(self.around_payload())
    }

    /// The least that must be held for all clients: half of it is one tenant's, which has room for two of the largest
    /// bodies; and three quarters of that are one connection's, which has room for the largest task and for the answer
    /// that it becomes, where every character may be escaped.
    pub fn buffered_min(&self) -> usize {
        self.batch_body_max().saturating_mul(4).max(self.buffered_for_payload())
    }

    /// The part of it that follows from `maxPayloadBytes`, if that is set.
    pub(crate) fn buffered_for_payload(&self) -> usize {
        self.max_payload_bytes.unwrap_or(0).saturating_mul(12)
    }

    fn around_payload(&self) -> usize {
        self.max_payload_bytes.map_or(0, |bytes| bytes.saturating_add(AROUND_BYTES))
    }
}
