//! `POST /tasks/claim` and `POST /tasks/claim/batch`.

use std::sync::Arc;

use axum::http::StatusCode;
use codeq_core::view::Task;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::endpoint::no_content;
use super::fields::unknown_field;
use super::wire::TaskBody;
use super::{answer, json};
use crate::config::UnknownFields;
use crate::limits::budget::HeldFor;
use crate::service::ServiceError;
use crate::service::claim::{CLAIM_WAIT_MAX, ClaimRequest};
use crate::service::permission::MayClaim;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Request {
    commands: Option<Vec<Arc<str>>>,
    lease_seconds: Option<i64>,
    wait_seconds: Option<i64>,
    /// In a batch only.
    count: Option<i64>,
    worker_id: Option<Box<str>>,
}

#[derive(Serialize)]
struct Claimed<'a> {
    tasks: Vec<TaskBody<'a>>,
}

impl Request {
    fn claim(self, count: u32) -> ClaimRequest {
        // A negative wait counts as none. A wait beyond the maximum is clamped.
        let wait_seconds = u64::try_from(self.wait_seconds.unwrap_or(0)).unwrap_or(0);
        ClaimRequest {
            commands: self.commands.unwrap_or_default(),
            lease_seconds: self.lease_seconds,
            wait_seconds: wait_seconds.min(CLAIM_WAIT_MAX),
            count,
            worker_id: self.worker_id,
        }
    }
}

/// Claims tasks. Returns them to their queue if the response does not fit in memory: the worker
/// would not get them soon.
async fn claim(call: &Call, request: &ClaimRequest) -> Result<Vec<Task>, ServiceError> {
    let service = call.service();
    let tasks = service.answer(service.claim(MayClaim::of(&call.caller)?, request, true)?).await?;
    let bytes = tasks.iter().map(Task::bytes).sum();
    if call.share.hold(HeldFor::Answers, bytes).is_none() {
        service.give_back(tasks);
        return Err(ServiceError::overloaded());
    }
    Ok(tasks)
}

pub async fn one(call: Call) -> Answer {
    let request: Request = json::parse_or_default(&call.body)?;
    if request.count.is_some() && call.body.unknown == UnknownFields::Refuse {
        let detail =
            "unknown field 'count': several tasks at once are POST /v1/codeq/tasks/claim/batch";
        return Err(unknown_field("count", &[]).detail(detail).into());
    }
    let tasks = claim(&call, &request.claim(1)).await?;
    Ok(match tasks.first() {
        Some(task) => answer::json(StatusCode::OK, &call.task(task)),
        None => no_content(),
    })
}

pub async fn batch(call: Call) -> Answer {
    let request: Request = json::parse(&call.body)?;
    let count = call.service().check_claim_count(request.count.unwrap_or(0))?;
    let tasks = claim(&call, &request.claim(count)).await?;
    if tasks.is_empty() {
        return Ok(no_content());
    }
    let tasks = tasks.iter().map(|task| call.task(task)).collect();
    Ok(answer::json(StatusCode::OK, &Claimed { tasks }))
}
