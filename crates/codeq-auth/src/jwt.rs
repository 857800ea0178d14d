//! JSON Web Tokens of one issuer.
//!
//! The library checks signatures; the rest is checked here, because its way with claims (wrong types that
//! count as absent, a clock that cannot be set) is looser than ours. Nothing that a token's header points
//! to (`jku`, `x5u`, `jwk`, `x5c`) is ever looked at.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::claims::{Claims, present};
use crate::grants::Kind;
use crate::jwk::{KID_BYTES_MAX, Key, accepted_algorithm};
use crate::key_cache::KeyCache;
use crate::principal::Principal;
use crate::refusal::{AuthError, Reason, Refusal};

/// A token taken apart. Nothing in it is to be believed yet.
pub(crate) struct Jwt<'a> {
    algorithm: Algorithm,
    kid: Option<String>,
    claims: Claims,
    message: &'a str,
    signature: &'a str,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default, deserialize_with = "present")]
    kid: Option<String>,
    #[serde(default, deserialize_with = "present")]
    typ: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "present")]
    b64: Option<IgnoredAny>,
}

impl<'a> Jwt<'a> {
    /// Takes a token apart, if it is one that could pass.
    pub fn parse(token: &'a str) -> Result<Jwt<'a>, Refusal> {
        const OTHER: &str = "no fixed token of this role, and not a jwt";
        let other = || Refusal::new(Reason::Unknown, OTHER);
        let (message, signature) = token.rsplit_once('.').ok_or_else(other)?;
        let (header, claims) = message.split_once('.').ok_or_else(other)?;
        let read = Jwt::read(header, claims, message, signature);
        read.map_err(|why| Refusal::new(Reason::Malformed, why))
    }

    fn read(
        header: &str,
        claims: &str,
        message: &'a str,
        signature: &'a str,
    ) -> Result<Jwt<'a>, &'static str> {
        let header: Header = decode(header).ok_or("jwt header does not parse")?;
        if header.crit.is_some() || header.b64.is_some() {
            return Err("jwt header has extensions that are not understood");
        }
        let algorithm = accepted_algorithm(&header.alg).ok_or("jwt algorithm is not accepted")?;
        if !header.typ.as_deref().is_none_or(is_accepted_type) {
            return Err("jwt is of another type");
        }
        if header.kid.as_ref().is_some_and(|kid| kid.len() > KID_BYTES_MAX) {
            return Err("kid is too long");
        }
        let claims = decode(claims).ok_or("jwt claims do not parse")?;
        Ok(Jwt { algorithm, kid: header.kid, claims, message, signature })
    }
}

fn decode<T: DeserializeOwned>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    // serde would also read a struct from an array.
    json.trim_ascii_start().starts_with(b"{").then_some(())?;
    serde_json::from_slice(&json).ok()
}

/// Tokens made for something else (a logout, a proof of possession) say so here (RFC 8725, 3.11).
fn is_accepted_type(typ: &str) -> bool {
    ["JWT", "at+jwt", "application/at+jwt"].iter().any(|ours| typ.eq_ignore_ascii_case(ours))
}

/// Accepts tokens of one issuer for one audience.
pub(crate) struct JwtValidator {
    issuer: String,
    audience: String,
    keys: Arc<KeyCache>,
}

impl JwtValidator {
    /// A validator that takes its keys from `keys`.
    pub fn new(issuer: String, audience: String, keys: Arc<KeyCache>) -> JwtValidator {
        JwtValidator { issuer, audience, keys }
    }

    /// Whether tokens with this `iss` are this validator's business.
    pub fn is_for(&self, jwt: &Jwt<'_>) -> bool {
        jwt.claims.is_of(&self.issuer)
    }

    /// Checks everything. What costs least comes first, so that a token that cannot pass causes no fetch; whether it
    /// is the issuer's at all is then found out with the keys that are here.
    pub async fn validate(
        &self,
        jwt: &Jwt<'_>,
        kind: Kind,
        now: u64,
    ) -> Result<Principal, AuthError> {
        if !self.is_for(jwt) {
            return Err(Refusal::new(Reason::Issuer, "iss is another").into());
        }
        let verify = |key: &Key| key.verify(jwt.algorithm, jwt.message, jwt.signature);
        if let Err(refusal) = jwt.claims.check(&self.audience, now) {
            let known = self.keys.known(jwt.kid.as_deref());
            let verified = known.is_some_and(|key| verify(&key).is_ok());
            return Err(Refusal { verified, ..refusal }.into());
        }
        let key = self.keys.key(jwt.kid.as_deref()).await?;
        verify(&key).map_err(|why| Refusal::new(Reason::Signature, why))?;
        jwt.claims.principal(kind)
    }
}
