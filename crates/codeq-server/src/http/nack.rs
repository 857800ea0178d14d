//! `POST /tasks/{id}/nack`.

use std::sync::Arc;

use axum::http::StatusCode;
use codeq_core::reply::Returned;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request_context::{Answer, RequestContext};
use super::{json, response};
use crate::service::lease::LeaseRef;
use crate::service::permission::MayNack;

/// Why an attempt failed, and when to retry.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NackRequest {
    /// Seconds until the next attempt, up to the server's maximum. 0 retries at once. Negative or absent: the
    /// backoff policy decides.
    delay_seconds: Option<i64>,
    /// Stored as the task's error; cut at 4,096 bytes.
    reason: Option<Arc<str>>,
    /// The claim's `fence`. If the task has been claimed again since, the response is 409 `lease_lost`.
    fence: Option<u64>,
    /// The claim's `workerId`. Not checked if the claim had none.
    worker_id: Option<Box<str>>,
}

/// Where a task went after a failed attempt.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nacked {
    /// Where the task went: back to its queue, to the dead letters, or nowhere because it was cancelled.
    #[schemars(extend("enum" = returned()))]
    status: &'static str,
    /// Seconds until the next attempt, rounded up.
    delay_seconds: u64,
}

pub async fn nack(context: RequestContext) -> Answer {
    let request: NackRequest = json::parse_or_default(&context.body)?;
    // A negative delay counts as absent.
    let delay = request.delay_seconds.and_then(|delay| u64::try_from(delay).ok());
    let lease = LeaseRef::new(&context.caller, request.worker_id.as_deref(), request.fence);
    let (service, caller) = (context.service(), MayNack::of(&context.caller)?);
    let prepared = service.nack(caller, context.path("id"), delay, request.reason, lease)?;
    let done = service.call(prepared).await?;
    let delay_seconds = match done {
        Returned::Requeued { delay } => delay.div_ceil(1_000),
        Returned::Dead | Returned::Cancelled => 0,
    };
    Ok(response::json(StatusCode::OK, &Nacked { status: place(done), delay_seconds }))
}

/// The names of the places a returned task can go to.
pub fn returned() -> [&'static str; 3] {
    [Returned::Requeued { delay: 0 }, Returned::Dead, Returned::Cancelled].map(place)
}

/// The name of the place a returned task went to.
pub fn place(returned: Returned) -> &'static str {
    match returned {
        Returned::Requeued { .. } => "requeued",
        Returned::Dead => "dlq",
        Returned::Cancelled => "cancelled",
    }
}
