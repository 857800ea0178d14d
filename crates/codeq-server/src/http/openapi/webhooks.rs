//! Result callback deliveries, and signing secrets.

use codeq_core::limits::LIST_MAX;
use serde_json::json;

use super::operation::{Operation, text};
use crate::http::webhooks::{
    Page, ResendRequest, ResentBody, ResentOne, RotateRequest, RotatedBody, SecretsBody,
};
use crate::service::Code;
use crate::service::tasks::PAGE_DEFAULT;
use crate::service::webhooks::OVERLAP_DEFAULT;

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

fn list_deliveries() -> Operation {
    let status = json!({ "type": "string", "enum": ["pending", "failed"] });
    let limit =
        json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT });
    Operation::new(
        "webhook",
        "List deliveries",
        "Result callbacks that have not been delivered: those that codeQ will retry, and those that have \
         failed for good, which are kept as long as their task. A page may contain fewer items than `limit`, or none, without \
         being the last one.",
    )
    .query("status", "Only deliveries with this status.", status)
    .query("limit", "The maximum number of deliveries on the page.", limit)
    .query("cursor", "`nextCursor` of the previous page.", text())
    .answers::<Page>(200, "A page of deliveries. The last page has no `nextCursor`.")
    .refuses(&[Code::InvalidParameter, Code::InvalidLimit, Code::InvalidCursor])
}

fn resend() -> Operation {
    Operation::new(
        "webhook",
        "Resend a delivery",
        "Sends the callback at once, with the same `webhook-id`, and resets its attempts. The id is the task's id.",
    )
    .answers::<ResentOne>(202, "The callback will be sent.")
    .refuses(&[Code::NotFound, Code::NoCallback, Code::InvalidTenant])
}

fn resend_failed() -> Operation {
    Operation::new(
        "webhook",
        "Resend failed deliveries",
        "Resends the callbacks that have failed for good, up to `limit` per call. Repeat with `cursor` as long as the \
         response has `nextCursor`.",
    )
    .optional_body::<ResendRequest>(json!({ "limit": 100 }))
    .answers::<ResentBody>(200, "How many callbacks will be sent.")
    .refuses(&[Code::InvalidLimit, Code::InvalidCursor, Code::InvalidTenant])
}

fn list_secrets() -> Operation {
    Operation::new(
        "webhook",
        "List secrets",
        "The secrets that webhook calls are signed with, oldest first. The secrets themselves are never shown.",
    )
    .answers::<SecretsBody>(200, "The active secrets.")
}

fn rotate() -> Operation {
    Operation::new(
        "webhook",
        "Create a new secret",
        "Webhook calls are signed with the new secret from now on and, for `overlapSeconds`, with the previous one \
         too. Only this response shows the secret.",
    )
    .optional_body::<RotateRequest>(json!({ "overlapSeconds": OVERLAP_DEFAULT }))
    .answers::<RotatedBody>(200, "The secret.")
    .refuses(&[Code::InvalidSecret, Code::InvalidOverlap, Code::RecordChanged, Code::InvalidTenant])
    .refuses(&[Code::TooManyRecords])
}

fn delete_secrets() -> Operation {
    Operation::new(
        "webhook",
        "Delete the secrets",
        "The configured secrets apply again. If there are none, calls are not signed.",
    )
    .answers_nothing(204, "The secrets were deleted.")
    .refuses(&[Code::NotFound, Code::InvalidTenant])
}
