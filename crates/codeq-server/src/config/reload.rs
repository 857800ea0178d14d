//! What a running server takes over from a configuration that was read again, and what has to wait for a restart.

use serde_json::Value;

use super::keys::{KEYS, Key};
use super::model::Config;
use super::problem::{ConfigError, Problem};
use super::show::get;

/// The keys that a running server takes over. What is not here needs a restart.
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

/// What a reload comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// What is in force from now on.
    pub changed: Vec<Change>,
    /// Keys that differ from what is in force, and will until the next start.
    pub needs_restart: Vec<&'static str>,
}

/// A key that has another value now. Secrets are masked; of a list there is only its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: &'static str,
    /// Its value before.
    pub from: String,
    /// Its value now.
    pub to: String,
}

impl Changes {
    /// Whether a key has changed that begins like this.
    pub(crate) fn concern(&self, prefix: &str) -> bool {
        self.changed.iter().any(|change| change.key.starts_with(prefix))
    }
}

impl Config {
    /// This configuration with what a running server can take over from `new`, and what that is. Refused if the two do
    /// not go together.
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
        // By it the listeners have decided at the start which hosts they answer to.
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
