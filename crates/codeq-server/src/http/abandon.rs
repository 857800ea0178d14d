//! `POST /tasks/{id}/abandon`.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::nack::place;
use super::{answer, json};
use crate::service::lease::LeaseRef;
use crate::service::permission::MayAbandon;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Request {
    penalty: Option<bool>,
    fence: Option<u64>,
    worker_id: Option<Box<str>>,
}

#[derive(Serialize)]
struct Abandoned {
    status: &'static str,
}

pub async fn abandon(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    let penalty = request.penalty.unwrap_or(true);
    let lease = LeaseRef::new(&call.caller, request.worker_id.as_deref(), request.fence);
    let (service, caller) = (call.service(), MayAbandon::of(&call.caller)?);
    let done = service.answer(service.abandon(caller, call.path("id"), penalty, lease)?).await?;
    Ok(answer::json(StatusCode::OK, &Abandoned { status: place(done) }))
}
