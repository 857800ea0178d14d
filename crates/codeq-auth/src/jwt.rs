//! Validates JSON Web Tokens of one issuer.
//!
//! The library only verifies signatures. Claims are checked here, because the library is too
//! lenient: it treats claims of the wrong type as absent, and its clock cannot be set. Header
//! fields that point to keys (`jku`, `x5u`, `jwk`, `x5c`) are ignored.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::claims::{Claims, MaybeAbsent};
use crate::grants::AcceptedBy;
use crate::jwk::{KID_BYTES_MAX, Key, accepted_algorithm};
use crate::key_cache::KeyCache;
use crate::principal::Principal;
use crate::refusal::{AuthError, Reason, Refusal};

/// A parsed token. Untrusted until its signature is verified.
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
    #[serde(default)]
    kid: MaybeAbsent<String>,
    #[serde(default)]
    typ: MaybeAbsent<String>,
    #[serde(default)]
    crit: MaybeAbsent<IgnoredAny>,
    #[serde(default)]
    b64: MaybeAbsent<IgnoredAny>,
}

impl<'a> Jwt<'a> {
    /// Parses a token, rejecting any that could never pass.
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
        if header.crit.0.is_some() || header.b64.0.is_some() {
            return Err("jwt header has extensions that are not understood");
        }
        let algorithm = accepted_algorithm(&header.alg).ok_or("jwt algorithm is not accepted")?;
        if !header.typ.0.as_deref().is_none_or(is_accepted_type) {
            return Err("jwt is of another type");
        }
        if header.kid.0.as_ref().is_some_and(|kid| kid.len() > KID_BYTES_MAX) {
            return Err("kid is too long");
        }
        let claims = decode(claims).ok_or("jwt claims do not parse")?;
        Ok(Jwt { algorithm, kid: header.kid.0, claims, message, signature })
    }
}

fn decode<T: DeserializeOwned>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    // serde would also read a struct from an array.
    json.trim_ascii_start().starts_with(b"{").then_some(())?;
    serde_json::from_slice(&json).ok()
}

/// Tokens for other purposes (a logout, a proof of possession) declare it in `typ` (RFC 8725, 3.11).
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
    /// Creates a validator that takes its keys from `keys`.
    pub fn new(issuer: String, audience: String, keys: Arc<KeyCache>) -> JwtValidator {
        JwtValidator { issuer, audience, keys }
    }

    /// Whether the token's `iss` is this validator's issuer.
    pub fn is_for(&self, jwt: &Jwt<'_>) -> bool {
        jwt.claims.is_of(&self.issuer)
    }

    /// Runs all checks, cheapest first, so that a token that cannot pass causes no fetch. A refused
    /// token is still tested against the keys already loaded, to learn whether the issuer signed it.
    pub async fn validate(
        &self,
        jwt: &Jwt<'_>,
        accepted_by: AcceptedBy,
        now: u64,
    ) -> Result<Principal, AuthError> {
        if !self.is_for(jwt) {
            return Err(Refusal::new(Reason::Issuer, "iss names another issuer").into());
        }
        let verify = |key: &Key| key.verify(jwt.algorithm, jwt.message, jwt.signature);
        if let Err(refusal) = jwt.claims.check(&self.audience, now) {
            let known = self.keys.known(jwt.kid.as_deref());
            let verified = known.is_some_and(|key| verify(&key).is_ok());
            return Err(Refusal { verified, ..refusal }.into());
        }
        let key = self.keys.key(jwt.kid.as_deref()).await?;
        verify(&key).map_err(|why| Refusal::new(Reason::Signature, why))?;
        jwt.claims.principal(accepted_by)
    }
}
