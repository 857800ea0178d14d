//! What lies where in a data directory, and the manifest that says what it is.
//!
//! ```text
//! MANIFEST          format version, number of shards, id of the log (text)
//! LOCK              held by the process that has the directory open
//! CLOCK             a reading of engine time (text); may be missing
//! log/              the log of all shards
//! shard-000/store   the rows of a shard, as of its last checkpoint
//! ```
//!
//! The manifest is written last: a directory without one holds nothing that was ever acknowledged.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::Disk;

use crate::error::OpenError;

/// The version of the layout. Raise it when an older program must not open the directory.
pub const FORMAT: u32 = 1;

/// The log's directory.
pub fn log_dir(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// A shard's directory.
pub fn shard_dir(dir: &Path, shard: u16) -> PathBuf {
    dir.join(format!("shard-{shard:03}"))
}

/// A shard's store.
pub fn store_path(dir: &Path, shard: u16) -> PathBuf {
    shard_dir(dir, shard).join("store")
}

/// The file that the owning process locks.
pub fn lock_path(dir: &Path) -> PathBuf {
    dir.join("LOCK")
}

/// The reading of engine time.
pub fn clock_path(dir: &Path) -> PathBuf {
    dir.join("CLOCK")
}

fn manifest_path(dir: &Path) -> PathBuf {
    dir.join("MANIFEST")
}

/// What a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Number of shards, fixed for ever: ids hash to them.
    pub shards: u16,
    /// The number that the log was made with.
    pub log_id: u64,
}

impl Manifest {
    /// Reads the manifest; none if there is none.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>, OpenError> {
        let path = manifest_path(dir);
        if !disk.exists(&path).map_err(OpenError::io("look for", &path))? {
            return Ok(None);
        }
        let text = read(disk, &path).map_err(OpenError::io("read", &path))?;
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let foreign = |reason: &str| OpenError::Foreign {
            dir: dir.to_owned(),
            reason: format!("its MANIFEST {reason}"),
        };
        let format = field("codeq-format").and_then(|text| text.parse().ok());
        let format: u32 = format.ok_or_else(|| foreign("does not say its format"))?;
        if format > FORMAT {
            let dir = dir.to_owned();
            return Err(OpenError::TooNew { dir, found: format, supported: FORMAT });
        }
        let shards = field("shards").and_then(|text| text.parse().ok()).filter(|n| *n > 0);
        let log_id = field("log-id").and_then(|text| text.parse().ok());
        match (shards, log_id) {
            (Some(shards), Some(log_id)) => Ok(Some(Manifest { shards, log_id })),
            _ => Err(foreign("is damaged: restore the directory from a backup")),
        }
    }

    /// Writes the manifest: from now on the directory is one of ours.
    pub fn save(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        let Manifest { shards, log_id } = self;
        let text = format!("codeq-format: {FORMAT}\nshards: {shards}\nlog-id: {log_id}\n");
        let (path, new) = (manifest_path(dir), dir.join("MANIFEST.new"));
        let write = || {
            if disk.exists(&new)? {
                disk.remove(&new)?;
            }
            let file = disk.create(&new)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.sync_data()?;
            disk.rename(&new, &path)?;
            disk.sync_dir(dir)
        };
        write().map_err(OpenError::io("write", &path))
    }
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<String> {
    const LONGEST: u64 = 4_096;
    let file = disk.open(path)?;
    let mut bytes = vec![0; file.len()?.min(LONGEST) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}
