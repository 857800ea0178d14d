//! `POST /admin/tasks/cleanup`.

use axum::http::StatusCode;
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::bulk::{BulkRequest, DryRun};
use super::request_context::{Answer, RequestContext};
use super::schema::or_blank;
use super::{json, response};
use crate::service::permission::MayAdminister;
use crate::times::Timestamp;

/// Which finished tasks to remove. Without `before`, only tasks whose retention has ended.
#[derive(JsonSchema)]
#[schemars(with = "BulkRequest", transform = blank_before)]
pub enum CleanupRequest {}

fn blank_before(schema: &mut Schema) {
    let before = schema.pointer_mut("/properties/before");
    if let Some(before) = before.and_then(|before| before.try_into().ok()) {
        or_blank(before);
    }
}

/// The outcome of a cleanup.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanedUp {
    /// Tasks that finished before this time were considered; without `before` in the request, tasks whose retention had
    /// ended by then.
    before: Timestamp,
    /// Tasks that were removed.
    deleted: u64,
    /// The maximum number of tasks per call.
    limit: u32,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRun>,
    /// Send as `cursor` to continue. Absent once every task has been visited.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

pub async fn cleanup(context: RequestContext) -> Answer {
    let mut request: BulkRequest = json::parse_or_default(&context.body)?;
    // The original codeQ's clients send an empty string for no date. That is safe here: cleanup then removes only
    // expired tasks.
    request.before = request.before.filter(|text| !text.is_empty());
    if request.before.is_none() {
        request.limit = request.limit.filter(|limit| *limit > 0);
    }
    let caller = MayAdminister::of(&context.caller)?;
    let done = context.service().cleanup(caller, &request.options()?).await?;
    let body = CleanedUp {
        before: context.times().timestamp(done.before),
        deleted: done.outcome.done,
        limit: done.limit,
        dry_run: DryRun::of(&done.outcome),
        next_cursor: done.outcome.next,
    };
    Ok(response::json(StatusCode::OK, &body))
}
