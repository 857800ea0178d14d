//! Bearer tokens: JSON Web Tokens up to the point where a key is needed.

use codeq_auth::{Authenticator, JwtConfig, Role, Settings};
use tokio::runtime::{Builder, Runtime};

thread_local! {
    static AUTH: (Authenticator, Runtime) = {
        let mut settings = Settings::default();
        settings.workers.jwt.push(JwtConfig {
            issuer: "https://id.test.example".to_owned(),
            audience: "codeq".to_owned(),
            // Nobody listens there.
            jwks_url: Some("http://127.0.0.1:9/keys".to_owned()),
        });
        let auth = Authenticator::new(&settings).expect("a sound configuration");
        (auth, Builder::new_current_thread().enable_all().build().expect("a runtime"))
    };
}

/// No token is accepted: there is no key that a signature could fit.
pub fn run(data: &[u8]) {
    let Ok(token) = std::str::from_utf8(data) else { return };
    AUTH.with(|(auth, runtime)| {
        for role in [Role::Worker, Role::Producer] {
            assert!(runtime.block_on(auth.authenticate(token, role)).is_err());
        }
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    // {"alg":"ES256","kid":"k"} and {"iss":"https://other.example","aud":"codeq","sub":"s","exp":9999999999}
    let other = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.eyJpc3MiOiJodHRwczovL290aGVyLmV4YW1wbGUiLCJhdWQiOiJjb2RlcSIsInN1\
                 YiI6InMiLCJleHAiOjk5OTk5OTk5OTl9.AAAA";
    // {"alg":"none"} and {}
    let none = "eyJhbGciOiJub25lIn0.e30.";
    [other, none, "dev-token", "a.b.c"].map(|token| token.as_bytes().to_vec()).to_vec()
}
