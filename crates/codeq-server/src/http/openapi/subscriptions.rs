//! Operations on worker subscriptions.

use serde_json::json;

use super::operation::Operation;
use crate::http::subscriptions::{Body, List, Renewal, Request, Subscribed};
use crate::service::Code;

const WRITE: &[Code] = &[Code::InvalidSubscription, Code::InvalidTenant];

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("subscribe", subscribe()),
        ("renewSubscription", renew()),
        ("listSubscriptions", list_all()),
        ("getSubscription", get()),
        ("unsubscribe", unsubscribe()),
    ]
}

fn subscribe() -> Operation {
    let example = json!({
        "callbackUrl": "https://worker.example.com/wake",
        "eventTypes": ["GENERATE_MASTER"],
        "deliveryMode": "group",
        "groupId": "encoders",
    });
    Operation::new(
        "subscription",
        "Subscribe to notifications",
        "codeQ posts to `callbackUrl` when a queue that had nothing to claim gets work. A notification assigns \
         nothing: the worker claims as usual. If the same worker sends the same request again, that renews the \
         subscription. A token with the claim `workerGroup` cannot name another group, and its default mode is \
         `group`.",
    )
    .body::<Request>(example)
    .answers::<Subscribed>(200, "The subscription's id, and when it ends.")
    .refuses(WRITE)
    .refuses(&[Code::InvalidCallbackUrl, Code::InvalidCommand, Code::TooManyRecords, Code::InvalidRecord])
}

fn renew() -> Operation {
    Operation::new(
        "subscription",
        "Renew a subscription",
        "The subscription then ends `ttlSeconds` from now. Only its owner can renew it.",
    )
    .optional_body::<Renewal>(json!({ "ttlSeconds": 300 }))
    .answers::<Subscribed>(200, "The subscription's id, and when it ends.")
    .refuses(WRITE)
    .refuses(&[Code::NotFound, Code::RecordChanged])
}

fn list_all() -> Operation {
    Operation::new(
        "subscription",
        "List subscriptions",
        "A worker gets its own subscriptions, an admin all of the tenant's.",
    )
    .answers::<List>(200, "The subscriptions, oldest first.")
}

fn get() -> Operation {
    let about = "A worker can get its own subscriptions, an admin any of the tenant's.";
    Operation::new("subscription", "Get a subscription", about)
        .answers::<Body>(200, "The subscription.")
        .refuses(&[Code::NotFound])
}

fn unsubscribe() -> Operation {
    let about = "A worker can remove its own subscriptions, an admin any of the tenant's.";
    Operation::new("subscription", "Remove a subscription", about)
        .answers_nothing(204, "The subscription was removed.")
        .refuses(&[Code::NotFound])
}
