//! `PATCH /tasks/{id}`.

use axum::http::StatusCode;
use codeq_core::limits::DELAY_MS_MAX;
use schemars::JsonSchema;
use serde::Deserialize;

use super::enqueue::run_at;
use super::request_context::{Answer, RequestContext};
use super::schema::or_blank;
use super::{json, response};
use crate::service::permission::MayProduce;
use crate::service::reschedule::Changes;

/// What to change about a waiting task. At least one field is required; the others stay as they are.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TaskChanges")]
pub struct ChangeRequest {
    /// 0–9, higher first; values outside are clamped, and the topic's `priorityTiers` apply.
    priority: Option<i64>,
    /// Do not start before this time, at most ten years from now. A time in the past means now. Takes precedence over
    /// `delaySeconds`.
    #[schemars(extend("format" = "date-time"), transform = or_blank)]
    run_at: Option<String>,
    /// Do not start within this many seconds, from now. 0 means now, even if the task waits for its retry.
    #[schemars(range(min = 0, max = DELAY_MS_MAX / 1_000))]
    delay_seconds: Option<i64>,
}

pub async fn change(context: RequestContext) -> Answer {
    let request: ChangeRequest = json::parse(&context.body)?;
    let changes = Changes {
        priority: request.priority,
        run_at: run_at(request.run_at.as_deref())?,
        delay_seconds: request.delay_seconds,
    };
    let caller = MayProduce::of(&context.caller)?;
    let task = context.service().reschedule(caller, context.path("id"), changes).await?;
    Ok(response::json(StatusCode::OK, &context.task(&task)))
}
