//! The body of a result callback.

use codeq_core::place::Status;
use codeq_core::view::ResultRecord;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::report::FormatTime;

/// The body of the POST to a task's `webhook`. Every field is always present.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ResultCallback")]
pub struct CallbackBody<'a> {
    /// The task's id. A callback may be delivered more than once: deduplicate by the `webhook-id` header.
    #[schemars(extend("format" = "uuid"))]
    task_id: String,
    /// The task's command.
    event_type: &'a str,
    /// How the task ended.
    #[schemars(extend("enum" = [Status::Completed, Status::Failed].map(Status::as_str)))]
    status: &'static str,
    /// The JSON object that the worker sent, or null.
    #[schemars(with = "Option<Map<String, Value>>")]
    result: Option<&'a RawValue>,
    /// The error message, or an empty string.
    error: &'a str,
    /// The task's outputs; may be empty.
    artifacts: Vec<ArtifactBody<'a>>,
    /// When the task ended.
    #[schemars(extend("format" = "date-time"))]
    completed_at: String,
}

/// An output of a task.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Artifact")]
pub struct ArtifactBody<'a> {
    /// The artifact's name.
    name: &'a str,
    /// Where to download the artifact.
    url: &'a str,
}

impl<'a> ArtifactBody<'a> {
    /// The artifacts of a result.
    pub fn of(record: &'a ResultRecord) -> Vec<ArtifactBody<'a>> {
        record.artifacts.iter().map(|a| ArtifactBody { name: &a.name, url: &a.url }).collect()
    }
}

impl<'a> CallbackBody<'a> {
    /// The result is sent as the JSON that the worker wrote.
    pub fn new(
        command: &'a str,
        record: &'a ResultRecord,
        format_time: &FormatTime,
    ) -> CallbackBody<'a> {
        CallbackBody {
            task_id: record.id.to_string(),
            event_type: command,
            status: record.status.as_str(),
            result: record.result.as_deref().and_then(|text| serde_json::from_slice(text).ok()),
            error: record.error.as_deref().unwrap_or_default(),
            artifacts: ArtifactBody::of(record),
            completed_at: format_time(record.completed_at),
        }
    }
}
