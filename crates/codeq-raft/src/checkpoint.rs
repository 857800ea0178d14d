//! Checkpoints: writes the rows of all shards to disk in the background, all as of the same entry.
//!
//! The lock on the rows is held only to freeze them and to take back the result, which takes no time. They are written
//! without it, so entries are applied and answered meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use codeq_core::id::ShardId;
use codeq_engine::EngineError;
use codeq_engine::options::FULL_DISK_RETRY;
use codeq_engine::shard::Shard;
use codeq_log::FrameIndex;
use codeq_store::{FinishedJob, StoreError, StoreJob};

use crate::fault::Fault;
use crate::log_store::LogStoreError;
use crate::runtime;
use crate::storage::{Checkpoint, ReplicaRows, Storage};

/// Why a checkpoint failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] LogStoreError),
    #[error(transparent)]
    Ended(#[from] runtime::JoinError),
}

impl CheckpointError {
    /// Whether a later checkpoint may succeed: nothing was lost.
    pub fn is_retryable(&self) -> bool {
        match self {
            CheckpointError::Store(error) => error.is_retryable(),
            CheckpointError::Log(error) => error.shortage().is_some(),
            CheckpointError::Ended(_) => false,
        }
    }

    fn shortage(&self) -> Option<EngineError> {
        let shortage = match self {
            CheckpointError::Store(error) => error.shortage(),
            CheckpointError::Log(error) => error.shortage(),
            CheckpointError::Ended(_) => None,
        };
        shortage.map(EngineError::from)
    }
}

impl From<CheckpointError> for EngineError {
    fn from(error: CheckpointError) -> EngineError {
        error.shortage().unwrap_or_else(|| EngineError::Failed(error.to_string().into()))
    }
}

impl Storage {
    /// Checkpoints all shards at the same entry, then frees the log that nobody needs. Waits for the checkpoint that is
    /// being written, if there is one. Returns false if no checkpoint is possible: the node has failed, nothing is applied
    /// yet, or a shard is ahead of the last entry applied. (After a crash, a shard may include entries that are not known
    /// to be committed.) After an error that cannot be retried the node stops.
    pub async fn checkpoint(&self) -> Result<bool, CheckpointError> {
        let _files = self.store_files.lock().await;
        let written = self.write_rows().await;
        let short = written.as_ref().err().filter(|error| error.is_retryable());
        *self.checkpoint_shortage.lock() = short.and_then(CheckpointError::shortage);
        self.report_shortage(short.map(ToString::to_string).as_deref());
        if let Err(error) = &written
            && !error.is_retryable()
        {
            self.fail(error);
        }
        written
    }

    /// Begins a checkpoint in the background, then maintains the stores, unless an earlier call has begun that and is not
    /// finished. After a failed checkpoint, the next has to wait a moment.
    pub fn checkpoint_in_background(self: &Arc<Storage>) {
        if self.checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        let storage = Arc::clone(self);
        runtime::spawn(async move {
            let checkpointed = match storage.checkpoint().await {
                Ok(_) => storage.maintain().await,
                Err(error) => Err(error),
            };
            if checkpointed.is_err() {
                runtime::sleep(FULL_DISK_RETRY).await;
            }
            storage.checkpointing.store(false, Ordering::Release);
        });
    }

    /// Begins a checkpoint if many rows are only in memory. If rows come faster than they can be written, this waits for
    /// the checkpoint in progress: that slows the writers down instead of filling the memory.
    pub async fn checkpoint_if_due(self: &Arc<Storage>) {
        let unwritten = self.unwritten_bytes();
        if unwritten >= self.options.memtable_bytes.saturating_mul(2) {
            drop(self.store_files.lock().await);
        }
        if unwritten >= self.options.memtable_bytes {
            self.checkpoint_in_background();
        }
    }

    /// Checkpoints all shards if somebody waits for it.
    pub fn checkpoint_if_wanted(self: &Arc<Storage>) {
        let waits = self.rows.lock().replica.take_checkpoint_waits();
        if waits.is_empty() {
            return;
        }
        let storage = Arc::clone(self);
        runtime::spawn(async move {
            let outcome = match storage.checkpoint().await {
                Ok(true) => Ok(()),
                Ok(false) if storage.status.has_failed() => Err(storage.status.error()),
                Ok(false) => Err(EngineError::NoLeader),
                Err(error) => Err(error.into()),
            };
            for wait in waits {
                // If the receiver is gone, nobody waits any more.
                let _ = wait.send(outcome.clone());
            }
        });
    }

    /// What the last checkpoint lacked, if the rows that it should have written fill the memory.
    pub fn memory_is_full(&self) -> Option<EngineError> {
        let short = self.checkpoint_shortage.lock().clone();
        short.filter(|_| self.unwritten_bytes() >= self.options.memtable_bytes.saturating_mul(2))
    }

    /// The most that one of the shards has written to memory since its last checkpoint began.
    fn unwritten_bytes(&self) -> usize {
        let rows = self.rows.lock();
        let bytes = |shard: &Shard| shard.data().read().store.active_bytes();
        rows.replica.each().map(bytes).max().unwrap_or(0)
    }

    /// Maintains the stores until nothing is left to do; see `Store::maintain`. Writes the checkpoints that become due
    /// meanwhile, and fails only if one of them does. Others may use the files between two steps. A step that fails for
    /// lack of space only loses the copy that it was making.
    async fn maintain(&self) -> Result<(), CheckpointError> {
        loop {
            {
                let _files = self.store_files.lock().await;
                if self.status.has_failed() {
                    return Ok(());
                }
                let steps = self.jobs(|shard| shard.data().write().store.maintain());
                if steps.is_empty() {
                    return Ok(());
                }
                if let Err(error) = self.run(steps, |_| {}).await {
                    if !error.is_retryable() {
                        self.fail(&error);
                    }
                    return Ok(());
                }
            }
            if self.unwritten_bytes() >= self.options.memtable_bytes {
                self.checkpoint().await?;
            }
        }
    }

    /// The caller holds `store_files`.
    async fn write_rows(&self) -> Result<bool, CheckpointError> {
        if self.status.has_failed() {
            return Ok(false);
        }
        // What an earlier checkpoint could not write comes first: the shards have to include the same entries.
        if !self.has(Fault::CheckpointOld) {
            let unwritten = self.jobs(|shard| shard.data().write().store.retry_checkpoint());
            self.run(unwritten, |_| {}).await?;
        }
        let Some((checkpoint, jobs)) = self.freeze() else { return Ok(false) };
        let mut previous = 0;
        self.run(jobs, |rows| {
            if rows.checkpoint.at != checkpoint.at {
                rows.previous = rows.checkpoint.at.map_or(0, |at| at.index);
            }
            rows.checkpoint = checkpoint;
            previous = rows.previous;
        })
        .await?;
        if self.has(Fault::LateMembership) {
            runtime::sleep(FULL_DISK_RETRY / 5).await;
            let membership = self.rows.lock().membership.clone();
            self.log.save_membership(&membership)?;
        }
        runtime::block(|| self.log.release(previous))?;
        Ok(true)
    }

    fn jobs(&self, job: impl Fn(&mut Shard) -> Option<StoreJob>) -> Vec<(ShardId, StoreJob)> {
        let replica = &mut self.rows.lock().replica;
        let shards = ShardId::all(replica.shards());
        shards.filter_map(|id| Some((id, job(replica.shard_mut(id)?)?))).collect()
    }

    /// Starts a checkpoint of all shards at the last entry applied.
    fn freeze(&self) -> Option<(Checkpoint, Vec<(ShardId, StoreJob)>)> {
        let mut guard = self.rows.lock();
        let rows = &mut *guard;
        // A node that failed may have applied part of an entry.
        let applied = rows.applied.filter(|_| !self.status.has_failed())?;
        let ahead = |shard: &Shard| shard.data().read().store.position() > applied.index;
        if rows.replica.each().any(ahead) {
            return None;
        }
        let mut position = applied.index;
        if self.has(Fault::CheckpointAhead) {
            position = self.log.last_log_id().map_or(position, |last| last.index);
        }
        let mut shards = rows.replica.shards();
        if self.has(Fault::CheckpointApart) {
            shards = 1;
        }
        let mut jobs = Vec::new();
        for id in ShardId::all(shards) {
            let job = rows.replica.shard_mut(id).and_then(|it| it.freeze(FrameIndex(position)));
            jobs.extend(job.map(|job| (id, job)));
        }
        Some((Checkpoint { at: Some(applied), membership: rows.membership.clone() }, jobs))
    }

    /// Runs jobs on the stores' files. Once all shards use the outcome, `then` runs under the same lock.
    async fn run(
        &self,
        jobs: Vec<(ShardId, StoreJob)>,
        then: impl FnOnce(&mut ReplicaRows),
    ) -> Result<(), CheckpointError> {
        let began = runtime::now();
        let is_checkpoint = jobs.iter().any(|(_, job)| job.is_checkpoint());
        let run = || jobs.into_iter().map(|(shard, job)| (shard, job.run())).collect();
        let mut finished: Vec<(ShardId, FinishedJob)> = runtime::unblock(run).await?;
        let mut outcome = Ok(());
        {
            let mut rows = self.rows.lock();
            for (shard, job) in &mut finished {
                if let Some(shard) = rows.replica.shard_mut(*shard) {
                    outcome = outcome.and(shard.take_back(job));
                }
            }
            if outcome.is_ok() {
                then(&mut rows);
            }
        }
        if let Some(observer) = self.options.observer.0.as_ref().filter(|_| is_checkpoint) {
            observer.checkpointed(runtime::now().since(began), outcome.is_ok());
        }
        // Freeing many rows takes milliseconds.
        runtime::unblock(|| drop(finished)).await?;
        Ok(outcome?)
    }
}
