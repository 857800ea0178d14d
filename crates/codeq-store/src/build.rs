//! Copies a checkpoint to a new file, to return space to the disk and for backups.
//!
//! The B-tree library reuses freed pages but hardly ever returns them. Its own compaction needs exclusive access
//! without readers for its whole duration, and leaves a file in need of repair if it is interrupted. So live rows are
//! copied to a new file, which then replaces the old one. The copy proceeds in bounded steps; a checkpoint written
//! between two steps is applied to both files. A crash at any moment leaves a complete file, old or new, under the
//! store's name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::kv::{Key, Table};
use codeq_disk::SharedDisk;

use crate::error::StoreError;
use crate::file::{
    CheckpointNumbers, Durability, StoreFile, View, check_owner, definition, publish,
    remove_leftover, unfinished_path,
};
use crate::memtable::Memtable;
use crate::write::Writer;
use crate::{Options, Owner};

/// A new file is written in key order and read by nobody, so it needs hardly any cache.
const BUILD_CACHE: usize = 8 << 20;

/// A file that is being filled with the rows of another.
pub(crate) struct StoreBuilder {
    file: StoreFile,
    /// Rows before this one are copied; `None` once all are.
    next: Option<(Table, Key)>,
    live_bytes: u64,
    disk: SharedDisk,
    finished: bool,
}

impl Drop for StoreBuilder {
    fn drop(&mut self) {
        // An abandoned copy must not keep its space, least of all on a full disk. If this fails, the next start removes
        // it.
        if !self.finished {
            let _ = self.file.paged.detach();
            let _ = self.disk.remove(&self.file.path);
        }
    }
}

impl StoreBuilder {
    /// Creates an empty file under a temporary name next to `path`, the name that it will get.
    pub(crate) fn begin(
        disk: &SharedDisk,
        path: &Path,
        options: &Options,
    ) -> Result<StoreBuilder, StoreError> {
        remove_leftover(disk, path)?;
        let options =
            Options { cache_bytes: BUILD_CACHE.min(options.cache_bytes), ..options.clone() };
        let file = StoreFile::build(disk, &unfinished_path(path), &options)?;
        let rewrite = StoreBuilder {
            file,
            next: Table::ALL.first().map(|table| (*table, 0)),
            live_bytes: 0,
            disk: Arc::clone(disk),
            finished: false,
        };
        rewrite.file.transact(Durability::None, |transaction| {
            for table in Table::ALL {
                transaction.open_table(definition(table))?;
            }
            Ok(())
        })?;
        Ok(rewrite)
    }

    /// Whether every row has been copied.
    pub(crate) fn is_complete(&self) -> bool {
        self.next.is_none()
    }

    /// Copies about `budget` bytes of rows. `view` must be the newest checkpoint.
    pub(crate) fn step(&mut self, view: &View, budget: u64) -> Result<(), StoreError> {
        let Some((first, mut from)) = self.next else {
            return Ok(());
        };
        let (next, live_bytes) = self.file.transact(Durability::None, |transaction| {
            let mut writer = Writer::new(transaction);
            let mut left = budget;
            for table in Table::ALL.into_iter().filter(|table| *table >= first) {
                if let Some(key) = writer.copy(view, table, from, left)? {
                    return Ok((Some((table, key)), writer.live_bytes(self.live_bytes)));
                }
                left = budget.saturating_sub(writer.live_bytes(0));
                from = 0;
            }
            Ok((None, writer.live_bytes(self.live_bytes)))
        })?;
        self.next = next;
        self.live_bytes = live_bytes;
        Ok(())
    }

    /// Applies a newer checkpoint to the rows copied so far.
    pub(crate) fn apply(&mut self, rows: &Memtable) -> Result<(), StoreError> {
        let paged = Arc::clone(&self.file.paged);
        self.live_bytes = self.file.transact(Durability::None, |transaction| {
            let mut writer = Writer::new(transaction);
            writer.apply(rows, self.next, || paged.is_detached())?;
            Ok(writer.live_bytes(self.live_bytes))
        })?;
        Ok(())
    }

    /// Adds rows that come from elsewhere. Not to be mixed with [`StoreBuilder::step`].
    pub(crate) fn add(&mut self, rows: &Memtable) -> Result<(), StoreError> {
        self.next = None;
        self.apply(rows)
    }

    /// Makes the copy durable under its temporary name. `checkpoint` has the numbers of the copied checkpoint; if the rows
    /// do not match them, the error names the file at `from`.
    pub(crate) fn finish(
        mut self,
        from: &Path,
        checkpoint: CheckpointNumbers,
    ) -> Result<CheckpointNumbers, StoreError> {
        // Rows hidden by a damaged page must not get lost for good.
        if checkpoint.live_bytes != self.live_bytes {
            let (found, counted) = (self.live_bytes, checkpoint.live_bytes);
            let reason =
                format!("the rows hold {found} bytes, but the checkpoint counted {counted}");
            return Err(StoreError::corrupt(from, reason));
        }
        self.file.transact(Durability::Checkpoint, |transaction| checkpoint.save(transaction))?;
        self.file.close()?;
        self.finished = true;
        Ok(checkpoint)
    }
}

/// Creates an empty store at `path`, or nothing at all.
pub(crate) fn create(disk: &SharedDisk, path: &Path, options: &Options) -> Result<(), StoreError> {
    let empty = CheckpointNumbers { owner: options.owner, ..CheckpointNumbers::default() };
    StoreBuilder::begin(disk, path, options)?.finish(path, empty)?;
    publish(disk, path)
}

/// Copies a checkpoint on another thread, while the store stays in use.
///
/// The pages of its checkpoint cannot be reused meanwhile, so the store's file grows by whatever is checkpointed while
/// the copy runs.
pub struct SnapshotJob {
    pub(crate) view: Arc<View>,
    pub(crate) checkpoint: CheckpointNumbers,
    /// Owner of the copy.
    pub(crate) owner: Option<Owner>,
    pub(crate) disk: SharedDisk,
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
}

impl SnapshotJob {
    /// A job that copies a store, whose file is only read, to a new one. Each is given as its disk, its path and its
    /// owner.
    pub fn between(
        (disk, path, found): (&SharedDisk, &Path, Owner),
        (to_disk, to, owner): (&SharedDisk, &Path, Owner),
    ) -> Result<SnapshotJob, StoreError> {
        let options = Options { owner: Some(found), ..Options::default() };
        let file = StoreFile::open_unchanged(disk, path, &options)?;
        let checkpoint = check_owner(path, file.checkpoint()?, options.owner)?;
        Ok(SnapshotJob {
            view: View::newest(&Arc::new(file))?,
            checkpoint,
            owner: Some(owner),
            disk: Arc::clone(to_disk),
            path: to.to_owned(),
            options,
        })
    }

    /// Log index up to which the rows are complete.
    pub fn position(&self) -> u64 {
        self.checkpoint.position
    }

    /// Makes the copy durable and returns the log index up to which it is complete. The target gets its name only once
    /// it is complete; an existing file of that name is replaced.
    pub fn run(self) -> Result<u64, StoreError> {
        let position = self.position();
        self.run_at(position)
    }

    /// Same as [`SnapshotJob::run`], but for a new log that begins after `position`: copies of several shards,
    /// complete up to different indices of their old log, then all continue from there.
    pub fn run_at(mut self, position: u64) -> Result<u64, StoreError> {
        self.checkpoint.position = position;
        let mut copy = StoreBuilder::begin(&self.disk, &self.path, &self.options)?;
        copy.step(&self.view, u64::MAX)?;
        let owner = self.owner.or(self.checkpoint.owner);
        copy.finish(&self.view.file().path, CheckpointNumbers { owner, ..self.checkpoint })?;
        publish(&self.disk, &self.path)?;
        Ok(self.checkpoint.position)
    }
}
