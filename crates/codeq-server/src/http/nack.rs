//! `POST /tasks/{id}/nack`.

use std::sync::Arc;

use axum::http::StatusCode;
use codeq_core::reply::Returned;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::{answer, json};
use crate::service::lease::LeaseRef;
use crate::service::permission::MayNack;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Request {
    delay_seconds: Option<i64>,
    reason: Option<Arc<str>>,
    fence: Option<u64>,
    worker_id: Option<Box<str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Nacked {
    status: &'static str,
    delay_seconds: u64,
}

pub async fn nack(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    // A negative delay counts as absent.
    let delay = request.delay_seconds.and_then(|delay| u64::try_from(delay).ok());
    let lease = LeaseRef::new(&call.caller, request.worker_id.as_deref(), request.fence);
    let (service, caller) = (call.service(), MayNack::of(&call.caller)?);
    let ask = service.nack(caller, call.path("id"), delay, request.reason, lease)?;
    let done = service.answer(ask).await?;
    let delay_seconds = match done {
        Returned::Requeued { delay } => delay.div_ceil(1_000),
        Returned::Dead | Returned::Cancelled => 0,
    };
    Ok(answer::json(StatusCode::OK, &Nacked { status: place(done), delay_seconds }))
}

/// The name of the place a returned task went to.
pub fn place(returned: Returned) -> &'static str {
    match returned {
        Returned::Requeued { .. } => "requeued",
        Returned::Dead => "dlq",
        Returned::Cancelled => "cancelled",
    }
}
