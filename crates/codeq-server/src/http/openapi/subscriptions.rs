//! Worker subscriptions and their notifications: operations, schemas and the webhook.

use codeq_auth::GROUP_BYTES_MAX;
use codeq_core::limits::WEBHOOK_BYTES_MAX;
use serde_json::{Value, json};

use super::kinds::{count, list, moment, number_or_null, object, text, text_or_null, word};
use super::operation::{Operation, reference, set};
use crate::service::Code;
use crate::service::subscriptions::{INTERVAL_SECONDS_MAX, TTL_SECONDS_MAX};

const MODES: &[&str] = &["fanout", "group", "hash"];
const WRITE: &[Code] = &[Code::InvalidSubscription, Code::InvalidTenant, Code::RecordChanged];

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

/// The schemas, by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("SubscribeRequest", request()),
        ("RenewSubscriptionRequest", renewal()),
        ("Subscribed", subscribed()),
        ("Subscription", subscription()),
        ("SubscriptionList", page()),
        ("AvailabilityNotification", notification()),
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
        "Be told when there is work",
        "The address is posted to when a queue gets work that had none to claim. This assigns nothing: the \
         worker claims as always. The same wish of the same worker again renews its subscription. A token \
         with `workerGroup` is for that group, and has the mode `group` by default.",
    )
    .body("SubscribeRequest", example)
    .answers(200, "The subscription and its end.", "Subscribed")
    .refuses(WRITE)
    .refuses(&[Code::InvalidCallbackUrl, Code::InvalidCommand, Code::TooManyRecords, Code::InvalidRecord])
}

fn renew() -> Operation {
    Operation::new(
        "subscription",
        "Renew a subscription",
        "Its end is `ttlSeconds` from now; what it was made with if that is left out. Only its owner can.",
    )
    .optional_body("RenewSubscriptionRequest", json!({ "ttlSeconds": 300 }))
    .answers(200, "The subscription and its end.", "Subscribed")
    .refuses(WRITE)
    .refuses(&[Code::NotFound])
}

fn list_all() -> Operation {
    Operation::new(
        "subscription",
        "List subscriptions",
        "Those of the worker, or all of the tenant for an admin; oldest first.",
    )
    .answers(200, "The subscriptions.", "SubscriptionList")
}

fn get() -> Operation {
    let about = "One of the worker's own, or any of the tenant for an admin.";
    Operation::new("subscription", "Get a subscription", about)
        .answers(200, "The subscription.", "Subscription")
        .refuses(&[Code::NotFound])
}

fn unsubscribe() -> Operation {
    let about = "One of the worker's own, or any of the tenant for an admin.";
    Operation::new("subscription", "Remove a subscription", about)
        .answers_nothing(204, "It is gone.")
        .refuses(&[Code::NotFound, Code::RecordChanged])
}

fn event_types(description: &str) -> Value {
    list(json!({ "type": "string" }), description)
}

fn request() -> Value {
    let mut names = event_types("Commands; none means all that the token allows.");
    set(&mut names, "type", json!(["array", "null"]));
    let mode = json!({
        "type": ["string", "null"], "enum": ["fanout", "group", "hash", "", null],
        "description": "`fanout`: each subscription; `group`: one of the group in turn; `hash`: one of all \
            of this mode, by the command. Default `fanout`, or `group` with a token that has a group.",
    });
    let properties = json!({
        "callbackUrl": {
            "type": "string", "pattern": r"^https?://[^/?#\s]", "maxLength": WEBHOOK_BYTES_MAX,
            "description": "Where notifications are posted: http or https.",
        },
        "eventTypes": names,
        "ttlSeconds": number_or_null(1, TTL_SECONDS_MAX.into(),
            "It ends after so many seconds without being renewed. Default 300."),
        "deliveryMode": mode,
        "groupId": text_or_null(GROUP_BYTES_MAX, "The group; needed in group mode."),
        "minIntervalSeconds": number_or_null(0, INTERVAL_SECONDS_MAX.into(),
            "At least so many seconds between two notifications. Default 5."),
    });
    object("Who is told of what.", &["callbackUrl"], properties)
}

fn renewal() -> Value {
    let ttl = number_or_null(
        1,
        TTL_SECONDS_MAX.into(),
        "It ends so many seconds from now; what it was made with if absent.",
    );
    object("How long the subscription lives on.", &[], json!({ "ttlSeconds": ttl }))
}

fn subscribed() -> Value {
    let properties = json!({
        "subscriptionId": text("Its id."),
        "expiresAt": moment("When it ends, unless it is renewed."),
    });
    object("A subscription that was made or renewed.", &["subscriptionId", "expiresAt"], properties)
}

fn subscription() -> Value {
    let properties = json!({
        "subscriptionId": text("Its id."),
        "workerId": text("Its owner: the subject of the token that made it."),
        "callbackUrl": text("Where notifications are posted."),
        "eventTypes": event_types("Commands; `*` is any."),
        "deliveryMode": word(MODES, "Who of several hears."),
        "groupId": text("The group, in group mode."),
        "minIntervalSeconds": count("At least so many seconds between two notifications."),
        "ttlSeconds": count("How long it lives without being renewed."),
        "createdAt": moment("When it was made."),
        "expiresAt": moment("When it ends, unless it is renewed."),
    });
    let required = [
        "subscriptionId",
        "workerId",
        "callbackUrl",
        "eventTypes",
        "deliveryMode",
        "minIntervalSeconds",
        "ttlSeconds",
        "createdAt",
        "expiresAt",
    ];
    object("A subscription.", &required, properties)
}

fn page() -> Value {
    let items = list(reference("Subscription"), "The subscriptions.");
    object("Subscriptions.", &["items"], json!({ "items": items }))
}

fn notification() -> Value {
    let properties = json!({
        "eventType": text("The command whose queue has work, as the subscription spells it."),
        "available": { "type": "boolean", "const": true },
        "queueDepth": count("Tasks that could be claimed when this was sent."),
        "claimUrl": text("The path to claim at, `/v1/codeq/tasks/claim`."),
        "claimUrlAbsolute": text("The same behind `publicUrl`; absent if the server has none."),
        "sentAt": moment("When this was sent."),
        "notificationId": text("Another one for each notification; the same as `webhook-id`."),
    });
    let required = ["eventType", "available", "queueDepth", "claimUrl", "sentAt", "notificationId"];
    object("What is posted to a subscription's `callbackUrl`.", &required, properties)
}

/// The notification as its receiver sees it, with the `headers` of every webhook.
pub fn webhook(headers: Value) -> Value {
    json!({
        "operationId": "taskAvailable",
        "tags": ["subscription"],
        "summary": "A queue has work",
        "description": "Sent to subscriptions when a queue gets work that had none to claim: by an enqueue, by \
            a delayed task that comes due, by one that is given back. Advisory, and sent once: nothing is \
            assigned and nothing is tried again. Redirects are not followed and 10 seconds are allowed for \
            the answer.",
        "parameters": headers,
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": reference("AvailabilityNotification") } },
        },
        "responses": {
            "2XX": { "description": "Received." },
            "410": { "description": "The subscription is removed." },
        },
    })
}
