//! Tasks and results as clients see them.

use std::borrow::Cow;

use codeq_auth::display_identity;
use codeq_core::limits::{ATTEMPTS_MAX, MAX_RUN_MS_MAX, PRIORITY_MAX};
use codeq_core::place::Place;
use codeq_core::view::{ResultRecord, Task};
use codeq_webhooks::results::ArtifactBody;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::schema::{endings, places, statuses};
use crate::times::{Times, Timestamp};

/// A task. Empty strings, zeros and absent values are left out.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Task")]
pub struct TaskBody<'a> {
    /// An opaque id.
    #[schemars(extend("format" = "uuid"))]
    id: String,
    /// The kind of work, spelled as in the enqueue request.
    command: &'a str,
    /// The producer's JSON, byte for byte, as a string.
    payload: Cow<'a, str>,
    /// Higher priorities are claimed first. Absent if 0.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1, max = PRIORITY_MAX))]
    priority: u32,
    /// Where codeQ posts the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<&'a str>,
    /// W3C `traceparent` of the enqueue request.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_parent: Option<&'a str>,
    /// W3C `tracestate` of the enqueue request.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_state: Option<&'a str>,
    /// The task's status.
    #[schemars(extend("enum" = statuses()))]
    status: &'static str,
    /// The list that holds the task; `NONE` once the task is finished, unless it is a dead letter.
    #[schemars(extend("enum" = places()))]
    last_known_location: &'static str,
    /// The worker that holds the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<Cow<'a, str>>,
    /// When the lease ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Timestamp>,
    /// When the running attempt reaches its maximum run time. Its lease never ends later. Absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_until: Option<Timestamp>,
    /// A number that increases with every claim of this task. Present while the task is leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// Failed attempts so far. Absent if 0.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1, max = ATTEMPTS_MAX))]
    attempts: u32,
    /// The task becomes a dead letter after this many failed attempts.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1, max = ATTEMPTS_MAX))]
    max_attempts: u32,
    /// How long an attempt may run. Absent if the task sets no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_RUN_MS_MAX / 1_000))]
    max_run_seconds: Option<u64>,
    /// The last error; kept across retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// `codeq/results/<id>`. Present once the task is finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_key: Option<String>,
    /// The tenant of the producer's token.
    tenant_id: &'a str,
    /// When the task was created.
    created_at: Timestamp,
    /// When the task last moved, its priority changed, or its worker extended the lease. A request to cancel does not
    /// change it.
    updated_at: Timestamp,
    /// When a delayed task becomes claimable.
    #[serde(skip_serializing_if = "Option::is_none")]
    visible_at: Option<Timestamp>,
    /// The dead letter that this task was created for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uuid"))]
    origin_task_id: Option<String>,
    /// True if somebody asked to cancel a task in progress; absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
}

impl<'a> TaskBody<'a> {
    /// Converts a task, with timestamps in the configured time zone.
    pub fn new(task: &'a Task, times: &Times) -> TaskBody<'a> {
        let running = task.place == Place::InProgress;
        let id = task.id.to_string();
        TaskBody {
            result_key: task.place.is_terminal().then(|| format!("codeq/results/{id}")),
            id,
            command: &task.command,
            payload: String::from_utf8_lossy(&task.payload),
            priority: u32::from(task.priority),
            webhook: task.webhook.as_deref(),
            trace_parent: task.trace_parent.as_deref(),
            trace_state: task.trace_state.as_deref(),
            status: task.place.status().as_str(),
            last_known_location: task.place.location(),
            worker_id: task.worker.as_deref().map(display_identity),
            lease_until: task.lease_until.map(|at| times.timestamp(at)),
            run_until: task.run_until.map(|at| times.timestamp(at)),
            fence: running.then_some(task.fence.0),
            attempts: task.attempts,
            max_attempts: task.max_attempts,
            max_run_seconds: task.max_run.map(|limit| limit / 1_000),
            error: task.error.as_deref().filter(|text| !text.is_empty()),
            tenant_id: &task.tenant,
            created_at: times.timestamp(task.created_at),
            updated_at: times.timestamp(task.updated_at),
            visible_at: task.visible_at.map(|at| times.timestamp(at)),
            origin_task_id: task.origin.map(|id| id.to_string()),
            cancel_requested: task.cancel_requested && running,
        }
    }
}

/// A task's result. It never changes.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ResultRecord")]
pub struct ResultBody<'a> {
    /// The task's id.
    #[schemars(extend("format" = "uuid"))]
    task_id: String,
    /// How the task ended.
    #[schemars(extend("enum" = endings()))]
    status: &'static str,
    /// The JSON object that the worker sent. Always present with `COMPLETED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Map<String, Value>")]
    result: Option<&'a RawValue>,
    /// The error message. Always present with `FAILED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// The task's outputs. Absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<ArtifactBody<'a>>,
    /// When the task ended.
    completed_at: Timestamp,
}

impl<'a> ResultBody<'a> {
    /// Converts a result, with its JSON exactly as the worker sent it.
    pub fn new(record: &'a ResultRecord, times: &Times) -> ResultBody<'a> {
        ResultBody {
            task_id: record.id.to_string(),
            status: record.status.as_str(),
            result: record.result.as_deref().and_then(|text| serde_json::from_slice(text).ok()),
            error: record.error.as_deref(),
            artifacts: ArtifactBody::of(record),
            completed_at: times.timestamp(record.completed_at),
        }
    }
}

/// Whether to leave a number out.
pub fn is_zero(n: &u32) -> bool {
    *n == 0
}
