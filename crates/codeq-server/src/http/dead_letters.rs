//! `/admin/dlq` and `POST /tasks/{id}/replay`.

use axum::http::StatusCode;
use codeq_core::command::ReplayFrom;
use codeq_core::names::check_command;
use codeq_core::read::ListQuery;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bulk::{BulkRequest, DryRun};
use super::queues::Purged;
use super::request_context::{Answer, RequestContext};
use super::tasks::{page, page_limit};
use super::{json, response};
use crate::service::permission::MayAdminister;
use crate::service::{Code, ServiceError};

/// Which tasks to replay.
// Like `BulkRequest`, plus the source of the tasks.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(with = "BulkRequest", transform = add_from)]
pub struct ReplayRequest {
    from: Option<String>,
    limit: Option<u64>,
    cursor: Option<String>,
    error_contains: Option<String>,
    before: Option<String>,
    after: Option<String>,
    worker: Option<String>,
    dry_run: Option<bool>,
}

fn add_from(schema: &mut Schema) {
    let about = "Which tasks to replay: dead letters (the default), tasks that a worker reported as `FAILED`, or \
                 cancelled tasks.";
    let from = json!({
        "type": ["string", "null"], "enum": ["deadLetters", "failed", "cancelled", null], "description": about,
    });
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert("from".to_owned(), from);
    }
}

/// Which dead letters to remove.
#[derive(JsonSchema)]
#[schemars(with = "BulkRequest")]
pub enum PurgeDeadLettersRequest {}

/// The outcome of a replay.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Tasks that were returned to their queue.
    replayed: u64,
    /// Dead letters left in the queue. With `from`, failed or cancelled tasks.
    remaining: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRun>,
    /// Send as `cursor` to continue. Absent once every task has been visited.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl ReplayRequest {
    fn from(&self) -> Result<ReplayFrom, ServiceError> {
        match self.from.as_deref() {
            None | Some("deadLetters") => Ok(ReplayFrom::DeadLetters),
            Some("failed") => Ok(ReplayFrom::Failed),
            Some("cancelled") => Ok(ReplayFrom::Cancelled),
            Some(_) => {
                let text = "invalid 'from' (deadLetters, failed or cancelled)";
                Err(ServiceError::new(Code::InvalidFilter, text).field("from"))
            }
        }
    }

    fn rest(self) -> BulkRequest {
        let ReplayRequest { limit, cursor, error_contains, before, after, worker, dry_run, .. } =
            self;
        BulkRequest { limit, cursor, error_contains, before, after, worker, dry_run }
    }
}

pub async fn list(context: RequestContext) -> Answer {
    check_command(context.path("command")).map_err(ServiceError::from)?;
    let query = ListQuery {
        command: Some(context.path("command").into()),
        dead_only: true,
        limit: page_limit(&context)?,
        ..ListQuery::default()
    };
    page(context, query).await
}

pub async fn replay_one(context: RequestContext) -> Answer {
    let task =
        context.service().replay(MayAdminister::of(&context.caller)?, context.path("id")).await?;
    Ok(response::json(StatusCode::OK, &context.task(&task)))
}

pub async fn replay(context: RequestContext) -> Answer {
    let request: ReplayRequest = json::parse_or_default(&context.body)?;
    let from = request.from()?;
    let options = request.rest().options()?;
    let caller = MayAdminister::of(&context.caller)?;
    let done =
        context.service().replay_queue(caller, context.path("command"), from, &options).await?;
    let body = Replayed {
        replayed: done.outcome.done,
        remaining: done.remaining,
        dry_run: DryRun::of(&done.outcome),
        next_cursor: done.outcome.next,
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub async fn purge(context: RequestContext) -> Answer {
    let request: BulkRequest = json::parse_or_default(&context.body)?;
    let options = request.options()?;
    let caller = MayAdminister::of(&context.caller)?;
    let done =
        context.service().purge_dead_letters(caller, context.path("command"), &options).await?;
    Ok(response::json(StatusCode::OK, &Purged::from(done)))
}
