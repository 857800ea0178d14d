//! For receivers of webhooks: whether a call comes from the server, and what it says.
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
//!     // Deliveries may repeat: whoever does something with it remembers the id.
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

/// A call that is older or younger is not believed: somebody may have recorded it.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Knows the secret that calls are signed with.
#[derive(Clone)]
pub struct Verifier {
    key: Vec<u8>,
}

/// Why a call is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// A header is missing or cannot be read.
    #[error("the header {0} is missing or cannot be read")]
    Header(&'static str),
    /// It was signed too long ago, or in the future.
    #[error("the call was signed at another time")]
    Time,
    /// It was signed with another secret, or changed on its way.
    #[error("no signature matches")]
    Signature,
}

/// A text that is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what follows whsec_ is not base64")]
pub struct BadSecret;

/// What is posted to a task's webhook when the task has ended.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ResultCallback {
    /// The task. Deliveries may repeat: deduplicate by this.
    pub task_id: String,
    /// The task's command.
    pub event_type: String,
    /// [`Status::Completed`] or [`Status::Failed`].
    pub status: Status,
    /// The worker's object as it was sent; see [`ResultCallback::json`].
    pub result: Option<Box<RawValue>>,
    /// Why it failed; empty if it did not.
    #[serde(default)]
    pub error: String,
    /// Outputs that lie elsewhere.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// When it ended.
    pub completed_at: String,
}

impl ResultCallback {
    /// The worker's result, typed; an error if there is none.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let text = self.result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(text).map_err(Error::Decode)
    }
}

impl Verifier {
    /// With the secret as the server showed it: `whsec_` and base64, or a plain text.
    pub fn new(secret: &str) -> Result<Verifier, BadSecret> {
        let key = match secret.strip_prefix("whsec_") {
            Some(encoded) => STANDARD.decode(encoded).map_err(|_| BadSecret)?,
            None => secret.as_bytes().to_vec(),
        };
        Ok(Verifier { key })
    }

    /// Whether a call was signed with the secret, within five minutes of `now`. `header` finds headers by
    /// their lower-case name; `body` must be the bytes as they came.
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
    fn what_is_signed_is_believed() {
        assert_eq!(verify(SECRET, GOOD, BODY, 0), Ok(()));
        assert_eq!(verify(SECRET, &format!("v1,AAAA v1a,x {GOOD}"), BODY, 300), Ok(()));
    }

    #[test]
    fn what_is_not_is_not() {
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
