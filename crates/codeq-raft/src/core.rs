//! The rows and the log of a node, which openraft and the tasks around it share; `shared` has the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::id::ShardId;
use codeq_disk::SharedDisk;
use codeq_engine::install;
use codeq_engine::layout::Manifest;
use codeq_engine::recover;
use codeq_engine::replica::Replica;
use codeq_engine::shard::Shard;
use codeq_engine::status::Status;
use codeq_engine::{EngineError, OpenError, Options};
use codeq_log::FrameIndex;
use codeq_store::StoreError;
use openraft::SnapshotMeta;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::applied::Applied;
use crate::fault::Fault;
use crate::frame;
use crate::log_store::{LogStore, LogStoreError};
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

/// Why a checkpoint failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] LogStoreError),
}

impl CheckpointError {
    /// Whether a later checkpoint may succeed: nothing was lost.
    pub fn is_retryable(&self) -> bool {
        match self {
            CheckpointError::Store(error) => error.is_retryable(),
            CheckpointError::Log(error) => error.shortage().is_some(),
        }
    }
}

impl From<CheckpointError> for EngineError {
    fn from(error: CheckpointError) -> EngineError {
        let shortage = match &error {
            CheckpointError::Store(error) => error.shortage(),
            CheckpointError::Log(error) => error.shortage(),
        };
        let failed = || EngineError::Failed(error.to_string().into());
        shortage.map_or_else(failed, EngineError::from)
    }
}

/// What the parts of a node share.
pub(crate) struct Core {
    pub id: NodeId,
    /// Drawn at every start, so that the node does not take proposals from before a restart for its own.
    pub incarnation: u64,
    pub disk: SharedDisk,
    pub dir: PathBuf,
    pub options: Options,
    pub manifest: Manifest,
    pub log: LogStore,
    pub rows: Mutex<Rows>,
    /// The last entry that the rows include, for reads that wait.
    pub applied: Arc<Applied>,
    /// Notified when something arrives that may have to be proposed.
    pub wake: Arc<Notify>,
    /// Notified when requests were answered.
    pub settled: Notify,
    /// What callers of this node's engine see.
    pub status: Arc<Status>,
    pub fault: Option<Fault>,
}

/// The rows of a node, and which entries they include.
pub(crate) struct Rows {
    pub replica: Replica,
    pub applied: Option<LogId>,
    pub membership: StoredMembership,
    /// Who stamped the last entry. After a start, or for rows from another node, only the leader that wrote the last
    /// included entry is known: it is the same or a later one.
    pub stamped_by: Leader,
    /// The last entry that the checkpoints include, and the members at that point.
    pub checkpoint: Checkpoint,
    /// The last entry that the previous checkpoints included.
    pub previous: u64,
    pub snapshots: u64,
}

/// A checkpoint of all shards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkpoint {
    pub at: Option<LogId>,
    pub membership: StoredMembership,
}

impl Rows {
    /// Who stamped the last entry, and with what time.
    pub fn last_stamp(&self) -> Stamp {
        Stamp { leader: self.stamped_by, moment: self.replica.now() }
    }
}

impl Core {
    /// Opens a member's directory: finishes an interrupted installation, then opens log and stores.
    pub fn open(
        incarnation: u64,
        (disk, dir): (SharedDisk, &Path),
        options: Options,
        fault: Option<Fault>,
    ) -> Result<Arc<Core>, StartError> {
        let manifest = recover::manifest_of_member(&*disk, dir, &options)?;
        let log = LogStore::open(&disk, dir, options.log(), fault)?;
        install::finish(&*disk, dir, manifest, |note| settle(&log, dir, note))?;
        let shards = recover::open_shards(&disk, dir, &options, manifest)?;
        let wake = Arc::new(Notify::new());
        let applied = start(&log, &shards, fault)?;
        let index = applied.map_or(0, |id| id.index);
        let replica = Replica::new(shards, index, &options, &wake);
        let status = Arc::clone(replica.status());
        let membership = membership_at(applied, log.membership());
        let checkpoint = Checkpoint { at: applied, membership: membership.clone() };
        let stamped_by = writer(applied);
        let rows = Rows {
            replica,
            applied,
            membership,
            stamped_by,
            checkpoint,
            previous: 0,
            snapshots: 0,
        };
        report_resumed(&options, &rows.replica);
        Ok(Arc::new(Core {
            id: log.node_id(),
            incarnation,
            disk,
            dir: dir.to_owned(),
            options,
            manifest,
            log,
            rows: Mutex::new(rows),
            applied: Arc::new(Applied::new(applied.map(|id| id.index))),
            wake,
            settled: Notify::new(),
            status,
            fault,
        }))
    }

    /// Whether a bug is planted.
    pub fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether so many rows are only in memory that a checkpoint is due.
    pub fn wants_checkpoint(&self) -> bool {
        let rows = self.rows.lock();
        let bytes = |shard: &Shard| shard.data().read().store.active_bytes();
        rows.replica.each().any(|shard| bytes(shard) >= self.options.memtable_bytes)
    }

    /// Checkpoints all shards at the same entry, then frees the log that nobody needs. False if that is not
    /// possible yet: after a crash, one shard may include entries that are not known to be committed.
    pub fn checkpoint(&self) -> Result<bool, CheckpointError> {
        let mut guard = self.rows.lock();
        let rows = &mut *guard;
        let Some(applied) = rows.applied else { return Ok(false) };
        let ahead = |shard: &Shard| shard.data().read().store.position() > applied.index;
        if rows.replica.each().any(ahead) {
            return Ok(false);
        }
        let mut position = applied.index;
        if self.has(Fault::CheckpointAhead) {
            position = self.log.last_log_id().map_or(position, |last| last.index);
        }
        for number in ShardId::all(rows.replica.shards()) {
            if self.has(Fault::CheckpointApart) && number != ShardId(0) {
                continue;
            }
            let Some(shard) = rows.replica.shard_mut(number) else { continue };
            if let Some(job) = shard.freeze(FrameIndex(position)) {
                shard.flushed(&mut job.run())?;
            }
            // Each step is bounded.
            while let Some(job) = { shard.data().write().store.maintain() } {
                shard.flushed(&mut job.run())?;
            }
        }
        rows.previous = rows.checkpoint.at.map_or(0, |at| at.index);
        rows.checkpoint = Checkpoint { at: Some(applied), membership: rows.membership.clone() };
        let previous = rows.previous;
        if self.has(Fault::LateMembership) {
            self.log.save_membership(&rows.membership)?;
        }
        drop(guard);
        self.log.release(previous)?;
        Ok(true)
    }

    /// Checkpoints all shards if somebody waits for it.
    pub fn checkpoint_if_wanted(&self) {
        let waits = self.rows.lock().replica.take_checkpoint_waits();
        if waits.is_empty() {
            return;
        }
        let outcome = match self.checkpoint() {
            Ok(true) => Ok(()),
            Ok(false) => Err(EngineError::NoLeader),
            Err(error) => Err(error.into()),
        };
        for wait in waits {
            // Nobody waits any more if it is gone.
            let _ = wait.send(outcome.clone());
        }
    }

    /// Makes sure that entries of this many bytes fit into the log, and prepares a segment if need be. The log prepares
    /// one segment in advance, and further ones while it writes, so more than a frame is not asked for. A disk that
    /// fails, and is not just full, stops the node.
    pub fn make_room(&self, bytes: u64) -> Result<(), EngineError> {
        let bytes = bytes.min(self.options.log().max_frame_bytes());
        while !self.log.has_room(bytes) {
            match self.log.next_job().map(|job| job.run()) {
                Some(Ok(prepared)) => self.log.provide(prepared),
                // The log retries when it is asked the next time.
                Some(Err(error)) => {
                    let Some(shortage) = error.shortage() else {
                        let failed = EngineError::Failed(error.to_string().into());
                        self.status.fail(&failed);
                        self.wake.notify_one();
                        return Err(failed);
                    };
                    self.status.set_short(Some(&error.to_string()));
                    return Err(shortage.into());
                }
                None => return Err(EngineError::DiskFull),
            }
        }
        self.status.set_short(None);
        Ok(())
    }

    /// The metadata of a snapshot of the current checkpoints, with a new id.
    pub fn snapshot_meta(rows: &mut Rows) -> SnapshotMeta<NodeId, Member> {
        let Checkpoint { at, membership } = rows.checkpoint.clone();
        rows.snapshots += 1;
        let snapshot_id = format!("{}-{}", at.map_or(0, |at| at.index), rows.snapshots);
        SnapshotMeta { last_log_id: at, last_membership: membership, snapshot_id }
    }

    /// Replaces this node's rows by those that have arrived from another node.
    pub fn install(&self, meta: &SnapshotMeta<NodeId, Member>) -> Result<(), StartError> {
        let note = frame::encode_note(meta.last_log_id, &meta.last_membership);
        let note = note.map_err(LogStoreError::from)?;
        // Nobody may use the stores meanwhile.
        let mut rows = self.rows.lock();
        install::commit(&*self.disk, &self.dir, self.manifest, &note)?;
        install::finish(&*self.disk, &self.dir, self.manifest, |note| {
            settle(&self.log, &self.dir, note)
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
        let next = shard.data().read().state.meta().moves;
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

/// The members to report with the checkpoints. They are saved as soon as they are applied, so they may be newer than the
/// checkpoints. Openraft must not see them under a later log id than the rows have: a node that gets these rows would
/// find the entry that changed the members in its log once more. They are committed, so knowing them early does no harm.
fn membership_at(applied: Option<LogId>, noted: StoredMembership) -> StoredMembership {
    match *noted.log_id() > applied {
        true => StoredMembership::new(applied, noted.membership().clone()),
        false => noted,
    }
}

/// Makes log and members agree with rows that were installed. After a crash it is repeated.
fn settle(log: &LogStore, dir: &Path, note: &[u8]) -> Result<(), StartError> {
    let (at, membership) = frame::decode_note(note).map_err(|reason| {
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
fn start(
    log: &LogStore,
    shards: &[Shard],
    fault: Option<Fault>,
) -> Result<Option<LogId>, StartError> {
    let positions: Vec<u64> =
        shards.iter().map(|shard| shard.data().read().store.position()).collect();
    // A log that ends before what a store includes has lost entries that were acknowledged.
    for position in &positions {
        let reached = log.reached(*position);
        if fault != Some(Fault::AcceptLostTail) {
            reached?;
        }
    }
    let lowest = positions.into_iter().min().unwrap_or(0);
    // With the planted bug, openraft believes that the missing entries were purged.
    let missing = |_| log.last_log_id().map(|last| LogId::new(last.leader_id, lowest));
    Ok(log.reached(lowest).unwrap_or_else(missing))
}
