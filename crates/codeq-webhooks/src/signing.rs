//! Signs webhooks.
//!
//! Every call carries two signatures over its body: codeQ's own (`X-CodeQ-Signature`) and that of Standard Webhooks.
//! While a secret is being replaced, two are live. Standard Webhooks then gets a signature with each; codeQ's header has
//! room for one, which is made with the older secret, because receivers still have that.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use sha2::Sha256;

/// How secrets of Standard Webhooks start.
const PREFIX: &str = "whsec_";
/// Bytes of an encoded secret.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Bytes of a plain-text secret.
const TEXT_BYTES: std::ops::RangeInclusive<usize> = 16..=128;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const CODEQ_TIMESTAMP: HeaderName = HeaderName::from_static("x-codeq-timestamp");
const CODEQ_SIGNATURE: HeaderName = HeaderName::from_static("x-codeq-signature");

/// A secret that a tenant shares with its receivers.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: Arc<str>,
    key: Vec<u8>,
}

/// The text is not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected whsec_ and base64 of 24 to 64 bytes, or 16 to 128 visible ASCII characters")]
pub struct BadSecret;

impl Secret {
    /// Reads a secret. The key of Standard Webhooks is what the base64 after `whsec_` encodes, or else the text itself.
    pub fn read(text: &str) -> Result<Secret, BadSecret> {
        let key = match text.strip_prefix(PREFIX) {
            Some(encoded) => {
                let key = STANDARD.decode(encoded).map_err(|_| BadSecret)?;
                Some(key).filter(|key| KEY_BYTES.contains(&key.len()))
            }
            None => {
                let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
                Some(text.as_bytes().to_vec())
                    .filter(|key| visible && TEXT_BYTES.contains(&key.len()))
            }
        };
        Ok(Secret { text: text.into(), key: key.ok_or(BadSecret)? })
    }

    /// Makes a new secret.
    pub fn random() -> Secret {
        let key: [u8; 32] = rand::random();
        let text = format!("{PREFIX}{}", STANDARD.encode(key));
        Secret { text: text.into(), key: key.to_vec() }
    }

    /// The secret itself, to be shown to nobody but its tenant.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// The headers of a call: its id, the time in Unix seconds, and the signatures with the live secrets (oldest first).
/// Without a secret there are no signatures.
pub fn headers(secrets: &[Secret], id: &str, at: u64, body: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name, text: &str| {
        // Never fails: ids, numbers, base64 and hex are visible ASCII.
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    let moment = at.to_string();
    set(WEBHOOK_ID, id);
    set(WEBHOOK_TIMESTAMP, &moment);
    set(CODEQ_TIMESTAMP, &moment);
    if let Some(oldest) = secrets.first() {
        let ours = sign(oldest.text.as_bytes(), &[moment.as_bytes(), b".", body]);
        let hex: String = ours.iter().map(|byte| format!("{byte:02x}")).collect();
        set(CODEQ_SIGNATURE, &hex);
        let parts: [&[u8]; 5] = [id.as_bytes(), b".", moment.as_bytes(), b".", body];
        let standard = secrets.iter().map(|secret| {
            let signature = sign(&secret.key, &parts);
            format!("v1,{}", STANDARD.encode(signature))
        });
        set(WEBHOOK_SIGNATURE, &standard.collect::<Vec<_>>().join(" "));
    }
    headers
}

fn sign(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // Never fails: HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return Vec::new();
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secrets_of_valid_length_and_form_are_accepted() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for good in [of(24), of(64), "a".repeat(16), "~".repeat(128)] {
            assert_eq!(Secret::read(&good).unwrap().reveal(), good);
        }
        for bad in [
            of(23),
            of(65),
            "whsec_".to_owned(),
            "whsec_%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%".to_owned(),
            "a".repeat(15),
            "a".repeat(129),
            String::new(),
            "sixteen letters with spaces".to_owned(),
            "é".repeat(20),
        ] {
            assert_eq!(Secret::read(&bad), Err(BadSecret), "{bad}");
        }
        let (one, two) = (Secret::random(), Secret::random());
        assert_ne!(one, two);
        assert_eq!(Secret::read(one.reveal()).unwrap(), one);
        assert_eq!(format!("{one:?}"), "Secret(***)");
    }

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_published_example_has_its_signature() {
        let secret = Secret::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = headers(&[secret], id, 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed["webhook-id"], id);
        assert_eq!(signed["webhook-timestamp"], "1614265330");
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed["webhook-signature"], expected);
    }

    #[test]
    fn both_secrets_sign_during_a_rotation() {
        let (old, new) = (Secret::random(), Secret::random());
        let alone = |secret: &Secret| headers(std::slice::from_ref(secret), "a", 5, b"{}");
        let both = headers(&[old.clone(), new.clone()], "a", 5, b"{}");
        let list = both["webhook-signature"].to_str().unwrap().to_owned();
        let (first, second) = list.split_once(' ').unwrap();
        assert_eq!(first, alone(&old)["webhook-signature"]);
        assert_eq!(second, alone(&new)["webhook-signature"]);
        assert_eq!(both["x-codeq-signature"], alone(&old)["x-codeq-signature"]);
        assert_eq!(both["x-codeq-signature"].len(), 64);
        let none = headers(&[], "a", 5, b"{}");
        assert!(none.contains_key("webhook-id") && !none.contains_key("webhook-signature"));
        assert!(!none.contains_key("x-codeq-signature"));
    }
}
