//! Worker subscriptions: notifications about new work.

use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::HttpClient;
use crate::error::Error;

/// Which of several subscriptions is notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DeliveryMode {
    /// Every subscription.
    Fanout,
    /// One of each group, in rotation.
    Group,
    /// One of all subscriptions with this mode, chosen by the command's hash.
    Hash,
}

/// A subscription to create. By default, the server chooses everything except the address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSubscription {
    /// URL that receives notifications.
    pub callback_url: String,
    /// Commands to watch; empty means all that the token allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<String>,
    /// How long it lives unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    /// Which of several subscriptions is notified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_mode: Option<DeliveryMode>,
    /// The group's name, in group mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Minimum time between two notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_interval_seconds: Option<u32>,
}

/// A created or renewed subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Subscribed {
    /// The subscription's id.
    pub subscription_id: String,
    /// When it expires unless it is renewed (RFC 3339).
    pub expires_at: String,
}

/// A subscription as the server has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Subscription {
    /// The subscription's id.
    pub subscription_id: String,
    /// The worker that owns it.
    pub worker_id: String,
    /// URL that receives notifications.
    pub callback_url: String,
    /// Commands it watches; `*` means any.
    pub event_types: Vec<String>,
    /// Which of several subscriptions is notified.
    pub delivery_mode: DeliveryMode,
    /// The group's name, in group mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Minimum time between two notifications.
    pub min_interval_seconds: u32,
    /// How long it lives unless it is renewed.
    pub ttl_seconds: u32,
    /// When it was created (RFC 3339).
    pub created_at: String,
    /// When it expires unless it is renewed (RFC 3339).
    pub expires_at: String,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Subscription>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Renewal {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_seconds: Option<u32>,
}

impl HttpClient {
    /// Asks the server to post to a URL when there is work. Subscribing again renews the subscription.
    pub async fn subscribe(&self, new: &NewSubscription) -> Result<Subscribed, Error> {
        self.request(Method::POST, &["workers", "subscriptions"])?.body(new).json().await
    }

    /// Renews a subscription for `ttl_seconds`; `None` means its original lifetime.
    pub async fn renew_subscription(
        &self,
        id: &str,
        ttl_seconds: Option<u32>,
    ) -> Result<Subscribed, Error> {
        let path = ["workers", "subscriptions", id, "heartbeat"];
        self.request(Method::POST, &path)?.body(&Renewal { ttl_seconds }).json().await
    }

    /// The worker's subscriptions, or with an admin token all of the tenant's.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>, Error> {
        let list: List = self.request(Method::GET, &["workers", "subscriptions"])?.json().await?;
        Ok(list.items)
    }

    /// Looks up a subscription.
    pub async fn subscription(&self, id: &str) -> Result<Subscription, Error> {
        self.request(Method::GET, &["workers", "subscriptions", id])?.json().await
    }

    /// Removes a subscription.
    pub async fn unsubscribe(&self, id: &str) -> Result<(), Error> {
        let path = ["workers", "subscriptions", id];
        self.request(Method::DELETE, &path)?.send().await.map(|_| ())
    }
}
