//! Work on the store's file, done off the commit path: a checkpoint, or a step of maintenance.
//!
//! A job owns everything it needs, so it can run on another thread, or inline in the simulator. Its outcome goes back
//! to the store that created it.

use std::sync::Arc;

use codeq_disk::SharedDisk;

use crate::Options;
use crate::build::StoreBuilder;
use crate::error::StoreError;
use crate::file::{CheckpointNumbers, Durability, StoreFile, View, publish};
use crate::memtable::Memtable;
use crate::write::Writer;

/// Rows that no longer change and wait for their checkpoint.
#[derive(Clone)]
pub(crate) struct Frozen {
    pub(crate) rows: Arc<Memtable>,
    pub(crate) position: u64,
    pub(crate) digest: u64,
}

/// The kind of job.
pub(crate) enum Work {
    /// Write frozen rows to the file.
    Checkpoint(Frozen),
    /// Advance the copy into a smaller file by one step.
    Rewrite,
}

/// A unit of work on the store's file; see [`crate::Store::freeze`].
pub struct StoreJob {
    pub(crate) disk: SharedDisk,
    pub(crate) options: Options,
    pub(crate) work: Work,
    pub(crate) state: FileState,
    pub(crate) rewrite: Option<StoreBuilder>,
}

/// The last checkpoint of the file.
#[derive(Clone)]
pub(crate) struct FileState {
    pub(crate) view: Arc<View>,
    pub(crate) checkpoint: CheckpointNumbers,
    /// How many bytes on disk the last rewrite needed per 1000 bytes of rows. Rows whose size is just above a power of
    /// two take almost twice their size in any file; without this number, they would be rewritten for ever.
    pub(crate) packing: u64,
}

impl FileState {
    /// Opens the store under `path` and reads its checkpoint.
    pub(crate) fn open(
        disk: &SharedDisk,
        path: &std::path::Path,
        options: &Options,
    ) -> Result<FileState, StoreError> {
        let (file, checkpoint) = StoreFile::open(disk, path, options)?;
        let file = Arc::new(file);
        Ok(FileState { view: View::newest(&file)?, checkpoint, packing: 1000 })
    }

    /// The file that holds this checkpoint and receives the next one.
    pub(crate) fn file(&self) -> &Arc<StoreFile> {
        self.view.file()
    }

    /// Whether an older release wrote the file, so that a rewrite would add checksums.
    pub(crate) fn is_plain(&self) -> bool {
        self.file().paged.is_plain()
    }

    /// Whether more than half of the file, and more than `slack` bytes, is unused.
    pub(crate) fn is_sparse(&self, slack: u64) -> bool {
        let used = self.file().paged.disk_bytes();
        let packed = self.checkpoint.live_bytes / 1000 * self.packing.max(1000);
        let free = used.saturating_sub(packed);
        free > slack && free > used / 2
    }
}

/// The outcome of a [`StoreJob`].
///
/// After [`crate::Store::take_back`] has taken what it needs, this holds the old rows and the old view. Freeing
/// hundreds of thousands of rows takes milliseconds, so drop it off the commit path.
pub struct FinishedJob {
    pub(crate) outcome: Result<(), StoreError>,
    pub(crate) state: FileState,
    pub(crate) rewrite: Option<StoreBuilder>,
    pub(crate) is_checkpoint: bool,
    /// The rows that are now in the file.
    pub(crate) flushed: Option<Frozen>,
}

impl FinishedJob {
    /// Whether the job succeeded.
    pub fn succeeded(&self) -> bool {
        self.outcome.is_ok()
    }

    /// Whether the job was a checkpoint, not a step of maintenance.
    pub fn is_checkpoint(&self) -> bool {
        self.is_checkpoint
    }
}

impl StoreJob {
    /// Whether the job is a checkpoint, not a step of maintenance.
    pub fn is_checkpoint(&self) -> bool {
        matches!(self.work, Work::Checkpoint(_))
    }

    /// Runs the job. Never panics and never blocks the store; a failure is part of the outcome.
    pub fn run(mut self) -> FinishedJob {
        let outcome = self.reopen_if_detached().and_then(|()| match &self.work {
            Work::Checkpoint(frozen) => {
                let frozen = frozen.clone();
                self.flush(&frozen)
            }
            Work::Rewrite => self.rewrite_step(),
        });
        let is_checkpoint = self.is_checkpoint();
        let flushed = match self.work {
            Work::Checkpoint(frozen) if outcome.is_ok() => Some(frozen),
            _ => None,
        };
        FinishedJob { outcome, state: self.state, rewrite: self.rewrite, is_checkpoint, flushed }
    }

    /// Reopens the file by name if this handle failed or was replaced and accepts no more writes.
    fn reopen_if_detached(&mut self) -> Result<(), StoreError> {
        if self.state.file().paged.is_detached() {
            self.rewrite = None;
            let path = self.state.file().path.clone();
            self.state = FileState::open(&self.disk, &path, &self.options)?;
        }
        Ok(())
    }

    fn flush(&mut self, frozen: &Frozen) -> Result<(), StoreError> {
        let before = self.state.checkpoint;
        let file = self.state.file();
        let checkpoint = file.transact(Durability::Checkpoint, |transaction| {
            let mut writer = Writer::new(transaction);
            writer.apply(&frozen.rows, None, || file.paged.is_detached())?;
            let live_bytes = writer.live_bytes(before.live_bytes);
            let (position, digest) = (frozen.position, frozen.digest);
            let checkpoint = CheckpointNumbers { position, live_bytes, digest, ..before };
            checkpoint.save(transaction)?;
            Ok(checkpoint)
        })?;
        self.state.checkpoint = checkpoint;
        self.state.view = View::newest(self.state.file())?;
        // The checkpoint is valid whatever happens to the copy.
        if let Some(mut rewrite) = self.rewrite.take()
            && rewrite.apply(&frozen.rows).is_ok()
        {
            self.rewrite = Some(rewrite);
        }
        Ok(())
    }

    fn rewrite_step(&mut self) -> Result<(), StoreError> {
        let path = self.state.file().path.clone();
        let mut rewrite = match self.rewrite.take() {
            Some(rewrite) => rewrite,
            None => StoreBuilder::begin(&self.disk, &path, &self.options)?,
        };
        rewrite.step(&self.state.view, self.options.rewrite_step)?;
        if !rewrite.is_complete() {
            self.rewrite = Some(rewrite);
            return Ok(());
        }
        let checkpoint = rewrite.finish(&path, self.state.checkpoint)?;
        // Once the new file may have the name, a write to the old one would be lost.
        self.state.file().paged.detach().map_err(|error| StoreError::io(&path, error))?;
        publish(&self.disk, &path)?;
        self.state = FileState::open(&self.disk, &path, &self.options)?;
        let used = self.state.file().paged.disk_bytes();
        self.state.packing = used / (checkpoint.live_bytes / 1000).max(1);
        Ok(())
    }
}
