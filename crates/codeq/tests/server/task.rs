//! What the server says about tasks.

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Debug, Clone)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    pub id: String,
    pub command: String,
    /// JSON as text.
    pub payload: String,
    pub status: String,
    pub worker_id: Option<String>,
    /// RFC 3339 in UTC with milliseconds: texts compare as moments do.
    pub lease_until: Option<String>,
    pub fence: Option<u64>,
    pub error: Option<String>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub task_id: String,
    pub status: String,
    pub result: Option<Value>,
    pub error: Option<String>,
}

#[derive(Deserialize)]
pub struct Claimed {
    pub tasks: Vec<Task>,
}

#[derive(Deserialize)]
pub struct Batch<T> {
    pub results: Vec<T>,
}

/// An item of a batch: the task, or why there is none.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Made {
    Task(Task),
    Error(String),
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Submitted {
    pub task_id: String,
    pub result: Option<Record>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub items: Vec<Task>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Finished {
    pub task: Task,
    pub result: Record,
}

#[derive(Deserialize)]
pub struct History {
    pub items: Vec<Moved>,
}

#[derive(Deserialize)]
pub struct Moved {
    pub event: String,
}
