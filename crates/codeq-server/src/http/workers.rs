//! `GET /admin/workers`.

use std::borrow::Cow;

use axum::http::StatusCode;
use codeq_auth::display_identity;
use schemars::JsonSchema;
use serde::Serialize;

use super::request_context::{Answer, RequestContext};
use super::response;
use super::tasks::page_limit;
use crate::service::permission::MayAdminister;
use crate::service::workers::WorkerView;
use crate::times::Timestamp;

/// Workers that were active recently.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerList<'a> {
    /// The workers, the latest claim first.
    items: Vec<WorkerBody<'a>>,
    /// Number of workers, including those beyond the limit.
    total: usize,
    /// False if not all leases could be counted in a quarter of a second.
    tasks_held_exact: bool,
}

/// A worker.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Worker")]
struct WorkerBody<'a> {
    /// Its identity: the subject of its token or, if it names itself, `subject/workerId`.
    worker_id: Cow<'a, str>,
    /// What its last claim named, at most 16 commands.
    queues: Vec<&'a str>,
    /// How many commands its last claim named beyond those in `queues`. Absent if 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_queues: Option<usize>,
    /// Whether its last claim was for all queues.
    all_queues: bool,
    /// Its open streams.
    streams: u32,
    /// Tasks that its streams could take now.
    slots: u32,
    /// Tasks whose lease it holds.
    tasks_held: u64,
    /// When it last asked for tasks, to the second. Absent if no recent claim is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_claim_at: Option<Timestamp>,
    /// The last failure it reported, or why its claim was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_at: Option<Timestamp>,
}

pub async fn list(context: RequestContext) -> Answer {
    let limit = page_limit(&context)?;
    let found = context.service().workers(MayAdminister::of(&context.caller)?, limit).await?;
    let items = found.items.iter().map(|worker| body(&context, worker)).collect();
    let list = WorkerList { items, total: found.total, tasks_held_exact: found.exact };
    Ok(response::json(StatusCode::OK, &list))
}

fn body<'a>(context: &RequestContext, worker: &'a WorkerView) -> WorkerBody<'a> {
    let WorkerView { seen, held } = worker;
    let more = seen.named.count.saturating_sub(seen.named.queues.len());
    let (last_error_at, last_error) =
        seen.last_error.as_ref().map(|(at, text)| (*at, &**text)).unzip();
    WorkerBody {
        worker_id: display_identity(&seen.id),
        queues: seen.named.queues.iter().map(|name| &**name).collect(),
        more_queues: (more > 0).then_some(more),
        all_queues: seen.last_claim.is_some() && seen.named.count == 0,
        streams: seen.streams,
        slots: seen.slots,
        tasks_held: *held,
        last_claim_at: seen.last_claim.map(|at| context.date_of(at)),
        last_error,
        last_error_at: last_error_at.map(|at| context.date_of(at)),
    }
}
