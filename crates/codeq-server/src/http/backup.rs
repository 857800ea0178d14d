//! `POST /admin/backup`.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::request_context::{Answer, RequestContext};
use super::response;
use crate::service::permission::MayOperate;

/// A backup.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Backup")]
pub struct BackupBody {
    /// The backup's address. Pass it to `codeq restore`.
    location: String,
    /// The backup's size in bytes.
    bytes: u64,
    /// How many tasks it contains, including finished ones.
    tasks: u64,
    /// How many shards it contains.
    shards: u16,
    /// How long it took, in milliseconds.
    took_ms: u64,
}

pub async fn make(context: RequestContext) -> Answer {
    let made = context.service().backup(MayOperate::of(&context.caller)?).await?;
    let body = BackupBody {
        location: made.location,
        bytes: made.backup.bytes,
        tasks: made.backup.tasks,
        shards: made.backup.shards,
        took_ms: u64::try_from(made.took.as_millis()).unwrap_or(u64::MAX),
    };
    Ok(response::json(StatusCode::OK, &body))
}
