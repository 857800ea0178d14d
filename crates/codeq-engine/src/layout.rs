//! The files of a data directory, and the manifest that describes it.
//!
//! ```text
//! MANIFEST          format version, number of shards, id of the log, checksum (text)
//! LOCK              held by the process that has the directory open
//! CLOCK             a reading of engine time (text); may be missing
//! INCOMPLETE        only while the directory is being created, see `incomplete`
//! INSTALL           only while the rows of another node replace those of this one, see `install`
//! log/              the log of all shards
//! raft/             only in a member of a cluster: its vote and the members
//! shard-000/store   the rows of a shard, as of its last checkpoint
//! shard-000/store.incoming   rows of another node, only before and while they are installed
//! ```
//!
//! The manifest is written last: a directory without one contains nothing that was ever acknowledged. Every store
//! names its shard, the number of shards and the log that its rows come from; the log's files name the log's id. All
//! of that is checked against the manifest.

use codeq_core::id::ShardId;
use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::Disk;
use codeq_store::Owner;

use crate::error::OpenError;
use crate::options::SHARDS_MAX;

/// The version of the layout. Raise it when an older program must not open the directory. Version 1 had no checksum
/// in the manifest, and its stores did not name their owner. Opening such a directory upgrades it.
pub const FORMAT: u32 = 2;

/// The log's directory.
pub fn log_dir(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// A shard's directory.
pub fn shard_dir(dir: &Path, shard: ShardId) -> PathBuf {
    dir.join(format!("shard-{shard:03}"))
}

/// A shard's store.
pub fn store_path(dir: &Path, shard: ShardId) -> PathBuf {
    shard_dir(dir, shard).join("store")
}

/// The rows that are to replace a shard's store.
pub fn incoming_path(dir: &Path, shard: ShardId) -> PathBuf {
    shard_dir(dir, shard).join("store.incoming")
}

/// The file that the owning process locks.
pub fn lock_path(dir: &Path) -> PathBuf {
    dir.join("LOCK")
}

/// The reading of engine time.
pub fn clock_path(dir: &Path) -> PathBuf {
    dir.join("CLOCK")
}

/// The vote and the members of a cluster, which only a member has.
pub fn raft_state_path(dir: &Path) -> PathBuf {
    dir.join("raft").join("state")
}

/// Refuses the directory of a member of a cluster: its log cannot be replayed without the other members.
pub(crate) fn refuse_member(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let state = raft_state_path(dir);
    if !disk.exists(&state).map_err(OpenError::io("look for", &state))? {
        return Ok(());
    }
    let reason = "it belongs to a member of a cluster and cannot run alone".to_owned();
    Err(OpenError::Foreign { dir: dir.to_owned(), reason })
}

fn manifest_path(dir: &Path) -> PathBuf {
    dir.join("MANIFEST")
}

/// Whether a name is that of a shard's directory.
pub(crate) fn is_shard(name: &str) -> bool {
    name.starts_with("shard-")
}

/// Describes a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// The version of the layout it was written in.
    pub format: u32,
    /// Number of shards, fixed for ever because ids hash to them.
    pub shards: u16,
    /// The random number that identifies the log.
    pub log_id: u64,
}

impl Manifest {
    /// The manifest of a new directory.
    pub fn new(shards: u16, log_id: u64) -> Manifest {
        Manifest { format: FORMAT, shards, log_id }
    }

    /// The owner that the store of a shard must name.
    pub fn owner(&self, shard: ShardId) -> Owner {
        Owner { shard: shard.0, shards: self.shards, log_id: self.log_id }
    }

    /// Reads the manifest; `None` if there is none.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>, OpenError> {
        let path = manifest_path(dir);
        if !disk.exists(&path).map_err(OpenError::io("look for", &path))? {
            return Ok(None);
        }
        let foreign = |reason: &str| OpenError::Foreign {
            dir: dir.to_owned(),
            reason: format!("its MANIFEST {reason}"),
        };
        let damaged = "is damaged: restore the directory from a backup";
        let text = match read(disk, &path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(foreign(damaged));
            }
            read => read.map_err(OpenError::io("read", &path))?,
        };
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let format = field("codeq-format").and_then(|text| text.parse().ok());
        let format: u32 = format.ok_or_else(|| foreign("does not say its format"))?;
        if format > FORMAT {
            let dir = dir.to_owned();
            return Err(OpenError::TooNew { dir, found: format, supported: FORMAT });
        }
        let shards = field("shards").and_then(|text| text.parse().ok());
        let log_id = field("log-id").and_then(|text| text.parse().ok());
        let manifest = shards
            .zip(log_id)
            .map(|(shards, log_id)| Manifest { format, shards, log_id })
            // Byte for byte what would be written: there is only one way to write it.
            .filter(|manifest| {
                (1..=SHARDS_MAX).contains(&manifest.shards) && manifest.text() == text
            });
        manifest.map(Some).ok_or_else(|| foreign(damaged))
    }

    /// Writes the manifest in the newest format, which makes the directory complete.
    pub fn save(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        let text = Manifest { format: FORMAT, ..*self }.text();
        replace(disk, dir, "MANIFEST.new", "MANIFEST", &text)
    }

    fn text(&self) -> String {
        let Manifest { format, shards, log_id } = self;
        let fields = format!("codeq-format: {format}\nshards: {shards}\nlog-id: {log_id}\n");
        match format {
            1 => fields,
            _ => format!("{fields}checksum: {:08x}\n", crc32c::crc32c(fields.as_bytes())),
        }
    }

    /// Refuses a directory that does not have exactly the shards that the manifest names.
    pub fn check_shards(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        let names = disk.list(dir).map_err(OpenError::io("list", dir))?;
        let found: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| is_shard(name)).collect();
        let wanted: Vec<String> =
            (0..self.shards).map(|shard| format!("shard-{shard:03}")).collect();
        let missing = wanted.iter().find(|name| !found.contains(&name.as_str()));
        let extra = found.iter().find(|name| !wanted.iter().any(|wanted| wanted == *name));
        let reason = match (missing, extra) {
            (Some(name), _) => format!("{name} is missing"),
            (None, Some(name)) => format!("{name} is there too"),
            (None, None) => return Ok(()),
        };
        Err(self.mixed(dir, &format!("its MANIFEST says {} shard(s), but {reason}", self.shards)))
    }

    /// Refuses a log other than the one that the manifest names.
    pub fn check_log(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        match codeq_log::log_id(disk, &log_dir(dir))? {
            Some(found) if found != self.log_id => {
                let expected = self.log_id;
                let text =
                    format!("its log has the id {found:016x}, the manifest says {expected:016x}");
                Err(self.mixed(dir, &text))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn mixed(&self, dir: &Path, reason: &str) -> OpenError {
        let reason = format!(
            "{reason}; nothing was changed: put the right files back, or restore it from a backup"
        );
        OpenError::Mixed { dir: dir.to_owned(), reason }
    }
}

/// Writes a small file durably, completely or not at all.
pub(crate) fn replace(
    disk: &dyn Disk,
    dir: &Path,
    unfinished: &str,
    name: &str,
    text: &str,
) -> Result<(), OpenError> {
    let (path, new) = (dir.join(name), dir.join(unfinished));
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

pub(crate) fn read(disk: &dyn Disk, path: &Path) -> io::Result<String> {
    const LONGEST: u64 = 65_536;
    let file = disk.open(path)?;
    let mut bytes = vec![0; file.len()?.min(LONGEST) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}
