//! Checkpoints: the rows of all shards reach the disk beside everything else, at the same entry.
//!
//! Rows are frozen and taken back under the lock on the rows, which takes no time. In between they are written without it,
//! so entries are applied and answered meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use codeq_core::id::ShardId;
use codeq_engine::EngineError;
use codeq_engine::options::FULL_DISK_RETRY;
use codeq_engine::shard::Shard;
use codeq_log::FrameIndex;
use codeq_store::{FlushJob, Flushed, StoreError};

use crate::fault::Fault;
use crate::log_store::LogStoreError;
use crate::runtime;
use crate::storage::{Checkpoint, Rows, Storage};

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
}

impl From<CheckpointError> for EngineError {
    fn from(error: CheckpointError) -> EngineError {
        let shortage = match &error {
            CheckpointError::Store(error) => error.shortage(),
            CheckpointError::Log(error) => error.shortage(),
            CheckpointError::Ended(_) => None,
        };
        let failed = || EngineError::Failed(error.to_string().into());
        shortage.map_or_else(failed, EngineError::from)
    }
}

impl Storage {
    /// Checkpoints all shards at the same entry, then frees the log that nobody needs. Waits for the checkpoint that is
    /// being written, if there is one. False if it is not possible yet: after a crash, one shard may include entries
    /// that are not known to be committed. After an error that cannot be retried the node stops.
    pub async fn checkpoint(&self) -> Result<bool, CheckpointError> {
        let _files = self.store_files.lock().await;
        self.write_checkpoint().await
    }

    /// Begins a checkpoint that is written beside everything else, unless one is being written. After a shortage the
    /// next one begins a little later.
    pub fn checkpoint_in_background(self: &Arc<Storage>) {
        if self.checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        let storage = Arc::clone(self);
        runtime::spawn(async move {
            if storage.checkpoint().await.is_err() {
                runtime::sleep(FULL_DISK_RETRY).await;
            }
            storage.checkpointing.store(false, Ordering::Release);
        });
    }

    /// Begins a checkpoint if many rows are only in memory. If they come faster than they can be written, it waits: a
    /// checkpoint that cannot keep up slows the writers down, instead of filling the memory.
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
                Ok(false) => Err(EngineError::NoLeader),
                Err(error) => Err(error.into()),
            };
            for wait in waits {
                // Nobody waits any more if it is gone.
                let _ = wait.send(outcome.clone());
            }
        });
    }

    /// Whether a checkpoint failed for lack of space, and the rows that it should have written fill the memory.
    pub fn memory_is_full(&self) -> bool {
        self.checkpoint_short.load(Ordering::Acquire)
            && self.unwritten_bytes() >= self.options.memtable_bytes.saturating_mul(2)
    }

    /// The most that one of the shards has written to memory since its last checkpoint began.
    fn unwritten_bytes(&self) -> usize {
        let rows = self.rows.lock();
        let bytes = |shard: &Shard| shard.data().read().store.active_bytes();
        rows.replica.each().map(bytes).max().unwrap_or(0)
    }

    /// The caller holds `store_files`.
    async fn write_checkpoint(&self) -> Result<bool, CheckpointError> {
        let written = self.write_rows().await;
        let short = matches!(&written, Err(error) if error.is_retryable());
        self.checkpoint_short.store(short, Ordering::Release);
        let outcome = match written {
            Ok(true) => self.maintain().await.map(|()| true),
            other => other,
        };
        if let Err(error) = &outcome
            && !error.is_retryable()
        {
            self.status.fail(&EngineError::Failed(error.to_string().into()));
            self.wake.notify_one();
        }
        outcome
    }

    /// Each step is bounded. One that fails for lack of space only loses a copy.
    async fn maintain(&self) -> Result<(), CheckpointError> {
        loop {
            let steps = self.jobs(|shard| shard.data().write().store.maintain());
            if steps.is_empty() {
                return Ok(());
            }
            match self.flush(steps, |_| {}).await {
                Err(error) if error.is_retryable() => return Ok(()),
                other => other?,
            }
        }
    }

    async fn write_rows(&self) -> Result<bool, CheckpointError> {
        // What an earlier checkpoint could not write comes first: the shards have to include the same entries.
        if !self.has(Fault::CheckpointOld) {
            let unwritten = self.jobs(|shard| shard.data().write().store.retry_flush());
            self.flush(unwritten, |_| {}).await?;
        }
        let Some((checkpoint, jobs)) = self.freeze() else { return Ok(false) };
        let mut previous = 0;
        self.flush(jobs, |rows| {
            if rows.checkpoint.at != checkpoint.at {
                rows.previous = rows.checkpoint.at.map_or(0, |at| at.index);
            }
            rows.checkpoint = checkpoint;
            previous = rows.previous;
        })
        .await?;
        if self.has(Fault::LateMembership) {
            let membership = self.rows.lock().membership.clone();
            self.log.save_membership(&membership)?;
        }
        self.log.release(previous)?;
        Ok(true)
    }

    fn jobs(&self, job: impl Fn(&mut Shard) -> Option<FlushJob>) -> Vec<(ShardId, FlushJob)> {
        let replica = &mut self.rows.lock().replica;
        let shards = ShardId::all(replica.shards());
        shards.filter_map(|id| Some((id, job(replica.shard_mut(id)?)?))).collect()
    }

    /// Starts a checkpoint of all shards at the last entry applied.
    fn freeze(&self) -> Option<(Checkpoint, Vec<(ShardId, FlushJob)>)> {
        let mut guard = self.rows.lock();
        let rows = &mut *guard;
        let applied = rows.applied?;
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

    /// Writes rows. `then` runs at the moment from which all shards read them from their files.
    async fn flush(
        &self,
        jobs: Vec<(ShardId, FlushJob)>,
        then: impl FnOnce(&mut Rows),
    ) -> Result<(), CheckpointError> {
        let began = runtime::now();
        let run = || jobs.into_iter().map(|(shard, job)| (shard, job.run())).collect();
        let mut written: Vec<(ShardId, Flushed)> = runtime::unblock(run).await?;
        let mut outcome = Ok(());
        {
            let mut rows = self.rows.lock();
            for (shard, flushed) in &mut written {
                if let Some(shard) = rows.replica.shard_mut(*shard) {
                    outcome = outcome.and(shard.flushed(flushed));
                }
            }
            if outcome.is_ok() {
                then(&mut rows);
            }
        }
        if let Some(observer) = self.options.observer.0.as_ref().filter(|_| !written.is_empty()) {
            observer.checkpointed(runtime::now().since(began), outcome.is_ok());
        }
        // Freeing many rows takes milliseconds.
        runtime::unblock(|| drop(written)).await?;
        Ok(outcome?)
    }
}
