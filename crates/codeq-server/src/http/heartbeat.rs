//! `POST /tasks/{id}/heartbeat`.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::{answer, json};
use crate::service::lease::LeaseRef;
use crate::service::permission::MayHeartbeat;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Request {
    extend_seconds: Option<i64>,
    fence: Option<u64>,
    worker_id: Option<Box<str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Extended {
    ok: bool,
    lease_until: String,
    cancel_requested: bool,
}

pub async fn heartbeat(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    let lease = LeaseRef::new(&call.caller, request.worker_id.as_deref(), request.fence);
    let (service, caller) = (call.service(), MayHeartbeat::of(&call.caller)?);
    let ask = service.heartbeat(caller, call.path("id"), request.extend_seconds, lease)?;
    let done = service.answer(ask).await?;
    let body = Extended {
        ok: true,
        lease_until: call.times().text(done.lease_until),
        cancel_requested: done.cancel_requested,
    };
    Ok(answer::json(StatusCode::OK, &body))
}
