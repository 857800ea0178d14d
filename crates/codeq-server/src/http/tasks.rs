//! `GET /tasks`, `/tasks/{id}`, `/tasks/{id}/result`, `/tasks/{id}/history`.

use std::borrow::Cow;

use axum::http::StatusCode;
use codeq_auth::display_identity;
use codeq_core::history::Entry;
use codeq_core::limits::{LIST_BYTES_MAX, LIST_MAX};
use codeq_core::place::{Status, TaskState};
use codeq_core::read::ListQuery;
use schemars::JsonSchema;
use serde::Serialize;

use super::request_context::{Answer, RequestContext};
use super::response;
use super::schema::{events, places, statuses};
use super::wire::{ResultBody, TaskBody, is_zero};
use crate::service::tasks::{PAGE_DEFAULT, TaskPage};
use crate::service::{Code, ServiceError, filter};
use crate::times::Timestamp;

/// A finished task and its result.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FinishedTask")]
pub struct Finished<'a> {
    task: TaskBody<'a>,
    result: ResultBody<'a>,
}

/// A page of tasks.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TaskPage")]
pub struct Page<'a> {
    /// The tasks, newest first.
    items: Vec<TaskBody<'a>>,
    /// Send as `cursor` to get the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

/// A task's transitions.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "History")]
pub struct HistoryBody<'a> {
    /// The task's id.
    task_id: &'a str,
    /// The transitions, oldest first.
    items: Vec<EntryBody<'a>>,
    /// How many transitions after the first were dropped to make room for newer ones. Absent if 0.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1))]
    dropped: u32,
}

/// A transition.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct EntryBody<'a> {
    /// When it happened.
    at: Timestamp,
    /// What happened.
    #[schemars(extend("enum" = events()))]
    event: &'static str,
    /// Where the task was. Absent in the first transition and after dropped ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = places()))]
    from: Option<&'static str>,
    /// Where the task went.
    #[schemars(extend("enum" = places()))]
    to: &'static str,
    /// The task's status after the transition.
    #[schemars(extend("enum" = statuses()))]
    status: &'static str,
    /// Who caused the transition. Absent if it was the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<Cow<'a, str>>,
    /// The reason, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

pub async fn get(context: RequestContext) -> Answer {
    let task = context.service().task(&context.caller, context.path("id")).await?;
    Ok(response::json(StatusCode::OK, &context.task(&task)))
}

pub async fn result(context: RequestContext) -> Answer {
    // An invalid or negative number counts as no wait: the original codeQ's clients rely on it.
    let wait = context.param("waitSeconds").and_then(|text| text.parse().ok()).unwrap_or(0);
    let found = context.service().result(&context.caller, context.path("id"), wait);
    let (task, record) = if wait == 0 { found.await? } else { context.wait(found).await? };
    let body = Finished { task: context.task(&task), result: context.result(&record) };
    Ok(response::json(StatusCode::OK, &body))
}

pub async fn history(context: RequestContext) -> Answer {
    let history = context.service().history(&context.caller, context.path("id")).await?;
    let entries = history.entries();
    let before = std::iter::once(None).chain(entries.iter().map(|entry| Some(entry.to.location())));
    // If entries were dropped after the first, the second entry's `from` is unknown.
    let gap = if history.dropped() > 0 { 1 } else { 0 };
    let items = entries.iter().zip(before).enumerate().map(|(index, (entry, from))| {
        let from = from.filter(|_| gap == 0 || index != gap);
        entry_body(&context, entry, from)
    });
    let body = HistoryBody {
        task_id: context.path("id"),
        items: items.collect(),
        dropped: history.dropped(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

fn entry_body<'a>(
    context: &RequestContext,
    entry: &'a Entry,
    from: Option<&'static str>,
) -> EntryBody<'a> {
    EntryBody {
        at: context.times().timestamp(entry.at),
        event: entry.event.as_str(),
        from,
        to: entry.to.location(),
        status: entry.to.status().as_str(),
        who: entry.who.as_deref().map(display_identity),
        why: entry.why.as_deref(),
    }
}

pub async fn list(context: RequestContext) -> Answer {
    let mut query = ListQuery {
        command: context.param("command").map(|text| text.as_ref().into()),
        limit: page_limit(&context)?,
        ..ListQuery::default()
    };
    if let Some(text) = context.param("status") {
        let unknown = || {
            let text = "invalid 'status' (PENDING, IN_PROGRESS, COMPLETED or FAILED)";
            ServiceError::new(Code::InvalidParameter, text).field("status")
        };
        let known = |status: &Status| status.as_str().eq_ignore_ascii_case(&text);
        query.status = Some(Status::ALL.into_iter().find(known).ok_or_else(unknown)?);
    }
    if let Some(text) = context.param("state") {
        let unknown = || {
            let states = TaskState::ALL.map(TaskState::as_str).join(", ");
            let text = format!("invalid 'state' ({states})");
            ServiceError::new(Code::InvalidParameter, text).field("state")
        };
        let known = |state: &TaskState| state.as_str().eq_ignore_ascii_case(&text);
        query.state = Some(TaskState::ALL.into_iter().find(known).ok_or_else(unknown)?);
    }
    page(context, query).await
}

/// Answers one page of the list in `query`, with the request's `filter` and `cursor` applied.
pub async fn page(context: RequestContext, mut query: ListQuery) -> Answer {
    if let Some(text) = context.param("filter") {
        filter::apply(&text, &mut query)?;
    }
    // Reserve memory before reading: many concurrent lists would otherwise load all their tasks at
    // once.
    let _page = context.hold(LIST_BYTES_MAX.max(context.service().payload_max())).await?;
    let cursor = context.param("cursor");
    let TaskPage { items, next } =
        context.service().list(&context.caller, query, cursor.as_deref()).await?;
    let items = items.iter().map(|task| context.task(task)).collect();
    Ok(response::json(StatusCode::OK, &Page { items, next_cursor: next.as_deref() }))
}

/// The page size from the request.
pub fn page_limit(context: &RequestContext) -> Result<usize, ServiceError> {
    match context.number("limit")? {
        None => Ok(PAGE_DEFAULT),
        Some(limit) if (1..=LIST_MAX as u64).contains(&limit) => Ok(limit as usize),
        Some(_) => {
            let text = format!("invalid 'limit' (1 to {LIST_MAX})");
            Err(ServiceError::new(Code::InvalidLimit, text).field("limit"))
        }
    }
}
