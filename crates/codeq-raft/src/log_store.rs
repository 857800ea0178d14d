//! openraft's log, kept in codeQ's own log, and its vote, kept in the state file.
//!
//! A [`LogStore`] is a handle; clones are the same store. It promises:
//!
//! - When `append` has called back, its entries are durable, together with everything before them.
//! - Nothing durable is cut from the log. Truncations are written with the next frame, not before: openraft truncates
//!   what conflicts with a snapshot before the snapshot is durable, and some of it may have been acknowledged.
//! - A purge hides entries. They leave the disk only as far as [`LogStore::release`] allows, so after a restart openraft
//!   may see entries again that it had purged.
//! - A purge beyond the last entry comes from a snapshot that is being installed. Nothing is appended after it until
//!   [`LogStore::installed`] was told that the snapshot is durable: a crash would leave a gap before acknowledged entries.
//! - After a restart our own vote is uncommitted, even if we were the leader: a leader that restarts has to win a new
//!   term.
//!
//! Writers hold the lock on the files, even while they sync. The lock on the journal is only held briefly, so reading
//! recent entries never waits for a sync.
//!
//! `open.rs` creates and recovers a store, and `openraft_traits.rs` implements openraft's traits.

mod open;
mod openraft_traits;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use codeq_disk::Shortage;
use codeq_log::{
    FRAME_HEADER_BYTES, FrameIndex, Log, LogError, LogReader, PrepareJob, Prepared,
    RECORD_HEADER_BYTES,
};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::open::{NewNode, Start};

use crate::fault::Fault;
use crate::journal::{Contradiction, Found, Journal, RecordLocation};
use crate::journal_record::{self, Kind, RecordError};
use crate::state_file::{StateError, StateFile};
use crate::types::{Entry, LogId, NodeId, StoredMembership};

/// Tags the journal's records in the log. The records of a server that is not replicated are tagged with their shard.
pub const JOURNAL: u16 = 0xFFFF;

/// The most that one message to another node carries, unless a single entry is longer.
pub const MESSAGE_BYTES: u64 = 1 << 20;

/// Pause before checking again whether another thread has prepared a segment.
const SEGMENT_PAUSE: Duration = Duration::from_millis(1);

/// How many times to check before the log counts as full. In 30 s, any disk can write a segment.
const SEGMENT_TRIES: u32 = 30_000;

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
    Record(#[from] RecordError),
    /// The records, or openraft's requests, contradict each other.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// The directory does not belong to a cluster's node.
    #[error("{} is not the directory of a node in a cluster", .0.display())]
    NotFound(std::path::PathBuf),
    /// The directory already belongs to a cluster's node.
    #[error("{} is already the directory of a node in a cluster", .0.display())]
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

/// How many times to try a read whose entries leave the log meanwhile.
const READ_TRIES: u32 = 100;

/// The files that writers change.
struct Files {
    log: Log,
    state: StateFile,
    /// The longest frame that fits into a segment.
    frame_bytes: u64,
    /// Why the snapshot for which openraft has purged the log was not installed.
    not_installed: Option<String>,
}

struct Inner {
    files: Mutex<Files>,
    /// Change it only while holding the lock on `files`.
    journal: Mutex<Journal>,
    /// The log's room in bytes, and whether there is a job for its directory. Both are as of the last change, for callers
    /// that must not wait for a sync.
    room: AtomicU64,
    has_job: AtomicBool,
    /// Changes when an installation succeeds or fails.
    installed: watch::Sender<()>,
    node_id: NodeId,
    cluster_id: u64,
    /// A bug to plant.
    fault: Option<Fault>,
}

/// openraft's log and vote. Clones are the same store.
pub struct LogStore {
    inner: Arc<Inner>,
    reader: LogReader,
}

impl Clone for LogStore {
    fn clone(&self) -> Self {
        LogStore { inner: self.inner.clone(), reader: self.reader.clone() }
    }
}

impl Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let journal = self.inner.journal.lock();
        f.debug_struct("LogStore")
            .field("node_id", &self.inner.node_id)
            .field("purged", &journal.purged())
            .field("last", &journal.last())
            .finish_non_exhaustive()
    }
}

/// What has to happen before a frame can be written.
enum Wait {
    /// A snapshot has to be installed.
    Installation,
    /// Another thread has to prepare a segment.
    Segment,
}

impl LogStore {
    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.inner.node_id
    }

    /// This node's cluster.
    pub fn cluster_id(&self) -> u64 {
        self.inner.cluster_id
    }

    /// The last entry or, if there is none, the last purged one.
    pub fn last_log_id(&self) -> Option<LogId> {
        self.inner.journal.lock().last()
    }

    /// The log id of an entry; `None` if the log does not have it.
    pub fn log_id(&self, index: u64) -> Option<LogId> {
        self.inner.journal.lock().id(index)
    }

    /// What openraft has purged.
    pub fn purged_log_id(&self) -> Option<LogId> {
        self.inner.journal.lock().purged()
    }

    /// Whether a start would find this entry, or rows that include it, provided that everything written is durable.
    pub fn keeps(&self, log_id: LogId) -> bool {
        self.inner.journal.lock().keeps(log_id)
    }

    /// The entry that a store's checkpoint includes; `None` if there is no checkpoint yet. Fails if the log does not reach
    /// the checkpoint: then the log or the store was replaced.
    ///
    /// Without this check, openraft would take a log that has lost its end for one that a snapshot has replaced.
    pub fn entry_of_checkpoint(&self, position: u64) -> Result<Option<LogId>, LogStoreError> {
        let journal = self.inner.journal.lock();
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
        self.inner.files.lock().state.state().membership.clone()
    }

    /// Makes an applied membership durable. Call it before any store makes a checkpoint that includes its entry.
    pub fn save_membership(&self, membership: &StoredMembership) -> Result<(), LogStoreError> {
        let mut files = self.inner.files.lock();
        Ok(files.state.update(|state| state.membership = membership.clone())?)
    }

    /// Records that a snapshot that ends at this entry is durable: the log continues after it. Does nothing if the
    /// log has come further already, so it can be repeated after a crash.
    pub fn installed(&self, log_id: LogId) -> Result<(), LogStoreError> {
        for _ in 0..SEGMENT_TRIES {
            if self.try_installed(log_id)? {
                self.inner.installed.send_replace(());
                return Ok(());
            }
            // Blocks the thread: installing a snapshot blocks anyway.
            std::thread::sleep(SEGMENT_PAUSE);
        }
        Err(LogError::NoSegment { needed: journal_record::HEADER_BYTES as u64 }.into())
    }

    fn try_installed(&self, log_id: LogId) -> Result<bool, LogStoreError> {
        let mut files = self.inner.files.lock();
        let (base, cut) = {
            let journal = self.inner.journal.lock();
            (journal.start().0, journal.unwritten_cut())
        };
        if base.is_none_or(|base| base.index < log_id.index) {
            let marks = [(Kind::Truncate, cut), (Kind::Jump, Some(log_id))];
            let records: Vec<Vec<u8>> = marks
                .into_iter()
                .filter_map(|(kind, of)| of.map(|of| journal_record::encode_mark(kind, of)))
                .collect();
            let written = files.write(&records);
            self.note_room(&files);
            if written?.is_none() {
                return Ok(false);
            }
            files.log.sync()?;
            let mut journal = self.inner.journal.lock();
            journal.cut_written()?;
            journal.jumped(log_id)?;
        } else {
            self.inner.journal.lock().jumped(log_id)?;
        }
        let end = files.log.synced_index().next();
        let (base, first) = self.inner.journal.lock().start();
        note_base(&mut files.state, base, first, end)?;
        Ok(true)
    }

    /// Records that the snapshot for which openraft has purged the log cannot be installed. Waiting appends fail.
    pub fn not_installed(&self, reason: &str) {
        self.inner.files.lock().not_installed = Some(reason.to_owned());
        self.inner.installed.send_replace(());
    }

    /// Frees the disk space of entries that openraft has purged, up to and including `bound`. That must be the lowest
    /// position among the second-to-last checkpoints of all stores. The next job removes the segments.
    pub fn release(&self, bound: u64) -> Result<(), LogStoreError> {
        let mut files = self.inner.files.lock();
        let files = &mut *files;
        let end = files.log.synced_index().next();
        let target = self.inner.journal.lock().releasable(bound);
        if let Some((target, first)) = target {
            // Before anything is removed.
            note_base(&mut files.state, Some(target), first, end)?;
            self.inner.journal.lock().release(target);
        }
        let first = FrameIndex(files.state.state().first_frame);
        files.log.purge(first.previous());
        self.note_room(files);
        Ok(())
    }

    /// The highest index such that the entries after it have at least this many bytes; `None` if that takes all entries, or
    /// if all together have fewer.
    pub fn index_keeping(&self, bytes: u64) -> Option<u64> {
        self.inner.journal.lock().index_keeping(bytes)
    }

    /// Whether entries of this many bytes are certain to fit without another segment.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.room() >= bytes
    }

    /// Bytes that are certain to fit without another segment. Does not wait for a sync.
    pub fn room(&self) -> u64 {
        self.inner.room.load(Ordering::Acquire)
    }

    /// Whether [`LogStore::next_job`] may have a job. Does not wait for a sync.
    pub fn has_job(&self) -> bool {
        self.inner.has_job.load(Ordering::Acquire)
    }

    fn note_room(&self, files: &Files) {
        self.inner.room.store(files.log.room(), Ordering::Release);
        self.inner.has_job.store(files.log.has_job(), Ordering::Release);
    }

    /// The next job for the log's directory, if there is one and none is in progress; see [`Log::next_job`]. Run it on a
    /// separate thread and pass the result to [`LogStore::provide`]. An append that cannot go on without it runs it itself.
    pub fn next_job(&self) -> Option<PrepareJob> {
        self.inner.files.lock().log.next_job()
    }

    /// Adds the segment that a job has prepared.
    pub fn provide(&self, prepared: Prepared) {
        let mut files = self.inner.files.lock();
        files.log.provide(prepared);
        self.note_room(&files);
    }

    /// Writes the next frame with as many of the entries as fit. Returns how many.
    fn write_frame(&self, entries: &[Entry]) -> Result<Result<usize, Wait>, LogStoreError> {
        let mut files = self.inner.files.lock();
        let (cut, committed) = {
            let mut journal = self.inner.journal.lock();
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
            (journal.unwritten_cut(), journal.unwritten_committed())
        };
        let mut records = Vec::new();
        for (kind, log_id) in [(Kind::Truncate, cut), (Kind::Committed, committed)] {
            records.extend(log_id.map(|log_id| journal_record::encode_mark(kind, log_id)));
        }
        let marks = records.len();
        let with_header = |record: &Vec<u8>| RECORD_HEADER_BYTES + record.len() as u64;
        let mut len = FRAME_HEADER_BYTES + records.iter().map(with_header).sum::<u64>();
        for entry in entries {
            let record = journal_record::encode_entry(entry)?;
            len += with_header(&record);
            if len > files.frame_bytes && records.len() > marks {
                break;
            }
            records.push(record);
        }
        let written = files.write(&records);
        self.note_room(&files);
        let Some(position) = written? else { return Ok(Err(Wait::Segment)) };

        let mut journal = self.inner.journal.lock();
        journal.cut_written()?;
        committed.into_iter().for_each(|log_id| journal.on_committed(log_id));
        let mut offset = FRAME_HEADER_BYTES;
        for (number, record) in records.iter().enumerate() {
            let start = offset + RECORD_HEADER_BYTES;
            offset = start + record.len() as u64;
            if let Some(entry) = number.checked_sub(marks).and_then(|at| entries.get(at)) {
                let (offset, len) = (start as u32, record.len() as u32);
                journal.appended(entry.clone(), RecordLocation { frame: position, offset, len })?;
            }
        }
        Ok(Ok(records.len() - marks))
    }

    /// Reads entries of a range: at most `bytes`, but at least one.
    fn read(&mut self, from: u64, to: u64, bytes: u64) -> Result<Vec<Entry>, LogStoreError> {
        // Entries may be purged and leave the disk while they are read. Then the next attempt does not look for them.
        for _ in 0..READ_TRIES {
            let found = self.inner.journal.lock().find(from, to, bytes);
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
            let (log_id, location) = match each {
                Found::Recent(entry) => {
                    entries.push(entry);
                    continue;
                }
                Found::Stored(log_id, location) => (log_id, location),
            };
            let frame = match last.take() {
                Some((index, frame)) if index == location.frame.index => frame,
                _ => Bytes::from(self.reader.read(location.frame)?.into_bytes()),
            };
            let (start, end) =
                (location.offset as usize, location.offset as usize + location.len as usize);
            if end > frame.len() {
                return Err(Contradiction::new("an entry is longer than its frame").into());
            }
            let entry = journal_record::decode_entry(&frame.slice(start..end))?;
            if entry.log_id != log_id {
                let what = format!("entry {} is where {log_id} should be", entry.log_id);
                return Err(Contradiction::new(what).into());
            }
            entries.push(entry);
            last = Some((location.frame.index, frame));
        }
        Ok(entries)
    }
}

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

/// Records in the state file that the log is purged up to `base`, and which frame is the first that is still needed:
/// `first`, or `end` if there are no entries. `end` is the frame after the last durable one.
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
