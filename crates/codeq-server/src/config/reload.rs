//! Which settings a running server can adopt, and which need a restart.

use serde_json::Value;

use super::keys::{KEYS, Key};
use super::model::Config;
use super::problem::{ConfigError, Problem};
use super::show::get;

/// Keys a running server can adopt. All others need a restart.
pub(crate) const RELOADED: [&str; 21] = [
    "logLevel",
    "defaultLeaseSeconds",
    "maxBatchSize",
    "maxClaimBatchSize",
    "webhooks.allowedNetworks",
    "webhooks.secrets",
    "producerAuth.jwt",
    "producerAuth.staticTokens",
    "workerAuth.jwt",
    "workerAuth.staticTokens",
    "allowProducerAsWorker",
    "rateLimit.producer.requestsPerMinute",
    "rateLimit.producer.burst",
    "rateLimit.worker.requestsPerMinute",
    "rateLimit.worker.burst",
    "rateLimit.admin.requestsPerMinute",
    "rateLimit.admin.burst",
    "tenantLimits.maxPendingTasks",
    "tenantLimits.maxPendingBytes",
    "tenantLimits.maxStoredBytes",
    "backup.target",
];

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
        let mut merged = self.clone();
        let mut changes = Changes::default();
        let different: Vec<&Key> = KEYS.iter().filter(|key| !key.same(self, new)).collect();
        for key in different {
            if RELOADED.contains(&key.path) {
                key.copy(&mut merged, new);
                changes.changed.push(change(key.path, self, new));
            } else {
                changes.needs_restart.push(key.path);
            }
        }
        let mut problems = merged.check();
        // At startup the listeners chose the hosts they answer to by this token.
        if merged.has_dev_token() != self.has_dev_token() {
            let text = "the development token comes and goes with a restart only";
            problems.push(Problem::of("", text));
        }
        if problems.is_empty() {
            Ok((merged, changes))
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }
}

fn change(key: &'static str, from: &Config, to: &Config) -> Change {
    let (from, mut to) = (shown(from, key), shown(to, key));
    if from == to {
        to.push_str(", changed");
    }
    Change { key, from, to }
}

fn shown(config: &Config, key: &str) -> String {
    match get(&serde_json::to_value(config).unwrap_or_default(), key) {
        Value::Null => "none".to_owned(),
        Value::String(text) => text,
        Value::Array(list) if list.len() == 1 => "1 entry".to_owned(),
        Value::Array(list) => format!("{} entries", list.len()),
        other => other.to_string(),
    }
}
