//! Reasons for refusals: in the log, and in the response.

use serde_json::{Value, json};

use super::keys::Signer;
use super::provider::Provider;
use super::{NOW, World, changed, claims, jwt_config};
use crate::settings::{JwtConfig, Settings, StaticToken};
use crate::{AuthError, Authenticator, Principal, Reason, Role};

/// The reason, and the message for the client.
fn why(answer: Result<Principal, AuthError>) -> (Reason, &'static str) {
    let refusal = answer.expect_err("is refused").refusal().expect("has a reason");
    (refusal.reason, refusal.client_message())
}

const GUESS: &str = "the token is not valid";

#[tokio::test]
async fn claim_errors_are_revealed_only_for_verified_tokens() {
    let (signer, attacker) = (Signer::new("ec"), Signer::new("ec"));
    let world = World::new(&[&signer]).await;
    world.auth.warm().await;
    let rows: Vec<(&str, Option<Value>, Reason, &str)> = vec![
        ("aud", Some(json!("x")), Reason::Audience, "the token is for another audience"),
        ("aud", None, Reason::Claims, "aud is missing"),
        ("exp", Some(json!(NOW - 60)), Reason::Expired, "the token has expired"),
        ("exp", None, Reason::Claims, "exp is missing"),
        ("nbf", Some(json!(NOW + 61)), Reason::NotYetValid, "the token is not valid yet"),
        ("iat", Some(json!(NOW + 61)), Reason::NotYetValid, "the token is not valid yet"),
        ("sub", None, Reason::Claims, "sub is missing"),
        ("scope", Some(json!(1)), Reason::Claims, "scope is not a string or a list of strings"),
    ];
    for (name, value, reason, message) in rows {
        let claims = changed(claims(), name, value);
        assert_eq!(why(world.ask(&signer.token(&claims)).await), (reason, message), "{name}");
        // A forger learns nothing from the response, whatever the log says.
        let (_, message) = why(world.ask(&attacker.token(&claims)).await);
        assert_eq!(message, GUESS, "{name}");
    }
    assert_eq!(world.provider.requests(), 1, "nothing is fetched for them");
}

#[tokio::test]
async fn forged_tokens_learn_nothing_but_the_log_has_the_reason() {
    let (signer, attacker) = (Signer::new("ec"), Signer::new("ec"));
    let world = World::new(&[&signer]).await;
    world.auth.warm().await;
    let other = changed(claims(), "iss", Some(json!("https://other.example")));
    let (signed, _) = attacker
        .token(&claims())
        .rsplit_once('.')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    for (token, reason) in [
        (attacker.token(&claims()), Reason::Signature),
        (Signer::new("new").token(&claims()), Reason::UnknownKey),
        (signer.token(&other), Reason::Issuer),
        (format!("e30.{signed}"), Reason::Malformed),
        ("guess".to_owned(), Reason::Unknown),
        ("a.b".to_owned(), Reason::Unknown),
        ("x".repeat(20_000), Reason::Malformed),
    ] {
        assert_eq!(why(world.ask(&token).await), (reason, GUESS));
    }
}

#[tokio::test]
async fn the_most_specific_refusal_wins() {
    let signer = Signer::new("ec");
    let provider = Provider::start().await;
    provider.publish(&[&signer]);
    let mut config = Settings::default();
    let of = |issuer: &str, audience: &str| JwtConfig {
        issuer: issuer.into(),
        audience: audience.into(),
        ..jwt_config(provider.keys_url())
    };
    // With jwksUrl, an issuer need not be a URL.
    config.producers.jwt = vec![of("acme staff", "produce"), of("acme staff", "both")];
    config.workers.jwt = vec![of("elsewhere", "work")];
    config.workers.static_tokens.push(StaticToken {
        token: Some("fixed".into()),
        subject: "s".into(),
        tenant: "t".into(),
        ..StaticToken::default()
    });
    let auth = Authenticator::new(&config).unwrap();
    auth.warm().await;
    let claims = changed(claims(), "iss", Some(json!("acme staff")));
    let ask =
        async |claims: &Value| auth.authenticate_at(&signer.token(claims), Role::Any, NOW).await;
    let for_both = changed(claims.clone(), "aud", Some(json!("both")));
    assert!(ask(&for_both).await.is_ok());
    let late = changed(for_both, "exp", Some(json!(NOW - 100)));
    assert_eq!(why(ask(&late).await), (Reason::Expired, "the token has expired"));
    let message = "the token is for another audience";
    assert_eq!(why(ask(&claims).await), (Reason::Audience, message));
    let odd = auth.authenticate_at("fixe", Role::Any, NOW).await;
    assert_eq!(why(odd), (Reason::Unknown, GUESS));
}
