//! Reloads: changes adopted, and changes that need a restart.

use crate::config::keys::KEYS;
use crate::config::reload::{Change, RELOADED};
use crate::config::{Config, RateLimit, StaticToken, WebhookSecret};

fn token(token: &str) -> StaticToken {
    StaticToken {
        token: Some(token.to_owned()),
        subject: "s".to_owned(),
        tenant: "t".to_owned(),
        ..StaticToken::default()
    }
}

#[test]
fn every_reloaded_field_has_keys() {
    for path in RELOADED {
        assert!(KEYS.iter().any(|key| key.path.starts_with(path)), "{path}");
    }
}

#[test]
fn reload_applies_changes_or_reports_that_they_need_a_restart() {
    let mut old = Config::default();
    old.producer_auth.static_tokens = vec![token("first-secret")];
    let mut new = old.clone();
    new.log_level = "debug".to_owned();
    new.shards = Some(2);
    new.producer_auth.static_tokens = vec![token("other-secret")];
    new.rate_limit.admin = Some(RateLimit { requests_per_minute: 60, burst: 2 });
    new.webhooks.secrets = vec![WebhookSecret {
        tenant: "t".to_owned(),
        secret: Some("a-third-secret-of-ours".to_owned()),
        previous: None,
    }];
    let (merged, changes) = old.reloaded(&new).unwrap();
    let change = |key, from: &str, to: &str| Change { key, from: from.into(), to: to.into() };
    let expected = [
        change("logLevel", "info", "debug"),
        change("webhooks.secrets", "0 entries", "1 entry"),
        change("producerAuth.staticTokens", "1 entry", "1 entry, changed"),
        change("rateLimit.admin.requestsPerMinute", "none", "60"),
        change("rateLimit.admin.burst", "none", "2"),
    ];
    assert_eq!(changes.changed, expected);
    assert_eq!(changes.needs_restart, ["shards"]);
    assert!(!format!("{changes:?}").contains("secret-of-ours"), "{changes:?}");
    assert_eq!(merged, Config { shards: None, ..new.clone() });
    // Changes that need a restart are reported until it happens.
    let (_, again) = merged.reloaded(&new).unwrap();
    assert_eq!((again.changed.len(), again.needs_restart), (0, vec!["shards"]));
}

#[test]
fn an_invalid_merge_is_refused() {
    let mut old = Config { http_addr: ([0, 0, 0, 0], 8080).into(), ..Config::default() };
    old.producer_auth.static_tokens = vec![token("secret")];
    let new = Config { http_addr: ([127, 0, 0, 1], 8080).into(), ..Config::default() };
    // Valid on its own, but the server listens on the network until it restarts.
    let refused = old.reloaded(&new).unwrap_err().to_string();
    assert!(refused.contains("nobody could authenticate"), "{refused}");
    let mut dev = Config::default();
    dev.producer_auth.static_tokens = vec![token(crate::config::DEV_TOKEN)];
    let refused = Config::default().reloaded(&dev).unwrap_err().to_string();
    assert!(refused.contains("development token"), "{refused}");
}
