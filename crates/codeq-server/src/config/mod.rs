//! What an operator can choose, with its defaults.
//!
//! Four layers, the first that speaks wins: flags, `CODEQ_*` environment, YAML, defaults. Names are those
//! of codeQ where it has one. Unknown keys are errors. `default.yaml` documents every key and is checked
//! to say exactly the defaults.
//!
//! ```text
//! tree (YAML with places) ─> read (values) ─> keys (one row for each key) ─> load (layers) ─> check
//! ```
//!
//! A key is added in four places, and the tests miss none: a field in `model`, a row in `keys`, a bound in
//! `check`, a paragraph in `default.yaml`.

mod check;
mod convert;
mod dev;
mod env;
mod file;
mod flags;
mod keys;
mod load;
mod model;
mod problem;
mod read;
mod reload;
mod show;
mod tree;

#[cfg(test)]
mod tests;

pub use codeq_auth::{AuthConfig, JwtConfig, StaticToken};
pub use dev::{DEV_TOKEN, random_token};
pub use env::FILE_VARIABLE;
pub use file::FILE_BYTES_MAX;
pub use flags::Flags;
pub use load::{Loaded, load, log_format};
pub use model::{
    ArtifactsConfig, BackoffPolicy, BackupConfig, Config, Durability, GrpcConfig, HttpConfig,
    LogFormat, MetricsConfig, RateLimit, RateLimits, RetentionConfig, TenantLimits, TlsConfig,
    TokenConfig, TracingConfig, UnknownFields, WebhookConfig, WebhookSecret,
};
pub use problem::{ConfigError, Problem, Source, Sources};
pub use reload::{Change, Changes};

/// The commented file that says the defaults.
pub const DEFAULT_YAML: &str = include_str!("default.yaml");
