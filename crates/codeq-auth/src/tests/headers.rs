//! Token format and signatures.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use super::keys::{Signer, message, part};
use super::{World, assert_invalid, changed, claims};
use crate::TOKEN_BYTES_MAX;

#[tokio::test]
async fn every_accepted_algorithm_passes() {
    let signers = [
        Signer::new("ec"),
        Signer::p384("p384"),
        Signer::ed25519("ed"),
        Signer::rsa("rsa", Algorithm::RS256),
    ];
    let world = World::new(&signers.each_ref()).await;
    for signer in &signers {
        let passed = world.ask(&signer.token(&claims())).await;
        assert!(passed.is_ok(), "{}: {passed:?}", signer.kid);
    }
    for algorithm in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256] {
        let passed = world.ask(&Signer::rsa("rsa", algorithm).token(&claims())).await;
        assert!(passed.is_ok(), "{algorithm:?}: {passed:?}");
    }
    for algorithm in [Algorithm::PS384, Algorithm::PS512] {
        let token = Signer::rsa("rsa", algorithm).token(&claims());
        assert_invalid(&world.ask(&token).await, &format!("{algorithm:?}"));
    }
}

#[tokio::test]
async fn unsigned_tokens_are_refused() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    let good = signer.token(&claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    for alg in ["none", "None", "nOnE", "NONE", "", " ES256", "es256"] {
        let unsigned = message(&changed(signer.header(), "alg", Some(json!(alg))), &claims());
        for signature in ["", signature] {
            assert_invalid(&world.ask(&format!("{unsigned}.{signature}")).await, alg);
        }
        assert_invalid(&world.ask(&unsigned).await, alg);
    }
    assert_invalid(&world.ask(&format!("{signed}.")).await, "empty signature");
    assert_invalid(&world.ask(signed).await, "stripped signature");
    assert!(world.ask(&good).await.is_ok());
}

#[tokio::test]
async fn a_public_key_is_never_used_as_a_shared_secret() {
    let signers = [Signer::new("ec"), Signer::rsa("rsa", Algorithm::RS256)];
    let world = World::new(&signers.each_ref()).await;
    for signer in &signers {
        let jwk = signer.jwk();
        let raw = |name: &str| URL_SAFE_NO_PAD.decode(jwk[name].as_str().unwrap_or("")).unwrap();
        let point = [vec![4], raw("x"), raw("y")].concat();
        for secret in [jwk.to_string().into_bytes(), raw("n"), raw("x"), point] {
            for (name, algorithm) in [
                ("HS256", Algorithm::HS256),
                ("HS384", Algorithm::HS384),
                ("HS512", Algorithm::HS512),
            ] {
                let header = changed(signer.header(), "alg", Some(json!(name)));
                let message = message(&header, &claims());
                let key = EncodingKey::from_secret(&secret);
                let mac = jsonwebtoken::crypto::sign(message.as_bytes(), &key, algorithm).unwrap();
                assert_invalid(&world.ask(&format!("{message}.{mac}")).await, name);
            }
        }
    }
}

#[tokio::test]
async fn the_key_chooses_the_algorithm() {
    let rsa = |algorithm| Signer::rsa("rsa", algorithm);
    let signers = [rsa(Algorithm::RS256), Signer::new("ec"), Signer::p384("p384")];
    let world = World::new(&signers.each_ref()).await;
    for signer in &signers {
        for alg in ["RS256", "PS256", "ES256", "ES384", "EdDSA", "PS384", "ES512", "ES256K"] {
            if alg == format!("{:?}", signer.algorithm) {
                continue;
            }
            let header = changed(signer.header(), "alg", Some(json!(alg)));
            assert_invalid(&world.ask(&signer.token_with(&header, &claims())).await, alg);
        }
    }
    // A key with `alg` works with that algorithm only, even if its type allows others.
    let stated = changed(signers[0].jwk(), "alg", Some(json!("RS256")));
    let world = World::new(&[]).await;
    world.provider.publish_jwks(vec![stated]);
    assert!(world.ask(&rsa(Algorithm::RS256).token(&claims())).await.is_ok());
    for other in [Algorithm::RS384, Algorithm::PS256] {
        assert_invalid(&world.ask(&rsa(other).token(&claims())).await, "the stated alg is another");
    }
}

#[tokio::test]
async fn invalid_headers_are_refused() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer, &Signer::new("other")]).await;
    let cases: Vec<(&str, &str, Option<Value>)> = vec![
        ("kid missing", "kid", None),
        ("kid null", "kid", Some(json!(null))),
        ("kid empty", "kid", Some(json!(""))),
        ("kid number", "kid", Some(json!(1))),
        ("kid list", "kid", Some(json!(["ec"]))),
        ("kid of 8 KB", "kid", Some(json!("k".repeat(8 << 10)))),
        ("kid path", "kid", Some(json!("../../dev/null"))),
        ("kid query", "kid", Some(json!("' OR 1=1"))),
        ("kid url", "kid", Some(json!(format!("{}/elsewhere", world.provider.url())))),
        ("kid of another key", "kid", Some(json!("other"))),
        ("crit", "crit", Some(json!(["x"]))),
        ("crit empty", "crit", Some(json!([]))),
        ("crit null", "crit", Some(json!(null))),
        ("crit exp", "crit", Some(json!(["exp"]))),
        ("b64", "b64", Some(json!(false))),
        ("typ logout", "typ", Some(json!("logout+jwt"))),
        ("typ dpop", "typ", Some(json!("dpop+jwt"))),
        ("typ number", "typ", Some(json!(1))),
        ("alg missing", "alg", None),
        ("alg null", "alg", Some(json!(null))),
        ("alg list", "alg", Some(json!(["ES256"]))),
    ];
    for (case, name, value) in cases {
        let token = signer.token_with(&changed(signer.header(), name, value), &claims());
        assert_invalid(&world.ask(&token).await, case);
    }
    for typ in [None, Some(json!("jwt")), Some(json!("at+jwt")), Some(json!("application/at+jwt"))]
    {
        let token = signer.token_with(&changed(signer.header(), "typ", typ), &claims());
        assert!(world.ask(&token).await.is_ok());
    }
    assert_eq!((world.provider.requests(), world.provider.elsewhere()), (1, 0));
}

#[tokio::test]
async fn keys_named_in_a_token_are_ignored() {
    let trusted = Signer::new("ec");
    let attacker = Signer::new("ec");
    let world = World::new(&[&trusted]).await;
    let place = format!("{}/elsewhere", world.provider.url());
    for (name, value) in [
        ("jku", json!(place)),
        ("x5u", json!(place)),
        ("jwk", attacker.jwk()),
        ("x5c", json!([STANDARD.encode(attacker.jwk().to_string())])),
    ] {
        let header = changed(attacker.header(), name, Some(value));
        assert_invalid(&world.ask(&attacker.token_with(&header, &claims())).await, name);
        // The same pointer in a good token is harmless too.
        assert!(world.ask(&trusted.token_with(&header, &claims())).await.is_ok(), "{name}");
    }
    assert_eq!((world.provider.requests(), world.provider.elsewhere()), (1, 0));
}

#[tokio::test]
async fn a_token_without_kid_works_only_with_a_single_key() {
    let signer = Signer::new("ec");
    let nameless = signer.token_with(&changed(signer.header(), "kid", None), &claims());
    let world = World::new(&[&signer]).await;
    assert!(world.ask(&nameless).await.is_ok());
    let world = World::new(&[]).await;
    world.provider.publish_jwks(vec![changed(signer.jwk(), "kid", None)]);
    assert!(world.ask(&nameless).await.is_ok());
    assert_invalid(&world.ask(&signer.token(&claims())).await, "a name that the key does not have");
    let other = Signer::new("other");
    for signers in [[&signer, &other], [&other, &signer]] {
        let world = World::new(&signers).await;
        assert_invalid(&world.ask(&nameless).await, "two keys");
    }
}

#[tokio::test]
async fn ambiguous_names_are_refused() {
    let signers = [Signer::new("twin"), Signer::new("twin"), Signer::new("single")];
    let world = World::new(&signers.each_ref()).await;
    assert_invalid(&world.ask(&signers[0].token(&claims())).await, "first");
    assert_invalid(&world.ask(&signers[1].token(&claims())).await, "second");
    assert!(world.ask(&signers[2].token(&claims())).await.is_ok());
}

#[tokio::test]
async fn inexact_encodings_are_refused() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    let good = signer.token(&claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (header, body) = signed.split_once('.').unwrap();
    // The last character of a 64-byte signature has four spare bits.
    let spare = format!("{}{}", &signature[..85], if signature.ends_with('A') { 'B' } else { 'A' });
    let twice = claims().to_string().replacen('{', r#"{"tid":"other","#, 1);
    let list = json!(["ES256", "ec", "JWT"]).to_string();
    for (case, token) in [
        ("padding", format!("{good}=")),
        ("padded signature", format!("{good}==")),
        ("spare bits", format!("{signed}.{spare}")),
        ("space", format!("{good} ")),
        ("newline", format!("{good}\n")),
        ("plus and slash", format!("{signed}.{}", "+/".repeat(43))),
        ("two parts", signed.to_owned()),
        ("four parts", format!("{good}.{signature}")),
        ("empty header", format!(".{body}.{signature}")),
        ("empty claims", format!("{header}..{signature}")),
        ("not json", signer.sign(&format!("{header}.{}", part("claims")))),
        ("claims list", signer.sign(&format!("{header}.{}", part(&json!([claims()]).to_string())))),
        ("header list", signer.sign(&format!("{}.{body}", part(&list)))),
        ("two of a claim", signer.sign(&format!("{header}.{}", part(&twice)))),
        ("changed claims", format!("{header}.{}.{signature}", part(&twice))),
        ("nothing", String::new()),
        ("dots", "..".to_owned()),
    ] {
        assert_invalid(&world.ask(&token).await, case);
    }
    assert!(world.ask(&good).await.is_ok());
}

#[tokio::test]
async fn size_and_depth_are_bounded() {
    let signer = Signer::new("ec");
    let world = World::new(&[&signer]).await;
    let padded =
        |bytes: usize| signer.token(&changed(claims(), "padding", Some(json!("x".repeat(bytes)))));
    assert!(world.ask(&padded(11 << 10)).await.is_ok());
    let long = padded(TOKEN_BYTES_MAX);
    assert!(long.len() > TOKEN_BYTES_MAX);
    assert_invalid(&world.ask(&long).await, "too long");
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let nested = claims().to_string().replacen('{', &format!(r#"{{"sub":{deep},"#), 1);
    let nested = nested.replace(r#","sub":"worker-1""#, "");
    let token = signer.sign(&format!("{}.{}", part(&signer.header().to_string()), part(&nested)));
    assert_invalid(&world.ask(&token).await, "deep");
}
