//! The file operations that the log and the store need, and nothing more.
//!
//! Everything durable in codeQ goes through [`Disk`] and [`DiskFile`], so that the simulator can put a
//! disk underneath that loses unsynced writes, tears pages, fills up and fails. This crate holds the
//! boundary and the operating system's side of it; it knows nothing of logs, stores or tasks.

mod real;

pub use real::{RealDisk, private_dir};

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A disk that several owners share.
pub type SharedDisk = Arc<dyn Disk>;

/// A directory tree in which files are created, renamed and removed.
///
/// Nothing that changes a directory (create, rename, remove) is durable before [`Disk::sync_dir`] on
/// the directory that holds the entry has returned.
pub trait Disk: Send + Sync + 'static {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Whether a file or directory of that name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// The names of the entries in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a directory and its parents; a directory that exists is fine.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Renames a file inside the tree, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the entries of a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file, read and written at explicit offsets.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buf` from `offset`; a file that ends before is an `UnexpectedEof`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`, growing the file where needed.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the written bytes durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// The length of the file in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// What there is too little of at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Space on the disk, or of a quota.
    Space,
    /// File descriptors, of the process or of the machine.
    Descriptors,
}

impl Shortage {
    /// What the system lacks, if that is why it refused. `EMFILE` and `ENFILE` come from opening, never from a
    /// write or a sync: nothing has been tried then.
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
