//! Copying a checkpoint into a new file: to give space back to the disk, and to take backups.
//!
//! The B-tree library reuses freed pages but hardly ever returns them, and its own compaction needs the
//! file for itself, without readers, for as long as it takes, and leaves a file that must be repaired if
//! it is interrupted. So live rows are copied to a new file, which then takes the old one's name. The
//! copy goes in bounded steps; a checkpoint that is written between two steps is applied to both files.
//! A crash at any moment leaves the old file, or the new one, complete under the store's name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeq_core::kv::{Key, Table};
use codeq_disk::SharedDisk;

use crate::error::StoreError;
use crate::file::{
    Checkpoint, Durability, StoreFile, View, definition, passing_name, publish, remove_leftover,
};
use crate::memtable::Memtable;
use crate::write::Writer;
use crate::{Options, Owner};

/// A new file writes in key order and is read by nobody: it needs hardly any cache.
const BUILD_CACHE: usize = 8 << 20;

/// A file that is being filled with the rows of another one.
pub(crate) struct Rewrite {
    file: StoreFile,
    /// The rows before this one have been copied; `None` when all have.
    next: Option<(Table, Key)>,
    live_bytes: u64,
    disk: SharedDisk,
    finished: bool,
}

impl Drop for Rewrite {
    fn drop(&mut self) {
        // A copy that nobody will finish must not keep its space, least of all on a full disk. If
        // this fails, the next start removes it.
        if !self.finished {
            let _ = self.file.paged.detach();
            let _ = self.disk.remove(&self.file.path);
        }
    }
}

impl Rewrite {
    /// Starts an empty file beside `path`, which will take its place.
    pub(crate) fn begin(
        disk: &SharedDisk,
        path: &Path,
        options: &Options,
    ) -> Result<Rewrite, StoreError> {
        remove_leftover(disk, path)?;
        let options =
            Options { cache_bytes: BUILD_CACHE.min(options.cache_bytes), ..options.clone() };
        let file = StoreFile::build(disk, &passing_name(path), &options)?;
        let rewrite = Rewrite {
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

    /// Brings the rows that have been copied already up to a newer checkpoint.
    pub(crate) fn apply(&mut self, rows: &Memtable) -> Result<(), StoreError> {
        let paged = Arc::clone(&self.file.paged);
        self.live_bytes = self.file.transact(Durability::None, |transaction| {
            let mut writer = Writer::new(transaction);
            writer.apply(rows, self.next, || paged.is_detached())?;
            Ok(writer.live_bytes(self.live_bytes))
        })?;
        Ok(())
    }

    /// Makes the copy durable under its passing name. `checkpoint` is what the file at `from` said of itself.
    pub(crate) fn finish(
        mut self,
        from: &Path,
        checkpoint: Checkpoint,
    ) -> Result<Checkpoint, StoreError> {
        // Rows that a damaged page hides must not be left out for good.
        if checkpoint.live_bytes != self.live_bytes {
            let (found, told) = (self.live_bytes, checkpoint.live_bytes);
            let reason = format!("the rows hold {found} bytes, the checkpoint counted {told}");
            return Err(StoreError::corrupt(from, reason));
        }
        self.file.transact(Durability::Checkpoint, |transaction| checkpoint.save(transaction))?;
        self.file.close()?;
        self.finished = true;
        Ok(checkpoint)
    }
}

/// Makes an empty store under its name, or nothing at all.
pub(crate) fn create(disk: &SharedDisk, path: &Path, options: &Options) -> Result<(), StoreError> {
    let empty = Checkpoint { owner: options.owner, ..Checkpoint::default() };
    Rewrite::begin(disk, path, options)?.finish(path, empty)?;
    publish(disk, path)
}

/// A copy of a checkpoint to make while the store goes on, in another thread.
///
/// It keeps the pages of its checkpoint from being reused, so the store's file grows by what is
/// checkpointed while the copy runs.
pub struct SnapshotJob {
    pub(crate) view: Arc<View>,
    pub(crate) checkpoint: Checkpoint,
    /// Whose the copy is.
    pub(crate) owner: Option<Owner>,
    pub(crate) disk: SharedDisk,
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
}

impl SnapshotJob {
    /// The log index that the rows are complete up to.
    pub fn position(&self) -> u64 {
        self.checkpoint.position
    }

    /// Makes the copy, durably, and returns the log index that it is complete up to. The target
    /// appears under its name only when it is whole; a file of that name is replaced.
    pub fn run(self) -> Result<u64, StoreError> {
        let position = self.position();
        self.run_at(position)
    }

    /// The same, for a log of its own that begins after `position`: the copies of several shards, each complete up to
    /// another index of the log that they come from, all go on from there.
    pub fn run_at(mut self, position: u64) -> Result<u64, StoreError> {
        self.checkpoint.position = position;
        let mut copy = Rewrite::begin(&self.disk, &self.path, &self.options)?;
        copy.step(&self.view, u64::MAX)?;
        let owner = self.owner.or(self.checkpoint.owner);
        copy.finish(&self.view.file().path, Checkpoint { owner, ..self.checkpoint })?;
        publish(&self.disk, &self.path)?;
        Ok(self.checkpoint.position)
    }
}
