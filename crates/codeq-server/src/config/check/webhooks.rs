//! Checks that webhook secrets are well formed and long enough, and that each tenant has one entry.

use std::collections::BTreeSet;

use codeq_core::names::check_tenant;
use codeq_webhooks::signing::Secret;

use crate::config::model::{Config, WebhookConfig};
use crate::config::problem::Problem;

/// Maximum number of tenants with a secret in the configuration.
const SECRETS_MAX: usize = 10_000;

/// Warnings about secrets for tenants without a token: a typo means unsigned calls.
pub(super) fn unknown_tenants(config: &Config) -> Vec<String> {
    let auths = [&config.producer_auth, &config.worker_auth];
    // With JWTs, any tenant name is possible.
    if auths.iter().any(|auth| !auth.jwt.is_empty()) {
        return Vec::new();
    }
    let known: BTreeSet<&str> =
        auths.iter().flat_map(|auth| &auth.static_tokens).map(|token| &*token.tenant).collect();
    let secrets = config.webhooks.secrets.iter().enumerate();
    let unknown = secrets.filter(|(_, entry)| !known.contains(&*entry.tenant));
    unknown
        .map(|(index, _)| format!("webhooks.secrets[{index}] is for a tenant that has no token"))
        .collect()
}

pub(super) fn check(webhooks: &WebhookConfig, problems: &mut Vec<Problem>) {
    let count = webhooks.secrets.len();
    if count > SECRETS_MAX {
        let text = format!("found {count}, expected at most {SECRETS_MAX}");
        problems.push(Problem::of("webhooks.secrets", text));
        return;
    }
    let mut tenants = BTreeSet::new();
    for (index, entry) in webhooks.secrets.iter().enumerate() {
        let path = format!("webhooks.secrets[{index}]");
        if check_tenant(&entry.tenant).is_err() {
            problems.push(Problem::of(format!("{path}.tenant"), "expected the name of a tenant"));
        } else if !tenants.insert(&entry.tenant) {
            problems.push(Problem::of(path.clone(), "the tenant has another entry"));
        }
        if entry.secret.is_none() {
            problems.push(Problem::of(format!("{path}.secret"), "missing"));
        }
        for (name, secret) in [("secret", &entry.secret), ("previous", &entry.previous)] {
            if let Some(Err(bad)) = secret.as_deref().map(Secret::read) {
                problems.push(Problem::of(format!("{path}.{name}"), bad.to_string()));
            }
        }
    }
}
