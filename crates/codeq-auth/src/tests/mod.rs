//! Tests tokens against a real provider on a local socket.

use std::time::Duration;

use serde_json::{Value, json};

use crate::settings::{JwtConfig, Settings};
use crate::{AuthError, Authenticator, Principal, Role};
use keys::Signer;
use provider::Provider;

mod bad_providers;
mod claims;
mod headers;
mod key_sets;
mod keys;
mod provider;
mod reasons;
mod refresh;
mod roles;

/// The current time in all these tests, in Unix seconds.
const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://id.test.example/realm";
const AUDIENCE: &str = "codeq";

/// A provider, and a server that trusts it for workers.
struct World {
    provider: Provider,
    auth: Authenticator,
}

impl World {
    async fn new(signers: &[&Signer]) -> World {
        let provider = Provider::start().await;
        provider.publish(signers);
        let auth = Authenticator::new(&worker_config(provider.keys_url())).expect("is well formed");
        World { provider, auth }
    }

    async fn ask(&self, token: &str) -> Result<Principal, AuthError> {
        self.auth.authenticate_at(token, Role::Worker, NOW).await
    }
}

fn worker_config(jwks_url: String) -> Settings {
    let mut config = Settings::default();
    config.workers.jwt.push(jwt_config(jwks_url));
    config
}

fn jwt_config(jwks_url: String) -> JwtConfig {
    JwtConfig { issuer: ISSUER.into(), audience: AUDIENCE.into(), jwks_url: Some(jwks_url) }
}

/// The claims of a good token.
fn claims() -> Value {
    json!({
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "worker-1",
        "exp": NOW + 300,
        "tid": "acme",
        "scope": "codeq:claim",
        "eventTypes": ["build"],
    })
}

/// Sets one claim, or removes it.
fn changed(mut object: Value, name: &str, value: Option<Value>) -> Value {
    let map = object.as_object_mut().expect("is an object");
    match value {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
    object
}

fn assert_invalid(answer: &Result<Principal, AuthError>, case: &str) {
    assert!(matches!(answer, Err(AuthError::Invalid(_))), "{case}: {answer:?}");
}

/// Advances the caches' clock without waiting. The clock resumes afterwards: if paused, it would
/// jump ahead whenever a test waits for a socket.
async fn skip(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}
