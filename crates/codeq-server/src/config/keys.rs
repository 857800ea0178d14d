//! The keys, as the model has them.

use std::sync::LazyLock;

use super::model::{Config, RateLimit, RateLimits};
use super::problem::{Source, shown};
use super::tree::{Kind, join, parse};
use crate::suggest::nearest;

/// A configuration key.
pub(crate) struct Key {
    /// Dotted path, such as `http.maxBodyBytes`.
    pub(crate) path: String,
    /// Whether its environment variable holds YAML.
    pub(crate) list: bool,
}

/// All keys, in the order of the model's fields.
pub(crate) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let limit = Some(RateLimit { requests_per_minute: 1, burst: 1 });
    let rate_limit = RateLimits { producer: limit, worker: limit, admin: limit };
    let config = Config { rate_limit, ..Config::default() };
    let mut keys = Vec::new();
    // JSON is YAML too. The text keeps the order of the fields, which a `serde_json::Value` does not.
    let text = serde_json::to_string(&config).unwrap_or_default();
    if let Ok(tree) = parse(&text, &Source::Default) {
        tree.walk("", &mut |path, node| {
            if !matches!(node.kind, Kind::Map(_)) {
                let list = matches!(node.kind, Kind::List(_));
                keys.push(Key { path: path.to_owned(), list });
            }
        });
    }
    keys
});

/// Keys of codeQ's original configuration that have another name or no meaning here.
const MOVED: &[(&str, &str)] = &[
    ("port", "it is part of 'httpAddr', such as 0.0.0.0:8080"),
    ("redisAddr", "data is in 'dataDir'; there is no separate database"),
    ("redisPassword", "data is in 'dataDir'; there is no separate database"),
    ("persistenceProvider", "data is in 'dataDir'; there is no separate database"),
    ("persistenceConfig", "data is in 'dataDir'; there is no separate database"),
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
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(if letter == '.' { '_' } else { letter.to_ascii_uppercase() });
        }
        name
    }
}

/// The message for an unknown key in the mapping at this path. `known` are the keys that the mapping may have.
pub(crate) fn unknown_key(name: &str, path: &str, known: &[&str]) -> String {
    let text = format!("unknown key '{}'", shown(name));
    if let Some((_, instead)) = MOVED.iter().find(|(moved, _)| *moved == name) {
        return format!("{text}: {instead}");
    }
    // The elements of a list have keys that exist nowhere else.
    let in_list = path.ends_with(']');
    let full = |known: &&str| if in_list { (*known).to_owned() } else { join(path, known) };
    let full: Vec<String> = known.iter().map(full).collect();
    let here = known.iter().copied().zip(full.iter().map(String::as_str));
    let elsewhere = || {
        let last = |key: &'static Key| key.path.rsplit('.').next().unwrap_or(&key.path);
        nearest(name, KEYS.iter().map(|key| (last(key), key.path.as_str())))
    };
    match nearest(name, here).or_else(|| if in_list { None } else { elsewhere() }) {
        Some(near) => format!("{text}, did you mean '{near}'?"),
        None => text,
    }
}
