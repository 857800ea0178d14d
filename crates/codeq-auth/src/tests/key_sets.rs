//! Which of a provider's keys are usable.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use super::changed;
use super::keys::Signer;
use crate::jwk::KeySet;

fn usable(jwk: &Value) -> usize {
    KeySet::parse(json!({ "keys": [jwk] }).to_string().as_bytes()).expect("is a set").usable()
}

fn number(bytes: &[u8]) -> Option<Value> {
    Some(json!(URL_SAFE_NO_PAD.encode(bytes)))
}

#[test]
fn weak_and_foreign_keys_are_left_out() {
    let rsa = Signer::rsa("rsa", Algorithm::RS256).jwk();
    let (ec, p384, ed) =
        (Signer::new("ec").jwk(), Signer::p384("p384").jwk(), Signer::ed25519("ed").jwk());
    for jwk in [&rsa, &ec, &p384, &ed] {
        assert_eq!(usable(jwk), 1, "{jwk}");
        for (name, value) in [
            ("use", Some(json!("enc"))),
            ("key_ops", Some(json!(["encrypt"]))),
            ("alg", Some(json!("HS256"))),
            ("alg", Some(json!("none"))),
            ("alg", Some(json!("RSA-OAEP"))),
            ("kty", Some(json!("oct"))),
            ("kty", None),
            ("kid", Some(json!(1))),
            ("kid", Some(json!("k".repeat(257)))),
        ] {
            let changed = changed(jwk.clone(), name, value);
            assert_eq!(usable(&changed), 0, "{changed}");
        }
        for (name, value) in [
            ("use", None),
            ("key_ops", Some(json!(["verify"]))),
            ("x5u", Some(json!("https://other.example"))),
            ("kid", Some(json!("k".repeat(256)))),
        ] {
            let changed = changed(jwk.clone(), name, value);
            assert_eq!(usable(&changed), 1, "{changed}");
        }
    }
    assert_eq!(usable(&json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "o", "alg": "HS256" })), 0);
    for (jwk, alg) in [(&rsa, "ES256"), (&ec, "ES384"), (&p384, "ES256"), (&ed, "ES256")] {
        assert_eq!(usable(&changed(jwk.clone(), "alg", Some(json!(alg)))), 0, "{alg}");
    }
    for (jwk, curve) in [(&ec, "P-384"), (&p384, "P-256"), (&ec, "P-521"), (&ec, "secp256k1")] {
        assert_eq!(usable(&changed(jwk.clone(), "crv", Some(json!(curve)))), 0, "{curve}");
    }
    assert_eq!(usable(&changed(ec.clone(), "y", None)), 0);
    assert_eq!(usable(&changed(ed, "crv", Some(json!("X25519")))), 0);
    for junk in [json!(null), json!(1), json!([]), json!({})] {
        assert_eq!(usable(&junk), 0, "{junk}");
    }
}

#[test]
fn rsa_keys_have_bounds() {
    let rsa = Signer::rsa("rsa", Algorithm::RS256).jwk();
    let modulus = |bytes: usize, first: u8| {
        let mut n = vec![0xff; bytes];
        n[0] = first;
        changed(rsa.clone(), "n", number(&n))
    };
    for (bytes, first, want) in [
        (64, 0xff, 0),
        (128, 0xff, 0),
        (256, 0x7f, 0),
        (256, 0x80, 1),
        (257, 0x00, 1),
        (384, 0xff, 1),
        (1_024, 0xff, 1),
        (1_025, 0x01, 0),
        (10_000, 0xff, 0),
    ] {
        assert_eq!(usable(&modulus(bytes, first)), want, "{bytes} {first}");
    }
    for (exponent, want) in [
        (&[] as &[u8], 0),
        (&[0], 0),
        (&[1], 0),
        (&[3], 0),
        (&[0xff, 0xff], 0),
        (&[1, 0, 0], 0),
        (&[1, 0, 1], 1),
        (&[0, 1, 0, 1], 1),
        (&[1, 0, 2], 0),
        (&[1, 0xff, 0xff, 0xff, 0xff], 1),
        (&[2, 0, 0, 0, 1], 0),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 1], 0),
    ] {
        assert_eq!(usable(&changed(rsa.clone(), "e", number(exponent))), want, "{exponent:?}");
    }
}

#[test]
fn one_bad_key_does_not_spoil_the_others() {
    let keys = json!({ "keys": [
        { "kty": "oct", "k": "c2VjcmV0" },
        null,
        Signer::new("ec").jwk(),
        { "kty": "EC", "crv": "P-256", "x": 1, "y": 2 },
    ] });
    assert_eq!(KeySet::parse(keys.to_string().as_bytes()).expect("is a set").usable(), 1);
}
