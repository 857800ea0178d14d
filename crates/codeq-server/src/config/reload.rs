//! Which settings a running server can adopt, and which need a restart.

use serde_json::Value;

use super::keys::KEYS;
use super::model::Config;
use super::problem::{ConfigError, Problem};
use super::show::get;

macro_rules! reloaded {
    ($($path:literal: $($field:ident).+,)*) => {
        /// What a running server can adopt: keys, or prefixes of keys. All other keys need a restart.
        #[cfg(test)]
        pub(crate) const RELOADED: &[&str] = &[$($path),*];

        /// Copies the settings that a running server can adopt, and lists those that were different.
        fn adopt(config: &mut Config, new: &Config) -> Vec<&'static str> {
            let mut adopted = Vec::new();
            $(if config.$($field).+ != new.$($field).+ {
                config.$($field).+.clone_from(&new.$($field).+);
                adopted.push($path);
            })*
            adopted
        }
    };
}

reloaded! {
    "logLevel": log_level,
    "defaultLeaseSeconds": default_lease_seconds,
    "maxBatchSize": max_batch_size,
    "maxClaimBatchSize": max_claim_batch_size,
    "webhooks.allowedNetworks": webhooks.allowed_networks,
    "webhooks.secrets": webhooks.secrets,
    "producerAuth.jwt": producer_auth.jwt,
    "producerAuth.staticTokens": producer_auth.static_tokens,
    "workerAuth.jwt": worker_auth.jwt,
    "workerAuth.staticTokens": worker_auth.static_tokens,
    "allowProducerAsWorker": allow_producer_as_worker,
    "rateLimit.producer": rate_limit.producer,
    "rateLimit.worker": rate_limit.worker,
    "rateLimit.admin": rate_limit.admin,
    "tenantLimits": tenant_limits,
    "backup.target": backup.target,
}

/// The outcome of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Changes now in effect.
    pub changed: Vec<Change>,
    /// Keys whose new value takes effect at the next start.
    pub needs_restart: Vec<&'static str>,
}

/// A changed key. Secrets are masked; a list is shown as its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: &'static str,
    /// Previous value.
    pub from: String,
    /// New value.
    pub to: String,
}

impl Changes {
    /// Whether any changed key starts with this prefix.
    pub(crate) fn concern(&self, prefix: &str) -> bool {
        self.changed.iter().any(|change| change.key.starts_with(prefix))
    }
}

impl Config {
    /// Merges the adoptable values of `new` into this configuration and lists the changes. Fails if
    /// the merged configuration is invalid.
    pub fn reloaded(&self, new: &Config) -> Result<(Config, Changes), ConfigError> {
        let (from, to) = (values(self), values(new));
        let mut merged = self.clone();
        let mut changes = Changes::default();
        let adopted = adopt(&mut merged, new);
        for key in KEYS.iter().map(|key| key.path.as_str()) {
            let different = get(&from, key) != get(&to, key);
            match adopted.iter().find(|path| key.starts_with(**path)) {
                // A secret that changed looks the same.
                Some(path) if different || *path == key => {
                    changes.changed.push(change(key, &from, &to));
                }
                None if different => changes.needs_restart.push(key),
                _ => {}
            }
        }
        let mut problems = merged.check();
        // At startup, the listeners choose by this token which hosts requests may name. A reload does not change that.
        if merged.has_dev_token() != self.has_dev_token() {
            let text = "adding or removing the development token needs a restart";
            problems.push(Problem::of("", text));
        }
        if problems.is_empty() {
            Ok((merged, changes))
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }
}

/// The configuration as JSON, which cannot hold a path that is not UTF-8.
fn values(config: &Config) -> Value {
    let mut config = config.clone();
    let files = config.tls.cert_file.iter_mut().chain(&mut config.tls.key_file);
    for path in files.chain([&mut config.data_dir]) {
        *path = path.to_string_lossy().into_owned().into();
    }
    serde_json::to_value(config).unwrap_or_default()
}

fn change(key: &'static str, from: &Value, to: &Value) -> Change {
    let (from, mut to) = (shown(get(from, key)), shown(get(to, key)));
    if from == to {
        to.push_str(", changed");
    }
    Change { key, from, to }
}

fn shown(value: Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text,
        Value::Array(list) if list.len() == 1 => "1 entry".to_owned(),
        Value::Array(list) => format!("{} entries", list.len()),
        other => other.to_string(),
    }
}
