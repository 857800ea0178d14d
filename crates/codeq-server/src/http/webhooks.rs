//! `/admin/webhooks`: pending deliveries, and signing secrets.

use axum::http::StatusCode;
use codeq_core::read::PendingCallback;
use codeq_webhooks::results::message_id;
use codeq_webhooks::secrets::StoredSecret;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::endpoint::no_content;
use super::wire::is_zero;
use super::{answer, json};
use crate::service::permission::MayAdminister;
use crate::service::webhooks::SecretSource;
use crate::service::{Code, ServiceError};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    items: Vec<DeliveryBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeliveryBody<'a> {
    id: String,
    webhook_id: String,
    url: &'a str,
    event_type: &'a str,
    task_status: &'static str,
    status: &'static str,
    #[serde(skip_serializing_if = "is_zero")]
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    completed_at: String,
}

#[derive(Serialize)]
struct ResentOne<'a> {
    id: &'a str,
    status: &'static str,
}

#[derive(Deserialize, Default)]
struct ResendRequest {
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResentBody<'a> {
    resent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

#[derive(Serialize)]
struct SecretsBody {
    source: &'static str,
    secrets: Vec<SecretBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SecretBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RotateRequest {
    secret: Option<String>,
    overlap_seconds: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RotatedBody<'a> {
    secret: &'a str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_expires_at: Option<String>,
}

pub async fn deliveries(call: Call) -> Answer {
    let failed = match call.param("status").as_deref() {
        None => None,
        Some("failed") => Some(true),
        Some("pending") => Some(false),
        Some(_) => {
            let text = "invalid 'status' (pending or failed)";
            return Err(ServiceError::new(Code::InvalidParameter, text).field("status").into());
        }
    };
    let (limit, cursor) = (call.number("limit")?, call.param("cursor"));
    let caller = MayAdminister::of(&call.caller)?;
    let page = call.service().deliveries(caller, failed, limit, cursor.as_deref()).await?;
    let items = page.items.iter().map(|item| delivery(&call, item)).collect();
    Ok(answer::json(StatusCode::OK, &Page { items, next_cursor: page.next.as_deref() }))
}

pub async fn resend(call: Call) -> Answer {
    call.service().resend(MayAdminister::of(&call.caller)?, call.path("id")).await?;
    let body = ResentOne { id: call.path("id"), status: "pending" };
    Ok(answer::json(StatusCode::ACCEPTED, &body))
}

pub async fn resend_failed(call: Call) -> Answer {
    let request: ResendRequest = json::parse_or_default(&call.body)?;
    let cursor = request.cursor.as_deref();
    let caller = MayAdminister::of(&call.caller)?;
    let done = call.service().resend_failed(caller, request.limit, cursor).await?;
    let body = ResentBody { resent: done.resent, next_cursor: done.next.as_deref() };
    Ok(answer::json(StatusCode::OK, &body))
}

pub async fn secrets(call: Call) -> Answer {
    let list = call.service().webhook_secrets(MayAdminister::of(&call.caller)?).await?;
    let source = match list.source {
        SecretSource::Api => "api",
        SecretSource::Setting => "setting",
        SecretSource::None => "none",
    };
    let secrets = list.secrets.iter().map(|secret| secret_body(&call, secret)).collect();
    Ok(answer::json(StatusCode::OK, &SecretsBody { source, secrets }))
}

pub async fn rotate(call: Call) -> Answer {
    let request: RotateRequest = json::parse_or_default(&call.body)?;
    let (given, overlap) = (request.secret.as_deref(), request.overlap_seconds);
    let caller = MayAdminister::of(&call.caller)?;
    let made = call.service().rotate_webhook_secret(caller, given, overlap).await?;
    let body = RotatedBody {
        secret: made.secret.reveal(),
        created_at: call.times().text(made.created_at),
        previous_expires_at: made.previous_until.map(|at| call.date_of(at)),
    };
    Ok(answer::json(StatusCode::OK, &body))
}

pub async fn delete_secrets(call: Call) -> Answer {
    call.service().delete_webhook_secrets(MayAdminister::of(&call.caller)?).await?;
    Ok(no_content())
}

fn delivery<'a>(call: &Call, item: &'a PendingCallback) -> DeliveryBody<'a> {
    let outbox = &item.outbox;
    DeliveryBody {
        id: item.task.id.to_string(),
        webhook_id: message_id(item),
        url: item.task.webhook.as_deref().unwrap_or_default(),
        event_type: &item.task.command,
        task_status: item.result.status.as_str(),
        status: if outbox.next_at.is_some() { "pending" } else { "failed" },
        attempts: outbox.attempts,
        next_attempt_at: outbox.next_at.map(|at| call.date_of(at)),
        last_status: outbox.last_status,
        last_error: outbox.last_error.as_deref(),
        completed_at: call.times().text(item.result.completed_at),
    }
}

fn secret_body(call: &Call, secret: &StoredSecret) -> SecretBody {
    SecretBody {
        created_at: secret.created_at.map(|at| call.times().text(at)),
        expires_at: secret.until.map(|at| call.date_of(at)),
    }
}
