//! Errors of a store, grouped by how the caller reacts.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::Shortage;

/// Why a store could not be opened, written or copied.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full. Nothing is lost: the rows stay in memory and in the log, the file stays at its last
    /// checkpoint, and the flush can be retried when there is space.
    #[error(
        "no space left for store {path}: free some space; a running server then retries its checkpoint"
    )]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// Too many files are open. Nothing is lost, as with a full disk.
    #[error(
        "no file descriptor left for store {path}: raise the limit of open files; a server retries its checkpoints"
    )]
    NoDescriptors {
        /// The store's file.
        path: PathBuf,
    },
    /// The disk failed. After a failed sync the state of the disk is unknown, so this is not retried: the process stops
    /// and recovers from the log.
    #[error("store {path}: {source}")]
    Io {
        /// The store's file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not an intact store.
    #[error(
        "store {path} is damaged ({reason}): restore it from a backup or rebuild it from the log; \
         the file has been left as it is"
    )]
    Corrupt {
        /// The store's file.
        path: PathBuf,
        /// How the damage showed.
        reason: String,
    },
    /// The file is intact, but belongs to another shard or directory.
    #[error(
        "store {path} does not belong here: {what}; put the right file back, or restore the directory from a backup"
    )]
    Foreign {
        /// The store's file.
        path: PathBuf,
        /// Why it does not belong here.
        what: String,
    },
    /// A chunk of exported rows was refused. The import is over and has left nothing; the sender starts again.
    #[error("rows for store {path} were refused at chunk {chunk}: {reason}")]
    Import {
        /// The store that was to be built.
        path: PathBuf,
        /// Number of the chunk.
        chunk: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A newer release wrote the file.
    #[error(
        "store {path} has format version {found}, this release reads up to {supported}: \
         start it with the newer release that wrote it"
    )]
    TooNew {
        /// The store's file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
        /// The newest version that this release can read.
        supported: u64,
    },
}

impl StoreError {
    /// Whether the operation can be repeated later without loss.
    pub fn is_retryable(&self) -> bool {
        self.shortage().is_some()
    }

    /// The shortage that caused the error, if the operation can be repeated later.
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
            // A block that does not match its checksum, or a file that ends too early.
            (None, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                Self::corrupt(&path, source)
            }
            (None, _) => StoreError::Io { path, source },
        }
    }

    pub(crate) fn corrupt(path: &Path, reason: impl ToString) -> Self {
        StoreError::Corrupt { path: path.to_owned(), reason: reason.to_string() }
    }

    /// Converts an error of the B-tree library.
    pub(crate) fn redb(path: &Path, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(source) => Self::io(path, source),
            other => Self::corrupt(path, other),
        }
    }
}
