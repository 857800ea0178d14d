//! openraft's storage traits. What they promise is in the parent module.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{AnyError, OptionalSend, RaftLogReader, StorageIOError};

use super::{LogStore, LogStoreError, MESSAGE_BYTES, SEGMENT_PAUSE, Wait};
use crate::fault::Fault;
use crate::runtime;
use crate::types::{Entry, LogId, NodeId, StorageError, Types, Vote};

fn storage(
    io: impl FnOnce(AnyError) -> StorageIOError<NodeId>,
) -> impl FnOnce(LogStoreError) -> StorageError {
    move |error| io(AnyError::new(&error)).into()
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, to, u64::MAX).map_err(storage(StorageIOError::read_logs))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        self.read(start, end, MESSAGE_BYTES).map_err(storage(StorageIOError::read_logs))
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let journal = self.inner.journal.lock();
        Ok(LogState { last_purged_log_id: journal.purged(), last_log_id: journal.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        if self.inner.fault == Some(Fault::ForgetVote) {
            return Ok(());
        }
        let mut files = self.inner.files.lock();
        let saved = files.state.update(|state| state.vote = Some(*vote));
        saved.map_err(|error| storage(StorageIOError::write_vote)(error.into()))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let mut vote = self.inner.files.lock().state.state().vote;
        if let Some(vote) = &mut vote
            && vote.leader_id.node_id == self.inner.node_id
            && self.inner.fault != Some(Fault::KeepCommittedVote)
        {
            vote.committed = false;
        }
        Ok(vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let _files = self.inner.files.lock();
        self.inner.journal.lock().commit(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.inner.journal.lock().committed())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let failed = || storage(StorageIOError::write_logs);
        let entries: Vec<Entry> = entries.into_iter().collect();
        let mut rest = entries.as_slice();
        while !rest.is_empty() {
            // Subscribe before looking, so that no change is missed.
            let mut installed = self.inner.installed.subscribe();
            match self.write_frame(rest).map_err(failed())? {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // The sender lives as long as this store.
                Err(Wait::Installation) => drop(installed.changed().await),
                Err(Wait::Segment) => Types::sleep(SEGMENT_PAUSE).await,
            }
        }
        if self.inner.fault != Some(Fault::AckBeforeSync) {
            let synced = runtime::block(|| self.inner.files.lock().log.sync());
            synced.map_err(|error| failed()(error.into()))?;
        }
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let _files = self.inner.files.lock();
        let truncated = self.inner.journal.lock().truncate(log_id);
        truncated.map_err(|error| storage(StorageIOError::write_logs)(error.into()))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let held = {
            let _files = self.inner.files.lock();
            let mut journal = self.inner.journal.lock();
            journal.purge(log_id);
            journal.held()
        };
        if held.is_some() && self.inner.fault == Some(Fault::PurgeBeforeInstall) {
            return self.installed(log_id).map_err(storage(StorageIOError::write_logs));
        }
        Ok(())
    }
}
