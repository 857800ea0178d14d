//! openraft's log on codeQ's own log, and its vote in the state file.
//!
//! A [`LogStore`] is a handle; clones are the same store. It promises:
//!
//! - When `append` has called back, its entries are durable, together with everything before them.
//! - Nothing durable is cut from the log. Truncations are written with the next frame, not before: openraft truncates
//!   what conflicts with a snapshot before the snapshot is durable, and some of it may have been acknowledged.
//! - A purge hides entries. They leave the disk only as far as [`LogStore::release`] allows, so a start may find more
//!   than openraft has seen before.
//! - A purge beyond the last entry comes from a snapshot that is being installed. Nothing is appended behind it until
//!   [`LogStore::installed`] was told that the snapshot is durable: an acknowledged entry would stand behind a hole.
//! - A start finds our own vote uncommitted, even if we were the leader: a leader that restarts has to win a new term.
//!
//! Writers hold the lock on the files; the lock on the journal is only ever held for a moment, so reading recent entries
//! waits for no sync.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codeq_disk::{SharedDisk, Shortage};
use codeq_engine::layout;
use codeq_log::{
    FRAME_HEADER_BYTES, FrameIndex, Log, LogError, LogReader, NewLog, Options, PrepareJob,
    Prepared, RECORD_HEADER_BYTES,
};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{AnyError, Membership, OptionalSend, RaftLogReader, StorageIOError};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::fault::Fault;
use crate::frame::{self, FrameError, Kind};
use crate::journal::{Contradiction, Found, Journal, Place};
use crate::state_file::{State, StateError, StateFile};
use crate::types::{Entry, LogId, Member, NodeId, StorageError, StoredMembership, Types, Vote};

/// The number of the journal's records in the log, where those of a single node have the number of their shard.
pub const JOURNAL: u16 = 0xFFFF;

/// The most that one message to another node carries, unless a single entry is longer.
pub const MESSAGE_BYTES: u64 = 1 << 20;

/// How long to wait before looking again whether another thread has prepared a segment.
const SEGMENT_PAUSE: Duration = Duration::from_millis(1);

/// How often to look before the log counts as full: 30 s, in which any disk writes a segment.
const SEGMENT_TRIES: u32 = 30_000;

/// A node that has no log store yet.
#[derive(Debug, Clone)]
pub struct NewNode {
    /// Drawn when the cluster is made; all of its nodes have it.
    pub cluster_id: u64,
    /// Drawn for this directory.
    pub node_id: NodeId,
    /// Identifies a new log. If the directory has a log already, that keeps its own.
    pub log_id: u64,
    /// How it begins.
    pub start: Start,
}

/// How a node begins.
#[derive(Debug, Clone)]
pub enum Start {
    /// It makes a new cluster, which begins with its rows.
    Cluster {
        /// How the other nodes will reach it.
        member: Member,
        /// The highest position of its stores; 0 if they are empty.
        position: u64,
    },
    /// It joins a cluster, and gets everything from there.
    Joining,
}

/// Why a log store could not be created, opened or written.
#[derive(Debug, thiserror::Error)]
pub enum LogStoreError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state file failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// A record cannot be encoded or decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The records, or openraft's requests, contradict each other.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// The directory is not that of a cluster's node.
    #[error("{} is not the directory of a node in a cluster", .0.display())]
    NotFound(std::path::PathBuf),
    /// The directory is one already.
    #[error("{} is the directory of a node in a cluster already", .0.display())]
    AlreadyExists(std::path::PathBuf),
    /// The files of the directory do not belong together, or some are missing.
    #[error("{0}; remove the node from its cluster and add a new one")]
    Mixed(String),
    /// The rows of another node could not be installed.
    #[error("the log cannot continue, because a snapshot was not installed: {0}")]
    NotInstalled(String),
}

impl LogStoreError {
    /// The shortage that caused the error, if the operation can be repeated later without loss.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            LogStoreError::Log(error) => error.shortage(),
            _ => None,
        }
    }
}

/// What writers share.
struct Files {
    log: Log,
    state: StateFile,
    /// The longest frame that fits into a segment.
    frame_bytes: u64,
    /// Why the installation failed that openraft relies on.
    not_installed: Option<String>,
}

struct Shared {
    files: Mutex<Files>,
    /// Changed only by who holds the files too.
    journal: Mutex<Journal>,
    /// Wakes those who wait for an installation.
    installed: watch::Sender<()>,
    node_id: NodeId,
    cluster_id: u64,
    /// A bug to plant.
    fault: Option<Fault>,
}

/// openraft's log and vote. Clones are the same store.
pub struct LogStore {
    shared: Arc<Shared>,
    reader: LogReader,
}

impl Clone for LogStore {
    fn clone(&self) -> Self {
        LogStore { shared: self.shared.clone(), reader: self.reader.clone() }
    }
}

impl Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let journal = self.shared.journal.lock();
        f.debug_struct("LogStore")
            .field("node_id", &self.shared.node_id)
            .field("purged", &journal.purged())
            .field("last", &journal.last())
            .finish_non_exhaustive()
    }
}

/// What kept a frame from being written.
enum Wait {
    /// A snapshot that is being installed.
    Installation,
    /// Another thread, which prepares a segment.
    Segment,
}

impl LogStore {
    /// Makes the directory that of a node in a cluster. An interrupted call can be repeated.
    ///
    /// If the directory has a log already, then that of a single node whose stores have reached its end: the journal
    /// begins behind it.
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
            // Index 0 would be an entry for openraft, and position 0 means nothing for a store.
            let start = frame::log_id(1, new.node_id, position.max(1));
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
            let header = frame::decode_header(record)?;
            let (offset, len) = (start as u32, record.len() as u32);
            match header.kind {
                Kind::Entry => {
                    journal.on_entry(header.log_id, Place { frame: position, offset, len })?;
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
        let shared = Shared { files, journal, installed, node_id, cluster_id, fault };
        Ok(LogStore { shared: Arc::new(shared), reader })
    }

    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.shared.node_id
    }

    /// Its cluster.
    pub fn cluster_id(&self) -> u64 {
        self.shared.cluster_id
    }

    /// The last entry, or what is purged if there is none.
    pub fn last_log_id(&self) -> Option<LogId> {
        self.shared.journal.lock().last()
    }

    /// The log id of an entry; `None` if the log does not have it.
    pub fn log_id(&self, index: u64) -> Option<LogId> {
        self.shared.journal.lock().id(index)
    }

    /// The entry that a store's checkpoint is at, `None` if it has none yet. Refuses if entries are missing between the
    /// two: either the log or the store is not the one it was.
    ///
    /// Without this, openraft would take a log that has lost its end for one that a snapshot has overtaken.
    pub fn reached(&self, position: u64) -> Result<Option<LogId>, LogStoreError> {
        let journal = self.shared.journal.lock();
        let (purged, last) = (journal.purged(), journal.last());
        if position == 0 {
            // Entries 0 and 1 of a cluster that began empty do not exist.
            match purged {
                None => return Ok(None),
                Some(purged) if purged.index <= 1 => return Ok(Some(purged)),
                Some(_) => {}
            }
        }
        let found = journal.id(position).map(Some);
        found.ok_or_else(|| {
            let text = |id: Option<LogId>| id.map_or("nothing".to_owned(), |id| id.to_string());
            LogStoreError::Mixed(format!(
                "a store is at entry {position}, but the log continues after {} and ends at {}",
                text(purged),
                text(last)
            ))
        })
    }

    /// The last membership that was saved.
    pub fn membership(&self) -> StoredMembership {
        self.shared.files.lock().state.state().membership.clone()
    }

    /// Makes an applied membership durable. Has to happen before any store checkpoints at or beyond its entry.
    pub fn save_membership(&self, membership: &StoredMembership) -> Result<(), LogStoreError> {
        let mut files = self.shared.files.lock();
        Ok(files.state.update(|state| state.membership = membership.clone())?)
    }

    /// A snapshot that ends at this entry is durable, whatever happens: the log continues after it. Does nothing if the
    /// log has come further already, so it can be repeated after a crash.
    pub fn installed(&self, log_id: LogId) -> Result<(), LogStoreError> {
        for _ in 0..SEGMENT_TRIES {
            if self.try_installed(log_id)? {
                self.shared.installed.send_replace(());
                return Ok(());
            }
            // Not on the runtime's clock: whoever installs a snapshot blocks anyway.
            std::thread::sleep(SEGMENT_PAUSE);
        }
        Err(LogError::NoSegment { needed: frame::HEADER_BYTES as u64 }.into())
    }

    fn try_installed(&self, log_id: LogId) -> Result<bool, LogStoreError> {
        let mut files = self.shared.files.lock();
        let (base, cut) = {
            let journal = self.shared.journal.lock();
            (journal.start().0, journal.cut())
        };
        if base.is_none_or(|base| base.index < log_id.index) {
            let marks = [(Kind::Truncate, cut), (Kind::Jump, Some(log_id))];
            let records: Vec<Vec<u8>> = marks
                .into_iter()
                .filter_map(|(kind, of)| of.map(|of| frame::encode_mark(kind, of)))
                .collect();
            if files.write(&records)?.is_none() {
                return Ok(false);
            }
            files.log.sync()?;
            let mut journal = self.shared.journal.lock();
            journal.cut_written()?;
            journal.jumped(log_id)?;
        } else {
            self.shared.journal.lock().jumped(log_id)?;
        }
        let end = files.log.synced_index().next();
        let (base, first) = self.shared.journal.lock().start();
        note_base(&mut files.state, base, first, end)?;
        Ok(true)
    }

    /// The snapshot that openraft has purged for cannot be installed. Whoever waits for it gets an error.
    pub fn not_installed(&self, reason: &str) {
        self.shared.files.lock().not_installed = Some(reason.to_owned());
        self.shared.installed.send_replace(());
    }

    /// Frees the disk of entries that openraft has purged, as far as the owner allows: up to and including `bound`, which
    /// is the lowest position of all stores' checkpoints before the last. Their segments go with the next job.
    pub fn release(&self, bound: u64) -> Result<(), LogStoreError> {
        let mut files = self.shared.files.lock();
        let files = &mut *files;
        let end = files.log.synced_index().next();
        let target = self.shared.journal.lock().releasable(bound);
        if let Some((target, first)) = target {
            // Before anything goes.
            note_base(&mut files.state, Some(target), first, end)?;
            self.shared.journal.lock().release(target);
        }
        let first = FrameIndex(files.state.state().first_frame);
        files.log.purge(first.previous());
        Ok(())
    }

    /// The highest index such that the entries after it have at least this many bytes; `None` if all together have fewer.
    pub fn index_keeping(&self, bytes: u64) -> Option<u64> {
        self.shared.journal.lock().index_keeping(bytes)
    }

    /// Whether entries of this many bytes can be appended for certain before a segment has to be prepared.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.shared.files.lock().log.room() >= bytes
    }

    /// The next job for the log's directory, if there is one and none is in progress; see [`Log::next_job`]. Run it on a
    /// thread of its own and pass the result to [`LogStore::provide`]. If nobody does, an append does it when it has to.
    pub fn next_job(&self) -> Option<PrepareJob> {
        self.shared.files.lock().log.next_job()
    }

    /// Adds the segment that a job has prepared.
    pub fn provide(&self, prepared: Prepared) {
        self.shared.files.lock().log.provide(prepared);
    }

    /// Writes the next frame with as many of the entries as fit. Returns how many.
    fn write_frame(&self, entries: &[Entry]) -> Result<Result<usize, Wait>, LogStoreError> {
        let mut files = self.shared.files.lock();
        let (cut, news) = {
            let mut journal = self.shared.journal.lock();
            if let (Some(held), Some(_)) = (journal.held(), entries.first()) {
                return match &files.not_installed {
                    Some(reason) => Err(LogStoreError::NotInstalled(format!("{held}: {reason}"))),
                    None => Ok(Err(Wait::Installation)),
                };
            }
            check(&journal, entries)?;
            if let Some(first) = entries.first()
                && journal.last().is_some_and(|last| first.log_id.index <= last.index)
            {
                journal.truncate(first.log_id)?;
            }
            (journal.cut(), journal.committed_news())
        };
        let mut records = Vec::new();
        for (kind, log_id) in [(Kind::Truncate, cut), (Kind::Committed, news)] {
            records.extend(log_id.map(|log_id| frame::encode_mark(kind, log_id)));
        }
        let marks = records.len();
        let with_header = |record: &Vec<u8>| RECORD_HEADER_BYTES + record.len() as u64;
        let mut len = FRAME_HEADER_BYTES + records.iter().map(with_header).sum::<u64>();
        for entry in entries {
            let record = frame::encode_entry(entry)?;
            len += with_header(&record);
            if len > files.frame_bytes && records.len() > marks {
                break;
            }
            records.push(record);
        }
        let Some(position) = files.write(&records)? else { return Ok(Err(Wait::Segment)) };

        let mut journal = self.shared.journal.lock();
        journal.cut_written()?;
        news.into_iter().for_each(|news| journal.on_committed(news));
        let mut offset = FRAME_HEADER_BYTES;
        for (number, record) in records.iter().enumerate() {
            let start = offset + RECORD_HEADER_BYTES;
            offset = start + record.len() as u64;
            if let Some(entry) = number.checked_sub(marks).and_then(|at| entries.get(at)) {
                let (offset, len) = (start as u32, record.len() as u32);
                journal.appended(entry.clone(), Place { frame: position, offset, len })?;
            }
        }
        Ok(Ok(records.len() - marks))
    }

    /// Reads entries of a range, as many as `bytes` allow but at least one.
    fn read(&mut self, from: u64, to: u64, bytes: u64) -> Result<Vec<Entry>, LogStoreError> {
        // Entries may be purged and leave the disk while they are read. Then the next attempt does not look for them.
        for _ in 0..READ_TRIES {
            let found = self.shared.journal.lock().find(from, to, bytes);
            match self.load(found) {
                Err(LogStoreError::Log(LogError::Gone { .. })) => {}
                read => return read,
            }
        }
        Err(Contradiction::new("entries leave the log as fast as they are read").into())
    }

    fn load(&mut self, found: Vec<Found>) -> Result<Vec<Entry>, LogStoreError> {
        let mut entries = Vec::with_capacity(found.len());
        // Entries often share a frame.
        let mut last: Option<(FrameIndex, Bytes)> = None;
        for each in found {
            let (log_id, place) = match each {
                Found::Recent(entry) => {
                    entries.push(entry);
                    continue;
                }
                Found::Stored(log_id, place) => (log_id, place),
            };
            let frame = match last.take() {
                Some((index, frame)) if index == place.frame.index => frame,
                _ => Bytes::from(self.reader.read(place.frame)?.into_bytes()),
            };
            let (start, end) = (place.offset as usize, place.offset as usize + place.len as usize);
            if end > frame.len() {
                return Err(Contradiction::new("an entry is longer than its frame").into());
            }
            let entry = frame::decode_entry(&frame.slice(start..end))?;
            if entry.log_id != log_id {
                let what = format!("entry {} is where {log_id} should be", entry.log_id);
                return Err(Contradiction::new(what).into());
            }
            entries.push(entry);
            last = Some((place.frame.index, frame));
        }
        Ok(entries)
    }
}

/// How often to read entries that leave the log meanwhile.
const READ_TRIES: u32 = 100;

impl Files {
    /// Writes a frame; `None` if another thread has to prepare a segment first.
    fn write(&mut self, records: &[Vec<u8>]) -> Result<Option<codeq_log::Position>, LogStoreError> {
        let records: Vec<(u16, &[u8])> =
            records.iter().map(|record| (JOURNAL, record.as_slice())).collect();
        loop {
            match self.log.append(&records) {
                Err(LogError::NoSegment { .. }) => {}
                appended => return Ok(Some(appended?)),
            }
            match self.log.next_job() {
                Some(job) => self.log.provide(job.run()?),
                None => return Ok(None),
            }
        }
    }
}

/// Notes in the state file that the log is purged up to `base`, and that the frame of the next entry, if there is one, is
/// the first that is needed. `end` is the frame after the last durable one.
fn note_base(
    state: &mut StateFile,
    base: Option<LogId>,
    first: Option<FrameIndex>,
    end: FrameIndex,
) -> Result<(), StateError> {
    if base == state.state().purged {
        return Ok(());
    }
    let first = first.map_or(end, |first| first.min(end));
    state.update(|state| (state.purged, state.first_frame) = (base, first.0))
}

/// Refuses entries that do not continue the log.
fn check(journal: &Journal, entries: &[Entry]) -> Result<(), Contradiction> {
    let gap = |before: LogId, entry: LogId| {
        Contradiction::new(format!("openraft appends {entry} after {before}"))
    };
    if let (Some(last), Some(first)) = (journal.last(), entries.first())
        && first.log_id.index > last.index.saturating_add(1)
    {
        return Err(gap(last, first.log_id));
    }
    for (before, entry) in entries.iter().zip(entries.iter().skip(1)) {
        if before.log_id.index.checked_add(1) != Some(entry.log_id.index) {
            return Err(gap(before.log_id, entry.log_id));
        }
    }
    Ok(())
}

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
        let journal = self.shared.journal.lock();
        Ok(LogState { last_purged_log_id: journal.purged(), last_log_id: journal.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let mut files = self.shared.files.lock();
        let saved = files.state.update(|state| state.vote = Some(*vote));
        saved.map_err(|error| storage(StorageIOError::write_vote)(error.into()))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let mut vote = self.shared.files.lock().state.state().vote;
        if let Some(vote) = &mut vote
            && vote.leader_id.node_id == self.shared.node_id
            && self.shared.fault != Some(Fault::KeepCommittedVote)
        {
            vote.committed = false;
        }
        Ok(vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let _files = self.shared.files.lock();
        self.shared.journal.lock().commit(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.shared.journal.lock().committed())
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
            // From before the look, so that no change is missed.
            let mut installed = self.shared.installed.subscribe();
            match self.write_frame(rest).map_err(failed())? {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // The sender lives as long as this store.
                Err(Wait::Installation) => drop(installed.changed().await),
                Err(Wait::Segment) => Types::sleep(SEGMENT_PAUSE).await,
            }
        }
        self.shared.files.lock().log.sync().map_err(|error| failed()(error.into()))?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let _files = self.shared.files.lock();
        let truncated = self.shared.journal.lock().truncate(log_id);
        truncated.map_err(|error| storage(StorageIOError::write_logs)(error.into()))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let held = {
            let _files = self.shared.files.lock();
            let mut journal = self.shared.journal.lock();
            journal.purge(log_id);
            journal.held()
        };
        if held.is_some() && self.shared.fault == Some(Fault::PurgeBeforeInstall) {
            return self.installed(log_id).map_err(storage(StorageIOError::write_logs));
        }
        Ok(())
    }
}
