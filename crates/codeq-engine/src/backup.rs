//! Online backup into a directory, and restoring from it.
//!
//! A backup is a data directory like any other: the stores as of a checkpoint, and a log that begins after
//! it. Restoring is copying it to where it is wanted; [`restore`] does that with checks.

use std::path::Path;
use std::sync::Arc;

use codeq_disk::{RealDisk, SharedDisk};
use codeq_log::{Log, NewLog};

use crate::engine::{Engine, entropy, lock};
use crate::error::OpenError;
use crate::layout::{self, Manifest};

impl Engine {
    /// Writes a backup into `target`, which must be empty or missing. Everything acknowledged before the
    /// call is in it; work goes on meanwhile.
    pub fn backup(&self, target: &Path) -> Result<(), OpenError> {
        self.checkpoint()?;
        empty_target(&*self.disk, target)?;
        let mut last = 0;
        for (number, shard) in (0..).zip(&self.shards) {
            let dir = layout::shard_dir(target, number);
            self.disk.create_dir_all(&dir).map_err(OpenError::io("create", &dir))?;
            let path = layout::store_path(target, number);
            let job = shard.data.read().store.snapshot_to(Arc::clone(&self.disk), &path);
            last = last.max(job.run()?);
            self.disk.sync_dir(&dir).map_err(OpenError::io("sync", &dir))?;
        }
        let segment_bytes = self.options.segment_bytes;
        complete(&self.disk, target, self.shards(), last, segment_bytes)
    }
}

/// Copies a backup into `dir`, which must be empty or missing, and makes it a directory of its own.
pub fn restore(backup: &Path, dir: &Path, segment_bytes: u64) -> Result<(), OpenError> {
    let disk: SharedDisk = Arc::new(RealDisk);
    let manifest = Manifest::load(&*disk, backup)?.ok_or_else(|| OpenError::Foreign {
        dir: backup.to_owned(),
        reason: "it has no MANIFEST, so it is not a complete backup".to_owned(),
    })?;
    let _source = lock(backup)?;
    empty_target(&*disk, dir)?;
    let _target = lock(dir)?;
    let mut last = 0;
    for number in 0..manifest.shards {
        let from = layout::store_path(backup, number);
        codeq_store::check(&disk, &from)?;
        let sub = layout::shard_dir(dir, number);
        disk.create_dir_all(&sub).map_err(OpenError::io("create", &sub))?;
        let store = codeq_store::Store::open(disk.clone(), &from, Default::default())?;
        last = last.max(store.snapshot_to(disk.clone(), &layout::store_path(dir, number)).run()?);
        disk.sync_dir(&sub).map_err(OpenError::io("sync", &sub))?;
    }
    let log = codeq_log::verify(&*disk, &layout::log_dir(backup))?;
    if log.last_index > last {
        return Err(OpenError::Foreign {
            dir: backup.to_owned(),
            reason: "it has been used since it was made: start codeq on it, and back that up"
                .to_owned(),
        });
    }
    complete(&disk, dir, manifest.shards, last, segment_bytes)
}

fn empty_target(disk: &dyn codeq_disk::Disk, target: &Path) -> Result<(), OpenError> {
    disk.create_dir_all(target).map_err(OpenError::io("create", target))?;
    let names = disk.list(target).map_err(OpenError::io("list", target))?;
    match names.iter().find(|name| *name != "LOCK" && *name != "lost+found") {
        Some(name) => Err(OpenError::NotEmpty { dir: target.to_owned(), name: name.clone() }),
        None => Ok(()),
    }
}

/// The log and, last, the manifest: now it is a data directory.
fn complete(
    disk: &SharedDisk,
    dir: &Path,
    shards: u16,
    last: u64,
    segment_bytes: u64,
) -> Result<(), OpenError> {
    let new = NewLog { first_index: last.saturating_add(1), log_id: entropy() };
    let options = codeq_log::Options { segment_bytes };
    drop(Log::create(disk.clone(), &layout::log_dir(dir), options, new)?);
    disk.sync_dir(dir).map_err(OpenError::io("sync", dir))?;
    Manifest { shards, log_id: new.log_id }.save(&**disk, dir)
}
