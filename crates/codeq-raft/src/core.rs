//! What the parts of a node share: its rows, its log, and what it knows of the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::id::ShardId;
use codeq_disk::SharedDisk;
use codeq_engine::install;
use codeq_engine::layout::Manifest;
use codeq_engine::recover;
use codeq_engine::replica::Replica;
use codeq_engine::shard::Shard;
use codeq_engine::{OpenError, Options};
use codeq_log::FrameIndex;
use codeq_store::StoreError;
use openraft::SnapshotMeta;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::fault::Fault;
use crate::frame;
use crate::log_store::{LogStore, LogStoreError};
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

/// What the parts of a node share.
pub(crate) struct Core {
    pub id: NodeId,
    /// Drawn at every start, so that proposals of an earlier one are not taken for own.
    pub incarnation: u64,
    pub disk: SharedDisk,
    pub dir: PathBuf,
    pub options: Options,
    pub manifest: Manifest,
    pub log: LogStore,
    pub rows: Mutex<Rows>,
    /// The last entry applied.
    pub applied: watch::Sender<Option<LogId>>,
    /// Something arrived that may have to be proposed.
    pub wake: Notify,
    pub fault: Option<Fault>,
}

/// The rows of a node, and where they stand.
pub(crate) struct Rows {
    pub replica: Replica,
    pub applied: Option<LogId>,
    pub membership: StoredMembership,
    /// Where the checkpoints stand, and who was a member then.
    pub checkpoint: Checkpoint,
    /// The checkpoint before.
    pub previous: u64,
    pub snapshots: u64,
}

/// A checkpoint of all shards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkpoint {
    pub at: Option<LogId>,
    pub membership: StoredMembership,
}

impl Core {
    /// Opens a member's directory: finishes an interrupted installation, then opens log and stores.
    pub fn open(
        incarnation: u64,
        (disk, dir): (SharedDisk, &Path),
        options: Options,
        fault: Option<Fault>,
    ) -> Result<Arc<Core>, StartError> {
        let manifest = Manifest::load(&*disk, dir)?.ok_or_else(|| {
            let reason = "it has no MANIFEST".to_owned();
            OpenError::Foreign { dir: dir.to_owned(), reason }
        })?;
        let log = LogStore::open(&disk, dir, options.log(), fault)?;
        install::finish(&*disk, dir, manifest, |note| settle(&log, dir, note))?;
        let shards = recover::open_shards(&disk, dir, &options, manifest)?;
        let (replica, applied) = start(&log, shards, fault)?;
        let membership = membership_at(applied, log.membership());
        let checkpoint = Checkpoint { at: applied, membership: membership.clone() };
        let rows = Rows { replica, applied, membership, checkpoint, previous: 0, snapshots: 0 };
        Ok(Arc::new(Core {
            id: log.node_id(),
            incarnation,
            disk,
            dir: dir.to_owned(),
            options,
            manifest,
            log,
            rows: Mutex::new(rows),
            applied: watch::Sender::new(applied),
            wake: Notify::new(),
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

    /// Checkpoints all shards at the same entry, then lets go of the log that nobody needs.
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        let mut guard = self.rows.lock();
        let rows = &mut *guard;
        let Some(applied) = rows.applied else { return Ok(()) };
        let ahead = |shard: &Shard| shard.data().read().store.position() > applied.index;
        if rows.replica.each().any(ahead) {
            // After a crash, one shard may include entries that are not known to be committed yet.
            return Ok(());
        }
        for number in ShardId::all(rows.replica.shards()) {
            let Some(shard) = rows.replica.shard_mut(number) else { continue };
            if let Some(job) = shard.freeze(FrameIndex(applied.index)) {
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
        drop(guard);
        Ok(self.log.release(previous)?)
    }

    /// Whether entries of this many bytes fit into the log, after preparing a segment if need be. The log prepares one
    /// segment in advance, and further ones while it writes, so more than a frame is not asked for.
    pub fn has_room(&self, bytes: u64) -> bool {
        let bytes = bytes.min(self.options.log().max_frame_bytes());
        while !self.log.has_room(bytes) {
            match self.log.next_job().map(|job| job.run()) {
                Some(Ok(prepared)) => self.log.provide(prepared),
                // The log retries when it is asked the next time.
                Some(Err(_)) | None => return false,
            }
        }
        true
    }

    /// What a snapshot of the current checkpoints is called.
    pub fn snapshot_meta(rows: &mut Rows) -> SnapshotMeta<NodeId, Member> {
        let Checkpoint { at, membership } = rows.checkpoint.clone();
        rows.snapshots += 1;
        let snapshot_id = format!("{}-{}", at.map_or(0, |at| at.index), rows.snapshots);
        SnapshotMeta { last_log_id: at, last_membership: membership, snapshot_id }
    }

    /// Makes rows that have arrived those of this node.
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
        rows.applied = applied;
        rows.membership = meta.last_membership.clone();
        rows.checkpoint = Checkpoint { at: applied, membership: meta.last_membership.clone() };
        rows.previous = 0;
        self.applied.send_replace(applied);
        Ok(())
    }
}

/// The members as of the checkpoints. They were noted when they were applied, which the checkpoints need not include yet.
/// Openraft must not see them under a later log id than the rows have: another node that gets these rows would find the
/// entry that changed the members in its log once more. They are committed, so it does no harm to know them early.
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

/// Where the rows of the shards stand: at the lowest of their checkpoints. A shard skips entries that it has already.
fn start(
    log: &LogStore,
    shards: Vec<Shard>,
    fault: Option<Fault>,
) -> Result<(Replica, Option<LogId>), StartError> {
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
    let applied = log.reached(lowest).unwrap_or_else(missing);
    Ok((Replica::new(shards, applied.map_or(0, |id| id.index)), applied))
}
