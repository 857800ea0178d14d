//! `/admin/queues`.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use codeq_core::moment::Moment;
use codeq_core::read::QueueStats;
use serde::Serialize;

use super::bulk::{BulkRequest, DryRun};
use super::call::{Answer, Call};
use super::{answer, json};
use crate::events::rates::Rate;
use crate::service::bulk::QueueBulk;
use crate::service::permission::MayAdminister;
use crate::service::{Code, ServiceError};

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct QueueBody<'a> {
    command: &'a str,
    ready: u64,
    delayed: u64,
    in_progress: u64,
    dlq: u64,
    paused: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueItem<'a> {
    tenant_id: &'a str,
    #[serde(flatten)]
    counts: QueueBody<'a>,
    completed: u64,
    failed: u64,
    bytes: u64,
    oldest_ready_seconds: f64,
    enqueued_per_second: f64,
    claimed_per_second: f64,
    finished_per_second: f64,
}

#[derive(Serialize)]
struct QueueList<'a> {
    items: Vec<QueueItem<'a>>,
}

/// The response to a purge.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Purged {
    purged: u64,
    remaining: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    dry_run: Option<DryRun>,
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

#[derive(Serialize)]
struct Paused<'a> {
    command: &'a str,
    paused: bool,
}

pub async fn list(call: Call) -> Answer {
    let all_tenants = call.flag("allTenants")?;
    let queues = call.service().queues(MayAdminister::of(&call.caller)?, all_tenants).await?;
    match call.param("format").as_deref() {
        None => Ok(answer::json(StatusCode::OK, &flat(&queues))),
        Some("list") => {
            let Moment { now, wall } = call.service().now();
            let rates = &call.service().events.rates;
            let rate = |queue: &QueueStats| rates.of(&queue.tenant, &queue.name, now);
            let items = queues.iter().map(|queue| item(queue, wall, rate(queue))).collect();
            Ok(answer::json(StatusCode::OK, &QueueList { items }))
        }
        Some(_) => {
            let text = "invalid 'format' (list, or absent)";
            Err(ServiceError::new(Code::InvalidParameter, text).field("format").into())
        }
    }
}

pub async fn get(call: Call) -> Answer {
    let queue =
        call.service().queue(MayAdminister::of(&call.caller)?, call.path("command")).await?;
    let body = match &queue {
        Some(queue) => body(call.path("command"), queue),
        None => QueueBody { command: call.path("command"), ..QueueBody::default() },
    };
    Ok(answer::json(StatusCode::OK, &body))
}

pub async fn pause(call: Call) -> Answer {
    set_paused(call, true).await
}

pub async fn resume(call: Call) -> Answer {
    set_paused(call, false).await
}

async fn set_paused(call: Call, paused: bool) -> Answer {
    let caller = MayAdminister::of(&call.caller)?;
    call.service().pause(caller, call.path("command"), paused).await?;
    Ok(answer::json(StatusCode::OK, &Paused { command: call.path("command"), paused }))
}

pub async fn purge(call: Call) -> Answer {
    let request: BulkRequest = json::parse_or_default(&call.body)?;
    let (caller, options) = (MayAdminister::of(&call.caller)?, request.options()?);
    let done = call.service().purge(caller, call.path("command"), &options).await?;
    Ok(answer::json(StatusCode::OK, &Purged::from(done)))
}

/// codeQ's flat map, with an entry for each list that is not empty.
fn flat(queues: &[QueueStats]) -> BTreeMap<String, u64> {
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
    map
}

fn body<'a>(command: &'a str, queue: &QueueStats) -> QueueBody<'a> {
    QueueBody {
        command,
        ready: queue.counts.ready(),
        delayed: queue.counts.delayed,
        in_progress: queue.counts.in_progress,
        dlq: queue.counts.dead,
        paused: queue.paused,
    }
}

fn item(queue: &QueueStats, now: u64, rate: Rate) -> QueueItem<'_> {
    let age = queue.oldest_ready_at.map_or(0, |at| now.saturating_sub(at));
    QueueItem {
        tenant_id: &queue.tenant,
        counts: body(&queue.name, queue),
        completed: queue.counts.completed,
        failed: queue.counts.failed,
        bytes: queue.counts.live_bytes,
        oldest_ready_seconds: age as f64 / 1_000.0,
        enqueued_per_second: rate.enqueued,
        claimed_per_second: rate.claimed,
        finished_per_second: rate.finished,
    }
}
