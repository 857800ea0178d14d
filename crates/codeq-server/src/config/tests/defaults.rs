//! The commented file matches the defaults and is complete.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::config::keys::KEYS;
use crate::config::{
    AuthConfig, Config, DEFAULT_YAML, HttpConfig, JwtConfig, MetricsConfig, RateLimit, RateLimits,
    StaticToken, TenantLimits, TlsConfig, TracingConfig,
};

/// A configuration with every optional value set.
fn full() -> Config {
    let auth = AuthConfig {
        jwt: vec![JwtConfig {
            jwks_url: Some("https://k.example".to_owned()),
            ..Default::default()
        }],
        static_tokens: vec![StaticToken {
            token: Some("t".to_owned()),
            token_sha256: Some("h".to_owned()),
            ..Default::default()
        }],
    };
    let limit = Some(RateLimit { requests_per_minute: 1, burst: 1 });
    Config {
        shards: Some(1),
        producer_auth: auth.clone(),
        worker_auth: auth,
        rate_limit: RateLimits { producer: limit, worker: limit, admin: limit },
        tenant_limits: TenantLimits {
            max_pending_tasks: Some(1),
            max_pending_bytes: Some(1),
            max_stored_bytes: Some(1),
        },
        http: HttpConfig { max_buffered_bytes: Some(1), ..HttpConfig::default() },
        tls: TlsConfig { cert_file: Some("c".into()), key_file: Some("k".into()) },
        metrics: MetricsConfig { addr: Some(([127, 0, 0, 1], 1).into()), public: true },
        tracing: TracingConfig { otlp_endpoint: Some("http://c".to_owned()), ..Default::default() },
        ..Config::default()
    }
}

/// The paths of all leaf values; with `into_lists` also those inside lists.
fn paths(value: &Value, prefix: &str, into_lists: bool, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{prefix}{}{name}", if prefix.is_empty() { "" } else { "." });
                paths(value, &path, into_lists, found);
            }
        }
        Value::Array(values) if into_lists && values.iter().any(Value::is_object) => {
            values.iter().for_each(|value| paths(value, prefix, into_lists, found));
        }
        _ => {
            found.insert(prefix.to_owned());
        }
    }
}

#[test]
fn the_table_has_every_field() {
    let mut fields = BTreeSet::new();
    paths(&serde_json::to_value(full()).unwrap(), "", false, &mut fields);
    let keys: BTreeSet<String> = KEYS.iter().map(|key| key.path.clone()).collect();
    assert_eq!(keys, fields);
    assert_eq!(keys.len(), KEYS.len());
}

#[test]
fn the_commented_file_matches_the_defaults() {
    assert_eq!(from_yaml(DEFAULT_YAML).config, Config::default());
    assert_eq!(from_yaml("").config, Config::default());
    assert_eq!(load(None, variables(&[]), &Flags::default()).unwrap().config, Config::default());
}

#[test]
fn the_commented_file_names_every_key() {
    let mut fields = BTreeSet::new();
    paths(&serde_json::to_value(full()).unwrap(), "", true, &mut fields);
    let names: BTreeSet<&str> = DEFAULT_YAML
        .lines()
        .filter_map(|line| line.trim_start_matches([' ', '#', '-']).split_once(':'))
        .map(|(name, _)| name)
        .collect();
    for path in fields {
        let missing: Vec<&str> = path.split('.').filter(|part| !names.contains(part)).collect();
        assert!(missing.is_empty(), "{path}: {missing:?}");
    }
}

#[test]
fn commented_out_examples_are_valid() {
    let tls = |line: &str| line.contains("/etc/codeq/tls");
    let comment = |line: &str| {
        let key = line.trim_start().strip_prefix("# ")?.split_once(": ")?.0;
        let known = KEYS.iter().any(|it| it.path.rsplit('.').next() == Some(key));
        known.then(|| line.replacen("# ", "", 1))
    };
    let list = |line: &str| line.trim_start().starts_with("#  ");
    let yaml: String = DEFAULT_YAML
        .lines()
        .filter(|line| !tls(line))
        .map(|line| if list(line) { line.replacen('#', " ", 1) } else { line.to_owned() })
        .map(|line| comment(&line).unwrap_or(line))
        .map(|line| {
            let line = line.replace("jwt: []", "jwt:").replace("secrets: []", "secrets:");
            line.replace("staticTokens: []", "staticTokens:") + "\n"
        })
        .filter(|line| !line.contains("printf"))
        .collect();
    let config = from_yaml(&yaml).config;
    assert_eq!(config.producer_auth.jwt.len(), 1);
    assert_eq!(config.producer_auth.static_tokens.len(), 1);
    assert_eq!(config.worker_auth.static_tokens.len(), 1);
    assert_eq!(config.webhooks.secrets.len(), 1);
    assert_eq!(config.shards, Some(1));
    assert!(config.rate_limit.producer.is_some() && config.rate_limit.admin.is_some());
    assert!(config.tenant_limits.max_pending_bytes.is_some());
    assert!(config.metrics.addr.is_some() && config.tracing.otlp_endpoint.is_some());
}

#[test]
fn the_defaults_are_those_of_the_rules() {
    let config = Config::default();
    assert_eq!(config.settings(), codeq_core::settings::Settings::default());
    assert_eq!(config.check(), []);
    let warnings = config.warnings();
    assert!(
        warnings.len() == 2 && warnings.iter().all(|warning| warning.contains("nobody can ")),
        "{warnings:?}"
    );
}
