//! Producer and worker roles, and validation of the settings.

use serde_json::json;

use super::keys::Signer;
use super::provider::{Answer, Provider};
use super::{NOW, assert_invalid, changed, claims, jwt_config};
use crate::settings::{JwtConfig, Settings, StaticToken};
use crate::{AuthError, Authenticator, EventTypes, Principal, Reason, Refusal, Role, Scopes};

const NOT_A_PRODUCER: Result<Principal, AuthError> =
    Err(AuthError::WrongKind("token is not a producer's"));
const NOT_A_WORKER: Result<Principal, AuthError> =
    Err(AuthError::WrongKind("token is not a worker's"));

fn fixed(token: &str) -> StaticToken {
    StaticToken {
        token: Some(token.to_owned()),
        subject: format!("{token}-subject"),
        tenant: "acme".to_owned(),
        ..StaticToken::default()
    }
}

fn fixed_config() -> Settings {
    let mut config = Settings::default();
    config.producers.static_tokens.push(fixed("producer"));
    config.workers.static_tokens.push(fixed("worker"));
    config
}

/// Producers and workers of one issuer, distinguished by audience.
async fn two_audiences(signer: &Signer) -> (Provider, Settings) {
    let provider = Provider::start().await;
    provider.publish(&[signer]);
    let mut config = Settings::default();
    let base = jwt_config(provider.keys_url());
    let of = |audience: &str| JwtConfig { audience: audience.into(), ..base.clone() };
    config.producers.jwt.push(of("produce"));
    config.workers.jwt.push(of("work"));
    (provider, config)
}

#[tokio::test]
async fn a_static_token_is_accepted_only_in_its_role() {
    let auth = Authenticator::new(&fixed_config()).unwrap();
    let ask = async |token: &str, role| auth.authenticate(token, role).await;
    for role in [Role::Producer, Role::Any] {
        let principal = ask("producer", role).await.expect("is accepted");
        assert!(principal.producer && !principal.worker);
        assert_eq!((&*principal.tenant, &*principal.subject), ("acme", "producer-subject"));
        assert_eq!(principal.expires_at, None);
    }
    for role in [Role::Worker, Role::Any] {
        let principal = ask("worker", role).await.expect("is accepted");
        assert!(principal.worker && !principal.producer);
        assert!(!principal.event_types.allows("build"));
    }
    assert_eq!(ask("worker", Role::Producer).await, NOT_A_PRODUCER);
    assert_eq!(ask("producer", Role::Worker).await, NOT_A_WORKER);
    for role in [Role::Producer, Role::Worker, Role::Any] {
        for token in ["", "Producer", "producer ", "worker\n", &"x".repeat(20_000)] {
            assert_invalid(&ask(token, role).await, token);
        }
    }
}

#[tokio::test]
async fn every_token_is_refused_without_validators() {
    let auth = Authenticator::new(&Settings::default()).unwrap();
    let token = Signer::new("ec").token(&claims());
    for role in [Role::Producer, Role::Worker, Role::Any] {
        assert_invalid(&auth.authenticate(&token, role).await, "no validators");
        assert_invalid(&auth.authenticate("", role).await, "no validators");
    }
}

#[tokio::test]
async fn producers_may_work_if_that_is_allowed() {
    let config = Settings { producers_may_work: true, ..fixed_config() };
    let auth = Authenticator::new(&config).unwrap();
    for role in [Role::Producer, Role::Worker, Role::Any] {
        let principal = auth.authenticate("producer", role).await.expect("is accepted");
        assert!(principal.producer && principal.worker && !principal.admin && !principal.operator);
        assert_eq!(principal.scopes, Scopes::ALL);
        assert_eq!(principal.event_types, EventTypes::Any);
    }
    let worker = auth.authenticate("worker", Role::Worker).await.expect("is accepted");
    assert_eq!((worker.scopes, worker.producer), (Scopes::default(), false));
    assert_eq!(auth.authenticate("worker", Role::Producer).await, NOT_A_PRODUCER);
    assert_invalid(&auth.authenticate("nobody", Role::Worker).await, "unknown");
}

#[tokio::test]
async fn a_signed_token_is_accepted_only_in_its_role() {
    let signer = Signer::new("ec");
    let (provider, config) = two_audiences(&signer).await;
    let auth = Authenticator::new(&config).unwrap();
    let ask = async |audience: &str, role| {
        let token = signer.token(&changed(claims(), "aud", Some(json!(audience))));
        auth.authenticate_at(&token, role, NOW).await
    };
    for role in [Role::Producer, Role::Any] {
        let principal = ask("produce", role).await.expect("is accepted");
        assert!(principal.producer && !principal.worker);
        assert_eq!(principal.scopes, Scopes::default());
    }
    for role in [Role::Worker, Role::Any] {
        let principal = ask("work", role).await.expect("is accepted");
        assert!(principal.worker && !principal.producer);
    }
    assert_eq!(ask("work", Role::Producer).await, NOT_A_PRODUCER);
    assert_eq!(ask("produce", Role::Worker).await, NOT_A_WORKER);
    assert_invalid(&ask("other", Role::Any).await, "other audience");
    // A token its own validator recognises and forbids stays forbidden, even if another would accept it.
    let torn = changed(claims(), "aud", Some(json!("produce")));
    let torn = signer.token(&changed(torn, "tenantId", Some(json!("other"))));
    let refused = Err(AuthError::TenantsDisagree);
    assert_eq!(auth.authenticate_at(&torn, Role::Any, NOW).await, refused);
    // One issuer has one set of keys, shared by both roles.
    let unknown = Signer::new("unknown").token(&changed(claims(), "aud", Some(json!("work"))));
    assert_invalid(&auth.authenticate_at(&unknown, Role::Any, NOW).await, "unknown");
    assert_eq!(provider.requests(), 1);
}

#[tokio::test]
async fn a_producer_needs_no_event_types() {
    let signer = Signer::new("ec");
    let (_provider, config) = two_audiences(&signer).await;
    let claims = changed(claims(), "aud", Some(json!("produce")));
    let token = signer.token(&changed(claims, "eventTypes", Some(json!(1))));
    for producers_may_work in [false, true] {
        let config = Settings { producers_may_work, ..config.clone() };
        let auth = Authenticator::new(&config).unwrap();
        let principal = auth.authenticate_at(&token, Role::Producer, NOW).await;
        assert_eq!(principal.expect("is accepted").worker, producers_may_work);
    }
}

#[tokio::test]
async fn the_real_clock_is_used() {
    let signer = Signer::new("ec");
    let (_provider, config) = two_audiences(&signer).await;
    let auth = Authenticator::new(&config).unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let work = changed(claims(), "aud", Some(json!("work")));
    for (exp, passes) in [(now + 60, true), (now - 3_600, false)] {
        let token = signer.token(&changed(work.clone(), "exp", Some(json!(exp))));
        assert_eq!(auth.authenticate(&token, Role::Worker).await.is_ok(), passes);
    }
}

#[tokio::test]
async fn validators_are_tried_in_turn() {
    let (first, second) = (Signer::new("one"), Signer::new("two"));
    let (down, up) = (Provider::start().await, Provider::start().await);
    down.publish(&[&first]);
    up.publish(&[&second]);
    let mut config = Settings::default();
    config.workers.static_tokens.push(fixed("worker"));
    for provider in [&down, &up] {
        config.workers.jwt.push(jwt_config(provider.keys_url()));
    }
    let ask = async |auth: &Authenticator, token: &str| {
        auth.authenticate_at(token, Role::Worker, NOW).await
    };
    let auth = Authenticator::new(&config).unwrap();
    for signer in [&first, &second] {
        assert!(ask(&auth, &signer.token(&claims())).await.is_ok());
    }
    assert_invalid(&ask(&auth, &Signer::new("three").token(&claims())).await, "neither");
    // An unavailable provider does not stop the other from deciding, and it might have accepted the token.
    down.answer(Answer::Body(500, Vec::new(), None));
    let auth = Authenticator::new(&config).unwrap();
    assert!(ask(&auth, &second.token(&claims())).await.is_ok());
    assert!(ask(&auth, "worker").await.is_ok());
    assert_eq!(ask(&auth, &first.token(&claims())).await, Err(AuthError::Unavailable));
    // A token of an unknown issuer needs no provider.
    let stranger = first.token(&changed(claims(), "iss", Some(json!("https://other.example"))));
    assert_invalid(&ask(&auth, &stranger).await, "other issuer");
}

#[test]
fn mistakes_in_the_configuration_are_named() {
    let good = jwt_config("https://id.test.example/keys".into());
    let cases = [
        (JwtConfig { issuer: String::new(), ..good.clone() }, "issuer is missing"),
        (JwtConfig { audience: String::new(), ..good.clone() }, "audience is missing"),
        (jwt_config("keys".into()), "jwksUrl is not a url"),
        (jwt_config("http://id.test.example/keys".into()), "jwksUrl is not https"),
        (jwt_config("https://user:word@id.test.example/".into()), "jwksUrl has credentials"),
        (jwt_config("https://id.test.example/#x".into()), "jwksUrl has a fragment"),
        (
            JwtConfig { issuer: "accounts".into(), jwks_url: None, ..good.clone() },
            "issuer is not a url, and there is no jwksUrl",
        ),
        (
            JwtConfig { issuer: "http://id.test.example".into(), jwks_url: None, ..good.clone() },
            "issuer is not https, and there is no jwksUrl",
        ),
    ];
    for (jwt, want) in cases {
        let mut config = Settings::default();
        config.producers.jwt = vec![good.clone(), jwt];
        let refused = Authenticator::new(&config).err().expect("is refused");
        assert_eq!(refused, format!("producerAuth: jwt[1]: {want}"));
    }
    let mut config = Settings::default();
    config.workers.static_tokens.push(StaticToken { token: None, ..fixed("w") });
    let refused = Authenticator::new(&config).err().expect("is refused");
    assert!(refused.starts_with("workerAuth: fixed token of subject \"w-subject\""), "{refused}");
}

#[test]
fn clients_do_not_learn_the_reason() {
    assert_eq!(
        AuthError::from(Refusal::new(Reason::Signature, "bad signature")).to_string(),
        "invalid token"
    );
}
