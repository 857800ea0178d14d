//! Result callback deliveries, and signing secrets.

use codeq_core::limits::{BULK_MAX, LIST_MAX};
use serde_json::{Value, json};

use super::kinds::{count, ending, list, moment, number_or_null, object, text, word};
use super::operation::{Operation, reference};
use crate::service::Code;
use crate::service::tasks::PAGE_DEFAULT;
use crate::service::webhooks::{OVERLAP_DEFAULT, OVERLAP_MAX};

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("listDeliveries", list_deliveries()),
        ("resendDelivery", resend()),
        ("resendDeliveries", resend_failed()),
        ("listWebhookSecrets", list_secrets()),
        ("rotateWebhookSecret", rotate()),
        ("deleteWebhookSecrets", delete_secrets()),
    ]
}

/// The schemas, by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("Delivery", delivery()),
        ("DeliveryPage", delivery_page()),
        ("DeliveryResent", delivery_resent()),
        ("ResendRequest", resend_request()),
        ("DeliveriesResent", deliveries_resent()),
        ("WebhookSecrets", secrets()),
        ("RotateSecretRequest", rotate_request()),
        ("NewWebhookSecret", new_secret()),
    ]
}

fn list_deliveries() -> Operation {
    let limit =
        json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT });
    Operation::new(
        "webhook",
        "List deliveries",
        "Result callbacks that were not delivered: those that will be tried again, and those that were given \
         up and are kept as long as their task. A page may have fewer items than asked for, or none, and \
         still not be the last.",
    )
    .query("status", "Only these.", json!({ "type": "string", "enum": ["pending", "failed"] }))
    .query("limit", "Deliveries on the page.", limit)
    .query("cursor", "`nextCursor` of the page before.", json!({ "type": "string" }))
    .answers(200, "A page. Without `nextCursor` it is the last one.", "DeliveryPage")
    .refuses(&[Code::InvalidParameter, Code::InvalidLimit, Code::InvalidCursor])
}

fn resend() -> Operation {
    Operation::new(
        "webhook",
        "Send one delivery again",
        "At once, with no attempts spent and under the same `webhook-id`. The id is that of the task.",
    )
    .answers(202, "It will be sent.", "DeliveryResent")
    .refuses(&[Code::NotFound, Code::InvalidTenant])
}

fn resend_failed() -> Operation {
    Operation::new(
        "webhook",
        "Send failed deliveries again",
        "Those that were given up, up to `limit` in one call. Repeat with `cursor` while `nextCursor` is \
         answered.",
    )
    .optional_body("ResendRequest", json!({ "limit": 100 }))
    .answers(200, "How many will be sent.", "DeliveriesResent")
    .refuses(&[Code::InvalidLimit, Code::InvalidCursor, Code::InvalidTenant])
}

fn list_secrets() -> Operation {
    Operation::new(
        "webhook",
        "List secrets",
        "Which secrets calls are signed with, oldest first; never the secrets themselves.",
    )
    .answers(200, "Those that are live.", "WebhookSecrets")
}

fn rotate() -> Operation {
    Operation::new(
        "webhook",
        "Make a new secret",
        "Calls are signed with it from now on, and with the one before for a while. This is the only time \
         that the secret is shown.",
    )
    .optional_body("RotateSecretRequest", json!({ "overlapSeconds": OVERLAP_DEFAULT }))
    .answers(200, "The secret.", "NewWebhookSecret")
    .refuses(&[Code::InvalidSecret, Code::InvalidOverlap, Code::RecordChanged, Code::InvalidTenant])
    .refuses(&[Code::TooManyRecords])
}

fn delete_secrets() -> Operation {
    Operation::new(
        "webhook",
        "Forget the secrets",
        "Those of the configuration count again; without any, calls are not signed.",
    )
    .answers_nothing(204, "They are gone.")
    .refuses(&[Code::NotFound, Code::InvalidTenant])
}

fn delivery() -> Value {
    let properties = json!({
        "id": { "type": "string", "format": "uuid", "description": "The task's id." },
        "webhookId": text("The header `webhook-id` of all attempts."),
        "url": text("Where it goes."),
        "eventType": text("The task's command."),
        "taskStatus": ending("How the task ended."),
        "status": word(&["pending", "failed"], "Whether it will be tried again."),
        "attempts": count("Attempts so far; left out if there were none."),
        "nextAttemptAt": moment("When it is tried next."),
        "lastStatus": { "type": "integer", "description": "The receiver's last HTTP status." },
        "lastError": text("What went wrong last."),
        "completedAt": moment("When the task ended."),
    });
    let required = ["id", "webhookId", "url", "eventType", "taskStatus", "status", "completedAt"];
    object("A result callback that was not delivered.", &required, properties)
}

fn delivery_page() -> Value {
    let properties = json!({
        "items": list(reference("Delivery"), "The deliveries."),
        "nextCursor": text("Where the next page begins."),
    });
    object("Some deliveries.", &["items"], properties)
}

fn delivery_resent() -> Value {
    let properties = json!({
        "id": { "type": "string", "format": "uuid", "description": "The task's id." },
        "status": word(&["pending"], "It will be sent."),
    });
    object("A delivery that will be sent.", &["id", "status"], properties)
}

fn resend_request() -> Value {
    let limit =
        number_or_null(0, i64::from(BULK_MAX), "Send at most so many; 0 and absent mean 1,000.");
    let properties = json!({
        "limit": limit,
        "cursor": {
            "type": ["string", "null"], "minLength": 1,
            "description": "`nextCursor` of the call before, to go on where it stopped.",
        },
    });
    object("Which failed deliveries to send again.", &[], properties)
}

fn deliveries_resent() -> Value {
    let properties = json!({
        "resent": count("Deliveries that will be sent."),
        "nextCursor": text("Where to go on; absent when all have been looked at."),
    });
    object("Deliveries that will be sent.", &["resent"], properties)
}

fn secrets() -> Value {
    let one = object(
        "A secret, without the secret.",
        &[],
        json!({
            "createdAt": moment("When it was made; absent if it is in the configuration."),
            "expiresAt": moment("When it ceases to be signed with; absent for the latest."),
        }),
    );
    let properties = json!({
        "source": word(&["api", "setting", "none"], "Who made them; `none` means that calls are not signed."),
        "secrets": list(one, "Oldest first."),
    });
    object("What calls are signed with.", &["source", "secrets"], properties)
}

fn rotate_request() -> Value {
    let overlap = number_or_null(
        0,
        OVERLAP_MAX as i64,
        "How long the one before is signed with as well. Default a day.",
    );
    let properties = json!({
        "secret": {
            "type": ["string", "null"],
            "description": "One of your own: `whsec_` and base64 of 24 to 64 bytes, or 16 to 128 visible letters. \
                Default a random one.",
        },
        "overlapSeconds": overlap,
    });
    object("What the new secret is like.", &[], properties)
}

fn new_secret() -> Value {
    let properties = json!({
        "secret": text("The secret. It is not shown again."),
        "createdAt": moment("When it was made."),
        "previousExpiresAt": moment("Until when the one before is signed with, if there is one."),
    });
    object("A secret that was just made.", &["secret", "createdAt"], properties)
}
