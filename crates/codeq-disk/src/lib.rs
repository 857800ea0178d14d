//! The file operations that the log and the store need, and nothing more.
//!
//! Everything durable in codeQ goes through [`Disk`] and [`DiskFile`], so that the simulator can substitute a disk that
//! loses unsynced writes, tears pages, fills up and fails. This crate has the traits and their implementation for the
//! operating system; it knows nothing about logs, stores or tasks.

mod real;

pub use real::{ReadOnlyDisk, RealDisk, private_dir};

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A disk that several owners share.
pub type SharedDisk = Arc<dyn Disk>;

/// A directory tree in which files are created, renamed and removed.
///
/// A change to a directory (create, rename, remove) is durable only after [`Disk::sync_dir`] on the directory that
/// contains the entry.
pub trait Disk: Send + Sync + 'static {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Whether a file or directory exists at the path.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// The names of the entries in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a directory and its parents; succeeds if it already exists.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the entries of a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// The directory that contains a path: its sync makes the name durable. `None` for the root.
pub fn containing_dir(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// An open file, read and written at explicit offsets.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buf` from `offset`; returns `UnexpectedEof` if the file ends earlier.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`, growing the file if needed.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the written bytes durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// The length of the file in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A resource that the system has temporarily run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Disk space, or a quota.
    Space,
    /// File descriptors of the process or the machine.
    Descriptors,
}

impl Shortage {
    /// Which shortage caused the error, if one did. `EMFILE` and `ENFILE` come from opening a file, never from a
    /// write or a sync, so nothing has been attempted yet.
    pub fn of(error: &io::Error) -> Option<Shortage> {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::StorageFull, _)
            | (io::ErrorKind::QuotaExceeded, _)
            | (io::ErrorKind::FileTooLarge, _) => Some(Shortage::Space),
            (_, Some(ENFILE | EMFILE)) => Some(Shortage::Descriptors),
            _ => None,
        }
    }
}
