//! `POST /admin/tasks/cleanup`.

use axum::http::StatusCode;
use serde::Serialize;

use super::bulk::{BulkRequest, DryRun};
use super::call::{Answer, Call};
use super::{answer, json};
use crate::service::permission::MayAdminister;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CleanedUp {
    before: String,
    deleted: u64,
    limit: u32,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

pub async fn cleanup(call: Call) -> Answer {
    let mut request: BulkRequest = json::parse_or_default(&call.body)?;
    // The original codeQ's clients send an empty string for no date. That is safe here: cleanup then removes only
    // expired tasks.
    request.before = request.before.filter(|text| !text.is_empty());
    if request.before.is_none() {
        request.limit = request.limit.filter(|limit| *limit > 0);
    }
    let caller = MayAdminister::of(&call.caller)?;
    let done = call.service().cleanup(caller, &request.options()?).await?;
    let body = CleanedUp {
        before: call.times().text(done.before),
        deleted: done.outcome.done,
        limit: done.limit,
        dry_run: DryRun::of(&done.outcome),
        next_cursor: done.outcome.next,
    };
    Ok(answer::json(StatusCode::OK, &body))
}
