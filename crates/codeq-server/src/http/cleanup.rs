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
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CleanedUp {
    before: String,
    deleted: u64,
    limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

pub async fn cleanup(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    let before = match request.before.as_deref().filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(moment(text).ok_or_else(|| {
            ServiceError::invalid("invalid_before", "invalid 'before' (use RFC3339)")
        })?),
    };
    let cursor = request.cursor.as_deref();
    let done = call.service().cleanup(&call.caller, before, request.limit, cursor).await?;
    let body = CleanedUp {
        before: call.times().text(done.before),
        deleted: done.deleted,
        limit: done.limit,
        next_cursor: done.next,
    };
    Ok(answer::json(StatusCode::OK, &body))
}
