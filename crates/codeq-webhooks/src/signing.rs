//! Secrets that outgoing calls are signed with, and the signature.
//!
//! Every call carries two signatures over the bytes that are sent: the one that codeQ's receivers know, and
//! that of Standard Webhooks. While a secret is being replaced two are live, and Standard Webhooks gets a
//! signature of each. The other header has room for one: it is made with the older secret, because that is
//! the one that receivers still have.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use sha2::Sha256;

use crate::hex::hex;

/// What Standard Webhooks' secrets begin with.
const PREFIX: &str = "whsec_";
/// Bytes of a secret that is encoded.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Letters of a secret that is a plain text.
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

/// A text that is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected whsec_ and base64 of 24 to 64 bytes, or 16 to 128 visible letters")]
pub struct BadSecret;

impl Secret {
    /// Reads a secret: `whsec_` and base64, whose bytes are the key of Standard Webhooks; or a plain text,
    /// whose letters are.
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

    /// A new one, at random.
    pub fn random() -> Secret {
        let key: [u8; 32] = rand::random();
        let text = format!("{PREFIX}{}", STANDARD.encode(key));
        Secret { text: text.into(), key: key.to_vec() }
    }

    /// The secret itself, for the tenant's own eyes.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// The headers of a call: its id, the moment in Unix seconds, and the signatures with the secrets that are
/// live, oldest first. Without a secret nothing is signed.
pub fn headers(secrets: &[Secret], id: &str, at: u64, body: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name, text: &str| {
        // Ids, numbers and encoded bytes: always visible letters.
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
        set(CODEQ_SIGNATURE, &hex(&ours));
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
    // HMAC takes keys of any length.
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
    fn secrets_are_read() {
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
    fn a_known_signature() {
        let secret = Secret::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = headers(&[secret], id, 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed["webhook-id"], id);
        assert_eq!(signed["webhook-timestamp"], "1614265330");
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed["webhook-signature"], expected);
    }

    #[test]
    fn two_secrets_while_one_replaces_the_other() {
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
