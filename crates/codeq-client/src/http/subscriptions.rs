//! Worker subscriptions: being told when there is work.

use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::HttpClient;
use crate::error::Error;

/// Who of several subscriptions is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DeliveryMode {
    /// Each.
    Fanout,
    /// One of the group, in turn.
    Group,
    /// One of all that have this mode, by the command.
    Hash,
}

/// What to subscribe to. The default leaves all but the address to the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSubscription {
    /// Where notifications are posted.
    pub callback_url: String,
    /// Commands; empty means all that the token allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<String>,
    /// How long it lives without being renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    /// Who of several is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_mode: Option<DeliveryMode>,
    /// The group, in group mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// At least so long between two notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_interval_seconds: Option<u32>,
}

/// A subscription that was made or renewed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Subscribed {
    /// Its id.
    pub subscription_id: String,
    /// When it ends, unless it is renewed.
    pub expires_at: String,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Subscription {
    /// Its id.
    pub subscription_id: String,
    /// Its owner.
    pub worker_id: String,
    /// Where notifications are posted.
    pub callback_url: String,
    /// Commands; `*` is any.
    pub event_types: Vec<String>,
    /// Who of several is told.
    pub delivery_mode: DeliveryMode,
    /// The group, in group mode.
    pub group_id: Option<String>,
    /// At least so long between two notifications.
    pub min_interval_seconds: u32,
    /// How long it lives without being renewed.
    pub ttl_seconds: u32,
    /// When it was made.
    pub created_at: String,
    /// When it ends, unless it is renewed.
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
    /// Has the server post to an address when there is work. The same again renews the subscription.
    pub async fn subscribe(&self, wish: &NewSubscription) -> Result<Subscribed, Error> {
        self.request(Method::POST, &["workers", "subscriptions"])?.body(wish).json().await
    }

    /// Lets a subscription live on for `ttl_seconds`; as long as it was made for if that is none.
    pub async fn renew_subscription(
        &self,
        id: &str,
        ttl_seconds: Option<u32>,
    ) -> Result<Subscribed, Error> {
        let path = ["workers", "subscriptions", id, "heartbeat"];
        self.request(Method::POST, &path)?.body(&Renewal { ttl_seconds }).json().await
    }

    /// The worker's subscriptions; those of the tenant with a token of an administrator.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>, Error> {
        let list: List = self.request(Method::GET, &["workers", "subscriptions"])?.json().await?;
        Ok(list.items)
    }

    /// A subscription.
    pub async fn subscription(&self, id: &str) -> Result<Subscription, Error> {
        self.request(Method::GET, &["workers", "subscriptions", id])?.json().await
    }

    /// Removes a subscription.
    pub async fn unsubscribe(&self, id: &str) -> Result<(), Error> {
        let path = ["workers", "subscriptions", id];
        self.request(Method::DELETE, &path)?.send().await.map(|_| ())
    }
}
