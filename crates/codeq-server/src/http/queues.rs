//! `/admin/queues`.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use codeq_core::moment::Moment;
use codeq_core::read::QueueStats;
use codeq_core::rows::Counts;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bulk::{BulkRequest, DryRun};
use super::request_context::{Answer, RequestContext};
use super::{json, response};
use crate::events::rates::Rate;
use crate::service::bulk::QueueBulk;
use crate::service::permission::MayAdminister;
use crate::service::{Code, ServiceError};

/// The state of a queue.
#[derive(Serialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Queue")]
pub struct QueueBody<'a> {
    /// The queue's command.
    command: &'a str,
    /// Claimable tasks.
    ready: u64,
    /// Tasks that are not due yet.
    delayed: u64,
    /// Leased tasks.
    in_progress: u64,
    /// Dead letters.
    dlq: u64,
    /// Completed tasks that are still stored.
    completed: u64,
    /// Tasks for which a worker submitted `FAILED`, still stored. Cancelled tasks and dead letters are counted
    /// separately.
    failed: u64,
    /// Cancelled tasks that are still stored.
    cancelled: u64,
    /// Whether claims are paused.
    paused: bool,
}

impl<'a> QueueBody<'a> {
    pub fn new(command: &'a str, counts: &Counts, paused: bool) -> QueueBody<'a> {
        QueueBody {
            command,
            ready: counts.ready(),
            delayed: counts.delayed,
            in_progress: counts.in_progress,
            dlq: counts.dead,
            completed: counts.completed,
            failed: counts.failed,
            cancelled: counts.cancelled,
            paused,
        }
    }
}

/// A queue.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueItem<'a> {
    /// The queue's tenant.
    tenant_id: &'a str,
    #[serde(flatten)]
    counts: QueueBody<'a>,
    /// Payload bytes of unfinished tasks.
    bytes: u64,
    /// Age of the oldest claimable task; 0 if there is none.
    #[schemars(range(min = 0))]
    oldest_ready_seconds: f64,
    /// Tasks enqueued per second, over the last minute.
    #[schemars(range(min = 0))]
    enqueued_per_second: f64,
    /// Tasks claimed per second, over the last minute.
    #[schemars(range(min = 0))]
    claimed_per_second: f64,
    /// Tasks finished per second, over the last minute.
    #[schemars(range(min = 0))]
    finished_per_second: f64,
}

/// The tenant's queues.
#[derive(Serialize, JsonSchema)]
pub struct QueueList<'a> {
    /// One item per queue.
    items: Vec<QueueItem<'a>>,
}

/// One entry `codeq:q:<command>:<tenant>:<list>` for every list that is not empty, where the list is `pending:<0-9>`,
/// `inprog`, `delayed` or `dlq`.
#[derive(Serialize, JsonSchema)]
#[schemars(extend("propertyNames" = { "pattern": "^codeq:q:" }))]
pub struct QueueMap(
    #[schemars(extend("additionalProperties" = { "type": "integer", "minimum": 1 }))]
    BTreeMap<String, u64>,
);

/// Which waiting tasks to cancel.
#[derive(JsonSchema)]
#[schemars(with = "BulkRequest")]
pub enum PurgeRequest {}

/// The outcome of a purge.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Purged {
    /// Tasks that were removed from the queue or the dead letters.
    purged: u64,
    /// Tasks that are still there, including those that the filter excludes.
    remaining: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRun>,
    /// Send as `cursor` to continue. Absent once every task has been visited.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl From<QueueBulk> for Purged {
    fn from(done: QueueBulk) -> Purged {
        let QueueBulk { outcome, remaining } = done;
        let dry_run = DryRun::of(&outcome);
        Purged { purged: outcome.done, remaining, dry_run, next_cursor: outcome.next }
    }
}

/// Which tasks to cancel.
// Like `BulkRequest`, plus whether running tasks count.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(with = "BulkRequest", transform = add_include_running)]
pub struct CancelRequest {
    include_running: Option<bool>,
    limit: Option<u64>,
    cursor: Option<String>,
    error_contains: Option<String>,
    before: Option<String>,
    after: Option<String>,
    worker: Option<String>,
    dry_run: Option<bool>,
}

fn add_include_running(schema: &mut Schema) {
    let about = "Also ask the workers of running tasks to stop.";
    let field = json!({ "type": ["boolean", "null"], "description": about });
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert("includeRunning".to_owned(), field);
    }
}

impl CancelRequest {
    fn rest(self) -> BulkRequest {
        let CancelRequest { limit, cursor, error_contains, before, after, worker, dry_run, .. } =
            self;
        BulkRequest { limit, cursor, error_contains, before, after, worker, dry_run }
    }
}

/// The outcome of cancelling tasks of a queue.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cancelled {
    /// Waiting tasks that were cancelled.
    cancelled: u64,
    /// Running tasks whose workers were asked to stop.
    cancel_requested: u64,
    /// Waiting tasks that are still there. With `includeRunning`, also running ones, whether asked to stop or not.
    remaining: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRun>,
    /// Send as `cursor` to continue. Absent once every task has been visited.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Whether claims of a queue are paused.
#[derive(Serialize, JsonSchema)]
pub struct Paused<'a> {
    /// The queue's command.
    command: &'a str,
    /// Whether claims are paused.
    paused: bool,
}

pub async fn list(context: RequestContext) -> Answer {
    let all_tenants = context.flag("allTenants")?;
    let queues = context.service().queues(MayAdminister::of(&context.caller)?, all_tenants).await?;
    match context.param("format").as_deref() {
        None => Ok(response::json(StatusCode::OK, &flat(&queues))),
        Some("list") => {
            let Moment { now, wall } = context.service().now();
            let rates = &context.service().events.rates;
            let rate = |queue: &QueueStats| rates.of(&queue.tenant, &queue.name, now);
            let items = queues.iter().map(|queue| item(queue, wall, rate(queue))).collect();
            Ok(response::json(StatusCode::OK, &QueueList { items }))
        }
        Some(_) => {
            let text = "invalid 'format' (list, or absent)";
            Err(ServiceError::new(Code::InvalidParameter, text).field("format").into())
        }
    }
}

pub async fn get(context: RequestContext) -> Answer {
    let queue = context
        .service()
        .queue(MayAdminister::of(&context.caller)?, context.path("command"))
        .await?;
    let body = match &queue {
        Some(queue) => QueueBody::new(context.path("command"), &queue.counts, queue.paused),
        None => QueueBody { command: context.path("command"), ..QueueBody::default() },
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub async fn pause(context: RequestContext) -> Answer {
    set_paused(context, true).await
}

pub async fn resume(context: RequestContext) -> Answer {
    set_paused(context, false).await
}

async fn set_paused(context: RequestContext, paused: bool) -> Answer {
    let caller = MayAdminister::of(&context.caller)?;
    context.service().pause(caller, context.path("command"), paused).await?;
    Ok(response::json(StatusCode::OK, &Paused { command: context.path("command"), paused }))
}

pub async fn purge(context: RequestContext) -> Answer {
    let request: BulkRequest = json::parse_or_default(&context.body)?;
    let (caller, options) = (MayAdminister::of(&context.caller)?, request.options()?);
    let done = context.service().purge(caller, context.path("command"), &options).await?;
    Ok(response::json(StatusCode::OK, &Purged::from(done)))
}

pub async fn cancel(context: RequestContext) -> Answer {
    let request: CancelRequest = json::parse_or_default(&context.body)?;
    let running = request.include_running.unwrap_or(false);
    let (caller, options) = (MayAdminister::of(&context.caller)?, request.rest().options()?);
    let done =
        context.service().cancel_queue(caller, context.path("command"), running, &options).await?;
    let QueueBulk { outcome, remaining } = done;
    let body = Cancelled {
        cancelled: outcome.done - outcome.requested,
        cancel_requested: outcome.requested,
        remaining,
        dry_run: DryRun::of(&outcome),
        next_cursor: outcome.next,
    };
    Ok(response::json(StatusCode::OK, &body))
}

/// The original codeQ's flat map, with an entry for each list that is not empty.
fn flat(queues: &[QueueStats]) -> QueueMap {
    let mut map = BTreeMap::new();
    for queue in queues {
        let prefix = format!("codeq:q:{}:{}", queue.name, queue.tenant);
        let counts = &queue.counts;
        let pending = counts.pending.iter().enumerate();
        let pending = pending.map(|(priority, n)| (format!("{prefix}:pending:{priority}"), *n));
        let others =
            [("inprog", counts.in_progress), ("delayed", counts.delayed), ("dlq", counts.dead)];
        let others = others.map(|(name, n)| (format!("{prefix}:{name}"), n));
        map.extend(pending.chain(others).filter(|(_, n)| *n > 0));
    }
    QueueMap(map)
}

fn item(queue: &QueueStats, now: u64, rate: Rate) -> QueueItem<'_> {
    let age = queue.oldest_ready_created_at.map_or(0, |at| now.saturating_sub(at));
    QueueItem {
        tenant_id: &queue.tenant,
        counts: QueueBody::new(&queue.name, &queue.counts, queue.paused),
        bytes: queue.counts.live_bytes,
        oldest_ready_seconds: age as f64 / 1_000.0,
        enqueued_per_second: rate.enqueued,
        claimed_per_second: rate.claimed,
        finished_per_second: rate.finished,
    }
}
