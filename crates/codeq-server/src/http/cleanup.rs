//! `POST /admin/tasks/cleanup`.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::{answer, json};
use crate::service::ServiceError;
use crate::service::filter::moment;

#[derive(Deserialize, Default)]
struct Request {
    limit: Option<u32>,
    before: Option<String>,
}

#[derive(Serialize)]
struct CleanedUp {
    before: String,
    deleted: u64,
    limit: u32,
}

pub async fn cleanup(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    let before = match request.before.as_deref().filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(moment(text).ok_or_else(|| {
            ServiceError::invalid("invalid_before", "invalid 'before' (use RFC3339)")
        })?),
    };
    let done = call.service().cleanup(&call.caller, before, request.limit).await?;
    let before = call.times().text(done.before);
    let body = CleanedUp { before, deleted: done.deleted, limit: done.limit };
    Ok(answer::json(StatusCode::OK, &body))
}
