//! `POST /tasks/{id}/abandon`.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::nack::{place, returned};
use super::request_context::{Answer, RequestContext};
use super::{json, response};
use crate::service::lease::LeaseRef;
use crate::service::permission::MayAbandon;

/// How to return a task to its queue.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbandonRequest {
    /// Whether this counts as a failed attempt. Default true.
    penalty: Option<bool>,
    /// The claim's `fence`. If the task has been claimed again since, the response is 409 `lease_lost`.
    fence: Option<u64>,
    /// The claim's `workerId`. Not checked if the claim had none.
    worker_id: Option<Box<str>>,
}

/// Where an abandoned task went.
#[derive(Serialize, JsonSchema)]
pub struct Abandoned {
    /// Where the task went: back to its queue, to the dead letters, or nowhere because it was cancelled.
    #[schemars(extend("enum" = returned()))]
    status: &'static str,
}

pub async fn abandon(context: RequestContext) -> Answer {
    let request: AbandonRequest = json::parse_or_default(&context.body)?;
    let penalty = request.penalty.unwrap_or(true);
    let lease = LeaseRef::new(&context.caller, request.worker_id.as_deref(), request.fence);
    let (service, caller) = (context.service(), MayAbandon::of(&context.caller)?);
    let done = service.call(service.abandon(caller, context.path("id"), penalty, lease)?).await?;
    Ok(response::json(StatusCode::OK, &Abandoned { status: place(done) }))
}
