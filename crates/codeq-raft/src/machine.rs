//! openraft's state machine: committed entries go to the rows.

use std::sync::Arc;

use codeq_engine::{EngineError, OpenError};
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use openraft::{AnyError, EntryPayload, Snapshot, SnapshotMeta, StorageIOError};

use crate::fault::Fault;
use crate::runtime;
use crate::snapshot::{Rows, SnapshotRows};
use crate::storage::{self, Storage};
use crate::types::{Entry, LogId, Member, NodeId, Proposal, StorageError, StoredMembership, Types};

/// The state machine of a node.
#[derive(Clone)]
pub(crate) struct Machine(pub Arc<Storage>);

impl Machine {
    fn apply_entry(&self, entry: Entry) -> Result<(), AnyError> {
        let mut rows = self.0.rows.lock();
        let applied = self.apply_to(&mut rows, entry);
        if let Err(error) = &applied {
            // Under the lock: part of the entry may be in the rows, and no checkpoint may include it.
            self.0.fail(error);
        }
        applied
    }

    fn apply_to(&self, rows: &mut storage::ReplicaRows, entry: Entry) -> Result<(), AnyError> {
        let (id, storage) = (entry.log_id, &self.0);
        match entry.payload {
            EntryPayload::Blank => rows.replica.skip(id.index),
            EntryPayload::Membership(membership) => {
                let stored = StoredMembership::new(Some(id), membership);
                // Durable before any checkpoint includes this entry: a node that starts with the old members could elect
                // itself without the new ones.
                if !storage.has(Fault::ForgetMembership) && !storage.has(Fault::LateMembership) {
                    storage.log.save_membership(&stored).map_err(|error| AnyError::new(&error))?;
                }
                rows.membership = stored;
                rows.replica.skip(id.index);
            }
            EntryPayload::Normal(proposal) => {
                // A5.
                if let Some(digests) = &proposal.digests {
                    let compared = rows.replica.compare(digests.index, &digests.by_shard);
                    compared.map_err(|error| AnyError::new(&error))?;
                }
                self.apply_proposal(rows, id, &proposal).map_err(|error| AnyError::new(&error))?;
            }
        }
        rows.applied = Some(id);
        Ok(())
    }

    fn apply_proposal(
        &self,
        rows: &mut storage::ReplicaRows,
        id: LogId,
        proposal: &Proposal,
    ) -> Result<(), OpenError> {
        let (storage, origin) = (&self.0, proposal.origin);
        let own = (origin.node, origin.incarnation) == (storage.id, storage.incarnation);
        // A2. Openraft may write a proposal in a later term than it was made in, after entries of other leaders.
        let (term, node) = (id.leader_id.term, id.leader_id.node_id);
        if (term, node) != (origin.term, origin.node) && !storage.has(Fault::NoFence) {
            if own {
                rows.replica.end_proposal(origin.number, &EngineError::NoLeader);
            }
            rows.replica.skip(id.index);
            return Ok(());
        }
        rows.stamped_by = storage::writer(Some(id));
        let mut number = own.then_some(origin.number);
        if storage.has(Fault::AnswerByPosition) {
            number = rows.replica.first_in_flight();
        }
        let mut records = proposal.records.as_slice();
        if storage.has(Fault::SkipCommand) && !own && id.index.is_multiple_of(61) {
            records = records.get(1..).unwrap_or_default();
        }
        let observer = storage.options.observer.0.as_ref();
        let times = match storage.fault {
            Some(Fault::RepeatTransitions) if id.index.is_multiple_of(61) => 2,
            Some(Fault::SkipTransitions) if id.index.is_multiple_of(61) => 0,
            _ => 1,
        };
        rows.replica.apply(id.index, number, records, |shard, effects| {
            for _ in 0..times {
                observer.into_iter().for_each(|observer| observer.committed(shard, effects));
            }
        })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let rows = self.0.rows.lock();
        Ok((rows.applied, rows.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let mut replies = Vec::new();
        for entry in entries {
            let id = entry.log_id;
            let applied = self.apply_entry(entry);
            applied.map_err(|error| StorageIOError::apply(id, error))?;
            replies.push(());
            self.0.applied.reach(id.index);
        }
        self.0.wake.notify_one();
        self.0.settled.notify_one();
        self.0.checkpoint_if_due().await;
        Ok(replies)
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
        _: Box<SnapshotRows>,
    ) -> Result<(), StorageError> {
        let _files = self.0.store_files.lock().await;
        runtime::block(|| self.0.install(meta)).map_err(|error| {
            // While `_files` is still locked: the stores may be neither the old nor the new ones.
            self.0.fail(&error);
            // Openraft may be waiting for the log to continue after the snapshot.
            self.0.log.not_installed(&error.to_string());
            StorageIOError::write_snapshot(Some(meta.signature()), AnyError::new(&error)).into()
        })
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let mut rows = self.0.rows.lock();
        if rows.checkpoint.at.is_none() {
            return Ok(None);
        }
        Ok(Some(snapshot(&mut rows)))
    }
}

fn snapshot(rows: &mut storage::ReplicaRows) -> Snapshot<Types> {
    let meta = Storage::snapshot_meta(rows);
    let exports = rows.replica.each().map(|shard| shard.data().read().store.export()).collect();
    let rows = SnapshotRows { rows: Rows::Outgoing(exports), _installing: None };
    Snapshot { meta, snapshot: Box::new(rows) }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        match self.0.checkpoint().await {
            // Report only a failure that cannot be retried, because openraft stops for good when it gets an error.
            // After any other failure, the previous checkpoint will do, which openraft already knows.
            Err(error) if !error.is_retryable() => {
                return Err(StorageIOError::write_snapshot(None, AnyError::new(&error)).into());
            }
            _ => {}
        }
        Ok(snapshot(&mut self.0.rows.lock()))
    }
}
