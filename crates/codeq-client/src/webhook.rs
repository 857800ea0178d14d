//! For webhook receivers: verifies that a call comes from the server, and parses its body.
//!
//! ```
//! use std::time::SystemTime;
//!
//! use codeq_client::webhook::{ResultCallback, Verifier};
//!
//! fn receive(
//!     verifier: &Verifier,
//!     header: impl Fn(&str) -> Option<String>,
//!     body: &[u8],
//! ) -> Result<String, Box<dyn std::error::Error>> {
//!     verifier.verify(header, body, SystemTime::now())?;
//!     let callback: ResultCallback = serde_json::from_slice(body)?;
//!     // Deliveries may repeat: deduplicate by the `webhook-id` header before acting on one.
//!     Ok(callback.task_id)
//! }
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sha2::Sha256;

use crate::error::Error;
use crate::http::types::{Artifact, Status};

/// Calls signed longer ago than this, or this far in the future, are rejected: they may be replays of recorded calls.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Verifies signatures with the secret that the server signs with.
#[derive(Clone)]
pub struct Verifier {
    key: Vec<u8>,
}

/// Why a call was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// A header is missing or malformed.
    #[error("header {0} is missing or malformed")]
    Header(&'static str),
    /// The timestamp is more than five minutes off.
    #[error("the timestamp is more than five minutes off; check the clock")]
    Time,
    /// Signed with another secret, or modified on the way.
    #[error("no signature matches the secret")]
    Signature,
}

/// The text is not a valid secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid secret: the part after whsec_ is not base64")]
pub struct BadSecret;

/// The body of the call to a task's webhook after the task has finished.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ResultCallback {
    /// The task's id. Deliveries may repeat: deduplicate by the `webhook-id` header.
    pub task_id: String,
    /// The task's command.
    pub event_type: String,
    /// [`Status::Completed`] or [`Status::Failed`].
    pub status: Status,
    /// The worker's result as it was sent; see [`ResultCallback::json`].
    pub result: Option<Box<RawValue>>,
    /// The error message; empty if there is none. A completed task may have one as well, if its worker sent both.
    #[serde(default)]
    pub error: String,
    /// Named outputs, with the URLs to download them from.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// When the task finished (RFC 3339).
    pub completed_at: String,
}

impl ResultCallback {
    /// The worker's result, deserialised. An error if there is none.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let text = self.result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(text).map_err(Error::Decode)
    }
}

impl Verifier {
    /// Takes the secret as the server showed it: `whsec_` and base64, or plain text.
    pub fn new(secret: &str) -> Result<Verifier, BadSecret> {
        let key = match secret.strip_prefix("whsec_") {
            Some(encoded) => STANDARD.decode(encoded).map_err(|_| BadSecret)?,
            None => secret.as_bytes().to_vec(),
        };
        Ok(Verifier { key })
    }

    /// Checks that a call was signed with the secret, within five minutes of `now`. `header` looks up headers by
    /// lowercase name; `body` must be the bytes as received.
    pub fn verify(
        &self,
        header: impl Fn(&str) -> Option<String>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), Unverified> {
        let read = |name: &'static str| header(name).ok_or(Unverified::Header(name));
        let (id, moment) = (read("webhook-id")?, read("webhook-timestamp")?);
        let signatures = read("webhook-signature")?;
        let at: u64 = moment.parse().map_err(|_| Unverified::Header("webhook-timestamp"))?;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(at)).ok_or(Unverified::Time)?;
        let apart = now.duration_since(at).or_else(|_| at.duration_since(now));
        if apart.is_ok_and(|apart| apart > TOLERANCE) {
            return Err(Unverified::Time);
        }
        let good = signatures
            .split(' ')
            .filter_map(|one| one.strip_prefix("v1,"))
            .filter_map(|one| STANDARD.decode(one).ok())
            .any(|signature| self.matches(&[&id, &moment], body, &signature));
        if good { Ok(()) } else { Err(Unverified::Signature) }
    }

    fn matches(&self, [id, moment]: &[&str; 2], body: &[u8], signature: &[u8]) -> bool {
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) else { return false };
        for part in [id.as_bytes(), b".", moment.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac.verify_slice(signature).is_ok()
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const AT: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const GOOD: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn verify(secret: &str, signatures: &str, body: &[u8], late: i64) -> Result<(), Unverified> {
        let header = |name: &str| match name {
            "webhook-id" => Some("msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned()),
            "webhook-timestamp" => Some(AT.to_string()),
            "webhook-signature" => Some(signatures.to_owned()).filter(|text| !text.is_empty()),
            _ => None,
        };
        let now = UNIX_EPOCH + Duration::from_secs(AT.checked_add_signed(late).unwrap());
        Verifier::new(secret).unwrap().verify(header, body, now)
    }

    #[test]
    fn a_signed_call_is_accepted() {
        assert_eq!(verify(SECRET, GOOD, BODY, 0), Ok(()));
        assert_eq!(verify(SECRET, &format!("v1,AAAA v1a,x {GOOD}"), BODY, 300), Ok(()));
    }

    #[test]
    fn any_other_call_is_rejected() {
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(verify(other, GOOD, BODY, 0), Err(Unverified::Signature));
        assert_eq!(verify("plain text", GOOD, BODY, 0), Err(Unverified::Signature));
        assert_eq!(verify(SECRET, GOOD, b"{}", 0), Err(Unverified::Signature));
        assert_eq!(verify(SECRET, "v1,", BODY, 0), Err(Unverified::Signature));
        assert_eq!(verify(SECRET, GOOD, BODY, 301), Err(Unverified::Time));
        assert_eq!(verify(SECRET, GOOD, BODY, -301), Err(Unverified::Time));
        assert_eq!(verify(SECRET, "", BODY, 0), Err(Unverified::Header("webhook-signature")));
        assert_eq!(Verifier::new("whsec_%").unwrap_err(), BadSecret);
    }
}
