//! Messages and positions for invalid files.

use super::*;

#[test]
fn errors_name_the_position_and_the_remedy() {
    for (yaml, expected) in [
        (
            "maxAtempts: 3\n",
            "codeq.yaml:1:1: unknown key 'maxAtempts', did you mean 'maxAttemptsDefault'?",
        ),
        (
            "http:\n  maxBodyByte: 3\n",
            "codeq.yaml:2:3: http: unknown key 'maxBodyByte', did you mean 'http.maxBodyBytes'?",
        ),
        (
            "maxBodyBytes: 3\n",
            "codeq.yaml:1:1: unknown key 'maxBodyBytes', did you mean 'http.maxBodyBytes'?",
        ),
        (
            "max_batch_size: 3\n",
            "codeq.yaml:1:1: unknown key 'max_batch_size', did you mean 'maxBatchSize'?",
        ),
        ("zzz: 3\n", "codeq.yaml:1:1: unknown key 'zzz'"),
        (
            "port: 8080\n",
            "codeq.yaml:1:1: unknown key 'port': it is part of 'httpAddr', such as 0.0.0.0:8080",
        ),
        (
            "rateLimit:\n  producer: {requestsPerMinute: 6, burstSize: 1}\n",
            "codeq.yaml:2:36: rateLimit.producer: unknown key 'burstSize': see 'burst'",
        ),
        (
            "# a comment\n\nshards: many\n",
            "codeq.yaml:3:9: shards: found 'many', expected a whole number from 0 to 65535",
        ),
        (
            "shards: '2'\n",
            "codeq.yaml:1:9: shards: found '2', expected a whole number from 0 to 65535",
        ),
        ("shards: 65\n", "codeq.yaml:1:9: shards: found 65, expected 1 to 64"),
        (
            "maxAttemptsDefault: -1\n",
            "codeq.yaml:1:21: maxAttemptsDefault: found -1, expected a whole number from 0 to \
             4294967295",
        ),
        (
            "maxAttemptsDefault: 1.5\n",
            "codeq.yaml:1:21: maxAttemptsDefault: found 1.5, expected a whole number from 0 to \
             4294967295",
        ),
        (
            "retentionSeconds:\n",
            "codeq.yaml:1:17: retentionSeconds: found nothing, expected a whole number, 0 or more",
        ),
        (
            "http: 5\n",
            "codeq.yaml:1:7: http: found 5, expected a mapping with maxBodyBytes, \
             maxBatchBodyBytes, maxBufferedBytes, maxConnections, headerTimeoutSeconds, \
             bodyTimeoutSeconds, idleTimeoutSeconds, unknownFields",
        ),
        (
            "metrics: {public: yes}\n",
            "codeq.yaml:1:19: metrics.public: found 'yes', expected true or false",
        ),
        ("timezone: [UTC]\n", "codeq.yaml:1:11: timezone: found a list, expected a string"),
        (
            "logLevel: true\n",
            "codeq.yaml:1:11: logLevel: found true, expected a string: put it in quotes",
        ),
        (
            "httpAddr: ':8080'\n",
            "codeq.yaml:1:11: httpAddr: found ':8080', expected an address and a port, such as \
             127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080",
        ),
        ("durability: none\n", "codeq.yaml:1:13: durability: found 'none', expected fsync or os"),
        (
            "logFormat: xml\n",
            "codeq.yaml:1:12: logFormat: found 'xml', expected json, text or short",
        ),
        (
            "backoffPolicy: cubic\n",
            "codeq.yaml:1:16: backoffPolicy: found 'cubic', expected fixed, linear, exponential, \
             exp_equal_jitter or exp_full_jitter",
        ),
        (
            "tracing:\n  sampleRatio: often\n",
            "codeq.yaml:2:16: tracing.sampleRatio: found 'often', expected a number",
        ),
        ("shards: 1\nshards: 2\n", "codeq.yaml:2:1: key 'shards' is already on line 1"),
        (
            "workerAuth:\n  staticTokens:\n    - tokn: x\n      tenant: 5\n",
            "codeq.yaml:3:7: workerAuth.staticTokens[0]: unknown key 'tokn', did you mean 'token'?",
        ),
        (
            "shards: &one 1\n",
            "codeq.yaml:1:14: anchors and aliases are not supported; write the value out",
        ),
        (
            "shards: !!int 1\n",
            "codeq.yaml:1:15: tags are not supported; write the value without it",
        ),
        (
            "shards: 1\n---\nshards: 2\n",
            "codeq.yaml:3:1: a second document begins here; only one is allowed",
        ),
        ("? [a]\n: 1\n", "codeq.yaml:1:3: a key must be a string"),
        ("- shards\n", "codeq.yaml:1:1: found a list, expected a mapping with dataDir, httpAddr"),
    ] {
        let lines = Fixture::new(yaml).complaints(&[]);
        let first = lines.first().unwrap();
        assert!(first.starts_with(expected), "{yaml}\n   found {first}\nexpected {expected}");
        assert!(first.len() == expected.len() || yaml.starts_with('-'), "{first}");
    }
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    for (yaml, place) in [("shards: [1\n", "codeq.yaml:1:9: "), ("a: b: c\n", "codeq.yaml:1:5: ")] {
        let lines = Fixture::new(yaml).complaints(&[]);
        assert!(lines.len() == 1 && lines[0].starts_with(place), "{lines:?}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let yaml = "shards: 99\nmaxAtempts: 1\nhttp:\n  maxConnections: x\ndefaultLeaseSeconds: 0\n";
    let lines = Fixture::new(yaml).complaints(&[("CODEQ_TIMEZONE", "Mars/Olympus")]);
    assert_eq!(
        lines,
        [
            "codeq.yaml:2:1: unknown key 'maxAtempts', did you mean 'maxAttemptsDefault'?",
            "codeq.yaml:4:19: http.maxConnections: found 'x', expected a whole number, 0 or more",
            "codeq.yaml:1:9: shards: found 99, expected 1 to 64",
            "codeq.yaml:5:22: defaultLeaseSeconds: found 0, expected 1 to 43200",
            "CODEQ_TIMEZONE: timezone: found 'Mars/Olympus', expected an IANA name such as \
             America/Sao_Paulo",
        ]
    );
}

#[test]
fn a_variable_does_not_hide_a_mistake_in_the_file() {
    for (yaml, expected) in [
        ("shards: x\n", "codeq.yaml:1:9: shards: found 'x'"),
        ("http: 5\n", "codeq.yaml:1:7: http: found 5"),
        ("- shards\n", "codeq.yaml:1:1: found a list"),
    ] {
        let env = [("CODEQ_SHARDS", "65"), ("CODEQ_HTTP_MAX_CONNECTIONS", "0")];
        let lines = Fixture::new(yaml).complaints(&env);
        assert!(lines.len() == 3 && lines[0].starts_with(expected), "{lines:?}");
        assert!(lines[1].starts_with("CODEQ_SHARDS: shards: found 65"), "{lines:?}");
        assert!(lines[2].starts_with("CODEQ_HTTP_MAX_CONNECTIONS: http."), "{lines:?}");
    }
}

#[test]
fn relations_are_checked_only_if_all_values_are_readable() {
    let fixture = Fixture::new("backoffBaseSeconds: 1000\nbackoffMaxSeconds: x\n");
    let lines = fixture.complaints(&[]);
    assert_eq!(
        lines,
        ["codeq.yaml:2:20: backoffMaxSeconds: found 'x', expected a whole number, 0 or more"]
    );
    let lines = Fixture::new("backoffBaseSeconds: 1000\n").complaints(&[]);
    assert_eq!(
        lines,
        ["codeq.yaml:1:21: backoffBaseSeconds: found 1000, expected at most backoffMaxSeconds, \
          which is 900"]
    );
}

#[test]
fn files_that_expand_are_refused() {
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n";
    let lines = Fixture::new(bomb).complaints(&[]);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("anchors and aliases are not supported"), "{lines:?}");

    let deep = format!("shards: {}{}\n", "[".repeat(100), "]".repeat(100));
    let lines = Fixture::new(&deep).complaints(&[]);
    assert_eq!(lines, ["codeq.yaml:1:25: too deep or too large for a configuration"]);

    let wide = format!("shards: [{}]\n", "1,".repeat(60_000));
    let lines = Fixture::new(&wide).complaints(&[]);
    assert!(lines[0].ends_with("too deep or too large for a configuration"), "{lines:?}");
}

#[test]
fn problems_are_bounded() {
    let yaml: String = (0..10_000).map(|n| format!("zzz{n}: 1\n")).collect();
    assert_eq!(Fixture::new(&yaml).complaints(&[]).len(), 50);
    let long = format!("{}: 1\n", "z".repeat(100_000));
    let lines = Fixture::new(&long).complaints(&[]);
    assert!(lines.len() == 1 && lines[0].len() < 200, "{lines:?}");
}

#[test]
fn files_that_cannot_be_read() {
    let fixture = Fixture::new("");
    let error = load(Some(fixture.dir.path()), variables(&[]), &Flags::default()).unwrap_err();
    assert!(matches!(error, ConfigError::File { .. }) && error.problems().is_empty());

    let missing = fixture.dir.path().join("none.yaml");
    let error = load(Some(&missing), variables(&[]), &Flags::default()).unwrap_err();
    assert_eq!(fixture.lines(&error), ["none.yaml: No such file or directory (os error 2)"]);

    let fixture = Fixture::new(&"#".repeat((1 << 20) + 1));
    assert_eq!(fixture.complaints(&[]), ["codeq.yaml: larger than 1048576 bytes"]);

    let fixture = Fixture::new("");
    fs::write(fixture.path(), b"timezone: \xff\n").unwrap();
    assert_eq!(fixture.complaints(&[]), ["codeq.yaml: stream did not contain valid UTF-8"]);
}

#[test]
fn a_file_of_the_largest_size_is_read() {
    let line = "shards: 2\n";
    let yaml = format!("{line}{}", "#".repeat((1 << 20) - line.len()));
    assert_eq!(from_yaml(&yaml).config.shards, Some(2));
}
