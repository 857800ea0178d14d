//! Creates the log store of a new node, and recovers that of an existing one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use codeq_disk::SharedDisk;
use codeq_engine::layout;
use codeq_log::{
    FRAME_HEADER_BYTES, FrameIndex, Log, LogError, NewLog, Options, RECORD_HEADER_BYTES,
};
use openraft::Membership;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Files, Inner, JOURNAL, LogStore, LogStoreError, note_base};
use crate::fault::Fault;
use crate::journal::{Journal, RecordLocation};
use crate::journal_record::{self, Kind};
use crate::state_file::{State, StateFile};
use crate::types::{Member, NodeId, StoredMembership, Vote};

/// A node that has no log store yet.
#[derive(Debug, Clone)]
pub struct NewNode {
    /// Drawn when the cluster is made; all of its nodes have it.
    pub cluster_id: u64,
    /// Drawn for this directory.
    pub node_id: NodeId,
    /// Identifies the log, unless the directory already has one.
    pub log_id: u64,
    /// Where its first rows come from.
    pub start: Start,
}

/// Where the first rows of a node come from.
#[derive(Debug, Clone)]
pub enum Start {
    /// It founds a cluster, which begins with the rows it already has.
    Cluster {
        /// How the other nodes will reach it.
        member: Member,
        /// The highest position of its stores; 0 if they are empty.
        position: u64,
    },
    /// It joins a cluster and gets all rows from there.
    Joining,
}

impl LogStore {
    /// Turns the directory into that of a cluster's node. An interrupted call can be repeated.
    ///
    /// The directory may already have the log of a single node whose stores have reached the log's end. Then the
    /// journal begins after it.
    pub fn create(
        disk: &SharedDisk,
        dir: &Path,
        options: Options,
        new: NewNode,
    ) -> Result<LogStore, LogStoreError> {
        if StateFile::exists(&**disk, dir)? {
            return Err(LogStoreError::AlreadyExists(dir.to_owned()));
        }
        let log_dir = layout::log_dir(dir);
        let log = match Log::open(disk.clone(), &log_dir, options) {
            Err(LogError::NotFound { .. }) => {
                let first = NewLog { first_index: FrameIndex(1), log_id: new.log_id };
                Log::create(disk.clone(), &log_dir, options, first)?
            }
            opened => opened?,
        };
        let reached = match &new.start {
            Start::Cluster { position, .. } => *position,
            Start::Joining => 0,
        };
        if log.last_index().0 > reached {
            let last = log.last_index();
            let what = format!(
                "the log of {} ends at frame {last}, but its stores at {reached}",
                dir.display()
            );
            return Err(LogStoreError::Mixed(what));
        }
        let mut state = State {
            cluster_id: new.cluster_id,
            node_id: new.node_id,
            log_id: log.log_id(),
            first_frame: log.last_index().next().0,
            vote: None,
            purged: None,
            membership: StoredMembership::default(),
        };
        if let Start::Cluster { member, position } = new.start {
            // To openraft, index 0 would be an entry; to a store, position 0 means that there is no checkpoint yet.
            let start = journal_record::log_id(1, new.node_id, position.max(1));
            let members = Membership::new(
                vec![[new.node_id].into()],
                std::collections::BTreeMap::from([(new.node_id, member)]),
            );
            state.vote = Some(Vote::new(1, new.node_id));
            state.purged = Some(start);
            state.membership = StoredMembership::new(Some(start), members);
        }
        let state = StateFile::create(&**disk, dir, state)?;
        LogStore::recover(log, state, options, None)
    }

    /// Opens the log store of a directory. Reads the whole journal. `fault` is a bug to plant.
    pub fn open(
        disk: &SharedDisk,
        dir: &Path,
        options: Options,
        fault: Option<Fault>,
    ) -> Result<LogStore, LogStoreError> {
        let state = StateFile::open(&**disk, dir)?
            .ok_or_else(|| LogStoreError::NotFound(dir.to_owned()))?;
        let log = Log::open(disk.clone(), &layout::log_dir(dir), options)?;
        LogStore::recover(log, state, options, fault)
    }

    fn recover(
        log: Log,
        mut state: StateFile,
        options: Options,
        fault: Option<Fault>,
    ) -> Result<LogStore, LogStoreError> {
        let State { cluster_id, node_id, log_id, first_frame, purged, .. } = *state.state();
        let mixed = |what: String| Err(LogStoreError::Mixed(what));
        if log.log_id() != log_id {
            return mixed(format!("the log is {:016x}, not {log_id:016x}", log.log_id()));
        }
        let (first, end) = (log.first_index(), log.last_index().next());
        if first.0 > first_frame || end.0 < first_frame {
            let last = log.last_index();
            return mixed(format!(
                "the log has the frames {first} to {last}, but is needed from {first_frame} on"
            ));
        }
        let mut journal = Journal::new(purged);
        let (mut frame, mut offset) = (FrameIndex(0), 0);
        log.replay(FrameIndex(first_frame), |position, number, record| {
            if position.index != frame {
                (frame, offset) = (position.index, FRAME_HEADER_BYTES);
            }
            let start = offset + RECORD_HEADER_BYTES;
            offset = start + record.len() as u64;
            if number != JOURNAL {
                let what = format!("frame {frame} of the log has a record of shard {number}");
                return Err(LogStoreError::Mixed(what));
            }
            let header = journal_record::decode_header(record)?;
            let (offset, len) = (start as u32, record.len() as u32);
            match header.kind {
                Kind::Entry => {
                    journal
                        .on_entry(header.log_id, RecordLocation { frame: position, offset, len })?;
                }
                Kind::Truncate => journal.on_truncate(header.log_id.index)?,
                Kind::Jump => journal.on_jump(header.log_id)?,
                Kind::Committed => journal.on_committed(header.log_id),
            }
            Ok(())
        })?;
        journal.finish()?;
        let (base, first) = journal.start();
        note_base(&mut state, base, first, end)?;
        let reader = log.reader();
        let frame_bytes = options.max_frame_bytes();
        let files = Mutex::new(Files { log, state, frame_bytes, not_installed: None });
        let (installed, _) = watch::channel(());
        let journal = Mutex::new(journal);
        let (room, has_job) = (AtomicU64::new(0), AtomicBool::new(false));
        let inner = Inner { files, journal, room, has_job, installed, node_id, cluster_id, fault };
        let store = LogStore { inner: Arc::new(inner), reader };
        store.note_room(&store.inner.files.lock());
        Ok(store)
    }
}
