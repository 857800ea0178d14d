//! The rows and the log of a node, which openraft and the tasks around it share; `shared` has the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use codeq_disk::SharedDisk;
use codeq_engine::install;
use codeq_engine::layout::Manifest;
use codeq_engine::recover;
use codeq_engine::replica::Replica;
use codeq_engine::shard::Shard;
use codeq_engine::status::Status;
use codeq_engine::{EngineError, OpenError, Options};
use openraft::SnapshotMeta;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::applied::AppliedIndex;
use crate::fault::Fault;
use crate::journal_record;
use crate::log_store::{LogStore, LogStoreError};
use crate::runtime::Instant;
use crate::time::Stamp;
use crate::transport::Leader;
use crate::types::{LogId, Member, NodeId, StoredMembership};

/// Why a member's directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory or one of its stores.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log, the vote or the members.
    #[error(transparent)]
    Log(#[from] LogStoreError),
    /// openraft could not start.
    #[error("cannot start replication: {0}")]
    Raft(String),
}

/// The rows and the log of a node, and what its parts need to use them.
pub(crate) struct Storage {
    pub id: NodeId,
    /// Drawn at every start, so that the node does not mistake a proposal from before a restart for one made since.
    pub incarnation: u64,
    pub disk: SharedDisk,
    pub dir: PathBuf,
    pub options: Options,
    pub manifest: Manifest,
    pub log: LogStore,
    pub rows: Mutex<ReplicaRows>,
    /// Held while a checkpoint is written, or while rows of another node replace the stores.
    pub store_files: AsyncMutex<()>,
    /// A checkpoint, and maintenance of the stores after it, was begun in the background and is not finished, or a
    /// checkpoint failed a moment ago.
    pub checkpointing: AtomicBool,
    /// What the last checkpoint lacked.
    pub checkpoint_shortage: Mutex<Option<EngineError>>,
    /// Held while a segment of the log is prepared.
    pub preparing: Arc<AsyncMutex<()>>,
    /// Why the last segment could not be prepared.
    pub prepare_failure: Mutex<Option<PrepareFailure>>,
    /// The last entry that the rows include, for reads that wait.
    pub applied: Arc<AppliedIndex>,
    /// Notified when something arrives that may have to be proposed.
    pub wake: Arc<Notify>,
    /// Notified when requests were answered.
    pub settled: Notify,
    /// What callers of this node's engine see.
    pub status: Arc<Status>,
    pub fault: Option<Fault>,
}

/// The rows of a node, and which entries they include.
pub(crate) struct ReplicaRows {
    pub replica: Replica,
    pub applied: Option<LogId>,
    pub membership: StoredMembership,
    /// Who stamped the last entry. After a start, and for rows from another node, the leader that
    /// wrote the last entry stands in: it is the same one or a later one.
    pub stamped_by: Leader,
    /// The last entry that the checkpoints include, and the members at that point.
    pub checkpoint: Checkpoint,
    /// The last entry that the previous checkpoints included.
    pub previous: u64,
    pub snapshots: u64,
}

/// A segment could not be prepared for lack of space or file descriptors. It is not tried again before `retry_at`.
pub(crate) struct PrepareFailure {
    pub error: EngineError,
    pub retry_at: Instant,
}

/// A checkpoint of all shards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkpoint {
    pub at: Option<LogId>,
    pub membership: StoredMembership,
}

impl ReplicaRows {
    /// Who stamped the last entry, and with what time.
    pub fn last_stamp(&self) -> Stamp {
        Stamp { leader: self.stamped_by, moment: self.replica.now() }
    }
}

impl Storage {
    /// Opens a member's directory: finishes an interrupted installation, then opens log and stores.
    pub fn open(
        incarnation: u64,
        (disk, dir): (SharedDisk, &Path),
        options: Options,
        fault: Option<Fault>,
    ) -> Result<Arc<Storage>, StartError> {
        let manifest = recover::manifest_of_member(&*disk, dir, &options)?;
        let log = LogStore::open(&disk, dir, options.log(), fault)?;
        install::finish(&*disk, dir, manifest, |note| match_log_to_rows(&log, dir, note))?;
        let shards = recover::open_shards(&disk, dir, &options, manifest)?;
        let wake = Arc::new(Notify::new());
        let applied = last_common_entry(&log, &shards, fault)?;
        let index = applied.map_or(0, |id| id.index);
        let replica = Replica::new(shards, index, &options, &wake);
        let status = Arc::clone(replica.status());
        let membership = membership_at(applied, log.membership());
        let checkpoint = Checkpoint { at: applied, membership: membership.clone() };
        let stamped_by = writer(applied);
        let rows = ReplicaRows {
            replica,
            applied,
            membership,
            stamped_by,
            checkpoint,
            previous: 0,
            snapshots: 0,
        };
        report_resumed(&options, &rows.replica);
        Ok(Arc::new(Storage {
            id: log.node_id(),
            incarnation,
            disk,
            dir: dir.to_owned(),
            options,
            manifest,
            log,
            rows: Mutex::new(rows),
            store_files: AsyncMutex::default(),
            checkpointing: AtomicBool::new(false),
            checkpoint_shortage: Mutex::default(),
            preparing: Arc::default(),
            prepare_failure: Mutex::default(),
            applied: Arc::new(AppliedIndex::new(applied.map(|id| id.index))),
            wake,
            settled: Notify::new(),
            status,
            fault,
        }))
    }

    /// Stops the node because it must not go on. Nothing is acknowledged any more, and no checkpoint is written.
    pub fn fail(&self, why: &impl ToString) {
        self.status.fail(&EngineError::Failed(why.to_string().into()));
        self.wake.notify_one();
    }

    /// Whether a bug is planted.
    pub fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub fn snapshot_meta(rows: &mut ReplicaRows) -> SnapshotMeta<NodeId, Member> {
        let Checkpoint { at, membership } = rows.checkpoint.clone();
        rows.snapshots += 1;
        let snapshot_id = format!("{}-{}", at.map_or(0, |at| at.index), rows.snapshots);
        SnapshotMeta { last_log_id: at, last_membership: membership, snapshot_id }
    }

    /// Replaces this node's rows with those that have arrived from another node.
    pub fn install(&self, meta: &SnapshotMeta<NodeId, Member>) -> Result<(), StartError> {
        let note = journal_record::encode_note(meta.last_log_id, &meta.last_membership);
        let note = note.map_err(LogStoreError::from)?;
        // Nobody may use the stores meanwhile.
        let mut rows = self.rows.lock();
        install::commit(&*self.disk, &self.dir, self.manifest, &note)?;
        install::finish(&*self.disk, &self.dir, self.manifest, |note| {
            match_log_to_rows(&self.log, &self.dir, note)
        })?;
        let shards = recover::open_shards(&self.disk, &self.dir, &self.options, self.manifest)?;
        let applied = meta.last_log_id;
        rows.replica.replace(shards, applied.map_or(0, |at| at.index));
        report_resumed(&self.options, &rows.replica);
        rows.applied = applied;
        rows.membership = meta.last_membership.clone();
        rows.stamped_by = writer(applied);
        rows.checkpoint = Checkpoint { at: applied, membership: meta.last_membership.clone() };
        rows.previous = 0;
        if let Some(at) = applied {
            self.applied.reach(at.index);
        }
        Ok(())
    }
}

/// Tells the observer where the transitions of each shard continue.
fn report_resumed(options: &Options, replica: &Replica) {
    let Some(observer) = options.observer.0.as_ref() else { return };
    for shard in replica.each() {
        let next = shard.data().read().state.meta().transitions;
        observer.resumed(shard.number, next);
    }
}

/// The leader that wrote an entry.
pub(crate) fn writer(of: Option<LogId>) -> Leader {
    of.map_or(Leader::default(), |id| Leader {
        term: id.leader_id.term,
        node: id.leader_id.node_id,
    })
}

/// The saved members, under a log id that the rows include. Members are saved as soon as they are applied, so after a
/// restart they may be newer than the rows. They then get the rows' log id, because the entry that changed them is applied
/// again after the rows, here and wherever these are sent. The members are committed, so knowing them early does no
/// harm.
fn membership_at(applied: Option<LogId>, noted: StoredMembership) -> StoredMembership {
    match *noted.log_id() > applied {
        true => StoredMembership::new(applied, noted.membership().clone()),
        false => noted,
    }
}

/// Makes log and members agree with rows that were installed. After a crash it is repeated.
fn match_log_to_rows(log: &LogStore, dir: &Path, note: &[u8]) -> Result<(), StartError> {
    let (at, membership) = journal_record::decode_note(note).map_err(|reason| {
        let reason = format!("its file INSTALL cannot be read: {reason}");
        OpenError::Foreign { dir: dir.to_owned(), reason }
    })?;
    log.save_membership(&membership)?;
    if let Some(at) = at {
        log.installed(at)?;
    }
    Ok(())
}

/// The last entry that all shards include: the lowest of their checkpoints. A shard skips entries that it already has.
fn last_common_entry(
    log: &LogStore,
    shards: &[Shard],
    fault: Option<Fault>,
) -> Result<Option<LogId>, StartError> {
    let positions: Vec<u64> =
        shards.iter().map(|shard| shard.data().read().store.position()).collect();
    // A log that ends before what a store includes has lost entries that were acknowledged.
    for position in &positions {
        let reached = log.entry_of_checkpoint(*position);
        if fault != Some(Fault::AcceptLostTail) {
            reached?;
        }
    }
    let lowest = positions.into_iter().min().unwrap_or(0);
    // With the planted bug, openraft believes that the missing entries were purged.
    let missing = |_| log.last_log_id().map(|last| LogId::new(last.leader_id, lowest));
    Ok(log.entry_of_checkpoint(lowest).unwrap_or_else(missing))
}
