//! Queue inspection and control for admins.

use std::sync::Arc;

use bytes::Bytes;
use codeq_auth::Principal;
use codeq_core::command::{BulkWork, Command, DeleteRecord, Millis, Pause, PutRecord};
use codeq_core::id::ShardId;
use codeq_core::limits::COMMAND_BYTES_MAX;
use codeq_core::names::{check_command, cut, queue_name};
use codeq_core::place::Place;
use codeq_core::read::QueueStats;
use codeq_core::record::RecordKind;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::rows::Counts;
use codeq_engine::read::QueueSums;

use super::bulk::{BulkOptions, QueueBulk};
use super::permission::{MayAdminister, MayOperate};
use super::{Service, ServiceError};
use crate::suggest::distance;

/// Who paused a queue, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausedBy {
    /// The subject of the admin's token.
    pub by: String,
    /// Wall-clock time.
    pub at: Millis,
}

impl Service {
    /// Statistics of one queue, or `None` if it does not exist.
    pub async fn queue(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
    ) -> Result<Option<QueueStats>, ServiceError> {
        check_command(command)?;
        Ok(self.engine.queue(&caller.tenant, command).await?)
    }

    /// Explains an unknown queue, suggesting the nearest name. Reveals nothing about other tenants.
    pub async fn missing_queue(
        &self,
        caller: &Principal,
        command: &str,
    ) -> Result<Option<String>, ServiceError> {
        let unknown = check_command(command).is_ok()
            && self.engine.queue(&caller.tenant, command).await?.is_none();
        if !unknown {
            return Ok(None);
        }
        let mut near: Option<((usize, usize), Arc<str>)> = None;
        for shard in ShardId::all(self.engine.shards()) {
            let tenant = Arc::clone(&caller.tenant);
            // Search only the first slice: a suggestion is not worth reading more.
            let slice =
                self.scan(&caller.tenant, shard, move |reader| reader.queues(&tenant, None));
            let mut sums = QueueSums::default();
            sums.add(slice.await?);
            for queue in sums.all() {
                if let Some(distance) = distance(command, &queue.name)
                    && near.as_ref().is_none_or(|(best, _)| distance < *best)
                {
                    near = Some((distance, queue.name));
                }
            }
        }
        let command = cut(command, COMMAND_BYTES_MAX);
        let meant = near.map_or(String::new(), |(_, name)| format!("; did you mean '{name}'?"));
        Ok(Some(format!("queue '{command}' has no tasks{meant}")))
    }

    /// Statistics of every queue the caller sees: its tenant's, or all tenants' for an operator who requests that.
    pub async fn queues(
        &self,
        caller: MayAdminister<'_>,
        all_tenants: bool,
    ) -> Result<Vec<QueueStats>, ServiceError> {
        if !all_tenants {
            return self.queues_of(&caller.tenant).await;
        }
        MayOperate::of(&caller)?;
        let mut all = Vec::new();
        for tenant in self.engine.tenants().await? {
            all.extend(self.queues_of(&tenant).await?);
        }
        Ok(all)
    }

    /// Pauses or resumes claims of a queue; enqueues still work.
    pub async fn pause(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
        paused: bool,
    ) -> Result<(), ServiceError> {
        let before = self.engine.queue(&caller.tenant, command).await?;
        let (tenant, name) = (caller.tenant.clone(), Arc::from(command));
        match self.propose(Command::Pause(Pause { tenant, command: name, paused })).await? {
            Reply::Rejected(Rejection::NotFound) => {
                let detail = "the queue does not exist: it has no tasks and is not paused";
                return Err(ServiceError::from(Rejection::NotFound).detail(detail));
            }
            Reply::Rejected(rejection) => return Err(rejection.into()),
            _ => {}
        }
        if before.is_some_and(|queue| queue.paused) != paused {
            self.record_pause(caller, command, paused).await;
        }
        Ok(())
    }

    /// Stores who paused a queue, or removes that record. A failure does not affect the pause itself: `why` then just
    /// lacks the name.
    async fn record_pause(&self, caller: MayAdminister<'_>, command: &str, paused: bool) {
        let (tenant, kind) = (caller.tenant.clone(), RecordKind::QueuePause);
        let name = Arc::from(&*queue_name(command));
        let command = if paused {
            let value = Bytes::copy_from_slice(caller.subject.as_bytes());
            let (ttl, expected) = (None, None);
            Command::PutRecord(PutRecord { tenant, kind, name, value, ttl, expected })
        } else {
            Command::DeleteRecord(DeleteRecord { tenant, kind, name, expected: None })
        };
        let stored = self.propose(command).await;
        if !matches!(stored, Ok(Reply::Record(_) | Reply::Done | Reply::Rejected(_))) {
            tracing::warn!(target: "codeq::server", "could not store who paused a queue");
        }
    }

    /// Who paused a queue and when, if that is known.
    pub(super) async fn pause_of(
        &self,
        tenant: &Arc<str>,
        queue: &str,
    ) -> Result<Option<PausedBy>, ServiceError> {
        let record = self.engine.record(tenant, RecordKind::QueuePause, queue).await?;
        Ok(record.map(|record| PausedBy {
            by: String::from_utf8_lossy(&record.value).into_owned(),
            at: record.updated_at,
        }))
    }

    /// Cancels waiting tasks of a queue, a bounded number at a time.
    pub async fn purge(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
        options: &BulkOptions,
    ) -> Result<QueueBulk, ServiceError> {
        let work = BulkWork::PurgeWaiting { command: command.into() };
        let waiting = |counts: &Counts| counts.of(Place::Pending);
        self.bulk_in_queue(caller, command, work, options, waiting).await
    }

    /// Cancels waiting tasks of a queue, a bounded number at a time. With `running`, also asks the workers of running
    /// tasks to stop, after the waiting ones.
    pub async fn cancel_queue(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
        running: bool,
        options: &BulkOptions,
    ) -> Result<QueueBulk, ServiceError> {
        let work = BulkWork::Cancel { command: command.into(), running };
        let left = |counts: &Counts| {
            counts.of(Place::Pending) + if running { counts.in_progress } else { 0 }
        };
        self.bulk_in_queue(caller, command, work, options, left).await
    }

    pub(super) async fn queues_of(
        &self,
        tenant: &Arc<str>,
    ) -> Result<Vec<QueueStats>, ServiceError> {
        let mut sums = QueueSums::default();
        for shard in ShardId::all(self.engine.shards()) {
            let mut after: Option<Arc<str>> = None;
            loop {
                let whose = Arc::clone(tenant);
                let slice =
                    self.scan(tenant, shard, move |reader| reader.queues(&whose, after.as_deref()));
                after = sums.add(slice.await?);
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(sums.all())
    }
}
