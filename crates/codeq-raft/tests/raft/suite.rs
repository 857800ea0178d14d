//! A small state machine and a log store for openraft's suite. The tests on the simulated disk share this file.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

use codeq_raft::log_store::LogStore;
use codeq_raft::snapshot::SnapshotRows;
use codeq_raft::types::{
    Entry, LogId, Member, NodeId, StorageError, StoredMembership, Types, Vote,
};
use openraft::storage::{
    LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot, SnapshotMeta,
};
use openraft::{EntryPayload, OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use parking_lot::Mutex;

/// Installs every snapshot at once, because the suite does not know of installations, and ignores entries that are already
/// purged, because the suite appends such entries although openraft never does.
pub struct Installing(pub LogStore);

impl RaftLogReader<Types> for Installing {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        self.0.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        self.0.limited_get_log_entries(start, end).await
    }
}

impl RaftLogStorage<Types> for Installing {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        self.0.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.0.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        self.0.save_vote(vote).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        self.0.read_vote().await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        self.0.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        self.0.read_committed().await
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
        let purged = self.0.get_log_state().await?.last_purged_log_id.map(|id| id.index);
        let entries: Vec<Entry> =
            entries.into_iter().filter(|entry| Some(entry.log_id.index) > purged).collect();
        self.0.append(entries, callback).await
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.0.truncate(log_id).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let jumps = self.0.last_log_id().is_none_or(|last| last.index < log_id.index);
        self.0.purge(log_id).await?;
        if jumps {
            self.0.installed(log_id).unwrap();
        }
        Ok(())
    }
}

/// Remembers where it is, and nothing else.
#[derive(Clone, Default)]
pub struct Machine(Arc<Mutex<Rows>>);

#[derive(Default)]
struct Rows {
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<SnapshotMeta<NodeId, Member>>,
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let mut rows = self.0.lock();
        let meta = SnapshotMeta {
            last_log_id: rows.applied,
            last_membership: rows.membership.clone(),
            snapshot_id: "snapshot".to_owned(),
        };
        rows.snapshot = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: Box::default() })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let rows = self.0.lock();
        Ok((rows.applied, rows.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut rows = self.0.lock();
        let mut apply = |entry: Entry| {
            rows.applied = Some(entry.log_id);
            if let EntryPayload::Membership(members) = entry.payload {
                rows.membership = StoredMembership::new(Some(entry.log_id), members);
            }
        };
        Ok(entries.into_iter().map(&mut apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotRows>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<NodeId, Member>,
        _snapshot: Box<SnapshotRows>,
    ) -> Result<(), StorageError> {
        let mut rows = self.0.lock();
        rows.applied = meta.last_log_id;
        rows.membership = meta.last_membership.clone();
        rows.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let snapshot = self.0.lock().snapshot.clone();
        Ok(snapshot.map(|meta| Snapshot { meta, snapshot: Box::default() }))
    }
}
