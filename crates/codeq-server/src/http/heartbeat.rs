//! `POST /tasks/{id}/heartbeat`.

use axum::http::StatusCode;
use codeq_core::limits::LEASE_MS_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request_context::{Answer, RequestContext};
use super::{json, response};
use crate::service::lease::LeaseRef;
use crate::service::permission::MayHeartbeat;
use crate::times::Timestamp;

/// How long to extend a lease.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatRequest {
    /// The lease ends this many seconds from now. 0 or less: the default.
    #[schemars(range(max = LEASE_MS_MAX / 1_000))]
    extend_seconds: Option<i64>,
    /// The claim's `fence`. If the task has been claimed again since, the response is 409 `lease_lost`.
    fence: Option<u64>,
    /// The claim's `workerId`. Not checked if the claim had none.
    worker_id: Option<Box<str>>,
}

/// An extended lease.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Lease")]
pub struct Extended {
    /// Always true.
    #[schemars(extend("const" = true))]
    ok: bool,
    /// When the lease now ends.
    lease_until: Timestamp,
    /// Whether somebody asked to cancel the task. If so, stop working on it.
    cancel_requested: bool,
}

pub async fn heartbeat(context: RequestContext) -> Answer {
    let request: HeartbeatRequest = json::parse_or_default(&context.body)?;
    let lease = LeaseRef::new(&context.caller, request.worker_id.as_deref(), request.fence);
    let (service, caller) = (context.service(), MayHeartbeat::of(&context.caller)?);
    let prepared = service.heartbeat(caller, context.path("id"), request.extend_seconds, lease)?;
    let done = service.call(prepared).await?;
    let body = Extended {
        ok: true,
        lease_until: context.times().timestamp(done.lease_until),
        cancel_requested: done.cancel_requested,
    };
    Ok(response::json(StatusCode::OK, &body))
}
