//! Readable but invalid values, and values passed to the engine.

use codeq_core::task_backoff::Growth;
use sha2::{Digest, Sha256};

use super::*;
use crate::config::{
    BackoffPolicy, Config, DEV_TOKEN, Durability, LogFormat, RetentionConfig, StaticToken,
    WebhookSecret,
};

/// The problems after a change to the defaults.
fn problems(change: impl FnOnce(&mut Config)) -> Vec<String> {
    let mut config = Config::default();
    change(&mut config);
    config.check().iter().map(ToString::to_string).collect()
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (key, good, bad) in [
        ("shards", [1_u64, 64], [0_u64, 65]),
        ("maxAttemptsDefault", [1, 1_000], [0, 1_001]),
        ("defaultLeaseSeconds", [1, 43_200], [0, 43_201]),
        ("retentionSeconds", [1, 2_147_483_647], [0, 2_147_483_648]),
        ("retention.deadLetterSeconds", [1, 2_147_483_647], [0, 2_147_483_648]),
        ("maxBatchSize", [1, 1_000], [0, 1_001]),
        ("maxClaimBatchSize", [1, 1_000], [0, 1_001]),
        ("maxPayloadBytes", [1_024, 16_777_216], [1_023, 16_777_217]),
        ("resultWebhookMaxAttempts", [1, 100], [0, 101]),
        ("resultWebhookBaseBackoffSeconds", [1, 60], [0, 61]),
        ("resultWebhookMaxBackoffSeconds", [2, 316_224_000], [0, 316_224_001]),
        ("backoffBaseSeconds", [0, 900], [901, 316_224_001]),
        ("backoffMaxSeconds", [5, 316_224_000], [316_224_001, 999_999_999]),
        ("shutdownGraceSeconds", [0, 3_600], [3_601, 9_999]),
        ("http.maxBodyBytes", [1_024, 16_777_216], [1_023, 16_777_217]),
        ("http.maxBatchBodyBytes", [1_048_576, 1_073_741_824], [1_023, 1_073_741_825]),
        ("http.maxBufferedBytes", [1_048_576, 1_099_511_627_776], [1_048_575, 1_099_511_627_777]),
        ("artifacts.maxBytes", [1, 1_073_741_824], [0, 1_073_741_825]),
        ("http.maxConnections", [1, 1_000_000], [0, 1_000_001]),
        ("http.headerTimeoutSeconds", [1, 3_600], [0, 3_601]),
        ("http.bodyTimeoutSeconds", [1, 3_600], [0, 3_601]),
        ("http.idleTimeoutSeconds", [1, 3_600], [0, 3_601]),
        ("webhooks.maxConcurrent", [16, 4_096], [0, 4_097]),
        ("webhooks.maxPerHost", [1, 256], [0, 257]),
        ("tenantLimits.maxPendingTasks", [1, 9], [0, 0]),
        ("tenantLimits.maxPendingBytes", [1, 9], [0, 0]),
        ("tenantLimits.maxStoredBytes", [1, 9], [0, 0]),
    ] {
        let key = crate::config::keys::KEYS.iter().find(|it| it.path == key).unwrap();
        for number in good {
            from_env(&[(&key.variable(), &number.to_string())]).unwrap();
        }
        for number in bad {
            let error = from_env(&[(&key.variable(), &number.to_string())]).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(&format!("found {number}, expected")), "{said}");
        }
    }
}

#[test]
fn a_secret_for_an_unknown_tenant_is_warned_about() {
    let secret = |tenant: &str| WebhookSecret { tenant: tenant.to_owned(), ..Default::default() };
    let mut config = Config::default();
    let token = StaticToken { tenant: "acme".to_owned(), ..StaticToken::default() };
    config.producer_auth.static_tokens.push(token);
    config.webhooks.secrets = vec![secret("acme"), secret("acmee")];
    let said = "webhooks.secrets[1] is for a tenant that has no token";
    let about = |config: &Config| {
        config
            .warnings()
            .into_iter()
            .filter(|warning| warning.contains("secrets"))
            .collect::<Vec<_>>()
    };
    assert_eq!(about(&config), [said]);
    config.worker_auth.jwt.push(Default::default());
    assert_eq!(about(&config), [""; 0]);
}

#[test]
fn webhook_secrets_must_be_strong_and_unique() {
    let good = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let with = |entries: &[(&str, Option<&str>, Option<&str>)]| {
        problems(|config| {
            let of = |(tenant, secret, previous): &(&str, Option<&str>, Option<&str>)| {
                let owned = |text: &Option<&str>| text.map(str::to_owned);
                let tenant = (*tenant).to_owned();
                WebhookSecret { tenant, secret: owned(secret), previous: owned(previous) }
            };
            config.webhooks.secrets = entries.iter().map(of).collect();
        })
    };
    assert_eq!(
        with(&[("a", Some(good), Some(good)), ("b", Some("sixteen-letters!"), None)]),
        [""; 0]
    );
    for (entries, key) in [
        (&[("", Some(good), None)][..], "webhooks.secrets[0].tenant: "),
        (&[("a", Some(good), None), ("a", Some(good), None)], "webhooks.secrets[1]: the tenant"),
        (&[("a", None, None)], "webhooks.secrets[0].secret: missing"),
        (&[("a", Some("short"), None)], "webhooks.secrets[0].secret: expected"),
        (&[("a", Some(good), Some("whsec_%"))], "webhooks.secrets[0].previous: expected"),
    ] {
        let said = with(entries);
        assert!(said.len() == 1 && said[0].starts_with(key), "{key} {said:?}");
    }
}

#[test]
fn public_urls_are_checked() {
    let with = |url: &str| problems(|config| config.public_url = Some(url.to_owned()));
    for good in ["https://codeq.example.com", "http://10.0.0.1:8080/", "https://example.com/codeq"]
    {
        assert_eq!(with(good), [""; 0], "{good}");
    }
    for bad in ["", "codeq.example.com", "ftp://x", "https://u:p@x", "https://x?a=b", "https://x#y"]
    {
        let said = with(bad);
        assert!(said.len() == 1 && said[0].starts_with("publicUrl: found '"), "{bad} {said:?}");
        assert!(!said[0].contains("u:p"), "{said:?}");
    }
}

#[test]
fn artifact_urls_are_checked() {
    let with = |url: &str| problems(|config| config.artifacts.url = Some(url.to_owned()));
    for good in
        ["file:///var/lib/artifacts", "s3://bucket", "s3://bucket/a/b", "gs://b/p", "az://c/p"]
    {
        assert_eq!(with(good), [""; 0], "{good}");
    }
    for bad in [
        "",
        "artifacts",
        "/var/lib",
        "s3://",
        "http://x/y",
        "s3://u:secret@b",
        "s3://b?x=y",
        "file://host/x",
    ] {
        let said = with(bad);
        assert!(said.len() == 1 && said[0].starts_with("artifacts.url: found '"), "{bad} {said:?}");
        assert!(!said[0].contains("secret"), "{said:?}");
    }
    let sized = |bytes: usize| problems(|config| config.artifacts.max_bytes = bytes);
    assert_eq!(
        (sized(0).len(), sized(1).len(), sized(1 << 30).len(), sized((1 << 30) + 1).len()),
        (1, 0, 0, 1)
    );
}

#[test]
fn the_public_url_follows_the_listen_address() {
    let of = |change: fn(&mut Config), http: &str| {
        let mut config = Config::default();
        change(&mut config);
        config.public_url(http.parse().unwrap())
    };
    assert_eq!(of(|_| {}, "127.0.0.1:8080"), "http://127.0.0.1:8080");
    assert_eq!(of(|_| {}, "0.0.0.0:8080"), "http://localhost:8080");
    assert_eq!(of(|it| it.tls.cert_file = Some("c".into()), "[::1]:1"), "https://[::1]:1");
    assert_eq!(of(|it| it.public_url = Some("https://x/a/".into()), "[::1]:1"), "https://x/a");
}

#[test]
fn log_levels_are_checked() {
    for good in ["off", "INFO", "info,codeq_server=debug", "codeq_server[x]=trace,warn", "a::b=off"]
    {
        assert_eq!(problems(|config| config.log_level = good.to_owned()), [""; 0], "{good}");
    }
    for bad in ["", "inof", "codeq_server", "info,", "a=b=c", "info,x=loud"] {
        let said = problems(|config| config.log_level = bad.to_owned());
        assert!(said.len() == 1 && said[0].starts_with("logLevel: found '"), "{bad} {said:?}");
    }
}

#[test]
fn addresses_must_not_collide_and_endpoints_must_be_urls() {
    assert_eq!(
        problems(|config| config.metrics.addr = Some(config.http_addr)),
        ["metrics.addr: collides with httpAddr, which is 127.0.0.1:8080"]
    );
    let any = |port| Some(([0, 0, 0, 0], port).into());
    assert_eq!(problems(|config| config.metrics.addr = any(8080)).len(), 1);
    assert_eq!(problems(|config| config.metrics.addr = any(8081)), [""; 0]);
    let endpoint = |text: &str| {
        let text = Some(text.to_owned());
        problems(move |config| config.tracing.otlp_endpoint = text)
    };
    assert_eq!(endpoint("http://localhost:4318"), [""; 0]);
    assert_eq!(
        endpoint("localhost:4318"),
        ["tracing.otlpEndpoint: found 'localhost:4318', which is not http or https; expected an \
          address such as http://localhost:4318"]
    );
    // What the exporter refuses is found before the start.
    for bad in ["http://u:secret@x", "http://x/?key=secret", "http://x/#secret"] {
        let said = endpoint(bad);
        assert!(said.len() == 1 && !said[0].contains("secret"), "{bad} {said:?}");
    }
    assert_eq!(problems(|config| config.tracing.sample_ratio = 1.1).len(), 1);
    assert_eq!(problems(|config| config.tracing.sample_ratio = f64::NAN).len(), 1);
}

#[test]
fn tls_needs_both_files_and_a_key_of_its_own() {
    let files = Fixture::new("key");
    let path = files.path();
    let set = |cert: Option<&PathBuf>, key: Option<&PathBuf>| {
        problems(|config| {
            config.tls.cert_file = cert.cloned();
            config.tls.key_file = key.cloned();
        })
    };
    assert_eq!(set(Some(&path), Some(&path)), [""; 0]);
    assert_eq!(
        set(Some(&path), None),
        ["tls.keyFile: missing, but tls.certFile is set: TLS needs both"]
    );
    assert_eq!(
        set(None, Some(&path)),
        ["tls.certFile: missing, but tls.keyFile is set: TLS needs both"]
    );
    let gone = files.dir.path().join("gone");
    let expected =
        format!("tls.certFile: {}: No such file or directory (os error 2)", gone.display());
    assert_eq!(set(Some(&gone), Some(&path)), [expected]);
    assert!(set(Some(&path), Some(&files.dir.path().to_owned()))[0].ends_with("is not a file"));
    files.chmod(0o644);
    let said = set(Some(&path), Some(&path));
    assert!(said.len() == 1 && said[0].contains("can read the private key: chmod 600"), "{said:?}");
}

#[test]
fn static_tokens_are_complete() {
    let good = || StaticToken {
        token: Some("a-token".to_owned()),
        subject: "s".to_owned(),
        tenant: "t".to_owned(),
        scopes: vec!["codeq:claim".to_owned()],
        event_types: vec!["*".to_owned()],
        ..StaticToken::default()
    };
    let check = |change: &dyn Fn(&mut StaticToken)| {
        let mut token = good();
        change(&mut token);
        problems(|config| config.worker_auth.static_tokens = vec![token])
    };
    let key = "workerAuth.staticTokens[0]";
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(check(&|_| {}), [""; 0]);
    assert_eq!(check(&|it| it.token = None), [format!("{key}: needs token or tokenSha256")]);
    assert_eq!(check(&|it| it.token_sha256 = text("x")).len(), 1);
    assert_eq!(
        check(&|it| (it.token, it.token_sha256) = (None, text("abc"))),
        [format!("{key}.tokenSha256: must be 64 hex digits: printf %s TOKEN | sha256sum")]
    );
    for bad in ["", "two words", "ü", &"x".repeat(4_097)] {
        assert_eq!(check(&|it| it.token = text(bad)).len(), 1, "{bad}");
    }
    assert_eq!(check(&|it| it.subject.clear()).len(), 1);
    assert_eq!(check(&|it| it.subject = "s\u{fdd0}i".to_owned()).len(), 1);
    assert_eq!(check(&|it| it.tenant = "a\nb".to_owned()).len(), 1);
    assert_eq!(check(&|it| it.event_types = vec![String::new()]).len(), 1);
    assert_eq!(check(&|it| it.event_types = vec!["a".to_owned(); 1_000]), [""; 0]);
    assert_eq!(check(&|it| it.event_types = vec!["a".to_owned(); 1_001]).len(), 1);
    assert_eq!(check(&|it| it.worker_group = text(&"g".repeat(128))), [""; 0]);
    assert_eq!(check(&|it| it.worker_group = text(&"g".repeat(129))).len(), 1);
    assert_eq!(
        check(&|it| it.scopes.push("codeq:clam".to_owned())),
        [format!("{key}.scopes[1]: unknown scope 'codeq:clam', did you mean 'codeq:claim'?")]
    );
    let same = StaticToken { tenant: "other".to_owned(), ..good() };
    assert_eq!(
        problems(|config| config.worker_auth.static_tokens = vec![good(), same]),
        ["workerAuth.staticTokens[1]: the same token as staticTokens[0]"]
    );
}

#[test]
fn issuers_are_reached_safely() {
    let jwt = |issuer: &str, jwks: Option<&str>| {
        let jwt = crate::config::JwtConfig {
            issuer: issuer.to_owned(),
            audience: "codeq".to_owned(),
            jwks_url: jwks.map(str::to_owned),
        };
        problems(|config| config.producer_auth.jwt = vec![jwt])
    };
    for good in ["https://id.example", "http://localhost:9/x", "http://127.0.0.1", "http://[::1]:1"]
    {
        assert_eq!(jwt(good, Some(good)), [""; 0], "{good}");
    }
    for bad in
        ["http://id.example", "http://localhost.example", "id.example", "ftp://localhost", ""]
    {
        assert_eq!(jwt("https://id.example", Some(bad)).len(), 1, "{bad}");
    }
    assert_eq!(
        jwt("http://u:secret@id.example", None),
        [
            "producerAuth.jwt[0].issuer: found 'http://***@id.example/', which has credentials; expected \
          an https address (http on this machine only)"
        ]
    );
    // Credentials and a fragment are refused as they would be at the start, and not repeated.
    for bad in ["https://u:secret@id.example/keys", "https://id.example/keys#secret"] {
        for (said, key) in
            [(jwt(bad, None), "issuer"), (jwt("https://id.example", Some(bad)), "jwksUrl")]
        {
            let start = format!("producerAuth.jwt[0].{key}: found 'https://");
            assert!(said.len() == 1 && said[0].starts_with(&start), "{bad} {said:?}");
            assert!(!said[0].contains("secret"), "{said:?}");
        }
    }
    assert_eq!(jwt("", Some("http://id.example")).len(), 2, "both are listed");
    assert!(jwt("", None)[0].starts_with("producerAuth.jwt[0].issuer: missing"));
    // The issuer is only compared when the location of its keys is given.
    for text in ["acme", "acme staff", "http://id.example", "urn:acme:login"] {
        assert_eq!(jwt(text, Some("https://id.example/keys")), [""; 0], "{text}");
        assert_eq!(jwt(text, None).len(), 1, "{text}");
    }
}

#[test]
fn an_exposed_server_requires_authentication() {
    let error = from_env(&[("CODEQ_HTTP_ADDR", "0.0.0.0:8080")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "CODEQ_HTTP_ADDR: httpAddr: 0.0.0.0:8080 is open to the network, but nobody could \
         authenticate: set producerAuth and workerAuth, or listen on 127.0.0.1"
    );
    let jwt = "[{issuer: 'https://i.example', audience: codeq}]";
    let env = [("CODEQ_HTTP_ADDR", "[::]:8080"), ("CODEQ_WORKER_AUTH_JWT", jwt)];
    let warnings = from_env(&env).unwrap().config.warnings();
    assert!(warnings.len() == 2 && warnings[0].contains("without TLS"), "{warnings:?}");
    assert!(warnings[1].ends_with("nobody can enqueue"), "{warnings:?}");

    let mut config = Config::dev("d".into(), ([127, 0, 0, 1], 8080).into()).unwrap();
    config.http_addr = ([10, 0, 0, 1], 8080).into();
    let said: Vec<String> = config.check().iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2);
    assert!(said[0].starts_with("producerAuth.staticTokens[0]: the development token"), "{said:?}");
    assert!(said[1].starts_with("workerAuth.staticTokens[0]: the development token"), "{said:?}");
}

#[test]
fn workers_without_permissions_are_warned_about() {
    let mut config = Config::dev("dir".into(), ([127, 0, 0, 1], 0).into()).unwrap();
    config.allow_producer_as_worker = false;
    assert_eq!(config.warnings(), Vec::<String>::new());
    let idle = StaticToken { scopes: vec![], ..config.worker_auth.static_tokens[0].clone() };
    let blind = StaticToken { event_types: vec![], ..config.worker_auth.static_tokens[0].clone() };
    config.worker_auth.static_tokens.extend([idle, blind]);
    assert_eq!(
        config.warnings(),
        [
            "workerAuth.staticTokens[1] has no scopes: it may not claim or finish tasks",
            "workerAuth.staticTokens[2] has no eventTypes: it may claim no task ('*' allows all)",
        ]
    );
    config.worker_auth.static_tokens.clear();
    let said = |config: &Config| config.warnings().pop().unwrap_or_default();
    assert!(said(&config).ends_with("nobody can claim"), "{}", said(&config));
    config.allow_producer_as_worker = true;
    assert!(said(&config).starts_with("allowProducerAsWorker"), "{}", said(&config));
    config.producer_auth.static_tokens.clear();
    assert_eq!(
        config.warnings().iter().filter(|warning| warning.contains("nobody can ")).count(),
        2
    );
}

#[test]
fn sensitive_networks_are_warned_about() {
    let warnings = |networks: &str| {
        let config = from_env(&[("CODEQ_WEBHOOKS_ALLOWED_NETWORKS", networks)]).unwrap().config;
        let warnings = config.warnings().into_iter();
        warnings.filter(|warning| warning.starts_with("webhooks.")).collect::<Vec<_>>()
    };
    for harmless in ["[]", "[10.0.0.0/8, 192.168.1.7]", "['fd00:1::/32', 100.64.0.0/12]"] {
        assert_eq!(warnings(harmless), [""; 0], "{harmless}");
    }
    let cases = [
        ("[127.0.0.1]", "has 127.0.0.1/32, ", "this machine"),
        ("['::1']", "has ::1/128, ", "this machine"),
        ("['::ffff:127.0.0.0/104']", "/104, ", "this machine"),
        ("[169.254.169.254]", "has 169.254.169.254/32, ", "link-local"),
        ("['fe80::/64']", "has fe80::/64, ", "link-local"),
        ("[100.64.0.0/10]", "has 100.64.0.0/10, ", "a cloud serves"),
        ("[168.63.129.16]", "has 168.63.129.16/32, ", "a cloud serves"),
        ("['fc00::/7']", "has fc00::/7, ", "a cloud serves"),
        ("[10.0.0.0/8, 0.0.0.0/0]", "has 0.0.0.0/0, ", "on this machine only; link-local"),
    ];
    for (networks, which, what) in cases {
        let said = warnings(networks);
        assert!(said.len() == 1 && said[0].contains(which), "{networks} {said:?}");
        assert!(said[0].contains(what), "{networks} {said:?}");
    }
    for bad in ["[10.0.0.1/8]", "[10.0.0.0/33]", "[example.com]", "[7]", "['fe80::1%eth0']", "[[]]"]
    {
        let error = from_env(&[("CODEQ_WEBHOOKS_ALLOWED_NETWORKS", bad)]).unwrap_err().to_string();
        assert!(error.contains("expected a network or an address"), "{bad} {error}");
    }
}

#[test]
fn a_development_server_may_call_this_machine_however_its_token_is_written() {
    let plain = StaticToken { token: Some(DEV_TOKEN.to_owned()), ..StaticToken::default() };
    let hash = crate::hex::hex(&Sha256::digest(DEV_TOKEN));
    let hashed = StaticToken { token_sha256: Some(hash), ..StaticToken::default() };
    let other = StaticToken { token: Some("other".to_owned()), ..StaticToken::default() };
    let is_warned = |producer: &StaticToken, worker: &StaticToken| {
        let mut config = Config::default();
        config.webhooks.allowed_networks = vec!["127.0.0.0/8".parse().unwrap()];
        config.producer_auth.static_tokens = vec![producer.clone()];
        config.worker_auth.static_tokens = vec![worker.clone()];
        config.warnings().iter().any(|warning| warning.starts_with("webhooks.allowedNetworks"))
    };
    for dev in [&plain, &hashed] {
        assert!(!is_warned(dev, &other) && !is_warned(&other, dev), "{dev:?}");
    }
    assert!(is_warned(&other, &other));
}

#[test]
fn a_development_server_is_for_this_machine() {
    let config = Config::dev("dir".into(), ([127, 0, 0, 1], 0).into()).unwrap();
    assert_eq!(config.check(), []);
    assert_eq!((config.log_level.as_str(), config.log_format), ("warn", LogFormat::Text));
    assert!(config.allow_producer_as_worker);
    let producer = &config.producer_auth.static_tokens[0];
    let worker = &config.worker_auth.static_tokens[0];
    for token in [producer, worker] {
        assert_eq!(token.token.as_deref(), Some(DEV_TOKEN));
        assert_eq!((token.subject.as_str(), token.tenant.as_str()), ("worker-dev", "dev-tenant"));
        assert_eq!(token.event_types, ["*"]);
    }
    assert_eq!(producer.scopes, ["codeq:admin", "codeq:operator"]);
    assert_eq!(worker.scopes.len(), 6);
    let refused = Config::dev("dir".into(), ([0, 0, 0, 0], 8080).into()).unwrap_err();
    assert!(refused.to_string().starts_with("httpAddr: found 0.0.0.0:8080, expected a loopback"));
    assert!(Config::dev("dir".into(), "[::1]:0".parse().unwrap()).is_ok());
}

#[test]
fn settings_reach_the_engine() {
    let config = Config {
        shards: Some(3),
        durability: Durability::Os,
        max_attempts_default: 9,
        backoff_policy: BackoffPolicy::Linear,
        backoff_base_seconds: 1,
        backoff_max_seconds: 2,
        retention_seconds: 3,
        retention: RetentionConfig { dead_letter_seconds: 2 },
        result_webhook_max_attempts: 4,
        result_webhook_base_backoff_seconds: 5,
        result_webhook_max_backoff_seconds: 6,
        ..Config::default()
    };
    let options = config.engine_options();
    assert_eq!(options.shards, Some(3));
    assert_eq!(options.durability, codeq_engine::Durability::Os);
    let settings = options.settings;
    assert_eq!(settings.backoff.growth, Growth::Linear);
    assert_eq!((settings.backoff.base, settings.backoff.max), (1_000, 2_000));
    assert_eq!((settings.max_attempts, settings.retention), (9, 3_000));
    assert_eq!(settings.dead_letter_retention, 2_000);
    let callback = (settings.callback_attempts, settings.callback_base, settings.callback_max);
    assert_eq!(callback, (4, 5_000, 6_000));
    assert!(config.warnings()[0].starts_with("durability is 'os'"));
    let shorter = "retention.deadLetterSeconds is shorter than retentionSeconds";
    assert!(config.warnings()[1].starts_with(shorter), "{:?}", config.warnings());
}

#[test]
fn limits_follow_from_the_largest_payload() {
    let plain = Config::default();
    let limits = |c: &Config| [c.payload_max(), c.body_max(), c.batch_body_max(), c.message_max()];
    assert_eq!(limits(&plain), [1 << 20, 1 << 20, 16 << 20, 4 << 20]);
    assert_eq!(plain.buffered_min(), 64 << 20);
    let large = Config { max_payload_bytes: Some(16 << 20), ..Config::default() };
    let around = (16 << 20) + (512 << 10);
    assert_eq!(limits(&large), [16 << 20, around, around, around]);
    assert_eq!(large.buffered_min(), 192 << 20);
    let (set, held) = ("CODEQ_MAX_PAYLOAD_BYTES", "CODEQ_HTTP_MAX_BUFFERED_BYTES");
    from_env(&[(set, "16777216"), (held, "201326592")]).unwrap();
    let error = from_env(&[(set, "16777216"), (held, "201326591")]).unwrap_err().to_string();
    let said =
        "found 201326591, expected at least twelve times maxPayloadBytes, which is 201326592";
    assert!(error.contains("http.maxBufferedBytes") && error.contains(said), "{error}");
}
