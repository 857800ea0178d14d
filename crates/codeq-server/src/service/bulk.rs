//! Bulk operations: many tasks per call, in bounded parts so other tenants' commands run in between.

use std::sync::Arc;

use codeq_auth::Principal;
use codeq_core::command::{BulkFilter, BulkFrom, BulkPart, BulkWork, ReplayFrom};
use codeq_core::id::ShardId;
use codeq_core::limits::{BULK_LOOK_MAX, BULK_MAX, BULK_TAKE_MAX};
use codeq_core::names::check_command;
use codeq_core::reply::{BulkDone, Reply};
use codeq_core::rows::Counts;
use codeq_engine::Call;
use tokio::time::Instant;

use super::permission::MayAdminister;
use super::scan::CALL_TIME;
use super::{Service, ServiceError, cursor};

/// Options shared by all bulk operations.
#[derive(Debug, Default)]
pub struct BulkOptions {
    /// Selects the tasks.
    pub filter: BulkFilter,
    /// Maximum number of tasks to change.
    pub limit: Option<u32>,
    /// Resumes where the previous call stopped.
    pub cursor: Option<String>,
    /// Counts matching tasks without changing them.
    pub dry_run: bool,
}

impl BulkOptions {
    /// Maximum number of tasks for this call; defaults to the most allowed.
    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(BULK_MAX).min(BULK_MAX)
    }
}

/// The outcome of one bulk call.
pub struct BulkOutcome {
    /// Tasks changed.
    pub done: u64,
    /// Of these, running tasks whose workers were asked to stop.
    pub requested: u64,
    /// Set for a dry run: tasks that would be changed.
    pub matched: Option<u64>,
    /// Cursor to continue from. Absent when the scan is complete.
    pub next: Option<String>,
}

/// What bulk work on one queue did.
pub struct QueueBulk {
    /// Tasks taken off the list.
    pub outcome: BulkOutcome,
    /// Tasks left in the list.
    pub remaining: u64,
}

impl Service {
    /// Runs until it reaches the limit, the end of the data, or the call's time budget. A dry run
    /// counts up to the limit, or everything if there is none.
    pub(super) async fn bulk(
        &self,
        caller: MayAdminister<'_>,
        work: BulkWork,
        options: &BulkOptions,
    ) -> Result<BulkOutcome, ServiceError> {
        let about = about(&caller, &work, &options.filter);
        let start = options.cursor.as_deref();
        let start = start.map_or(Ok(Default::default()), |text| cursor::decode_from(text, &about));
        let (mut shard, mut from) = start?;
        let limit = match (options.dry_run, options.limit) {
            (true, None) => u64::MAX,
            _ => u64::from(options.limit()),
        };
        let began = Instant::now();
        let (mut seen, mut requested, mut stopped) = (0, 0, false);
        while shard.0 < self.engine.shards() {
            let left = limit.saturating_sub(seen);
            if left == 0 || began.elapsed() >= CALL_TIME {
                stopped = true;
                break;
            }
            let take = left.min(BULK_TAKE_MAX.into()) as u32;
            let take = match &work {
                BulkWork::Replay { .. } if !options.dry_run => {
                    match self.replay_room(&caller, take) {
                        Ok(room) => room,
                        // Report the work done so far; the follow-up call gets the error.
                        Err(_) if seen > 0 => {
                            stopped = true;
                            break;
                        }
                        Err(full) => return Err(full),
                    }
                }
                _ => take,
            };
            let asks = matches!(work, BulkWork::Cancel { .. }) && from.list > 0;
            let part = BulkPart {
                tenant: caller.tenant.clone(),
                work: work.clone(),
                filter: options.filter.clone(),
                from,
                take,
                look: BULK_LOOK_MAX,
                by: caller.subject.clone(),
            };
            let did = self.bulk_part(caller, shard, part, options.dry_run).await?;
            seen += did.done;
            requested += if asks { did.done } else { 0 };
            match did.next {
                Some(next) => from = next,
                None => (shard, from) = (shard.next(), BulkFrom::default()),
            }
        }
        let next = stopped.then(|| cursor::encode_from(shard, &from, &about));
        if options.dry_run {
            return Ok(BulkOutcome { done: 0, requested: 0, matched: Some(seen), next });
        }
        Ok(BulkOutcome { done: seen, requested, matched: None, next })
    }

    /// Runs a bulk operation on one list of a queue; `left` counts what is still in the list.
    pub(super) async fn bulk_in_queue(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
        work: BulkWork,
        options: &BulkOptions,
        left: impl FnOnce(&Counts) -> u64,
    ) -> Result<QueueBulk, ServiceError> {
        check_command(command)?;
        let mut outcome = self.bulk(caller, work, options).await?;
        let queue = self.engine.queue(&caller.tenant, command).await?;
        let remaining = queue.map_or(0, |queue| left(&queue.counts));
        outcome.next = outcome.next.filter(|_| remaining > 0);
        Ok(QueueBulk { outcome, remaining })
    }

    /// Runs one part in one shard. A dry run only reads, so it writes nothing to the log.
    async fn bulk_part(
        &self,
        caller: MayAdminister<'_>,
        shard: ShardId,
        part: BulkPart,
        dry_run: bool,
    ) -> Result<BulkDone, ServiceError> {
        if dry_run {
            let now = self.engine.now().now;
            let look = self.scan(&caller.tenant, shard, move |reader| reader.bulk(&part, now));
            let plan = look.await?;
            return Ok(BulkDone { done: plan.numbers.len() as u64, next: plan.next });
        }
        // One part per tenant at a time: a hundred concurrent calls must not fill the shard's inbox.
        let (engine, call) =
            (Arc::clone(&self.engine), Call::BulkPart { shard, part: Box::new(part) });
        let part = self.scans.run(&caller.tenant, async move { engine.call(call).await });
        match part.await?? {
            Reply::BulkPart(done) => Ok(done),
            _ => Ok(BulkDone::default()),
        }
    }
}

/// The request parameters a cursor is bound to.
fn about(caller: &Principal, work: &BulkWork, filter: &BulkFilter) -> Vec<Option<String>> {
    let (what, command) = match work {
        BulkWork::Cleanup { .. } => ("cleanup", None),
        BulkWork::PurgeDead { command } => ("purge dead", Some(command)),
        BulkWork::PurgeWaiting { command } => ("purge waiting", Some(command)),
        BulkWork::Cancel { command, running: false } => ("cancel waiting", Some(command)),
        BulkWork::Cancel { command, running: true } => ("cancel", Some(command)),
        BulkWork::Replay { command, from } => match from {
            ReplayFrom::DeadLetters => ("replay", Some(command)),
            ReplayFrom::Failed => ("replay failed", Some(command)),
            ReplayFrom::Cancelled => ("replay cancelled", Some(command)),
        },
    };
    vec![
        Some(caller.tenant.to_string()),
        Some(what.to_owned()),
        command.map(|name| name.to_ascii_lowercase()),
        filter.error_contains.as_ref().map(ToString::to_string),
        filter.before.map(|at| at.to_string()),
        filter.after.map(|at| at.to_string()),
        filter.worker.as_ref().map(ToString::to_string),
    ]
}
