//! Deliveries of result callbacks, and secrets: for tokens of administrators.

use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::HttpClient;
use super::types::Status;
use crate::error::Error;

/// Whether a delivery will be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryStatus {
    /// It will be.
    Pending,
    /// It was given up.
    Failed,
}

/// A result callback that was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Delivery {
    /// The task's id.
    pub id: String,
    /// The header `webhook-id` of all attempts.
    pub webhook_id: String,
    /// Where it goes.
    pub url: String,
    /// The task's command.
    pub event_type: String,
    /// How the task ended.
    pub task_status: Status,
    /// Whether it will be tried again.
    pub status: DeliveryStatus,
    /// Attempts so far.
    #[serde(default)]
    pub attempts: u32,
    /// When it is tried next.
    pub next_attempt_at: Option<String>,
    /// The receiver's last HTTP status.
    pub last_status: Option<u16>,
    /// What went wrong last; empty if nothing has.
    #[serde(default)]
    pub last_error: String,
    /// When the task ended.
    pub completed_at: String,
}

/// Some deliveries.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeliveryPage {
    /// The deliveries.
    pub items: Vec<Delivery>,
    /// Where the next page begins; none on the last one. A page may be short before that.
    pub next_cursor: Option<String>,
}

/// Deliveries that will be sent again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Resent {
    /// How many.
    pub resent: u64,
    /// Where to go on; none when all have been looked at.
    pub next_cursor: Option<String>,
}

/// A secret that was just made: the only time that it is shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewSecret {
    /// The secret.
    pub secret: String,
    /// When it was made.
    pub created_at: String,
    /// Until when calls are signed with the one before as well.
    pub previous_expires_at: Option<String>,
}

impl std::fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NewSecret { created_at, previous_expires_at, .. } = self;
        f.debug_struct("NewSecret")
            .field("secret", &"***")
            .field("created_at", created_at)
            .field("previous_expires_at", previous_expires_at)
            .finish()
    }
}

#[derive(Serialize)]
struct Resend<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rotate<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap_seconds: Option<u64>,
}

impl HttpClient {
    /// A page of the result callbacks that were not delivered: all, or only those of this kind.
    pub async fn deliveries(
        &self,
        status: Option<DeliveryStatus>,
        cursor: Option<&str>,
    ) -> Result<DeliveryPage, Error> {
        let status = status.map(|status| match status {
            DeliveryStatus::Pending => "pending",
            DeliveryStatus::Failed => "failed",
        });
        let request = self.request(Method::GET, &["admin", "webhooks", "deliveries"])?;
        request.query(&[("status", status), ("cursor", cursor)]).json().await
    }

    /// Sends the callback of a task again, at once and with no attempts spent.
    pub async fn resend_delivery(&self, task_id: &str) -> Result<(), Error> {
        let path = ["admin", "webhooks", "deliveries", task_id, "resend"];
        self.request(Method::POST, &path)?.send().await.map(|_| ())
    }

    /// Sends callbacks that were given up again, up to `limit` (1,000 at most, and by default).
    pub async fn resend_failed_deliveries(
        &self,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Resent, Error> {
        let path = ["admin", "webhooks", "deliveries", "resend"];
        self.request(Method::POST, &path)?.body(&Resend { limit, cursor }).json().await
    }

    /// Makes a new secret, or sets this one. Calls are signed with the one before as well for so many seconds,
    /// a day by default.
    pub async fn rotate_webhook_secret(
        &self,
        secret: Option<&str>,
        overlap_seconds: Option<u64>,
    ) -> Result<NewSecret, Error> {
        let path = ["admin", "webhooks", "secrets", "rotate"];
        self.request(Method::POST, &path)?.body(&Rotate { secret, overlap_seconds }).json().await
    }

    /// Forgets the secrets that were made over the API.
    pub async fn delete_webhook_secrets(&self) -> Result<(), Error> {
        let path = ["admin", "webhooks", "secrets"];
        self.request(Method::DELETE, &path)?.send().await.map(|_| ())
    }
}
