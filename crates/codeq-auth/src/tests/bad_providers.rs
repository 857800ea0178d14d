//! Misbehaving providers: bad responses are discarded and loaded keys stay.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::keys::Signer;
use super::provider::{Answer, Provider};
use super::{AUDIENCE, NOW, World, assert_invalid, changed, claims, skip, worker_config};
use crate::settings::{JwtConfig, Settings};
use crate::{AuthError, Authenticator, Role};

fn bad_answers() -> Vec<(&'static str, Answer)> {
    let body = |text: &str| Answer::Body(200, text.as_bytes().to_vec(), None);
    let many: Vec<_> = (0..101).map(|_| Signer::new("ec").jwk()).collect();
    vec![
        ("redirect", Answer::Redirect),
        ("500", Answer::Body(500, br#"{"keys":[]}"#.to_vec(), None)),
        ("201", Answer::Body(201, br#"{"keys":[]}"#.to_vec(), None)),
        ("empty", body("")),
        ("html", body("<html></html>")),
        ("half", body(r#"{"keys":["#)),
        ("no keys", body("{}")),
        ("null keys", body(r#"{"keys":null}"#)),
        ("keys by name", body(r#"{"keys":{"ec":{}}}"#)),
        ("10 MB", Answer::Body(200, vec![b' '; 10 << 20], None)),
        ("101 keys", body(&json!({ "keys": many }).to_string())),
    ]
}

#[tokio::test]
async fn without_a_valid_key_set_tokens_cannot_be_verified() {
    let signer = Signer::new("ec");
    for (case, answer) in bad_answers() {
        let world = World::new(&[]).await;
        world.provider.answer(answer);
        let refused = world.ask(&signer.token(&claims())).await;
        assert_eq!(refused, Err(AuthError::Unavailable), "{case}");
        assert_eq!((world.provider.requests(), world.provider.elsewhere()), (1, 0), "{case}");
    }
}

#[tokio::test]
async fn an_invalid_refresh_keeps_the_current_keys() {
    let signer = Signer::new("ec");
    let unknown = Signer::new("unknown").token(&claims());
    for (case, answer) in bad_answers() {
        let world = World::new(&[&signer]).await;
        world.auth.warm().await;
        world.provider.answer(answer);
        skip(30).await;
        assert_invalid(&world.ask(&unknown).await, case);
        assert!(world.ask(&signer.token(&claims())).await.is_ok(), "{case}");
        assert_eq!((world.provider.requests(), world.provider.elsewhere()), (2, 0), "{case}");
    }
}

#[tokio::test]
async fn a_key_set_beyond_256_kib_is_refused() {
    let signer = Signer::new("ec");
    for (bytes, fits) in [(256 << 10, true), ((256 << 10) + 1, false)] {
        let world = World::new(&[]).await;
        let mut body = json!({ "keys": [signer.jwk()] }).to_string().into_bytes();
        body.resize(bytes, b' ');
        world.provider.answer(Answer::Body(200, body, None));
        assert_eq!(world.ask(&signer.token(&claims())).await.is_ok(), fits, "{bytes}");
    }
}

#[tokio::test]
async fn a_fetch_times_out_after_five_seconds() {
    let signer = Signer::new("ec");
    for answer in [Answer::Hang, Answer::Drip] {
        let world = World::new(&[]).await;
        world.provider.answer(answer);
        // From here, the clock jumps to the next timer whenever every task is waiting.
        tokio::time::pause();
        let start = Instant::now();
        let refused = world.ask(&signer.token(&claims())).await;
        assert_eq!(refused, Err(AuthError::Unavailable));
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
        tokio::time::resume();
    }
}

#[tokio::test]
async fn callers_do_not_wait_for_a_slow_provider_that_failed() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    world.auth.warm().await;
    world.provider.answer(Answer::Hang);
    skip(3_600).await;
    tokio::time::pause();
    assert!(world.ask(&signer.token(&claims())).await.is_ok());
    tokio::time::advance(Duration::from_secs(30)).await;
    let start = Instant::now();
    assert!(world.ask(&signer.token(&claims())).await.is_ok());
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn tokens_of_an_unreachable_provider_are_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    drop(listener);
    let auth = Authenticator::new(&worker_config(url)).unwrap();
    auth.warm().await;
    let token = Signer::new("ec").token(&claims());
    let refused = auth.authenticate_at(&token, Role::Worker, NOW).await;
    assert_eq!(refused, Err(AuthError::Unavailable));
}

#[tokio::test]
async fn a_discovery_document_must_name_its_issuer_and_a_safe_key_url() {
    let signer = Signer::new("ec");
    let provider = Provider::start().await;
    provider.publish(&[&signer]);
    let (issuer, keys) = (provider.url(), provider.keys_url());
    let mut config = Settings::default();
    let jwt = JwtConfig { issuer: issuer.clone(), audience: AUDIENCE.into(), jwks_url: None };
    config.workers.jwt.push(jwt);
    let token = signer.token(&changed(claims(), "iss", Some(json!(issuer))));
    let ask = async || {
        let auth = Authenticator::new(&config).unwrap();
        auth.authenticate_at(&token, Role::Worker, NOW).await
    };
    for (case, document) in [
        ("nothing", json!(null)),
        ("no issuer", json!({ "jwks_uri": keys })),
        ("other issuer", json!({ "issuer": "https://other.example", "jwks_uri": keys })),
        ("slash", json!({ "issuer": format!("{issuer}/"), "jwks_uri": keys })),
        ("no keys", json!({ "issuer": issuer })),
        ("plain", json!({ "issuer": issuer, "jwks_uri": "http://id.test.example/keys" })),
        ("file", json!({ "issuer": issuer, "jwks_uri": "file:///etc/hostname" })),
    ] {
        provider.discovery(document);
        assert_eq!(ask().await, Err(AuthError::Unavailable), "{case}");
        assert_eq!(provider.requests(), 0, "{case}");
    }
    provider.discovery(json!({ "issuer": issuer, "jwks_uri": keys }));
    assert!(ask().await.is_ok());
    assert_eq!(provider.requests(), 1);
}
