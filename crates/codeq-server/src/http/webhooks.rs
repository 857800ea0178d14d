//! `/admin/webhooks`: deliveries that have not succeeded, and signing secrets.

use axum::http::StatusCode;
use codeq_core::limits::BULK_MAX;
use codeq_core::read::PendingCallback;
use codeq_webhooks::results::message_id;
use codeq_webhooks::secrets::StoredSecret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::endpoint::no_content;
use super::request_context::{Answer, RequestContext};
use super::schema::endings;
use super::wire::is_zero;
use super::{json, response};
use crate::service::permission::MayAdminister;
use crate::service::webhooks::{OVERLAP_MAX, SecretSource};
use crate::service::{Code, ServiceError};
use crate::times::Timestamp;

/// A page of deliveries.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeliveryPage")]
pub struct Page<'a> {
    /// The deliveries.
    items: Vec<DeliveryBody<'a>>,
    /// Send as `cursor` to get the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

/// A result callback that has not been delivered.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Delivery")]
struct DeliveryBody<'a> {
    /// The task's id.
    #[schemars(extend("format" = "uuid"))]
    id: String,
    /// The `webhook-id` header of every attempt.
    webhook_id: String,
    /// Where codeQ posts the result.
    url: &'a str,
    /// The task's command.
    event_type: &'a str,
    /// How the task ended.
    #[schemars(extend("enum" = endings()))]
    task_status: &'static str,
    /// `pending` if codeQ will try again, `failed` if it will not.
    #[schemars(extend("enum" = ["pending", "failed"]))]
    status: &'static str,
    /// Attempts so far. Absent if 0.
    #[serde(skip_serializing_if = "is_zero")]
    attempts: u32,
    /// When codeQ will try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<Timestamp>,
    /// The HTTP status of the receiver's last response.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_status: Option<u16>,
    /// Why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    /// When the task ended.
    completed_at: Timestamp,
}

/// A delivery that will be sent again.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeliveryResent")]
pub struct ResentOne<'a> {
    /// The task's id.
    #[schemars(extend("format" = "uuid"))]
    id: &'a str,
    /// The delivery's new status.
    #[schemars(extend("enum" = ["pending"]))]
    status: &'static str,
}

/// Which failed deliveries to send again.
#[derive(Deserialize, Default, JsonSchema)]
pub struct ResendRequest {
    /// At most this many deliveries. 0 or absent: 1,000.
    #[schemars(range(max = BULK_MAX))]
    limit: Option<u32>,
    /// `nextCursor` of the previous response, to continue there.
    #[schemars(length(min = 1))]
    cursor: Option<String>,
}

/// How many deliveries will be sent again.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeliveriesResent")]
pub struct ResentBody<'a> {
    /// Deliveries that will be sent again.
    resent: u64,
    /// Send as `cursor` to continue. Absent once every failed delivery has been visited.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

/// The secrets that sign webhook calls.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookSecrets")]
pub struct SecretsBody {
    /// Where the secrets come from. `none`: calls are not signed.
    #[schemars(extend("enum" = ["api", "setting", "none"]))]
    source: &'static str,
    /// The active secrets, oldest first.
    secrets: Vec<SecretBody>,
}

/// A secret's dates. The secret itself is never shown.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct SecretBody {
    /// When the secret was created. Absent if it is in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    /// When the server stops signing with the secret. Absent for the newest secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

/// The new secret.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RotateSecretRequest")]
pub struct RotateRequest {
    /// Your own secret: `whsec_` and the base64 of 24 to 64 bytes, or 16 to 128 visible ASCII characters. Default: a
    /// random secret.
    secret: Option<String>,
    /// How long calls are also signed with the previous secret. Default: one day.
    #[schemars(range(max = OVERLAP_MAX))]
    overlap_seconds: Option<u64>,
}

/// A new secret.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "NewWebhookSecret")]
pub struct RotatedBody<'a> {
    /// The secret. It is not shown again.
    secret: &'a str,
    /// When the secret was created.
    created_at: Timestamp,
    /// When the server stops signing with the previous secret. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_expires_at: Option<Timestamp>,
}

pub async fn deliveries(context: RequestContext) -> Answer {
    let failed = match context.param("status").as_deref() {
        None => None,
        Some("failed") => Some(true),
        Some("pending") => Some(false),
        Some(_) => {
            let text = "invalid 'status' (pending or failed)";
            return Err(ServiceError::new(Code::InvalidParameter, text).field("status").into());
        }
    };
    let (limit, cursor) = (context.number("limit")?, context.param("cursor"));
    let caller = MayAdminister::of(&context.caller)?;
    let page = context.service().deliveries(caller, failed, limit, cursor.as_deref()).await?;
    let items = page.items.iter().map(|item| delivery(&context, item)).collect();
    Ok(response::json(StatusCode::OK, &Page { items, next_cursor: page.next.as_deref() }))
}

pub async fn resend(context: RequestContext) -> Answer {
    context.service().resend(MayAdminister::of(&context.caller)?, context.path("id")).await?;
    let body = ResentOne { id: context.path("id"), status: "pending" };
    Ok(response::json(StatusCode::ACCEPTED, &body))
}

pub async fn resend_failed(context: RequestContext) -> Answer {
    let request: ResendRequest = json::parse_or_default(&context.body)?;
    let cursor = request.cursor.as_deref();
    let caller = MayAdminister::of(&context.caller)?;
    let done = context.service().resend_failed(caller, request.limit, cursor).await?;
    let body = ResentBody { resent: done.resent, next_cursor: done.next.as_deref() };
    Ok(response::json(StatusCode::OK, &body))
}

pub async fn secrets(context: RequestContext) -> Answer {
    let list = context.service().webhook_secrets(MayAdminister::of(&context.caller)?).await?;
    let source = match list.source {
        SecretSource::Api => "api",
        SecretSource::Setting => "setting",
        SecretSource::None => "none",
    };
    let secrets = list.secrets.iter().map(|secret| secret_body(&context, secret)).collect();
    Ok(response::json(StatusCode::OK, &SecretsBody { source, secrets }))
}

pub async fn rotate(context: RequestContext) -> Answer {
    let request: RotateRequest = json::parse_or_default(&context.body)?;
    let (given, overlap) = (request.secret.as_deref(), request.overlap_seconds);
    let caller = MayAdminister::of(&context.caller)?;
    let made = context.service().rotate_webhook_secret(caller, given, overlap).await?;
    let body = RotatedBody {
        secret: made.secret.reveal(),
        created_at: context.times().timestamp(made.created_at),
        previous_expires_at: made.previous_until.map(|at| context.date_of(at)),
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub async fn delete_secrets(context: RequestContext) -> Answer {
    context.service().delete_webhook_secrets(MayAdminister::of(&context.caller)?).await?;
    Ok(no_content())
}

fn delivery<'a>(context: &RequestContext, item: &'a PendingCallback) -> DeliveryBody<'a> {
    let outbox = &item.outbox;
    DeliveryBody {
        id: item.task.id.to_string(),
        webhook_id: message_id(item),
        url: item.task.webhook.as_deref().unwrap_or_default(),
        event_type: &item.task.command,
        task_status: item.result.status.as_str(),
        status: if outbox.next_at.is_some() { "pending" } else { "failed" },
        attempts: outbox.attempts,
        next_attempt_at: outbox.next_at.map(|at| context.date_of(at)),
        last_status: outbox.last_status,
        last_error: outbox.last_error.as_deref(),
        completed_at: context.times().timestamp(item.result.completed_at),
    }
}

fn secret_body(context: &RequestContext, secret: &StoredSecret) -> SecretBody {
    SecretBody {
        created_at: secret.created_at.map(|at| context.times().timestamp(at)),
        expires_at: secret.until.map(|at| context.date_of(at)),
    }
}
