//! `POST /tasks/claim` and `POST /tasks/claim/batch`.

use std::sync::Arc;

use axum::http::StatusCode;
use codeq_core::limits::{CLAIM_COMMANDS_MAX, LEASE_MS_MAX, WORKER_BYTES_MAX};
use codeq_core::view::Task;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::endpoint::no_content;
use super::fields::unknown_field;
use super::problem::Problem;
use super::request_context::{Answer, RequestContext};
use super::schema::{command, without};
use super::wire::TaskBody;
use super::{json, response};
use crate::config::{Config, UnknownFields};
use crate::limits::budget::HeldFor;
use crate::service::ServiceError;
use crate::service::claim::{CLAIM_WAIT_MAX, ClaimRequest};
use crate::service::permission::MayClaim;

/// Which tasks to claim, and for how long.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ClaimBatchRequest")]
pub struct Request {
    /// Claim only tasks with these commands. Empty or absent: all commands that the token allows.
    #[schemars(length(max = CLAIM_COMMANDS_MAX), extend("items" = command()))]
    commands: Option<Vec<Arc<str>>>,
    /// The length of the lease. 0 or less: the default.
    #[schemars(range(max = LEASE_MS_MAX / 1_000))]
    lease_seconds: Option<i64>,
    /// How long to wait if there is no task; clamped to 0–30.
    wait_seconds: Option<i64>,
    /// The maximum number of tasks. At most 10, unless the server is configured otherwise (up to 1,000).
    #[schemars(required, range(min = 1, max = Config::default().max_claim_batch_size))]
    count: Option<i64>,
    /// Identifies this process among those that share the token: the lease then belongs to `subject/workerId`, which
    /// may be up to 253 bytes long, not counting the slash.
    #[schemars(length(max = WORKER_BYTES_MAX))]
    worker_id: Option<Box<str>>,
}

/// Which task to claim, and for how long.
#[derive(JsonSchema)]
#[schemars(rename = "ClaimRequest", with = "Request", transform = without("count"))]
pub enum OneRequest {}

/// Claimed tasks.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ClaimedTasks")]
pub struct Claimed<'a> {
    /// At least one task.
    #[schemars(length(min = 1))]
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

/// Claims tasks. If the response does not fit the memory budget, refuses the request and returns the tasks to their queue
/// at once. Otherwise the worker would hold leases on tasks that it never received.
async fn claim(context: &RequestContext, request: &ClaimRequest) -> Result<Vec<Task>, Problem> {
    let service = context.service();
    let prepared = service.claim(MayClaim::of(&context.caller)?, request, Some(0))?;
    let claimed = service.call(prepared);
    let tasks =
        if request.wait_seconds == 0 { claimed.await? } else { context.wait(claimed).await? };
    let bytes = tasks.iter().map(Task::bytes).sum();
    if context.share.hold(HeldFor::Answers, bytes).is_none() {
        service.give_back(tasks);
        return Err(ServiceError::overloaded().into());
    }
    Ok(tasks)
}

pub async fn one(context: RequestContext) -> Answer {
    let request: Request = json::parse_or_default(&context.body)?;
    if request.count.is_some() && context.body.unknown == UnknownFields::Refuse {
        let detail =
            "unknown field 'count': to claim several tasks, use POST /v1/codeq/tasks/claim/batch";
        return Err(unknown_field("count", &[]).detail(detail).into());
    }
    let tasks = claim(&context, &request.claim(1)).await?;
    Ok(match tasks.first() {
        Some(task) => response::json(StatusCode::OK, &context.task(task)),
        None => no_content(),
    })
}

pub async fn batch(context: RequestContext) -> Answer {
    let request: Request = json::parse(&context.body)?;
    let count = context.service().check_claim_count(request.count.unwrap_or(0))?;
    let tasks = claim(&context, &request.claim(count)).await?;
    if tasks.is_empty() {
        return Ok(no_content());
    }
    let tasks = tasks.iter().map(|task| context.task(task)).collect();
    Ok(response::json(StatusCode::OK, &Claimed { tasks }))
}
