//! Why a token was refused: in the log with the request's id, in `WWW-Authenticate`, and at the end of a stream.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use codeq_server::Config;
use codeq_server::config::JwtConfig;
use codeq_server::observe::subscriber;
use reqwest::Method;
use serde_json::{Value, json};
use tonic::{Code, Request};
use tracing::subscriber::DefaultGuard;

use crate::grpc::client::{channel, producer_on, worker_on};
use crate::grpc::endings::Provider;
use crate::http::harness::{Harness, PRODUCER, RESTRICTED, WORKER, send};
use crate::observe::logs::SECOND;

/// The lines of a log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of this thread, on which the test's server also runs, until the guard is dropped.
    fn here() -> (Log, DefaultGuard) {
        LazyLock::force(&SECOND);
        let log = Log::default();
        let to = log.clone();
        let (subscriber, _) = subscriber(&Config::default(), move || to.clone()).unwrap();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines about refused tokens.
    fn refusals(&self) -> Vec<Value> {
        let lines = self.text();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == "a token was refused").collect()
    }
}

/// Claims of a token that workers and producers may have.
fn claims() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    json!({
        "iss": "acme staff", "aud": "codeq", "sub": "s", "tenantId": "a", "exp": now + 300,
        "scope": "codeq:claim", "eventTypes": ["*"],
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

async fn server(provider: &Provider) -> Harness {
    let jwt = JwtConfig { issuer: "acme staff".into(), ..provider.config() };
    let server = Harness::with(|config| {
        config.producer_auth.jwt.push(jwt.clone());
        config.worker_auth.jwt.push(jwt);
    })
    .await;
    // The server fetches the keys with the first good token.
    server.get(&provider.token(&claims()), "tasks").await.expect(200);
    server
}

/// The `WWW-Authenticate` value for an invalid token.
fn invalid(description: &str) -> String {
    format!(r#"Bearer realm="codeq", error="invalid_token", error_description="{description}""#)
}

#[tokio::test]
async fn a_refusal_is_explained_to_the_operator_and_to_whoever_may_know() {
    let (log, _guard) = Log::here();
    let provider = Provider::start().await;
    let server = server(&provider).await;
    let stranger = Provider::start().await;
    let guess = invalid("the token is not valid");
    let rows = [
        ("missing", String::new(), r#"Bearer realm="codeq""#.to_owned()),
        ("unknown", "a-secret-guess".to_owned(), guess.clone()),
        ("malformed", "e30.e30.e30".to_owned(), guess.clone()),
        ("signature", stranger.token(&claims()), guess.clone()),
        ("expired", stranger.token(&with("exp", json!(1))), guess.clone()),
        ("issuer", provider.token(&with("iss", json!("other"))), guess.clone()),
        (
            "audience",
            provider.token(&with("aud", json!("x"))),
            invalid("the token is for another audience"),
        ),
        ("expired", provider.token(&with("exp", json!(1))), invalid("the token has expired")),
        (
            "not_yet_valid",
            provider.token(&with("nbf", json!(99_999_999_999_u64))),
            invalid("the token is not valid yet"),
        ),
        ("claims", provider.token(&with("sub", json!(7))), invalid("sub is not a string")),
    ];
    for (at, (reason, token, challenge)) in rows.iter().enumerate() {
        let id = format!("request-{at}");
        let request = server.request(Method::GET, token, "tasks").header("x-request-id", &id);
        let reply = send(request).await.expect(401);
        assert_eq!(reply.headers["www-authenticate"], challenge.as_str(), "{reason}");
        let lines = log.refusals();
        let line = lines.last().unwrap();
        assert_eq!((&line["reason"], &line["request_id"]), (&json!(reason), &json!(id)), "{line}");
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!((lines.len(), &line["path"]), (at + 1, &json!("/v1/codeq/tasks")));
    }
    let text = log.text();
    let secrets = rows.iter().filter(|(_, token, _)| !token.is_empty());
    for (_, token, _) in secrets {
        assert!(!text.contains(token.rsplit('.').next().unwrap()), "{token}");
    }
    // Good tokens without the scope or role for these routes.
    let rows = [
        (RESTRICTED, Method::POST, "tasks/x/nack", Some("codeq:nack")),
        (PRODUCER, Method::POST, "tasks/claim", Some("codeq:claim")),
        (PRODUCER, Method::GET, "admin/queues", Some("codeq:admin")),
        (WORKER, Method::POST, "tasks", None),
    ];
    for (token, method, path, scope) in rows {
        let reply = send(server.request(method, token, path)).await.expect(403);
        let scope = scope.map(|scope| format!(r#", scope="{scope}""#)).unwrap_or_default();
        let challenge = format!(r#"Bearer realm="codeq", error="insufficient_scope"{scope}"#);
        assert_eq!(reply.headers["www-authenticate"], challenge.as_str(), "{path}");
    }
    // A token whose claims name two tenants is of the right kind and has the scope: neither would help.
    let torn = provider.token(&with("tid", json!("b")));
    for path in ["tasks/claim", "tasks"] {
        let reply = send(server.request(Method::POST, &torn, path)).await;
        let body = reply.refused(403, "tenant claims disagree");
        assert!(body["detail"].as_str().unwrap().contains("different tenants"), "{body}");
        let challenge = r#"Bearer realm="codeq", error="insufficient_scope""#;
        assert_eq!(reply.headers["www-authenticate"], challenge, "{path}");
    }
    // A worker that has the scope but does not hold the task is not told to get another token.
    let id = server.running("c").await;
    let reply = server.act(crate::http::harness::WORKER_2, &format!("tasks/{id}/heartbeat")).await;
    assert_eq!(reply.expect(403).headers.get("www-authenticate"), None);
}

#[tokio::test]
async fn a_stream_that_is_refused_has_an_id_in_the_log() {
    let (log, _guard) = Log::here();
    let provider = Provider::start().await;
    let server = server(&provider).await;
    let stranger = Provider::start().await;
    let late = with("exp", json!(1));
    let rows = [
        (provider.token(&late), "expired", "auth failed: the token has expired"),
        (stranger.token(&late), "expired", "auth failed: the token is not valid"),
        (stranger.token(&claims()), "signature", "auth failed: the token is not valid"),
        ("guess".to_owned(), "unknown", "auth failed: the token is not valid"),
        (String::new(), "missing", "missing token"),
    ];
    for (at, (token, reason, text)) in rows.iter().enumerate() {
        let call = |id: &str| {
            let mut call = Request::new(());
            call.metadata_mut().insert("x-request-id", id.parse().unwrap());
            call
        };
        let (ours, theirs) = (format!("p{at}"), format!("w{at}"));
        let mut producer = producer_on(channel(server.producer_addr()).await, call(&ours)).await;
        producer.hello(token).await;
        assert_eq!(producer.ended().await, (Code::Unauthenticated, (*text).to_owned()));
        let mut worker = worker_on(channel(server.worker_addr()).await, call(&theirs)).await;
        worker.hello(token, "").await;
        assert_eq!(worker.ended().await, (Code::Unauthenticated, (*text).to_owned()));
        let lines = log.refusals();
        let last: Vec<_> = lines.iter().rev().take(2).rev().collect();
        for (line, (service, id)) in last.iter().zip([("producer", &ours), ("worker", &theirs)]) {
            assert_eq!((&line["reason"], &line["service"]), (&json!(reason), &json!(service)));
            assert_eq!(line["request_id"], json!(id), "{line}");
        }
        assert_eq!(lines.len(), 2 * at + 2);
    }
    // The line about the stream has the same id. It is written when the stream is gone, at the stop at the latest.
    server.stop().await;
    let text = log.text();
    let streams = text.lines().filter(|line| line.contains(r#""message":"stream""#));
    assert!(streams.into_iter().any(|line| line.contains(r#""request_id":"w4""#)), "{text}");
}

#[tokio::test]
async fn a_token_that_is_revoked_during_a_call_is_in_the_log() {
    let (log, _guard) = Log::here();
    let server = Harness::start().await;
    let claim = server.request(Method::POST, WORKER, "tasks/claim").header("x-request-id", "late");
    let claim = claim.body(json!({"commands": ["c"], "waitSeconds": 30}).to_string());
    let claim = tokio::spawn(send(claim));
    while !server.get("", "/metrics").await.text().contains("\ncodeq_claims_waiting 1\n") {
        tokio::task::yield_now().await;
    }
    let mut config = server.config().clone();
    config.worker_auth.static_tokens.retain(|known| known.token.as_deref() != Some(WORKER));
    server.server().reload_to(&config).await.unwrap();
    claim.await.unwrap().refused(401, "invalid token");
    let lines = log.refusals();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&line["reason"], &line["request_id"]), (&json!("unknown"), &json!("late")));
    assert_eq!(line["detail"], "the token was revoked during the call");
    assert_eq!(line["path"], "/v1/codeq/tasks/claim");
    let metrics = server.get("", "/metrics").await.text();
    assert!(metrics.contains("codeq_token_refusals_total{reason=\"unknown\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_flood_of_bad_tokens_is_counted_and_does_not_flood_the_log() {
    let (log, _guard) = Log::here();
    let server = Harness::start().await;
    for _ in 0..200 {
        server.get("nobody", "tasks").await.expect(401);
    }
    let mut producer = crate::grpc::client::producer(server.producer_addr()).await;
    producer.hello("nobody").await;
    producer.ended().await;
    // The flood does not hide another reason.
    let reply = server.get("e30.e30.e30", "tasks").await.expect(401);
    assert_eq!(reply.json()["error"], "invalid token");
    let count =
        |reason: &str| log.refusals().iter().filter(|line| line["reason"] == reason).count();
    let refused = count("unknown");
    assert!((10..=30).contains(&refused), "{refused} lines");
    assert_eq!(count("malformed"), 1);
    let text = log.text();
    let lines =
        text.lines().filter(|line| line.contains("\"request\"") || line.contains("\"stream\""));
    assert!(lines.count() <= refused + 1, "{text}");
    let metrics = server.get("", "/metrics").await.text();
    assert!(metrics.contains("codeq_token_refusals_total{reason=\"unknown\"} 201\n"), "{metrics}");
}
