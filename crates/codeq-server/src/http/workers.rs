//! `GET /admin/workers`.

use std::borrow::Cow;

use axum::http::StatusCode;
use serde::Serialize;

use super::answer;
use super::call::{Answer, Call};
use super::tasks::page_limit;
use crate::auth::shown;
use crate::service::permission::MayAdminister;
use crate::service::workers::WorkerView;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkerList<'a> {
    items: Vec<WorkerBody<'a>>,
    total: usize,
    tasks_held_exact: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkerBody<'a> {
    worker_id: Cow<'a, str>,
    queues: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    more_queues: Option<usize>,
    all_queues: bool,
    streams: u32,
    slots: u32,
    tasks_held: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_claim_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_at: Option<String>,
}

pub async fn list(call: Call) -> Answer {
    let limit = page_limit(&call)?;
    let found = call.service().workers(MayAdminister::of(&call.caller)?, limit).await?;
    let items = found.items.iter().map(|worker| body(&call, worker)).collect();
    let list = WorkerList { items, total: found.total, tasks_held_exact: found.exact };
    Ok(answer::json(StatusCode::OK, &list))
}

fn body<'a>(call: &Call, worker: &'a WorkerView) -> WorkerBody<'a> {
    let WorkerView { seen, held } = worker;
    let more = seen.asked.count.saturating_sub(seen.asked.queues.len());
    let (last_error_at, last_error) = seen.last_error.as_ref().map(|(at, text)| (*at, &**text)).unzip();
    WorkerBody {
        worker_id: shown(&seen.id),
        queues: seen.asked.queues.iter().map(|name| &**name).collect(),
        more_queues: (more > 0).then_some(more),
        all_queues: seen.last_claim.is_some() && seen.asked.count == 0,
        streams: seen.streams,
        slots: seen.slots,
        tasks_held: *held,
        last_claim_at: seen.last_claim.map(|at| call.date_of(at)),
        last_error,
        last_error_at: last_error_at.map(|at| call.date_of(at)),
    }
}
