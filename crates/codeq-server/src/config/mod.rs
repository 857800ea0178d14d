//! Every setting an operator can change, with its default.
//!
//! Four layers in order of precedence: flags, `CODEQ_*` environment, YAML file, defaults. Keys of
//! the original codeQ keep their names. Unknown keys are errors. `default.yaml` documents every key;
//! a test checks that it matches the defaults.
//!
//! ```text
//! file, env ─> tree (values with sources) ─> read (serde fills the model) ─> flags ─> check
//! ```
//!
//! To add a key, change three places (the tests notice a missing one): a field in `model`, a bound in
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
pub use flags::{Flags, choice};
pub use load::{Loaded, load, log_format};
pub use model::{
    ArtifactsConfig, BackoffPolicy, BackupConfig, Config, Durability, GrpcConfig, HttpConfig,
    LogFormat, MetricsConfig, RateLimit, RateLimits, RetentionConfig, TenantLimits, TlsConfig,
    TokenConfig, TracingConfig, UnknownFields, WebhookConfig, WebhookSecret,
};
pub use problem::{ConfigError, Problem, Source, Sources};
pub use reload::{Change, Changes};

/// The commented file with every default.
pub const DEFAULT_YAML: &str = include_str!("default.yaml");
