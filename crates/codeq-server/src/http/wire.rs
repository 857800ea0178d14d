//! Tasks and results as clients see them.

use std::borrow::Cow;

use codeq_auth::shown;
use codeq_core::place::Place;
use codeq_core::view::{ResultRecord, Task};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::times::Times;

/// A task. Empty strings, zeros and absent values are left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskBody<'a> {
    id: String,
    command: &'a str,
    payload: Cow<'a, str>,
    #[serde(skip_serializing_if = "is_zero")]
    priority: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_parent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_state: Option<&'a str>,
    status: &'static str,
    last_known_location: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    attempts: u32,
    #[serde(skip_serializing_if = "is_zero")]
    max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_key: Option<String>,
    tenant_id: &'a str,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    visible_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin_task_id: Option<String>,
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
            worker_id: task.worker.as_deref().map(shown),
            lease_until: task.lease_until.map(|at| times.text(at)),
            fence: running.then_some(task.fence.0),
            attempts: task.attempts,
            max_attempts: task.max_attempts,
            error: task.error.as_deref().filter(|text| !text.is_empty()),
            tenant_id: &task.tenant,
            created_at: times.text(task.created_at),
            updated_at: times.text(task.updated_at),
            visible_at: task.visible_at.map(|at| times.text(at)),
            origin_task_id: task.origin.map(|id| id.to_string()),
            cancel_requested: task.cancel_requested && running,
        }
    }
}

/// A result.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultBody<'a> {
    task_id: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<ArtifactBody<'a>>,
    completed_at: String,
}

#[derive(Serialize)]
struct ArtifactBody<'a> {
    name: &'a str,
    url: &'a str,
}

impl<'a> ResultBody<'a> {
    /// Converts a result, with its JSON exactly as the worker sent it.
    pub fn new(record: &'a ResultRecord, times: &Times) -> ResultBody<'a> {
        let artifacts = record.artifacts.iter();
        ResultBody {
            task_id: record.id.to_string(),
            status: record.status.as_str(),
            result: record.result.as_deref().and_then(|text| serde_json::from_slice(text).ok()),
            error: record.error.as_deref(),
            artifacts: artifacts.map(|a| ArtifactBody { name: &a.name, url: &a.url }).collect(),
            completed_at: times.text(record.completed_at),
        }
    }
}

/// Whether to leave a number out.
pub fn is_zero(n: &u32) -> bool {
    *n == 0
}
