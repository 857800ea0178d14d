//! The store of one shard: two memtables over a file.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, Kv, KvError, KvRead, Table};
use codeq_disk::SharedDisk;

use crate::error::StoreError;
use crate::file::remove_leftover;
use crate::flush::{FileState, FlushJob, Flushed, Frozen, Work};
use crate::memtable::Memtable;
use crate::rewrite::{self, Rewrite, SnapshotJob};
use crate::scan;
use crate::scrub::{ScrubJob, ScrubPlace};
use crate::{Options, Owner};

/// The rows of one shard.
///
/// Writes reach memory only; what makes them durable is the caller's log, and now and then a checkpoint:
/// [`Store::freeze`] hands out a job, the job writes the rows into the file, and [`Store::flushed`] lets
/// go of them. Reads see every write at once, before, during and after that.
///
/// A scan steps over the tombstones of all rows that were deleted in its range since the last two
/// checkpoints. Whoever takes rows from the head of a range again and again should
/// remember where the head is.
pub struct Store {
    disk: SharedDisk,
    options: Options,
    active: Memtable,
    /// The rows of a checkpoint that is not in `state.view` yet.
    frozen: Option<Frozen>,
    state: FileState,
    rewrite: Option<Rewrite>,
    /// Whether a job has been handed out and not come back.
    busy: bool,
    /// Whether the disk had no room for the copy that gives a file of an older release its checksums: not
    /// tried again before the next start, for it would copy everything again and again.
    no_room: bool,
}

impl Store {
    /// Makes an empty store at `path`, which must not exist, and opens it.
    pub fn create(disk: SharedDisk, path: &Path, options: Options) -> Result<Store, StoreError> {
        if disk.exists(path).map_err(|error| StoreError::io(path, error))? {
            let exists = std::io::ErrorKind::AlreadyExists.into();
            return Err(StoreError::io(path, exists));
        }
        rewrite::create(&disk, path, &options)?;
        Self::open(disk, path, options)
    }

    /// Opens the store at `path` as of its last checkpoint. After a crash too this takes milliseconds,
    /// whatever the size of the file.
    ///
    /// The store does not lock its file: that no other process has it open is the caller's business.
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

    /// The log index that the file is complete up to: where replay starts.
    pub fn position(&self) -> u64 {
        self.state.checkpoint.position
    }

    /// About how much memory the rows take that were written since the last [`Store::freeze`].
    pub fn active_bytes(&self) -> usize {
        self.active.bytes()
    }

    /// About how much memory the rows take that a checkpoint is being made of.
    pub fn frozen_bytes(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.rows.bytes())
    }

    /// The bytes of the rows in the file, keys included.
    pub fn live_bytes(&self) -> u64 {
        self.state.checkpoint.live_bytes
    }

    /// About how many bytes the file takes on the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.state.file().paged.disk_bytes()
    }

    /// Starts a checkpoint: every row written so far is to become durable together with `position`, the
    /// log index that they are complete up to. Takes no time; the work is in the job.
    ///
    /// `None` while another job is out, or while an earlier checkpoint has failed and not been retried.
    pub fn freeze(&mut self, position: u64) -> Option<FlushJob> {
        if self.busy || self.frozen.is_some() {
            return None;
        }
        let rows = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(Frozen { rows, position });
        self.retry_flush()
    }

    /// The job of a checkpoint that has been started and has failed.
    pub fn retry_flush(&mut self) -> Option<FlushJob> {
        let frozen = self.frozen.clone()?;
        self.job(Work::Flush(frozen))
    }

    /// A bounded step of giving unused space back to the disk, if more than half of the file is unused
    /// (and more than [`Options::rewrite_slack`]), or of giving a file of an older release the checksums of
    /// this one, or if either has been begun. Call it at the start, after checkpoints and when idle, until
    /// there is nothing to do.
    ///
    /// A failed step costs nothing but the copy, which starts again from the beginning.
    pub fn maintain(&mut self) -> Option<FlushJob> {
        let due = (self.state.is_plain() && !self.no_room)
            || self.state.is_sparse(self.options.rewrite_slack);
        if self.rewrite.is_none() && !due {
            return None;
        }
        self.job(Work::Rewrite)
    }

    fn job(&mut self, work: Work) -> Option<FlushJob> {
        if self.busy {
            return None;
        }
        self.busy = true;
        Some(FlushJob {
            disk: Arc::clone(&self.disk),
            options: self.options.clone(),
            work,
            state: self.state.clone(),
            rewrite: self.rewrite.take(),
        })
    }

    /// Takes the outcome of a job back. On success the rows are read from the file from here on. On
    /// failure nothing has changed: reads go on from memory and from the last checkpoint, and an error
    /// that [`StoreError::is_retryable`] leaves the job to [`Store::retry_flush`].
    ///
    /// Swaps a few pointers; what has to be freed stays in `flushed`.
    pub fn flushed(&mut self, flushed: &mut Flushed) -> Result<(), StoreError> {
        self.busy = false;
        self.rewrite = flushed.rewrite.take();
        self.no_room |= matches!(flushed.outcome, Err(StoreError::Full { .. }));
        if flushed.flushed.is_some() {
            self.frozen = None;
        }
        // Also after a failure: the job may have opened the file again, and what it holds then is the
        // same checkpoint on a healthy handle.
        std::mem::swap(&mut self.state, &mut flushed.state);
        std::mem::replace(&mut flushed.outcome, Ok(()))
    }

    /// A job that copies the last checkpoint into a new store at `path` on `disk`, while this one goes
    /// on. Rows that are only in memory are not in it; the copy says which log index it ends at. `owner` is
    /// whose the copy is; none leaves it as it is.
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

    /// A job that verifies some rows of the last checkpoint, from a place on. Rows that are only in memory are
    /// not looked at.
    pub fn scrub(&self, place: ScrubPlace) -> ScrubJob {
        ScrubJob { view: Arc::clone(&self.state.view), place }
    }

    fn frozen_rows(&self) -> Option<&Memtable> {
        self.frozen.as_ref().map(|frozen| frozen.rows.as_ref())
    }
}

impl KvRead for Store {
    fn get(&self, table: Table, key: Key) -> Result<Option<Bytes>, KvError> {
        let in_memory = self
            .active
            .get(table, key)
            .or_else(|| self.frozen_rows().and_then(|rows| rows.get(table, key)));
        match in_memory {
            Some(slot) => Ok(slot.value().cloned()),
            None => self.state.view.get(table, key),
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
