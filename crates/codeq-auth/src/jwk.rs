//! An issuer's public keys (RFC 7517).
//!
//! A key works only with the algorithms its type allows, and only with its `alg` if it has one; the
//! token's header can choose only among these. Unusable keys are dropped.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Longest `kid`, in bytes.
pub(crate) const KID_BYTES_MAX: usize = 256;
/// Maximum number of keys per issuer.
const KEYS_MAX: usize = 100;
/// Shortest RSA modulus considered safe, in bits.
const RSA_BITS_MIN: usize = 2_048;
/// Longest RSA modulus, in bits: verification time is quadratic in it.
const RSA_BITS_MAX: usize = 8_192;
/// Smallest RSA exponent (FIPS 186-5).
const RSA_EXPONENT_MIN: u64 = 65_537;
/// Largest RSA exponent: verification time is linear in its length.
const RSA_EXPONENT_MAX: u64 = (1 << 33) - 1;

const RSA_ALGORITHMS: &[Algorithm] =
    &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256];

/// Looks up an algorithm that tokens may use: never `none`, and none that uses a shared secret.
pub(crate) fn accepted_algorithm(name: &str) -> Option<Algorithm> {
    Some(match name {
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "PS256" => Algorithm::PS256,
        "ES256" => Algorithm::ES256,
        "ES384" => Algorithm::ES384,
        "EdDSA" => Algorithm::EdDSA,
        _ => return None,
    })
}

/// A key that can verify tokens.
pub(crate) struct Key {
    decoding: DecodingKey,
    algorithms: Vec<Algorithm>,
}

impl Key {
    /// Whether this key made `signature` (base64) over `message`.
    pub fn verify(
        &self,
        algorithm: Algorithm,
        message: &str,
        signature: &str,
    ) -> Result<(), &'static str> {
        if !self.algorithms.contains(&algorithm) {
            return Err("algorithm is not the key's");
        }
        match jsonwebtoken::crypto::verify(signature, message.as_bytes(), &self.decoding, algorithm)
        {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err("bad signature"),
        }
    }
}

/// The result of looking up a `kid`.
pub(crate) enum Found {
    /// The matching key.
    Key(Arc<Key>),
    /// No key, and a newer set would not help.
    Refused(&'static str),
    /// No such key, but a newer set may have it.
    Unknown,
}

/// A snapshot of an issuer's keys.
pub(crate) struct KeySet {
    /// `None` where several keys share a `kid`.
    by_kid: HashMap<String, Option<Arc<Key>>>,
    /// The key for tokens without a `kid`, if the set has exactly one.
    only: Option<Arc<Key>>,
    usable: usize,
}

impl KeySet {
    /// Parses a JWK set, dropping unusable keys. Fails if it is malformed or too large.
    pub fn parse(json: &[u8]) -> Result<KeySet, &'static str> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(json).map_err(|_| "not a jwk set")?;
        if set.keys.len() > KEYS_MAX {
            return Err("too many keys");
        }
        let mut keys = KeySet { by_kid: HashMap::new(), only: None, usable: 0 };
        for value in set.keys {
            if let Some((kid, key)) = usable_key(value) {
                keys.insert(kid, Arc::new(key));
            }
        }
        Ok(keys)
    }

    /// Number of usable keys.
    pub fn usable(&self) -> usize {
        self.usable
    }

    /// Finds the key for a token's `kid`.
    pub fn find(&self, kid: Option<&str>) -> Found {
        let Some(kid) = kid else {
            return match &self.only {
                Some(key) => Found::Key(Arc::clone(key)),
                None => Found::Refused("kid is missing"),
            };
        };
        match self.by_kid.get(kid) {
            Some(Some(key)) => Found::Key(Arc::clone(key)),
            Some(None) => Found::Refused("kid is ambiguous"),
            None => Found::Unknown,
        }
    }

    fn insert(&mut self, kid: Option<String>, key: Arc<Key>) {
        self.usable += 1;
        self.only = (self.usable == 1).then(|| Arc::clone(&key));
        if let Some(kid) = kid {
            self.by_kid.entry(kid).and_modify(|known| *known = None).or_insert(Some(key));
        }
    }
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

fn usable_key(value: Value) -> Option<(Option<String>, Key)> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    let for_signatures = jwk.usage.as_deref().is_none_or(|usage| usage == "sig")
        && jwk.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
    let kid_fits = jwk.kid.as_ref().is_none_or(|kid| kid.len() <= KID_BYTES_MAX);
    if !for_signatures || !kid_fits {
        return None;
    }
    let (decoding, algorithms) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => (rsa_key(&jwk)?, RSA_ALGORITHMS),
        ("EC", Some("P-256")) => (ec_key(&jwk, 32)?, &[Algorithm::ES256] as &[Algorithm]),
        ("EC", Some("P-384")) => (ec_key(&jwk, 48)?, &[Algorithm::ES384] as &[Algorithm]),
        ("OKP", Some("Ed25519")) => (ed_key(&jwk)?, &[Algorithm::EdDSA] as &[Algorithm]),
        _ => return None,
    };
    let mut algorithms = algorithms.to_vec();
    if let Some(stated) = &jwk.alg {
        let stated = accepted_algorithm(stated)?;
        algorithms.retain(|algorithm| *algorithm == stated);
    }
    (!algorithms.is_empty()).then_some((jwk.kid, Key { decoding, algorithms }))
}

fn rsa_key(jwk: &Jwk) -> Option<DecodingKey> {
    let n = unsigned(jwk.n.as_ref()?)?;
    let e = unsigned(jwk.e.as_ref()?)?;
    let leading = n.first()?.leading_zeros() as usize;
    let bits = n.len() * 8 - leading;
    if !(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) || e.len() > 8 {
        return None;
    }
    let exponent = e.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    if !(RSA_EXPONENT_MIN..=RSA_EXPONENT_MAX).contains(&exponent) || exponent % 2 == 0 {
        return None;
    }
    Some(DecodingKey::from_rsa_raw_components(&n, &e))
}

fn ec_key(jwk: &Jwk, coordinate_bytes: usize) -> Option<DecodingKey> {
    let (x, y) = (jwk.x.as_ref()?, jwk.y.as_ref()?);
    let fits = |text: &String| bytes(text).is_some_and(|value| value.len() == coordinate_bytes);
    if !fits(x) || !fits(y) {
        return None;
    }
    DecodingKey::from_ec_components(x, y).ok()
}

fn ed_key(jwk: &Jwk) -> Option<DecodingKey> {
    let x = jwk.x.as_ref()?;
    if bytes(x)?.len() != 32 {
        return None;
    }
    DecodingKey::from_ed_components(x).ok()
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Decodes a number, dropping the leading zero bytes some providers write.
fn unsigned(text: &str) -> Option<Vec<u8>> {
    let mut value = bytes(text)?;
    let zeros = value.iter().take_while(|byte| **byte == 0).count();
    value.drain(..zeros);
    Some(value)
}
