//! Precedence of the layers, and the reported sources.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::config::keys::KEYS;
use crate::config::{Config, Durability, LogFormat, RateLimit, Source};

/// A valid non-default value for every key.
fn other_value(path: &str) -> Value {
    let static_token =
        json!([{ "tokenSha256": "0".repeat(64), "subject": "s", "tenant": "t", "scopes": [] }]);
    let jwt = json!([{ "issuer": "https://i.example", "audience": "a", "jwksUrl": null }]);
    match path {
        "dataDir" => json!("/tmp/other: #dir"),
        "httpAddr" => json!("127.0.0.1:9999"),
        "durability" => json!("os"),
        "logLevel" => json!("debug"),
        "logFormat" => json!("text"),
        "timezone" => json!("America/Sao_Paulo"),
        "backoffPolicy" => json!("linear"),
        "allowProducerAsWorker" | "metrics.public" | "grpc.reflection" => json!(true),
        "auth.endStreamsAtExpiry" => json!(true),
        "metrics.addr" | "producerAddr" | "workerAddr" => json!("127.0.0.1:9090"),
        "webhooks.allowedNetworks" => json!(["10.0.0.0/8", "fd00::/8"]),
        "webhooks.secrets" => {
            json!([{ "tenant": "t", "secret": null, "previous": null }])
        }
        "http.unknownFields" => json!("ignore"),
        "artifacts.url" | "backup.target" => json!("s3://bucket/prefix"),
        "publicUrl" => json!("https://codeq.example.com"),
        "tracing.otlpEndpoint" => json!("http://localhost:4318"),
        "tracing.sampleRatio" => json!(0.25),
        "tracing.serviceName" => json!("123"),
        "tls.certFile" | "tls.keyFile" => json!("/dev/null/none.pem"),
        path if path.ends_with(".jwt") => jwt,
        path if path.ends_with(".staticTokens") => static_token,
        "http.maxBodyBytes"
        | "http.maxBatchBodyBytes"
        | "http.maxBufferedBytes"
        | "maxPayloadBytes" => {
            json!(2_000_000)
        }
        _ => json!(7),
    }
}

/// Some keys are invalid without others; these tests only look at which layer set them.
fn lone(path: &str, value: &str) -> Config {
    let variable = KEYS.iter().find(|key| key.path == path).unwrap().variable();
    let mut problems = Vec::new();
    let env = variables(&[(&variable, value)]).collect::<Vec<_>>().into_iter();
    let (config, sources) = crate::config::load::merge(None, env, &Flags::default(), &mut problems);
    assert_eq!(problems, [], "{variable}");
    assert_eq!(sources.of(path), Source::Env(variable));
    config
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[test]
fn every_key_has_a_variable_that_sets_it_and_nothing_else() {
    for key in KEYS.iter() {
        let value = other_value(&key.path);
        let config = serde_json::to_value(lone(&key.path, &text(&value))).unwrap();
        let mut expected = serde_json::to_value(Config::default()).unwrap();
        let mut place = &mut expected;
        for name in key.path.split('.') {
            if place.is_null() {
                *place = json!({ "requestsPerMinute": 0, "burst": 0 });
            }
            place = &mut place[name];
        }
        assert_ne!(*place, value, "{}", key.path);
        *place = value;
        // Fields missing from a list element get their defaults.
        if let Some(token) = key.path.ends_with("Tokens").then(|| &mut place[0]) {
            token["token"] = Value::Null;
            token["eventTypes"] = json!([]);
            token["workerGroup"] = json!(null);
        }
        assert_eq!(config, expected, "{}", key.path);
    }
}

#[test]
fn variables_are_named_after_the_path() {
    let names: BTreeSet<String> = KEYS.iter().map(|key| key.variable()).collect();
    assert_eq!(names.len(), KEYS.len());
    for name in [
        "CODEQ_HTTP_ADDR",
        "CODEQ_HTTP_MAX_BODY_BYTES",
        "CODEQ_MAX_ATTEMPTS_DEFAULT",
        "CODEQ_RATE_LIMIT_PRODUCER_REQUESTS_PER_MINUTE",
        "CODEQ_TLS_CERT_FILE",
        "CODEQ_PRODUCER_AUTH_STATIC_TOKENS",
        "CODEQ_RESULT_WEBHOOK_BASE_BACKOFF_SECONDS",
    ] {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let fixture = Fixture::new("shards: 2\nlogLevel: warn\nlogFormat: text\n");
    let flags = Flags { shards: Some(4), ..Flags::default() };
    let env = [("CODEQ_SHARDS", "3"), ("CODEQ_LOG_LEVEL", "debug"), ("HOME", "/")];
    let loaded = fixture.load(&env, &flags).unwrap();
    assert_eq!(loaded.config.shards, Some(4));
    assert_eq!(loaded.config.log_level, "debug");
    assert_eq!(loaded.config.log_format, LogFormat::Text);
    assert_eq!(loaded.config.durability, Durability::Fsync);
    assert_eq!(loaded.file, Some(fixture.path()));
    assert_eq!(loaded.sources.of("shards").to_string(), "--shards");
    assert_eq!(loaded.sources.of("logLevel").to_string(), "CODEQ_LOG_LEVEL");
    let file = format!("{}:3", fixture.path().display());
    assert_eq!(loaded.sources.of("logFormat").to_string(), file);
    assert_eq!(loaded.sources.of("durability").to_string(), "default");
}

#[test]
fn every_flag_sets_its_key() {
    let flags = Flags {
        data_dir: Some("/tmp/x".into()),
        http_addr: Some(([127, 0, 0, 1], 1).into()),
        producer_addr: Some(([127, 0, 0, 1], 3).into()),
        worker_addr: Some(([127, 0, 0, 1], 4).into()),
        shards: Some(9),
        durability: Some(Durability::Os),
        log_level: Some("error".to_owned()),
        log_format: Some(LogFormat::Text),
        metrics_addr: Some(([127, 0, 0, 1], 2).into()),
        tls_cert_file: Some("c".into()),
        tls_key_file: Some("k".into()),
    };
    let (mut config, mut sources) = (Config::default(), Default::default());
    flags.apply(&mut config, &mut sources);
    for (path, flag) in [
        ("dataDir", "--data-dir"),
        ("httpAddr", "--http-addr"),
        ("producerAddr", "--producer-addr"),
        ("workerAddr", "--worker-addr"),
        ("shards", "--shards"),
        ("durability", "--durability"),
        ("logLevel", "--log-level"),
        ("logFormat", "--log-format"),
        ("metrics.addr", "--metrics-addr"),
        ("tls.certFile", "--tls-cert-file"),
        ("tls.keyFile", "--tls-key-file"),
    ] {
        assert_eq!(sources.of(path), Source::Flag(flag));
    }
    let expected = Config {
        data_dir: "/tmp/x".into(),
        http_addr: ([127, 0, 0, 1], 1).into(),
        producer_addr: Some(([127, 0, 0, 1], 3).into()),
        worker_addr: Some(([127, 0, 0, 1], 4).into()),
        shards: Some(9),
        durability: Durability::Os,
        log_level: "error".to_owned(),
        log_format: LogFormat::Text,
        metrics: crate::config::MetricsConfig {
            addr: Some(([127, 0, 0, 1], 2).into()),
            public: false,
        },
        tls: crate::config::TlsConfig { cert_file: Some("c".into()), key_file: Some("k".into()) },
        ..Config::default()
    };
    assert_eq!(config, expected);
}

#[test]
fn a_variable_replaces_a_whole_list() {
    let yaml = "workerAuth:\n  staticTokens:\n    - {token: a, subject: a, tenant: a}\n    - \
                {token: b, subject: b, tenant: b}\n";
    let env =
        [("CODEQ_WORKER_AUTH_STATIC_TOKENS", r#"[{"token":"c","subject":"c","tenant":"c"}]"#)];
    let loaded = Fixture::new(yaml).load(&env, &Flags::default()).unwrap();
    let tokens = &loaded.config.worker_auth.static_tokens;
    assert_eq!(tokens.iter().map(|token| token.tenant.as_str()).collect::<Vec<_>>(), ["c"]);
    let source = loaded.sources.of("workerAuth.staticTokens[1].tenant");
    assert_eq!(source, Source::Env("CODEQ_WORKER_AUTH_STATIC_TOKENS".to_owned()));
}

#[test]
fn a_variable_holds_long_json() {
    let element =
        |n| json!({ "token": format!("t{n}"), "subject": "s", "tenant": "x".repeat(200) });
    let list: Value = (0..100).map(element).collect();
    let loaded = from_env(&[("CODEQ_PRODUCER_AUTH_STATIC_TOKENS", &list.to_string())]).unwrap();
    assert_eq!(loaded.config.producer_auth.static_tokens.len(), 100);
}

#[test]
fn rate_limits_can_be_set_in_parts_and_removed() {
    let yaml = "rateLimit:\n  producer: {requestsPerMinute: 60, burst: 5}\n  worker:\n";
    let loaded = from_yaml(yaml);
    let limit = RateLimit { requests_per_minute: 60, burst: 5 };
    assert_eq!(loaded.config.rate_limit.producer, Some(limit));
    assert_eq!(loaded.config.rate_limit.worker, None);
    let fixture = Fixture::new(yaml);
    let none = [("CODEQ_RATE_LIMIT_PRODUCER_BURST", "null")];
    let loaded = fixture.load(&none, &Flags::default()).unwrap();
    assert_eq!(loaded.config.rate_limit.producer, None);
    let half = [("CODEQ_RATE_LIMIT_ADMIN_BURST", "7")];
    assert_eq!(
        fixture.complaints(&half),
        [
            "rateLimit.admin.requestsPerMinute: missing or 0: a limit has requestsPerMinute and burst, \
          both at least 1; leave both out for no limit"
        ]
    );
}

#[test]
fn variables_that_are_wrong_are_named() {
    for (name, value, expected) in [
        ("CODEQ_SHARD", "2", "CODEQ_SHARD: unknown variable, did you mean CODEQ_SHARDS?"),
        (
            "CODEQ_HTTP_MAX_BODY",
            "2",
            "CODEQ_HTTP_MAX_BODY: unknown variable, did you mean CODEQ_HTTP_MAX_BODY_BYTES?",
        ),
        ("CODEQ_QQQ", "2", "CODEQ_QQQ: unknown variable; `codeq config default` shows every key"),
        (
            "CODEQ_SHARDS",
            "two",
            "CODEQ_SHARDS: shards: found 'two', expected a whole number from 0 to 65535",
        ),
        ("CODEQ_SHARDS", "65", "CODEQ_SHARDS: shards: found 65, expected 1 to 64"),
        (
            "CODEQ_WORKER_AUTH_JWT",
            "nonsense",
            "CODEQ_WORKER_AUTH_JWT: workerAuth.jwt: found a string, expected a list",
        ),
        (
            "CODEQ_WORKER_AUTH_JWT",
            "[{issuer: 'https://i.example'}]",
            "CODEQ_WORKER_AUTH_JWT: workerAuth.jwt[0].audience: missing: the 'aud' that tokens \
             carry; without it a token for another service would be accepted",
        ),
    ] {
        assert_eq!(from_env(&[(name, value)]).unwrap_err().to_string(), expected);
    }
    let broken = from_env(&[("CODEQ_WORKER_AUTH_JWT", "[{")]).unwrap_err().to_string();
    let start = "CODEQ_WORKER_AUTH_JWT: workerAuth.jwt: line 1, column ";
    assert!(broken.starts_with(start), "{broken}");
}

#[test]
fn a_flag_that_is_wrong_is_named() {
    let flags = Flags { shards: Some(65), ..Flags::default() };
    let error = load(None, variables(&[]), &flags).unwrap_err();
    assert_eq!(error.to_string(), "--shards: shards: found 65, expected 1 to 64");
}

#[test]
fn empty_and_unrelated_variables_are_ignored() {
    let env = [
        ("CODEQ_SHARDS", ""),
        ("CODEQ_CONFIG", "/etc/codeq.yaml"),
        ("CODEQ_WRITE_FIXTURE", "1"),
        ("CODEQ_SERVICE_HOST", "10.0.0.1"),
        ("CODEQ_PORT", "tcp://10.0.0.1:8080"),
        ("CODEQ_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("CODEQX", "?"),
    ];
    assert_eq!(from_env(&env).unwrap().config, Config::default());
}
