//! `/admin/dlq` and `POST /tasks/{id}/replay`.

use axum::http::StatusCode;
use codeq_core::names::check_command;
use codeq_core::read::ListQuery;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::queues::{BulkRequest, Purged};
use super::tasks::{page, page_limit};
use super::{answer, json};
use crate::service::ServiceError;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ReplayRequest {
    limit: Option<u32>,
    error_contains: Option<String>,
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Replayed<'a> {
    replayed: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

pub async fn list(call: Call) -> Answer {
    check_command(&call.name).map_err(ServiceError::from)?;
    let query = ListQuery {
        command: Some(call.name.as_str().into()),
        dead_only: true,
        limit: page_limit(&call)?,
        ..ListQuery::default()
    };
    page(call, query).await
}

pub async fn replay_one(call: Call) -> Answer {
    let task = call.service().replay(&call.caller, &call.name).await?;
    Ok(answer::json(StatusCode::OK, &call.task(&task)))
}

pub async fn replay(call: Call) -> Answer {
    let request: ReplayRequest = json::parse_or_default(&call.body)?;
    let errors = request.error_contains.filter(|text| !text.is_empty());
    let cursor = request.cursor.as_deref();
    let service = call.service();
    let done =
        service.replay_queue(&call.caller, &call.name, errors, request.limit, cursor).await?;
    let body = Replayed {
        replayed: done.replayed,
        remaining: done.remaining,
        next_cursor: done.next.as_deref(),
    };
    Ok(answer::json(StatusCode::OK, &body))
}

pub async fn purge(call: Call) -> Answer {
    let request: BulkRequest = json::parse_or_default(&call.body)?;
    let (limit, cursor) = (request.limit, request.cursor.as_deref());
    let done = call.service().purge_dead_letters(&call.caller, &call.name, limit, cursor).await?;
    Ok(answer::json(StatusCode::OK, &Purged::from(done)))
}
