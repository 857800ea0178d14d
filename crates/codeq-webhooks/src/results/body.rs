//! The body of a result callback.

use codeq_core::view::ResultRecord;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::report::FormatTime;

/// Every key is always present: `result` may be null, `error` and `artifacts` may be empty.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallbackBody<'a> {
    task_id: String,
    event_type: &'a str,
    status: &'static str,
    result: Option<&'a RawValue>,
    error: &'a str,
    artifacts: Vec<ArtifactBody<'a>>,
    completed_at: String,
}

#[derive(Serialize)]
struct ArtifactBody<'a> {
    name: &'a str,
    url: &'a str,
}

impl<'a> CallbackBody<'a> {
    /// The result is sent as the JSON that the worker wrote.
    pub fn new(
        command: &'a str,
        record: &'a ResultRecord,
        format_time: &FormatTime,
    ) -> CallbackBody<'a> {
        let artifacts = record.artifacts.iter();
        CallbackBody {
            task_id: record.id.to_string(),
            event_type: command,
            status: record.status.as_str(),
            result: record.result.as_deref().and_then(|text| serde_json::from_slice(text).ok()),
            error: record.error.as_deref().unwrap_or_default(),
            artifacts: artifacts.map(|a| ArtifactBody { name: &a.name, url: &a.url }).collect(),
            completed_at: format_time(record.completed_at),
        }
    }
}
