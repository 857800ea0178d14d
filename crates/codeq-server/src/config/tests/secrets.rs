//! No secret appears in any output.

use super::*;
use crate::config::Config;

const SECRET: &str = "sEcReT-marker";

const YAML: &str = "\
producerAuth:
  staticTokens:
    - {token: sEcReT-marker, subject: s, tenant: t}
  jwt:
    - issuer: https://i.example
      audience: codeq
      jwksUrl: https://i.example/keys?k=sEcReT-marker
webhooks:
  secrets:
    - {tenant: t, secret: sEcReT-marker-long-enough, previous: sEcReT-marker-long-enough-too}
";

#[test]
fn a_configuration_is_shown_without_secrets() {
    let loaded = from_yaml(YAML);
    let token = loaded.config.producer_auth.static_tokens[0].token.as_deref();
    assert_eq!(token, Some(SECRET));
    let shown = [
        format!("{loaded:?}"),
        format!("{:#?}", loaded.config),
        serde_json::to_string(&loaded.config).unwrap(),
        loaded.to_yaml().unwrap(),
        loaded.to_json().unwrap().to_string(),
    ];
    for shown in shown {
        assert!(!shown.contains(SECRET), "{shown}");
        assert!(shown.contains("***"), "{shown}");
    }
}

#[test]
fn problems_do_not_quote_possible_secrets() {
    for yaml in [
        "producerAuth: {staticTokens: sEcReT-marker}",
        "producerAuth: {staticTokens: [sEcReT-marker]}",
        "producerAuth: sEcReT-marker",
        "workerAuth: {staticTokens: [{token: [sEcReT-marker]}]}",
        "workerAuth: {staticTokens: [{token: {a: sEcReT-marker}}]}",
        "workerAuth: {staticTokens: [{token: 'sEcReT-marker and more', subject: s, tenant: t}]}",
        "workerAuth: {staticTokens: [{tokenSha256: sEcReT-marker, subject: s, tenant: t}]}",
        "workerAuth: {jwt: [{issuer: 'http://sEcReT-marker@i.example', audience: a}]}",
        "workerAuth: {staticTokens: [{token: \"sEcReT-marker}]}",
        "webhooks: {secrets: sEcReT-marker}",
        "webhooks: {secrets: [sEcReT-marker]}",
        "webhooks: {secrets: [{tenant: t, secret: sEcReT-marker}]}",
        "webhooks: {secrets: [{tenant: t, secret: [sEcReT-marker-long-enough]}]}",
        "workerAuth: {jwt: [{issuer: i, audience: a, jwksUrl: 'https://u:sEcReT-marker@i.example'}]}",
        "workerAuth: {jwt: [{issuer: i, audience: a, jwksUrl: 'https://i.example/#sEcReT-marker'}]}",
        "tracing: {otlpEndpoint: 'ftp://sEcReT-marker:x@i.example'}",
        "tracing: {otlpEndpoint: 'http://u:sEcReT-marker@i.example'}",
        "tracing: {otlpEndpoint: 'http://i.example/?key=sEcReT-marker'}",
    ] {
        let said = Fixture::new(yaml).complaints(&[]).join("\n");
        assert!(!said.contains(SECRET), "{said}");
        let list =
            yaml.strip_prefix("workerAuth: {staticTokens: ").and_then(|it| it.strip_suffix('}'));
        if let Some(list) = list {
            let said = from_env(&[("CODEQ_WORKER_AUTH_STATIC_TOKENS", list)]).unwrap_err();
            assert!(!said.to_string().contains(SECRET), "{said}");
        }
    }
    let number = "workerAuth: {staticTokens: [{token: 12345678, subject: s, tenant: t}]}";
    let said = Fixture::new(number).complaints(&[]).join("\n");
    assert!(said.contains("put it in quotes") && !said.contains("12345678"), "{said}");
}

#[test]
fn tokens_in_a_world_readable_file_are_refused() {
    let fixture = Fixture::new(YAML);
    fixture.chmod(0o644);
    let path = fixture.path();
    let error = fixture.load(&[], &Flags::default()).unwrap_err().to_string();
    let expected = format!(
        "{0}:1:1: everybody on this machine can read the tokens in this file: chmod 600 {0}, or give \
         tokenSha256 instead of token\n\
         {0}:1:1: everybody on this machine can read webhooks.secrets in this file: chmod 600 {0}",
        path.display()
    );
    assert_eq!(error, expected);
    fixture.chmod(0o640);
    assert!(fixture.load(&[], &Flags::default()).is_ok());

    let hashed = format!(
        "producerAuth:\n  staticTokens:\n    - {{tokenSha256: '{}', subject: s, tenant: t}}\n",
        "0".repeat(64)
    );
    let fixture = Fixture::new(&hashed);
    fixture.chmod(0o644);
    assert!(fixture.load(&[], &Flags::default()).is_ok());
}

#[test]
fn shown_configuration_names_sources_and_loads_again() {
    let fixture = Fixture::new("shards: 2\nhttp:\n  maxConnections: 9\n");
    let flags = Flags { log_level: Some("warn".to_owned()), ..Flags::default() };
    let loaded = fixture.load(&[("CODEQ_TIMEZONE", "UTC")], &flags).unwrap();
    let yaml = loaded.to_yaml().unwrap();
    let file = fixture.path().display().to_string();
    for line in [
        "dataDir: \"codeq-data\"  # default",
        &format!("shards: 2  # {file}:1"),
        "logLevel: \"warn\"  # --log-level",
        "timezone: \"UTC\"  # CODEQ_TIMEZONE",
        "http:",
        &format!("  maxConnections: 9  # {file}:3"),
        "rateLimit:",
        "  producer:",
        "  worker:",
    ] {
        assert_eq!(yaml.lines().filter(|it| *it == line).count(), 1, "{line}\n{yaml}");
    }
    let again = from_yaml(&yaml).config;
    assert_eq!(again, loaded.config);
    assert_ne!(again, Config::default());

    let json = loaded.to_json().unwrap();
    assert_eq!(json["config"]["http"]["maxConnections"], 9);
    assert_eq!(json["sources"]["http.maxConnections"], format!("{file}:3"));
    assert_eq!(json["sources"]["logLevel"], "--log-level");
}
