//! Test keys, and tokens signed with them.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use rcgen::KeyPair;
use serde_json::{Value, json};

/// A key that signs tokens.
pub struct Signer {
    pub kid: &'static str,
    pub algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    /// A new P-256 key.
    pub fn new(kid: &'static str) -> Signer {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        Signer { kid, algorithm: Algorithm::ES256, key }
    }

    /// A new P-384 key.
    pub fn p384(kid: &'static str) -> Signer {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        Signer { kid, algorithm: Algorithm::ES384, key }
    }

    /// A new Ed25519 key.
    pub fn ed25519(kid: &'static str) -> Signer {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        // The seed in the older PKCS #8 form without the public key: the library accepts no other.
        let mut der = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
        der.extend_from_slice(&pair.serialize_der()[16..48]);
        Signer { kid, algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(&der) }
    }

    /// RSA with 2,048 bits: one key for all tests, because generating it is slow.
    pub fn rsa(kid: &'static str, algorithm: Algorithm) -> Signer {
        static DER: OnceLock<Vec<u8>> = OnceLock::new();
        let der = DER.get_or_init(|| {
            let pair = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
            // The PKCS #1 key follows the fixed PKCS #8 header.
            pair.serialize_der()[26..].to_vec()
        });
        Signer { kid, algorithm, key: EncodingKey::from_rsa_der(der) }
    }

    /// The public key as a provider publishes it, without `alg`.
    pub fn jwk(&self) -> Value {
        let mut jwk =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).unwrap());
        let map = jwk.as_mut().unwrap().as_object_mut().unwrap();
        map.remove("alg");
        map.insert("kid".into(), json!(self.kid));
        map.insert("use".into(), json!("sig"));
        jwk.unwrap()
    }

    /// The header of a good token.
    pub fn header(&self) -> Value {
        json!({ "alg": format!("{:?}", self.algorithm), "typ": "JWT", "kid": self.kid })
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.token_with(&self.header(), claims)
    }

    /// A token with this header, signed by this key even if the header names another.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.sign(&message(header, claims))
    }

    /// Signs the header and claims part of a token.
    pub fn sign(&self, message: &str) -> String {
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &self.key, self.algorithm).unwrap();
        format!("{message}.{signature}")
    }
}

/// The part of a token that is signed.
pub fn message(header: &Value, claims: &Value) -> String {
    format!("{}.{}", part(&header.to_string()), part(&claims.to_string()))
}

/// Encodes one part of a token.
pub fn part(json: &str) -> String {
    URL_SAFE_NO_PAD.encode(json)
}
