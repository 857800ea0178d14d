//! Online backup to a directory, and restore.
//!
//! A backup is a normal data directory: the stores as of a checkpoint, and a log that begins after it. Restoring
//! means copying it into place; [`restore`] does that with checks. A backup and a restore both mark their target until it
//! is complete. A backup is read back and verified before it counts as complete.

use std::path::Path;
use std::sync::Arc;

use codeq_core::id::ShardId;
use codeq_core::kv::Table;
use codeq_disk::{Disk, ReadOnlyDisk, RealDisk, SharedDisk};
use codeq_log::{FrameIndex, Log, NewLog};
use codeq_store::SnapshotJob;

use crate::dir_lock::{lock, lock_source};
use crate::engine::{Engine, entropy};
use crate::error::{DirectoryOperation, OpenError};
use crate::incomplete;
use crate::layout::{self, Manifest};

/// The log of a backup is empty: a segment of the usual 64 MiB would only add zeros to copy and store. Later segments
/// get the length that the engine is configured with.
const SEGMENT_BYTES: u64 = 64 << 10;

/// Summary of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// Number of shards.
    pub shards: u16,
    /// Number of tasks in all shards, including finished ones.
    pub tasks: u64,
    /// Bytes of its stores and its log.
    pub bytes: u64,
}

impl Engine {
    /// Writes a backup to `target`, which must be empty or missing. It contains everything acknowledged before the
    /// call; work continues meanwhile. It is read back and verified before it counts as complete.
    pub fn backup(&self, target: &Path) -> Result<Backup, OpenError> {
        self.checkpoint()?;
        empty_target(&*self.disk, target)?;
        incomplete::begin(&*self.disk, target, DirectoryOperation::Backup)?;
        let manifest = Manifest::new(self.shards(), entropy());
        // Start all jobs first, so that the shards are copied as of about the same moment.
        let jobs: Vec<_> = ShardId::all(self.shards())
            .zip(&self.shards)
            .map(|(number, shard)| {
                let (path, owner) = (layout::store_path(target, number), manifest.owner(number));
                let store = &shard.data.read().store;
                (number, store.snapshot_to(Arc::clone(&self.disk), &path, Some(owner)))
            })
            .collect();
        let last = copy_stores(&self.disk, target, jobs)?;
        let backup = verify(&self.disk, target, manifest)?;
        complete(&self.disk, target, manifest, last, SEGMENT_BYTES)?;
        Ok(backup)
    }
}

/// Creates the stores of a new directory, and returns the index after which its log starts. All stores get this index,
/// so that none asks for frames of the old log, which the new directory does not have.
fn copy_stores(
    disk: &SharedDisk,
    dir: &Path,
    jobs: Vec<(ShardId, SnapshotJob)>,
) -> Result<FrameIndex, OpenError> {
    let last = jobs.iter().map(|(_, job)| job.position()).max().unwrap_or(0);
    for (number, job) in jobs {
        let dir = layout::shard_dir(dir, number);
        disk.create_dir_all(&dir).map_err(OpenError::io("create", &dir))?;
        job.run_at(last)?;
        disk.sync_dir(&dir).map_err(OpenError::io("sync", &dir))?;
    }
    Ok(FrameIndex(last))
}

/// Verifies every page and row of the stores, and counts the tasks.
fn verify(disk: &SharedDisk, dir: &Path, manifest: Manifest) -> Result<Backup, OpenError> {
    let mut backup = Backup { shards: manifest.shards, tasks: 0, bytes: SEGMENT_BYTES };
    for number in ShardId::all(manifest.shards) {
        let path = layout::store_path(dir, number);
        let report = codeq_store::check(disk, &path)?;
        let tasks = report.rows.iter().find(|(table, _)| *table == Table::Task);
        backup.tasks += tasks.map_or(0, |(_, count)| *count);
        let file = disk.open(&path).map_err(OpenError::io("open", &path))?;
        backup.bytes += file.len().map_err(OpenError::io("measure", &path))?;
    }
    Ok(backup)
}

/// Makes a new data directory from a backup. `dir` must be empty or missing; the backup is only read. If the copy fails
/// after it has begun, `dir` keeps what was written and its mark, so that nothing accepts it.
pub fn restore(backup: &Path, dir: &Path, segment_bytes: u64) -> Result<(), OpenError> {
    let (source, target): (SharedDisk, SharedDisk) = (Arc::new(ReadOnlyDisk), Arc::new(RealDisk));
    let manifest = load(&*source, backup)?;
    let _source = lock_source(backup)?;
    match empty_target(&*target, dir) {
        // It may be the mark of a restore that is still running: the lock tells.
        Ok(()) | Err(OpenError::Unfinished { .. }) => {}
        Err(refusal) => return Err(refusal),
    }
    let _target = lock(dir)?;
    // Again: somebody may have used the directory before it was locked.
    empty_target(&*target, dir)?;
    copy((&source, backup, manifest), (&target, dir), segment_bytes, entropy())
}

/// Same as [`restore`], on a disk that nobody else uses, without locks. `log_id` is a random number.
pub fn restore_on(
    disk: &SharedDisk,
    backup: &Path,
    dir: &Path,
    segment_bytes: u64,
    log_id: u64,
) -> Result<(), OpenError> {
    let manifest = load(&**disk, backup)?;
    empty_target(&**disk, dir)?;
    copy((disk, backup, manifest), (disk, dir), segment_bytes, log_id)
}

/// Loads the manifest of a backup.
fn load(disk: &dyn Disk, backup: &Path) -> Result<Manifest, OpenError> {
    if let Some(manifest) = Manifest::load(disk, backup)? {
        return Ok(manifest);
    }
    Err(match incomplete::find(disk, backup)? {
        Some(operation) => OpenError::Unfinished { dir: backup.to_owned(), operation },
        None => OpenError::Foreign {
            dir: backup.to_owned(),
            reason: "it has no MANIFEST, so it is not a complete backup".to_owned(),
        },
    })
}

fn copy(
    (source, backup, found): (&SharedDisk, &Path, Manifest),
    (disk, dir): (&SharedDisk, &Path),
    segment_bytes: u64,
    log_id: u64,
) -> Result<(), OpenError> {
    found.check_shards(&**source, backup)?;
    found.check_log(&**source, backup)?;
    let log = codeq_log::verify(&**source, &layout::log_dir(backup))?;
    for number in ShardId::all(found.shards) {
        codeq_store::check(source, &layout::store_path(backup, number))?;
    }
    let manifest = Manifest::new(found.shards, log_id);
    incomplete::begin(&**disk, dir, DirectoryOperation::Restore)?;
    let mut jobs = Vec::new();
    for number in ShardId::all(manifest.shards) {
        let (from, to) = (layout::store_path(backup, number), layout::store_path(dir, number));
        let job = SnapshotJob::between(
            (source, &from, found.owner(number)),
            (disk, &to, manifest.owner(number)),
        )?;
        jobs.push((number, job));
    }
    let last = copy_stores(disk, dir, jobs)?;
    if log.last_index > last {
        return Err(OpenError::Foreign {
            dir: backup.to_owned(),
            reason: "it has been used since it was made: start codeq on it, and back that up"
                .to_owned(),
        });
    }
    complete(disk, dir, manifest, last, segment_bytes)
}

fn empty_target(disk: &dyn Disk, target: &Path) -> Result<(), OpenError> {
    disk.create_dir_all(target).map_err(OpenError::io("create", target))?;
    if Manifest::load(disk, target).is_ok_and(|manifest| manifest.is_none())
        && let Some(operation) = incomplete::find(disk, target)?
    {
        return Err(OpenError::Unfinished { dir: target.to_owned(), operation });
    }
    let names = disk.list(target).map_err(OpenError::io("list", target))?;
    match names.iter().find(|name| !incomplete::is_allowed(name)) {
        Some(name) => Err(OpenError::NotEmpty { dir: target.to_owned(), name: name.clone() }),
        None => Ok(()),
    }
}

/// Writes the log and, last, the manifest, which makes this a data directory.
fn complete(
    disk: &SharedDisk,
    dir: &Path,
    manifest: Manifest,
    last: FrameIndex,
    segment_bytes: u64,
) -> Result<(), OpenError> {
    let new = NewLog { first_index: last.next(), log_id: manifest.log_id };
    let options = codeq_log::Options { segment_bytes };
    drop(Log::create(disk.clone(), &layout::log_dir(dir), options, new)?);
    disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    manifest.save(&**disk, dir)?;
    incomplete::end(&**disk, dir)
}
