//! What can go wrong with a store, split by what the caller does about it.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::Shortage;

/// Why a store could not be opened, written or copied.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full. Nothing is lost: the rows stay in memory and in the log, the file stays at its
    /// last checkpoint, and the flush can be tried again when there is room.
    #[error("no space left for store {path}: free some space, the checkpoint is tried again")]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// No file could be opened: too many are open. Nothing is lost, as with a full disk.
    #[error("no file descriptor left for store {path}: the checkpoint is tried again")]
    NoDescriptors {
        /// The store's file.
        path: PathBuf,
    },
    /// The disk failed. After a failed sync nobody knows what is on the disk, so this is not retried:
    /// the process stops and recovers from the log.
    #[error("store {path}: {source}")]
    Io {
        /// The store's file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a healthy store.
    #[error(
        "store {path} is damaged ({reason}): restore it from a backup or rebuild it from the log; \
         the file has been left as it is"
    )]
    Corrupt {
        /// The store's file.
        path: PathBuf,
        /// What was wrong with it.
        reason: String,
    },
    /// The file is a healthy store, but of another shard or another directory.
    #[error(
        "store {path} does not belong here: {what}; put the right file back, or restore the directory from a backup"
    )]
    Foreign {
        /// The store's file.
        path: PathBuf,
        /// How that was seen.
        what: String,
    },
    /// The file was written by a newer release.
    #[error(
        "store {path} has format version {found}, this release reads up to {supported}: \
         start it with the newer release that wrote it"
    )]
    TooNew {
        /// The store's file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
        /// The newest version that this release knows.
        supported: u64,
    },
}

impl StoreError {
    /// Whether the same operation can succeed later without anything being lost in between.
    pub fn is_retryable(&self) -> bool {
        self.shortage().is_some()
    }

    /// What the system lacked, if the same operation can succeed later.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            StoreError::Full { .. } => Some(Shortage::Space),
            StoreError::NoDescriptors { .. } => Some(Shortage::Descriptors),
            _ => None,
        }
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match (Shortage::of(&source), source.kind()) {
            (Some(Shortage::Space), _) => StoreError::Full { path },
            (Some(Shortage::Descriptors), _) => StoreError::NoDescriptors { path },
            // A block that does not match its checksum, and a file that ends before one.
            (None, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                Self::corrupt(&path, source)
            }
            (None, _) => StoreError::Io { path, source },
        }
    }

    pub(crate) fn corrupt(path: &Path, reason: impl ToString) -> Self {
        StoreError::Corrupt { path: path.to_owned(), reason: reason.to_string() }
    }

    /// Sorts an error of the B-tree library into ours.
    pub(crate) fn redb(path: &Path, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(source) => Self::io(path, source),
            other => Self::corrupt(path, other),
        }
    }
}
