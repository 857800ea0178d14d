//! Key rotation, and how often the provider is asked.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::keys::Signer;
use super::provider::Answer;
use super::{NOW, World, assert_invalid, claims, skip};
use crate::{AuthError, Authenticator, Principal, Role};
use serde_json::json;

/// Many concurrent callers with tokens of an unknown key.
fn flood(auth: &Arc<Authenticator>, token: &str) -> JoinSet<Result<Principal, AuthError>> {
    let mut callers = JoinSet::new();
    for _ in 0..1_000 {
        let (auth, token) = (Arc::clone(auth), token.to_owned());
        callers.spawn(async move { auth.authenticate_at(&token, Role::Worker, NOW).await });
    }
    callers
}

#[tokio::test]
async fn a_flood_of_unknown_names_is_one_fetch() {
    let World { provider, auth } = World::new(&[&Signer::new("known")]).await;
    let auth = Arc::new(auth);
    let unknown = Signer::new("unknown").token(&claims());
    for round in 1..=2 {
        // While the provider delays its response, all callers wait for the same fetch.
        provider.open(false);
        let callers = flood(&auth, &unknown);
        provider.asked(round).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(provider.requests(), round);
        provider.open(true);
        for answer in callers.join_all().await {
            assert_invalid(&answer, "unknown kid");
        }
        assert_eq!(provider.requests(), round);
        // Until the pause is over, no caller triggers another fetch.
        skip(29).await;
        for answer in flood(&auth, &unknown).join_all().await {
            assert_invalid(&answer, "unknown kid");
        }
        assert_eq!(provider.requests(), round);
        skip(2).await;
    }
}

#[tokio::test]
async fn a_caller_who_leaves_does_not_end_the_fetch() {
    let signer = Signer::new("ec");
    let World { provider, auth } = World::new(&[&signer]).await;
    let auth = Arc::new(auth);
    let token = signer.token(&claims());
    provider.open(false);
    let (caller, first) = (Arc::clone(&auth), token.clone());
    let leaving =
        tokio::spawn(async move { caller.authenticate_at(&first, Role::Worker, NOW).await });
    provider.asked(1).await;
    leaving.abort();
    assert!(leaving.await.is_err_and(|error| error.is_cancelled()));
    provider.open(true);
    assert!(auth.authenticate_at(&token, Role::Worker, NOW).await.is_ok());
    assert_eq!(provider.requests(), 1);
}

#[tokio::test]
async fn known_names_cause_no_fetch() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    world.auth.warm().await;
    world.auth.warm().await;
    assert_eq!(world.provider.requests(), 1);
    let forged = Signer::new("ec").token(&claims());
    for _ in 0..100 {
        assert!(world.ask(&signer.token(&claims())).await.is_ok());
        assert_invalid(&world.ask(&forged).await, "a known name and a bad signature");
    }
    skip(60).await;
    assert_invalid(&world.ask(&forged).await, "later");
    assert_eq!(world.provider.requests(), 1);
}

#[tokio::test]
async fn a_new_key_works_once_it_is_used() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let world = World::new(&[&old]).await;
    assert!(world.ask(&old.token(&claims())).await.is_ok());
    world.provider.publish(&[&old, &new]);
    assert_invalid(&world.ask(&new.token(&claims())).await, "within the pause");
    skip(30).await;
    assert!(world.ask(&new.token(&claims())).await.is_ok());
    assert!(world.ask(&old.token(&claims())).await.is_ok());
    assert_eq!(world.provider.requests(), 2);
}

#[tokio::test]
async fn a_withdrawn_key_stops_working() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let world = World::new(&[&old, &new]).await;
    assert!(world.ask(&old.token(&claims())).await.is_ok());
    world.provider.publish(&[&new]);
    skip(299).await;
    assert!(world.ask(&old.token(&claims())).await.is_ok());
    world.auth.settled().await;
    assert_eq!(world.provider.requests(), 1);
    // Stale: callers get an answer at once, and the keys are refreshed in the background.
    skip(1).await;
    assert!(world.ask(&new.token(&claims())).await.is_ok());
    world.auth.settled().await;
    assert_eq!(world.provider.requests(), 2);
    assert_invalid(&world.ask(&old.token(&claims())).await, "withdrawn");
}

#[tokio::test]
async fn a_key_withdrawn_while_idle_is_not_accepted() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let world = World::new(&[&old]).await;
    assert!(world.ask(&old.token(&claims())).await.is_ok());
    world.provider.publish(&[&new]);
    skip(10 * 3_600).await;
    assert_invalid(&world.ask(&old.token(&claims())).await, "withdrawn");
    assert_eq!(world.provider.requests(), 2);
}

#[tokio::test]
async fn all_keys_can_be_withdrawn() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    assert!(world.ask(&signer.token(&claims())).await.is_ok());
    world.provider.publish(&[]);
    skip(600).await;
    assert_invalid(&world.ask(&signer.token(&claims())).await, "withdrawn");
}

#[tokio::test]
async fn the_provider_says_how_long_keys_are_fresh() {
    let signer = Signer::new("ec");
    for (cache_control, fresh, stale) in
        [("max-age=900", 899, 900), ("max-age=1", 59, 60), ("max-age=86400", 3_599, 3_600)]
    {
        let world = World::new(&[]).await;
        let body = json!({ "keys": [signer.jwk()] }).to_string().into_bytes();
        world.provider.answer(Answer::Body(200, body, Some(cache_control)));
        for (second, requests) in [(0, 1), (fresh, 1), (stale - fresh, 2)] {
            skip(second).await;
            assert!(world.ask(&signer.token(&claims())).await.is_ok());
            world.auth.settled().await;
            assert_eq!(world.provider.requests(), requests, "{cache_control} after {second}");
        }
    }
}

#[tokio::test]
async fn the_last_good_keys_stay_while_the_provider_is_down() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    let token = signer.token(&claims());
    assert!(world.ask(&token).await.is_ok());
    world.provider.answer(Answer::Body(500, Vec::new(), None));
    // A week of failures, one fetch per caller.
    for hour in 1..=7 * 24 {
        skip(3_600).await;
        assert!(world.ask(&token).await.is_ok(), "hour {hour}");
        world.auth.settled().await;
        assert!(world.ask(&token).await.is_ok(), "hour {hour}");
        assert_eq!(world.provider.requests(), 1 + hour);
    }
    world.provider.publish(&[&Signer::new("new")]);
    skip(30).await;
    assert!(world.ask(&token).await.is_ok());
    world.auth.settled().await;
    assert_invalid(&world.ask(&token).await, "the provider is back, without the key");
}

#[tokio::test]
async fn without_keys_tokens_are_unavailable_not_invalid() {
    let signer = Signer::new("ec");
    let world = World::new(&[]).await;
    let token = signer.token(&claims());
    world.provider.answer(Answer::Body(503, Vec::new(), None));
    for attempt in 1..=3 {
        for _ in 0..10 {
            assert_eq!(world.ask(&token).await, Err(AuthError::Unavailable));
        }
        assert_eq!(world.provider.requests(), attempt);
        skip(4).await;
        assert_eq!(world.ask(&token).await, Err(AuthError::Unavailable));
        assert_eq!(world.provider.requests(), attempt);
        skip(1).await;
    }
    // Tokens that no key could verify are refused without a fetch.
    assert_invalid(&world.ask("abc").await, "not a token");
    world.provider.publish(&[&signer]);
    assert!(world.ask(&token).await.is_ok());
}
