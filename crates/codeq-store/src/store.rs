//! The store of one shard: two memtables over a file.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, Kv, KvError, KvRead, Table};
use codeq_disk::SharedDisk;

use crate::build::{self, SnapshotJob, StoreBuilder};
use crate::error::StoreError;
use crate::export::Export;
use crate::file::remove_leftover;
use crate::job::{FileState, FinishedJob, Frozen, StoreJob, Work};
use crate::memtable::Memtable;
use crate::scan;
use crate::scrub::{ScrubJob, ScrubPlace};
use crate::{Options, Owner};

/// The rows of one shard.
///
/// Writes only reach memory. The caller's log makes them durable, and from time to time a checkpoint does:
/// [`Store::freeze`] returns a job, the job writes the rows to the file, and [`Store::take_back`] releases them. Reads
/// see every write at once, before, during and after a checkpoint.
///
/// A scan visits the tombstones of all rows deleted in its range that no finished checkpoint has removed from the file
/// yet. Code that repeatedly takes rows from the head of a range should remember where the head is.
pub struct Store {
    disk: SharedDisk,
    options: Options,
    active: Memtable,
    /// Rows of a checkpoint that is not in `state.view` yet.
    frozen: Option<Frozen>,
    state: FileState,
    rewrite: Option<StoreBuilder>,
    /// Whether a job is in progress.
    busy: bool,
    /// The disk was full during some job, so the copy that adds checksums to a file of an older release is not made
    /// before the next start: retrying it would copy everything again and again.
    no_room: bool,
}

impl Store {
    /// Creates an empty store at `path`, which must not exist, and opens it.
    pub fn create(disk: SharedDisk, path: &Path, options: Options) -> Result<Store, StoreError> {
        if disk.exists(path).map_err(|error| StoreError::io(path, error))? {
            let exists = std::io::ErrorKind::AlreadyExists.into();
            return Err(StoreError::io(path, exists));
        }
        build::create(&disk, path, &options)?;
        Self::open(disk, path, options)
    }

    /// Opens the store at `path` as of its last checkpoint. This takes milliseconds whatever the size of the file, even
    /// after a crash.
    ///
    /// The store does not lock its file: the caller makes sure that no other process has it open.
    pub fn open(disk: SharedDisk, path: &Path, options: Options) -> Result<Store, StoreError> {
        remove_leftover(&disk, path)?;
        let state = FileState::open(&disk, path, &options)?;
        Ok(Store {
            disk,
            options,
            active: Memtable::default(),
            frozen: None,
            state,
            rewrite: None,
            busy: false,
            no_room: false,
        })
    }

    /// Log index up to which the file is complete: replay starts after it.
    pub fn position(&self) -> u64 {
        self.state.checkpoint.position
    }

    /// The write digest of the rows in the file; 0 if none is kept.
    pub fn digest(&self) -> u64 {
        self.state.checkpoint.digest
    }

    /// Approximate memory of the rows written since the last [`Store::freeze`].
    pub fn active_bytes(&self) -> usize {
        self.active.bytes()
    }

    /// Approximate memory of the rows being checkpointed.
    pub fn frozen_bytes(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.rows.bytes())
    }

    /// Bytes of the rows in the file, including keys.
    pub fn live_bytes(&self) -> u64 {
        self.state.checkpoint.live_bytes
    }

    /// Approximate disk space used by the file.
    pub fn disk_bytes(&self) -> u64 {
        self.state.file().paged.disk_bytes()
    }

    /// Starts a checkpoint: all rows written so far become durable together with `position`, the log index up to which
    /// they are complete. Returns at once; the job does the work.
    ///
    /// `None` while another job is in progress, or while a failed checkpoint has not been retried.
    pub fn freeze(&mut self, position: u64) -> Option<StoreJob> {
        self.freeze_with(position, 0)
    }

    /// Same as [`Store::freeze`], and keeps the write digest of the rows with them. 0 keeps none.
    pub fn freeze_with(&mut self, position: u64, digest: u64) -> Option<StoreJob> {
        if self.busy || self.frozen.is_some() {
            return None;
        }
        let rows = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(Frozen { rows, position, digest });
        self.retry_checkpoint()
    }

    /// The job of a checkpoint that failed and has to be repeated.
    pub fn retry_checkpoint(&mut self) -> Option<StoreJob> {
        let frozen = self.frozen.clone()?;
        self.job(Work::Checkpoint(frozen))
    }

    /// A bounded step of maintenance, if there is any: returning unused space to the disk if more than half of the
    /// file (and more than [`Options::rewrite_slack`]) is unused, or adding checksums to a file of an older release.
    /// Call it at the start, after checkpoints and when idle, until it returns `None`.
    ///
    /// A failed step only loses the copy, which starts over.
    pub fn maintain(&mut self) -> Option<StoreJob> {
        let due = (self.state.is_plain() && !self.no_room)
            || self.state.is_sparse(self.options.rewrite_slack);
        if self.rewrite.is_none() && !due {
            return None;
        }
        self.job(Work::Rewrite)
    }

    fn job(&mut self, work: Work) -> Option<StoreJob> {
        if self.busy {
            return None;
        }
        self.busy = true;
        Some(StoreJob {
            disk: Arc::clone(&self.disk),
            options: self.options.clone(),
            work,
            state: self.state.clone(),
            rewrite: self.rewrite.take(),
        })
    }

    /// Takes back a finished job. On success, the rows are read from the file from now on. On failure nothing has
    /// changed: reads continue from memory and the last checkpoint, and after a [retryable](StoreError::is_retryable)
    /// error [`Store::retry_checkpoint`] returns the job again.
    ///
    /// Only swaps a few pointers; memory to be freed stays in `finished`.
    pub fn take_back(&mut self, finished: &mut FinishedJob) -> Result<(), StoreError> {
        self.busy = false;
        self.rewrite = finished.rewrite.take();
        self.no_room |= matches!(finished.outcome, Err(StoreError::Full { .. }));
        if finished.flushed.is_some() {
            self.frozen = None;
        }
        // Also after a failure: the job may have reopened the file, which then has the same checkpoint on a working
        // handle.
        std::mem::swap(&mut self.state, &mut finished.state);
        std::mem::replace(&mut finished.outcome, Ok(()))
    }

    /// A job that copies the last checkpoint to a new store at `path` on `disk`, while this one stays in use. Rows
    /// that are only in memory are not copied; the copy says at which log index it ends. `owner` becomes the copy's
    /// owner; `None` keeps the current one.
    pub fn snapshot_to(&self, disk: SharedDisk, path: &Path, owner: Option<Owner>) -> SnapshotJob {
        SnapshotJob {
            view: Arc::clone(&self.state.view),
            checkpoint: self.state.checkpoint,
            owner,
            disk,
            path: path.to_owned(),
            options: self.options.clone(),
        }
    }

    /// The rows of the last checkpoint in chunks, for an [`crate::Import`] elsewhere. Rows that are only in memory are
    /// not exported.
    pub fn export(&self) -> Export {
        Export::new(Arc::clone(&self.state.view), self.state.checkpoint)
    }

    /// A job that verifies some rows of the last checkpoint, starting at `place`. Rows that are only in memory are not
    /// checked.
    pub fn scrub(&self, place: ScrubPlace) -> ScrubJob {
        ScrubJob { view: Arc::clone(&self.state.view), place }
    }

    fn frozen_rows(&self) -> Option<&Memtable> {
        self.frozen.as_ref().map(|frozen| frozen.rows.as_ref())
    }
}

impl KvRead for Store {
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError> {
        let in_memory = self
            .active
            .get(table, key)
            .or_else(|| self.frozen_rows().and_then(|rows| rows.get(table, key)));
        match in_memory {
            Some(slot) => Ok(slot.value().map(Cow::Borrowed)),
            None => Ok(self.state.view.get(table, key)?.map(Cow::Owned)),
        }
    }

    fn scan(
        &self,
        table: Table,
        from: Key,
        to: Key,
        direction: Direction,
        limit: usize,
        out: &mut Vec<(Key, Bytes)>,
    ) -> Result<(), KvError> {
        if from > to || limit == 0 {
            return Ok(());
        }
        let newer = self.active.range(table, from, to);
        let older = self.frozen_rows().map(|rows| rows.range(table, from, to)).into_iter();
        let rows = self.state.view.range(table, from, to)?;
        match direction {
            Direction::Forward => scan::merge(newer, older.flatten(), rows, direction, limit, out),
            Direction::Reverse => {
                let older = older.flat_map(Iterator::rev);
                scan::merge(newer.rev(), older, rows, direction, limit, out)
            }
        }
    }
}

impl Kv for Store {
    fn put(&mut self, table: Table, key: Key, value: Bytes) {
        self.active.put(table, key, value);
    }

    fn insert(&mut self, table: Table, key: Key, value: Bytes) {
        self.active.insert(table, key, value);
    }

    fn delete(&mut self, table: Table, key: Key) {
        self.active.delete(table, key);
    }
}
