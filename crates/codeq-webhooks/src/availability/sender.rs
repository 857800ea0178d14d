//! Sends one notification.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{Command, DeleteRecord};
use codeq_core::record::RecordKind;
use codeq_engine::Engine;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::recipients::Notification;
use super::subscriptions::Subscriptions;
use crate::client::Answered;
use crate::dispatcher::Outcome;
use crate::outbound::Outbound;
use crate::policy::Destination;
use crate::report::{WebhookKind, WebhookOutcome};

/// Where workers claim, below the server's URL.
const CLAIM_PATH: &str = "/v1/codeq/tasks/claim";

pub(super) struct Sender {
    outbound: Arc<Outbound>,
    pub subscriptions: Arc<Subscriptions>,
    /// Where workers claim, with the server's public URL in front, if the operator has set one.
    claim_url: Option<String>,
}

/// The body of the POST to a subscription's `callbackUrl`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AvailabilityNotification")]
pub struct NotificationBody<'a> {
    /// The command whose queue has work, spelled as in the subscription.
    event_type: &'a str,
    /// Always true.
    #[schemars(extend("const" = true))]
    available: bool,
    /// How many tasks could be claimed when this was sent.
    queue_depth: u64,
    /// The path of the claim route, `/v1/codeq/tasks/claim`.
    claim_url: &'a str,
    /// The full URL of the claim route. Absent if the server has no `publicUrl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_url_absolute: Option<&'a str>,
    /// When this was sent.
    #[schemars(extend("format" = "date-time"))]
    sent_at: String,
    /// A unique id, equal to the `webhook-id` header.
    notification_id: &'a str,
}

impl Sender {
    pub fn new(
        outbound: Arc<Outbound>,
        subscriptions: Arc<Subscriptions>,
        public_url: Option<&str>,
    ) -> Sender {
        let claim_url = public_url.map(|url| format!("{}{CLAIM_PATH}", url.trim_end_matches('/')));
        Sender { outbound, subscriptions, claim_url }
    }

    pub fn engine(&self) -> &Engine {
        &self.outbound.engine
    }

    pub async fn send(&self, notification: &Notification) -> Outcome {
        let Notification { tenant, id: subscription, command } = notification;
        let subscriber = self.subscriptions.get(tenant, subscription, self.engine().now().now);
        let Some(subscriber) = subscriber else { return Outcome::Skipped };
        let queue_depth = self.engine().claimable(tenant, command);
        let event_type = match subscriber.subscription.spec.spelling(command) {
            Some(event_type) if queue_depth > 0 => event_type,
            _ => return Outcome::Skipped,
        };
        let id = format!("{:032x}", rand::random::<u128>());
        let body = NotificationBody {
            event_type,
            available: true,
            queue_depth,
            claim_url: CLAIM_PATH,
            claim_url_absolute: self.claim_url.as_deref(),
            sent_at: (self.outbound.format_time)(self.engine().wall()),
            notification_id: &id,
        };
        let outcome = self.post(notification, &subscriber.to, &id, &body).await;
        let counted = match outcome {
            Outcome::Delivered => Some(WebhookOutcome::Delivered),
            Outcome::Failed => Some(WebhookOutcome::Failed),
            // Nothing was sent. A busy call is made again for as long as the subscription exists and the queue has work.
            Outcome::Busy | Outcome::Skipped => None,
        };
        if let Some(counted) = counted {
            self.count(counted, Some((tenant, command)));
        }
        outcome
    }

    async fn post(
        &self,
        notification: &Notification,
        to: &Destination,
        id: &str,
        body: &NotificationBody<'_>,
    ) -> Outcome {
        let Ok(body) = serde_json::to_vec(body) else { return Outcome::Failed };
        let (tenant, headers) = (&notification.tenant, HeaderMap::new());
        let posted = self.outbound.post(tenant, to, id, headers, Bytes::from(body)).await;
        let status = match posted {
            Ok(Answered { status, .. }) => status,
            Err(error) if error.is_untried() => return Outcome::Busy,
            Err(_) => return Outcome::Failed,
        };
        if !status.is_success() {
            let (to, code) = (to.authority(), status.as_u16());
            tracing::debug!(target: "codeq::webhooks", to, status = code, "a notification was not accepted");
        }
        if status == StatusCode::GONE {
            self.unsubscribe(notification).await;
        }
        if status.is_success() { Outcome::Delivered } else { Outcome::Failed }
    }

    /// Removes the subscription, because its receiver said that it is gone for good.
    async fn unsubscribe(&self, notification: &Notification) {
        let delete = Command::DeleteRecord(DeleteRecord {
            tenant: Arc::clone(&notification.tenant),
            kind: RecordKind::Subscription,
            name: Arc::clone(&notification.id),
            expected: None,
        });
        if let Err(error) = self.engine().propose(delete).await {
            tracing::debug!(target: "codeq::webhooks", %error, "a subscription was not removed");
        }
    }

    /// Counts a notification about a queue: tenant and command.
    pub fn count(&self, outcome: WebhookOutcome, queue: Option<(&Arc<str>, &str)>) {
        self.outbound.report.count(WebhookKind::Availability, outcome, queue);
    }
}

#[cfg(test)]
mod tests {
    use codeq_core::command::{Enqueue, NewTask};

    use super::super::fixture::record;
    use super::super::work_available::WorkAvailable;
    use super::*;
    use crate::fixture::Fixture;

    #[tokio::test]
    async fn a_notification_that_could_not_be_tried_has_not_failed() {
        let fixture = Fixture::open(1);
        let (tenant, command): (Arc<str>, Arc<str>) = ("acme".into(), "resize".into());
        let task =
            NewTask { command: Arc::clone(&command), payload: "{}".into(), ..NewTask::default() };
        let tenant_of_task = Arc::clone(&tenant);
        let enqueue = Enqueue { tenant: tenant_of_task, tasks: vec![task], atomic: false, seed: 7 };
        fixture.outbound.engine.propose(Command::Enqueue(enqueue)).await.unwrap();
        let record = record(&tenant, |_| ());
        let policy = Arc::clone(&fixture.outbound.policy);
        let subscriptions = Subscriptions::new(policy, Arc::new(WorkAvailable::default()));
        subscriptions.put(&record);
        let sender = Sender::new(Arc::clone(&fixture.outbound), Arc::new(subscriptions), None);
        let notification = Notification { tenant, id: record.name, command };
        assert_eq!(sender.send(&notification).await, Outcome::Busy);
        assert_eq!(*fixture.counted.0.lock(), []);
    }
}
